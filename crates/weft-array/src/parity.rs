//! The parity of a stripe write: bands, which units to read, the new parity, and the partial parity
//! for the log.

use weft_code::UnitSet;
use weft_rt::{Buf, Frozen};

use crate::array::Inner;
use crate::error::ArrayError;
use crate::gather::{StripeAccess, Units};
use crate::geometry::to_len;
use crate::log::{ParityRecord, Record, Unflushed};
use crate::write::Segment;

/// A range of offsets in which the same data units are written.
#[derive(Debug)]
pub(crate) struct Band {
    pub from: u64,
    pub len: usize,
    /// The data units written.
    pub units: UnitSet,
    /// Their new contents, in the order of the units.
    pub data: Vec<(usize, Frozen)>,
}

impl Band {
    /// Cuts segments (sorted, not overlapping) into bands.
    pub fn of(segments: &[Segment]) -> Vec<Self> {
        let end = |segment: &Segment| segment.unit_offset + segment.data.len() as u64;
        let mut cuts: Vec<u64> = segments.iter().flat_map(|s| [s.unit_offset, end(s)]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut bands = Vec::new();
        for range in cuts.windows(2) {
            let (from, len) = (range[0], to_len(range[1] - range[0]));
            let data: Vec<_> = segments
                .iter()
                .filter(|segment| segment.unit_offset <= from && from < end(segment))
                .map(|s| (s.unit, s.data.slice(to_len(from - s.unit_offset), len)))
                .collect();
            if !data.is_empty() {
                let units = data.iter().map(|(unit, _)| *unit).collect();
                bands.push(Self { from, len, units, data });
            }
        }
        bands
    }

    /// A part of the band's range, as a band.
    pub fn part(&self, from: u64, len: usize) -> Self {
        let skip = to_len(from - self.from);
        let data = self.data.iter().map(|(unit, data)| (*unit, data.slice(skip, len))).collect();
        Self { from, len, units: self.units, data }
    }

    /// The new contents of a unit that the band writes.
    pub fn new_data(&self, unit: usize) -> &[u8] {
        let (_, data) = self.data.iter().find(|(u, _)| *u == unit).expect("the unit is written");
        data
    }
}

/// How a band's parity is updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    ReadModifyWrite,
    ReconstructWrite,
}

/// A band with its new parity, ready to be logged and written.
pub(crate) struct Ready {
    pub band: Band,
    /// New contents of every parity unit that the band touches and whose member is present.
    pub parity: Units,
    pub record: Option<Record>,
    others: Unflushed,
}

impl Inner {
    /// Computes the parity of a stripe write, and the records that must be in the log first. What
    /// that relied on still holds when this returns: which units are lost, and which others a crash
    /// may turn old again. If there is a log, the exclusion of lost members is durable.
    pub(crate) async fn prepare(
        &self,
        stripe: u64,
        segments: &[Segment],
    ) -> Result<Vec<Ready>, ArrayError> {
        loop {
            self.flush_lost(stripe).await?;
            if self.log.is_some() {
                // A record counts a lost unit with its new value. If its member came back after a
                // crash with the old value, recovery would make parity agree with neither.
                self.settled().await?;
            }
            let lost = self.lost_units(stripe);
            let later = lost.union(&self.lost_after_crash(stripe));
            let mut ready = Vec::new();
            for band in Band::of(segments) {
                for others in self.unflushed_others(stripe, &band) {
                    let part = band.part(others.from, others.len);
                    ready.push(self.update_parity(stripe, (lost, later), part, others).await?);
                }
            }
            let same = |r: &Ready| self.unflushed_others(stripe, &r.band) == [r.others];
            let same_lost =
                self.lost_units(stripe) == lost && self.lost_after_crash(stripe).is_subset(&later);
            let settled = self.log.is_none() || self.members.changes.is_settled();
            if same_lost && settled && ready.iter().all(same) {
                return Ok(ready);
            }
        }
    }

    /// The units that a crash may turn old again, except those that the band writes.
    fn unflushed_others(&self, stripe: u64, band: &Band) -> Vec<Unflushed> {
        match &self.log {
            Some(log) => log.unflushed(stripe, band.from, band.len, band.units),
            None => vec![Unflushed { from: band.from, len: band.len, units: UnitSet::new() }],
        }
    }

