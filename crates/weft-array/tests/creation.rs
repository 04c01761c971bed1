//! `create` makes disks members only if everything is right, and otherwise changes nothing.

use std::cell::Cell;
use std::rc::Rc;

use crate::members;
use crate::members::{MIB, disks, now, options, read};
use weft_array::create::{PlannedRole, plan};
use weft_array::examine::{CopyReport, LabelReport};
use weft_array::superblock::{Role, SlotState, read_superblock};
use weft_array::{Consistency, CreateError, CreateOptions, create, examine};
use weft_code::SlotNo;
use weft_disk::{Disk, DiskError, DiskInfo, DiskOp, DoneFuture, Layer, RamDisk, WriteOpts};
use weft_rt::{Buf, Frozen};

#[test]
fn members_know_their_array_and_their_place() {
    let disks = disks(8, 64);
    let options = CreateOptions { spares: 1, ..options("drc-g:4,2,1", 7) };
    let superblock = now(create(&disks, &options)).expect("made");
    assert!(superblock.clean && superblock.members_zeroed);
    assert_eq!((superblock.slots.len(), superblock.spares.len()), (7, 1));
    for (n, disk) in disks.iter().enumerate() {
        let report = now(examine(disk.as_ref())).expect("readable");
        let own = report.superblock.expect("whole");
        assert!(own.says_the_same(&superblock));
        assert!(
            matches!(report.label, LabelReport::Whole { member_id, .. } if member_id == own.self_id)
        );
        let role = if n < 7 { Role::Slot(SlotNo(n), SlotState::Active) } else { Role::Spare };
        assert_eq!(report.role, Some(role));
        let map = report.region_map.expect("whole");
        assert_eq!((map.written, map.dirty, map.pages_lost.len()), (0, 0, 0));
        assert_eq!(report.copies, [CopyReport::Unwritten, CopyReport::Whole { seq: 1 }]);
    }
}

#[test]
fn the_plan_matches_what_is_created_and_changes_nothing() {
    let mut all = disks(3, 64);
    all.push(Rc::new(RamDisk::new("big", 100 * MIB, 4096)));
    let before: Vec<_> = all.iter().map(|disk| read(disk.as_ref(), 0, 1 << 20)).collect();
    let plan = now(plan(&all, &options("raid6", 1))).expect("possible");
    let after: Vec<_> = all.iter().map(|disk| read(disk.as_ref(), 0, 1 << 20)).collect();
    assert_eq!(before, after);
    assert_eq!((plan.tolerance, plan.sector_bytes), (2, 4096));
    assert_eq!(plan.size_bytes, plan.stripes * 2 * (64 << 10));
    assert_eq!(plan.members[3].role, PlannedRole::Slot { slot: SlotNo(3) });
    assert!(plan.members[3].unused_bytes >= 36 * MIB);
    assert_eq!(plan.notes.len(), 3, "{:?}", plan.notes);
    assert!(plan.to_string().contains("can lose any 2 members"), "{plan}");
}

fn refusal(disks: &[Rc<dyn Disk>], options: &CreateOptions) -> CreateError {
    let refused = now(create(disks, options)).expect_err("refused");
    assert!(disks.iter().all(|disk| {
        !matches!(now(read_superblock(disk.as_ref())), Ok(Some(own)) if own.array_id.0 == options.id)
    }));
    refused
}

#[test]
fn impossible_options_are_refused_with_the_reason() {
    let wish = |change: fn(&mut CreateOptions)| {
        let mut wish = options("raid5", 1);
        change(&mut wish);
        refusal(&disks(3, 16), &wish).to_string()
    };
    let says = |said: String, what: &str| assert!(said.contains(what), "{said}");
    says(wish(|o| o.code = "raid6".parse().expect("a code")), "needs at least 4 slots, got 3");
    says(wish(|o| o.unit_bytes = 3 << 12), "power of two");
    says(wish(|o| o.unit_bytes = 512), "power of two");
    says(wish(|o| o.unit_bytes = 32 << 20), "power of two");
    says(wish(|o| o.spares = 3), "leave none");
    says(wish(|o| o.name = String::new()), "name");
    says(wish(|o| o.name = "a\nb".into()), "letters");
    says(wish(|o| o.code = "raid1".parse().expect("a code")), "use 'bitmap'");
    says(wish(|o| o.unit_bytes = 16 << 20), "too small");
    let tiny: Vec<Rc<dyn Disk>> =
        (0..3).map(|n| Rc::new(RamDisk::new(&format!("t{n}"), MIB, 512)) as Rc<dyn Disk>).collect();
    says(refusal(&tiny, &options("raid5", 1)).to_string(), "at least");
    let twice = vec![tiny[0].clone(), tiny[1].clone(), tiny[0].clone()];
    assert!(matches!(refusal(&twice, &options("raid5", 1)), CreateError::SameDisk { .. }));
}

