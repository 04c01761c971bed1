//! Arbitrary bytes against every parser of a member's metadata: label, superblock, region map.
#![no_main]

#[path = "../../crates/weft-array/tests/exercise/mod.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|input: &[u8]| exercise::exercise(input));
