//! What a check of the file system finds.

use crate::format::inode::Ino;

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub ino: Ino,
    /// Its path, if it has one and it is known: files with lost blocks.
    pub path: Option<String>,
    /// What.
    pub what: String,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FsckReport {
    /// Inodes checked.
    pub inodes: u64,
    /// Blocks read.
    pub blocks: u64,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

impl FsckReport {
    pub(crate) fn find(&mut self, ino: Ino, what: impl Into<String>) {
        self.findings.push(Finding { ino, path: None, what: what.into() });
    }
}
