//! Extents that a job looks at without the lock of their file, and whether they have changed since.
//!
//! A job that copies an extent holds no lock during its requests to the disks, so that users never
//! wait for them ([`crate::jobs::migration`]). Before it puts the copy in the place of the extent,
//! it takes the lock, and must know whether the extent is what it was. Its record does not tell: it
//! has a checksum of each block, and blocks with other contents may have the same one. Those that
//! end with a CRC32C of their own all do.
//!
//! So whatever stores or removes a record that touches the blocks of a watched extent is noted
//! here. A write changes blocks first and its record afterwards, under the lock of the file: who
//! has the lock finds both done, or neither. Other nodes change records only after this one has
//! given up its token of the file's blocks, which counts as a change.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use crate::format::inode::Ino;

#[cfg(test)]
thread_local! {
    /// Whether watches see nothing.
    pub(crate) static IS_BLIND: Cell<bool> = const { Cell::new(false) };
    /// How often a watch had seen a change.
    pub(crate) static SEEN_CHANGES: Cell<u64> = const { Cell::new(0) };
}

/// File, first block, and a number: several jobs may look at the same extent.
type Key = (Ino, u64, u64);

/// The end of a watched extent, and whether it has changed.
type Watched = (u64, Rc<Cell<bool>>);

/// See the [module](self).
#[derive(Default)]
pub(super) struct ExtentWatches {
    watched: RefCell<BTreeMap<Key, Watched>>,
    /// The number of the last one, and the blocks of the longest one so far.
    last: Cell<u64>,
    longest: Cell<u64>,
}

/// A watched extent, until this is dropped.
pub(crate) struct ExtentWatch {
    of: Rc<ExtentWatches>,
    key: Key,
    has_changed: Rc<Cell<bool>>,
}

impl ExtentWatch {
    /// Whether the extent may have changed since it is watched.
    pub(crate) fn has_changed(&self) -> bool {
        #[cfg(test)]
        {
            SEEN_CHANGES.set(SEEN_CHANGES.get() + u64::from(self.has_changed.get()));
            if IS_BLIND.get() {
                return false;
            }
        }
        self.has_changed.get()
    }
}

impl Drop for ExtentWatch {
    fn drop(&mut self) {
        self.of.watched.borrow_mut().remove(&self.key);
    }
}

impl ExtentWatches {
    /// Watches these blocks of a file.
    pub(super) fn watch(self: &Rc<Self>, ino: Ino, blocks: Range<u64>) -> ExtentWatch {
        self.last.set(self.last.get() + 1);
        self.longest.set(self.longest.get().max(blocks.end - blocks.start));
        let key = (ino, blocks.start, self.last.get());
        let has_changed = Rc::new(Cell::new(false));
        self.watched.borrow_mut().insert(key, (blocks.end, has_changed.clone()));
        ExtentWatch { of: self.clone(), key, has_changed }
    }

    /// A record with these blocks of a file is stored or removed.
    pub(super) fn note(&self, ino: Ino, blocks: Range<u64>) {
        let watched = self.watched.borrow();
        if watched.is_empty() {
            return;
        }
        let first = blocks.start.saturating_sub(self.longest.get());
        let near = watched.range((ino, first, 0)..(ino, blocks.end, 0));
        for (_, (end, has_changed)) in near {
            if *end > blocks.start {
                has_changed.set(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_touches_a_watched_extent_is_noted() {
        let watches = Rc::new(ExtentWatches::default());
        let changed_by = |ino, blocks| {
            let watch = watches.watch(5, 100..200);
            // A longer one elsewhere, and a second look at the same.
            let others = [watches.watch(4, 0..1000), watches.watch(5, 100..200)];
            watches.note(ino, blocks);
            assert!(!others[0].has_changed() || ino == 4);
            assert_eq!(watch.has_changed(), others[1].has_changed());
            watch.has_changed()
        };
        for touches in [100..101, 199..200, 0..101, 199..300, 0..u64::MAX, 150..160] {
            assert!(changed_by(5, touches.clone()), "{touches:?}");
            assert!(!changed_by(6, touches.clone()), "{touches:?}");
        }
        for leaves in [0..100, 200..201, 200..u64::MAX] {
            assert!(!changed_by(5, leaves.clone()), "{leaves:?}");
        }
        assert!(watches.watched.borrow().is_empty(), "those that are dropped are gone");
    }
}
