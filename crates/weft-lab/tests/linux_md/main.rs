//! The baseline `linux_md` sends the disks the same requests as MD: an idle rebuild onto a spare,
//! by a real kernel and by the engine on modelled disks, member by member.
//!
//! The kernel counts requests after it has joined neighbours, and how many it joined: their sum is
//! what MD asked for, and must be the same number, as must the sectors. How many were joined
//! depends on how the kernel's threads take turns; it is printed with ours, and must be of the
//! same size.

use std::fmt::Write as _;

use weft_testkit::{Guest, Scratch};

mod engine;

const MIB: u64 = 1 << 20;
/// Bytes offered of each modelled disk.
const DISK: u64 = 34 * MIB;
const UNIT_KIB: u64 = 64;

struct Case {
    code: &'static str,
    slots: usize,
    mdadm: &'static str,
    /// The engine reads what it needs, MD's RAID-6 also the unit that it does not.
    spares_a_read: bool,
}

const CASES: [Case; 4] = [
    Case { code: "raid5", slots: 4, mdadm: "--level=5 -n4 -c 64", spares_a_read: false },
    Case { code: "raid6", slots: 5, mdadm: "--level=6 -n5 -c 64", spares_a_read: true },
    Case { code: "raid10", slots: 4, mdadm: "--level=10 -n4 -c 64", spares_a_read: false },
    Case { code: "raid1", slots: 2, mdadm: "--level=1 -n2", spares_a_read: false },
];

/// Requests and sectors of a member during a rebuild.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    /// As asked for, before any were joined.
    reads: u64,
    /// Of these, those that were joined to another.
    reads_joined: u64,
    read_sectors: u64,
    writes: u64,
    writes_joined: u64,
    written_sectors: u64,
}

impl Counts {
    fn asked(&self) -> [u64; 4] {
        [self.reads, self.read_sectors, self.writes, self.written_sectors]
    }
}

/// The counts of `/proc/diskstats` of a disk: reads, joined, sectors, ms, writes, joined, sectors.
fn counted(lines: &str, disk: &str) -> Counts {
    let line = lines.lines().find(|line| line.split_whitespace().nth(2) == Some(disk));
    let line = line.unwrap_or_else(|| panic!("no {disk} in {lines}"));
    let fields: Vec<u64> =
        line.split_whitespace().skip(3).map(|field| field.parse().expect("a count")).collect();
    Counts {
        reads: fields[0] + fields[1],
        reads_joined: fields[1],
        read_sectors: fields[2],
        writes: fields[4] + fields[5],
        writes_joined: fields[5],
        written_sectors: fields[6],
    }
}

fn difference(after: Counts, before: Counts) -> Counts {
    Counts {
        reads: after.reads - before.reads,
        reads_joined: after.reads_joined - before.reads_joined,
        read_sectors: after.read_sectors - before.read_sectors,
        writes: after.writes - before.writes,
        writes_joined: after.writes_joined - before.writes_joined,
        written_sectors: after.written_sectors - before.written_sectors,
    }
}

/// What MD asked of each disk, the spare last, without its superblocks: those it writes to all
/// members alike, and to survivors nothing else.
fn by_md(case: &Case, part: &str) -> Vec<Counts> {
    let (before, after) = part.split_once("after\n").expect("both counts");
    let names: Vec<String> =
        ('a'..='z').take(case.slots + 1).map(|letter| format!("vd{letter}")).collect();
    let of = |name: &String| difference(counted(after, name), counted(before, name));
    let all: Vec<Counts> = names.iter().map(of).collect();
    let superblocks = all[1];
    let bare = |mut counts: Counts| {
        counts.writes -= superblocks.writes;
        counts.written_sectors -= superblocks.written_sectors;
        counts
    };
    all[1..].iter().map(|counts| bare(*counts)).collect()
}

/// Within a factor of two: how the kernel's threads take turns is not ours to say.
fn near(by_md: u64, by_us: u64) -> bool {
    by_md <= 2 * by_us && by_us <= 2 * by_md
}

#[test]
fn the_baseline_asks_the_disks_for_what_md_asks_them() {
    let host = Scratch::new("lab-md");
    let Some(mut guest) = Guest::find(host.path()) else {
        return;
    };
    let ours: Vec<engine::Rebuilt> = CASES.iter().map(engine::rebuild).collect();
    let mut lines = String::new();
    for (case, ours) in CASES.iter().zip(&ours) {
        // In letters: the first that is no member, which is the spare.
        let spare = char::from(b'a' + u8::try_from(case.slots).expect("few"));
        writeln!(lines, "{} {spare} {spare} {}", ours.rows * UNIT_KIB, case.mdadm).expect("text");
    }
    std::fs::write(host.join("cases"), lines).expect("written");
    let most = CASES.iter().map(|case| case.slots).max().expect("cases");
    for number in 0..=most {
        let path = host.file(&format!("disk{number}"), DISK + 4 * MIB);
        guest = guest.disk(&path.display().to_string());
    }
    let said = guest.run(include_str!("guest.sh")).success();
    let parts: Vec<&str> = said.split("case ").skip(1).collect();
    assert_eq!(parts.len(), CASES.len(), "{said}");
    for ((case, ours), part) in CASES.iter().zip(&ours).zip(parts) {
        let md = by_md(case, part);
        assert_eq!(md.len(), ours.members.len());
        // weft looks at the last block of a disk that joins: it may have a second label.
        let mut members = ours.members.clone();
        let spare = members.last_mut().expect("there is one");
        (spare.reads, spare.read_sectors) = (spare.reads - 1, spare.read_sectors - 8);
        for (member, (md, ours)) in md.iter().zip(&members).enumerate() {
            println!("{} member {}: md {md:?}, ours {ours:?}", case.code, member + 1);
            if !case.spares_a_read {
                assert_eq!(md.asked(), ours.asked(), "{} member {}", case.code, member + 1);
                let (by_md, by_us) = (md.reads - md.reads_joined, ours.reads - ours.reads_joined);
                assert!(near(by_md, by_us), "{} member {}: {by_md} {by_us}", case.code, member + 1);
            }
            let (by_md, by_us) = (md.writes - md.writes_joined, ours.writes - ours.writes_joined);
            assert!(near(by_md, by_us), "{} member {}: {by_md} {by_us}", case.code, member + 1);
        }
        if case.spares_a_read {
            // MD reads each survivor whole.
            let survivors = u64::try_from(case.slots - 1).expect("few");
            let reads = |all: &[Counts]| all.iter().map(|counts| counts.reads).sum::<u64>();
            assert_eq!(reads(&members) * survivors, reads(&md) * (survivors - 1));
        }
        // Apart from its superblocks MD writes the spare once, and nothing else.
        let sectors = ours.rows * UNIT_KIB * 2;
        assert_eq!(md.last().expect("the spare").written_sectors, sectors);
        assert_eq!(ours.members.last().expect("the spare").written_sectors, sectors);
    }
}
