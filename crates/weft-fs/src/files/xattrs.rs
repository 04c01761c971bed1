//! Extended attributes.
//!
//! Most are bytes that are kept. Some mean something here: `user.weft.redundancy` shows and sets
//! the redundancy of a file, and the access control lists ([`crate::files::acl`]) go with its mode.

use weft_token::Mode;

use crate::error::{FsError, Result};
use crate::files::acl;
use crate::files::namespace::NAME_MAX;
use crate::format::inode::Ino;
use crate::state::mounted::Fs;

/// Longest value, in bytes.
const VALUE_MAX: usize = 64 << 10;
/// Longest list of names, each followed by a zero: the kernel hands out no more.
pub const XATTR_LIST_MAX: usize = 64 << 10;
/// The most bytes of names and values of a file: they go with it in one operation.
const BYTES_MAX: u64 = 512 << 10;
/// The attribute that shows and sets the redundancy of a file.
pub const REDUNDANCY_XATTR: &[u8] = b"user.weft.redundancy";
const REDUNDANCY: &[u8] = REDUNDANCY_XATTR;
/// What names start with. For the rest of `system.` and for other names, the kernel leaves it to
/// the file system who may set them, and weftfs refuses all.
const NAME_SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Fails if there can be no attribute of this name.
fn check_name(name: &[u8]) -> Result<()> {
    if matches!(name, acl::ACCESS | acl::DEFAULT) {
        return Ok(());
    }
    let within = NAME_SPACES.iter().find_map(|space| name.strip_prefix(*space));
    match within {
        None => Err(FsError::Unsupported),
        Some([]) => Err(FsError::Invalid("the name of an attribute ends with its dot".into())),
        Some(_) if name.len() > NAME_MAX => Err(FsError::TooLong),
        Some(_) => Ok(()),
    }
}

/// How an extended attribute is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetXattr {
    /// Whether it must exist already, or must not.
    pub exists: Option<bool>,
    /// Whether a file's set-group-ID bit ends with a new access control list: its program is not in
    /// the group.
    pub drop_set_gid: bool,
    /// Whether root sets it: some room is kept for that.
    pub by_root: bool,
}

impl Fs {
    /// An extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`] if there is none of this name.
    pub async fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.0.check()?;
        check_name(name)?;
        let _held = self.0.hold_attributes(ino, Mode::Shared).await;
        let value = self.0.meta().run(|tx| match name {
            REDUNDANCY => Ok(Some(tx.inode(ino)?.redundancy.to_string().into_bytes())),
            _ => tx.xattr(ino, name),
        });
        value.await?.ok_or(FsError::NoAttribute)
    }

    /// The names of all extended attributes. The redundancy, which every file has, is left out:
    /// programs that copy attributes are not to copy it. Those that would make the list longer than
    /// [`XATTR_LIST_MAX`] are missing, but for the first.
    ///
    /// # Errors
    /// If the metadata has failed.
    pub async fn xattr_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.0.check()?;
        let _held = self.0.hold_attributes(ino, Mode::Shared).await;
        let mut names = self.0.meta().run(|tx| tx.xattr_names(ino, XATTR_LIST_MAX)).await?;
        // Older versions let others be set.
        names.retain(|name| check_name(name).is_ok());
        Ok(names)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// If name or value are too long, the value is malformed, or it does not exist (or does) as
    /// demanded.
    pub async fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        self.set_xattr_while(ino, name, value, how, || true).await
    }

    /// [`Fs::set_xattr`], until it is told to stop, if it sets the redundancy of a file.
    ///
    /// # Errors
    /// The same, and [`FsError::Cancelled`] then ([`Fs::set_redundancy_while`]).
    pub async fn set_xattr_while(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
        goes_on: impl Fn() -> bool + 'static,
    ) -> Result<()> {
        self.0.begin_change().await?;
        check_name(name)?;
        if value.len() > VALUE_MAX {
            return Err(FsError::TooLong);
        }
        if name == REDUNDANCY {
            // Every file has it.
            if how.exists == Some(false) {
                return Err(FsError::Exists);
            }
            self.attr(ino).await?.flags.check_set()?;
            let text =
                std::str::from_utf8(value).unwrap_or_default().trim_end_matches(['\0', '\n']);
            return self.set_redundancy_while(ino, text.parse()?, goes_on).await.map(drop);
        }
        let _held = self.0.hold_attributes(ino, Mode::Exclusive).await;
        let now = self.0.now();
        let set = self.0.change(|tx| {
            let mut inode = tx.inode(ino)?;
            inode.flags.check_set()?;
            let is_there = tx.has_xattr(ino, name)?;
            match (how.exists, is_there) {
                (Some(true), false) => return Err(FsError::NoAttribute),
                (Some(false), true) => return Err(FsError::Exists),
                _ => {}
            }
            self.0.check_room(value.len() as u64, how.by_root)?;
            let (listed, bytes) = tx.xattr_bytes(ino)?;
            let lists = listed + if is_there { 0 } else { name.len() as u64 + 1 };
            let old = tx.xattr(ino, name)?.map_or(0, |old| old.len() as u64);
            if lists > XATTR_LIST_MAX as u64 || bytes - old + (value.len() as u64) > BYTES_MAX {
                return Err(FsError::NoSpace);
            }
            match name {
                acl::ACCESS => acl::set_access(tx, ino, &mut inode, value, how.drop_set_gid)?,
                acl::DEFAULT => acl::set_default(tx, ino, &inode, value)?,
                _ => tx.put_xattr(ino, name, value)?,
            }
            inode.changed = now;
            tx.put_inode(ino, &inode)
        });
        set.await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`] if there is none of this name, unless it is an access control list.
    pub async fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.0.begin_change().await?;
        check_name(name)?;
        let _held = self.0.hold_attributes(ino, Mode::Exclusive).await;
        let now = self.0.now();
        let removed = self.0.change(|tx| {
            let mut inode = tx.inode(ino)?;
            inode.flags.check_set()?;
            if !tx.remove_xattr(ino, name)? {
                // A file without a list has the list that follows from its mode.
                let is_list = matches!(name, acl::ACCESS | acl::DEFAULT);
                return if is_list { Ok(()) } else { Err(FsError::NoAttribute) };
            }
            inode.changed = now;
            tx.put_inode(ino, &inode)
        });
        removed.await
    }
}
