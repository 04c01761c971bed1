//! A volume with a cache of the blocks read.
//!
//! ```text
//!     users         NBD, block device
//!                          │
//!               CachedVolume        hit: one copy        miss: read, then keep
//!                          │
//!     the volume        an array
//! ```
//!
//! **Nothing is kept that is not also below.** Writes go through, so a crash loses nothing more
//! than without the cache. A write brings blocks up to date that are cached, and admits none. A
//! failed write, a write at the same time as another to the same block, zeroing and discarding take
//! blocks out. `coherence.rs` explains when a block may be cached.
//!
//! **What is kept helps to reconstruct.** A volume that must reconstruct a block takes cached
//! blocks of its stripe from the cache ([`CachedContents`]).
//!
//! **What a miss costs** is the volume's answer ([`Volume::read_cost`]), and classes of blocks are
//! its failure domains: so the cache favours blocks of a lost disk, until they are rebuilt. Ranges
//! that cost nothing because they were never written are not cached.
//!
//! Blocks are [`PAGE_BYTES`] long. Requests of more than [`BYPASS_BYTES`] bypass the cache: they
//! would evict much for blocks that one read gets anyway. So does the end of the volume that fills
//! no block.

use std::cell::{Cell, RefCell, RefMut};
use std::future::ready;
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_disk::{CachedContents, DoneFuture, ReadFuture, Volume, VolumeError, VolumeInfo};
use weft_rt::{Buf, Frozen};

use crate::cache::Cache;
use crate::choice::Choice;
use crate::coherence::InProgress;
use crate::error::CacheError;
use crate::penalty::{Block, Penalty};
use crate::stats::ratio;

/// Bytes of a cached block.
pub const PAGE_BYTES: u64 = 4096;

/// Reads longer than this bypass the cache, in bytes.
const BYPASS_BYTES: usize = 256 << 10;

/// Bytes that a block takes besides its contents, at most.
const OVERHEAD_BYTES: u64 = 128;

/// What a cache did for the blocks of one failure domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DomainCounts {
    /// Blocks requested.
    pub requests: u64,
    /// Blocks that were cached.
    pub hits: u64,
    /// What the misses read from working disks, in blocks.
    pub disk_blocks: u64,
    /// What they would have read besides, were not other blocks of their stripes cached.
    pub spared_blocks: u64,
    /// What hits would have read from working disks, in blocks: for each block what it cost when it
    /// was read.
    pub saved_blocks: u64,
}

/// How a cache is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// Its policy.
    pub policy: Choice,
    /// Bytes that it may take.
    pub bytes_max: u64,
    /// Bytes of the blocks that it holds.
    pub bytes: u64,
    /// Since it was switched on, by failure domain.
    pub domains: Vec<DomainCounts>,
}

impl DomainCounts {
    /// Both together.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            hits: self.hits + other.hits,
            disk_blocks: self.disk_blocks + other.disk_blocks,
            spared_blocks: self.spared_blocks + other.spared_blocks,
            saved_blocks: self.saved_blocks + other.saved_blocks,
        }
    }

    /// Share of the blocks requested that were cached; 0 before the first request.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.hits, self.requests)
    }

    /// Blocks read from working disks for each block requested; see [`crate::Stats::rgr`].
    #[must_use]
    pub fn rgr(&self) -> f64 {
        ratio(self.disk_blocks, self.requests)
    }
}

/// A cached block. While it is being written it has no bytes.
#[derive(Debug, Default)]
struct Page {
    bytes: Box<[u8]>,
    domain: u16,
    /// Blocks that were read from working disks for it.
    cost: u32,
}

struct State {
    cache: Option<Cache<Page>>,
    bytes_max: u64,
    domains: Vec<DomainCounts>,
    progress: InProgress,
    /// [`Volume::corrections`] when the cache was last known to be right.
    corrections: u64,
}

/// A volume with a cache, which is off at first.
pub struct CachedVolume {
    is_on: Cell<bool>,
    shared: Rc<Shared>,
}

/// The volume, and the cache that it may ask.
struct Shared {
    volume: Rc<dyn Volume>,
    state: RefCell<State>,
}

impl Shared {
    /// Whether the volume has corrected nothing since the cache was last known to be right.
    fn is_right(&self, state: &State) -> bool {
        self.volume.corrections() == state.corrections
    }

    /// The state, after everything is dropped if the volume has corrected contents since.
    fn checked(&self) -> RefMut<'_, State> {
        let mut checked = self.state.borrow_mut();
        let state = &mut *checked;
        if self.is_right(state) {
            return checked;
        }
        state.corrections = self.volume.corrections();
        state.progress.spoil_fills();
        if let Some(cache) = state.cache.take() {
            let (policy, blocks) = (cache.choice(), cache.capacity());
            // The memory that it had is free again.
            drop(cache);
            // The volume may also have got more disks.
            let domains = self.volume.failure_domains();
            state.domains.resize(domains, DomainCounts::default());
            state.cache = Cache::new(policy, blocks, domains).ok();
        }
        checked
    }
}

