//! The kernels, and which of them this machine can run.
//!
//! A kernel is the four loops of [`crate::loops`] compiled for one vector type with the CPU
//! features it needs. The CPU is asked once; after that a call costs one load and one indirect
//! jump. A [`Kernel`] exists only if the CPU can run it, which is what makes its methods safe.

use std::{fmt, sync::OnceLock};

use crate::loops::{self, Folded, Outputs};

/// [`loops::xor`]: output, sources, length, how to write.
type XorFn = unsafe fn(*mut u8, &[*const u8], usize, Outputs);
/// [`loops::pq`]: P, Q, sources, length, how to write.
type PqFn = unsafe fn(*mut u8, *mut u8, &[*const u8], usize, Outputs);
/// [`loops::dot`]: 1 to [`loops::ROWS_MAX`] outputs and rows, sources, length, how to write.
type DotFn = unsafe fn(&[*mut u8], &[&[u8]], &[*const u8], usize, Outputs);
/// [`loops::fold`]: whether outputs without the source are kept, 0 to [`loops::FOLD_MAX`] sums and
/// as many products, the old and the new source, length.
type FoldFn = unsafe fn(bool, &[Folded], &[Folded], *const u8, *const u8, usize);

/// A table of entry points: the loops for one vector type.
pub(crate) struct Entry {
    name: &'static str,
    /// Whether the CPU has the features the entry points are compiled with.
    runs_here: fn() -> bool,
    pub(crate) xor: XorFn,
    pub(crate) pq: PqFn,
    pub(crate) dot: DotFn,
    pub(crate) fold: FoldFn,
}

