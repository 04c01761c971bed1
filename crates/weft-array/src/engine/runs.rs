//! Pieces of disks that are transferred together, as long requests cost a disk less than many.

use weft_stripe::Location;

/// A piece of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bit<T> {
    pub place: Location,
    pub len: u64,
    /// What it is.
    pub what: T,
}

impl<T> Bit<T> {
    fn end(&self) -> u64 {
        self.place.offset + self.len
    }
}

/// Sorts pieces by their places, and groups those of one disk with at most `gap` bytes between one
/// and the next. None crosses a multiple of `most` unless a piece does.
pub(crate) fn grouped<T>(
    bits: &mut [Bit<T>],
    gap: u64,
    most: u64,
) -> impl Iterator<Item = &[Bit<T>]> {
    bits.sort_unstable_by_key(|bit| bit.place);
    bits.chunk_by(move |one, next| {
        one.place.slot == next.place.slot
            && next.place.offset <= one.end() + gap
            && next.place.offset / most == one.place.offset / most
    })
}

/// The first byte of a group, and its length.
pub(crate) fn span<T>(group: &[Bit<T>]) -> (Location, u64) {
    let (first, end) = (group[0].place, group.iter().map(Bit::end).max());
    (first, end.unwrap_or(first.offset) - first.offset)
}

#[cfg(test)]
mod tests {
    use weft_code::SlotNo;

    use super::*;

    fn spans(places: &[(usize, u64)], gap: u64) -> Vec<(usize, u64, u64)> {
        let bit = |(slot, offset): &(usize, u64)| {
            let place = Location { slot: SlotNo(*slot), offset: *offset };
            Bit { place, len: 10, what: () }
        };
        let mut bits: Vec<Bit<()>> = places.iter().map(bit).collect();
        let groups = grouped(&mut bits, gap, 100).map(span);
        groups.map(|(place, len)| (place.slot.0, place.offset, len)).collect()
    }

    #[test]
    fn pieces_of_a_disk_are_joined_across_gaps_up_to_a_limit() {
        let places = [(1, 20), (0, 40), (0, 10), (0, 20), (0, 95), (0, 105), (1, 30)];
        let exact = [(0, 10, 20), (0, 40, 10), (0, 95, 10), (0, 105, 10), (1, 20, 20)];
        assert_eq!(spans(&places, 0), exact);
        assert_eq!(spans(&places, 10)[0], (0, 10, 40));
        assert_eq!(spans(&places, 9)[0], (0, 10, 20));
    }
}
