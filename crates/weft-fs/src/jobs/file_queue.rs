//! The files that a job looks through, in their order, of which other nodes get some.

use std::collections::VecDeque;

use crate::format::inode::Ino;
use crate::jobs::migration::BATCH_BLOCKS;

/// The most blocks of files that another node gets at a time, or a file that has more: node 0 looks
/// for its outcome between two batches of its own.
const PART_BLOCKS: u64 = 4 * BATCH_BLOCKS;
/// The most files of them.
const PART_FILES: usize = 10_000;

/// A file of a job.
struct QueuedFile {
    ino: Ino,
    blocks: u64,
}

/// See the [module](self).
pub(crate) struct FileQueue {
    files: VecDeque<QueuedFile>,
    /// Those that another node could not do.
    left_over: Vec<Ino>,
}

impl FileQueue {
    /// These files, with their blocks.
    pub(crate) fn of(files: impl IntoIterator<Item = (Ino, u64)>) -> Self {
        let files = files.into_iter().map(|(ino, blocks)| QueuedFile { ino, blocks }).collect();
        Self { files, left_over: Vec::new() }
    }

    /// Blocks of the files that nobody has taken.
    pub(crate) fn blocks(&self) -> u64 {
        self.files.iter().map(|file| file.blocks).sum()
    }

    /// Takes the next one out, for node 0.
    pub(crate) fn take_next(&mut self) -> Option<Ino> {
        self.left_over.pop().or_else(|| Some(self.files.pop_front()?.ino))
    }

    /// Takes some out for another node, one of so many that have nothing to do: none if there are
    /// none left.
    pub(crate) fn take_part(&mut self, idle: usize) -> Vec<Ino> {
        // Node 0 has a share, and what is left in the end is in smaller parts.
        let most = (self.blocks() / (2 * (idle as u64 + 1))).clamp(1, PART_BLOCKS);
        let mut blocks = 0;
        let mut taken = Vec::new();
        while (taken.is_empty() || blocks < most)
            && taken.len() < PART_FILES
            && let Some(file) = self.files.pop_front()
        {
            blocks += file.blocks;
            taken.push(file.ino);
        }
        taken
    }

    /// Another node could not do these.
    pub(crate) fn put_back(&mut self, files: impl IntoIterator<Item = Ino>) {
        self.left_over.extend(files);
    }

    /// Those that nobody has taken.
    pub(crate) fn rest(self) -> impl Iterator<Item = Ino> {
        self.left_over.into_iter().chain(self.files.into_iter().map(|file| file.ino))
    }
}
