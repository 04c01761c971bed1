//! What may be found after a crash, as a matter of history.

use std::collections::BTreeMap;

use super::disks::Media;
use crate::common::model::{Durable, Model, Named, Pair};
use crate::common::*;
use weft_fs::{Fs, Ino, ROOT};

pub(super) const SECTOR: usize = 512;

/// The reference after an operation, with the inodes of its files.
#[derive(Clone)]
pub(super) struct Snapshot {
    pub(super) model: Model,
    pub(super) inos: BTreeMap<u64, Ino>,
}

/// The reference after each operation of a life, and since when what is durable.
#[derive(Clone)]
pub(super) struct History {
    snapshots: Vec<Snapshot>,
    names_from: usize,
    contents_from: BTreeMap<u64, usize>,
    /// When names, links or attributes of a file changed last.
    touched: BTreeMap<u64, usize>,
}

impl History {
    pub(super) fn new(pair: &Pair) -> Self {
        let snapshot = Snapshot { model: pair.model.clone(), inos: pair.inos.clone() };
        Self {
            snapshots: vec![snapshot],
            names_from: 0,
            contents_from: BTreeMap::new(),
            touched: BTreeMap::new(),
        }
    }

    pub(super) fn note(&mut self, pair: &Pair) {
        let now = self.snapshots.len();
        let before = &self.snapshots[now - 1].model;
        for (id, file) in &pair.model.files {
            let names = |model: &Model| -> Vec<(u64, String)> {
                let of_file = model.names.iter().filter(|(_, named)| **named == Named::File(*id));
                of_file.map(|(name, _)| name.clone()).collect()
            };
            let same = before.files.get(id).is_some_and(|old| {
                (old.links, &old.attributes) == (file.links, &file.attributes)
                    && before.rights[id] == pair.model.rights[id]
                    && names(before) == names(&pair.model)
            });
            if !same {
                self.touched.insert(*id, now);
            }
        }
        self.snapshots.push(Snapshot { model: pair.model.clone(), inos: pair.inos.clone() });
    }

    pub(super) fn durable(&mut self, what: Durable) {
        let now = self.snapshots.len() - 1;
        match what {
            Durable::All => {
                self.names_from = now;
                let files = self.snapshots[now].model.files.keys();
                self.contents_from.extend(files.map(|id| (*id, now)));
            }
            Durable::File(id) => self.durable_file(id, now),
            Durable::Before(id) => self.durable_file(id, now - 1),
        }
    }

    fn durable_file(&mut self, id: u64, at: usize) {
        // A commit takes everything before it along.
        self.names_from = self.names_from.max(self.touched.get(&id).copied().unwrap_or(0));
        self.contents_from.insert(id, at);
    }

    /// The snapshot whose names are found. Their files get the contents that are found.
    pub(super) async fn found(&self, fs: &Fs, what: &str) -> Snapshot {
        let mut names = BTreeMap::new();
        let mut folders = vec![ROOT];
        while let Some(folder) = folders.pop() {
            for entry in fs.read_folder(folder, 2, 100).await.expect("listed") {
                let name = String::from_utf8(entry.name).expect("a name");
                if entry.kind == weft_fs::Kind::Folder {
                    folders.push(entry.ino);
                }
                names.insert((folder, name), entry.ino);
            }
        }
        let mut fits = Vec::new();
        for (n, snapshot) in self.snapshots.iter().enumerate().skip(self.names_from) {
            let number = |named: &Named| match named {
                Named::File(id) | Named::Folder(id) => snapshot.inos[id],
            };
            let of_snapshot = snapshot.model.names.iter();
            let of_snapshot = of_snapshot
                .map(|((folder, name), named)| {
                    ((snapshot.inos[folder], name.clone()), number(named))
                })
                .collect::<BTreeMap<_, _>>();
            if of_snapshot == names && self.has_attributes(fs, snapshot).await {
                fits.push(n);
            }
        }
        let last = fits.last().unwrap_or_else(|| {
            panic!("{what}: names of no time since {}: {names:?}", self.names_from)
        });
        let mut snapshot = self.snapshots[*last].clone();
        for (id, file) in &mut snapshot.model.files {
            let ino = snapshot.inos[id];
            file.bytes = read_all(fs, ino).await;
            let last = (file.bytes.len() as u64).saturating_sub(BLOCK);
            let ends_with_block = fs.seek(ino, last, true).await.expect("a file") == Some(last);
            self.check_contents(*id, &file.bytes, ends_with_block, what);
        }
        snapshot
    }

