//! The daemon is killed in the middle of writes, again and again: after the next start every byte
//! that was acknowledged is there (flushed or not: only the program died, the disks did not), bytes
//! being written are old or new, nothing else was touched, and the redundancy matches the data.
//!
//! The simulator's oracle holds every read against what the volume may answer.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use crate::common::Bench;
use weft_disk::{Class, Disk, WriteOpts};
use weft_nbd::{NbdDisk, NbdOptions};
use weft_rt::ring::{self, Ring, RingConfig};
use weft_rt::{Buf, Rt};
use weft_sim::oracle::{Kind, Oracle};
use weft_testkit::{Rng, wait_until};

const SIZE_BYTES: u64 = 24 << 20;
const CELL_BYTES: usize = 512;
const CLIENTS: u64 = 12;
const ROUNDS: u64 = 5;

#[test]
fn what_was_acknowledged_survives_every_kill() {
    for (seed, code) in [(1, "drc-g:4,2,1"), (2, "raid6"), (3, "raid5"), (4, "raid10")] {
        let (rt, ring) = ring::start(RingConfig::default()).expect("this machine has io_uring");
        rt.clone().block_on(Story::new(rt, ring, seed, code).run());
    }
}

#[test]
fn what_was_acknowledged_survives_kills_while_the_array_grows() {
    for (seed, code) in [(5, "raid5"), (6, "raid6")] {
        let (rt, ring) = ring::start(RingConfig::default()).expect("this machine has io_uring");
        let story = Story { grows: true, ..Story::new(rt.clone(), ring, seed, code) };
        rt.block_on(story.run());
    }
}

struct Story {
    rt: Rt,
    ring: Ring,
    bench: Bench,
    code: &'static str,
    rng: Rng,
    oracle: Rc<RefCell<Oracle>>,
    /// Whether the array is reshaped meanwhile.
    grows: bool,
}

impl Story {
    fn new(rt: Rt, ring: Ring, seed: u64, code: &'static str) -> Self {
        let bench = Bench::new("crash");
        let members: Vec<String> = (0..7).map(|n| format!("d{n}")).collect();
        let mut create = vec!["create", "t", "--code", code, "--size", "24M", "--unit", "16K"];
        create.extend(["--head-room", "1M"]);
        create.extend(members.iter().map(String::as_str));
        bench.weft(&create);
        let oracle = Rc::new(RefCell::new(Oracle::new(seed, SIZE_BYTES, CELL_BYTES)));
        Self { rt, ring, bench, code, rng: Rng::new(seed), oracle, grows: false }
    }

    async fn run(mut self) {
        for round in 0..ROUNDS {
            self.bench.serve(&["."]);
            self.read_all().await;
            if round == 1 && self.grows {
                self.bench.weft(&["add", "t", "g0", "--size", "24M"]);
                self.bench.weft(&["throttle", "t", "--max", "400K"]);
                self.bench.weft(&["grow", "t", "--no-wait"]);
            }
            if round == 2 && !self.grows {
                // From here on degraded, where a lost unit is only in the redundancy.
                self.bench.weft(&["fail", "t", "d3"]);
            }
            self.write_until_killed(round == 1 && self.grows).await;
        }
        self.bench.serve(&["."]);
        self.read_all().await;
        if self.grows {
            wait_until("the reshape ends", || self.bench.status("t")["reshaping"] == false);
            assert_eq!(self.bench.status("t")["slots"].as_array().map(Vec::len), Some(8));
        } else {
            self.bench.weft(&["add", "t", "spare", "--size", "24M"]);
            self.bench.weft(&["rebuild", "t"]);
        }
        self.read_all().await;
        let scrubbed = self.bench.weft(&["scrub", "t"]);
        assert!(scrubbed.contains("0 mismatches"), "{}: {scrubbed}", self.code);
        self.bench.terminate();
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

    /// Clients write, and flush now and then, until the daemon has acknowledged enough and dies.
    /// If `growing`, it has not ended its reshape by then.
    async fn write_until_killed(&mut self, growing: bool) {
        let disk = Rc::new(self.open().await);
        let left = Rc::new(Cell::new(200 + self.rng.below(600)));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let client = Client {
                    rng: Rng::new(self.rng.next_u64()),
                    disk: disk.clone(),
                    oracle: self.oracle.clone(),
                    left: left.clone(),
                };
                self.rt.spawn(client.run())
            })
            .collect();
        while left.get() > 0 {
            self.rt.sleep(weft_rt::MILLISECOND / 10).await;
        }
        assert!(!growing || self.bench.status("t")["reshaping"] == true, "{}", self.code);
        self.bench.kill9();
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
    /// Acknowledgements until the kill.
    left: Rc<Cell<u64>>,
}

impl Client {
    async fn run(mut self) {
        loop {
            let answered =
                if self.rng.chance(1, 20) { self.flush().await } else { self.write().await };
            if !answered {
                return;
            }
            self.left.set(self.left.get().saturating_sub(1));
        }
    }

    /// Whether it was acknowledged; if not, the daemon is dead.
    async fn write(&mut self) -> bool {
        let cells = self.place();
        let offset = (cells.start * CELL_BYTES) as u64;
        let mut buf = Buf::new(cells.len() * CELL_BYTES);
        let writing = self.oracle.borrow_mut().begin_write(cells, Kind::Data);
        self.oracle.borrow().fill(&writing, &mut buf);
        let fua = self.rng.chance(1, 20);
        let opts = WriteOpts { fua, ..WriteOpts::USER };
        let result = self.disk.write(offset, buf.freeze(), opts).await;
        assert!(result.is_ok() || self.left.get() == 0, "a write failed: {result:?}");
        if result.is_ok() {
            self.oracle.borrow_mut().end_write(writing, true, fua);
        }
        result.is_ok()
    }

    async fn flush(&self) -> bool {
        let flushing = self.oracle.borrow_mut().begin_flush();
        let result = self.disk.flush().await;
        assert!(result.is_ok() || self.left.get() == 0, "a flush failed: {result:?}");
        if result.is_ok() {
            self.oracle.borrow_mut().end_flush(flushing);
        }
        result.is_ok()
    }

    /// Small pieces mostly, in a few crowded stripes or anywhere, and some whole stripes.
    fn place(&mut self) -> Range<usize> {
        let cells = self.oracle.borrow().len();
        let longest = if self.rng.chance(1, 8) { 400 } else { 20 };
        let len = 1 + self.rng.index(longest);
        let room = if self.rng.chance(1, 2) { 2000 } else { cells };
        let start = self.rng.index(room - len);
        start..start + len
    }
}
