//! What a disk stores, and what a crash leaves of it.
//!
//! A write first goes to the volatile cache, where reads see it. A flush makes durable what had
//! *completed before the flush started*; later writes and writes in flight stay at risk:
//!
//! ```text
//!              durable   completed (order)   in flight      a power cut leaves
//!   sector 7      A        B (3)   D (5)                    A, B or D
//!   sector 8      A        C (4)                 E          A, C or E
//!
//!   A flush with the mark 4 makes B and C durable; D and E stay at risk.
//! ```
//!
//! A crash has two steps. Of each write in flight some part reaches the cache ([`Medium::land`]).
//! That is all if only the program dies. If the power is cut, the cache is lost: each sector at
//! risk then holds one of its candidates ([`Medium::cut`]), never a mixture. The caller picks the
//! parts and candidates.
//!
//! Clones share what they store, so a test can keep one of every moment.

use std::collections::BTreeMap;
use std::ops::Range;

use weft_rt::Frozen;

use crate::pages::Pages;

/// The contents of a disk.
#[derive(Debug, Clone)]
pub struct Medium {
    sector: u64,
    /// What reads see.
    current: Pages,
    /// What is left if a power cut loses everything at risk.
    durable: Pages,
    /// Versions that completed and are not durable, per sector, in order of completion.
    at_risk: BTreeMap<u64, Vec<Version>>,
    /// How many these are.
    versions: usize,
    in_flight: BTreeMap<u64, Write>,
    order: u64,
}

/// A version of one sector that completed and is not durable.
#[derive(Debug, Clone)]
pub struct Version {
    /// Order of completion on this disk, the same for all sectors of a write.
    pub order: u64,
    /// The write's bytes and where the sector starts in them; `None`: zeros.
    data: Option<(Frozen, usize)>,
}

#[derive(Debug, Clone)]
struct Write {
    offset: u64,
    len: u64,
    /// `None`: zeros.
    data: Option<Frozen>,
    /// Nothing of it reaches the disk before it completes.
    held: bool,
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("a modelled range fits the address space")
}

impl Medium {
    /// Zeros, in sectors of this many bytes.
    pub fn new(sector: u32) -> Self {
        Self {
            sector: u64::from(sector),
            current: Pages::default(),
            durable: Pages::default(),
            at_risk: BTreeMap::new(),
            versions: 0,
            in_flight: BTreeMap::new(),
            order: 0,
        }
    }

    /// Reads from the cache, or durable data.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        self.current.read(offset, out);
    }

    /// Whether storing something in this range needs no new space.
    pub fn covers(&self, offset: u64, len: u64) -> bool {
        self.current.covers(offset, len)
    }

    /// Whether nothing is stored in this range or about to be.
    pub fn is_blank(&self, offset: u64, len: u64) -> bool {
        self.current.is_blank(offset, len) && !self.is_written(&(offset..offset + len))
    }

    /// What is stored.
    pub fn pages(&self) -> &Pages {
        &self.current
    }

    /// The sectors that a power cut could change, by number, with their versions in order of
    /// completion.
    pub fn at_risk(&self) -> impl ExactSizeIterator<Item = (u64, &[Version])> {
        self.at_risk.iter().map(|(sector, versions)| (*sector, &versions[..]))
    }

    /// Bytes that the versions at risk have together.
    pub fn bytes_at_risk(&self) -> u64 {
        self.versions as u64 * self.sector
    }

    /// The write `op` starts, of `len` bytes of data or of zeros (`None`): from now on a crash may
    /// leave any part of it. Writes that a crash finds in flight land in the order of their `op`.
    pub fn begin(&mut self, op: u64, offset: u64, len: u64, data: Option<Frozen>) {
        self.in_flight.insert(op, Write { offset, len, data, held: false });
    }

    /// Holds back a write in flight: nothing of it reaches the disk before it completes.
    pub fn hold(&mut self, op: u64) {
        if let Some(write) = self.in_flight.get_mut(&op) {
            write.held = true;
        }
    }

    /// Whether a write to this range is in flight.
    pub fn is_written(&self, range: &Range<u64>) -> bool {
        let meets = |w: &Write| w.offset < range.end && range.start < w.offset + w.len;
        self.in_flight.values().any(meets)
    }

    /// Stores the first sectors of a write that stays in flight; `first` is given the number of all
    /// of them.
    pub fn show(&mut self, op: u64, first: impl FnOnce(u64) -> u64) {
        if let Some(write) = self.in_flight.get(&op).cloned() {
            self.store(&write, 0..first(write.len / self.sector));
        }
    }

    /// A write in flight ends after its first sectors; `first` is given the number of all of them.
    pub fn abandon(&mut self, op: u64, first: impl FnOnce(u64) -> u64) {
        if let Some(write) = self.in_flight.remove(&op) {
            self.store(&write, 0..first(write.len / self.sector));
        }
    }

    /// A write in flight completes, at its own offset or, misdirected, at another.
    pub fn complete(&mut self, op: u64, offset: u64, fua: bool) {
        let Some(write) = self.in_flight.remove(&op) else { return };
        self.store(&Write { offset, ..write.clone() }, 0..write.len / self.sector);
        if fua {
            self.make_durable(offset, write.len);
        }
    }

    /// Stores bytes durably, past the interface of the disk.
    pub fn poke(&mut self, offset: u64, bytes: &[u8]) {
        self.order += 1;
        self.current.write(offset, bytes);
        self.durable.write(offset, bytes);
        for sector in offset / self.sector..(offset + bytes.len() as u64) / self.sector {
            self.forget(sector);
        }
    }

    /// Drops the versions of a sector. Returns the newest.
    fn forget(&mut self, sector: u64) -> Option<Version> {
        let mut versions = self.at_risk.remove(&sector)?;
        self.versions -= versions.len();
        versions.pop()
    }

    /// Stores some sectors of a write, in the cache.
    fn store(&mut self, write: &Write, sectors: Range<u64>) {
        let (from, len) =
            (sectors.start * self.sector, (sectors.end - sectors.start) * self.sector);
        if len == 0 {
            return;
        }
        self.order += 1;
        match &write.data {
            Some(data) => {
                self.current.write(write.offset + from, &data[index(from)..index(from + len)]);
            }
            None => self.current.zero(write.offset + from, len),
        }
        for sector in sectors {
            let data = write.data.clone().map(|data| (data, index(sector * self.sector)));
            let versions = self.at_risk.entry(write.offset / self.sector + sector).or_default();
            versions.push(Version { order: self.order, data });
            self.versions += 1;
        }
    }

    /// Makes the current contents of a range durable.
    fn make_durable(&mut self, offset: u64, len: u64) {
        for sector in offset / self.sector..(offset + len) / self.sector {
            if let Some(newest) = self.forget(sector) {
                newest.store(&mut self.durable, self.sector, sector);
            }
        }
    }

    /// The order of completion up to which a flush that starts now makes writes durable.
    pub fn mark(&self) -> u64 {
        self.order
    }

    /// A flush that started at `mark` has completed.
    pub fn flushed(&mut self, mark: u64) {
        let (durable, bytes, count) = (&mut self.durable, self.sector, &mut self.versions);
        self.at_risk.retain(|sector, versions| {
            let covered = versions.partition_point(|version| version.order <= mark);
            *count -= covered;
            if let Some(newest) = versions.drain(..covered).next_back() {
                newest.store(durable, bytes, *sector);
            }
            !versions.is_empty()
        });
    }

    /// The first step of a crash: a part of each write in flight reaches the cache. `part` is given
    /// its number of sectors, and returns which of them do.
    pub fn land(&mut self, mut part: impl FnMut(u64) -> Range<u64>) {
        let in_flight = std::mem::take(&mut self.in_flight);
        for write in in_flight.into_values().filter(|write| !write.held) {
            self.store(&write, part(write.len / self.sector));
        }
    }

    /// The second step, if the power is cut: for each sector at risk, in order, `pick` returns
    /// which of its versions stays, and `None` for the one that was durable.
    pub fn cut(&mut self, mut pick: impl FnMut(u64, &[Version]) -> Option<&Version>) {
        self.versions = 0;
        for (sector, versions) in std::mem::take(&mut self.at_risk) {
            if let Some(version) = pick(sector, &versions) {
                version.store(&mut self.durable, self.sector, sector);
            }
        }
        self.current = self.durable.clone();
    }
}

