//! The region map against a model, under random schedules, failing writes and power cuts: a bit
//! promised to be durable is never lost, whichever members are left afterwards.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use weft_array::Id;
use weft_array::lane::{Lane, LaneSet};
use weft_array::region_map::{
    MapConfig, MapStore, MapStoreError, RegionMap, RegionNo, Regions, StoreFuture, area_bytes,
};
use weft_rt::Frozen;
use weft_stripe::{Generation, StripeId};
use weft_testkit::{Rng, for_seeds};

const MEMBERS: usize = 3;
const ALL: Regions = Regions { region_bytes: 4, stripe_bytes: 1, stripes: 3 * 2016 * 4 - 5 };
/// The regions used: some of each of the three pages, and the short last one.
const REGIONS: [RegionNo; 9] = [
    RegionNo(0),
    RegionNo(1),
    RegionNo(2),
    RegionNo(2015),
    RegionNo(2016),
    RegionNo(2017),
    RegionNo(4032),
    RegionNo(4033),
    RegionNo(6046),
];
const LANE: Lane = Lane(3);

fn id(number: u64) -> StripeId {
    StripeId { generation: Generation::default(), number }
}

/// What must hold for a region after a crash.
#[derive(Debug, Clone, Copy, Default)]
struct Promise {
    /// Writes that may be in progress.
    writers: u32,
    /// Ended writes whose data was not flushed since, given by the number of the last one.
    unflushed: Option<u64>,
    written: bool,
    stale: bool,
    resync: bool,
    /// The mark for that was itself made durable. Otherwise a member may still have the region as
    /// dirty, as the crash left it: the next start resyncs that, too.
    marked: bool,
    /// Number of attempts to make it unwritten.
    unwrites: u32,
    /// Those in progress.
    unwriting: u32,
    /// A resync was requested since the last one began.
    asked: bool,
}

enum What {
    Page { offset: usize, bytes: Frozen },
    Flush { ended: u64 },
    Zero { region: RegionNo },
}

struct Op {
    what: What,
    result: Rc<Cell<Option<bool>>>,
}

/// Members' map areas, and the operations in progress.
struct Store {
    areas: RefCell<Vec<Vec<u8>>>,
    ops: RefCell<Vec<Op>>,
    promises: RefCell<[Promise; REGIONS.len()]>,
    /// Number of ended writes.
    ended: Cell<u64>,
    /// Regions under resync: one job at a time.
    resyncing: RefCell<BTreeSet<RegionNo>>,
    failing: bool,
    /// Whether regions are zeroed before their first write.
    zero_first: bool,
    /// The regions that were zeroed, in order.
    zeroed: RefCell<Vec<RegionNo>>,
}

