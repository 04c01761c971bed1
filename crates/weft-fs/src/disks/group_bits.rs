//! The free blocks of a group as bits, or packed: what is searched, and what takes less memory.

use std::iter;
use std::ops::Range;

pub(super) const BITS: usize = 64;
/// Words of a group's bits.
pub(super) const WORDS: usize = 512;

/// Bits of a group: 1 if the block is free.
pub(super) type Bits = [u64; WORDS];

/// `n`, which is at most 64.
fn small(n: usize) -> u32 {
    u32::try_from(n).expect("at most 64")
}

pub(super) fn index(n: u64) -> usize {
    usize::try_from(n).expect("a group is in memory")
}

/// Bits of a word from one bit to another one.
fn mask(bits: Range<usize>) -> u64 {
    (u64::MAX >> (BITS - (bits.end - bits.start))) << bits.start
}

/// The words that a range of bits is in, and which of their bits.
pub(super) fn words_of(bits: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    (bits.start / BITS..bits.end.div_ceil(BITS)).map(move |word| {
        let first = word * BITS;
        (word, mask(bits.start.max(first) - first..bits.end.min(first + BITS) - first))
    })
}

pub(super) fn are_all_free(bits: &Bits, range: Range<usize>) -> bool {
    words_of(range).all(|(word, mask)| bits[word] & mask == mask)
}

/// How many blocks from this one on are free, up to 64.
pub(super) fn free_from(bits: &Bits, at: usize) -> u64 {
    let next = |word: usize| bits.get(word).copied().unwrap_or(0);
    let (word, bit) = (at / BITS, at % BITS);
    let above = next(word + 1).checked_shl(small(BITS - bit)).unwrap_or(0);
    u64::from((next(word) >> bit | above).trailing_ones())
}

/// How many blocks before this one are free, up to 64.
pub(super) fn free_before(bits: &Bits, at: usize) -> u64 {
    let word = |word: usize| bits.get(word).copied().unwrap_or(0);
    let (last, bit) = (at / BITS, at % BITS);
    let high = word(last).checked_shl(small(BITS - bit)).unwrap_or(0);
    let low = last.checked_sub(1).map_or(0, |before| word(before) >> bit);
    u64::from((high | low).leading_ones())
}

/// The first bit of a run of `len` in a word; `len` is at most 64.
fn run_within(word: u64, len: u64) -> Option<u32> {
    // A bit stays if it and the `have - 1` above it are set.
    let (mut starts, mut have) = (word, 1);
    while have < len && starts != 0 {
        let step = have.min(len - have);
        starts &= starts >> step;
        have += step;
    }
    (starts != 0).then(|| starts.trailing_zeros())
}

/// Finds a run of `len` free blocks, from one on. Returns it, and how many words that took.
pub(super) fn find_run(bits: &Bits, from: usize, len: u64) -> (Option<usize>, u64) {
    let (mut run, mut words) = (0, 0);
    for (at, word) in bits.iter().enumerate().skip(from / BITS) {
        words += 1;
        let first = at * BITS;
        let word = if first < from { word & mask(from - first..BITS) } else { *word };
        if run + u64::from(word.trailing_ones()) >= len {
            return (Some(first - index(run)), words);
        }
        if word == u64::MAX {
            run += BITS as u64;
            continue;
        }
        if let Some(bit) = run_within(word, len) {
            return (Some(first + bit as usize), words);
        }
        run = u64::from(word.leading_ones());
    }
    (None, words)
}

/// The runs of free blocks, in their order. One that goes on in the next word comes in parts.
pub(super) fn free_runs(bits: &Bits) -> impl Iterator<Item = Range<usize>> {
    bits.iter().enumerate().flat_map(|(at, word)| {
        let (mut rest, mut from) = (*word, at * BITS);
        iter::from_fn(move || {
            let taken = rest.trailing_zeros();
            // By all bits: there is none left.
            rest = rest.checked_shr(taken)?;
            let free = rest.trailing_ones();
            rest = rest.checked_shr(free).unwrap_or(0);
            let start = from + taken as usize;
            from = start + free as usize;
            Some(start..from)
        })
    })
}

/// The lowest seven bits.
fn seven_bits(n: usize) -> u8 {
    u8::try_from(n & 0x7f).expect("seven bits")
}

/// Lengths of the runs, taken and free in turn, but for the last. None: bits are shorter.
pub(super) fn pack(bits: &Bits) -> Option<Box<[u8]>> {
    let (mut packed, mut is_free, mut start) = (Vec::new(), false, 0);
    for at in 0..=WORDS {
        // Bits where a run ends.
        let before = if at == 0 { 0 } else { bits[at - 1] >> (BITS - 1) };
        let Some(word) = bits.get(at) else { break };
        let mut ends = word ^ (word << 1 | before);
        while ends != 0 {
            let end = at * BITS + ends.trailing_zeros() as usize;
            ends &= ends - 1;
            let mut len = end - start;
            while len >= 0x80 {
                packed.push(seven_bits(len) | 0x80);
                len >>= 7;
            }
            packed.push(seven_bits(len));
            (is_free, start) = (!is_free, end);
        }
        if packed.len() >= size_of::<Bits>() / 2 {
            return None;
        }
    }
    Some(packed.into())
}

pub(super) fn unpack(packed: &[u8]) -> Box<Bits> {
    let mut bits = Box::new([0; WORDS]);
    let (mut at, mut is_free) = (0, false);
    let mut fill = |range: Range<usize>, is_free: bool| {
        if is_free && !range.is_empty() {
            words_of(range).for_each(|(word, mask)| bits[word] |= mask);
        }
    };
    let (mut len, mut shift) = (0, 0);
    for byte in packed {
        len |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            fill(at..at + len, is_free);
            (at, is_free) = (at + len, !is_free);
            (len, shift) = (0, 0);
        }
    }
    fill(at..WORDS * BITS, is_free);
    bits
}
