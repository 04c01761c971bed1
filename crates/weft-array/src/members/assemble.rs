//! Which of the given disks make up the array, and in which state. A pure decision: nothing is read
//! or written here.
//!
//! **What must not happen**: an array starts from members that missed writes, as if these members
//! were up to date. A member misses writes when it is excluded. So the question is always whether
//! the superblocks found are the newest ones that exist.
//!
//! **Commit rule** (the engine's part). A superblock takes effect when it is durable on every slot
//! that it lists as active or rebuilding. Until then, nothing that relies on it is acknowledged. A
//! member that cannot be written is dropped by the next superblock. No change that takes effect
//! keeps less than half of the members that were active before it ([`may_take_effect`]).
//!
//! **Assembly rule**. Let N be the newest superblock found on a disk that N lists as a member or as
//! the replacement of one, and A the slots that N lists as active. The array starts if more than
//! half of A is found, and the code survives the loss of the rest.
//!
//! *Why that suffices while changes are made one after the other.* Suppose that a superblock newer
//! than N is in effect, and take the first one in effect after N. It is durable on every member
//! that it lists. If it kept any of the members of A that were found, that member would hold it,
//! and N would not be the newest found. So it dropped all of them, which is more than half of A;
//! the commit rule forbids that.
//!
//! **Interrupted changes.** A crash may leave a superblock X on a few members only. X did not take
//! effect. But if only these members are found next, X looks as if it had; and if they are absent,
//! the other members may continue from the previous superblock, and make a different change. This
//! is the problem of agreeing on the voters of a quorum, and the solution is the known one (Ongaro:
//! Consensus, 2014, chapter 4):
//!
//! - *Joint majorities.* Suppose that two different changes are started from the same superblock P,
//!   one of them X. Assembly can tell them apart if every majority of P's active members shares a
//!   member with every majority of X's ([`majorities_meet`]). That is so if X drops or adds a
//!   single member. It may not be so if X drops or adds two at once and P has an odd number, or if
//!   X swaps a member. X then names P's members ([`Superblock::succeeds`]), and assembly needs a
//!   majority of these as well. Once X is in effect, another superblock ends that requirement.
//! - *A run starts by affirming the members present.* If members are missing, or N is such an X,
//!   then N is made durable with a new number and epoch on the members found. These are more than
//!   half of A, and more than half of P's active members, including members of P that N leaves out,
//!   which thus learn that they are out. Only then is another superblock written that drops the
//!   missing members. The superblocks of the other members can no longer find a majority.
//!
//! A test in `tests/assembly.rs` tries all of this on mirrors, and fails without either part.
//!
//! *A change that did not take effect.* After a crash some members may hold N and other members its
//! predecessor. If N lists such a member as active, then N had not taken effect (otherwise it would
//! be durable there). So no write was acknowledged without that member, and it holds everything. It
//! is *lagging*, and gets N before anything else is written. A member whose superblock is two or
//! more generations old was not interrupted by a crash: its disk was set back (an old image, a
//! snapshot). It is stale. This holds because a round has ended on every member that it lists
//! before the next round starts, and because a member that is listed again first catches up
//! (`Members::catch_up`).
//!
//! *Two superblocks with the same number* result from such a crash if the rest continued without
//! the members that hold X, or without having been able to read X there. X lists some of the rest,
//! so X is not in effect, and the superblock held by most members counts. If neither is in effect,
//! either will do. A member that holds the other is lagging, too, if the one that counts lists it:
//! neither took effect without it. If both may be in effect, or the only one that may be is not
//! held by more members than the other, the parts were started by force, and only the user can know
//! which one is right.
//!
//! *Replacements.* For the commit rule, a working member's replacement
//! ([`crate::superblock::ReplacementMeta`]) is a listed member, but never an active one. If its
//! member is not found, the replacement takes the slot as one that is being rebuilt. The change
//! that makes the replacement the member is an ordinary one: it drops one active member, and the
//! new member does not count.
//!
//! *What is found must hold all data.* A member that is being rebuilt counts with the regions that
//! it has, as it does while the array runs: an array that could continue can be assembled again.
//! Which these are, the region map tells (`lifecycle/start_stop.rs`).
//!
//! With `force_degraded` the user takes responsibility for the majority. If data is lost, what
//! remains of the array can then only be read.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use weft_code::SlotNo;
use weft_disk::{Bytes, DiskInfo};

