//! Numbers of nodes: each name has one.
//!
//! A node's block has its name. A node whose name is in no block takes the first block without one;
//! of several that take the same block at most one goes on, and the others look again. Number 0 has
//! no name: commands use it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use weft_disk::Disk;
use weft_rt::{Nanos, Rt};

use super::{DiskCoordinator, DiskLeaseConfig, NO_MAJORITY, unreachable};
use crate::NodeName;
use crate::clock::Clock;
use crate::coordinator::CoordinatorError;

/// How often a node looks for a number when others take them at the same time.
const ATTEMPTS: u64 = 8;

/// The number that commands use.
pub const COMMANDS: u32 = 0;

impl DiskCoordinator {
    /// Starts to use the disks as the node of this name, whatever its number is. `disks` gives the
    /// disks for a node of a number, and for none: to be read.
    ///
    /// # Errors
    /// As [`open`](Self::open); there is no number for another name.
    pub async fn open_as(
        rt: &Rt,
        clock: Rc<dyn Clock>,
        disks: impl Fn(Option<u32>) -> Vec<Rc<dyn Disk>>,
        config: DiskLeaseConfig,
        name: &NodeName,
    ) -> Result<Self, CoordinatorError> {
        let (mut attempts, mut contested) = (0, BTreeSet::new());
        loop {
            attempts += 1;
            let look = Self::watch(rt, clock.clone(), disks(None), config.clone()).await?;
            let names = look.names().await?;
            let known = names.iter().find(|(_, of)| *of == name).map(|(number, _)| *number);
            let is_free = |number: &u32| !names.contains_key(number) && !contested.contains(number);
            let free = (COMMANDS + 1..config.nodes).find(is_free);
            let number = known.or(free).ok_or_else(|| {
                let names: Vec<&str> = names.values().map(NodeName::as_str).collect();
                let (most, names) = (config.nodes - 1, names.join(", "));
                let why = format!("the disks have room for {most} names of nodes: {names}");
                CoordinatorError::Refused(why)
            })?;
            // Each attempt is another process to the others.
            let seed = config.seed.wrapping_add(attempts);
            let config = DiskLeaseConfig { number, seed, ..config.clone() };
            let parts = (config, Some(name.clone()));
            let this = Self::prepare(rt, clock.clone(), disks(Some(number)), parts).await?;
            match this.started().await {
                Ok(this) => return Ok(this),
                // Another name has taken the block first.
                Err(CoordinatorError::Ousted(_)) if known.is_none() && attempts < ATTEMPTS => {
                    contested.insert(number);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The names of nodes that have a number.
    async fn names(&self) -> Result<BTreeMap<u32, NodeName>, CoordinatorError> {
        let visits = self.0.round(None).await.ok_or_else(|| unreachable(NO_MAJORITY))?;
        let mut names = BTreeMap::new();
        for number in 0..self.0.config.nodes {
            let of_node = visits.iter().map(|visit| &visit.blocks[number as usize]);
            let newest = of_node.max_by_key(|(sequence, _)| *sequence);
            if let Some(name) = newest.and_then(|(_, block)| block.name.clone()) {
                names.insert(number, name);
            }
        }
        Ok(names)
    }

    /// Waits until it is known which processes live: until all that have a lease have given a sign,
    /// or had the time to.
    ///
    /// # Errors
    /// No majority of the disks answers.
    pub async fn await_signs(&self, look_every: Nanos) -> Result<(), CoordinatorError> {
        let shared = &self.0;
        let begin = shared.clock.now();
        loop {
            self.view().await?;
            let signs = shared.signs.borrow().values().all(|sign| {
                sign.session.is_none() || sign.since > begin.saturating_add(look_every)
            });
            if signs || shared.clock.now().saturating_sub(begin) > shared.config.lease {
                return Ok(());
            }
            shared.clock.sleep(look_every).await;
        }
    }
}
