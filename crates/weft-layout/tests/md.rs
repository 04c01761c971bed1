//! Data lies where Linux md puts it: small tables, worked out by hand from md's rules.
//!
//! Numbers are data units of the array, P and Q parity; a line is one row of all slots. A mirror's
//! copies all show the number of the data unit.

use weft_code::{CodeSpec, SlotNo};
use weft_layout::{Algorithm, code_for, for_code};

fn draw(name: &str, algorithm: &str, slots: usize, rows: u64) -> String {
    let spec: CodeSpec = name.parse().unwrap();
    let layout = for_code(spec, algorithm.parse().unwrap(), slots, rows).unwrap();
    let k = spec.shape(slots).unwrap().k;
    let label = |slot, row| match layout.locate(slot, row) {
        None => "-".into(),
        Some((stripe, _)) if spec.is_mirror() => stripe.to_string(),
        Some((stripe, unit)) if unit < k => (stripe * k as u64 + unit as u64).to_string(),
        Some((_, unit)) => ["P", "Q", "R", "S"][unit - k].into(),
    };
    let line = |row| (0..slots).map(|slot| label(SlotNo(slot), row)).collect::<Vec<_>>().join(" ");
    (0..rows).map(line).collect::<Vec<_>>().join(" | ")
}

fn check(name: &str, slots: usize, tables: &[(&str, &str)]) {
    for (algorithm, table) in tables {
        let rows = table.split('|').count() as u64;
        assert_eq!(draw(name, algorithm, slots, rows), *table, "{name} {algorithm}");
    }
}

#[test]
fn raid5() {
    check(
        "raid5",
        4,
        &[
            ("left-asymmetric", "0 1 2 P | 3 4 P 5 | 6 P 7 8 | P 9 10 11 | 12 13 14 P"),
            ("left-symmetric", "0 1 2 P | 4 5 P 3 | 8 P 6 7 | P 9 10 11 | 12 13 14 P"),
            ("right-asymmetric", "P 0 1 2 | 3 P 4 5 | 6 7 P 8 | 9 10 11 P | P 12 13 14"),
            ("right-symmetric", "P 0 1 2 | 5 P 3 4 | 7 8 P 6 | 9 10 11 P | P 12 13 14"),
            ("parity-first", "P 0 1 2 | P 3 4 5"),
            ("parity-last", "0 1 2 P | 3 4 5 P"),
        ],
    );
    check("raid5", 2, &[("left-symmetric", "0 P | P 1 | 2 P")]);
}

#[test]
fn raid6() {
    check(
        "raid6",
        5,
        &[
            (
                "left-symmetric",
                "Q 0 1 2 P | 3 4 5 P Q | 7 8 P Q 6 | 11 P Q 9 10 | P Q 12 13 14 | Q 15 16 17 P",
            ),
            ("left-asymmetric", "Q 0 1 2 P | 3 4 5 P Q | 6 7 P Q 8 | 9 P Q 10 11 | P Q 12 13 14"),
            ("right-asymmetric", "P Q 0 1 2 | 3 P Q 4 5 | 6 7 P Q 8 | 9 10 11 P Q | Q 12 13 14 P"),
            ("right-symmetric", "P Q 0 1 2 | 5 P Q 3 4 | 7 8 P Q 6 | 9 10 11 P Q | Q 12 13 14 P"),
            ("parity-first", "P Q 0 1 2 | P Q 3 4 5"),
            ("parity-last", "0 1 2 P Q | 3 4 5 P Q"),
            ("ddf-zero-restart", "P Q 0 1 2 | 3 P Q 4 5 | 6 7 P Q 8 | 9 10 11 P Q | Q 12 13 14 P"),
            ("ddf-N-restart", "0 1 2 P Q | 3 4 P Q 5 | 6 P Q 7 8 | P Q 9 10 11 | Q 12 13 14 P"),
            ("ddf-N-continue", "0 1 2 Q P | 4 5 Q P 3 | 8 Q P 6 7 | Q P 9 10 11 | P 12 13 14 Q"),
            ("left-symmetric-6", "0 1 2 P Q | 4 5 P 3 Q | 8 P 6 7 Q | P 9 10 11 Q"),
            ("left-asymmetric-6", "0 1 2 P Q | 3 4 P 5 Q | 6 P 7 8 Q | P 9 10 11 Q"),
            ("right-symmetric-6", "P 0 1 2 Q | 5 P 3 4 Q | 7 8 P 6 Q | 9 10 11 P Q"),
            ("right-asymmetric-6", "P 0 1 2 Q | 3 P 4 5 Q | 6 7 P 8 Q | 9 10 11 P Q"),
            ("parity-first-6", "P 0 1 2 Q | P 3 4 5 Q"),
        ],
    );
}

