//! Inodes: a file's stored fields, apart from its name and its blocks.

use weft_rt::SECOND as NS;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{FsError, Result};
use crate::format::redundancy::{NAME_BYTES, Redundancy};

/// Number of an inode.
pub type Ino = u64;

/// The root folder's inode.
pub const ROOT: Ino = 1;

/// Bits of a mode that tell the type.
const TYPE: u32 = 0o170_000;
/// The set-user-ID bit of a mode.
pub(crate) const SET_UID: u32 = 0o4000;
/// The set-group-ID bit; of a folder: files in it get its group.
pub(crate) const SET_GID: u32 = 0o2000;

/// Parts of a second that times of birth are stored in.
const BIRTH_PARTS: u64 = 1 << 14;
/// Bits of a stored time of birth.
const BIRTH_BITS: u32 = 48;

/// What `chattr` sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u8);

impl Flags {
    /// Nothing of it can be changed (`i`).
    pub const IMMUTABLE: Self = Self(0x10);
    /// A file can only be appended to, and of a folder no name goes (`a`).
    pub const APPEND: Self = Self(0x20);
    /// Backups leave it out (`d`).
    pub const NODUMP: Self = Self(0x40);
    /// Reads are not noted (`A`).
    pub const NOATIME: Self = Self(0x80);

    /// Those with these bits, as Linux's ioctl has them. `None` if further flags are among them.
    #[must_use]
    pub fn from_bits(bits: u32) -> Option<Self> {
        u8::try_from(bits).ok().filter(|bits| bits & 0x0f == 0).map(Self)
    }

    /// Their bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0.into()
    }

    /// Whether all of `others` are among them.
    #[must_use]
    pub fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// Fails if nothing can be changed.
    pub(crate) fn check_change(self) -> Result<()> {
        if self.contains(Self::IMMUTABLE) { Err(FsError::Immutable) } else { Ok(()) }
    }

    /// Fails if nothing can be changed, or only something added.
    pub(crate) fn check_set(self) -> Result<()> {
        self.check_change()?;
        if self.contains(Self::APPEND) { Err(FsError::Immutable) } else { Ok(()) }
    }
}

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// With contents.
    File,
    /// With entries.
    Folder,
    /// A symbolic link.
    Symlink,
    /// A device, pipe or socket: these bits of the mode.
    Special(u32),
}

impl Kind {
    /// The type that a mode has.
    #[must_use]
    pub fn of_mode(mode: u32) -> Self {
        match mode & TYPE {
            0o100_000 => Self::File,
            0o040_000 => Self::Folder,
            0o120_000 => Self::Symlink,
            other => Self::Special(other),
        }
    }

    /// Its bits in a mode.
    #[must_use]
    pub fn mode(self) -> u32 {
        match self {
            Self::File => 0o100_000,
            Self::Folder => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Special(bits) => bits & TYPE,
        }
    }
}

/// An instant, since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Seconds.
    pub s: i64,
    /// Nanoseconds.
    pub ns: u32,
}

impl Time {
    /// This time, rounded as a time of birth is stored. None if it cannot be.
    pub(crate) fn as_birth(self) -> Option<Self> {
        Self::from_birth(self.to_birth())
    }

    /// 0 if it cannot be stored: before 1970, and after more than 500 years.
    fn to_birth(self) -> u64 {
        let s = u64::try_from(self.s).unwrap_or(0);
        let parts = u64::from(self.ns) * BIRTH_PARTS / NS;
        let stored = s.checked_mul(BIRTH_PARTS).map_or(0, |whole| whole + parts);
        if stored < 1 << BIRTH_BITS { stored } else { 0 }
    }

    fn from_birth(stored: u64) -> Option<Self> {
        let s = i64::try_from(stored / BIRTH_PARTS).ok()?;
        // The next nanosecond: it is stored as the same number again.
        let ns = (stored % BIRTH_PARTS * NS).div_ceil(BIRTH_PARTS);
        (stored > 0).then_some(Self { s, ns: u32::try_from(ns).ok()? })
    }
}

/// What is stored of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names it has; of a folder: 2 and one for each folder in it.
    pub links: u32,
    /// Device number.
    pub device: u32,
    /// Bytes; of a folder: entries.
    pub size: u64,
    /// Last access.
    pub accessed: Time,
    /// Last change of contents.
    pub modified: Time,
    /// Last change of anything.
    pub changed: Time,
    /// When it was made, in steps of 61 µs. Files from before this was stored have none.
    pub born: Option<Time>,
    /// What `chattr` has set.
    pub flags: Flags,
    /// Data blocks with a place.
    pub blocks: u64,
    /// Of a folder: the folder it is in.
    pub parent: Ino,
    /// Of a folder: the position of the next entry.
    pub next_position: u64,
    /// Distinguishes files that had the same number.
    pub generation: u64,
    /// Redundancy of new lines; of a folder: of new files in it.
    pub redundancy: Redundancy,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    mode: U32,
    uid: U32,
    gid: U32,
    links: U32,
    device: U32,
    ns: [U32; 3],
    s: [I64; 3],
    size: U64,
    blocks: U64,
    parent: U64,
    next_position: U64,
    generation: U64,
    flags: u8,
    /// Older versions left it, and the flags, 0.
    born: [u8; 6],
    redundancy_bytes: u8,
    redundancy: [u8; NAME_BYTES + 1],
}