/// Compiles the loops for one vector type, `$u` vectors to a strip for sums, P+Q and 1–2 outputs of
/// the general product, `$few` for 3–4 outputs (as many as the registers hold), `$fold` for
/// folding.
macro_rules! entry {
    ($name:ident, $label:literal, $vector:ty, $u:literal, $few:literal, $fold:literal,
     $runs_here:expr $(, $feature:literal)*) => {
        static $name: Entry = {
            // Entry's fields hand the loops' contracts on; the features are those of the vector.
            $(#[target_feature(enable = $feature)])*
            unsafe fn xor(dst: *mut u8, srcs: &[*const u8], len: usize, to: Outputs) {
                // SAFETY: the loop's contract is the caller's; the features are enabled here.
                unsafe { loops::xor::<$vector, $u>(dst, srcs, len, to) }
            }

            $(#[target_feature(enable = $feature)])*
            unsafe fn pq(p: *mut u8, q: *mut u8, srcs: &[*const u8], len: usize, to: Outputs) {
                // SAFETY: the loop's contract is the caller's; the features are enabled here.
                unsafe { loops::pq::<$vector, $u>(p, q, srcs, len, to) }
            }

            $(#[target_feature(enable = $feature)])*
            unsafe fn dot(
                dsts: &[*mut u8],
                rows: &[&[u8]],
                srcs: &[*const u8],
                len: usize,
                to: Outputs,
            ) {
                // SAFETY: the loop's contract is the caller's; the features are enabled here.
                unsafe {
                    match dsts.len() {
                        1 => loops::dot::<$vector, 1, $u>(of(dsts), of(rows), srcs, len, to),
                        2 => loops::dot::<$vector, 2, $u>(of(dsts), of(rows), srcs, len, to),
                        3 => loops::dot::<$vector, 3, $few>(of(dsts), of(rows), srcs, len, to),
                        _ => loops::dot::<$vector, 4, $few>(of(dsts), of(rows), srcs, len, to),
                    }
                }
            }

            $(#[target_feature(enable = $feature)])*
            unsafe fn fold(
                keep: bool,
                sums: &[Folded],
                products: &[Folded],
                old: *const u8,
                new: *const u8,
                len: usize,
            ) {
                macro_rules! call {
                    ($keep:literal, $s:literal, $r:literal) => {
                        loops::fold::<$vector, $keep, $s, $r, $fold>(
                            of(sums), of(products), old, new, len,
                        )
                    };
                }
                // SAFETY: the loop's contract is the caller's; the features are enabled here.
                unsafe {
                    match (keep, sums.len(), products.len()) {
                        (_, 0, 0) => {}
                        (false, 1, 0) => call!(false, 1, 0),
                        (false, 2, 0) => call!(false, 2, 0),
                        (false, 0, 1) => call!(false, 0, 1),
                        (false, 1, 1) => call!(false, 1, 1),
                        (false, 2, 1) => call!(false, 2, 1),
                        (false, 0, _) => call!(false, 0, 2),
                        (false, 1, _) => call!(false, 1, 2),
                        (false, _, _) => call!(false, 2, 2),
                        (true, 1, 0) => call!(true, 1, 0),
                        (true, 2, 0) => call!(true, 2, 0),
                        (true, 0, 1) => call!(true, 0, 1),
                        (true, 1, 1) => call!(true, 1, 1),
                        (true, 2, 1) => call!(true, 2, 1),
                        (true, 0, _) => call!(true, 0, 2),
                        (true, 1, _) => call!(true, 1, 2),
                        (true, _, _) => call!(true, 2, 2),
                    }
                }
            }

            Entry { name: $label, runs_here: $runs_here, xor, pq, dot, fold }
        };
    };
}

/// The slice as an array.
#[inline(always)]
fn of<T, const R: usize>(slice: &[T]) -> &[T; R] {
    slice.try_into().expect("as many outputs as were counted, with a row each")
}

entry!(PORTABLE, "portable", crate::portable::Words, 1, 1, 1, || true);

#[cfg(target_arch = "aarch64")]
entry!(NEON, "neon", crate::neon::Neon, 4, 2, 4, || true);

#[cfg(target_arch = "x86_64")]
mod x86_entries {
    use std::arch::is_x86_feature_detected as has;

    use super::{Entry, Folded, Outputs, loops, of};
    use crate::x86;

    entry!(SSSE3, "ssse3", x86::Ssse3, 2, 1, 4, || has!("ssse3"), "ssse3");
    entry!(AVX2, "avx2", x86::Avx2, 2, 1, 4, || has!("avx2"), "avx2");
    entry!(
        AVX2_GFNI,
        "avx2-gfni",
        x86::Avx2Gfni,
        2,
        2,
        4,
        || has!("avx2") && has!("gfni"),
        "avx2",
        "gfni"
    );
    entry!(
        AVX512,
        "avx512",
        x86::Avx512,
        4,
        2,
        4,
        || has!("avx512f") && has!("avx512bw"),
        "avx512f",
        "avx512bw"
    );
    entry!(
        AVX512_GFNI,
        "avx512-gfni",
        x86::Avx512Gfni,
        4,
        4,
        4,
        || has!("avx512f") && has!("avx512bw") && has!("gfni"),
        "avx512f",
        "avx512bw",
        "gfni"
    );

    pub(super) static ALL: [&Entry; 5] = [&AVX512_GFNI, &AVX512, &AVX2_GFNI, &AVX2, &SSSE3];
}

/// The vector kernels compiled for this architecture, best first.
#[cfg(target_arch = "x86_64")]
static VECTOR: &[&Entry] = &x86_entries::ALL;
#[cfg(target_arch = "aarch64")]
static VECTOR: &[&Entry] = &[&NEON];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static VECTOR: &[&Entry] = &[];

/// A set of vector instructions that this machine has, and the arithmetic of this crate by it.
///
/// Every kernel gives the same bytes; they differ in speed. The functions at the root of the crate
/// use the best one, [`kernel`].
#[derive(Clone, Copy)]
pub struct Kernel(pub(crate) &'static Entry);

impl Kernel {
    /// The kernel's name, such as `avx512-gfni` or `portable`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The kernel called `name`, if this machine can run it.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Kernel> {
        kernels().find(|kernel| kernel.name() == name)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({})", self.name())
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl PartialEq for Kernel {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Kernel {}

/// The best kernel of this machine: what the functions at the root of the crate run.
#[must_use]
pub fn kernel() -> Kernel {
    static BEST: OnceLock<Kernel> = OnceLock::new();
    *BEST.get_or_init(|| kernels().next().unwrap_or(Kernel(&PORTABLE)))
}

/// The kernels this machine can run, best first; the last is `portable`.
pub fn kernels() -> impl Iterator<Item = Kernel> {
    entries().filter(|entry| (entry.runs_here)()).map(Kernel)
}

/// The names of the kernels that are compiled in but that this machine cannot run.
pub fn kernels_not_here() -> impl Iterator<Item = &'static str> {
    entries().filter(|entry| !(entry.runs_here)()).map(|entry| entry.name)
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    VECTOR.iter().copied().chain([&PORTABLE])
}
