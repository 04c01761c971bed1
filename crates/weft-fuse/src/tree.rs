//! Serves a mounted weftfs to the kernel.
//!
//! If one node serves the file system, everything passes through its kernel: so what the kernel has
//! cached stays valid, files keep their pages when they are opened again, and names, also that
//! there is none, and attributes are believed for a day. The server tells it about all other
//! changes. If there may be more nodes, the kernel is told to forget before another node changes
//! something (`kernel_cache.rs`), and answers that it might keep in spite of that may not be
//! kept. Writes come at once: only then a write that finds no room can be refused itself. Pages
//! that a program maps and writes the kernel gathers. Permissions are the kernel's business
//! (`default_permissions`, with the access control lists that it reads), and so are locks, unless
//! there are other nodes.
//!
//! A file is in use while the kernel knows its number or has it open; a file without names goes
//! when the kernel forgets it.
//!
//! *Control.* The root folder has attributes that only root may use ([`crate::control`]). So
//! commands reach the mounted file system by its mount point, and need no other connection.

mod contents;
mod locks;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};
use rustix::io::Errno;
use weft_fs::{
    Fs, FsError, Ino, Inode, Kind, NewFile, REDUNDANCY_XATTR, ROOT, Redundancy, Rename, SetAttr,
    SetXattr, Time, XATTR_LIST_MAX,
};
use weft_rt::ring::{Fd, Ring};
use weft_rt::{Nanos, Rt, SECOND};
use zerocopy::IntoBytes as _;

use crate::answer::{
    self, Answer, attr_of, bytes, empty, entry_out, errno_of, name, no_entry, number, parse, sized,
    statx_of, valid_s,
};
use crate::awake::Awake;
use crate::capability::acts_as_owner;
use crate::channel::{self, Body, Request};
use crate::control::{self, Control, OpenDisk};
use crate::counts::Counts;
use crate::file_flags;
use crate::kernel_cache::{KernelMemory, KernelVersion, ReadAgain};
use crate::kernel_sizes::KernelSizes;
use crate::long::{Going, Long};
use crate::lookout::Lookout;
use crate::notification;
use crate::unwritten::Writers;
use crate::wire::{
    self, AttrOut, CopyIn, EntryOut, FallocateIn, InHeader, InitIn, IoIn, Rename2In, SetattrIn,
    StatfsOut, init_flag, op, rename, set,
};

/// Entries of a folder read at a time.
const ENTRIES: usize = 256;
/// Requests in progress if other nodes use the file system as well: each is that of a program, or
/// of the kernel's in the background.
const SHARED_IN_FLIGHT_MAX: usize = 1 << 20;
/// How long a write waits at most until the kernel has dropped pages. It may have locked the last
/// one for the write itself, if it was dropping it just then: that one has no old contents, and is
/// dropped when the write is answered.
const DROP_WAIT_NS: Nanos = SECOND / 10;
/// Blocks of a file from which on it takes long to cut it: a GiB.
const CUT_BLOCKS: u64 = 256 << 10;

