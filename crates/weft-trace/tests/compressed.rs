//! Compressed traces are read as they are, regardless of their names, to the end of the last part;
//! what is cut or damaged is an error and not a short trace.

use std::io::Cursor;

use weft_trace::{ReadOptions, Record, TraceError, read};

/// Two requests in weft's own format, one after the other.
const FIRST: &[u8] = b"0,0,0,4096,R\n";
const SECOND: &[u8] = b"7,0,8192,512,W\n";

fn records(bytes: &[u8]) -> Result<Vec<Record>, TraceError> {
    read("t", Cursor::new(bytes.to_vec()), &ReadOptions::default())?.collect()
}

fn hex(text: &str) -> Vec<u8> {
    let digit =
        |byte: u8| u8::try_from((byte as char).to_digit(16).expect("a digit")).expect("<16");
    text.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// FIRST and SECOND, each compressed by the format's own tool.
fn parts() -> [(&'static str, [Vec<u8>; 2]); 3] {
    [
        ("gzip", [GZIP[0], GZIP[1]].map(hex)),
        ("xz", [XZ[0], XZ[1]].map(hex)),
        ("zstd", [ZSTD[0], ZSTD[1]].map(hex)),
    ]
}

const GZIP: [&str; 2] = [
    "1f8b08000000000002ff33d031004213034b339d202e0077b0fd900d000000",
    "1f8b08000000000002ff33d731d0b130b434d2313534d209e70200baa7f5930f000000",
];
const XZ: [&str; 2] = [
    "fd377a585a000004e6d6b4460200210116000000742fe5a301000c302c302c302c343039362c520a000000001e0c5d0535c8a17f0001250d7119c4b61fb6f37d010000000004595a",
    "fd377a585a000004e6d6b4460200210116000000742fe5a301000e372c302c383139322c3531322c570a0000d7111bcf84c64fc50001270fdf1afc6a1fb6f37d010000000004595a",
];
const ZSTD: [&str; 2] = [
    "28b52ffd0458690000302c302c302c343039362c520af681d691",
    "28b52ffd0458790000372c302c383139322c3531322c570a4c1dda91",
];

#[test]
fn every_compression_and_several_parts_are_read() {
    let expected = records(&[FIRST, SECOND].concat()).expect("a sound trace");
    assert_eq!(expected.len(), 2);
    for (tool, [first, second]) in parts() {
        assert_eq!(records(&first).expect(tool), expected[..1], "{tool}");
        let both = records(&[first, second].concat()).expect(tool);
        assert_eq!(both, expected, "{tool}");
    }
}

#[test]
fn what_is_cut_or_damaged_is_an_error() {
    for (tool, [first, second]) in parts() {
        let whole = [first.clone(), second].concat();
        for len in first.len() + 1..whole.len() {
            let result = records(&whole[..len]);
            assert!(result.is_err(), "{tool}: {len} of {} bytes make a trace", whole.len());
        }
        let sound = records(&whole).expect(tool);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            // A flipped bit of a header's date, say, changes nothing; other data never comes out.
            if let Ok(found) = records(&damaged) {
                assert_eq!(found, sound, "{tool}: byte {at}");
            }
        }
    }
}
