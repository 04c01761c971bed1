//! The reference: a file system in memory, as plain as can be, and a client that does the same to
//! both and compares.

use std::collections::BTreeMap;

use futures_util::future::join;
use weft_fs::{Fs, FsError, Ino, Kind, NewFile, ROOT, Rename, SetAttr, SetXattr, Time};
use weft_random::Rng;
use weft_rt::{Frozen, MILLISECOND, Rt};

use super::{BLOCK, NOW, new_file, pattern, read_all, set};

/// A file of the reference.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct File {
    pub bytes: Vec<u8>,
    pub links: u32,
    pub attributes: BTreeMap<String, Vec<u8>>,
}

/// Folders inherit it.
const SET_GID: u32 = 0o2000;

/// An access control list: the owner, user 7, the group, the mask, others.
pub type List = [u16; 5];

/// Permissions of a file or folder.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Rights {
    pub mode: u32,
    pub access: Option<List>,
    pub default: Option<List>,
}

impl Rights {
    /// Of something made with a mode, in a folder with this default list.
    fn new(mode: u32, is_folder: bool, default: Option<List>) -> Self {
        let Some(list) = default else { return Self { mode, ..Self::default() } };
        let asked = Self::classes(mode);
        let access = [list[0] & asked[0], list[1], list[2], list[3] & asked[1], list[4] & asked[2]];
        let default = default.filter(|_| is_folder);
        Self { mode: Self::bits(access), access: Some(access), default }
    }

    fn classes(mode: u32) -> [u16; 3] {
        [6, 3, 0].map(|shift| (mode >> shift & 7) as u16)
    }

    /// The mode that a list shows as.
    fn bits(list: List) -> u32 {
        [list[0], list[3], list[4]].iter().fold(0, |mode, class| mode << 3 | u32::from(*class))
    }

    fn chmod(&mut self, mode: u32) {
        self.mode = mode;
        let [owner, mask, other] = Self::classes(mode);
        self.access = self.access.map(|list| [owner, list[1], list[2], mask, other]);
    }

    /// The attributes that it shows as.
    pub fn attributes(&self) -> BTreeMap<String, Vec<u8>> {
        let bytes = |list: List| {
            let entry = |(rights, (tag, id)): (u16, (u16, u32))| {
                [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
            };
            let tags = [(1, u32::MAX), (2, 7), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)];
            let entries = list.into_iter().zip(tags).flat_map(entry);
            [2, 0, 0, 0].into_iter().chain(entries).collect::<Vec<u8>>()
        };
        let both = [("access", self.access), ("default", self.default)];
        let both = both.into_iter().filter_map(|(name, list)| Some((name, bytes(list?))));
        both.map(|(name, bytes)| (format!("system.posix_acl_{name}"), bytes)).collect()
    }

    /// The permissions and attributes of a file are these.
    pub async fn are_of(&self, fs: &Fs, ino: Ino, others: &BTreeMap<String, Vec<u8>>) -> bool {
        let mut wanted = self.attributes();
        wanted.extend(others.clone());
        let mut found = BTreeMap::new();
        for name in fs.xattr_names(ino).await.expect("listed") {
            let value = fs.xattr(ino, &name).await.expect("there");
            found.insert(String::from_utf8(name).expect("text"), value);
        }
        found == wanted && fs.attr(ino).await.expect("there").mode & 0o7777 == self.mode
    }
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
    /// Of files and folders.
    pub rights: BTreeMap<u64, Rights>,
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
    /// A file as it was before the step.
    Before(u64),
}