/// Serves `channel` until the file system is unmounted from the kernel. `open` opens disks that
/// join. With `latency` ([`crate::awake::open`]) processors are kept awake.
///
/// # Errors
/// If the channel cannot be read.
pub async fn serve(
    rt: Rt,
    ring: Ring,
    channel: OwnedFd,
    fs: Fs,
    open: OpenDisk,
    latency: Option<File>,
) -> Result<(), Errno> {
    let requests: Rc<Counts> = Rc::default();
    let control = Control::new(rt.clone(), fs.clone(), open, requests.clone());
    let fd = Fd::from(channel);
    let (told_rt, told_fd) = (rt.clone(), fd.clone());
    fs.on_lost_blocks(move |ino| forget_pages(&told_rt, &told_fd, ino, 0..u64::MAX));
    let (setxattr_ext, writers) = (Cell::new(false), Writers::default());
    let (is_shared, version) = (fs.is_shared(), Rc::<KernelVersion>::default());
    let (read_again, sizes) = (Rc::<ReadAgain>::default(), Rc::<KernelSizes>::default());
    if is_shared {
        let (rt, fd, version) = (rt.clone(), fd.clone(), version.clone());
        let (read_again, sizes) = (read_again.clone(), sizes.clone());
        fs.keep_in_kernel(Rc::new(KernelMemory { rt, fd, version, read_again, sizes }));
    }
    let tree = Rc::new(Tree {
        rt: rt.clone(),
        fd: fd.clone(),
        fs,
        control,
        requests,
        setxattr_ext,
        is_shared,
        version,
        read_again,
        sizes,
        writers,
        long: Rc::default(),
        folders: RefCell::default(),
        cut: RefCell::default(),
        handles: RefCell::default(),
        last_handle: Cell::new(0),
    });
    let long = tree.long.clone();
    let awake = latency.map(|latency| Awake::new(rt.clone(), latency));
    let lookout = Lookout::new(awake);
    // Requests wait for what other nodes have. What these wait for in turn must be received.
    let in_flight = if is_shared { SHARED_IN_FLIGHT_MAX } else { channel::IN_FLIGHT_MAX };
    let received = channel::receive(
        &rt,
        &ring,
        &fd,
        lookout,
        in_flight,
        || false,
        move |request| {
            let tree = tree.clone();
            async move { tree.carry_out(request).await }
        },
    );
    let received = received.await;
    long.interrupt_all();
    received
}

/// Tells the kernel to forget pages of a file: what they hold is not in the file. It waits for
/// writes of such pages, and is not waited for.
fn forget_pages(rt: &Rt, channel: &Fd, ino: Ino, bytes: Range<u64>) {
    let channel = channel.clone();
    rt.launch(Box::pin(async move {
        // If that fails, the kernel has been told by the error of the request.
        let _ = notification::write_back(&channel, ino, bytes).await;
    }));
}

struct Tree {
    rt: Rt,
    fd: Fd,
    fs: Fs,
    control: Control,
    requests: Rc<Counts>,
    /// SETXATTR has flags of its own.
    setxattr_ext: Cell<bool>,
    /// Other nodes may use the file system as well.
    is_shared: bool,
    version: Rc<KernelVersion>,
    read_again: Rc<ReadAgain>,
    sizes: Rc<KernelSizes>,
    writers: Writers,
    long: Rc<Long>,
    /// For each folder that is read, the position at which its readers end: where it ended when the
    /// last of them started. What comes later, and that is what a reader makes itself, would lead
    /// it on for ever.
    folders: RefCell<BTreeMap<Ino, u64>>,
    /// Files that were cut to nothing, and not closed since.
    cut: RefCell<BTreeSet<Ino>>,
    /// For each handle of a program: the losses of written blocks of its file that it knows
    /// ([`Fs::fsync_for`]).
    handles: RefCell<BTreeMap<u64, u64>>,
    last_handle: Cell<u64>,
}

impl Tree {
    async fn carry_out(self: Rc<Self>, Request { head, body }: Request) {
        self.requests.came(head.opcode);
        let answer = match body {
            Body::Read(io) => return self.read(&head, &io).await,
            Body::Write(io, data) => {
                let written = self.write(&head, &io, data).await;
                if written.is_err() && io.io_flags & wire::WRITE_CACHE != 0 {
                    // The pages of a mapped file hold the refused data, and are not dirty any more.
                    let end = io.offset.saturating_add(io.size.into());
                    forget_pages(&self.rt, &self.fd, head.nodeid, io.offset..end);
                }
                written
            }
            Body::Plain(body) => match head.opcode {
                op::FORGET => return self.forget(&[(head.nodeid, &body)]).await,
                op::BATCH_FORGET => {
                    let each = body.get(8..).unwrap_or_default().chunks_exact(16);
                    let each: Vec<_> = each.map(|one| (number(one), &one[8..])).collect();
                    return self.forget(&each).await;
                }
                op::SETLKW if self.is_shared => {
                    let (tree, going) = (self.clone(), self.long.begin(head.unique, head.uid));
                    // It has no turn among long requests: it may wait for one that waits for that.
                    let carry_out = async move {
                        tree.answer(&head, tree.lock(&head, &body, Some(&going)).await);
                    };
                    return self.rt.launch(Box::pin(carry_out));
                }
                op::INTERRUPT => return self.long.interrupt(number(&body)),
                op::SETATTR if self.cuts_much(&head, &body).await => {
                    let (tree, going) = (self.clone(), self.long.begin(head.unique, head.uid));
                    return self.rt.launch(Box::pin(tree.cut(going, head, body)));
                }
                _ if self.takes_long(&head, &body) => {
                    let (tree, going) = (self.clone(), self.long.begin(head.unique, head.uid));
                    let carry_out =
                        async move { tree.answer(&head, tree.long(going, &head, &body).await) };
                    return self.rt.launch(Box::pin(carry_out));
                }
                _ => self.plain(&head, &body, None).await,
            },
        };
        self.answer(&head, answer);
    }

