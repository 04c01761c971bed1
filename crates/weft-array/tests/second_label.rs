//! The label at the end of a member tells which member a disk was after its beginning was
//! overwritten, and nothing else: another program's disk, an image that was cut short and the disk
//! around a partition are not taken for members.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::bench::{Bench, UNIT, members, options, run, sized_disk};
use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::*;
use weft_array::create::plan;
use weft_array::superblock::read_superblock;
use weft_array::{ArrayState, Contents, Event, ScrubMode, SuperblockError, contents, create, wipe};
use weft_disk::Disk;
use weft_rt::{Rt, SECOND};

const MIB: u64 = 1 << 20;
/// Room behind the data that is no unit.
const SIZE: u64 = 3 * MIB + 16 * 8192 + 4096;

/// An array of units of 8 KiB that was stopped, and what it holds.
async fn stopped(rt: &Rt, all: &[Rc<dyn Disk>]) -> Vec<u8> {
    let options = weft_array::CreateOptions { unit_bytes: 8192, ..options("raid5") };
    create(all, &options).await.expect("created");
    let array = assemble(rt, all).await;
    let bytes = pattern(0, 8 * array.stripe_bytes() as usize, 1);
    write(&array, 0, &bytes).await;
    array.stop().await.expect("stopped");
    bytes
}

fn at(disk: &TestDisk, offset: u64) -> Vec<u8> {
    let mut block = vec![0; 4096];
    disk.medium.borrow().read(offset, &mut block);
    block
}

fn overwrite(disk: &TestDisk, offset: u64, bytes: &[u8]) {
    disk.medium.borrow_mut().poke(offset, bytes);
}

/// Whether a label stands at the end of a disk of this size.
fn has_second(disk: &TestDisk, size: u64) -> bool {
    at(disk, size - 4096).starts_with(b"WEFTMBR1")
}

#[test]
fn a_disk_whose_beginning_is_overwritten_is_still_said_to_be_a_member() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 4]);
        let all = members(&disks);
        let bytes = stopped(&rt, &all).await;
        let own = read_superblock(&*all[2]).await.expect("sound").expect("a member");
        // The second label differs from the first in its place, and so in its checksum.
        let [first, second] = [0, SIZE - 4096].map(|offset| at(&disks[2], offset));
        assert_eq!(second[136..144], (SIZE - 4096).to_le_bytes());
        assert!(first[136..].iter().chain(&second[144..]).all(|byte| *byte == 0));
        assert_eq!((&first[..8], &first[12..136]), (&second[..8], &second[12..136]));
        overwrite(&disks[2], 0, &vec![0; 512 << 10]);
        let error = read_superblock(&*all[2]).await.expect_err("damaged");
        assert!(matches!(error, SuperblockError::DamagedLabel { .. }), "{error}");
        assert!(error.to_string().contains(&own.self_id.to_string()), "{error}");
        let found = contents(&*all[2]).await.expect("read");
        assert!(matches!(found, Some(Contents::Damaged { .. })), "{found:?}");
        let array = assemble(&rt, &all).await;
        assert_eq!(array.status().state, ArrayState::Degraded);
        assert!(read(&array, 0, bytes.len()).await == bytes);
        // It is used again as any other disk.
        array.add_spare(all[2].clone()).await.expect("added");
        while array.status().state != ArrayState::Healthy {
            rt.sleep(SECOND).await;
        }
        assert!(has_second(&disks[2], SIZE));
        array.stop().await.expect("stopped");
        wipe(&*all[2], false).await.expect("wiped");
        assert!(at(&disks[2], SIZE - 4096).iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_second_label_does_not_claim_what_is_not_that_member() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 4]);
        let all = members(&disks);
        stopped(&rt, &all).await;
        let whole = disks[0].medium.borrow().clone();
        let is_none = async |size: u64, medium: Medium| {
            let disk = TestDisk::new(&rt, &Power::new(), 9, size, 512, medium);
            matches!(read_superblock(&*disk).await, Ok(None))
        };
        let emptied = || {
            let mut medium = whole.clone();
            medium.poke(0, &vec![0; 512 << 10]);
            medium
        };
        assert!(!is_none(SIZE, emptied()).await, "a damaged member");
        // What another program leaves at the start, or in a place that is no label's.
        for (offset, magic) in [
            (512 + 24, &b"LVM2 001"[..]),
            (1024 + 56, b"\x53\xef"),
            ((64 << 10) + 64, b"_BHRfS_M"),
            (0, b"anything"),
            (MIB, b"\x0d\xd0\x01\xc0"),
            (SIZE - 512, b"EFI PART"),
        ] {
            let mut medium = emptied();
            medium.poke(offset, magic);
            assert!(is_none(SIZE, medium).await, "{magic:?}");
        }
        // A smaller and a larger disk, and one in which the member is a partition.
        for size in [SIZE - 4096, SIZE + 4096] {
            assert!(is_none(size, emptied()).await, "{size}");
        }
        let mut around = Medium::new(512);
        around.poke(MIB + SIZE - 4096, &at(&disks[0], SIZE - 4096));
        assert!(is_none(MIB + SIZE, around).await);
        // Half a sector more or less at the end does not move it.
        assert!(!is_none(SIZE + 512, emptied()).await);
    });
}

