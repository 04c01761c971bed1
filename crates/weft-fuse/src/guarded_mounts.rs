//! A server that is killed while it waits for itself ends, and with it its mount, and no other one.
//!
//! The test starts itself again, as the server and as its guard: the server is one that does not
//! answer a read, and then tells the kernel to drop the page.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use weft_testkit::{Need, have, wait_until};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::test_mounts::folder;
use crate::wire::{
    Attr, AttrOut, EntryOut, FILE, InHeader, NOTIFY_INVAL_INODE, OpenOut, OutHeader, ROOT, op,
};
use crate::{channel, guard, mount, notification};

/// The folder of a process that the test starts as a server.
const FOLDER: &str = "WEFT_GUARD_FOLDER";
/// The arguments of this program that start the first test.
const AGAIN: [&str; 3] =
    ["guarded_mounts::a_killed_server_that_waits_for_itself_ends", "--exact", "--nocapture"];

fn attr(node: u64) -> Attr {
    let (mode, size) = if node == ROOT { (0o40_755, 0) } else { (0o100_644, 4096) };
    Attr { ino: node, size, blocks: 8, mode, nlink: 1, blksize: 4096, ..Attr::default() }
}

/// Serves one file, whose pages it never delivers.
fn serve(folder: &Path) {
    let mut fuse = mount::mount_on(folder, "test", None, MountFlags::NODEV).expect("mounted");
    let guard = guard::start(folder, &AGAIN).expect("started");
    println!("\nguard {guard}");
    let mut request = vec![0; 2 << 20];
    loop {
        let len = match fuse.read(&mut request) {
            Ok(len) => len,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(&fuse, PollFlags::IN)], None);
                continue;
            }
            Err(e) if Errno::from_io_error(&e) == Some(Errno::NOENT) => continue,
            // Unmounted. The process stays until it is killed.
            Err(_) => loop {
                std::thread::park();
            },
        };
        let (head, body) = InHeader::read_from_prefix(&request[..len]).expect("a head");
        let entry = EntryOut { nodeid: FILE, attr: attr(FILE), ..EntryOut::default() };
        let (none, attr) = (0, attr(head.nodeid));
        let answer = match head.opcode {
            op::INIT => Ok(channel::negotiate(body, 0).expect("agreed").as_bytes().to_vec()),
            op::LOOKUP => Ok(entry.as_bytes().to_vec()),
            op::GETATTR => {
                let out = AttrOut { attr_valid: none, attr_valid_nsec: 0, dummy: 0, attr };
                Ok(out.as_bytes().to_vec())
            }
            op::OPEN => Ok(OpenOut::default().as_bytes().to_vec()),
            op::FORGET | op::BATCH_FORGET => continue,
            op::READ => {
                let channel = fuse.as_fd().try_clone_to_owned().expect("cloned");
                let wait = std::thread::Builder::new().name("waits".into());
                wait.spawn(move || drop_pages(channel.into())).expect("started");
                continue;
            }
            _ => Err(Errno::NOSYS),
        };
        let error = answer.as_ref().err().map_or(0, |errno| -errno.raw_os_error());
        let body = answer.unwrap_or_default();
        let len = u32::try_from(size_of::<OutHeader>() + body.len()).expect("short");
        let out = OutHeader { len, error, unique: head.unique };
        fuse.write_all(&[out.as_bytes(), &body].concat()).expect("answered");
    }
}

fn drop_pages(mut channel: File) {
    let pages = notification::pages_of(FILE, &(0..u64::MAX)).expect("a range");
    let len = u32::try_from(size_of::<OutHeader>() + pages.as_bytes().len()).expect("short");
    let head = OutHeader { len, error: NOTIFY_INVAL_INODE, unique: 0 };
    let _ = channel.write_all(&[head.as_bytes(), pages.as_bytes()].concat());
}

/// A server, and its guard.
struct Server {
    server: Child,
    guard: u32,
    _says: BufReader<ChildStdout>,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let mut server = Command::new("/proc/self/exe");
        server.args(AGAIN).env(FOLDER, folder).stdout(Stdio::piped());
        let mut server = server.spawn().expect("started");
        let mut says = BufReader::new(server.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.starts_with("guard ") {
            line.clear();
            assert!(says.read_line(&mut line).expect("it says") > 0, "it has ended");
        }
        let guard = line["guard ".len()..].trim().parse().expect("a number");
        Self { server, guard, _says: says }
    }

    /// Whether a thread of it waits in the kernel, and cannot be killed.
    fn waits_for_itself(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.server.id())).expect("it is there");
        tasks.flatten().any(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.contains("(waits) D ")
        })
    }

    fn ends(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            if self.server.try_wait().expect("a child").is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

/// Whether a process has ended, reaped or not.
fn has_ended(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_none_or(|rest| rest.is_empty() || rest.starts_with(" Z"))
}

/// Ends what is on a folder, however the test ends.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        while rustix::mount::unmount(&self.0, UnmountFlags::FORCE | UnmountFlags::DETACH).is_ok() {}
        let _ = fs::remove_dir(&self.0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.server.kill();
    }
}

#[test]
fn a_killed_server_that_waits_for_itself_ends() {
    if std::env::args_os().next().is_some_and(|name| name == guard::NAME) {
        let _ = guard::run();
        std::process::exit(0);
    }
    if let Some(folder) = std::env::var_os(FOLDER) {
        return serve(Path::new(&folder));
    }
    if !have(&[Need::Root, Need::Fuse]) {
        return;
    }
    let at = Folder(folder("guarded"));
    let mut server = Server::start(&at.0);
    let path = at.0.join("file");
    let program = std::thread::spawn(move || fs::read(path));
    wait_until("it waits for itself", || server.waits_for_itself());
    assert!(!has_ended(server.guard), "it guards");
    server.server.kill().expect("killed");
    assert!(server.ends(), "it waits for itself");
    program.join().expect("it ends").expect_err("nothing was read");
}

#[test]
fn a_guard_leaves_later_mounts_alone() {
    if !have(&[Need::Root, Need::Fuse]) {
        return;
    }
    let at = Folder(folder("guarded"));
    let device = || {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(at.0.join("file")).map(|file| file.dev())
    };
    let mut earlier = Server::start(&at.0);
    let before = device().expect("it answers");
    rustix::mount::unmount(&at.0, UnmountFlags::empty()).expect("unmounted");
    let later = Server::start(&at.0);
    let is_same = device().expect("it answers") == before;
    earlier.server.kill().expect("killed");
    assert!(earlier.ends());
    wait_until("its guard ends", || has_ended(earlier.guard));
    device().expect("the later one answers");
    // Otherwise another mount was made just then.
    println!("the later mount has the same number: {is_same}");
    assert!(!has_ended(later.guard), "it guards");
    rustix::mount::unmount(&at.0, UnmountFlags::empty()).expect("unmounted");
    drop(later);
}
