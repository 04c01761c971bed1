//! Page-aligned buffers that an I/O owns until it completes.
//!
//! A [`Buf`] is the only view of its bytes and may be written; it can be split into disjoint parts
//! that go to different disks, without a copy, and be joined again. [`Buf::freeze`] turns it into a
//! [`Frozen`], which is immutable and has many readers at the same time (for example a mirror's
//! members). So it is safe to pass their addresses to the kernel: while an operation is in flight
//! the driver holds the `Buf` or `Frozen` itself.
//!
//! Memory comes from size classes kept per thread, so that the steady state allocates nothing and
//! touches no cold page. Small blocks come from the arena that rings register, while it has some.
//! Recycled memory holds old bytes: a fresh `Buf` is *initialised* but its contents are
//! unspecified, except from [`Buf::zeroed`].

use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::num::NonZero;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::arena::{self, BUF_ALIGN};

/// Maximum bytes that a thread keeps for reuse.
const CACHE_BYTES_MAX: usize = 64 << 20;

/// Allocations are powers of two from one page up; bigger than this are not kept.
const CACHED_SIZE_MAX: usize = 4 << 20;

/// Memory, and how many views it has. Kept with its count, which is allocated once.
struct Block {
    ptr: NonNull<u8>,
    size: usize,
}

// SAFETY: a block is plain memory; only views use its bytes, and they follow the borrow rules.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

#[derive(Default)]
struct Cache {
    /// Blocks without a view, by the logarithm of their size.
    classes: Vec<Vec<Arc<Block>>>,
    bytes: usize,
}

thread_local! {
    static CACHE: RefCell<Cache> = RefCell::default();
    /// The memory whose parts [`Frozen::zeros`] returns, once allocated.
    static ZEROS: RefCell<Option<Frozen>> = const { RefCell::new(None) };
    static HELD: Cell<BufMemory> = const { Cell::new(BufMemory { now: 0, most: 0 }) };
}

/// Bytes of buffers in use, without those kept for reuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BufMemory {
    /// Now.
    pub now: usize,
    /// The maximum since [`BufMemory::start_anew`].
    pub most: usize,
}

impl BufMemory {
    /// The counts of this thread.
    pub fn of_thread() -> Self {
        HELD.get()
    }

    /// Restarts the maximum.
    pub fn start_anew() {
        let held = HELD.get();
        HELD.set(Self { most: held.now, ..held });
    }

    fn taken(size: usize) {
        let held = HELD.get();
        // A buffer may be freed on another thread than it was allocated on.
        let now = held.now.wrapping_add(size);
        let most = if now > isize::MAX as usize { held.most } else { held.most.max(now) };
        HELD.set(Self { now, most });
    }

    fn given_back(size: usize) {
        let held = HELD.get();
        HELD.set(Self { now: held.now.wrapping_sub(size), ..held });
    }
}

/// Longest [`Frozen::zeros`], in bytes.
pub const ZEROS_BYTES_MAX: usize = 1 << 20;

fn class_of(size: usize) -> usize {
    (size / BUF_ALIGN).trailing_zeros() as usize
}

fn layout_of(size: usize) -> Layout {
    Layout::from_size_align(size, BUF_ALIGN).expect("a buffer's size fits the address space")
}

impl Block {
    /// A block of `len` bytes or more.
    fn take(len: usize) -> Arc<Self> {
        let size = len.max(BUF_ALIGN).next_power_of_two();
        BufMemory::taken(size);
        let cached = CACHE.try_with(|cache| {
            let mut cache = cache.borrow_mut();
            let block = cache.classes.get_mut(class_of(size)).and_then(Vec::pop)?;
            cache.bytes -= size;
            Some(block)
        });
        if let Ok(Some(block)) = cached {
            return block;
        }
        let ptr = arena::current().and_then(|arena| arena.take(size)).unwrap_or_else(|| {
            let layout = layout_of(size);
            // SAFETY: the layout is not empty. Zeroed, so that every byte is initialised.
            let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
            NonNull::new(ptr).unwrap_or_else(|| std::alloc::handle_alloc_error(layout))
        });
        Arc::new(Self { ptr, size })
    }

    /// Whether this view is the only one. The answer holds: only a holder could clone.
    fn is_sole(self: &Arc<Self>) -> bool {
        let sole = Arc::strong_count(self) == 1;
        // All accesses of the other owners have happened before they released the bytes.
        fence(Ordering::Acquire);
        sole
    }

