//! An allocator for small, short-lived blocks.
//!
//! Every request boxes some futures and drops them again. With many requests in flight these come
//! and go in bursts, for which the C library caches too little: beyond seven blocks of a size it
//! merges and splits them again and again, which was a fifth of the engine's processor time. Here
//! each thread keeps a list of freed blocks for each size class, and takes the next one from it.
//!
//! *Bounds.* Classes are multiples of 64 bytes up to 4 KiB. A thread keeps at most 64 KiB of each,
//! together 4 MiB, while it has an executor, and nothing before or afterwards. Blocks beyond that
//! limit, larger or unusually aligned blocks go to the system.
//!
//! *Any thread may free any block*: each was allocated from the system separately, with its class's
//! size, so it can go to the list of any thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::null_mut;

const STEP: usize = 64;
const SIZE_MAX: usize = 4096;
const CLASSES: usize = SIZE_MAX / STEP;
/// Alignment that every block of the system has.
const ALIGN: usize = 16;

/// Bytes of one class that a thread keeps.
const KEPT_BYTES: usize = 64 << 10;

/// The free blocks of one class, linked by their first word.
struct List {
    head: Cell<*mut u8>,
    len: Cell<usize>,
}

thread_local! {
    // Without destructors, so that they can be reached as long as the thread lives.
    static LISTS: [List; CLASSES] =
        const { [const { List { head: Cell::new(null_mut()), len: Cell::new(0) } }; CLASSES] };
    /// Executors of this thread.
    static EXECUTORS: Cell<usize> = const { Cell::new(0) };
}

/// Lets this thread keep blocks for as long as it lives.
#[derive(Debug)]
pub(crate) struct Keeping(PhantomData<*const ()>);

impl Keeping {
    pub(crate) fn start() -> Self {
        EXECUTORS.set(EXECUTORS.get() + 1);
        Self(PhantomData)
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        // The thread may be ending already: then the rest goes with the process.
        let last = EXECUTORS.try_with(|count| count.replace(count.get() - 1) == 1);
        if last != Ok(true) {
            return;
        }
        let _ = LISTS.try_with(|lists| {
            for (class, list) in lists.iter().enumerate() {
                while let Some(block) = list.pop() {
                    // SAFETY: every block of the list was got from the system with this layout.
                    unsafe { System.dealloc(block, layout_of_class(class)) };
                }
            }
        });
    }
}

/// The allocator; a program that runs an engine names it as its `#[global_allocator]`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pool;

/// The class that serves `layout`, if one does.
fn class_of(layout: Layout) -> Option<usize> {
    let pooled = layout.size() <= SIZE_MAX && layout.size() > 0 && layout.align() <= ALIGN;
    pooled.then(|| (layout.size() - 1) / STEP)
}

/// How many blocks of each class a thread keeps.
static KEPT_MAX: [usize; CLASSES] = {
    let (mut kept, mut class) = ([0; CLASSES], 0);
    while class < CLASSES {
        kept[class] = KEPT_BYTES / size_of_class(class);
        class += 1;
    }
    kept
};

const fn size_of_class(class: usize) -> usize {
    (class + 1) * STEP
}

/// The layout to request from the system.
fn layout_of_class(class: usize) -> Layout {
    Layout::from_size_align(size_of_class(class), ALIGN).unwrap_or(Layout::new::<u8>())
}

impl List {
    fn pop(&self) -> Option<*mut u8> {
        let block = self.head.get();
        if block.is_null() {
            return None;
        }
        // SAFETY: blocks in the list are free, at least STEP bytes long, aligned for a pointer, and
        // `push` has written their first word.
        let next = unsafe { block.cast::<*mut u8>().read() };
        self.head.set(next);
        self.len.set(self.len.get() - 1);
        Some(block)
    }

    /// Keeps a free block.
    ///
    /// # Safety
    /// `block` was allocated with the layout of this list's class, and is no longer in use.
    unsafe fn push(&self, block: *mut u8) {
        // SAFETY: the block is the caller's to give, long enough and aligned for a pointer.
        unsafe { block.cast::<*mut u8>().write(self.head.get()) };
        self.head.set(block);
        self.len.set(self.len.get() + 1);
    }
}

