//! Nothing that relies on a change of membership is acknowledged before the change is durable:
//! neither the request that met the failure, nor others that left the member out without an error.
//!
//! The disks delay superblock writes. At that moment the program is killed and all disks come back,
//! including the excluded one with its old data. Everything that was acknowledged is there.

use std::rc::Rc;

use crate::common::bench::{Bench, UNIT, disk, members, run};
use crate::common::disk::{Leave, Power, TestDisk};
use crate::common::*;
use weft_array::superblock::read_superblock;
use weft_array::{Array, ArrayError, ArrayState, Event, MemberState, ScrubMode};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{Frozen, MILLISECOND, Rt, Task};

const STRIPES: u64 = 12;
const VICTIM: usize = 1;

type Done = Task<Result<(), ArrayError>>;

/// An array with data, and some requests that wait.
struct Story {
    rt: Rt,
    code: &'static str,
    bench: Bench,
    /// Disks that are not members, or were not at the start.
    others: Vec<Rc<TestDisk>>,
    /// The acknowledged contents.
    bytes: Vec<u8>,
    waiting: Vec<Waiting>,
}

/// A request that is not acknowledged yet.
struct Waiting {
    what: String,
    done: Done,
    /// Where it writes, and what.
    write: Option<(usize, Vec<u8>)>,
}

impl Story {
    async fn new(rt: &Rt, code: &'static str, slots: usize) -> Self {
        let bench = Bench::new(rt, code, slots).await;
        let bytes = pattern(0, (STRIPES * bench.stripe_bytes()) as usize, 1);
        write(&bench.array, 0, &bytes).await;
        bench.array.flush().await.expect("flushed");
        Self { rt: rt.clone(), code, bench, others: Vec::new(), bytes, waiting: Vec::new() }
    }

    fn disks(&self) -> impl Iterator<Item = &Rc<TestDisk>> {
        self.bench.disks.iter().chain(&self.others)
    }

    /// From now on superblock writes hang, except for the next `passes` on each disk.
    fn hold(&self, passes: u64) {
        let metadata = 0..self.bench.superblock.area.map_offset;
        self.disks().for_each(|disk| disk.faults.hold(metadata.clone(), passes));
    }

    fn release(&self) {
        self.disks().for_each(|disk| disk.faults.release());
    }

    /// The byte range of a stripe in the array.
    fn stripe(&self, stripe: u64) -> std::ops::Range<usize> {
        let bytes = self.bench.stripe_bytes() as usize;
        stripe as usize * bytes..(stripe as usize + 1) * bytes
    }

    /// The data unit of a stripe that is on `slot`, or the first with a copy there.
    fn unit_on(&self, stripe: u64, slot: usize) -> Option<u64> {
        let k = self.bench.k();
        let units = if k == 1 { self.bench.disks.len() } else { k };
        let is_on = |unit: &usize| self.bench.place(stripe, *unit).0 == slot;
        let copies = if self.code == "raid10" { 2 } else { units };
        (0..copies).find(is_on).map(|unit| if k == 1 { 0 } else { unit as u64 })
    }

    /// Whether a byte of the array is on the disk in `slot` only.
    fn is_on(&self, byte: usize, slot: usize) -> bool {
        let (stripe, unit) = (byte as u64 / self.bench.stripe_bytes(), byte / UNIT as usize);
        let k = self.bench.k();
        k > 1 && self.bench.place(stripe, unit % k).0 == slot
    }

    /// Starts a FUA write of new data, and does not wait for it.
    fn begin_write(&mut self, offset: usize, len: usize) {
        let new = pattern(offset as u64, len, 2 + self.waiting.len() as u8);
        let (array, data) = (self.bench.array.clone(), Frozen::copy_from(&new));
        let done = self.rt.spawn(async move { array.write(offset as u64, data, true).await });
        let what = format!("the write of {len} bytes at {offset}");
        self.waiting.push(Waiting { what, done, write: Some((offset, new)) });
    }