    /// Flushes all members if a unit of the stripe was lost after it was written and before it was
    /// flushed (see `log.rs`, "Lost units").
    async fn flush_lost(&self, stripe: u64) -> Result<(), ArrayError> {
        let Some(log) = &self.log else { return Ok(()) };
        loop {
            self.check_writable()?;
            let lost = self.lost_units(stripe).union(&self.lost_after_crash(stripe));
            if lost.is_empty() || !log.any_unflushed(stripe, lost) {
                return Ok(());
            }
            let progress = log.progress();
            let before = log.completed_below();
            Box::pin(self.flush_members()).await;
            if log.any_unflushed(stripe, lost) && log.completed_below() == before {
                progress.await;
            }
        }
    }

    /// Computes the new contents of every parity unit that `band` touches and whose member is
    /// present, and the record that must be in the log before they are written.
    async fn update_parity(
        &self,
        stripe: u64,
        (lost, later): (UnitSet, UnitSet),
        band: Band,
        others: Unflushed,
    ) -> Result<Ready, ArrayError> {
        let code = &self.geometry.code;
        let k = code.k();
        // Where parity may be wrong (dirty at a crash), all of it is made right. If units are lost,
        // or will be after a crash, data written now may have to be decoded from parity rows that
        // do not cover the band.
        let unsure = self.awaits_resync(stripe);
        let rows: Vec<usize> = (0..code.p())
            .filter(|row| !lost.contains(k + row))
            .filter(|row| unsure || self.geometry.support(stripe, *row).intersects(&band.units))
            .collect();
        self.check_storable(stripe, lost, &band)?;
        if rows.is_empty() {
            let record = self.log.as_ref().map(|_| bare_record(&band, &others, later));
            return Ok(Ready { band, parity: Units::new(), record, others });
        }
        let support = rows
            .iter()
            .fold(UnitSet::new(), |all, row| all.union(&self.geometry.support(stripe, *row)));
        let (method, mut wanted) = self.choose(stripe, lost, &band, &rows, support, unsure);
        let left_out = band.units.union(&others.units).difference(&later);
        if !support.is_subset(&left_out) {
            // The record must not count units that a crash may turn old again: they are read and
            // subtracted.
            wanted = wanted.union(&others.units.difference(&lost).intersection(&support));
        }
        let at = StripeAccess::user(stripe, band.from);
        let old: Units = wanted.iter().map(|unit| (unit, Buf::new(band.len))).collect();
        let (result, mut old) = self.gather(at, lost, old).await;
        result?;
        let parity = match method {
            Method::ReconstructWrite => self.encode(stripe, &band, &rows, support, &old),
            Method::ReadModifyWrite => self.fold_in(stripe, &band, &rows, &mut old),
        };
        let record =
            self.log.as_ref().map(|_| self.record(stripe, later, &band, &parity, &old, &others));
        Ok(Ready { band, parity, record, others })
    }

    /// Checks that the remaining parity can hold the new contents of lost units.
    fn check_storable(&self, stripe: u64, lost: UnitSet, band: &Band) -> Result<(), ArrayError> {
        if !lost.is_empty() && !self.geometry.code.decodable(stripe, lost) {
            let offset =
                self.geometry.offset(stripe, band.units.iter().next().unwrap_or(0), band.from);
            return Err(ArrayError::Unreadable { offset, len: band.len as u64, lost: lost.len() });
        }
        Ok(())
    }

    /// Chooses the method that reads fewer units; returns it with the units to read.
    fn choose(
        &self,
        stripe: u64,
        lost: UnitSet,
        band: &Band,
        rows: &[usize],
        support: UnitSet,
        unsure: bool,
    ) -> (Method, UnitSet) {
        let k = self.geometry.code.k();
        let others = support.difference(&band.units);
        let parity: UnitSet = rows.iter().map(|row| k + row).collect();
        let olds = band.units.intersection(&support).union(&parity);
        // Folding a difference into wrong parity would keep it wrong, and the data written now
        // would be lost if its disk failed before the resync.
        let reads = |wanted: UnitSet| {
            if wanted.intersects(&lost) {
                let plan = self.plan(stripe, lost, wanted, UnitSet::new());
                plan.map_or(usize::MAX, |plan| plan.reads.len())
            } else {
                wanted.len()
            }
        };
        if unsure || reads(others) <= reads(olds) {
            (Method::ReconstructWrite, others)
        } else {
            (Method::ReadModifyWrite, olds)
        }
    }

