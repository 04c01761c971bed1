//! Arbitrary arguments for `create`: the input as it is, and a wish that its bytes choose.
#![no_main]

#[path = "../../crates/weft-array/tests/create_arguments/mod.rs"]
mod wishes;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Ok(words) = std::str::from_utf8(input) {
        wishes::exercise(words);
    }
    let mut bytes = input.iter();
    let words = wishes::wish(&mut |bound| usize::from(*bytes.next().unwrap_or(&0)) % bound);
    wishes::exercise(&words);
});
