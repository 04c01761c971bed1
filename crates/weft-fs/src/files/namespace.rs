//! Names: folders, files in them, links.
//!
//! Every operation is one closure in the open transaction: it checks everything, then changes
//! everything. So a crash leaves an operation whole or not at all.
//!
//! Each entry of a folder has a position, which is never used again in that folder, but by the
//! entry that replaces it: who replaces what a reader has just seen does not lead it on for ever.
//! Readers of a folder continue after the position of the last entry they saw, regardless of
//! entries added or removed since.

use std::rc::Rc;

use weft_token::Mode;

use crate::error::{FsError, Result};
use crate::files::acl;
use crate::format::inode::{Flags, Ino, Inode, Kind, ROOT, SET_GID, Time};
use crate::format::redundancy::Redundancy;
use crate::meta::{Entry, NEXT_INODE, Tx};
use crate::state::mounted::{Fs, FsState};

/// Longest name, in bytes.
pub(crate) const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
const TARGET_MAX: usize = 4095;
/// Most names of a file.
const LINKS_MAX: u32 = 1 << 31;
/// Position of a folder's first entry: 1 and 2 are `.` and `..`.
const FIRST_POSITION: u64 = 3;

/// A file to be made.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewFile<'a> {
    /// Type and permissions.
    pub mode: u32,
    /// Permissions that it does not get, unless its folder has a default access control list.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of a device.
    pub device: u32,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

/// What a rename does if the new name is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename {
    /// It is replaced.
    Replace,
    /// The rename fails.
    NoReplace,
    /// The two are exchanged.
    Exchange,
}

/// A character device with the number 0: to overlay file systems, a name that is gone.
const WHITEOUT: u32 = 0o020_000;

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// The file.
    pub ino: Ino,
    /// Its type.
    pub kind: Kind,
    /// Readers continue with the next position.
    pub position: u64,
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(FsError::TooLong);
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(FsError::Invalid("this is no name for a file".into()));
    }
    Ok(())
}

fn folder(tx: &Tx<'_>, ino: Ino) -> Result<Inode> {
    let inode = tx.inode(ino)?;
    if inode.is_folder() { Ok(inode) } else { Err(FsError::NotFolder) }
}

/// A folder that is to get names.
fn folder_to_add(tx: &Tx<'_>, ino: Ino) -> Result<()> {
    let inode = folder(tx, ino)?;
    if inode.links == 0 {
        // It was removed, and is still used.
        return Err(FsError::NotFound);
    }
    inode.flags.check_change()
}

/// A folder from which names are removed.
fn folder_to_take(tx: &Tx<'_>, ino: Ino) -> Result<Inode> {
    let inode = folder(tx, ino)?;
    inode.flags.check_set().map(|()| inode)
}

/// Adds an entry to a folder, at a new position.
fn add(tx: &Tx<'_>, into: Ino, name: &[u8], file: (Ino, &Inode), now: Time) -> Result<()> {
    let parent = folder(tx, into)?;
    let position = parent.next_position;
    note_added(tx, into, parent, position, file.1, now)?;
    tx.add_entry(into, name, &Entry { ino: file.0, mode: file.1.kind().mode(), position });
    Ok(())
}

/// A folder gets an entry.
fn note_added(
    tx: &Tx<'_>,
    into: Ino,
    mut parent: Inode,
    position: u64,
    inode: &Inode,
    now: Time,
) -> Result<()> {
    parent.next_position = parent.next_position.max(position + 1);
    parent.size += 1;
    parent.links += u32::from(inode.is_folder());
    (parent.modified, parent.changed) = (now, now);
    tx.put_inode(into, &parent)
}

/// Adds an entry at a position that was taken from another entry.
fn add_at(
    tx: &Tx<'_>,
    into: Ino,
    (name, position): (&[u8], u64),
    (ino, inode): (Ino, &Inode),
    now: Time,
) -> Result<()> {
    note_added(tx, into, folder(tx, into)?, position, inode, now)?;
    tx.put_entry(into, name, &Entry { ino, mode: inode.kind().mode(), position })
}

/// Removes an entry from a folder.
fn take(tx: &Tx<'_>, from: Ino, name: &[u8], entry: &Entry, now: Time) -> Result<()> {
    let mut parent = folder(tx, from)?;
    parent.size -= 1;
    parent.links -= u32::from(Kind::of_mode(entry.mode) == Kind::Folder);
    (parent.modified, parent.changed) = (now, now);
    tx.put_inode(from, &parent)?;
    tx.remove_entry(from, name, entry)
}

