//! The parity of a stripe write: which units to read, the new parity, and the partial parity for a
//! log.
//!
//! For each band, the parity units that it touches are updated by the method that reads fewer
//! units. *Reconstruct-write* reads all other data units and encodes the line again;
//! *read-modify-write* reads the old data and the old parity, and folds the difference into the
//! parity. What must be read to reconstruct a lost unit counts too, and units at hand count
//! nothing. A band that writes every data unit reads nothing.
//!
//! *Which disks are read.* Both methods write the same units. Read-modify-write reads exactly what
//! it then writes, so each read is on a disk that is about to be written; reconstruct-write reads
//! the other disks. Where both read the same number this decides:
//!
//! * In general read-modify-write: it computes with one difference instead of all data units.
//! * On disks that rotate reconstruct-write. Sectors that were just read come by again only after a
//!   revolution, and sequential writes would each read the sectors after the ones just written; the
//!   other disks have read them ahead.
//! * If parity has a disk of its own (RAID-4, the global parity of LRC and DRC), that disk takes
//!   part in every write of the array, and reading it first doubles its work. With
//!   reconstruct-write it has one request a write, and every data disk has one as well: k - 1 of k
//!   are read, the other one is written. So arrays of this kind take reconstruct-write on a tie,
//!   and price reads by the queues that they join, as repairs do ([`price`]): under many writes it
//!   can read more disks than read-modify-write and still be faster. Where parity rotates, queues
//!   are the same everywhere, and only the number of reads counts.

use weft_code::UnitSet;
use weft_rt::{Buf, Frozen};

use crate::band::Band;
use crate::gather::{Access, gather, price};
use crate::owner::{Owner, Stripe};
use crate::record::{BandRecord, ParityRecord};
use crate::store::UnitWrite;
use crate::{Units, Unreadable, value_in};

/// Parity units into which a change is folded in one pass.
const FOLDED: usize = 4;

/// What a log knows of the crash that may come.
#[derive(Debug, Clone, Copy)]
pub struct Crash {
    /// Units that would be lost after a crash now: the stripe's units, and units on their device
    /// that are not durably marked so.
    pub lost: UnitSet,
    /// Data units outside the band that a crash may turn old again.
    pub unflushed: UnitSet,
    /// Whether recovery could find an older record for these offsets.
    pub superseding: bool,
}

/// The writes of bands, with new parity.
#[derive(Debug, Default)]
pub struct Updated {
    /// What must be written: the bands' data, and new contents of every parity unit that they touch
    /// and that is not lost.
    pub writes: Vec<UnitWrite>,
    /// What must be in the log first, for each band; none without a log.
    pub records: Vec<BandRecord>,
}

/// How a band's parity is updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    ReadModifyWrite,
    ReconstructWrite,
}

/// Adds to `updated` what must be written for `band`, and the record that must be in the log first.
/// `at_hand` are old contents of data units over the band's range. `crash` is none without a log.
///
/// # Errors
/// If the code cannot give the units to read, or the remaining parity cannot hold the new contents
/// of lost units.
pub async fn update<O: Owner>(
    owner: &O,
    stripe: Stripe<'_>,
    band: &Band<'_>,
    at_hand: &[(usize, Frozen)],
    crash: Option<Crash>,
    updated: &mut Updated,
) -> Result<(), Unreadable> {
    let Stripe { coding, lost, unsure, .. } = stripe;
    let code = stripe.code();
    let k = code.k();
    if !lost.is_empty() && !code.decodable(stripe.id.number, lost) {
        let unit = band.units.iter().next().unwrap_or(0);
        return Err(Unreadable { unit, from: band.from, len: band.len, lost: lost.len() });
    }
    // Where parity may be wrong (dirty at a crash), all of it is made right.
    let mut parity = UnitSet::new();
    let mut support = UnitSet::new();
    // Whether every parity unit covers units that are not written.
    let mut covers_others = true;
    for row in 0..code.p() {
        let covered = coding.support(stripe.id.number, row);
        if !lost.contains(k + row) && (unsure || covered.intersects(&band.units)) {
            parity.insert(k + row);
            support = support.union(&covered);
            covers_others &= covered != band.units;
        }
    }
    let write = |(unit, data)| UnitWrite { unit, from: band.from, data };
    updated.writes.reserve(band.units.len() + parity.len());
    updated.writes.extend(band.data().map(write));
    if parity.is_empty() {
        updated.records.extend(crash.map(|crash| bare_record(band, crash)));
        return Ok(());
    }
    if k == 1
        && crash.is_none()
        && parity.iter().all(|unit| code.row(stripe.id.number, unit - k) == [1])
    {
        // Copies.
        let (_, data) = band.data().next().expect("the only data unit is written");
        updated.writes.extend(parity.iter().map(|unit| write((unit, data.clone()))));
        return Ok(());
    }
    let known: UnitSet = at_hand.iter().map(|(unit, _)| *unit).collect();
    let (method, mut wanted) = choose(owner, stripe, band, parity, support, known);
    if let Some(Crash { lost: later, unflushed, .. }) = crash {
        let left_out = band.units.union(&unflushed).difference(&later);
        if !unflushed.is_empty() && !support.is_subset(&left_out) {
            // The record must not count units that a crash may turn old again: they are read and
            // subtracted.
            wanted = wanted.union(&unflushed.difference(&lost).intersection(&support));
        }
    }
    let mut old = Units::with_capacity(wanted.len());
    for unit in wanted {
        old.push((unit, Buf::new(band.len)));
    }
    let gathered = gather(owner, stripe, Access::user(band.from), at_hand, old).await;
    gathered.result?;
    let mut old = gathered.units;
    let (parity, without) = match method {
        Method::ReconstructWrite => (encode(stripe, band, parity, support, &old), Vec::new()),
        Method::ReadModifyWrite => {
            let keep = covers_others && crash.is_some_and(|crash| leaves_out_one(band, crash));
            fold_in(owner, stripe, band, parity, &mut old, keep)
        }
    };
    if let Some(crash) = crash {
        updated.records.push(record(owner, stripe, band, crash, &parity, &old, without));
    }
    updated.writes.extend(parity.into_iter().map(|(unit, buf)| write((unit, buf.freeze()))));
    Ok(())
}

