//! A power cut, a further lost disk, or both, at every disk operation of a rebuild: in every order,
//! by every executor, with users whose requests rebuild units too. No byte is lost, and no stripe
//! counts as rebuilt that is not. After the crash the rest is rebuilt, and then other members can
//! be lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::common::bench::{UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, TestDisk, mix};
use crate::common::parts::InParts;
use crate::common::*;
use futures_util::future::select;
use weft_array::lane::Lane;
use weft_array::region_map::{MapConfig, RegionMap, RegionNo};
use weft_array::superblock::{SlotState, read_superblock};
use weft_array::{
    Array, ArrayState, AssembleOptions, Id, MemberState, Piggyback, RebuildOrder, RebuildPolicy,
    ScrubMode, Superblock, create,
};
use weft_code::SlotNo;
use weft_layout::{code_for, for_code};
use weft_rt::sync::{Sender, oneshot};
use weft_rt::{MILLISECOND, Rt};
use weft_testkit::stride;

const SECTOR: usize = 512;
const ROWS: u64 = 6;
const SIZE: u64 = (2 << 20) + ROWS * UNIT;

const ORDERS: [RebuildOrder; 3] =
    [RebuildOrder::Ascending, RebuildOrder::Popularity, RebuildOrder::Redundancy];

/// An array, the members that it lacks when the rebuild begins, and how it is rebuilt. It survives
/// one more loss.
#[derive(Debug, Clone, Copy)]
struct Setup {
    code: &'static str,
    slots: usize,
    lost: &'static [usize],
    order: RebuildOrder,
    /// By an experiment's executor, in parts of units.
    in_parts: bool,
    piggyback: Piggyback,
}

impl Setup {
    fn policy(&self) -> RebuildPolicy {
        RebuildPolicy {
            order: self.order,
            piggyback: self.piggyback,
            slice_stripes: 1,
            zone_stripes: 1,
            preemptive: true,
            ..RebuildPolicy::default()
        }
    }

    /// Members and spares.
    fn disks(&self) -> usize {
        self.slots + self.lost.len()
    }

    /// A disk that may be lost: a survivor, or one that is being rebuilt.
    fn victim(&self, n: u64) -> usize {
        let may = |disk: &usize| !self.lost.contains(disk);
        let may: Vec<usize> = (0..self.disks()).filter(may).collect();
        may[n as usize % may.len()]
    }
}

/// What users may read: what was durable, and the contents after each write that began since, with
/// the step at which it began.
#[derive(Clone, Default)]
struct History {
    durable: Rc<[u8]>,
    newer: Vec<(u64, Rc<[u8]>)>,
}

impl History {
    fn latest(&self) -> &Rc<[u8]> {
        self.newer.last().map_or(&self.durable, |(_, bytes)| bytes)
    }

    fn begin(&mut self, step: u64, at: usize, bytes: &[u8]) {
        let mut next = self.latest().to_vec();
        next[at..at + bytes.len()].copy_from_slice(bytes);
        self.newer.push((step, next.into()));
    }

    fn flushed(&mut self) {
        self.durable = self.latest().clone();
        self.newer.clear();
    }

    fn allows(&self, range: &std::ops::Range<usize>, found: &[u8]) -> bool {
        let all = self.newer.iter().map(|(_, bytes)| bytes).chain([&self.durable]);
        all.into_iter().any(|bytes| bytes[range.clone()] == *found)
    }

    /// Whether a write of these bytes began up to `step` and is not known to be durable.
    fn was_being_written(&self, range: &std::ops::Range<usize>, step: u64) -> bool {
        let mut writes = self.newer.iter().filter(|(began, _)| *began <= step);
        writes.any(|(_, bytes)| bytes[range.clone()] != self.durable[range.clone()])
    }
}

/// Everything that is left if the power goes at one moment.
#[derive(Clone)]
struct Moment {
    step: u64,
    media: Vec<Medium>,
    history: History,
    /// Disks lost before.
    taken: Vec<Taken>,
}