    /// Whether a request may take long, or waits for later requests. It must not hold up other
    /// requests.
    fn takes_long(&self, head: &InHeader, body: &[u8]) -> bool {
        let key =
            |before: usize| body.get(before..).and_then(|rest| name(rest).ok()).map(|key| key.0);
        match head.opcode {
            op::FALLOCATE | op::COPY_FILE_RANGE | op::LSEEK | op::SYNCFS => true,
            op::RENAME | op::RENAME2 => self.writers.any(),
            op::SETXATTR => {
                let before = if self.setxattr_ext.get() { 16 } else { 8 };
                key(before) == Some(REDUNDANCY_XATTR)
            }
            op::GETXATTR => {
                let checks = [control::CHECK.as_bytes(), control::CHECK_DATA.as_bytes()];
                head.nodeid == ROOT && key(8).is_some_and(|key| checks.contains(&key))
            }
            _ => false,
        }
    }

    /// Whether a request truncates a file by enough to take long.
    async fn cuts_much(&self, head: &InHeader, body: &[u8]) -> bool {
        let Ok((wanted, _)) = parse::<SetattrIn>(body) else { return false };
        if wanted.valid & set::SIZE == 0 {
            return false;
        }
        let inode = self.fs.attr_to_resize(head.nodeid).await;
        inode.is_ok_and(|inode| wanted.size < inode.size && inode.blocks > CUT_BLOCKS)
    }

    /// Cuts a file. A program that is killed does not wait for that: the file has its new size at
    /// once, and blocks beyond it are freed in the background.
    async fn cut(self: Rc<Self>, mut going: Going, head: InHeader, body: Vec<u8>) {
        if let Err(errno) = going.turn().await {
            return self.answer(&head, Err(errno));
        }
        let interrupted = going.interrupted();
        let cut = pin!(self.plain(&head, &body, None));
        match select(cut, pin!(interrupted)).await {
            Either::Left((answer, _)) => self.answer(&head, answer),
            Either::Right(((), cut)) => {
                self.answer(&head, Err(Errno::INTR));
                // The kernel believes that nothing was cut.
                forget_pages(&self.rt, &self.fd, head.nodeid, 0..u64::MAX);
                // A failure shows in the next request.
                let _ = cut.await;
            }
        }
    }

    async fn long(&self, mut going: Going, head: &InHeader, body: &[u8]) -> Answer {
        going.turn().await?;
        match head.opcode {
            op::FALLOCATE => self.fallocate(&going, head, &parse::<FallocateIn>(body)?.0).await,
            op::COPY_FILE_RANGE => self.copy(&going, head, &parse::<CopyIn>(body)?.0).await,
            op::LSEEK => self.seek(&going, head, body).await,
            _ => self.plain(head, body, Some(&going)).await,
        }
    }

    fn answer(&self, head: &InHeader, answer: Answer) {
        match answer {
            Ok(data) => channel::answer(&self.fd, head, Ok(&data)),
            Err(errno) => channel::answer(&self.fd, head, Err(errno)),
        }
    }

    async fn forget(&self, nodes: &[(u64, &[u8])]) {
        for (ino, count) in nodes {
            self.cut.borrow_mut().remove(ino);
            self.folders.borrow_mut().remove(ino);
            self.read_again.forget(*ino);
            // A failure shows in the next request.
            let _ = self.fs.end_uses(*ino, number(count)).await;
            if !self.fs.is_used(*ino) {
                self.sizes.forget(*ino);
            }
        }
    }