impl Version {
    fn store(&self, pages: &mut Pages, bytes: u64, sector: u64) {
        match &self.data {
            Some((data, at)) => pages.write(sector * bytes, &data[*at..*at + index(bytes)]),
            None => pages.zero(sector * bytes, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_bytes(medium: &Medium) -> [u8; 2] {
        [0, 512].map(|offset| {
            let mut byte = [0];
            medium.read(offset, &mut byte);
            byte[0]
        })
    }

    /// The state in the drawing above.
    fn drawn() -> Medium {
        let mut medium = Medium::new(512);
        let filled = |len: usize, byte| Some(Frozen::copy_from(&vec![byte; len]));
        medium.poke(0, &[b'A'; 1024]);
        for (op, offset, byte) in [(1, 0, b'B'), (2, 512, b'C'), (3, 0, b'D')] {
            medium.begin(op, offset, 512, filled(512, byte));
            medium.complete(op, offset, false);
        }
        medium.begin(4, 512, 512, filled(512, b'E'));
        medium
    }

    #[test]
    fn each_sector_holds_one_of_its_candidates_after_a_power_cut() {
        let mut medium = drawn();
        assert_eq!(first_bytes(&medium), *b"DC");
        medium.land(|sectors| 0..sectors);
        for (pick, left) in [b"AA", b"BC", b"DE"].into_iter().enumerate() {
            let mut medium = medium.clone();
            medium.cut(|_, versions| pick.checked_sub(1).map(|n| &versions[n]));
            assert_eq!(first_bytes(&medium), *left);
            assert_eq!(medium.at_risk().len(), 0);
        }
    }

    #[test]
    fn a_flush_covers_what_completed_before_it_started() {
        let mut medium = drawn();
        assert_eq!(medium.bytes_at_risk(), 3 * 512);
        medium.flushed(medium.mark() - 1);
        assert_eq!(medium.bytes_at_risk(), 512);
        medium.land(|_| 0..0);
        assert_eq!(first_bytes(&medium), *b"DC");
        medium.cut(|_, _| None);
        assert_eq!((first_bytes(&medium), medium.bytes_at_risk()), (*b"BC", 0));
    }

    #[test]
    fn a_held_write_reaches_nothing_before_it_completes() {
        let mut medium = drawn();
        medium.hold(4);
        assert!(medium.is_written(&(0..1024)) && !medium.is_written(&(0..512)));
        let mut crashed = medium.clone();
        crashed.land(|_| unreachable!("it is held"));
        medium.complete(4, 512, true);
        medium.cut(|_, _| None);
        assert_eq!((first_bytes(&crashed), first_bytes(&medium)), (*b"DC", *b"AE"));
    }
}
