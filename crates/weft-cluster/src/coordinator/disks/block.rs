//! Blocks: what each node writes on each disk, as pairs of frames.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weft_rt::Frozen;

use crate::coordinator::CoordinatorError;
use crate::frame::{self, Frame};
use crate::{Record, Session};

pub(super) const FRAME_BYTES: usize = 64 << 10;
const MAGIC: [u8; 8] = *b"weftpaxo";
const VERSION: u32 = 1;

/// A value, which its proposer knows by a random number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Value {
    pub nonce: u64,
    pub record: Record,
}

/// How far a node is in an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Ballot {
    /// The version that is to be decided.
    pub instance: u64,
    /// The highest ballot that the node has tried.
    pub tried: u64,
    /// The ballot in which it has accepted `value`; 0: none.
    pub accepted: u64,
    pub value: Option<Value>,
}

/// What a node has written last.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Block {
    /// The process that has written it.
    pub process: Option<u64>,
    /// The numbers of the markers of disks that were set up again, by place.
    pub markers: BTreeMap<usize, u64>,
    /// The process, if it has a lease.
    pub session: Option<Session>,
    /// Rises while it lives.
    pub beat: u64,
    /// The last version that it knows to be decided; 0: none.
    pub decided: u64,
    pub value: Option<Value>,
    pub ballot: Ballot,
}

impl Block {
    /// Takes over a later decision; the ballot of an earlier instance is of no use any more.
    pub fn learn(&mut self, other: &Self) {
        if other.decided > self.decided {
            self.decided = other.decided;
            self.value.clone_from(&other.value);
        }
        for (place, number) in &other.markers {
            let known = self.markers.entry(*place).or_default();
            *known = (*known).max(*number);
        }
        if self.ballot.instance <= self.decided {
            self.ballot = Ballot { instance: self.decided + 1, ..Ballot::default() };
        }
    }
}

/// The blocks that were read on one disk, by node.
pub(super) type Blocks = Vec<(u64, Block)>;

pub(super) fn encode(sequence: u64, block: &Block) -> Result<Frozen, CoordinatorError> {
    let contents = serde_json::to_vec(block).expect("a block can be written");
    let frame = frame::encode(&MAGIC, VERSION, sequence, &contents, FRAME_BYTES);
    let too_long = || CoordinatorError::Refused("the record is too long for a block".to_owned());
    Ok(frame.ok_or_else(too_long)?.freeze())
}

/// The newer frame of a pair; `None`: neither can be read.
fn newest(frames: &[Frame; 2]) -> Option<(u64, Block)> {
    let sound = frames.iter().filter_map(|frame| match frame {
        Frame::Sound(sequence, contents) => {
            Some((*sequence, serde_json::from_slice(contents).ok()?))
        }
        _ => None,
    });
    match sound.max_by_key(|(sequence, _)| *sequence) {
        Some(newest) => Some(newest),
        // The first write ever may have been torn.
        None => (frames[1] == Frame::Blank).then(<(u64, Block)>::default),
    }
}

/// The newer block of the two frames of a pair; `None`: neither can be read.
pub(super) fn decode(pair: &[u8]) -> Option<(u64, Block)> {
    let (first, second) = pair.split_at(FRAME_BYTES);
    newest(&[first, second].map(|bytes| frame::decode(&MAGIC, VERSION, bytes)))
}