use crate::format::consistency::Consistency;
use crate::format::uuid::Id;
use crate::members::slot::{Slot, SlotEvent, lanes_of};
use crate::superblock::{
    LeftMeta, Predecessor, Role, SlotState, SpareMeta, Superblock, SuperblockError,
};

/// A disk and its superblock.
#[derive(Debug)]
pub struct FoundDisk {
    /// The disk.
    pub disk: DiskInfo,
    /// Its superblock; `None` if the disk is not a member.
    pub superblock: Result<Option<Superblock>, SuperblockError>,
}

/// What to assemble, and how.
#[derive(Debug, Clone)]
pub struct Assembly {
    /// The newest superblock, with the slots of missing members marked as missing. Its sequence
    /// number is unchanged: the next one written is one higher.
    pub superblock: Superblock,
    /// The newest superblock as found: it is written to the lagging members first.
    pub newest: Superblock,
    /// Members (indices of found disks) that lack the newest superblock because of a crash.
    pub lagging: Vec<usize>,
    /// Disks (indices of found disks) that a change dropped which may not be in effect yet. They
    /// must learn that before anything relies on the change.
    pub outgoing: Vec<usize>,
    /// The array starts only because it is forced: only the members found count.
    pub forced: bool,
    /// For each slot, the disk (index of a found disk) that holds it.
    pub slots: Vec<Option<usize>>,
    /// For each slot, the found disk that is to replace its member.
    pub replacements: Vec<Option<usize>>,
    /// The spares found, as indices.
    pub spares: Vec<usize>,
    /// Slots whose members are missing.
    pub lost: Vec<SlotNo>,
    /// Slots whose members were found, but have become too short: what they held is lost.
    pub shrunk: Vec<SlotNo>,
    /// Former members that are back with their data: slot and index of the found disk. They lack
    /// the regions marked in the lane of their slot.
    pub returning: Vec<(SlotNo, usize)>,
    /// Disks that are not used.
    pub unused: Vec<UnusedDisk>,
    /// The array was not stopped cleanly.
    pub needs_recovery: bool,
    /// The code survives the loss of all slots that lack some of their units. If not, it survives
    /// that of the missing ones, or the array is forced; the region map tells whether the members
    /// that are being rebuilt hold enough.
    pub survives: bool,
}

/// A disk that is not used, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnusedDisk {
    /// Index of the found disk.
    pub index: usize,
    /// Why.
    pub why: String,
}

/// Why the array cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    /// No disks.
    #[error("no disks were given")]
    Nothing,
    /// A disk that is no member.
    #[error("{disk} is not a member of a weft array: leave it out, or check its name")]
    NotAMember {
        /// The disk.
        disk: String,
    },
    /// A disk that this program must not touch.
    #[error("{disk}: {cause}")]
    Incompatible {
        /// The disk.
        disk: String,
        /// Version or features.
        cause: SuperblockError,
    },
    /// Members of more than one array.
    #[error("the disks belong to different arrays: {}; give those of one array", list(.arrays))]
    TwoArrays {
        /// Each array: name, identity and disks.
        arrays: Vec<String>,
    },
    /// A disk given twice.
    #[error("{disk} was given twice")]
    SameDiskTwice {
        /// The disk.
        disk: String,
    },
    /// Two disks that are the same member.
    #[error("{} are copies of one member ({member}): leave out all but the right one", list(.disks))]
    Clones {
        /// The member.
        member: Id,
        /// The disks.
        disks: Vec<String>,
    },
    /// Superblocks with the same number that differ.
    #[error("the array was run as two independent parts: {} against {}; give the disks of one part only, then add the other disks as new ones", list(.one), list(.other))]
    SplitBrain {
        /// Disks of one part.
        one: Vec<String>,
        /// Disks of the other.
        other: Vec<String>,
    },
    /// None of the members can be used.
    #[error("none of the disks can be used: {}", list(.why))]
    Unusable {
        /// Why not, disk by disk.
        why: Vec<String>,
    },
    /// The code does not survive the missing members.
    #[error("array {name}: its code ({code}) does not survive the loss of {}", list(.missing))]
    TooFew {
        /// The array.
        name: String,
        /// Its code.
        code: String,
        /// What is missing.
        missing: Vec<String>,
    },
    /// The disks found may be stale.
    #[error("array {name}: only {present} of {active} active members were found, so the array may have continued on the missing ones: {}", list(.missing))]
    NoMajority {
        /// The array.
        name: String,
        /// Active members found.
        present: usize,
        /// Active members in total.
        active: usize,
        /// What is missing.
        missing: Vec<String>,
    },
}

