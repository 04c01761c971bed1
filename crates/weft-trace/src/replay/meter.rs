//! The accounting of a replay while it runs.
//!
//! A request is measured if it was due (closed loop: issued) after the warm-up. Measuring starts
//! when the first such request is due. A completion belongs to the interval of the series in which
//! it happens.

use std::cell::RefCell;
use std::rc::Rc;

use weft_rt::sync::Notify;
use weft_rt::{Nanos, SECOND};

use crate::record::Op;
use crate::replay::outcome::{Failed, Late, Latency, Outcome, Point, Utilisation};
use weft_disk::Histogram;

/// Number of descriptions of failures that are kept.
const FAILED_KEPT: usize = 10;

/// Knows how long disks have been busy.
pub trait DiskTimes {
    /// Each disk, with the time that it has been busy since a fixed moment.
    fn busy(&self) -> Vec<(String, Nanos)>;
}

/// A view of a replay from outside, while it runs and after; clones are views of the same one.
#[derive(Clone, Default)]
pub struct Live(pub(crate) Rc<LiveState>);

#[derive(Default)]
pub(crate) struct LiveState {
    pub(crate) meter: RefCell<Meter>,
    /// Rings when the replay is to stop.
    pub(crate) stop: Notify,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let meter = self.0.meter.borrow();
        f.debug_struct("Live")
            .field("issued", &meter.issued)
            .field("completed", &meter.completed)
            .finish_non_exhaustive()
    }
}

impl Live {
    /// A view for a replay that has not started.
    pub fn new() -> Self {
        Self::default()
    }

    /// A view that takes the utilisation of disks from `disks`.
    pub fn watching(disks: Rc<dyn DiskTimes>) -> Self {
        let live = Self::default();
        live.0.meter.borrow_mut().disks = Some(disks);
        live
    }

    /// Requests issued and completed so far.
    pub fn progress(&self) -> (u64, u64) {
        let meter = self.0.meter.borrow();
        (meter.issued, meter.completed)
    }

    /// The time of the trace (not sped up) of the request that was issued last.
    pub fn trace_ns(&self) -> Nanos {
        self.0.meter.borrow().trace_ns
    }

    /// The complete intervals of the series.
    pub fn series(&self) -> Vec<Point> {
        self.0.meter.borrow().series.clone()
    }

    /// The response times so far.
    pub fn latency(&self) -> Latency {
        Latency::from(&self.0.meter.borrow().all)
    }

    /// Stops issuing; the replay ends when the requests in flight are complete.
    pub fn stop(&self) {
        self.0.meter.borrow_mut().stopped = true;
        self.0.stop.notify_all();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.meter.borrow().stopped
    }
}

/// A request in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    pub(crate) op: Op,
    pub(crate) bytes: u64,
    /// When it should have started.
    pub(crate) due_ns: Nanos,
    /// When it did.
    pub(crate) issued_ns: Nanos,
    /// Whether it is measured.
    pub(crate) measured: bool,
}

/// The sums of a replay.
#[derive(Default)]
pub(crate) struct Meter {
    disks: Option<Rc<dyn DiskTimes>>,
    stopped: bool,
    pub(crate) trace_ns: Nanos,
    pub(crate) issued: u64,
    completed: u64,
    warm_up: u64,
    in_flight_max: u64,
    late_after_ns: Nanos,
    late_requests: u64,
    lateness: Histogram,
    all: Histogram,
    service: Histogram,
    /// Of reads, writes, flushes, trims.
    of_op: [Histogram; 4],
    read_bytes: u64,
    written_bytes: u64,
    failed: Failed,
    pub(crate) beyond: u64,
    pub(crate) widened: u64,
    pub(crate) trims_too_small: u64,
    pub(crate) writes_skipped: u64,
    /// When measuring started, and the last measured completion.
    began_ns: Option<Nanos>,
    ended_ns: Nanos,
    busy_at_begin: Vec<(String, Nanos)>,
    /// When that was sampled: the first request may have started late.
    sampled_ns: Nanos,
    interval: Option<Interval>,
    series: Vec<Point>,
}

