//! Writing to a member and to the disk that replaces it, or that it replaced: see
//! `jobs/replace.rs`.

use std::rc::Rc;

use futures_util::future::join;
use weft_code::SlotNo;
use weft_disk::{Disk, DiskError, WriteOpts};
use weft_rt::Frozen;
use weft_stripe::StripeId;

use crate::engine::Engine;

impl Engine {
    /// Writes to the member of `slot` and to its second disk. Returns the member's result. A user's
    /// write waits for space on the member, but not on the second disk.
    pub(crate) async fn write_to_both(
        &self,
        stripe: StripeId,
        slot: SlotNo,
        (disk, second): (&Rc<dyn Disk>, Rc<dyn Disk>),
        offset: u64,
        data: Frozen,
        opts: WriteOpts,
    ) -> Result<(), DiskError> {
        let own = self.write_with_room(slot, disk, offset, data.clone(), opts);
        let also = async |second: &dyn Disk| second.write(offset, data, opts).await;
        let result = self.on_both(slot, own, Some(&second), also).await;
        self.keep_alike(stripe, slot, &result, &second).await;
        result
    }

    /// As [`Engine::write_to_both`], with zeros, and also where the stripe is stale on the second
    /// disk: old bytes may be there, and no rebuild replaces them once the region is unwritten.
    pub(crate) async fn zero_both(
        &self,
        stripe: StripeId,
        slot: SlotNo,
        disk: &Rc<dyn Disk>,
        offset: u64,
        len: u64,
        opts: WriteOpts,
    ) -> Result<(), DiskError> {
        let second = self.members().second_disk(slot);
        let own = self.zero_with_room(slot, disk, offset, len, opts);
        let also = async |second: &dyn Disk| second.write_zeroes(offset, len, opts).await;
        let result = self.on_both(slot, own, second.as_ref(), also).await;
        if let Some(second) = second {
            self.keep_alike(stripe, slot, &result, &second).await;
        }
        result
    }

    /// Waits for an operation on the member of `slot`, and does the same on its second disk. That
    /// is excluded if it fails. Returns the member's result.
    pub(crate) async fn on_both(
        &self,
        slot: SlotNo,
        own: impl Future<Output = Result<(), DiskError>>,
        second: Option<&Rc<dyn Disk>>,
        also: impl AsyncFnOnce(&dyn Disk) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        let Some(second) = second else { return own.await };
        let (result, second_result) = join(own, also(&**second)).await;
        if let Err(error) = second_result {
            self.member_failed(slot, second, &error).await;
        }
        result
    }

    /// If the member of `slot` had no space for a write that its second disk has: the member keeps
    /// what it has, and the second disk must not differ.
    async fn keep_alike(
        &self,
        stripe: StripeId,
        slot: SlotNo,
        result: &Result<(), DiskError>,
        second: &Rc<dyn Disk>,
    ) {
        let no_space = result.as_ref().is_err_and(DiskError::is_no_space);
        if !no_space || !self.members().is_second(slot, second) {
            return;
        }
        match self.members().copying(slot) {
            Some(lane) => {
                let region = self.region_of(stripe);
                let _ = self.map().make_stale(self, lane, region).await;
            }
            None => drop(self.take_second(slot, second)),
        }
    }
}