/// What happens to a rebuild.
#[derive(Clone, Copy, Default)]
struct Trouble {
    /// At this step this disk is lost.
    lose: Option<(u64, usize)>,
    /// At this step the power goes.
    cut: Option<u64>,
    /// Keep all moments.
    record: bool,
}

/// Watches a run: counts its steps and triggers the trouble.
#[derive(Default)]
struct Watch {
    trouble: Trouble,
    step: Cell<u64>,
    /// The rebuild has ended.
    done: Cell<bool>,
    history: RefCell<History>,
    moments: RefCell<Vec<Moment>>,
    taken: RefCell<Vec<Taken>>,
    off: RefCell<Option<Sender<()>>>,
}

impl Watch {
    fn see(&self, disks: &[Rc<TestDisk>]) {
        if self.done.get() {
            return;
        }
        let step = self.step.get();
        self.step.set(step + 1);
        if let Some((_, victim)) = self.trouble.lose.filter(|(at, _)| *at == step) {
            disks[victim].faults.gone.set(true);
            *self.taken.borrow_mut() = Taken::with(disks, victim);
        }
        for taken in &mut *self.taken.borrow_mut() {
            taken.see(disks, step);
        }
        let cut = self.trouble.cut == Some(step);
        if self.trouble.record || cut {
            let media = disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
            let (history, taken) = (self.history.borrow().clone(), self.taken.borrow().clone());
            self.moments.borrow_mut().push(Moment { step, media, history, taken });
        }
        if let Some(off) = self.off.borrow_mut().take_if(|_| cut) {
            off.send(());
        }
    }
}

/// The superblock on a disk.
fn superblock_on(medium: &Medium) -> Option<Superblock> {
    let copy = |offset| {
        let mut bytes = vec![0; 16 << 10];
        medium.read(offset, &mut bytes);
        Superblock::decode(&bytes).ok()
    };
    [128 << 10, 256 << 10].into_iter().filter_map(copy).max_by_key(|own| own.seq)
}

/// A slot whose disk is lost. What was being written there is nowhere else.
#[derive(Clone)]
struct Taken {
    slot: usize,
    member: Id,
    /// If it was being rebuilt: its lane, and the regions that it had completely. The other regions
    /// are on the survivors.
    rebuilt: Option<(Lane, BTreeSet<RegionNo>)>,
    /// The step up to which it got writes: until the others knew that it was lost.
    until: u64,
    known: bool,
}

impl Taken {
    /// What is lost with `victim`.
    fn with(disks: &[Rc<TestDisk>], victim: usize) -> Vec<Self> {
        let own = superblock_on(&disks[victim].medium.borrow());
        let (Some(own), Some(newest)) = (own, newest(disks)) else { return Vec::new() };
        let held = |slot: usize| {
            let rebuilt = match newest.slots[slot].state {
                SlotState::Rebuilding { lane } => Some((lane, BTreeSet::new())),
                _ => None,
            };
            Self { slot, member: own.self_id, rebuilt, until: 0, known: false }
        };
        let slots = 0..newest.slots.len();
        slots.filter(|n| newest.slots[*n].member_id == Some(own.self_id)).map(held).collect()
    }

    fn see(&mut self, disks: &[Rc<TestDisk>], step: u64) {
        let Some(newest) = newest(disks).filter(|_| !self.known) else { return };
        let meta = &newest.slots[self.slot];
        self.known = meta.state == SlotState::Missing || meta.member_id != Some(self.member);
        self.until = step;
        if let Some((lane, regions)) = &mut self.rebuilt {
            let map = region_map(&newest, disks);
            regions.extend(map.config().regions.all().filter(|n| !map.is_stale_region(*lane, *n)));
        }
    }

    /// Whether what was being written to `stripe` in `slot` was lost with it.
    fn has(&self, slot: usize, newest: &Superblock, stripe: u64) -> bool {
        let region = newest.regions().expect("laid").of(stripe);
        let whole = self.rebuilt.as_ref().is_none_or(|(_, regions)| regions.contains(&region));
        self.slot == slot && whole
    }
}

/// The newest superblock on these disks.
fn newest(disks: &[Rc<TestDisk>]) -> Option<Superblock> {
    let of = |disk: &Rc<TestDisk>| superblock_on(&disk.medium.borrow());
    disks.iter().filter_map(of).max_by_key(|own| own.seq)
}