/// The current interval of the series.
struct Interval {
    len_ns: Nanos,
    /// When it started.
    from_ns: Nanos,
    latency: Histogram,
    read_bytes: u64,
    written_bytes: u64,
    busy_at_begin: Vec<(String, Nanos)>,
    /// When that was sampled: at the first completion in the interval.
    sampled_ns: Nanos,
}

fn index(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        Op::Trim => 3,
    }
}

impl Meter {
    /// Sets up for a run.
    pub(crate) fn start(&mut self, late_after_ns: Nanos, interval_ns: Option<Nanos>) {
        self.late_after_ns = late_after_ns;
        self.interval = interval_ns.map(|len_ns| Interval {
            len_ns: len_ns.max(1),
            from_ns: 0,
            latency: Histogram::default(),
            read_bytes: 0,
            written_bytes: 0,
            busy_at_begin: Vec::new(),
            sampled_ns: 0,
        });
    }

    fn busy(&self) -> Vec<(String, Nanos)> {
        self.disks.as_ref().map_or_else(Vec::new, |disks| disks.busy())
    }

    /// A request is issued.
    pub(crate) fn begin(&mut self, begun: &Begun) {
        self.issued += 1;
        self.in_flight_max = self.in_flight_max.max(self.issued - self.completed);
        if !begun.measured {
            self.warm_up += 1;
            return;
        }
        if self.began_ns.is_none() {
            self.began_ns = Some(begun.due_ns);
            self.ended_ns = begun.due_ns;
            self.busy_at_begin = self.busy();
            self.sampled_ns = begun.issued_ns;
            if let Some(interval) = &mut self.interval {
                interval.from_ns = begun.due_ns;
                interval.busy_at_begin.clone_from(&self.busy_at_begin);
                interval.sampled_ns = begun.issued_ns;
            }
        }
        let late_ns = begun.issued_ns.saturating_sub(begun.due_ns);
        self.lateness.add(late_ns);
        self.late_requests += u64::from(late_ns > self.late_after_ns);
    }

    /// A request is complete; `error` is the reason if it failed.
    pub(crate) fn end(&mut self, begun: &Begun, now_ns: Nanos, error: Option<String>) {
        self.completed += 1;
        if let Some(error) = error {
            self.fail(begun.op, error);
            return;
        }
        if !begun.measured {
            return;
        }
        self.turn_to(now_ns);
        let response_ns = now_ns.saturating_sub(begun.due_ns);
        self.all.add(response_ns);
        self.service.add(now_ns.saturating_sub(begun.issued_ns));
        self.of_op[index(begun.op)].add(response_ns);
        let (read, written) = match begun.op {
            Op::Read => (begun.bytes, 0),
            Op::Write => (0, begun.bytes),
            Op::Flush | Op::Trim => (0, 0),
        };
        self.read_bytes += read;
        self.written_bytes += written;
        self.ended_ns = self.ended_ns.max(now_ns);
        if let Some(interval) = &mut self.interval {
            interval.latency.add(response_ns);
            interval.read_bytes += read;
            interval.written_bytes += written;
        }
    }

    fn fail(&mut self, op: Op, error: String) {
        let count = match op {
            Op::Read => &mut self.failed.reads,
            Op::Write => &mut self.failed.writes,
            Op::Flush => &mut self.failed.flushes,
            Op::Trim => &mut self.failed.trims,
        };
        *count += 1;
        if self.failed.first.len() < FAILED_KEPT {
            self.failed.first.push(error);
        }
    }

    /// Closes the interval if it is over.
    fn turn_to(&mut self, now_ns: Nanos) {
        let over = self.interval.as_ref().is_some_and(|i| now_ns >= i.from_ns + i.len_ns);
        if over {
            self.close(now_ns);
        }
    }