/// Whether `ino` is `above`, or in it.
fn is_within(tx: &Tx<'_>, mut ino: Ino, above: Ino) -> Result<bool> {
    loop {
        if ino == above {
            return Ok(true);
        }
        if ino == ROOT {
            return Ok(false);
        }
        ino = tx.inode(ino)?.parent;
    }
}

impl FsState {
    /// Makes the root folder.
    pub(crate) fn make_root(tx: &Tx<'_>, redundancy: Redundancy, now: Time) -> Result<()> {
        let root = Inode {
            mode: Kind::Folder.mode() | 0o755,
            uid: 0,
            gid: 0,
            links: 2,
            device: 0,
            size: 0,
            accessed: now,
            modified: now,
            changed: now,
            born: now.as_birth(),
            flags: Flags::default(),
            blocks: 0,
            parent: ROOT,
            next_position: FIRST_POSITION,
            generation: 0,
            redundancy,
        };
        tx.set_state(NEXT_INODE, ROOT + 1)?;
        tx.put_inode(ROOT, &root)
    }

    /// A name of a file goes. Returns whether that was the last, of a file that is not in use: it
    /// must be purged.
    fn drop_link(&self, tx: &Tx<'_>, ino: Ino, now: Time) -> Result<bool> {
        let mut inode = tx.inode(ino)?;
        inode.links = if inode.is_folder() { 0 } else { inode.links - 1 };
        inode.changed = now;
        tx.put_inode(ino, &inode)?;
        if inode.links > 0 {
            return Ok(false);
        }
        tx.put_orphan(ino)?;
        Ok(!self.open_files().is_used(ino))
    }

    async fn unlink(self: &Rc<Self>, parent: Ino, name: &[u8], is_folder: bool) -> Result<()> {
        self.begin_change().await?;
        let _held = self.hold_names(&[(parent, name)], &[]).await?;
        let now = self.now();
        let purge = self
            .change(|tx| {
                folder_to_take(tx, parent)?;
                let entry = tx.entry(parent, name)?.ok_or(FsError::NotFound)?;
                let inode = tx.inode(entry.ino)?;
                inode.flags.check_set()?;
                match (is_folder, inode.is_folder()) {
                    (true, false) => return Err(FsError::NotFolder),
                    (false, true) => return Err(FsError::IsFolder),
                    (true, true) if inode.size > 0 => return Err(FsError::NotEmpty),
                    _ => {}
                }
                take(tx, parent, name, &entry, now)?;
                Ok(self.drop_link(tx, entry.ino, now)?.then_some(entry.ino))
            })
            .await?;
        match purge {
            Some(ino) => self.purge_nameless(ino).await,
            None => Ok(()),
        }
    }

    /// Writes the blocks of a file that is to replace another one. Programs write a new version of
    /// a file and rename it without fsync: after a crash there must be the old one or the new one,
    /// and not an empty file. The commit with the new name comes after these blocks.
    async fn write_before_replace(
        &self,
        (from, name): (Ino, &[u8]),
        (to, new_name): (Ino, &[u8]),
    ) -> Result<()> {
        let found = self.meta().run(|tx| {
            let is_taken = tx.entry(to, new_name)?.is_some();
            Ok(tx.entry(from, name)?.filter(|_| is_taken).map(|entry| entry.ino))
        });
        let node = found.await?.and_then(|ino| self.open_files().get(ino));
        if let Some(node) = node {
            // What cannot be written stays, and fsync tells.
            if self.flush_file(&node).await.is_ok() {
                self.settle_early(&node).await?;
            }
        }
        Ok(())
    }

