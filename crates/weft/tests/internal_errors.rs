//! A panic in one array takes only that array out of service, and the daemon reports it. A panic
//! that belongs to no array ends the daemon with code 70. Acknowledged data is there afterwards.
//!
//! Only debug builds can be told to panic.
#![cfg(debug_assertions)]

use crate::common::{Bench, text};
use rustix::process::Signal;
use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_nbd::{NbdDisk, NbdOptions};
use weft_rt::ring::{self, Ring, RingConfig};
use weft_rt::{Buf, Frozen, Rt};
use weft_testkit::wait_until;

const BYTES: usize = 1 << 20;

struct Story {
    rt: Rt,
    ring: Ring,
    bench: Bench,
    members: Vec<String>,
}

impl Story {
    /// Two arrays, `bad` on the first three disks and `good` on the others.
    fn new(rt: Rt, ring: Ring) -> Self {
        let bench = Bench::new("internal-errors");
        let members = bench.members(6, 48 << 20);
        for (name, members) in [("bad", &members[..3]), ("good", &members[3..])] {
            let members: Vec<&str> = members.iter().map(String::as_str).collect();
            bench.weft(&[&["create", name, "--code", "raid5"], &members[..]].concat());
        }
        let mut story = Self { rt, ring, bench, members };
        story.serve();
        story
    }

    fn serve(&mut self) {
        let members: Vec<&str> = self.members.iter().map(String::as_str).collect();
        let fault = text(&self.bench.path("fault"));
        self.bench.serve_with(&members, &[("WEFT_PANIC_AT", &fault)]);
    }

    /// This place panics from now on.
    fn arm(&self, place: &str) {
        std::fs::write(self.bench.path("fault"), place).expect("written");
    }

    fn disarm(&self) {
        std::fs::remove_file(self.bench.path("fault")).expect("removed");
    }

    async fn open(&self, array: &str) -> NbdDisk {
        let uri = self.bench.uri(array).parse().expect("the daemon's URI");
        NbdDisk::open(&self.rt, &self.ring, &uri, NbdOptions::default()).await.expect("connect")
    }

    async fn expect_read(&self, array: &str, byte: u8) {
        let disk = self.open(array).await;
        let (result, buf) = disk.read(0, Buf::new(BYTES), Class::User).await;
        result.expect("read");
        assert!(buf.iter().all(|found| *found == byte), "{array}");
    }
}

async fn write(disk: &NbdDisk, byte: u8) -> Result<(), DiskError> {
    disk.write(0, Frozen::copy_from(&vec![byte; BYTES]), WriteOpts::USER).await?;
    disk.flush().await
}

fn run<F: Future<Output = ()> + 'static>(story: impl FnOnce(Story) -> F) {
    let (rt, ring) = ring::start(RingConfig::default()).expect("this machine has io_uring");
    let story = story(Story::new(rt.clone(), ring));
    rt.block_on(story);
}

#[test]
fn a_panic_in_one_array_takes_that_out_of_service_and_no_other() {
    run(|mut story| async move {
        let (bad, good) = (story.open("bad").await, story.open("good").await);
        write(&bad, 1).await.expect("written");
        write(&good, 1).await.expect("written");
        story.arm(&format!("flush {}", story.members[1]));
        write(&bad, 2).await.expect_err("not acknowledged");
        write(&bad, 3).await.expect_err("not any more");
        write(&good, 2).await.expect("the other goes on");
        let bench = &story.bench;
        let status = bench.weft(&["status"]);
        assert!(status.contains("internal error") && status.contains("bad"), "{status}");
        bench.refused(&["status", "--check"], 4);
        assert!(bench.log().contains("ALERT: internal error"), "{}", bench.log());
        story.disarm();
        story.bench.terminate();
        story.serve();
        story.expect_read("good", 2).await;
        let disk = story.open("bad").await;
        let (result, buf) = disk.read(0, Buf::new(BYTES), Class::User).await;
        result.expect("read");
        // The second write was under way.
        assert!(buf.chunks(512).all(|s| (1..=2).contains(&s[0]) && s.iter().all(|b| *b == s[0])));
        assert!(bench_scrub(&story.bench).contains("0 mismatches"));
        story.bench.terminate();
    });
}

fn bench_scrub(bench: &Bench) -> String {
    wait_until("the resync to end", || bench.status("bad")["regions"]["resync"] == 0);
    bench.weft(&["scrub", "bad"])
}

#[test]
fn a_panic_that_belongs_to_no_array_ends_the_daemon_with_code_70() {
    run(|mut story| async move {
        write(&story.open("bad").await, 1).await.expect("written");
        write(&story.open("good").await, 2).await.expect("written");
        story.arm("SIGHUP");
        story.bench.signal(Signal::HUP);
        assert_eq!(story.bench.ended().code(), Some(70), "{}", story.bench.log());
        assert!(story.bench.log().contains("ends with code 70"), "{}", story.bench.log());
        story.disarm();
        story.serve();
        story.expect_read("bad", 1).await;
        story.expect_read("good", 2).await;
        story.bench.terminate();
    });
}
