//! The daemon does not end while its block devices are in use, unless it must; then it reports what
//! is left.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use crate::common::Bench;
use rustix::process::Signal;
use weft_testkit::{Mount, Need, Process, command, have, run, wait_until};

const NEEDS: [Need; 4] = [Need::Root, Need::Fuse, Need::Loop, Need::Tool("mkfs.ext4")];

/// An attached array with a file system; cleaned up when the story ends, however it ends.
struct Attached {
    // First: unmounted before it is detached.
    mount: Option<Mount>,
    bench: Bench,
    device: PathBuf,
}

impl Attached {
    fn new(name: &str, serve: &[&str]) -> Self {
        let mut bench = Bench::new(name);
        bench.weft(&["create", "tank", "--code", "raid5", "--size", "32M", "d0", "d1", "d2"]);
        bench.serve(serve);
        let device: PathBuf = bench.weft(&["attach", "tank", "--via", "fuse"]).trim().into();
        let mut attached = Self { mount: None, bench, device };
        run(command("mkfs.ext4").arg("-q").arg(&attached.device));
        attached.mount();
        attached
    }

    fn mount(&mut self) {
        let at = self.bench.path("mnt");
        fs::create_dir_all(&at).expect("a mount point");
        self.mount = Some(Mount::new(&self.device, &at, ""));
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.mount = None;
        let _ = self.bench.command(&["detach", "tank"]).output();
    }
}

#[test]
fn sighup_ends_nothing() {
    let mut bench = Bench::new("hup");
    bench.weft(&["create", "t", "--code", "raid1", "--size", "8M", "d0", "d1"]);
    bench.serve(&["d0", "d1"]);
    bench.signal(Signal::HUP);
    bench.wait_for_log("SIGHUP: scanning");
    assert_eq!(bench.status("t")["state"], "healthy");
    // Nor does it count as the first of two signals that end the daemon at once.
    bench.terminate();
    assert!(bench.log().contains("stopped"), "{}", bench.log());
}

#[test]
fn a_signal_waits_for_what_is_mounted() {
    if !have(&NEEDS) {
        return;
    }
    let mut attached = Attached::new("drain", &["--stop-timeout", "10m", "."]);
    let bench = &mut attached.bench;
    // Written, and nowhere but in the kernel's memory.
    let open = fs::File::create(bench.path("mnt/file")).expect("a file");
    fs::write(bench.path("mnt/file"), vec![0x5a; 3 << 20]).expect("write");
    let said = bench.refused(&["stop"], 1);
    assert!(said.contains("mounted on") && said.contains("used by"), "{said}");
    bench.signal(Signal::TERM);
    bench.wait_for_log("cannot stop yet: its block device is mounted on");
    assert!(bench.log().contains("used by"), "{}", bench.log());
    let said = bench.refused(&["attach", "tank"], 1);
    assert!(said.contains("attached already") || said.contains("stopping"), "{said}");
    assert!(bench.is_running(), "it did not wait");
    drop(open);
    attached.mount.take().expect("mounted").unmount();
    let bench = &mut attached.bench;
    wait_until("the daemon to end", || !bench.is_running());
    assert!(!bench.path("run/attach/tank").exists(), "the device is left");
    // Nothing was lost.
    bench.serve(&["."]);
    attached.device = attached.bench.weft(&["attach", "tank", "--via", "fuse"]).trim().into();
    attached.mount();
    let bytes = fs::read(attached.bench.path("mnt/file")).expect("the file");
    assert!(bytes.len() == 3 << 20 && bytes.iter().all(|b| *b == 0x5a), "the file is damaged");
}

#[test]
fn it_waits_no_longer_than_it_is_told_and_says_what_it_left() {
    if !have(&NEEDS) {
        return;
    }
    let mut attached = Attached::new("patience", &["--stop-timeout", "1s", "."]);
    let bench = &mut attached.bench;
    bench.terminate();
    assert!(
        bench.log().contains("ALERT: stopped while its block device is mounted on"),
        "{}",
        bench.log()
    );
    let said = bench.refused(&["status"], 5);
    for what in ["DEAD BLOCK DEVICE", "mounted on", "weft detach tank"] {
        assert!(said.contains(what), "{said}");
    }
    // A new daemon serves the array; the old device stays dead.
    bench.serve(&["."]);
    assert!(bench.weft(&["status"]).contains("DEAD BLOCK DEVICE"));
    bench.refused(&["status", "--check"], 4);
    let said = bench.refused(&["detach", "tank"], 1);
    assert!(said.contains("mounted on") && !said.contains("another program"), "{said}");
    drop(attached.mount.take());
    attached.bench.weft(&["detach", "tank"]);
    assert!(!attached.bench.weft(&["status"]).contains("DEAD"));
    attached.bench.terminate();
}

#[test]
fn systemd_is_told() {
    if !have(&NEEDS) {
        return;
    }
    let bench = Bench::new("notify");
    let socket = UnixDatagram::bind(bench.path("notify")).expect("a socket");
    socket.set_nonblocking(true).expect("set");
    let mut told = String::new();
    let mut hear = move |what: &str| {
        wait_until(what, || {
            let mut bytes = [0; 512];
            while let Ok(count) = socket.recv(&mut bytes) {
                told.push_str(&String::from_utf8_lossy(&bytes[..count]));
                told.push('\n');
            }
            told.contains(what)
        });
    };
    bench.weft(&["create", "tank", "--code", "raid1", "--size", "32M", "d0", "d1", "d2"]);
    fs::rename(bench.path("d2"), bench.path("run-d2")).expect("hide a member");
    let mut serve = bench.command(&["serve", "--wait", "10m", "d0", "d1", "d2"]);
    serve.env("NOTIFY_SOCKET", bench.path("notify"));
    let mut daemon = Process::spawn(&mut serve);
    hear("EXTEND_TIMEOUT_USEC=");
    fs::rename(bench.path("run-d2"), bench.path("d2")).expect("bring it back");
    hear("READY=1");
    let device = PathBuf::from(bench.weft(&["attach", "tank", "--via", "fuse"]).trim());
    run(command("mkfs.ext4").arg("-q").arg(&device));
    fs::create_dir(bench.path("mnt")).expect("a mount point");
    let mount = Mount::new(&device, &bench.path("mnt"), "");
    daemon.signal(Signal::TERM);
    hear("STOPPING=1");
    hear("STATUS=stopping: block device mounted on");
    mount.unmount();
    assert!(daemon.wait().success());
}

#[test]
fn a_deleted_member_is_missed_before_it_is_lost() {
    let mut bench = Bench::new("deleted");
    bench.weft(&[
        "create", "t", "--code", "raid1", "--size", "8M", "--spares", "1", "d0", "d1", "d2",
    ]);
    bench.serve(&["d0", "d1", "d2"]);
    fs::remove_file(bench.path("d1")).expect("delete a member");
    fs::rename(bench.path("d2"), bench.path("other")).expect("rename the spare");
    bench.wait_for_log("d1: it was deleted");
    bench.wait_for_log("d2: it was renamed to");
    let shown = bench.weft(&["status", "t"]);
    assert!(shown.contains("LOST WHEN WEFT STOPS: it was deleted; `weft replace t 1"), "{shown}");
    bench.refused(&["status", "--check"], 3);
    // It works still, and is copied.
    bench.weft(&["replace", "t", "1", "new", "--size", "8M"]);
    fs::rename(bench.path("other"), bench.path("d2")).expect("rename it back");
    wait_until("all to be well", || {
        bench.command(&["status", "--check"]).output().is_ok_and(|o| o.status.success())
    });
    bench.terminate();
}
