//! Every layout is a bijection between the units of its stripes and places, with the units of a
//! stripe on different slots, no place used twice and none wasted.

use std::collections::HashSet;

use weft_code::{CodeSpec, SlotNo};
use weft_layout::{Algorithm, Layout, UnitLocation, for_code};

fn assert_sound(layout: &dyn Layout, rows: u64, what: &str) -> u64 {
    let stripes = layout.stripes(rows);
    let mut used = HashSet::new();
    for stripe in 0..stripes {
        let mut slots = HashSet::new();
        for unit in 0..layout.width() {
            let place = layout.place(stripe, unit);
            let UnitLocation { slot, row } = place;
            assert!(
                slot < SlotNo(layout.slots()) && row < rows,
                "{what}: {stripe}.{unit} at {place:?}"
            );
            assert!(slots.insert(slot), "{what}: stripe {stripe} has slot {slot} twice");
            assert!(used.insert(place), "{what}: {place:?} used twice");
            assert_eq!(layout.locate(slot, row), Some((stripe, unit)), "{what}: {place:?}");
            let next = layout.place(stripe + layout.period(), unit);
            assert_eq!(next.slot, slot, "{what}: period");
        }
    }
    let all = layout.slots() as u64 * (rows + 2);
    let mut unused = 0;
    for place in (0..all).map(|i| (i / (rows + 2), i % (rows + 2))) {
        let place = UnitLocation { slot: SlotNo(usize::try_from(place.0).unwrap()), row: place.1 };
        if !used.contains(&place) {
            assert_eq!(layout.locate(place.slot, place.row), None, "{what}: {place:?}");
            unused += u64::from(place.row < rows);
        }
    }
    assert_eq!(layout.locate(SlotNo(layout.slots()), 0), None);
    unused
}

fn check(name: &str, algorithm: Algorithm, slots: usize, rows: u64) {
    let spec: CodeSpec = name.parse().unwrap();
    let what = format!("{name} {algorithm} on {slots} slots of {rows} rows");
    let layout = for_code(spec, algorithm, slots, rows).unwrap();
    assert_eq!((layout.slots(), layout.width()), (slots, spec.shape(slots).unwrap().width()));
    let unused = assert_sound(&*layout, rows, &what);
    let (slots, width) = (slots as u64, layout.width() as u64);
    let most = match name.as_bytes() {
        // far and offset need a row for each copy
        [.., b'f' | b'o', _] => rows % width * slots,
        _ => width - 1,
    };
    assert!(unused <= most, "{what}: {unused} places unused");
}

#[test]
fn all_rotations() {
    for (algorithm, _) in Algorithm::ALL {
        for slots in 4..9 {
            check("raid6", algorithm, slots, 3 * slots as u64 + 1);
            if !algorithm.raid6_only() {
                check("raid5", algorithm, slots, 3 * slots as u64 + 1);
                check("rs:3+1", algorithm, 4, 13);
                check("rs:4+3", algorithm, 7, 15);
                check("rs:1+4", algorithm, 5, 15);
            }
        }
    }
}

#[test]
fn all_arrangements_of_copies() {
    for slots in 2..8 {
        for copies in 2..=slots {
            for kind in ["n", "f", "o"] {
                for rows in [0, 1, 2, 5, 12, 23] {
                    check(&format!("raid10:{kind}{copies}"), Algorithm::default(), slots, rows);
                }
            }
        }
    }
}

#[test]
fn codes_with_groups_and_plain_levels() {
    for (name, slots) in [
        ("raid0", 1),
        ("raid0", 5),
        ("raid1", 2),
        ("raid1", 4),
        ("raid4", 3),
        ("raid5", 2),
        ("lrc:4,2,1", 7),
        ("lrc:6,3,2", 11),
        ("lrc:4,1,0", 5),
        ("drc:4,2,1", 7),
        ("drc:6,3,2", 11),
        ("drc-g:4,2,1", 7),
        ("drc-g:6,2,2", 10),
        ("drc-oa:9,3,1", 13),
        ("raid6", 255),
    ] {
        for rows in [0, 1, 7, 100] {
            check(name, Algorithm::default(), slots, rows);
        }
    }
}

#[test]
fn more_slots_than_units() {
    for (name, width) in [("rs:1+1", 2), ("rs:4+2", 6), ("lrc:4,2,1", 7), ("drc-g:4,2,1", 7)] {
        for slots in width + 1..width + 9 {
            for rows in [0, 1, 2, 7, 50] {
                check(name, Algorithm::default(), slots, rows);
            }
        }
    }
    check("rs:10+4", Algorithm::default(), 255, 30);
}

/// A local group never leaves its slots, so three failures meet in one group in all stripes or
/// none.
#[test]
fn groups_stay_in_their_slots() {
    for (name, hold) in [("lrc:4,2,1", 1), ("drc:4,2,1", 4)] {
        let layout = for_code(name.parse().unwrap(), Algorithm::default(), 7, 99).unwrap();
        for stripe in 0..50 {
            let slot = |unit| layout.place(stripe, unit).slot;
            for (group, units) in [[0, 1, 4], [2, 3, 5]].into_iter().enumerate() {
                assert!(units.into_iter().all(|unit| slot(unit).0 / 3 == group));
            }
            assert_eq!(slot(6), SlotNo(6));
            // parity moves left, once in `hold` stripes
            let turn = usize::try_from(stripe / hold % 3).unwrap();
            assert_eq!((slot(4), slot(5)), (SlotNo(2 - turn), SlotNo(5 - turn)));
        }
        assert_eq!(layout.period(), 3 * hold);
    }
}
