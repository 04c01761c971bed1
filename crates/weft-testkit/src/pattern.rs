//! Data in which every sector names itself.
//!
//! A sector's first word is its own number, so that a test that finds the wrong sector can report
//! *whose* data it found; all its words are mixed from (stream, number), so that no two sectors of
//! any two streams agree, and neither do their sums.

use weft_random::mix;

/// The size of a pattern sector in bytes.
pub const SECTOR: usize = 512;

/// Fills `data`, which lies at sector `first` of its stream, with the pattern of `stream`.
/// Use another stream for each rewrite of the same place.
///
/// # Panics
/// If `data` is not whole sectors.
pub fn fill(stream: u64, first: u64, data: &mut [u8]) {
    assert_eq!(data.len() % SECTOR, 0, "a pattern is made of whole sectors");
    for (number, sector) in (first..).zip(data.chunks_exact_mut(SECTOR)) {
        fill_sector(stream, number, sector);
    }
}

/// `bytes` bytes of the pattern of `stream`, from sector 0.
#[must_use]
pub fn bytes(stream: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    fill(stream, 0, &mut data);
    data
}

/// Checks that `data`, read from sector `first` on, holds the pattern of `stream`.
///
/// # Panics
/// At the first wrong sector, saying which sector's data is there instead.
#[track_caller]
pub fn check(stream: u64, first: u64, data: &[u8]) {
    let mut expected = [0; SECTOR];
    for (number, sector) in (first..).zip(data.chunks(SECTOR)) {
        fill_sector(stream, number, &mut expected);
        if *sector != expected[..sector.len()] {
            panic!("sector {number} of stream {stream} is wrong: {}", describe(stream, sector));
        }
    }
}

fn fill_sector(stream: u64, number: u64, sector: &mut [u8]) {
    let key = mix(stream) ^ number;
    let (name, rest) = sector.split_at_mut(8);
    name.copy_from_slice(&number.to_le_bytes());
    for (word, index) in rest.chunks_exact_mut(8).zip(1_u64..) {
        word.copy_from_slice(&mix(mix(key) ^ index).to_le_bytes());
    }
}

/// A guess at what a wrong sector is.
fn describe(stream: u64, sector: &[u8]) -> String {
    if sector.iter().all(|byte| *byte == 0) {
        return "all zeros".into();
    }
    let mut claimed = [0; SECTOR];
    if let Some(name) = sector.first_chunk::<8>() {
        let number = u64::from_le_bytes(*name);
        fill_sector(stream, number, &mut claimed);
        if *sector == claimed[..sector.len()] {
            return format!("it holds sector {number} of the same stream");
        }
        if sector[8..].iter().zip(&claimed[8..]).filter(|(a, b)| a == b).count() > SECTOR / 2 {
            return format!("it holds part of sector {number}");
        }
    }
    format!("unknown data, beginning {:02x?}", &sector[..16.min(sector.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_passes_its_own_check_from_any_sector() {
        let mut data = vec![0; 64 * SECTOR];
        fill(7, 1000, &mut data);
        check(7, 1000, &data);
        check(7, 1003, &data[3 * SECTOR..]);
    }

    #[test]
    #[should_panic(expected = "sector 5 of stream 7 is wrong: it holds sector 6")]
    fn a_misplaced_sector_is_named() {
        let mut data = bytes(7, 8 * SECTOR);
        data.copy_within(6 * SECTOR..7 * SECTOR, 5 * SECTOR);
        check(7, 0, &data);
    }

    #[test]
    #[should_panic(expected = "sector 1 of stream 7 is wrong")]
    fn one_flipped_bit_is_found() {
        let mut data = bytes(7, 8 * SECTOR);
        data[SECTOR + 511] ^= 1;
        check(7, 0, &data);
    }

    #[test]
    #[should_panic(expected = "sector 0 of stream 8 is wrong")]
    fn another_stream_is_other_data() {
        check(8, 0, &bytes(7, SECTOR));
    }
}