/// The region map on these disks.
fn region_map(newest: &Superblock, disks: &[Rc<TestDisk>]) -> RegionMap {
    let config = MapConfig {
        array_id: newest.array_id,
        area_offset: newest.area.map_offset,
        regions: newest.regions().expect("laid"),
        room: newest.map_regions,
        track_dirty: true,
        dirty_max: 1024,
    };
    let area = |disk: &Rc<TestDisk>| {
        let mut area = vec![0; newest.area.map_bytes as usize];
        disk.medium.borrow().read(newest.area.map_offset, &mut area);
        area
    };
    let areas: Vec<Vec<u8>> = disks.iter().map(area).collect();
    let areas: Vec<&[u8]> = areas.iter().map(|area| &**area).collect();
    RegionMap::load(config, &areas).0
}

fn open(rt: &Rt, number: usize, medium: Medium) -> Rc<TestDisk> {
    TestDisk::new(rt, &Power::new(), number, SIZE, 512, medium)
}

/// Rebuilds under user load, from the adding of spares to the end. Returns all recorded moments,
/// and the number of steps.
fn rebuild(setup: Setup, trouble: Trouble) -> (Vec<Moment>, u64) {
    let (off, cut) = oneshot();
    let watch = Rc::new(Watch { trouble, off: Some(off).into(), ..Watch::default() });
    let (rt, watching) = (rt(), watch.clone());
    let inner = rt.clone();
    rt.block_on(async move {
        let whole = std::pin::pin!(live(&inner, setup, &watching));
        drop(select(whole, cut).await);
    });
    rt.kill_all();
    (watch.moments.take(), watch.step.get())
}

async fn live(rt: &Rt, setup: Setup, watch: &Rc<Watch>) {
    let power = Power::new();
    let disks: Vec<_> = (0..setup.disks())
        .map(|n| TestDisk::new(rt, &power, n, SIZE, 512, Medium::new(512)))
        .collect();
    let array = degraded(rt, setup, &disks).await;
    let bytes = pattern(0, array.size_bytes() as usize, 1);
    write(&array, 0, &bytes).await;
    array.flush().await.expect("flushed");
    *watch.history.borrow_mut() = History { durable: bytes.into(), newer: Vec::new() };
    let (eyes, seen) = (watch.clone(), disks.clone());
    power.watch(move || eyes.see(&seen));
    for spare in &disks[setup.slots..] {
        let _ = array.add_spare(spare.clone()).await;
    }
    let mut n = 0;
    while n < 8 || array.status().state != ArrayState::Healthy && n < 30 {
        use_it(&array, watch, n).await;
        n += 1;
    }
    array.flush().await.expect("flushed");
    watch.history.borrow_mut().flushed();
    if watch.trouble.record {
        let counts = array.rebuild_counts();
        assert!(counts.stripes_piggybacked > 0 && counts.stripes_rebuilt > 0, "{counts:?}");
    }
    let what = format!("{setup:?}, lost {:?}", watch.trouble.lose);
    let bytes = watch.history.borrow().durable.clone();
    let turn = watch.trouble.lose.map_or(0, |(step, _)| step);
    heals(rt, &array, 20, &what).await;
    watch.done.set(true);
    heals(rt, &array, 30, &what).await;
    is_whole(&array, setup, &bytes, turn, &what).await;
}

/// The array of `setup`, without the members that it lacks, and throttled.
async fn degraded(rt: &Rt, setup: Setup, disks: &[Rc<TestDisk>]) -> Array {
    let mut options = options(setup.code);
    let k = code_for(options.code, Default::default(), setup.slots).expect("a code").k() as u64;
    options.region_bytes = Some(2 * k * UNIT);
    let members = members(&disks[..setup.slots]);
    create(&members, &options).await.expect("created");
    let array = assemble(rt, &members).await;
    array.set_rebuild_policy(setup.policy()).await.expect("within its limits");
    if setup.in_parts {
        array.set_rebuild_experiment(Some(Rc::new(InParts { heads: 256 })));
    }
    for slot in setup.lost {
        array.fail(SlotNo(*slot)).await.expect("can lose it");
    }
    array.set_throttle(0, Some(UNIT * 10_000));
    array
}