    /// Starts writes to the member `slot`, each to part of a unit, in `count` stripes from `stripe`
    /// on.
    fn begin_writes_to(&mut self, slot: usize, mut stripe: u64, mut count: usize) {
        while count > 0 {
            if let Some(unit) = self.unit_on(stripe, slot) {
                let offset = self.stripe(stripe).start + (unit * UNIT) as usize;
                self.begin_write(offset, UNIT as usize - 512);
                count -= 1;
            }
            stripe += 1;
            assert!(stripe <= STRIPES, "{}: a unit of slot {slot}", self.code);
        }
    }

    fn begin(
        &mut self,
        what: &str,
        ask: impl AsyncFnOnce(Array) -> Result<(), ArrayError> + 'static,
    ) {
        let array = self.bench.array.clone();
        let done = self.rt.spawn(async move { ask(array).await });
        self.waiting.push(Waiting { what: what.to_owned(), done, write: None });
    }

    fn begin_flush(&mut self) {
        self.begin("the flush", async |array| array.flush().await);
    }

    fn begin_fail(&mut self, member: usize) {
        self.begin("the fail", async move |array| array.fail(SlotNo(member)).await);
    }

    async fn pause(&self) {
        self.rt.sleep(5 * MILLISECOND).await;
    }

    /// Some time later, none of the requests is acknowledged. If the program is killed now,
    /// everything that was acknowledged is there, even with one more member lost.
    async fn expect_waiting(&self) {
        self.pause().await;
        for Waiting { what, done, .. } in &self.waiting {
            assert!(!done.is_finished(), "{}: {what} did not wait", self.code);
        }
        for lost in (0..self.bench.disks.len()).map(Some).chain([None]) {
            let disks = self.disks().enumerate().filter(|(slot, _)| Some(*slot) != lost);
            let disks: Vec<_> = disks.map(|(_, disk)| reopened(&self.rt, disk)).collect();
            self.expect_all(disks, lost, "while it waited").await;
        }
    }

    /// The superblocks get written, all requests are acknowledged, and after a kill everything is
    /// there.
    async fn expect_done(&mut self) {
        self.release();
        self.pause().await;
        for Waiting { what, done, write } in std::mem::take(&mut self.waiting) {
            assert!(done.is_finished(), "{}: {what} waits for ever", self.code);
            done.await.unwrap_or_else(|error| panic!("{}: {what}: {error}", self.code));
            if let Some((offset, new)) = write {
                self.bytes[offset..offset + new.len()].copy_from_slice(&new);
            }
        }
        let disks: Vec<_> = self.disks().map(|disk| reopened(&self.rt, disk)).collect();
        self.expect_all(disks, None, "when it was done").await;
    }

    /// An array of these disks, without the one in slot `lost`, holds everything acknowledged. What
    /// was being written is old or new, unless it was written to the lost disk.
    async fn expect_all(&self, disks: Vec<Rc<TestDisk>>, lost: Option<usize>, when: &str) {
        let array = assemble(&self.rt, &members(&disks)).await;
        let found = read(&array, 0, self.bytes.len()).await;
        let mut allowed = vec![vec![&self.bytes]; self.bytes.len() / 512];
        let mut news = Vec::new();
        for (offset, new) in self.waiting.iter().filter_map(|waiting| waiting.write.as_ref()) {
            let mut whole = self.bytes.clone();
            whole[*offset..offset + new.len()].copy_from_slice(new);
            news.push((*offset / 512..(offset + new.len()).div_ceil(512), whole));
        }
        for (sectors, whole) in &news {
            allowed[sectors.clone()].iter_mut().for_each(|allowed| allowed.push(whole));
        }
        for (sector, allowed) in allowed.iter().enumerate() {
            let range = sector * 512..(sector + 1) * 512;
            let right = allowed.iter().any(|bytes| bytes[range.clone()] == found[range.clone()]);
            let excused =
                allowed.len() > 1 && lost.is_some_and(|lost| self.is_on(range.start, lost));
            let (code, count) = (self.code, allowed.len());
            assert!(
                right || excused,
                "{code}, killed {when}, then without {lost:?}: sector {sector} is none of {count}"
            );
        }
        // Jobs end, and parity matches everywhere.
        for _ in 0..2000 {
            let state = array.status().state;
            if state == ArrayState::Healthy || state == ArrayState::Degraded {
                break;
            }
            self.rt.sleep(MILLISECOND).await;
        }
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!((report.mismatches, report.unreadable), (0, 0), "{}, {when}", self.code);
        array.stop().await.expect("stopped");
    }
}