    /// Carries out a request; `going` tells whether one that takes long is to go on.
    async fn plain(&self, head: &InHeader, body: &[u8], going: Option<&Going>) -> Answer {
        let ino = head.nodeid;
        match head.opcode {
            op::INIT => self.init(body),
            op::LOOKUP => self.lookup(ino, name(body)?.0).await,
            op::STATX => {
                let inode = self.fs.attr(ino).await.map_err(errno_of)?;
                self.make_size_known(ino, &inode).await;
                bytes(&statx_of(ino, &inode, self.writers.has(ino)))
            }
            op::IOCTL => {
                let done = file_flags::carry_out(&self.fs, ino, body).await?;
                if file_flags::sets(body) {
                    // The time of change is another one.
                    notification::forget_attributes(&self.fd, ino).await?;
                }
                Ok(done)
            }
            op::GETATTR => {
                let inode = self.fs.attr(ino).await.map_err(errno_of)?;
                self.make_size_known(ino, &inode).await;
                self.attr(ino, &inode, true)
            }
            op::SETATTR => self.set_attr(head, &parse::<SetattrIn>(body)?.0).await,
            op::READLINK => self.fs.read_link(ino).await.map_err(errno_of),
            op::SYMLINK | op::MKNOD | op::MKDIR | op::CREATE | op::TMPFILE => {
                self.make(head, body).await
            }
            op::UNLINK => empty(self.fs.unlink(ino, name(body)?.0).await),
            op::RMDIR => empty(self.fs.remove_folder(ino, name(body)?.0).await),
            op::RENAME => {
                let (to, rest) = parse::<u64>(body)?;
                self.rename(head, to, rest, Rename::Replace, false).await
            }
            op::RENAME2 => {
                let (Rename2In { to, flags, .. }, rest) = parse::<Rename2In>(body)?;
                let how = match flags & !rename::WHITEOUT {
                    0 => Rename::Replace,
                    rename::NOREPLACE => Rename::NoReplace,
                    rename::EXCHANGE => Rename::Exchange,
                    _ => return Err(Errno::INVAL),
                };
                self.rename(head, to, rest, how, flags & rename::WHITEOUT != 0).await
            }
            op::LINK => {
                let (old, rest) = parse::<u64>(body)?;
                let inode = self.fs.link(old, ino, name(rest)?.0).await.map_err(errno_of)?;
                self.entry(&(old, inode))
            }
            op::OPEN => self.open(ino, parse::<u32>(body)?.0).await,
            // What the kernel reads of a folder that other nodes change does not stay.
            op::OPENDIR if self.is_shared => bytes(&answer::opened(0, 0)),
            // Folders are opened and closed without a request from now on, and what the kernel has
            // read of them stays (since Linux 5.1).
            op::OPENDIR => Err(Errno::NOSYS),
            op::GETLK | op::SETLK if self.is_shared => self.lock(head, body, None).await,
            op::FLUSH if self.is_shared => self.flush(ino, body).await,
            op::RELEASE => {
                if self.is_shared {
                    self.end_handle_locks(ino, body).await;
                }
                let (handle, rest) = parse::<u64>(body)?;
                self.handles.borrow_mut().remove(&handle);
                self.release(ino, parse::<u32>(rest)?.0).await
            }
            op::RELEASEDIR | op::DESTROY => Ok(Vec::new()),
            op::FSYNC | op::FSYNCDIR => self.fsync(ino, parse::<u64>(body)?.0).await,
            op::SYNCFS => empty(self.fs.sync().await),
            op::READDIR => self.read_folder(ino, &parse::<IoIn>(body)?.0, false).await,
            op::READDIRPLUS => self.read_folder(ino, &parse::<IoIn>(body)?.0, true).await,
            op::STATFS => self.statfs().await,
            op::SETXATTR => self.set_xattr(head, body, going).await,
            op::GETXATTR => {
                let ([size, _], rest) = parse::<[u32; 2]>(body)?;
                sized(self.xattr(ino, name(rest)?.0).await?, size)
            }
            op::LISTXATTR => self.list_xattrs(head, parse::<[u32; 2]>(body)?.0[0]).await,
            op::REMOVEXATTR => empty(self.fs.remove_xattr(ino, name(body)?.0).await),
            _ => Err(Errno::NOSYS),
        }
    }

