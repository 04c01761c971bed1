//! A cache above an array of zeros: reads of cached blocks reach no disk.
//!
//! Only the numbers of blocks are cached, so that many policies can be compared at the same time
//! above arrays of their own. What is missing of a request is read in as few pieces as possible,
//! all at once. A block counts as cached from its request on: in a trace that is replayed at its
//! own times the misses are then those of a simulation without disks, as the VDF paper replays
//! them.

use std::cell::RefCell;
use std::ops::Range;

use futures_util::future::join_all;
use weft_array::Array;
use weft_cache::{Block, Cache, Choice, Costs, Stats};
use weft_disk::{DoneFuture, ReadFuture, Volume, VolumeError, VolumeErrorKind, VolumeInfo};
use weft_rt::{Buf, Frozen};
use weft_trace::Record;
use weft_trace::replay::{AddressMap, Placed};

use super::contents::BLOCK;
use super::text;

/// A policy, and the room that it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheSetup {
    pub(crate) choice: Choice,
    pub(crate) blocks: usize,
    /// Requests of the trace that fill it while nothing is lost. Those from there to the first that
    /// is measured fill it after the loss.
    pub(crate) healthy: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct CacheAbove {
    array: Array,
    cache: RefCell<Cache<()>>,
}

impl CacheAbove {
    /// Above an array that will have `added` disks more.
    pub(super) fn new(array: &Array, setup: &CacheSetup, added: usize) -> Result<Self, String> {
        let cache = Cache::new(setup.choice, setup.blocks, array.failure_domains() + added);
        Ok(Self { array: array.clone(), cache: RefCell::new(cache.map_err(text)?) })
    }

    /// Requests what `records` read, without reading or counting it.
    pub(super) fn fill(&self, records: &[Record], map: &AddressMap) {
        for record in records {
            if let Placed::At { offset, len } = map.place(record) {
                self.request(offset, len);
            }
        }
        self.take_stats();
    }

    /// What the cache has done since this was last asked.
    pub(super) fn take_stats(&self) -> Stats {
        self.cache.borrow_mut().take_stats()
    }

    /// Requests all blocks of a range: the ranges of uncached blocks, in order.
    fn request(&self, offset: u64, len: u64) -> Vec<Range<u64>> {
        let mut cache = self.cache.borrow_mut();
        let costs = Costs(&self.array);
        let mut missing: Vec<Range<u64>> = Vec::new();
        for key in offset / BLOCK..(offset + len).div_ceil(BLOCK) {
            let at = key * BLOCK;
            let class = u16::try_from(self.array.failure_domain(at)).expect("a slot");
            if cache.request(Block { key, class }, &costs) {
                continue;
            }
            match missing.last_mut().filter(|range| range.end == at) {
                Some(range) => range.end += BLOCK,
                None => missing.push(at..at + BLOCK),
            }
        }
        missing
    }

    async fn read_missing(&self, missing: Vec<Range<u64>>) -> Result<(), VolumeError> {
        let reads = missing.into_iter().map(async |range| {
            let len = usize::try_from(range.end - range.start).expect("within one request");
            let (result, buf) = Volume::read(&self.array, range.start, Buf::new(len)).await;
            result?;
            if buf.iter().any(|byte| *byte != 0) {
                let cause = format!("{range:?} of an array of zeros holds others");
                return Err(VolumeError::new(VolumeErrorKind::Failed, cause));
            }
            Ok(())
        });
        join_all(reads).await.into_iter().collect()
    }
}

impl Volume for CacheAbove {
    fn info(&self) -> VolumeInfo {
        self.array.info()
    }

    fn size_bytes(&self) -> u64 {
        self.array.size_bytes()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> ReadFuture<'_, VolumeError> {
        let len = buf.len() as u64;
        let missing = self.request(offset, len);
        if missing.is_empty() {
            self.array.note_cached_read(offset, len);
        }
        buf.fill(0);
        Box::pin(async move { (self.read_missing(missing).await, buf) })
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, VolumeError> {
        Volume::write(&self.array, offset, data, fua)
    }

    fn flush(&self) -> DoneFuture<'_, VolumeError> {
        Volume::flush(&self.array)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        may_deallocate: bool,
    ) -> DoneFuture<'_, VolumeError> {
        Volume::write_zeroes(&self.array, offset, len, fua, may_deallocate)
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_, VolumeError> {
        Volume::discard(&self.array, offset, len)
    }
}