/// The disk after a kill of the program, opened again; it answers.
fn reopened(rt: &Rt, disk: &TestDisk) -> Rc<TestDisk> {
    after(rt, disk, Leave::Completed)
}

fn after(rt: &Rt, disk: &TestDisk, leave: Leave) -> Rc<TestDisk> {
    let info = disk.info();
    let number = info.name.trim_start_matches("test").parse().expect("a number");
    let medium = leave.of(&disk.medium.borrow());
    TestDisk::new(rt, &Power::new(), number, info.size_bytes, info.sector_bytes, medium)
}

#[test]
fn every_request_that_meets_the_same_failure_waits_for_the_one_exclusion() {
    run(|rt| async move {
        for (code, slots) in CODES {
            let mut story = Story::new(&rt, code, slots).await;
            let victim = story.bench.disks[VICTIM].clone();
            let data = story.bench.superblock.area.data_offset;
            victim.faults.hold(data..u64::MAX, 0);
            story.begin_writes_to(VICTIM, 0, 4);
            story.pause().await;
            // All of them fail in one poll.
            victim.faults.gone.set(true);
            story.hold(0);
            victim.faults.release();
            story.expect_waiting().await;
            story.expect_done().await;
        }
    });
}

#[test]
fn requests_that_left_the_member_out_without_an_error_wait_too() {
    run(|rt| async move {
        for (code, slots) in CODES {
            let mut story = Story::new(&rt, code, slots).await;
            story.hold(0);
            story.bench.disks[VICTIM].faults.gone.set(true);
            story.begin_writes_to(VICTIM, 0, 1);
            story.pause().await;
            story.begin_writes_to(VICTIM, 4, 2);
            let whole = story.stripe(10);
            story.begin_write(whole.start, whole.len());
            story.begin_flush();
            let (offset, len) = (story.stripe(9).start as u64, story.bench.stripe_bytes());
            let zeroes = pattern(offset, len as usize, 1);
            assert!(story.bytes[story.stripe(9)] == zeroes[..], "old data");
            story.expect_waiting().await;
            story.expect_done().await;
        }
    });
}

#[test]
fn zeroing_waits_too() {
    run(|rt| async move {
        for (code, slots) in CODES {
            let mut story = Story::new(&rt, code, slots).await;
            story.hold(0);
            story.begin_fail(VICTIM);
            story.pause().await;
            let range = story.stripe(3);
            let (offset, len) = (range.start as u64, range.len() as u64);
            story.begin("zeroing", async move |array| {
                array.write_zeroes(offset, len, true, false).await
            });
            story.waiting[1].write = Some((range.start, vec![0; range.len()]));
            story.expect_waiting().await;
            story.expect_done().await;
        }
    });
}

#[test]
fn the_cache_of_a_member_failed_by_command_does_not_count_as_flushed() {
    run(|rt| async move {
        for (code, slots) in CODES {
            let mut story = Story::new(&rt, code, slots).await;
            // Acknowledged, but not durable so far.
            let stripe = (0..STRIPES).find(|stripe| story.unit_on(*stripe, VICTIM).is_some());
            let whole = story.stripe(stripe.expect("a unit there"));
            let new = pattern(whole.start as u64, whole.len(), 9);
            write(&story.bench.array, whole.start as u64, &new).await;
            story.hold(0);
            story.begin_fail(VICTIM);
            story.pause().await;
            story.begin_flush();
            story.pause().await;
            let flushed = story.waiting[1].done.is_finished();
            // A power cut, which empties that member's cache; all disks come back.
            let left = |slot: usize| if slot == VICTIM { Leave::Nothing } else { Leave::Completed };
            let disks = story.bench.disks.iter().enumerate();
            let disks: Vec<_> = disks.map(|(slot, disk)| after(&rt, disk, left(slot))).collect();
            let array = assemble(&rt, &members(&disks)).await;
            let found = read(&array, whole.start as u64, whole.len()).await;
            assert!(!flushed || found == new, "{code}: flushed, and lost");
            assert!(!flushed, "{code}: the flush did not wait");
            array.stop().await.expect("stopped");
            story.bytes[whole].copy_from_slice(&new);
            story.expect_done().await;
        }
    });
}

