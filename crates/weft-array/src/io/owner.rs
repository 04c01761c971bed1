//! What a stripe asks of the array: where its units lie, and how a unit is written.

use std::cell::Cell;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weft_code::SlotNo;
use weft_disk::{Disk, DiskError, WriteOpts};
use weft_rt::Frozen;
use weft_stripe::{DeviceEvent, Location, Owner, Payload, Stripe, StripeId};

use crate::engine::Engine;
use crate::format::length::to_len;
use crate::state::events::Event;

impl Owner for Engine {
    #[inline]
    fn resolve(&self, id: StripeId) -> Stripe<'_> {
        self.stripe(id)
    }

    fn place(&self, id: StripeId, unit: usize, from: u64) -> Location {
        self.location(id, unit, from)
    }

    fn disk(&self, slot: SlotNo) -> Option<Rc<dyn Disk>> {
        self.members().disk(slot)
    }

    fn holds(&self, slot: SlotNo, disk: &Rc<dyn Disk>) -> bool {
        self.members().holds(slot, disk)
    }

    fn in_flight(&self, slot: SlotNo) -> &Cell<u32> {
        self.members().in_flight(slot)
    }

    fn sector_bytes(&self) -> usize {
        to_len(self.geometry().sector_bytes)
    }

    fn may_repair(&self) -> bool {
        self.check_writable().is_ok()
    }

    fn balances_load(&self) -> bool {
        self.load_aware_reconstruction()
    }

    fn is_rotational(&self) -> bool {
        self.members().any_rotational()
    }

    fn met(&self, slot: SlotNo, what: DeviceEvent) {
        match what {
            DeviceEvent::ReadError => self.members().count_read_error(slot),
            DeviceEvent::Repaired { offset, len } => {
                self.members().count_repair(slot);
                self.events().emit(Event::ReadErrorRepaired { slot, offset, len });
            }
        }
    }

    fn failed<'a>(
        &'a self,
        slot: SlotNo,
        disk: &'a Rc<dyn Disk>,
        error: &'a DiskError,
    ) -> LocalBoxFuture<'a, ()> {
        Box::pin(self.member_failed(slot, disk, error))
    }

    fn second(&self, id: StripeId, slot: SlotNo) -> Option<Rc<dyn Disk>> {
        self.members().second_for_write(slot, |lane| self.map().is_stale(lane, id))
    }

    fn write_both<'a>(
        &'a self,
        id: StripeId,
        slot: SlotNo,
        (disk, second): (&'a Rc<dyn Disk>, Rc<dyn Disk>),
        offset: u64,
        data: Frozen,
        opts: WriteOpts,
    ) -> LocalBoxFuture<'a, Result<(), DiskError>> {
        Box::pin(self.write_to_both(id, slot, (disk, second), offset, data, opts))
    }

    fn wait_for_space<'a>(
        &'a self,
        slot: SlotNo,
        disk: &'a Rc<dyn Disk>,
        offset: u64,
        data: Frozen,
        opts: WriteOpts,
        error: DiskError,
    ) -> LocalBoxFuture<'a, Result<(), DiskError>> {
        let len = data.len() as u64;
        let write = move || disk.write(offset, data.clone(), opts);
        Box::pin(self.wait_for_room(slot, disk, len, write, error))
    }
    fn record_room(&self, slot: SlotNo, len: usize) -> Payload {
        match self.log() {
            Some(log) => log.room(slot, len),
            None => Payload::new(len),
        }
    }
}
