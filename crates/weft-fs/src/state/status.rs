//! What a file system reports.

use weft_token::Mode::Shared;

use crate::disks::old_block_cache::OldBlockCounts;
use crate::disks::pool::Counts;
use crate::error::Result;
use crate::format::block::BLOCK_BYTES;
use crate::format::inode::Ino;
use crate::format::label::Label;
use crate::format::redundancy::Redundancy;
use crate::meta::{MetaCacheCounts, MetaPageCounts};
use crate::state::job::JobStatus;
use crate::state::metadata_copies::{MetaCopy, copy_on, count_copies};
use crate::state::mounted::{Fs, FsState};

/// A disk of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskStatus {
    /// Its number.
    pub number: u16,
    /// What it is called, or was when it was seen last.
    pub name: String,
    /// Whether it was given at the mount.
    pub present: bool,
    /// Whether it is not used any more: it failed, or was missing.
    pub lost: bool,
    /// Its error when it failed, if it failed since the mount with an error.
    pub lost_because: Option<String>,
    /// The number that it has since it came back, if it was lost and something of it is still to be
    /// rebuilt.
    pub back_as: Option<u16>,
    /// Whether this node reaches it through the keeper, as its own path has failed.
    pub through_keeper: bool,
    /// The numbers of the nodes that reach it through this one.
    pub relayed_for: Vec<u16>,
    /// Whether it is being emptied, to leave.
    pub leaving: bool,
    /// Bytes for data, without what the metadata has taken of them.
    pub data_bytes: u64,
    /// Bytes by which the disk has become larger, and which are not used.
    pub unused_bytes: u64,
    /// Of the bytes for data, free.
    pub free_bytes: u64,
    /// Blocks that have failed, and are not used any more.
    pub bad_blocks: u64,
    /// What it has of the metadata.
    pub metadata: MetaCopy,
}

/// What is left for files of a redundancy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceFor {
    /// The redundancy.
    pub redundancy: Redundancy,
    /// Bytes that such files may still have, if they are long.
    pub free_bytes: u64,
    /// Whether the disks have room for more, and the metadata has not.
    pub is_limited_by_metadata: bool,
}

/// The state of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FsStatus {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: String,
    /// Mounts so far.
    pub epoch: u64,
    /// Its disks.
    pub disks: Vec<DiskStatus>,
    /// What is left, by redundancy.
    pub space: Vec<SpaceFor>,
    /// Files, folders and links.
    pub inodes: u64,
    /// Small files for which the metadata has room yet, as far as it can grow.
    pub free_inodes: u64,
    /// Complete copies of the metadata, and the wanted number of copies. Both are 0 on a node whose
    /// keeper is elsewhere.
    pub meta_copies: (usize, usize),
    /// Bytes of the metadata, and the most that there may be before it grows.
    pub meta_bytes: (u64, u64),
    /// Files with more in memory than their contents and metadata: they are open or are used, or
    /// something of them waits to be written.
    pub files_in_memory: u64,
    /// Why it takes no more requests, if so.
    pub stopped: Option<String>,
    /// Bytes that wait to be written.
    pub dirty_bytes: u64,
    /// Batches of new lines that were computed while other batches were written, since the mount.
    pub overlapped_batches: u64,
    /// Bytes of blocks at hand that were read or written lately.
    pub at_hand_bytes: u64,
    /// What they were good for, since the mount.
    pub at_hand: OldBlockCounts,
    /// The pages of the metadata in memory, and what they were good for.
    pub meta_cache: MetaCacheCounts,
    /// What was found wrong with copies of the metadata, since the mount.
    pub meta_pages: MetaPageCounts,
    /// The job that runs.
    pub job: Option<JobStatus>,
    /// Blocks that were wrong, unreadable, repaired or moved since the mount.
    pub counts: Counts,
}

impl FsState {
    /// Blocks that files of this redundancy may still have, and how many the disks have room for
    /// then: the metadata may have no room for what describes them, however much it grows.
    pub(crate) fn free_blocks(&self, redundancy: Redundancy) -> (u64, u64) {
        let members = self.pool().members();
        let free = members.iter().map(|member| member.room()).collect();
        self.described(free, redundancy, self.meta().usage().0)
    }

    /// Blocks that files of this redundancy could have if there were nothing else.
    pub(crate) fn all_blocks(&self, redundancy: Redundancy) -> u64 {
        let usable = |member: &std::rc::Rc<crate::disks::member::Member>| {
            member.data_blocks() - member.space.borrow().bad_blocks().len() as u64
        };
        let mut free: Vec<u64> = Vec::new();
        for member in self.pool().members() {
            free.push(if member.takes_data() { usable(&member) } else { 0 });
        }
        self.described(free, redundancy, 0).0
    }
}

