//! Attributes: permissions, owners, sizes, times, and the privileges of programs.
//!
//! *Privileges* that a file gives to the user who executes it are its set-user-ID and set-group-ID
//! bits and its capabilities. They are meant for the contents and the owner that the file has, and
//! end as on other file systems of Linux: a new owner ends all of them, except for folders, even if
//! root changes it; a write or a new size ends the ones that the kernel names, which knows whether
//! the program may keep them, and always capabilities. A set-group-ID bit without the permission of
//! the group to execute gives no privilege (it once meant mandatory locks), and stays.

use std::rc::Rc;

use weft_token::Mode;

use crate::error::{FsError, Result};
use crate::files::acl;
use crate::format::inode::{Flags, Ino, Inode, SET_GID, SET_UID, Time};
use crate::meta::FORMAT_WITH_FLAGS;
use crate::meta::Tx;
use crate::state::mounted::{Fs, FsState};
use crate::state::open_files::PendingAttributes;

/// The permission of the group to execute.
const GROUP_EXEC: u32 = 0o010;
/// The attribute with the capabilities of a program.
const CAPABILITY: &[u8] = b"security.capability";

/// Attributes to be set; those that are none stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<Time>,
    /// Last change of contents.
    pub modified: Option<Time>,
    /// Last change of anything.
    pub changed: Option<Time>,
    /// Whether the times are not now.
    pub sets_times: bool,
    /// Whether the set-user-ID and set-group-ID bits of a file end. They do with every new owner,
    /// and not of folders.
    pub drop_suid: bool,
}

impl FsState {
    /// The kernel gathers writes, and sends the time of the last one before each fsync. It goes
    /// with the blocks that wait to be written: as a change of its own it would make fsync commit.
    fn times_go_with_blocks(&self, ino: Ino, set: &SetAttr) -> bool {
        let modified = set.modified.filter(|modified| set.changed == Some(*modified));
        let node = self.open_files().get(ino);
        let live = node.as_ref().and_then(|node| node.live.get());
        let (Some(modified), Some(node), Some(live)) = (modified, node, live) else { return false };
        let times = SetAttr { modified: set.modified, changed: set.changed, ..SetAttr::default() };
        if *set != times {
            return false;
        }
        node.live.set(Some(PendingAttributes { modified, ..live }));
        true
    }

    async fn set_attr(self: &Rc<Self>, ino: Ino, set: SetAttr) -> Result<Inode> {
        self.begin_change().await?;
        let _held = match set.size {
            Some(_) => self.hold_to_resize(ino).await,
            None => self.hold_attributes(ino, Mode::Exclusive).await,
        };
        if self.times_go_with_blocks(ino, &set) {
            let inode = self.meta().run(|tx| tx.inode(ino)).await?;
            return Ok(self.seen(ino, inode));
        }
        if let Some(size) = set.size {
            self.truncate(ino, size).await?;
        }
        let now = self.now();
        let inode = self
            .change(|tx| {
                let mut inode = tx.inode(ino)?;
                // Only the present time may be set on files that can be appended to.
                let is_touch =
                    set.mode.is_none() && !set.sets_times && set.uid.or(set.gid).is_none();
                match is_touch {
                    true => inode.flags.check_change()?,
                    false => inode.flags.check_set()?,
                }
                let kind = inode.kind().mode();
                let new_owner = set.uid.is_some() || set.gid.is_some();
                if new_owner || set.size.is_some() || set.drop_suid {
                    drop_privileges(tx, ino, &mut inode, new_owner || set.drop_suid)?;
                }
                if let Some(mode) = set.mode {
                    inode.mode = kind | mode & 0o7777;
                    acl::chmod(tx, ino, inode.mode)?;
                }
                inode.uid = set.uid.unwrap_or(inode.uid);
                inode.gid = set.gid.unwrap_or(inode.gid);
                inode.accessed = set.accessed.unwrap_or(inode.accessed);
                inode.modified = set.modified.unwrap_or(inode.modified);
                inode.changed = set.changed.unwrap_or(now);
                tx.put_inode(ino, &inode)?;
                Ok(inode)
            })
            .await?;
        if let Some(modified) = set.modified
            && let Some(node) = self.open_files().get(ino)
            && let Some(live) = node.live.get()
        {
            node.live.set(Some(PendingAttributes { modified, ..live }));
        }
        Ok(self.seen(ino, inode))
    }
}