impl CachedContents for Shared {
    fn holds(&self, offset: u64, len: usize) -> bool {
        let state = self.state.borrow();
        let cache = state.cache.as_ref().filter(|_| self.is_right(&state));
        cache.is_some_and(|cache| {
            blocks_of(offset, len as u64).all(|key| contents_of(cache, key).is_some())
        })
    }

    fn contents(&self, offset: u64, len: usize) -> Option<Frozen> {
        let state = self.state.borrow();
        let cache = state.cache.as_ref().filter(|_| self.is_right(&state))?;
        let mut buf = Buf::new(len);
        for key in blocks_of(offset, len as u64) {
            copy_common(&mut buf, offset, contents_of(cache, key)?, key * PAGE_BYTES);
        }
        Some(buf.freeze())
    }

    fn note_spared(&self, offset: u64, bytes: u64) {
        let domain = self.volume.failure_domain(offset);
        if let Some(counts) = self.state.borrow_mut().domains.get_mut(domain) {
            let blocks = bytes / PAGE_BYTES;
            counts.disk_blocks = counts.disk_blocks.saturating_sub(blocks);
            counts.spared_blocks += blocks;
        }
    }
}

impl std::fmt::Debug for CachedVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedVolume").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

/// The answers of a volume that is divided into blocks of [`PAGE_BYTES`], as a policy asks for
/// them. The class of a block is its failure domain.
pub struct Costs<'a>(pub &'a dyn Volume);

impl std::fmt::Debug for Costs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Costs").finish_non_exhaustive()
    }
}

impl Costs<'_> {
    /// The cost of a block; none if it cannot be read.
    fn of_block(&self, key: u64) -> Option<u32> {
        let cost = self.0.read_cost(key * PAGE_BYTES, PAGE_BYTES)?;
        Some(u32::try_from(cost).unwrap_or(u32::MAX))
    }
}

impl Penalty for Costs<'_> {
    fn generation(&self) -> u64 {
        self.0.changes()
    }

    fn progress(&self) -> u64 {
        self.0.rebuilt()
    }

    fn of(&self, block: Block) -> u32 {
        self.of_block(block.key).unwrap_or(0)
    }
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("within one request")
}

/// The contents of a cached block; none while it is being written.
fn contents_of(cache: &Cache<Page>, key: u64) -> Option<&[u8]> {
    cache.peek(key).map(|page| &*page.bytes).filter(|bytes| !bytes.is_empty())
}

/// Copies what two ranges of the volume have in common. `to` is at `to_offset`, `from` at
/// `from_offset`.
fn copy_common(to: &mut [u8], to_offset: u64, from: &[u8], from_offset: u64) {
    let start = to_offset.max(from_offset);
    let end = (to_offset + to.len() as u64).min(from_offset + from.len() as u64);
    to[index(start - to_offset)..index(end - to_offset)]
        .copy_from_slice(&from[index(start - from_offset)..index(end - from_offset)]);
}

/// The blocks that a range touches.
fn blocks_of(offset: u64, len: u64) -> Range<u64> {
    offset / PAGE_BYTES..offset.saturating_add(len).div_ceil(PAGE_BYTES)
}

impl CachedVolume {
    /// `volume` with a cache that is off.
    #[must_use]
    pub fn new(volume: Rc<dyn Volume>) -> Self {
        let state = RefCell::new(State {
            cache: None,
            bytes_max: 0,
            domains: Vec::new(),
            progress: InProgress::default(),
            corrections: volume.corrections(),
        });
        let shared = Rc::new(Shared { volume, state });
        let at_hand = Rc::downgrade(&shared);
        shared.volume.offer(at_hand);
        Self { is_on: Cell::new(false), shared }
    }

    fn volume(&self) -> &dyn Volume {
        &*self.shared.volume
    }

    /// Switches the cache on, or changes it: with the same policy it keeps its blocks, or what
    /// fits. It takes at most `bytes_max` bytes.
    ///
    /// # Errors
    /// If it has room for no block, or there is no memory. The cache is then off.
    pub fn switch_on(&self, policy: Choice, bytes_max: u64) -> Result<(), CacheError> {
        let blocks = index(bytes_max / (PAGE_BYTES + OVERHEAD_BYTES));
        let state = &mut *self.shared.state.borrow_mut();
        self.is_on.set(false);
        match state.cache.take() {
            Some(mut cache) if cache.choice() == policy => {
                cache.resize(blocks, &Costs(self.volume()), |_, _| {})?;
                state.cache = Some(cache);
            }
            before => {
                drop(before);
                let domains = self.volume().failure_domains();
                state.cache = Some(Cache::new(policy, blocks, domains)?);
                state.domains = vec![DomainCounts::default(); domains];
            }
        }
        state.bytes_max = bytes_max;
        self.is_on.set(true);
        Ok(())
    }

