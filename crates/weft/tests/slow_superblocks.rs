//! The daemon is killed while it records the failure of a member: the member comes back with old
//! data, and every acknowledged byte is still there.
//!
//! The members are disks on an NBD server in this test, whose writes to superblocks take long. All
//! writes are with FUA and many at a time, so some meet the failure, and others only leave the
//! member out. A superblock that is under way when the daemon dies is never written.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use crate::common::Bench;
use crate::nbd_disks::{Disks, NONE};
use weft_disk::{Class, Disk, WriteOpts};
use weft_nbd::{NbdDisk, NbdOptions};
use weft_rt::ring::{self, Ring, RingConfig};
use weft_rt::{Buf, MILLISECOND, Rt};
use weft_sim::oracle::{Kind, Oracle};
use weft_testkit::{Rng, wait_until};

const SIZE_BYTES: u64 = 8 << 20;
const CELL_BYTES: usize = 512;
const CLIENTS: u64 = 8;

/// For each round: how many milliseconds a superblock takes, and how long after the failure the
/// daemon is killed. In the last round the exclusion is durable by then.
const ROUNDS: [(u64, u64); 4] = [(200, 20), (200, 100), (60, 30), (30, 300)];

#[test]
fn what_was_acknowledged_while_an_exclusion_is_written_survives_a_kill() {
    let codes = ["raid1", "raid5", "raid6", "raid10", "drc-g:4,2,1", "lrc:4,2,1", "rs:5+2"];
    for (seed, code) in (1..).zip(codes) {
        let (rt, ring) = ring::start(RingConfig::default()).expect("this machine has io_uring");
        rt.clone().block_on(Story::new(rt, ring, seed, code).run());
    }
}

struct Story {
    rt: Rt,
    ring: Ring,
    bench: Bench,
    disks: Disks,
    members: Vec<String>,
    code: &'static str,
    rng: Rng,
    oracle: Rc<RefCell<Oracle>>,
}

impl Story {
    fn new(rt: Rt, ring: Ring, seed: u64, code: &'static str) -> Self {
        let count = match code {
            "raid1" => 3,
            "raid10" => 4,
            _ => 7,
        };
        let (bench, disks) = (Bench::new("slow-superblocks"), Disks::start(count));
        let members = disks.uris(count);
        let mut create = vec!["create", "t", "--code", code, "--unit", "16K"];
        create.extend(members.iter().map(String::as_str));
        bench.weft(&create);
        let oracle = Rc::new(RefCell::new(Oracle::new(seed, SIZE_BYTES, CELL_BYTES)));
        Self { rt, ring, bench, disks, members, code, rng: Rng::new(seed), oracle }
    }

    async fn run(mut self) {
        let victim = self.rng.index(self.members.len());
        let mut rounds = ROUNDS.into_iter();
        loop {
            self.serve();
            self.read_all().await;
            // On a slow machine a kill may come late, when the exclusion is durable.
            let out = self.bench.status("t")["slots"][victim]["state"] == "missing";
            let Some((delay_ms, after_ms)) = rounds.next().filter(|_| !out) else { break };
            // Until then the copies of a mirror may differ where it was being written at the kill,
            // and the loss of one makes another value visible there.
            self.resynced();
            self.write_until_killed(victim, delay_ms, after_ms).await;
        }
        self.resynced();
        let scrubbed = self.bench.weft(&["scrub", "t"]);
        assert!(scrubbed.contains("0 mismatches"), "{}: {scrubbed}", self.code);
        self.bench.terminate();
    }

    fn resynced(&self) {
        wait_until("the resync to end", || self.bench.status("t")["regions"]["resync"] == 0);
    }

    fn serve(&mut self) {
        let members: Vec<&str> = self.members.iter().map(String::as_str).collect();
        self.bench.serve(&members);
    }

    async fn open(&self) -> NbdDisk {
        let uri = self.bench.uri("t").parse().expect("the daemon's URI");
        NbdDisk::open(&self.rt, &self.ring, &uri, NbdOptions::default()).await.expect("connect")
    }

    async fn read_all(&self) {
        let disk = self.open().await;
        let cells = self.oracle.borrow().len();
        for from in (0..cells).step_by(2048) {
            let reading = self.oracle.borrow_mut().begin_read(from..(from + 2048).min(cells));
            let buf = Buf::new((cells - from).min(2048) * CELL_BYTES);
            let (result, buf) = disk.read((from * CELL_BYTES) as u64, buf, Class::User).await;
            result.expect("read");
            let checked = self.oracle.borrow_mut().end_read(reading, &buf);
            checked.unwrap_or_else(|wrong| panic!("{}: {}", self.code, wrong.text));
        }
    }

    /// Clients write; a member fails; some time later the daemon is killed.
    async fn write_until_killed(&mut self, victim: usize, delay_ms: u64, after_ms: u64) {
        let disk = Rc::new(self.open().await);
        let (written, killed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let client = Client {
                    rng: Rng::new(self.rng.next_u64()),
                    disk: disk.clone(),
                    oracle: self.oracle.clone(),
                    written: written.clone(),
                    killed: killed.clone(),
                };
                self.rt.spawn(client.run())
            })
            .collect();
        while written.get() < 200 {
            self.rt.sleep(MILLISECOND).await;
        }
        let faults = self.disks.faults.clone();
        faults.delay_ms.store(delay_ms, Ordering::SeqCst);
        faults.failed.store(victim, Ordering::SeqCst);
        self.rt.sleep(after_ms * MILLISECOND).await;
        killed.set(true);
        self.bench.kill9();
        faults.deaths.fetch_add(1, Ordering::SeqCst);
        faults.failed.store(NONE, Ordering::SeqCst);
        faults.delay_ms.store(0, Ordering::SeqCst);
        for client in clients {
            client.await;
        }
        self.oracle.borrow_mut().program_killed();
    }
}

struct Client {
    rng: Rng,
    disk: Rc<NbdDisk>,
    oracle: Rc<RefCell<Oracle>>,
    /// Acknowledgements so far.
    written: Rc<Cell<u64>>,
    killed: Rc<Cell<bool>>,
}

impl Client {
    async fn run(mut self) {
        while self.write().await {
            self.written.set(self.written.get() + 1);
        }
    }

    /// Whether it was acknowledged; if not, the daemon is dead.
    async fn write(&mut self) -> bool {
        let all = self.oracle.borrow().len();
        let len = 1 + self.rng.index(64);
        let start = self.rng.index(all - len);
        let mut buf = Buf::new(len * CELL_BYTES);
        let writing = self.oracle.borrow_mut().begin_write(start..start + len, Kind::Data);
        self.oracle.borrow().fill(&writing, &mut buf);
        let opts = WriteOpts { fua: true, ..WriteOpts::USER };
        let offset = (start * CELL_BYTES) as u64;
        let result = self.disk.write(offset, buf.freeze(), opts).await;
        assert!(result.is_ok() || self.killed.get(), "a write failed: {result:?}");
        if result.is_ok() {
            self.oracle.borrow_mut().end_write(writing, true, true);
        }
        result.is_ok()
    }
}
