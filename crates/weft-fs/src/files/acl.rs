//! Access control lists, as POSIX 1003.1e draft 17 and Linux have them.
//!
//! A mode grants rights to three classes: the owner, the group, others. A list adds named users and
//! groups. Its *mask* bounds all of these and the owning group, so that programs which know modes
//! only still mean something: if there is a mask, the group's bits of the mode are the mask, and
//! chmod sets the mask.
//!
//! ```text
//!   user::rw-            owner            mode  rw- r-- ---
//!   user:7:rwx           ┐                       │   │   └ other
//!   group::r-x           ├ at most r--, the mask │   └ mask, or group:: if there is none
//!   group:9:rw-          ┘                       └ owner
//!   mask::r--
//!   other::---
//! ```
//!
//! *Access list*: who may do what with a file. The bits of the mode and of the list always agree:
//! an operation that changes one changes the other. A list without mask and names grants no more
//! than a mode, and is stored as the mode only.
//!
//! *Default list*, of a folder: new files in it get this list, reduced to the mode that the program
//! requested; its umask does not count then. Folders get it as their default list, too.
//!
//! The kernel decides who may do what: it reads the lists and believes the mode. It also decides
//! who may change them. Here they are kept, inherited, and kept in agreement.
//!
//! *Stored* are the bytes of the extended attributes `system.posix_acl_access` and
//! `system.posix_acl_default` (`linux/posix_acl_xattr.h`): version 2 as u32, then for each entry
//! u16 tag, u16 permissions, u32 id; little endian. The order of the tags is fixed.

use crate::error::{FsError, Result};
use crate::format::inode::{Ino, Inode, Kind, SET_GID};
use crate::meta::Tx;

/// The attribute with the access list.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the default list.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Longest list, in bytes: the kernel reads no more than a page.
const BYTES_MAX: usize = 4096;
const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
/// The id of entries that need none, and of the user nobody.
const NO_ID: u32 = u32::MAX;
/// Bits of the mode that a list has, too.
const PERMISSIONS: u32 = 0o777;

/// Tags of entries, in the order that they must have.
mod tag {
    pub(super) const OWNER: u16 = 0x01;
    pub(super) const USER: u16 = 0x02;
    pub(super) const OWNING_GROUP: u16 = 0x04;
    pub(super) const GROUP: u16 = 0x08;
    pub(super) const MASK: u16 = 0x10;
    pub(super) const OTHER: u16 = 0x20;
}

/// Read, write and execute, as in three bits of a mode.
type Rights = u16;

/// The three bits of a class in a mode.
fn class(mode: u32, shift: u32) -> Rights {
    u16::try_from(mode >> shift & 7).unwrap_or(0)
}

/// A list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl {
    owner: Rights,
    /// User ids and their rights. Of several entries of one user the first counts.
    users: Vec<(u32, Rights)>,
    owning_group: Rights,
    groups: Vec<(u32, Rights)>,
    /// There is one if there are named users or groups.
    mask: Option<Rights>,
    other: Rights,
}

fn malformed() -> FsError {
    FsError::Invalid("malformed access control list".into())
}

