//! Maps the addresses of a trace to a target of another size.
//!
//! The volumes of a trace are laid out one after another, each with its own base at a multiple of
//! the granule, so that two volumes never share a byte by chance. This space is then fitted to the
//! target:
//!
//! * [`Fit::Exact`]: unchanged. Requests beyond the end of the target are not issued, but counted.
//! * [`Fit::Wrap`]: modulo the target's size.
//! * [`Fit::Scale`]: scaled to the size of the target, by *granules*: granule g of S goes to g·T/S
//!   of T, and addresses within a granule keep their place and distance. So runs of sequential
//!   requests stay sequential (except for a jump at the end of a granule), and neighbours stay near
//!   each other. Shrinking maps several granules to one place, which adds reuse;
//!   [`AddressMap::fold`] gives their number.
//!
//! All arithmetic is in integers: a scale in floating point loses low bits of large addresses, and
//! with them the alignment and the sequence of requests. Lengths are never cut. A request stays
//! whole: if it would reach beyond the end of the target, it is moved back so that it ends there
//! (`Wrap`, `Scale`).
//!
//! The target takes whole sectors. Reads and writes are widened to sectors (counted), trims are
//! narrowed.

use std::collections::BTreeMap;

use crate::record::{Op, Record};

/// Granule of [`Fit::Scale`] and alignment of the volumes' bases, in bytes.
pub const GRANULE_BYTES: u64 = 1 << 20;

/// How to fit a trace's space to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// Addresses are unchanged; requests beyond the target are not issued.
    Exact,
    /// Modulo the target's size.
    Wrap,
    /// Scaled by granules.
    Scale,
}

/// The sizes of a trace's volumes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Volumes(BTreeMap<u32, u64>);

impl Volumes {
    /// Makes room for the request.
    pub fn add(&mut self, record: &Record) {
        let end = self.0.entry(record.device).or_default();
        *end = record.end().max(*end);
    }

    /// Sets the size of a volume, if it is larger than the known size.
    pub fn set(&mut self, device: u32, bytes: u64) {
        let end = self.0.entry(device).or_default();
        *end = bytes.max(*end);
    }

    /// The sizes that the requests of a trace ask for. Reads all of it.
    ///
    /// # Errors
    /// The first error of the trace.
    pub fn scan<E>(records: impl Iterator<Item = Result<Record, E>>) -> Result<Self, E> {
        let mut volumes = Self::default();
        for record in records {
            volumes.add(&record?);
        }
        Ok(volumes)
    }

    /// Each volume with its size in bytes.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.0.iter().map(|(device, bytes)| (*device, *bytes))
    }

    /// Bytes of all volumes together. Saturates.
    pub fn total_bytes(&self) -> u64 {
        self.0.values().fold(0, |sum, bytes| sum.saturating_add(padded(*bytes)))
    }
}

fn padded(bytes: u64) -> u64 {
    bytes.div_ceil(GRANULE_BYTES).saturating_mul(GRANULE_BYTES)
}

/// The place of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// These bytes, whole sectors.
    At {
        /// Byte offset on the target.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Nowhere: it lies beyond the target, or is longer than it.
    Beyond,
    /// Nowhere: a trim of less than a sector.
    Nothing,
}

/// Maps requests to a target.
#[derive(Debug, Clone)]
pub struct AddressMap {
    bases: BTreeMap<u32, u64>,
    source_bytes: u64,
    target_bytes: u64,
    sector_bytes: u64,
    fit: Fit,
}

impl AddressMap {
    /// A map of `volumes` to a target of `target_bytes` with sectors of `sector_bytes`.
    pub fn new(volumes: &Volumes, target_bytes: u64, sector_bytes: u32, fit: Fit) -> Self {
        let mut bases = BTreeMap::new();
        let mut base = 0u64;
        for (device, bytes) in volumes.iter() {
            bases.insert(device, base);
            base = base.saturating_add(padded(bytes));
        }
        let sector_bytes = u64::from(sector_bytes.max(1));
        let target_bytes = target_bytes / sector_bytes * sector_bytes;
        Self { bases, source_bytes: base, target_bytes, sector_bytes, fit }
    }

    /// The largest number of granules of the trace that share a place on the target: 1 unless
    /// shrunk.
    pub fn fold(&self) -> u64 {
        match self.fit {
            Fit::Exact => 1,
            Fit::Wrap => self.source_bytes.div_ceil(self.target_bytes.max(1)).max(1),
            Fit::Scale => {
                let target = (self.target_bytes / GRANULE_BYTES).max(1);
                (self.source_bytes / GRANULE_BYTES).div_ceil(target).max(1)
            }
        }
    }

    /// Whether every request that the volumes hold fits without wrapping or scaling.
    pub fn fits_exactly(volumes: &Volumes, target_bytes: u64) -> bool {
        // The padding after the last volume holds nothing.
        let padding = volumes.iter().last().map_or(0, |(_, bytes)| padded(bytes) - bytes);
        volumes.total_bytes() - padding <= target_bytes
    }

    /// The size of a sector in bytes.
    pub fn sector_bytes(&self) -> u64 {
        self.sector_bytes
    }

