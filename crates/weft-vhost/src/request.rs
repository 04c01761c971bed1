//! A request of a guest's driver: a chain of pieces of its memory, which may hold anything.
//!
//! ```text
//! the device reads:   type u32, reserved u32, sector u64 │ data of a write, or ranges
//! the device writes:  data of a read │ status u8
//! ```
//!
//! Pieces may be cut anywhere; those that the device writes come last.

use std::ops::Deref;

use virtio_queue::DescriptorChain;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemory};

use crate::config::{DATA_BYTES_MAX, RANGE_BYTES_MAX, SECTOR};

/// Results, as the guest sees them.
pub(crate) mod status {
    pub(crate) const OK: u8 = 0;
    pub(crate) const ERROR: u8 = 1;
    pub(crate) const UNSUPPORTED: u8 = 2;
}

const HEADER_BYTES: usize = 16;
const RANGE_BYTES: usize = 16;
/// The answer to the question which disk it is.
pub(crate) const ID_BYTES: usize = 20;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
    Flush,
    Discard,
    Zeroes { may_deallocate: bool },
    Id,
}

/// Most pieces of a request: a driver that follows the configuration has fewer, and a chain may
/// have 65,535.
const PIECES_MAX: usize = 1024;

/// A piece of the guest's memory.
pub(crate) type Piece = (GuestAddress, u64);

/// A request that can be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    /// Where on the disk, bytes.
    pub(crate) offset: u64,
    /// How many bytes of the disk.
    pub(crate) len: u64,
    /// Where the data is, or goes to.
    pub(crate) data: Vec<Piece>,
    /// Where the status goes to.
    pub(crate) status: GuestAddress,
}

/// A request that cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// It has no place for a status.
    NoPlace,
    /// It gets this status.
    Status(GuestAddress, u8),
}

impl Request {
    /// Reads a chain. The disk has `size_bytes`.
    pub(crate) fn of<M>(chain: DescriptorChain<M>, size_bytes: u64) -> Result<Self, Wrong>
    where
        M: Deref + Clone,
        M::Target: GuestMemory,
    {
        let memory = chain.clone();
        let memory = memory.memory();
        let (mut given, mut taken, mut is_mixed) = (Vec::new(), Vec::new(), false);
        for descriptor in chain {
            if descriptor.len() == 0 {
                continue;
            }
            if given.len() + taken.len() >= PIECES_MAX {
                return Err(Wrong::NoPlace);
            }
            let piece = piece_of(&descriptor);
            if descriptor.is_write_only() {
                taken.push(piece);
            } else {
                is_mixed |= !taken.is_empty();
                given.push(piece);
            }
        }
        let status = take_last_byte(&mut taken).ok_or(Wrong::NoPlace)?;
        let wrong = |code: u8| Wrong::Status(status, code);
        let error = wrong(status::ERROR);
        if is_mixed {
            return Err(error);
        }
        let header = take(&mut given, HEADER_BYTES as u64).ok_or(error)?;
        let mut bytes = [0; HEADER_BYTES];
        copy_from(memory, &header, &mut bytes).ok_or(error)?;
        let (kind, sector) = (word(&bytes, 0), long(&bytes, 8));
        let (operation, data) = match kind {
            0 => (Operation::Read, taken),
            1 => (Operation::Write, given),
            4 => (Operation::Flush, Vec::new()),
            8 => (Operation::Id, taken),
            11 | 13 => {
                return Self::of_range(memory, kind, given, status, size_bytes).map_err(wrong);
            }
            _ => return Err(wrong(status::UNSUPPORTED)),
        };
        let len = total(&data).ok_or(error)?;
        let request = match operation {
            Operation::Flush => Self { operation, offset: 0, len: 0, data, status },
            Operation::Id => {
                Self { operation, offset: 0, len: len.min(ID_BYTES as u64), data, status }
            }
            _ => {
                let offset = place(sector, len, size_bytes).ok_or(error)?;
                if len == 0 || len > DATA_BYTES_MAX || !len.is_multiple_of(SECTOR) {
                    return Err(error);
                }
                Self { operation, offset, len, data, status }
            }
        };
        Ok(request)
    }

