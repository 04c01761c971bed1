//! An array reshaped by weft has the bytes of an array of Linux MD that mdadm has reshaped: the
//! same data and parity in the same rows of the same members. More disks, larger and smaller units,
//! and another level.
//!
//! Two guest kernels are booted side by side, each for a part of the cases. Both arrays get the
//! same data, are reshaped, and are compared row by row from where each has its data: both move
//! that, and need not agree where to. What has never been written may hold anything, so the new
//! space is compared once it is filled.
#![allow(clippy::cast_possible_truncation, reason = "sizes of a test are small")]

#[allow(dead_code, reason = "only some of it is used here")]
#[path = "../common/mod.rs"]
mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use common::{assemble, options, ram, rt, write};
use weft_array::reshape::ReshapeOptions;
use weft_array::superblock::read_superblock;
use weft_array::{Array, CreateOptions, create};
use weft_disk::{Class, Disk};
use weft_rt::{Buf, MILLISECOND};
use weft_testkit::{Guest, Scratch, md, pattern};

const MEMBER_MIB: u64 = 8;

struct Case {
    code: &'static str,
    members: usize,
    /// Bytes of a unit.
    unit: u64,
    /// mdadm's options for the array.
    md: &'static str,
    to: To,
}

/// What becomes of an array.
struct To {
    code: &'static str,
    add: usize,
    unit: u64,
    /// mdadm's options for it.
    md: &'static str,
}

const MORE_DISKS: [Case; 5] = [
    grown("raid5", 3, 1, "--level=5", "--raid-devices=4"),
    grown("raid6", 4, 1, "--level=6", "--raid-devices=5"),
    grown("raid5", 3, 2, "--level=5", "--raid-devices=5"),
    grown("raid4", 3, 1, "--level=4", "--raid-devices=4"),
    grown("raid10", 4, 2, "--level=10", "--raid-devices=6"),
];

const OTHER_STRIPES: [Case; 3] = [
    Case {
        to: To { code: "raid5", add: 0, unit: 32 << 10, md: "--chunk=32" },
        ..grown("raid5", 4, 0, "--level=5", "")
    },
    Case {
        to: To { code: "raid6", add: 0, unit: 128 << 10, md: "--chunk=128" },
        ..grown("raid6", 5, 0, "--level=6", "")
    },
    Case {
        to: To { code: "raid6", add: 1, unit: 64 << 10, md: "--level=6 --raid-devices=5" },
        ..grown("raid5", 4, 1, "--level=5", "")
    },
];

/// More disks, and nothing else.
const fn grown(
    code: &'static str,
    members: usize,
    add: usize,
    md: &'static str,
    to: &'static str,
) -> Case {
    let unit = 64 << 10;
    Case { code, members, unit, md, to: To { code, add, unit, md: to } }
}

impl Case {
    fn name(&self) -> String {
        let Self { code, members, unit, to, .. } = self;
        format!("{code}-{members}x{unit}-{}+{}x{}", to.code, to.add, to.unit)
    }

    fn disks(&self) -> usize {
        self.members + self.to.add
    }
}

/// An array of weft's: the bytes of each slot, before and after its new space was filled.
struct Reshaped {
    /// Bytes of each slot that md's array has, too: whole rows before and afterwards.
    bytes: u64,
    /// Bytes of them that hold nothing but what was moved.
    moved_bytes: u64,
    moved: Vec<Vec<u8>>,
    full: Vec<Vec<u8>>,
}

#[test]
fn an_array_grown_by_weft_has_the_bytes_of_one_grown_by_mdadm() {
    check_cases(&MORE_DISKS);
}

#[test]
fn another_unit_and_another_level_have_the_bytes_that_mdadm_gives_them() {
    check_cases(&OTHER_STRIPES);
}

fn check_cases(cases: &[Case]) {
    let host = Scratch::in_memory("md-grow");
    let Some(guest) = Guest::find(host.path()) else {
        return;
    };
    let data = Rc::new(pattern::bytes(1, 28 << 20));
    fs::write(host.join("pattern"), &*data).expect("written");
    let ours: Vec<Reshaped> = cases.iter().map(|case| reshape(case, data.clone())).collect();
    let mut lines = String::new();
    for (case, reshaped) in cases.iter().zip(&ours) {
        let Case { members, unit, md, to, .. } = case;
        let (name, kib, add) = (case.name(), reshaped.bytes / 1024, to.add);
        let options = format!("--chunk={} {md} -- {}", unit / 1024, to.md);
        writeln!(lines, "{name} {members} {add} {kib} {options}").expect("text");
        for folder in ["moved", "full"] {
            fs::create_dir(host.join(format!("{name}.{folder}"))).expect("a folder");
        }
    }
    fs::write(host.join("cases"), lines).expect("written");
    let script = include_str!("guest.sh");
    let script = script.replace("@MEMBER_KIB@", &(MEMBER_MIB * 1024).to_string());
    println!("{}", guest.run(&script).success());
    for (case, reshaped) in cases.iter().zip(&ours) {
        let check = |bytes: u64, ours: &[Vec<u8>], folder: &str| {
            let what = format!("{}.{folder}", case.name());
            compare(&what, case.to.unit, bytes, ours, &by_md(case, &host.join(&what)));
        };
        check(reshaped.moved_bytes, &reshaped.moved, "moved");
        check(reshaped.bytes, &reshaped.full, "full");
    }
}