    /// Switches the cache off and gives its memory back.
    pub fn switch_off(&self) {
        self.is_on.set(false);
        self.shared.state.borrow_mut().cache = None;
    }

    /// How the cache is used; none if it is off.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        let state = self.shared.state.borrow();
        let cache = state.cache.as_ref()?;
        Some(Usage {
            policy: cache.choice(),
            bytes_max: state.bytes_max,
            bytes: cache.len() as u64 * PAGE_BYTES,
            domains: state.domains.clone(),
        })
    }

    /// Whether a request may be answered from the cache, and kept in it.
    fn is_cacheable(&self, len: usize, blocks: &Range<u64>) -> bool {
        self.is_on.get()
            && (1..=BYPASS_BYTES).contains(&len)
            && blocks.end <= self.volume().size_bytes() / PAGE_BYTES
    }

    /// Reads the blocks of a request that were not cached: these runs.
    async fn read_missing(
        &self,
        offset: u64,
        mut buf: Buf,
        mut missing: Vec<Range<u64>>,
    ) -> (Result<(), VolumeError>, Buf) {
        let end = offset + buf.len() as u64;
        let is_inside =
            |run: &Range<u64>| run.start * PAGE_BYTES >= offset && run.end * PAGE_BYTES <= end;
        if missing.len() == 1
            && let Some(run) = missing.pop_if(|run| is_inside(run))
        {
            let mut read = buf.split_off(index(run.start * PAGE_BYTES - offset));
            let rest = read.split_off(index((run.end - run.start) * PAGE_BYTES));
            let (result, read) = self.read_run(run, read).await;
            return (result, Buf::rejoin(vec![buf, read, rest]));
        }
        let reads = missing.into_iter().map(async |run| {
            let from = run.start * PAGE_BYTES;
            let len = index(run.end * PAGE_BYTES - from);
            (from, self.read_run(run, Buf::new(len)).await)
        });
        let mut whole = Ok(());
        for (from, (result, read)) in join_all(reads).await {
            match result {
                Ok(()) => copy_common(&mut buf, offset, &read, from),
                Err(error) => whole = Err(error),
            }
        }
        (whole, buf)
    }

    /// Reads consecutive blocks, and keeps them.
    async fn read_run(&self, run: Range<u64>, buf: Buf) -> (Result<(), VolumeError>, Buf) {
        let from = run.start * PAGE_BYTES;
        let fill = Fill::begin(self, run);
        let (result, read) = self.volume().read(from, buf).await;
        if result.is_ok() {
            fill.keep(&read);
        }
        (result, read)
    }

    /// Copies the cached blocks of a request to its buffer, and counts. Returns the runs of blocks
    /// that must be read.
    fn take_cached(&self, offset: u64, buf: &mut [u8], blocks: Range<u64>) -> Vec<Range<u64>> {
        let state = &mut *self.shared.checked();
        let Some(cache) = &mut state.cache else { return vec![blocks] };
        let costs = Costs(self.volume());
        let mut missing: Vec<Range<u64>> = Vec::new();
        for key in blocks {
            if let Some(page) = cache.get_if(key, &costs, |page| !page.bytes.is_empty()) {
                let counts = &mut state.domains[usize::from(page.domain)];
                counts.requests += 1;
                counts.hits += 1;
                counts.saved_blocks += u64::from(page.cost);
                copy_common(buf, offset, &page.bytes, key * PAGE_BYTES);
                continue;
            }
            let domain = self.volume().failure_domain(key * PAGE_BYTES);
            let counts = &mut state.domains[domain];
            counts.requests += 1;
            counts.disk_blocks += u64::from(costs.of_block(key).unwrap_or(0));
            match missing.last_mut() {
                Some(run) if run.end == key => run.end += 1,
                _ => missing.push(key..key + 1),
            }
        }
        missing
    }

    /// Carries out a change of `blocks`, which is started by `work`.
    fn change<'a>(
        &'a self,
        blocks: Range<u64>,
        work: impl FnOnce() -> DoneFuture<'a, VolumeError>,
        written: Option<(u64, Frozen)>,
    ) -> DoneFuture<'a, VolumeError> {
        let change = Change::begin(self, blocks);
        let work = work();
        Box::pin(async move {
            let result = work.await;
            change.end(if result.is_ok() { written } else { None });
            result
        })
    }
}

