//! A layout with sizes: from a range of the array to ranges of its disks.
//!
//! Layouts count in stripes, units and rows of one geometry. Two geometries of the same array, as
//! during a reshape, have only two things in common: the addresses of the array in bytes, and the
//! bytes of the disks. A [`Placement`] translates between those two.

use std::ops::Range;

use weft_code::{CodeSpec, SlotNo};

use crate::{Algorithm, Layout, LayoutError, for_code};

/// Some bytes of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DiskRange {
    /// The disk, in a numbering that does not change with the geometry.
    pub disk: usize,
    /// Byte offsets on it.
    pub bytes: Range<u64>,
}

/// Where one geometry puts the bytes of an array.
#[derive(Debug)]
pub struct Placement {
    layout: Box<dyn Layout>,
    data_units: usize,
    unit_bytes: u64,
    stripes: u64,
    data_offset: u64,
    /// The disk of each slot.
    disks: Vec<usize>,
}

impl Placement {
    /// The code `spec` on `slots` slots with `data_bytes` each, in units of `unit_bytes`. Slot i is
    /// disk i, and its data starts at the disk's first byte.
    ///
    /// # Errors
    /// As [`for_code`].
    ///
    /// # Panics
    /// If `unit_bytes` is 0.
    pub fn new(
        spec: CodeSpec,
        algorithm: Algorithm,
        slots: usize,
        data_bytes: u64,
        unit_bytes: u64,
    ) -> Result<Self, LayoutError> {
        let rows = data_bytes / unit_bytes;
        let layout = for_code(spec, algorithm, slots, rows)?;
        Ok(Self {
            stripes: layout.stripes(rows),
            layout,
            data_units: spec.shape(slots)?.k,
            unit_bytes,
            data_offset: 0,
            disks: (0..slots).collect(),
        })
    }

    /// This placement on other disks: slot i is disk `disks[i]`.
    ///
    /// # Panics
    /// If it is not one disk for each slot.
    #[must_use]
    pub fn with_disks(self, disks: Vec<usize>) -> Self {
        assert_eq!(disks.len(), self.layout.slots(), "a disk for each slot");
        Self { disks, ..self }
    }

    /// This placement with the data starting at byte `data_offset` of each disk.
    #[must_use]
    pub fn with_data_offset(self, data_offset: u64) -> Self {
        Self { data_offset, ..self }
    }

    /// Bytes of the array in one stripe.
    #[must_use]
    pub fn stripe_bytes(&self) -> u64 {
        self.data_units as u64 * self.unit_bytes
    }

    /// Bytes of the array.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.stripes * self.stripe_bytes()
    }

    /// The bytes of the disks that hold these addresses: no parity, of mirrors the first copy.
    /// Ordered, and adjacent ones merged.
    #[must_use]
    pub fn data(&self, addresses: Range<u64>) -> Vec<DiskRange> {
        let mut extents = Vec::new();
        let mut at = addresses.start;
        while at < addresses.end {
            let number = at / self.unit_bytes;
            let (stripe, unit) = (number / self.data_units as u64, number % self.data_units as u64);
            let DiskRange { disk, bytes } = self.unit(stripe, small(unit));
            let skipped = at % self.unit_bytes;
            let len = (self.unit_bytes - skipped).min(addresses.end - at);
            let start = bytes.start + skipped;
            extents.push(DiskRange { disk, bytes: start..start + len });
            at += len;
        }
        merged(extents)
    }

    /// The bytes of the disks occupied by the stripes that contain any of these addresses, parity
    /// included. Ordered, and adjacent ones merged.
    #[must_use]
    pub fn rows(&self, addresses: Range<u64>) -> Vec<DiskRange> {
        if addresses.is_empty() {
            return Vec::new();
        }
        let bytes = self.stripe_bytes();
        let stripes = addresses.start / bytes..addresses.end.div_ceil(bytes);
        merged(stripes.flat_map(|stripe| self.stripe(stripe)).collect())
    }

    /// Where the addresses below `end` end on the disks, about: the highest byte of their last
    /// stripes.
    pub(crate) fn disk_end(&self, end: u64) -> u64 {
        let last = self.layout.slots() as u64 * self.stripe_bytes();
        let rows = self.rows(end.saturating_sub(last)..end);
        rows.iter().map(|extent| extent.bytes.end).max().unwrap_or(self.data_offset)
    }

    /// The places of all units of a stripe.
    pub fn stripe(&self, stripe: u64) -> impl Iterator<Item = DiskRange> + '_ {
        (0..self.layout.width()).map(move |unit| self.unit(stripe, unit))
    }

    /// The stripes with units in these bytes, each once for every such unit.
    pub(crate) fn stripes_in<'a>(&'a self, extent: &DiskRange) -> impl Iterator<Item = u64> + 'a {
        let slot = self.disks.iter().position(|disk| *disk == extent.disk);
        let row = |byte: u64| byte.saturating_sub(self.data_offset);
        let first = row(extent.bytes.start) / self.unit_bytes;
        let end = row(extent.bytes.end).div_ceil(self.unit_bytes);
        let located =
            move |slot| (first..end).filter_map(move |row| self.layout.locate(SlotNo(slot), row));
        let stripes = slot.into_iter().flat_map(located).map(|(stripe, _)| stripe);
        stripes.filter(|stripe| *stripe < self.stripes)
    }

    fn unit(&self, stripe: u64, unit: usize) -> DiskRange {
        let place = self.layout.place(stripe, unit);
        let start = self.data_offset + place.row * self.unit_bytes;
        DiskRange { disk: self.disks[place.slot.0], bytes: start..start + self.unit_bytes }
    }
}

/// The number of a unit within its stripe.
fn small(unit: u64) -> usize {
    usize::try_from(unit).expect("less than the units of a stripe")
}

fn merged(mut extents: Vec<DiskRange>) -> Vec<DiskRange> {
    extents.sort_by_key(|extent| (extent.disk, extent.bytes.start));
    extents.dedup_by(|next, last| {
        let adjacent = next.disk == last.disk && next.bytes.start <= last.bytes.end;
        if adjacent {
            last.bytes.end = last.bytes.end.max(next.bytes.end);
        }
        adjacent
    });
    extents
}
