//! What the tests share: a random source, units between unreadable pages, and the plain definition
//! of a parity row.

#![allow(dead_code, reason = "each test uses its part")]

use weft_gf::field;
use weft_random::SplitMix64;

/// Test data, always the same.
pub struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    pub fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[7]
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.fill(&mut bytes);
        bytes
    }
}

/// `[dst +] Σ row[j]·srcs[j]`, an element at a time.
pub fn define(dst: &[u8], row: &[u8], srcs: &[&[u8]]) -> Vec<u8> {
    let mut out = dst.to_vec();
    for (&c, src) in row.iter().zip(srcs) {
        for (o, &b) in out.iter_mut().zip(*src) {
            *o ^= field::mul(c, b);
        }
    }
    out
}

/// `n` bytes of memory that touch an unreadable page where they end, or where they begin: a read or
/// write of one byte too many is a fault.
pub struct Fenced {
    map: *mut libc::c_void,
    map_bytes: usize,
    start: *mut u8,
    n: usize,
}

impl Fenced {
    pub fn new(n: usize, at_end: bool) -> Self {
        // SAFETY: sysconf only reads.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap();
        let inner = n.next_multiple_of(page);
        let map_bytes = inner + 2 * page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let none = std::ptr::null_mut();
        // SAFETY: a fresh anonymous mapping; only its inner pages are made accessible and used.
        unsafe {
            let map = libc::mmap(none, map_bytes, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            let first = map.cast::<u8>().add(page);
            if inner > 0 {
                let access = libc::PROT_READ | libc::PROT_WRITE;
                assert_eq!(libc::mprotect(first.cast(), inner, access), 0);
            }
            let start = if at_end { first.add(inner - n) } else { first };
            Fenced { map, map_bytes, start, n }
        }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrows it any more.
        unsafe { libc::munmap(self.map, self.map_bytes) };
    }
}

impl std::ops::Deref for Fenced {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: n initialised bytes of our mapping.
        unsafe { std::slice::from_raw_parts(self.start, self.n) }
    }
}

impl std::ops::DerefMut for Fenced {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for deref; borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.n) }
    }
}