    /// Closes the current interval, as of `now_ns`, and starts the one that contains `now_ns`.
    fn close(&mut self, now_ns: Nanos) {
        let busy = self.busy();
        let in_flight = self.issued - self.completed;
        let Some(interval) = &mut self.interval else { return };
        let began_ns = self.began_ns.unwrap_or(0);
        let elapsed_ns = now_ns.saturating_sub(interval.from_ns);
        if interval.latency.count() > 0 {
            self.series.push(Point {
                at_ns: interval.from_ns.saturating_sub(began_ns),
                len_ns: elapsed_ns.min(interval.len_ns),
                latency: Latency::from(&interval.latency),
                read_bytes: interval.read_bytes,
                written_bytes: interval.written_bytes,
                in_flight,
                busy_per_mille: shares(
                    &interval.busy_at_begin,
                    &busy,
                    now_ns.saturating_sub(interval.sampled_ns),
                )
                .map(|(_, share)| share)
                .collect(),
            });
        }
        let intervals = elapsed_ns / interval.len_ns;
        interval.from_ns += intervals * interval.len_ns;
        interval.latency.clear();
        (interval.read_bytes, interval.written_bytes) = (0, 0);
        interval.busy_at_begin = busy;
        interval.sampled_ns = now_ns;
    }

    /// The outcome.
    pub(crate) fn outcome(&mut self) -> Outcome {
        if self.interval.as_ref().is_some_and(|interval| interval.latency.count() > 0) {
            self.close(self.ended_ns);
        }
        let elapsed_ns = self.ended_ns - self.began_ns.unwrap_or(self.ended_ns);
        let per = |count: u64, unit: u64| {
            let rate = u128::from(count) * u128::from(unit) / u128::from(elapsed_ns.max(1));
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        let busy = self.busy();
        let sampled_for_ns = self.ended_ns.saturating_sub(self.sampled_ns);
        let utilisation = shares(&self.busy_at_begin, &busy, sampled_for_ns)
            .map(|(disk, busy_per_mille)| Utilisation { disk, busy_per_mille });
        Outcome {
            elapsed_ns,
            all: Latency::from(&self.all),
            reads: Latency::from(&self.of_op[0]),
            writes: Latency::from(&self.of_op[1]),
            flushes: Latency::from(&self.of_op[2]),
            trims: Latency::from(&self.of_op[3]),
            service: Latency::from(&self.service),
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            requests_per_1000_s: per(self.all.count(), 1000 * SECOND),
            bytes_per_s: per(self.read_bytes + self.written_bytes, SECOND),
            late: Late {
                requests: self.late_requests,
                mean_ns: self.lateness.mean(),
                p99_ns: self.lateness.percentile(990),
                max_ns: self.lateness.max(),
            },
            issued: self.issued,
            completed: self.completed,
            warm_up: self.warm_up,
            failed: self.failed.clone(),
            beyond: self.beyond,
            widened: self.widened,
            trims_too_small: self.trims_too_small,
            writes_skipped: self.writes_skipped,
            in_flight_max: self.in_flight_max,
            verified: None,
            utilisation: utilisation.collect(),
            series: self.series.clone(),
        }
    }
}

/// How busy each disk was between two samples, in thousandths of `elapsed_ns`.
fn shares<'a>(
    before: &'a [(String, Nanos)],
    after: &'a [(String, Nanos)],
    elapsed_ns: Nanos,
) -> impl Iterator<Item = (String, u16)> + 'a {
    before.iter().zip(after).map(move |((disk, before), (_, after))| {
        let busy_ns = u128::from(after.saturating_sub(*before));
        let share = (busy_ns * 1000 / u128::from(elapsed_ns.max(1))).min(1000);
        (disk.clone(), u16::try_from(share).unwrap_or(1000))
    })
}
