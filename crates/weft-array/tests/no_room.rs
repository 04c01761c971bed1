//! Members without space: writes that find none wait, and all others continue. They end when there
//! is space, or when the member is failed. A crash or a stop meanwhile loses nothing that was
//! acknowledged, and the redundancy in the status is real.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::bench::{Bench, UNIT, disk, members, options, run, sized_disk};
use crate::common::disk::{Leave, Power, TestDisk};
use crate::common::*;
use weft_array::{Array, ArrayError, Consistency, Event, MemberState, ScrubMode};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{Buf, Frozen, Rt, SECOND, Task};

const SECTOR: usize = 512;
const STRIPES: usize = 12;

/// Which writes to the full disk find no space.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Lack {
    /// Writes to sectors that were never written.
    New,
    /// All data writes, after half of each was stored.
    Half,
    /// All writes to data and log, as on a copy-on-write file system.
    CopyOnWrite,
}

/// What ends the waiting.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Room,
    Fail,
    Stop,
    /// The program dies, and its disks keep everything they were given.
    Kill,
    /// A power cut.
    Cut,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    code: &'static str,
    slots: usize,
    consistency: Consistency,
    failed: &'static [usize],
    full: usize,
    lack: Lack,
}

/// The possible contents of each sector.
#[derive(Clone)]
struct Shadow(Vec<Vec<Vec<u8>>>);

impl Shadow {
    fn new(bytes: &[u8]) -> Self {
        Self(bytes.chunks(SECTOR).map(|sector| vec![sector.to_vec()]).collect())
    }

    fn add(&mut self, offset: usize, bytes: &[u8]) {
        for (number, sector) in (offset / SECTOR..).zip(bytes.chunks(SECTOR)) {
            self.0[number].push(sector.to_vec());
        }
    }

    fn set(&mut self, offset: usize, bytes: &[u8]) {
        for (number, sector) in (offset / SECTOR..).zip(bytes.chunks(SECTOR)) {
            self.0[number] = vec![sector.to_vec()];
        }
    }

    /// Compares the whole array with it; sectors with several possible contents can be excused.
    async fn check(&self, array: &Array, excused: impl Fn(usize) -> bool, what: &str) {
        self.check_part(array, 0..self.0.len(), excused, what).await;
    }

    async fn check_part(
        &self,
        array: &Array,
        sectors: std::ops::Range<usize>,
        excused: impl Fn(usize) -> bool,
        what: &str,
    ) {
        let found = read(array, (sectors.start * SECTOR) as u64, sectors.len() * SECTOR).await;
        for (number, sector) in sectors.zip(found.chunks(SECTOR)) {
            let versions = &self.0[number];
            let fits = versions.iter().any(|version| version == sector);
            let open = versions.len() > 1 && excused(number);
            assert!(fits || open, "{what}: sector {number} is none of {}", versions.len());
        }
    }
}

/// Requests to each of some stripes: part of a unit, two units, a whole stripe, nearly a whole one;
/// in written and unwritten stripes. The last one writes zeros.
fn requests(stripe: usize) -> Vec<(usize, usize)> {
    let unit = (UNIT as usize).min(stripe);
    let in_stripe = |n: usize, from: usize, len: usize| (n * stripe + from, len);
    vec![
        in_stripe(0, 2 * SECTOR, 3 * SECTOR),
        in_stripe(1, 2 * SECTOR, 3 * SECTOR),
        in_stripe(2, unit - SECTOR, (2 * SECTOR).min(stripe - unit + SECTOR)),
        in_stripe(3, unit - SECTOR, (2 * SECTOR).min(stripe - unit + SECTOR)),
        in_stripe(4, 0, stripe),
        in_stripe(5, 0, stripe),
        in_stripe(6, SECTOR, stripe - SECTOR),
        in_stripe(7, 0, stripe - SECTOR),
        in_stripe(9, 0, stripe),
        in_stripe(10, 0, stripe),
    ]
}

/// Where a request writes, what, and its answer.
type Request = (usize, Vec<u8>, Task<Result<(), ArrayError>>);

type ReadTask = Task<(Result<(), ArrayError>, Buf)>;

