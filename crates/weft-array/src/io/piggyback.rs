//! Opportunistic rebuild from user I/O, and how users' accesses reach the monitor.
//!
//! A degraded read reconstructs a unit, and a write has a new one at hand. Either may be written to
//! the replacement at once, so that the stripe counts as rebuilt ([`Piggyback`]). The region map
//! records whole units only, so the whole unit must be there. A read of less is *widened* to the
//! unit (the disk heads are there already); a smaller write has its stripe rebuilt right after it.
//! Users do not wait for this. A read is answered when its bytes are there, before the replacement
//! is written. Only a write that covers whole units waits, as for any other member.
//!
//! Locks and order are those of every rebuilt stripe (`stripe`): the exclusive lock from gathering
//! until the stripe is noted as rebuilt, data on the replacement before that note, and a flush
//! before the mark on disk is cleared.

use futures_util::future::join;
use weft_code::UnitSet;
use weft_rt::{Buf, Frozen};
use weft_stripe::{Access, Segment, StripeId, Units};

use crate::engine::Engine;
use crate::engine::resolve::ReplacementUnit;
use crate::error::ArrayError;
use crate::format::rebuild_policy::Piggyback;
use crate::geometry::{Address, Geometry};
use crate::io::StripePieces;
use crate::io::WriteProgress;
use crate::maintenance::RebuildSource;
use crate::superblock::SlotState;

impl Engine {
    /// Notes that a user reads a unit (of a mirror: any copy) while members are incomplete.
    pub(crate) fn note_read(&self, at: Address) {
        let on_replacement = |unit: usize| {
            let state = self.members().state(self.slot_of(at.stripe, unit));
            matches!(state, SlotState::Rebuilding { .. })
        };
        let geometry = self.geometry_of(at.stripe);
        let mine = if geometry.mirrored { geometry.units() } else { UnitSet::one(at.unit) };
        let units: UnitSet = mine.iter().filter(|unit| on_replacement(*unit)).collect();
        if units.is_empty() {
            return;
        }
        let now = self.rt().now();
        let stale = self.avoided_units(at.stripe, UnitSet::new()).intersects(&units);
        self.jobs().rebuild().counts().count_user_read(!stale, now);
        if stale {
            self.note_access(at.stripe);
        }
    }

    /// Counts an access for the order of the rebuild. While the array is reshaped the monitor knows
    /// the stripes of the newest geometry only.
    fn note_access(&self, stripe: StripeId) {
        if stripe.generation == self.geometry().generation {
            self.jobs().rebuild().note_access(stripe.number, self.rt().now());
        }
    }

    /// Units of `stripe` that belong on a replacement and are stale there.
    pub(crate) fn stale_targets(&self, stripe: StripeId) -> (Vec<ReplacementUnit>, UnitSet) {
        let lost = self.stripe(stripe).lost;
        let mut targets = self.targets(stripe);
        targets.retain(|target| lost.contains(target.unit));
        let units = targets.iter().map(|target| target.unit).collect();
        (targets, units)
    }

    /// The kind of piggybacking that is possible now.
    fn piggyback(&self, geometry: &Geometry) -> Piggyback {
        if self.jobs().is_paused() || self.map().is_partial_full() || self.check_writable().is_err()
        {
            return Piggyback::Off;
        }
        // Units too large to be held whole are not piggybacked.
        if self.run_max(geometry) < geometry.unit_len() {
            return Piggyback::Off;
        }
        self.jobs().rebuild().with_policy(|policy| match policy.piggyback {
            Piggyback::Widen if geometry.unit_bytes > policy.widen_bytes_max => Piggyback::Covered,
            piggyback => piggyback,
        })
    }

    /// Whether a degraded read of these pieces can rebuild a unit.
    pub(crate) fn can_piggyback(&self, pieces: &StripePieces) -> bool {
        let stripe = pieces[0].0.stripe;
        let geometry = self.geometry_of(stripe);
        if self.members().rebuilding().is_empty() || geometry.mirrored {
            return false;
        }
        let (_, stale) = self.stale_targets(stripe);
        let mut wanted = pieces.iter().filter(|(at, _)| stale.contains(at.unit));
        match self.piggyback(geometry) {
            Piggyback::Off => false,
            Piggyback::Covered => wanted.any(|(_, buf)| buf.len() == geometry.unit_len()),
            Piggyback::Widen => wanted.next().is_some(),
        }
    }

