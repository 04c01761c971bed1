//! Members without room: whichever write finds none, wholly or in part, the client is told, no
//! member is given up, nothing is damaged that was not being written, and when there is room again
//! everything is as it should be.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes and counts of a test are small"
)]

mod common;

use std::cell::Cell;
use std::rc::Rc;

use common::bench::{Bench, UNIT, disk, options, run};
use common::*;
use weft_array::{Array, ArrayError, Consistency, ScrubMode};
use weft_rt::{Buf, Frozen, SECOND};

const SECTOR: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Lack {
    /// One write fails, and stores nothing.
    Once,
    /// One write fails half-way.
    Half,
    /// From one write on all that go where nothing was so far fail, on one disk.
    Full,
    /// From one write on all fail on one disk that are not metadata, as on a copy-on-write file
    /// system.
    All,
}

#[derive(Clone, Copy)]
struct Setup {
    code: &'static str,
    slots: usize,
    consistency: Consistency,
    failed: &'static [usize],
}

/// What each sector may hold, the newest last; and where writes failed.
struct Shadow(Vec<Vec<Vec<u8>>>);

impl Shadow {
    fn new(bytes: &[u8]) -> Self {
        Self(bytes.chunks(SECTOR).map(|sector| vec![sector.to_vec()]).collect())
    }

    fn wrote(&mut self, offset: usize, bytes: &[u8], result: &Result<(), ArrayError>, what: &str) {
        for (number, sector) in (offset / SECTOR..).zip(bytes.chunks(SECTOR)) {
            let versions = &mut self.0[number];
            match result {
                Ok(()) => *versions = vec![sector.to_vec()],
                Err(error) => {
                    let full = matches!(error.root(), ArrayError::NoSpace { .. });
                    assert!(full, "{what}: {error}");
                    versions.push(sector.to_vec());
                }
            }
        }
    }

    /// Each sector is what it may be; one that may be more than one thing can be excused.
    fn check(&self, first: usize, found: &[u8], excused: impl Fn(usize) -> bool, what: &str) {
        for (number, sector) in (first..).zip(found.chunks(SECTOR)) {
            let versions = &self.0[number];
            let fits = versions.iter().any(|version| version == sector);
            let open = versions.len() > 1 && excused(number);
            assert!(fits || open, "{what}: sector {number} is none of {}", versions.len());
        }
    }
}

/// Sectors, from the array's beginning: parts of units, several units, whole stripes, beside and
/// over each other.
fn writes(stripe: usize) -> Vec<(usize, usize, bool)> {
    let unit = UNIT as usize;
    vec![
        (2 * SECTOR, 3 * SECTOR, false),
        (unit - SECTOR, 2 * SECTOR, true),
        (stripe, stripe, false),
        (stripe + unit, unit, false),
        (2 * stripe - unit - SECTOR, unit + 2 * SECTOR, false),
        (3 * stripe, stripe - unit, true),
        (0, 2 * stripe, false),
        (4 * stripe + unit / 2, stripe, false),
    ]
}

