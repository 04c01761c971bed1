//! Bodies of requests and of answers: parsed, and put together.

use rustix::io::Errno;
use weft_fs::{Flags, FsError, Ino, Inode, Kind, Time};
use zerocopy::{FromBytes, IntoBytes};

use crate::wire::{Attr, EntryOut, OpenOut, StatxOut, SxTime, statx};

/// How long the kernel believes names, also that there is none, and attributes, in seconds: a day.
/// All changes pass through it.
const VALID_S: u64 = 86_400;
/// Seconds for which attributes are valid whose number of blocks may still change without the
/// kernel.
const UNSETTLED_VALID_S: u64 = 10;
/// How long after its last change a file may get blocks: several times what its bytes wait in
/// memory.
const SETTLED_AFTER_S: i64 = 60;

/// The body of an answer, or why there is none.
pub(crate) type Answer = Result<Vec<u8>, Errno>;

/// The structure at the start of a body, and what follows it.
pub(crate) fn parse<T: FromBytes>(body: &[u8]) -> Result<(T, &[u8]), Errno> {
    T::read_from_prefix(body).map_err(|_| Errno::INVAL)
}

/// The first name in a body, and what follows it.
pub(crate) fn name(body: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = body.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
    Ok((&body[..end], &body[end + 1..]))
}

pub(crate) fn bytes(value: &(impl IntoBytes + zerocopy::Immutable)) -> Answer {
    Ok(value.as_bytes().to_vec())
}

/// The number at the start of some bytes.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    u64::read_from_prefix(bytes).map_or(0, |(number, _)| number)
}

pub(crate) fn empty(result: weft_fs::Result<()>) -> Answer {
    result.map(|()| Vec::new()).map_err(errno_of)
}

/// A value, or its size if the request asks for that.
pub(crate) fn sized(value: Vec<u8>, size: u32) -> Answer {
    let len = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
    match size {
        0 => bytes(&[len, 0]),
        size if size < len => Err(Errno::RANGE),
        _ => Ok(value),
    }
}

pub(crate) fn opened(fh: u64, open_flags: u32) -> OpenOut {
    OpenOut { fh, open_flags, ..OpenOut::default() }
}

/// An entry, of a file that a program has open for writing, or has not.
pub(crate) fn entry_out(ino: Ino, inode: &Inode, is_written: bool) -> EntryOut {
    EntryOut {
        nodeid: ino,
        generation: inode.generation,
        entry_valid: VALID_S,
        attr_valid: valid_s(inode, is_written),
        entry_valid_nsec: 0,
        attr_valid_nsec: 0,
        attr: attr_of(ino, inode, is_written),
    }
}

/// The answer to a LOOKUP of a name that is not there. The kernel need not ask again.
pub(crate) fn no_entry() -> EntryOut {
    EntryOut { entry_valid: VALID_S, ..EntryOut::default() }
}

/// How long the kernel may believe attributes. It keeps the size of files that it writes itself,
/// and not the number of blocks, which must not stay that of an empty file. For other files it may
/// become exact when recent writes are on the disks.
pub(crate) fn valid_s(inode: &Inode, is_written: bool) -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let changed_s = i64::try_from(since.as_secs()).unwrap_or(0).saturating_sub(inode.changed.s);
    valid_after(changed_s, inode.kind(), inode.size, is_written)
}

/// Seconds for which the attributes of a file are valid that changed `changed_s` seconds ago.
fn valid_after(changed_s: i64, kind: Kind, size: u64, is_written: bool) -> u64 {
    match kind {
        Kind::File if size == 0 && !is_written => 0,
        Kind::File if is_written || changed_s < SETTLED_AFTER_S => UNSETTLED_VALID_S,
        _ => VALID_S,
    }
}

