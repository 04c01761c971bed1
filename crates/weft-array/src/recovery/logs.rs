//! The members' logs after a crash, and which of their records count.
//!
//! *A log that cannot be read.* A power cut may make the batch unreadable that was being written.
//! The stripe write that it logs had not started, so nothing is missing. The batch counts as never
//! written, and is overwritten with zeros: the next recovery could not tell why it is unreadable.
//! Any other unreadable block may hold a record that is needed. If no data is lost, recovery goes
//! on without that log, and the resync of the dirty regions makes its parity right. Otherwise the
//! log's member counts as lost.

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_code::{SlotNo, UnitSet};
use weft_disk::{Disk, DiskError, WriteOpts};
use weft_rt::Buf;
use weft_stripe::StripeId;

use crate::engine::Engine;
use crate::format::length::to_len;
use crate::log::{FoundRecord, LogId, Scan, pieces};
use crate::superblock::area::Area;
use crate::superblock::salvage::{BLOCK, salvage};

/// A block of a member's log that cannot be read.
pub(crate) struct LogBlock {
    slot: SlotNo,
    disk: Rc<dyn Disk>,
    offset: u64,
}

/// The logs of all members that take part.
pub(super) struct Logs {
    /// By slot.
    pub scans: BTreeMap<SlotNo, Scan>,
    /// Unreadable blocks of the batches that were being written at the crash.
    pub torn: Vec<LogBlock>,
    /// Unreadable blocks of logs that recovery does without.
    pub unread: Vec<LogBlock>,
}

impl Engine {
    /// Reads the logs of the assembly `id`. A member is excluded if recovery needs its log and
    /// cannot read it.
    pub(super) async fn read_logs(&self, id: LogId, area: &Area) -> Logs {
        let mut logs = Logs { scans: BTreeMap::new(), torn: Vec::new(), unread: Vec::new() };
        let len = to_len(area.log_bytes);
        for (slot, disk) in self.members().disks() {
            let (scan, bad, error) = match self.read_log(id, area, slot, &disk).await {
                Ok(read) => read,
                Err(error) => {
                    self.member_failed(slot, &disk, &error).await;
                    continue;
                }
            };
            let Some(error) = error else {
                logs.scans.insert(slot, scan);
                continue;
            };
            self.members().count_read_error(slot);
            let was_being_written = bad.iter().all(|at| scan.may_be_torn(*at, len));
            let offset = |at: usize| area.log_offset + at as u64;
            let block = |at| LogBlock { slot, disk: disk.clone(), offset: offset(at) };
            let blocks = bad.into_iter().map(block);
            if was_being_written {
                logs.torn.extend(blocks);
                logs.scans.insert(slot, scan);
            } else if self.members().all_active() {
                logs.unread.extend(blocks);
            } else {
                self.member_failed(slot, &disk, &error).await;
            }
        }
        logs
    }

    /// The plausible records of a member's log, the blocks that cannot be read, and the disk's
    /// error for the first of them.
    async fn read_log(
        &self,
        id: LogId,
        area: &Area,
        slot: SlotNo,
        disk: &Rc<dyn Disk>,
    ) -> Result<(Scan, Vec<usize>, Option<DiskError>), DiskError> {
        let (mut scan, mut bad, mut error) = (Scan::default(), Vec::new(), None);
        for piece in pieces(to_len(area.log_bytes)) {
            let (from, len) = (piece.bytes.start, piece.bytes.len());
            let read = salvage(&**disk, area.log_offset + from as u64, len as u64).await?;
            let blocks = read.bad.into_iter().map(|at| from + at);
            bad.extend(blocks.filter(|at| piece.heads.contains(at)));
            error = error.or(read.error);
            scan.add(&piece, &read.area.freeze(), id);
            scan.records.retain(|record| self.is_sane(slot, record));
        }
        Ok((scan, bad, error))
    }

    /// Overwrites log blocks that could not be read, so that they can be read again.
    pub(crate) async fn renew_log_blocks(&self, blocks: Vec<LogBlock>) {
        for LogBlock { slot, disk, offset } in blocks {
            if !self.members().holds(slot, &disk) {
                continue;
            }
            match disk.write(offset, Buf::zeroed(BLOCK).freeze(), WriteOpts::USER).await {
                Ok(()) => self.members().count_repair(slot),
                Err(error) => self.member_failed(slot, &disk, &error).await,
            }
        }
    }

    /// The records that are not retired, without incomplete sets.
    ///
    /// A record lacks a sibling for one of two reasons. If the sibling was never durable, the write
    /// had not started, and its other records are void. If its ring has overwritten it, as newer
    /// batches there show, it was retired, and so was every older record for the same offsets.
    pub(super) fn complete_sets(&self, scans: BTreeMap<SlotNo, Scan>) -> Vec<FoundRecord> {
        let retired_below = scans.values().map(|scan| scan.retired_below).max().unwrap_or(0);
        let rings: BTreeMap<SlotNo, u64> =
            scans.iter().map(|(slot, scan)| (*slot, scan.newest_batch_from)).collect();
        let mut sets: BTreeMap<(u64, StripeId, u64), Vec<FoundRecord>> = BTreeMap::new();
        let found = scans.into_values().flat_map(|scan| scan.records);
        for record in found.filter(|record| record.seq >= retired_below) {
            sets.entry((record.seq, record.stripe, record.from)).or_default().push(record);
        }
        let mut whole: Vec<FoundRecord> = Vec::new();
        // By ascending sequence number.
        for ((seq, stripe, from), set) in sets {
            let units: UnitSet = set.iter().map(|record| record.unit).collect();
            let named = set.iter().fold(UnitSet::new(), |all, record| all.union(&record.named));
            let missing =
                named.difference(&self.geometry_of(stripe).data_units()).difference(&units);
            let rings = missing.iter().filter_map(|u| rings.get(&self.slot_of(stripe, u)));
            let (mut absent, mut overwritten) = (false, false);
            for newest_batch_from in rings {
                absent = true;
                overwritten |= *newest_batch_from > seq;
            }
            if overwritten {
                let end = from + set.first().map_or(0, |record| record.len as u64);
                whole.retain(|older| {
                    older.stripe != stripe
                        || older.from >= end
                        || older.from + older.len as u64 <= from
                });
            } else if !absent {
                whole.extend(set);
            }
        }
        whole
    }

    /// Whether a record is plausible: it names a parity unit of its own slot, and whole sectors
    /// within the unit.
    fn is_sane(&self, slot: SlotNo, record: &FoundRecord) -> bool {
        let Some(geometry) = self.geometries().find(record.stripe.generation) else { return false };
        let (k, width) = (geometry.code().k(), geometry.code().width());
        record.stripe.number < geometry.stripes()
            && self.geometries().is_live(record.stripe)
            && (k..width).contains(&record.unit)
            && self.slot_of(record.stripe, record.unit) == slot
            && record.len > 0
            && record.from + record.len as u64 <= geometry.unit_bytes
            && record.from.is_multiple_of(geometry.sector_bytes)
            && (record.len as u64).is_multiple_of(geometry.sector_bytes)
            && record.named.is_subset(&geometry.units())
            && record.named.contains(record.unit)
    }
}
