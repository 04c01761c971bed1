//! The membership rules, implemented a second time, from the superblocks on the disks.
//!
//! The engine refuses to start disks that may be stale, and stops when most active members fail at
//! once (`docs/on-disk-format.md`, "Who belongs to the array"). Both must happen exactly when the
//! rules require it. This module applies the rules to the superblocks as they are on the platters;
//! the simulator accepts a refusal or a stop for no other reason.

use std::rc::Rc;

use weft_array::superblock::{Role, SlotState, peek_label};
use weft_array::{Consistency, Superblock};
use weft_code::{SlotNo, SlotSet};
use weft_disk::Disk;
use weft_rt::Rt;

use crate::disk::{Faults, Platter};
use crate::engine::Engine;
use crate::foreign::FOREIGN_ID;
use crate::format::{SUPERBLOCK_COPIES, SUPERBLOCK_COPY_BYTES};
use crate::member::Member;
use crate::violation::{Violation, ViolationKind};

/// The newest superblock on a disk, if the disk is a member.
pub(crate) fn superblock_of(platter: &Platter) -> Option<Superblock> {
    newest_superblock(platter, |_| true)
}

/// The newest superblock on a disk that the engine knows of in this life. A superblock whose write
/// failed, or has not ended (the disk may hang until the engine severs it), does not count, even if
/// it was stored.
fn acknowledged_superblock_of(platter: &Platter) -> Option<Superblock> {
    let failed_writes = platter.faults(|f| f.failed_writes.clone());
    newest_superblock(platter, |copy| {
        let copy = copy..copy + SUPERBLOCK_COPY_BYTES as u64;
        let meets = |range: &std::ops::Range<u64>| range.start < copy.end && copy.start < range.end;
        !failed_writes.iter().any(meets) && !platter.is_written(&copy)
    })
}

fn newest_superblock(platter: &Platter, counts: impl Fn(u64) -> bool) -> Option<Superblock> {
    let mut label = [0; 4096];
    platter.peek(0, &mut label);
    let own = peek_label(&label).ok()?.filter(|(array, _)| array.0 != FOREIGN_ID)?;
    let copy = |offset: &u64| {
        let mut bytes = vec![0; SUPERBLOCK_COPY_BYTES];
        platter.peek(*offset, &mut bytes);
        // Sectors that the superblock does not use do not matter.
        for (block, at) in bytes.chunks_mut(4096).zip((*offset..).step_by(4096)) {
            if !platter.can_be_read(at, 4096) {
                block.fill(0);
            }
        }
        Superblock::decode(&bytes).ok().filter(|s| (s.array_id, s.self_id) == own)
    };
    SUPERBLOCK_COPIES
        .iter()
        .filter(|offset| counts(**offset))
        .filter_map(copy)
        .max_by_key(|superblock| superblock.seq)
}

/// The superblocks on the disks, newest first, each with whether its disk failed.
fn known_superblocks(
    disks: &[Member],
    superblock_of: impl Fn(&Platter) -> Option<Superblock>,
) -> Vec<(Superblock, bool)> {
    let known = |member: &Member| {
        let own = superblock_of(&member.platter)?;
        // A failed metadata write excludes a member; a failed data write does not.
        let metadata = |range: &std::ops::Range<u64>| range.start < own.area.data_offset;
        let failed = |f: &mut Faults| f.failed || f.gone || f.failed_writes.iter().any(metadata);
        let failed = member.absent || member.platter.faults(failed);
        Some((own, failed))
    };
    let mut known: Vec<_> = disks.iter().filter_map(known).collect();
    known.sort_by_key(|(own, _)| std::cmp::Reverse(own.seq));
    known
}

/// The superblocks of disks that have a slot. Only these determine the superblock in effect.
fn in_slots(
    disks: &[Member],
    superblock_of: impl Fn(&Platter) -> Option<Superblock>,
) -> Vec<(Superblock, bool)> {
    let mut known = known_superblocks(disks, superblock_of);
    known.retain(|(own, _)| matches!(own.role_of(own.self_id), Role::Slot(..)));
    known
}