    async fn rename(
        self: &Rc<Self>,
        (from, name): (Ino, &[u8]),
        (to, new_name): (Ino, &[u8]),
        how: Rename,
        whiteout: Option<NewFile<'_>>,
    ) -> Result<()> {
        self.begin_change().await?;
        check_name(new_name)?;
        if how == Rename::Exchange && whiteout.is_some() {
            return Err(FsError::Invalid("both names stay taken in an exchange".into()));
        }
        if how == Rename::Replace {
            self.write_before_replace((from, name), (to, new_name)).await?;
        }
        let _held = self.hold_names(&[(from, name), (to, new_name)], &[]).await?;
        let now = self.now();
        let renamed = self.change(|tx| {
            if new_name.len() > name.len() {
                self.check_room(0, false)?;
            }
            if let Some(whiteout) = &whiteout {
                self.check_room(0, whiteout.uid == 0)?;
            }
            folder_to_take(tx, from)?;
            folder_to_add(tx, to)?;
            // It takes the place of the entry that leaves, in the same transaction: no reader and
            // no crash finds the name free.
            let leave_whiteout = |entry: &Entry| match &whiteout {
                Some(new) => {
                    let (ino, inode) = self.make_inode(tx, from, new, 1, now)?;
                    add_at(tx, from, (name, entry.position), (ino, &inode), now)
                }
                None => Ok(()),
            };
            let entry = tx.entry(from, name)?.ok_or(FsError::NotFound)?;
            let target = tx.entry(to, new_name)?;
            let inode = tx.inode(entry.ino)?;
            inode.flags.check_set()?;
            if inode.is_folder() && is_within(tx, to, entry.ino)? {
                return Err(FsError::Invalid("a folder cannot be moved into itself".into()));
            }
            let Some(target) = target else {
                if how == Rename::Exchange {
                    return Err(FsError::NotFound);
                }
                take(tx, from, name, &entry, now)?;
                add(tx, to, new_name, (entry.ino, &inode), now)?;
                leave_whiteout(&entry)?;
                moved(tx, entry.ino, to, now)?;
                return Ok(None);
            };
            if how == Rename::NoReplace {
                return Err(FsError::Exists);
            }
            if target.ino == entry.ino {
                return Ok(None);
            }
            let other = tx.inode(target.ino)?;
            folder_to_take(tx, to)?;
            other.flags.check_set()?;
            if how == Rename::Exchange {
                if other.is_folder() && is_within(tx, from, target.ino)? {
                    return Err(FsError::Invalid("a folder cannot be moved into itself".into()));
                }
                take(tx, from, name, &entry, now)?;
                take(tx, to, new_name, &target, now)?;
                add_at(tx, to, (new_name, target.position), (entry.ino, &inode), now)?;
                add_at(tx, from, (name, entry.position), (target.ino, &other), now)?;
                moved(tx, entry.ino, to, now)?;
                moved(tx, target.ino, from, now)?;
                return Ok(None);
            }
            match (inode.is_folder(), other.is_folder()) {
                (true, false) => return Err(FsError::NotFolder),
                (false, true) => return Err(FsError::IsFolder),
                (true, true) if other.size > 0 => return Err(FsError::NotEmpty),
                _ => {}
            }
            take(tx, to, new_name, &target, now)?;
            take(tx, from, name, &entry, now)?;
            add_at(tx, to, (new_name, target.position), (entry.ino, &inode), now)?;
            leave_whiteout(&entry)?;
            moved(tx, entry.ino, to, now)?;
            Ok(self.drop_link(tx, target.ino, now)?.then_some(target.ino))
        });
        match renamed.await? {
            Some(ino) => self.purge_nameless(ino).await,
            None => Ok(()),
        }
    }

    /// Makes the inode of a file in a folder, with `names` names, which do not point to it yet.
    fn make_inode(
        &self,
        tx: &Tx<'_>,
        parent: Ino,
        new: &NewFile<'_>,
        names: u32,
        now: Time,
    ) -> Result<(Ino, Inode)> {
        let above = folder(tx, parent)?;
        let kind = Kind::of_mode(new.mode);
        let is_folder = kind == Kind::Folder;
        let inherits = above.mode & SET_GID != 0;
        let (mode, lists) = acl::of_new(tx, parent, new.mode, new.umask)?;
        let ino = tx.new_number()?;
        let inode = Inode {
            mode: mode | if inherits && is_folder { SET_GID } else { 0 },
            uid: new.uid,
            gid: if inherits { above.gid } else { new.gid },
            links: names + u32::from(is_folder),
            device: new.device,
            size: if kind == Kind::Symlink { new.target.len() as u64 } else { 0 },
            accessed: now,
            modified: now,
            changed: now,
            born: now.as_birth(),
            flags: Flags::default(),
            blocks: 0,
            parent: if is_folder { parent } else { 0 },
            next_position: FIRST_POSITION,
            // A number is used again if a crash took the file that had it. The epoch is another one
            // then.
            generation: self.log().epoch(),
            redundancy: above.redundancy,
        };
        tx.put_inode(ino, &inode)?;
        lists.put(tx, ino)?;
        if kind == Kind::Symlink {
            tx.put_symlink(ino, new.target)?;
        }
        Ok((ino, inode))
    }

