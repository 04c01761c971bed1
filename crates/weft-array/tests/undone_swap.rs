//! A replacement takes its member's slot. While the superblock that says so is being written, so
//! many other members fail that the swap is undone. Whenever the power goes, the member that was to
//! be replaced holds everything, and must not be left out as stale.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::bench::{UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, holding, mix};
use crate::common::*;
use weft_array::{Array, ArrayState, AssembleOptions, Event, MemberState, create};
use weft_code::SlotNo;
use weft_rt::MILLISECOND;

const SLOTS: usize = 5;
const SIZE: u64 = (2 << 20) + 16 * UNIT;

/// The contents of the disks at each operation from the swap on. The disks `failing` fail when the
/// superblock of the swap is written to them.
fn record(failing: &'static [usize]) -> (Vec<Vec<Medium>>, usize) {
    let moments: Rc<RefCell<Vec<Vec<Medium>>>> = Rc::default();
    let bytes = Rc::new(Cell::new(0));
    let (kept, len) = (moments.clone(), bytes.clone());
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); SLOTS + 1]);
        let superblock = create(&members(&disks[..SLOTS]), &options("rs:2+3")).await.expect("made");
        let array = assemble(&rt, &members(&disks[..SLOTS])).await;
        len.set(array.size_bytes() as usize);
        write(&array, 0, &pattern(0, len.get(), 1)).await;
        array.flush().await.expect("flushed");
        array.set_throttle(0, Some(UNIT * 1000));
        array.replace(SlotNo(0), disks[SLOTS].clone()).await.expect("begun");
        let events = array.subscribe();
        for failing in failing {
            *disks[*failing].faults.unwritable.borrow_mut() = 0..superblock.area.map_offset;
        }
        let seen = disks.clone();
        power.watch(move || {
            let media = seen.iter().map(|disk| disk.medium.borrow().clone()).collect();
            kept.borrow_mut().push(media);
        });
        array.set_throttle(0, None);
        let mut failed = 0;
        while array.status().state != ArrayState::Degraded {
            rt.sleep(1000).await;
            let events = std::iter::from_fn(|| events.try_next());
            failed += events.filter(|event| matches!(event, Event::MemberFailed { .. })).count();
            assert!(array.status().broken.is_none(), "{:?}", array.status().broken);
        }
        assert_eq!(failed, failing.len());
        // The swap is tried again after their exclusion.
        rt.sleep(20 * MILLISECOND).await;
        assert_eq!(array.status().slots[0].disk, "test5");
        power.watch(|| {});
    });
    (moments.take(), bytes.get())
}

#[test]
fn the_member_of_a_swap_that_was_taken_back_is_not_stale() {
    for failing in [&[1, 2][..], &[2, 4], &[1, 3]] {
        let (moments, len) = record(failing);
        assert!(moments.len() > 20, "only {} steps", moments.len());
        for (number, media) in moments.into_iter().enumerate() {
            // What is being written has reached all disks, all except the member's, or some.
            let some = Leave::Some(mix(number as u64));
            for leave in [[Leave::All; 2], [Leave::Nothing, Leave::All], [some; 2]] {
                let left = |(disk, medium): (usize, &Medium)| leave[disk.min(1)].of(medium);
                let media: Vec<_> = media.iter().enumerate().map(left).collect();
                run(move |rt| async move {
                    let what = format!("{failing:?} fail, step {number}, {leave:?}");
                    let disks = members(&holding(&rt, &Power::new(), SIZE, &media));
                    let options = AssembleOptions { nonce: 9, ..Default::default() };
                    let array = match Array::assemble(&rt, disks, options).await {
                        Ok(array) => array,
                        Err(error) => panic!("{what}: {error}"),
                    };
                    let status = array.status();
                    assert_eq!(status.slots[0].state, MemberState::Active, "{what}: {status:#?}");
                    assert!(read(&array, 0, len).await == pattern(0, len, 1), "{what}");
                });
            }
        }
    }
}
