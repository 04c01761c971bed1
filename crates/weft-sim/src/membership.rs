//! The rules of membership, worked out a second time from what stands on the disks.
//!
//! The engine refuses to start a set of disks that may be stale, and stops when most active members
//! fail in one moment (`docs/on-disk-format.md`, "Who belongs to the array"). Both must happen
//! exactly when the rules say so: here they are applied to the superblocks as they are on the
//! platters, so that neither is excused otherwise.

use std::rc::Rc;

use weft_array::Superblock;
use weft_array::superblock::{Role, SlotState, peek_label};
use weft_code::UnitSet;
use weft_disk::Disk;
use weft_rt::Rt;

use crate::disk::{Faults, Platter};
use crate::engine::Engine;
use crate::format::{SUPERBLOCK_COPIES, SUPERBLOCK_COPY_BYTES};
use crate::member::Member;
use crate::violation::{Broken, Violation};

/// The newest superblock on a disk, if it is a member's.
pub(crate) fn superblock_of(platter: &Platter) -> Option<Superblock> {
    newest_superblock(platter, |_| true)
}

/// The newest superblock on a disk of which the program in this life can know: not one whose write
/// failed, and which is there all the same.
fn acknowledged_superblock_of(platter: &Platter) -> Option<Superblock> {
    let denied = platter.faults(|f| f.denied.clone());
    newest_superblock(platter, |copy| {
        denied
            .iter()
            .all(|range| range.end <= copy || copy + SUPERBLOCK_COPY_BYTES as u64 <= range.start)
    })
}

fn newest_superblock(platter: &Platter, counts: impl Fn(u64) -> bool) -> Option<Superblock> {
    let mut label = [0; 4096];
    platter.peek(0, &mut label);
    let own = peek_label(&label).ok()??;
    let copy = |offset: &u64| {
        let mut bytes = vec![0; SUPERBLOCK_COPY_BYTES];
        platter.peek(*offset, &mut bytes);
        Superblock::decode(&bytes).ok().filter(|s| (s.array_id, s.self_id) == own)
    };
    SUPERBLOCK_COPIES
        .iter()
        .filter(|offset| {
            counts(**offset) && platter.can_be_read(**offset, SUPERBLOCK_COPY_BYTES as u64)
        })
        .filter_map(copy)
        .max_by_key(|superblock| superblock.seq)
}

/// The superblocks of disks, newest first, and whether each disk failed.
fn all(
    disks: &[Member],
    superblock_of: impl Fn(&Platter) -> Option<Superblock>,
) -> Vec<(Superblock, bool)> {
    let known = |member: &Member| {
        let own = superblock_of(&member.platter)?;
        // A member is excluded if its metadata finds no room; if data does not, it stays.
        let metadata = |range: &std::ops::Range<u64>| range.start < own.area.data_offset;
        let failed = |f: &mut Faults| f.failed || f.gone || f.denied.iter().any(metadata);
        let failed = member.absent || member.platter.faults(failed);
        Some((own, failed))
    };
    let mut known: Vec<_> = disks.iter().filter_map(known).collect();
    known.sort_by_key(|(own, _)| std::cmp::Reverse(own.seq));
    known
}

/// Those of disks that place themselves in a slot: only they may tell what the array is.
fn in_slots(
    disks: &[Member],
    superblock_of: impl Fn(&Platter) -> Option<Superblock>,
) -> Vec<(Superblock, bool)> {
    let mut known = all(disks, superblock_of);
    known.retain(|(own, _)| matches!(own.role_of(own.self_id), Role::Slot(..)));
    known
}

/// Whether so many of the members that are active in the superblock in effect have failed that the
/// array has to stop.
pub(crate) fn must_have_stopped(disks: &[Member]) -> bool {
    lacks_majority(disks, None)
}

/// Whether it has to stop, or would, if this disk failed, too.
pub(crate) fn must_have_stopped_without(disks: &[Member], platter: &Platter) -> bool {
    lacks_majority(disks, Some(platter))
}

