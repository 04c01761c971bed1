//! What a device tells its users of itself: size, blocks, and which requests suit it.
//!
//! `mkfs.ext4` and `mkfs.xfs` take stride and stripe width from the smallest and the optimal
//! request: here the array's unit and stripe.

use weft_rt::ublk::{Basic, DiscardLimits, Params, attribute};

/// Longest request, bytes.
pub const IO_BYTES_MAX: u32 = 512 << 10;
/// Longest range of a discard, or of zeros, bytes. They are carried out piece by piece.
const ZEROES_BYTES_MAX: u32 = 1 << 30;
/// Bytes of a sector, as the kernel counts.
pub(crate) const SECTOR: u64 = 512;
/// Physical blocks: what file systems use anyway.
const PHYSICAL_BLOCK_BYTES: u32 = 4096;

/// The limits of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Its size.
    pub size_bytes: u64,
    /// Logical block: 512 or 4096.
    pub block_bytes: u32,
    /// Smallest request without a penalty: a unit.
    pub unit_bytes: u64,
    /// Optimal request: a stripe.
    pub stripe_bytes: u64,
    /// Whole granules are freed when they are discarded.
    pub discard_bytes: u64,
    /// Whether it takes no writes.
    pub read_only: bool,
}

/// The logarithm of a power of two; `None` for other numbers, and for ones that the kernel cannot
/// have.
fn shift(bytes: u64) -> Option<u8> {
    let fits = bytes.is_power_of_two() && bytes < 1 << 31;
    fits.then(|| u8::try_from(bytes.trailing_zeros()).unwrap_or(0))
}

impl Limits {
    /// As the kernel takes them.
    pub fn params(&self) -> Params {
        let block = shift(self.block_bytes.into()).unwrap_or(12);
        let physical = shift(PHYSICAL_BLOCK_BYTES.into()).unwrap_or(12).max(block);
        let writes = attribute::VOLATILE_CACHE | attribute::FUA;
        let read_only = if self.read_only { attribute::READ_ONLY } else { 0 };
        let sectors = |bytes: u32| bytes / 512;
        let basic = Basic {
            attributes: writes | read_only,
            logical_block_shift: block,
            physical_block_shift: physical,
            // 0 (a byte) has no meaning.
            io_opt_shift: shift(self.stripe_bytes).unwrap_or(0),
            io_min_shift: shift(self.unit_bytes).unwrap_or(physical).max(physical),
            sectors_max: sectors(IO_BYTES_MAX),
            sectors: self.size_bytes / SECTOR,
            ..Basic::default()
        };
        let granularity = u32::try_from(self.discard_bytes).unwrap_or(0).max(self.block_bytes);
        let discard = DiscardLimits {
            granularity,
            discard_sectors_max: sectors(ZEROES_BYTES_MAX),
            write_zeroes_sectors_max: sectors(ZEROES_BYTES_MAX),
            segments_max: 1,
            ..DiscardLimits::default()
        };
        Params::new(basic, discard)
    }
}

/// Whether a device with these parameters takes no writes.
pub fn is_read_only(params: &Params) -> bool {
    params.basic.attributes & attribute::READ_ONLY != 0
}

/// The size of a device with these parameters, bytes.
pub fn size_bytes(params: &Params) -> u64 {
    params.basic.sectors.saturating_mul(SECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            size_bytes: 100 << 20,
            block_bytes: 512,
            unit_bytes: 64 << 10,
            stripe_bytes: 256 << 10,
            discard_bytes: 256 << 10,
            read_only: false,
        }
    }

    #[test]
    fn units_and_stripes_are_told_as_logarithms() {
        let params = limits().params();
        let basic = params.basic;
        assert_eq!((basic.logical_block_shift, basic.physical_block_shift), (9, 12));
        assert_eq!((basic.io_min_shift, basic.io_opt_shift), (16, 18));
        assert_eq!((basic.sectors, basic.sectors_max), (204_800, 1024));
        assert_eq!(basic.attributes, attribute::VOLATILE_CACHE | attribute::FUA);
        assert_eq!(params.discard.granularity, 256 << 10);
        assert_eq!(size_bytes(&params), 100 << 20);
        assert!(!is_read_only(&params));
    }

    #[test]
    fn a_stripe_that_is_no_power_of_two_is_not_told() {
        let params = Limits { stripe_bytes: 192 << 10, read_only: true, ..limits() }.params();
        assert_eq!((params.basic.io_min_shift, params.basic.io_opt_shift), (16, 0));
        assert!(is_read_only(&params));
        let params = Limits { block_bytes: 4096, unit_bytes: 1024, ..limits() }.params();
        assert_eq!((params.basic.logical_block_shift, params.basic.io_min_shift), (12, 12));
    }
}
