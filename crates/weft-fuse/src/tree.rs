//! Serves a mounted weftfs to the kernel.
//!
//! One node serves the file system, and everything passes through its kernel: so what the kernel has
//! cached stays valid, files keep their pages when they are opened again, and names and attributes
//! are believed for some seconds. Permissions are the kernel's business (`default_permissions`), and
//! so are locks.
//!
//! A file is in use while the kernel knows its number or has it open; a file without names goes when
//! the kernel forgets it.
//!
//! *Control.* The root folder has attributes that only root may use ([`crate::control`]). So commands
//! reach the mounted file system by its mount point, and need no other connection.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::Errno;
use weft_fs::{Fs, FsError, Ino, Inode, Kind, NewFile, ROOT, Rename, SetAttr, Time};
use weft_rt::Rt;
use weft_rt::ring::{Fd, Ring};
use zerocopy::{FromBytes, IntoBytes};

use crate::channel::{self, Body, Request, WRITE_BYTES_MAX};
use crate::control::{Control, OpenDisk};
use crate::lookout::Lookout;
use crate::wire::{
    self, Attr, AttrOut, CopyIn, EntryOut, FallocateIn, InHeader, IoIn, LseekIn, OpenOut,
    SetattrIn, StatfsOut, WriteOut, fallocate, init_flag, op, set,
};

/// How long the kernel believes names and attributes, in seconds.
const VALID_S: u64 = 10;
/// Entries of a folder read at a time.
const ENTRIES: usize = 256;
/// The most bytes copied for one request.
const COPY_BYTES_MAX: usize = 16 << 20;
/// Where LSEEK looks for data, or for a hole.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

type Answer = Result<Vec<u8>, Errno>;

/// Serves `channel` until the file system is unmounted from the kernel. `open` opens disks that are
/// to be added.
///
/// # Errors
/// If the channel cannot be read.
pub async fn serve(
    rt: Rt,
    ring: Ring,
    channel: OwnedFd,
    fs: Fs,
    open: OpenDisk,
) -> Result<(), Errno> {
    let control = Control::new(rt.clone(), fs.clone(), open);
    let tree = Rc::new(Tree { fd: Fd::from(channel), fs, control });
    let fd = tree.fd.clone();
    channel::receive(&rt, &ring, &fd, Lookout::new(), move |request| {
        let tree = tree.clone();
        async move { tree.carry_out(request).await }
    })
    .await
}

struct Tree {
    fd: Fd,
    fs: Fs,
    control: Control,
}

/// The structure at the start of a body, and what follows it.
fn parse<T: FromBytes>(body: &[u8]) -> Result<(T, &[u8]), Errno> {
    T::read_from_prefix(body).map_err(|_| Errno::INVAL)
}

/// The first name in a body, and what follows it.
fn name(body: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = body.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
    Ok((&body[..end], &body[end + 1..]))
}

fn bytes(value: &(impl IntoBytes + zerocopy::Immutable)) -> Answer {
    Ok(value.as_bytes().to_vec())
}

impl Tree {
    async fn carry_out(&self, Request { head, body }: Request) {
        let answer = match body {
            Body::Read(io) => return self.read(&head, &io).await,
            Body::Write(io, data) => self.write(&head, &io, data).await,
            Body::Plain(body) => match head.opcode {
                op::FORGET => return self.forget(&[(head.nodeid, &body)]).await,
                op::BATCH_FORGET => {
                    let each = body.get(8..).unwrap_or_default().chunks_exact(16);
                    let each: Vec<_> = each.map(|one| (number(one), &one[8..])).collect();
                    return self.forget(&each).await;
                }
                op::INTERRUPT => return,
                _ => self.plain(&head, &body).await,
            },
        };
        match answer {
            Ok(data) => channel::answer(&self.fd, &head, Ok(&data)),
            Err(errno) => channel::answer(&self.fd, &head, Err(errno)),
        }
    }

    async fn forget(&self, nodes: &[(u64, &[u8])]) {
        for (ino, count) in nodes {
            // A failure shows in the next request.
            let _ = self.fs.end_uses(*ino, number(count)).await;
        }
    }