fn list(items: &[String]) -> String {
    items.join(", ")
}

/// Whether a change may take effect that keeps `kept` of the `before` members that are active in
/// the superblock in effect (members that become active by the change do not count). If not, the
/// array must stop taking writes: the members left out could later be assembled as the array.
#[must_use]
pub fn may_take_effect(before: usize, kept: usize) -> bool {
    kept > 0 && 2 * kept >= before
}

/// Whether every majority of `before` shares a member with every majority of `after`.
#[must_use]
pub fn majorities_meet(before: &[Id], after: &[Id]) -> bool {
    let majority = |active: &[Id]| active.len() / 2 + 1;
    let all = before.len() + after.iter().filter(|id| !before.contains(id)).count();
    majority(before) + majority(after) > all
}

/// Decides what to assemble. `survives` tells whether an array with this superblock still has all
/// data if these slots are lost.
///
/// # Errors
/// Each case of [`AssembleError`]; nothing has been changed then.
pub fn decide(
    found: &[FoundDisk],
    force_degraded: bool,
    survives: &dyn Fn(&Superblock, &[SlotNo]) -> bool,
) -> Result<Assembly, AssembleError> {
    check_disks(found)?;
    let (members, mut unused) = sort_out(found)?;
    check_one_array(found, &members)?;
    check_clones(found, &members)?;
    let newest = newest(found, &members, &unused)?;
    let mut assembly = Assembly {
        superblock: newest.clone(),
        newest: newest.clone(),
        lagging: Vec::new(),
        outgoing: Vec::new(),
        forced: false,
        slots: vec![None; newest.slots.len()],
        replacements: vec![None; newest.slots.len()],
        spares: Vec::new(),
        lost: Vec::new(),
        shrunk: Vec::new(),
        returning: Vec::new(),
        unused: Vec::new(),
        needs_recovery: !newest.clean,
        survives: true,
    };
    // Members that were active before, and cannot have continued since then in another part of the
    // array.
    let was_active = |own: &Superblock, before: &Predecessor| {
        let of_this_part = own.seq <= before.seq || own.log_epoch == newest.log_epoch;
        own.seq <= newest.seq && of_this_part && before.active.contains(&own.self_id)
    };
    let mut before_found = 0;
    for (index, own) in members {
        let disk = &found[index].disk;
        if let Role::Slot(slot, _) = newest.role_of(own.self_id)
            && disk.size_bytes < newest.member_bytes()
        {
            assembly.shrunk.push(slot);
        }
        let had_a_say = newest.succeeds.as_ref().is_some_and(|before| was_active(own, before));
        before_found += usize::from(had_a_say);
        match place(&newest, own, disk) {
            Ok(role @ (Role::Slot(slot, _) | Role::Replacement(slot))) => {
                let is_replacement = matches!(role, Role::Replacement(_));
                let places =
                    if is_replacement { &mut assembly.replacements } else { &mut assembly.slots };
                places[slot.0] = Some(index);
                if !own.says_the_same(&newest) {
                    assembly.lagging.push(index);
                }
            }
            Ok(_) => assembly.spares.push(index),
            Err(why) => match may_return(&newest, own) {
                Some(slot) if !had_a_say && newest.was_absent(slot) => {
                    assembly.returning.push((slot, index));
                }
                left => {
                    assembly.outgoing.extend(had_a_say.then_some(index));
                    let why = left.map_or(why, |_| LEFT.to_owned());
                    unused.push(UnusedDisk { index, why });
                }
            },
        }
    }
    unused.sort_by_key(|unused| unused.index);
    assembly.unused = unused;
    assembly.judge(found, before_found, force_degraded, survives)?;
    assembly.remember_absent(found);
    Ok(assembly)
}

fn check_disks(found: &[FoundDisk]) -> Result<(), AssembleError> {
    if found.is_empty() {
        return Err(AssembleError::Nothing);
    }
    let mut names = BTreeSet::new();
    match found.iter().find(|found| !names.insert(&found.disk.name)) {
        Some(twice) => Err(AssembleError::SameDiskTwice { disk: twice.disk.name.clone() }),
        None => Ok(()),
    }
}

