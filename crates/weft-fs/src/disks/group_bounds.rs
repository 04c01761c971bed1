//! Bounds of the longest free run of each group: where a search for a run may succeed.
//!
//! Each level has the largest of 64 bounds of the level below, until 64 are left. So the next group
//! that may have a run is found in a few steps, however many there are.

use std::ops::Range;

/// Bounds that one bound of the next level covers.
const FAN: usize = 64;

/// Upper bounds of the longest free runs.
#[derive(Debug, Clone)]
pub(super) struct Bounds(Vec<Vec<u8>>);

impl Bounds {
    pub(super) fn new(lowest: Vec<u8>) -> Self {
        let mut levels = vec![lowest];
        while let Some(last) = levels.last().filter(|last| last.len() > FAN) {
            let above = last.chunks(FAN).map(max_of).collect();
            levels.push(above);
        }
        Self(levels)
    }

    /// There are `groups` groups now. The bound of a new one is 0.
    pub(super) fn resize(&mut self, groups: usize) {
        let mut lowest = std::mem::take(&mut self.0[0]);
        lowest.resize(groups, 0);
        *self = Self::new(lowest);
    }

    pub(super) fn get(&self, group: usize) -> u8 {
        self.0[0][group]
    }

    pub(super) fn set(&mut self, group: usize, bound: u8) {
        self.0[0][group] = bound;
        let mut at = group / FAN;
        for level in 1..self.0.len() {
            let below = &self.0[level - 1];
            let largest = max_of(&below[at * FAN..((at + 1) * FAN).min(below.len())]);
            if self.0[level][at] == largest {
                return;
            }
            self.0[level][at] = largest;
            at /= FAN;
        }
    }

    /// The first of these groups whose bound is at least this.
    pub(super) fn first(&self, groups: Range<usize>, least: u8) -> Option<usize> {
        let (mut level, mut at) = (0, groups.start);
        loop {
            let bounds = self.0.get(level)?;
            let end = ((at / FAN + 1) * FAN).min(bounds.len());
            let here = bounds.get(at..end)?.iter().position(|bound| *bound >= least);
            if let Some(found) = here.map(|found| at + found) {
                if level == 0 {
                    return (found < groups.end).then_some(found);
                }
                (level, at) = (level - 1, found * FAN);
            } else {
                (level, at) = (level + 1, at / FAN + 1);
            }
        }
    }

    /// Bytes of memory that they take.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}

fn max_of(bounds: &[u8]) -> u8 {
    bounds.iter().copied().max().unwrap_or(0)
}