impl Pair {
    pub fn new(fs: Fs, seed: u64, redundancies: &[&'static str]) -> Self {
        Self {
            fs,
            model: Model {
                next: 1,
                rights: BTreeMap::from([(0, Rights { mode: 0o755, ..Rights::default() })]),
                ..Model::default()
            },
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
        match self.rng.below(23) {
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
            21 => self.fsync_and_write().await,
            14 => self.permissions().await,
            15 => self.burst().await,
            22 => self.reserve().await,
            _ => self.write().await,
        }
    }

    /// A step, or something that changes and syncs much; or waits, which it tells by `false`.
    pub async fn step_or_wait(&mut self, rt: &Rt) -> bool {
        match self.rng.below(11) {
            0 => {
                let ms = self.rng.below(4000);
                rt.sleep(ms * MILLISECOND).await;
                return false;
            }
            1..=3 => self.overwrite().await,
            4 if self.rng.chance(50) => self.fsync_and_write().await,
            4 => self.fsync().await,
            5 if self.rng.chance(40) => self.append().await,
            5 => self.burst().await,
            _ => self.step().await,
        }
        true
    }

    pub async fn fsync(&mut self) {
        let Some(id) = self.file() else { return };
        self.fs.fsync(self.inos[&id]).await.expect("synced");
        self.durable = Some(Durable::File(id));
    }

    /// Writes to a file while it is made durable: often blocks that wait for that.
    pub async fn fsync_and_write(&mut self) {
        self.durable = None;
        let Some(id) = self.file() else { return };
        let (offset, len) = self.range(id);
        let (fs, ino) = (self.fs.clone(), self.inos[&id]);
        let written = self.write_at(id, offset, len);
        join(async move { fs.fsync(ino).await.expect("synced") }, written).await;
        self.durable = Some(Durable::Before(id));
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
        let (asked, umask) = (self.rng.below(0o1000) as u32, self.rng.below(0o1000) as u32);
        let new = NewFile { mode: kind.mode() | asked, umask, ..new_file(kind) };
        let (at, text) = (self.inos[&folder], name.as_bytes());
        let made = match kind == Kind::File && self.rng.chance(25) {
            false => self.fs.make(at, text, new).await.map(|(ino, _)| ino),
            // Its name follows. Without one it is to be deleted.
            true => {
                let (ino, _) = self.fs.make_unnamed(at, new).await.expect("made");
                self.fs.begin_use(ino);
                let linked = self.fs.link(ino, at, text).await.map(|_| ino);
                self.fs.end_uses(ino, 1).await.expect("used no more");
                linked
            }
        };
        if self.model.names.contains_key(&(folder, name.clone())) {
            assert!(matches!(made, Err(FsError::Exists)), "{made:?}");
            return;
        }
        let ino = made.expect("made");
        let id = self.model.next;
        self.model.next += 1;
        self.inos.insert(id, ino);
        let above = &self.model.rights[&folder];
        let mode = if above.default.is_some() { asked } else { asked & !umask };
        let mut rights = Rights::new(mode, kind == Kind::Folder, above.default);
        if kind == Kind::Folder {
            rights.mode |= above.mode & SET_GID;
        }
        self.model.rights.insert(id, rights);
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
            self.model.rights.remove(&id);
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

    /// Writes enough to a file's end for several batches.
    pub async fn append(&mut self) {
        self.durable = None;
        let Some(id) = self.file() else { return };
        let end = self.model.files[&id].bytes.len() as u64;
        let len = (20 + self.rng.below(40)) * BLOCK + self.rng.below(BLOCK);
        if end < 100 * BLOCK {
            self.write_at(id, end, len).await;
        }
    }

    /// Overwrites much of a file at once: more blocks than the log takes with their contents.
    pub async fn burst(&mut self) {
        self.durable = None;
        let Some(id) = self.file() else { return };
        let (first, blocks) = (self.rng.below(20), self.rng.below(50) + 64);
        let shift = self.rng.below(2) * 100;
        self.write_at(id, first * 4096 + shift, blocks * 4096).await;
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

    /// Reserves a part of a file, and often more than that.
    async fn reserve(&mut self) {
        let Some(id) = self.file() else { return };
        let (offset, len) = self.range(id);
        let (len, keep_size) = ((len + 1) * (1 + self.rng.below(4)), self.rng.chance(50));
        match self.fs.allocate(self.inos[&id], offset, len, keep_size).await {
            Ok(()) if !keep_size => {
                let bytes = &mut self.model.files.get_mut(&id).expect("a file").bytes;
                bytes.resize(bytes.len().max((offset + len) as usize), 0);
            }
            Ok(()) | Err(FsError::NoSpace) => {}
            Err(error) => panic!("{error}"),
        }
    }

    async fn redundancy(&mut self) {
        let Some(id) = self.file() else { return };
        let redundancy = *self.rng.pick(&self.redundancies.clone());
        let (fs, ino) = (self.fs.clone(), self.inos[&id]);
        let set = async move { set(&fs, ino, redundancy).await.expect("set") };
        if self.rng.chance(50) {
            return set.await;
        }
        // The file is written meanwhile.
        let (offset, len) = self.range(id);
        join(set, self.write_at(id, offset, len)).await;
    }

    /// A new mode or access control list, of a file or folder.
    async fn permissions(&mut self) {
        let named = self.model.names.values().map(|named| match named {
            Named::File(id) | Named::Folder(id) => *id,
        });
        let all: Vec<u64> = named.chain([0]).collect();
        let id = *self.rng.pick(&all);
        let ino = self.inos[&id];
        let list = [(); 5].map(|()| self.rng.below(8) as u16);
        let mode = self.rng.below(0o10000) as u32;
        let is_folder = !self.model.files.contains_key(&id);
        let kept = self.model.rights.get_mut(&id).expect("known");
        let mut set = None;
        match self.rng.below(4) {
            0 => {
                let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
                self.fs.set_attr(ino, set).await.expect("set");
                kept.chmod(mode);
            }
            1 => {
                kept.mode = kept.mode & !0o777 | Rights::bits(list);
                kept.access = Some(list);
                set = Some("system.posix_acl_access");
            }
            2 if is_folder => {
                kept.default = Some(list);
                set = Some("system.posix_acl_default");
            }
            _ => {
                self.fs.remove_xattr(ino, b"system.posix_acl_access").await.expect("removed");
                kept.access = None;
            }
        }
        if let Some(name) = set {
            let value = &kept.attributes()[name];
            let how = SetXattr::default();
            self.fs.set_xattr(ino, name.as_bytes(), value, how).await.expect("set");
        }
    }

    async fn attribute(&mut self) {
        let Some(id) = self.file() else { return };
        let name = format!("user.{}", self.rng.below(3));
        let ino = self.inos[&id];
        let attributes = &mut self.model.files.get_mut(&id).expect("a file").attributes;
        if self.rng.chance(50) {
            let value = pattern(self.rng.below(50) as usize, 1);
            self.fs
                .set_xattr(ino, name.as_bytes(), &value, SetXattr::default())
                .await
                .expect("set");
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
        let none = BTreeMap::new();
        let named = self.model.names.values().map(|named| match named {
            Named::File(id) => (*id, &self.model.files[id].attributes),
            Named::Folder(id) => (*id, &none),
        });
        for (id, others) in named.chain([(0, &none)]) {
            let rights = &self.model.rights[&id];
            assert!(rights.are_of(&self.fs, self.inos[&id], others).await, "{id}: {rights:?}");
        }
        for (id, file) in &self.model.files {
            let ino = self.inos[id];
            let inode = self.fs.attr(ino).await.expect("there");
            assert_eq!((inode.size, inode.links), (file.bytes.len() as u64, file.links));
            let found = read_all(&self.fs, ino).await;
            let differs = found.iter().zip(&file.bytes).position(|(found, byte)| found != byte);
            assert_eq!(differs, None, "file {id}, inode {ino}");
        }
    }
}