impl Acl {
    /// The list that an attribute holds; none if it holds no entries, which means to remove it.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if it is malformed, [`FsError::TooLong`] if the kernel could not read
    /// it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (version, entries) = bytes.split_first_chunk().ok_or_else(malformed)?;
        if u32::from_le_bytes(*version) != VERSION || !entries.len().is_multiple_of(ENTRY_BYTES) {
            return Err(malformed());
        }
        if entries.is_empty() {
            return Ok(None);
        }
        if bytes.len() > BYTES_MAX {
            return Err(FsError::TooLong);
        }
        let mut rest = entries
            .chunks_exact(ENTRY_BYTES)
            .map(|entry| {
                let [t0, t1, r0, r1, id @ ..] = entry else { return Err(malformed()) };
                let rights = u16::from_le_bytes([*r0, *r1]);
                let id = id.try_into().map_err(|_| malformed())?;
                if rights > 7 {
                    return Err(malformed());
                }
                Ok((u16::from_le_bytes([*t0, *t1]), u32::from_le_bytes(id), rights))
            })
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .peekable();
        // The next entry, if it has this tag.
        let mut next = |wanted| rest.next_if(|(tag, ..)| *tag == wanted);
        let named = |next: &mut dyn FnMut(u16) -> Option<(u16, u32, Rights)>, wanted| {
            let found: Vec<_> =
                std::iter::from_fn(|| next(wanted)).map(|(_, id, rights)| (id, rights)).collect();
            if found.iter().any(|(id, _)| *id == NO_ID) { Err(malformed()) } else { Ok(found) }
        };
        let one = |found: Option<(u16, u32, Rights)>| found.map(|(.., rights)| rights);
        let owner = one(next(tag::OWNER)).ok_or_else(malformed)?;
        let users = named(&mut next, tag::USER)?;
        let owning_group = one(next(tag::OWNING_GROUP)).ok_or_else(malformed)?;
        let groups = named(&mut next, tag::GROUP)?;
        let mask = one(next(tag::MASK));
        let other = one(next(tag::OTHER)).ok_or_else(malformed)?;
        let has_names = !users.is_empty() || !groups.is_empty();
        if rest.next().is_some() || has_names && mask.is_none() {
            return Err(malformed());
        }
        Ok(Some(Self { owner, users, owning_group, groups, mask, other }))
    }

    /// The bytes of the attribute.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        let mut push = |tag: u16, id: u32, rights: Rights| {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&rights.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        };
        push(tag::OWNER, NO_ID, self.owner);
        self.users.iter().for_each(|(id, rights)| push(tag::USER, *id, *rights));
        push(tag::OWNING_GROUP, NO_ID, self.owning_group);
        self.groups.iter().for_each(|(id, rights)| push(tag::GROUP, *id, *rights));
        self.mask.iter().for_each(|rights| push(tag::MASK, NO_ID, *rights));
        push(tag::OTHER, NO_ID, self.other);
        bytes
    }

    /// Whether it grants no more than a mode.
    pub(crate) fn is_mode(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty() && self.mask.is_none()
    }

    /// The rights of the group's class: the mask if there is one.
    fn group_class(&mut self) -> &mut Rights {
        self.mask.as_mut().unwrap_or(&mut self.owning_group)
    }

    /// A mode with the permissions that belong to the list, and all else as in `mode`.
    pub(crate) fn mode(&self, mode: u32) -> u32 {
        let group = self.mask.unwrap_or(self.owning_group);
        let bits = u32::from(self.owner) << 6 | u32::from(group) << 3 | u32::from(self.other);
        mode & !PERMISSIONS | bits
    }

    /// The list after a chmod.
    pub(crate) fn with_mode(mut self, mode: u32) -> Self {
        self.owner = class(mode, 6);
        *self.group_class() = class(mode, 3);
        self.other = class(mode, 0);
        self
    }

    /// The access list of a file that is made with this mode in a folder with this default list.
    /// Its [`Acl::mode`] is the file's.
    pub(crate) fn inherited(mut self, mode: u32) -> Self {
        self.owner &= class(mode, 6);
        *self.group_class() &= class(mode, 3);
        self.other &= class(mode, 0);
        self
    }
}

/// Sets or, with an empty value, removes the access list of a file. Its mode goes with it; a list
/// that is removed leaves the mode as it is. With `drop_set_gid` the set-group-ID bit ends.
pub(crate) fn set_access(
    tx: &Tx<'_>,
    ino: Ino,
    inode: &mut Inode,
    value: &[u8],
    drop_set_gid: bool,
) -> Result<()> {
    if inode.kind() == Kind::Symlink {
        return Err(FsError::Unsupported);
    }
    let list = Acl::parse(value)?;
    if let Some(list) = &list {
        inode.mode = list.mode(inode.mode) & if drop_set_gid { !SET_GID } else { !0 };
    }
    put(tx, ino, ACCESS, list.filter(|list| !list.is_mode()).as_ref())
}

