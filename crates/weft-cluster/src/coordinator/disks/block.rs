//! Blocks: what each node writes on each disk, as pairs of frames.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weft_disk::{Class, Disk};
use weft_rt::{Buf, Frozen};

use super::HALF_BYTES;
use crate::coordinator::CoordinatorError;
use crate::frame::{self, Frame};
use crate::{NodeName, Record, Session};

/// Bytes of a frame. After it there is a claim (see `claim.rs`).
pub(super) const FRAME_BYTES: usize = 60 << 10;
/// What is read of a frame first: most are not longer.
const USUAL_BYTES: usize = 4096;
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
    /// The name of the node. Blocks of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<NodeName>,
    /// The process that has written it.
    pub process: Option<u64>,
    /// That process has ended in order, and writes nothing any more.
    #[serde(default)]
    pub has_ended: bool,
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

/// A frame on a disk; `None`: the disk failed.
async fn read_frame(disk: &dyn Disk, at: u64) -> Option<Frame> {
    let mut found = Frame::Blank;
    for bytes in [USUAL_BYTES, FRAME_BYTES] {
        let (result, bytes) = disk.read(at, Buf::new(bytes), Class::Urgent).await;
        result.ok()?;
        found = frame::decode(&MAGIC, VERSION, &bytes);
        // One whose end is missing counts as damaged.
        if found != Frame::Damaged {
            break;
        }
    }
    Some(found)
}

/// The newer block of the pair of frames that begins here; `None`: neither can be read.
pub(super) async fn read(disk: &dyn Disk, at: u64) -> Option<(u64, Block)> {
    let second = read_frame(disk, at + HALF_BYTES);
    let (first, second) = futures_util::future::join(read_frame(disk, at), second).await;
    newest(&[first?, second?])
}
