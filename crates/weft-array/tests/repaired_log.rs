//! A scrub has corrected a stripe whose log records are still on disk. After a power cut, with any
//! disk lost, recovery does not compute parity from them.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::bench::{UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::*;
use weft_array::{Consistency, CreateOptions, ScrubMode, create};

const SIZE: u64 = (3 << 20) + 16 * UNIT;

/// The disks at a crash, and the array's contents.
fn repaired(code: &'static str, count: usize) -> (Vec<Medium>, Vec<u8>) {
    let left: Rc<RefCell<(Vec<Medium>, Vec<u8>)>> = Rc::default();
    let out = left.clone();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); count]);
        let all = members(&disks);
        let options = CreateOptions { consistency: Consistency::Ppl, ..options(code) };
        let superblock = create(&all, &options).await.expect("created");
        let array = assemble(&rt, &all).await;
        let stripe = array.stripe_bytes() as usize;
        let mut bytes = pattern(0, 4 * stripe, 1);
        write(&array, 0, &bytes).await;
        array.flush().await.expect("flushed");
        // A small write: its record is the last one in the log.
        let part = pattern(9, 512, 2);
        write(&array, 0, &part).await;
        bytes[..512].copy_from_slice(&part);
        array.flush().await.expect("flushed");
        // Another unit of the stripe changes silently.
        let layout =
            weft_layout::for_code(superblock.code, superblock.algorithm, count, superblock.rows)
                .expect("laid");
        let place = layout.place(0, 1);
        let at = superblock.area.data_offset + place.row * UNIT;
        disks[place.slot.0].medium.borrow_mut().poke(at, &[0x5a; 512]);
        let report = array.scrub(ScrubMode::Repair).await.expect("scrubbed");
        assert_eq!((report.mismatches, report.repaired), (1, 1), "{code}");
        array.flush().await.expect("flushed");
        let held = read(&array, 0, bytes.len()).await;
        let changed = UNIT as usize..UNIT as usize + 512;
        assert!(held[..changed.start] == bytes[..changed.start]);
        assert!(held[changed.end..] == bytes[changed.end..]);
        let media = disks.iter().map(|disk| Leave::All.of(&disk.medium.borrow()));
        *out.borrow_mut() = (media.collect(), held);
    });
    left.take()
}

#[test]
fn records_of_before_do_not_count_after_a_repair() {
    for (code, count) in [("raid5", 4), ("raid6", 5), ("rs:3+2", 5)] {
        let (media, expected) = repaired(code, count);
        for lost in (0..count).map(Some).chain([None]) {
            let (media, expected) = (media.clone(), expected.clone());
            run(move |rt| async move {
                let disks = holding(&rt, &Power::new(), SIZE, &media);
                let all = members(&disks).into_iter().enumerate();
                let found: Vec<_> =
                    all.filter(|(n, _)| Some(*n) != lost).map(|(_, disk)| disk).collect();
                let array = assemble(&rt, &found).await;
                let now = read(&array, 0, expected.len()).await;
                assert!(now == expected, "{code}, lost {lost:?}");
            });
        }
    }
}