/// Sets or, with an empty value, removes the default list of a folder.
pub(crate) fn set_default(tx: &Tx<'_>, ino: Ino, inode: &Inode, value: &[u8]) -> Result<()> {
    let list = Acl::parse(value)?;
    if list.is_some() && !inode.is_folder() {
        return Err(FsError::Invalid("only a folder has a default access control list".into()));
    }
    put(tx, ino, DEFAULT, list.as_ref())
}

/// The mode of a file has changed, and the access list goes with it.
pub(crate) fn chmod(tx: &Tx<'_>, ino: Ino, mode: u32) -> Result<()> {
    match read(tx, ino, ACCESS)? {
        Some(list) => put(tx, ino, ACCESS, Some(&list.with_mode(mode))),
        None => Ok(()),
    }
}

/// The lists of a new file.
#[derive(Debug, Default)]
pub(crate) struct NewFileAcls {
    access: Option<Acl>,
    default: Option<Acl>,
}

/// The mode and the lists of a file that is made in a folder with this mode and umask.
pub(crate) fn of_new(
    tx: &Tx<'_>,
    folder: Ino,
    mode: u32,
    umask: u32,
) -> Result<(u32, NewFileAcls)> {
    let kind = Kind::of_mode(mode);
    // The permissions of a symbolic link are never checked.
    if kind == Kind::Symlink {
        return Ok((mode, NewFileAcls::default()));
    }
    let Some(default) = read(tx, folder, DEFAULT)? else {
        return Ok((mode & !(umask & PERMISSIONS), NewFileAcls::default()));
    };
    let access = default.clone().inherited(mode);
    let mode = access.mode(mode);
    let access = Some(access).filter(|access| !access.is_mode());
    let default = Some(default).filter(|_| kind == Kind::Folder);
    Ok((mode, NewFileAcls { access, default }))
}

impl NewFileAcls {
    /// Stores them.
    pub(crate) fn put(&self, tx: &Tx<'_>, ino: Ino) -> Result<()> {
        let lists = [(ACCESS, &self.access), (DEFAULT, &self.default)];
        for (name, list) in lists {
            list.iter().try_for_each(|list| put(tx, ino, name, Some(list)))?;
        }
        Ok(())
    }
}

fn read(tx: &Tx<'_>, ino: Ino, name: &[u8]) -> Result<Option<Acl>> {
    let Some(value) = tx.xattr(ino, name)? else { return Ok(None) };
    let damaged = |_| FsError::Damaged(format!("an access control list of {ino} cannot be read"));
    Acl::parse(&value).map_err(damaged)
}

fn put(tx: &Tx<'_>, ino: Ino, name: &[u8], list: Option<&Acl>) -> Result<()> {
    match list {
        Some(list) => tx.put_xattr(ino, name, &list.encode()),
        None => tx.remove_xattr(ino, name).map(drop),
    }
}

/// What is wrong with the lists of a file, as they are stored.
pub(crate) fn fault(
    inode: &Inode,
    access: Option<&[u8]>,
    default: Option<&[u8]>,
) -> Option<&'static str> {
    let parse = |value: Option<&[u8]>| value.map(Acl::parse).transpose().map(Option::flatten);
    let (Ok(access_list), Ok(default_list)) = (parse(access), parse(default)) else {
        return Some("an access control list cannot be read");
    };
    if access.is_some() != access_list.is_some() || default.is_some() != default_list.is_some() {
        return Some("an access control list is empty");
    }
    if access_list.is_some_and(|list| list.mode(inode.mode) != inode.mode || list.is_mode()) {
        return Some("its access control list and its mode differ");
    }
    (default.is_some() && !inode.is_folder()).then_some("it has a default list and is no folder")
}

