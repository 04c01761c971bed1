//! A reshape under the load of a trace: how long it takes, and how long users wait during it.

use std::convert::Infallible;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_array::experiment::{Admission, Pace, Throttle, WithinBounds};
use weft_disk::Volume;
use weft_rt::{Nanos, Rt, Schedule, virtual_rt};
use weft_trace::replay::{Latency, Live, Outcome, Point, run};

use super::array::Reshaping;
use super::engine::Engine;
use super::given::{Pacing, Run};
use super::valve::Valve;
use super::{Counted, Job, Way};
use crate::bench::{endless, open_loop, scaled};
use crate::rebuild::SpeedControl;

/// As fast as it can.
struct Greedy;

impl Pace for Greedy {
    fn admit(&mut self, _: &Throttle, _: Nanos, _: usize, _: usize) -> Admission {
        Admission::Now
    }

    fn begun(&mut self, _: &Throttle, _: Nanos, _: u64) {}
}

/// The result of a run.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// From its start to its last checkpoint, or until it was stopped.
    pub(crate) took_ns: Nanos,
    /// Whether it ended.
    pub(crate) ended: bool,
    /// Requests and checkpoints of the reshape.
    pub(crate) counted: Counted,
    /// Response times of users' requests during it; all zero without users.
    pub(crate) users: Latency,
    pub(crate) series: Vec<Point>,
}

/// Reshapes an array while users use it.
pub(crate) fn measure(given: &Run) -> Result<Measured, String> {
    let rt = virtual_rt(Schedule::Fifo);
    let target = given.target.filter(|_| matches!(given.pacing, Pacing::Target));
    if let Way::Weft { written_percent } = given.way {
        let (rt2, given) = (rt.clone(), given.clone());
        return rt.block_on(async move {
            let engine = Rc::new(Engine::open(&rt2, &given, written_percent).await?);
            engine.array.set_latency_target(target);
            let volume = (Rc::new(engine.array.clone()) as Rc<dyn Volume>, engine.used_bytes);
            let counted = engine.clone();
            let reshape = async move { engine.reshape().await };
            under_users(&rt2, &given, volume, reshape, move || counted.counted()).await
        });
    }
    let mut policy = given.way.policy(&given.grow, given.buffer_bytes)?;
    let mut job = Job::new(&given.grow).map_err(|e| e.to_string())?;
    let array = Reshaping::new(&rt, &given.grow, &given.model, given.seed, policy.users_wait())?;
    let array = Rc::new(array);
    array.throttle.set_latency_target(target);
    let mut pace: Box<dyn Pace> = match given.pacing {
        Pacing::Greedy => Box::new(Greedy),
        Pacing::Md(manner) => {
            array.throttle.set(given.min_bytes_s, given.max_bytes_s);
            Box::new(SpeedControl::new(manner, rt.now()))
        }
        Pacing::Valve(settings) => Box::new(Valve::new(settings, array.users.clone(), rt.now())),
        Pacing::Target => Box::new(WithinBounds),
    };
    let (rt2, given) = (rt.clone(), given.clone());
    let volume: Rc<dyn Volume> = array.clone();
    let (volume, counted) = ((volume.clone(), volume.size_bytes()), array.clone());
    rt.block_on(async move {
        let reshape = async move {
            array.reshape(&mut job, &mut *policy, &mut *pace).await;
            Ok(())
        };
        under_users(&rt2, &given, volume, reshape, move || counted.counted()).await
    })
}

/// Runs a reshape while users use this number of bytes of the volume, until it has ended or is
/// stopped.
async fn under_users(
    rt: &Rt,
    given: &Run,
    (volume, used_bytes): (Rc<dyn Volume>, u64),
    reshape: impl Future<Output = Result<(), String>> + 'static,
    counted: impl Fn() -> Counted,
) -> Result<Measured, String> {
    let live = Live::new();
    let (until, rt2, begun) = (live.clone(), rt.clone(), rt.now());
    let late = begun + given.patience;
    let reshape = rt.spawn(async move {
        let late = rt2.sleep_until(late);
        let ended = match select(Box::pin(reshape), late).await {
            Either::Left((result, _)) => result.map(|()| true),
            Either::Right(_) => Ok(false),
        };
        until.stop();
        (ended, rt2.now())
    });
    let outcome = match &given.users {
        None => Outcome::default(),
        Some((records, rate_milli, first)) => {
            let map = scaled(records, used_bytes, 512);
            let options = open_loop(given.interval);
            let all = endless(records.clone(), *rate_milli, *first).map(Ok::<_, Infallible>);
            let Ok(outcome) = run(rt, volume, &map, all, &options, &live).await;
            outcome
        }
    };
    let (ended, end) = reshape.await;
    if outcome.failed.total() > 0 {
        return Err(format!("{:?}", outcome.failed));
    }
    let (users, series) = (outcome.all, outcome.series);
    Ok(Measured { took_ns: end - begun, ended: ended?, counted: counted(), users, series })
}
