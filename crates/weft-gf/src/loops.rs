//! The four loops every kernel is made of, over any [`Vector`].
//!
//! Each walks the offsets of the units once. For a strip of `U` vectors it visits every source,
//! keeps all outputs of that strip in registers, and stores them once:
//!
//! ```text
//!             strip →
//!   src 0   ──[v v v v]────────        out += coef(out, src)·v
//!   src 1   ──[v v v v]────────        for all outs of the group
//!   …
//! ```
//!
//! So a source byte is read once for the whole group of outputs and an output byte is written once.
//! After the whole strips come single vectors, then the bytes that do not fill one.
//!
//! Outputs start from zero or from what their memory holds, and are written to the caches or past
//! them ([`Outputs`]).

use crate::vector::Vector;

/// Most sources one call of a loop takes; callers go through more in several calls.
///
/// Bounds the stack that prepared coefficients and source pointers take.
pub(crate) const SOURCES_MAX: usize = 32;

/// Most outputs one call of [`dot`] takes.
pub(crate) const ROWS_MAX: usize = 4;

/// How outputs are started and written.
#[derive(Clone, Copy)]
pub(crate) struct Outputs {
    /// Start from what the memory of the outputs holds, not from zero.
    pub(crate) acc: bool,
    /// Write past the caches; the outputs are aligned to [`STREAM_ALIGN`].
    pub(crate) stream: bool,
}

/// Alignment of outputs that are written past the caches, in bytes: the longest vector.
pub(crate) const STREAM_ALIGN: usize = 64;

/// Where a strip lies: from byte `at`, `part` bytes of one vector, or (0) `U` whole vectors.
#[derive(Clone, Copy)]
struct Strip {
    at: usize,
    part: usize,
}

#[inline(always)]
unsafe fn load<V: Vector, const U: usize>(p: *const u8, s: Strip) -> [V; U] {
    // SAFETY: the caller grants that the strip lies within the unit at p, and the features of V.
    unsafe {
        let p = p.add(s.at);
        let mut v = [V::zero(); U];
        if s.part == 0 {
            for (u, v) in v.iter_mut().enumerate() {
                *v = V::load(p.add(u * V::BYTES));
            }
        } else {
            v[0] = V::load_part(p, s.part);
        }
        v
    }
}

#[inline(always)]
unsafe fn store<V: Vector, const U: usize>(p: *mut u8, s: Strip, to: Outputs, v: &[V; U]) {
    // SAFETY: the caller grants that the strip lies within the unit at p, and that p is aligned if
    // it is streamed; `at` is a multiple of the vector.
    unsafe {
        let p = p.add(s.at);
        if s.part == 0 && to.stream {
            for (u, v) in v.iter().enumerate() {
                v.stream(p.add(u * V::BYTES));
            }
        } else if s.part == 0 {
            for (u, v) in v.iter().enumerate() {
                v.store(p.add(u * V::BYTES));
            }
        } else {
            v[0].store_part(p, s.part);
        }
    }
}

/// What a strip of outputs starts from.
#[inline(always)]
unsafe fn start<V: Vector, const U: usize>(p: *mut u8, s: Strip, to: Outputs) -> [V; U] {
    // SAFETY: as for load.
    unsafe { if to.acc { load::<V, U>(p, s) } else { [V::zero(); U] } }
}

/// Runs `$strip::<V, U>` over `$len` bytes: whole strips, single vectors, the rest.
macro_rules! columns {
    ($len:expr, $u:ident, $to:ident, $strip:ident :: <$v:ident $(, $more:ident)*> ($($arg:expr),*)) => {{
        let len = $len;
        let mut at = 0;
        while len - at >= $u * $v::BYTES {
            $strip::<$v, $($more,)* $u>($($arg,)* Strip { at, part: 0 });
            at += $u * $v::BYTES;
        }
        while len - at >= $v::BYTES {
            $strip::<$v, $($more,)* 1>($($arg,)* Strip { at, part: 0 });
            at += $v::BYTES;
        }
        if at < len {
            $strip::<$v, $($more,)* 1>($($arg,)* Strip { at, part: len - at });
        }
        if $to.stream {
            $v::fence();
        }
    }};
}

/// `dst = [dst +] Σ srcs`, `U` vectors at a time.
///
/// # Safety
/// The CPU has the features of `V`. `dst` is writable and every source readable for `len` bytes,
/// and `dst` overlaps no source; it is aligned to [`STREAM_ALIGN`] if it is streamed.
#[inline(always)]
pub(crate) unsafe fn xor<V: Vector, const U: usize>(
    dst: *mut u8,
    srcs: &[*const u8],
    len: usize,
    to: Outputs,
) {
    // SAFETY: `columns` only makes strips inside 0..len.
    unsafe { columns!(len, U, to, xor_strip::<V>(dst, srcs, to)) }
}