type Members<'a> = Vec<(usize, &'a Superblock)>;

/// Splits the members into those whose superblock can be read, and damaged ones.
fn sort_out(found: &[FoundDisk]) -> Result<(Members<'_>, Vec<UnusedDisk>), AssembleError> {
    let mut members = Vec::new();
    let mut unused = Vec::new();
    let mut incompatible = None;
    for (index, FoundDisk { disk, superblock }) in found.iter().enumerate() {
        let name = || disk.name.clone();
        match superblock {
            Ok(Some(superblock)) => members.push((index, superblock)),
            Ok(None) => return Err(AssembleError::NotAMember { disk: name() }),
            Err(SuperblockError::UnknownVersion { version }) => {
                incompatible =
                    Some((name(), SuperblockError::UnknownVersion { version: *version }));
            }
            Err(SuperblockError::UnknownFeatures { unknown }) => {
                let unknown = unknown.clone();
                incompatible = Some((name(), SuperblockError::UnknownFeatures { unknown }));
            }
            Err(error) => unused.push(UnusedDisk { index, why: error.to_string() }),
        }
    }
    match incompatible {
        Some((disk, cause)) => Err(AssembleError::Incompatible { disk, cause }),
        None => Ok((members, unused)),
    }
}

fn check_one_array(found: &[FoundDisk], members: &Members<'_>) -> Result<(), AssembleError> {
    let mut arrays: BTreeMap<Id, (String, Vec<String>)> = BTreeMap::new();
    for (index, own) in members {
        let (_, disks) =
            arrays.entry(own.array_id).or_insert_with(|| (own.name.clone(), Vec::new()));
        disks.push(found[*index].disk.name.clone());
    }
    if arrays.len() < 2 {
        return Ok(());
    }
    let line = |(id, (name, disks)): (Id, (String, Vec<String>))| {
        format!("'{name}' ({id}) on {}", disks.join(" "))
    };
    Err(AssembleError::TwoArrays { arrays: arrays.into_iter().map(line).collect() })
}

/// Checks that no two disks have the same identity ([`Id::member`]): disks that share one were
/// copied by hand.
fn check_clones(found: &[FoundDisk], members: &Members<'_>) -> Result<(), AssembleError> {
    for (_, own) in members {
        let same = members.iter().filter(|(_, other)| other.self_id == own.self_id);
        let disks: Vec<_> = same.map(|(index, _)| found[*index].disk.name.clone()).collect();
        if disks.len() > 1 {
            return Err(AssembleError::Clones { member: own.self_id, disks });
        }
    }
    Ok(())
}

/// The newest superblock. Only those count that list their own disk in a slot or as a replacement.
/// A change takes effect without the spares, so a crash may leave a spare with a superblock that
/// never took effect; so may the adding of a spare.
fn newest(
    found: &[FoundDisk],
    members: &Members<'_>,
    unused: &[UnusedDisk],
) -> Result<Superblock, AssembleError> {
    let counts = |own: &Superblock| lists(own, own.self_id);
    let any = members.iter().any(|(_, own)| counts(own));
    let witnesses = || members.iter().filter(|(_, own)| counts(own) || !any);
    let Some((_, newest)) = witnesses().max_by_key(|(_, own)| own.seq) else {
        let line =
            |unused: &UnusedDisk| format!("{}: {}", found[unused.index].disk.name, unused.why);
        return Err(AssembleError::Unusable { why: unused.iter().map(line).collect() });
    };
    let latest: Members<'_> =
        witnesses().filter(|(_, own)| own.seq == newest.seq).copied().collect();
    let part = |of: &Superblock, same: bool| -> Members<'_> {
        latest.iter().filter(|(_, own)| own.says_the_same(of) == same).copied().collect()
    };
    // A superblock in effect is held by every member that it lists.
    let is_in_effect_nowhere =
        |one: &Superblock| part(one, false).iter().any(|(_, other)| lists(one, other.self_id));
    let most = latest.iter().max_by_key(|(_, own)| (part(own, true).len(), own.log_epoch));
    let (_, most) = most.expect("the newest is among them");
    let (here, elsewhere) = (part(most, true), part(most, false));
    let is_clear = |(_, own): &(usize, &Superblock)| {
        let fewer = part(own, true).len() < here.len();
        is_in_effect_nowhere(own) && (fewer || is_in_effect_nowhere(most))
    };
    if elsewhere.iter().all(is_clear) {
        return Ok((*most).clone());
    }
    let names = |part: Members<'_>| part.iter().map(|(i, _)| found[*i].disk.name.clone()).collect();
    Err(AssembleError::SplitBrain { one: names(here), other: names(elsewhere) })
}

