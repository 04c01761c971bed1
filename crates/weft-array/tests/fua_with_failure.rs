//! A FUA write that met a failing member is as durable as any other: the next write of its stripe
//! must not treat its units as being written. A power cut comes at any operation of that next
//! write, and another disk is lost with it.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::bench::{UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, holding, mix};
use crate::common::*;
use weft_array::{Array, AssembleOptions, create};
use weft_disk::Disk;
use weft_rt::Buf;

/// These survive two lost members.
const CODES: [(&str, usize); 3] = [("raid6", 6), ("drc-g:4,2,1", 7), ("rs:4+3", 7)];

const SIZE: u64 = (2 << 20) + 16 * UNIT;

/// The contents of the disks at each operation of a write that follows a FUA write during which
/// `failing` failed. All but the last unit of the first stripe were written by that FUA write.
fn record(code: &'static str, slots: usize, failing: usize) -> Vec<Vec<Medium>> {
    let moments: Rc<RefCell<Vec<Vec<Medium>>>> = Rc::default();
    let noted = moments.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); slots]);
        let all = members(&disks);
        let superblock = create(&all, &options(code)).await.expect("created");
        let options = AssembleOptions { nonce: 1, ..Default::default() };
        let array = Array::assemble(&rt, all, options).await.expect("assembled");
        let stripe = array.stripe_bytes() as usize;
        let durable = stripe - UNIT as usize;
        write(&array, 0, &pattern(0, stripe, 1)).await;
        array.flush().await.expect("flushed");
        *disks[failing].faults.unwritable.borrow_mut() = superblock.area.data_offset..SIZE;
        let data = Buf::copy_from(&pattern(0, durable, 2)).freeze();
        array.write(0, data, true).await.expect("written");
        let watched = disks.clone();
        power.watch(move || {
            let media = watched.iter().map(|disk| disk.medium.borrow().clone()).collect();
            noted.borrow_mut().push(media);
        });
        write(&array, durable as u64, &pattern(durable as u64, UNIT as usize, 3)).await;
        power.watch(|| {});
    });
    moments.take()
}

fn after_cut(media: Vec<Medium>, failing: usize, lost: usize, what: String) {
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &media);
        let left = disks.iter().enumerate().filter(|(n, _)| ![failing, lost].contains(n));
        let left: Vec<Rc<dyn Disk>> = left.map(|(_, disk)| disk.clone() as Rc<dyn Disk>).collect();
        let options = AssembleOptions { nonce: 9, force_degraded: true, ..Default::default() };
        let array = match Array::assemble(&rt, left, options).await {
            Ok(array) => array,
            Err(error) => panic!("{what}: {error}"),
        };
        let durable = (array.stripe_bytes() - UNIT) as usize;
        let found = read(&array, 0, durable).await;
        assert!(found == pattern(0, durable, 2), "{what}");
    });
}

#[test]
fn durable_data_stays_durable_when_the_next_write_is_interrupted() {
    for (code, slots) in CODES {
        for failing in 0..slots {
            let moments = record(code, slots, failing);
            assert!(moments.len() > 3, "{code}: only {} steps", moments.len());
            for (number, media) in moments.into_iter().enumerate() {
                for lost in (0..slots).filter(|lost| *lost != failing) {
                    let leave =
                        [Leave::All, Leave::Nothing, Leave::Some(mix(number as u64))][lost % 3];
                    let media = media.iter().map(|medium| leave.of(medium)).collect();
                    let what =
                        format!("{code}, {failing} fails, step {number}, {leave:?}, lost {lost}");
                    after_cut(media, failing, lost, what);
                }
            }
        }
    }
}