    /// Makes a file, with a name or to be deleted.
    async fn make(
        self: &Rc<Self>,
        parent: Ino,
        name: Option<&[u8]>,
        new: NewFile<'_>,
        is_opened: bool,
    ) -> Result<(Ino, Inode)> {
        self.begin_change().await?;
        name.map_or(Ok(()), check_name)?;
        if new.target.len() > TARGET_MAX {
            return Err(FsError::TooLong);
        }
        let _held = match name {
            Some(name) => self.hold_names(&[(parent, name)], &[]).await?,
            None => self.hold_attributes(parent, Mode::Shared).await,
        };
        let now = self.now();
        let made = self.change(|tx| {
            self.check_room(0, new.uid == 0)?;
            folder_to_add(tx, parent)?;
            if let Some(name) = name
                && tx.entry(parent, name)?.is_some()
            {
                return Err(FsError::Exists);
            }
            let (ino, inode) = self.make_inode(tx, parent, &new, u32::from(name.is_some()), now)?;
            match name {
                Some(name) => add(tx, parent, name, (ino, &inode), now)?,
                None => tx.put_orphan(ino)?,
            }
            Ok((ino, inode))
        });
        let made = made.await?;
        if is_opened {
            self.open_new(made.0).await;
        }
        Ok(made)
    }
}

/// A file has another name now.
fn moved(tx: &Tx<'_>, ino: Ino, into: Ino, now: Time) -> Result<()> {
    let mut inode = tx.inode(ino)?;
    inode.changed = now;
    if inode.is_folder() {
        inode.parent = into;
    }
    tx.put_inode(ino, &inode)
}