/// Whether a superblock can be in effect only if this member holds it.
fn lists(superblock: &Superblock, member: Id) -> bool {
    matches!(superblock.role_of(member), Role::Slot(..) | Role::Replacement(_))
}

/// Why a failed member is not taken back automatically.
const LEFT: &str = "it failed, or was failed by command; if it works again, add it: only regions written since are rebuilt";

/// The slot that a former member may take again with its data, if it is in the state in which it
/// left. A member with an older superblock was set back; one of another assembly was used elsewhere
/// since.
pub(crate) fn may_return(newest: &Superblock, own: &Superblock) -> Option<SlotNo> {
    let slots = (newest.array_id == own.array_id).then_some(&newest.slots)?;
    let left = slots.iter().position(|slot| {
        slot.state == SlotState::Missing
            && slot.member_id == Some(own.self_id)
            && slot.left.as_ref().is_some_and(|left| {
                (left.seq..=newest.seq).contains(&own.seq) && own.log_epoch == left.log_epoch
            })
    });
    left.map(SlotNo)
}

/// The role of a member, or why it has none.
fn place(newest: &Superblock, own: &Superblock, disk: &DiskInfo) -> Result<Role, String> {
    let role = newest.role_of(own.self_id);
    let needed = newest.member_bytes();
    match role {
        _ if own.seq > newest.seq => {
            Err("stale: it records that the array continued without it; add it as a new disk"
                .into())
        }
        Role::None => Err(format!(
            "stale: the array continued without it (its superblock is number {}, the newest is {}); add it as a new disk",
            own.seq, newest.seq
        )),
        Role::Slot(..) | Role::Replacement(_) if own.seq + 1 < newest.seq => Err(format!(
            "stale: it missed updates, or was set back to an earlier state (its superblock is number {}, the newest is {}); add it as a new disk",
            own.seq, newest.seq
        )),
        Role::Spare if disk.size_bytes < needed => {
            let (size, needed) = (Bytes(disk.size_bytes), Bytes(needed));
            Err(format!(
                "it is too small for a spare: it has {size:#}, and the array uses {needed:#} of each member"
            ))
        }
        _ if disk.size_bytes < needed => {
            let (left, needed) = (Bytes(disk.size_bytes), Bytes(needed));
            Err(format!("it has shrunk to {left:#}; {needed:#} are needed"))
        }
        _ if disk.sector_bytes > newest.sector_bytes => Err(format!(
            "its sectors of {} bytes are larger than the array's of {}",
            disk.sector_bytes, newest.sector_bytes
        )),
        role => Ok(role),
    }
}

impl Assembly {
    /// Marks missing members, and refuses to start if the rest is not enough. `before_found` is the
    /// number of members found that were active before the newest superblock, if that matters.
    fn judge(
        &mut self,
        found: &[FoundDisk],
        before_found: usize,
        force_degraded: bool,
        survives: &dyn Fn(&Superblock, &[SlotNo]) -> bool,
    ) -> Result<(), AssembleError> {
        let active: Vec<SlotNo> = self.newest.active_slots().collect();
        let present = active.iter().filter(|slot| self.slots[slot.0].is_some()).count();
        for (slot, meta) in self.superblock.slots.iter_mut().enumerate() {
            let disk = |member_id: Id, index: usize| {
                let disk_hint = crate::superblock::disk_hint(&found[index].disk.name);
                SpareMeta { member_id, disk_hint }
            };
            let mut now = Slot::of(meta);
            let mut happens = |event| now.after(event).inspect(|after| now = *after).is_some();
            if self.replacements[slot].is_none() {
                happens(SlotEvent::SecondLost);
            }
            if self.slots[slot].is_none() && happens(SlotEvent::MemberLost) {
                self.lost.push(SlotNo(slot));
                // Its replacement continues as that of a lost member.
                if let Some(index) = self.replacements[slot].take() {
                    self.slots[slot] = Some(index);
                    meta.member_id = meta.replacement.as_ref().map(|second| second.member_id);
                }
            }
            let second = meta.replacement.as_ref().map(|second| second.member_id);
            let member = meta.member_id.zip(self.slots[slot]).map(|(id, index)| disk(id, index));
            let second = second.zip(self.replacements[slot]).map(|(id, index)| disk(id, index));
            now.write_to(meta, member, second);
        }
        self.survives = survives(&self.superblock, &self.incomplete());
        let missing = self.slots_where(|state| state == SlotState::Missing);
        let may_survive = self.survives || survives(&self.superblock, &missing);
        if present == 0 || !force_degraded && !may_survive {
            return Err(self.too_few());
        }
        let mut majorities = vec![(present, active.len())];
        majorities.extend(self.newest.succeeds.as_ref().map(|b| (before_found, b.active.len())));
        match majorities.into_iter().find(|(present, active)| 2 * present <= *active) {
            Some((present, active)) if !force_degraded => {
                let (name, missing) = (self.newest.name.clone(), self.describe_all(&self.lost));
                Err(AssembleError::NoMajority { name, present, active, missing })
            }
            lacking => {
                self.forced = lacking.is_some();
                Ok(())
            }
        }
    }

