//! What may be started from which superblocks: every case in which starting would be wrong is
//! refused.

use crate::members::{MIB, made};
use weft_array::lane::Lane;
use weft_array::superblock::{Predecessor, ReplacementMeta, SlotState, SuperblockError};
use weft_array::{
    AssembleError, Assembly, FoundDisk, Superblock, decide, majorities_meet, may_take_effect,
};
use weft_code::SlotNo;
use weft_disk::DiskInfo;

fn disk(name: &str) -> DiskInfo {
    DiskInfo {
        name: name.into(),
        size_bytes: 16 * MIB,
        sector_bytes: 512,
        fast_zeroes: true,
        volatile_cache: true,
        rotational: false,
    }
}

fn found(superblocks: &[Superblock]) -> Vec<FoundDisk> {
    let one = |own: &Superblock| {
        let digits = own.self_id.to_string();
        FoundDisk { disk: disk(&digits[..6]), superblock: Ok(Some(own.clone())) }
    };
    superblocks.iter().map(one).collect()
}

fn start(found: &[FoundDisk], force: bool) -> Result<Assembly, AssembleError> {
    decide(found, force, &|superblock, lost| match superblock.code.to_string().as_str() {
        "raid5" => lost.len() <= 1,
        "raid6" => lost.len() <= 2,
        "raid1" => lost.len() < superblock.slots.len(),
        other => panic!("{other} is not used here"),
    })
}

/// The next superblock, with these slots missing.
fn without(newest: &Superblock, slots: &[usize]) -> Superblock {
    let mut next = Superblock { seq: newest.seq + 1, ..newest.clone() };
    for slot in slots {
        next.slots[*slot].state = SlotState::Missing;
    }
    next
}

/// Writes `superblock` to these members.
fn commit(members: &mut [Superblock], which: &[usize], superblock: &Superblock) {
    for n in which {
        members[*n] = Superblock { self_id: members[*n].self_id, ..superblock.clone() };
    }
}

#[test]
fn a_whole_array_is_started_in_any_order_of_disks() {
    let mut members = made("raid6", 6, 1, 1);
    members.reverse();
    let assembly = start(&found(&members), false).expect("whole");
    assert_eq!(assembly.slots, [5, 4, 3, 2, 1].map(Some));
    assert_eq!(assembly.spares, [0]);
    assert!(assembly.survives && !assembly.needs_recovery);
    assert!(assembly.lost.is_empty() && assembly.unused.is_empty() && assembly.lagging.is_empty());
    assert_eq!(assembly.superblock.seq, 1);
}

#[test]
fn an_array_that_was_not_stopped_needs_recovery() {
    let mut members = made("raid5", 3, 0, 1);
    members.iter_mut().for_each(|own| own.clean = false);
    assert!(start(&found(&members), false).expect("whole").needs_recovery);
}

#[test]
fn a_missing_minority_is_marked_and_more_than_the_code_survives_is_refused() {
    let members = made("raid6", 5, 0, 1);
    let assembly = start(&found(&members[2..]), false).expect("three of five");
    assert_eq!(assembly.lost, [0, 1].map(SlotNo));
    assert_eq!(assembly.superblock.slots[0].state, SlotState::Missing);
    assert_eq!(assembly.newest.slots[0].state, SlotState::Active);

    let refused = start(&found(&members[3..]), false).expect_err("two of five");
    assert!(matches!(&refused, AssembleError::TooFew { missing, .. } if missing.len() == 3));
    assert!(refused.to_string().contains("last seen as ram0"), "{refused}");
    assert!(!start(&found(&members[3..]), true).expect("forced").survives);
}

#[test]
fn half_of_a_mirror_is_not_started_by_itself() {
    let members = made("raid1", 2, 0, 1);
    let refused = start(&found(&members[..1]), false);
    assert!(matches!(refused, Err(AssembleError::NoMajority { present: 1, active: 2, .. })));
    assert!(start(&found(&members[..1]), true).expect("forced").survives);
    // The half that continued knows that it is the whole array.
    let mut members = members;
    let next = without(&members[0], &[1]);
    commit(&mut members, &[0], &next);
    assert!(start(&found(&members[..1]), false).is_ok());
    assert!(start(&found(&members[1..]), false).is_err());
}