    fn init(&self, body: &[u8]) -> Answer {
        // The kernel gives names that it reads with their files an age that is too young. Locks go
        // across nodes.
        let more = match self.is_shared {
            true => init_flag::POSIX_LOCKS | init_flag::FLOCK_LOCKS,
            false => init_flag::DO_READDIRPLUS | init_flag::READDIRPLUS_AUTO,
        };
        let also = init_flag::EXPORT_SUPPORT
            | more
            | init_flag::PARALLEL_DIROPS
            | init_flag::CACHE_SYMLINKS
            | init_flag::HANDLE_KILLPRIV_V2
            | init_flag::POSIX_ACL
            | init_flag::DONT_MASK
            | init_flag::SETXATTR_EXT;
        let mut agreed = channel::negotiate(body, also)?;
        self.version.set(parse::<InitIn>(body)?.0.minor);
        if self.is_shared {
            // One in the background may be what others there wait for.
            (agreed.max_background, agreed.congestion_threshold) = (u16::MAX, u16::MAX);
        }
        self.setxattr_ext.set(agreed.flags & init_flag::SETXATTR_EXT != 0);
        bytes(&wire::InitOut { max_readahead: channel::READ_AHEAD_BYTES, ..agreed })
    }

    async fn lookup(&self, folder: Ino, name: &[u8]) -> Answer {
        // What is asked for is the file itself: a program has a handle of it, and the kernel does
        // not know it any more.
        if name == b"." {
            let inode = self.fs.lookup_number(folder).await.map_err(errno_of)?;
            return bytes(&self.entry_of(folder, &inode));
        }
        match self.fs.lookup(folder, name).await {
            Err(FsError::NotFound) => bytes(&self.kept(no_entry())),
            found => self.entry(&found.map_err(errno_of)?),
        }
    }

    /// An entry that the kernel will know.
    fn entry(&self, (ino, inode): &(Ino, Inode)) -> Answer {
        self.fs.begin_use(*ino);
        bytes(&self.entry_of(*ino, inode))
    }

    fn entry_of(&self, ino: Ino, inode: &Inode) -> EntryOut {
        self.sizes.lower(ino, inode.size);
        self.kept(entry_out(ino, inode, self.writers.has(ino)))
    }

    /// The entry with the times for which the kernel may keep it.
    fn kept(&self, mut entry: EntryOut) -> EntryOut {
        if self.is_shared {
            entry.attr_valid = 0;
            if !self.version.forgets_names() {
                entry.entry_valid = 0;
            }
        }
        entry
    }

    /// The kernel may drop the answer to a request for attributes, and not the size.
    async fn make_size_known(&self, ino: Ino, inode: &Inode) {
        if inode.kind() == Kind::File {
            self.sizes.make_known(&self.rt, &self.fd, ino, inode.size).await;
        }
    }

    fn attr(&self, ino: Ino, inode: &Inode, may_be_kept: bool) -> Answer {
        let is_written = self.writers.has(ino);
        let attr = attr_of(ino, inode, is_written);
        let attr_valid = if may_be_kept { valid_s(inode, is_written) } else { 0 };
        bytes(&AttrOut { attr_valid, attr_valid_nsec: 0, dummy: 0, attr })
    }