    /// The place of `record` on the target.
    pub fn place(&self, record: &Record) -> Placed {
        let Some(base) = self.bases.get(&record.device) else { return Placed::Beyond };
        let Some(flat) = base.checked_add(record.offset) else { return Placed::Beyond };
        if record.len > self.target_bytes {
            return Placed::Beyond;
        }
        let start = match self.fit {
            Fit::Exact => flat,
            Fit::Wrap => self.moved_back(flat % self.target_bytes.max(1), record.len),
            Fit::Scale => self.moved_back(self.scaled(flat), record.len),
        };
        self.in_sectors(start, record.len, record.op)
    }

    fn moved_back(&self, start: u64, len: u64) -> u64 {
        start.min(self.target_bytes - len)
    }

    fn scaled(&self, flat: u64) -> u64 {
        let source = u128::from(self.source_bytes / GRANULE_BYTES).max(1);
        let target = u128::from(self.target_bytes / GRANULE_BYTES);
        if target == 0 {
            return flat % self.target_bytes.max(1);
        }
        let granule = u128::from(flat / GRANULE_BYTES) * target / source;
        let granule = u64::try_from(granule).unwrap_or(u64::MAX);
        granule.saturating_mul(GRANULE_BYTES).saturating_add(flat % GRANULE_BYTES)
    }

    fn in_sectors(&self, start: u64, len: u64, op: Op) -> Placed {
        let sector = self.sector_bytes;
        let Some(end) = start.checked_add(len) else { return Placed::Beyond };
        if end > self.target_bytes {
            return Placed::Beyond;
        }
        let (first, last) = if op == Op::Trim {
            (start.div_ceil(sector), end / sector)
        } else {
            (start / sector, end.div_ceil(sector))
        };
        if last <= first {
            return Placed::Nothing;
        }
        Placed::At { offset: first * sector, len: (last - first) * sector }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = GRANULE_BYTES;

    fn request(device: u32, offset: u64, len: u64) -> Record {
        Record { at_ns: 0, device, offset, len, op: Op::Read }
    }

    fn volumes(sizes: &[(u32, u64)]) -> Volumes {
        let mut volumes = Volumes::default();
        sizes.iter().for_each(|(device, bytes)| volumes.set(*device, *bytes));
        volumes
    }

    #[test]
    fn volumes_lie_one_behind_the_other() {
        let volumes = volumes(&[(7, 3 * MIB + 1), (0, 2 * MIB)]);
        assert_eq!(volumes.total_bytes(), 6 * MIB);
        let map = AddressMap::new(&volumes, 100 * MIB, 512, Fit::Exact);
        assert_eq!(map.place(&request(0, 512, 512)), Placed::At { offset: 512, len: 512 });
        let on_seven = Placed::At { offset: 2 * MIB + 512, len: 512 };
        assert_eq!(map.place(&request(7, 512, 512)), on_seven);
        assert_eq!(map.place(&request(3, 0, 512)), Placed::Beyond);
        assert!(AddressMap::fits_exactly(&volumes, 5 * MIB + 1));
        assert!(!AddressMap::fits_exactly(&volumes, 5 * MIB));
    }

    #[test]
    fn scaling_keeps_runs_and_order_and_loses_no_bit() {
        // Sizes at which a float of 24 or 53 bits would round.
        let source = (1 << 60) + 3 * MIB;
        let volumes = volumes(&[(0, source)]);
        for target in [MIB, 3 * MIB, 1000 * MIB + 512, (1 << 61) + MIB] {
            let map = AddressMap::new(&volumes, target, 512, Fit::Scale);
            let mut last = 0;
            for step in 0..1000u64 {
                let granule = (source / MIB - 1) / 999 * step * MIB;
                let mut next = None;
                for piece in 0..8 {
                    let at = map.place(&request(0, granule + piece * 4096, 4096));
                    let Placed::At { offset, len } = at else { panic!("{at:?}") };
                    assert_eq!((len, offset % 4096), (4096, 0));
                    assert!(next.is_none_or(|next| next == offset), "a run is torn");
                    assert!(offset >= last || piece > 0, "the order is lost");
                    assert!(offset + len <= target);
                    last = if piece == 0 { offset } else { last };
                    next = Some(offset + len);
                }
            }
        }
    }

    #[test]
    fn lengths_are_never_cut() {
        let volumes = volumes(&[(0, 64 * MIB)]);
        for fit in [Fit::Wrap, Fit::Scale] {
            let map = AddressMap::new(&volumes, 10 * MIB, 4096, fit);
            for offset in (0..63 * MIB).step_by(123_456) {
                let Placed::At { offset, len } = map.place(&request(0, offset, MIB)) else {
                    panic!("within the volume")
                };
                assert!((MIB..=MIB + 2 * 4096).contains(&len) && offset + len <= 10 * MIB);
            }
            assert_eq!(map.place(&request(0, 0, 11 * MIB)), Placed::Beyond);
        }
        let exact = AddressMap::new(&volumes, 10 * MIB, 4096, Fit::Exact);
        assert_eq!(exact.place(&request(0, 10 * MIB - 512, 1024)), Placed::Beyond);
    }

    #[test]
    fn sectors_are_whole() {
        let map = AddressMap::new(&volumes(&[(0, MIB)]), MIB, 4096, Fit::Exact);
        let wide = Placed::At { offset: 4096, len: 8192 };
        assert_eq!(map.place(&request(0, 5000, 4096)), wide);
        let trim = |offset, len| map.place(&Record { op: Op::Trim, ..request(0, offset, len) });
        assert_eq!(trim(5000, 4096), Placed::Nothing);
        assert_eq!(trim(5000, 8192), Placed::At { offset: 8192, len: 4096 });
    }
}
