//! More slots than the stripe is wide: stripes are spread so that all other slots take part in the
//! rebuild of a failed one.
//!
//! Units are assigned in order to the n columns of a *block*, stripe after stripe, w units each;
//! after lcm(w, n) units the block ends flush with a row. Within a stripe the columns are
//! adjacent, so they differ. Columns become slots by a permutation that changes from block to
//! block: `slot = (base[column] + shift) mod n`, the shift going through 0..n before the next base
//! is taken (a "permutation development"; Schwarz, Steinberg and Burkhard, "Permutation
//! Development Data Layout (PDDL) Disk Array Declustering", HPCA 1999). Development makes every
//! column, hence every kind of unit, visit every slot equally often, and makes the number
//! of stripes that two slots share depend only on their distance. The base permutations are chosen
//! so that it hardly depends on that either: from a seeded sequence, each the candidate that
//! levels the counts best.
//!
//! The choice is part of the on-disk format: it must never change.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use weft_code::SlotNo;
use weft_random::SplitMix64;

use crate::{Layout, UnitLocation};

const BASES: usize = 16;
const CANDIDATES_MAX: usize = 64;
/// Pairs counted in choosing the bases, about; keeps wide arrays quick to assemble.
const WORK_MAX: usize = 8_000_000;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Declustered {
    slots: u32,
    width: u32,
    rows: u64,
    /// Stripes of a block, n / gcd(n, w).
    block_stripes: u64,
    /// Rows of a block, w / gcd(n, w).
    block_rows: u64,
    /// Base permutations, column to slot, one after the other; and their inverses.
    base: Arc<[u8]>,
    inverse: Box<[u8]>,
}

impl Declustered {
    pub(crate) fn new(slots: usize, width: usize, rows: u64) -> Self {
        assert!(width < slots && slots <= 255);
        let common = gcd(slots, width);
        let bases = bases(slots, width, slots / common);
        let mut inverse = vec![0; bases.len()];
        for (line, base) in inverse.chunks_exact_mut(slots).zip(bases.chunks_exact(slots)) {
            (0u8..).zip(base).for_each(|(column, &slot)| line[usize::from(slot)] = column);
        }
        let small = |n: usize| u32::try_from(n).expect("at most 255");
        Self {
            slots: small(slots),
            width: small(width),
            rows,
            block_stripes: (slots / common) as u64,
            block_rows: (width / common) as u64,
            base: bases,
            inverse: inverse.into(),
        }
    }

    /// Where the base permutation of a block starts, and its shift.
    fn development(&self, block: u64) -> (usize, u32) {
        let n = u64::from(self.slots);
        let base = block / n % BASES as u64;
        (index(base * n), narrow(block % n))
    }
}

/// A number that is small by construction: within a block, or within the bases.
fn narrow(n: u64) -> u32 {
    u32::try_from(n).expect("small by construction")
}

fn index(n: u64) -> usize {
    narrow(n) as usize
}

impl Layout for Declustered {
    fn slots(&self) -> usize {
        self.slots as usize
    }

    fn width(&self) -> usize {
        self.width as usize
    }

    fn place(&self, stripe: u64, unit: usize) -> UnitLocation {
        debug_assert!(unit < self.width());
        let block = stripe / self.block_stripes;
        let at = narrow(stripe % self.block_stripes) * self.width + narrow(unit as u64);
        let (base, shift) = self.development(block);
        let slot = u32::from(self.base[base + (at % self.slots) as usize]) + shift;
        let slot = if slot >= self.slots { slot - self.slots } else { slot };
        UnitLocation {
            slot: SlotNo(slot as usize),
            row: block * self.block_rows + u64::from(at / self.slots),
        }
    }

    fn locate(&self, SlotNo(slot): SlotNo, row: u64) -> Option<(u64, usize)> {
        if slot >= self.slots() || row >= self.rows {
            return None;
        }
        let block = row / self.block_rows;
        let (base, shift) = self.development(block);
        let undone = (slot + self.slots() - shift as usize) % self.slots();
        let column = u32::from(self.inverse[base + undone]);
        let at = narrow(row % self.block_rows) * self.slots + column;
        let stripe = block * self.block_stripes + u64::from(at / self.width);
        (stripe < self.stripes(self.rows)).then_some((stripe, (at % self.width) as usize))
    }

    fn stripes(&self, rows_per_slot: u64) -> u64 {
        let rest = rows_per_slot % self.block_rows * u64::from(self.slots) / u64::from(self.width);
        rows_per_slot / self.block_rows * self.block_stripes + rest
    }

    fn period(&self) -> u64 {
        self.block_stripes * u64::from(self.slots) * BASES as u64
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Slots and width.
type Shape = (usize, usize);

/// The base permutations, chosen once in the life of a program: a layout is asked for by every
/// check of a superblock, and for wide arrays the choice takes a tenth of a second.
fn bases(n: usize, w: usize, stripes: usize) -> Arc<[u8]> {
    static CHOSEN: Mutex<BTreeMap<Shape, Arc<[u8]>>> = Mutex::new(BTreeMap::new());
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    chosen.entry((n, w)).or_insert_with(|| choose_bases(n, w, stripes).into()).clone()
}

/// The base permutations, one after the other.
fn choose_bases(n: usize, w: usize, stripes: usize) -> Vec<u8> {
    let candidates = (WORK_MAX / (BASES * stripes * w * w)).clamp(1, CANDIDATES_MAX);
    let mut random = SplitMix64::new(0x7765_6674);
    let mut shared = vec![0u64; n];
    let mut bases = Vec::with_capacity(BASES * n);
    for _ in 0..BASES {
        let tried = (0..candidates).map(|_| {
            let base = permutation(&mut random, n);
            let counts = with_shared(&shared, &base, w, stripes);
            (counts.iter().map(|c| c * c).sum::<u64>(), counts, base)
        });
        let best = tried.min_by_key(|(unevenness, ..)| *unevenness);
        let (_, counts, base) = best.expect("at least one candidate");
        shared = counts;
        bases.extend(base);
    }
    bases
}

/// Adds to `shared[d]` the stripes that two slots at distance d share in a development of `base`.
fn with_shared(shared: &[u64], base: &[u8], w: usize, stripes: usize) -> Vec<u64> {
    let n = base.len();
    let mut counts = shared.to_vec();
    for stripe in 0..stripes {
        let slot = |unit: usize| usize::from(base[(stripe * w + unit) % n]);
        for a in 0..w {
            for b in (0..w).filter(|&b| b != a) {
                counts[(slot(a) + n - slot(b)) % n] += 1;
            }
        }
    }
    counts
}

/// Fisher and Yates's shuffle of 0..n. The numbers end up on disk.
fn permutation(random: &mut SplitMix64, n: usize) -> Vec<u8> {
    let mut items: Vec<u8> = (0u8..=254).take(n).collect();
    for i in (1..n).rev() {
        items.swap(i, index(random.next_u64() % (i as u64 + 1)));
    }
    items
}
