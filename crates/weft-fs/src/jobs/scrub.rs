//! Scrubs: every block of every file is read and checked, in the background, as
//! [`crate::jobs::fsck`] does it. The diagnostic blocks of the disks are looked at as well, and all
//! copies of the metadata: its pages by their checksums.
//!
//! A scrub goes through the records in the order of the metadata. Now and then how far it is goes
//! into the state, with what it has found so far. So after an unmount, a crash or a rebuild it goes
//! on near where it was ([`crate::jobs::scheduler`]): what it has checked since is checked again,
//! and counted once.

use std::collections::VecDeque;
use std::ops::Range;

use weft_array::{ArrayError, ScrubMode};
use weft_wire::{Checked, FIRST_VERSION, Outcome, Task};

use crate::error::Result;
use crate::format::extent::Extent;
use crate::format::inode::Ino;
use crate::meta::Tx;
use crate::state::job::Job;
use crate::state::mounted::{Fs, FsState};
use crate::state::work_desk::Awaited;

/// Records of a part of a scrub. Its progress is stored after each.
const PART_RECORDS: usize = 16;
/// The most parts that are done, or under way at other nodes, beyond the progress that is stored.
const PARTS_MAX: usize = 64;
/// How often a scrub of the metadata array is begun again, because the array grows.
const GROWTHS_MAX: u32 = 3;

/// Names of a scrub's rows in the state: the inode of the next record plus one, or 0 if none is
/// wanted; the block of the file where it starts; and the findings.
const STATE: [&str; 7] = [
    "scrub",
    "scrub from block",
    "scrub blocks read",
    "scrub blocks bad",
    "scrub blocks repaired",
    "scrub damaged files",
    "scrub last damaged",
];

/// What a scrub found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScrubReport {
    /// Blocks read, data and parity.
    pub blocks: u64,
    /// Of these, by other nodes, since the last mount.
    pub elsewhere_blocks: u64,
    /// Of all blocks, wrong or unreadable.
    pub bad_blocks: u64,
    /// Of these, rewritten from redundancy.
    pub repaired_blocks: u64,
    /// Files with blocks that could not be repaired.
    pub damaged_files: u64,
    /// Diagnostic blocks that were wrong, or could not be read or written; they were rewritten.
    pub diagnostic_blocks: u64,
    /// Places at which copies of the metadata were wrong or differed; they were made right and
    /// alike.
    pub metadata_mismatches: u64,
    /// Pages of the metadata without a correct copy. They were left as they are.
    pub metadata_damaged: u64,
}

/// How far a scrub is.
#[derive(Default)]
struct Progress {
    /// The next extent to check.
    next: (Ino, u64),
    /// What was found before that.
    report: ScrubReport,
    /// The last file with blocks that could not be repaired.
    last_damaged: Ino,
}

impl Progress {
    /// How far a scrub is that was interrupted.
    fn load(tx: &Tx<'_>) -> Result<Option<Self>> {
        let mut values = [0; STATE.len()];
        for (value, name) in values.iter_mut().zip(STATE) {
            *value = tx.state(name)?;
        }
        let [next, block, blocks, bad_blocks, repaired_blocks, damaged_files, last_damaged] =
            values;
        let report = ScrubReport {
            blocks,
            bad_blocks,
            repaired_blocks,
            damaged_files,
            ..ScrubReport::default()
        };
        let ino = next.checked_sub(1);
        Ok(ino.map(|ino| Self { next: (ino, block), report, last_damaged }))
    }

    /// A part was checked; this is the record after it.
    fn add(&mut self, part: Checked, next: (Ino, u64)) {
        self.report.blocks += part.blocks;
        self.report.bad_blocks += part.bad;
        self.report.repaired_blocks += part.repaired;
        for ino in part.damaged {
            if self.last_damaged != ino {
                self.report.damaged_files += 1;
                self.last_damaged = ino;
            }
        }
        self.next = next;
    }

    fn store(&self, tx: &Tx<'_>) -> Result<()> {
        let (ino, block) = self.next;
        let ScrubReport { blocks, bad_blocks, repaired_blocks, damaged_files, .. } = self.report;
        let found = [blocks, bad_blocks, repaired_blocks, damaged_files, self.last_damaged];
        let values = [ino + 1, block].into_iter().chain(found);
        STATE.iter().zip(values).try_for_each(|(name, value)| tx.set_state(name, value))
    }
}

/// A part of a scrub, some records.
enum Part {
    Done(Checked),
    /// Another node does it.
    Elsewhere(Awaited),
}

/// Whether a scrub was interrupted.
pub(crate) fn is_wanted(tx: &Tx<'_>) -> Result<bool> {
    Ok(tx.state(STATE[0])? != 0)
}

/// No scrub goes on any more.
pub(crate) fn forget(tx: &Tx<'_>) -> Result<()> {
    tx.set_state(STATE[0], 0)
}