#[test]
fn a_change_that_takes_two_rounds_is_waited_for_to_the_end_of_the_last() {
    run(|rt| async move {
        for (code, slots) in CODES {
            if matches!(code, "raid5" | "raid10") {
                // These do not survive two losses.
                continue;
            }
            let mut story = Story::new(&rt, code, slots).await;
            // The first round finds that another member is gone, and reaches the others.
            story.hold(1);
            let other = VICTIM + 1;
            story.bench.disks[VICTIM].faults.gone.set(true);
            story.bench.disks[other].faults.gone.set(true);
            story.begin_fail(VICTIM);
            story.pause().await;
            let missing = story
                .bench
                .array
                .status()
                .slots
                .iter()
                .filter(|s| s.state == MemberState::Missing)
                .count();
            if code == "raid1" {
                // Two of three at once are too many: the array stops, and acknowledges nothing.
                assert_eq!(story.bench.array.status().state, ArrayState::Broken);
                continue;
            }
            assert_eq!(missing, 2, "{code}: the second round is in progress");
            story.begin_writes_to(other, 0, 2);
            story.begin_writes_to(VICTIM, 4, 1);
            story.begin_flush();
            story.expect_waiting().await;
            story.expect_done().await;
        }
    });
}

#[test]
fn a_change_after_which_the_old_majority_must_be_asked_ends_with_the_superblock_that_says_no_more()
{
    run(|rt| async move {
        // One of three members is lost and another replaced in one change: majorities before and
        // after may share no member.
        let mut story = Story::new(&rt, "raid1", 3).await;
        let new = disk(&rt, 8, 512);
        story.others.push(new.clone());
        story.bench.array.replace(SlotNo(2), new).await.expect("begun");
        story.hold(0);
        story.pause().await;
        story.begin_fail(0);
        // The swap, then both, then once more.
        let metadata = 0..story.bench.superblock.area.map_offset;
        story.pause().await;
        let seq = |disk: Rc<TestDisk>| async move {
            read_superblock(&*disk).await.expect("whole").expect("there").succeeds.is_some()
        };
        for disk in story.disks() {
            disk.faults.release();
            disk.faults.hold(metadata.clone(), 1);
        }
        story.pause().await;
        let joint = seq(story.bench.disks[1].clone()).await;
        let fail = story.waiting[0].done.is_finished();
        assert!(!(joint && fail), "acknowledged while the majority before must be asked");
        story.release();
        story.waiting.clear();
        story.bench.until(ArrayState::Degraded).await;
    });
}

#[test]
fn a_record_is_not_retired_by_a_flush_that_left_out_a_member_before_its_exclusion_is_durable() {
    run(|rt| async move {
        for (code, slots) in [("raid5", 4), ("raid6", 5), ("rs:3+2", 5)] {
            let mut story = Story::new(&rt, code, slots).await;
            // The victim holds a data unit of the stripe, and another disk one that is not being
            // written.
            let holds = |stripe: &u64| story.unit_on(*stripe, VICTIM).is_some();
            let stripe = (0..STRIPES).find(holds).expect("a stripe");
            let unit = story.unit_on(stripe, VICTIM).expect("a unit");
            let k = story.bench.k();
            let parity = story.bench.place(stripe, k).0;
            let beside = (0..k).find(|other| *other as u64 != unit).expect("another");
            let lost = story.bench.place(stripe, beside).0;
            let offset = story.stripe(stripe).start + (unit * UNIT) as usize;
            let new = pattern(offset as u64, UNIT as usize, 9);
            write(&story.bench.array, offset as u64, &new).await;
            story.hold(0);
            story.begin_fail(VICTIM);
            story.pause().await;
            story.begin_flush();
            story.pause().await;
            // A retirement is noted by the next record on the same disk.
            let alike = |other: &u64| *other != stripe && story.bench.place(*other, k).0 == parity;
            for other in (0..STRIPES).filter(alike).collect::<Vec<_>>() {
                let offset = story.stripe(other).start;
                story.begin_write(offset, 512);
            }
            story.pause().await;
            // A power cut: the victim comes back without its cache, and the other disk does not.
            let left = |slot: usize| if slot == VICTIM { Leave::Nothing } else { Leave::Completed };
            let disks = story.bench.disks.iter().enumerate().filter(|(slot, _)| *slot != lost);
            let disks: Vec<_> = disks.map(|(slot, disk)| after(&rt, disk, left(slot))).collect();
            let array = assemble(&rt, &members(&disks)).await;
            let at = story.stripe(stripe).start + beside * UNIT as usize;
            let found = read(&array, at as u64, UNIT as usize).await;
            assert!(
                found == story.bytes[at..at + UNIT as usize],
                "{code}: not written, and changed"
            );
            array.stop().await.expect("stopped");
        }
    });
}

