//! Resync: making parity agree with the data in the regions that were dirty at a crash.
//!
//! If a stripe finds no space, its region keeps its mark and the other regions continue. That
//! stripe is retried now and then; once it finds space, everything that is left is resynced.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use weft_code::UnitSet;
use weft_stripe::{Access, StripeId, check};

use crate::engine::Engine;
use crate::error::ArrayError;
use crate::maintenance::JobKind;
use crate::maintenance::throttle::Window;
use crate::region_map::RegionNo;
use crate::state::events::Event;

impl Engine {
    fn regions_to_resync(&self) -> Vec<RegionNo> {
        let all = (0..self.geometries().region_count()).map(RegionNo);
        all.filter(|region| self.map().needs_resync(*region)).collect()
    }

    /// Retries the stripe that last found no space. Returns whether it still finds none.
    async fn resync_lacks_space(&self) -> bool {
        let Some(stripe) = self.space().resync().filter(|stripe| self.awaits_resync(*stripe))
        else {
            return false;
        };
        let lacks = matches!(self.resync_paced(stripe).await, Err(ArrayError::NoSpace { .. }));
        if !lacks {
            self.space().set_resync(None);
        }
        lacks
    }

    /// Resyncs every region that needs it and can be resynced.
    pub(crate) async fn resync(&self) {
        if self.resync_lacks_space().await {
            self.jobs().stall_resync();
            return;
        }
        let regions = self.regions_to_resync();
        let count = |region: &RegionNo| self.geometries().stripes_of(*region).count() as u64;
        let stripes: u64 = regions.iter().map(count).sum();
        self.events().emit(Event::ResyncStarted { regions: regions.len() as u64 });
        self.jobs().begin(JobKind::Resync, stripes, stripes, self.rt().now());
        let mut failed = None;
        for region in regions {
            if self.must_yield() {
                break;
            }
            self.map().resync_begins(region);
            match self.resync_region(region).await {
                // If the map cannot be written the mark stays: the region is resynced again.
                Ok(()) if !self.must_yield() => {
                    drop(self.map().clear_resync(self, &[region]).await)
                }
                Ok(()) => {}
                // A cause that was noted is not replaced by lack of space.
                Err(ArrayError::NoSpace { .. }) if failed.is_some() => {}
                Err(error) => failed = Some(error),
            }
        }
        self.jobs().end();
        if self.must_yield() {
            return;
        }
        if let Some(error) = failed {
            self.jobs().stall_resync();
            // It is retried automatically.
            if matches!(error, ArrayError::NoSpace { .. }) {
                return;
            }
            let job = "resync".to_owned();
            self.events().emit(Event::JobStalled { job, cause: error.to_string() });
        } else if self.map().resync_count() == 0 {
            self.events().emit(Event::ResyncFinished);
        }
    }

    async fn resync_region(&self, region: RegionNo) -> Result<(), ArrayError> {
        let mut window = Window::default();
        let mut in_flight = FuturesUnordered::new();
        let mut stripes = self.geometries().stripes_of(region);
        let mut result = Ok(());
        loop {
            let (now, flying) = (self.rt().now(), in_flight.len());
            let most = window.stripes(self.jobs().throttle(), now, flying, self.window());
            if !self.must_yield()
                && flying < most
                && let Some(stripe) = stripes.next()
            {
                window.count(self.geometry().unit_bytes);
                in_flight.push(self.resync_paced(stripe));
                continue;
            }
            let Some(done) = in_flight.next().await else { return result };
            self.jobs().step(self.rt().now(), 1);
            result = result.and(done);
        }
    }

    async fn resync_paced(&self, stripe: StripeId) -> Result<(), ArrayError> {
        // An array that is being stopped does this stripe at once.
        self.pace(|| self.service().is_stopped()).await;
        let _memory = self.job_memory(self.geometry_of(stripe)).await?;
        let _lock = self.locks().exclusive(stripe).await;
        self.check_not_torn(stripe)?;
        let result = self.resync_stripe(stripe).await;
        if matches!(result, Err(ArrayError::NoSpace { .. })) {
            self.space().set_resync(Some(stripe));
        }
        result
    }

    /// Makes the parity of a stripe agree with its data. Lost units keep the value that the code
    /// gives for them now. The caller holds the stripe's lock.
    ///
    /// # Errors
    /// [`ArrayError::NoSpace`] if there was not enough space for what must be written, or for the
    /// repair of unreadable sectors.
    async fn resync_stripe(&self, id: StripeId) -> Result<(), ArrayError> {
        let mut unrepaired = UnitSet::new();
        for (from, len) in self.runs(self.geometry_of(id)) {
            let (stripe, at) = (self.stripe(id), Access::maintenance(from));
            let checked = check(self, stripe, at, len).await;
            let checked = checked.map_err(|error| self.unreadable(id, error))?;
            let wrong: UnitSet = checked.wrong.iter().map(|(unit, _)| *unit).collect();
            self.write_back(id, at, checked.wrong).await?;
            unrepaired = unrepaired.union(&checked.unrepaired.difference(&wrong));
        }
        self.check_writable()?;
        match unrepaired.iter().next() {
            Some(unit) => Err(self.note_no_space(self.slot_of(id, unit))),
            None => Ok(()),
        }
    }
}
