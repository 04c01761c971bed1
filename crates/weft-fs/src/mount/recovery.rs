//! Recovery from a crash: it applies the live log records to lines that were being written.
//!
//! All log records of a line count, as far as they speak of the places that the committed metadata
//! knows, in their order:
//!
//! * Units whose new contents are in a log record are written again, with the newest ones. They
//!   need not have reached the disks.
//! * Units that a bare log record overwrote are on the disks, unless it is the last log record of
//!   all. Those of the last one are *torn*: old, new, or sectors of both. Their checksum becomes
//!   that of the contents found, which are flushed; on a lost disk they have none until they are
//!   rebuilt.
//! * Parity becomes the newest partial parity + the units that it leaves out: contents from the
//!   log, or the torn unit as found. A unit on a disk that had been lost before is in the partial
//!   parity.
//! * Every other checksum is that of the newest log record.
//!
//! A block that cannot be written on a disk that works goes elsewhere ([`crate::write::remap`]).
//!
//! If there is no room below a disk (a thin pool is full), the mount is refused: only the log has
//! what could not be written.
//!
//! Lines that the committed metadata does not name at these places are not touched: they were new,
//! and their blocks are free, or reserved. Then the files get the sizes and times that the log has.
//! Recovery can be repeated: the log stays until a commit ends it.

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_code::UnitSet;
use weft_disk::WriteOpts;
use weft_rt::Frozen;
use weft_stripe::{
    Access, LoggedParity, Owner as _, Replay, UnitWrite, Units, gather_exactly, store,
};
use weft_token::NodeId;

use crate::disks::extent_stripe::{ExtentStripe, part_of};
use crate::disks::known_units::KnownUnits;
use crate::disks::log_medium::{LogMedium, Ring};
use crate::disks::pool::{Pool, runs_of};
use crate::error::{FsError, Result};
use crate::format::block::{BLOCK, BLOCK_BYTES};
use crate::format::checksum::crc32c;
use crate::format::extent::{Column, Extent};
use crate::format::inode::Ino;
use crate::meta::{Meta, Tx};
use crate::raid_log::{LogRecord, LoggedBand, Mark, scan};
use crate::state::early_desk::LoggedBlock;
use crate::state::mounted::{Fs, FsState};
use crate::write::line_writes::put_live;
use crate::write::new_lines::covering;
use crate::write::remap::replace_block;

/// Where a log record speaks of a line.
#[derive(Clone, Copy)]
struct LoggedLine<'a> {
    band: &'a LoggedBand,
    /// The line's number in the band.
    line: u64,
    /// The log record's place among those that are recovered.
    place: usize,
    /// Whether all of it is on the disks.
    is_durable: bool,
}

/// Recovers the log of a node other than 0 that is dead: it writes no more. Nothing of it has to be
/// recovered after the next commit; until then this can be repeated. `early_left` hears which
/// blocks were in the log, and says whether anything of the node's early commits is left to be
/// written, or may be.
pub(crate) async fn recover_log(
    meta: &Meta,
    pool: &Rc<Pool>,
    node: u16,
    early_left: impl FnOnce(NodeId, &[LoggedBlock]) -> bool,
) -> Result<usize> {
    let (log, runs) = meta.run(|tx| Ok((tx.node_log(node)?, tx.ring(node)?))).await?;
    let medium = LogMedium::Ring(Ring::new(pool, node, &runs)?);
    let (records, last_id) = scan(&medium, (node, log.epoch), log.mark).await?;
    let Recovered { lines, blocks } = recover(meta, pool, &records).await?;
    let first_id = log.mark.completed + 1;
    let logged =
        blocks.into_iter().map(|(ino, block, place)| (ino, block, first_id + place as u64));
    let id = NodeId { number: node, epoch: log.epoch };
    let early_left = early_left(id, &logged.collect::<Vec<_>>());
    meta.run(|tx| {
        // It counts as lost until it is written.
        if early_left && tx.commits_early(id)? {
            tx.lose_early_commits(id)?;
        }
        // What of it would come late finds other contents.
        tx.refuse_before(node, log.epoch + 1)?;
        tx.set_mark(node, Mark { completed: last_id, position: 0 })?;
        tx.end_node_log(node)
    })
    .await?;
    Ok(lines)
}

impl FsState {
    /// Recovers the log of a node that is dead, durably.
    async fn recover_node(&self, node: NodeId) -> Result<usize> {
        self.check_writable()?;
        self.meta().array()?;
        let NodeId { number, epoch } = node;
        if number == 0 {
            return Err(FsError::Invalid("node 0 recovers itself when it mounts".to_owned()));
        }
        // What it has sent to disks through this node comes before what recovery does there.
        self.path_desk().refuse(node).await;
        let _one = self.begin_rings().await;
        self.learn_disks().await?;
        let (log, bound) =
            self.meta().run(|tx| Ok((tx.node_log(number)?, tx.refused_before(number)?))).await?;
        if bound <= epoch {
            return Err(FsError::Invalid(format!(
                "node {number} may be alive in epoch {epoch}: it was not fenced"
            )));
        }
        let lines = match log.is_live && log.epoch <= epoch {
            true => {
                let early_left = |id, logged: &[LoggedBlock]| {
                    self.early_desk().supersede(id, logged);
                    !self.early_desk().has_nothing(id)
                };
                recover_log(self.meta(), self.pool(), number, early_left).await?
            }
            // Its last mount has logged nothing, or ended, or was recovered before.
            false => 0,
        };
        self.commit().await?;
        self.write_early_of(node).await?;
        Ok(lines)
    }
}

