//! How many requests of each kind have come: what a program costs, beside what it asked for.

use std::cell::Cell;

use serde_json::{Value, json};

use crate::wire::op;

/// Numbers of requests that are counted on their own; they are below 64.
const KINDS: usize = 64;

/// Counts of requests since the mount.
#[derive(Debug)]
pub(crate) struct Counts([Cell<u64>; KINDS]);

impl Default for Counts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Cell::new(0)))
    }
}

impl Counts {
    /// A request has come.
    pub(crate) fn came(&self, opcode: u32) {
        if let Some(count) = self.0.get(opcode as usize) {
            count.set(count.get() + 1);
        }
    }

    /// The counts of the kinds that have come, by the kernel's names of them.
    pub(crate) fn to_json(&self) -> Value {
        let count = |opcode: u32| self.0.get(opcode as usize).map_or(0, Cell::get);
        let counts = op::ALL.iter().map(|(opcode, name)| (*name, count(*opcode)));
        let came = counts.filter(|(_, count)| *count > 0);
        came.map(|(name, count)| json!({ "kind": name.to_lowercase(), "count": count })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_their_names() {
        let counts = Counts::default();
        for opcode in [op::LOOKUP, op::CREATE, op::LOOKUP, 60, u32::MAX] {
            counts.came(opcode);
        }
        assert_eq!(
            counts.to_json(),
            json!([{ "kind": "lookup", "count": 2 }, { "kind": "create", "count": 1 }])
        );
        assert!(op::ALL.iter().all(|(opcode, _)| (*opcode as usize) < KINDS));
    }
}
