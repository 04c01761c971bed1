//! An array grown by weft has the bytes of an array of Linux MD that mdadm has grown: the same data
//! and parity in the same rows of the same members.
//!
//! One guest kernel is booted for all cases. Both arrays get the same data, grow, and are compared
//! row by row from where each has its data: both move that, and need not agree where to. What has
//! never been written may hold anything, so the new space is compared once it is filled.
#![allow(clippy::cast_possible_truncation, reason = "sizes of a test are small")]

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
const UNIT: u64 = 64 << 10;

struct Case {
    code: &'static str,
    members: usize,
    add: usize,
    /// mdadm's options.
    md: &'static str,
}

const CASES: [Case; 5] = [
    Case { code: "raid5", members: 3, add: 1, md: "--level=5" },
    Case { code: "raid6", members: 4, add: 1, md: "--level=6" },
    Case { code: "raid5", members: 3, add: 2, md: "--level=5" },
    Case { code: "raid4", members: 3, add: 1, md: "--level=4" },
    Case { code: "raid10", members: 4, add: 2, md: "--level=10" },
];

impl Case {
    fn name(&self) -> String {
        format!("{}-{}+{}", self.code, self.members, self.add)
    }
}

/// An array of weft's: the rows of each slot, before and after its new space was filled.
struct Grown {
    /// Rows of each slot before it grew: those that md's array has, too.
    rows: u64,
    /// Rows that hold nothing but what was moved.
    moved_rows: u64,
    moved: Vec<Vec<u8>>,
    full: Vec<Vec<u8>>,
}

#[test]
fn an_array_grown_by_weft_has_the_bytes_of_one_grown_by_mdadm() {
    let host = Scratch::in_memory("md-grow");
    let Some(guest) = Guest::find(host.path()) else {
        return;
    };
    let data = Rc::new(pattern::bytes(1, 20 << 20));
    fs::write(host.join("pattern"), &*data).expect("written");
    let ours: Vec<Grown> = CASES.iter().map(|case| grow(case, data.clone())).collect();
    let mut lines = String::new();
    for (case, grown) in CASES.iter().zip(&ours) {
        let Case { members, add, md, .. } = case;
        let (name, unit_kib) = (case.name(), UNIT / 1024);
        let kib = grown.rows * unit_kib;
        writeln!(lines, "{name} {members} {add} {kib} {md} --chunk={unit_kib}").expect("text");
        for folder in ["grown", "full"] {
            fs::create_dir(host.join(format!("{name}.{folder}"))).expect("a folder");
        }
    }
    fs::write(host.join("cases"), lines).expect("written");
    let script = include_str!("guest.sh");
    let script = script.replace("@MEMBER_KIB@", &(MEMBER_MIB * 1024).to_string());
    println!("{}", guest.run(&script).success());
    for (case, grown) in CASES.iter().zip(&ours) {
        let check = |rows: u64, ours: &[Vec<u8>], folder: &str| {
            let what = format!("{}.{folder}", case.name());
            compare(&what, rows, ours, &by_md(case, &host.join(&what)));
        };
        check(grown.moved_rows, &grown.moved, "grown");
        check(grown.rows, &grown.full, "full");
    }
}

/// Grows an array of weft's that is full of `data`, and fills it again.
fn grow(case: &Case, data: Rc<Vec<u8>>) -> Grown {
    let rt = rt();
    let Case { code, members, add, .. } = *case;
    let ended = rt.clone();
    let grown = rt.block_on(async move {
        let rt = ended;
        let all: Vec<Rc<dyn Disk>> =
            (0..members + add).map(|n| ram(&format!("disk{n}"), MEMBER_MIB)).collect();
        let options = CreateOptions {
            unit_bytes: UNIT as u32,
            head_room_bytes: Some(1 << 20),
            ..options(code)
        };
        let rows = create(&all[..members], &options).await.expect("created").rows;
        let array = assemble(&rt, &all[..members]).await;
        let size = array.size_bytes() as usize;
        write_all(&array, 0, &data[..size]).await;
        for disk in &all[members..] {
            array.add_spare(disk.clone()).await.expect("added");
        }
        let wanted = ReshapeOptions { add, ..ReshapeOptions::default() };
        let plan = array.reshape(wanted).await.expect("begun");
        while array.is_reshaping() {
            rt.sleep(MILLISECOND).await;
        }
        let row_bytes = plan.new_size_bytes / plan.to.rows;
        array.flush().await.expect("flushed");
        let moved = slots(&all, rows).await;
        write_all(&array, size, &data[size..(rows * row_bytes) as usize]).await;
        array.stop().await.expect("stopped");
        let full = slots(&all, rows).await;
        Grown { rows, moved_rows: size as u64 / row_bytes, moved, full }
    });
    rt.kill_all();
    grown
}

async fn write_all(array: &Array, start: usize, data: &[u8]) {
    for (at, bytes) in (start..).step_by(1 << 20).zip(data.chunks(1 << 20)) {
        write(array, at as u64, bytes).await;
    }
}

/// The rows of weft's members, from where each has its data.
async fn slots(members: &[Rc<dyn Disk>], rows: u64) -> Vec<Vec<u8>> {
    let mut slots = Vec::new();
    for member in members {
        let own = read_superblock(&**member).await.expect("intact").expect("a member");
        let buf = Buf::new((rows * UNIT) as usize);
        let (result, buf) = member.read(own.area.data_offset, buf, Class::User).await;
        result.expect("read");
        slots.push(buf.to_vec());
    }
    slots
}

/// The same of md's, slot by slot.
fn by_md(case: &Case, folder: &Path) -> Vec<Vec<u8>> {
    let mut slots = vec![Vec::new(); case.members + case.add];
    for number in 0..slots.len() {
        let mut image = fs::read(folder.join(number.to_string())).expect("read a member");
        let offset = md::data_area(&image).offset as usize;
        let slot = md::slot(&image);
        slots[slot] = image.split_off(offset);
    }
    slots
}

fn compare(what: &str, rows: u64, ours: &[Vec<u8>], by_md: &[Vec<u8>]) {
    assert!(rows > 20, "{what}: only {rows} rows");
    let first = pattern::bytes(1, UNIT as usize);
    assert!(ours.iter().any(|slot| slot.starts_with(&first)), "{what}: no data where it begins");
    for (slot, (ours, by_md)) in ours.iter().zip(by_md).enumerate() {
        let units = ours.chunks(UNIT as usize).zip(by_md.chunks(UNIT as usize));
        for (row, (ours, by_md)) in units.take(rows as usize).enumerate() {
            assert!(ours == by_md, "{what}: slot {slot}, row {row} of {rows} differs");
        }
    }
}
