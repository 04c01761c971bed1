//! A disk as all threads know it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What suits a disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Logical block: 512 or 4096.
    pub block_bytes: u32,
    /// Smallest request without a penalty.
    pub unit_bytes: u64,
    /// The best request.
    pub stripe_bytes: u64,
}

/// A disk.
pub(crate) struct Disk {
    name: String,
    size_bytes: AtomicU64,
    pub(crate) limits: Limits,
    pub(crate) read_only: bool,
    is_ending: AtomicBool,
}

impl Disk {
    pub(crate) fn new(name: &str, size_bytes: u64, limits: Limits, read_only: bool) -> Self {
        let (name, size_bytes) = (name.to_owned(), AtomicU64::new(size_bytes));
        Self { name, size_bytes, limits, read_only, is_ending: AtomicBool::new(false) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
    }

    /// Takes no more requests.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
    }

    /// Whether it takes no more requests.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }
}
