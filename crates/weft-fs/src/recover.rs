//! Recovery from a crash: what the live log records say of lines that were being written.
//!
//! The newest log record of a line counts: those before it had reached the disks durably. Units of
//! which it has the new contents are written again. Its parity becomes partial parity + the units
//! that were being written: these contents, or the one unit as found. The checksum of that unit
//! becomes that of what is found: old, new, or sectors of both; on a lost disk it has none until it
//! is rebuilt. A unit on a disk that had been lost before is in the partial parity, with its new
//! contents, and gets its new checksum.
//!
//! Lines that the committed metadata does not name at these places are left alone: they were new,
//! and their blocks are free. Recovery can be repeated: the log stays until a commit ends it.

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_code::UnitSet;
use weft_disk::WriteOpts;
use weft_rt::Frozen;
use weft_stripe::{
    Access, LoggedParity, Owner as _, Replay, UnitWrite, Units, gather_exactly, store,
};

use crate::block::{BLOCK, BLOCK_BYTES};
use crate::checksum::crc32c;
use crate::error::{FsError, Result};
use crate::inode::Ino;
use crate::knowing::Knowing;
use crate::log::LoggedBand;
use crate::meta::Meta;
use crate::plan::covering;
use crate::pool::{Laid, Pool};
use crate::record::Record;

/// Where a log record speaks of a line: its band, and the line's number in it.
type At<'a> = (&'a LoggedBand, u64);

/// Repairs all lines that `bands`, oldest first, name. Returns how many that were.
pub(crate) async fn recover(meta: &Meta, pool: &Rc<Pool>, bands: &[LoggedBand]) -> Result<usize> {
    let mut lines: BTreeMap<(Ino, u64), (At<'_>, UnitSet)> = BTreeMap::new();
    for band in bands {
        for line in 0..band.record.lines {
            let key = (band.ino, band.block + line * band.record.k());
            let entry = lines.entry(key).or_insert(((band, line), UnitSet::new()));
            entry.0 = (band, line);
            entry.1 = entry.1.union(&band.written);
        }
    }
    let mut repaired = 0;
    for ((ino, block), (at, written)) in &lines {
        let stored = meta.run(|tx| covering(tx, *ino, *block)).await?;
        let Some((first, mut record)) = stored else { continue };
        let (line, unit) = record.locate(block - first);
        if unit == 0 && is_at_same_places(&record, line, *at) {
            recover_line(pool, &mut record, line, *at, *written).await?;
            meta.run(|tx| tx.put_record(*ino, first, &record)).await?;
            repaired += 1;
        }
    }
    pool.flush().await;
    Ok(repaired)
}

/// Whether a line of the metadata lies where the log says, as far as it is active.
fn is_at_same_places(record: &Record, line: u64, (band, band_line): At<'_>) -> bool {
    record.coded == band.record.coded
        && record.pattern == band.record.pattern
        && record.active().all(|(unit, column)| {
            let logged = band.record.columns[unit].as_ref();
            logged.is_some_and(|logged| {
                (logged.disk, logged.start + band_line) == (column.disk, column.start + line)
            })
        })
}

async fn recover_line(
    pool: &Rc<Pool>,
    record: &mut Record,
    line: u64,
    (band, band_line): At<'_>,
    written: UnitSet,
) -> Result<()> {
    let laid = pool.lay(record)?;
    let stripe = laid.stripe();
    let from = line * BLOCK_BYTES;
    let part = crate::pool::part_of(0, band_line);
    let logged = |(unit, partial): &(usize, Option<Vec<u8>>)| LoggedParity {
        unit: *unit,
        written: band.written,
        partial: partial.as_ref().map(|bytes| Frozen::copy_from(&bytes[part.clone()])),
    };
    let present = |(unit, _): &&(usize, Option<Vec<u8>>)| !stripe.lost.contains(*unit);
    let parities: Vec<_> = band.parities.iter().filter(present).map(logged).collect();
    // Units that are not active in the metadata stay zeros.
    let data = band.data.iter().filter(|(unit, _)| record.columns[*unit].is_some());
    let data: Vec<(usize, Frozen)> =
        data.map(|(unit, bytes)| (*unit, Frozen::copy_from(&bytes[part.clone()]))).collect();
    let mut values = Units::new();
    if !parities.is_empty() {
        let replay = Replay { from, len: BLOCK, logged: parities };
        let owner = Knowing::new(&laid, from, &data);
        // A block is the smallest range here: one that cannot be read counts as lost.
        let replayed = replay.values(&owner, owner.resolve(stripe.id)).await;
        values = replayed.ok_or_else(|| FsError::Damaged("a line cannot be replayed".into()))?;
    }
    let writes: Vec<UnitWrite> = values
        .into_iter()
        .map(|(unit, buf)| (unit, buf.freeze()))
        .chain(data.into_iter().filter(|(unit, _)| !stripe.lost.contains(*unit)))
        .map(|(unit, data)| UnitWrite { unit, from, data })
        .collect();
    if !writes.is_empty() {
        let stored = store(&laid, laid.stripe(), &writes, WriteOpts::USER).await;
        for failed in &stored.failed {
            laid.fail_write(failed.slot, &failed.error);
        }
        laid.written();
    }
    let units: Vec<usize> = record.active().map(|(unit, _)| unit).collect();
    for unit in units {
        let sum = match writes.iter().find(|write| write.unit == unit) {
            Some(write) => crc32c(&write.data),
            None if band.data.iter().any(|(of, _)| *of == unit) => {
                logged_sum(band, unit, band_line)
            }
            None if written.contains(unit) => found_sum(&laid, unit, from).await,
            // Parity that is lost with the crash: of which mixture it would be is not known.
            None if stripe.lost.contains(unit) && has_parity(band, unit) => 0,
            None => logged_sum(band, unit, band_line),
        };
        let column = record.columns[unit].as_mut().expect("it is active");
        column.sums[usize::try_from(line).expect("few lines")] = sum;
    }
    Ok(())
}

/// The checksum of what a disk holds of a unit; 0 if that cannot be read.
async fn found_sum(laid: &Laid, unit: usize, from: u64) -> u32 {
    let one = UnitSet::one(unit);
    let read = gather_exactly(laid, laid.stripe(), Access::user(from), BLOCK, one).await;
    read.map_or(0, |read| crc32c(&read[0].1))
}

fn has_parity(band: &LoggedBand, unit: usize) -> bool {
    band.parities.iter().any(|(parity, _)| *parity == unit)
}

fn logged_sum(band: &LoggedBand, unit: usize, line: u64) -> u32 {
    let column = band.record.columns[unit].as_ref();
    column.map_or(0, |column| column.sums[usize::try_from(line).expect("few lines")])
}
