//! What a disk has acknowledged and may lose until it is flushed: kept, so that it can be written
//! again.
//!
//! Ranges that do not overlap, each with what was written there last: of two writes to one place
//! only the later one is kept. So they can be written again in any order.

use std::collections::{BTreeMap, VecDeque};

use weft_rt::Frozen;

/// What counts for a change beside its data, in bytes.
const CHANGE_BYTES: u64 = 256;

/// What is to be in a place.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Data(Frozen),
    Zeroes,
}

#[derive(Debug)]
struct Piece {
    len: u64,
    content: Content,
    /// Which change it comes from.
    number: u64,
}

impl Piece {
    /// A part of it.
    fn part(&self, from: u64, len: u64) -> Self {
        let index = |n: u64| usize::try_from(n).expect("inside a buffer");
        let content = match &self.content {
            Content::Data(data) => Content::Data(data.slice(index(from), index(len))),
            Content::Zeroes => Content::Zeroes,
        };
        Self { len, content, number: self.number }
    }
}

/// Changes of a disk that are not known to be durable.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    /// By their offsets.
    pieces: BTreeMap<u64, Piece>,
    /// Changes so far.
    last: u64,
    /// Those of them that are not durable, with what they count: also if a later one has taken
    /// their place, as a part of a buffer keeps all of it.
    counted: VecDeque<(u64, u64)>,
    bytes: u64,
}

impl Unflushed {
    /// A change was acknowledged; with no content: it is durable, or what is there does not matter.
    pub(super) fn note(&mut self, offset: u64, len: u64, content: Option<Content>) {
        self.forget(offset, offset + len);
        self.last += 1;
        let Some(content) = content.filter(|_| len > 0) else { return };
        let bytes = match &content {
            Content::Data(_) => len + CHANGE_BYTES,
            Content::Zeroes => CHANGE_BYTES,
        };
        self.bytes += bytes;
        self.counted.push_back((self.last, bytes));
        self.pieces.insert(offset, Piece { len, content, number: self.last });
    }

    fn forget(&mut self, from: u64, to: u64) {
        let before = self.pieces.range(..from).next_back();
        let before = before.map(|(start, piece)| (*start, *start + piece.len));
        if let Some((start, end)) = before.filter(|(_, end)| *end > from) {
            let piece = self.pieces.remove(&start).expect("it was found");
            if end > to {
                self.pieces.insert(to, piece.part(to - start, end - to));
            }
            self.pieces.insert(start, piece.part(0, from - start));
        }
        while let Some((&start, piece)) = self.pieces.range(from..to).next() {
            let end = start + piece.len;
            let piece = self.pieces.remove(&start).expect("it was found");
            if end > to {
                self.pieces.insert(to, piece.part(to - start, end - to));
            }
        }
    }

    /// How many changes were acknowledged so far.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The first changes, up to this number, are durable.
    pub(super) fn flushed(&mut self, number: u64) {
        self.pieces.retain(|_, piece| piece.number > number);
        while let Some((_, bytes)) = self.counted.front().filter(|(of, _)| *of <= number) {
            self.bytes -= bytes;
            self.counted.pop_front();
        }
    }

    /// How much is kept.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is to be written again: offsets, lengths and contents.
    pub(super) fn pieces(&self) -> Vec<(u64, u64, Content)> {
        let pieces = self.pieces.iter();
        pieces.map(|(offset, piece)| (*offset, piece.len, piece.content.clone())).collect()
    }
}
