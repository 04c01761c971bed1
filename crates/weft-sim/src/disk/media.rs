//! The stored contents of a disk, and what a power cut leaves of them.
//!
//! A write first goes to the volatile cache, where reads see it. A flush makes durable what had
//! *completed before the flush started*; later writes and writes in flight stay at risk. Each
//! sector at risk has a list of candidates: the durable contents, each version that completed
//! since, and those in flight. A power cut picks one of them for each sector; it never mixes two
//! within a sector. The seed draws how it picks, because different patterns reveal different bugs:
//! keep everything, lose everything, keep or lose whole writes, keep a prefix in time, or pick
//! independently for each sector.

use std::collections::BTreeMap;

use weft_model::Pages;
use weft_rt::rng::mix;
use weft_rt::{Frozen, Rng};

/// The contents of one sector, as part of the write that stored it.
#[derive(Debug, Clone)]
enum Data {
    Zero,
    Bytes(Frozen, usize),
}

#[derive(Debug, Clone)]
struct Version {
    /// Order of completion on this disk.
    seq: u64,
    data: Data,
}

/// The contents of a write in flight.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// Bytes.
    Data(Frozen),
    /// Zeros.
    Zero,
    /// A discard whose range then holds these pseudo-random bytes.
    Noise(u64),
}

#[derive(Debug, Clone)]
struct InFlight {
    offset: u64,
    len: u64,
    payload: Payload,
    /// Nothing of it has reached the disk.
    held: bool,
}

/// Stored contents of a disk.
#[derive(Debug, Clone)]
pub(crate) struct Media {
    pub(crate) size: u64,
    sector: u64,
    /// What reads see.
    current: Pages,
    /// What is left if a power cut loses everything at risk.
    durable: Pages,
    /// Versions that completed and are not durable, per sector, in order of completion.
    at_risk: BTreeMap<u64, Vec<Version>>,
    in_flight: BTreeMap<u64, InFlight>,
    seq: u64,
}

/// How a power cut picks among the candidates.
#[derive(Debug, Clone, Copy)]
enum CutOutcome {
    KeepAll,
    LoseAll,
    /// Whole writes; this percentage is kept.
    Whole(u64, u64),
    /// Everything that completed up to this point.
    Prefix(u64),
    /// Independently for each sector; this percentage keeps its newest version.
    Sectors(u64),
}

fn bytes_of(payload: &Payload, len: u64) -> Option<Frozen> {
    match payload {
        Payload::Data(data) => Some(data.clone()),
        Payload::Zero => None,
        Payload::Noise(seed) => {
            let byte = |i: u64| mix(seed ^ (i / 8)).to_le_bytes()[index(i % 8)];
            Some(Frozen::copy_from(&(0..len).map(byte).collect::<Vec<_>>()))
        }
    }
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("a modelled range fits the address space")
}

