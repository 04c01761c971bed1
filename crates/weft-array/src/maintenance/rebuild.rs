//! What a rebuild shares with users' requests and with its status: policy, monitor, finished
//! regions, counts.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use weft_rt::sync::{Permit, Semaphore};
use weft_rt::{Nanos, SECOND};

use super::experiment::{Experiment, Redirection};
use super::monitor::Monitor;
use crate::format::lane::Lane;
use crate::format::rebuild_policy::{RebuildOrder, RebuildPolicy};
use crate::region_map::RegionNo;

/// Most stripes that are being rebuilt after writes at a time.
const BEHIND_MAX: usize = 8;

/// Half-life of a read's weight in the share of recent reads.
const RECENT: Nanos = 5 * SECOND;

/// Reads older than this are not recent, however many they were.
const LATELY: Nanos = 4 * RECENT;

/// What rebuilt a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RebuildSource {
    Executor,
    Piggyback,
}

/// Counts of rebuild work since the array was assembled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebuildCounts {
    /// Stripes that an executor rebuilt.
    pub stripes_rebuilt: u64,
    /// Stripes rebuilt from users' requests.
    pub stripes_piggybacked: u64,
    /// Units of members being rebuilt that users read from the replacements.
    pub reads_redirected: u64,
    /// Units of members being rebuilt that users read and that had to be reconstructed (of a
    /// mirror: read with one copy less to choose from).
    pub reads_reconstructed: u64,
    /// Requests to survivors.
    pub source_reads: u64,
    /// Bytes of these requests.
    pub source_bytes: u64,
    /// Requests to replacements.
    pub target_writes: u64,
    /// Bytes of these requests.
    pub target_bytes: u64,
    /// When the last rebuild started, in nanoseconds of the engine's clock.
    pub started_ns: Option<u64>,
    /// When it ended, with all members complete.
    pub ended_ns: Option<u64>,
}

/// A hot zone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HotZone {
    /// First byte on the array.
    pub offset_bytes: u64,
    /// Bytes on the array.
    pub length_bytes: u64,
    /// Weighted sum of its accesses: each counts half after one half-life.
    pub popularity: f64,
}

/// The status of a rebuild in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RebuildStatus {
    /// The order in effect.
    pub order: RebuildOrder,
    /// The policy as configured.
    pub policy: RebuildPolicy,
    /// Hot zones, the hottest first; at most the first few.
    pub hot_zones: Vec<HotZone>,
    /// Number of hot zones.
    pub hot_zones_total: usize,
    /// Share of the recent reads of members being rebuilt that the replacements served without
    /// reconstruction. `None` if there were no such reads.
    pub redirected_share: Option<f64>,
    /// Counts since assembly.
    pub counts: RebuildCounts,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    all: Cell<RebuildCounts>,
    /// Recent reads, redirected and all, and when their weights were last updated.
    recent: Cell<(f64, f64, Nanos)>,
}

impl Counts {
    fn change(&self, change: impl FnOnce(&mut RebuildCounts)) {
        let mut all = self.all.get();
        change(&mut all);
        self.all.set(all);
    }

    pub fn get(&self) -> RebuildCounts {
        self.all.get()
    }

    pub fn count_stripe(&self, by: RebuildSource) {
        self.change(|all| match by {
            RebuildSource::Executor => all.stripes_rebuilt += 1,
            RebuildSource::Piggyback => all.stripes_piggybacked += 1,
        });
    }

    pub fn count_reads(&self, requests: usize, len: usize) {
        self.change(|all| {
            all.source_reads += requests as u64;
            all.source_bytes += (requests * len) as u64;
        });
    }

    pub fn count_write(&self, len: usize) {
        self.change(|all| {
            all.target_writes += 1;
            all.target_bytes += len as u64;
        });
    }

    /// Counts a user's read of a unit of a member that is being rebuilt.
    pub fn count_user_read(&self, redirected: bool, now: Nanos) {
        self.change(|all| {
            if redirected {
                all.reads_redirected += 1;
            } else {
                all.reads_reconstructed += 1;
            }
        });
        let (hits, reads, then) = self.recent.get();
        let scale = aged(then, now);
        self.recent.set((hits * scale + f64::from(u8::from(redirected)), reads * scale + 1.0, now));
    }

    /// The share of recent reads that were redirected; `None` without recent reads.
    pub fn redirected_share(&self, now: Nanos) -> Option<f64> {
        let (hits, reads, then) = self.recent.get();
        let lately = now.saturating_sub(then) < LATELY && reads * aged(then, now) >= 0.5;
        lately.then(|| hits / reads)
    }