impl Store {
    fn start(&self, what: What) -> StoreFuture<'_> {
        Box::pin(async move {
            let result = Rc::new(Cell::new(None));
            self.ops.borrow_mut().push(Op { what, result: result.clone() });
            let done = poll_fn(|_| match result.get() {
                Some(ok) => Poll::Ready(ok),
                None => Poll::Pending,
            });
            if done.await { Ok(()) } else { Err(MapStoreError::Refused("by the test".into())) }
        })
    }

    /// Completes one operation; page writes fail now and then, with any effect on each member.
    fn complete(&self, rng: &mut Rng) {
        let index = rng.index(self.ops.borrow().len());
        let op = self.ops.borrow_mut().swap_remove(index);
        let fails = self.failing && rng.chance(1, 5);
        match op.what {
            What::Page { .. } if fails => self.tear(&op.what, rng),
            What::Page { offset, bytes } => {
                for area in self.areas.borrow_mut().iter_mut() {
                    area[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
            }
            What::Flush { ended } if !fails => {
                for promise in self.promises.borrow_mut().iter_mut() {
                    promise.unflushed = promise.unflushed.filter(|write| *write > ended);
                }
            }
            What::Zero { region } => {
                let promise = self.promises.borrow()[place(region)];
                assert_eq!(promise.writers, 0, "region {region:?} was zeroed under a write");
                assert!(!promise.written, "region {region:?} was zeroed after a write");
                self.zeroed.borrow_mut().push(region);
            }
            What::Flush { .. } => {}
        }
        op.result.set(Some(!fails));
    }

    /// An interrupted page write: each member has any subset of its sectors.
    fn tear(&self, what: &What, rng: &mut Rng) {
        let What::Page { offset, bytes } = what else { return };
        for area in self.areas.borrow_mut().iter_mut() {
            let kind = rng.below(3);
            for sector in 0..bytes.len() / 512 {
                if kind == 0 || kind == 1 && rng.chance(1, 2) {
                    let at = sector * 512;
                    area[offset + at..offset + at + 512].copy_from_slice(&bytes[at..at + 512]);
                }
            }
        }
    }

    fn promise(&self, region: RegionNo, change: impl FnOnce(&mut Promise)) {
        change(&mut self.promises.borrow_mut()[place(region)]);
    }
}

fn place(region: RegionNo) -> usize {
    REGIONS.iter().position(|known| *known == region).expect("a region in use")
}

impl MapStore for Store {
    fn write_page(&self, offset: u64, page: Frozen) -> StoreFuture<'_> {
        let offset = usize::try_from(offset - config(true).area_offset).expect("small");
        let busy = self.ops.borrow().iter().any(|op| match &op.what {
            What::Page { offset: other, .. } => other / 8192 == offset / 8192,
            _ => false,
        });
        assert!(!busy, "two writes of one page at a time");
        self.start(What::Page { offset, bytes: page })
    }

    fn flush_data(&self) -> StoreFuture<'_> {
        self.start(What::Flush { ended: self.ended.get() })
    }

    fn zero_region(&self, region: RegionNo) -> StoreFuture<'_> {
        if self.zero_first {
            return self.start(What::Zero { region });
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

fn config(track_dirty: bool) -> MapConfig {
    MapConfig {
        array_id: Id([9; 16]),
        area_offset: 1 << 20,
        regions: ALL,
        room: 0,
        track_dirty,
        dirty_max: 4,
    }
}

/// Yields to the executor once, so that other tasks run.
async fn pause() {
    let mut paused = false;
    poll_fn(|_| if std::mem::replace(&mut paused, true) { Poll::Ready(()) } else { Poll::Pending })
        .await;
}

async fn write(map: Rc<RegionMap>, store: Rc<Store>, region: RegionNo, long: bool) {
    let before = store.promises.borrow()[place(region)].unwrites;
    let Ok(guard) = map.begin_write(&*store, region).await else { return };
    store.promise(region, |promise| {
        promise.writers += 1;
        promise.written |= promise.unwrites == before;
    });
    for _ in 0..if long { 20 } else { 1 } {
        pause().await;
    }
    let number = store.ended.get() + 1;
    store.ended.set(number);
    store.promise(region, |promise| {
        promise.writers -= 1;
        promise.unflushed = Some(number);
    });
    drop(guard);
}

async fn unwrite(map: Rc<RegionMap>, store: Rc<Store>, region: RegionNo) {
    store.promise(region, |promise| {
        promise.unwrites += 1;
        promise.unwriting += 1;
        (promise.written, promise.stale) = (false, false);
        (promise.resync, promise.marked) = (false, false);
    });
    map.unwriting_begins(region);
    pause().await;
    let _ = map.mark_unwritten(&*store, &[region]).await;
    store.promise(region, |promise| promise.unwriting -= 1);
}

async fn ask_resync(map: Rc<RegionMap>, store: Rc<Store>, region: RegionNo) {
    if !map.is_written(region) {
        return;
    }
    store.promise(region, |promise| promise.asked = true);
    let Promise { unwrites: before, unwriting, .. } = store.promises.borrow()[place(region)];
    if map.set_needs_resync(&*store, &[region]).await.is_ok() {
        // A resync that began meanwhile covers it.
        store.promise(region, |promise| {
            // What becomes unwritten needs no resync, and loses the mark.
            let stays = unwriting == 0 && promise.unwrites == before;
            let kept = promise.asked && promise.written && stays;
            promise.resync |= kept;
            promise.marked |= kept;
        });
    }
}

async fn resync(map: Rc<RegionMap>, store: Rc<Store>, region: RegionNo) {
    if !store.resyncing.borrow_mut().insert(region) {
        return;
    }
    store.promise(region, |promise| promise.asked = false);
    map.resync_begins(region);
    pause().await;
    store.promise(region, |promise| {
        promise.resync &= promise.asked;
        promise.marked &= promise.asked;
    });
    let _ = map.clear_resync(&*store, &[region]).await;
    store.resyncing.borrow_mut().remove(&region);
}

async fn start_lane(map: Rc<RegionMap>, store: Rc<Store>) {
    for promise in store.promises.borrow_mut().iter_mut() {
        promise.stale = false;
    }
    let before = *store.promises.borrow();
    if map.start_lane(&*store, LANE).await.is_ok() {
        for (promise, before) in store.promises.borrow_mut().iter_mut().zip(before) {
            promise.stale = before.written && promise.written;
        }
    }
}

async fn rebuild(map: Rc<RegionMap>, store: Rc<Store>, region: RegionNo) {
    let mut done = false;
    for stripe in ALL.stripes_of(region) {
        pause().await;
        if map.mark_stripe_rebuilt(LANE, id(stripe)) {
            // At once: if it becomes unwritten, its next first write makes it stale again.
            assert!(ALL.stripes_of(region).all(|stripe| !map.is_stale(LANE, id(stripe))));
            done = true;
        }
    }
    if done {
        store.promise(region, |promise| promise.stale = false);
        let _ = map.finish_regions(&*store, LANE, &[region], true, std::future::pending()).await;
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

fn new_task(map: &Rc<RegionMap>, store: &Rc<Store>, rng: &mut Rng) -> Task {
    let (map, store, region) = (map.clone(), store.clone(), REGIONS[rng.index(REGIONS.len())]);
    match rng.below(16) {
        0..9 => Box::pin(write(map, store, region, rng.chance(1, 4))),
        9 => Box::pin(unwrite(map, store, region)),
        10 => Box::pin(ask_resync(map, store, region)),
        11 => Box::pin(resync(map, store, region)),
        12 => Box::pin(rebuild(map, store, region)),
        13 => Box::pin(async move { drop(map.clean_all(&*store).await) }),
        _ => Box::pin(async move { drop(map.clean_idle(&*store).await) }),
    }
}

/// Runs tasks and completes operations in random order, for a number of steps.
fn run(map: &Rc<RegionMap>, store: &Rc<Store>, tasks: &mut Vec<Task>, steps: u64, rng: &mut Rng) {
    for _ in 0..steps {
        match rng.below(5) {
            0 if tasks.len() < 12 => tasks.push(new_task(map, store, rng)),
            1 if !store.ops.borrow().is_empty() => store.complete(rng),
            _ => poll_one(tasks, rng),
        }
    }
}

fn poll_one(tasks: &mut Vec<Task>, rng: &mut Rng) {
    if tasks.is_empty() {
        return;
    }
    let index = rng.index(tasks.len());
    let mut context = Context::from_waker(Waker::noop());
    if tasks[index].as_mut().poll(&mut context).is_ready() {
        drop(tasks.swap_remove(index));
    }
}

/// Everything must end when every operation completes.
fn drain(store: &Rc<Store>, tasks: &mut Vec<Task>, rng: &mut Rng) {
    for _ in 0..100_000 {
        if tasks.is_empty() {
            return;
        }
        if rng.chance(1, 2) && !store.ops.borrow().is_empty() {
            store.complete(rng);
        }
        poll_one(tasks, rng);
    }
    panic!("{} tasks never end", tasks.len());
}

fn check(areas: &[Vec<u8>], promises: &[Promise], config: &MapConfig) {
    for subset in 1_usize..1 << areas.len() {
        let chosen: Vec<&[u8]> = (0..areas.len())
            .filter(|member| subset >> member & 1 == 1)
            .map(|member| areas[member].as_slice())
            .collect();
        let (map, report) = RegionMap::load(config.clone(), &chosen);
        assert!(report.pages_lost.is_empty(), "a torn page left no page before it");
        for (region, promise) in REGIONS.into_iter().zip(promises) {
            let Promise { writers, unflushed, written, stale, resync, marked, .. } = *promise;
            assert!(!written || map.is_written(region), "region {region:?} lost its data");
            let doubt = map.is_dirty(region) || map.needs_resync(region);
            let in_flight = config.track_dirty && (writers > 0 || unflushed.is_some());
            assert!(!in_flight || !written || doubt, "region {region:?} is taken for clean");
            let resyncs = if marked { map.needs_resync(region) } else { doubt };
            assert!(!resync || !written || resyncs, "region {region:?}: resync lost");
            let stripe = ALL.stripes_of(region).start;
            assert!(
                !stale || map.is_stale(LANE, id(stripe)),
                "region {region:?} is taken for rebuilt"
            );
        }
    }
}

fn blank_areas(config: &MapConfig) -> Vec<Vec<u8>> {
    let len = usize::try_from(area_bytes(config.regions.count())).expect("small");
    let mut area = vec![0; len];
    for (offset, page) in RegionMap::initial_pages(config) {
        let at = usize::try_from(offset - config.area_offset).expect("small");
        area[at..at + page.len()].copy_from_slice(&page);
    }
    vec![area; MEMBERS]
}

fn store(config: &MapConfig, zero_first: bool) -> Rc<Store> {
    Rc::new(Store {
        areas: RefCell::new(blank_areas(config)),
        ops: RefCell::default(),
        promises: RefCell::default(),
        ended: Cell::new(0),
        resyncing: RefCell::default(),
        failing: false,
        zero_first,
        zeroed: RefCell::default(),
    })
}

fn story(rng: &mut Rng, failing: bool) {
    let (config, zero_first) = (config(rng.chance(4, 5)), rng.chance(1, 2));
    let mut areas = blank_areas(&config);
    let mut promises = [Promise::default(); REGIONS.len()];
    for life in 0..6 {
        let refs: Vec<&[u8]> = areas.iter().map(Vec::as_slice).collect();
        let (map, _) = RegionMap::load(config.clone(), &refs);
        let map = Rc::new(map);
        let store = Rc::new(Store {
            areas: RefCell::new(areas),
            ops: RefCell::default(),
            promises: RefCell::new(promises),
            ended: Cell::new(0),
            resyncing: RefCell::default(),
            failing,
            zero_first,
            zeroed: RefCell::default(),
        });
        let mut tasks: Vec<Task> = Vec::new();
        let (of_map, of_store) = (map.clone(), store.clone());
        if life > 0 {
            map.begin_joining(LANE);
            tasks.push(Box::pin(async move {
                drop(of_map.resync_dirty(&*of_store, LaneSet::EMPTY).await)
            }));
        } else {
            tasks.push(Box::pin(start_lane(of_map, of_store)));
        }
        let early = rng.chance(1, 3);
        if early {
            for _ in 0..rng.below(20) {
                poll_one(&mut tasks, rng);
                if rng.chance(1, 3) && !store.ops.borrow().is_empty() {
                    store.complete(rng);
                }
            }
        } else {
            drain(&store, &mut tasks, rng);
            let steps = rng.below(400);
            run(&map, &store, &mut tasks, steps, rng);
            if rng.chance(1, 3) {
                drain(&store, &mut tasks, rng);
            }
        }
        // A power cut.
        tasks.clear();
        let ops = std::mem::take(&mut *store.ops.borrow_mut());
        ops.iter().for_each(|op| store.tear(&op.what, rng));
        promises = *store.promises.borrow();
        areas = store.areas.take();
        check(&areas, &promises, &config);
        // Members may be lost with it; the others continue with what they have.
        if areas.len() > 1 && rng.chance(1, 3) {
            areas.remove(rng.index(areas.len()));
        }
        for promise in &mut promises {
            // What was in doubt stays in doubt until it is resynced.
            let in_doubt = promise.writers > 0 || promise.unflushed.is_some();
            promise.resync |= config.track_dirty && in_doubt && promise.written;
            (promise.writers, promise.unflushed, promise.unwriting) = (0, None, 0);
        }
        if failing {
            // After a failed start the marks for resync may not have been written.
            for promise in &mut promises {
                (promise.resync, promise.marked) = (false, false);
            }
        }
    }
}

#[test]
fn promises_outlive_power_cuts() {
    for_seeds(0..1000, |rng| story(rng, false));
}

#[test]
fn promises_outlive_power_cuts_and_failing_writes() {
    for_seeds(0..1000, |rng| story(rng, true));
}

#[test]
fn many_first_writes_to_a_page_cost_two_page_writes() {
    let config = config(true);
    let map = Rc::new(RegionMap::load(config.clone(), &[&blank_areas(&config)[0]]).0);
    let written = Rc::new(Cell::new(0));
    let gate = Rc::new(Cell::new(false));
    struct Counting {
        written: Rc<Cell<u32>>,
        gate: Rc<Cell<bool>>,
    }
    impl MapStore for Counting {
        fn write_page(&self, _: u64, _: Frozen) -> StoreFuture<'_> {
            self.written.set(self.written.get() + 1);
            Box::pin(poll_fn(|_| match self.gate.get() {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            }))
        }
        fn flush_data(&self) -> StoreFuture<'_> {
            Box::pin(std::future::ready(Ok(())))
        }
        fn zero_region(&self, _: RegionNo) -> StoreFuture<'_> {
            Box::pin(std::future::ready(Ok(())))
        }
    }
    let store = Rc::new(Counting { written: written.clone(), gate: gate.clone() });
    let config = MapConfig { dirty_max: 1000, ..config };
    let map = Rc::new(RegionMap::load(config, &[&blank_areas(map.config())[0]]).0);
    let mut tasks: Vec<Task> = Vec::new();
    for region in (0..500).map(RegionNo) {
        let (map, store) = (map.clone(), store.clone());
        tasks.push(Box::pin(async move {
            map.begin_write(&*store, region).await.expect("nothing fails");
        }));
    }
    let mut context = Context::from_waker(Waker::noop());
    for round in 0..4 {
        gate.set(round > 0);
        tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
    }
    assert!(tasks.is_empty());
    assert_eq!((written.get(), map.dirty_count()), (2, 500));

    // The fast path: no page write, one poll.
    let mut again = Box::pin(map.begin_write(&*store, RegionNo(7)));
    assert!(again.as_mut().poll(&mut context).is_ready());
    assert_eq!(written.get(), 2);
}