    /// A view is dropped. The last one's block is kept for reuse if there is room.
    #[inline(never)]
    fn let_go(self: Arc<Self>) {
        let size = self.size;
        if !self.is_sole() {
            // Of several that are dropped at the same time, on different threads, one is the last.
            if Arc::into_inner(self).is_some() {
                BufMemory::given_back(size);
            }
            return;
        }
        BufMemory::given_back(size);
        if size > CACHED_SIZE_MAX {
            return;
        }
        // Without a cache the thread is ending.
        let _ = CACHE.try_with(|cache| {
            let mut cache = cache.borrow_mut();
            if cache.bytes + size <= CACHE_BYTES_MAX {
                let class = class_of(size);
                if cache.classes.len() <= class {
                    cache.classes.resize_with(class + 1, Vec::new);
                }
                cache.classes[class].push(self);
                cache.bytes += size;
            }
        });
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(arena) = arena::current()
            && arena.holds(self.ptr.as_ptr(), self.size)
        {
            return arena.give(self.ptr, self.size);
        }
        // SAFETY: `ptr` was allocated by Block::take with this very layout and has no owner left.
        unsafe { std::alloc::dealloc(self.ptr.as_ptr(), layout_of(self.size)) }
    }
}

/// Some bytes of a block.
#[derive(Clone)]
struct View {
    ptr: NonNull<u8>,
    len: usize,
    /// None if there are no bytes.
    block: Option<Arc<Block>>,
}

// SAFETY: a view is plain memory, whose block goes when no view of it is left; views follow the
// borrow rules of Buf (unique, disjoint) and Frozen (shared, read-only).
unsafe impl Send for View {}
// SAFETY: as above; shared views only read.
unsafe impl Sync for View {}

impl View {
    const EMPTY: Self = {
        let ptr = NonNull::without_provenance(NonZero::new(BUF_ALIGN).expect("not zero"));
        Self { ptr, len: 0, block: None }
    };

    /// The `len` bytes from `from` on, which lie in the view.
    fn part(&self, from: usize, len: usize) -> Self {
        assert!(from <= self.len && len <= self.len - from, "{from}+{len} of {self:?}");
        // SAFETY: just checked; without bytes nothing is added.
        Self { ptr: unsafe { self.ptr.add(from) }, len, block: self.block.clone() }
    }

    fn is_aligned_to(&self, sector: usize) -> bool {
        self.ptr.addr().get().is_multiple_of(sector) && self.len.is_multiple_of(sector)
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie in the block and are initialised. While they are borrowed nothing
        // writes them: parts of a Buf are disjoint, and Frozens are immutable.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for View {
    #[inline]
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            Block::let_go(block);
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// A unique, writable view of page-aligned memory.
#[derive(Debug)]
pub struct Buf(View);

impl Buf {
    /// A buffer of `len` bytes whose contents are unspecified (but initialised).
    pub fn new(len: usize) -> Self {
        let block = Block::take(len);
        Self(View { ptr: block.ptr, len, block: Some(block) })
    }

    /// No bytes, and no memory of its own.
    pub fn empty() -> Self {
        Self(View::EMPTY)
    }

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::new(len);
        buf.fill(0);
        buf
    }

    /// A copy of `bytes`.
    pub fn copy_from(bytes: &[u8]) -> Self {
        let mut buf = Self::new(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Cuts after `at` bytes: `self` keeps the first part, the rest is returned.
    ///
    /// # Panics
    /// If `at` is greater than the length.
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len(), "cut at {at} in {self:?}");
        let rest = self.0.part(at, self.len() - at);
        self.0.len = at;
        Self(rest)
    }

    /// Joins `next` after `self` again.
    ///
    /// # Errors
    /// Gives `next` back if it does not follow `self` directly in the same allocation.
    pub fn join(&mut self, next: Self) -> Result<(), Self> {
        let block = |buf: &Self| buf.0.block.as_ref().map(Arc::as_ptr);
        if block(self) != block(&next) || self.as_ptr_range().end != next.as_ptr() {
            return Err(next);
        }
        self.0.len += next.len();
        Ok(())
    }

    /// Joins consecutive parts: joined where each follows the one before it directly, else copied.
    /// A part comes back as another buffer if the disk that should fill it was severed.
    pub fn rejoin(parts: Vec<Self>) -> Self {
        let total = parts.iter().map(|part| part.len()).sum();
        let mut parts = parts.into_iter();
        let Some(mut whole) = parts.next() else { return Self::new(0) };
        while let Some(next) = parts.next() {
            let Err(next) = whole.join(next) else { continue };
            let (mut copy, mut done) = (Self::new(total), 0);
            for part in [whole, next].into_iter().chain(parts) {
                copy[done..done + part.len()].copy_from_slice(&part);
                done += part.len();
            }
            return copy;
        }
        whole
    }

    /// Keeps the first `len` bytes.
    ///
    /// # Panics
    /// If `len` is greater than the length.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len(), "truncate to {len} {self:?}");
        self.0.len = len;
    }

