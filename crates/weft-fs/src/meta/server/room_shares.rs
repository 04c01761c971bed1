//! How full the metadata is, and what nodes were told of that.
//!
//! A node adds rows without asking. It is told how many bytes of rows it may add before it is told
//! again: all nodes together may add half of what is left. With each batch it is counted what a
//! node has added; nodes that may add much less now are told.

use std::collections::BTreeMap;

use weft_wire::Room;

use crate::error::{InDatabase as _, Result};
use crate::meta::keeper::Keeper;
use crate::meta::room::{row_bytes_for_all, row_bytes_max};
use crate::meta::row_bytes::{ROW_BYTES, row_bytes_name, row_bytes_of_nodes};
use crate::meta::rows::STATE;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct RoomShares {
    /// Bytes of rows that each node has added, less those that it has removed, by the row of the
    /// state that says so.
    row_bytes: BTreeMap<String, u64>,
    /// Bytes of rows that each node with a connection may add, as it was told last.
    told: BTreeMap<u16, u64>,
}

impl RoomShares {
    /// What the state says; no node is there.
    pub(super) fn read(keeper: &Keeper) -> Result<Self> {
        let mut row_bytes = BTreeMap::new();
        if let Some(bytes) = keeper.row(&STATE, &ROW_BYTES, |value| value)? {
            row_bytes.insert(ROW_BYTES.to_owned(), bytes);
        }
        for row in keeper.rows(&STATE, &row_bytes_of_nodes())?.into_iter().flatten() {
            let (name, bytes) = row.db()?;
            row_bytes.insert(name.value().to_owned(), bytes.value());
        }
        Ok(Self { row_bytes, told: BTreeMap::new() })
    }

    /// A node is there on a new connection, on which it was told nothing yet.
    pub(super) fn join(&mut self, node: u16) {
        self.told.insert(node, 0);
    }

    /// A node is there no more.
    pub(super) fn leave(&mut self, node: u16) {
        self.told.remove(&node);
    }

    /// A batch of a node has ended, with which it counts this number of bytes.
    pub(super) fn count(&mut self, node: u16, row_bytes: u64) {
        self.row_bytes.insert(row_bytes_name(node), row_bytes);
    }

    /// How full the metadata is, for a node, which is told that now.
    pub(super) fn tell(&mut self, node: u16, capacity: u64) -> Room {
        let room = self.room(capacity);
        if let Some(told) = self.told.get_mut(&node) {
            *told = room.left;
        }
        room
    }

    /// How full the metadata is, and the nodes other than this one that may add much less than they
    /// were told. They are told that now.
    pub(super) fn tell_others(&mut self, node: u16, capacity: u64) -> (Room, Vec<u16>) {
        let room = self.room(capacity);
        let mut nodes = Vec::new();
        for (number, told) in self.told.iter_mut().filter(|(number, _)| **number != node) {
            if room.left < *told / 4 * 3 {
                *told = room.left;
                nodes.push(*number);
            }
        }
        (room, nodes)
    }

    fn room(&self, capacity: u64) -> Room {
        let rows = self.row_bytes.values().fold(0, |sum: u64, of| sum.wrapping_add(*of));
        let part = 2 * self.told.len().max(1) as u64;
        let left = |most: u64| most.saturating_sub(rows) / part;
        Room {
            rows,
            left: left(row_bytes_for_all(capacity)),
            left_for_root: left(row_bytes_max(capacity)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 64 << 20;

    #[test]
    fn nodes_may_add_half_of_what_is_left_and_hear_when_that_shrinks() {
        let mut shares = RoomShares::default();
        let all = row_bytes_for_all(CAPACITY);
        assert_eq!(shares.tell(1, CAPACITY).left, all / 2, "none is there");
        shares.join(1);
        shares.join(2);
        assert_eq!(shares.tell_others(1, CAPACITY).1, [0; 0], "node 2 was told nothing");
        let first = shares.tell(2, CAPACITY);
        assert_eq!((first.rows, first.left), (0, all / 4));
        assert_eq!(first.left_for_root, row_bytes_max(CAPACITY) / 4);
        // A fifth less is not much less.
        shares.count(1, all / 5);
        assert_eq!(shares.tell_others(1, CAPACITY).1, [0; 0]);
        shares.count(1, all / 2);
        let (room, nodes) = shares.tell_others(1, CAPACITY);
        assert_eq!((room.rows, room.left), (all / 2, (all - all / 2) / 4));
        assert_eq!(nodes, [2]);
        assert_eq!(shares.tell_others(1, CAPACITY).1, [0; 0], "it has heard of it");
        // What others have removed counts against what the first has added.
        shares.count(2, (all / 4).wrapping_neg());
        assert_eq!(shares.tell(2, CAPACITY).rows, all / 2 - all / 4);
        shares.leave(1);
        assert_eq!(shares.tell(2, CAPACITY).left, (all - (all / 2 - all / 4)) / 2);
        shares.count(2, u64::MAX / 4);
        assert_eq!(shares.tell(2, CAPACITY).left, 0);
        shares.leave(2);
        assert_eq!(shares.tell_others(1, CAPACITY).1, [0; 0], "it is there no more");
    }
}
