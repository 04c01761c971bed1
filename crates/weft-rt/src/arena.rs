//! Memory that is registered with the kernel.
//!
//! For every direct I/O request the kernel looks up and pins the pages of its buffer, and unpins
//! them at the end. Memory that is *registered* with a ring is pinned once. So small buffers, where
//! this matters most, come from one arena per process, which every ring registers. When the arena
//! is full, buffers come from the heap and are pinned each time.
//!
//! *Shape.* The arena has the size of a huge page, so that the kernel may map it as one piece.
//! Blocks are powers of two between a page and [`BLOCK_BYTES_MAX`]. A block is halved if no smaller
//! one is left, and halves are never merged: in the long run the arena goes to the smallest blocks,
//! which gain the most.
//!
//! *Life.* The arena is mapped when the first ring starts, and stays until the process ends: blocks
//! may outlive the ring, and move to other threads.

use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// Alignment of every allocation, in bytes; what O_DIRECT asks for on any disk.
pub const BUF_ALIGN: usize = 4096;

/// The arena's size and alignment, bytes: a huge page of the common machines.
const ARENA_BYTES: usize = 2 << 20;
/// Largest block, bytes.
const BLOCK_BYTES_MAX: usize = 64 << 10;
const CLASSES: usize = (BLOCK_BYTES_MAX / BUF_ALIGN).trailing_zeros() as usize + 1;

static ARENA: OnceLock<Option<Arena>> = OnceLock::new();

pub(crate) struct Arena {
    base: NonNull<u8>,
    free: Mutex<[Vec<NonNull<u8>>; CLASSES]>,
}

// SAFETY: an arena is plain memory; each block has one owner; the lists are locked.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// The arena, if a ring has been started.
pub(crate) fn current() -> Option<&'static Arena> {
    ARENA.get()?.as_ref()
}

/// The arena, for a ring that is starting. `None` if there is no memory for it.
pub(crate) fn open() -> Option<&'static Arena> {
    ARENA.get_or_init(Arena::map).as_ref()
}

impl Arena {
    fn map() -> Option<Self> {
        let (len, access) = (2 * ARENA_BYTES, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new private mapping, where the kernel likes; nothing else is touched.
        let map = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) };
        let map = NonNull::new(map.ok()?.cast::<u8>())?;
        // Half of the mapping is never touched, and so costs addresses only.
        let skip = map.align_offset(ARENA_BYTES);
        // SAFETY: at least half of the mapping follows an address that is aligned to half of it.
        let base = unsafe { map.add(skip) };
        // SAFETY: the advice is about our own mapping. One without huge pages does as well.
        let _ = unsafe { madvise(base.as_ptr().cast(), ARENA_BYTES, Advice::LinuxHugepage) };
        let mut free = [const { Vec::new() }; CLASSES];
        // SAFETY: every offset lies in the mapping.
        let block = |n| unsafe { base.add(n * BLOCK_BYTES_MAX) };
        free[CLASSES - 1] = (0..ARENA_BYTES / BLOCK_BYTES_MAX).rev().map(block).collect();
        Some(Self { base, free: Mutex::new(free) })
    }

    /// What a ring registers.
    pub(crate) fn iovec(&self) -> libc::iovec {
        libc::iovec { iov_base: self.base.as_ptr().cast(), iov_len: ARENA_BYTES }
    }

    /// Whether the `len` bytes from `ptr`, at least one, are the arena's.
    pub(crate) fn holds(&self, ptr: *const u8, len: usize) -> bool {
        let from = ptr.addr().wrapping_sub(self.base.as_ptr().addr());
        len > 0 && from < ARENA_BYTES && len <= ARENA_BYTES - from
    }

    /// A block of `size` bytes (a power of two, a page at least), initialised.
    pub(crate) fn take(&self, size: usize) -> Option<NonNull<u8>> {
        let wanted = class_of(size)?;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let found = (wanted..CLASSES).find(|class| !free[*class].is_empty())?;
        let block = free[found].pop()?;
        for class in wanted..found {
            // SAFETY: the block is twice as long as those of this class, or longer.
            free[class].push(unsafe { block.add(BUF_ALIGN << class) });
        }
        Some(block)
    }

    /// Takes a block of `size` bytes back. It must be one that [`Arena::take`] gave for this size.
    pub(crate) fn give(&self, block: NonNull<u8>, size: usize) {
        let Some(class) = class_of(size) else { return };
        self.free.lock().unwrap_or_else(PoisonError::into_inner)[class].push(block);
    }
}

fn class_of(size: usize) -> Option<usize> {
    (size <= BLOCK_BYTES_MAX).then(|| (size / BUF_ALIGN).trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_never_overlap_and_come_back() {
        let arena = Arena::map().expect("memory");
        let mut sizes = (0..CLASSES).map(|class| BUF_ALIGN << class).cycle();
        let mut held: Vec<(usize, usize)> = Vec::new();
        loop {
            let size = sizes.next().expect("endless");
            let Some(block) = arena.take(size) else { break };
            assert!(arena.holds(block.as_ptr(), size) && block.as_ptr().addr() % size == 0);
            held.push((block.as_ptr().addr(), size));
        }
        while let Some(block) = arena.take(BUF_ALIGN) {
            held.push((block.as_ptr().addr(), BUF_ALIGN));
        }
        // Taken whole, and every byte once.
        held.sort_unstable();
        assert!(held.windows(2).all(|two| two[0].0 + two[0].1 == two[1].0));
        assert_eq!(held.iter().map(|(_, size)| size).sum::<usize>(), ARENA_BYTES);
        for (address, size) in held.drain(..) {
            let block = arena.base.with_addr(address.try_into().expect("not null"));
            arena.give(block, size);
        }
        let count = std::iter::from_fn(|| arena.take(BUF_ALIGN)).count();
        assert_eq!(count, ARENA_BYTES / BUF_ALIGN);
        let (base, end) = (arena.base.as_ptr().cast_const(), ARENA_BYTES);
        assert!(arena.holds(base, end) && !arena.holds(base, end + 1));
        assert!(!arena.holds(base.wrapping_sub(1), 1) && !arena.holds(base.wrapping_add(end), 1));
    }
}