impl Fs {
    /// The file with a name in a folder.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is none.
    pub async fn lookup(&self, parent: Ino, name: &[u8]) -> Result<(Ino, Inode)> {
        self.0.check()?;
        let find = |tx: &Tx<'_>| {
            let inode = folder(tx, parent)?;
            let ino = match name {
                b"." => parent,
                b".." => inode.parent,
                _ if name.len() > NAME_MAX => return Err(FsError::TooLong),
                _ => tx.entry(parent, name)?.ok_or(FsError::NotFound)?.ino,
            };
            Ok((ino, tx.inode(ino)?))
        };
        let mut held = self.0.hold_name(parent, name).await;
        let (mut ino, mut inode) = self.0.meta().run(find).await?;
        while !self.0.hold_found(&mut held, ino).await {
            (ino, inode) = self.0.meta().run(find).await?;
        }
        Ok((ino, self.0.seen(ino, inode)))
    }

    /// The file with a number, which is used from now on. One that has no name any more is there as
    /// long as it is in use.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is none.
    pub async fn lookup_number(&self, ino: Ino) -> Result<Inode> {
        self.0.check()?;
        let _held = self.0.hold_attributes(ino, Mode::Shared).await;
        let found = self.0.meta().run(|tx| {
            let inode = tx.inode(ino)?;
            // With its last use it begins to go.
            if inode.links == 0 && !self.0.open_files().is_used(ino) {
                return Err(FsError::NotFound);
            }
            self.0.open_files().begin_use(ino);
            Ok(inode)
        });
        Ok(self.0.seen(ino, found.await?))
    }

    /// Makes a file, folder, symbolic link or special file.
    ///
    /// # Errors
    /// If the name is taken or not possible, or there is no room.
    pub async fn make(&self, parent: Ino, name: &[u8], new: NewFile<'_>) -> Result<(Ino, Inode)> {
        self.0.make(parent, Some(name), new, false).await
    }

    /// Makes a file without a name, as if it were in a folder. It goes with its last use, or in
    /// a crash, unless it is given a name.
    ///
    /// # Errors
    /// If the folder is gone, or there is no room.
    pub async fn make_unnamed(&self, parent: Ino, new: NewFile<'_>) -> Result<(Ino, Inode)> {
        self.0.make(parent, None, new, false).await
    }

    /// [`Fs::make`], or without a name [`Fs::make_unnamed`], of a file that a program of this node
    /// opens as well: [`Fs::end_open`] follows.
    ///
    /// # Errors
    /// As those.
    pub async fn make_opened(
        &self,
        parent: Ino,
        name: Option<&[u8]>,
        new: NewFile<'_>,
    ) -> Result<(Ino, Inode)> {
        self.0.make(parent, name, new, true).await
    }

    /// Gives a file another name, or a name to one in use that has none: the kernel decides whether
    /// it may have one again.
    ///
    /// # Errors
    /// If the name is taken or not possible, or it is a folder.
    pub async fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Inode> {
        self.0.begin_change().await?;
        check_name(name)?;
        let _held = self.0.hold_names(&[(parent, name)], &[ino]).await?;
        let now = self.0.now();
        let linked = self.0.change(|tx| {
            self.0.check_room(0, false)?;
            let mut inode = tx.inode(ino)?;
            folder_to_add(tx, parent)?;
            inode.flags.check_set()?;
            if inode.is_folder() {
                return Err(FsError::IsFolder);
            }
            if tx.entry(parent, name)?.is_some() {
                return Err(FsError::Exists);
            }
            if inode.links >= LINKS_MAX {
                return Err(FsError::TooManyLinks);
            }
            // One that is not in use is being deleted.
            if inode.links == 0 && !self.0.open_files().is_used(ino) {
                return Err(FsError::NotFound);
            }
            if inode.links == 0 {
                tx.remove_orphan(ino)?;
            }
            inode.links += 1;
            inode.changed = now;
            tx.put_inode(ino, &inode)?;
            add(tx, parent, name, (ino, &inode), now)?;
            Ok(inode)
        });
        Ok(self.0.seen(ino, linked.await?))
    }

    /// Removes a name of a file; the file goes with its last name and use.
    ///
    /// # Errors
    /// If there is no such name, or it is a folder's.
    pub async fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let (fs, name) = (self.0.clone(), name.to_vec());
        self.0.rt().attach(|| async move { fs.unlink(parent, &name, false).await }).await
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// If there is none, or it has entries.
    pub async fn remove_folder(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let (fs, name) = (self.0.clone(), name.to_vec());
        self.0.rt().attach(|| async move { fs.unlink(parent, &name, true).await }).await
    }

    /// Renames a file or folder.
    ///
    /// # Errors
    /// If there is no such name, or the new one is taken by something that cannot be replaced.
    pub async fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), how: Rename) -> Result<()> {
        self.rename_to(from, to, how, None).await
    }

    /// Renames a file or folder, and leaves a whiteout in its place, which belongs to this user and
    /// group: a character device with the number 0, to overlay file systems a name that is gone.
    ///
    /// # Errors
    /// As [`Fs::rename`]; if there is no room for the whiteout, or the request exchanges the names.
    pub async fn rename_leaving_whiteout(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
        (uid, gid): (u32, u32),
    ) -> Result<()> {
        let whiteout = NewFile { mode: WHITEOUT, uid, gid, ..NewFile::default() };
        self.rename_to(from, to, how, Some(whiteout)).await
    }

    async fn rename_to(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
        whiteout: Option<NewFile<'static>>,
    ) -> Result<()> {
        let fs = self.0.clone();
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        let renamed =
            || async move { fs.rename((from.0, &from.1), (to.0, &to.1), how, whiteout).await };
        self.0.rt().attach(renamed).await
    }

    /// Up to `max` entries of a folder after a position, starting with `.` and `..` at 0.
    ///
    /// # Errors
    /// If it is no folder.
    pub async fn read_folder(&self, ino: Ino, after: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.0.check()?;
        let _held = self.0.hold_folder(ino).await;
        let read = self.0.meta().run(|tx| {
            let inode = folder(tx, ino)?;
            let times = inode.clone();
            let own = [(1, b".".to_vec(), ino), (2, b"..".to_vec(), inode.parent)];
            let own = own.into_iter().filter(|(position, ..)| *position > after);
            let own = own.map(|(position, name, ino)| DirEntry {
                name,
                ino,
                kind: Kind::Folder,
                position,
            });
            let mut entries: Vec<DirEntry> = own.collect();
            let entry = |(name, entry): (Vec<u8>, Entry)| DirEntry {
                name,
                ino: entry.ino,
                kind: Kind::of_mode(entry.mode),
                position: entry.position,
            };
            let stored = tx.entries(ino, (after + 1).max(FIRST_POSITION), max)?;
            entries.extend(stored.into_iter().map(entry));
            entries.truncate(max);
            Ok((entries, times))
        });
        let (entries, inode) = read.await?;
        if after == 0 {
            self.0.note_access(ino, &inode).await?;
        }
        Ok(entries)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// If it is none.
    pub async fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.0.check()?;
        let _held = self.0.hold_attributes(ino, Mode::Shared).await;
        let read = |tx: &Tx<'_>| Ok((tx.symlink(ino)?, tx.inode(ino)?));
        let (target, inode) = self.0.meta().run(read).await?;
        self.0.note_access(ino, &inode).await?;
        Ok(target)
    }
}