#[test]
fn a_hung_spare_delays_nothing_and_gets_the_newest_superblock_when_it_answers() {
    run(|rt| async move {
        for (code, slots) in CODES {
            let mut story = Story::new(&rt, code, slots).await;
            let (good, hung) = (disk(&rt, 8, 512), disk(&rt, 9, 512));
            story.bench.array.add_spare(good.clone()).await.expect("added");
            story.bench.array.add_spare(hung.clone()).await.expect("added");
            story.others = vec![good.clone(), hung.clone()];
            story.pause().await;
            let map = story.bench.superblock.area.map_offset;
            hung.faults.hold(0..map, 0);
            hung.writes.borrow_mut().clear();
            story.bench.disks[VICTIM].faults.gone.set(true);
            story.begin_writes_to(VICTIM, 0, 4);
            story.pause().await;
            for Waiting { what, done, .. } in &story.waiting {
                assert!(done.is_finished(), "{code}: {what} waits for the spare");
            }
            // The other disk takes the slot.
            story.bench.until(ArrayState::Healthy).await;
            assert_eq!(story.bench.array.status().slots[VICTIM].disk, "test8", "{code}");
            let begun = || hung.writes.borrow().iter().filter(|(at, _)| *at < map).count();
            assert_eq!(begun(), 1, "{code}: one superblock is in progress at a time");
            hung.faults.release();
            story.pause().await;
            assert_eq!(begun(), 2, "{code}: then it gets the newest");
            let own = read_superblock(&*hung).await.expect("whole").expect("a spare");
            assert_eq!(own.seq, story.bench.array.status().seq, "{code}");
            story.expect_done().await;
        }
    });
}

#[test]
fn a_spare_that_fails_to_take_a_superblock_is_none_any_more() {
    run(|rt| async move {
        let story = Story::new(&rt, "raid5", 4).await;
        let (dead, good) = (disk(&rt, 8, 512), disk(&rt, 9, 512));
        story.bench.array.add_spare(dead.clone()).await.expect("added");
        story.pause().await;
        let events = story.bench.array.subscribe();
        dead.faults.gone.set(true);
        story.bench.array.add_spare(good).await.expect("added");
        story.pause().await;
        assert_eq!(story.bench.array.status().spares, ["test9"]);
        let failed =
            |event: &Event| matches!(event, Event::SpareFailed { disk, .. } if disk == "test8");
        assert_eq!(std::iter::from_fn(|| events.try_next()).filter(failed).count(), 1);
        let own = read_superblock(&*story.bench.disks[0]).await.expect("whole").expect("there");
        assert_eq!(own.spares.len(), 1, "and the members know");
        // The array can do without it.
        story.bench.array.fail(SlotNo(0)).await.expect("can lose one");
        story.bench.until(ArrayState::Healthy).await;
        story.bench.array.stop().await.expect("stopped");
    });
}