    /// A discard, or zeros: one range, as the configuration says.
    fn of_range<M: GuestMemory + ?Sized>(
        memory: &M,
        kind: u32,
        mut given: Vec<Piece>,
        status: GuestAddress,
        size_bytes: u64,
    ) -> Result<Self, u8> {
        let range = take(&mut given, RANGE_BYTES as u64).ok_or(status::ERROR)?;
        let mut bytes = [0; RANGE_BYTES];
        copy_from(memory, &range, &mut bytes).ok_or(status::ERROR)?;
        let (sector, sectors, flags) = (long(&bytes, 0), word(&bytes, 8), word(&bytes, 12));
        let operation = match (kind, flags) {
            (11, 0) => Operation::Discard,
            (13, 0 | 1) => Operation::Zeroes { may_deallocate: flags == 1 },
            _ => return Err(status::UNSUPPORTED),
        };
        let len = u64::from(sectors) * SECTOR;
        let offset = place(sector, len, size_bytes).ok_or(status::ERROR)?;
        if len == 0 || len > RANGE_BYTES_MAX || total(&given) != Some(0) {
            return Err(status::ERROR);
        }
        Ok(Self { operation, offset, len, data: Vec::new(), status })
    }
}

fn piece_of(descriptor: &Descriptor) -> Piece {
    (descriptor.addr(), u64::from(descriptor.len()))
}

/// Where a range begins, if the disk has all of it.
fn place(sector: u64, len: u64, size_bytes: u64) -> Option<u64> {
    let offset = sector.checked_mul(SECTOR)?;
    (offset.checked_add(len)? <= size_bytes).then_some(offset)
}

fn total(pieces: &[Piece]) -> Option<u64> {
    pieces.iter().try_fold(0_u64, |sum, (_, len)| sum.checked_add(*len))
}

/// Takes the first `len` bytes out of `pieces`; `None` if they have fewer.
fn take(pieces: &mut Vec<Piece>, mut len: u64) -> Option<Vec<Piece>> {
    let (mut taken, mut rest) = (Vec::new(), Vec::new());
    for (at, have) in pieces.drain(..) {
        let part = have.min(len);
        if part > 0 {
            taken.push((at, part));
        }
        if have > part {
            rest.push((GuestAddress(at.0.checked_add(part)?), have - part));
        }
        len -= part;
    }
    *pieces = rest;
    (len == 0).then_some(taken)
}

/// Takes the last byte out of `pieces`.
fn take_last_byte(pieces: &mut Vec<Piece>) -> Option<GuestAddress> {
    while pieces.last().is_some_and(|(_, len)| *len == 0) {
        pieces.pop();
    }
    let (at, len) = pieces.pop()?;
    if len > 1 {
        pieces.push((at, len - 1));
    }
    at.0.checked_add(len - 1).map(GuestAddress)
}

/// Copies the contents of `pieces` to `bytes`, which has their length. `None` if some of them are
/// not in the guest's memory.
pub(crate) fn copy_from<M: GuestMemory + ?Sized>(
    memory: &M,
    pieces: &[Piece],
    bytes: &mut [u8],
) -> Option<()> {
    let mut rest = bytes;
    for (at, len) in pieces {
        let (part, after) = rest.split_at_mut_checked(usize::try_from(*len).ok()?)?;
        memory.read_slice(part, *at).ok()?;
        rest = after;
    }
    rest.is_empty().then_some(())
}