#[test]
fn an_excluded_member_is_never_used() {
    let mut members = made("raid5", 3, 0, 1);
    let next = without(&members[0], &[2]);
    commit(&mut members, &[0, 1], &next);
    let assembly = start(&found(&members), false).expect("degraded");
    assert_eq!(assembly.slots, [Some(0), Some(1), None]);
    assert_eq!(assembly.unused.len(), 1);
    assert!(assembly.unused[0].why.starts_with("stale"), "{:?}", assembly.unused);
}

#[test]
fn a_change_cut_short_by_a_crash_leaves_members_lagging_not_stale() {
    let mut members = made("raid6", 5, 0, 1);
    let next = Superblock { seq: 2, clean: false, ..members[0].clone() };
    commit(&mut members, &[3], &next);
    let assembly = start(&found(&members), false).expect("whole");
    assert_eq!((assembly.lagging.as_slice(), assembly.newest.seq), ([0, 1, 2, 4].as_slice(), 2));
    assert!(assembly.needs_recovery && assembly.lost.is_empty());
}

#[test]
fn a_member_set_back_in_time_is_stale() {
    let mut members = made("raid6", 5, 0, 1);
    let next = Superblock { seq: 3, ..members[0].clone() };
    commit(&mut members, &[0, 1, 2, 4], &next);
    let assembly = start(&found(&members), false).expect("degraded");
    assert_eq!((assembly.lost.as_slice(), assembly.unused.len()), ([SlotNo(3)].as_slice(), 1));
}

#[test]
fn two_arrays_and_disks_that_are_none_are_named() {
    let mut disks = found(&made("raid5", 3, 0, 1));
    disks.extend(found(&made("raid5", 3, 0, 2)));
    let refused = start(&disks, false).expect_err("two arrays");
    assert!(matches!(&refused, AssembleError::TwoArrays { arrays } if arrays.len() == 2));
    assert!(refused.to_string().contains(&"02".repeat(16)), "{refused}");

    let mut disks = found(&made("raid5", 3, 0, 1));
    disks.push(FoundDisk { disk: disk("sdz"), superblock: Ok(None) });
    let refused = start(&disks, false);
    assert!(matches!(refused, Err(AssembleError::NotAMember { disk }) if disk == "sdz"));
    assert!(matches!(start(&[], false), Err(AssembleError::Nothing)));
}

#[test]
fn clones_and_disks_given_twice_are_refused() {
    let mut disks = found(&made("raid5", 3, 0, 1));
    let copy = disks[1].superblock.as_ref().expect("whole").clone();
    disks.push(FoundDisk { disk: disk("copy"), superblock: Ok(copy) });
    assert!(
        matches!(start(&disks, true), Err(AssembleError::Clones { disks, .. }) if disks.len() == 2)
    );
    let name = disks[1].disk.name.clone();
    disks[3].disk.name = name;
    assert!(matches!(start(&disks, true), Err(AssembleError::SameDiskTwice { .. })));
}

#[test]
fn parts_that_went_on_separately_are_not_mixed() {
    let mut members = made("raid1", 2, 0, 1);
    let (left, right) = (without(&members[0], &[1]), without(&members[0], &[0]));
    commit(&mut members, &[0], &left);
    commit(&mut members, &[1], &right);
    let refused = start(&found(&members), true);
    assert!(matches!(refused, Err(AssembleError::SplitBrain { .. })));
}

#[test]
fn an_interrupted_change_on_a_few_members_does_not_conflict_with_later_changes() {
    for (others_know, code) in [(false, "raid5"), (true, "raid5"), (false, "raid6")] {
        let mut members = made(code, 5, 0, 1);
        let mut here = without(&members[0], &[4]);
        here.log_epoch = 1;
        let mut there = without(&members[0], if others_know { &[0] } else { &[] });
        there.log_epoch = 2;
        commit(&mut members, &[0], &here);
        commit(&mut members, &[1, 2, 3, 4], &there);
        let assembly = start(&found(&members), false).expect("four of five");
        assert_eq!(assembly.slots[1..], [Some(1), Some(2), Some(3), Some(4)]);
        if others_know {
            assert!(assembly.unused[0].why.starts_with("stale"), "{:?}", assembly.unused);
        } else {
            // Theirs did not take effect, either.
            assert_eq!((assembly.slots[0], &*assembly.lagging), (Some(0), &[0][..]));
        }
    }
}

