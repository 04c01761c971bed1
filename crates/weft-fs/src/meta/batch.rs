//! Messages from the half of a node to the half of the keeper, which can be on another machine.
//!
//! ```text
//!   node   ── Part, Part, … ──▶ keeper    nothing reads these rows yet
//!          ── End ────────────▶           reads see all of them: one batch, all or none
//! ```
//!
//! They are plain data: they borrow nothing, and know nothing of the store. Messages have the new
//! contents of rows, so a part may be sent again. `docs/weftfs.md` has the whole protocol.

use super::rows::RowChange;

/// The version of these messages.
pub(super) const VERSION: u16 = 1;

/// Some rows of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) version: u16,
    /// The batch: they are counted since the mount.
    pub(super) batch: u64,
    /// In the order of tables and keys.
    pub(super) rows: Vec<RowChange>,
}

/// The end of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) version: u16,
    pub(super) batch: u64,
    /// Whether it is the last one before an unmount.
    pub(super) is_last: bool,
}