    async fn has_attributes(&self, fs: &Fs, snapshot: &Snapshot) -> bool {
        for (id, file) in &snapshot.model.files {
            let ino = snapshot.inos[id];
            let rights = &snapshot.model.rights[id];
            if !rights.are_of(fs, ino, &file.attributes).await
                || fs.attr(ino).await.expect("there").links != file.links
            {
                return false;
            }
        }
        for named in snapshot.model.names.values() {
            if let Named::Folder(id) = named
                && let rights = &snapshot.model.rights[id]
                && !rights.are_of(fs, snapshot.inos[id], &BTreeMap::new()).await
            {
                return false;
            }
        }
        let root = &snapshot.model.rights[&0];
        if !root.are_of(fs, ROOT, &BTreeMap::new()).await {
            return false;
        }
        true
    }

    fn check_contents(&self, id: u64, found: &[u8], ends_with_block: bool, what: &str) {
        let from = self.contents_from.get(&id).copied().unwrap_or(0);
        let versions = self.snapshots[from..].iter().filter_map(|at| at.model.files.get(&id));
        let mut versions: Vec<&Vec<u8>> = versions.map(|file| &file.bytes).collect();
        let nothing = Vec::new();
        if !self.contents_from.contains_key(&id) && !self.snapshots[0].model.files.contains_key(&id)
        {
            // It was made since.
            versions.push(&nothing);
        }
        let sizes: Vec<usize> = versions.iter().map(|bytes| bytes.len()).collect();
        // Writes behind the end may take several flushes, in order, with a commit between them.
        // Then the file ends with a block that has been written, or in a hole that was punched
        // there.
        let end = found.len();
        let may_be_hole = |bytes: &&Vec<u8>| {
            let last = bytes.get(end.saturating_sub(BLOCK as usize)..end);
            last.is_some_and(|last| last.iter().all(|byte| *byte == 0))
        };
        let is_part = sizes.windows(2).any(|pair| pair[0] < end && end < pair[1])
            && end.is_multiple_of(BLOCK as usize)
            && (ends_with_block || versions.iter().any(may_be_hole));
        let fits = sizes.contains(&end) || is_part;
        assert!(fits, "{what}: file {id}: {end} of {sizes:?}");
        for (n, sector) in found.chunks(SECTOR).enumerate() {
            let fits = |bytes: &&Vec<u8>| {
                let there = bytes.get(n * SECTOR..).unwrap_or_default();
                let len = there.len().min(sector.len());
                there[..len] == sector[..len] && sector[len..].iter().all(|byte| *byte == 0)
            };
            assert!(versions.iter().any(fits), "{what}: sector {n} of file {id}");
        }
    }
}

/// What is there when the power fails.
pub(super) struct Moment {
    pub(super) media: Media,
    pub(super) history: History,
    /// Whether a block with contents may be unreadable: no disk may be lost as well.
    pub(super) may_lack: bool,
    /// Whether a disk is lost that may not be rebuilt yet: no block may be unreadable as well.
    pub(super) may_be_degraded: bool,
    /// Whether a slice of the metadata was not as it should be: no disk may be lost as well.
    pub(super) may_lack_copy: bool,
    /// Blocks that were overwritten at new places.
    pub(super) afresh: u64,
}