#[test]
fn a_spare_does_not_count_in_assembly() {
    let members = made("raid5", 4, 1, 1);
    // Adding the spare, or a change of membership, was interrupted when only the spare had it.
    for (seq, known) in [(0, false), (1, true), (1, false)] {
        let mut members = members.clone();
        let spare = &mut members[3];
        spare.seq += seq;
        spare.members_made += 1;
        if !known {
            spare.spares.clear();
        }
        let assembly = start(&found(&members), false).expect("all slots are there");
        assert_eq!((assembly.superblock.seq, assembly.lost.len()), (members[0].seq, 0));
        assert!(assembly.lagging.is_empty());
    }
}

#[test]
fn damage_costs_a_member_and_the_unknown_stops_everything() {
    let damaged = || Err(SuperblockError::Damaged { what: "rot".into() });
    let mut disks = found(&made("raid5", 3, 0, 1));
    disks[2].superblock = damaged();
    let assembly = start(&disks, false).expect("degraded");
    assert_eq!((assembly.lost.as_slice(), assembly.unused[0].index), ([SlotNo(2)].as_slice(), 2));
    disks.iter_mut().for_each(|found| found.superblock = damaged());
    assert!(matches!(start(&disks, true), Err(AssembleError::Unusable { why }) if why.len() == 3));

    let mut disks = found(&made("raid5", 3, 0, 1));
    disks[0].superblock = Err(SuperblockError::UnknownVersion { version: 9 });
    assert!(matches!(start(&disks, true), Err(AssembleError::Incompatible { .. })));
}

#[test]
fn a_disk_that_shrank_or_has_larger_sectors_is_not_used() {
    let members = made("raid5", 3, 0, 1);
    let breaks: [fn(&mut DiskInfo); 2] =
        [|disk| disk.size_bytes = 8 * MIB, |disk| disk.sector_bytes = 4096];
    for broken in breaks {
        let mut disks = found(&members);
        broken(&mut disks[1].disk);
        let assembly = start(&disks, false).expect("degraded");
        assert_eq!((assembly.lost.as_slice(), assembly.unused.len()), ([SlotNo(1)].as_slice(), 1));
    }
}

#[test]
fn a_member_being_rebuilt_keeps_its_slot_and_counts_with_what_it_holds() {
    let mut members = made("raid5", 4, 0, 1);
    let mut next = without(&members[0], &[]);
    next.slots[3].state = SlotState::Rebuilding { lane: Lane(0) };
    commit(&mut members, &[0, 1, 2, 3], &next);
    let assembly = start(&found(&members), false).expect("rebuilding");
    assert_eq!((assembly.slots[3], assembly.survives), (Some(3), true));
    // Whether it holds enough, the region map must tell.
    let assembly = start(&found(&members[1..]), false).expect("perhaps");
    assert!(!assembly.survives && assembly.slots[3].is_some());
    let refused = start(&found(&members[..2]), false);
    assert!(matches!(refused, Err(AssembleError::TooFew { .. })));
    // It has no say in what the newest state is.
    let refused = start(&found(&members[2..]), false);
    assert!(matches!(refused, Err(AssembleError::TooFew { .. })));
    let mut mirror = made("raid1", 3, 0, 1);
    let mut next = without(&mirror[0], &[]);
    next.slots[2].state = SlotState::Rebuilding { lane: Lane(0) };
    commit(&mut mirror, &[0, 1, 2], &next);
    let refused = start(&found(&mirror[1..]), false);
    assert!(matches!(refused, Err(AssembleError::NoMajority { present: 1, active: 2, .. })));
}

/// A power cut left a change on one member only, and unreadable there. The next run began with the
/// others' superblock, used the same number, and ended before it was on that member, where the
/// change can be read again.
#[test]
fn a_member_with_a_change_that_never_took_effect_lags() {
    let mut members = made("raid5", 4, 0, 1);
    let change = without(&members[0], &[3]);
    let mut next_run = without(&members[0], &[]);
    next_run.log_epoch = 2;
    commit(&mut members, &[0], &change);
    commit(&mut members, &[1, 2, 3], &next_run);
    let assembly = start(&found(&members), false).expect("all there");
    assert_eq!((&*assembly.lagging, &*assembly.lost), (&[0][..], &[][..]));
    assert!(assembly.newest.says_the_same(&next_run));
    // It counts: the others without one more are enough.
    let assembly = start(&found(&members[..3]), false).expect("degraded");
    assert_eq!((&*assembly.lagging, &*assembly.lost), (&[0][..], &[SlotNo(3)][..]));
}