    /// Carries out the write of a stripe (`write`) while members are incomplete, and writes to the
    /// replacements the units that it covers whole. The stripe's lock is held.
    pub(crate) async fn write_and_piggyback(
        &self,
        stripe: StripeId,
        segments: &[Segment],
        write: impl Future<Output = Result<WriteProgress, ArrayError>>,
    ) -> Result<WriteProgress, ArrayError> {
        let geometry = self.geometry_of(stripe);
        let (targets, stale) = self.stale_targets(stripe);
        let touched: UnitSet = segments.iter().map(|segment| segment.unit).collect();
        let meets = touched.intersects(&stale) || geometry.mirrored && !stale.is_empty();
        if meets {
            self.note_access(stripe);
        }
        let how = self.piggyback(geometry);
        let covered = match how {
            Piggyback::Off => Vec::new(),
            _ => self.covered(stripe, segments, stale),
        };
        let brought: UnitSet = covered.iter().map(|(unit, _)| *unit).collect();
        if brought.is_empty() {
            let written = write.await;
            if how == Piggyback::Widen && meets && !geometry.mirrored {
                self.rebuild_behind(stripe);
            }
            return written;
        }
        let bring = self.write_targets(Access::user(0), &targets, covered);
        let (written, failed) = join(write, bring).await;
        if written.as_ref().is_ok_and(|written| written.whole) {
            self.jobs().throttle().charge(self.rt().now(), geometry.unit_bytes);
            self.note_rebuilt(
                stripe,
                &targets,
                brought.difference(&failed),
                RebuildSource::Piggyback,
            );
        }
        written
    }

    /// The `stale` units that a write covers whole, or that are determined by units it covers
    /// whole.
    fn covered(&self, stripe: StripeId, segments: &[Segment], stale: UnitSet) -> Units {
        let geometry = self.geometry_of(stripe);
        let (len, code) = (geometry.unit_len(), geometry.code());
        let whole: Vec<(usize, &Frozen)> = segments
            .iter()
            .filter(|segment| segment.from == 0 && segment.data.len() == len)
            .map(|segment| (segment.unit, &segment.data))
            .collect();
        let at_hand: UnitSet = whole.iter().map(|(unit, _)| *unit).collect();
        let value = |unit: usize| {
            if let Some((_, data)) = whole.iter().find(|(held, _)| *held == unit) {
                return Some(Buf::copy_from(data));
            }
            let row = unit.checked_sub(code.k())?;
            let support = geometry.coding.support(stripe.number, row);
            if at_hand.is_empty() || !support.is_subset(&at_hand) {
                return None;
            }
            let coefs: Vec<u8> =
                whole.iter().map(|(data, _)| code.coef(stripe.number, row, *data)).collect();
            let sources: Vec<&[u8]> = whole.iter().map(|(_, data)| &***data).collect();
            let mut parity = Buf::new(len);
            weft_gf::encode(&[&coefs], &sources, &mut [&mut parity]);
            Some(parity)
        };
        stale.iter().filter_map(|unit| Some((unit, value(unit)?))).collect()
    }

    /// Rebuilds a stripe once its lock is free, unless enough other tasks are waiting for that.
    fn rebuild_behind(&self, stripe: StripeId) {
        let Some(place) = self.jobs().rebuild().place_behind_write() else { return };
        let array = self.handle();
        let task = async move {
            let _place = place;
            let geometry = array.geometry_of(stripe);
            let Ok(_memory) = array.job_memory(geometry).await else { return };
            let _lock = array.locks().exclusive(stripe).await;
            array.jobs().throttle().charge(array.rt().now(), geometry.unit_bytes);
            // The rebuild meets this failure again, and reports it.
            let _ = array.rebuild_whole(stripe, RebuildSource::Piggyback).await;
        };
        drop(self.rt().spawn(task));
    }
}