/// Chooses the cheaper method; returns it with the units that must be there.
fn choose<O: Owner>(
    owner: &O,
    stripe: Stripe<'_>,
    band: &Band<'_>,
    parity: UnitSet,
    support: UnitSet,
    at_hand: UnitSet,
) -> (Method, UnitSet) {
    let others = support.difference(&band.units);
    let olds = band.units.intersection(&support).union(&parity);
    let apart = stripe.coding.has_parity_apart();
    let by_queues = apart && owner.balances_load();
    let cost = |wanted: UnitSet| {
        if by_queues || wanted.intersects(&stripe.lost) {
            return cost_of_reads(owner, stripe, wanted, at_hand, by_queues);
        }
        wanted.difference(&at_hand).len() as u64
    };
    let (anew, folded) = (cost(others), cost(olds));
    let reconstruct = anew < folded || anew == folded && (apart || owner.is_rotational());
    // Folding a difference into wrong parity would keep it wrong, and the data written now would be
    // lost if its disk failed before the resync.
    if stripe.unsure || reconstruct {
        (Method::ReconstructWrite, others)
    } else {
        (Method::ReadModifyWrite, olds)
    }
}

/// The cost of these units, computed from other units if they are lost: the number of reads, or
/// their prices by the queues that they join.
#[cold]
fn cost_of_reads<O: Owner>(
    owner: &O,
    stripe: Stripe<'_>,
    wanted: UnitSet,
    at_hand: UnitSet,
    by_queues: bool,
) -> u64 {
    let mut reads = wanted.difference(&at_hand);
    if wanted.intersects(&stripe.lost) {
        let plan = stripe.coding.plan(stripe.id.number, stripe.lost, wanted, at_hand);
        let Ok(plan) = plan else { return u64::MAX };
        reads = plan.reads.difference(&at_hand);
    }
    if !by_queues {
        return reads.len() as u64;
    }
    let load = |unit| owner.in_flight(owner.place(stripe.id, unit, 0).slot).get();
    reads.iter().map(|unit| price(load(unit))).sum()
}

/// Encodes parity from all data: new contents where written, old contents elsewhere.
fn encode(
    stripe: Stripe<'_>,
    band: &Band<'_>,
    parity: UnitSet,
    support: UnitSet,
    old: &[(usize, Buf)],
) -> Units {
    let (code, k) = (stripe.code(), stripe.code().k());
    let row = |unit: usize| code.row(stripe.id.number, unit - k);
    let values: Vec<&[u8]> = support.iter().map(|unit| after_write(band, old, unit)).collect();
    let mut fresh: Units = parity.iter().map(|unit| (unit, Buf::new(band.len))).collect();
    let mut outputs: Vec<&mut [u8]> = fresh.iter_mut().map(|(_, buf)| &mut **buf).collect();
    if support.len() == k {
        let rows: Vec<&[u8]> = parity.iter().map(row).collect();
        weft_gf::encode(&rows, &values, &mut outputs);
    } else {
        let part = |unit: usize| support.iter().map(|data| row(unit)[data]).collect();
        let rows: Vec<Vec<u8>> = parity.iter().map(part).collect();
        let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        weft_gf::encode(&rows, &values, &mut outputs);
    }
    fresh
}