/// Reshapes an array of weft's that is full of `data`, and fills it again.
fn reshape(case: &Case, data: Rc<Vec<u8>>) -> Reshaped {
    let rt = rt();
    let Case { code, members, unit, .. } = *case;
    let To { code: to, add, unit: unit_to, .. } = case.to;
    let disks = case.disks();
    let ended = rt.clone();
    let reshaped = rt.block_on(async move {
        let rt = ended;
        let all: Vec<Rc<dyn Disk>> =
            (0..disks).map(|n| ram(&format!("disk{n}"), MEMBER_MIB)).collect();
        let options = CreateOptions {
            unit_bytes: unit as u32,
            head_room_bytes: Some(1 << 20),
            // Larger than any stripe, before and afterwards.
            region_bytes: Some(1 << 20),
            ..options(code)
        };
        let rows = create(&all[..members], &options).await.expect("created").rows;
        let array = assemble(&rt, &all[..members]).await;
        let size = array.size_bytes() as usize;
        write_all(&array, 0, &data[..size]).await;
        for disk in &all[members..] {
            array.add_spare(disk.clone()).await.expect("added");
        }
        let wanted = ReshapeOptions {
            code: (to != code).then(|| to.parse().expect("a code")),
            unit_bytes: (unit_to != unit).then_some(unit_to),
            add,
            ..ReshapeOptions::default()
        };
        let plan = array.reshape(wanted).await.expect("begun");
        while array.is_reshaping() {
            rt.sleep(MILLISECOND).await;
        }
        let larger = unit.max(unit_to);
        let bytes = rows * unit / larger * larger;
        let row_bytes = plan.new_size_bytes / plan.to.rows;
        array.flush().await.expect("flushed");
        let moved = slots(&all, bytes).await;
        let full = (bytes / unit_to * row_bytes) as usize;
        write_all(&array, size.min(full), &data[size.min(full)..full]).await;
        array.stop().await.expect("stopped");
        let full = slots(&all, bytes).await;
        let moved_bytes = (size as u64 / row_bytes * unit_to).min(bytes);
        Reshaped { bytes, moved_bytes, moved, full }
    });
    rt.kill_all();
    reshaped
}

async fn write_all(array: &Array, start: usize, data: &[u8]) {
    for (at, bytes) in (start..).step_by(1 << 20).zip(data.chunks(1 << 20)) {
        write(array, at as u64, bytes).await;
    }
}

/// So many bytes of weft's members, from where each has its data.
async fn slots(members: &[Rc<dyn Disk>], bytes: u64) -> Vec<Vec<u8>> {
    let mut slots = Vec::new();
    for member in members {
        let own = read_superblock(&**member).await.expect("intact").expect("a member");
        let buf = Buf::new(bytes as usize);
        let (result, buf) = member.read(own.area.data_offset, buf, Class::User).await;
        result.expect("read");
        slots.push(buf.to_vec());
    }
    slots
}

/// md's data, slot by slot.
fn by_md(case: &Case, folder: &Path) -> Vec<Vec<u8>> {
    let mut slots = vec![Vec::new(); case.disks()];
    for number in 0..slots.len() {
        let mut image = fs::read(folder.join(number.to_string())).expect("read a member");
        let offset = md::data_area(&image).offset as usize;
        let slot = md::slot(&image);
        slots[slot] = image.split_off(offset);
    }
    slots
}

fn compare(what: &str, unit: u64, bytes: u64, ours: &[Vec<u8>], by_md: &[Vec<u8>]) {
    let (unit, rows) = (unit as usize, (bytes / unit) as usize);
    assert!(rows > 20, "{what}: only {rows} rows");
    let first = pattern::bytes(1, unit);
    assert!(ours.iter().any(|slot| slot.starts_with(&first)), "{what}: no data where it begins");
    for (slot, (ours, by_md)) in ours.iter().zip(by_md).enumerate() {
        let units = ours.chunks(unit).zip(by_md.chunks(unit));
        for (row, (ours, by_md)) in units.take(rows).enumerate() {
            assert!(ours == by_md, "{what}: slot {slot}, row {row} of {rows} differs");
        }
    }
}