    async fn plain(&self, head: &InHeader, body: &[u8]) -> Answer {
        let ino = head.nodeid;
        match head.opcode {
            op::INIT => {
                let also = init_flag::DO_READDIRPLUS
                    | init_flag::READDIRPLUS_AUTO
                    | init_flag::PARALLEL_DIROPS
                    | init_flag::CACHE_SYMLINKS
                    | init_flag::WRITEBACK_CACHE
                    | init_flag::HANDLE_KILLPRIV_V2;
                let agreed = channel::negotiate(body, also)?;
                bytes(&wire::InitOut { max_readahead: channel::READ_AHEAD_BYTES, ..agreed })
            }
            op::LOOKUP => {
                let found = self.fs.lookup(ino, name(body)?.0).await.map_err(errno_of)?;
                self.entry(&found)
            }
            op::GETATTR => self.attr(ino, &self.fs.attr(ino).await.map_err(errno_of)?),
            op::SETATTR => self.set_attr(ino, &parse::<SetattrIn>(body)?.0).await,
            op::READLINK => self.fs.read_link(ino).await.map_err(errno_of),
            op::SYMLINK => {
                let (name_of, rest) = name(body)?;
                let target = name(rest)?.0;
                self.make(head, name_of, Kind::Symlink.mode() | 0o777, 0, target).await
            }
            op::MKNOD => {
                let ([mode, device, _, _], rest) = parse::<[u32; 4]>(body)?;
                self.make(head, name(rest)?.0, mode, device, b"").await
            }
            op::MKDIR => {
                let ([mode, _], rest) = parse::<[u32; 2]>(body)?;
                let mode = Kind::Folder.mode() | mode & 0o7777;
                self.make(head, name(rest)?.0, mode, 0, b"").await
            }
            op::CREATE => {
                let ([_, mode, _, _], rest) = parse::<[u32; 4]>(body)?;
                let mode = Kind::File.mode() | mode & 0o7777;
                let mut out = self.make(head, name(rest)?.0, mode, 0, b"").await?;
                self.fs.begin_use(number(&out));
                out.extend_from_slice(opened(wire::FOPEN_KEEP_CACHE).as_bytes());
                Ok(out)
            }
            op::UNLINK => empty(self.fs.unlink(ino, name(body)?.0).await),
            op::RMDIR => empty(self.fs.remove_folder(ino, name(body)?.0).await),
            op::RENAME => {
                let (to, rest) = parse::<u64>(body)?;
                self.rename(ino, to, rest, Rename::Replace).await
            }
            op::RENAME2 => {
                let ((to, flags), rest) = {
                    let ([to, flags], rest) = parse::<[u64; 2]>(body)?;
                    ((to, flags & 0xffff_ffff), rest)
                };
                let how = match flags {
                    0 => Rename::Replace,
                    1 => Rename::NoReplace,
                    2 => Rename::Exchange,
                    _ => return Err(Errno::INVAL),
                };
                self.rename(ino, to, rest, how).await
            }
            op::LINK => {
                let (old, rest) = parse::<u64>(body)?;
                let inode = self.fs.link(old, ino, name(rest)?.0).await.map_err(errno_of)?;
                self.entry(&(old, inode))
            }
            op::OPEN => {
                self.fs.begin_use(ino);
                bytes(&opened(wire::FOPEN_KEEP_CACHE))
            }
            op::OPENDIR => bytes(&opened(wire::FOPEN_KEEP_CACHE | wire::FOPEN_CACHE_DIR)),
            op::RELEASE => empty(self.fs.end_uses(ino, 1).await),
            op::RELEASEDIR | op::DESTROY => Ok(Vec::new()),
            op::FSYNC | op::FSYNCDIR => empty(self.fs.fsync(ino).await),
            op::SYNCFS => empty(self.fs.sync().await),
            op::READDIR => self.read_folder(ino, &parse::<IoIn>(body)?.0, false).await,
            op::READDIRPLUS => self.read_folder(ino, &parse::<IoIn>(body)?.0, true).await,
            op::STATFS => self.statfs().await,
            op::SETXATTR => {
                let ([size, flags], rest) = parse::<[u32; 2]>(body)?;
                let (key, rest) = name(rest)?;
                let value = rest.get(..size as usize).ok_or(Errno::INVAL)?;
                self.set_xattr(ino, key, value, flags).await
            }
            op::GETXATTR => {
                let ([size, _], rest) = parse::<[u32; 2]>(body)?;
                let value = self.xattr(ino, name(rest)?.0).await?;
                sized(value, size)
            }
            op::LISTXATTR => {
                let ([size, _], _) = parse::<[u32; 2]>(body)?;
                let names = self.fs.xattr_names(ino).await.map_err(errno_of)?;
                sized(names.into_iter().flat_map(|name| [&name[..], &[0]].concat()).collect(), size)
            }
            op::REMOVEXATTR => empty(self.fs.remove_xattr(ino, name(body)?.0).await),
            op::FALLOCATE => self.fallocate(ino, &parse::<FallocateIn>(body)?.0).await,
            op::COPY_FILE_RANGE => self.copy(ino, &parse::<CopyIn>(body)?.0).await,
            op::LSEEK => {
                let (seek, _) = parse::<LseekIn>(body)?;
                let data = match seek.whence {
                    SEEK_DATA => true,
                    SEEK_HOLE => false,
                    _ => return Err(Errno::INVAL),
                };
                let found = self.fs.seek(ino, seek.offset, data).await.map_err(errno_of)?;
                bytes(&found.ok_or(Errno::NXIO)?)
            }
            _ => Err(Errno::NOSYS),
        }
    }

