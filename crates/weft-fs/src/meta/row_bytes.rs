//! How many bytes all rows have, and how many may be added.
//!
//! Each node counts the rows that it adds and removes, and stores that with its commits under a
//! name of its own: all together are the bytes of all rows. A node with the keeper in its process
//! adds up what others have stored. Any other node is told by its keeper how many bytes all have
//! and how many it may add; what it has changed since its last batch counts on top.

use std::ops::ControlFlow;

use weft_wire::Room;

use super::reach::Reach;
use super::rows::{KeyRange, RowKey, STATE, between};
use super::transaction::Tx;
use super::{Meta, room};
use crate::error::Result;

/// Bytes of all rows, in the state; with several nodes what node 0 counted.
pub(super) const ROW_BYTES: &str = "row bytes with keys";
/// Before a node's number, in the state: bytes of all rows that it has added, less those that it
/// has removed.
const ROW_BYTES_OF: &str = "row bytes of node ";

/// The row of the state with the bytes of rows that a node has added.
pub(super) fn row_bytes_name(node: u16) -> String {
    if node == 0 { ROW_BYTES.to_owned() } else { format!("{ROW_BYTES_OF}{node}") }
}

/// The names of the rows of nodes other than 0 with the bytes of rows that they have added.
pub(super) fn row_bytes_of_nodes() -> KeyRange<'static> {
    // What follows a blank in the order of bytes.
    const END: &str = "row bytes of node!";
    between(RowKey::named(0, ROW_BYTES_OF.as_bytes()), RowKey::named(0, END.as_bytes()))
}

impl Tx<'_> {
    /// Bytes of rows that nodes other than this one have added, less those that they have removed.
    pub(super) fn row_bytes_of_others(&self, own: u16) -> Result<u64> {
        let mut bytes = if own == 0 { 0 } else { self.state(ROW_BYTES)? };
        let own = row_bytes_name(own);
        self.scan(&STATE, &row_bytes_of_nodes(), |name, value| {
            bytes = if name == own { bytes } else { bytes.wrapping_add(value) };
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(bytes)
    }
}

impl Meta {
    /// Other nodes have added and removed rows.
    pub(crate) async fn look_at_others(&self) -> Result<()> {
        let number = self.number();
        let bytes = self.run(|tx| tx.row_bytes_of_others(number)).await?;
        self.row_bytes_of_others.set(bytes);
        Ok(())
    }

    /// Bytes of all rows, as far as it is known.
    pub(super) fn row_bytes(&self) -> u64 {
        match &self.keeper {
            Reach::Here(_) => self.changes.row_bytes().wrapping_add(self.row_bytes_of_others.get()),
            Reach::Remote(keeper) => keeper.room().rows.saturating_add_signed(self.added_bytes()),
        }
    }

    /// Bytes of all rows, and the most that everyone may fill.
    pub(crate) fn usage(&self) -> (u64, u64) {
        (self.row_bytes(), room::row_bytes_for_all(self.capacity()))
    }

    /// Bytes of rows that this node has added, less those that it has removed, since the last batch
    /// that the store has.
    pub(super) fn added_bytes(&self) -> i64 {
        self.changes.row_bytes().wrapping_sub(self.node.stored_row_bytes()).cast_signed()
    }

    /// Bytes of rows that everyone may add.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.left_bytes_for(false)
    }

    fn left_bytes_for(&self, for_root: bool) -> u64 {
        let capacity = self.capacity();
        let Reach::Remote(keeper) = &self.keeper else {
            let most = match for_root {
                true => room::row_bytes_max(capacity),
                false => room::row_bytes_for_all(capacity),
            };
            return most.saturating_sub(self.row_bytes());
        };
        let Room { left, left_for_root, .. } = keeper.room();
        let left = if for_root { left_for_root } else { left };
        left.saturating_add_signed(self.added_bytes().saturating_neg())
    }

    /// How many files of one block are described by so many bytes of rows.
    pub(crate) fn files_in(row_bytes: u64) -> u64 {
        row_bytes / room::FILE_BYTES
    }

    /// Whether there is room for this number of bytes more of files, names, attributes and places:
    /// for everyone, or for root and the file system itself.
    pub(crate) fn has_room(&self, bytes: u64, for_root: bool) -> bool {
        bytes < self.left_bytes_for(for_root)
    }

    /// Whether the rows have as many bytes as was counted.
    pub(crate) fn is_counted(&self, tx: &Tx<'_>) -> Result<bool> {
        let all = self.changes.row_bytes().wrapping_add(tx.row_bytes_of_others(self.number)?);
        Ok(tx.count_row_bytes()? == all)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use super::*;
    use crate::meta::rows::is_empty;

    #[test]
    fn the_names_of_counts_of_nodes_are_one_range() {
        let (from, to) = row_bytes_of_nodes();
        for node in [1, 2, 10, 255, u16::MAX] {
            let name = row_bytes_name(node);
            let key = Bound::Included(RowKey::named(0, name.as_bytes()));
            assert!(!is_empty(&(from.clone(), key.clone())) && !is_empty(&(key, to.clone())));
        }
        for name in [&row_bytes_name(0), "row bytes of node", "row bytes of nodes"] {
            let key = Bound::Included(RowKey::named(0, name.as_bytes()));
            assert!(
                is_empty(&(from.clone(), key.clone())) || is_empty(&(key, to.clone())),
                "{name}"
            );
        }
    }
}
