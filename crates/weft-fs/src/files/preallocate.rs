//! Reserving space for parts of a file that have none.
//!
//! A block that has a place is overwritten there and needs no other. So space is reserved by
//! writing zeros, through the cache like all else, where no block is active. That takes the time of
//! a write; in return there is no third state of a block between a hole and data.

use std::ops::Range;
use std::rc::Rc;

use weft_rt::Frozen;

use crate::error::{FsError, Result};
use crate::files::read_write::{FILE_BYTES_MAX, active_within};
use crate::format::block::{BLOCK, blocks_of};
use crate::format::inode::Ino;
use crate::state::mounted::{Fs, FsState};
use crate::state::open_files::Node;

/// Blocks reserved at a time.
const STEP: u64 = 1024;

impl FsState {
    async fn allocate(
        self: &Rc<Self>,
        ino: Ino,
        offset: u64,
        len: u64,
        keep_size: bool,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(FsError::TooLarge)?;
        self.check_writable()?;
        let blocks = blocks_of(offset, len);
        self.write_if_rows_are_scarce(blocks.start..blocks.end.min(blocks.start + STEP)).await;
        let _held = self.hold_to_change(ino, offset, len).await;
        // What cannot fit at all is refused before the disks are full.
        let inode = self.file(ino).await?;
        inode.flags.check_change()?;
        let missing = (blocks.end - blocks.start).saturating_sub(inode.blocks);
        if missing > self.free_blocks(inode.redundancy).0 {
            return Err(FsError::NoSpace);
        }
        let node = self.in_use.node(ino);
        let mut at = blocks.start;
        while at < blocks.end {
            if !goes_on() {
                return Err(FsError::Cancelled);
            }
            let to = (at + STEP).min(blocks.end);
            self.allocate_blocks(&node, at..to).await?;
            self.drain().await?;
            at = to;
            self.rt.yield_now().await;
        }
        let alone = node.alone().await;
        let inode = self.file(ino).await?;
        if !keep_size && end > inode.size {
            self.clear_behind_end(&node, inode.size, end).await?;
            self.grow(&node, &inode, end);
        }
        drop(alone);
        self.in_use.forget_clean(&node);
        Ok(())
    }

    async fn allocate_blocks(&self, node: &Rc<Node>, blocks: Range<u64>) -> Result<()> {
        let _alone = node.alone().await;
        let inode = self.file(node.ino).await?;
        let active = self.meta.run(|tx| active_within(tx, node.ino, blocks.clone())).await?;
        let is_missing = |block: &u64| {
            active.binary_search(block).is_err() && !node.dirty.borrow().contains_key(block)
        };
        let missing: Vec<u64> = blocks.clone().filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let reserved = self.reserve(node, &inode, blocks).await?;
        missing.into_iter().for_each(|block| self.dirty(node, block, Frozen::zeros(BLOCK)));
        drop(reserved);
        Ok(())
    }
}

impl Fs {
    /// Gives a range of a file places on the disks: writing there later cannot fail for want of
    /// room. The file grows to the end of the range, unless its size is to be kept.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] if there is no room. If that shows only on the way, a part stays
    /// reserved.
    pub async fn allocate(&self, ino: Ino, offset: u64, len: u64, keep_size: bool) -> Result<()> {
        self.allocate_while(ino, offset, len, keep_size, || true).await
    }

    /// As above, while `goes_on` says so.
    ///
    /// # Errors
    /// Also [`FsError::Cancelled`] if it was told to stop: a part stays reserved.
    pub async fn allocate_while(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        keep_size: bool,
        goes_on: impl Fn() -> bool + 'static,
    ) -> Result<()> {
        let fs = self.0.clone();
        let allocate = || async move {
            fs.with_room(async || fs.allocate(ino, offset, len, keep_size, &goes_on).await).await
        };
        self.0.rt.attach(allocate).await
    }
}
