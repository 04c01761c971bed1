//! Feeds arbitrary bytes to the parsers of messages. What must hold for any input: no panic, an
//! end, no message from fewer bytes than it is written in, and each message has one form. Shared by
//! the fuzz target and by a plain test.

use weft_wire::{Frames, FromKeeper, ToKeeper, WireError};

/// One input, as a stream of either side, in pieces.
pub fn exercise(input: &[u8]) {
    parse(input, ToKeeper::next, ToKeeper::to_bytes);
    parse(input, FromKeeper::next, FromKeeper::to_bytes);
}

/// The bytes with the right checksums, as far as they are frames: what lies behind a checksum is
/// reached.
pub fn summed(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    let mut at = 0;
    while let Some(head) = bytes.get(at..at + 12) {
        let len = u32::from_le_bytes(head[..4].try_into().expect("four bytes")) as usize;
        let Some(end) = len.checked_add(at + 12).filter(|end| *end <= bytes.len()) else { break };
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        digest.update(&bytes[at..at + 8]);
        digest.update(&bytes[at + 12..end]);
        let sum = u32::try_from(digest.finalize()).expect("32 bits");
        bytes[at + 8..at + 12].copy_from_slice(&sum.to_le_bytes());
        at = end;
    }
    bytes
}

fn parse<T>(
    input: &[u8],
    next: impl Fn(&mut Frames) -> Result<Option<T>, WireError>,
    to_bytes: impl Fn(&T) -> Vec<u8>,
) {
    let (mut frames, mut parsed) = (Frames::default(), 0);
    let piece = 1 + input.first().map_or(0, |byte| usize::from(*byte));
    for piece in input.chunks(piece) {
        frames.push(piece);
        loop {
            match next(&mut frames) {
                Ok(Some(message)) => {
                    let bytes = to_bytes(&message);
                    assert_eq!(bytes, input[parsed..parsed + bytes.len()], "it has one form");
                    parsed += bytes.len();
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(frames.waiting_bytes() <= input.len() - parsed);
    }
}