    pub fn started(&self, now: Nanos) {
        self.change(|all| (all.started_ns, all.ended_ns) = (Some(now), None));
        self.recent.set((0.0, 0.0, now));
    }

    pub fn ended(&self, now: Nanos) {
        self.change(|all| all.ended_ns = Some(now));
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds, not nanoseconds, matter")]
fn aged(then: Nanos, now: Nanos) -> f64 {
    (-(now.saturating_sub(then) as f64) / RECENT as f64).exp2()
}

pub(crate) struct RebuildState {
    policy: RefCell<RebuildPolicy>,
    experiment: RefCell<Option<Rc<dyn Experiment>>>,
    /// Counts changes of the policy and the experiment.
    epoch: Cell<u64>,
    monitor: RefCell<Monitor>,
    counts: Counts,
    /// Permits for stripes that are rebuilt behind writes.
    behind: Semaphore,
    /// For each lane, the regions whose stripes are all rebuilt.
    done: RefCell<BTreeMap<Lane, Vec<RegionNo>>>,
}

impl RebuildState {
    pub fn new() -> Self {
        let policy = RebuildPolicy::default();
        Self {
            monitor: RefCell::new(Monitor::new(&policy)),
            policy: RefCell::new(policy),
            experiment: RefCell::default(),
            epoch: Cell::new(0),
            counts: Counts::default(),
            behind: Semaphore::new(BEHIND_MAX),
            done: RefCell::default(),
        }
    }

    /// Counts of work.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// A place among the stripes that are rebuilt after writes, if one is free.
    pub fn place_behind_write(&self) -> Option<Permit> {
        self.behind.try_acquire(1)
    }

    /// Notes a user's access to a lost unit of a stripe.
    pub fn note_access(&self, stripe: u64, now: Nanos) {
        self.monitor.borrow_mut().note(stripe, now);
    }

    /// Forgets all accesses.
    pub fn forget_accesses(&self) {
        self.monitor.borrow_mut().clear();
    }

    /// The zones that users access, with their popularity, most popular first.
    pub fn zones(&self, now: Nanos) -> Vec<(Range<u64>, f64)> {
        self.monitor.borrow().zones(now)
    }

    /// Lets an order of stripes look at users' accesses.
    pub fn with_monitor<T>(&self, look: impl FnOnce(&mut Monitor) -> T) -> T {
        look(&mut self.monitor.borrow_mut())
    }

    pub fn policy(&self) -> RebuildPolicy {
        self.policy.borrow().clone()
    }

    pub fn with_policy<T>(&self, look: impl FnOnce(&RebuildPolicy) -> T) -> T {
        look(&self.policy.borrow())
    }

    /// Whether reads use rebuilt units.
    pub fn redirection(&self) -> Redirection {
        let experiment = self.experiment.borrow();
        experiment.as_ref().map_or(Redirection::Priced, |experiment| experiment.redirection())
    }

    pub fn experiment(&self) -> Option<Rc<dyn Experiment>> {
        self.experiment.borrow().clone()
    }

    pub fn set_experiment(&self, experiment: Option<Rc<dyn Experiment>>) {
        *self.experiment.borrow_mut() = experiment;
        self.epoch.set(self.epoch.get() + 1);
    }

    pub fn set_policy(&self, policy: RebuildPolicy) {
        self.monitor.borrow_mut().set(&policy);
        *self.policy.borrow_mut() = policy;
        self.epoch.set(self.epoch.get() + 1);
    }

    pub fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    /// Notes that all stripes of a region are rebuilt in `lane`: its mark can be cleared.
    pub fn region_done(&self, lane: Lane, region: RegionNo) {
        self.done.borrow_mut().entry(lane).or_default().push(region);
    }

    /// Number of regions whose marks can be cleared.
    pub fn regions_done(&self) -> usize {
        self.done.borrow().values().map(Vec::len).sum()
    }

    /// Takes at most `most` such regions of one lane.
    pub fn take_done(&self, most: usize) -> Option<(Lane, Vec<RegionNo>)> {
        let mut done = self.done.borrow_mut();
        let (lane, mut regions) = done.pop_first()?;
        // Locks are taken in this order.
        regions.sort_unstable();
        regions.dedup();
        if regions.len() > most {
            done.insert(lane, regions.split_off(most));
        }
        Some((lane, regions))
    }

    /// Replaces the list of `lane` by `regions`.
    pub fn set_done(&self, lane: Lane, regions: Vec<RegionNo>) {
        let mut done = self.done.borrow_mut();
        done.remove(&lane);
        if !regions.is_empty() {
            done.insert(lane, regions);
        }
    }
}
