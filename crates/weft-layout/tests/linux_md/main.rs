//! Linux MD as the oracle: weft's placement and parity against those of a real kernel.
//!
//! Two guest kernels are booted side by side, each for a part of the cases (`weft_testkit::Guest`),
//! as a guest has one slow processor. For each level, algorithm and arrangement, both ways are
//! taken:
//!
//! - **md writes, weft reads.** mdadm creates an array, a pattern is written through `/dev/md0`, in
//!   whole stripes and in small pieces that md folds into the parity. weft then reads the members:
//!   every data unit where its layout says, every parity unit equal to what its code encodes, and
//!   all data computed by its planner while any set of members that the level survives is lost.
//! - **weft writes, md reads.** The members are filled by weft's layout and code. mdadm makes an
//!   array of them without touching the data; md must read the pattern, find no mismatch in a check
//!   of the whole array, and read the pattern again from its own reconstruction while as many
//!   members as the level survives are missing.
//!
//! So Q's coefficients, and their order in the asymmetric and DDF algorithms, are md's own.

mod cases;
mod members;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use cases::Case;
use members::Members;
use weft_code::CodeSpec;
use weft_testkit::{Guest, Scratch, pattern};

/// Size of a member. Enough for every rotation to come round several times.
const MEMBER_KIB: u64 = 1536;

/// 4 KiB blocks that are written a second time, singly, through md.
const REWRITTEN: [usize; 3] = [0, 18, 131];

/// Bytes of pattern: more than the largest array.
const PATTERN_BYTES: usize = 8 << 20;

const FIRST: u64 = 1;
const SECOND: u64 = 2;

#[test]
fn weft_and_md_read_each_others_members_up_to_raid5() {
    check_cases(|case| case.spec != CodeSpec::Raid6);
}

#[test]
fn weft_and_md_read_each_others_members_of_raid6() {
    check_cases(|case| case.spec == CodeSpec::Raid6);
}

fn check_cases(wanted: impl Fn(&Case) -> bool) {
    let host = Scratch::in_memory("md");
    let Some(guest) = Guest::find(host.path()) else {
        return;
    };
    let second = pattern::bytes(SECOND, PATTERN_BYTES);
    fs::write(host.join("first"), pattern::bytes(FIRST, PATTERN_BYTES)).expect("write");
    fs::write(host.join("second"), &second).expect("write");
    let cases: Vec<Case> = cases::all().into_iter().filter(wanted).collect();
    let mut lines = String::new();
    for (turn, case) in cases.iter().enumerate() {
        writeln!(lines, "{}", case.guest_line(turn)).expect("write to a string");
        fs::create_dir(host.join(format!("{}.md", case.name()))).expect("make a folder");
        let members = Members::encode(case, MEMBER_KIB * 1024, &second);
        members.store(&host.join(format!("{}.weft", case.name())));
    }
    fs::write(host.join("cases"), lines).expect("write");

    let rewritten = REWRITTEN.map(|block| block.to_string()).join(" ");
    let script = include_str!("guest.sh")
        .replace("@MEMBER_KIB@", &MEMBER_KIB.to_string())
        .replace("@REWRITTEN@", &rewritten);
    let output = guest.program("cmp").run(&script).success();
    println!("{output}");
    assert!(output.lines().count() >= cases.len(), "a case was left out:\n{output}");

    let written = written_through_md();
    for case in &cases {
        check_members_of_md(case, host.path(), &written);
    }
}

/// What the guest wrote: the first pattern, and single blocks of the second.
fn written_through_md() -> Vec<u8> {
    let mut data = pattern::bytes(FIRST, PATTERN_BYTES);
    let second = pattern::bytes(SECOND, PATTERN_BYTES);
    for block in REWRITTEN {
        let bytes = block * 4096..(block + 1) * 4096;
        data[bytes.clone()].copy_from_slice(&second[bytes]);
    }
    data
}

fn check_members_of_md(case: &Case, host: &Path, written: &[u8]) {
    let name = case.name();
    let members = Members::load(case, &host.join(format!("{name}.md")));
    let size = fs::read_to_string(host.join(format!("{name}.md/bytes"))).expect("read the size");
    assert_eq!(members.array_bytes().to_string(), size.trim(), "{name}: size of the array");
    members.check_data(written);
    members.check_parity();
    for lost in case.lost_sets() {
        members.check_data_without(&lost, written);
    }
}
