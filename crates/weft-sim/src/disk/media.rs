//! What is stored on a disk, and what a power cut leaves of it.
//!
//! A write first lands in the volatile cache, where every read sees it. A flush makes durable what
//! had *completed before the flush started*; later writes and writes in flight stay at risk. So
//! for every sector at risk there is a list of candidates: the durable contents, each version that
//! completed since, and those still in flight. A power cut picks one for each sector – never a
//! mixture inside a sector. How it picks is drawn from the seed, because bugs hide behind
//! different patterns: everything kept, everything lost, whole writes kept or lost, a prefix
//! in time, or each sector for itself.

use std::collections::BTreeMap;

use weft_rt::Frozen;

use crate::pages::Pages;
use crate::rng::{Rng, mix};

/// Contents of one sector, as part of the write that brought it.
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

/// What a write in flight brings.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// Bytes.
    Data(Frozen),
    /// Zeros.
    Zero,
    /// Whatever: a discard whose contents become these pseudo-random bytes.
    Noise(u64),
}

#[derive(Debug, Clone)]
struct InFlight {
    offset: u64,
    len: u64,
    payload: Payload,
    /// It is held up on its way: nothing of it has reached the disk.
    held: bool,
}

/// Stored contents of a disk.
#[derive(Debug, Clone)]
pub(crate) struct Media {
    pub(crate) size: u64,
    sector: u64,
    /// As reads see it.
    current: Pages,
    /// As a power cut that loses everything at risk would leave it.
    durable: Pages,
    /// Completed and not yet durable, by sector number, in the order of completion.
    at_risk: BTreeMap<u64, Vec<Version>>,
    in_flight: BTreeMap<u64, InFlight>,
    seq: u64,
}

/// How a power cut picks among the candidates.
#[derive(Debug, Clone, Copy)]
enum Pick {
    KeepAll,
    LoseAll,
    /// Each write as a whole, with this percentage kept.
    Whole(u64, u64),
    /// What completed up to this point.
    Prefix(u64),
    /// Each sector for itself, with this percentage keeping its newest.
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

    /// A write starts; from now on a power cut may leave any part of it.
    pub(crate) fn begin(&mut self, op: u64, offset: u64, len: u64, payload: Payload) {
        self.in_flight.insert(op, InFlight { offset, len, payload, held: false });
    }

    /// A write in flight is held up: until it completes nothing of it reaches the disk.
    pub(crate) fn hold_up(&mut self, op: u64) {
        if let Some(write) = self.in_flight.get_mut(&op) {
            write.held = true;
        }
    }

    /// The writes in flight that a crash may leave parts of.
    fn take_in_flight(&mut self) -> impl Iterator<Item = InFlight> + use<> {
        let in_flight = std::mem::take(&mut self.in_flight);
        in_flight.into_values().filter(|write| !write.held)
    }

    /// A write in flight is given up, with no trace (`kept` = false) or with a part stored.
    pub(crate) fn abandon(&mut self, op: u64, rng: &mut Rng) {
        if let Some(write) = self.in_flight.remove(&op)
            && rng.chance(50)
        {
            let sectors = write.len / self.sector;
            let part = rng.below(sectors + 1) * self.sector;
            self.store(&write, 0, part);
        }
    }

    /// Shows the first part of a write in flight to reads: requests in flight have no order.
    pub(crate) fn show_part(&mut self, op: u64, rng: &mut Rng) {
        if let Some(write) = self.in_flight.get(&op).cloned() {
            let part = rng.below(write.len / self.sector) * self.sector;
            self.store(&write, 0, part);
        }
    }

    /// A write completes where it said, or elsewhere (`offset`), or nowhere (`None`).
    pub(crate) fn complete(&mut self, op: u64, offset: Option<u64>, fua: bool) {
        let Some(mut write) = self.in_flight.remove(&op) else { return };
        let Some(offset) = offset else { return };
        write.offset = offset;
        self.store(&write, 0, write.len);
        if fua {
            self.harden(write.offset, write.len);
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

    /// Makes the present contents of a range durable.
    fn harden(&mut self, offset: u64, len: u64) {
        for number in offset / self.sector..(offset + len) / self.sector {
            if let Some(newest) = self.at_risk.remove(&number).and_then(|mut list| list.pop()) {
                put(&mut self.durable, self.sector, number, &newest.data);
            }
        }
    }

    /// Where a flush that starts now draws the line.
    pub(crate) fn mark(&self) -> u64 {
        self.seq
    }

    /// A flush whose line was `mark` has completed.
    pub(crate) fn flushed(&mut self, mark: u64) {
        let (durable, sector) = (&mut self.durable, self.sector);
        self.at_risk.retain(|number, versions| {
            let covered = versions.partition_point(|version| version.seq <= mark);
            if covered > 0 {
                put(durable, sector, *number, &versions[covered - 1].data);
                versions.drain(..covered);
            }
            !versions.is_empty()
        });
    }

    /// Whether storing this range would need room that the disk has not got yet.
    pub(crate) fn allocates(&self, offset: u64, len: u64) -> bool {
        !self.current.covers(offset, len)
    }

    /// Flips bits of stored bytes, under everything.
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

    /// The program dies, the machine goes on: what had completed stays in the cache (and at
    /// risk); what was in flight is stored or not.
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

    /// The power goes: each sector at risk becomes one of its candidates, for good. Returns these
    /// sectors.
    pub(crate) fn power_cut(&mut self, rng: &mut Rng) -> Vec<u64> {
        let in_flight_first = self.seq + 1;
        for write in self.take_in_flight() {
            self.store(&write, 0, write.len);
        }
        let pick = match rng.below(10) {
            0 => Pick::KeepAll,
            1 => Pick::LoseAll,
            2 | 3 => Pick::Whole(rng.next_u64(), *rng.pick(&[10, 50, 90])),
            4 | 5 => {
                let oldest = self.at_risk.values().map(|list| list[0].seq).min().unwrap_or(0);
                Pick::Prefix(rng.within(oldest.saturating_sub(1), self.seq))
            }
            _ => Pick::Sectors(*rng.pick(&[10, 50, 50, 90])),
        };
        let caught = self.at_risk.keys().copied().collect();
        for (number, versions) in std::mem::take(&mut self.at_risk) {
            let kept = match pick {
                Pick::KeepAll => versions.iter().rev().find(|version| {
                    version.seq < in_flight_first || mix(version.seq).is_multiple_of(2)
                }),
                Pick::LoseAll => None,
                Pick::Whole(salt, percent) => {
                    versions.iter().rev().find(|version| mix(version.seq ^ salt) % 100 < percent)
                }
                Pick::Prefix(last) => versions.iter().rev().find(|version| version.seq <= last),
                Pick::Sectors(percent) if rng.chance(percent) => versions.last(),
                Pick::Sectors(_) => {
                    let candidate = rng.index(versions.len() + 1);
                    candidate.checked_sub(1).map(|i| &versions[i])
                }
            };
            if let Some(version) = kept {
                put(&mut self.durable, self.sector, number, &version.data);
            }
        }
        self.current = self.durable.clone();
        caught
    }

    /// Sectors whose contents a power cut could change.
    pub(crate) fn sectors_at_risk(&self) -> usize {
        self.at_risk.len()
    }

    pub(crate) fn pages(&self) -> u64 {
        self.current.count()
    }
}

fn put(pages: &mut Pages, sector: u64, number: u64, data: &Data) {
    match data {
        Data::Zero => pages.zero(number * sector, sector),
        Data::Bytes(bytes, at) => pages.write(number * sector, &bytes[*at..*at + index(sector)]),
    }
}
