//! An array that is being served.

use std::cell::RefCell;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_array::Array;
use weft_cache::CachedVolume;
use weft_cli::failure::{Failure, Outcome};
use weft_disk::Volume;
use weft_nbd::Export;
use weft_rt::sync::Notify;
use weft_ublk::session::Session;

use crate::daemon::guarded::GuardedVolume;
use crate::daemon::isolation::Isolation;
use crate::daemon::log;

/// How an array is attached as a block device.
#[derive(Clone)]
pub enum Front {
    /// By FUSE and a loop device.
    Fuse {
        /// Who serves it.
        session: Rc<weft_fuse::session::Session>,
        /// Whether systemd keeps the channel for the next daemon.
        kept: bool,
    },
    /// By the kernel's NBD client.
    Nbd,
    /// By ublk; it is being prepared.
    UblkStarting,
    /// By the ublk device of this number.
    Ublk {
        /// The number.
        number: u32,
        /// Who serves it.
        session: Rc<Session>,
    },
}

/// An array that is being served.
pub struct Served {
    /// The array.
    pub array: Array,
    /// The boundary that keeps its faults from the other arrays.
    pub isolation: Rc<Isolation>,
    /// The array's cache, off at first. Clients' requests pass it.
    pub cache: Rc<CachedVolume>,
    /// The array for clients.
    pub volume: Rc<dyn Volume>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether it was forced to start: then it may be older than its users know it.
    pub forced: bool,
    /// How it is attached as a block device, if it is.
    pub front: RefCell<Option<Front>>,
    stopped: Notify,
}

impl Served {
    /// Takes `array` into service, and logs its events, those of its start first.
    pub fn new(isolation: &Rc<Isolation>, array: Array, read_only: bool, forced: bool) -> Rc<Self> {
        log::started(&array);
        let isolation = isolation.clone();
        let cache = Rc::new(CachedVolume::new(Rc::new(array.clone())));
        let volume = GuardedVolume::new(cache.clone(), isolation.clone());
        let volume: Rc<dyn Volume> = Rc::new(volume);
        let (front, stopped) = (RefCell::default(), Notify::default());
        let served = Self { array, isolation, cache, volume, read_only, forced, front, stopped };
        let served = Rc::new(served);
        drop(served.isolation.rt().spawn(served.clone().log_events()));
        served
    }

    /// The array as NBD clients are offered it.
    pub fn export(&self) -> Export {
        let status = self.array.status();
        let description = format!("weft array {} ({})", status.name, status.code);
        Export { read_only: self.read_only, ..Export::new(self.volume.clone(), description) }
    }

    /// Notes how to attach it.
    ///
    /// # Errors
    /// If it is attached already.
    pub fn occupy(&self, front: Front) -> Outcome {
        let mut own = self.front.borrow_mut();
        if own.is_some() {
            return Err(self.attached_already());
        }
        *own = Some(front);
        Ok(())
    }

    /// The refusal to attach it once more.
    pub fn attached_already(&self) -> Failure {
        let name = self.array.status().name;
        Failure::new(format!("{name} is attached already"))
            .hint(format!("`weft detach {name}` removes it"))
    }

    /// The number of its ublk device.
    pub fn ublk(&self) -> Option<u32> {
        match &*self.front.borrow() {
            Some(Front::Ublk { number, .. }) => Some(*number),
            _ => None,
        }
    }

    /// Whether the next daemon can take over its block device.
    pub fn can_be_left(&self) -> bool {
        match &*self.front.borrow() {
            Some(Front::Fuse { kept, .. }) => *kept,
            Some(Front::Ublk { .. } | Front::Nbd) => true,
            Some(Front::UblkStarting) => false,
            None => true,
        }
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
