//! The part of the kernel's FUSE protocol (`linux/fuse.h`, version 7.31 and later) that is spoken.
//! Native byte order: both ends are the same machine.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version spoken: newer kernels fall back to it.
pub const MAJOR: u32 = 7;
/// The highest minor version whose structures this code knows.
pub const MINOR: u32 = 36;
/// The lowest supported minor version (Linux 5.4).
pub const MINOR_MIN: u32 = 31;

/// A message to the kernel: bytes of a file, which is extended if it is shorter.
pub const NOTIFY_STORE: i32 = 4;
/// A message to the kernel: send what was received and not answered once more.
pub const NOTIFY_RESEND: i32 = 7;

/// A message to the kernel: forget all names.
pub const NOTIFY_INC_EPOCH: i32 = 8;
/// The minor version of kernels that know it (Linux 6.16).
pub const EPOCH_MINOR: u32 = 44;
/// The minor version of kernels that drop the pages which a write bypasses (Linux 6.6).
pub const DIRECT_DROPS_MINOR: u32 = 39;

/// Node of the root folder.
pub const ROOT: u64 = 1;
/// Node of the one file.
pub const FILE: u64 = 2;

/// Numbers of the requests.
pub mod op {
    macro_rules! requests {
        ($($name:ident = $number:literal,)*) => {
            $(pub const $name: u32 = $number;)*
            /// All of them, with their names.
            pub const ALL: &[(u32, &str)] = &[$(($number, stringify!($name))),*];
        };
    }
    requests! {
        LOOKUP = 1,
        FORGET = 2,
        GETATTR = 3,
        SETATTR = 4,
        READLINK = 5,
        SYMLINK = 6,
        MKNOD = 8,
        MKDIR = 9,
        UNLINK = 10,
        RMDIR = 11,
        RENAME = 12,
        LINK = 13,
        OPEN = 14,
        READ = 15,
        WRITE = 16,
        STATFS = 17,
        RELEASE = 18,
        FSYNC = 20,
        SETXATTR = 21,
        GETXATTR = 22,
        LISTXATTR = 23,
        REMOVEXATTR = 24,
        FLUSH = 25,
        INIT = 26,
        OPENDIR = 27,
        READDIR = 28,
        RELEASEDIR = 29,
        FSYNCDIR = 30,
        GETLK = 31,
        SETLK = 32,
        SETLKW = 33,
        CREATE = 35,
        INTERRUPT = 36,
        DESTROY = 38,
        IOCTL = 39,
        BATCH_FORGET = 42,
        FALLOCATE = 43,
        READDIRPLUS = 44,
        RENAME2 = 45,
        LSEEK = 46,
        COPY_FILE_RANGE = 47,
        SYNCFS = 50,
        TMPFILE = 51,
        STATX = 52,
    }
}

/// Flags of INIT.
pub mod init_flag {
    pub const ASYNC_READ: u32 = 1 << 0;
    /// Locks of `fcntl` come here.
    pub const POSIX_LOCKS: u32 = 1 << 1;
    /// Files can be looked up by only their number (`.`), and folders have a parent (`..`).
    pub const EXPORT_SUPPORT: u32 = 1 << 4;
    pub const BIG_WRITES: u32 = 1 << 5;
    /// The umask is sent along, and does not count yet.
    pub const DONT_MASK: u32 = 1 << 6;
    pub const DO_READDIRPLUS: u32 = 1 << 13;
    pub const READDIRPLUS_AUTO: u32 = 1 << 14;
    /// Locks of `flock` come here.
    pub const FLOCK_LOCKS: u32 = 1 << 10;
    pub const ASYNC_DIO: u32 = 1 << 15;
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
    /// The kernel reads access control lists and decides by them.
    pub const POSIX_ACL: u32 = 1 << 20;
    pub const MAX_PAGES: u32 = 1 << 22;
    pub const CACHE_SYMLINKS: u32 = 1 << 23;
    /// Writes, cuts and changes of the owner end privileges here, and not in the kernel.
    pub const HANDLE_KILLPRIV_V2: u32 = 1 << 28;
    /// SETXATTR has flags of its own ([`super::SETXATTR_ACL_KILL_SGID`]).
    pub const SETXATTR_EXT: u32 = 1 << 29;
}

/// What the page cache holds of the file stays.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;

/// In a WRITE: the set-user-ID and set-group-ID bits end.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// In a WRITE: the kernel writes pages of its cache.
pub const WRITE_CACHE: u32 = 1 << 0;