/// A story in which a member is being copied to its replacement, slowly.
async fn replacing(rt: &Rt, code: &'static str, slots: usize) -> (Story, Rc<TestDisk>) {
    let mut story = Story::new(rt, code, slots).await;
    let new = disk(rt, 8, 512);
    story.others.push(new.clone());
    story.bench.array.set_paused(true);
    story.bench.array.replace(SlotNo(VICTIM), new.clone()).await.expect("begun");
    (story, new)
}

#[test]
fn writes_wait_until_it_is_durable_that_the_replacement_takes_its_members_place() {
    run(|rt| async move {
        for (code, slots) in CODES {
            let (mut story, _) = replacing(&rt, code, slots).await;
            story.hold(0);
            story.bench.disks[VICTIM].faults.gone.set(true);
            story.begin_writes_to(VICTIM, 0, 1);
            story.pause().await;
            story.begin_writes_to(VICTIM, 3, 3);
            story.begin_flush();
            story.expect_waiting().await;
            story.expect_done().await;
        }
    });
}

#[test]
fn writes_wait_until_it_is_durable_that_a_replacement_is_out() {
    run(|rt| async move {
        for (code, slots) in CODES {
            let (mut story, new) = replacing(&rt, code, slots).await;
            // Half of it is copied.
            story.bench.array.set_throttle(0, Some(100_000));
            story.bench.array.set_paused(false);
            rt.sleep(200 * MILLISECOND).await;
            assert_eq!(story.bench.array.status().state, ArrayState::Replacing, "{code}");
            story.hold(0);
            new.faults.gone.set(true);
            story.begin("the fail", async |array| array.fail_replacement(SlotNo(VICTIM)).await);
            story.pause().await;
            story.begin_writes_to(VICTIM, 0, 4);
            story.begin_flush();
            story.expect_waiting().await;
            story.expect_done().await;
        }
    });
}

#[test]
fn writes_wait_until_it_is_durable_which_disk_is_the_member() {
    run(|rt| async move {
        for (code, slots) in CODES {
            for old_goes in [false, true] {
                let (mut story, _) = replacing(&rt, code, slots).await;
                story.hold(0);
                story.bench.array.set_paused(false);
                rt.sleep(500 * MILLISECOND).await;
                let member = story.bench.array.member_in_memory(SlotNo(VICTIM));
                assert_eq!(member, Some(("test8".to_owned(), true)), "{code}");
                story.bench.disks[VICTIM].faults.gone.set(old_goes);
                story.begin_writes_to(VICTIM, 0, 3);
                story.begin_flush();
                story.expect_waiting().await;
                story.expect_done().await;
            }
        }
    });
}

#[test]
fn operations_waiting_for_an_exclusion_fail_if_the_array_breaks() {
    run(|rt| async move {
        let mut story = Story::new(&rt, "raid5", 4).await;
        story.hold(0);
        story.bench.disks[VICTIM].faults.gone.set(true);
        story.begin_writes_to(VICTIM, 0, 1);
        story.pause().await;
        story.begin_writes_to(VICTIM, 4, 2);
        story.begin_flush();
        story.expect_waiting().await;
        // Another member goes before the exclusion of the first is durable.
        story.bench.disks[2].faults.gone.set(true);
        let _ = story.bench.array.flush().await;
        assert_eq!(story.bench.array.status().state, ArrayState::Broken);
        story.pause().await;
        for Waiting { what, done, .. } in std::mem::take(&mut story.waiting) {
            assert!(done.is_finished(), "{what} waits for ever");
            let result = done.await;
            let broken = matches!(&result, Err(e) if matches!(e.root(), ArrayError::Broken { .. }));
            assert!(broken, "{what}: {result:?}");
        }
        story.release();
    });
}

#[test]
fn an_exclusion_completes_after_its_requester_is_gone() {
    run(|rt| async move {
        let mut story = Story::new(&rt, "raid6", 5).await;
        story.hold(0);
        let array = story.bench.array.clone();
        let mut asked = Box::pin(async move { array.fail(SlotNo(1)).await });
        let pause = std::pin::pin!(rt.sleep(MILLISECOND));
        let _ = futures_util::future::select(&mut asked, pause).await;
        drop(asked);
        story.begin_writes_to(VICTIM, 0, 2);
        story.expect_waiting().await;
        story.expect_done().await;
    });
}
