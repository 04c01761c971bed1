//! Extended attributes.
//!
//! Most are bytes that are kept. Some mean something here: `user.weft.redundancy` shows and sets the
//! redundancy of a file, and the access control lists ([`crate::acl`]) go with its mode.

use weft_token::Mode;

use crate::acl;
use crate::error::{FsError, Result};
use crate::inode::Ino;
use crate::mounted::Fs;
use crate::names::NAME_MAX;

/// Longest value, in bytes.
const VALUE_MAX: usize = 64 << 10;
/// The attribute that shows and sets the redundancy of a file.
const REDUNDANCY: &[u8] = b"user.weft.redundancy";

/// How an extended attribute is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetXattr {
    /// Whether it must exist already, or must not.
    pub exists: Option<bool>,
    /// Whether a file's set-group-ID bit ends with a new access control list: its program is not in
    /// the group.
    pub drop_set_gid: bool,
}

impl Fs {
    /// An extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`] if there is none of this name.
    pub async fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.0.check()?;
        let _held = self.0.hold_attributes(ino, Mode::Shared).await;
        let value = self.0.meta.run(|tx| match name {
            REDUNDANCY => Ok(Some(tx.inode(ino)?.redundancy.to_string().into_bytes())),
            _ => tx.xattr(ino, name),
        });
        value.await?.ok_or(FsError::NoAttribute)
    }

    /// The names of all extended attributes. The redundancy, which every file has, is left out:
    /// programs that copy attributes are not to copy it.
    ///
    /// # Errors
    /// If the metadata has failed.
    pub async fn xattr_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.0.check()?;
        let _held = self.0.hold_attributes(ino, Mode::Shared).await;
        self.0.meta.run(|tx| tx.xattr_names(ino)).await
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
        self.0.begin_change().await?;
        if name.len() > NAME_MAX || value.len() > VALUE_MAX {
            return Err(FsError::TooLong);
        }
        if name == REDUNDANCY {
            let text =
                std::str::from_utf8(value).unwrap_or_default().trim_end_matches(['\0', '\n']);
            return self.set_redundancy(ino, text.parse()?).await.map(drop);
        }
        self.0.check_room()?;
        let _held = self.0.hold_attributes(ino, Mode::Exclusive).await;
        let now = self.0.now();
        let set = self.0.meta.run(|tx| {
            let mut inode = tx.inode(ino)?;
            match (how.exists, tx.xattr(ino, name)?.is_some()) {
                (Some(true), false) => return Err(FsError::NoAttribute),
                (Some(false), true) => return Err(FsError::Exists),
                _ => {}
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
        let _held = self.0.hold_attributes(ino, Mode::Exclusive).await;
        let now = self.0.now();
        let removed = self.0.meta.run(|tx| {
            let mut inode = tx.inode(ino)?;
            if !tx.remove_xattr(ino, name)? {
                // To have no list is to have the list that the mode says.
                let is_list = matches!(name, acl::ACCESS | acl::DEFAULT);
                return if is_list { Ok(()) } else { Err(FsError::NoAttribute) };
            }
            inode.changed = now;
            tx.put_inode(ino, &inode)
        });
        removed.await
    }
}
