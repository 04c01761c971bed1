//! Users as actors: they send what any program of theirs may, through the same door as the kernel,
//! at random and many at once. They keep root from nothing, change nothing of it, and what they
//! leave can be deleted.
//!
//! What takes the kernel's place is a pair of sockets that keep messages apart. So neither a mount
//! nor privileges are needed. What the kernel checks before it asks is not done here: actors use
//! their own files only, but for what is refused here.

#![allow(clippy::cast_possible_truncation, reason = "sizes and counts of a test are small")]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::future::join_all;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use weft_fs::{Fs, Kind, MountOptions, ROOT};
use weft_random::Rng;
use weft_rt::ring::{self, Fd, Ring, RingConfig};
use weft_rt::sync::Notify;
use weft_rt::{Buf, Rt};
use weft_testkit::for_seeds;
use zerocopy::IntoBytes as _;

use crate::answer::number;
use crate::test_mounts::{MIB, MOUNTING, created, no_disk};
use crate::tree;
use crate::wire::{
    self, CopyIn, FallocateIn, InHeader, InitIn, IoIn, LseekIn, Rename2In, SetattrIn, fallocate,
    op, set,
};

const USERS: [u32; 3] = [1000, 1001, 1002];
/// Programs of each user, and requests of each program.
const PROGRAMS: usize = 8;
const REQUESTS: usize = 150;
/// A request of root is answered before so many of others that came after it.
const OTHERS_MAX: u64 = 600;
/// Sizes of values and targets: rows that fit a page, just do and just do not, and take several.
const SIZES: [usize; 12] = [0, 1, 200, 1000, 1365, 2100, 4000, 4095, 4100, 17_000, 65_000, 65_536];

/// An answer: an errno, or what the request gives.
type Answered = Result<Vec<u8>, Errno>;

/// The kernel's end of the channel.
struct Kernel {
    rt: Rt,
    fd: Fd,
    next: Cell<u64>,
    answers: RefCell<BTreeMap<u64, Answered>>,
    came: Notify,
    /// Answers to users so far.
    to_users: Cell<u64>,
}