// SAFETY: a block comes from the system with the layout of the class that its own layout has, or
// with its own layout if it has none; `dealloc` finds the same class from the same layout. A block
// is in at most one list, of one thread, and leaves it before it is handed out.
unsafe impl GlobalAlloc for Pool {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else {
            // SAFETY: the caller's promise.
            return unsafe { System.alloc(layout) };
        };
        let kept = LISTS.try_with(|lists| lists[class].pop()).ok().flatten();
        // SAFETY: the layout of a class is not empty.
        kept.unwrap_or_else(|| unsafe { System.alloc(layout_of_class(class)) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class_of(layout) else {
            // SAFETY: the caller's promise; `alloc` got it with this layout.
            return unsafe { System.dealloc(block, layout) };
        };
        let keeps = EXECUTORS.try_with(|count| count.get() > 0) == Ok(true);
        let kept = LISTS.try_with(|lists| {
            let list = &lists[class];
            let room = keeps && list.len.get() < KEPT_MAX[class];
            if room {
                // SAFETY: `alloc` got it with the layout of this class; the caller is done with it.
                unsafe { list.push(block) };
            }
            room
        });
        if kept != Ok(true) {
            // SAFETY: as above.
            unsafe { System.dealloc(block, layout_of_class(class)) };
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if class_of(layout).is_none() {
            // SAFETY: the caller's promise. The system knows which memory is zero anyway.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's promise.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() {
            // SAFETY: the block has at least the layout's size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The caller promises that `size`, rounded up to the alignment, does not overflow.
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return null_mut() };
        match (class_of(layout), class_of(wanted)) {
            // SAFETY: the caller's promise; `alloc` got it with this layout.
            (None, None) => unsafe { System.realloc(block, layout, size) },
            (old, new) if old == new => block,
            _ => {
                // SAFETY: `wanted` is not empty, as the caller promises of `size`.
                let moved = unsafe { self.alloc(wanted) };
                if !moved.is_null() {
                    let len = layout.size().min(size);
                    // SAFETY: both blocks have at least `len` bytes, and they are two.
                    unsafe { moved.copy_from_nonoverlapping(block, len) };
                    // SAFETY: the caller's promise; the old block is not used from here on.
                    unsafe { self.dealloc(block, layout) };
                }
                moved
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that these tests allocate themselves comes from the pool as well.
    #[global_allocator]
    static POOL: Pool = Pool;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("a layout")
    }

    fn fill(block: *mut u8, len: usize, tag: u8) {
        assert!(!block.is_null());
        // SAFETY: the tests pass blocks of at least `len` bytes.
        unsafe { block.write_bytes(tag, len) };
    }

    fn holds(block: *mut u8, len: usize, tag: u8) -> bool {
        // SAFETY: as above, and `fill` has initialised them.
        let bytes = unsafe { std::slice::from_raw_parts(block, len) };
        bytes.iter().all(|byte| *byte == tag)
    }

    fn kept(layout: Layout) -> usize {
        LISTS.with(|lists| lists[class_of(layout).expect("pooled")].len.get())
    }

    #[test]
    fn blocks_in_use_are_apart_whatever_their_size_and_history() {
        let _keeping = Keeping::start();
        let mut held: Vec<(*mut u8, Layout, u8)> = Vec::new();
        let mut state = 1_u64;
        for turn in 0..20_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(turn | 1);
            let pick = usize::try_from(state >> 40).expect("24 bits");
            let tag = u8::try_from(turn % 251).expect("a byte");
            match state >> 33 & 3 {
                0 if !held.is_empty() => {
                    let (block, layout, tag) = held.swap_remove(pick % held.len());
                    assert!(holds(block, layout.size(), tag));
                    // SAFETY: it came from the pool with this layout, and is held no more.
                    unsafe { Pool.dealloc(block, layout) };
                }
                1 if !held.is_empty() => {
                    let at = pick % held.len();
                    let (block, old, before) = held[at];
                    let size = 1 + pick % 9000;
                    // SAFETY: as above; the old block is forgotten.
                    let moved = unsafe { Pool.realloc(block, old, size) };
                    assert!(holds(moved, old.size().min(size), before));
                    fill(moved, size, tag);
                    held[at] = (moved, layout(size, old.align()), tag);
                }
                which => {
                    let layout = layout(1 + pick % 5000, 1 << (pick % 8));
                    // SAFETY: the layout is not empty.
                    let block = unsafe {
                        if which == 2 { Pool.alloc(layout) } else { Pool.alloc_zeroed(layout) }
                    };
                    assert!(block.addr().is_multiple_of(layout.align()));
                    assert!(which == 2 || holds(block, layout.size(), 0));
                    fill(block, layout.size(), tag);
                    held.push((block, layout, tag));
                }
            }
        }
        for (block, layout, tag) in held {
            assert!(holds(block, layout.size(), tag));
            // SAFETY: as above.
            unsafe { Pool.dealloc(block, layout) };
        }
    }

    #[test]
    fn a_freed_block_is_the_next_of_its_class_and_what_is_kept_is_bounded() {
        let (small, same_class) = (layout(1900, 8), layout(1910, 16));
        let max = KEPT_MAX[class_of(small).expect("pooled")];
        let keeping = Keeping::start();
        // SAFETY: the layouts are not empty, and each block is freed once with its class's layout.
        unsafe {
            let blocks: Vec<*mut u8> = (0..4 * max).map(|_| Pool.alloc(small)).collect();
            blocks.iter().for_each(|block| Pool.dealloc(*block, small));
            assert_eq!(kept(small), max);
            let again = Pool.alloc(same_class);
            assert_eq!(again, blocks[max - 1]);
            Pool.dealloc(again, same_class);
        }
        let all: usize = (0..CLASSES).map(|class| KEPT_MAX[class] * size_of_class(class)).sum();
        assert!(all <= 4 << 20, "{all} bytes");
        drop(keeping);
        assert_eq!(kept(small), 0);
        // SAFETY: as above.
        unsafe { Pool.dealloc(Pool.alloc(small), small) };
        assert_eq!(kept(small), 0);
    }

    #[test]
    fn blocks_may_be_freed_by_another_thread() {
        let boxes: Vec<Box<[u64; 40]>> = (0..1000).map(|n| Box::new([n; 40])).collect();
        let sum = std::thread::spawn(move || boxes.iter().map(|b| b[39]).sum::<u64>()).join();
        assert_eq!(sum.expect("the thread ended"), 999 * 500);
    }
}
