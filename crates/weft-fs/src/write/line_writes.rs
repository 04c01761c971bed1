//! Writing lines: parity and old contents, the RAID log, the blocks, and the changes of the
//! metadata that follow.
//!
//! `write/flush.rs` has the order of these steps and why it is that; it decides which lines there
//! are.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_code::UnitSet;
use weft_disk::WriteOpts;
use weft_rt::Frozen;
use weft_stripe::{Band, Crash, Owner as _, Segment, UnitWrite, Updated, store, update};

use crate::disks::extent_stripe::{ExtentStripe, part_of};
use crate::disks::known_units::KnownUnits;
use crate::disks::old_block_cache::sum_of;
use crate::disks::pool::runs_of;
use crate::error::{FsError, Result};
use crate::format::block::BLOCK_BYTES;
use crate::format::checksum::crc32c;
use crate::format::extent::Extent;
use crate::format::inode::{Ino, Time};
use crate::meta::Tx;
use crate::raid_log::{CONTENTS_BLOCKS_MAX, LogRecord, LoggedBand, LoggedFile};
use crate::state::mounted::FsState;
use crate::state::open_files::{Loss, Node, PendingAttributes, node_among};
use crate::write::new_lines::{LineWrite, ReplacedLines};
use crate::write::remap::replace_block;
use crate::write::reserved_lines::end_reservation;

/// A band of a target with its new parity.
struct ReadyBand {
    target: usize,
    writes: Vec<UnitWrite>,
}

impl FsState {
    /// Writes targets to the disks; the next commit makes new lines durable. Lines that lost a disk
    /// since are taken out: their blocks are free again.
    pub(crate) async fn write_targets(
        &self,
        targets: &mut Vec<LineWrite>,
        files: &[LoggedFile],
    ) -> Result<()> {
        let written = self.try_write_targets(targets, files).await;
        if written.is_err() {
            self.release_new(targets);
            targets.clear();
        }
        written
    }

    async fn try_write_targets(
        &self,
        targets: &mut Vec<LineWrite>,
        files: &[LoggedFile],
    ) -> Result<()> {
        let with_contents = are_logged_with_contents(targets);
        let (ready, log) = self.prepare_all(targets, with_contents).await?;
        let is_logged = !log.is_empty();
        if is_logged {
            // Another log record tells recovery that all blocks are where those before it name
            // them. And it lacks what a lost disk had to get: recovery must know that it is lost,
            // also if the disk works for the node that recovers.
            if self.pool().bad.any_logged_elsewhere()
                || self.pool().unrecorded_losses().is_some()
                || targets.iter().any(|target| self.is_reshaped(target))
            {
                self.commit_within_flush().await?;
            }
            if !with_contents {
                self.pool().flush().await;
            }
            let record = LogRecord { bands: log, is_bare: !with_contents, files: files.to_vec() };
            while !self.append(&record).await? {
                self.commit_within_flush().await?;
            }
            if with_contents {
                self.end_logged_early(targets, files)?;
            }
        }
        if self.has_unrecorded_losses() {
            self.commit_within_flush().await?;
        }
        let flushes = is_logged && !with_contents;
        let stored = self.store_all(targets, &ready, WriteOpts::USER, flushes).await;
        if is_logged && matches!(stored, Err(FsError::NoSpace)) {
            // Lines may be half written. Their log record stays live, and the next mount replays
            // it.
            self.meta().fail("there is no room left below a disk");
        }
        stored
    }

    /// Writes targets that are new lines.
    pub(crate) async fn write_new(
        &self,
        targets: &mut Vec<LineWrite>,
        opts: WriteOpts,
    ) -> Result<()> {
        let (ready, log) = self.prepare_all(targets, false).await?;
        debug_assert!(log.is_empty(), "new lines are not logged");
        self.store_all(targets, &ready, opts, false).await
    }