/// For every history of exclusions from a mirror of up to 5 members, every moment of a crash and
/// every set of disks found: only members that hold all acknowledged writes are started.
#[test]
fn no_stale_set_is_ever_started() {
    for n in 2..=5_usize {
        let fresh = made("raid1", n, 0, 1);
        explore(&fresh, (1 << n) - 1, 3);
    }
}

/// `live` are the active members of the superblock in effect; they hold all writes.
fn explore(members: &[Superblock], live: usize, depth: usize) {
    let n = members.len();
    check_all_subsets(members, live);
    let kept = |set: usize| (0..n).filter(move |m| set >> m & 1 == 1).collect::<Vec<_>>();
    let before = kept(live);
    let newest = members[before[0]].clone();
    for next in (1..live).filter(|next| next & !live == 0) {
        let survivors = kept(next);
        let dropped = kept(live & !next);
        let mut superblock = without(&newest, &dropped);
        let meet = majorities_meet(&newest.active_members(), &superblock.active_members());
        superblock.succeeds = (!meet).then(|| of(&newest));
        // A crash in between: any of the survivors may hold it, but it is not in effect yet.
        for partly in (1..next).filter(|partly| partly & !next == 0) {
            let mut torn = members.to_vec();
            commit(&mut torn, &kept(partly), &superblock);
            // Nothing was acknowledged without the dropped members: all of `live` hold everything.
            check_all_subsets(&torn, live);
        }
        if may_take_effect(before.len(), survivors.len()) && depth > 0 {
            let mut changed = members.to_vec();
            commit(&mut changed, &survivors, &superblock);
            check_all_subsets(&changed, live);
            if !meet {
                let known = Superblock { succeeds: None, ..without(&superblock, &[]) };
                commit(&mut changed, &survivors, &known);
            }
            explore(&changed, next, depth - 1);
        }
    }
}

fn check_all_subsets(members: &[Superblock], live: usize) {
    for subset in 1_usize..1 << members.len() {
        let chosen: Vec<_> = (0..members.len()).filter(|m| subset >> m & 1 == 1).collect();
        let some: Vec<_> = chosen.iter().map(|m| members[*m].clone()).collect();
        if let Ok(assembly) = start(&found(&some), false) {
            for index in assembly.slots.iter().flatten() {
                let member = chosen[*index];
                assert!(live >> member & 1 == 1, "member {member} of {subset:b} is stale");
            }
        }
    }
}

/// A mirror of `n` whose slot 0 is being replaced by member `n`.
fn replacing(n: usize) -> Vec<Superblock> {
    let mut members = made("raid1", n, 0, 1);
    let mut next = without(&members[0], &[]);
    let member_id = next.new_member_id();
    members.push(Superblock { self_id: member_id, ..members[0].clone() });
    next.slots[0].replacement =
        Some(ReplacementMeta { member_id, lane: Lane(3), disk_hint: "".into() });
    commit(&mut members, &(0..=n).collect::<Vec<_>>(), &next);
    members
}

#[test]
fn a_replacement_continues_with_its_member_or_in_its_slot() {
    let members = replacing(3);
    let assembly = start(&found(&members), false).expect("all there");
    assert_eq!((assembly.slots[0], assembly.replacements[0]), (Some(0), Some(3)));
    let assembly = start(&found(&members[..3]), false).expect("without the replacement");
    assert_eq!((assembly.slots[0], assembly.replacements[0]), (Some(0), None));
    assert_eq!(assembly.superblock.slots[0].replacement, None);
    let assembly = start(&found(&members[1..]), false).expect("without the member");
    let slot = &assembly.superblock.slots[0];
    assert_eq!((assembly.slots[0], assembly.replacements[0]), (Some(2), None));
    assert_eq!(slot.state, SlotState::Rebuilding { lane: Lane(3) });
    assert_eq!((slot.member_id, &slot.replacement), (Some(members[3].self_id), &None));
    assert_eq!(assembly.lost, [SlotNo(0)]);
    // It does not count as the member that it is to replace.
    let mut members = replacing(2);
    members.remove(0);
    let refused = start(&found(&members), false);
    assert!(matches!(refused, Err(AssembleError::NoMajority { .. })), "{refused:?}");
}

