//! Arbitrary bytes against every parser of traces, and the decoders before them.
#![no_main]

#[path = "../../crates/weft-trace/tests/exercise/mod.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|input: &[u8]| exercise::exercise(input));