pub(crate) fn attr_of(ino: Ino, inode: &Inode, is_written: bool) -> Attr {
    let s = |time: Time| time.s.cast_unsigned();
    // Blocks that were written lately are not counted yet. Programs take a file with bytes and
    // without blocks for one hole, and a backup of it (`tar --sparse`) would have zeros instead of
    // its contents. So may one that is empty here, and open: the kernel tells last.
    let blocks_min = u64::from(inode.kind() == Kind::File && (inode.size > 0 || is_written));
    Attr {
        ino,
        size: if inode.is_folder() { 4096 } else { inode.size },
        blocks: (inode.blocks * (weft_fs::BLOCK_BYTES / 512)).max(blocks_min),
        atime: s(inode.accessed),
        mtime: s(inode.modified),
        ctime: s(inode.changed),
        atimensec: inode.accessed.ns,
        mtimensec: inode.modified.ns,
        ctimensec: inode.changed.ns,
        mode: inode.mode,
        nlink: inode.links,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.device,
        blksize: 4096,
        flags: 0,
    }
}

/// These attributes as an answer to STATX, with the time of birth.
pub(crate) fn statx_of(ino: Ino, inode: &Inode, is_written: bool) -> StatxOut {
    let attr = attr_of(ino, inode, is_written);
    let time = |time: Time| SxTime { s: time.s, ns: time.ns, reserved: 0 };
    let attributes = [
        (Flags::IMMUTABLE, statx::ATTR_IMMUTABLE),
        (Flags::APPEND, statx::ATTR_APPEND),
        (Flags::NODUMP, statx::ATTR_NODUMP),
    ];
    let set = attributes.iter().filter(|(flag, _)| inode.flags.contains(*flag));
    // As the kernel takes the number of a device apart that an inode has in 32 bits.
    let device = inode.device;
    StatxOut {
        attr_valid: valid_s(inode, is_written),
        mask: statx::BASIC_STATS | if inode.born.is_some() { statx::BTIME } else { 0 },
        blksize: attr.blksize,
        attributes: set.map(|(_, attribute)| attribute).sum(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: u16::try_from(attr.mode).unwrap_or(0),
        ino,
        size: attr.size,
        blocks: attr.blocks,
        attributes_mask: attributes.iter().map(|(_, attribute)| attribute).sum(),
        atime: time(inode.accessed),
        btime: inode.born.map(time).unwrap_or_default(),
        ctime: time(inode.changed),
        mtime: time(inode.modified),
        rdev_major: (device & 0xfff00) >> 8,
        rdev_minor: device & 0xff | (device >> 12) & 0xfff00,
        ..StatxOut::default()
    }
}

pub(crate) fn errno_of(error: FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::NOENT,
        FsError::Exists => Errno::EXIST,
        FsError::NotFolder => Errno::NOTDIR,
        FsError::IsFolder => Errno::ISDIR,
        FsError::NotEmpty => Errno::NOTEMPTY,
        FsError::NoAttribute => Errno::NODATA,
        FsError::TooLong => Errno::NAMETOOLONG,
        FsError::TooLarge => Errno::FBIG,
        FsError::TooManyLinks => Errno::MLINK,
        FsError::NoSpace => Errno::NOSPC,
        FsError::Invalid(_) => Errno::INVAL,
        FsError::Busy(_) => Errno::BUSY,
        FsError::Unsupported => Errno::OPNOTSUPP,
        FsError::ReadOnly => Errno::ROFS,
        FsError::Immutable => Errno::PERM,
        FsError::Cancelled => Errno::INTR,
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_believed_for_long_when_the_blocks_are_settled() {
        let file =
            |changed_s, size, is_written| valid_after(changed_s, Kind::File, size, is_written);
        assert_eq!(file(59, 5, false), UNSETTLED_VALID_S);
        assert_eq!(file(60, 5, false), VALID_S);
        assert_eq!(file(9999, 5, true), UNSETTLED_VALID_S, "it is written");
        assert_eq!(file(-9999, 5, false), UNSETTLED_VALID_S, "the clock was put back");
        // Empty ones get their first blocks at any time, and the kernel is not to believe in none.
        assert_eq!(file(9999, 0, false), 0);
        assert_eq!(file(9999, 0, true), UNSETTLED_VALID_S);
        assert_eq!(valid_after(0, Kind::Folder, 0, false), VALID_S);
        assert_eq!((no_entry().nodeid, no_entry().entry_valid), (0, VALID_S));
    }
}