/// A read after a miss. If it is dropped before its end, nothing is cached.
struct Fill<'a> {
    of: &'a CachedVolume,
    id: u64,
    blocks: Range<u64>,
    has_ended: bool,
}

impl<'a> Fill<'a> {
    fn begin(of: &'a CachedVolume, blocks: Range<u64>) -> Self {
        let id = of.shared.state.borrow_mut().progress.begin_fill(blocks.clone());
        Self { of, id, blocks, has_ended: false }
    }

    /// The read has ended with these contents of all its blocks.
    fn keep(mut self, contents: &[u8]) {
        self.has_ended = true;
        let Self { of, .. } = self;
        let state = &mut *of.shared.checked();
        let may_keep = state.progress.end_fill(self.id);
        let Some(cache) = state.cache.as_mut().filter(|_| may_keep) else { return };
        let costs = Costs(of.volume());
        for (key, bytes) in self.blocks.clone().zip(contents.chunks_exact(index(PAGE_BYTES))) {
            let Some(cost) = costs.of_block(key).filter(|cost| *cost > 0) else { continue };
            let domain = of.volume().failure_domain(key * PAGE_BYTES);
            let domain = u16::try_from(domain).expect("few failure domains");
            let page = Page { bytes: bytes.into(), domain, cost };
            cache.insert(Block { key, class: domain }, page, &costs);
        }
    }
}

impl Drop for Fill<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.of.shared.state.borrow_mut().progress.end_fill(self.id);
        }
    }
}

/// A change of contents. If it is dropped before its end, its blocks are not cached again.
struct Change<'a> {
    of: &'a CachedVolume,
    id: u64,
    /// The contents of those blocks that were cached.
    cached: Vec<(u64, Box<[u8]>)>,
    has_ended: bool,
}

impl<'a> Change<'a> {
    fn begin(of: &'a CachedVolume, blocks: Range<u64>) -> Self {
        let state = &mut *of.shared.state.borrow_mut();
        let id = state.progress.begin_change(blocks.clone());
        let mut cached = Vec::new();
        if let Some(cache) = &mut state.cache {
            for key in blocks {
                if let Some(page) = cache.peek_mut(key).filter(|page| !page.bytes.is_empty()) {
                    cached.push((key, std::mem::take(&mut page.bytes)));
                }
            }
        }
        Self { of, id, cached, has_ended: false }
    }

    /// It has ended; these bytes are now at this offset of the volume, or unknown ones.
    fn end(mut self, written: Option<(u64, Frozen)>) {
        self.has_ended = true;
        let state = &mut *self.of.shared.checked();
        let is_known = state.progress.end_change(self.id);
        let Some(cache) = &mut state.cache else { return };
        let written = written.filter(|_| is_known);
        for (key, mut bytes) in std::mem::take(&mut self.cached) {
            let Some((offset, data)) = &written else {
                cache.remove(key);
                continue;
            };
            copy_common(&mut bytes, key * PAGE_BYTES, data, *offset);
            if let Some(page) = cache.peek_mut(key) {
                page.bytes = bytes;
            }
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let state = &mut *self.of.shared.state.borrow_mut();
        state.progress.leave_change(self.id);
        if let Some(cache) = &mut state.cache {
            self.cached.iter().for_each(|(key, _)| drop(cache.remove(*key)));
        }
    }
}

impl Volume for CachedVolume {
    fn inner(&self) -> Option<&dyn Volume> {
        Some(self.volume())
    }

    fn info(&self) -> VolumeInfo {
        self.volume().info()
    }

    fn size_bytes(&self) -> u64 {
        self.volume().size_bytes()
    }

    /// What is cached is what it was when this was called.
    fn read(&self, offset: u64, mut buf: Buf) -> ReadFuture<'_, VolumeError> {
        let len = buf.len();
        let blocks = blocks_of(offset, len as u64);
        if !self.is_cacheable(len, &blocks) {
            return self.volume().read(offset, buf);
        }
        let missing = self.take_cached(offset, &mut buf, blocks);
        if missing.is_empty() {
            self.volume().note_cached_read(offset, len as u64);
            return Box::pin(ready((Ok(()), buf)));
        }
        Box::pin(self.read_missing(offset, buf, missing))
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, VolumeError> {
        let blocks = blocks_of(offset, data.len() as u64);
        let written = Some((offset, data.clone()));
        self.change(blocks, || self.volume().write(offset, data, fua), written)
    }

    fn flush(&self) -> DoneFuture<'_, VolumeError> {
        self.volume().flush()
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        may_deallocate: bool,
    ) -> DoneFuture<'_, VolumeError> {
        let work = || self.volume().write_zeroes(offset, len, fua, may_deallocate);
        self.change(blocks_of(offset, len), work, None)
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_, VolumeError> {
        self.change(blocks_of(offset, len), || self.volume().discard(offset, len), None)
    }
}
