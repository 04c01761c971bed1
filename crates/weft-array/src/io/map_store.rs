//! How the region map reaches the members.

use weft_disk::{Disk, WriteOpts};
use weft_rt::Frozen;

use crate::engine::Inner;
use crate::region_map::{MapStore, MapStoreError, RegionNo, StoreFuture};

/// How the region map reaches the members: pages go to all of them, with FUA. A member that cannot
/// take a page is excluded, so the page is as durable as the array is.
impl MapStore for Inner {
    fn write_page(&self, offset: u64, page: Frozen) -> StoreFuture<'_> {
        Box::pin(async move {
            let write =
                async |disk: &dyn Disk| disk.write(offset, page.clone(), WriteOpts::USER_FUA).await;
            let _ = self.on_all_disks(write).await;
            self.durable_or_broken()
        })
    }

    fn flush_data(&self) -> StoreFuture<'_> {
        Box::pin(async move {
            self.flush_members().await;
            self.durable_or_broken()
        })
    }

    fn zero_region(&self, region: RegionNo) -> StoreFuture<'_> {
        Box::pin(async move {
            if self.members_zeroed() {
                return Ok(());
            }
            self.zero_units(self.geometries.stripes_of(region)).await?;
            self.durable_or_broken()
        })
    }
}

impl Inner {
    /// Whether metadata that was just written is as durable as the array can make it.
    fn durable_or_broken(&self) -> Result<(), MapStoreError> {
        match &*self.broken.borrow() {
            Some(cause) => Err(MapStoreError::Refused(cause.clone())),
            None => Ok(()),
        }
    }
}
