//! What a crash does to the promises, and which of them end when a disk is lost with it.
//!
//! A cell is *cut* if at a crash some write to it was not known to be durable. Where its stripe may
//! have become inconsistent by that, a disk that is lost in the same moment – or later, before the
//! volume has made itself consistent – takes more with it than what lay on it; what exactly is for
//! the caller to say ([`Oracle::excuse`], [`Oracle::doubt`]), from what `docs/consistency.md`
//! promises.

use super::Oracle;
use super::candidate::{Candidate, Cut, CutCell, Tick};
use super::content::Version;

impl Oracle {
    /// The power was cut: everything that was at risk is possible, and will be settled by the
    /// next read.
    pub fn power_cut(&mut self) {
        self.crash(true);
    }

    /// The program was killed: requests in flight happened or not; caches keep what they had.
    pub fn program_killed(&mut self) {
        self.crash(false);
    }

    /// As [`Oracle::program_killed`], of a program that had to stop taking writes. Members that
    /// were out then come back with what they had: what the others had of a refused write, and was
    /// read meanwhile, need not stay.
    pub fn had_to_stop(&mut self) {
        self.crash(false);
        for cell in self.open.clone() {
            let list = self.candidates(cell);
            let overruled_from = list.iter().filter(|c| c.acknowledged && !c.version.is_odd());
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
            self.forget_buried(cell);
            let list = self.candidates(cell);
            let before = list.clone();
            let at_risk = list.iter().any(|c| c.at_risk);
            for candidate in list.iter_mut() {
                candidate.ended.get_or_insert(now);
                if power {
                    if at_risk {
                        candidate.superseded = None;
                    }
                    // What was discarded stays unspecified: see `check`.
                    candidate.settled = !candidate.version.is_any();
                    candidate.at_risk = false;
                }
            }
            if !at_risk {
                // No cache holds anything of it: what was overruled cannot come back.
                list.retain(|c| c.superseded.is_none());
                self.refresh(cell);
                continue;
            }
            let cut = self.cut.entry(cell).or_default();
            cut.at = now;
            cut.learn(before);
        }
    }

    /// The volume has made itself consistent since the last crash: from now on a lost disk takes
    /// nothing with it that was at risk then.
    pub fn consistent_again(&mut self) {
        self.cut.clear();
        self.doubted.clear();
        for cell in std::mem::take(&mut self.loose) {
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

    /// Whether a write to the cell that began after `since` was acknowledged.
    fn is_rewritten(&self, cell: usize, since: Tick) -> bool {
        let list = self.known(cell).into_iter().flatten();
        list.into_iter().any(|c| c.acknowledged && c.began > since)
    }

    /// A promise has ended for this cell because of the crash `at`: it may hold anything until it
    /// is written again (unless it was since the crash), and may even change until
    /// [`Oracle::consistent_again`]; after that the first read settles it. Says whether it was so.
    pub fn excuse(&mut self, cell: usize, at: Tick) -> bool {
        if self.is_rewritten(cell, at) {
            return false;
        }
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
            buried: false,
            settled: false,
            at_risk: false,
        });
        self.loose.insert(cell);
        self.open.insert(cell);
        true
    }

    /// After a crash a copy of this cell was lost before the copies were made equal: what was read
    /// since may have come from the lost one, so every candidate of the crash is possible again.
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
