//! What a reshape is measured with.

use std::rc::Rc;

use serde::Deserialize;
use weft_model::Model;
use weft_rt::Nanos;
use weft_trace::Record;

use super::valve::Settings;
use super::{Grow, Way};
use crate::rebuild::Manner;

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
    /// The engine's, with the run's target for the mean response time of users.
    Target,
}

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) grow: Grow,
    pub(crate) model: Model,
    pub(crate) seed: u64,
    pub(crate) way: Way,
    pub(crate) pacing: Pacing,
    /// Bytes of buffers for each disk.
    pub(crate) buffer_bytes: u64,
    /// The mean response time to aim at; `None`: no target.
    pub(crate) target: Option<Nanos>,
    /// Bounds of MD's speed control, in bytes per second.
    pub(crate) min_bytes_s: u64,
    pub(crate) max_bytes_s: Option<u64>,
    /// The trace, its rate in requests per 1000 s, and the request with which it starts.
    pub(crate) users: Option<(Rc<[Record]>, u32, usize)>,
    /// Length of the intervals of the series.
    pub(crate) interval: Nanos,
    /// A reshape that takes longer is stopped: users leave it nothing.
    pub(crate) patience: Nanos,
}
