//! How the region map reaches the members.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use weft_disk::{Disk, WriteOpts};
use weft_rt::{Buf, Frozen};

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::format::length::to_len;
use crate::region_map::{MapStore, MapStoreError, PAGE_BYTES, RegionNo, StoreFuture};
use crate::superblock::salvage::salvage;

/// Pages of the map that are read at once from all members.
pub(crate) const PAGES_AT_ONCE: usize = 64;

/// What these disks hold where some pages of the map are.
pub(crate) async fn read_pages(
    map_offset: u64,
    disks: &[Rc<dyn Disk>],
    pages: &Range<usize>,
) -> Vec<Frozen> {
    let offset = map_offset + 2 * (pages.start * PAGE_BYTES) as u64;
    let len = 2 * (pages.len() * PAGE_BYTES) as u64;
    let mut parts: Vec<Frozen> = Vec::new();
    for disk in disks {
        // The other members have a copy of what cannot be read here.
        let salvaged = salvage(&**disk, offset, len).await;
        let part = salvaged.map_or_else(|_| Buf::zeroed(to_len(len)), |found| found.area);
        parts.push(part.freeze());
    }
    parts
}

/// How the region map reaches the members: pages go to all of them, with FUA. A member that cannot
/// take a page is excluded, so the page is as durable as the array is.
impl MapStore for Engine {
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
            self.zero_units(self.geometries().stripes_of(region)).await?;
            self.durable_or_broken()
        })
    }
}

impl Engine {
    /// Makes room in the region map for `regions` regions: see `make_room` there.
    pub(crate) async fn make_room_in_map(&self, regions: u64) -> Result<(), ArrayError> {
        let disks: Vec<_> = self.members().disks().into_iter().map(|(_, disk)| disk).collect();
        let (map_offset, added) =
            (self.map().config().area_offset, self.map().pages_to_add(regions));
        let mut found = BTreeMap::new();
        for from in added.clone().step_by(PAGES_AT_ONCE) {
            let pages = from..(from + PAGES_AT_ONCE).min(added.end);
            let parts = read_pages(map_offset, &disks, &pages).await;
            let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
            found.extend(self.map().numbers_in(pages, &parts));
        }
        Ok(self.map().make_room(self, regions, &found).await?)
    }

    /// Whether metadata that was just written is as durable as the array can make it.
    fn durable_or_broken(&self) -> Result<(), MapStoreError> {
        self.service().cause().map_or(Ok(()), |cause| Err(MapStoreError::Refused(cause)))
    }
}
