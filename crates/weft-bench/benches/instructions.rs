//! Instructions per request of the engine, counted by valgrind: the same on every machine and under
//! any load. Arrays on RAM disks, random requests of 4 KiB, 32 in flight.
//!
//! The program runs itself under callgrind once for each case, and reads the count from its report.
//! Warming up is not counted; `REQUESTS` requests are.

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_array::{Array, Consistency};
use weft_bench::{TrivialDriver, fill, instructions, make, ram_disks};
use weft_cache::{CachedVolume, Choice};
use weft_code::SlotNo;
use weft_disk::Volume as _;
use weft_rt::rng::Rng;
use weft_rt::{Buf, Frozen, Rt, Schedule};

const REQUESTS: u64 = 3200;
const DEPTH: u64 = 32;
const LEN: usize = 4 << 10;
const MEMBER_MIB: u64 = 8;

/// What is counted.
struct Case {
    name: &'static str,
    code: &'static str,
    slots: usize,
    policy: Consistency,
    request: Request,
    /// Whether a member is lost, and requests are for its data.
    degraded: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Request {
    /// Any place.
    Read,
    /// A place on the lost member.
    ReadLost,
    /// A place that is in a cache above the array.
    ReadCached,
    Write,
}

const CASES: [Case; 12] = [
    case("read-cached", "raid6", 6, Consistency::None, Request::ReadCached, false),
    case("read", "raid6", 6, Consistency::None, Request::Read, false),
    case("read-degraded", "raid6", 6, Consistency::None, Request::Read, true),
    case("read-degraded-wide", "raid6", 60, Consistency::None, Request::Read, true),
    case("read-lost", "raid6", 6, Consistency::None, Request::ReadLost, true),
    case("read-lost-wide", "raid6", 60, Consistency::None, Request::ReadLost, true),
    case("write-none", "raid6", 6, Consistency::None, Request::Write, false),
    case("write-bitmap", "raid6", 6, Consistency::Bitmap, Request::Write, false),
    case("write-ppl", "raid6", 6, Consistency::Ppl, Request::Write, false),
    case("write-none-wide", "raid6", 60, Consistency::None, Request::Write, false),
    case("write-raid5-none", "raid5", 5, Consistency::None, Request::Write, false),
    case("write-mirror-none", "raid1", 2, Consistency::None, Request::Write, false),
];

const fn case(
    name: &'static str,
    code: &'static str,
    slots: usize,
    policy: Consistency,
    request: Request,
    degraded: bool,
) -> Case {
    Case { name, code, slots, policy, request, degraded }
}

/// Carries out `count` requests; the part that callgrind counts.
#[inline(never)]
fn counted_requests(rt: &Rt, array: &Array, cache: &Rc<CachedVolume>, case: &Case, count: u64) {
    requests(rt, array, cache, case, count);
}

fn requests(rt: &Rt, array: &Array, cache: &Rc<CachedVolume>, case: &Case, count: u64) {
    let random = Rc::new(RefCell::new(Rng::new(1)));
    let places = array.size_bytes() / LEN as u64;
    let lost: Rc<Vec<u64>> = Rc::new(match case.request {
        Request::ReadLost => lost_places(array),
        _ => Vec::new(),
    });
    let data = Frozen::copy_from(&[0x5a; LEN]);
    let workers: Vec<_> = (0..DEPTH)
        .map(|_| {
            let (array, cache, random, data, lost) =
                (array.clone(), cache.clone(), random.clone(), data.clone(), lost.clone());
            let request = case.request;
            rt.spawn(async move {
                for _ in 0..count / DEPTH {
                    let place = match lost.len() {
                        0 => random.borrow_mut().below(places),
                        n => lost[random.borrow_mut().index(n)],
                    };
                    let offset = place * LEN as u64;
                    if request == Request::Write {
                        array.write(offset, data.clone(), false).await.expect("written");
                    } else if request == Request::ReadCached {
                        let buf = Buf::new(data.len());
                        cache.read(offset, buf).await.0.expect("read");
                    } else {
                        let buf = Buf::new(data.len());
                        array.read(offset, buf).await.0.expect("read");
                    }
                }
            })
        })
        .collect();
    rt.block_on(async move { drop(join_all(workers).await) });
}

/// Places whose data is on slot 0, in a left-symmetric layout of RAID-6.
fn lost_places(array: &Array) -> Vec<u64> {
    let status = array.status();
    let slots = status.slots.len() as u64;
    let unit = 64 << 10;
    let k = slots - 2;
    let is_lost = |place: &u64| {
        let number = place * LEN as u64 / unit;
        let (stripe, data) = (number / k, number % k);
        // P of stripe s lies on slot (slots - 1 - s mod slots), Q after it, then the data.
        (slots - 1 - stripe % slots + 2 + data).is_multiple_of(slots)
    };
    (0..array.size_bytes() / LEN as u64).filter(is_lost).collect()
}

fn child(case: &Case) {
    let rt = Rt::new(Rc::new(TrivialDriver::default()), Schedule::Fifo);
    let disks = ram_disks(case.slots, MEMBER_MIB);
    let (rt2, code, policy, degraded) =
        (rt.clone(), case.code.to_owned(), case.policy, case.degraded);
    let array = rt.block_on(async move {
        let array = make(&rt2, &code, policy, disks).await;
        fill(&array).await;
        if degraded {
            array.fail(SlotNo(0)).await.expect("failed");
        }
        array
    });
    let cache = Rc::new(CachedVolume::new(Rc::new(array.clone())));
    if case.request == Request::ReadCached {
        cache.switch_on(Choice::DEFAULT, array.size_bytes()).expect("room");
    }
    // The same places twice: the second time they are cached.
    requests(&rt, &array, &cache, case, REQUESTS);
    counted_requests(&rt, &array, &cache, case, REQUESTS);
    rt.kill_all();
}

fn main() -> ExitCode {
    let asked = std::env::args().nth(1).filter(|arg| !arg.starts_with('-'));
    if let Some(case) = CASES.iter().find(|case| Some(case.name) == asked.as_deref()) {
        child(case);
        return ExitCode::SUCCESS;
    }
    println!("\n### Instructions per request\n");
    println!("RAM disks of {MEMBER_MIB} MiB, units of 64 KiB, 4 KiB random, depth {DEPTH}\n");
    println!("| {:<20} | {:<10} | instructions |", "request", "array");
    println!("|{:-<22}|{:-<12}|-------------:|", "", "");
    for case in &CASES {
        match instructions(case.name, "counted_requests", REQUESTS) {
            Ok(n) => {
                println!("| {:<20} | {:<5} {:>4} | {n:>12} |", case.name, case.code, case.slots)
            }
            Err(error) => {
                eprintln!("instructions: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