#[test]
fn existing_data_is_named_and_needs_force() {
    let disks = disks(3, 16);
    now(create(&disks, &options("raid5", 1))).expect("made");
    let refused = refusal(&disks, &options("raid5", 2));
    assert!(matches!(refused, CreateError::AlreadyMember { .. }));
    assert!(now(read_superblock(disks[0].as_ref())).expect("whole").is_some(), "left alone");
    let forced = CreateOptions { force: true, ..options("raid5", 2) };
    assert_eq!(now(create(&disks, &forced)).expect("forced").array_id.0, [2; 16]);

    let disks = members::disks(3, 16);
    let mut sector = Buf::zeroed(512);
    sector[56..58].copy_from_slice(b"\x53\xef");
    now(disks[1].write(1024, sector.freeze(), WriteOpts::USER)).expect("written");
    let refused = refusal(&disks, &options("raid5", 1));
    assert!(refused.to_string().contains("ram1 holds an ext2/3/4 file system"), "{refused}");
    let forced = CreateOptions { force: true, ..options("raid5", 1) };
    let dry = now(plan(&disks, &forced)).expect("forced");
    assert_eq!(dry.members[1].overwrites.as_deref(), Some("an ext2/3/4 file system"));
    now(create(&disks, &forced)).expect("forced");
}

#[test]
fn unrecognised_data_needs_force_too() {
    // At the start, at the end, and where a sample is read.
    for offset in [0, (16 << 20) - 512, (16 * MIB / 65 * 7) & !4095] {
        let disks = members::disks(3, 16);
        let mut sector = Buf::zeroed(512);
        sector[300] = 1;
        now(disks[1].write(offset, sector.freeze(), WriteOpts::USER)).expect("written");
        let refused = refusal(&disks, &options("raid5", 1)).to_string();
        let what =
            format!("ram1 holds data that is not recognised (the first at byte {})", offset + 300);
        assert!(refused.contains(&what), "{refused}");
        now(create(&disks, &CreateOptions { force: true, ..options("raid5", 1) })).expect("forced");
    }
}

/// A disk that fails its n-th write and all later ones; or one that shares the memory of another.
struct Failing {
    info: DiskInfo,
    inner: Rc<RamDisk>,
    left: Rc<Cell<u32>>,
}

impl Failing {
    fn spend(&self) -> Result<(), DiskError> {
        match self.left.get() {
            0 => {
                let cause = std::io::Error::other("it is broken");
                Err(DiskError::new(&self.info.name, DiskOp::Write, 0, 0, cause))
            }
            left => {
                self.left.set(left - 1);
                Ok(())
            }
        }
    }
}

impl Layer for Failing {
    fn below(&self) -> &dyn Disk {
        self.inner.as_ref()
    }

    fn info(&self) -> &DiskInfo {
        &self.info
    }
    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            self.spend()?;
            self.inner.write(offset, data, opts).await
        })
    }
    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            self.spend()?;
            self.inner.write_zeroes(offset, len, opts).await
        })
    }
}

#[test]
fn a_disk_that_fails_half_way_leaves_no_members() {
    for writes in 0..100 {
        let ram = |n| Rc::new(RamDisk::new(&format!("ram{n}"), 16 * MIB, 512));
        let good: Vec<_> = (0..2).map(ram).collect();
        let inner = ram(2);
        let info = inner.info().clone();
        let bad = Rc::new(Failing { info, inner, left: Rc::new(Cell::new(writes)) });
        let disks: Vec<Rc<dyn Disk>> = vec![good[0].clone(), bad, good[1].clone()];
        if now(create(&disks, &options("raid5", 1))).is_ok() {
            assert!(writes > 5, "the failures came too late to matter");
            return;
        }
        for disk in &disks {
            assert!(now(read_superblock(disk.as_ref())).expect("readable").is_none());
        }
    }
    panic!("it never succeeds");
}

#[test]
fn one_disk_under_two_names_is_found_out() {
    let inner = Rc::new(RamDisk::new("a", 16 * MIB, 512));
    let link = |name: &str| {
        let info = DiskInfo { name: name.into(), ..inner.info().clone() };
        let left = Rc::new(Cell::new(u32::MAX));
        Rc::new(Failing { info, inner: inner.clone(), left }) as Rc<dyn Disk>
    };
    let disks = vec![link("a"), link("b"), Rc::new(RamDisk::new("c", 16 * MIB, 512))];
    let refused = refusal(&disks, &options("raid5", 1));
    assert!(matches!(refused, CreateError::SameDiskUnderTwoNames { .. }), "{refused}");
}

#[test]
fn disks_that_cannot_zero_quickly_are_not_zeroed() {
    let slow = |n| {
        let inner = Rc::new(RamDisk::new("", 16 * MIB, 512));
        let name = format!("slow{n}");
        let info = DiskInfo { name, fast_zeroes: false, ..inner.info().clone() };
        Rc::new(Failing { info, inner, left: Rc::new(Cell::new(u32::MAX)) }) as Rc<dyn Disk>
    };
    let disks: Vec<_> = (0..3).map(slow).collect();
    let data = Frozen::copy_from(&[0x5a; 4096]);
    now(disks[0].write(8 * MIB, data, WriteOpts::USER)).expect("written");
    let superblock = now(create(&disks, &options("raid5", 1))).expect("made");
    assert!(!superblock.members_zeroed);
    assert_eq!(superblock.consistency, Consistency::Ppl);
    assert_eq!(read(disks[0].as_ref(), 8 * MIB, 4096), [0x5a; 4096]);
}
