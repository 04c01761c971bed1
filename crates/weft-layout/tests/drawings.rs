//! The drawings in the documentation match the code. After an intended change, regenerate them
//! with `WEFT_DRAW=1 cargo test -p weft-layout --test drawings`.

use std::fmt::Write;
use std::{env, fs};

use weft_code::{Code, CodeSpec, SlotNo};
use weft_layout::{Algorithm, Layout, code_for, for_code};

/// What a drawing shows: code, rotation, slots, rows, and a sentence.
const DRAWINGS: [(&str, &str, usize, u64, &str); 17] = [
    ("raid0", "left-symmetric", 4, 2, "Data in turn over all slots."),
    ("raid1", "left-symmetric", 3, 2, "The same on every slot."),
    ("raid10", "left-symmetric", 5, 3, "Near: copies side by side, also over the end of a row."),
    (
        "raid10:f2",
        "left-symmetric",
        4,
        4,
        "Far: the second half of the disks holds it again, one slot on.",
    ),
    ("raid10:o2", "left-symmetric", 4, 4, "Offset: every row is followed by itself, one slot on."),
    ("raid4", "left-symmetric", 4, 2, "Parity on the last slot."),
    (
        "raid5",
        "left-symmetric",
        4,
        4,
        "Parity moves left, data begins after it: any 4 data units in a row are on 4 slots.",
    ),
    ("raid5", "left-asymmetric", 4, 4, "Parity moves left, data in slot order."),
    ("raid5", "right-symmetric", 4, 4, "Parity moves right, data begins after it."),
    ("raid5", "right-asymmetric", 4, 4, "Parity moves right, data in slot order."),
    ("raid6", "left-symmetric", 6, 6, "Q follows P, data begins after Q."),
    ("rs:3+3", "left-symmetric", 6, 6, "As RAID-6, with as many parities as asked for."),
    (
        "lrc:4,2,1",
        "left-symmetric",
        7,
        3,
        "Each group turns inside its own slots, stripe by stripe.",
    ),
    (
        "drc:4,2,1",
        "left-symmetric",
        7,
        12,
        "Groups change within a period of 4 stripes; then each group's slots turn.",
    ),
    (
        "drc-g:4,2,1",
        "left-symmetric",
        7,
        12,
        "As DRC, but once a period everything moves one slot to the left.",
    ),
    (
        "drc-oa:6,2,1",
        "left-symmetric",
        9,
        8,
        "Three positions in two groups: balanced after 4 stripes, where DRC takes 8.",
    ),
    (
        "rs:2+1",
        "left-symmetric",
        5,
        6,
        "More slots than units: dealt out in order, then the slots permuted every 3 rows.",
    ),
];

fn label(code: &Code, stripe: u64, unit: usize) -> String {
    let (k, letter) = (code.k(), |group: usize| char::from(b"abcdefgh"[group]));
    let locals = code.spec().groups().map_or(0, |(_, l, _)| l);
    if code.spec().is_mirror() {
        format!("{stripe}")
    } else if unit < k {
        let group = code.group(stripe, unit).map_or_else(String::new, |g| letter(g).into());
        format!("{}{group}", stripe * k as u64 + unit as u64)
    } else if unit < k + locals {
        format!("P{}", letter(unit - k))
    } else {
        let name = if locals == 0 { "PQRS" } else { "QRST" };
        name[unit - k - locals..][..1].into()
    }
}

fn draw(code: &Code, layout: &dyn Layout, rows: u64) -> String {
    let mut text = String::from("```text\nslot");
    (0..layout.slots()).for_each(|slot| write!(text, "{slot:>5}").unwrap());
    for row in 0..rows {
        write!(text, "\n    ").unwrap();
        for slot in 0..layout.slots() {
            let found = layout.locate(SlotNo(slot), row);
            let shown =
                found.map_or_else(|| "-".into(), |(stripe, unit)| label(code, stripe, unit));
            write!(text, "{shown:>5}").unwrap();
        }
    }
    text + "\n```\n"
}

#[test]
fn the_drawings_are_what_the_code_does() {
    let mut text = String::from(
        "# What lies where\n\nA line is a row of all slots. Numbers are data units of the array; P, Q, R and S \
         are parity. Letters are local groups: `3b` is data unit 3 in group b, whose parity is `Pb`.\n",
    );
    for (name, algorithm, slots, rows, what) in DRAWINGS {
        let spec: CodeSpec = name.parse().unwrap();
        let algorithm: Algorithm = algorithm.parse().unwrap();
        let layout = for_code(spec, algorithm, slots, rows).unwrap();
        let code = code_for(spec, algorithm, slots).unwrap();
        let kind = if spec == CodeSpec::Raid5 { format!(", {algorithm}") } else { String::new() };
        let drawing = draw(&code, &*layout, rows);
        write!(text, "\n`{name}` on {slots} slots{kind}. {what}\n\n{drawing}").unwrap();
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/drawings.md");
    if env::var_os("WEFT_DRAW").is_some() {
        fs::write(path, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(path).unwrap(), text, "see the head of this test");
}
