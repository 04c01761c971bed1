//! From slices to the loops: checks lengths, chooses loops, splits units.
//!
//! The general product `dst_r = Σ_j rows[r][j]·src_j` is split by the shape of its rows:
//!
//! - a row of ones and a row 1, 2, 4, 8 … go to the P+Q loop together;
//! - a row of zeros and ones is a sum of some of the sources;
//! - all other rows go to the general loop, up to [`ROWS_MAX`] at a time.
//!
//! If that takes more than one pass over the sources, all passes run over one piece of the units,
//! small enough to stay in cache, before the next piece.

use std::ptr;

use crate::{
    field,
    kernel::Kernel,
    loops::{FOLD_MAX, Folded, Outputs, ROWS_MAX, SOURCES_MAX, STREAM_ALIGN},
};

/// What the sources of one piece may take together in bytes: within the second-level cache of any
/// machine that has one, together with the outputs.
const PIECE_SOURCES_BYTES: usize = 128 << 10;

/// Bounds of the piece of one unit, in bytes.
const PIECE_BYTES_MIN: usize = 4 << 10;
const PIECE_BYTES_MAX: usize = 64 << 10;

/// From this length of an output on, in bytes, it is written past the caches: by the time all of it
/// is there, its start would not be near any more. Fetching a line from memory only to
/// overwrite it costs a fifth of the rate when data are cold (`benches/gf.rs`).
const STREAM_BYTES_MIN: usize = 1 << 20;

impl Kernel {
    /// [`crate::xor`] by this kernel.
    pub fn xor(self, dst: &mut [u8], srcs: &[&[u8]]) {
        check(dst.len(), srcs);
        let to = written(dst.len(), srcs.len(), false);
        self.sum(dst, srcs.iter().copied(), to);
    }

    /// [`crate::xor_acc`] by this kernel.
    pub fn xor_acc(self, dst: &mut [u8], srcs: &[&[u8]]) {
        check(dst.len(), srcs);
        let to = written(dst.len(), srcs.len(), true);
        self.sum(dst, srcs.iter().copied(), to);
    }

    /// [`crate::mul`] by this kernel.
    pub fn mul(self, dst: &mut [u8], c: u8, src: &[u8]) {
        self.encode(&[&[c]], &[src], &mut [dst]);
    }

    /// [`crate::mul_acc`] by this kernel.
    pub fn mul_acc(self, dst: &mut [u8], c: u8, src: &[u8]) {
        self.encode_acc(&[&[c]], &[src], &mut [dst]);
    }

    /// [`crate::pq`] by this kernel.
    pub fn pq(self, p: &mut [u8], q: &mut [u8], srcs: &[&[u8]]) {
        assert_eq!(p.len(), q.len(), "P and Q differ in length");
        check(p.len(), srcs);
        let to = written(p.len(), srcs.len(), false);
        self.horner(p, q, srcs, 0, to);
    }

    /// [`crate::encode`] by this kernel.
    pub fn encode(self, rows: &[&[u8]], srcs: &[&[u8]], dsts: &mut [&mut [u8]]) {
        self.product(rows, srcs, dsts, false);
    }

    /// [`crate::encode_acc`] by this kernel.
    pub fn encode_acc(self, rows: &[&[u8]], srcs: &[&[u8]], dsts: &mut [&mut [u8]]) {
        self.product(rows, srcs, dsts, true);
    }

    /// [`crate::fold`] by this kernel.
    pub fn fold(self, coefs: &[u8], old: &[u8], new: &[u8], dsts: &mut [&mut [u8]]) {
        self.replace(coefs, old, new, dsts, None);
    }

    /// [`crate::fold_keeping`] by this kernel.
    pub fn fold_keeping(
        self,
        coefs: &[u8],
        old: &[u8],
        new: &[u8],
        dsts: &mut [&mut [u8]],
        without: &mut [&mut [u8]],
    ) {
        self.replace(coefs, old, new, dsts, Some(without));
    }