/// In a SETXATTR of an access control list: the set-group-ID bit ends.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Which attributes SETATTR sets.
pub mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    /// The set-user-ID and set-group-ID bits end.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Body of SETATTR.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetattrIn {
    pub valid: u32,
    pub padding: u32,
    pub fh: u64,
    pub size: u64,
    pub lock_owner: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub atimensec: u32,
    pub mtimensec: u32,
    pub ctimensec: u32,
    pub mode: u32,
    pub unused4: u32,
    pub uid: u32,
    pub gid: u32,
    pub unused5: u32,
}

/// A lock of GETLK, SETLK and SETLKW, and the answer to GETLK; `end` is the last byte.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LockIs {
    pub start: u64,
    pub end: u64,
    pub kind: u32,
    pub pid: u32,
}

/// Body of GETLK, SETLK and SETLKW.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LockIn {
    pub fh: u64,
    pub owner: u64,
    pub lock: LockIs,
    pub flags: u32,
    pub padding: u32,
}

/// Kinds of locks, and flags of requests that have to do with locks.
pub mod lock {
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const NONE: u32 = 2;
    /// In SETLK and SETLKW: it is one of `flock`.
    pub const FLOCK: u32 = 1 << 0;
    /// In RELEASE: the owner has locks of `flock`, which end.
    pub const RELEASE_FLOCK: u32 = 1 << 1;
}

/// Body of RELEASE.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReleaseIn {
    pub fh: u64,
    pub flags: u32,
    pub release_flags: u32,
    pub lock_owner: u64,
}

/// Body of FLUSH.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlushIn {
    pub fh: u64,
    pub unused: u32,
    pub padding: u32,
    pub lock_owner: u64,
}

/// The supported requests of IOCTL.
pub mod ioctl {
    /// `FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS`: what `lsattr` and `chattr` call.
    pub const GETFLAGS: u32 = 0x8008_6601;
    pub const SETFLAGS: u32 = 0x4008_6602;
    /// `FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR`: the same in a structure, with other bits.
    pub const FSGETXATTR: u32 = 0x801c_581f;
    pub const FSSETXATTR: u32 = 0x401c_5820;
}

/// Body of IOCTL, before its input.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoctlIn {
    pub fh: u64,
    pub flags: u32,
    pub cmd: u32,
    pub arg: u64,
    pub in_size: u32,
    pub out_size: u32,
}

/// Answer to IOCTL, before its output.
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct IoctlOut {
    pub result: i32,
    pub flags: u32,
    pub in_iovs: u32,
    pub out_iovs: u32,
}

/// What `FS_IOC_FSGETXATTR` returns.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FsXattr {
    pub xflags: u32,
    pub extsize: u32,
    pub nextents: u32,
    pub projid: u32,
    pub cowextsize: u32,
    pub padding: [u8; 8],
}

/// Bits of [`StatxOut::mask`] and of attributes.
pub mod statx {
    pub const BASIC_STATS: u32 = 0x07ff;
    pub const BTIME: u32 = 0x0800;
    pub const ATTR_IMMUTABLE: u64 = 0x10;
    pub const ATTR_APPEND: u64 = 0x20;
    pub const ATTR_NODUMP: u64 = 0x40;
}

/// An instant in an answer to STATX.
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct SxTime {
    pub s: i64,
    pub ns: u32,
    pub reserved: i32,
}

/// Answer to STATX.
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct StatxOut {
    pub attr_valid: u64,
    pub attr_valid_nsec: u32,
    pub flags: u32,
    pub spare: [u64; 2],
    pub mask: u32,
    pub blksize: u32,
    pub attributes: u64,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
    pub spare_0: u16,
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub attributes_mask: u64,
    pub atime: SxTime,
    pub btime: SxTime,
    pub ctime: SxTime,
    pub mtime: SxTime,
    pub rdev_major: u32,
    pub rdev_minor: u32,
    pub dev_major: u32,
    pub dev_minor: u32,
    pub spare_2: [u64; 14],
}

/// Flags of RENAME2.
pub mod rename {
    pub const NOREPLACE: u32 = 1 << 0;
    pub const EXCHANGE: u32 = 1 << 1;
    /// The old name becomes a character device with the number 0.
    pub const WHITEOUT: u32 = 1 << 2;
}

/// Body of RENAME2, before the names.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Rename2In {
    pub to: u64,
    pub flags: u32,
    pub padding: u32,
}