fn lacks_majority(disks: &[Member], lost: Option<&Platter>) -> bool {
    let lost = lost.and_then(acknowledged_superblock_of).map(|own| own.self_id);
    let known = in_slots(disks, acknowledged_superblock_of);
    in_effect(&known).is_some_and(|superblock| {
        let is_kept = |(own, failed): &(Superblock, bool)| !failed && Some(own.self_id) != lost;
        let kept = superblock
            .active_slots()
            .filter(|slot| on(&known, superblock, *slot).is_some_and(is_kept));
        2 * kept.count() < superblock.active_slots().count()
    })
}

/// Whether this disk is the only one that is active in the superblock in effect: a command that
/// excluded it would cost the array.
pub(crate) fn is_only_active(disks: &[Member], platter: &Platter) -> bool {
    let id = acknowledged_superblock_of(platter).map(|own| own.self_id);
    let known = in_slots(disks, acknowledged_superblock_of);
    in_effect(&known).is_some_and(|superblock| {
        superblock.active_members().into_iter().all(|active| Some(active) == id)
    })
}

/// What a member's disk says that is in a slot of `superblock`.
fn on<'a>(
    known: &'a [(Superblock, bool)],
    superblock: &Superblock,
    slot: usize,
) -> Option<&'a (Superblock, bool)> {
    let id = superblock.slots[slot].member_id;
    known.iter().find(|(own, _)| Some(own.self_id) == id)
}

/// The superblock in effect: the newest that all have which it lists.
fn in_effect(known: &[(Superblock, bool)]) -> Option<&Superblock> {
    let all_have = |candidate: &Superblock| {
        let listed = |slot: &usize| candidate.slots[*slot].state != SlotState::Missing;
        let holds =
            |slot| on(known, candidate, slot).is_some_and(|(own, _)| own.seq >= candidate.seq);
        (0..candidate.slots.len()).filter(listed).all(holds)
    };
    known.iter().map(|(own, _)| own).find(|candidate| all_have(candidate))
}

/// The slots whose disks the newest superblock does not call active. The engine may have taken one
/// for active that was not so on disk yet.
pub(crate) fn not_active(disks: &[Member]) -> UnitSet {
    let known = in_slots(disks, superblock_of);
    let Some((newest, _)) = known.first() else { return UnitSet::new() };
    let active: UnitSet = newest.active_slots().collect();
    UnitSet::first(newest.slots.len()).difference(&active)
}

/// Whether these disks may be the stale part of the array.
fn may_be_stale(disks: &[Member]) -> bool {
    let witnesses = in_slots(disks, superblock_of);
    let Some((first, _)) = witnesses.first() else { return false };
    // Of several of one number the one that most hold counts.
    let holders =
        |of: &Superblock| witnesses.iter().filter(|(own, _)| own.says_the_same(of)).count();
    let latest = witnesses.iter().filter(|(own, _)| own.seq == first.seq);
    let most = latest.max_by_key(|(own, _)| (holders(own), own.log_epoch));
    let newest = most.map_or(first, |(own, _)| own);
    let known = all(disks, superblock_of);
    let found = |counts: &dyn Fn(&Superblock) -> bool| {
        known.iter().filter(|(own, _)| own.seq <= newest.seq && counts(own)).count()
    };
    let active = newest.active_members();
    let present = found(&|own| {
        let is_up_to_date = match newest.seq - own.seq {
            0 => own.says_the_same(newest),
            behind => behind == 1,
        };
        active.contains(&own.self_id) && is_up_to_date
    });
    let lacks_those_before = newest.succeeds.as_ref().is_some_and(|before| {
        let counts = |own: &Superblock| {
            let of_this_part = own.seq <= before.seq || own.log_epoch == newest.log_epoch;
            before.active.contains(&own.self_id) && of_this_part
        };
        2 * found(&counts) <= before.active.len()
    });
    2 * present <= active.len() || lacks_those_before
}