    fn replace(
        self,
        coefs: &[u8],
        old: &[u8],
        new: &[u8],
        dsts: &mut [&mut [u8]],
        mut without: Option<&mut [&mut [u8]]>,
    ) {
        assert_eq!(coefs.len(), dsts.len(), "coefficients and outputs differ in number");
        let len = old.len();
        assert_eq!(new.len(), len, "the old and the new source differ in length");
        if let Some(without) = &without {
            assert_eq!(without.len(), dsts.len(), "outputs with and without differ in number");
        }
        // At most FOLD_MAX sums and as many products; further ones take another pass.
        let keep = without.is_some();
        let none = Folded { dst: ptr::null_mut(), without: ptr::null_mut(), coef: 0 };
        let (mut sums, mut products) = ([none; FOLD_MAX], [none; FOLD_MAX]);
        let (mut summed, mut multiplied) = (0, 0);
        for (r, (dst, &coef)) in dsts.iter_mut().zip(coefs).enumerate() {
            assert_eq!(dst.len(), len, "a source and an output differ in length");
            let (dst, mut to) = (dst.as_mut_ptr(), ptr::null_mut());
            if let Some(without) = &mut without {
                assert_eq!(without[r].len(), len, "a source and an output differ in length");
                to = without[r].as_mut_ptr();
            }
            let folded = Folded { dst, without: to, coef };
            let full = FOLD_MAX == if coef == 1 { summed } else { multiplied };
            if full {
                let (sums, products) = (&sums[..summed], &products[..multiplied]);
                // SAFETY: see below.
                unsafe { (self.0.fold)(keep, sums, products, old.as_ptr(), new.as_ptr(), len) }
                (summed, multiplied) = (0, 0);
            }
            if coef == 1 {
                sums[summed] = folded;
                summed += 1;
            } else {
                products[multiplied] = folded;
                multiplied += 1;
            }
        }
        let (sums, products) = (&sums[..summed], &products[..multiplied]);
        // SAFETY: a Kernel exists only where its features do; all slices are `len` bytes long; the
        // outputs are borrowed mutably, so they overlap nothing.
        unsafe { (self.0.fold)(keep, sums, products, old.as_ptr(), new.as_ptr(), len) }
    }

    fn product(self, rows: &[&[u8]], srcs: &[&[u8]], dsts: &mut [&mut [u8]], acc: bool) {
        assert_eq!(rows.len(), dsts.len(), "rows and outputs differ in number");
        for row in rows {
            assert_eq!(row.len(), srcs.len(), "coefficients and sources differ in number");
        }
        let Some(len) = dsts.first().map(|dst| dst.len()) else { return };
        for dst in dsts.iter() {
            check(dst.len(), srcs);
            assert_eq!(dst.len(), len, "outputs differ in length");
        }
        let pair = if acc { None } else { pq_rows(rows) };
        let to = written(len, srcs.len(), acc);
        let piece = piece_bytes(rows, srcs.len());
        let mut at = 0;
        while at < len {
            let n = piece.min(len - at);
            self.product_piece(rows, srcs, dsts, Piece { at, n, to, pair });
            at += n;
        }
    }

    fn product_piece(self, rows: &[&[u8]], srcs: &[&[u8]], dsts: &mut [&mut [u8]], piece: Piece) {
        let Piece { at, n, to, pair } = piece;
        if let Some((p, q)) = pair {
            let [p, q] = dsts.get_disjoint_mut([p, q]).expect("two different rows");
            self.horner(&mut p[at..at + n], &mut q[at..at + n], srcs, at, to);
        }
        let mut group = Group::new();
        for ((r, row), dst) in rows.iter().enumerate().zip(dsts.iter_mut()) {
            let dst = &mut dst[at..at + n];
            if pair.is_some_and(|(p, q)| r == p || r == q) {
                continue;
            } else if row.iter().all(|&c| c <= 1) {
                let chosen = srcs.iter().zip(*row).filter(|&(_, &c)| c == 1);
                self.sum(dst, chosen.map(|(src, _)| &src[at..at + n]), to);
            } else {
                group.push(row, dst);
                if group.count == ROWS_MAX {
                    self.general(&group, srcs, at, n, to);
                    group.count = 0;
                }
            }
        }
        if group.count > 0 {
            self.general(&group, srcs, at, n, to);
        }
    }