#[test]
fn a_start_and_a_scrub_write_second_labels_again() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 4]);
        let all = members(&disks);
        stopped(&rt, &all).await;
        // Members of an earlier version have none; the other end is damaged.
        overwrite(&disks[0], SIZE - 4096, &[0; 4096]);
        overwrite(&disks[1], SIZE - 4096, &[0x5a; 4096]);
        let array = assemble(&rt, &all).await;
        assert!(disks.iter().all(|disk| has_second(disk, SIZE)));
        let events = array.subscribe_from_start();
        let repaired = || {
            let told = std::iter::from_fn(|| events.try_next());
            told.filter(|event| matches!(event, Event::MetadataRepaired { .. })).count()
        };
        assert_eq!(repaired(), 1);
        overwrite(&disks[2], SIZE - 100, b"by accident");
        array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!(repaired(), 1);
        assert!(has_second(&disks[2], SIZE));
        array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!(repaired(), 0);
    });
}

/// Moments while a disk is added and while it is wiped: it is a member or none, and never a member
/// that seems to be damaged.
#[test]
fn a_crash_between_the_two_labels_leaves_no_damaged_member() {
    let moments: Rc<RefCell<Vec<Medium>>> = Rc::default();
    let out = moments.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); 5]);
        let all = members(&disks);
        stopped(&rt, &all[..4]).await;
        let array = assemble(&rt, &all[..4]).await;
        let disk = disks[4].clone();
        power.watch(move || {
            for leave in [Leave::All, Leave::Nothing] {
                out.borrow_mut().push(leave.of(&disk.medium.borrow()));
            }
        });
        array.add_spare(all[4].clone()).await.expect("added");
        array.remove_spare("test4").await.expect("removed");
        wipe(&*all[4], false).await.expect("wiped");
        power.watch(|| ());
    });
    let moments = moments.take();
    assert!(moments.len() > 10, "{}", moments.len());
    for medium in moments {
        run(move |rt| async move {
            let disk = holding(&rt, &Power::new(), SIZE, &[medium]).remove(0);
            read_superblock(&*disk).await.expect("not damaged");
        });
    }
}

#[test]
fn the_second_label_moves_to_the_new_end_when_the_array_grows() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 4]);
        let all = members(&disks);
        let bytes = stopped(&rt, &all).await;
        let array = assemble(&rt, &all).await;
        let larger = SIZE + 20 * 8192;
        disks.iter().for_each(|disk| disk.enlarge(larger));
        let before = array.size_bytes();
        array.grow(None).await.expect("grown");
        assert!(disks.iter().all(|disk| has_second(disk, larger)));
        let added = usize::try_from(array.size_bytes() - before).expect("small");
        assert!(read(&array, before, added).await.iter().all(|byte| *byte == 0));
        write(&array, before, &pattern(before, added, 2)).await;
        assert!(disks.iter().all(|disk| has_second(disk, larger)));
        assert!(read(&array, 0, bytes.len()).await == bytes);
        assert!(read(&array, before, added).await == pattern(before, added, 2));
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!(report.mismatches, 0);
    });
}

#[test]
fn data_comes_first_where_there_is_no_room() {
    run(|rt| async move {
        let bench = Bench::new(&rt, "raid5", 4).await;
        let end = bench.disks[0].info().size_bytes;
        assert_eq!(end, bench.superblock.area.data_offset + bench.superblock.rows * UNIT);
        let bytes = pattern(0, bench.array.size_bytes() as usize, 1);
        write(&bench.array, 0, &bytes).await;
        bench.array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert!(read(&bench.array, 0, bytes.len()).await == bytes);
        // A large disk leaves a block for it.
        for (size, unused) in
            [((1 << 30) - UNIT, 0), (1 << 30, UNIT), ((1 << 30) + 512, UNIT + 512)]
        {
            let disks: Vec<_> = (0..3).map(|n| sized_disk(&rt, n, 512, size)).collect();
            let planned = plan(&members(&disks), &options("raid5")).await.expect("possible");
            assert_eq!(planned.members[0].unused_bytes, unused, "{size}");
        }
    });
}