#[inline(always)]
unsafe fn xor_strip<V: Vector, const U: usize>(
    dst: *mut u8,
    srcs: &[*const u8],
    to: Outputs,
    s: Strip,
) {
    // SAFETY: the caller grants that the strip lies inside every unit.
    unsafe {
        let mut sum = start::<V, U>(dst, s, to);
        let mut pairs = srcs.chunks_exact(2);
        for pair in &mut pairs {
            let a = load::<V, U>(pair[0], s);
            let b = load::<V, U>(pair[1], s);
            for u in 0..U {
                sum[u] = sum[u].xor3(a[u], b[u]);
            }
        }
        if let [last] = pairs.remainder() {
            let a = load::<V, U>(*last, s);
            for u in 0..U {
                sum[u] = sum[u].xor(a[u]);
            }
        }
        store(dst, s, to, &sum);
    }
}

/// `p = [p +] Σ src_j` and `q = [2^k·q +] Σ 2^j·src_j` for `k` sources, by Horner's rule from the
/// last source to the first (Anvin, "The mathematics of RAID-6", §2).
///
/// # Safety
/// As for [`xor`], for both outputs; they do not overlap each other.
#[inline(always)]
pub(crate) unsafe fn pq<V: Vector, const U: usize>(
    p: *mut u8,
    q: *mut u8,
    srcs: &[*const u8],
    len: usize,
    to: Outputs,
) {
    // SAFETY: `columns` only makes strips inside 0..len.
    unsafe { columns!(len, U, to, pq_strip::<V>(p, q, srcs, to)) }
}

#[inline(always)]
unsafe fn pq_strip<V: Vector, const U: usize>(
    p: *mut u8,
    q: *mut u8,
    srcs: &[*const u8],
    to: Outputs,
    s: Strip,
) {
    // SAFETY: the caller grants that the strip lies inside every unit.
    unsafe {
        let mut sum = start::<V, U>(p, s, to);
        let mut horner = start::<V, U>(q, s, to);
        let mut pairs = srcs.rchunks_exact(2);
        for pair in &mut pairs {
            let a = load::<V, U>(pair[1], s);
            let b = load::<V, U>(pair[0], s);
            for u in 0..U {
                sum[u] = sum[u].xor3(a[u], b[u]);
                horner[u] = horner[u].horner2(a[u], b[u]);
            }
        }
        if let [first] = pairs.remainder() {
            let a = load::<V, U>(*first, s);
            for u in 0..U {
                sum[u] = sum[u].xor(a[u]);
                horner[u] = horner[u].double().xor(a[u]);
            }
        }
        store(p, s, to, &sum);
        store(q, s, to, &horner);
    }
}

/// `dsts[r] = [dsts[r] +] Σ coefs[r][j]·src_j` for `R` outputs at once.
///
/// # Safety
/// As for [`xor`], for all outputs; they do not overlap each other.
#[inline(always)]
pub(crate) unsafe fn dot<V: Vector, const R: usize, const U: usize>(
    dsts: &[*mut u8; R],
    coefs: &[&[u8]; R],
    srcs: &[*const u8],
    len: usize,
    to: Outputs,
) {
    if let [src] = *srcs {
        // The difference of a small write: the coefficients stay in registers.
        let mut prepared = [V::coef(0); R];
        for r in 0..R {
            prepared[r] = V::coef(coefs[r][0]);
        }
        // SAFETY: `columns` only makes strips inside 0..len.
        unsafe { columns!(len, U, to, scaled_strip::<V, R>(dsts, &prepared, src, to)) }
        return;
    }
    assert!(srcs.len() <= SOURCES_MAX);
    let mut prepared = [[V::coef(0); R]; SOURCES_MAX];
    for r in 0..R {
        assert_eq!(coefs[r].len(), srcs.len());
        for (j, &c) in coefs[r].iter().enumerate() {
            prepared[j][r] = V::coef(c);
        }
    }
    let prepared = &prepared[..srcs.len()];
    // SAFETY: `columns` only makes strips inside 0..len.
    unsafe { columns!(len, U, to, dot_strip::<V, R>(dsts, prepared, srcs, to)) }
}