    async fn set_attr(&self, head: &InHeader, wanted: &SetattrIn) -> Answer {
        let ino = head.nodeid;
        let has = |bit: u32| wanted.valid & bit != 0;
        let now = || {
            let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            Time { s: i64::try_from(since.as_secs()).unwrap_or(0), ns: since.subsec_nanos() }
        };
        let time = |bit: u32, bit_now: u32, s: i64, ns: u32| {
            has(bit).then(|| if has(bit_now) { now() } else { Time { s, ns } })
        };
        let mut set = SetAttr {
            mode: has(set::MODE).then_some(wanted.mode),
            uid: has(set::UID).then_some(wanted.uid),
            gid: has(set::GID).then_some(wanted.gid),
            size: has(set::SIZE).then_some(wanted.size),
            accessed: time(set::ATIME, set::ATIME_NOW, wanted.atime, wanted.atimensec),
            modified: time(set::MTIME, set::MTIME_NOW, wanted.mtime, wanted.mtimensec),
            changed: time(set::CTIME, 0, wanted.ctime, wanted.ctimensec),
            sets_times: has(set::ATIME) && !has(set::ATIME_NOW)
                || has(set::MTIME) && !has(set::MTIME_NOW),
            drop_suid: has(set::KILL_SUIDGID),
        };
        // A chown that keeps both owners ends privileges, too, and arrives as this and no more. The
        // kernel lets anyone ask for it.
        if set == (SetAttr { changed: set.changed, ..SetAttr::default() }) {
            let owner = self.fs.attr(ino).await.map_err(errno_of)?.uid;
            set.drop_suid = head.uid == 0 || head.uid == owner;
        }
        if set.size == Some(0) && self.fs.attr_to_resize(ino).await.map_err(errno_of)?.size > 0 {
            self.cut.borrow_mut().insert(ino);
        }
        let done = self.fs.set_attr(ino, set).await;
        if let Ok(inode) = &done {
            self.sizes.lower(ino, inode.size);
        }
        if set.size.is_some() {
            self.sizes.settle(&self.rt, ino, DROP_WAIT_NS).await;
        }
        match done {
            Ok(inode) => self.attr(ino, &inode, !self.is_shared),
            Err(error) => {
                // A cut or growth that failed midway has changed the size that the kernel knows.
                if set.size.is_some() {
                    notification::forget_attributes(&self.fd, ino).await?;
                }
                Err(errno_of(error))
            }
        }
    }

    /// Makes a file that belongs to who asks.
    async fn make(&self, head: &InHeader, body: &[u8]) -> Answer {
        let folder = head.nodeid;
        let new = NewFile { uid: head.uid, gid: head.gid, ..NewFile::default() };
        let (flags, made) = match head.opcode {
            op::SYMLINK => {
                let (name_of, rest) = name(body)?;
                let (mode, target) = (Kind::Symlink.mode() | 0o777, name(rest)?.0);
                (None, self.fs.make(folder, name_of, NewFile { mode, target, ..new }).await)
            }
            op::MKNOD => {
                let ([mode, device, umask, _], rest) = parse::<[u32; 4]>(body)?;
                let new = NewFile { mode, umask, device, ..new };
                (None, self.fs.make(folder, name(rest)?.0, new).await)
            }
            op::MKDIR => {
                let ([mode, umask], rest) = parse::<[u32; 2]>(body)?;
                let mode = Kind::Folder.mode() | mode & 0o7777;
                (None, self.fs.make(folder, name(rest)?.0, NewFile { mode, umask, ..new }).await)
            }
            // It is opened as well.
            opcode => {
                let ([flags, mode, umask, _], rest) = parse::<[u32; 4]>(body)?;
                let new = NewFile { mode: Kind::File.mode() | mode & 0o7777, umask, ..new };
                let name_of = if opcode == op::CREATE { Some(name(rest)?.0) } else { None };
                let made = self.fs.make_opened(folder, name_of, new).await;
                (Some(flags), made)
            }
        };
        let made = made.map_err(errno_of)?;
        let Some(flags) = flags else { return self.entry(&made) };
        self.begin_writes(made.0, flags).await;
        let mut out = self.entry(&made)?;
        self.fs.begin_use(made.0);
        out.extend_from_slice(self.opened(made.0, flags).as_bytes());
        Ok(out)
    }

    async fn rename(
        &self,
        head: &InHeader,
        to: Ino,
        names: &[u8],
        how: Rename,
        leaves_whiteout: bool,
    ) -> Answer {
        let from = head.nodeid;
        let (old, rest) = name(names)?;
        let (new, _) = name(rest)?;
        if how == Rename::Replace && self.writers.any() {
            self.write_before_replace((from, old), (to, new)).await;
        }
        let (from, to) = ((from, old), (to, new));
        empty(match leaves_whiteout {
            true => {
                let owner = (head.uid, head.gid);
                self.fs.rename_leaving_whiteout(from, to, how, owner).await
            }
            false => self.fs.rename(from, to, how).await,
        })
    }