/// Folds the change of the data into the old parity, whose buffers move into the result. With
/// `keep` the band writes one unit; the parity of all other units comes as well, as records.
fn fold_in<O: Owner>(
    owner: &O,
    stripe: Stripe<'_>,
    band: &Band<'_>,
    parity: UnitSet,
    old: &mut Units,
    keep: bool,
) -> (Units, Vec<ParityRecord>) {
    let (code, k) = (stripe.code(), stripe.code().k());
    // The units that were read ascend: the parity is at their end.
    let mut fresh = old.split_off(old.len() - parity.len());
    debug_assert!(fresh.iter().map(|(unit, _)| *unit).eq(parity));
    let room = |(unit, _): &(usize, Buf)| {
        let slot = owner.place(stripe.id, *unit, 0).slot;
        let payload = Some(owner.record_room(slot, band.len));
        ParityRecord { slot, unit: *unit, payload }
    };
    let mut without: Vec<ParityRecord> =
        if keep { fresh.iter().map(room).collect() } else { Vec::new() };
    for (data, before) in old.iter().filter(|(unit, _)| band.units.contains(*unit)) {
        let after = band.new_data(*data);
        // A few outputs at a time, listed on the stack.
        for (group, parities) in fresh.chunks_mut(FOLDED).enumerate() {
            let mut coefs = [0; FOLDED];
            let mut dsts: [&mut [u8]; FOLDED] = Default::default();
            let mut kept: [&mut [u8]; FOLDED] = Default::default();
            let mut count = 0;
            for (unit, buf) in parities {
                let coef = code.row(stripe.id.number, *unit - k)[*data];
                if coef != 0 {
                    (coefs[count], dsts[count]) = (coef, &mut **buf);
                    count += 1;
                }
            }
            let (coefs, dsts) = (&coefs[..count], &mut dsts[..count]);
            if keep {
                let records = without[group * FOLDED..].iter_mut();
                let payloads = records.filter_map(|record| record.payload.as_mut());
                for (kept, payload) in kept.iter_mut().zip(payloads) {
                    *kept = payload.bytes_mut();
                }
                weft_gf::fold_keeping(coefs, before, after, dsts, &mut kept[..count]);
            } else {
                weft_gf::fold(coefs, before, after, dsts);
            }
        }
    }
    (fresh, without)
}

/// `dst = dst + coef·src`.
fn add(dst: &mut [u8], coef: u8, src: &[u8]) {
    match coef {
        0 => {}
        1 => weft_gf::xor_acc(dst, &[src]),
        coef => weft_gf::mul_acc(dst, coef, src),
    }
}

/// The log record of a band: for each parity unit, the sum over the data units that are *not*
/// being written. Units that are lost, or would be after a crash, count as not written, with their
/// new value: after a crash they have no disk to be read from, so the log carries them. `without`
/// are the parity units' records, if they are known already ([`leaves_out_one`]).
fn record<O: Owner>(
    owner: &O,
    stripe: Stripe<'_>,
    band: &Band<'_>,
    crash: Crash,
    parity: &Units,
    old: &[(usize, Buf)],
    without: Vec<ParityRecord>,
) -> BandRecord {
    let k = stripe.code().k();
    let mut record = bare_record(band, crash);
    if record.written == stripe.coding.data_units() && !crash.superseding {
        // Every byte of the stripe at these offsets is being written: there is nothing to protect.
        return record;
    }
    if !without.is_empty() {
        record.parities = without;
        return record;
    }
    record.parities = Vec::with_capacity(parity.len());
    for (unit, buf) in parity {
        let slot = owner.place(stripe.id, *unit, 0).slot;
        let row = stripe.code().row(stripe.id.number, unit - k);
        let covered = stripe.support(unit - k).is_subset(&record.written);
        let payload = (!covered).then(|| {
            let mut payload = owner.record_room(slot, band.len);
            let sum = payload.bytes_mut();
            let mut left_out = record.written.iter().filter(|data| row[*data] != 0);
            match left_out.next() {
                Some(first) if row[first] == 1 => {
                    weft_gf::xor(sum, &[buf, after_write(band, old, first)]);
                }
                Some(first) => {
                    sum.copy_from_slice(buf);
                    add(sum, row[first], after_write(band, old, first));
                }
                None => sum.copy_from_slice(buf),
            }
            for data in left_out {
                add(sum, row[data], after_write(band, old, data));
            }
            payload
        });
        record.parities.push(ParityRecord { slot, unit: *unit, payload });
    }
    record
}

/// Whether the record leaves out one unit, the only one that the band writes. If each parity unit
/// covers other units as well, its sums fall out of folding the change into the parity.
fn leaves_out_one(band: &Band<'_>, crash: Crash) -> bool {
    band.units.len() == 1 && crash.unflushed.is_empty() && !band.units.intersects(&crash.lost)
}

/// A record without payloads: notes the units being written, where nothing needs protection.
fn bare_record(band: &Band<'_>, crash: Crash) -> BandRecord {
    let own = band.units.difference(&crash.lost);
    BandRecord {
        from: band.from,
        len: band.len,
        written: own.union(&crash.unflushed.difference(&crash.lost)),
        own,
        parities: Vec::new(),
    }
}

/// A data unit after the write: new where the band writes it, otherwise as read.
fn after_write<'a>(band: &Band<'a>, old: &'a [(usize, Buf)], unit: usize) -> &'a [u8] {
    if band.units.contains(unit) {
        return band.new_data(unit);
    }
    value_in(old, unit).expect("the unit was read")
}
