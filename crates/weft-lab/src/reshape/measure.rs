//! A reshape under the load of a trace: how long it takes, and how long users wait meanwhile.

use std::convert::Infallible;
use std::rc::Rc;

use futures_util::future::{Either, select};
use serde::Deserialize;
use weft_array::experiment::{Admission, Pace, Throttle};
use weft_model::Model;
use weft_rt::{Nanos, Schedule, virtual_rt};
use weft_trace::Record;
use weft_trace::replay::{
    AddressMap, Fit, Latency, Live, Options, Outcome, Pace as Arrivals, Point, Speed, Volumes, run,
};

use super::array::Reshaping;
use super::valve::{Settings, Valve};
use super::{Counted, Grow, Job, Way};
use crate::bench::endless;
use crate::rebuild::{Manner, SpeedControl};

/// How fast a reshape runs.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pacing {
    /// As fast as it can.
    Greedy,
    /// Linux MD's speed control.
    Md(Manner),
    /// ALV's.
    Valve(Settings),
}

/// As fast as it can.
struct Greedy;

impl Pace for Greedy {
    fn admit(&mut self, _: &Throttle, _: Nanos, _: usize, _: usize) -> Admission {
        Admission::Now
    }

    fn begun(&mut self, _: &Throttle, _: Nanos, _: u64) {}
}

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) grow: Grow,
    pub(crate) model: &'a Model,
    pub(crate) seed: u64,
    pub(crate) way: &'a Way,
    pub(crate) pacing: Pacing,
    /// Bytes of buffers for each disk.
    pub(crate) buffer_bytes: u64,
    /// Bounds of MD's speed control, in bytes per second.
    pub(crate) min_bytes_s: u64,
    pub(crate) max_bytes_s: Option<u64>,
    /// The trace, its rate in requests per 1000 s, and the request with which it begins.
    pub(crate) users: Option<(Rc<[Record]>, u32, usize)>,
    /// Length of the intervals of the series.
    pub(crate) interval: Nanos,
    /// A reshape that takes longer is given up: users leave it nothing.
    pub(crate) patience: Nanos,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// From its begin to its last checkpoint, or until it was given up.
    pub(crate) took_ns: Nanos,
    /// Whether it ended.
    pub(crate) ended: bool,
    /// Requests and checkpoints of the reshape.
    pub(crate) counted: Counted,
    /// Response times of users' requests meanwhile; all zero without users.
    pub(crate) users: Latency,
    pub(crate) series: Vec<Point>,
}

/// Reshapes an array while users use it.
pub(crate) fn measure(given: &Run<'_>) -> Result<Measured, String> {
    let rt = virtual_rt(Schedule::Fifo);
    let mut policy = given.way.policy(&given.grow, given.buffer_bytes);
    let mut job = Job::new(&given.grow).map_err(|e| e.to_string())?;
    let array = Reshaping::new(&rt, &given.grow, given.model, given.seed, policy.users_wait())?;
    let array = Rc::new(array);
    array.throttle.set(given.min_bytes_s, given.max_bytes_s);
    let mut pace: Box<dyn Pace> = match given.pacing {
        Pacing::Greedy => Box::new(Greedy),
        Pacing::Md(manner) => Box::new(SpeedControl::new(manner, rt.now())),
        Pacing::Valve(settings) => Box::new(Valve::new(settings, array.users.clone(), rt.now())),
    };
    let given = given.clone();
    let (interval, patience, users) = (given.interval, given.patience, given.users);
    rt.clone().block_on(async move {
        let live = Live::new();
        let (until, reshaped, rt_inner) = (live.clone(), array.clone(), rt.clone());
        let reshape = rt.spawn(async move {
            let late = rt_inner.sleep_until(patience);
            let reshape = reshaped.reshape(&mut job, &mut *policy, &mut *pace);
            let (counted, ended) = match select(Box::pin(reshape), late).await {
                Either::Left((counted, _)) => (counted, true),
                Either::Right(_) => (reshaped.counted(), false),
            };
            until.stop();
            (counted, ended, rt_inner.now())
        });
        let outcome = match users {
            None => Outcome::default(),
            Some((records, rate_milli, first)) => {
                let mut volumes = Volumes::default();
                records.iter().for_each(|record| volumes.add(record));
                let size = weft_disk::Volume::size_bytes(&*array);
                let map = AddressMap::new(&volumes, size, 512, Fit::Scale);
                let options = Options {
                    pace: Arrivals::Open { speed: Speed::REAL, in_flight_max: 1 << 16 },
                    interval_ns: Some(interval),
                    ..Options::default()
                };
                let all = endless(records, rate_milli, first).map(Ok::<_, Infallible>);
                let Ok(outcome) = run(&rt, array, &map, all, &options, &live).await;
                outcome
            }
        };
        let (counted, ended, took_ns) = reshape.await;
        if outcome.failed.total() > 0 {
            return Err(format!("{:?}", outcome.failed));
        }
        let (users, series) = (outcome.all, outcome.series);
        Ok(Measured { took_ns, ended, counted, users, series })
    })
}
