//! A ring on the metadata array, written from its start to its end over and over. Positions in it
//! count up forever. An entry that would not fit before the end is placed at the start.
//!
//! *Copies.* What is appended has a checksum, and a crash may leave it on one copy of the metadata
//! only. A mount looks at all copies: one that is right is enough. What it finds it writes to all
//! of them, durably, before anything is done that follows from it. Otherwise a second crash, with
//! which the disk of that copy is lost, would leave these effects without the record that explains
//! them.

use weft_array::Array;
use weft_code::SlotNo;
use weft_rt::Buf;

use crate::error::Result;
use crate::format::block::BLOCK;

/// What the first copy has that has an entry at some place: its bytes, and what they are. `read`
/// reads so many bytes there of a copy, `len` gives the length of the entry if the first block is
/// that of one, and `decode` its contents if all of it is correct.
///
/// # Errors
/// If no copy can be read.
pub(crate) async fn first_right<C, T>(
    copies: impl IntoIterator<Item = C>,
    read: impl AsyncFn(&C, usize) -> Option<Buf>,
    len: impl Fn(&[u8]) -> Option<usize>,
    decode: impl Fn(&mut [u8]) -> Option<T>,
) -> std::result::Result<Option<(Buf, T)>, Unreadable> {
    let mut any = false;
    for copy in copies {
        let Some(first) = read(&copy, BLOCK).await else { continue };
        any = true;
        let Some(len) = len(&first) else { continue };
        let Some(whole) = read(&copy, len).await else { continue };
        let mut bytes = Buf::copy_from(&whole);
        if let Some(found) = decode(&mut bytes) {
            return Ok(Some((whole, found)));
        }
    }
    if any { Ok(None) } else { Err(Unreadable) }
}

/// No copy can be read.
pub(crate) struct Unreadable;

/// The same on the metadata array, at an offset.
pub(crate) async fn read_any<T>(
    array: &Array,
    at: u64,
    len: impl Fn(&[u8]) -> Option<usize>,
    decode: impl Fn(&mut [u8]) -> Option<T>,
) -> Result<Option<(Buf, T)>> {
    let read = async |copy: &SlotNo, len| array.read_copy(*copy, at, len).await;
    if let Ok(found) = first_right(array.copies(), read, &len, &decode).await {
        return Ok(found);
    }
    // No single copy can be read: the array's own error counts.
    let (result, first) = array.read(at, Buf::new(BLOCK)).await;
    result?;
    let Some(len) = len(&first) else { return Ok(None) };
    let (result, whole) = array.read(at, Buf::new(len)).await;
    result?;
    let mut bytes = Buf::copy_from(&whole);
    Ok(decode(&mut bytes).map(|found| (whole, found)))
}

/// Where `len` bytes go in a ring of `size` bytes that is full up to `head`.
pub(crate) fn place(size: u64, head: u64, len: u64) -> u64 {
    let at = head % size;
    if at + len > size { head - at + size } else { head }
}

/// The records appended after a position, and the position after them. `read` looks at an offset in
/// the ring, and returns how many bytes there belong to what it finds.
pub(crate) async fn next<T>(
    size: u64,
    position: u64,
    read: impl AsyncFn(u64) -> Result<Option<(u64, T)>>,
) -> Result<Option<(u64, T)>> {
    let here = position % size;
    if let Some((len, found)) = read(here).await? {
        return Ok(Some((position + len, found)));
    }
    if here == 0 {
        return Ok(None);
    }
    let start = position - here + size;
    Ok(read(0).await?.map(|(len, found)| (start + len, found)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_before_the_end_begins_at_the_start() {
        assert_eq!([place(100, 250, 50), place(100, 251, 50), place(100, 0, 100)], [250, 300, 0]);
    }
}
