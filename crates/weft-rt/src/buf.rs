//! Page-aligned buffers that an I/O owns until it completes.
//!
//! A [`Buf`] is the only view of its bytes and may be written; it can be split into disjoint parts
//! that go to different disks, without a copy, and be joined again. [`Buf::freeze`] turns it into a
//! [`Frozen`], which many can read at the same time (a mirror's members, say) and which is
//! immutable. So it is safe to pass their addresses to the kernel: while an operation is in flight
//! the driver holds the `Buf` or `Frozen` itself.
//!
//! Memory comes from size classes kept per thread, so that the steady state allocates nothing and
//! touches no cold page. Small blocks come from the arena that rings register, while it has some.
//! Recycled memory holds old bytes: a fresh `Buf` is *initialised* but its contents are
//! unspecified, except from [`Buf::zeroed`].

use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::arena::{self, BUF_ALIGN};

/// Maximum bytes that a thread keeps for reuse.
const CACHE_BYTES_MAX: usize = 64 << 20;

/// Allocations are powers of two from one page up; bigger than this are not kept.
const CACHED_SIZE_MAX: usize = 4 << 20;

struct Block {
    ptr: NonNull<u8>,
    size: usize,
}

// SAFETY: a Block is plain memory with one owner; views on it follow the borrow rules of
// Buf (unique, disjoint) and Frozen (shared, read-only).
unsafe impl Send for Block {}
// SAFETY: as above; shared views only read.
unsafe impl Sync for Block {}

#[derive(Default)]
struct Cache {
    classes: Vec<Vec<NonNull<u8>>>,
    bytes: usize,
}

impl Drop for Cache {
    fn drop(&mut self) {
        for (class, blocks) in self.classes.drain(..).enumerate() {
            for ptr in blocks {
                release(ptr, BUF_ALIGN << class);
            }
        }
    }
}