/// Reed–Solomon continues RAID-6's rule with further parities.
#[test]
fn rs() {
    check(
        "rs:3+3",
        6,
        &[
            ("left-symmetric", "Q R 0 1 2 P | R 3 4 5 P Q | 6 7 8 P Q R | 10 11 P Q R 9"),
            ("left-asymmetric", "Q R 0 1 2 P | R 3 4 5 P Q | 6 7 8 P Q R | 9 10 P Q R 11"),
        ],
    );
}

#[test]
fn levels_without_rotation() {
    check("raid0", 3, &[("left-symmetric", "0 1 2 | 3 4 5")]);
    check("raid1", 3, &[("left-symmetric", "0 0 0 | 1 1 1")]);
    check("raid4", 4, &[("left-symmetric", "0 1 2 P | 3 4 5 P")]);
}

#[test]
fn raid10() {
    for (name, slots, table) in [
        ("raid10", 4, "0 0 1 1 | 2 2 3 3"),
        ("raid10", 3, "0 0 1 | 1 2 2 | 3 3 4 | 4 5 5"),
        ("raid10", 3, "0 0 1 | 1 2 2 | 3 3 -"),
        ("raid10:n3", 4, "0 0 0 1 | 1 1 2 2 | 2 3 3 3"),
        ("raid10:n3", 3, "0 0 0 | 1 1 1"),
        ("raid10:f2", 4, "0 1 2 3 | 4 5 6 7 | 3 0 1 2 | 7 4 5 6"),
        ("raid10:f2", 3, "0 1 2 | 3 4 5 | 2 0 1 | 5 3 4 | - - -"),
        ("raid10:f3", 4, "0 1 2 3 | 3 0 1 2 | 2 3 0 1"),
        ("raid10:f2", 2, "0 1 | 2 3 | 1 0 | 3 2"),
        ("raid10:o2", 4, "0 1 2 3 | 3 0 1 2 | 4 5 6 7 | 7 4 5 6"),
        ("raid10:o2", 3, "0 1 2 | 2 0 1 | 3 4 5 | 5 3 4 | - - -"),
        ("raid10:o3", 3, "0 1 2 | 2 0 1 | 1 2 0 | 3 4 5 | 5 3 4 | 4 5 3"),
    ] {
        check(name, slots, &[("left-symmetric", table)]);
    }
}

/// md numbers Q's coefficients by slot, from the one after Q; DDF by the slot itself.
#[test]
fn coefficients_of_q() {
    let q = |algorithm: &str| -> Vec<Vec<u8>> {
        let algorithm = algorithm.parse().unwrap();
        let code = code_for(CodeSpec::Raid6, algorithm, 5).unwrap();
        let layout = for_code(CodeSpec::Raid6, algorithm, 5, 5).unwrap();
        assert_eq!(layout.period() % code.period(), 0);
        (0..code.period())
            .map(|stripe| {
                assert_eq!(code.row(stripe, 0), [1, 1, 1]);
                code.row(stripe, 1).to_vec()
            })
            .collect()
    };
    for plain in ["left-symmetric", "right-symmetric", "parity-first", "parity-last"] {
        assert_eq!(q(plain), [[1, 2, 4]], "{plain}");
    }
    assert_eq!(q("left-asymmetric"), [[1, 2, 4], [1, 2, 4], [2, 4, 1], [4, 1, 2], [1, 2, 4]]);
    assert_eq!(q("right-asymmetric"), [[1, 2, 4], [4, 1, 2], [2, 4, 1], [1, 2, 4], [1, 2, 4]]);
    assert_eq!(q("left-asymmetric-6"), [[1, 2, 4]]);
    assert_eq!(q("left-symmetric-6"), [[1, 2, 4], [4, 1, 2], [2, 4, 1], [1, 2, 4]]);
    assert_eq!(q("ddf-N-restart"), [[1, 2, 4], [1, 2, 16], [1, 8, 16], [4, 8, 16], [2, 4, 8]]);
    assert_eq!(q("ddf-N-continue"), [[1, 2, 4], [16, 1, 2], [8, 16, 1], [4, 8, 16], [2, 4, 8]]);
}

#[test]
fn names_of_rotations() {
    for (algorithm, name) in Algorithm::ALL {
        assert_eq!(name.parse(), Ok(algorithm));
        assert_eq!(algorithm.to_string(), name);
        assert_eq!(serde_json::to_string(&algorithm).unwrap(), format!("\"{name}\""));
    }
    assert_eq!(Algorithm::default().to_string(), "left-symmetric");
    let error = "sideways".parse::<Algorithm>().unwrap_err().to_string();
    assert!(error.starts_with("unknown layout 'sideways'; known: left-symmetric left-asymmetric "));
    let error = for_code(CodeSpec::Raid5, Algorithm::LeftSymmetric6, 5, 9).unwrap_err();
    assert_eq!(error.to_string(), "layout 'left-symmetric-6' is for raid6, not for raid5");
}
