//! What the members' logs hold after a crash, and which of it counts.
//!
//! *A log that cannot be read.* The batch that was being written at a power cut may have become
//! unreadable. The write that it was for had not begun, so nothing is missed: it counts as never
//! written, and is overwritten with zeros, since the next recovery could not tell why it cannot be
//! read. Anything else that cannot be read may have been a record that is needed. If all data is
//! there, such a log is done without, and the resync of the dirty regions makes its parity right;
//! else its member counts as lost.

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_code::UnitSet;
use weft_disk::{Disk, DiskError, WriteOpts};
use weft_rt::Buf;

use crate::area::Area;
use crate::array::Inner;
use crate::geometry::to_len;
use crate::log::{FoundRecord, LogId, Scan, pieces};
use crate::salvage::{BLOCK, salvage};

/// A block of a member's log that cannot be read.
pub(crate) struct LogBlock {
    slot: usize,
    disk: Rc<dyn Disk>,
    offset: u64,
}

/// The logs of all members that count.
pub(super) struct Logs {
    /// By slot.
    pub scans: BTreeMap<usize, Scan>,
    /// Blocks that were being written at the crash.
    pub torn: Vec<LogBlock>,
    /// Blocks of logs that are done without.
    pub unread: Vec<LogBlock>,
}

impl Inner {
    /// Reads the logs of the assembly `id`. A member whose log cannot be done without is excluded.
    pub(super) async fn read_logs(&self, id: LogId, area: &Area) -> Logs {
        let mut logs = Logs { scans: BTreeMap::new(), torn: Vec::new(), unread: Vec::new() };
        let len = to_len(area.log_bytes);
        for (slot, disk) in self.members.disks() {
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
            self.members.count_read_error(slot);
            let was_being_written = bad.iter().all(|at| scan.may_be_torn(*at, len));
            let offset = |at: usize| area.log_offset + at as u64;
            let block = |at| LogBlock { slot, disk: disk.clone(), offset: offset(at) };
            let blocks = bad.into_iter().map(block);
            if was_being_written {
                logs.torn.extend(blocks);
                logs.scans.insert(slot, scan);
            } else if self.members.all_active() {
                logs.unread.extend(blocks);
            } else {
                self.member_failed(slot, &disk, &error).await;
            }
        }
        logs
    }

    /// The sane records in a member's log, the blocks that cannot be read, and what the disk said of
    /// the first of these.
    async fn read_log(
        &self,
        id: LogId,
        area: &Area,
        slot: usize,
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

    /// Writes blocks of logs that could not be read, so that they can.
    pub(crate) async fn renew_log_blocks(&self, blocks: Vec<LogBlock>) {
        for LogBlock { slot, disk, offset } in blocks {
            if !self.members.holds(slot, &disk) {
                continue;
            }
            match disk.write(offset, Buf::zeroed(BLOCK).freeze(), WriteOpts::USER).await {
                Ok(()) => self.members.count_repair(slot),
                Err(error) => self.member_failed(slot, &disk, &error).await,
            }
        }
    }

    /// The records that are not retired, without those that lack a sibling.
    ///
    /// A sibling is missing for one of two reasons. Either it was never durable: then the write had
    /// not begun, and its other records are void. Or its ring has overwritten it, as newer batches
    /// there show: then it was retired, and with it everything older of the same columns.
    pub(super) fn complete_sets(&self, scans: BTreeMap<usize, Scan>) -> Vec<FoundRecord> {
        let retired_below = scans.values().map(|scan| scan.retired_below).max().unwrap_or(0);
        let rings: BTreeMap<usize, u64> =
            scans.iter().map(|(slot, scan)| (*slot, scan.newest_batch_from)).collect();
        let mut sets: BTreeMap<(u64, u64, u64), Vec<FoundRecord>> = BTreeMap::new();
        let found = scans.into_values().flat_map(|scan| scan.records);
        for record in found.filter(|record| record.seq >= retired_below) {
            sets.entry((record.seq, record.stripe, record.from)).or_default().push(record);
        }
        let mut whole: Vec<FoundRecord> = Vec::new();
        // In the order of their sequence numbers.
        for ((seq, stripe, from), set) in sets {
            let units: UnitSet = set.iter().map(|record| record.unit).collect();
            let named = set.iter().fold(UnitSet::new(), |all, record| all.union(&record.named));
            let missing = named.difference(&self.geometry.data_units()).difference(&units);
            let rings = missing.iter().filter_map(|u| rings.get(&self.geometry.slot(stripe, u)));
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

    /// A record must name a parity unit of the slot that held it, and whole sectors of columns that
    /// exist.
    fn is_sane(&self, slot: usize, record: &FoundRecord) -> bool {
        let (k, width) = (self.geometry.code.k(), self.geometry.code.width());
        record.stripe < self.geometry.stripes
            && (k..width).contains(&record.unit)
            && self.geometry.slot(record.stripe, record.unit) == slot
            && record.len > 0
            && record.from + record.len as u64 <= self.geometry.unit_bytes
            && record.from.is_multiple_of(self.geometry.sector_bytes)
            && (record.len as u64).is_multiple_of(self.geometry.sector_bytes)
            && record.named.is_subset(&self.geometry.units())
            && record.named.contains(record.unit)
    }
}