impl FsState {
    /// Reads every block of every file and of the metadata, and repairs wrong ones. Goes
    /// on with a scrub that was interrupted.
    pub(crate) async fn scrub(&self) -> Result<ScrubReport> {
        self.sync().await?;
        let begin = |tx: &Tx<'_>| {
            self.job_may_go_on()?;
            let progress = Progress::load(tx)?.unwrap_or_default();
            progress.store(tx)?;
            Ok(progress)
        };
        let progress = self.meta().run(begin).await?;
        self.commit().await?;
        let ended = self.scrub_from(progress).await;
        if !self.job_goes_on_later(&ended) {
            // If this fails, the next mount does the rest again.
            let _ = self.meta().run(forget).await;
        }
        ended
    }

    async fn scrub_from(&self, mut progress: Progress) -> Result<ScrubReport> {
        self.job_total(self.pool().members().iter().map(|member| member.used_blocks()).sum());
        self.job_done(progress.report.blocks);
        self.check_all(&mut progress).await?;
        let mut report = progress.report;
        for member in self.pool().members() {
            report.diagnostic_blocks += self.pool().mend_diagnostics(&member).await;
        }
        let pages = self.meta().check_pages().await?;
        // The array takes the first copy for right. What is left to it is dead then: the log and
        // the journal.
        self.sync().await?;
        self.meta().checkpoint().await?;
        let mode = match pages.damaged.is_empty() {
            true => ScrubMode::Repair,
            false => ScrubMode::Check,
        };
        let metadata = self.scrub_array(mode).await?;
        report.metadata_mismatches = pages.repaired + metadata.mismatches;
        report.metadata_damaged = pages.damaged.len() as u64;
        self.job_nears_end()?;
        Ok(report)
    }

    /// Reads every block from where the scrub is, with the help of other nodes.
    async fn check_all(&self, progress: &mut Progress) -> Result<()> {
        let goes_on = |blocks| {
            self.job_done(blocks);
            self.job_may_go_on()
        };
        // Until where these are, in their order.
        let mut parts: VecDeque<(Part, Range<(Ino, u64)>)> = VecDeque::new();
        let mut from = progress.next;
        loop {
            // What is next, and the record after that; none: all is given out, or enough.
            let mut next = None;
            while parts.len() < PARTS_MAX {
                let records = self.next_records(from).await?;
                let Some(to) = records.last().map(|(ino, first, _)| (*ino, first + 1)) else {
                    break;
                };
                if self.work_desk().idle(FIRST_VERSION) == 0 {
                    next = Some((records, to));
                    break;
                }
                let part = self.work_desk().give(Task::Check { from, to });
                parts.push_back((Part::Elsewhere(part), from..to));
                from = to;
            }
            // Those that are done, and one more if nothing else can be done now.
            let mut waits = next.is_none();
            if let Some((records, to)) = next {
                let mut checked = Checked::default();
                self.check_each(records, &mut checked, goes_on).await?;
                parts.push_back((Part::Done(checked), from..to));
                from = to;
            }
            if parts.is_empty() {
                return Ok(());
            }
            while let Some((part, range)) = parts.front_mut() {
                let checked = match part {
                    Part::Done(checked) => std::mem::take(checked),
                    Part::Elsewhere(part) if part.is_ready() || waits => {
                        waits = false;
                        match self.await_part(part).await? {
                            Some(Outcome::Checked(checked)) => {
                                self.job_done(checked.found);
                                progress.report.elsewhere_blocks += checked.blocks;
                                checked
                            }
                            _ => self.check_records(range.clone(), goes_on).await?,
                        }
                    }
                    Part::Elsewhere(_) => break,
                };
                progress.add(checked, range.end);
                parts.pop_front();
                let note = |tx: &Tx<'_>| self.job_may_go_on().and_then(|()| progress.store(tx));
                self.meta().run(note).await?;
            }
        }
    }

    /// The next records of a part; none if there are none.
    async fn next_records(&self, from: (Ino, u64)) -> Result<Vec<(Ino, u64, Extent)>> {
        let max = PART_RECORDS.min(self.meta().at_a_time());
        self.meta().run(|tx| tx.records_from(from, max)).await
    }

    /// Reads every block of some records, as [`Self::check_each`] does.
    pub(crate) async fn check_records(
        &self,
        part: Range<(Ino, u64)>,
        goes_on: impl Fn(u64) -> Result<()>,
    ) -> Result<Checked> {
        let (mut found, mut from) = (Checked::default(), part.start);
        loop {
            let mut records = self.next_records(from).await?;
            records.retain(|(ino, first, _)| (*ino, *first) < part.end);
            let Some((last, first, _)) = records.last() else { return Ok(found) };
            from = (*last, first + 1);
            self.check_each(records, &mut found, &goes_on).await?;
        }
    }

    /// Reads every block of these records. After each, with its blocks, it is asked whether to go
    /// on.
    async fn check_each(
        &self,
        records: Vec<(Ino, u64, Extent)>,
        found: &mut Checked,
        goes_on: impl Fn(u64) -> Result<()>,
    ) -> Result<()> {
        for (ino, first, record) in records {
            let checked = self.check_record(ino, first).await?;
            let blocks = record.lines * record.active().count() as u64;
            found.found += blocks;
            found.blocks += checked.blocks;
            found.bad += checked.bad;
            found.repaired += checked.repaired;
            if checked.is_damaged() && found.damaged.last() != Some(&ino) {
                found.damaged.push(ino);
            }
            goes_on(blocks)?;
        }
        Ok(())
    }

    /// Scrubs the metadata array, when it does not take more room just now.
    async fn scrub_array(&self, mode: ScrubMode) -> Result<weft_array::ScrubReport> {
        let mut tries = 0;
        loop {
            drop(self.metadata_growth().turn().await);
            match self.meta().array()?.scrub(mode).await {
                // It began to grow before the scrub did.
                Err(ArrayError::Refused(_)) if tries < GROWTHS_MAX => tries += 1,
                scrubbed => return Ok(scrubbed?),
            }
        }
    }
}

impl Fs {
    /// Reads every block of every file and of the metadata, and repairs wrong ones. Goes
    /// on with a scrub that was interrupted.
    ///
    /// # Errors
    /// If the metadata has failed, another job runs, or this one is cancelled ([`Fs::cancel`]).
    pub async fn scrub(&self) -> Result<ScrubReport> {
        self.0.run_job(Job::Scrub, FsState::scrub).await
    }
}
