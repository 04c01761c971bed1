//! A client that knows what a crash may leave of what it did.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use weft_fs::{Fs, Kind, ROOT, Rename, SetAttr, Time};

use crate::common::*;

/// What may be found: all contents of each file since the last sync, and all sets of names.
#[derive(Clone, Default)]
pub(crate) struct Allowed {
    /// Contents that are not synced come last.
    pub(crate) contents: BTreeMap<u64, Vec<Vec<u8>>>,
    pub(crate) names: Vec<BTreeMap<String, u64>>,
    /// Times of files that are synced.
    pub(crate) modified: BTreeMap<u64, Time>,
}

/// A client that knows what may be found after a crash.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) fs: Fs,
    pub(crate) allowed: Rc<RefCell<Allowed>>,
    /// The number of the next file; 0 if it is not known yet.
    next: Rc<Cell<u64>>,
}

impl Client {
    pub(crate) fn new(fs: Fs) -> Self {
        let allowed = Allowed { names: vec![BTreeMap::new()], ..Allowed::default() };
        Self { fs, allowed: Rc::new(RefCell::new(allowed)), next: Rc::default() }
    }

    pub(crate) fn names(&self, change: impl FnOnce(&mut BTreeMap<String, u64>)) {
        let mut allowed = self.allowed.borrow_mut();
        let mut names = allowed.names.last().expect("some").clone();
        change(&mut names);
        allowed.names.push(names);
    }

    pub(crate) fn contents(&self, ino: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let mut allowed = self.allowed.borrow_mut();
        let contents = allowed.contents.entry(ino).or_insert_with(|| vec![Vec::new()]);
        let mut next = contents.last().expect("some").clone();
        change(&mut next);
        contents.push(next);
    }

    pub(crate) async fn make(&self, name: &str, redundancy: &str) -> u64 {
        // The number is known before the file is: they count up.
        let next = match self.next.get() {
            0 => {
                // What a crash left unused is not used again.
                let made = self.fs.make_unnamed(ROOT, new_file(Kind::File)).await;
                let (ino, _) = made.expect("made");
                self.fs.begin_use(ino);
                self.fs.end_uses(ino, 1).await.expect("deleted");
                ino + 1
            }
            next => next,
        };
        self.next.set(next + 1);
        self.names(|names| _ = names.insert(name.into(), next));
        self.contents(next, |_| {});
        let ino = make_as(&self.fs, name, redundancy).await;
        assert_eq!(ino, next);
        ino
    }

    pub(crate) async fn write(&self, ino: u64, offset: usize, len: usize, version: u64) {
        let data = pattern(len, version);
        self.contents(ino, |bytes| {
            bytes.resize(bytes.len().max(offset + len), 0);
            bytes[offset..offset + len].copy_from_slice(&data);
        });
        write(&self.fs, ino, offset as u64, &data).await;
    }

    /// Writes blocks that lie apart from each other, as one version of the contents.
    pub(crate) async fn write_apart(
        &self,
        ino: u64,
        blocks: impl Iterator<Item = usize> + Clone,
        version: u64,
    ) {
        let block = BLOCK as usize;
        let data = pattern(block, version);
        self.contents(ino, |bytes| {
            blocks.clone().for_each(|n| bytes[n * block..(n + 1) * block].copy_from_slice(&data));
        });
        for n in blocks {
            write(&self.fs, ino, (n * block) as u64, &data).await;
        }
    }

    /// Sets the time of the last write, as the kernel does before it asks for an fsync.
    pub(crate) async fn touch(&self, ino: u64) {
        let Time { s, ns } = self.fs.attr(ino).await.expect("there").modified;
        let time = Some(Time { s, ns: ns + 1 });
        let set = SetAttr { modified: time, changed: time, ..SetAttr::default() };
        let inode = self.fs.set_attr(ino, set).await.expect("set");
        assert_eq!(Some(inode.modified), time);
    }

    pub(crate) async fn cut(&self, ino: u64, size: usize) {
        self.contents(ino, |bytes| bytes.resize(size, 0));
        let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        self.fs.set_attr(ino, set).await.expect("cut");
    }

    pub(crate) async fn punch(&self, ino: u64, offset: usize, len: usize) {
        self.contents(ino, |bytes| bytes[offset..offset + len].fill(0));
        self.fs.punch_hole(ino, offset as u64, len as u64).await.expect("punched");
    }

    pub(crate) async fn reserve(&self, ino: u64, offset: usize, len: usize) {
        self.contents(ino, |bytes| bytes.resize(bytes.len().max(offset + len), 0));
        self.fs.allocate(ino, offset as u64, len as u64, false).await.expect("reserved");
    }

    pub(crate) async fn rename(&self, from: &str, to: &str) {
        self.names(|names| {
            let ino = names.remove(from).expect("there");
            names.insert(to.into(), ino);
        });
        let (from, to) = ((ROOT, from.as_bytes()), (ROOT, to.as_bytes()));
        self.fs.rename(from, to, Rename::Replace).await.expect("renamed");
    }

    pub(crate) async fn remove(&self, name: &str) {
        self.names(|names| _ = names.remove(name));
        self.fs.unlink(ROOT, name.as_bytes()).await.expect("removed");
    }

    /// Makes a file durable, whose name is.
    pub(crate) async fn fsync(&self, ino: u64) {
        let modified = self.fs.attr(ino).await.expect("there").modified;
        self.fs.fsync(ino).await.expect("synced");
        let mut allowed = self.allowed.borrow_mut();
        let contents = allowed.contents.get_mut(&ino).expect("a file");
        contents.drain(..contents.len() - 1);
        allowed.modified.insert(ino, modified);
    }

    /// Checks an fsync while the file is written again, once: earlier contents are durable.
    pub(crate) async fn fsync_and_write(&self, ino: u64, offset: usize, len: usize, version: u64) {
        let written = self.write(ino, offset, len, version);
        let (synced, ()) = futures_util::future::join(self.fs.fsync(ino), written).await;
        synced.expect("synced");
        let mut allowed = self.allowed.borrow_mut();
        let contents = allowed.contents.get_mut(&ino).expect("a file");
        contents.drain(..contents.len() - 2);
    }

    pub(crate) async fn sync(&self) {
        self.fs.sync().await.expect("synced");
        let mut allowed = self.allowed.borrow_mut();
        let names = allowed.names.pop().expect("some");
        allowed.contents.retain(|ino, _| names.values().any(|named| named == ino));
        for contents in allowed.contents.values_mut() {
            contents.drain(..contents.len() - 1);
        }
        allowed.names = vec![names];
    }
}