impl Fs {
    /// The labels' description of this file system.
    #[must_use]
    pub fn label(&self) -> &Label {
        self.0.label()
    }

    /// Its state.
    ///
    /// # Errors
    /// If the metadata has failed.
    pub async fn status(&self) -> Result<FsStatus> {
        self.0.check()?;
        // A file system that has stopped still says so.
        let inodes = self.0.meta().run(|tx| tx.inode_count()).await;
        let stopped = self.0.meta().why_failed();
        let inodes = if stopped.is_some() { 0 } else { inodes? };
        // A node does not know the copies of metadata that its keeper has elsewhere.
        let array = self.0.meta().array().ok().map(weft_array::Array::status);
        let copies =
            |array: &weft_array::Status| count_copies(array, self.0.pool().members().len());
        let disk = |member: &std::rc::Rc<crate::disks::member::Member>| DiskStatus {
            number: member.number,
            name: member.row().name.clone(),
            present: member.is_present(),
            lost: member.is_lost(),
            lost_because: member.why_lost.borrow().clone().filter(|_| member.is_lost()),
            back_as: self.0.pool().successor(member.number).map(|successor| successor.number),
            through_keeper: member.is_relayed(),
            relayed_for: self.0.path_desk().nodes_of(member.number),
            leaving: member.is_leaving(),
            data_bytes: member.data_blocks() * BLOCK_BYTES,
            unused_bytes: member.unused_blocks() * BLOCK_BYTES,
            free_bytes: member.room() * BLOCK_BYTES,
            bad_blocks: member.space.borrow().bad_blocks().len() as u64,
            metadata: array.as_ref().map_or(MetaCopy::None, |array| copy_on(array, member.number)),
        };
        let names = ["auto", "none", "raid1", "raid6"];
        let redundancies = names.iter().filter_map(|name| name.parse().ok());
        let space = redundancies.map(|redundancy| {
            let (free, on_disks) = self.0.free_blocks(redundancy);
            SpaceFor {
                redundancy,
                free_bytes: free * BLOCK_BYTES,
                is_limited_by_metadata: free < on_disks,
            }
        });
        Ok(FsStatus {
            name: self.0.label().name.clone(),
            id: self.0.label().fs_id.to_string(),
            epoch: self.0.log().epoch(),
            disks: self.0.pool().members().iter().map(disk).collect(),
            space: space.collect(),
            stopped,
            inodes,
            free_inodes: self.0.left_files(),
            meta_copies: array.as_ref().map_or((0, 0), copies),
            meta_bytes: self.0.meta().usage(),
            files_in_memory: self.0.open_files().count(),
            dirty_bytes: self.0.unwritten().blocks() * BLOCK_BYTES,
            overlapped_batches: self.0.overlapped_batches(),
            at_hand_bytes: self.0.pool().at_hand.bytes(),
            at_hand: self.0.pool().at_hand.counts.get(),
            meta_cache: self.0.meta().cache_counts(),
            meta_pages: self.0.meta().page_counts(),
            job: self.0.job_status(),
            counts: self.0.pool().counts.get(),
        })
    }

    /// Why the file system has stopped, if it has.
    ///
    /// # Errors
    /// If it is unmounted.
    pub fn why_stopped(&self) -> Result<Option<String>> {
        self.0.check()?;
        Ok(self.0.meta().why_failed())
    }

    /// Bytes that files of this redundancy could have if there were nothing else.
    #[must_use]
    pub fn all_bytes(&self, redundancy: Redundancy) -> u64 {
        self.0.all_blocks(redundancy) * BLOCK_BYTES
    }

    /// Bytes that files of this redundancy may still have, if they are long.
    #[must_use]
    pub fn free_bytes(&self, redundancy: Redundancy) -> u64 {
        self.0.free_blocks(redundancy).0 * BLOCK_BYTES
    }

    /// Where the blocks of a file lie: for each run of lines the first block, the code, and disk,
    /// first block and number of blocks of each column. For reports and tests.
    ///
    /// # Errors
    /// If the metadata has failed.
    pub async fn places(&self, ino: Ino) -> Result<Vec<(u64, crate::format::extent::Extent)>> {
        let _everything = self.0.hold_everything().await;
        let _file = self.0.hold_files_of_batch([ino], Shared).await;
        self.0.meta().run(|tx| tx.records(ino, 0, u64::MAX)).await
    }
}