/// As `no_stale_set_is_ever_started`, with a change that makes a replacement the member, alone or
/// together with exclusions, before or after other changes.
#[test]
fn no_stale_set_is_started_after_a_replacement() {
    for n in 2..=4_usize {
        let members = replacing(n);
        let all: Vec<usize> = (0..n).collect();
        swap(&members, &all);
        for first in subsets(&all[1..]) {
            let kept: Vec<usize> = all.iter().filter(|m| !first.contains(m)).copied().collect();
            if may_take_effect(n, kept.len()) {
                let mut changed = members.clone();
                let next = without(&members[0], &first);
                let holders: Vec<usize> = kept.iter().copied().chain([n]).collect();
                commit(&mut changed, &holders, &next);
                swap(&changed, &kept);
            }
        }
    }
}

/// All subsets except the empty one.
fn subsets(of: &[usize]) -> Vec<Vec<usize>> {
    let pick = |set: usize| {
        let chosen = of.iter().enumerate().filter(move |(bit, _)| set >> bit & 1 == 1);
        chosen.map(|(_, m)| *m).collect()
    };
    (1..1 << of.len()).map(pick).collect()
}

/// The replacement (the last member) takes the slot of member 0, which is one of `live`. Like them,
/// it holds everything.
fn swap(members: &[Superblock], live: &[usize]) {
    let new = members.len() - 1;
    let newest = &members[live[0]];
    let others: Vec<usize> = live.iter().filter(|m| **m != 0).copied().collect();
    let mut both = live.to_vec();
    both.push(new);
    for dropped in subsets(&others).into_iter().chain([Vec::new()]) {
        let mut next = without(newest, &dropped);
        next.slots[0].member_id = Some(members[new].self_id);
        next.slots[0].replacement = None;
        let kept: Vec<usize> = others.iter().filter(|m| !dropped.contains(m)).copied().collect();
        let holders: Vec<usize> = kept.iter().copied().chain([new]).collect();
        for partly in subsets(&holders) {
            let mut torn = members.to_vec();
            commit(&mut torn, &partly, &next);
            if partly.len() < holders.len() {
                check_active(&torn, &both);
            } else if may_take_effect(live.len(), kept.len()) {
                check_active(&torn, &holders);
                exclude_each(&torn, &holders);
            }
        }
    }
}

/// After the swap, other members may be excluded.
fn exclude_each(members: &[Superblock], live: &[usize]) {
    let new = members.len() - 1;
    for dropped in subsets(live).iter().filter(|dropped| dropped.len() < live.len()) {
        let kept: Vec<usize> = live.iter().filter(|m| !dropped.contains(m)).copied().collect();
        if may_take_effect(live.len(), kept.len()) {
            let slots: Vec<usize> =
                dropped.iter().map(|m| if *m == new { 0 } else { *m }).collect();
            let mut changed = members.to_vec();
            commit(&mut changed, &kept, &without(&members[kept[0]], &slots));
            check_active(&changed, &kept);
        }
    }
}

/// For every set of members found: those that are started as active are in `live`.
fn check_active(members: &[Superblock], live: &[usize]) {
    let all: Vec<usize> = (0..members.len()).collect();
    for chosen in subsets(&all) {
        let some: Vec<_> = chosen.iter().map(|m| members[*m].clone()).collect();
        let Ok(assembly) = start(&found(&some), false) else { continue };
        for (slot, index) in assembly.slots.iter().enumerate() {
            let active = assembly.superblock.slots[slot].state == SlotState::Active;
            if let Some(index) = index.filter(|_| active) {
                assert!(
                    live.contains(&chosen[index]),
                    "member {} of {chosen:?} is stale",
                    chosen[index]
                );
            }
        }
    }
}

