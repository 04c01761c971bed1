//! What was never written reads as zeros without a disk: whatever the members hold there, in every
//! state of the array, and next to the first small writes.

use std::rc::Rc;

use crate::common::*;
use weft_array::superblock::write_superblock;
use weft_array::{Array, MemberState, ScrubMode, Superblock, create};
use weft_code::SlotNo;
use weft_disk::{Disk, RamDisk, WriteOpts};
use weft_rt::{Frozen, MILLISECOND, Rt};

const MIB: u64 = 3;

/// A disk whose data area was used before.
async fn used(name: &str) -> Rc<dyn Disk> {
    let disk = RamDisk::new(name, MIB << 20, 512);
    let garbage = pattern(0, (MIB << 20) as usize, 0x5a);
    disk.write(0, Frozen::copy_from(&garbage), WriteOpts::USER).await.expect("written");
    Rc::new(disk)
}

/// An array on disks that hold garbage wherever it was never written.
async fn make(rt: &Rt, code: &str, slots: usize) -> (Array, Vec<Rc<dyn Disk>>) {
    let disks = disks(slots, MIB);
    let mut options = options(code);
    // As many regions as possible.
    (options.unit_bytes, options.region_bytes) = (4096, Some(0));
    let mut made = create(&disks, &options).await.expect("created");
    (made.seq, made.members_zeroed) = (made.seq + 1, false);
    for (disk, slot) in disks.iter().zip(&made.slots) {
        let id = slot.member_id.expect("a member");
        write_superblock(&**disk, &made, id).await.expect("written");
        fill(&**disk, &made).await;
    }
    (assemble(rt, &disks).await, disks)
}

async fn fill(disk: &dyn Disk, made: &Superblock) {
    let start = made.area.data_offset;
    let garbage = pattern(start, ((MIB << 20) - start) as usize, 0xa5);
    disk.write(start, Frozen::copy_from(&garbage), WriteOpts::USER).await.expect("written");
}

async fn expect(array: &Array, model: &[u8], what: &str) {
    let found = read(array, 0, model.len()).await;
    let wrong = found.iter().zip(model).position(|(a, b)| a != b);
    assert_eq!(wrong, None, "{what}");
}

/// Small writes, one in each of every third region.
async fn write_some(array: &Array, model: &mut [u8], first: usize) {
    let mut at = 0;
    for number in 0.. {
        if at >= model.len() as u64 {
            return;
        }
        let region = array.region_at(at);
        if number % 3 == first {
            let (offset, len) = (region.end - 700, 600);
            let bytes = pattern(offset, len, 3);
            write(array, offset, &bytes).await;
            model[offset as usize..][..len].copy_from_slice(&bytes);
        }
        at = region.end;
    }
}

async fn rebuilt(rt: &Rt, array: &Array, what: &str) {
    for _ in 0..100_000 {
        if array.status().slots.iter().all(|slot| slot.state == MemberState::Active) {
            return;
        }
        rt.sleep(MILLISECOND).await;
    }
    panic!("{what}: {:#?}", array.status());
}

#[test]
fn garbage_under_what_was_never_written_is_never_seen() {
    for (code, slots) in CODES {
        let rt = rt();
        rt.clone().block_on(async move {
            let (array, _disks) = make(&rt, code, slots).await;
            let mut model = vec![0; array.size_bytes() as usize];
            expect(&array, &model, &format!("{code}: new")).await;
            let holes = array.allocation(0, array.size_bytes()).expect("within");
            assert!(matches!(holes[..], [hole] if hole.hole), "{code}: {holes:?}");

            write_some(&array, &mut model, 0).await;
            expect(&array, &model, &format!("{code}: healthy")).await;
            let found = array.scrub(ScrubMode::Check).await.expect("scrubbed");
            assert_eq!((found.mismatches, found.stripes > 0), (0, true), "{code}");

            array.fail(SlotNo(0)).await.expect("may fail");
            expect(&array, &model, &format!("{code}: degraded")).await;
            write_some(&array, &mut model, 1).await;
            expect(&array, &model, &format!("{code}: written degraded")).await;

            array.add_spare(used("spare").await).await.expect("added");
            expect(&array, &model, &format!("{code}: rebuilding")).await;
            rebuilt(&rt, &array, code).await;
            write_some(&array, &mut model, 2).await;
            expect(&array, &model, &format!("{code}: rebuilt")).await;
            array.fail(SlotNo(1)).await.expect("may fail");
            expect(&array, &model, &format!("{code}: without another")).await;
            array.add_spare(used("spare2").await).await.expect("added");
            rebuilt(&rt, &array, code).await;
            let found = array.scrub(ScrubMode::Check).await.expect("scrubbed");
            assert_eq!(found.mismatches, 0, "{code}");
            expect(&array, &model, &format!("{code}: scrubbed")).await;
        });
    }
}

#[test]
fn the_extents_of_an_array_are_those_of_whole_stripes() {
    for (code, slots) in CODES {
        let rt = rt();
        rt.clone().block_on(async move {
            let (array, _disks) = make(&rt, code, slots).await;
            let (size, stripe) = (array.size_bytes(), array.stripe_bytes());
            // A region and the first stripe of the next: where regions and stripes do not match,
            // some begin in one region and end in another.
            let mut at = array.region_at(size / 2).start;
            let begun = at;
            for _ in 0..2 {
                write(&array, at, &pattern(at, 512, 1)).await;
                at = array.region_at(at).end;
            }
            assert!(begun % stripe == 0 && at % stripe == 0, "{code}");
            let extents = array.allocation(0, size).expect("within");
            let told: Vec<_> = extents.iter().map(|extent| (extent.len, extent.hole)).collect();
            assert_eq!(told, [(begun, true), (at - begun, false), (size - at, true)], "{code}");
            // A range that begins and ends within them.
            let extents = array.allocation(begun - 1, 2).expect("within");
            assert_eq!(extents.iter().map(|e| e.hole).collect::<Vec<_>>(), [true, false], "{code}");
        });
    }
}
