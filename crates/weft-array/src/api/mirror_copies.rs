//! Reading one chosen copy of a mirror: for callers that can tell which one is correct.
//!
//! The array takes what a disk gives for right. What lies on it may have checksums of its own. So a
//! user that finds a wrong block looks at the other copies, and writes the right contents to all of
//! them.

use weft_code::SlotNo;
use weft_disk::Class;
use weft_rt::Buf;

use crate::api::array::Array;
use crate::geometry::Piece;

impl Array {
    /// The slots whose members may have a copy of a mirror.
    #[must_use]
    pub fn copies(&self) -> Vec<SlotNo> {
        self.0.members().disks().into_iter().map(|(slot, _)| slot).collect()
    }

    /// Whether the copies at `offset` may differ since a crash, and the range of bytes around it to
    /// which the answer applies.
    #[must_use]
    pub fn awaits_resync(&self, offset: u64) -> (bool, std::ops::Range<u64>) {
        let (region, bytes) = self.0.geometries().region_around(offset);
        (self.0.map().needs_resync(region), bytes)
    }

    /// The copy of a range that the member in a slot has. None if it has not all of it, or it
    /// cannot be read: nothing follows from that. The range may not be written during this, and is
    /// aligned to [`Array::block_bytes`].
    pub async fn read_copy(&self, slot: SlotNo, offset: u64, len: usize) -> Option<Buf> {
        let array = &self.0;
        array.check_range(offset, len as u64).ok()?;
        let pieces: Vec<Piece> = array.geometries().pieces(offset, len).collect();
        let mut parts = Vec::new();
        for Piece { at, len } in pieces {
            let geometry = array.geometry_of(at.stripe);
            if !array.map().is_written(geometry.regions().of(at.stripe.number)) {
                parts.push(Buf::zeroed(len));
                continue;
            }
            let unit = geometry.unit_on(at.stripe.number, slot)?;
            if !geometry.mirrored || array.lost_units(at.stripe).contains(unit) {
                return None;
            }
            let (_, from) = geometry.locate(at.stripe.number, unit, at.unit_offset);
            let disk = array.members().disk(slot)?;
            let (result, part) = disk.read(from, Buf::new(len), Class::User).await;
            if result.is_err() || !array.members().holds(slot, &disk) {
                return None;
            }
            parts.push(part);
        }
        let mut whole = Buf::new(len);
        let mut at = 0;
        for part in parts {
            whole[at..at + part.len()].copy_from_slice(&part);
            at += part.len();
        }
        Some(whole)
    }
}