    /// Computes what the disks must get for targets, and what must be in the log first.
    async fn prepare_all(
        &self,
        targets: &mut [LineWrite],
        with_contents: bool,
    ) -> Result<(Vec<ReadyBand>, Vec<LoggedBand>)> {
        let (mut ready, mut log) = (Vec::new(), Vec::new());
        let segments: Vec<Vec<Segment>> = targets.iter().map(LineWrite::segments).collect();
        let bands: Vec<(usize, Band<'_>)> = segments
            .iter()
            .enumerate()
            .flat_map(|(target, segments)| Band::of(segments).map(move |band| (target, band)))
            .collect();
        let known = match targets.iter().any(|target| target.old.is_some()) {
            true => {
                let bands = bands.iter();
                let known = bands.map(|(of, band)| self.old_contents(&targets[*of], band));
                join_all(known).await
            }
            // Many small files are such: nothing is read.
            false => bands.iter().map(|(of, band)| Ok(zeros_of(&targets[*of], band))).collect(),
        };
        for ((index, band), known) in bands.iter().zip(known) {
            let target = &mut targets[*index];
            ready.push(ReadyBand {
                target: *index,
                writes: self.prepare(target, band, &known?, with_contents, &mut log).await?,
            });
        }
        Ok((ready, log))
    }

    /// Writes the prepared lines, durably if `flushes` is set. New lines that lost a disk, or lie
    /// on bad blocks, are taken out.
    async fn store_all(
        &self,
        targets: &mut Vec<LineWrite>,
        ready: &[ReadyBand],
        opts: WriteOpts,
        flushes: bool,
    ) -> Result<()> {
        let laid = targets.iter().map(|target| self.pool().lay(&target.record));
        let laid = laid.collect::<Result<Vec<_>>>()?;
        let stores = ready.iter().map(|ReadyBand { target, writes }| {
            let laid = &laid[*target];
            async move { (laid, store(laid, laid.stripe(), writes, opts).await) }
        });
        for ReadyBand { target, writes } in ready {
            self.pool().at_hand.forget_before(&targets[*target].record, writes);
        }
        let mut no_space = false;
        for (ReadyBand { writes, .. }, (laid, stored)) in ready.iter().zip(join_all(stores).await) {
            no_space |= laid.write_failed(&stored.failed, writes).await;
        }
        for ReadyBand { target, writes } in ready {
            if let Some(ReplacedLines { record, .. }) = &targets[*target].replaced {
                // Its blocks will be free, and others take their place.
                runs_of(record).for_each(|run| self.pool().at_hand.forget(run));
            }
            self.pool().at_hand.put_written(&targets[*target].record, writes);
        }
        laid.iter().for_each(ExtentStripe::written);
        if no_space {
            return Err(FsError::NoSpace);
        }
        let mut on_bad = BTreeSet::new();
        for ReadyBand { target, writes } in ready {
            if self.avoid_bad(&mut targets[*target], &laid[*target], writes).await {
                on_bad.insert(*target);
            }
        }
        if flushes {
            self.pool().flush().await;
        }
        for (target, laid) in targets.iter().zip(&laid) {
            self.note_gone(target, laid);
        }
        let mut laid = laid.iter().enumerate();
        targets.retain(|target| {
            let (n, laid) = laid.next().expect("one for each");
            let is_new_whole = laid.stripe().lost.is_empty() && !on_bad.contains(&n);
            let whole = target.old.is_some() || is_new_whole;
            if !whole {
                self.release_new(std::slice::from_ref(target));
            }
            whole
        });
        Ok(())
    }

    /// Lines that exist were written: notes the file if nothing gives the blocks, because a disk
    /// was lost since.
    fn note_gone(&self, target: &LineWrite, laid: &ExtentStripe) {
        let lost = laid.stripe().lost;
        if target.old.is_none() || lost.is_empty() || laid.is_readable() {
            return;
        }
        let is_gone = |(_, unit, _): &&(u64, usize, Frozen)| lost.contains(*unit);
        if let Some((line, unit, _)) = target.blocks.iter().find(is_gone) {
            self.lose(target.ino, Loss::Disks(target.first + line * target.k() + *unit as u64));
        }
    }

    /// Frees the blocks allocated for targets.
    pub(crate) fn release_new(&self, targets: &[LineWrite]) {
        // What was reserved stays so.
        for target in targets.iter().filter(|target| !target.is_reserved()) {
            let activated = target.activated();
            let columns = target.record.active().filter(|(unit, _)| activated.contains(*unit));
            self.pool().release(columns.map(|(_, column)| column.run()));
        }
    }

    /// Appends to the log. After a failure nothing is known of the log's end.
    async fn append(&self, record: &LogRecord) -> Result<bool> {
        let appended = self.log().append(&*self.log_medium(), record).await;
        if let Err(error) = &appended {
            self.meta().fail(&error.to_string());
        }
        appended
    }

    /// Whether lines that the target writes have got another column since the last commit: recovery
    /// would not know it.
    fn is_reshaped(&self, target: &LineWrite) -> bool {
        let first = |line: u64| target.first + line * target.k();
        let mut lines = target.blocks.iter().map(|(line, _, _)| *line);
        lines.any(|line| self.meta().is_reshaped(target.ino, first(line)))
    }

    /// Computes what the disks must get for a band of a target, its checksums, and what must be in
    /// the log, perhaps with all contents. `known` are old contents.
    async fn prepare(
        &self,
        target: &mut LineWrite,
        band: &Band<'_>,
        known: &[(usize, Frozen)],
        with_contents: bool,
        log: &mut Vec<LoggedBand>,
    ) -> Result<Vec<UnitWrite>> {
        let laid = self.pool().lay(&target.record)?;
        let ino = target.ino;
        let lines = lines_of(band.from, band.len);
        let stripe = laid.stripe();
        let block = target.first + lines.start * target.k();
        let unreadable = || FsError::Unreadable { inode: ino, block };
        if !laid.is_readable() {
            return Err(unreadable());
        }
        let crash = target.old.is_some().then_some(Crash {
            lost: stripe.lost,
            unflushed: UnitSet::EMPTY,
            superseding: true,
        });
        let owner = KnownUnits::new(&laid, band.from, known);
        let now = owner.resolve(stripe.id);
        let mut updated = Updated::default();
        let done = update(&owner, now, band, known, crash, &mut updated).await;
        done.map_err(|_| unreadable())?;
        let Updated { writes, records } = updated;
        // Parity that is lost changes without being computed.
        let k = target.record.coded.k();
        for unit in stripe.lost.iter().filter(|unit| *unit >= k) {
            set_sums(&mut target.record, unit, lines.clone(), |_| 0);
        }
        for (n, UnitWrite { unit, data, .. }) in writes.iter().enumerate() {
            // A copy has the checksums computed before.
            let is_same = |of: &&UnitWrite| of.data.as_ptr() == data.as_ptr();
            let of = writes[..n].iter().find(is_same).map(|of| of.unit);
            let of = of.and_then(|of| target.record.columns[of].clone());
            let sum = |line| match &of {
                Some(column) => sum_of(column, line),
                None => crc32c(&data[part_of(lines.start, line)]),
            };
            set_sums(&mut target.record, *unit, lines.clone(), sum);
        }
        for record in records {
            let partial = |parity: weft_stripe::ParityRecord| {
                let payload = parity.payload.map(|payload| payload.bytes().to_vec());
                (parity.unit, payload)
            };
            let several = band.units.len() > 1 && target.record.coded.p() > 0;
            let with_data = with_contents || several;
            let data = band.data().filter(|(unit, _)| with_data && record.written.contains(*unit));
            let data = data.map(|(unit, data)| (unit, data.to_vec())).collect();
            log.push(LoggedBand {
                ino,
                data,
                block,
                record: target.record.part(lines.clone()),
                written: record.written,
                parities: record.parities.into_iter().map(partial).collect(),
            });
        }
        Ok(writes)
    }

    /// Old contents of units over a band: enough for the cheaper way to update its parity. What has
    /// no place yet counts as zeros.
    async fn old_contents(
        &self,
        target: &LineWrite,
        band: &Band<'_>,
    ) -> Result<Vec<(usize, Frozen)>> {
        let lines = lines_of(band.from, band.len);
        let coded = target.record.coded;
        let data = UnitSet::first(coded.k());
        let activated = target.activated().intersection(&data);
        let active: UnitSet = target.record.active().map(|(unit, _)| unit).collect();
        let mut known = zeros_of(target, band);
        let Some(old) = target.old.as_ref().filter(|_| coded.p() > 0) else { return Ok(known) };
        let lost = self.pool().lay(old)?.stripe().lost;
        let parity = active.difference(&data).difference(&lost);
        let others = active.intersection(&data).difference(&band.units).difference(&activated);
        let olds = band.units.difference(&activated).union(&parity);
        let at_hand = &self.pool().at_hand;
        let reads = |units: &UnitSet| units.difference(&at_hand.units(old, &lines)).len();
        let wanted = if reads(&others) <= reads(&olds) { others } else { olds };
        let mut missing = UnitSet::new();
        for unit in wanted.iter() {
            match at_hand.unit(old, unit, &lines) {
                Some(data) => known.push((unit, data)),
                None => missing.insert(unit),
            }
        }
        if missing.is_empty() {
            return Ok(known);
        }
        let at = (target.ino, target.first);
        let read = self.pool().lay(old)?.read(old, at, missing, lines.clone()).await?;
        for (unit, buf) in read {
            // The others are about to be written.
            if others.contains(unit) {
                at_hand.put_read(old, unit, &lines, &buf);
            }
            known.push((unit, buf.freeze()));
        }
        Ok(known)
    }

    /// Puts written targets into the open transaction, and files that were logged with them. Their
    /// blocks are not dirty any more, unless they were written again since.
    pub(crate) async fn take_over(
        &self,
        nodes: &[Rc<Node>],
        targets: &[LineWrite],
        until: u64,
        live: &[LoggedFile],
        logged: &[LoggedFile],
    ) -> Result<()> {
        let node_of = |targets: &[LineWrite]| {
            node_among(nodes, targets[0].ino).expect("its blocks are written")
        };
        let end_of = |targets: &[LineWrite]| {
            // They are in the order of the nodes.
            let file = live.binary_search_by_key(&targets[0].ino, |file| file.ino).ok();
            let size = file.map(|at| live[at].size);
            size.map_or(0, |size| size.min(written_end(node_of(targets), targets, until)))
        };
        let files: Vec<(&[LineWrite], u64)> = targets
            .chunk_by(|a, b| a.ino == b.ino)
            .map(|targets| (targets, end_of(targets)))
            .collect();
        let replaced = || {
            let replaced = targets.iter().filter(|target| !target.is_reserved());
            replaced.filter_map(|target| target.replaced.as_ref())
        };
        self.meta()
            .run(|tx| {
                files.iter().try_for_each(|(targets, end)| put_targets(tx, targets, *end))?;
                replaced().for_each(|replaced| self.free_later(&replaced.record));
                tx.logged(|| logged.iter().try_for_each(|file| put_live(tx, file, self.now())))
            })
            .await?;
        self.log().complete();
        let afresh: u64 = replaced().map(|replaced| replaced.record.active_blocks()).sum();
        self.pool().count(|counts| counts.out_of_place_blocks += afresh);
        // The disks may have these in their caches only. What the log has with all contents as
        // well.
        let with_contents = are_logged_with_contents(targets);
        let unflushed = targets.iter().filter(|target| target.old.is_none() || with_contents);
        let unflushed = unflushed.map(|target| (target.ino, target.first, target.record.clone()));
        self.note_unflushed(unflushed);
        for (targets, _) in files {
            for (block, data) in targets.iter().flat_map(LineWrite::written) {
                self.drop_written(node_of(targets), block, data);
            }
        }
        self.unwritten().note_written();
        forget_live(nodes, logged);
        Ok(())
    }
}

/// Old contents of units of a target that had no place, over a band: zeros.
fn zeros_of(target: &LineWrite, band: &Band<'_>) -> Vec<(usize, Frozen)> {
    let data = UnitSet::first(target.record.coded.k());
    let activated = target.activated().intersection(&data);
    let active: UnitSet = target.record.active().map(|(unit, _)| unit).collect();
    let zeros = activated.union(&data.difference(&active));
    zeros.iter().map(|unit| (unit, Frozen::zeros(band.len))).collect()
}

/// Whether the log record of these targets has all contents.
pub(crate) fn are_logged_with_contents(targets: &[LineWrite]) -> bool {
    let blocks: usize = targets.iter().map(|target| target.blocks.len()).sum();
    blocks <= CONTENTS_BLOCKS_MAX && targets.iter().all(LineWrite::overwrites)
}

/// How far a file is written with these targets, if they are not just lines that it has. Before the
/// last of their blocks may be some that have to be written elsewhere.
fn written_end(node: &Node, targets: &[LineWrite], until: u64) -> u64 {
    let written: BTreeSet<u64> =
        targets.iter().flat_map(LineWrite::written).map(|(block, _)| block).collect();
    let dirty = node.dirty.borrow();
    let mut waiting = dirty.iter().filter(|(_, (write, _))| *write <= until);
    let waiting = waiting.find(|(block, _)| !written.contains(block));
    let waiting = waiting.map_or(u64::MAX, |(block, _)| *block);
    let shaped = targets.iter().filter(|target| !target.overwrites());
    let blocks = shaped.flat_map(LineWrite::written).map(|(block, _)| block);
    let last = blocks.filter(|block| *block < waiting).max();
    last.map_or(0, |block| (block + 1) * BLOCK_BYTES)
}

/// Puts the records of a file's targets into the metadata. The file ends there, or after earlier
/// writes.
fn put_targets(tx: &Tx<'_>, targets: &[LineWrite], end: u64) -> Result<()> {
    let mut blocks = 0;
    for target in targets {
        let LineWrite { ino, first, record, .. } = target;
        let replace = || {
            target.moved.iter().try_for_each(|(line, unit, column)| {
                replace_block(tx, *ino, first + line * target.k(), *unit, column)
            })
        };
        if target.overwrites() {
            tx.logged(|| put_joined(tx, *ino, *first, record))?;
            replace()?;
            continue;
        }
        if let Some(old) = &target.old {
            tx.note_reshaped(*ino, *first, record);
            blocks -= old.data_blocks().cast_signed();
        }
        if let Some(ReplacedLines { record: old, .. }) = &target.replaced {
            blocks -= old.data_blocks().cast_signed();
            if target.is_reserved() {
                end_reservation(tx, *ino, *first, old)?;
            }
        }
        blocks += record.data_blocks().cast_signed();
        put_joined(tx, *ino, *first, record)?;
        replace()?;
    }
    let ino = targets[0].ino;
    let mut inode = tx.inode(ino)?;
    if blocks == 0 && end <= inode.size {
        return Ok(());
    }
    inode.size = inode.size.max(end);
    inode.blocks = inode.blocks.saturating_add_signed(blocks);
    tx.put_inode(ino, &inode)
}

/// Puts a file's size and time into the metadata.
pub(crate) fn put_live(tx: &Tx<'_>, file: &LoggedFile, now: Time) -> Result<()> {
    let mut inode = tx.inode(file.ino)?;
    (inode.size, inode.modified) = (file.size, file.modified);
    // A program may have set a time to come. It is not that of the change.
    inode.changed = inode.changed.max(file.modified.min(now));
    tx.put_inode(file.ino, &inode)
}

/// Sizes and times of files are in the metadata, unless they were changed again.
pub(crate) fn forget_live(nodes: &[Rc<Node>], files: &[LoggedFile]) {
    for LoggedFile { ino, size, modified } in files.iter().copied() {
        let node = node_among(nodes, ino);
        let as_it_was = Some(PendingAttributes { size, modified });
        if let Some(node) = node.filter(|node| node.live.get() == as_it_was) {
            node.live.set(None);
        }
    }
}

/// Stores a record, joined with the one before it if possible.
pub(crate) fn put_joined(tx: &Tx<'_>, ino: Ino, first: u64, record: &Extent) -> Result<()> {
    if let Some((at, mut before)) = tx.record_before(ino, first)?
        && at + before.blocks() == first
        && before.join(record)
    {
        tx.remove_record(ino, first)?;
        return tx.put_record(ino, at, &before);
    }
    tx.put_record(ino, first, record)
}

fn set_sums(record: &mut Extent, unit: usize, lines: Range<u64>, sum: impl Fn(u64) -> u32) {
    let Some(column) = &mut record.columns[unit] else { return };
    for line in lines {
        column.sums[usize::try_from(line).expect("few lines")] = sum(line);
    }
}

fn lines_of(from: u64, len: usize) -> Range<u64> {
    from / BLOCK_BYTES..(from + len as u64) / BLOCK_BYTES
}
