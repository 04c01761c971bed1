//! Arbitrary bytes against every parser of the NBD protocol.
#![no_main]

#[path = "../../crates/weft-nbd/tests/exercise/mod.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|input: &[u8]| exercise::exercise(input));
