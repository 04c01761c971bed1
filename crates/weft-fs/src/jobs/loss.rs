//! The data that would be lost with a disk, and the names of the files that lose blocks.
//!
//! A working disk is not taken out of service, unless forced, if only it can give blocks of files:
//! they are gone then, until it is added again ([`crate::disks::successor`]).

use std::collections::BTreeSet;

use weft_code::UnitSet;

use crate::error::{FsError, Result};
use crate::format::extent::Extent;
use crate::format::inode::Ino;
use crate::state::mounted::{Fs, FsState};

/// Files that are named in a report.
const NAMED_MAX: usize = 16;

/// Files that would lose blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Loss {
    /// How many files that are.
    pub files: u64,
    /// Paths of the first of them, from the root of the file system; the number of a file that has
    /// none.
    pub first: Vec<String>,
}

impl Loss {
    /// Fails, with the names of files, if anything would be lost.
    pub(crate) fn refuse(&self, number: u16) -> Result<()> {
        let Self { files, first } = self;
        if *files == 0 {
            return Ok(());
        }
        let more = if *files > first.len() as u64 { ", …" } else { "" };
        let (files, verb) =
            if *files == 1 { ("1 file".into(), "has") } else { (format!("{files} files"), "have") };
        Err(FsError::Invalid(format!(
            "{files} {verb} blocks that only disk {number} can give, and would lose them: {}{more}. \
             Remove the disk instead, which empties it first",
            first.join(", ")
        )))
    }
}

impl FsState {
    /// Takes a disk out of service if nothing is lost with it. Blocks get places under the lock of
    /// flushes only: none gets one on the disk after it was looked at.
    async fn fail_disk_without_loss(&self, number: u16) -> Result<()> {
        self.meta().array()?;
        let _alone = self.hold_all_tokens().await;
        let _slices = self.change_slices().await;
        let _flushes = self.flush_alone().await;
        self.check()?;
        let member = self.disk_numbered(number)?;
        loop {
            let losses = self.pool().losses();
            self.loss_of(number).await?.refuse(number)?;
            self.vacate_metadata(&member, false).await?;
            // Another disk may have been lost meanwhile.
            if self.pool().losses() == losses {
                break;
            }
        }
        self.pool().lose(&member);
        self.commit_within_flush().await
    }

    /// What would be lost with a disk that works.
    pub(crate) async fn loss_of(&self, number: u16) -> Result<Loss> {
        self.disk_numbered(number)?;
        let mut inos = BTreeSet::new();
        let mut from = (0, 0);
        loop {
            let records =
                self.meta().run(|tx| tx.records_from(from, self.meta().at_a_time())).await?;
            let Some((last, first, _)) = records.last() else { break };
            from = (*last, first + 1);
            for (ino, _, record) in &records {
                if self.needs(record, number)? {
                    inos.insert(*ino);
                }
            }
        }
        let named: BTreeSet<Ino> = inos.iter().copied().take(NAMED_MAX).collect();
        let paths = self.paths_of(&named).await?;
        let first = named.iter().map(|ino| match paths.get(ino) {
            Some(path) => path.clone(),
            None => format!("inode {ino}"),
        });
        Ok(Loss { files: inos.len() as u64, first: first.collect() })
    }

    /// Whether blocks of these lines are lost with a disk.
    fn needs(&self, record: &Extent, number: u16) -> Result<bool> {
        let on_disk: UnitSet =
            record.active().filter(|(_, c)| c.disk == number).map(|(unit, _)| unit).collect();
        if on_disk.is_empty() || record.unwritten {
            return Ok(false);
        }
        let laid = self.pool().lay(record)?;
        let stripe = laid.stripe();
        let gone = stripe.lost.union(&on_disk);
        let has_data = on_disk.intersects(&UnitSet::first(record.coded.k()));
        let is_whole = |lost| stripe.code().decodable(record.pattern, lost);
        Ok(!is_whole(gone) && (has_data || is_whole(stripe.lost)))
    }
}

impl Fs {
    /// Files that would lose blocks if a disk were taken out of service now.
    ///
    /// # Errors
    /// If there is no such disk, or the metadata has failed.
    pub async fn loss_of(&self, number: u16) -> Result<Loss> {
        self.sync().await?;
        self.0.loss_of(number).await
    }

    /// Takes a disk out of service as [`Fs::fail_disk`] does, unless that would lose blocks of
    /// files.
    ///
    /// # Errors
    /// Also [`FsError::Invalid`] with the names of some of these files.
    pub async fn fail_disk_without_loss(&self, number: u16) -> Result<()> {
        self.loss_of(number).await?.refuse(number)?;
        let fs = self.0.clone();
        self.0.rt().attach(|| async move { fs.fail_disk_without_loss(number).await }).await
    }
}
