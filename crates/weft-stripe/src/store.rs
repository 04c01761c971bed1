//! Writing units to every place that must get them.

use std::rc::Rc;

use futures_util::future::join_all;
use weft_code::SlotNo;
use weft_disk::{Class, Disk, DiskError, WriteOpts};
use weft_rt::Frozen;

use crate::flight::{Busy, InFlight};
use crate::owner::{Owner, Stripe};

/// New contents of a range of offsets in one unit.
#[derive(Debug, Clone)]
pub struct UnitWrite {
    /// The unit.
    pub unit: usize,
    /// First offset in it.
    pub from: u64,
    /// The bytes.
    pub data: Frozen,
}

/// A device that failed a write.
pub struct FailedWrite {
    /// Its slot.
    pub slot: SlotNo,
    /// The device.
    pub disk: Rc<dyn Disk>,
    /// What it answered.
    pub error: DiskError,
}

impl std::fmt::Debug for FailedWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FailedWrite").field("slot", &self.slot).field("error", &self.error).finish()
    }
}

/// How writing units ended.
#[derive(Debug)]
pub struct Stored {
    /// The devices that failed.
    pub failed: Vec<FailedWrite>,
    /// Whether all that was written is durable: with FUA, or as no device has a volatile cache.
    pub durable: bool,
}

/// Writes all units at once to the devices that are present. A user's write waits for space, as its
/// owner decides.
pub async fn store<O: Owner>(
    owner: &O,
    stripe: Stripe<'_>,
    writes: &[UnitWrite],
    opts: WriteOpts,
) -> Stored {
    let mut durable = true;
    let mut targets = Vec::with_capacity(writes.len());
    for write in writes.iter().filter(|write| !stripe.lost.contains(write.unit)) {
        let place = owner.place(stripe.id, write.unit, write.from);
        if let Some(disk) = owner.disk(place.slot) {
            targets.push((place, disk, &write.data));
        }
    }
    let mut flight = InFlight::with_capacity(targets.len());
    for (place, disk, data) in &targets {
        let data = Frozen::clone(data);
        durable &= opts.fua || !disk.info().volatile_cache;
        flight.push(
            match owner.second(stripe.id, place.slot) {
                None => disk.write(place.offset, data, opts),
                Some(second) => {
                    durable &= opts.fua || !second.info().volatile_cache;
                    let disks = (disk, second);
                    owner.write_both(stripe.id, place.slot, disks, place.offset, data, opts)
                }
            },
            Busy::on(owner.in_flight(place.slot)),
        );
    }
    let mut failed = Vec::new();
    flight.all(|index, result| failed.extend(result.err().map(|error| (index, error)))).await;
    if failed.is_empty() {
        return Stored { failed: Vec::new(), durable };
    }
    failed.sort_by_key(|(index, _)| *index);
    let again = failed.into_iter().map(|(index, error)| {
        let (place, disk, data) = &targets[index];
        let (slot, offset) = (place.slot, place.offset);
        async move {
            let error = if error.is_no_space() && opts.class == Class::User {
                let data = Frozen::clone(data);
                owner.wait_for_space(slot, disk, offset, data, opts, error).await.err()?
            } else {
                error
            };
            Some(FailedWrite { slot, disk: disk.clone(), error })
        }
    });
    let failed = Box::pin(join_all(again)).await.into_iter().flatten().collect();
    Stored { failed, durable }
}