impl Media {
    pub(crate) fn new(size: u64, sector: u32) -> Self {
        Self {
            size,
            sector: u64::from(sector),
            current: Pages::default(),
            durable: Pages::default(),
            at_risk: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            seq: 0,
        }
    }

    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        self.current.read(offset, out);
    }

    /// A write starts: from now on a power cut may leave any part of it.
    pub(crate) fn begin(&mut self, op: u64, offset: u64, len: u64, payload: Payload) {
        self.in_flight.insert(op, InFlight { offset, len, payload, held: false });
    }

    /// Holds back a write in flight: nothing of it reaches the disk before it completes.
    pub(crate) fn hold(&mut self, op: u64) {
        if let Some(write) = self.in_flight.get_mut(&op) {
            write.held = true;
        }
    }

    /// Whether a write to this range is in flight.
    pub(crate) fn is_written(&self, range: &std::ops::Range<u64>) -> bool {
        let meets = |w: &InFlight| w.offset < range.end && range.start < w.offset + w.len;
        self.in_flight.values().any(meets)
    }

    /// The writes in flight of which a crash may leave parts.
    fn take_in_flight(&mut self) -> impl Iterator<Item = InFlight> + use<> {
        let in_flight = std::mem::take(&mut self.in_flight);
        in_flight.into_values().filter(|write| !write.held)
    }

    /// A write in flight fails: nothing of it is stored, or a first part.
    pub(crate) fn abandon(&mut self, op: u64, rng: &mut Rng) {
        if let Some(write) = self.in_flight.remove(&op)
            && rng.chance(50)
        {
            let sectors = write.len / self.sector;
            let part = rng.below(sectors + 1) * self.sector;
            self.store(&write, 0, part);
        }
    }

    /// Stores the first part of a write in flight: requests in flight have no order.
    pub(crate) fn show_part(&mut self, op: u64, rng: &mut Rng) {
        if let Some(write) = self.in_flight.get(&op).cloned() {
            let part = rng.below(write.len / self.sector) * self.sector;
            self.store(&write, 0, part);
        }
    }

    /// A write completes: at its offset, at another, or nowhere (`None`).
    pub(crate) fn complete(&mut self, op: u64, offset: Option<u64>, fua: bool) {
        let Some(mut write) = self.in_flight.remove(&op) else { return };
        let Some(offset) = offset else { return };
        write.offset = offset;
        self.store(&write, 0, write.len);
        if fua {
            self.make_durable(write.offset, write.len);
        }
    }

    fn store(&mut self, write: &InFlight, from: u64, len: u64) {
        if len == 0 {
            return;
        }
        self.seq += 1;
        let seq = self.seq;
        let offset = write.offset + from;
        let bytes = bytes_of(&write.payload, write.len);
        match &bytes {
            Some(bytes) => self.current.write(offset, &bytes[index(from)..index(from + len)]),
            None => self.current.zero(offset, len),
        }
        for sector in 0..len / self.sector {
            let data = match &bytes {
                Some(bytes) => Data::Bytes(bytes.clone(), index(from + sector * self.sector)),
                None => Data::Zero,
            };
            let number = offset / self.sector + sector;
            self.at_risk.entry(number).or_default().push(Version { seq, data });
        }
    }

    /// Makes the current contents of a range durable.
    fn make_durable(&mut self, offset: u64, len: u64) {
        for number in offset / self.sector..(offset + len) / self.sector {
            if let Some(newest) = self.at_risk.remove(&number).and_then(|mut list| list.pop()) {
                store_sector(&mut self.durable, self.sector, number, &newest.data);
            }
        }
    }

    /// The sequence number up to which a flush that starts now makes writes durable.
    pub(crate) fn mark(&self) -> u64 {
        self.seq
    }

    /// A flush that started at `mark` has completed.
    pub(crate) fn flushed(&mut self, mark: u64) {
        let (durable, sector) = (&mut self.durable, self.sector);
        self.at_risk.retain(|number, versions| {
            let covered = versions.partition_point(|version| version.seq <= mark);
            if covered > 0 {
                store_sector(durable, sector, *number, &versions[covered - 1].data);
                versions.drain(..covered);
            }
            !versions.is_empty()
        });
    }

    /// Whether storing this range needs space that the disk has not allocated.
    pub(crate) fn allocates(&self, offset: u64, len: u64) -> bool {
        !self.current.covers(offset, len)
    }

    /// Flips bits of stored bytes, durably.
    pub(crate) fn rot(&mut self, offset: u64, len: u64, rng: &mut Rng) {
        let mut bytes = vec![0; index(len)];
        self.current.read(offset, &mut bytes);
        for byte in &mut bytes {
            *byte ^= rng.next_u64().to_le_bytes()[0] | 1;
        }
        self.current.write(offset, &bytes);
        self.durable.write(offset, &bytes);
        for number in offset / self.sector..(offset + len) / self.sector {
            self.at_risk.remove(&number);
        }
    }

    /// The program was killed and the machine was not: completed writes stay in the cache, at risk;
    /// writes in flight are stored, partly stored or lost.
    pub(crate) fn program_killed(&mut self, rng: &mut Rng) {
        for write in self.take_in_flight() {
            match rng.below(3) {
                0 => {}
                1 => self.store(&write, 0, write.len),
                _ => {
                    let sectors = write.len / self.sector;
                    let (a, b) = (rng.below(sectors + 1), rng.below(sectors + 1));
                    let (from, to) = (a.min(b) * self.sector, a.max(b) * self.sector);
                    self.store(&write, from, to - from);
                }
            }
        }
    }

    /// The power is cut: picks a candidate for each sector at risk. Returns these sectors.
    pub(crate) fn power_cut(&mut self, rng: &mut Rng) -> Vec<u64> {
        let in_flight_first = self.seq + 1;
        for write in self.take_in_flight() {
            self.store(&write, 0, write.len);
        }
        let outcome = match rng.below(10) {
            0 => CutOutcome::KeepAll,
            1 => CutOutcome::LoseAll,
            2 | 3 => CutOutcome::Whole(rng.next_u64(), *rng.pick(&[10, 50, 90])),
            4 | 5 => {
                let oldest = self.at_risk.values().map(|list| list[0].seq).min().unwrap_or(0);
                CutOutcome::Prefix(rng.within(oldest.saturating_sub(1), self.seq))
            }
            _ => CutOutcome::Sectors(*rng.pick(&[10, 50, 50, 90])),
        };
        let interrupted = self.at_risk.keys().copied().collect();
        for (number, versions) in std::mem::take(&mut self.at_risk) {
            let kept = match outcome {
                CutOutcome::KeepAll => versions.iter().rev().find(|version| {
                    version.seq < in_flight_first || mix(version.seq).is_multiple_of(2)
                }),
                CutOutcome::LoseAll => None,
                CutOutcome::Whole(salt, percent) => {
                    versions.iter().rev().find(|version| mix(version.seq ^ salt) % 100 < percent)
                }
                CutOutcome::Prefix(last) => {
                    versions.iter().rev().find(|version| version.seq <= last)
                }
                CutOutcome::Sectors(percent) if rng.chance(percent) => versions.last(),
                CutOutcome::Sectors(_) => {
                    let candidate = rng.index(versions.len() + 1);
                    candidate.checked_sub(1).map(|i| &versions[i])
                }
            };
            if let Some(version) = kept {
                store_sector(&mut self.durable, self.sector, number, &version.data);
            }
        }
        self.current = self.durable.clone();
        interrupted
    }

    /// The number of sectors that a power cut could change.
    pub(crate) fn sectors_at_risk(&self) -> usize {
        self.at_risk.len()
    }

    pub(crate) fn pages(&self) -> u64 {
        self.current.count()
    }
}

fn store_sector(pages: &mut Pages, sector: u64, number: u64, data: &Data) {
    match data {
        Data::Zero => pages.zero(number * sector, sector),
        Data::Bytes(bytes, at) => pages.write(number * sector, &bytes[*at..*at + index(sector)]),
    }
}
