//! A weft file system, mounted by the program under test.

use std::fs;
use std::path::{Path, PathBuf};

use weft_testkit::{Need, Process, command, run, wait_until};

use super::Bench;

pub const NEEDS: [Need; 2] = [Need::Root, Need::Fuse];

/// A mounted file system; unmounted when the story ends, however it ends.
pub struct Mounted {
    pub bench: Bench,
    /// Where it is, or will be.
    pub at: PathBuf,
    process: Option<Process>,
}

impl Mounted {
    /// Nothing is mounted yet.
    pub fn new(name: &str) -> Self {
        let bench = Bench::new(name);
        let at = bench.path("mnt");
        fs::create_dir(&at).expect("a mount point");
        Self { bench, at, process: None }
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
        wait_until("the mount", || {
            assert!(process.is_running(), "the mount ended");
            is_mounted(&at)
        });
    }

    /// `kill -9`; the kernel's dead mount goes, too.
    pub fn kill9(&mut self) {
        self.process.take().expect("mounted").kill9();
        run(command("umount").arg("-l").arg(&self.at));
    }

    /// Unmounts it, and waits until everything is on the disks.
    #[track_caller]
    pub fn unmount(&mut self) {
        run(command("umount").arg(&self.at));
        let status = self.process.take().expect("mounted").wait();
        assert!(status.success(), "the mount ended with {status}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mounted(&self.at) {
            let _ = command("umount").arg("-l").arg(&self.at).status();
        }
    }
}

fn is_mounted(at: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    mounts.contains(&format!(" {} fuse.weftfs ", at.display()))
}