struct Story {
    case: Case,
    bench: Bench,
    open: Rc<Cell<bool>>,
    shadow: Shadow,
    tasks: Vec<Request>,
}

fn fill_up(disk: &TestDisk, case: Case, log: u64, data: u64, open: &Rc<Cell<bool>>) {
    let open = open.clone();
    let from = if case.lack == Lack::CopyOnWrite { log } else { data };
    *disk.faults.room.borrow_mut() = Some(Box::new(move |offset, len, covered| {
        let refused = offset >= from && !open.get() && !(covered && case.lack == Lack::New);
        let half = case.lack == Lack::Half;
        refused.then_some(if half { len / 2 / SECTOR as u64 * SECTOR as u64 } else { 0 })
    }));
}

impl Story {
    /// An array in which every other stripe is written, with requests of which some wait.
    async fn begin(rt: &Rt, case: Case) -> Self {
        let mut options = options(case.code);
        options.consistency = case.consistency;
        let disks: Vec<_> = (0..case.slots).map(|n| disk(rt, n, 512)).collect();
        let bench = Bench::on(rt, &options, disks).await;
        let stripe = bench.stripe_bytes() as usize;
        let mut bytes = vec![0; STRIPES * stripe];
        for at in (0..STRIPES).step_by(2).map(|n| n * stripe) {
            bytes[at..at + stripe].copy_from_slice(&pattern(at as u64, stripe, 1));
            write(&bench.array, at as u64, &bytes[at..at + stripe]).await;
        }
        for slot in case.failed {
            bench.array.fail(SlotNo(*slot)).await.expect("failed");
        }
        bench.array.flush().await.expect("flushed");
        let open = Rc::new(Cell::new(false));
        let area = &bench.superblock.area;
        fill_up(&bench.disks[case.full], case, area.log_offset, area.data_offset, &open);
        let mut story = Self { case, bench, open, shadow: Shadow::new(&bytes), tasks: Vec::new() };
        story.send(rt, stripe);
        rt.sleep(7 * SECOND).await;
        story.note_ended().await;
        story
    }

    fn send(&mut self, rt: &Rt, stripe: usize) {
        let all = requests(stripe);
        for (number, (offset, len)) in all.iter().copied().enumerate() {
            let zeroes = number + 1 == all.len();
            let new = if zeroes { vec![0; len] } else { pattern(offset as u64, len, 2) };
            self.shadow.add(offset, &new);
            let (array, data) = (self.bench.array.clone(), Frozen::copy_from(&new));
            let task = rt.spawn(async move {
                match zeroes {
                    true => array.write_zeroes(offset as u64, len as u64, false, false).await,
                    false => array.write(offset as u64, data, number % 3 == 0).await,
                }
            });
            self.tasks.push((offset, new, task));
        }
    }

    /// Adopts the data of requests that have been acknowledged.
    async fn note_ended(&mut self) {
        for (offset, new, task) in std::mem::take(&mut self.tasks) {
            if task.is_finished() {
                task.await.expect("not refused");
                self.shadow.set(offset, &new);
            } else {
                self.tasks.push((offset, new, task));
            }
        }
    }

    fn status_is_true(&self, what: &str) {
        let status = self.bench.array.status();
        for slot in &status.slots {
            let wants = slot.slot == SlotNo(self.case.full) && !self.tasks.is_empty();
            assert_eq!(slot.wants_room_bytes > 0, wants, "{what}: {slot:?}");
            let state = if self.case.failed.contains(&slot.slot.0) {
                MemberState::Missing
            } else {
                MemberState::Active
            };
            assert_eq!(slot.state, state, "{what}: {slot:?}");
        }
        assert!(status.broken.is_none(), "{what}");
    }

    /// Compares the array with the shadow while writes wait. Until these have ended, their stripes'
    /// units on a missing member cannot be read.
    async fn check_waiting(&self, what: &str) {
        let sectors = self.bench.stripe_bytes() as usize / SECTOR;
        for stripe in 0..STRIPES {
            let range = stripe * sectors..(stripe + 1) * sectors;
            let waits = |(at, ..): &Request| range.contains(&(at / SECTOR));
            if self.case.failed.is_empty() || !self.tasks.iter().any(waits) {
                self.shadow.check_part(&self.bench.array, range, |_| false, what).await;
            }
        }
    }