impl Kernel {
    /// Receives answers, for ever.
    async fn receive(self: Rc<Self>, ring: Ring) {
        let mut buf = Buf::new(2 << 20);
        loop {
            match rustix::io::read(&self.fd, &mut buf[..]) {
                Ok(len) => {
                    let unique = number(&buf[8..16]);
                    let error = i32::from_ne_bytes(buf[4..8].try_into().expect("four bytes"));
                    let answer = match error {
                        0 => Ok(buf[16..len].to_vec()),
                        error => Err(Errno::from_raw_os_error(-error)),
                    };
                    // What is told without a request has the number 0.
                    if unique != 0 {
                        self.answers.borrow_mut().insert(unique, answer);
                        self.came.notify_all();
                    }
                }
                Err(Errno::AGAIN) => ring.poll_readable(&self.fd).await.expect("it is open"),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Sends a request, and returns its number.
    async fn send(&self, uid: u32, opcode: u32, nodeid: u64, body: &[u8]) -> u64 {
        let unique = self.next.replace(self.next.get() + 2);
        let len = u32::try_from(size_of::<InHeader>() + body.len()).expect("short");
        let (gid, pid, total_extlen, padding) = (uid, 0, 0, 0);
        let head = InHeader { len, opcode, unique, nodeid, uid, gid, pid, total_extlen, padding };
        let message = [head.as_bytes(), body].concat();
        while let Err(error) = rustix::io::write(&self.fd, &message) {
            assert_eq!(error, Errno::AGAIN);
            self.rt.yield_now().await;
        }
        unique
    }

    async fn answer_to(&self, unique: u64) -> Answered {
        loop {
            let came = self.came.wait();
            if let Some(answer) = self.answers.borrow_mut().remove(&unique) {
                return answer;
            }
            came.await;
        }
    }

    /// A request of a user.
    async fn ask(&self, uid: u32, opcode: u32, nodeid: u64, body: &[u8]) -> Answered {
        let unique = self.send(uid, opcode, nodeid, body).await;
        let answer = self.answer_to(unique).await;
        self.to_users.set(self.to_users.get() + 1);
        let what = || wire::op::ALL.iter().find(|(number, _)| *number == opcode);
        assert_ne!(answer, Err(Errno::IO), "{uid}: {:?}", what());
        answer
    }

    /// The kernel does not know a file any more: one without names goes.
    async fn forget(&self, ino: u64) {
        self.send(0, op::FORGET, ino, u64::MAX.as_bytes()).await;
    }

    /// A request of root, which succeeds, and soon.
    async fn root(&self, opcode: u32, nodeid: u64, body: &[u8]) -> Vec<u8> {
        let before = self.to_users.get();
        let unique = self.send(0, opcode, nodeid, body).await;
        let answer = self.answer_to(unique).await;
        let others = self.to_users.get() - before;
        assert!(others <= OTHERS_MAX, "request {opcode} waited for {others} others");
        answer.unwrap_or_else(|error| panic!("request {opcode} of root: {error}"))
    }
}

/// Names, each with what ends it.
fn names(names: &[&[u8]]) -> Vec<u8> {
    names.iter().flat_map(|name| [name, &[0][..]].concat()).collect()
}

fn mkdir(name: &[u8], mode: u32) -> Vec<u8> {
    [[mode, 0].as_bytes(), &names(&[name])[..]].concat()
}

fn mknod(name: &[u8]) -> Vec<u8> {
    [[Kind::File.mode() | 0o644, 0, 0, 0].as_bytes(), &names(&[name])[..]].concat()
}

fn xattr(name: &[u8], value: &[u8], flags: u32) -> Vec<u8> {
    let size = u32::try_from(value.len()).expect("short");
    [[size, flags].as_bytes(), &names(&[name])[..], value].concat()
}

fn io(offset: u64, size: usize) -> IoIn {
    let size = u32::try_from(size).expect("short");
    IoIn { fh: 0, offset, size, io_flags: 0, lock_owner: 0, flags: 0, padding: 0 }
}

fn write(offset: u64, data: &[u8]) -> Vec<u8> {
    [io(offset, data.len()).as_bytes(), data].concat()
}

fn read(offset: u64, size: usize) -> Vec<u8> {
    io(offset, size).as_bytes().to_vec()
}

/// An access control list with so many users.
fn list(users: u32) -> Vec<u8> {
    let entry = |tag: u16, id: u32| {
        [&tag.to_le_bytes()[..], &6_u16.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let few = |tag: u16| entry(tag, u32::MAX);
    let users = (0..users).flat_map(|id| entry(2, id + 1));
    let entries = few(1).into_iter().chain(users).chain(few(4)).chain(few(16)).chain(few(32));
    2_u32.to_le_bytes().into_iter().chain(entries).collect()
}

/// The names and numbers of a folder, but for itself and the one above.
async fn entries(kernel: &Kernel, folder: u64) -> Vec<(Vec<u8>, u64)> {
    let (mut found, mut after) = (Vec::new(), 0);
    loop {
        let part = kernel.root(op::READDIR, folder, &read(after, 64 << 10)).await;
        let mut rest = &part[..];
        if rest.is_empty() {
            return found;
        }
        while !rest.is_empty() {
            let (ino, len) = (number(rest), number(&rest[16..]) & 0xffff_ffff);
            after = number(&rest[8..]);
            let len = usize::try_from(len).expect("short");
            let name = rest[24..24 + len].to_vec();
            rest = &rest[(24 + len).next_multiple_of(8)..];
            if name != b"." && name != b".." {
                found.push((name, ino));
            }
        }
    }
}

/// What a user has.
#[derive(Default)]
struct Owned {
    folders: Vec<u64>,
    files: Vec<u64>,
    /// Folder and name of what can be removed or renamed.
    names: Vec<(u64, Vec<u8>)>,
}

/// A program of a user.
struct Program {
    kernel: Rc<Kernel>,
    uid: u32,
    rng: Rng,
    owned: Rc<RefCell<Owned>>,
    roots_file: u64,
    made: u64,
    /// All that was made.
    inos: Rc<RefCell<BTreeSet<u64>>>,
}

impl Program {
    fn name(&mut self) -> Vec<u8> {
        self.made += 1;
        let mut name = format!("{}-{}-", self.uid, self.rng.next_u64() % 100_000).into_bytes();
        let long = [0, 0, 30, 200, 255, 300][self.rng.index(6)];
        name.resize(name.len().max(long), b'x');
        name
    }

    fn folder(&mut self) -> u64 {
        *self.rng.pick(&self.owned.borrow().folders)
    }

    fn any(&mut self) -> u64 {
        let owned = self.owned.borrow();
        let all: Vec<u64> = owned.folders.iter().chain(&owned.files).copied().collect();
        *self.rng.pick(&all)
    }

    fn file(&mut self) -> Option<u64> {
        let owned = self.owned.borrow();
        (!owned.files.is_empty()).then(|| *self.rng.pick(&owned.files))
    }

    fn value(&mut self) -> Vec<u8> {
        vec![self.rng.below(256) as u8; *self.rng.pick(&SIZES)]
    }

    async fn make(&mut self) {
        let (folder, name) = (self.folder(), self.name());
        let (opcode, body) = match self.rng.below(4) {
            0 => (op::MKDIR, mkdir(&name, 0o755)),
            1 => {
                let target = vec![b't'; *self.rng.pick(&SIZES)];
                (op::SYMLINK, names(&[&name, &target]))
            }
            _ => (op::MKNOD, mknod(&name)),
        };
        let made = self.kernel.ask(self.uid, opcode, folder, &body).await;
        let Ok(entry) = made else { return };
        self.inos.borrow_mut().insert(number(&entry));
        let mut owned = self.owned.borrow_mut();
        owned.names.push((folder, name));
        match opcode {
            op::MKDIR => owned.folders.push(number(&entry)),
            op::MKNOD => owned.files.push(number(&entry)),
            _ => {}
        }
    }

    async fn attribute(&mut self) {
        let (ino, value, flags) = (self.any(), self.value(), self.rng.below(4) as u32);
        let refused =
            [&b"system.x"[..], b"none", b"user.", b"system.posix_acl_other", b"security."];
        let name = match self.rng.below(4) {
            0 => self.rng.pick(&refused).to_vec(),
            _ => format!("user.{}", self.rng.below(2000)).into_bytes(),
        };
        let body = xattr(&name, &value, flags);
        let set = self.kernel.ask(self.uid, op::SETXATTR, ino, &body).await;
        assert!(set.is_err() || !refused.contains(&&name[..]), "{name:?} was set");
        if self.rng.chance(20) {
            let _ = self.kernel.ask(self.uid, op::REMOVEXATTR, ino, &names(&[&name])).await;
        }
        let _ = self.kernel.ask(self.uid, op::LISTXATTR, ino, &[0; 8]).await;
    }

    async fn access(&mut self) {
        let (ino, list) = (self.any(), list(self.rng.below(600) as u32));
        let which = *self.rng.pick(&["system.posix_acl_access", "system.posix_acl_default"]);
        let body = xattr(which.as_bytes(), &list, 0);
        let _ = self.kernel.ask(self.uid, op::SETXATTR, ino, &body).await;
    }

    async fn redundancy(&mut self) {
        let value = *self.rng.pick(&["none", "raid1", "raid6", "nonsense", ""]);
        let body = xattr(b"user.weft.redundancy", value.as_bytes(), 0);
        let ino = self.any();
        let _ = self.kernel.ask(self.uid, op::SETXATTR, ino, &body).await;
        let set = self.kernel.ask(self.uid, op::SETXATTR, self.roots_file, &body).await;
        assert_eq!(set, Err(Errno::PERM), "it is root's");
    }

    /// Contents, or a request that takes long; it may be interrupted.
    async fn contents(&mut self) {
        let Some(ino) = self.file() else { return };
        let most = |rng: &mut Rng| *rng.pick(&[1 << 12, 1 << 20, 1 << 30, 1 << 40]);
        let (offset, length) = (most(&mut self.rng), most(&mut self.rng));
        let (offset, length) = (self.rng.below(offset), 1 + self.rng.below(length));
        let (opcode, body) = match self.rng.below(7) {
            0 => {
                let modes = [0, fallocate::KEEP_SIZE, 3, fallocate::ZERO_RANGE];
                let (mode, fh, padding) = (*self.rng.pick(&modes), 0, 0);
                let wanted = FallocateIn { fh, offset, length, mode, padding };
                (op::FALLOCATE, wanted.as_bytes().to_vec())
            }
            1 => {
                let whence = 3 + self.rng.below(2) as u32;
                (op::LSEEK, LseekIn { fh: 0, offset, whence, padding: 0 }.as_bytes().to_vec())
            }
            2 => {
                let node_to = self.file().expect("it has one");
                let (fh_from, fh_to, flags) = (0, 0, 0);
                let (offset_from, offset_to) = (self.rng.below(MIB), self.rng.below(MIB));
                let copy =
                    CopyIn { fh_from, offset_from, node_to, fh_to, offset_to, length, flags };
                (op::COPY_FILE_RANGE, copy.as_bytes().to_vec())
            }
            3 => {
                let head = [0; size_of::<SetattrIn>()];
                let mut wanted =
                    <SetattrIn as zerocopy::FromBytes>::read_from_bytes(&head).expect("its size");
                (wanted.valid, wanted.size) = (set::SIZE, offset);
                (op::SETATTR, wanted.as_bytes().to_vec())
            }
            4 => (op::FSYNC, vec![0; 16]),
            5 => (op::READ, read(offset % MIB, 32 << 10)),
            _ => {
                let data = vec![self.rng.below(256) as u8; 1 + self.rng.index(60_000)];
                (op::WRITE, write(offset, &data))
            }
        };
        if !self.rng.chance(30) {
            let _ = self.kernel.ask(self.uid, opcode, ino, &body).await;
            return;
        }
        let unique = self.kernel.send(self.uid, opcode, ino, &body).await;
        for _ in 0..self.rng.below(10) {
            self.kernel.rt.yield_now().await;
        }
        self.kernel.send(self.uid, op::INTERRUPT, 0, unique.as_bytes()).await;
        let answer = self.kernel.answer_to(unique).await;
        assert_ne!(answer, Err(Errno::IO), "request {opcode} of {}", self.uid);
    }

    async fn names(&mut self) {
        let known = self.owned.borrow().names.len();
        if known == 0 {
            return;
        }
        let at = self.rng.index(known);
        let (folder, name) = self.owned.borrow_mut().names.swap_remove(at);
        match self.rng.below(4) {
            0 => {
                let (to, new) = (self.folder(), self.name());
                let head = Rename2In { to, flags: 0, padding: 0 };
                let body = [head.as_bytes(), &names(&[&name, &new])[..]].concat();
                let renamed = self.kernel.ask(self.uid, op::RENAME2, folder, &body).await;
                let is = if renamed.is_ok() { (to, new) } else { (folder, name) };
                self.owned.borrow_mut().names.push(is);
            }
            1 => drop(self.kernel.ask(self.uid, op::RMDIR, folder, &names(&[&name])).await),
            2 => drop(self.kernel.ask(self.uid, op::UNLINK, folder, &names(&[&name])).await),
            _ => {
                let plus = self.rng.chance(50);
                let opcode = if plus { op::READDIRPLUS } else { op::READDIR };
                let _ = self.kernel.ask(self.uid, opcode, folder, &read(0, 32 << 10)).await;
                self.owned.borrow_mut().names.push((folder, name));
            }
        }
    }

    async fn go_on(mut self) {
        for _ in 0..REQUESTS {
            match self.rng.below(12) {
                0..4 => self.make().await,
                4..6 => self.attribute().await,
                6 => self.access().await,
                7 => self.redundancy().await,
                8 => self.names().await,
                _ => self.contents().await,
            }
        }
    }
}

/// Root makes, changes and removes small things, until the users have ended. None of that fails,
/// however full the file system is.
async fn administrate(kernel: &Kernel, ended: &Cell<bool>) -> u64 {
    let mut rounds = 0_u64;
    while !ended.get() {
        let name = format!("root{}", rounds % 7).into_bytes();
        let made = kernel.root(op::MKNOD, ROOT, &mknod(&name)).await;
        let ino = number(&made);
        let value = rounds.to_le_bytes();
        kernel.root(op::SETXATTR, ino, &xattr(b"user.round", &value, 1)).await;
        let size = [8_u32, 0];
        let asked = [size.as_bytes(), &names(&[b"user.round"])[..]].concat();
        assert_eq!(kernel.root(op::GETXATTR, ino, &asked).await, value);
        kernel.root(op::LOOKUP, ROOT, &names(&[&name])).await;
        kernel.root(op::STATFS, ROOT, &[]).await;
        if rounds.is_multiple_of(4) {
            kernel.root(op::FSYNC, ino, &[0; 16]).await;
        }
        kernel.root(op::UNLINK, ROOT, &names(&[&name])).await;
        rounds += 1;
    }
    rounds
}

/// Removes all that is in a folder.
async fn remove_all(kernel: &Kernel, folder: u64) {
    let mut todo = vec![(folder, entries(kernel, folder).await)];
    while let Some((folder, mut left)) = todo.pop() {
        let Some((name, ino)) = left.pop() else { continue };
        let unlinked = kernel.send(0, op::UNLINK, folder, &names(&[&name])).await;
        match kernel.answer_to(unlinked).await {
            Ok(_) => {
                kernel.forget(ino).await;
                todo.push((folder, left));
            }
            Err(Errno::ISDIR) => {
                let inside = entries(kernel, ino).await;
                if inside.is_empty() {
                    kernel.root(op::RMDIR, folder, &names(&[&name])).await;
                    kernel.forget(ino).await;
                } else {
                    left.push((name, ino));
                }
                todo.push((folder, left));
                todo.push((ino, inside));
            }
            Err(error) => panic!("{name:?} cannot be removed: {error}"),
        }
    }
}

async fn play(rt: Rt, ring: Ring, seed: u64) {
    let mut rng = Rng::new(seed);
    let disks = created(&rt, 4, 48).await;
    let options = MountOptions { cache_bytes: MIB, ..MOUNTING };
    let fs = Fs::mount(&rt, &disks, options).await.expect("mounted");
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, kernels) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .expect("made");
    for end in [&ours, &kernels] {
        rustix::net::sockopt::set_socket_send_buffer_size(end, 2 << 20).expect("set");
    }
    let served = tree::serve(rt.clone(), ring.clone(), ours, fs.clone(), no_disk(), None);
    drop(rt.spawn(served));
    let kernel = Rc::new(Kernel {
        rt: rt.clone(),
        fd: Fd::from(kernels),
        next: Cell::new(2),
        answers: RefCell::default(),
        came: Notify::default(),
        to_users: Cell::new(0),
    });
    drop(rt.spawn(kernel.clone().receive(ring)));
    let init = InitIn { major: wire::MAJOR, minor: wire::MINOR, max_readahead: 0, flags: 0 };
    kernel.root(op::INIT, 0, init.as_bytes()).await;
    let kept = number(&kernel.root(op::MKNOD, ROOT, &mknod(b"kept")).await);
    let contents: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    for (n, part) in contents.chunks(32 << 10).enumerate() {
        kernel.root(op::WRITE, kept, &write((n as u64) << 15, part)).await;
    }
    kernel.root(op::FSYNC, kept, &[0; 16]).await;
    let made: Rc<RefCell<BTreeSet<u64>>> = Rc::default();
    let (mut homes, mut programs) = (Vec::new(), Vec::new());
    for uid in USERS {
        let name = uid.to_string().into_bytes();
        let home = kernel.ask(uid, op::MKDIR, ROOT, &mkdir(&name, 0o700)).await.expect("made");
        let home = number(&home);
        let owned = Owned { folders: vec![home], ..Owned::default() };
        let owned = Rc::new(RefCell::new(owned));
        homes.push((name, home));
        programs.extend((0..PROGRAMS).map(|_| Program {
            kernel: kernel.clone(),
            uid,
            rng: Rng::new(rng.next_u64()),
            owned: owned.clone(),
            roots_file: kept,
            made: 0,
            inos: made.clone(),
        }));
    }
    let before = fs.status().await.expect("known").free_inodes;
    let ended = Rc::new(Cell::new(false));
    let administrator = rt.spawn({
        let (kernel, ended) = (kernel.clone(), ended.clone());
        async move { administrate(&kernel, &ended).await }
    });
    join_all(programs.into_iter().map(|program| rt.spawn(program.go_on()))).await;
    ended.set(true);
    assert!(administrator.await > 10, "root has its turns");
    assert_eq!(fs.status().await.expect("known").stopped, None);
    let mut found = Vec::new();
    while found.len() < contents.len() {
        let at = found.len() as u64;
        found.extend(kernel.root(op::READ, kept, &read(at, 32 << 10)).await);
    }
    assert!(found == contents, "what is root's has changed");
    let report = fs.check(true).await.expect("checked");
    assert_eq!(report.findings, []);
    for (name, home) in homes {
        remove_all(&kernel, home).await;
        kernel.root(op::RMDIR, ROOT, &names(&[&name])).await;
        kernel.forget(home).await;
    }
    fs.sync().await.expect("synced");
    let left: BTreeSet<Vec<u8>> =
        entries(&kernel, ROOT).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, BTreeSet::from([b"kept".to_vec()]));
    for ino in made.take() {
        kernel.forget(ino).await;
    }
    // What is forgotten goes behind the requests.
    let mut after = 0;
    for _ in 0..2000 {
        fs.sync().await.expect("synced");
        after = fs.status().await.expect("known").free_inodes;
        if after + 100 >= before {
            break;
        }
        rt.yield_now().await;
    }
    assert!(after + 100 >= before, "{after} of {before} files fit");
    assert_eq!(fs.check(true).await.expect("checked").findings, []);
}

#[test]
fn users_keep_root_from_nothing_and_change_nothing_of_it() {
    for_seeds(0..2, |rng| {
        let seed = rng.next_u64();
        let (rt, ring) = ring::start(RingConfig::default()).expect("this machine has io_uring");
        let inner = rt.clone();
        rt.block_on(async move { play(inner, ring, seed).await });
        rt.kill_all();
    });
}