/// The n-th user request: parts of units and whole ones, in various places.
async fn use_it(array: &Array, watch: &Watch, n: u64) {
    let size = array.size_bytes();
    let place = |len: u64, align: u64| (mix(n) % ((size - len) / align) * align) as usize;
    let put = async |at: usize, len: usize| {
        let bytes = pattern(n, len, 3);
        watch.history.borrow_mut().begin(watch.step.get(), at, &bytes);
        write(array, at as u64, &bytes).await;
    };
    match n % 5 {
        0 => put(place(1536, 512), 1536).await,
        1 => put(place(UNIT, UNIT), UNIT as usize).await,
        3 => put(place(3 * UNIT, 1024), 3 * UNIT as usize).await,
        _ => {
            let (at, len) =
                (place(6 * UNIT, 512), if n.is_multiple_of(2) { 1024 } else { 6 * UNIT });
            let found = read(array, at as u64, len as usize).await;
            let latest = watch.history.borrow().latest().clone();
            assert!(found == latest[at..at + len as usize], "read {n} at {at}");
        }
    }
    if n % 3 == 2 {
        array.flush().await.expect("flushed");
        watch.history.borrow_mut().flushed();
    }
}

/// With enough spares, numbered from `fresh` on, everything is rebuilt.
async fn heals(rt: &Rt, array: &Array, mut fresh: usize, what: &str) {
    array.set_throttle(0, None);
    // A lost disk that got no request since is noticed now.
    array.flush().await.expect("flushed");
    let is_whole = || {
        let status = array.status();
        status.state == ArrayState::Healthy && status.regions.resync == 0
    };
    for _ in 0..5000 {
        let status = array.status();
        let missing = status.slots.iter().filter(|slot| slot.state == MemberState::Missing).count();
        if is_whole() || status.broken.is_some() {
            break;
        }
        if missing > status.spares.len() {
            let added = array.add_spare(open(rt, fresh, Medium::new(512))).await;
            added.expect("a fresh disk");
            fresh += 1;
        }
        rt.sleep(MILLISECOND).await;
    }
    assert!(is_whole(), "{what}: {:#?}", array.status());
}

/// Everything is there, also without members other than those that were rebuilt.
async fn is_whole(array: &Array, setup: Setup, bytes: &[u8], turn: u64, what: &str) {
    assert!(read(array, 0, bytes.len()).await == bytes, "{what}: whole again");
    let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
    assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
    let others: Vec<usize> = (0..setup.slots).filter(|n| !setup.lost.contains(n)).collect();
    for n in 0..setup.lost.len() + 1 {
        let slot = others[(turn as usize + n) % others.len()];
        array.fail(SlotNo(slot)).await.expect("can lose it");
    }
    assert!(read(array, 0, bytes.len()).await == bytes, "{what}: without others");
    array.stop().await.expect("stopped");
}