    /// Begins reads of all stripes. Where writes wait, those of lost units wait for them, and must
    /// not reconstruct anything from a write that was given up.
    fn read_waiting(&self, rt: &Rt) -> Vec<(usize, ReadTask)> {
        let stripe = self.bench.stripe_bytes() as usize;
        let stripes = (0..STRIPES).map(|n| n * stripe);
        let read = |at: usize| {
            let array = self.bench.array.clone();
            (at, rt.spawn(async move { array.read(at as u64, Buf::new(stripe)).await }))
        };
        stripes.map(read).collect()
    }

    /// Sectors of the array that are on this slot.
    fn lies_on(&self, slot: usize) -> impl Fn(usize) -> bool {
        let (stripe, k) = (self.bench.stripe_bytes(), self.bench.k());
        move |sector| {
            let at = (sector * SECTOR) as u64;
            k > 1 && self.bench.place(at / stripe, (at % stripe / UNIT) as usize).0 == slot
        }
    }

    /// Disks with what a crash leaves, and as full as before.
    fn reopen(&self, rt: &Rt, leave: impl Fn(usize) -> Leave) -> Vec<Rc<TestDisk>> {
        let power = Power::new();
        let disks = self.bench.disks.iter().enumerate().map(|(n, disk)| {
            let medium = leave(n).of(&disk.medium.borrow());
            TestDisk::new(rt, &power, n, disk.info().size_bytes, 512, medium)
        });
        let disks: Vec<_> = disks.collect();
        let area = &self.bench.superblock.area;
        let (full, open) = (&disks[self.case.full], &self.open);
        fill_up(full, self.case, area.log_offset, area.data_offset, open);
        disks
    }
}

async fn scrub_is_clean(array: &Array, what: &str) {
    let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
    assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
}

async fn tell(rt: Rt, case: Case, end: End) -> bool {
    let what = &format!("{case:?} {end:?}");
    let mut story = Story::begin(&rt, case).await;
    let waited = !story.tasks.is_empty();
    story.status_is_true(what);
    story.check_waiting(what).await;
    let array = story.bench.array.clone();
    match end {
        End::Room => story.open.set(true),
        End::Fail if case.failed.is_empty() => {
            array.fail(SlotNo(case.full)).await.expect("it can be failed at any time");
        }
        End::Fail => return waited,
        End::Stop => {
            let reads = story.read_waiting(&rt);
            rt.sleep(SECOND).await;
            let unclean = array.stop().await;
            assert_eq!(unclean.is_err(), waited, "{what}: {unclean:?}");
            for (at, task) in reads {
                let (Ok(()), found) = task.await else { continue };
                for (number, sector) in (at / SECTOR..).zip(found.chunks(SECTOR)) {
                    let fits = story.shadow.0[number].iter().any(|version| version == sector);
                    assert!(fits, "{what}: sector {number} was read while it was torn");
                }
            }
            for (.., task) in std::mem::take(&mut story.tasks) {
                assert!(task.is_finished(), "{what}: its client waits for ever");
                task.await.expect_err("it was not carried out");
            }
            recovered(&rt, &story, |_| Leave::All, what).await;
            return waited;
        }
        End::Kill => {
            recovered(&rt, &story, |_| Leave::All, what).await;
            return waited;
        }
        End::Cut => {
            // Nothing was flushed since the array was filled.
            story.shadow = story.cut();
            recovered(&rt, &story, |n| Leave::Some(n as u64), what).await;
            return waited;
        }
    }
    rt.sleep(60 * SECOND).await;
    story.note_ended().await;
    assert!(story.tasks.is_empty(), "{what}: a write still waits");
    story.shadow.check(&array, |_| false, what).await;
    let status = array.status();
    assert!(status.slots.iter().all(|slot| slot.wants_room_bytes == 0), "{what}: {status:?}");
    scrub_is_clean(&array, what).await;
    array.stop().await.expect("stopped");
    waited
}

