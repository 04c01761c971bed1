//! The array as a [`Volume`]: for its users, who know no array.
//!
//! **What a read costs.** A piece of a unit is one read of its disk. In a stripe where a wanted
//! unit is lost, the planner gives the reads that replace it; pieces that are wanted anyway serve
//! as sources and are read once. A region that was never written costs nothing. Members whose loss
//! broke the array count as lost.

use std::rc::Weak;

use weft_code::UnitSet;
use weft_disk::{
    AllocationRange, CachedContents, DiskErrorKind, DoneFuture, ReadFuture, Volume, VolumeError,
    VolumeErrorKind, VolumeInfo,
};
use weft_rt::{Buf, Frozen};

use crate::api::array::Array;
use crate::engine::Engine;
use crate::error::ArrayError;
use crate::format::length::to_len;
use crate::geometry::Piece;

impl From<ArrayError> for VolumeError {
    fn from(error: ArrayError) -> Self {
        let kind = match error.root() {
            ArrayError::OutOfRange { .. } => VolumeErrorKind::Invalid,
            ArrayError::ReadOnly => VolumeErrorKind::ReadOnly,
            ArrayError::Stopped | ArrayError::Unclean { .. } => VolumeErrorKind::Stopped,
            ArrayError::Unreadable { .. } => VolumeErrorKind::Unreadable,
            ArrayError::NoSpace { .. } => VolumeErrorKind::NoSpace,
            ArrayError::Disk(error) if error.kind == DiskErrorKind::NoSpace => {
                VolumeErrorKind::NoSpace
            }
            _ => VolumeErrorKind::Failed,
        };
        Self::new(kind, error)
    }
}

impl Volume for Array {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            // The array itself reads ranges that are not whole blocks.
            align_bytes: 1,
            block_bytes: u32::try_from(self.block_bytes()).expect("the size of a sector"),
            fast_zeroes: false,
        }
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes()
    }

    fn read(&self, offset: u64, buf: Buf) -> ReadFuture<'_, VolumeError> {
        Box::pin(async move {
            let (result, buf) = self.read(offset, buf).await;
            (result.map_err(Into::into), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move { Ok(self.write(offset, data, fua).await?) })
    }

    fn flush(&self) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move { Ok(self.flush().await?) })
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        may_deallocate: bool,
    ) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move { Ok(self.write_zeroes(offset, len, fua, may_deallocate).await?) })
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move { Ok(self.discard(offset, len).await?) })
    }

    fn zeroes_end(&self, offset: u64) -> u64 {
        self.region_at(offset).end
    }

    fn allocation(&self, offset: u64, len: u64) -> Result<Vec<AllocationRange>, VolumeError> {
        Ok(self.allocation(offset, len)?)
    }

    fn read_cost(&self, offset: u64, len: u64) -> Option<u64> {
        self.0.read_cost(offset, len)
    }

    fn failure_domains(&self) -> usize {
        self.0.members().len()
    }

    fn failure_domain(&self, offset: u64) -> usize {
        let at = self.0.geometries().home(offset).address(offset);
        self.0.slot_of(at.stripe, at.unit).0
    }

    fn note_cached_read(&self, offset: u64, len: u64) {
        if self.0.is_monitored() {
            self.0
                .geometries()
                .pieces(offset, to_len(len))
                .for_each(|piece| self.0.note_read(piece.at));
        }
    }

    fn offer(&self, at_hand: Weak<dyn CachedContents>) {
        self.0.set_contents_above(at_hand);
    }

    fn corrections(&self) -> u64 {
        self.0.corrections()
    }

    fn rebuilt(&self) -> u64 {
        let counts = self.rebuild_counts();
        counts.stripes_rebuilt + counts.stripes_piggybacked
    }

    fn changes(&self) -> u64 {
        // Neither number ever falls.
        self.0.members().changes().membership() + self.0.service().broken_slots().len() as u64
    }
}

impl Engine {
    fn read_cost(&self, offset: u64, len: u64) -> Option<u64> {
        if self.service().is_stopped() || self.check_range(offset, len).is_err() {
            return None;
        }
        if len == 0 {
            return Some(0);
        }
        let sector = self.geometry().sector_bytes;
        let (start, end) = (offset - offset % sector, (offset + len).next_multiple_of(sector));
        let pieces: Vec<Piece> = self.geometries().pieces(start, to_len(end - start)).collect();
        let stripes = pieces.chunk_by(|one, next| one.at.stripe == next.at.stripe);
        stripes.map(|pieces| self.stripe_cost(pieces)).sum()
    }

    /// The disk reads of a read of these pieces of a stripe.
    fn stripe_cost(&self, pieces: &[Piece]) -> Option<u64> {
        let stripe = pieces[0].at.stripe;
        if !self.map().is_written(self.region_of(stripe)) {
            return Some(0);
        }
        let geometry = self.geometry_of(stripe);
        let broken = geometry.units_on(stripe.number, self.service().broken_slots());
        let lost = self.avoided_units(stripe, UnitSet::new()).union(&broken);
        let is_torn = self.torn_offsets(stripe).is_some();
        if !is_torn && !pieces.iter().any(|piece| lost.contains(piece.at.unit)) {
            return Some(pieces.len() as u64);
        }
        let within = |piece: &Piece| {
            let start = piece.at.unit_offset;
            start..start + piece.len as u64
        };
        let cuts = self.cuts_of(stripe, pieces.iter().map(within));
        let reads = cuts.windows(2).map(|cut| {
            let here = pieces.iter().filter(|piece| within(piece).contains(&cut[0]));
            let wanted: UnitSet = here.map(|piece| piece.at.unit).collect();
            let only = self.only_sources(stripe, &(cut[0]..cut[1]), wanted);
            let lost = only.map_or(lost, |only| lost.union(&geometry.units().difference(&only)));
            let plan = geometry.coding.plan(stripe.number, lost, wanted, UnitSet::new()).ok()?;
            Some(plan.reads.len() as u64)
        });
        reads.sum()
    }
}