/// The power goes at `moment`, and `lost` is lost with it; `before` was lost earlier, at that step.
fn after_cut(setup: Setup, moment: Moment, lost: Option<usize>, before: Option<(u64, usize)>) {
    let step = moment.step;
    let leave = [Leave::All, Leave::Nothing, Leave::Some(mix(step))][step as usize % 3];
    let what = format!("{setup:?}, cut {step}, {leave:?}, lost {before:?}, {lost:?}");
    run(move |rt| async move {
        let history = moment.history;
        let gone = |n: usize| lost == Some(n) || before.is_some_and(|(_, disk)| disk == n);
        let mut kept: Vec<Rc<TestDisk>> = Vec::new();
        let mut newest: Option<Superblock> = None;
        for (n, medium) in moment.media.iter().enumerate() {
            let disk = open(&rt, n, leave.of(medium));
            // A disk that was being added as a spare is not one yet.
            let Ok(Some(own)) = read_superblock(&*disk).await else { continue };
            // A disk lost before the rebuild may be back, and is not used.
            let is_stale = setup.lost.contains(&n);
            if !gone(n) && (!is_stale || step.is_multiple_of(2)) {
                kept.push(disk);
            }
            if !is_stale && newest.as_ref().is_none_or(|newest| newest.seq < own.seq) {
                newest = Some(own);
            }
        }
        let newest = newest.expect("some members");
        let mut taken = moment.taken.clone();
        if let Some(lost) = lost {
            let disks: Vec<_> = (moment.media.iter().enumerate())
                .map(|(n, medium)| open(&rt, n, medium.clone()))
                .collect();
            let mut now = Taken::with(&disks, lost);
            now.iter_mut().for_each(|taken| taken.see(&disks, step));
            taken.extend(now);
        }
        let force = lost.is_some() || before.is_some();
        let assembling = AssembleOptions { nonce: 99, force_degraded: force, ..Default::default() };
        let array = match Array::assemble(&rt, members(&kept), assembling).await {
            Ok(array) => array,
            Err(error) => panic!("{what}: {error}"),
        };
        let layout =
            for_code(newest.code, newest.algorithm, setup.slots, newest.rows).expect("laid");
        let k = code_for(newest.code, newest.algorithm, setup.slots).expect("a code").k();
        let first = read(&array, 0, history.durable.len()).await;
        for (number, found) in first.chunks(SECTOR).enumerate() {
            let range = number * SECTOR..(number + 1) * SECTOR;
            let unit = range.start / UNIT as usize;
            let slot = layout.place((unit / k) as u64, unit % k).slot;
            let mut losses =
                taken.iter().filter(|taken| taken.has(slot.0, &newest, (unit / k) as u64));
            let excused = losses.any(|taken| history.was_being_written(&range, taken.until));
            assert!(history.allows(&range, found) || excused, "{what}: sector {number}");
        }
        heals(&rt, &array, 20, &what).await;
        is_whole(&array, setup, &first, step, &what).await;
    });
}

/// A crash with a lost disk is tried at every step of every setup, a crash alone at every second
/// one. A run with a disk lost on the way starts over for each step at which that happens, so each
/// setup takes every fifth step; the seven setups together take each step, half of them with a
/// crash soon after. `./test` takes a third of all that.
fn everywhere(setup: Setup, turn: u64) {
    let is_due = |step: u64, stride| (step + turn).is_multiple_of(stride);
    let (moments, steps) = rebuild(setup, Trouble { record: true, ..Trouble::default() });
    assert!(moments.len() > 150, "only {} steps", moments.len());
    let one_in = stride(3) as u64;
    for moment in moments.into_iter().filter(|moment| is_due(moment.step, one_in)) {
        let victim = setup.victim(moment.step);
        if is_due(moment.step, 2) {
            after_cut(setup, moment.clone(), None, None);
        }
        after_cut(setup, moment, Some(victim), None);
    }
    for step in (0..steps).filter(|step| is_due(*step, 5 * one_in)) {
        let lose = Some((step, setup.victim(step / 5)));
        let crashes = (step / 5 + turn).is_multiple_of(2);
        let cut = crashes.then(|| step + 1 + mix(step) % 40);
        let (moments, _) = rebuild(setup, Trouble { lose, cut, record: false });
        for moment in moments {
            after_cut(setup, moment, None, lose);
        }
    }
}

fn in_every_order(in_parts: bool, piggyback: Piggyback, turn: u64) {
    for (order, turn) in ORDERS.into_iter().zip(turn..) {
        let setup = Setup { code: "raid6", slots: 5, lost: &[1], order, in_parts, piggyback };
        everywhere(setup, turn);
    }
}

#[test]
fn in_parts() {
    in_every_order(true, Piggyback::Covered, 0);
}

#[test]
fn disk_by_disk() {
    in_every_order(false, Piggyback::Widen, 3);
}

#[test]
fn two_members_at_once() {
    let (order, in_parts) = (RebuildOrder::Redundancy, false);
    let (slots, piggyback) = (6, Piggyback::Widen);
    everywhere(Setup { code: "rs:3+3", slots, lost: &[0, 2], order, in_parts, piggyback }, 6);
}