    /// Encodes parity from all data: new contents where written, old contents elsewhere.
    fn encode(
        &self,
        stripe: u64,
        band: &Band,
        rows: &[usize],
        support: UnitSet,
        old: &Units,
    ) -> Units {
        let code = &self.geometry.code;
        let sources: Vec<usize> = support.iter().collect();
        let values: Vec<&[u8]> = sources.iter().map(|unit| band_or(band, old, *unit)).collect();
        let coefs: Vec<Vec<u8>> = rows
            .iter()
            .map(|row| sources.iter().map(|unit| code.coef(stripe, *row, *unit)).collect())
            .collect();
        let coefs: Vec<&[u8]> = coefs.iter().map(Vec::as_slice).collect();
        let mut parity: Vec<Buf> = rows.iter().map(|_| Buf::new(band.len)).collect();
        let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(|buf| &mut **buf).collect();
        weft_gf::encode(&coefs, &values, &mut outputs);
        rows.iter().map(|row| code.k() + row).zip(parity).collect()
    }

    /// Updates the old parity by the difference of old and new data. The buffers of old data hold
    /// the difference afterwards; the buffers of old parity move into the result.
    fn fold_in(&self, stripe: u64, band: &Band, rows: &[usize], old: &mut Units) -> Units {
        let code = &self.geometry.code;
        let k = code.k();
        for (unit, buf) in old.iter_mut().filter(|(unit, _)| band.units.contains(*unit)) {
            weft_gf::xor_acc(buf, &[band.new_data(*unit)]);
        }
        let mut parity = Units::new();
        for row in rows {
            let index = old.iter().position(|(unit, _)| *unit == k + row);
            let (unit, mut buf) = old.swap_remove(index.expect("the old parity was read"));
            for (data, delta) in old.iter().filter(|(unit, _)| band.units.contains(*unit)) {
                weft_gf::mul_acc(&mut buf, code.coef(stripe, *row, *data), delta);
            }
            parity.push((unit, buf));
        }
        parity
    }

    /// The log record of a band: for each parity unit, the sum over the data units that are *not*
    /// being written. Units that are lost, or would be after a crash, count as not written, with
    /// their new value: after a crash they have no disk to be read from, so the log carries them.
    fn record(
        &self,
        stripe: u64,
        lost: UnitSet,
        band: &Band,
        parity: &Units,
        old: &Units,
        others: &Unflushed,
    ) -> Record {
        let code = &self.geometry.code;
        let k = code.k();
        let log = self.log.as_ref().expect("records are made for a log");
        let mut record = bare_record(band, others, lost);
        let whole = record.written == self.geometry.data_units();
        if whole && !log.has_records(stripe, band.from, band.len) {
            // Every byte of the stripe at these offsets is being written: there is nothing to
            // protect.
            return record;
        }
        for (unit, buf) in parity {
            let row = unit - k;
            let covered = self.geometry.support(stripe, row).is_subset(&record.written);
            let payload = (!covered).then(|| {
                let mut partial = Buf::copy_from(buf);
                for data in record.written.iter() {
                    let coef = code.coef(stripe, row, data);
                    if coef != 0 {
                        weft_gf::mul_acc(&mut partial, coef, band_or(band, old, data));
                    }
                }
                partial.freeze()
            });
            let slot = self.geometry.slot(stripe, *unit);
            record.parities.push(ParityRecord { slot, unit: *unit, payload });
        }
        record
    }
}

/// A record without payloads: notes what is being written, where nothing needs protection.
fn bare_record(band: &Band, others: &Unflushed, lost: UnitSet) -> Record {
    let own = band.units.difference(&lost);
    Record {
        from: band.from,
        len: band.len,
        written: own.union(&others.units.difference(&lost)),
        own,
        parities: Vec::new(),
    }
}

/// A data unit after the write: new where the band writes it, otherwise as read.
fn band_or<'a>(band: &'a Band, old: &'a Units, unit: usize) -> &'a [u8] {
    if band.units.contains(unit) {
        return band.new_data(unit);
    }
    let (_, buf) = old.iter().find(|(held, _)| *held == unit).expect("the unit was read");
    buf
}