#[cfg(test)]
mod tests {
    use weft_random::Rng;

    use super::*;

    fn bytes(entries: &[(u16, Rights, u32)]) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&rights.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    fn full() -> Vec<u8> {
        bytes(&[
            (1, 7, NO_ID),
            (2, 6, 9),
            (2, 5, 7),
            (4, 5, NO_ID),
            (8, 7, 12),
            (0x10, 6, NO_ID),
            (0x20, 1, NO_ID),
        ])
    }

    fn parsed(bytes: &[u8]) -> Acl {
        Acl::parse(bytes).expect("well-formed").expect("not empty")
    }

    #[test]
    fn the_bytes_are_those_of_the_kernel() {
        let acl = parsed(&full());
        assert_eq!(acl.users, [(9, 6), (7, 5)]);
        assert_eq!((acl.mask, acl.other), (Some(6), 1));
        assert_eq!(acl.encode(), full());
        // user::rw-, group::r--, other::r--
        let minimal: [u8; 28] = [
            2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 4,
            0, 255, 255, 255, 255,
        ];
        let acl = parsed(&minimal);
        assert!(acl.is_mode());
        assert_eq!(acl.mode(0o102_777), 0o102_644);
        assert_eq!(acl.encode(), minimal);
        assert_eq!(Acl::parse(b"").expect("none"), None);
        assert_eq!(Acl::parse(&[2, 0, 0, 0]).expect("none"), None);
    }

    #[test]
    fn a_mask_stands_for_the_group_in_the_mode() {
        let acl = parsed(&full());
        assert!(!acl.is_mode());
        assert_eq!(acl.mode(0o040_000), 0o040_761);
        let changed = acl.clone().with_mode(0o100_640);
        assert_eq!((changed.mode(0), changed.owning_group), (0o640, 5));
        assert_eq!(changed.users, acl.users);
        // A mask without names is more than a mode.
        let masked = parsed(&bytes(&[(1, 7, 0), (4, 7, 0), (0x10, 4, 0), (0x20, 0, 0)]));
        assert!(!masked.is_mode());
        assert_eq!(masked.mode(0), 0o740);
    }

    #[test]
    fn a_new_file_gets_no_more_than_was_asked_for() {
        let acl = parsed(&full()).inherited(0o100_644);
        assert_eq!((acl.mode(0), acl.owning_group, acl.users.len()), (0o640, 5, 2));
        let acl = parsed(&bytes(&[(1, 7, 0), (4, 5, 0), (0x20, 5, 0)])).inherited(0o660);
        assert!(acl.is_mode());
        assert_eq!(acl.mode(0), 0o640);
    }

    #[test]
    fn malformed_lists_are_refused() {
        let user = |tag, id| (tag, 7, id);
        let refused: &[&[(u16, Rights, u32)]] = &[
            &[user(4, 0), user(0x20, 0)],
            &[user(1, 0), user(0x20, 0)],
            &[user(1, 0), user(4, 0)],
            &[user(1, 0), user(1, 0), user(4, 0), user(0x20, 0)],
            &[user(4, 0), user(1, 0), user(0x20, 0)],
            &[user(1, 0), user(4, 0), user(0x20, 0), user(0x10, 0)],
            &[user(1, 0), user(2, 5), user(4, 0), user(0x20, 0)],
            &[user(1, 0), user(4, 0), user(8, 5), user(0x20, 0)],
            &[user(1, 0), user(2, NO_ID), user(4, 0), user(0x10, 0), user(0x20, 0)],
            &[user(1, 0), user(4, 0), user(2, 5), user(0x10, 0), user(0x20, 0)],
            &[user(1, 0), user(4, 0), user(0x40, 0), user(0x20, 0)],
            &[(1, 8, 0), user(4, 0), user(0x20, 0)],
            &[user(1, 0), user(4, 0), user(0x20, 0), user(0x20, 0)],
        ];
        for entries in refused {
            let parsed = Acl::parse(&bytes(entries));
            assert!(matches!(parsed, Err(FsError::Invalid(_))), "{entries:?}: {parsed:?}");
        }
        let mut other_version = full();
        other_version[0] = 1;
        Acl::parse(&other_version).expect_err("version 1");
        Acl::parse(&full()[..full().len() - 1]).expect_err("cut");
        Acl::parse(&[2, 0]).expect_err("cut");
        let mut long = vec![user(1, 0)];
        long.extend((0..600).map(|id| user(2, id)));
        long.extend([user(4, 0), user(0x10, 0), user(0x20, 0)]);
        assert!(matches!(Acl::parse(&bytes(&long)), Err(FsError::TooLong)));
    }

