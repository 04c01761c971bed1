//! An array that is being served.

use std::cell::Cell;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_array::Array;
use weft_cache::CachedVolume;
use weft_cli::failure::{Failure, Outcome};
use weft_disk::Volume;
use weft_nbd::Export;
use weft_rt::sync::Notify;

use crate::daemon::guarded::GuardedVolume;
use crate::daemon::isolation::Isolation;
use crate::daemon::log;

/// An array that is being served.
pub struct Served {
    /// The array.
    pub array: Array,
    /// The boundary that keeps its faults from the others.
    pub isolation: Rc<Isolation>,
    /// The array's cache, off at first. Clients' requests pass it.
    pub cache: Rc<CachedVolume>,
    /// The array for clients.
    pub volume: Rc<dyn Volume>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether it is attached as a block device.
    pub attached: Cell<bool>,
    stopped: Notify,
}

impl Served {
    /// Takes `array` into service, and logs its events, those of its start first.
    pub fn new(isolation: &Rc<Isolation>, array: Array, read_only: bool) -> Rc<Self> {
        log::started(&array);
        let isolation = isolation.clone();
        let cache = Rc::new(CachedVolume::new(Rc::new(array.clone())));
        let volume = GuardedVolume::new(cache.clone(), isolation.clone());
        let volume: Rc<dyn Volume> = Rc::new(volume);
        let (attached, stopped) = (Cell::new(false), Notify::default());
        let served =
            Rc::new(Self { array, isolation, cache, volume, read_only, attached, stopped });
        drop(served.isolation.rt().spawn(served.clone().log_events()));
        served
    }

    /// The array as NBD clients are offered it.
    pub fn export(&self) -> Export {
        let status = self.array.status();
        let description = format!("weft array {} ({})", status.name, status.code);
        Export { read_only: self.read_only, ..Export::new(self.volume.clone(), description) }
    }

    async fn log_events(self: Rc<Self>) {
        let events = self.array.subscribe_from_start();
        let mut stopped = std::pin::pin!(self.stopped.wait());
        loop {
            let next = std::pin::pin!(events.next());
            match select(next, stopped).await {
                Either::Left((event, still)) => {
                    log::event(&self.array, &event);
                    stopped = still;
                }
                Either::Right(_) => return,
            }
        }
    }

    /// Stops the array cleanly.
    pub async fn stop(&self) -> Outcome {
        let name = self.isolation.call(|| self.array.status().name)?;
        // A stopped array answers nothing any more, from memory either.
        self.cache.switch_off();
        let stopped = self.isolation.guard(Box::pin(self.array.stop())).await?;
        self.stopped.notify_all();
        stopped.map_err(|e| {
            log::about(&name, &format!("ALERT: could not be stopped cleanly: {e}"));
            Failure::new(format!("{name} could not be stopped cleanly: {e}"))
                .hint("nothing acknowledged is lost; the next `weft serve` recovers the rest")
        })
    }
}
