//! The copies of the metadata: which disk has one, how one is given back, and how old one may be.
//!
//! ```text
//!   current ── a request to its slice fails ──▶ none ── given back ──▶ filling ──▶ current
//!   spare ──── another disk's slice has gone ─────────────────────────▶ filling ──▶ current
//! ```
//!
//! The slices of some disks are the members of the metadata array, and the slices of the other
//! disks are its spares. One error excludes a slice from the array, even if the disk works: its
//! missed writes are not recorded. So it is looked now and then whether the slice of a disk that
//! works is out, and it is given back: writes made since are copied to it. A slice that fails again
//! and again has to wait longer each time.
//!
//! The array knows slices by the numbers of their disks ([`slice_name`]). What a disk is called may
//! belong to another one after the next boot, or be that of a new disk in the same bay.
//!
//! *Stale copies.* If more than half of the copies are missing at a mount, the file system may have
//! been used without the copies present. If these were all unmounted together, that is possible
//! only by a degraded mount of the other copies. If not, the copies present may have been excluded
//! at any time before: then a mount takes more than that ([`MountOptions::stale`]).

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_array::superblock::{Role, Superblock, read_superblock};
use weft_array::{Array, ArrayError, AssembleError, AssembleOptions, MemberState};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};

use crate::disks::member::Member;
use crate::error::{FsError, Result};
use crate::format::label::slice_name;
use crate::state::mounted::{Fs, FsState, MountOptions};

/// How often it is looked whether the metadata array has its copies again.
const LOOK_EVERY_MS: u64 = 20;
/// How often it is looked whether a disk that works has lost its copy.
const WATCH_EVERY: Nanos = 5 * SECOND;
/// A slice that was given back and has failed again waits at most so long.
const WAIT_MAX: Nanos = 600 * SECOND;
/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// What a disk's slice holds of the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaCopy {
    /// All of it.
    Current,
    /// A part: the rest is being copied.
    Filling,
    /// Nothing: it takes the place of another one that fails.
    Spare,
    /// Nothing that counts: it was excluded, or its disk is lost.
    None,
}

impl MetaCopy {
    /// Its name, in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Filling => "filling",
            Self::Spare => "spare",
            Self::None => "none",
        }
    }
}

/// What a disk has of the metadata in this array.
pub(crate) fn copy_on(array: &weft_array::Status, number: u16) -> MetaCopy {
    let name = slice_name(number);
    let state_of = |state| match state {
        MemberState::Active => MetaCopy::Current,
        MemberState::Rebuilding => MetaCopy::Filling,
        MemberState::Failed | MemberState::Missing => MetaCopy::None,
    };
    let of_slots = array.slots.iter().filter(|slot| slot.disk == name);
    let of_slots = of_slots.map(|slot| state_of(slot.state)).find(|copy| *copy != MetaCopy::None);
    match of_slots {
        Some(copy) => copy,
        None if array.spares.contains(&name) => MetaCopy::Spare,
        None => MetaCopy::None,
    }
}

/// Copies that have all of the metadata, and the wanted number of copies on this number of disks.
pub(crate) fn count_copies(array: &weft_array::Status, disks: usize) -> (usize, usize) {
    let current = array.slots.iter().filter(|slot| slot.state == MemberState::Active);
    (current.count(), array.slots.len().min(disks))
}

/// When a slice was given back last, and how long it has to wait after that.
type Waits = BTreeMap<u16, (Nanos, Nanos)>;

impl FsState {
    /// Takes a disk's slice out of the metadata array; a spare takes its place, and with `wait` has
    /// all contents when this returns.
    pub(crate) async fn vacate_metadata(&self, member: &Member, wait: bool) -> Result<()> {
        let array = self.meta().array()?;
        let name = slice_name(member.number);
        let status = array.status();
        if status.spares.contains(&name) {
            let removed = array.remove_spare(&name).await;
            // A lost disk cannot be wiped; it is out of the array all the same.
            return if member.is_lost() { Ok(()) } else { Ok(removed?) };
        }
        let in_use = |slot: &&weft_array::SlotStatus| {
            slot.disk == name && slot.state != MemberState::Missing
        };
        if let Some(slot) = status.slots.iter().find(in_use) {
            array.fail(slot.slot).await?;
        }
        while wait && self.is_rebuilding_metadata() {
            self.rt().sleep(LOOK_EVERY_MS * MILLISECOND).await;
        }
        let status = array.status();
        // Older versions called slices as their disks were called. A slot that is missing, and is
        // that of another disk, can be forgotten as well: all of it is copied then.
        let was_here = |slot: &&weft_array::SlotStatus| {
            slot.state == MemberState::Missing
                && (slot.disk == name || slot.disk == member.row().name)
        };
        let left: Vec<SlotNo> =
            status.slots.iter().filter(was_here).map(|slot| slot.slot).collect();
        for slot in left {
            array.forget(slot).await?;
        }
        Ok(())
    }

    /// Whether a copy of the metadata is being made, or is about to be.
    fn is_rebuilding_metadata(&self) -> bool {
        let Ok(array) = self.meta().array() else { return false };
        let status = array.status();
        let is = |state| status.slots.iter().any(|slot| slot.state == state);
        status.broken.is_none()
            && (is(MemberState::Rebuilding)
                || (is(MemberState::Missing) && !status.spares.is_empty()))
    }

    /// Disks that work and whose slices are out of the metadata array.
    fn without_copies(&self) -> Vec<Rc<Member>> {
        let Ok(array) = self.meta().array() else { return Vec::new() };
        let status = array.status();
        if status.broken.is_some() {
            return Vec::new();
        }
        let mut members = self.pool().members();
        members.retain(|member| {
            !member.is_lost() && copy_on(&status, member.number) == MetaCopy::None
        });
        members
    }

