//! The rate at which a degraded array with a cache above it serves users: a closed loop.
//!
//! A fixed number of threads requests what a trace requests, one request after the other and
//! without pauses, as the VDF paper measures it. What the cache holds takes no time.

use std::convert::Infallible;
use std::rc::Rc;

use weft_cache::Stats;
use weft_code::SlotNo;
use weft_rt::{Nanos, Schedule, virtual_rt};
use weft_trace::Record;
use weft_trace::replay::{Live, Options, Pace, run};

use super::above::{CacheAbove, CacheSetup};
use super::recovery::Written;
use super::text;
use crate::modelled::ArraySetup;

/// The parameters of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) setup: ArraySetup,
    pub(crate) cache: CacheSetup,
    pub(crate) threads: usize,
    /// The first request that is measured, and how many are.
    pub(crate) first: usize,
    pub(crate) requests: usize,
}

/// The result of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) ns: Nanos,
    pub(crate) cache: Stats,
}

/// Serves requests from an array without member #0.
pub(crate) fn serve(service: &Service, records: &[Record]) -> Result<Served, String> {
    let (rt, service, records) = (virtual_rt(Schedule::Fifo), service.clone(), records.to_vec());
    rt.clone().block_on(async move {
        let written = Written::new(&rt, &service.setup).await?;
        let map = written.map(&records);
        let above = Rc::new(CacheAbove::new(&written.array, &service.cache, 0)?);
        let (before, measured) = records.split_at(service.first);
        let (healthy, degraded) = before.split_at(service.cache.healthy);
        above.fill(healthy, &map);
        written.array.fail(SlotNo(0)).await.map_err(text)?;
        above.fill(degraded, &map);
        let options =
            Options { pace: Pace::Closed { outstanding: service.threads }, ..Options::default() };
        let begun = rt.now();
        let all = measured.iter().take(service.requests).copied().map(Ok::<_, Infallible>);
        let Ok(outcome) = run(&rt, above.clone(), &map, all, &options, &Live::new()).await;
        let ns = rt.now() - begun;
        if outcome.failed.total() > 0 {
            return Err(format!("{:?}", outcome.failed));
        }
        written.array.stop().await.map_err(text)?;
        Ok(Served { ns, cache: above.take_stats() })
    })
}