    /// Slots that lack some of their units.
    fn incomplete(&self) -> Vec<SlotNo> {
        self.slots_where(|state| state != SlotState::Active)
    }

    fn slots_where(&self, holds: impl Fn(SlotState) -> bool) -> Vec<SlotNo> {
        let slots = &self.superblock.slots;
        SlotNo::all(slots.len()).filter(|slot| holds(slots[slot.0].state)).collect()
    }

    /// The error if the members found do not hold all data.
    pub fn too_few(&self) -> AssembleError {
        let Superblock { name, code, .. } = &self.newest;
        let missing = self.describe_all(&self.incomplete());
        AssembleError::TooFew { name: name.clone(), code: code.to_string(), missing }
    }

    /// Remembers the state of absent members in case they come back (`region_map/absence.rs`). Not
    /// if the array was started by force: they may then hold data that the other members lack. Nor
    /// if a member was found that has lost its superblocks, or cannot be read: it may be any of
    /// them.
    fn remember_absent(&mut self, found: &[FoundDisk]) {
        let is_damaged = |found: &FoundDisk| match &found.superblock {
            Ok(_) => false,
            Err(SuperblockError::Disk(error)) => !error.keeps_contents(),
            Err(_) => true,
        };
        if found.iter().any(is_damaged) {
            return;
        }
        let reshaped = self.superblock.reshape.is_some();
        if self.forced || self.superblock.consistency == Consistency::None || reshaped {
            return;
        }
        // A member that was being rebuilt keeps its lane, which tells what it lacks.
        let mut lost = self.lost.clone();
        lost.retain(|slot| !self.shrunk.contains(slot));
        lost.sort_by_key(|slot| self.newest.slots[slot.0].state == SlotState::Active);
        for slot in lost {
            // The superblock on disk still gives a lane to a replacement that is absent.
            let used = lanes_of(&self.superblock).union(lanes_of(&self.newest));
            let lane = match self.newest.slots[slot.0].state {
                SlotState::Rebuilding { lane } => Some(lane),
                _ => used.first_free(),
            };
            let Some(lane) = lane else { continue };
            // A crash in the middle of a change may leave a member one superblock older.
            let seq = self.newest.seq.saturating_sub(1);
            let left = LeftMeta { lane, seq, log_epoch: self.newest.log_epoch, absent: true };
            let meta = &mut self.superblock.slots[slot.0];
            if let Some(now) = Slot::of(meta).after(SlotEvent::Remember(left)) {
                now.write_to(meta, None, None);
            }
        }
    }

    fn describe_all(&self, slots: &[SlotNo]) -> Vec<String> {
        slots.iter().map(|slot| self.describe(*slot)).collect()
    }

    fn describe(&self, slot: SlotNo) -> String {
        let meta = &self.newest.slots[slot.0];
        let was = match meta.state {
            SlotState::Rebuilding { .. } => ", being rebuilt",
            _ => "",
        };
        if meta.disk_hint.is_empty() {
            format!("slot {slot}{was}")
        } else {
            format!("slot {slot} (last seen as {}{was})", meta.disk_hint)
        }
    }
}