    /// Gives slices back that are out although their disks work.
    async fn give_copies_back(&self, waits: &mut Waits) {
        self.extend_spares().await;
        for member in self.without_copies() {
            let now = self.rt().now();
            let (tried, wait) = waits.get(&member.number).copied().unwrap_or_default();
            if now < tried + wait {
                continue;
            }
            // One whose errors are long past has to wait no longer than one that never had any.
            let wait = if now > tried + 2 * WAIT_MAX { 0 } else { wait };
            waits.insert(member.number, (now, (2 * wait).clamp(WATCH_EVERY, WAIT_MAX)));
            let _alone = self.change_slices().await;
            let is_out = |other: &Rc<Member>| other.number == member.number;
            // It may have left, or failed, meanwhile.
            if self.without_copies().iter().any(is_out) && self.pool().diagnose(&member).await {
                // If that fails, it is tried again.
                let _ = self.give_copy_back(&member).await;
            }
        }
    }

    /// Writes labels again of which a copy could not be written. One that fails again and again has
    /// to wait longer each time.
    async fn write_due_labels(&self, waits: &mut Waits) {
        for member in self.pool().members() {
            let Some(present) = member.present().filter(|_| !member.is_lost()) else { continue };
            if !present.is_label_due.get() {
                waits.remove(&member.number);
                continue;
            }
            let now = self.rt().now();
            let (tried, wait) = waits.get(&member.number).copied().unwrap_or_default();
            if now < tried + wait {
                continue;
            }
            waits.insert(member.number, (now, (2 * wait).clamp(WATCH_EVERY, WAIT_MAX)));
            let _slices = self.change_slices().await;
            let label = present.label.borrow().clone();
            // It stays due if that fails.
            let _ = present.put_label(label).await;
        }
    }

    pub(crate) async fn give_copy_back(&self, member: &Member) -> Result<()> {
        let Some(present) = member.present() else { return Ok(()) };
        let array = self.meta().array()?;
        // The metadata may have grown without it.
        self.fit_slice(member).await?;
        if array.take_back(present.slice()?).await.ok().flatten().is_some() {
            return Ok(());
        }
        Ok(array.add_spare(present.slice()?).await?)
    }
}

impl Fs {
    /// From now on disks that are cut short are noticed, and the slices of disks that work are
    /// given back to the metadata array.
    pub(crate) fn watch_copies(&self) {
        let (fs, rt) = (Rc::downgrade(&self.0), self.0.rt().clone());
        self.0.rt().spawn(async move {
            let (mut waits, mut label_waits) = (Waits::new(), Waits::new());
            let mut before = None;
            loop {
                rt.sleep(WATCH_EVERY).await;
                let Some(fs) = fs.upgrade().filter(|fs| !fs.is_stopped()) else { return };
                fs.pool().look_at_sizes().await;
                fs.write_due_labels(&mut label_waits).await;
                fs.give_copies_back(&mut waits).await;
                let Ok(array) = fs.meta().array() else { return };
                let (current, _) = count_copies(&array.status(), usize::MAX);
                // A copy that was made takes what it was made of for right.
                if before.replace(current).is_some_and(|before| before < current) {
                    // What fails here stops the metadata, or is found by the next scrub.
                    let _ = fs.meta().check_pages().await;
                }
            }
        });
    }
}

/// Makes the metadata array of these slices.
pub(crate) async fn assemble(
    rt: &Rt,
    slices: Vec<Rc<dyn Disk>>,
    options: &MountOptions,
) -> Result<Array> {
    let now_unix_s = u64::try_from(options.now.s).unwrap_or(0);
    let assemble = |force_degraded| {
        let options = AssembleOptions {
            force_degraded,
            now_unix_s,
            nonce: options.nonce,
            ..AssembleOptions::default()
        };
        Array::assemble(rt, slices.clone(), options)
    };
    let why = match assemble(false).await {
        Err(ArrayError::Assemble(why))
            if matches!(*why, AssembleError::NoMajority { .. })
                && (options.degraded || options.stale) =>
        {
            why
        }
        assembled => return Ok(assembled?),
    };
    if options.stale {
        return Ok(assemble(true).await?);
    }
    match newest(&slices).await {
        Some(found) if !found.clean => Err(FsError::Unmountable(format!(
            "{why}. The copies of the metadata that are here may be older: they were not unmounted, and \
             are from {} or later. If the other disks are lost for good, mount what they say, as stale",
            date(found.updated_unix_s)
        ))),
        _ => Ok(assemble(true).await?),
    }
}

/// The newest superblock of the slices that hold a copy.
async fn newest(slices: &[Rc<dyn Disk>]) -> Option<Superblock> {
    let mut newest: Option<Superblock> = None;
    for slice in slices {
        let Ok(Some(own)) = read_superblock(&**slice).await else { continue };
        let has_copy = matches!(own.role_of(own.self_id), Role::Slot(..));
        if has_copy && newest.as_ref().is_none_or(|newest| newest.seq < own.seq) {
            newest = Some(own);
        }
    }
    newest
}

/// A date and time of day, in UTC.
fn date(unix_s: u64) -> String {
    // Days since 1 March 2000; 146,097 of them are 400 years.
    let (days, s) = (unix_s / DAY_S, unix_s % DAY_S);
    let days = days.cast_signed() - 11_017;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * of_era + of_era / 4 - of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12 + 1;
    let year = 2000 + era * 400 + of_era + i64::from(month <= 2);
    let (hour, minute) = (s / 3600, s / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let dates = [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_700_000_000, "2023-11-14 22:13 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ];
        for (unix_s, expected) in dates {
            assert_eq!(date(unix_s), expected);
        }
    }
}
