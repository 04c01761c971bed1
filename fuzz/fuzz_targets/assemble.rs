//! Members with any metadata under right checksums: assembled, read, written, and managed.
#![no_main]

#[allow(dead_code, reason = "only the sealing is used here")]
#[path = "../../crates/weft-array/tests/exercise/mod.rs"]
mod exercise;
#[path = "../../crates/weft-array/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut bytes = input.chunks(2);
    let mut pick = |bound: usize| {
        let word = bytes.next().map_or(0, |pair| pair.iter().fold(0, |n, b| n << 8 | usize::from(*b)));
        word % bound
    };
    hostile::exercise(&mut pick);
});
