//! The mount mark of a disk: which host and mount has it. [`crate::mount::claim`] explains its use.

use std::mem::offset_of;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_array::Id;
use weft_disk::{Class, Disk, WriteOpts};
use weft_rt::{Buf, Frozen};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::FsError;
use crate::format::block::BLOCK;
use crate::format::checksum::{has_crc32c_at, put_crc32c_at};

const MAGIC: [u8; 8] = *b"weftmark";
/// Where the mark is on a disk.
const MARK_AT: u64 = 24 << 10;
/// Bytes of the name of a host.
const HOST_BYTES: usize = 64;

/// What a host is called, as far as it fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host([u8; HOST_BYTES]);

impl Host {
    /// The host with this name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; HOST_BYTES];
        let len = name.len().min(HOST_BYTES);
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        Self(bytes)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    crc32c: U32,
    state: U32,
    fs_id: [u8; 16],
    nonce: U64,
    beat: U64,
    host: [u8; HOST_BYTES],
}

/// A mark's description of its mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It was unmounted.
    Ended = 0,
    /// It is about to be mounted.
    Claimed = 1,
    /// It is mounted.
    Mounted = 2,
}

/// Who has mounted a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) state: State,
    /// Differs from mount to mount.
    pub(crate) nonce: u64,
    /// Changes while it is mounted.
    pub(crate) beat: u64,
    pub(crate) host: Host,
}

impl Mark {
    fn encode(&self, fs_id: Id) -> Frozen {
        let mut raw = Raw {
            magic: MAGIC,
            crc32c: U32::ZERO,
            state: U32::new(self.state as u32),
            fs_id: fs_id.0,
            nonce: U64::new(self.nonce),
            beat: U64::new(self.beat),
            host: self.host.0,
        };
        put_crc32c_at(raw.as_mut_bytes(), offset_of!(Raw, crc32c));
        let mut block = Buf::zeroed(BLOCK);
        block[..size_of::<Raw>()].copy_from_slice(raw.as_bytes());
        block.freeze()
    }

    fn decode(block: &[u8], fs_id: Id) -> Option<Self> {
        let (mut raw, _) = Raw::read_from_prefix(block).ok()?;
        let is_whole = has_crc32c_at(raw.as_mut_bytes(), offset_of!(Raw, crc32c));
        if !is_whole || raw.magic != MAGIC || raw.fs_id != fs_id.0 {
            return None;
        }
        let state = match raw.state.get() {
            0 => State::Ended,
            1 => State::Claimed,
            _ => State::Mounted,
        };
        let (nonce, beat, host) = (raw.nonce.get(), raw.beat.get(), Host(raw.host));
        Some(Self { state, nonce, beat, host })
    }

    pub(crate) async fn read(disk: &dyn Disk, fs_id: Id) -> Option<Self> {
        let (result, block) = disk.read(MARK_AT, Buf::new(BLOCK), Class::Urgent).await;
        result.ok().and_then(|()| Self::decode(&block, fs_id))
    }

    /// Writes it to disks, as far as they work.
    pub(crate) async fn write(&self, disks: &[Rc<dyn Disk>], fs_id: Id) {
        let (block, opts) = (self.encode(fs_id), WriteOpts { class: Class::Urgent, fua: true });
        // A disk that fails here is noticed by other requests.
        drop(join_all(disks.iter().map(|disk| disk.write(MARK_AT, block.clone(), opts))).await);
    }

    /// The error of a mount that comes second.
    pub(crate) fn refusal(&self) -> FsError {
        let host = String::from_utf8_lossy(&self.host.0);
        let host = host.trim_end_matches('\0');
        FsError::Unmountable(format!(
            "it is mounted by the host '{host}', or about to be: unmount it there first"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_back_and_a_damaged_one_is_none() {
        let host = Host::new(
            "a host with a long name that does not fit into what there is for it, at all",
        );
        for state in [State::Ended, State::Claimed, State::Mounted] {
            let mark = Mark { state, nonce: 7, beat: 9, host };
            let block = mark.encode(Id([3; 16]));
            assert_eq!(Mark::decode(&block, Id([3; 16])), Some(mark));
            assert_eq!(Mark::decode(&block, Id([4; 16])), None);
            for at in [0, 9, 20, 40, 100] {
                let mut bad = block.to_vec();
                bad[at] ^= 1;
                assert_eq!(Mark::decode(&bad, Id([3; 16])), None, "byte {at}");
            }
        }
    }
}
