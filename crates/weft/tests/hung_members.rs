//! A member that stops answering does not stop the array: after `--disk-timeout` the array
//! continues without it and says so, and `weft fail` releases the waiting requests at once.
//!
//! The members are disks on an NBD server in this test.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use crate::common::Bench;
use crate::nbd_disks::{Disks, NONE};
use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_nbd::{NbdDisk, NbdOptions};
use weft_rt::ring::{self, Ring, RingConfig};
use weft_rt::{Buf, Frozen, MILLISECOND, Rt, SECOND, Task};

const MEMBERS: usize = 4;
const VICTIM: usize = 2;
/// Several stripes: every member has some of it.
const BYTES: usize = 1 << 20;

struct Story {
    rt: Rt,
    bench: Bench,
    disks: Disks,
    /// The array, as a client has it.
    array: Rc<NbdDisk>,
}

impl Story {
    async fn new(rt: Rt, ring: Ring, disk_timeout: &str) -> Self {
        let (mut bench, disks) = (Bench::new("hung-members"), Disks::start(MEMBERS));
        let members = disks.uris(MEMBERS);
        let members: Vec<&str> = members.iter().map(String::as_str).collect();
        bench.weft(&[&["create", "t", "--code", "raid5", "--unit", "16K"], &members[..]].concat());
        bench.serve(&[&["--disk-timeout", disk_timeout], &members[..]].concat());
        let uri = bench.uri("t").parse().expect("the daemon's URI");
        let options = NbdOptions { request_timeout: 3600 * SECOND, ..NbdOptions::default() };
        let array = NbdDisk::open(&rt, &ring, &uri, options).await.expect("connect");
        let story = Self { rt, bench, disks, array: Rc::new(array) };
        story.begin_write(1).await.expect("written");
        story
    }

    fn begin_write(&self, byte: u8) -> Task<Result<(), DiskError>> {
        let (array, data) = (self.array.clone(), Frozen::copy_from(&vec![byte; BYTES]));
        let opts = WriteOpts { fua: true, ..WriteOpts::USER };
        self.rt.spawn(async move { array.write(0, data, opts).await })
    }

    async fn expect_read(&self, byte: u8) {
        let (result, buf) = self.array.read(0, Buf::new(BYTES), Class::User).await;
        result.expect("read");
        assert!(buf.iter().all(|found| *found == byte));
    }

    fn hang(&self) {
        self.disks.faults.hung.store(VICTIM, Ordering::SeqCst);
    }

    fn state_of_victim(&self) -> String {
        self.bench.status("t")["slots"][VICTIM]["state"].as_str().expect("a word").to_owned()
    }

    fn end(mut self) {
        drop(self.array);
        self.bench.terminate();
        // Its server need not wait.
        self.disks.faults.hung.store(NONE, Ordering::SeqCst);
    }
}

fn run<F: Future<Output = ()> + 'static>(story: impl FnOnce(Rt, Ring) -> F) {
    let (rt, ring) = ring::start(RingConfig::default()).expect("this machine has io_uring");
    let story = story(rt.clone(), ring);
    rt.block_on(story);
}

#[test]
fn after_the_time_limit_the_array_goes_on_without_it_and_says_so() {
    run(|rt, ring| async move {
        let story = Story::new(rt, ring, "10s").await;
        story.hang();
        story.begin_write(2).await.expect("written without it");
        story.expect_read(2).await;
        assert_eq!(story.state_of_victim(), "missing");
        let text = story.bench.weft(&["status", "t"]);
        assert!(text.contains("CANNOT LOSE ANOTHER DISK"), "{text}");
        assert!(story.bench.log().contains("did not answer"), "{}", story.bench.log());
        story.end();
    });
}

#[test]
fn failing_it_frees_at_once_what_waits_for_it() {
    run(|rt, ring| async move {
        let story = Story::new(rt, ring, "1h").await;
        story.hang();
        let write = story.begin_write(2);
        story.rt.sleep(300 * MILLISECOND).await;
        assert!(!write.is_finished(), "it waits for the disk");
        assert_eq!(story.state_of_victim(), "active");
        story.bench.weft(&["fail", "t", &VICTIM.to_string()]);
        assert_eq!(story.state_of_victim(), "missing");
        write.await.expect("written without it");
        story.expect_read(2).await;
        story.end();
    });
}
