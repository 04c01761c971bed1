//! A block device over FUSE whose daemon is killed, upgraded or fails under systemd: systemd keeps
//! the channel and passes it to the next daemon, and users see a pause and no error. This test does
//! what systemd does (`sd_notify(3)`, `sd_listen_fds(3)`).

use std::collections::BTreeMap;
use std::fs;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use crate::common::Bench;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use weft_testkit::{Mount, Need, Process, command, have, run, wait_until};

const NEEDS: [Need; 5] =
    [Need::Root, Need::Fuse, Need::Loop, Need::Tool("mkfs.ext4"), Need::Tool("fio")];

/// The exit code that has systemd start the next daemon.
const RESTART: i32 = 75;

/// An attached array with a mounted file system below a daemon of a made-up systemd.
struct Story {
    /// What systemd says of its store.
    store: Option<&'static str>,
    // First: unmounted before it is detached.
    mount: Option<Mount>,
    bench: Bench,
    daemon: Option<Process>,
    socket: UnixDatagram,
    kept: BTreeMap<String, OwnedFd>,
    is_ready: bool,
}

impl Story {
    fn new(name: &str) -> Self {
        Self::with_store(name, Some("256"))
    }

    fn with_store(name: &str, store: Option<&'static str>) -> Self {
        let bench = Bench::new(name);
        bench.weft(&["create", "tank", "--code", "raid5", "--size", "32M", "d0", "d1", "d2"]);
        let socket = UnixDatagram::bind(bench.path("notify")).expect("a socket");
        socket.set_nonblocking(true).expect("set");
        let (kept, is_ready) = (BTreeMap::new(), false);
        let mut story = Self { store, mount: None, bench, daemon: None, socket, kept, is_ready };
        story.start();
        let device: PathBuf = story.bench.weft(&["attach", "tank", "--via", "fuse"]).trim().into();
        run(command("mkfs.ext4").arg("-q").arg(&device));
        let at = story.bench.path("mnt");
        fs::create_dir(&at).expect("a mount point");
        story.mount = Some(Mount::new(&device, &at, ""));
        story
    }

    /// Starts a daemon, and passes it what is kept.
    fn start(&mut self) {
        self.hear();
        // The shell's process becomes the daemon.
        let passed = "exec 3<&0 0</dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" \"$@\"";
        let log = fs::File::options().create(true).append(true).open(self.bench.path("serve.log"));
        let mut serve = match self.kept.iter().next() {
            Some((name, channel)) => {
                let mut shell = command("sh");
                shell.args(["-c", passed, env!("CARGO_BIN_EXE_weft"), "serve", "."]);
                shell.current_dir(self.bench.scratch.path());
                shell.env("WEFT_RUNTIME_DIR", self.bench.path("run"));
                shell.env("LISTEN_FDNAMES", name);
                shell.stdin(channel.try_clone().expect("cloned"));
                shell
            }
            None => self.bench.command(&["serve", "."]),
        };
        serve.env("NOTIFY_SOCKET", self.bench.path("notify"));
        match self.store {
            Some(most) => serve.env("FDSTORE", most),
            None => serve.env_remove("FDSTORE"),
        };
        serve.env("WEFT_PANIC_AT", self.bench.path("fault"));
        serve.stdout(std::process::Stdio::null()).stderr(log.expect("a log"));
        self.daemon = Some(Process::spawn(&mut serve));
        self.is_ready = false;
        wait_until("the daemon to be ready", || {
            self.hear();
            self.is_ready
        });
    }

    /// Takes messages, as systemd does.
    fn hear(&mut self) {
        loop {
            let (mut bytes, mut space) =
                ([0; 512], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut text = [IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let Ok(received) = recvmsg(&self.socket, &mut text, &mut ancillary, flags) else {
                return;
            };
            let descriptor = ancillary.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
                _ => None,
            });
            let said = String::from_utf8_lossy(&bytes[..received.bytes]).into_owned();
            let name = said.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("");
            match said.lines().next() {
                Some("FDSTORE=1") => {
                    self.kept.insert(name.into(), descriptor.expect("one was sent"));
                }
                Some("FDSTOREREMOVE=1") => drop(self.kept.remove(name)),
                Some("READY=1") => self.is_ready = true,
                _ => {}
            }
        }
    }

    fn name(&mut self) -> String {
        self.hear();
        assert_eq!(self.kept.len(), 1, "{:?}", self.kept);
        self.kept.keys().next().cloned().unwrap_or_default()
    }

    /// fio, which writes and then checks.
    fn fio(&self) -> Process {
        let mut fio = command("fio");
        fio.args(["--name=v", "--filename=fio", "--rw=randwrite", "--bsrange=4k-64k"]);
        fio.args(["--ioengine=libaio", "--direct=1", "--iodepth=16", "--size=24M"]);
        fio.args(["--rate_iops=400", "--fsync=32", "--verify=crc32c", "--verify_fatal=1"]);
        fio.args(["--do_verify=1", "--output=../fio"]).current_dir(self.bench.path("mnt"));
        let process = Process::spawn(&mut fio);
        let file = self.bench.path("mnt/fio");
        wait_until("fio to write", || fs::metadata(&file).is_ok_and(|data| data.len() > 0));
        std::thread::sleep(Duration::from_millis(300));
        process
    }