#[test]
fn dirty_regions_are_bounded_and_idle_ones_cleaned() {
    let config = config(true);
    let store = store(&config, false);
    let map = Rc::new(RegionMap::load(config, &[&store.areas.borrow()[0]]).0);
    let mut rng = Rng::new(0);
    let mut run_one = |task: Task| drain(&store, &mut vec![task], &mut rng);
    for region in REGIONS.into_iter().chain(REGIONS) {
        run_one(Box::pin(write(map.clone(), store.clone(), region, false)));
        assert!((1..=4).contains(&map.dirty_count()) && map.is_dirty(region));
    }
    let cleaned = Rc::new(Cell::new(usize::MAX));
    for expected in [0, 4, 0] {
        let (map, store, cleaned) = (map.clone(), store.clone(), cleaned.clone());
        let told = cleaned.clone();
        run_one(Box::pin(async move {
            told.set(map.clean_idle(&*store).await.expect("nothing fails"));
        }));
        assert_eq!(cleaned.get(), expected, "clean after two looks");
    }
    assert_eq!((map.dirty_count(), map.written_count()), (0, REGIONS.len() as u64));
}

#[test]
fn a_page_lost_on_every_member_is_taken_as_written_and_in_doubt() {
    let config = config(true);
    let mut area = blank_areas(&config).remove(0);
    area[8192..16384].fill(0x5a);
    let (map, report) = RegionMap::load(config, &[&area]);
    assert_eq!(report.pages_lost, [1]);
    for region in [2016, 4031].map(RegionNo) {
        assert!(map.is_written(region) && map.needs_resync(region));
        assert!(map.is_stale(LANE, id(ALL.stripes_of(region).start)));
    }
    assert!(!map.is_written(RegionNo(2015)) && !map.is_written(RegionNo(4032)));
}