/// Copies `bytes` to `pieces`, as far as both reach. `None` if some of them are not in the guest's
/// memory.
pub(crate) fn copy_to<M: GuestMemory + ?Sized>(
    memory: &M,
    pieces: &[Piece],
    bytes: &[u8],
) -> Option<()> {
    let mut rest = bytes;
    for (at, len) in pieces {
        let len = usize::try_from(*len).ok()?.min(rest.len());
        let (part, after) = rest.split_at(len);
        memory.write_slice(part, *at).ok()?;
        rest = after;
    }
    Some(())
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use virtio_queue::desc::RawDescriptor;
    use virtio_queue::mock::MockSplitQueue;
    use virtio_queue::{Queue, QueueOwnedT as _};
    use vm_memory::GuestMemoryMmap;

    use super::*;

    const SIZE: u64 = 1 << 20;
    const HEADER: u64 = 0x10_000;
    const DATA: u64 = 0x20_000;
    const STATUS: u64 = 0x30_000;

    fn memory() -> GuestMemoryMmap {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).expect("memory")
    }

    /// A header of this type and sector, and pieces: address, length, whether the device writes.
    fn ask(kind: u32, sector: u64, pieces: &[(u64, u32, bool)]) -> Result<Request, Wrong> {
        let memory = memory();
        memory.write_obj(kind, GuestAddress(HEADER)).expect("there");
        memory.write_obj(sector, GuestAddress(HEADER + 8)).expect("there");
        ask_of(&memory, pieces)
    }

    fn ask_of(memory: &GuestMemoryMmap, pieces: &[(u64, u32, bool)]) -> Result<Request, Wrong> {
        let last = pieces.len() - 1;
        let descriptors: Vec<RawDescriptor> = (0_u16..)
            .zip(pieces)
            .map(|(n, (at, len, writes))| {
                let next = if usize::from(n) < last { 1 } else { 0 };
                let flags = next | if *writes { 2 } else { 0 };
                RawDescriptor::from(Descriptor::new(*at, *len, flags, n + 1))
            })
            .collect();
        let mock = MockSplitQueue::new(memory, 16);
        mock.build_desc_chain(&descriptors).expect("built");
        let mut queue: Queue = mock.create_queue().expect("a queue");
        let chain = queue.iter(memory).expect("iterated").next().expect("a chain");
        Request::of(chain, SIZE)
    }

    const ERROR: Result<Request, Wrong> = Err(Wrong::Status(GuestAddress(STATUS), status::ERROR));

    #[test]
    fn reads_and_writes_are_understood_however_they_are_cut() {
        let read =
            ask(0, 3, &[(HEADER, 16, false), (DATA, 1024, true), (STATUS, 1, true)]).expect("good");
        let data = vec![(GuestAddress(DATA), 1024)];
        let status = GuestAddress(STATUS);
        let (operation, offset, len) = (Operation::Read, 1536, 1024);
        assert_eq!(read, Request { operation, offset, len, data, status });
        let pieces = [
            (HEADER, 4, false),
            (HEADER + 4, 12, false),
            (DATA, 100, false),
            (DATA + 100, 412, false),
            (STATUS - 5, 6, true),
        ];
        let write = ask(1, 0, &pieces).expect("good");
        assert_eq!((write.operation, write.offset, write.len), (Operation::Write, 0, 512));
        assert_eq!(write.data, [(GuestAddress(DATA), 100), (GuestAddress(DATA + 100), 412)]);
        assert_eq!(write.status, GuestAddress(STATUS));
    }

    #[test]
    fn what_cannot_be_carried_out_gets_an_error() {
        let (header, status) = ((HEADER, 16, false), (STATUS, 1, true));
        let end = SIZE / 512;
        // Beyond the end, just and by far, and around it.
        assert_eq!(ask(0, end, &[header, (DATA, 512, true), status]), ERROR);
        assert_eq!(ask(1, end - 1, &[header, (DATA, 1024, false), status]), ERROR);
        assert_eq!(ask(0, u64::MAX, &[header, (DATA, 512, true), status]), ERROR);
        assert_eq!(ask(0, u64::MAX / 512, &[header, (DATA, 512, true), status]), ERROR);
        assert!(ask(0, end - 1, &[header, (DATA, 512, true), status]).is_ok());
        // No data, a part of a sector, and more than was agreed on.
        assert_eq!(ask(0, 0, &[header, status]), ERROR);
        assert_eq!(ask(1, 0, &[header, (DATA, 511, false), status]), ERROR);
        let long = (DATA, u32::MAX - 100, true);
        assert_eq!(ask(0, 0, &[header, long, status]), ERROR);
        // A header that is too short, and one outside the memory.
        assert_eq!(ask(0, 0, &[(HEADER, 15, false), status]), ERROR);
        assert_eq!(ask(0, 0, &[(1 << 40, 16, false), (DATA, 512, true), status]), ERROR);
        // The device reads after it has written.
        assert_eq!(ask(1, 0, &[header, (DATA, 512, true), (DATA, 512, false), status]), ERROR);
        let unknown = Err(Wrong::Status(GuestAddress(STATUS), status::UNSUPPORTED));
        for kind in [2, 3, 5, 7, 14, 16, 0x8000_0000, u32::MAX] {
            assert_eq!(ask(kind, 0, &[header, (DATA, 512, true), status]), unknown, "{kind}");
        }
    }

    #[test]
    fn without_a_place_for_the_status_there_is_no_answer() {
        assert_eq!(ask(0, 0, &[(HEADER, 16, false)]), Err(Wrong::NoPlace));
        assert_eq!(ask(1, 0, &[(HEADER, 16, false), (DATA, 512, false)]), Err(Wrong::NoPlace));
        assert_eq!(ask(4, 0, &[(HEADER, 16, false), (STATUS, 0, true)]), Err(Wrong::NoPlace));
        assert_eq!(ask(4, 0, &[(HEADER, 16, false), (u64::MAX, 2, true)]), Err(Wrong::NoPlace));
    }

    #[test]
    fn ranges_are_checked() {
        let range = |kind: u32, sector: u64, sectors: u32, flags: u32, len: u32| {
            let memory = memory();
            memory.write_obj(kind, GuestAddress(HEADER)).expect("there");
            memory.write_obj(sector, GuestAddress(DATA)).expect("there");
            memory.write_obj(sectors, GuestAddress(DATA + 8)).expect("there");
            memory.write_obj(flags, GuestAddress(DATA + 12)).expect("there");
            ask_of(&memory, &[(HEADER, 16, false), (DATA, len, false), (STATUS, 1, true)])
        };
        let discard = range(11, 8, 16, 0, 16).expect("good");
        assert_eq!((discard.operation, discard.offset), (Operation::Discard, 4096));
        assert_eq!(discard.len, 8192);
        let zeroes = range(13, 0, 2048, 1, 16).expect("good");
        assert_eq!(zeroes.operation, Operation::Zeroes { may_deallocate: true });
        for (sector, sectors, len) in [
            (0, 2049, 16),
            (2048, 1, 16),
            (u64::MAX, 1, 16),
            (0, u32::MAX, 16),
            (0, 0, 16),
            (0, 8, 15),
            (0, 8, 32),
        ] {
            assert_eq!(range(13, sector, sectors, 0, len), ERROR, "{sector} {sectors} {len}");
        }
        let unknown = Err(Wrong::Status(GuestAddress(STATUS), status::UNSUPPORTED));
        assert_eq!(range(11, 0, 8, 1, 16), unknown);
        assert_eq!(range(13, 0, 8, 2, 16), unknown);
    }

    #[test]
    fn memory_that_is_not_there_is_noticed_when_it_is_used() {
        let memory = memory();
        let outside = [(GuestAddress((1 << 20) - 4), 8)];
        assert_eq!(copy_from(&memory, &outside, &mut [0; 8]), None);
        assert_eq!(copy_to(&memory, &outside, &[0; 8]), None);
        let inside = [(GuestAddress(8), 4), (GuestAddress(0), 4)];
        assert_eq!(copy_to(&memory, &inside, b"abcdefgh"), Some(()));
        let mut bytes = [0; 8];
        assert_eq!(copy_from(&memory, &inside, &mut bytes), Some(()));
        assert_eq!(&bytes, b"abcdefgh");
    }
}