/// What was recovered of a log.
#[derive(Default)]
pub(crate) struct Recovered {
    /// Lines that were repaired.
    lines: usize,
    /// Blocks that were written again, and the places of their log records among all.
    blocks: Vec<(Ino, u64, usize)>,
}

impl Fs {
    /// Recovers what a dead node has logged: all that it has called durable is there then, parity
    /// matches, and its tokens are free. Its blocks become free in the background. This is node 0.
    /// The disks take nothing of that node any more, and its keeper has fenced it. Repeated, it
    /// changes nothing. Returns how many lines were repaired.
    ///
    /// # Errors
    /// If the keeper has not fenced the node, no copy of its log is left, or the metadata has
    /// failed.
    pub async fn recover_node(&self, node: NodeId) -> Result<usize> {
        let fs = self.0.clone();
        let lines = self.0.rt().attach(|| async move { fs.recover_node(node).await }).await?;
        self.fence_node(node);
        self.recovered_node(node);
        self.reclaim_space_soon();
        Ok(lines)
    }
}

/// Repairs all lines that log records, oldest first, name, and puts the sizes and times of files
/// into the metadata.
pub(crate) async fn recover(
    meta: &Meta,
    pool: &Rc<Pool>,
    records: &[LogRecord],
) -> Result<Recovered> {
    let mut lines: BTreeMap<(Ino, u64), Vec<LoggedLine<'_>>> = BTreeMap::new();
    for (n, record) in records.iter().enumerate() {
        let is_durable = record.is_bare && n + 1 < records.len();
        for band in &record.bands {
            for line in 0..band.record.lines {
                let key = (band.ino, band.block + line * band.record.k());
                let logged = LoggedLine { band, line, place: n, is_durable };
                lines.entry(key).or_default().push(logged);
            }
        }
    }
    let mut recovered = Recovered::default();
    for ((ino, block), mut history) in lines {
        let stored = meta.run(|tx| covering(tx, ino, block)).await?;
        // Lines that are only reserved were new as well.
        let stored = stored.filter(|(_, record)| !record.unwritten);
        let Some((first, mut record)) = stored else { continue };
        let (line, unit) = record.locate(block - first);
        history.retain(|at| is_at_same_places(&record, line, *at));
        if unit == 0 && !history.is_empty() {
            for at in &history {
                let units = at.band.data.iter().map(|(unit, _)| *unit);
                let active = units.filter(|unit| record.columns[*unit].is_some());
                let blocks = active.map(|unit| (ino, block + unit as u64, at.place));
                recovered.blocks.extend(blocks);
            }
            let moved = recover_line(pool, &mut record, line, &history).await?;
            runs_of(&record.part(line..line + 1)).for_each(|run| pool.at_hand.forget(run));
            let put = |tx: &Tx<'_>| {
                tx.put_record(ino, first, &record)?;
                let mut moved = moved.iter();
                moved.try_for_each(|(unit, column)| replace_block(tx, ino, block, *unit, column))
            };
            meta.run(put).await?;
            recovered.lines += 1;
        }
    }
    pool.flush().await;
    let files = records.iter().flat_map(|record| &record.files);
    let put = |tx: &Tx<'_>| {
        for file in files {
            match put_live(tx, file, file.modified) {
                // It was deleted since.
                Err(FsError::NotFound) => {}
                done => done?,
            }
        }
        Ok(())
    };
    meta.run(put).await?;
    Ok(recovered)
}

/// Whether the active part of a line lies at the log's places.
fn is_at_same_places(record: &Extent, line: u64, at: LoggedLine<'_>) -> bool {
    let logged = &at.band.record;
    record.coded == logged.coded
        && record.pattern == logged.pattern
        && record.active().all(|(unit, column)| {
            logged.columns[unit].as_ref().is_some_and(|logged| {
                (logged.disk, logged.start + at.line) == (column.disk, column.start + line)
            })
        })
}

/// The log's knowledge of a line.
#[derive(Default)]
struct LineEvidence {
    /// Newest contents of units.
    data: BTreeMap<usize, Frozen>,
    /// Units that may have been written in part.
    torn: UnitSet,
    /// The newest record of each parity unit that may not be on its disk.
    parities: BTreeMap<usize, LoggedParity>,
    /// Whether parity will be as the log gives it.
    is_exact: bool,
}