    fn fio_ends_well(&self, mut fio: Process) {
        wait_until("fio to end", || !fio.is_running());
        let said = fs::read_to_string(self.bench.path("fio")).unwrap_or_default();
        assert!(fio.wait().success() && said.contains("err= 0"), "{said}\n{}", self.bench.log());
        fs::remove_file(self.bench.path("mnt/fio")).expect("removed");
    }

    fn ends(mut self) {
        self.mount.take().expect("mounted").unmount();
        self.bench.weft(&["detach", "tank"]);
        wait_until("the channel to be forgotten", || {
            self.hear();
            self.kept.is_empty()
        });
        self.bench.weft(&["scrub", "tank"]);
        self.bench.weft(&["stop"]);
        assert!(self.daemon.take().expect("a daemon").wait().success(), "{}", self.bench.log());
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        self.daemon = None;
        self.kept.clear();
        self.mount = None;
        let _ = self.bench.command(&["detach", "tank"]).output();
    }
}

#[test]
fn users_of_a_daemon_that_is_killed_or_upgraded_notice_a_pause() {
    if !have(&NEEDS) {
        return;
    }
    let mut story = Story::new("kept");
    let mut fio = story.fio();
    story.daemon.take().expect("a daemon").kill9();
    std::thread::sleep(Duration::from_secs(1));
    assert!(fio.is_running(), "fio ended with the daemon");
    assert!(!story.name().ends_with("complete"));
    story.start();
    story.fio_ends_well(fio);

    let mut fio = story.fio();
    story.bench.weft(&["stop", "--keep-devices"]);
    let status = story.daemon.take().expect("a daemon").wait();
    assert_eq!(status.code(), Some(RESTART), "{}", story.bench.log());
    assert!(story.name().ends_with("-complete"), "{:?}", story.kept);
    std::thread::sleep(Duration::from_millis(300));
    assert!(fio.is_running(), "fio ended with the daemon");
    story.start();
    assert!(!story.name().ends_with("complete"), "{:?}", story.kept);
    story.fio_ends_well(fio);
    story.ends();
}

#[test]
fn a_device_is_not_left_to_a_systemd_that_keeps_nothing() {
    if !have(&NEEDS) {
        return;
    }
    for (name, store) in [("kept-none", None), ("kept-zero", Some("0"))] {
        let story = Story::with_store(name, store);
        let mut fio = story.fio();
        let said = story.bench.refused(&["stop", "--keep-devices"], 1);
        assert!(said.contains("FileDescriptorStoreMax=256"), "{said}");
        assert!(fio.is_running() && story.kept.is_empty(), "{:?}", story.kept);
        story.fio_ends_well(fio);
        story.ends();
    }
}

/// Only debug builds can be told to panic.
#[cfg(debug_assertions)]
#[test]
fn users_of_an_array_that_fails_wait_for_the_next_daemon() {
    if !have(&NEEDS) {
        return;
    }
    let mut story = Story::new("kept-failed");
    let member = story.bench.status("tank")["slots"][1]["disk"].clone();
    let fault = format!("flush {}", member.as_str().expect("a name"));
    let mut fio = story.fio();
    fs::write(story.bench.path("fault"), fault).expect("written");
    story.bench.wait_for_log("internal error");
    std::thread::sleep(Duration::from_secs(1));
    assert!(fio.is_running(), "users got an error: {}", story.bench.log());
    fs::remove_file(story.bench.path("fault")).expect("removed");
    story.bench.weft(&["stop", "--keep-devices"]);
    let _ = story.daemon.take().expect("a daemon").wait();
    story.start();
    story.fio_ends_well(fio);
    story.ends();
}

#[test]
fn a_device_whose_daemon_never_comes_is_removed_by_force() {
    if !have(&NEEDS) {
        return;
    }
    let mut story = Story::new("kept-force");
    let mut fio = story.fio();
    story.daemon.take().expect("a daemon").kill9();
    let said = story.bench.refused(&["detach", "tank"], 1);
    assert!(said.contains("mounted on"), "{said}");
    assert!(fio.is_running(), "fio ended with the daemon");
    // It waits for the file system on it to go.
    let _ = story.bench.command(&["detach", "--force", "tank"]).output();
    wait_until("fio to get errors", || !fio.is_running());
    assert!(!fio.wait().success());
    story.hear();
    story.kept.clear();
    story.mount = None;
    let _ = story.bench.command(&["detach", "tank"]).output();
    story.start();
    assert!(!story.bench.weft(&["status"]).contains("DEAD"), "{}", story.bench.weft(&["status"]));
    let device = story.bench.weft(&["attach", "tank", "--via", "fuse"]);
    assert!(device.starts_with("/dev/loop"), "{device}");
    story.bench.weft(&["detach", "tank"]);
    story.bench.weft(&["stop"]);
}
