//! A node that is killed while its kernel waits for a page, whose request that node will never answer,
//! is gone all the same, and so is its mount.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use weft_testkit::{have, wait_until};

use crate::common::cluster::{Cluster, NEEDS};

const DISK: u64 = 96 << 20;

/// Whether a thread waits for a locked page, to drop it.
fn waits_for_a_page(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").flatten();
    let stacks = tasks.filter_map(|task| fs::read_to_string(task.path().join("stack")).ok());
    let mut all = stacks.map(|stack| stack.contains("folio_lock") && stack.contains("invalidate"));
    all.any(|waits| waits)
}

#[test]
fn a_node_that_is_killed_while_its_kernel_waits_for_a_page_is_gone() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-killed-mount", 3, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &[]);
    one.mounts();
    let mut alpha = cluster.node("alpha", &[]);
    alpha.mounts();
    File::create(one.at.join("file")).and_then(|file| file.sync_all()).expect("made");
    let (stop, here, there) = (AtomicBool::new(false), alpha.at.join("file"), one.at.join("file"));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let file = File::options().read(true).write(true).open(&here).expect("there");
                while !stop.load(Ordering::SeqCst) && file.write_all_at(&[1; 400_000], 0).is_ok() {}
            });
        }
        scope.spawn(|| while !stop.load(Ordering::SeqCst) && fs::read(&there).is_ok() {});
        wait_until("a thread that waits for a page", || {
            alpha.signal(Signal::STOP);
            std::thread::sleep(Duration::from_millis(2));
            let waits = waits_for_a_page(alpha.id());
            if !waits {
                alpha.signal(Signal::CONT);
                std::thread::sleep(Duration::from_millis(3));
            }
            waits
        });
        alpha.signal(Signal::KILL);
        wait_until("its end", || !alpha.is_running());
        stop.store(true, Ordering::SeqCst);
    });
    // Its folder is an empty one again, or soon.
    wait_until("the end of its mount", || {
        let mounts = fs::read_to_string("/proc/mounts").expect("mounts");
        !mounts.contains(alpha.at.to_str().expect("text"))
    });
    one.ends();
}
