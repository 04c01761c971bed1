//! Lines with some contents in memory: new parity is computed, and lines are recovered, without
//! reading these.

use std::cell::Cell;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weft_code::{SlotNo, UnitSet};
use weft_disk::{Disk, DiskError};
use weft_rt::Frozen;
use weft_stripe::{DeviceEvent, Location, Owner, Stripe, StripeId};

use crate::disks::extent_stripe::ExtentStripe;
use crate::disks::memory_disk::Memory;
use crate::format::block::BLOCK;

/// Lines with some known contents: these are not read.
pub(crate) struct KnownUnits<'a> {
    laid: &'a ExtentStripe,
    known: Vec<(usize, Rc<dyn Disk>)>,
}

/// Where known contents lie: the slot of unit 0; the slots of further units are below it.
const KNOWN: usize = usize::MAX - 1;

impl<'a> KnownUnits<'a> {
    pub(crate) fn new(laid: &'a ExtentStripe, from: u64, known: &[(usize, Frozen)]) -> Self {
        let disk = |(unit, data): &(usize, Frozen)| {
            (*unit, Rc::new(Memory::holding(from, data.clone())) as Rc<dyn Disk>)
        };
        Self { laid, known: known.iter().map(disk).collect() }
    }

    fn known(&self, slot: SlotNo) -> Option<&Rc<dyn Disk>> {
        let unit = KNOWN.checked_sub(slot.0)?;
        self.known.iter().find(|(known, _)| *known == unit).map(|(_, disk)| disk)
    }
}

impl Owner for KnownUnits<'_> {
    fn resolve(&self, id: StripeId) -> Stripe<'_> {
        let stripe = self.laid.resolve(id);
        let known: UnitSet = self.known.iter().map(|(unit, _)| *unit).collect();
        Stripe { lost: stripe.lost.difference(&known), ..stripe }
    }

    fn place(&self, id: StripeId, unit: usize, from: u64) -> Location {
        let slot = SlotNo(KNOWN - unit);
        match self.known(slot) {
            Some(_) => Location { slot, offset: from },
            None => self.laid.place(id, unit, from),
        }
    }

    fn disk(&self, slot: SlotNo) -> Option<Rc<dyn Disk>> {
        self.known(slot).cloned().or_else(|| self.laid.disk(slot))
    }

    fn holds(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> bool {
        self.disk(slot).is_some_and(|held| Rc::ptr_eq(&held, disk))
    }

    fn in_flight(&self, slot: SlotNo) -> &Cell<u32> {
        self.laid.in_flight(slot)
    }

    fn sector_bytes(&self) -> usize {
        BLOCK
    }

    fn met(&self, slot: SlotNo, what: DeviceEvent) {
        self.laid.met(slot, what);
    }

    fn failed<'a>(
        &'a self,
        slot: SlotNo,
        disk: &'a Rc<dyn Disk>,
        error: &'a DiskError,
    ) -> LocalBoxFuture<'a, ()> {
        self.laid.failed(slot, disk, error)
    }
}