    /// Ends writing: the bytes can now be shared.
    pub fn freeze(self) -> Frozen {
        Frozen(self.0)
    }

    /// Whether the memory can be handed to O_DIRECT on a disk with sectors of `sector` bytes.
    pub fn is_aligned_to(&self, sector: usize) -> bool {
        self.0.is_aligned_to(sector)
    }
}

impl Deref for Buf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in View::deref, and this view is the only one of these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.0.ptr.as_ptr(), self.0.len) }
    }
}

/// A shared, read-only view of page-aligned memory; clones and slices cost no copy.
#[derive(Debug, Clone)]
pub struct Frozen(View);

impl Frozen {
    /// A copy of `bytes`.
    pub fn copy_from(bytes: &[u8]) -> Self {
        Buf::copy_from(bytes).freeze()
    }

    /// `len` zeros. All of a thread are parts of the same memory: however many writes of zeros
    /// wait at a time, they cost no more than one.
    ///
    /// # Panics
    /// If `len` is greater than [`ZEROS_BYTES_MAX`].
    pub fn zeros(len: usize) -> Self {
        ZEROS.with(|zeros| {
            let mut zeros = zeros.borrow_mut();
            zeros.get_or_insert_with(|| Buf::zeroed(ZEROS_BYTES_MAX).freeze()).slice(0, len)
        })
    }

    /// The part from `from` of `len` bytes.
    ///
    /// # Panics
    /// If that reaches beyond the end.
    #[must_use]
    pub fn slice(&self, from: usize, len: usize) -> Self {
        Self(self.0.part(from, len))
    }

    /// Becomes one with `next`, without a copy, if that follows directly in the same memory.
    /// Returns whether it does.
    pub fn join(&mut self, next: &Self) -> bool {
        let block = |frozen: &Self| frozen.0.block.as_ref().map(Arc::as_ptr);
        let follows = block(self) == block(next) && self.as_ptr_range().end == next.as_ptr();
        if follows {
            self.0.len += next.len();
        }
        follows
    }

    /// The buffer again, writable, if nothing else holds any part of its memory.
    ///
    /// # Errors
    /// Gives `self` back if the memory is shared.
    pub fn try_thaw(self) -> Result<Buf, Self> {
        if self.0.block.as_ref().is_some_and(Block::is_sole) { Ok(Buf(self.0)) } else { Err(self) }
    }

    /// Whether the memory can be handed to O_DIRECT on a disk with sectors of `sector` bytes.
    pub fn is_aligned_to(&self, sector: usize) -> bool {
        self.0.is_aligned_to(sector)
    }
}

impl Deref for Frozen {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_join_again() {
        let mut whole = Buf::zeroed(10_000);
        assert!(whole.as_ptr().addr().is_multiple_of(BUF_ALIGN));
        let mut rest = whole.split_off(4096);
        whole.fill(1);
        rest.fill(2);
        assert!(whole.iter().all(|b| *b == 1) && rest.iter().all(|b| *b == 2));
        whole.join(rest).expect("neighbours join");
        assert_eq!((whole.len(), whole[4095], whole[4096]), (10_000, 1, 2));
        let stranger = whole.join(Buf::new(16)).expect_err("strangers do not join");
        assert_eq!(stranger.len(), 16);
    }

    #[test]
    fn zeros_share_their_memory_and_nobody_can_write_it() {
        let (some, all) = (Frozen::zeros(512), Frozen::zeros(ZEROS_BYTES_MAX));
        assert!(all.iter().all(|byte| *byte == 0));
        assert_eq!(some.as_ptr(), all.as_ptr());
        drop(all);
        some.try_thaw().expect_err("the thread holds it too");
    }

    #[test]
    fn memory_is_reused_and_thaw_needs_a_single_holder() {
        let first = Buf::new(5000);
        let address = first.as_ptr().addr();
        drop(first);
        let again = Buf::new(8192);
        assert_eq!(again.as_ptr().addr(), address);
        let frozen = again.freeze();
        let part = frozen.slice(4096, 4096);
        let frozen = frozen.try_thaw().expect_err("a part is still held");
        drop(part);
        assert_eq!(frozen.try_thaw().expect("alone now").len(), 8192);
    }

    #[test]
    fn frozen_parts_join_where_they_lie_one_behind_the_other() {
        let mut bytes = Buf::zeroed(3 * 4096);
        bytes[4096..].fill(1);
        let whole = bytes.freeze();
        let (mut first, second) = (whole.slice(0, 4096), whole.slice(4096, 8192));
        assert!(!first.join(&whole.slice(8192, 4096)) && !first.join(&Frozen::zeros(512)));
        assert!(first.join(&second));
        assert_eq!(first[..], whole[..]);
    }
}
