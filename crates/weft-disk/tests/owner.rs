//! A file that is given up is free at once, whatever the other threads of the process do.
//!
//! In a process of its own: the children that it forks would keep other tests' files open for a
//! moment.

use std::os::unix::process::CommandExt;
use std::process::Command;

use weft_disk::{FileDisk, FileOptions};
use weft_rt::ring::{self, RingConfig};
use weft_testkit::Scratch;

#[test]
fn a_child_that_is_just_being_forked_does_not_keep_it() {
    let scratch = Scratch::new("owner");
    let path = scratch.file("member", 1 << 20);
    let forker = std::thread::spawn(|| {
        for _ in 0..100 {
            // A user to become makes the standard library fork instead of vfork, which makes the
            // moment longer in which the child shares our files.
            let me = rustix::process::getuid().as_raw();
            Command::new("true").uid(me).status().expect("runs");
        }
    });
    let (_rt, ring) = ring::start(RingConfig::default()).expect("this machine has io_uring");
    let mut busy = None;
    while busy.is_none() && !forker.is_finished() {
        busy = FileDisk::open(&ring, &path, &FileOptions::default()).err();
    }
    forker.join().expect("ends");
    assert!(busy.is_none(), "still owned: {}", busy.expect("an error"));
}
