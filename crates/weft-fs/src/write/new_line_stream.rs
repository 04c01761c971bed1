//! Writing new lines: the disks write one batch while the next one is computed.
//!
//! ```text
//!   batch 1   plan, parity, checksums ── written ──────────▶ records
//!   batch 2                           plan, parity, … ── written ──────▶ records
//!   batch 3                                            plan, … ── written ──▶ records
//! ```
//!
//! New lines need neither log nor disk flush, and no order among each other: no record names their
//! blocks before they are written. A batch enters the open transaction when it is written and those
//! before it are in there, so that a file grows from its front to its end. All batches share the
//! lock of flushes: a commit or a flush with a log record takes it exclusively, so it comes between
//! batches and never into one. A batch that is to start while something waits for that ends the
//! stream, and so does a lost disk that is not on record yet.
//!
//! *Waits include all batches.* Batches are parts of one task. What this task waits for, above all
//! a page of the metadata, comes from the same disks, whose queues may be full of completions that
//! a batch must collect. So all batches progress during every wait ([`InFlight::beside`]).
//!
//! *In the background* a stream goes on as long as its files grow, so that another batch always
//! follows the ones being written: a disk with platters that has nothing to write for a moment
//! loses a turn. Writers that wait for memory go on with each batch.
//!
//! *Lines that another batch started.* The records of batches under way are not in the metadata. A
//! batch ends with a whole line wherever the file has more blocks to write, and the lines of the
//! next one start after it. Blocks that would belong to a line under way wait until its record is
//! there.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use futures_util::future::{MaybeDone, maybe_done};
use weft_disk::WriteOpts;

use crate::error::Result;
use crate::format::extent::Extent;
use crate::meta::Tx;
use crate::raid_log::LoggedFile;
use crate::state::mounted::FsState;
use crate::state::open_files::{Node, live_of};
use crate::write::dirty_memory::FlushScope;
use crate::write::new_lines::{LineWrite, covering};

/// Batches under way at the same time, at most.
const BATCHES_MAX: usize = 3;
/// Blocks that are looked at beyond those of a batch: lines of usual width that complete a record.
const MORE_BLOCKS: usize = 512;

/// Why a stream has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// It has come to the end of all files.
    Complete,
    /// The next blocks need more than new lines, or a lost disk must be put on record.
    Blocked,
    /// Something else waits for the lock of flushes.
    Interrupted,
}

/// Files whose new lines are written.
struct Stream<'a> {
    nodes: &'a [Rc<Node>],
    until: u64,
    extent: FlushScope,
    /// Where each file goes on.
    at: Vec<StreamPosition>,
    /// The file whose blocks come next.
    file: usize,
    /// The next block belongs to a line that is there, or under way.
    blocked: bool,
    /// Blocks of a file stay where they are.
    has_left: bool,
}

/// Where a file goes on.
#[derive(Default)]
struct StreamPosition {
    block: u64,
    /// The lines planned last: first block, record.
    last: Option<(u64, Extent)>,
}

impl<'a> Stream<'a> {
    fn new(nodes: &'a [Rc<Node>], until: u64, extent: FlushScope) -> Self {
        let at = nodes.iter().map(|_| StreamPosition::default()).collect();
        Self { nodes, until, extent, at, file: 0, blocked: false, has_left: false }
    }

    /// Whether it has come to the end of all files.
    fn is_through(&self) -> bool {
        self.file == self.nodes.len()
    }

    /// Looks at all files again: they may have grown.
    fn go_on(&mut self, until: u64) {
        (self.until, self.file) = (until, 0);
    }

    /// Adds the lines of the next batch; none at the end.
    fn plan(&mut self, fs: &FsState, tx: &Tx<'_>, targets: &mut Vec<LineWrite>) -> Result<()> {
        let mut left = fs.batch_blocks();
        while left > 0 && !self.blocked && !self.is_through() {
            if self.plan_file(fs, tx, &mut left, targets)? {
                self.file += 1;
            }
        }
        Ok(())
    }

    /// Adds lines of one file, of `left` blocks. Returns whether that was its rest.
    fn plan_file(
        &mut self,
        fs: &FsState,
        tx: &Tx<'_>,
        left: &mut usize,
        targets: &mut Vec<LineWrite>,
    ) -> Result<bool> {
        let (node, at) = (&self.nodes[self.file], &mut self.at[self.file]);
        let (batch_blocks, most) = (fs.batch_blocks(), *left + MORE_BLOCKS);
        let dirty = node.dirty_from(at.block, self.until, most);
        let is_rest = dirty.len() < most;
        let mut rest = &dirty[..];
        while let Some((block, _)) = rest.first() {
            if *left == 0 {
                return Ok(false);
            }
            let last = at.last.as_ref().map(|(first, record)| (*first, record));
            let is_under_way = last.is_some_and(|(at, record)| *block < at + record.blocks());
            let covered = covering(tx, node.ino, *block)?;
            let reserved = covered.as_ref().filter(|(_, record)| record.unwritten);
            if is_under_way || (covered.is_some() && reserved.is_none()) {
                match self.extent {
                    FlushScope::New => self.has_left = true,
                    FlushScope::All | FlushScope::Whole => self.blocked = true,
                }
                return Ok(!self.blocked);
            }
            let (target, count) = match reserved {
                Some((first, record)) => {
                    let is_begun = last.is_some_and(|(at, _)| at >= *first);
                    if is_begun && !fs.can_cut_again() {
                        self.blocked = true;
                        return Ok(false);
                    }
                    let at = (*first, record);
                    let lines = fs.reserved_lines(tx, node.ino, at, rest, batch_blocks)?;
                    let Some((target, count)) = lines else { continue };
                    self.has_left |= target.written().count() < count;
                    (target, count)
                }
                None => {
                    let redundancy = tx.inode(node.ino)?.redundancy;
                    let target = fs.new_lines(tx, node.ino, redundancy, rest, last)?;
                    let count = target.blocks.len();
                    (target, count)
                }
            };
            let (lines, behind) = rest.split_at(count);
            rest = behind;
            let may_wait = self.extent != FlushScope::All && is_rest && last.is_some();
            if may_wait && rest.is_empty() && !target.is_full(batch_blocks) {
                fs.release_new(&[target]);
                return Ok(true);
            }
            *left = left.saturating_sub(target.blocks.len());
            at.block = lines.last().map_or(at.block, |(block, _)| block + 1);
            at.last = Some((target.first, target.record.clone()));
            targets.push(target);
        }
        Ok(is_rest)
    }
}

