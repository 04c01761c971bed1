//! The end of a node in order, which needs its keeper.
//!
//! An unmount makes durable what programs have not synced, gives back what the node has, and ends
//! its log: the keeper has a part in each. So it may have to wait for a keeper, and that must end.
//! A node that gives up ends as one that was killed: the keeper expels it when its lease has ended,
//! fences it, and recovers its log. It does not leave the cluster, because a request may still be
//! on its way to a disk.

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::{Either, select};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::log_line;
use weft_cli::size::show_duration;
use weft_fs::Fs;
use weft_rt::{Nanos, Rt, SECOND};

use super::LOOK_EVERY;
use crate::commands::fs::{ending, failed as failed_fs};
use crate::daemon::notify;

/// How long an end in order waits for a keeper, if not less is asked for.
const KEEPER_PATIENCE: Nanos = 60 * SECOND;
/// How long it takes at most while the keeper is there.
const UNMOUNT_PATIENCE: Nanos = 600 * SECOND;
/// How long a keeper may be away before that is said.
const SILENT_FOR: Nanos = SECOND;

/// The end of a mounted node in order.
pub(super) struct Departure<'a> {
    rt: &'a Rt,
    signals: &'a ending::Signals,
    fs: &'a Fs,
    patience: Nanos,
    has_said: Cell<bool>,
}

impl<'a> Departure<'a> {
    /// The end of `fs`, which waits for a keeper no longer than `stop_timeout`.
    pub(super) fn new(
        rt: &'a Rt,
        signals: &'a ending::Signals,
        fs: &'a Fs,
        stop_timeout: Duration,
    ) -> Self {
        let patience = Nanos::try_from(stop_timeout.as_nanos()).unwrap_or(Nanos::MAX);
        let patience = patience.min(KEEPER_PATIENCE);
        Self { rt, signals, fs, patience, has_said: Cell::new(false) }
    }

    /// Waits until the unmount that signals have asked for cannot go on, as it waits for a keeper.
    pub(super) async fn drain_is_stuck(&self) -> Failure {
        self.signals.wait(1).await;
        self.is_stuck(1, Nanos::MAX).await
    }

    /// Unmounts what programs do not use any more.
    pub(super) async fn unmount(&self) -> Outcome {
        let until = self.rt.now() + UNMOUNT_PATIENCE;
        let stuck = Box::pin(self.is_stuck(self.signals.heard(), until));
        match select(Box::pin(self.fs.unmount()), stuck).await {
            Either::Left((unmounted, _)) => unmounted.map_err(failed_fs),
            Either::Right((failure, _)) => Err(failure),
        }
    }

    /// Waits until there is no keeper for too long, a signal comes while there is none, or a second
    /// one after `before`.
    async fn is_stuck(&self, before: usize, until: Nanos) -> Failure {
        let mut away_since = None;
        loop {
            let now = self.rt.now();
            let heard = self.signals.heard();
            away_since = if self.fs.has_keeper() { None } else { away_since.or(Some(now)) };
            let away = away_since.map_or(0, |since| now - since);
            if away > SILENT_FOR && !self.has_said.replace(true) {
                log_line(&format!(
                    "ending: waiting at most {} for a keeper, to write what was not synced; a \
                     signal ends it without",
                    show_duration(Duration::from_nanos(self.patience))
                ));
            }
            if heard > 2 || heard > before + 1 || heard > before && away_since.is_some() {
                return ended("a signal has ended it");
            }
            if away >= self.patience {
                return ended("there is no keeper");
            }
            if now >= until {
                return ended("its keeper did not let it end in order");
            }
            if away_since.is_some() {
                notify::extend_timeout();
            }
            self.rt.sleep(LOOK_EVERY).await;
        }
    }
}

fn ended(why: &str) -> Failure {
    Failure::new(format!("{why}: the mount has ended, but not in order")).hint(
        "what was synced is safe: the keeper recovers it from this node's log; what was not may be lost",
    )
}
