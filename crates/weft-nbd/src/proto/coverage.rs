//! Which bytes of a read have arrived.
//!
//! A structured reply may be cut into chunks in any order, but no two may overlap, and together
//! they must be the whole range. Counting bytes is not enough: a chunk sent twice would make up for
//! one that never came, and the gap would keep the old contents of the buffer. So the ranges
//! themselves are kept. Chunks that come in order cost no memory; only those ahead of a gap are
//! listed, up to a limit.

use std::ops::Range;

use super::Violation;

/// Ranges ahead of a gap that are remembered. An honest server sends a chunk for each extent, and
/// mostly in order.
const AHEAD_MAX: usize = 4096;

/// The part of a range of bytes that has been covered, each byte once.
#[derive(Debug, Default)]
pub struct Coverage {
    /// Everything below is covered.
    prefix: u64,
    /// Covered ranges above, in order, with gaps between them.
    ahead: Vec<Range<u64>>,
}

impl Coverage {
    /// Covers `range`, which is counted from the start of the read.
    ///
    /// # Errors
    /// It is empty, part of it was covered before, or there are too many gaps; nothing is changed
    /// then.
    pub fn add(&mut self, range: Range<u64>) -> Result<(), Violation> {
        const TWICE: Violation = Violation::Malformed("reply: chunks overlap");
        if range.is_empty() {
            return Err(Violation::Malformed("reply: an empty chunk of data"));
        }
        if range.start < self.prefix {
            return Err(TWICE);
        }
        let at = self.ahead.partition_point(|known| known.start < range.start);
        let overlaps_next = self.ahead.get(at).is_some_and(|next| next.start < range.end);
        let overlaps_last = at > 0 && self.ahead[at - 1].end > range.start;
        if overlaps_next || overlaps_last {
            return Err(TWICE);
        }
        if range.start == self.prefix {
            self.prefix = range.end;
            let joined = self.ahead.iter().take_while(|next| {
                let joins = next.start == self.prefix;
                if joins {
                    self.prefix = next.end;
                }
                joins
            });
            let joined = joined.count();
            self.ahead.drain(..joined);
            return Ok(());
        }
        if at > 0 && self.ahead[at - 1].end == range.start {
            self.ahead[at - 1].end = range.end;
        } else if self.ahead.get(at).is_some_and(|next| next.start == range.end) {
            self.ahead[at].start = range.start;
        } else if self.ahead.len() < AHEAD_MAX {
            self.ahead.insert(at, range);
        } else {
            return Err(Violation::Malformed("reply: too many gaps between its chunks"));
        }
        Ok(())
    }

    /// Whether exactly the first `len` bytes are covered.
    pub fn is_whole(&self, len: u64) -> bool {
        self.prefix == len && self.ahead.is_empty()
    }
}