impl Story {
    /// After a power cut: each sector of any request, acknowledged or not, is old or new.
    fn cut(&self) -> Shadow {
        let stripe = self.bench.stripe_bytes() as usize;
        let mut bytes = vec![0; STRIPES * stripe];
        for at in (0..STRIPES).step_by(2).map(|n| n * stripe) {
            bytes[at..at + stripe].copy_from_slice(&pattern(at as u64, stripe, 1));
        }
        let mut shadow = Shadow::new(&bytes);
        let all = requests(stripe);
        for (number, (offset, len)) in all.iter().copied().enumerate() {
            let zeroes = number + 1 == all.len();
            let new = if zeroes { vec![0; len] } else { pattern(offset as u64, len, 2) };
            // A FUA write is durable once it is acknowledged.
            let waits = self.tasks.iter().any(|(at, ..)| *at == offset);
            match number % 3 == 0 && !zeroes && !waits {
                true => shadow.set(offset, &new),
                false => shadow.add(offset, &new),
            }
        }
        shadow
    }
}

/// After a crash, all contents are possible ones: with all disks and with each of them lost, before
/// there is space and after.
async fn recovered(rt: &Rt, story: &Story, leave: impl Fn(usize) -> Leave, what: &str) {
    let Case { code, slots, failed, full, consistency, .. } = story.case;
    for lost in std::iter::once(None).chain((0..slots).map(Some)) {
        let what = &format!("{what}, {lost:?} lost");
        if lost.is_some_and(|slot| failed.contains(&slot)) {
            continue;
        }
        story.open.set(false);
        let disks = story.reopen(rt, &leave);
        let mut there = members(&disks);
        if let Some(slot) = lost {
            there.remove(slot);
        }
        let options = weft_array::AssembleOptions { nonce: rt.now() + 1, ..Default::default() };
        let mut array = Array::assemble(rt, there.clone(), options).await;
        if let Err(ArrayError::NoSpace { .. }) = &array {
            // Everything it needs is unchanged: it starts as soon as there is space.
            story.open.set(true);
            array = Array::assemble(rt, there, options).await;
        }
        let array = match array {
            Ok(array) => array,
            Err(error) => {
                let too_many = lost.is_some() && (!failed.is_empty() || code == "raid0");
                assert!(too_many, "{what}: {error}");
                continue;
            }
        };
        // What was being written to a disk that is lost at the same time may be garbage; without a
        // log, so may other units of the stripe.
        let holed = consistency != Consistency::Ppl;
        let on_lost = lost.map(|slot| story.lies_on(slot));
        if holed && (lost.is_some() || !failed.is_empty()) {
            continue;
        }
        let excused = |sector| on_lost.as_ref().is_some_and(|lies| lies(sector));
        story.shadow.check(&array, excused, what).await;
        if lost.is_none() {
            redundancy_is_there(rt, story, &array, full, what).await;
        }
        drop(array);
    }
}

/// Another member is lost, if the status says that the array survives it.
async fn redundancy_is_there(rt: &Rt, story: &Story, array: &Array, full: usize, what: &str) {
    rt.sleep(25 * SECOND).await;
    let status = array.status();
    let found = read(array, 0, story.shadow.0.len() * SECTOR).await;
    let next = (1..).map(|n| (full + n) % story.case.slots);
    let victim = next.into_iter().find(|slot| !story.case.failed.contains(slot)).expect("a slot");
    let mut known = Shadow::new(&found);
    if status.redundancy_remaining.unwrap_or(0) > 0 {
        let what = &format!("{what}, then {victim} failed");
        array.fail(SlotNo(victim)).await.expect(what);
        // Before the resync has ended, the lost disk takes with it what was being written there.
        if status.regions.resync > 0 {
            for (now, then) in known.0.iter_mut().zip(&story.shadow.0) {
                now.extend_from_slice(&then[1..]);
            }
        }
        known.check(array, story.lies_on(victim), what).await;
    } else if story.case.failed.is_empty() && story.case.code != "raid0" {
        let short = status.slots[full].wants_room_bytes > 0;
        assert!(short, "{what}: no redundancy, and no reason: {status:?}");
        array.fail(SlotNo(victim)).await.expect_err("it would lose data");
    }
    story.open.set(true);
    rt.sleep(60 * SECOND).await;
    let status = array.status();
    assert_eq!(status.regions.resync, 0, "{what}: {status:?}");
    assert!(status.slots.iter().all(|slot| slot.wants_room_bytes == 0), "{what}: {status:?}");
    known.check(array, story.lies_on(victim), what).await;
    scrub_is_clean(array, what).await;
    array.stop().await.expect("stopped");
}

