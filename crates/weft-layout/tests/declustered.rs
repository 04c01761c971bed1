//! With more slots than units, every slot holds the same share and contributes equally to a
//! rebuild.

use weft_layout::{Algorithm, Layout, for_code};

fn layout(name: &str, slots: usize) -> Box<dyn Layout> {
    for_code(name.parse().unwrap(), Algorithm::default(), slots, 1 << 20).unwrap()
}

const SHAPES: [(&str, usize); 6] = [
    ("rs:4+2", 11),
    ("rs:4+2", 12),
    ("rs:8+2", 24),
    ("drc:4,2,1", 8),
    ("lrc:4,2,1", 21),
    ("rs:1+1", 9),
];

/// Over a period every unit, so every parity, visits every slot equally often.
#[test]
fn every_kind_of_unit_is_spread_evenly() {
    for (name, slots) in SHAPES {
        let layout = layout(name, slots);
        for unit in 0..layout.width() {
            let mut visits = vec![0; slots];
            (0..layout.period()).for_each(|stripe| visits[layout.place(stripe, unit).slot.0] += 1);
            assert!(visits.iter().all(|v| *v == visits[0]), "{name} on {slots}, unit {unit}");
        }
    }
}

/// Stripes shared by two slots, that is, how much one reads when the other fails: within a
/// twentieth of the mean.
#[test]
fn rebuild_reads_are_spread_evenly() {
    for (name, slots) in SHAPES {
        let layout = layout(name, slots);
        let mut shared = vec![0u64; slots * slots];
        for stripe in 0..layout.period() {
            let units = 0..layout.width();
            let on: Vec<_> = units.map(|unit| layout.place(stripe, unit).slot.0).collect();
            for a in &on {
                on.iter().for_each(|b| shared[a * slots + b] += 1);
            }
        }
        let (n, w) = (slots as u64, layout.width() as u64);
        let mean = layout.period() * w * (w - 1) / (n * (n - 1));
        for (i, count) in shared.iter().enumerate().filter(|(i, _)| i / slots != i % slots) {
            assert!(count.abs_diff(mean) * 20 <= mean, "{name} on {slots}: {i} {count} of {mean}");
        }
    }
}

/// The choice of permutations is on disks already: it may not change.
#[test]
fn placement_is_frozen() {
    let layout = layout("rs:2+1", 5);
    let slots: Vec<Vec<_>> = (0..7)
        .map(|stripe| (0..3).map(|unit| layout.place(stripe * 31, unit).slot.0).collect())
        .collect();
    let frozen = [[2, 4, 0], [2, 0, 1], [4, 0, 1], [0, 4, 2], [4, 2, 0], [2, 4, 1], [3, 0, 4]];
    assert_eq!(slots, frozen);

    let sum = |name, slots| {
        let layout = self::layout(name, slots);
        (0..layout.period() * layout.width() as u64).fold(0u64, |sum, i| {
            let unit = usize::try_from(i % layout.width() as u64).unwrap();
            let place = layout.place(i / layout.width() as u64, unit);
            sum.wrapping_mul(0x100_0000_01b3) ^ (place.row << 8 | place.slot.0 as u64)
        })
    };
    assert_eq!(
        SHAPES.map(|(name, slots)| sum(name, slots)),
        [
            15544861149171107560,
            2695169593035703824,
            8118667406135651152,
            3850390420394987552,
            393731403411359192,
            2135818243641309248
        ]
    );
}
