//! Arbitrary bytes, as they are and with right checksums, against the parsers of the messages
//! between nodes and keeper.
#![no_main]

#[path = "../../crates/weft-wire/tests/exercise/mod.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    exercise::exercise(input);
    exercise::exercise(&exercise::summed(input));
});