thread_local! {
    static CACHE: RefCell<Cache> = RefCell::default();
    /// The memory of which [`Frozen::zeros`] returns parts, once allocated.
    static ZEROS: RefCell<Option<Frozen>> = const { RefCell::new(None) };
    /// What buffers without bytes share.
    static EMPTY: Arc<Block> = Arc::new(Block { ptr: NonNull::dangling(), size: 0 });
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

fn release(ptr: NonNull<u8>, size: usize) {
    if let Some(arena) = arena::current()
        && arena.holds(ptr.as_ptr(), size)
    {
        return arena.give(ptr, size);
    }
    // SAFETY: `ptr` was allocated by Block::new with this very layout and has no owner left.
    unsafe { std::alloc::dealloc(ptr.as_ptr(), layout_of(size)) }
}

impl Block {
    fn new(len: usize) -> Self {
        let size = len.max(1).next_multiple_of(BUF_ALIGN).next_power_of_two();
        BufMemory::taken(size);
        let cached = CACHE.try_with(|cache| {
            let mut cache = cache.borrow_mut();
            let ptr = cache.classes.get_mut(class_of(size)).and_then(Vec::pop)?;
            cache.bytes -= size;
            Some(ptr)
        });
        if let Ok(Some(ptr)) = cached {
            return Self { ptr, size };
        }
        if let Some(ptr) = arena::current().and_then(|arena| arena.take(size)) {
            return Self { ptr, size };
        }
        let layout = layout_of(size);
        // SAFETY: the layout is not empty. Zeroed, so that every byte is initialised.
        let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
        let ptr = NonNull::new(ptr).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        Self { ptr, size }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let (ptr, size) = (self.ptr, self.size);
        if size == 0 {
            return;
        }
        BufMemory::given_back(size);
        let kept = size <= CACHED_SIZE_MAX
            && CACHE
                .try_with(|cache| {
                    let mut cache = cache.borrow_mut();
                    if cache.bytes + size > CACHE_BYTES_MAX {
                        return false;
                    }
                    let class = class_of(size);
                    if cache.classes.len() <= class {
                        cache.classes.resize_with(class + 1, Vec::new);
                    }
                    cache.classes[class].push(ptr);
                    cache.bytes += size;
                    true
                })
                .unwrap_or(false);
        if !kept {
            release(ptr, size);
        }
    }
}

/// A unique, writable view of page-aligned memory.
pub struct Buf {
    block: Arc<Block>,
    start: usize,
    len: usize,
}

impl Buf {
    /// A buffer of `len` bytes whose contents are unspecified (but initialised).
    pub fn new(len: usize) -> Self {
        Self { block: Arc::new(Block::new(len)), start: 0, len }
    }

    /// No bytes, and no memory of its own.
    pub fn empty() -> Self {
        Self { block: EMPTY.with(Arc::clone), start: 0, len: 0 }
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
        assert!(at <= self.len, "cut at {at} in a buffer of {} bytes", self.len);
        let rest = Self { block: self.block.clone(), start: self.start + at, len: self.len - at };
        self.len = at;
        rest
    }

    /// Joins `next` behind `self` again.
    ///
    /// # Errors
    /// Gives `next` back if it does not follow `self` directly in the same allocation.
    pub fn join(&mut self, next: Self) -> Result<(), Self> {
        if !Arc::ptr_eq(&self.block, &next.block) || self.start + self.len != next.start {
            return Err(next);
        }
        self.len += next.len;
        Ok(())
    }

    /// Puts parts behind each other: joined where each follows the one before it directly, else
    /// copied. A part comes back as another buffer if the disk that was to fill it was given up.
    pub fn rejoin(parts: Vec<Self>) -> Self {
        let total = parts.iter().map(|part| part.len).sum();
        let mut parts = parts.into_iter();
        let Some(mut whole) = parts.next() else { return Self::new(0) };
        while let Some(next) = parts.next() {
            let Err(next) = whole.join(next) else { continue };
            let (mut copy, mut done) = (Self::new(total), 0);
            for part in [whole, next].into_iter().chain(parts) {
                copy[done..done + part.len].copy_from_slice(&part);
                done += part.len;
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
        assert!(len <= self.len, "truncate to {len} a buffer of {} bytes", self.len);
        self.len = len;
    }

    /// Ends writing: the bytes can now be shared.
    pub fn freeze(self) -> Frozen {
        Frozen { block: self.block, start: self.start, len: self.len }
    }

    /// Whether the memory can be handed to O_DIRECT on a disk with sectors of `sector` bytes.
    pub fn is_aligned_to(&self, sector: usize) -> bool {
        self.start.is_multiple_of(sector) && self.len.is_multiple_of(sector)
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: start..start+len lies in the block and is initialised; no other view can
        // write it, since parts are disjoint and this one is borrowed.
        unsafe { std::slice::from_raw_parts(self.block.ptr.as_ptr().add(self.start), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref, and this view is the only one of these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.block.ptr.as_ptr().add(self.start), self.len) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes at +{})", self.len, self.start)
    }
}

/// A shared, read-only view of page-aligned memory; clones and slices cost no copy.
#[derive(Clone)]
pub struct Frozen {
    block: Arc<Block>,
    start: usize,
    len: usize,
}

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
        assert!(from + len <= self.len, "slice {from}+{len} of {} bytes", self.len);
        Self { block: self.block.clone(), start: self.start + from, len }
    }

    /// The buffer again, writable, if nothing else holds any part of its memory.
    ///
    /// # Errors
    /// Gives `self` back if the memory is shared.
    pub fn try_thaw(self) -> Result<Buf, Self> {
        // The count cannot grow meanwhile: only a holder could clone, and we are the only one.
        if Arc::strong_count(&self.block) == 1 {
            Ok(Buf { block: self.block, start: self.start, len: self.len })
        } else {
            Err(self)
        }
    }

    /// Whether the memory can be handed to O_DIRECT on a disk with sectors of `sector` bytes.
    pub fn is_aligned_to(&self, sector: usize) -> bool {
        self.start.is_multiple_of(sector) && self.len.is_multiple_of(sector)
    }
}

impl Deref for Frozen {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: start..start+len lies in the block and is initialised; it is
        // immutable: the unique Buf was consumed by freeze.
        unsafe { std::slice::from_raw_parts(self.block.ptr.as_ptr().add(self.start), self.len) }
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frozen({} bytes at +{})", self.len, self.start)
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
}