    /// Reads, and answers from the buffer.
    async fn read(&self, head: &InHeader, io: &IoIn) {
        let len = (io.size as usize).min(WRITE_BYTES_MAX);
        let read = self.fs.read(head.nodeid, io.offset, len).await;
        match read {
            Ok(data) => channel::answer(&self.fd, head, Ok(&data)),
            Err(error) => channel::answer(&self.fd, head, Err(errno_of(error))),
        }
    }

    async fn write(&self, head: &InHeader, io: &IoIn, data: weft_rt::Buf) -> Answer {
        if data.len() != io.size as usize {
            return Err(Errno::INVAL);
        }
        let suid = io.io_flags & wire::WRITE_KILL_SUIDGID != 0;
        self.fs.drop_privileges(head.nodeid, suid).await.map_err(errno_of)?;
        self.fs.write(head.nodeid, io.offset, data.freeze()).await.map_err(errno_of)?;
        if io.flags & rustix::fs::OFlags::DSYNC.bits() != 0 {
            self.fs.fsync(head.nodeid).await.map_err(errno_of)?;
        }
        bytes(&WriteOut { size: io.size, padding: 0 })
    }

    /// An entry that the kernel will know.
    fn entry(&self, (ino, inode): &(Ino, Inode)) -> Answer {
        self.fs.begin_use(*ino);
        bytes(&entry_out(*ino, inode))
    }

    fn attr(&self, ino: Ino, inode: &Inode) -> Answer {
        let attr = attr_of(ino, inode);
        bytes(&AttrOut { attr_valid: VALID_S, attr_valid_nsec: 0, dummy: 0, attr })
    }

    async fn set_attr(&self, ino: Ino, wanted: &SetattrIn) -> Answer {
        let has = |bit: u32| wanted.valid & bit != 0;
        let now = || {
            let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            Time { s: i64::try_from(since.as_secs()).unwrap_or(0), ns: since.subsec_nanos() }
        };
        let time = |bit: u32, bit_now: u32, s: i64, ns: u32| {
            has(bit).then(|| if has(bit_now) { now() } else { Time { s, ns } })
        };
        let set = SetAttr {
            mode: has(set::MODE).then_some(wanted.mode),
            uid: has(set::UID).then_some(wanted.uid),
            gid: has(set::GID).then_some(wanted.gid),
            size: has(set::SIZE).then_some(wanted.size),
            accessed: time(set::ATIME, set::ATIME_NOW, wanted.atime, wanted.atimensec),
            modified: time(set::MTIME, set::MTIME_NOW, wanted.mtime, wanted.mtimensec),
            changed: time(set::CTIME, 0, wanted.ctime, wanted.ctimensec),
            drop_suid: has(set::KILL_SUIDGID),
        };
        let inode = self.fs.set_attr(ino, set).await.map_err(errno_of)?;
        self.attr(ino, &inode)
    }

