//! The database's bytes in memory: where redb's synchronous file meets asynchronous disks.
//!
//! redb reads and writes the image. When it asks for a sync, the pages that changed since the last
//! one become an epoch, and redb goes on. Epochs are then written to the metadata array one after
//! the other, each flushed before the next begins. A disk under redb may hold, after a crash, any
//! part of what was written since the last sync that had ended; the array holds no more than that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

use crate::block::BLOCK;

/// Pages that must be durable before any page of the next epoch is written.
#[derive(Debug)]
pub(crate) struct Epoch {
    /// The length of the image.
    pub(crate) len: u64,
    /// Pages of 4 KiB that changed, by number.
    pub(crate) pages: BTreeMap<usize, Vec<u8>>,
}

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    capacity: usize,
    changed: BTreeSet<usize>,
    resized: bool,
    epochs: VecDeque<Epoch>,
}

/// The image. redb demands a storage that can move between threads; this one never does.
#[derive(Debug, Clone)]
pub(crate) struct Image(Arc<Mutex<State>>);

impl Image {
    /// An image with these bytes, which may grow to `capacity`.
    pub(crate) fn new(bytes: Vec<u8>, capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(State { bytes, capacity, ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("only one thread uses it")
    }

    /// The next epoch to write.
    pub(crate) fn next_epoch(&self) -> Option<Epoch> {
        self.state().epochs.pop_front()
    }
}

impl StorageBackend for Image {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        let at = usize::try_from(offset).map_err(outside)?;
        let end = at.checked_add(out.len()).filter(|end| *end <= state.bytes.len());
        let end = end.ok_or_else(|| outside("beyond the end"))?;
        out.copy_from_slice(&state.bytes[at..end]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        let len = usize::try_from(len).map_err(outside)?;
        if len > state.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let before = state.bytes.len();
        state.bytes.resize(len, 0);
        // What is new reads as zeros, whatever the array has there.
        state.changed.extend(before / BLOCK..len.div_ceil(BLOCK));
        state.resized = true;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        let changed = std::mem::take(&mut state.changed);
        let resized = std::mem::take(&mut state.resized);
        if changed.is_empty() && !resized {
            return Ok(());
        }
        let page = |number: usize| {
            let end = ((number + 1) * BLOCK).min(state.bytes.len());
            let mut page = state.bytes.get(number * BLOCK..end)?.to_vec();
            page.resize(BLOCK, 0);
            Some((number, page))
        };
        let pages = changed.into_iter().filter_map(page).collect();
        let epoch = Epoch { len: state.bytes.len() as u64, pages };
        state.epochs.push_back(epoch);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let at = usize::try_from(offset).map_err(outside)?;
        let end = at.checked_add(data.len()).filter(|end| *end <= state.bytes.len());
        let end = end.ok_or_else(|| outside("beyond the end"))?;
        state.bytes[at..end].copy_from_slice(data);
        state.changed.extend(at / BLOCK..end.div_ceil(BLOCK));
        Ok(())
    }
}

fn outside(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_has_what_changed_before_its_sync() {
        let image = Image::new(vec![1; 2 * BLOCK], 4 * BLOCK);
        image.write(BLOCK as u64 - 1, &[7, 7]).expect("inside");
        image.sync_data().expect("synced");
        image.set_len(3 * BLOCK as u64).expect("room");
        image.write(0, &[8]).expect("inside");
        image.sync_data().expect("synced");
        image.sync_data().expect("nothing new");
        let first = image.next_epoch().expect("an epoch");
        assert_eq!((first.len, first.pages.keys().count()), (2 * BLOCK as u64, 2));
        assert_eq!((first.pages[&0][BLOCK - 1], first.pages[&1][0]), (7, 7));
        assert_eq!(first.pages[&0][0], 1);
        let second = image.next_epoch().expect("an epoch");
        assert_eq!(second.pages.keys().copied().collect::<Vec<_>>(), [0, 2]);
        assert!(image.next_epoch().is_none());
        image.set_len(5 * BLOCK as u64).expect_err("too long");
        image.write(3 * BLOCK as u64, &[1]).expect_err("beyond the end");
    }
}