    /// What replaces another file is written first; so is what the kernel has of it.
    async fn write_before_replace(&self, (from, old): (Ino, &[u8]), (to, new): (Ino, &[u8])) {
        let Ok((ino, _)) = self.fs.lookup(from, old).await else { return };
        if self.writers.has(ino) && self.fs.lookup(to, new).await.is_ok() {
            // It can be renamed all the same.
            let _ = notification::write_back(&self.fd, ino, 0..u64::MAX).await;
        }
    }

    async fn read_folder(&self, ino: Ino, io: &IoIn, plus: bool) -> Answer {
        let (mut out, mut after) = (Vec::new(), io.offset);
        if io.offset == 0 {
            // A reader starts, or starts again.
            let end = self.fs.attr(ino).await.map_err(errno_of)?.next_position;
            self.folders.borrow_mut().insert(ino, end);
        }
        let end = self.folders.borrow().get(&ino).copied().unwrap_or(u64::MAX);
        loop {
            let mut entries = self.fs.read_folder(ino, after, ENTRIES).await.map_err(errno_of)?;
            entries.retain(|entry| entry.position < end);
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
        // A program that looks after it has deleted something finds what it would find later.
        let _ = self.fs.free_deleted().await;
        let status = self.fs.status().await.map_err(errno_of)?;
        // One that has stopped is still to be recognized.
        let root = self.fs.attr(ROOT).await.map_or(Redundancy::Auto, |root| root.redundancy);
        let free = self.fs.free_bytes(root) / weft_fs::BLOCK_BYTES;
        // The size without any files, regardless of the redundancy of existing files.
        let all = (self.fs.all_bytes(root) / weft_fs::BLOCK_BYTES).max(free);
        bytes(&StatfsOut {
            blocks: all,
            bfree: free,
            bavail: free,
            files: status.inodes + status.free_inodes,
            ffree: status.free_inodes,
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

    async fn list_xattrs(&self, head: &InHeader, size: u32) -> Answer {
        let mut names = self.fs.xattr_names(head.nodeid).await.map_err(errno_of)?;
        // Others cannot read them either.
        names.retain(|name| head.uid == 0 || !name.starts_with(b"trusted."));
        if names.iter().map(|name| name.len() + 1).sum::<usize>() > XATTR_LIST_MAX {
            return Err(Errno::TOOBIG);
        }
        sized(names.into_iter().flat_map(|name| [&name[..], &[0]].concat()).collect(), size)
    }

    async fn set_xattr(&self, head: &InHeader, body: &[u8], going: Option<&Going>) -> Answer {
        let ino = head.nodeid;
        let ([size, flags], rest) = parse::<[u32; 2]>(body)?;
        let ([more, _], rest) = match self.setxattr_ext.get() {
            true => parse::<[u32; 2]>(rest)?,
            // The kernel is too old to say who is in the group; only root surely may.
            false => ([u32::from(head.uid != 0) * wire::SETXATTR_ACL_KILL_SGID, 0], rest),
        };
        let (name, rest) = name(rest)?;
        let value = rest.get(..size as usize).ok_or(Errno::INVAL)?;
        let exists = match flags {
            0 => None,
            1 => Some(false),
            2 => Some(true),
            // It must not exist, and it must: there is an error for each case.
            _ => Some(self.fs.xattr(ino, name).await.is_err()),
        };
        let drop_set_gid = more & wire::SETXATTR_ACL_KILL_SGID != 0;
        let how = SetXattr { exists, drop_set_gid, by_root: head.uid == 0 };
        // It says where contents lie, and is no note for whoever may write them.
        if name == REDUNDANCY_XATTR && head.uid != 0 {
            let owner = self.fs.attr(ino).await.map_err(errno_of)?.uid;
            if head.uid != owner && !acts_as_owner(head.pid) {
                return Err(Errno::PERM);
            }
        }
        if ino == ROOT
            && let Some(done) = self.control.set(name, value).await
        {
            return empty(done);
        }
        let goes_on = going.map(Going::goes_on);
        let goes_on = move || goes_on.as_ref().is_none_or(|goes_on| goes_on());
        empty(self.fs.set_xattr_while(ino, name, value, how, goes_on).await)
    }
}