impl LineEvidence {
    /// `record` is the line's record in the metadata: units that are not active there stay zeros.
    fn of(history: &[LoggedLine<'_>], record: &Extent) -> Self {
        let mut said = Self { is_exact: true, ..Self::default() };
        let active: UnitSet = record.active().map(|(unit, _)| unit).collect();
        for LoggedLine { band, line, is_durable, .. } in history {
            let part = part_of(0, *line);
            said.is_exact &= band.written.is_subset(&active);
            for unit in band.written.intersection(&active) {
                let logged = band.data.iter().find(|(of, _)| *of == unit);
                said.data.remove(&unit);
                said.torn.remove(unit);
                match logged {
                    Some((_, bytes)) => {
                        let data = Frozen::copy_from(&bytes[part.clone()]);
                        said.data.insert(unit, data);
                    }
                    None if !is_durable => said.torn.insert(unit),
                    None => {}
                }
            }
            // Parity on the disks counts blocks that became active and are not in the metadata.
            let counts_others = !band.written.is_subset(&active);
            for (unit, partial) in &band.parities {
                said.parities.remove(unit);
                if !is_durable || counts_others {
                    let partial = partial.as_ref();
                    let partial = partial.map(|bytes| Frozen::copy_from(&bytes[part.clone()]));
                    let logged = LoggedParity { unit: *unit, written: band.written, partial };
                    said.parities.insert(*unit, logged);
                }
            }
        }
        said.is_exact &= said.torn.is_empty();
        said
    }
}

/// Repairs a line. Returns units that had to be written elsewhere, with their places.
async fn recover_line(
    pool: &Rc<Pool>,
    record: &mut Extent,
    line: u64,
    history: &[LoggedLine<'_>],
) -> Result<Vec<(usize, Column)>> {
    let laid = pool.lay(record)?;
    let stripe = laid.stripe();
    let from = line * BLOCK_BYTES;
    let LineEvidence { data, torn, parities, is_exact } = LineEvidence::of(history, record);
    let data: Vec<(usize, Frozen)> = data.into_iter().collect();
    let logged: Vec<LoggedParity> =
        parities.into_values().filter(|parity| !stripe.lost.contains(parity.unit)).collect();
    let mut values = Units::new();
    if !logged.is_empty() {
        let replay = Replay { from, len: BLOCK, logged };
        let owner = KnownUnits::new(&laid, from, &data);
        // A block is the smallest range here: one that cannot be read counts as lost.
        let replayed = replay.values(&owner, owner.resolve(stripe.id)).await;
        values = replayed.ok_or_else(|| FsError::Damaged("a line cannot be replayed".into()))?;
    }
    let known = data.clone();
    let writes: Vec<UnitWrite> = values
        .into_iter()
        .map(|(unit, buf)| (unit, buf.freeze()))
        .chain(data.into_iter().filter(|(unit, _)| !stripe.lost.contains(*unit)))
        .map(|(unit, data)| UnitWrite { unit, from, data })
        .collect();
    if !writes.is_empty() {
        let stored = store(&laid, laid.stripe(), &writes, WriteOpts::USER).await;
        if laid.write_failed(&stored.failed, &writes).await {
            // The log has what could not be written, and must not end before it is.
            return Err(FsError::Unmountable(
                "there is no room left below a disk for what a crash has left to be written: make \
                 room there, then mount again"
                    .into(),
            ));
        }
    }
    // What is found may be in its disk's cache only, if the program was killed and the power is on.
    laid.written();
    let mut moved = Vec::new();
    let mut alone = record.part(line..line + 1);
    for write in &writes {
        for (_, data) in laid.on_bad_blocks(write) {
            if let Some(column) = pool.write_elsewhere(&alone, write.unit, &data).await {
                alone.columns[write.unit] = Some(column.clone());
                moved.push((write.unit, column));
            }
        }
    }
    let newest = history.last().expect("a line that the log names");
    let units: Vec<usize> = record.active().map(|(unit, _)| unit).collect();
    for unit in units {
        let sum = match writes.iter().find(|write| write.unit == unit) {
            Some(write) => crc32c(&write.data),
            None if torn.contains(unit) => found_sum(&laid, unit, from).await,
            // Parity that is lost with the crash: it is unknown which units it would cover.
            None if unit >= record.coded.k() && stripe.lost.contains(unit) && !is_exact => 0,
            None => match known.iter().find(|(of, _)| *of == unit) {
                Some((_, data)) => crc32c(data),
                None => logged_sum(newest, unit),
            },
        };
        let column = record.columns[unit].as_mut().expect("it is active");
        column.sums[usize::try_from(line).expect("few lines")] = sum;
    }
    Ok(moved)
}

/// The checksum of what a disk holds of a unit; 0 if that cannot be read.
async fn found_sum(laid: &ExtentStripe, unit: usize, from: u64) -> u32 {
    let one = UnitSet::one(unit);
    let read = gather_exactly(laid, laid.stripe(), Access::user(from), BLOCK, one).await;
    read.map_or(0, |read| crc32c(&read[0].1))
}

fn logged_sum(at: &LoggedLine<'_>, unit: usize) -> u32 {
    let column = at.band.record.columns[unit].as_ref();
    column.map_or(0, |column| column.sums[usize::try_from(at.line).expect("few lines")])
}