/// Does the run with the `n`th data or log write lacking room. False if there were fewer writes.
async fn lack(rt: weft_rt::Rt, setup: Setup, lack: Lack, n: u64) -> bool {
    let what = format!("{} {} {lack:?} {n}", setup.code, setup.consistency);
    let what = &what;
    let mut options = options(setup.code);
    options.consistency = setup.consistency;
    let disks: Vec<_> = (0..setup.slots).map(|n| disk(&rt, n, 512)).collect();
    let bench = Bench::on(&rt, &options, disks).await;
    let stripe = bench.stripe_bytes() as usize;
    // Something lies in every other stripe already.
    let mut bytes = vec![0; 6 * stripe];
    for at in (0..6).step_by(2).map(|n| n * stripe) {
        bytes[at..at + stripe - 700].copy_from_slice(&pattern(at as u64, stripe - 700, 1));
        write(&bench.array, at as u64, &bytes[at..at + stripe - 700]).await;
    }
    for slot in setup.failed {
        bench.array.fail(&slot.to_string()).await.expect("failed");
    }
    let mut shadow = Shadow::new(&bytes);
    let (count, open) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let metadata = bench.superblock.area.log_offset;
    for disk in &bench.disks {
        let (count, open, begun) = (count.clone(), open.clone(), Cell::new(false));
        let room = move |offset: u64, len: u64, covered: bool| {
            if offset < metadata || open.get() {
                return None;
            }
            count.set(count.get() + 1);
            let now = count.get() == n + 1;
            begun.set(begun.get() || now);
            match lack {
                Lack::Once => now.then_some(0),
                Lack::Half => now.then_some(len / 2 / 512 * 512),
                Lack::Full => (begun.get() && !covered).then_some(0),
                Lack::All => begun.get().then_some(len / 1024 % 2 * 512),
            }
        };
        *disk.faults.room.borrow_mut() = Some(Box::new(room));
    }
    for (number, (offset, len, flush)) in writes(stripe).into_iter().enumerate() {
        let new = pattern(offset as u64, len, 10 + number as u8);
        let result = bench.array.write(offset as u64, Frozen::copy_from(&new), flush).await;
        shadow.wrote(offset, &new, &result, what);
        if flush {
            bench.array.flush().await.expect("flushed");
        }
    }
    let zeroed = bench.array.write_zeroes(2 * stripe as u64, stripe as u64, false, false).await;
    shadow.wrote(2 * stripe, &vec![0; stripe], &zeroed, what);
    let missing =
        |array: &Array| array.status().slots.iter().filter(|slot| slot.state == "missing").count();
    assert_eq!(missing(&bench.array), setup.failed.len(), "{what}: a member was given up");
    // With a member missing what was being written may be given up for what was not.
    let degraded = !setup.failed.is_empty();
    let found = read(&bench.array, 0, 6 * stripe).await;
    shadow.check(0, &found, |_| degraded, what);
    // One more member is lost while there is no room: what can be read is right.
    if setup.failed.is_empty() && n.is_multiple_of(2) {
        let slot = n as usize / 2 % setup.slots;
        bench.array.fail(&slot.to_string()).await.expect("can lose one");
        for sector in 0..6 * stripe / SECTOR {
            let offset = (sector * SECTOR) as u64;
            let (result, buf) = bench.array.read(offset, Buf::new(SECTOR)).await;
            match result {
                Ok(()) => shadow.check(sector, &buf, |_| false, &format!("{what}, {slot} lost")),
                Err(error) => {
                    assert!(matches!(error, ArrayError::Unreadable { .. }), "{what}: {error}")
                }
            }
        }
        let _ = bench.array.stop().await;
        return count.get() > n;
    }
    open.set(true);
    rt.sleep(25 * SECOND).await;
    let status = bench.array.status();
    assert_eq!(status.regions.resync, 0, "{what}: {status:?}");
    assert!(status.slots.iter().all(|slot| !slot.no_space), "{what}");
    assert!(read(&bench.array, 0, 6 * stripe).await == found, "{what}: changed by the resync");
    let report = bench.array.scrub(ScrubMode::Check).await.expect("scrubbed");
    assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
    let new = pattern(0, 6 * stripe, 99);
    write(&bench.array, 0, &new).await;
    assert!(read(&bench.array, 0, 6 * stripe).await == new, "{what}");
    let report = bench.array.scrub(ScrubMode::Check).await.expect("scrubbed");
    assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
    bench.array.stop().await.expect("stopped");
    count.get() > n
}

/// Every write of the run, in each of the ways; some where one lasts, or comes half-way.
fn everywhere(setup: Setup) {
    for (kind, step) in [(Lack::Once, 1), (Lack::Half, 3), (Lack::Full, 5), (Lack::All, 5)] {
        for n in (0..).step_by(step) {
            let more = Rc::new(Cell::new(false));
            let more2 = more.clone();
            run(move |rt| async move { more2.set(lack(rt, setup, kind, n).await) });
            if !more.get() {
                assert!(n > 20, "only {n} writes");
                break;
            }
        }
    }
}

const fn setup(code: &'static str, slots: usize, consistency: Consistency) -> Setup {
    Setup { code, slots, consistency, failed: &[] }
}

#[test]
fn raid5() {
    everywhere(setup("raid5", 4, Consistency::Ppl));
}

#[test]
fn raid5_degraded() {
    everywhere(Setup { failed: &[1], ..setup("raid5", 4, Consistency::Ppl) });
}

#[test]
fn raid6() {
    everywhere(setup("raid6", 5, Consistency::Bitmap));
}

#[test]
fn raid6_degraded() {
    everywhere(Setup { failed: &[0, 3], ..setup("raid6", 5, Consistency::Ppl) });
}

#[test]
fn drc() {
    everywhere(setup("drc-g:4,2,1", 7, Consistency::Ppl));
}

#[test]
fn drc_degraded() {
    everywhere(Setup { failed: &[2], ..setup("drc-g:4,2,1", 7, Consistency::None) });
}

#[test]
fn mirror() {
    everywhere(setup("raid1", 3, Consistency::Bitmap));
}