/// Every slot full in turn, in each of the ways.
fn everywhere(
    code: &'static str,
    slots: usize,
    consistency: Consistency,
    failed: &'static [usize],
) {
    for lack in [Lack::New, Lack::Half, Lack::CopyOnWrite] {
        for end in [End::Room, End::Fail, End::Stop, End::Kill, End::Cut] {
            let waited = Rc::new(Cell::new(false));
            for full in (0..slots).filter(|slot| !failed.contains(slot)) {
                let case = Case { code, slots, consistency, failed, full, lack };
                let waited = waited.clone();
                run(move |rt| async move {
                    let now = tell(rt, case, end).await;
                    waited.set(waited.get() || now);
                });
            }
            assert!(waited.get(), "{code} {lack:?} {end:?}: nothing ever waited");
        }
    }
}

#[test]
fn raid0() {
    for lack in [Lack::New, Lack::Half] {
        for end in [End::Room, End::Stop] {
            let consistency = Consistency::None;
            let case = Case { code: "raid0", slots: 3, consistency, failed: &[], full: 1, lack };
            run(move |rt| async move { assert!(tell(rt, case, end).await) });
        }
    }
}

#[test]
fn mirror() {
    everywhere("raid1", 3, Consistency::Bitmap, &[]);
}

#[test]
fn raid5() {
    everywhere("raid5", 4, Consistency::Ppl, &[]);
    everywhere("raid5", 4, Consistency::Ppl, &[1]);
}

#[test]
fn raid6() {
    everywhere("raid6", 5, Consistency::Ppl, &[]);
    everywhere("raid6", 5, Consistency::Ppl, &[3]);
    everywhere("raid6", 5, Consistency::Bitmap, &[]);
}

#[test]
fn wide_codes() {
    everywhere("rs:4+3", 7, Consistency::Ppl, &[]);
    everywhere("lrc:4,2,1", 7, Consistency::Ppl, &[]);
    everywhere("drc-g:4,2,1", 7, Consistency::Ppl, &[2]);
}

/// Reads of present units, and of units lost elsewhere, do not wait behind writes that have used up
/// their memory; nor does failing the member.
#[test]
fn nothing_else_waits() {
    run(|rt| async move {
        let disks: Vec<_> = (0..4).map(|n| sized_disk(&rt, n, 512, 64 << 20)).collect();
        let bench = Bench::on(&rt, &options("raid6"), disks).await;
        let (array, stripe) = (bench.array.clone(), bench.stripe_bytes() as usize);
        let old = pattern(0, 64 * stripe, 1);
        write(&array, 0, &old).await;
        array.flush().await.expect("flushed");
        array.fail(SlotNo(1)).await.expect("failed");
        let data = bench.superblock.area.data_offset;
        *bench.disks[0].faults.room.borrow_mut() =
            Some(Box::new(move |offset, _, covered| (offset >= data && !covered).then_some(0)));
        let events = array.subscribe();
        // More than fits in the memory for writes.
        let tasks: Vec<_> = (64..4096)
            .map(|n| {
                let (array, at) = (array.clone(), (n * stripe) as u64);
                let new = Frozen::copy_from(&pattern(at, stripe, 2));
                rt.spawn(async move { array.write(at, new, false).await })
            })
            .collect();
        rt.sleep(10 * SECOND).await;
        assert!(tasks.iter().filter(|task| !task.is_finished()).count() > 2000, "they wait");
        assert!(matches!(events.next().await, Event::NoSpace { slot: SlotNo(0), .. }));
        assert!(events.try_next().is_none(), "it is told once");
        let (result, buf) = array.read(0, Buf::new(old.len())).await;
        result.expect("read");
        assert!(*buf == old[..], "wrong bytes");
        array.fail(SlotNo(0)).await.expect("it can be failed at any time");
        rt.sleep(10 * SECOND).await;
        for task in tasks {
            assert!(task.is_finished(), "it still waits");
            task.await.expect("written");
        }
        array.stop().await.expect("stopped");
    });
}