/// Body of LSEEK.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LseekIn {
    pub fh: u64,
    pub offset: u64,
    pub whence: u32,
    pub padding: u32,
}

/// In [`OutHeader::error`], with no request to answer: the kernel must drop pages of a file.
pub const NOTIFY_INVAL_INODE: i32 = 2;

/// Body of [`NOTIFY_INVAL_INODE`]; a length of 0 means the rest, a negative offset only attributes.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub struct InvalInodeOut {
    pub ino: u64,
    pub offset: i64,
    pub length: i64,
}

/// Body of [`NOTIFY_STORE`], before the bytes.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub struct StoreOut {
    pub ino: u64,
    pub offset: u64,
    pub size: u32,
    pub padding: u32,
}

/// Body of COPY_FILE_RANGE.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CopyIn {
    pub fh_from: u64,
    pub offset_from: u64,
    pub node_to: u64,
    pub fh_to: u64,
    pub offset_to: u64,
    pub length: u64,
    pub flags: u64,
}

/// Reads and writes bypass the page cache.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// Writes that do not extend the file may run at the same time.
pub const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// Modes of FALLOCATE.
pub mod fallocate {
    pub const KEEP_SIZE: u32 = 0x01;
    pub const PUNCH_HOLE: u32 = 0x02;
    pub const ZERO_RANGE: u32 = 0x10;
}

/// Head of every request.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InHeader {
    pub len: u32,
    pub opcode: u32,
    pub unique: u64,
    pub nodeid: u64,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    pub total_extlen: u16,
    pub padding: u16,
}

/// Head of every answer.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub struct OutHeader {
    pub len: u32,
    /// 0 or a negative errno.
    pub error: i32,
    pub unique: u64,
}

/// Body of INIT, as far as all versions share it.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
}

/// Answer to INIT.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct InitOut {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    pub time_gran: u32,
    pub max_pages: u16,
    pub map_alignment: u16,
    pub flags2: u32,
    pub unused: [u32; 7],
}

/// Body of READ and WRITE (the data of a write follows).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoIn {
    pub fh: u64,
    pub offset: u64,
    pub size: u32,
    pub io_flags: u32,
    pub lock_owner: u64,
    pub flags: u32,
    pub padding: u32,
}

/// Answer to WRITE.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub struct WriteOut {
    pub size: u32,
    pub padding: u32,
}

/// Body of FALLOCATE.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FallocateIn {
    pub fh: u64,
    pub offset: u64,
    pub length: u64,
    pub mode: u32,
    pub padding: u32,
}

/// Attributes of a node.
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct Attr {
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: u64,
    pub mtime: u64,
    pub ctime: u64,
    pub atimensec: u32,
    pub mtimensec: u32,
    pub ctimensec: u32,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub blksize: u32,
    pub flags: u32,
}

/// Answer to LOOKUP.
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct EntryOut {
    pub nodeid: u64,
    pub generation: u64,
    pub entry_valid: u64,
    pub attr_valid: u64,
    pub entry_valid_nsec: u32,
    pub attr_valid_nsec: u32,
    pub attr: Attr,
}

/// Answer to GETATTR and SETATTR.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub struct AttrOut {
    pub attr_valid: u64,
    pub attr_valid_nsec: u32,
    pub dummy: u32,
    pub attr: Attr,
}

/// Answer to OPEN and OPENDIR.
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct OpenOut {
    pub fh: u64,
    pub open_flags: u32,
    pub padding: u32,
}

/// Answer to STATFS.
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct StatfsOut {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
    pub padding: u32,
    pub spare: [u32; 6],
}

/// Bytes that precede the data of a WRITE.
pub const WRITE_HEAD: usize = size_of::<InHeader>() + size_of::<IoIn>();

// The sizes that the kernel's header has.
const _: () = assert!(size_of::<InHeader>() == 40 && size_of::<OutHeader>() == 16);
const _: () = assert!(size_of::<InitOut>() == 64 && size_of::<IoIn>() == 40);
const _: () = assert!(size_of::<Attr>() == 88 && size_of::<EntryOut>() == 128);
const _: () = assert!(size_of::<IoctlIn>() == 32 && size_of::<IoctlOut>() == 16);
const _: () = assert!(size_of::<StatxOut>() == 288 && size_of::<FsXattr>() == 28);
const _: () = assert!(size_of::<AttrOut>() == 104 && size_of::<StatfsOut>() == 80);