    /// `dst = [dst +] Σ srcs`; all are of one length.
    fn sum<'a>(self, dst: &mut [u8], srcs: impl Iterator<Item = &'a [u8]>, to: Outputs) {
        let (out, len) = (dst.as_mut_ptr(), dst.len());
        let mut to = if_aligned(to, &[out]);
        let mut from = Pointers::new();
        for src in srcs {
            assert_eq!(src.len(), len);
            if from.count == SOURCES_MAX {
                // SAFETY: see below.
                unsafe { (self.0.xor)(out, from.slice(), len, to) };
                from.count = 0;
                to.acc = true;
            }
            from.push(src.as_ptr());
        }
        if from.count > 0 || !to.acc {
            // SAFETY: a Kernel exists only where its features do; all slices are `len` bytes long;
            // `dst` is borrowed mutably, so no source overlaps it; `if_aligned` has seen to the
            // rest.
            unsafe { (self.0.xor)(out, from.slice(), len, to) }
        }
    }

    /// P and Q, from the bytes of the sources that start at `at`, with Horner's rule going on from
    /// chunk to chunk of the sources.
    fn horner(self, p: &mut [u8], q: &mut [u8], srcs: &[&[u8]], at: usize, to: Outputs) {
        let len = p.len();
        assert_eq!(q.len(), len);
        let mut to = if_aligned(to, &[p.as_mut_ptr(), q.as_mut_ptr()]);
        let mut rest = srcs;
        loop {
            // The chunk at the end goes first; the last one, at the start, may be short or empty.
            let (before, chunk) = rest.split_at(rest.len().saturating_sub(SOURCES_MAX));
            let mut from = Pointers::new();
            for src in chunk {
                from.push(src[at..at + len].as_ptr());
            }
            // SAFETY: a Kernel exists only where its features do; all slices are `len` bytes long;
            // `p` and `q` are borrowed mutably, so they overlap nothing; `if_aligned` has seen to
            // the rest.
            unsafe { (self.0.pq)(p.as_mut_ptr(), q.as_mut_ptr(), from.slice(), len, to) };
            if before.is_empty() {
                return;
            }
            rest = before;
            to.acc = true;
        }
    }

    /// The outputs of one group, from the `n` bytes of the sources that start at `at`.
    fn general(self, group: &Group<'_>, srcs: &[&[u8]], at: usize, n: usize, to: Outputs) {
        let dsts = &group.dsts[..group.count];
        let mut to = if_aligned(to, dsts);
        for (i, chunk) in srcs.chunks(SOURCES_MAX).enumerate() {
            let first = i * SOURCES_MAX;
            let mut from = Pointers::new();
            for src in chunk {
                from.push(src[at..at + n].as_ptr());
            }
            let mut rows: [&[u8]; ROWS_MAX] = [&[]; ROWS_MAX];
            for (part, row) in rows.iter_mut().zip(group.rows) {
                *part = row.get(first..first + chunk.len()).unwrap_or_default();
            }
            // SAFETY: a Kernel exists only where its features do; the group's outputs were pushed
            // as mutable slices of `n` bytes, the sources are cut to that, and none overlap;
            // `if_aligned` has seen to the rest.
            unsafe { (self.0.dot)(dsts, &rows[..dsts.len()], from.slice(), n, to) };
            to.acc = true;
        }
    }
}

/// A range of bytes of the units, and the work on it.
#[derive(Clone, Copy)]
struct Piece {
    at: usize,
    n: usize,
    to: Outputs,
    pair: Option<(usize, usize)>,
}

/// Rows for one pass of the general loop.
struct Group<'a> {
    rows: [&'a [u8]; ROWS_MAX],
    dsts: [*mut u8; ROWS_MAX],
    count: usize,
}

impl<'a> Group<'a> {
    fn new() -> Self {
        Group { rows: [&[]; ROWS_MAX], dsts: [core::ptr::null_mut(); ROWS_MAX], count: 0 }
    }

    fn push(&mut self, row: &'a [u8], dst: &mut [u8]) {
        self.rows[self.count] = row;
        self.dsts[self.count] = dst.as_mut_ptr();
        self.count += 1;
    }
}

/// Addresses of the sources of one call of a loop.
struct Pointers {
    list: [*const u8; SOURCES_MAX],
    count: usize,
}

impl Pointers {
    #[inline]
    fn new() -> Self {
        Pointers { list: [core::ptr::null(); SOURCES_MAX], count: 0 }
    }

    #[inline]
    fn push(&mut self, p: *const u8) {
        self.list[self.count] = p;
        self.count += 1;
    }

    #[inline]
    fn slice(&self) -> &[*const u8] {
        &self.list[..self.count]
    }
}

/// How outputs of `len` bytes are written, if their alignment allows it.
fn written(len: usize, sources: usize, acc: bool) -> Outputs {
    // Outputs that are read back, to be added to or for more sources than one pass takes, stay.
    Outputs { acc, stream: !acc && sources <= SOURCES_MAX && len >= STREAM_BYTES_MIN }
}

/// Streams only if all of `dsts` are aligned.
fn if_aligned(to: Outputs, dsts: &[*mut u8]) -> Outputs {
    let aligned = dsts.iter().all(|dst| dst.addr().is_multiple_of(STREAM_ALIGN));
    Outputs { stream: to.stream && aligned, ..to }
}

fn check(len: usize, srcs: &[&[u8]]) {
    for src in srcs {
        assert_eq!(src.len(), len, "a source and an output differ in length");
    }
}

/// The first row of ones and the first row 1, 2, 4, 8 …, if there are both.
fn pq_rows(rows: &[&[u8]]) -> Option<(usize, usize)> {
    // With one source the two rows are the same, and a plain copy serves each.
    if rows.len() < 2 || rows[0].len() < 2 {
        return None;
    }
    let p = rows.iter().position(|row| row.iter().all(|&c| c == 1))?;
    let powers = |row: &[u8]| row.iter().enumerate().all(|(j, &c)| c == field::exp(j));
    let q = rows.iter().position(|row| powers(row))?;
    Some((p, q))
}

/// How many bytes of each unit to finish before going on: all of them if there is only one pass.
fn piece_bytes(rows: &[&[u8]], sources: usize) -> usize {
    if rows.len() == 1 {
        return usize::MAX;
    }
    let fit = PIECE_SOURCES_BYTES / sources.max(1);
    (fit & !(PIECE_BYTES_MIN - 1)).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
}