/// A strip of `dsts[r] = [dsts[r] +] coefs[r]·src`.
#[inline(always)]
unsafe fn scaled_strip<V: Vector, const R: usize, const U: usize>(
    dsts: &[*mut u8; R],
    coefs: &[V::Coef; R],
    src: *const u8,
    to: Outputs,
    s: Strip,
) {
    // SAFETY: the caller grants that the strip lies inside every unit.
    unsafe {
        let v = load::<V, U>(src, s);
        for r in 0..R {
            let mut scaled = start::<V, U>(dsts[r], s, to);
            for u in 0..U {
                scaled[u] = V::mul_add(scaled[u], v[u].split(), coefs[r]);
            }
            store(dsts[r], s, to, &scaled);
        }
    }
}

#[inline(always)]
unsafe fn dot_strip<V: Vector, const R: usize, const U: usize>(
    dsts: &[*mut u8; R],
    coefs: &[[V::Coef; R]],
    srcs: &[*const u8],
    to: Outputs,
    s: Strip,
) {
    // SAFETY: the caller grants that the strip lies inside every unit.
    unsafe {
        let mut sums = [[V::zero(); U]; R];
        for r in 0..R {
            sums[r] = start::<V, U>(dsts[r], s, to);
        }
        for (&src, coefs) in srcs.iter().zip(coefs) {
            let v = load::<V, U>(src, s);
            for u in 0..U {
                let x = v[u].split();
                for r in 0..R {
                    sums[r][u] = V::mul_add(sums[r][u], x, coefs[r]);
                }
            }
        }
        for r in 0..R {
            store(dsts[r], s, to, &sums[r]);
        }
    }
}

/// Most outputs that one call of [`fold`] multiplies for, and most that it adds to.
pub(crate) const FOLD_MAX: usize = 2;

/// One output of [`fold`].
#[derive(Clone, Copy)]
pub(crate) struct Folded {
    /// The output.
    pub(crate) dst: *mut u8,
    /// Where it goes without the source, if `KEEP`.
    pub(crate) without: *mut u8,
    /// The source's coefficient.
    pub(crate) coef: u8,
}

/// Replaces the `old` contents of a source by the `new` ones in `S` outputs that are sums, and in
/// `R` outputs with any coefficients: `dst += coef·(old + new)`. With `KEEP`, also
/// `without = dst + coef·old`, the output without that source.
///
/// # Safety
/// As for [`xor`], for all outputs, of both kinds; they do not overlap each other.
#[inline(always)]
pub(crate) unsafe fn fold<
    V: Vector,
    const KEEP: bool,
    const S: usize,
    const R: usize,
    const U: usize,
>(
    sums: &[Folded; S],
    products: &[Folded; R],
    old: *const u8,
    new: *const u8,
    len: usize,
) {
    let mut coefs = [V::coef(0); R];
    for r in 0..R {
        coefs[r] = V::coef(products[r].coef);
    }
    let to = Outputs { acc: true, stream: false };
    // SAFETY: all strips are inside 0..len.
    unsafe { columns!(len, U, to, fold_strip::<V, KEEP, S, R>(sums, products, &coefs, old, new)) }
}

#[inline(always)]
unsafe fn fold_strip<
    V: Vector,
    const KEEP: bool,
    const S: usize,
    const R: usize,
    const U: usize,
>(
    sums: &[Folded; S],
    products: &[Folded; R],
    coefs: &[V::Coef; R],
    old: *const u8,
    new: *const u8,
    s: Strip,
) {
    let to = Outputs { acc: true, stream: false };
    // SAFETY: the caller grants that the strip lies inside every unit.
    unsafe {
        let before = load::<V, U>(old, s);
        let after = load::<V, U>(new, s);
        let mut change = before;
        for u in 0..U {
            change[u] = before[u].xor(after[u]);
        }
        for sum in sums {
            let mut v = load::<V, U>(sum.dst, s);
            if KEEP {
                for u in 0..U {
                    v[u] = v[u].xor(before[u]);
                }
                store(sum.without, s, to, &v);
            }
            let rest = if KEEP { after } else { change };
            for u in 0..U {
                v[u] = v[u].xor(rest[u]);
            }
            store(sum.dst, s, to, &v);
        }
        for (product, coef) in products.iter().zip(coefs) {
            let mut v = load::<V, U>(product.dst, s);
            if KEEP {
                for u in 0..U {
                    v[u] = V::mul_add(v[u], before[u].split(), *coef);
                }
                store(product.without, s, to, &v);
            }
            let rest = if KEEP { after } else { change };
            for u in 0..U {
                v[u] = V::mul_add(v[u], rest[u].split(), *coef);
            }
            store(product.dst, s, to, &v);
        }
    }
}