impl Inode {
    /// Its type.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind::of_mode(self.mode)
    }

    /// Whether it is a folder.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        self.kind() == Kind::Folder
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let times = [self.accessed, self.modified, self.changed];
        let name = self.redundancy.to_string();
        let born = self.born.map_or(0, Time::to_birth).to_le_bytes();
        let mut raw = Raw {
            mode: U32::new(self.mode),
            uid: U32::new(self.uid),
            gid: U32::new(self.gid),
            links: U32::new(self.links),
            device: U32::new(self.device),
            ns: times.map(|time| U32::new(time.ns)),
            s: times.map(|time| I64::new(time.s)),
            size: U64::new(self.size),
            blocks: U64::new(self.blocks),
            parent: U64::new(self.parent),
            next_position: U64::new(self.next_position),
            generation: U64::new(self.generation),
            flags: self.flags.0,
            born: std::array::from_fn(|n| born[n]),
            redundancy_bytes: u8::try_from(name.len()).expect("a short name"),
            redundancy: [0; NAME_BYTES + 1],
        };
        raw.redundancy[..name.len()].copy_from_slice(name.as_bytes());
        raw.as_bytes().to_vec()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = || FsError::Damaged("an inode cannot be read".into());
        let raw = Raw::read_from_bytes(bytes).map_err(|_| damaged())?;
        let name = raw.redundancy.get(..usize::from(raw.redundancy_bytes)).ok_or_else(damaged)?;
        let redundancy = std::str::from_utf8(name).map_err(|_| damaged())?;
        let mut born = [0; 8];
        born[..raw.born.len()].copy_from_slice(&raw.born);
        let time = |n: usize| Time { s: raw.s[n].get(), ns: raw.ns[n].get() };
        Ok(Self {
            mode: raw.mode.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            links: raw.links.get(),
            device: raw.device.get(),
            size: raw.size.get(),
            accessed: time(0),
            modified: time(1),
            changed: time(2),
            born: Time::from_birth(u64::from_le_bytes(born)),
            flags: Flags(raw.flags),
            blocks: raw.blocks.get(),
            parent: raw.parent.get(),
            next_position: raw.next_position.get(),
            generation: raw.generation.get(),
            redundancy: redundancy.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_back() {
        let time = |n: i64| Time { s: -n, ns: 999_999_999 };
        let inode = Inode {
            mode: 0o100_644,
            uid: 1,
            gid: 2,
            links: 3,
            device: 4,
            size: 5,
            accessed: time(6),
            modified: time(7),
            changed: time(8),
            born: Time { s: 1_700_000_000, ns: 999_999_999 }.as_birth(),
            flags: Flags(0x90),
            blocks: 9,
            parent: 10,
            next_position: 11,
            generation: 12,
            redundancy: "drc-oa:12,2,1".parse().expect("known"),
        };
        assert_eq!(Inode::decode(&inode.encode()).expect("readable"), inode);
        Inode::decode(&inode.encode()[1..]).expect_err("too short");
        let old = Inode { born: None, flags: Flags::default(), ..inode.clone() };
        assert_eq!(Inode::decode(&old.encode()).expect("readable"), old);
        assert_eq!(inode.kind(), Kind::File);
    }

    #[test]
    fn times_of_birth_are_stored_in_48_bits() {
        for s in [0, 1, 1_700_000_000, (1 << 34) - 1] {
            for ns in [1, 61_036, 500_000_000, 999_999_999] {
                let time = Time { s, ns };
                let Some(born) = time.as_birth() else {
                    assert!(s == 0 && ns < 61_036);
                    continue;
                };
                assert!(born <= time || born.ns - time.ns < 2, "{time:?}: {born:?}");
                assert!(time.ns - born.ns.min(time.ns) < 61_036, "{time:?}: {born:?}");
                assert_eq!(born.as_birth(), Some(born));
            }
        }
        assert_eq!(Time { s: -1, ns: 0 }.as_birth(), None);
        assert_eq!(Time { s: 1 << 34, ns: 0 }.as_birth(), None);
        assert_eq!(Time { s: i64::MAX, ns: 0 }.as_birth(), None);
    }
}
