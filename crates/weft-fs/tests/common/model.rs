//! The reference: a file system in memory, as plain as can be, and a client that does the same to
//! both and compares.

use std::collections::BTreeMap;

use weft_fs::{Fs, FsError, Ino, Kind, ROOT, Rename, SetAttr, Time};
use weft_random::Rng;
use weft_rt::Frozen;

use super::{NOW, new_file, pattern, read_all, set};

/// A file of the reference.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct File {
    pub bytes: Vec<u8>,
    pub links: u32,
    pub attributes: BTreeMap<String, Vec<u8>>,
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    File(u64),
    Folder(u64),
}

/// The reference.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Model {
    pub files: BTreeMap<u64, File>,
    /// Folder (0: root) and name.
    pub names: BTreeMap<(u64, String), Named>,
    next: u64,
}

/// Both, and the numbers that the file system gave to what the reference has.
pub struct Pair {
    pub fs: Fs,
    pub model: Model,
    pub inos: BTreeMap<u64, Ino>,
    pub rng: Rng,
    /// Redundancies to choose from.
    pub redundancies: Vec<&'static str>,
    /// What the last step made durable.
    pub durable: Option<Durable>,
}

/// What was made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durable {
    All,
    File(u64),
}

impl Pair {
    pub fn new(fs: Fs, seed: u64, redundancies: &[&'static str]) -> Self {
        Self {
            fs,
            model: Model { next: 1, ..Model::default() },
            inos: BTreeMap::from([(0, ROOT)]),
            rng: Rng::new(seed),
            redundancies: redundancies.to_vec(),
            durable: None,
        }
    }

    fn folder(&mut self) -> u64 {
        let folders = self.model.names.values().filter_map(|named| match named {
            Named::Folder(id) => Some(*id),
            Named::File(_) => None,
        });
        let all: Vec<u64> = folders.chain([0]).collect();
        *self.rng.pick(&all)
    }

    fn name(&mut self) -> (u64, String) {
        (self.folder(), format!("n{}", self.rng.below(4)))
    }

    fn file(&mut self) -> Option<u64> {
        let all: Vec<u64> = self.model.files.keys().copied().collect();
        (!all.is_empty()).then(|| *self.rng.pick(&all))
    }

    /// One random operation.
    pub async fn step(&mut self) {
        self.durable = None;
        match self.rng.below(20) {
            0 | 1 => self.make(Kind::File).await,
            2 => self.make(Kind::Folder).await,
            3 => self.remove().await,
            4 => self.rename().await,
            5 => self.link().await,
            6 => self.truncate().await,
            7 => self.punch().await,
            8 => self.redundancy().await,
            9 => self.attribute().await,
            10 => {
                self.fs.sync().await.expect("synced");
                self.durable = Some(Durable::All);
            }
            11 | 12 => self.read().await,
            13 => self.fsync().await,
            _ => self.write().await,
        }
    }

    pub async fn fsync(&mut self) {
        let Some(id) = self.file() else { return };
        self.fs.fsync(self.inos[&id]).await.expect("synced");
        self.durable = Some(Durable::File(id));
    }

    /// Changes some bytes of a file that has them.
    pub async fn overwrite(&mut self) {
        self.durable = None;
        let Some(id) = self.file() else { return };
        let size = self.model.files[&id].bytes.len() as u64;
        if size > 0 {
            let offset = self.rng.below(size);
            let len = (self.rng.below(5000) + 1).min(size - offset);
            self.write_at(id, offset, len).await;
            // As the kernel does before it asks for an fsync.
            let time = Some(Time { s: NOW.s + 1, ns: self.rng.below(1 << 20) as u32 });
            let times = SetAttr { modified: time, changed: time, ..SetAttr::default() };
            let inode = self.fs.set_attr(self.inos[&id], times).await.expect("set");
            assert_eq!(Some(inode.modified), time);
        }
    }

    async fn make(&mut self, kind: Kind) {
        let (folder, name) = self.name();
        let made = self.fs.make(self.inos[&folder], name.as_bytes(), new_file(kind)).await;
        if self.model.names.contains_key(&(folder, name.clone())) {
            assert!(matches!(made, Err(FsError::Exists)), "{made:?}");
            return;
        }
        let (ino, _) = made.expect("made");
        let id = self.model.next;
        self.model.next += 1;
        self.inos.insert(id, ino);
        let named = match kind {
            Kind::Folder => Named::Folder(id),
            _ => {
                self.model.files.insert(id, File { links: 1, ..File::default() });
                Named::File(id)
            }
        };
        self.model.names.insert((folder, name), named);
    }

    fn is_empty(&self, folder: u64) -> bool {
        !self.model.names.keys().any(|(above, _)| *above == folder)
    }

    fn drop_link(&mut self, id: u64) {
        let file = self.model.files.get_mut(&id).expect("a file");
        file.links -= 1;
        if file.links == 0 {
            self.model.files.remove(&id);
            self.inos.remove(&id);
        }
    }

    async fn remove(&mut self) {
        let (folder, name) = self.name();
        let (ino, key) = (self.inos[&folder], (folder, name.clone()));
        match self.model.names.get(&key).copied() {
            None => {
                let gone = self.fs.unlink(ino, name.as_bytes()).await;
                assert!(matches!(gone, Err(FsError::NotFound)), "{gone:?}");
            }
            Some(Named::File(id)) => {
                self.fs.unlink(ino, name.as_bytes()).await.expect("removed");
                self.model.names.remove(&key);
                self.drop_link(id);
            }
            Some(Named::Folder(id)) => {
                let gone = self.fs.remove_folder(ino, name.as_bytes()).await;
                if self.is_empty(id) {
                    gone.expect("removed");
                    self.model.names.remove(&key);
                } else {
                    assert!(matches!(gone, Err(FsError::NotEmpty)), "{gone:?}");
                }
            }
        }
    }

    fn is_within(&self, mut folder: u64, above: u64) -> bool {
        loop {
            if folder == above {
                return true;
            }
            let parent =
                self.model.names.iter().find(|(_, named)| **named == Named::Folder(folder));
            match parent {
                Some(((parent, _), _)) => folder = *parent,
                None => return false,
            }
        }
    }

    async fn rename(&mut self) {
        let (from, to) = (self.name(), self.name());
        let inos = (self.inos[&from.0], self.inos[&to.0]);
        let how = *self.rng.pick(&[Rename::Replace, Rename::NoReplace, Rename::Exchange]);
        let done =
            self.fs.rename((inos.0, from.1.as_bytes()), (inos.1, to.1.as_bytes()), how).await;
        let (moved, other) =
            (self.model.names.get(&from).copied(), self.model.names.get(&to).copied());
        let into_itself = |named: Option<Named>, folder| match named {
            Some(Named::Folder(id)) => self.is_within(folder, id),
            _ => false,
        };
        let replaces = match (moved, other) {
            (Some(Named::File(_)), Some(Named::File(_))) => true,
            (Some(Named::Folder(_)), Some(Named::Folder(id))) => self.is_empty(id),
            _ => false,
        };
        let same = moved == other;
        let fine = moved.is_some()
            && !into_itself(moved, to.0)
            && match (how, other) {
                (Rename::Exchange, None) => false,
                (_, None) => true,
                (Rename::NoReplace, _) => false,
                (_, _) if same => true,
                (Rename::Exchange, _) => !into_itself(other, from.0),
                (Rename::Replace, _) => replaces,
            };
        assert_eq!(done.is_ok(), fine, "{from:?} to {to:?}, {how:?}: {done:?}");
        let Some(moved) = moved.filter(|_| fine && !same) else { return };
        self.model.names.remove(&from);
        if let Some(other) = self.model.names.insert(to, moved) {
            match (how, other) {
                (Rename::Exchange, _) => drop(self.model.names.insert(from, other)),
                (_, Named::File(id)) => self.drop_link(id),
                _ => {}
            }
        }
    }

    async fn link(&mut self) {
        let Some(id) = self.file() else { return };
        let (folder, name) = self.name();
        let linked = self.fs.link(self.inos[&id], self.inos[&folder], name.as_bytes()).await;
        if self.model.names.contains_key(&(folder, name.clone())) {
            assert!(matches!(linked, Err(FsError::Exists)), "{linked:?}");
        } else {
            linked.expect("linked");
            self.model.files.get_mut(&id).expect("a file").links += 1;
            self.model.names.insert((folder, name), Named::File(id));
        }
    }

    /// Mostly near the file, sometimes far behind its end.
    fn range(&mut self, id: u64) -> (u64, u64) {
        let size = self.model.files[&id].bytes.len() as u64;
        let most = if self.rng.chance(10) { 200_000 } else { size + 10_000 };
        let mut offset = self.rng.below(most);
        let mut len = self.rng.below(*self.rng.clone().pick(&[100, 5000, 60_000])) + 1;
        if self.rng.chance(50) {
            (offset, len) = (offset / 4096 * 4096, len.next_multiple_of(4096));
        }
        (offset, len)
    }

    pub async fn write(&mut self) {
        let Some(id) = self.file() else { return };
        let (offset, len) = self.range(id);
        self.write_at(id, offset, len).await;
    }

    async fn write_at(&mut self, id: u64, offset: u64, len: u64) {
        let data = pattern(len as usize, self.rng.next_u64());
        self.fs.write(self.inos[&id], offset, Frozen::copy_from(&data)).await.expect("written");
        let bytes = &mut self.model.files.get_mut(&id).expect("a file").bytes;
        let end = (offset + len) as usize;
        bytes.resize(bytes.len().max(end), 0);
        bytes[offset as usize..end].copy_from_slice(&data);
    }

    async fn read(&mut self) {
        let Some(id) = self.file() else { return };
        let (offset, len) = self.range(id);
        let found = self.fs.read(self.inos[&id], offset, len as usize).await.expect("read");
        let bytes = &self.model.files[&id].bytes;
        let from = (offset as usize).min(bytes.len());
        let to = ((offset + len) as usize).min(bytes.len());
        assert!(*found == bytes[from..to], "{len} bytes at {offset}");
    }

    async fn truncate(&mut self) {
        let Some(id) = self.file() else { return };
        let size = self.range(id).0;
        let set = weft_fs::SetAttr { size: Some(size), ..weft_fs::SetAttr::default() };
        let inode = self.fs.set_attr(self.inos[&id], set).await.expect("cut");
        assert_eq!(inode.size, size);
        self.model.files.get_mut(&id).expect("a file").bytes.resize(size as usize, 0);
    }

    async fn punch(&mut self) {
        let Some(id) = self.file() else { return };
        let (offset, len) = self.range(id);
        self.fs.punch_hole(self.inos[&id], offset, len).await.expect("punched");
        let bytes = &mut self.model.files.get_mut(&id).expect("a file").bytes;
        let end = ((offset + len) as usize).min(bytes.len());
        if (offset as usize) < end {
            bytes[offset as usize..end].fill(0);
        }
    }

    async fn redundancy(&mut self) {
        let Some(id) = self.file() else { return };
        let redundancy = *self.rng.pick(&self.redundancies.clone());
        set(&self.fs, self.inos[&id], redundancy).await.expect("set");
    }

    async fn attribute(&mut self) {
        let Some(id) = self.file() else { return };
        let name = format!("user.{}", self.rng.below(3));
        let ino = self.inos[&id];
        let attributes = &mut self.model.files.get_mut(&id).expect("a file").attributes;
        if self.rng.chance(50) {
            let value = pattern(self.rng.below(50) as usize, 1);
            self.fs.set_xattr(ino, name.as_bytes(), &value, None).await.expect("set");
            attributes.insert(name, value);
        } else {
            let removed = self.fs.remove_xattr(ino, name.as_bytes()).await;
            assert_eq!(removed.is_ok(), attributes.remove(&name).is_some());
        }
    }

    /// Everything is as the reference says.
    pub async fn compare(&self) {
        let mut found = Vec::new();
        let mut folders = vec![(0, ROOT)];
        while let Some((folder, ino)) = folders.pop() {
            let mut after = 2;
            loop {
                let entries = self.fs.read_folder(ino, after, 3).await.expect("listed");
                let Some(last) = entries.last() else { break };
                after = last.position;
                for entry in entries {
                    let name = String::from_utf8(entry.name).expect("a name");
                    let key = (folder, name);
                    let named = self.model.names.get(&key).copied();
                    let named = named.unwrap_or_else(|| panic!("{key:?} should not be there"));
                    let id = match named {
                        Named::Folder(id) => {
                            assert_eq!(entry.kind, Kind::Folder, "{key:?}");
                            folders.push((id, entry.ino));
                            id
                        }
                        Named::File(id) => id,
                    };
                    assert_eq!(self.inos[&id], entry.ino, "{key:?}");
                    found.push(key);
                }
            }
        }
        assert_eq!(found.len(), self.model.names.len(), "{found:?}");
        for (id, file) in &self.model.files {
            let ino = self.inos[id];
            let inode = self.fs.attr(ino).await.expect("there");
            assert_eq!((inode.size, inode.links), (file.bytes.len() as u64, file.links));
            let found = read_all(&self.fs, ino).await;
            let differs = found.iter().zip(&file.bytes).position(|(found, byte)| found != byte);
            assert_eq!(differs, None, "file {id}, inode {ino}");
            let names = self.fs.xattr_names(ino).await.expect("listed");
            assert_eq!(names.len(), file.attributes.len(), "attributes of file {id}");
            for (name, value) in &file.attributes {
                let found = self.fs.xattr(ino, name.as_bytes()).await.expect("there");
                assert_eq!(&found, value);
            }
        }
    }
}