/// Crashes, restarts with any subset of the disks, and further crashes, on mirrors of up to 5: an
/// interrupted change on one part of the members never conflicts with what the others did
/// meanwhile.
#[test]
fn no_stale_set_is_started_after_a_change_that_was_cut_short() {
    for n in 2..=5_usize {
        let members = made("raid1", n, 0, 1);
        let all: Vec<usize> = (0..n).collect();
        // Which members are dropped does not matter as long as nothing distinguishes them.
        for kept in 1..=n {
            let change = without(&members[0], &all[kept..]);
            // Cases that need two restarts need no more than four members.
            let restarts = if n < 5 { 2 } else { 1 };
            History { live: all.clone(), members: members.clone(), restarts }.change(
                &of(&members[0]),
                change,
                &all[..kept],
            );
        }
    }
    for n in 2..=3 {
        let members = replacing(n);
        let holders: Vec<usize> = (1..=n).collect();
        History { live: (0..=n).collect(), members: members.clone(), restarts: 2 }.change(
            &of(&members[0]),
            swapped(&members),
            &holders,
        );
    }
}

/// A superblock as the predecessor of another.
fn of(superblock: &Superblock) -> Predecessor {
    Predecessor { seq: superblock.seq, active: superblock.active_members() }
}

/// The superblock in which the replacement, the last of `members`, is the member of slot 0.
fn swapped(members: &[Superblock]) -> Superblock {
    let mut next = without(&members[0], &[]);
    next.slots[0].member_id = members.last().map(|own| own.self_id);
    next.slots[0].replacement = None;
    next
}

#[derive(Clone)]
struct History {
    members: Vec<Superblock>,
    /// The members that hold all acknowledged writes.
    live: Vec<usize>,
    /// Assemblies still to come.
    restarts: usize,
}

impl History {
    /// The engine writes `change` to these members, and a crash interrupts it anywhere.
    fn change(&self, in_effect: &Predecessor, mut change: Superblock, to: &[usize]) {
        let active = change.active_members();
        let kept = in_effect.active.iter().filter(|id| active.contains(id)).count();
        if !may_take_effect(in_effect.active.len(), kept) {
            return;
        }
        let meet = majorities_meet(&in_effect.active, &active);
        change.succeeds = (!meet).then(|| in_effect.clone());
        for reached in self.moments(to) {
            let mut next = self.clone();
            commit(&mut next.members, &reached, &change);
            if reached.len() == to.len() && meet {
                next.live = to.to_vec();
            }
            next.crash();
            if reached.len() == to.len() && !meet {
                // It is in effect: from now on one majority suffices.
                next.change(&of(&change), without(&change, &[]), to);
            }
        }
    }

    /// The members that a write may have reached before a crash: any subset or, where that is too
    /// many to try, the first, the last or all.
    fn moments(&self, to: &[usize]) -> Vec<Vec<usize>> {
        if self.members.len() < 4 {
            return subsets(to);
        }
        let mut moments = vec![to[..1].to_vec(), to[to.len() - 1..].to_vec(), to.to_vec()];
        moments.dedup();
        moments
    }

    /// The array starts from any subset of the disks, and continues without the others.
    fn crash(&self) {
        let all: Vec<usize> = (0..self.members.len()).collect();
        for there in subsets(&all) {
            let some: Vec<_> = there.iter().map(|m| self.members[*m].clone()).collect();
            let Ok(assembly) = start(&found(&some), false) else { continue };
            let used: Vec<usize> = assembly.slots.iter().flatten().map(|i| there[*i]).collect();
            assert!(used.iter().all(|m| self.live.contains(m)), "stale: {used:?} of {there:?}");
            let outgoing: Vec<usize> = assembly.outgoing.iter().map(|i| there[*i]).collect();
            // Unused disks change nothing.
            if self.restarts > 0 && used.len() + outgoing.len() == there.len() {
                let mut next = self.clone();
                next.restarts -= 1;
                let lagging: Vec<usize> = assembly.lagging.iter().map(|i| there[*i]).collect();
                commit(&mut next.members, &lagging, &assembly.newest);
                // Each run has its own number.
                let run = there.iter().fold(self.restarts as u64, |bits, m| bits << 3 | *m as u64);
                let mut change = without(&assembly.superblock, &[]);
                change.log_epoch = run;
                if used.len() < assembly.slots.len() || assembly.newest.succeeds.is_some() {
                    let mut affirmed = without(&assembly.newest, &[]);
                    affirmed.log_epoch = run;
                    for reached in next.moments(&there) {
                        let mut cut = next.clone();
                        commit(&mut cut.members, &reached, &affirmed);
                        cut.crash();
                    }
                    commit(&mut next.members, &there, &affirmed);
                    change.seq += 1;
                }
                next.change(&of(&assembly.newest), change, &used);
            }
        }
    }
}
