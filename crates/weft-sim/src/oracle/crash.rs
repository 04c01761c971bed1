//! Crashes: how they change the candidates, and which promises end when disks are lost as well.
//!
//! A cell is *cut* by a crash if a write to it was not known to be durable at that moment. The
//! stripe of a cut cell may be inconsistent. A disk that is lost with the crash, or later but
//! before the volume is consistent again, can then take more data with it than it held. The caller
//! decides which, by the rules of `docs/consistency.md`, and calls [`Oracle::excuse`] or
//! [`Oracle::doubt`].

use super::Oracle;
use super::candidate::{Candidate, Cut, CutCell, Tick};
use super::content::Version;

impl Oracle {
    /// The power was cut: all candidates at risk are possible, and the next read decides.
    pub fn power_cut(&mut self) {
        self.crash(true);
    }

    /// The program was killed: requests in flight may or may not have happened; caches keep their
    /// contents.
    pub fn program_killed(&mut self) {
        self.crash(false);
    }

    /// As [`Oracle::program_killed`], for an array that had to stop. The members that had failed
    /// come back with what they hold: parts of refused writes that were on the other members, and
    /// that reads have returned since, may be gone.
    pub fn had_to_stop(&mut self) {
        self.crash(false);
        for cell in self.open.clone() {
            let list = self.candidates(cell);
            let overruled_from = list.iter().filter(|c| c.acknowledged && !c.version.is_found());
            let overruled_from = overruled_from.map(|c| c.began).max().unwrap_or(0);
            if list.iter().any(|c| c.at_risk) {
                let ends_later = |c: &&mut Candidate| c.ended.is_none_or(|e| e >= overruled_from);
                list.iter_mut().filter(ends_later).for_each(|c| c.superseded = None);
            }
        }
    }

    fn crash(&mut self, power: bool) {
        let now = self.tick();
        self.reads.clear();
        for cell in self.open.clone() {
            self.drop_unrecoverable(cell);
            let list = self.candidates(cell);
            let before = list.clone();
            let at_risk = list.iter().any(|c| c.at_risk);
            for candidate in list.iter_mut() {
                candidate.ended.get_or_insert(now);
                if power {
                    if at_risk {
                        candidate.superseded = None;
                    }
                    // Discarded cells stay unspecified: see `check`.
                    candidate.settled = !candidate.version.is_any();
                    candidate.at_risk = false;
                }
            }
            if !at_risk {
                // No cache holds any of it: superseded values cannot return.
                list.retain(|c| c.superseded.is_none());
                self.refresh(cell);
                continue;
            }
            let cut = self.cut.entry(cell).or_default();
            cut.at = now;
            cut.merge(before);
        }
    }

    /// The volume is consistent again after the last crash: losing a disk now ends no promise for
    /// data that was at risk then.
    pub fn consistent_again(&mut self) {
        self.cut.clear();
        self.doubted.clear();
        for cell in std::mem::take(&mut self.unsettled) {
            for candidate in self.candidates(cell).iter_mut().filter(|c| c.version.is_any()) {
                candidate.settled = true;
            }
        }
    }

    /// The cells that were being written at the last crashes, until [`Oracle::consistent_again`].
    pub fn cuts(&self) -> Vec<Cut> {
        let began = |cut: &CutCell| {
            let at_risk = cut.known.iter().filter(|c| c.at_risk);
            at_risk.map(|c| c.began).min().unwrap_or(cut.at)
        };
        let cut =
            |(cell, cut): (&usize, &CutCell)| Cut { cell: *cell, at: cut.at, began: began(cut) };
        self.cut.iter().map(cut).collect()
    }

    /// Whether a write that started after `since` was acknowledged for the cell.
    fn is_rewritten(&self, cell: usize, since: Tick) -> bool {
        let list = self.known(cell).into_iter().flatten();
        list.into_iter().any(|c| c.acknowledged && c.began > since)
    }

    /// Ends the promise for a cell because of the crash `at`, unless the cell was written since.
    /// The cell may hold anything until it is written again, and may change until
    /// [`Oracle::consistent_again`]; after that the first read decides. The cell may be beyond the
    /// end: the stripes of a reshaped array hold more than it has so far, and their last units are
    /// exposed like all units. Returns whether the promise ended.
    pub fn excuse(&mut self, cell: usize, at: Tick) -> bool {
        if self.is_rewritten(cell, at) {
            return false;
        }
        self.reach(cell + 1);
        let now = self.tick();
        let version = Version::any(self.next_number());
        let list = self.candidates(cell);
        list.retain(|c| !c.version.is_any() || c.at_risk);
        list.push(Candidate {
            version,
            began: now,
            ended: Some(now),
            acknowledged: false,
            superseded: None,
            unrecoverable: false,
            settled: false,
            at_risk: false,
        });
        self.unsettled.insert(cell);
        self.open.insert(cell);
        true
    }

    /// A copy of this cell was lost after a crash and before the copies were made equal. What was
    /// read since may have come from the lost copy, so all candidates of the crash are possible
    /// again.
    pub fn doubt(&mut self, cell: usize) {
        let Some(CutCell { at, known, .. }) = self.cut.get(&cell).cloned() else { return };
        if self.is_rewritten(cell, at) {
            return;
        }
        let now = self.tick();
        self.doubted.insert(cell, now);
        let list = self.candidates(cell);
        for mut candidate in known {
            (candidate.superseded, candidate.at_risk) = (None, false);
            match list.iter_mut().find(|other| other.version == candidate.version) {
                Some(other) => other.superseded = None,
                None => list.push(candidate),
            }
        }
        list.sort_by_key(|candidate| candidate.began);
        self.refresh(cell);
    }
}