#[test]
fn a_region_is_zeroed_again_for_a_replacement_that_came_meanwhile() {
    let config = config(true);
    let store = store(&config, true);
    let map = Rc::new(RegionMap::load(config, &[&store.areas.borrow()[0]]).0);
    let mut tasks: Vec<Task> = vec![
        Box::pin(write(map.clone(), store.clone(), RegionNo(0), false)),
        Box::pin(start_lane(map.clone(), store.clone())),
    ];
    let mut context = Context::from_waker(Waker::noop());
    for task in &mut tasks {
        assert!(task.as_mut().poll(&mut context).is_pending());
    }
    // The zeros of region 0 are on their way to the previous members only.
    map.lane_joined(LANE);
    let mut known = Box::pin(map.late_regions_known(LANE));
    assert!(known.as_mut().poll(&mut context).is_pending());
    tasks.push(Box::pin(write(map.clone(), store.clone(), RegionNo(1), false)));
    drain(&store, &mut tasks, &mut Rng::new(0));
    assert!(known.as_mut().poll(&mut context).is_ready());
    store.zeroed.borrow_mut().sort();
    assert_eq!(*store.zeroed.borrow(), [RegionNo(0), RegionNo(0), RegionNo(1)]);
    assert!(map.is_written(RegionNo(0)) && !map.is_stale_region(LANE, RegionNo(0)));
    assert!(map.is_written(RegionNo(1)) && !map.is_stale_region(LANE, RegionNo(1)));
}