    async fn make(
        &self,
        head: &InHeader,
        name: &[u8],
        mode: u32,
        device: u32,
        target: &[u8],
    ) -> Answer {
        let new = NewFile { mode, uid: head.uid, gid: head.gid, device, target };
        let made = self.fs.make(head.nodeid, name, new).await.map_err(errno_of)?;
        self.entry(&made)
    }

    async fn rename(&self, from: Ino, to: Ino, names: &[u8], how: Rename) -> Answer {
        let (old, rest) = name(names)?;
        let (new, _) = name(rest)?;
        empty(self.fs.rename((from, old), (to, new), how).await)
    }

    async fn read_folder(&self, ino: Ino, io: &IoIn, plus: bool) -> Answer {
        let (mut out, mut after) = (Vec::new(), io.offset);
        loop {
            let entries = self.fs.read_folder(ino, after, ENTRIES).await.map_err(errno_of)?;
            if entries.is_empty() {
                return Ok(out);
            }
            let inodes = match plus {
                true => {
                    let inos: Vec<Ino> = entries.iter().map(|entry| entry.ino).collect();
                    self.fs.attrs(&inos).await.map_err(errno_of)?
                }
                false => vec![None; entries.len()],
            };
            for (entry, inode) in entries.into_iter().zip(inodes) {
                let head = if plus { size_of::<EntryOut>() } else { 0 };
                let len = head + (24 + entry.name.len()).next_multiple_of(8);
                if out.len() + len > io.size as usize {
                    return Ok(out);
                }
                if plus {
                    let own = entry.name == b"." || entry.name == b"..";
                    match inode.filter(|_| !own) {
                        Some(inode) => out.extend_from_slice(&self.entry(&(entry.ino, inode))?),
                        // No number: the kernel does not take it as looked up.
                        None => out.extend_from_slice(&[0; size_of::<EntryOut>()]),
                    }
                }
                let kind = entry.kind.mode() >> 12;
                out.extend_from_slice(&entry.ino.to_ne_bytes());
                out.extend_from_slice(&entry.position.to_ne_bytes());
                out.extend_from_slice(&u32::try_from(entry.name.len()).unwrap_or(0).to_ne_bytes());
                out.extend_from_slice(&kind.to_ne_bytes());
                out.extend_from_slice(&entry.name);
                out.resize(out.len().next_multiple_of(8), 0);
                after = entry.position;
            }
        }
    }

    async fn statfs(&self) -> Answer {
        let status = self.fs.status().await.map_err(errno_of)?;
        let usable = status.disks.iter().filter(|disk| !disk.lost);
        let used: u64 = usable.map(|disk| disk.data_bytes - disk.free_bytes).sum();
        let used = used / weft_fs::BLOCK_BYTES;
        let root = self.fs.attr(ROOT).await.map_err(errno_of)?.redundancy;
        let free = self.fs.free_bytes(root) / weft_fs::BLOCK_BYTES;
        bytes(&StatfsOut {
            blocks: used + free,
            bfree: free,
            bavail: free,
            files: status.inodes + free,
            ffree: free,
            bsize: 4096,
            namelen: 255,
            frsize: 4096,
            ..StatfsOut::default()
        })
    }

    async fn xattr(&self, ino: Ino, name: &[u8]) -> Answer {
        if ino == ROOT
            && let Some(answer) = self.control.get(name).await
        {
            return answer.map_err(errno_of);
        }
        self.fs.xattr(ino, name).await.map_err(errno_of)
    }