/// Lines of a batch that are written, and whether something failed.
type Written = (Vec<LineWrite>, Result<()>);

/// Batches that are being written, in their order.
struct InFlight<F: Future>(VecDeque<Pin<Box<MaybeDone<F>>>>);

impl<F: Future<Output = Written>> InFlight<F> {
    fn add(&mut self, batch: F) {
        self.0.push_back(Box::pin(maybe_done(batch)));
    }

    fn go_on(&mut self, cx: &mut Context<'_>) {
        for batch in &mut self.0 {
            // It keeps what it has come to.
            let _ = batch.as_mut().poll(cx);
        }
    }

    /// Waits for something, while all batches go on.
    async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.go_on(cx);
            work.as_mut().poll(cx)
        })
        .await
    }

    /// The first batch, if it is written; waits for that if `waits` is set.
    async fn next(&mut self, waits: bool) -> Option<Written> {
        poll_fn(|cx| {
            self.go_on(cx);
            let Some(first) = self.0.front_mut() else { return Poll::Ready(None) };
            match first.as_mut().take_output() {
                None if waits => Poll::Pending,
                None => Poll::Ready(None),
                written => {
                    self.0.pop_front();
                    Poll::Ready(written)
                }
            }
        })
        .await
    }
}

impl FsState {
    /// Writes dirty blocks that become new lines. `live` are the sizes that the files will have. In
    /// the background it continues with new blocks of the files, and `until` and `live` with it.
    pub(crate) async fn flush_new(
        &self,
        nodes: &[Rc<Node>],
        until: &mut u64,
        extent: FlushScope,
        live: &mut Vec<LoggedFile>,
    ) -> Result<StreamEnd> {
        let _shared = self.share_flushes().await;
        let mut stream = Stream::new(nodes, *until, extent);
        let mut under_way = InFlight(VecDeque::new());
        let (mut result, mut ended, mut is_dry) = (Ok(()), None, false);
        while ended.is_none() || !under_way.0.is_empty() {
            if ended.is_none() && !is_dry {
                match under_way.beside(self.next_batch(&mut stream)).await {
                    Ok(targets) if !targets.is_empty() => {
                        let others = u64::from(!under_way.0.is_empty());
                        self.note_overlapped(others);
                        under_way.add(self.write_batch(targets));
                    }
                    Ok(_) if stream.is_through() => {
                        is_dry = !under_way.0.is_empty() && self.may_grow(&stream);
                        ended = (!is_dry).then_some(StreamEnd::Complete);
                    }
                    Ok(_) => ended = Some(StreamEnd::Blocked),
                    Err(error) => result = Err(error),
                }
            }
            if ended.is_none() && self.try_share_flushes().is_none() {
                ended = Some(StreamEnd::Interrupted);
            }
            let may_go_on =
                ended.is_none() && !is_dry && result.is_ok() && under_way.0.len() < BATCHES_MAX;
            // This computes what the new batch writes, and starts to write it.
            if let Some((targets, written)) = under_way.next(!may_go_on).await {
                let taking = self.take_over(nodes, &targets, *until, live, &[]);
                result = result.and(written).and(under_way.beside(taking).await);
                if std::mem::take(&mut is_dry) {
                    *until = self.unwritten().writes();
                    *live = live_of(nodes);
                    stream.go_on(*until);
                }
            }
            if result.is_err() {
                ended = Some(StreamEnd::Blocked);
            }
            if may_go_on {
                under_way.beside(self.rt().yield_now()).await;
            }
        }
        result.map(|()| ended.unwrap_or(StreamEnd::Complete))
    }

    /// Whether a stream that is through waits for what comes to its files while its last batches
    /// are written, so that the disks never run dry: if no task waits for these files, and no other
    /// files have dirty blocks.
    fn may_grow(&self, stream: &Stream<'_>) -> bool {
        let blocks = |node: &Rc<Node>| node.dirty.borrow().len() as u64;
        stream.extent != FlushScope::All
            && !stream.has_left
            && !stream.nodes.iter().any(|node| node.is_wanted())
            && stream.nodes.iter().map(blocks).sum::<u64>() == self.unwritten().blocks()
    }

    /// The lines of the next batch; none if the stream must end.
    async fn next_batch(&self, stream: &mut Stream<'_>) -> Result<Vec<LineWrite>> {
        let mut targets = Vec::new();
        if self.pool().unrecorded_losses().is_some() {
            return Ok(targets);
        }
        let planned = self.meta().run(|tx| stream.plan(self, tx, &mut targets)).await;
        if planned.is_err() {
            self.release_new(&targets);
        }
        planned.map(|()| targets)
    }

    /// Writes a batch. Returns the lines that are written.
    async fn write_batch(&self, mut targets: Vec<LineWrite>) -> Written {
        let written = self.write_new(&mut targets, WriteOpts::USER).await;
        if written.is_err() {
            self.release_new(&targets);
            targets.clear();
        }
        (targets, written)
    }
}