#[test]
fn rebuild_goes_through_all_stale_stripes_and_ends() {
    let config = config(true);
    let store = store(&config, false);
    let map = Rc::new(RegionMap::load(config, &[&store.areas.borrow()[0]]).0);
    let mut rng = Rng::new(0);
    let mut run_one = |task: Task| drain(&store, &mut vec![task], &mut rng);
    for region in REGIONS {
        run_one(Box::pin(write(map.clone(), store.clone(), region, false)));
    }
    run_one(Box::pin(start_lane(map.clone(), store.clone())));
    assert_eq!(map.stale_count(LANE), REGIONS.len() as u64);
    let mut seen = BTreeSet::new();
    let mut from = 0;
    let lanes = LaneSet::EMPTY.with(LANE);
    let next = |from| map.next_stale_in(lanes, Generation::default(), from..u64::MAX, |_| true);
    while let Some(stripe) = next(from) {
        assert!(map.is_stale(LANE, stripe) && seen.insert(stripe));
        if map.mark_stripe_rebuilt(LANE, stripe) {
            let (map, store, region) = (map.clone(), store.clone(), ALL.of(stripe.number));
            run_one(Box::pin(async move {
                let (regions, patience) = ([region], std::future::pending());
                let finished = map.finish_regions(&*store, LANE, &regions, true, patience);
                finished.await.expect("nothing fails");
            }));
        }
        from = stripe.number + 1;
    }
    let expected: u64 = REGIONS
        .iter()
        .map(|region| {
            let stripes = ALL.stripes_of(*region);
            stripes.end - stripes.start
        })
        .sum();
    assert_eq!((seen.len() as u64, map.stale_count(LANE)), (expected, 0));
}
