//! Feeds any bytes to every parser of a member's metadata; shared by the tests and the fuzz target.

use crc_fast::{CrcAlgorithm, checksum};
use weft_array::region_map::{MapConfig, RegionMap, Regions};
use weft_array::superblock::peek_label;
use weft_array::{Id, Superblock};

/// Bytes of a superblock's header; see `docs/on-disk-format.md`.
pub const HEADER: usize = 48;

/// Parses `input` as it is, and as the payload of a superblock with a right header.
pub fn exercise(input: &[u8]) {
    drop(peek_label(input));
    drop(Superblock::decode(input));
    let field = |name: &str, digits: usize| {
        let text = std::str::from_utf8(input).ok()?;
        let rest = text.split_once(name)?.1;
        rest.get(..digits).map(ToOwned::to_owned)
    };
    // The header repeats what the payload says; a fuzzer would never guess both.
    let seq = field("\"seq\":", 20).and_then(|text| {
        let digits: String = text.trim_start().chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    });
    let id = field("\"array_id\":\"", 32).and_then(|text| text.parse().ok());
    let whole = seal(seq.unwrap_or(1), id.unwrap_or(Id([0; 16])), input);
    if let Ok(superblock) = Superblock::decode(&whole) {
        assert!(superblock.regions().expect("it was checked").stripes > 0);
        let again = superblock.encode(superblock.self_id).expect("it came from as little");
        assert_eq!(Superblock::decode(&again).expect("just made"), superblock);
    }
    let config = MapConfig {
        array_id: Id([0; 16]),
        area_offset: 0,
        regions: Regions { region_bytes: 2, stripe_bytes: 1, stripes: 5000 },
        room: 0,
        track_dirty: true,
        dirty_max: 8,
    };
    let (map, report) = RegionMap::load(config, &[input, input]);
    assert!(map.written_count() <= 2500 && report.pages_lost.len() <= 2);
}

/// A superblock copy with this payload and a right checksum.
pub fn seal(seq: u64, array_id: Id, payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"WEFTSB\r\n\0\0\0\0".to_vec();
    for word in [2, HEADER, payload.len()] {
        bytes.extend_from_slice(&u32::try_from(word).expect("small").to_le_bytes());
    }
    bytes.extend_from_slice(&seq.to_le_bytes());
    bytes.extend_from_slice(&array_id.0);
    bytes.extend_from_slice(payload);
    let crc = u32::try_from(checksum(CrcAlgorithm::Crc32Iscsi, &bytes)).expect("32 bits");
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    bytes
}