/// Assembles the array from the attached disks: by itself where the rule allows it, and else – what
/// is missing is lost for good – by force, after it was refused.
pub(crate) fn assemble(
    rt: &Rt,
    members: &[Member],
    disks: Vec<Rc<dyn Disk>>,
    nonce: u64,
) -> impl Future<Output = Result<Engine, Broken>> + 'static + use<> {
    let attached: Vec<Member> = members.iter().filter(|member| !member.absent).cloned().collect();
    let rt = rt.clone();
    async move {
        let is_gone = |member: &Member| member.platter.faults(|f| f.gone);
        let is_full = |left: &[Member]| left.iter().any(|m| m.platter.faults(|f| f.full));
        let gone = || attached.iter().filter(|member| is_gone(member)).count();
        loop {
            let (left, disks): (Vec<Member>, Vec<Rc<dyn Disk>>) = attached
                .iter()
                .cloned()
                .zip(disks.iter().cloned())
                .filter(|(member, _)| !is_gone(member))
                .unzip();
            let (before, force) = (gone(), may_be_stale(&left));
            if force && Engine::assemble(&rt, disks.clone(), false, false, nonce).await.is_ok() {
                let text = "disks were started that may be stale";
                return Err(Broken::new(Violation::StaleAssembly, text));
            }
            match Engine::assemble(&rt, disks, force, false, nonce).await {
                // What the log says found no room: whoever runs it makes some.
                Err(error) if is_full(&left) && error.to_lowercase().contains("no space") => {
                    left.iter().for_each(|member| member.platter.faults(|f| f.full = false));
                }
                // A disk went meanwhile: whoever runs it tries again without.
                Err(_) if gone() > before && !must_have_stopped(&left) => {}
                Err(error) => {
                    let text = format!("assembly was refused: {error}");
                    return Err(Broken::new(Violation::AssemblyRefused, text));
                }
                Ok(engine) => return Ok(engine),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_array::{Consistency, CreateOptions};

    use super::*;
    use crate::clock::sim_rt;
    use crate::disk::SimDisk;
    use crate::world::World;

    /// A new mirror of `count`.
    fn mirror(count: usize) -> Vec<Member> {
        let rt = sim_rt(1, 1_000_000);
        let world = World::new(&rt, 1);
        let platter = |n: usize| Platter::new(n, 4 << 20, 512, world.rng(n as u64));
        let platters: Vec<Platter> = (0..count).map(platter).collect();
        let open = |platter| SimDisk::open(&world, platter) as Rc<dyn Disk>;
        let disks: Vec<Rc<dyn Disk>> = platters.iter().map(open).collect();
        let options = CreateOptions {
            name: "mirror".into(),
            code: "raid1".parse().expect("a code"),
            algorithm: None,
            unit_bytes: 4096,
            consistency: Consistency::Bitmap,
            region_bytes: None,
            log_bytes: None,
            spares: 0,
            force: false,
            id: [7; 16],
            now_unix_s: 0,
        };
        let created = rt.block_on(async move { weft_array::create(&disks, &options).await });
        created.expect("created");
        platters.into_iter().map(|platter| Member { platter, absent: false }).collect()
    }

    #[test]
    fn it_has_to_stop_when_more_than_half_fail_and_not_before() {
        for count in 2..=5 {
            let mut disks = mirror(count);
            for lost in 0..=count {
                assert_eq!(must_have_stopped(&disks), 2 * lost > count, "{lost} of {count}");
                match disks.get_mut(lost) {
                    Some(member) if lost % 2 == 0 => member.platter.faults(|f| f.gone = true),
                    Some(member) => member.absent = true,
                    None => {}
                }
            }
        }
    }

    #[test]
    fn a_disk_that_works_again_is_no_member_that_was_kept() {
        let mut disks = mirror(3);
        disks[0].platter.faults(|f| f.gone = true);
        disks[1].platter.faults(|f| f.failed = true);
        assert!(must_have_stopped(&disks));
        disks[0].comes_back();
        disks[1].comes_back();
        assert!(must_have_stopped(&disks));
        assert!(disks[0].platter.faults(|f| !f.gone), "it answers");
    }

    #[test]
    fn metadata_without_room_costs_the_member_and_data_without_room_does_not() {
        let disks = mirror(3);
        let data = superblock_of(&disks[0].platter).expect("a member").area.data_offset;
        disks[0].platter.faults(|f| f.gone = true);
        disks[1].platter.faults(|f| f.denied.push(data..data + 512));
        assert!(!must_have_stopped(&disks));
        disks[1].platter.faults(|f| f.denied.push(data - 512..data));
        assert!(must_have_stopped(&disks));
    }
}
