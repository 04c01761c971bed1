//! A weft file system, mounted by the program under test.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use weft_testkit::{Need, Process, command, run, unmount, wait_until};

use super::Bench;

pub const NEEDS: [Need; 2] = [Need::Root, Need::Fuse];

/// A mounted file system; unmounted when the story ends, however it ends.
pub struct Mounted {
    pub bench: Bench,
    /// Where it is, or will be.
    pub at: PathBuf,
    /// The disks that [`Mounted::on_disks`] made it on.
    pub disks: Vec<String>,
    process: Option<Process>,
}

impl Mounted {
    /// Nothing is mounted yet.
    pub fn new(name: &str) -> Self {
        let bench = Bench::new(name);
        let at = bench.path("mnt");
        fs::create_dir(&at).expect("a mount point");
        Self { bench, at, disks: Vec::new(), process: None }
    }

    /// Created on disks `d0` … of this size, and mounted.
    pub fn on_disks(name: &str, count: usize, bytes: u64) -> Self {
        let mut mounted = Self::new(name);
        let disks = mounted.bench.scratch.files("d", count, bytes);
        mounted.disks = disks.iter().map(|disk| super::text(disk)).collect();
        let create = ["fs", "create", "home"].map(String::from);
        let create: Vec<String> = create.into_iter().chain(mounted.disks.clone()).collect();
        mounted.bench.weft(&create.iter().map(String::as_str).collect::<Vec<_>>());
        mounted.mount_again();
        mounted
    }

    /// Mounts what [`Mounted::on_disks`] made.
    #[track_caller]
    pub fn mount_again(&mut self) {
        let disks = self.disks.clone();
        self.mount(&disks.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Mounts it again, if its disks are free already.
    pub fn try_mount_again(&mut self) -> bool {
        let mut mount = self.bench.command(&["fs", "mount", "home", "mnt"]);
        let said = fs::File::create(self.bench.path("mount.out")).expect("a file");
        mount.args(&self.disks).stdout(said);
        let mut process = Process::spawn(&mut mount);
        let at = self.at.clone();
        let out = self.bench.path("mount.out");
        wait_until("the mount, or its end", || has_said(&out) || !process.is_running());
        let is_mounted = is_mounted(&at);
        self.process = is_mounted.then_some(process);
        is_mounted
    }

    /// A folder in it whose files have a redundancy.
    pub fn folder(&self, name: &str, redundancy: &str) -> PathBuf {
        let folder = self.at.join(name);
        fs::create_dir(&folder).expect("made");
        self.bench.weft(&["fs", "set", redundancy, &super::text(&folder)]);
        folder
    }

    /// Its status.
    #[track_caller]
    pub fn status(&self) -> serde_json::Value {
        let status = self.bench.weft(&["fs", "status", "mnt", "--json"]);
        serde_json::from_str(&status).expect("JSON")
    }

    /// Nothing is wrong with it, also when it has been mounted again; it ends unmounted.
    #[track_caller]
    pub fn ends_sound(mut self) {
        for round in 0..2 {
            self.bench.weft(&["fs", "fsck", "mnt", "--data"]);
            let status = self.status();
            let disks = status["disks"].as_array().expect("disks").iter();
            assert!(disks.clone().all(|disk| disk["lost"] == false), "{status}");
            assert_eq!(status["wrong_blocks"], 0, "{status}");
            self.unmount();
            if round == 0 {
                self.mount_again();
            }
        }
    }

    /// `weft fs mount home mnt ARGS`.
    #[track_caller]
    pub fn mount(&mut self, args: &[&str]) {
        let mut mount = self.bench.command(&["fs", "mount", "home", "mnt"]);
        let said = fs::File::create(self.bench.path("mount.out")).expect("a file");
        mount.args(args).stdout(said);
        self.process = Some(Process::spawn(&mut mount));
        let at = self.at.clone();
        let process = self.process.as_mut().expect("just started");
        let out = self.bench.path("mount.out");
        wait_until("the mount", || {
            assert!(process.is_running(), "the mount ended");
            // One whose server has died may be there before. It is complete when it is announced.
            has_said(&out) && is_mounted(&at) && fs::metadata(&at).is_ok()
        });
    }

    /// Waits until the server has answered all requests: also what programs do not wait for, as
    /// closing a file.
    pub fn has_answered_all(&self) {
        use std::os::unix::fs::MetadataExt as _;
        let control = self.bench.path("fusectl");
        fs::create_dir_all(&control).expect("made");
        run(command("mount").args(["-t", "fusectl", "fusectl"]).arg(&control));
        let device = rustix::fs::minor(fs::metadata(&self.at).expect("mounted").dev());
        let waiting = control.join(device.to_string()).join("waiting");
        wait_until("all is answered", || {
            fs::read_to_string(&waiting).is_ok_and(|count| count.trim() == "0")
        });
        unmount(&control);
    }

    /// `kill -9`; the kernel's dead mount goes, too.
    pub fn kill9(&mut self) {
        let process = self.process.take().expect("mounted");
        process.signal(Signal::KILL);
        run(command("umount").args(["-f", "-l"]).arg(&self.at));
        process.kill9();
        self.disks_are_free();
    }

    /// Waits until no process owns its disks: the kernel takes its time when the last one has
    /// ended.
    fn disks_are_free(&self) {
        let is_free = |disk: &String| {
            let Ok(file) = fs::File::open(disk) else { return true };
            flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        };
        wait_until("its disks are free", || self.disks.iter().all(is_free));
    }

    /// Unmounts it, and waits until everything is on the disks.
    #[track_caller]
    pub fn unmount(&mut self) {
        unmount(&self.at);
        let status = self.process.take().expect("mounted").wait();
        assert!(status.success(), "the mount ended with {status}");
        self.disks_are_free();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mounted(&self.at) {
            // Ends requests that wait, too: whatever waits for them would not end.
            let _ = command("umount").args(["-f", "-l"]).arg(&self.at).status();
        }
    }
}

/// Whether a command has printed a line there.
pub fn has_said(out: &Path) -> bool {
    fs::read_to_string(out).is_ok_and(|said| said.ends_with('\n'))
}

fn is_mounted(at: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    ["fuse", "fuseblk"]
        .iter()
        .any(|kind| mounts.contains(&format!(" {} {kind}.weftfs ", at.display())))
}