fn lists(superblock: &Superblock, member: &Superblock) -> bool {
    matches!(superblock.role_of(member.self_id), Role::Slot(..) | Role::Replacement(_))
}

/// Whether enough active members of the superblock in effect have failed to stop the array.
pub(crate) fn must_have_stopped(disks: &[Member]) -> bool {
    lacks_majority(disks, None)
}

/// Whether the array has to stop, or would have to if this disk failed, too.
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
            .filter(|slot| member_in_slot(&known, superblock, *slot).is_some_and(is_kept));
        2 * kept.count() < superblock.active_slots().count()
    })
}

/// Whether this disk is the only active member of the superblock in effect. A command that excluded
/// it would cost the array.
pub(crate) fn is_only_active(disks: &[Member], platter: &Platter) -> bool {
    let id = acknowledged_superblock_of(platter).map(|own| own.self_id);
    let known = in_slots(disks, acknowledged_superblock_of);
    in_effect(&known).is_some_and(|superblock| {
        superblock.active_members().into_iter().all(|active| Some(active) == id)
    })
}

/// The superblock of the member in a slot of `superblock`.
fn member_in_slot<'a>(
    known: &'a [(Superblock, bool)],
    superblock: &Superblock,
    slot: SlotNo,
) -> Option<&'a (Superblock, bool)> {
    let id = superblock.slots[slot.0].member_id;
    known.iter().find(|(own, _)| Some(own.self_id) == id)
}

/// The superblock in effect: the newest that all members listed in it have.
fn in_effect(known: &[(Superblock, bool)]) -> Option<&Superblock> {
    let all_have = |candidate: &Superblock| {
        let listed = |slot: &SlotNo| candidate.slots[slot.0].state != SlotState::Missing;
        let holds = |slot| {
            member_in_slot(known, candidate, slot).is_some_and(|(own, _)| own.seq >= candidate.seq)
        };
        SlotNo::all(candidate.slots.len()).filter(listed).all(holds)
    };
    known.iter().map(|(own, _)| own).find(|candidate| all_have(candidate))
}

/// The slots that may turn out not to be active after a crash. The engine may have taken a slot for
/// active before that was on disk; and the disks that know of it are not enough if one of them is
/// lost, or the next superblock tears on the other members.
pub(crate) fn not_active(disks: &[Member]) -> SlotSet {
    let known = in_slots(disks, superblock_of);
    let Some((newest, _)) = known.first() else { return SlotSet::new() };
    let active = |superblock: &Superblock| superblock.active_slots().collect::<SlotSet>();
    let sure = in_effect(&known).map_or_else(|| active(newest), active);
    SlotSet::first(newest.slots.len()).difference(&active(newest).intersection(&sure))
}

