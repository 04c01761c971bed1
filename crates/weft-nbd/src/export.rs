//! The export: what a server serves.

use std::fmt;
use std::rc::Rc;

use weft_disk::{Volume, VolumeError, VolumeErrorKind};

use crate::proto::{BlockSizes, Errno};

/// A volume, and how it is served. Any number of clients may share it.
///
/// Ranges are checked before a request reaches the volume (inside the size, aligned to
/// [`VolumeInfo::align_bytes`](weft_disk::VolumeInfo::align_bytes), not longer than the largest
/// payload for data), and one that is read-only gets no writes. A client learns the size when it
/// connects.
///
/// A client that vanishes does not cancel started requests: futures run to their end. Only of a
/// trim or zeros that were cut into pieces the rest is not started.
#[derive(Clone)]
pub struct Export {
    /// What is served.
    pub volume: Rc<dyn Volume>,
    /// A sentence for people who list the exports.
    pub description: String,
    /// Whether writes are refused.
    pub read_only: bool,
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export")
            .field("description", &self.description)
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}

impl Export {
    /// Serves `volume` for reads and writes.
    pub fn new(volume: Rc<dyn Volume>, description: impl Into<String>) -> Self {
        Self { volume, description: description.into(), read_only: false }
    }

    /// Whether its sizes of requests can be announced.
    pub(crate) fn has_sound_sizes(&self) -> bool {
        let block = self.block_sizes();
        let powers = block.min.is_power_of_two() && block.preferred.is_power_of_two();
        powers && block.min <= 64 << 10 && block.min <= block.max.min(block.preferred)
    }

    /// The sizes of requests, apart from the server's own bound.
    pub(crate) fn block_sizes(&self) -> BlockSizes {
        let info = self.volume.info();
        let usual = BlockSizes::default();
        let preferred = info.block_bytes.max(usual.preferred);
        BlockSizes { min: info.align_bytes, preferred, ..usual }
    }
}

/// What a client is told of a volume's error.
pub(crate) fn errno(error: &VolumeError) -> Errno {
    match error.kind {
        VolumeErrorKind::Invalid => Errno::Invalid,
        VolumeErrorKind::ReadOnly => Errno::Perm,
        VolumeErrorKind::Stopped => Errno::Shutdown,
        VolumeErrorKind::NoSpace => Errno::NoSpace,
        VolumeErrorKind::Unreadable | VolumeErrorKind::Failed => Errno::Io,
    }
}