    async fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], flags: u32) -> Answer {
        if ino == ROOT
            && let Some(done) = self.control.set(name, value).await
        {
            return empty(done);
        }
        let exists = match flags {
            1 => Some(false),
            2 => Some(true),
            _ => None,
        };
        empty(self.fs.set_xattr(ino, name, value, exists).await)
    }

    /// Copies bytes from one file to another; as many as one request should take. The kernel asks for
    /// the rest.
    async fn copy(&self, from: Ino, wanted: &CopyIn) -> Answer {
        let most = usize::try_from(wanted.length).unwrap_or(usize::MAX).min(COPY_BYTES_MAX);
        let mut copied = 0;
        while copied < most {
            let len = (most - copied).min(WRITE_BYTES_MAX);
            let at = |offset: u64| offset.checked_add(copied as u64).ok_or(Errno::FBIG);
            let read = self.fs.read(from, at(wanted.offset_from)?, len).await;
            let data = read.map_err(errno_of)?;
            if data.is_empty() {
                break;
            }
            let len = data.len();
            match self.fs.write(wanted.node_to, at(wanted.offset_to)?, data.freeze()).await {
                Ok(()) => copied += len,
                Err(error) if copied == 0 => return Err(errno_of(error)),
                // What was copied counts; the next request meets the error.
                Err(_) => break,
            }
        }
        let size = u32::try_from(copied).unwrap_or(u32::MAX);
        bytes(&WriteOut { size, padding: 0 })
    }

    async fn fallocate(&self, ino: Ino, wanted: &FallocateIn) -> Answer {
        let end = wanted.offset.checked_add(wanted.length).ok_or(Errno::FBIG)?;
        match wanted.mode & !fallocate::KEEP_SIZE {
            fallocate::PUNCH_HOLE | fallocate::ZERO_RANGE => {
                let punched = self.fs.punch_hole(ino, wanted.offset, wanted.length).await;
                punched.map_err(errno_of)?;
                let size = self.fs.attr(ino).await.map_err(errno_of)?.size;
                if wanted.mode & fallocate::KEEP_SIZE == 0 && end > size {
                    let set = SetAttr { size: Some(end), ..SetAttr::default() };
                    self.fs.set_attr(ino, set).await.map_err(errno_of)?;
                }
                Ok(Vec::new())
            }
            0 => {
                let keep_size = wanted.mode & fallocate::KEEP_SIZE != 0;
                empty(self.fs.allocate(ino, wanted.offset, wanted.length, keep_size).await)
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

/// The number at the start of some bytes.
fn number(bytes: &[u8]) -> u64 {
    u64::read_from_prefix(bytes).map_or(0, |(number, _)| number)
}

fn empty(result: weft_fs::Result<()>) -> Answer {
    result.map(|()| Vec::new()).map_err(errno_of)
}

/// A value, or its size if that is what was asked for.
fn sized(value: Vec<u8>, size: u32) -> Answer {
    let len = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
    match size {
        0 => bytes(&[len, 0]),
        size if size < len => Err(Errno::RANGE),
        _ => Ok(value),
    }
}

fn opened(open_flags: u32) -> OpenOut {
    OpenOut { open_flags, ..OpenOut::default() }
}

fn entry_out(ino: Ino, inode: &Inode) -> EntryOut {
    EntryOut {
        nodeid: ino,
        generation: inode.generation,
        entry_valid: VALID_S,
        attr_valid: VALID_S,
        entry_valid_nsec: 0,
        attr_valid_nsec: 0,
        attr: attr_of(ino, inode),
    }
}

fn attr_of(ino: Ino, inode: &Inode) -> Attr {
    let s = |time: Time| time.s.cast_unsigned();
    Attr {
        ino,
        size: if inode.is_folder() { 4096 } else { inode.size },
        blocks: inode.blocks * (weft_fs::BLOCK_BYTES / 512),
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

fn errno_of(error: FsError) -> Errno {
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
        _ => Errno::IO,
    }
}