/// Whether these disks may be the stale part of the array.
fn may_be_stale(disks: &[Member]) -> bool {
    let known = known_superblocks(disks, superblock_of);
    let witnesses: Vec<_> = known.iter().filter(|(own, _)| lists(own, own)).collect();
    let Some((first, _)) = witnesses.first() else { return false };
    // Of several superblocks with the same number the one on the most disks counts.
    let holders =
        |of: &Superblock| witnesses.iter().filter(|(own, _)| own.says_the_same(of)).count();
    let latest = witnesses.iter().filter(|(own, _)| own.seq == first.seq);
    let most = latest.max_by_key(|(own, _)| (holders(own), own.log_epoch));
    let newest = most.map_or(first, |(own, _)| own);
    // A superblock in effect is on every disk that it lists.
    let in_effect_nowhere = |one: &Superblock| {
        witnesses.iter().any(|(own, _)| lists(one, own) && !own.says_the_same(one))
    };
    let found = |counts: &dyn Fn(&Superblock) -> bool| {
        known.iter().filter(|(own, _)| own.seq <= newest.seq && counts(own)).count()
    };
    let active = newest.active_members();
    let present = found(&|own| {
        let is_up_to_date = match newest.seq - own.seq {
            0 => own.says_the_same(newest) || in_effect_nowhere(own),
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

/// Whether an array of these disks may get another consistency policy: `Some(true)` if all members
/// are there as a clean stop left them, `Some(false)` if it was not stopped cleanly.
fn is_settled(disks: &[Member]) -> Option<bool> {
    let known = in_slots(disks, superblock_of);
    let (newest, _) = known.first()?;
    let is_as_stopped = |slot: SlotNo| {
        let member = member_in_slot(&known, newest, slot);
        member.is_some_and(|(own, failed)| !failed && own.says_the_same(newest))
    };
    if newest.clean && SlotNo::all(newest.slots.len()).all(is_as_stopped) {
        return Some(true);
    }
    // A replacement also knows the superblock in effect.
    let all = known_superblocks(disks, superblock_of);
    all.iter().all(|(own, _)| !own.clean || !lists(own, own)).then_some(false)
}

/// Whether the engine refused another consistency policy with reason: the members have no room for
/// a log, or they were not all there as a clean stop left them, before the attempt or at its end.
fn is_refusal_of_policy(error: &str, settled: Option<bool>, left: &[Member]) -> bool {
    let has_no_room = error.contains("before their data");
    let was_settled = || settled == Some(true) && is_settled(left) == Some(true);
    has_no_room || error.contains("another consistency policy") && !was_settled()
}

/// Assembles the array from the attached disks, with another consistency policy if it is `wanted`
/// and the array was stopped cleanly. Where the rules forbid to assemble it, first checks that the
/// engine refuses, then forces it: the missing members are lost for good.
pub(crate) fn assemble<O: Fn(&Platter) -> Rc<dyn Disk> + 'static>(
    rt: &Rt,
    members: &[Member],
    open: O,
    mut wanted: Option<Consistency>,
    nonce: u64,
) -> impl Future<Output = Result<Engine, Violation>> + 'static + use<O> {
    let attached: Vec<Member> = members.iter().filter(|member| !member.absent).cloned().collect();
    let rt = rt.clone();
    async move {
        let is_gone = |member: &Member| member.platter.faults(|f| f.gone);
        let is_dead = |member: &Member| {
            member.platter.faults(|f| f.gone || f.unwritable.is_some() || f.write_protected)
        };
        let is_full = |left: &[Member]| left.iter().any(|m| m.platter.faults(|f| f.full));
        let gone = || attached.iter().filter(|member| is_gone(member)).count();
        loop {
            let left: Vec<Member> =
                attached.iter().filter(|member| !is_gone(member)).cloned().collect();
            // Anew each time: the engine ends its use of a disk that failed.
            let disks: Vec<_> = left.iter().map(|member| open(&member.platter)).collect();
            let (before, force) = (gone(), may_be_stale(&left));
            wanted = wanted.filter(|_| !force);
            let settled = is_settled(&left);
            let needs_force = || {
                let left: Vec<Member> =
                    left.iter().filter(|member| !is_dead(member)).cloned().collect();
                may_be_stale(&left)
            };
            if force
                && Engine::assemble(&rt, disks.clone(), false, false, None, nonce).await.is_ok()
            {
                let text = "the engine started disks that may be stale";
                return Err(Violation::new(ViolationKind::StaleAssembly, text));
            }
            match Engine::assemble(&rt, disks, force, false, wanted, nonce).await {
                Err(error) if wanted.is_some() && is_refusal_of_policy(&error, settled, &left) => {
                    wanted = None;
                }
                Ok(_) if wanted.is_some() && settled == Some(false) => {
                    let text = "the engine took another consistency policy before it had recovered";
                    return Err(Violation::new(ViolationKind::CommandFailed, text));
                }
                // Replaying the log needed space: the operator frees some.
                Err(error) if is_full(&left) && error.to_lowercase().contains("no space") => {
                    left.iter().for_each(|member| member.platter.faults(|f| f.full = false));
                }
                // A disk failed during this, and without it the other members may be stale: the
                // operator tries again. Otherwise the engine continues without it.
                Err(_) if gone() > before && !must_have_stopped(&left) && needs_force() => {}
                // One takes no writes, and the other members may be stale without it: the operator
                // repairs it.
                Err(_) if left.iter().any(is_dead) && needs_force() => {
                    let repaired = |f: &mut Faults| {
                        (f.unwritable, f.write_protected) = (None, false);
                    };
                    left.iter().for_each(|member| member.platter.faults(repaired));
                }
                Err(error) => {
                    let text = format!("the engine refused to assemble: {error}");
                    return Err(Violation::new(ViolationKind::AssemblyRefused, text));
                }
                Ok(engine) => return Ok(engine),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_array::superblock::write_superblock;
    use weft_array::{Consistency, CreateOptions};
    use weft_rt::SECOND;

    use super::*;
    use crate::clock::sim_rt;
    use crate::disk::SimDisk;
    use crate::world::World;

    /// A new mirror on `count` disks.
    fn mirror(count: usize) -> Vec<Member> {
        mirror_of(1, count)
    }

    fn mirror_of(seed: u64, count: usize) -> Vec<Member> {
        let rt = sim_rt(seed, 1_000_000);
        let world = World::new(&rt, seed);
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
            head_room_bytes: None,
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

    /// Assembles a mirror with another policy while its first disk fails after this many
    /// operations.
    fn assembles_with_another_policy(seed: u64, after: u64) -> Result<bool, Violation> {
        let (rt, disks) = (sim_rt(seed, 10_000_000), mirror_of(seed, 3));
        let world = World::new(&rt, seed);
        disks[0].platter.faults(|f| f.gone_after_ops = Some(after));
        let open = move |platter: &Platter| SimDisk::open(&world, platter) as Rc<dyn Disk>;
        let started = assemble(&rt, &disks, open, Some(Consistency::None), 1);
        let policy = rt.block_on(async move { Ok(started.await?.0.status().consistency) });
        rt.kill_all();
        policy.map(|policy| policy == Consistency::None)
    }

    #[test]
    fn another_policy_is_refused_with_reason_if_a_disk_fails_during_the_assembly() {
        let all = (0..30).map(|after| assembles_with_another_policy(after, after));
        let all: Vec<bool> = all.collect::<Result<_, _>>().expect("assembled");
        assert!(!all[0], "the disk was not there");
        assert!(all[29], "all disks were there");
    }

    #[test]
    fn metadata_without_room_costs_the_member_and_data_without_room_does_not() {
        let disks = mirror(3);
        let data = superblock_of(&disks[0].platter).expect("a member").area.data_offset;
        disks[0].platter.faults(|f| f.gone = true);
        disks[1].platter.faults(|f| f.failed_writes.push(data..data + 512));
        assert!(!must_have_stopped(&disks));
        disks[1].platter.faults(|f| f.failed_writes.push(data - 512..data));
        assert!(must_have_stopped(&disks));
    }

    #[test]
    fn a_superblock_whose_write_has_not_ended_is_not_known_even_if_it_can_be_read() {
        let is_seen = |seed| {
            let (rt, disks) = (sim_rt(seed, 10_000), mirror_of(seed, 3));
            let world = World::new(&rt, seed);
            let mut next = superblock_of(&disks[0].platter).expect("a member");
            next.seq += 1;
            next.slots[2].state = SlotState::Missing;
            let write = |member: &Member| {
                let (disk, next) = (SimDisk::open(&world, &member.platter), next.clone());
                let id = next.slots[member.platter.number()].member_id.expect("a member");
                rt.spawn(async move { write_superblock(&*disk, &next, id).await.is_ok() })
            };
            // The last disk has been failed, one of the other disks has that superblock, and one
            // hangs until it is severed.
            disks[2].platter.faults(|f| f.failed = true);
            let written = write(&disks[0]);
            assert!(rt.block_on(written));
            disks[1].platter.faults(|f| (f.hangs_until, f.failed) = (600 * SECOND, true));
            let hung = write(&disks[1]);
            let timer = rt.clone();
            rt.block_on(async move { timer.sleep(SECOND).await });
            assert!(!hung.is_finished() && must_have_stopped(&disks));
            superblock_of(&disks[1].platter).is_some_and(|own| own.seq == next.seq)
        };
        assert!((0..200).any(is_seen));
    }
}