/// Ends the privileges that a file gives to who executes it: its capabilities and, with `suid`, its
/// set-user-ID and set-group-ID bits. Returns whether it had any.
fn drop_privileges(tx: &Tx<'_>, ino: Ino, inode: &mut Inode, suid: bool) -> Result<bool> {
    let before = inode.mode;
    if suid && !inode.is_folder() {
        inode.mode &= !SET_UID;
        if inode.mode & GROUP_EXEC != 0 {
            inode.mode &= !SET_GID;
        }
    }
    let had = tx.has_xattr(ino, CAPABILITY)?;
    Ok((had && tx.remove_xattr(ino, CAPABILITY)?) || inode.mode != before)
}

impl Fs {
    /// The attributes of a file.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is none of this number.
    pub async fn attr(&self, ino: Ino) -> Result<Inode> {
        self.0.check()?;
        let _held = self.0.hold_attributes(ino, Mode::Shared).await;
        let inode = self.0.meta().run(|tx| tx.inode(ino)).await?;
        Ok(self.0.seen(ino, inode))
    }

    /// The attributes of a file, for a request that sets its size: while the kernel waits for that,
    /// it writes none of the file's pages.
    ///
    /// # Errors
    /// As [`Fs::attr`].
    pub async fn attr_to_resize(&self, ino: Ino) -> Result<Inode> {
        self.0.check()?;
        let _held = match self.0.sharing().has_kernel() {
            true => self.0.hold_pages(ino, 0..0, Mode::Shared).await,
            false => self.0.hold_attributes(ino, Mode::Shared).await,
        };
        let inode = self.0.meta().run(|tx| tx.inode(ino)).await?;
        Ok(self.0.seen(ino, inode))
    }

    /// The attributes of several files, in their order; none for inodes that are not there.
    ///
    /// # Errors
    /// If the metadata has failed.
    pub async fn attrs(&self, inos: &[Ino]) -> Result<Vec<Option<Inode>>> {
        self.0.check()?;
        let _held = self.0.hold_attributes_of(inos, Mode::Shared).await;
        let found = self.0.meta().run(|tx| {
            let inode = |ino: &Ino| match tx.inode(*ino) {
                Ok(inode) => Ok(Some(inode)),
                Err(FsError::NotFound) => Ok(None),
                Err(error) => Err(error),
            };
            inos.iter().map(inode).collect::<Result<Vec<_>>>()
        });
        let live = |(ino, inode): (&Ino, Option<Inode>)| Some(self.0.seen(*ino, inode?));
        Ok(inos.iter().zip(found.await?).map(live).collect())
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// If the file cannot have this size, or there is no such file.
    pub async fn set_attr(&self, ino: Ino, set: SetAttr) -> Result<Inode> {
        let fs = self.0.clone();
        self.0.rt().attach(|| async move { fs.set_attr(ino, set).await }).await
    }

    /// Fails if a file may not be opened for writing: only at its end if it `appends`.
    ///
    /// # Errors
    /// [`FsError::Immutable`], or if there is no such file.
    pub async fn check_open(&self, ino: Ino, appends: bool) -> Result<()> {
        if self.0.format() < FORMAT_WITH_FLAGS {
            return Ok(());
        }
        let flags = self.attr(ino).await?.flags;
        if appends { flags.check_change() } else { flags.check_set() }
    }

    /// Sets what `chattr` sets.
    ///
    /// # Errors
    /// If there is no such file.
    pub async fn set_flags(&self, ino: Ino, flags: Flags) -> Result<()> {
        self.0.begin_change().await?;
        let _held = self.0.hold_attributes(ino, Mode::Exclusive).await;
        let now = self.0.now();
        let set = self.0.change(|tx| {
            let mut inode = tx.inode(ino)?;
            inode.flags = flags;
            inode.changed = now;
            // Older versions would not obey them.
            self.0.raise_format(tx, FORMAT_WITH_FLAGS)?;
            tx.put_inode(ino, &inode)
        });
        set.await
    }

    /// Ends the privileges of a file that is written: its capabilities and, with `suid`, its
    /// set-user-ID and set-group-ID bits. Returns whether it had any.
    ///
    /// # Errors
    /// If there is no such file.
    pub async fn drop_privileges(&self, ino: Ino, suid: bool) -> Result<bool> {
        self.0.begin_change().await?;
        let _held = self.0.hold_privileges(ino).await;
        let dropped = self.0.change(|tx| {
            let mut inode = tx.inode(ino)?;
            let had = drop_privileges(tx, ino, &mut inode, suid)?;
            if had {
                tx.put_inode(ino, &inode)?;
            }
            Ok(had)
        });
        dropped.await
    }
}