    #[test]
    fn lists_that_contradict_the_file_are_found() {
        let inode = |mode| Inode {
            mode,
            uid: 0,
            gid: 0,
            links: 1,
            device: 0,
            size: 0,
            accessed: crate::format::inode::Time::default(),
            modified: crate::format::inode::Time::default(),
            changed: crate::format::inode::Time::default(),
            born: None,
            flags: crate::Flags::default(),
            blocks: 0,
            parent: 0,
            next_position: 0,
            generation: 0,
            redundancy: crate::format::redundancy::Redundancy::Auto,
        };
        let (list, file, folder) = (full(), inode(0o102_761), inode(0o040_761));
        assert_eq!(fault(&file, None, None), None);
        assert_eq!(fault(&file, Some(&list), None), None);
        assert_eq!(fault(&folder, Some(&list), Some(&list)), None);
        let minimal = bytes(&[(1, 7, NO_ID), (4, 6, NO_ID), (0x20, 1, NO_ID)]);
        assert_eq!(fault(&folder, None, Some(&minimal)), None);
        let is_wrong = |inode: &Inode, access, default| fault(inode, access, default).is_some();
        assert!(is_wrong(&inode(0o100_760), Some(&list), None), "another mode");
        assert!(is_wrong(&file, Some(&minimal), None), "no more than the mode says");
        assert!(is_wrong(&file, Some(&list[..20]), None), "cut short");
        assert!(is_wrong(&folder, None, Some(b"")), "empty");
        assert!(is_wrong(&file, None, Some(&list)), "not of a folder");
    }

    /// Any bytes: refused, or a list that reads back as it is and agrees with itself.
    #[test]
    fn any_bytes_are_refused_or_read_back() {
        let mut rng = Rng::new(5);
        let mut accepted = 0;
        for _ in 0..200_000 {
            let mut input = full();
            for _ in 0..rng.below(4) {
                let at = usize::try_from(rng.below(input.len() as u64)).expect("small");
                match rng.below(4) {
                    0 => input[at] = rng.next_u64().to_le_bytes()[0],
                    1 => input[at] ^= 1 << rng.below(8),
                    2 => input.truncate(at / 8 * 8 + 4),
                    _ => {
                        let entry = 4 + at.saturating_sub(4) / 8 * 8;
                        let copy: Vec<u8> = input.iter().skip(entry).take(8).copied().collect();
                        input.splice(entry..entry, copy);
                    }
                }
            }
            let Ok(Some(acl)) = Acl::parse(&input) else { continue };
            accepted += 1;
            assert_eq!(parsed(&acl.encode()), acl);
            let mode = u32::try_from(rng.below(0o10000)).expect("small");
            assert_eq!(acl.clone().with_mode(mode).mode(0), mode & PERMISSIONS);
            assert_eq!(acl.clone().inherited(mode).mode(0), acl.mode(0) & mode);
            assert_eq!(acl.clone().with_mode(acl.mode(0)), acl);
        }
        assert!((10_000..190_000).contains(&accepted), "{accepted}");
    }
}
