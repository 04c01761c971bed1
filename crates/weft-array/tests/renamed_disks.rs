//! Reads that take long while the place of what they read changes, or what may answer for it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::bench::{UNIT, members, options as bench_options, run};
use crate::common::disk::{Leave, Medium, Power, ReadStep, holding};
use crate::common::*;
use weft_array::reshape::ReshapeOptions;
use weft_array::{CreateOptions, create};
use weft_disk::Volume;
use weft_rt::{Buf, MILLISECOND};

const SIZE: u64 = (3 << 20) + 96 * UNIT;

/// The address is where it was when the read ends, and was elsewhere when the disk was read.
#[test]
fn a_read_that_outlasts_a_reshape_there_and_back() {
    let mut wrong_places = 0;
    for at in (0..12 * UNIT).step_by(UNIT as usize) {
        wrong_places += usize::from(reads_at(at));
    }
    assert!(wrong_places > 0, "no read met another place's contents");
}

/// Returns whether the place of the address held something else when it was read.
fn reads_at(at: u64) -> bool {
    let met = Rc::new(Cell::new(false));
    let out = met.clone();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 3]);
        let all = members(&disks);
        let options = CreateOptions {
            head_room_bytes: Some(1 << 20),
            region_bytes: Some(32 << 10),
            ..bench_options("raid5")
        };
        let superblock = create(&all, &options).await.expect("created");
        let array = assemble(&rt, &all).await;
        let bytes = pattern(0, 100 * UNIT as usize, 1);
        write(&array, 0, &bytes).await;
        array.flush().await.expect("flushed");
        let layout = weft_layout::for_code(
            superblock.code,
            superblock.algorithm,
            superblock.slots.len(),
            superblock.rows,
        )
        .expect("laid");
        let place = layout.place(at / (2 * UNIT), (at / UNIT % 2) as usize);
        let offset = superblock.area.data_offset + place.row * UNIT;
        let disk = &disks[place.slot.0];
        disk.faults.reads_at.set(ReadStep::Start);
        let reader = array.clone();
        let reading = rt.spawn(async move { reader.read(at, Buf::new(UNIT as usize)).await });
        rt.sleep(MILLISECOND).await;
        array.set_throttle(0, Some(256 << 10));
        let wanted = ReshapeOptions {
            unit_bytes: Some(2 * UNIT),
            head_room_bytes: Some(4 * UNIT),
            ..ReshapeOptions::default()
        };
        array.reshape(wanted).await.expect("begun");
        while array.status().jobs.iter().all(|job| job.stripes_done < 16) {
            assert!(array.is_reshaping(), "too fast");
            rt.sleep(MILLISECOND).await;
        }
        let mut there = vec![0; UNIT as usize];
        disk.medium.borrow().read(offset, &mut there);
        out.set(there != bytes[at as usize..][..UNIT as usize]);
        disk.faults.reads_at.set(ReadStep::Looked);
        rt.sleep(MILLISECOND).await;
        array.turn_reshape().await.expect("turned");
        array.set_throttle(0, None);
        while array.is_reshaping() {
            rt.sleep(MILLISECOND).await;
        }
        disk.faults.reads_at.set(ReadStep::End);
        let (result, found) = reading.await;
        result.expect("read");
        assert!(*found == bytes[at as usize..][..UNIT as usize], "the read at {at} is wrong");
    });
    met.get()
}

/// After a crash the copies of a mirror may differ. The first answers; where it cannot be read,
/// another does, and what a cache kept of the first must go.
#[test]
fn a_cache_forgets_what_another_copy_may_answer() {
    let media: Rc<RefCell<Vec<Medium>>> = Rc::default();
    let out = media.clone();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 2]);
        let all = members(&disks);
        create(&all, &bench_options("raid1")).await.expect("created");
        let array = assemble(&rt, &all).await;
        write(&array, 0, &pattern(0, 64 << 10, 1)).await;
        array.flush().await.expect("flushed");
        write(&array, 0, &pattern(0, 64 << 10, 2)).await;
        let left = disks.iter().map(|disk| Leave::Completed.of(&disk.medium.borrow()));
        *out.borrow_mut() = left.collect();
    });
    let media = media.take();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &media);
        let all = members(&disks);
        let array = assemble(&rt, &all).await;
        array.set_paused(true);
        rt.sleep(10 * MILLISECOND).await;
        assert!(array.status().regions.resync > 0, "nothing awaits a resync");
        let last = array.region_at(60 << 10).start;
        read(&array, last, 512).await;
        let before = Volume::corrections(&array);
        read(&array, last, 512).await;
        assert_eq!(Volume::corrections(&array), before, "nothing has changed");
        // The first copy.
        let data = array.status().size_bytes;
        assert!(data > last);
        let (offset, _) = *disks[0].reads.borrow().last().expect("it was read");
        disks[0].faults.unreadable.borrow_mut().insert(offset / 512);
        read(&array, last, 512).await;
        assert!(Volume::corrections(&array) > before, "a cache keeps the first copy's contents");
    });
}
