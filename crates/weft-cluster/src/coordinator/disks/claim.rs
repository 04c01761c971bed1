//! The claim to a node's block on a disk: which process may write the block.
//!
//! A process that starts writes its claim, and waits until whatever the one before it had begun has
//! ended. Only then it reads the block: nothing comes after that but its own writes. A process
//! looks for its claim before each write, and ends when there is another.

use serde::{Deserialize, Serialize};
use weft_disk::{Class, Disk, DiskError};
use weft_rt::Buf;

use super::block::FRAME_BYTES;
use super::{BLOCK_BYTES, HALF, HALF_BYTES};
use crate::frame::{self, Frame};

const MAGIC: [u8; 8] = *b"weftproc";
const BYTES: usize = 4096;
const VERSION: u32 = 1;

/// A claim: one with a higher number is later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    pub number: u64,
    /// The process: a random number.
    pub process: u64,
}

const _: () = assert!(FRAME_BYTES + BYTES <= HALF && 2 * HALF_BYTES == BLOCK_BYTES);

/// Where the two copies are in the block that begins here.
fn copies_at(block: u64) -> [u64; 2] {
    let first = block + FRAME_BYTES as u64;
    [first, first + HALF_BYTES]
}

/// The claim to the block that begins here, if there is one. `None`: it cannot be read.
pub(super) async fn read(disk: &dyn Disk, block: u64) -> Option<Option<Claim>> {
    let (mut found, mut last) = (None, Frame::Blank);
    for at in copies_at(block) {
        let (result, bytes) = disk.read(at, Buf::new(BYTES), Class::Urgent).await;
        result.ok()?;
        last = frame::decode(&MAGIC, VERSION, &bytes);
        if let Frame::Sound(_, contents) = &last
            && let Ok(claim) = serde_json::from_slice::<Claim>(contents)
        {
            found = found.into_iter().chain([claim]).max_by_key(|claim| claim.number);
        }
    }
    // The first write ever may have been torn.
    (found.is_some() || last == Frame::Blank).then_some(found)
}

/// Writes a claim, one copy after the other.
pub(super) async fn write(disk: &dyn Disk, block: u64, claim: &Claim) -> Result<(), DiskError> {
    let contents = serde_json::to_vec(claim).expect("a claim can be written");
    let frame = frame::encode(&MAGIC, VERSION, claim.number, &contents, BYTES);
    frame::write_copies(disk, copies_at(block), frame.expect("it is short")).await
}
