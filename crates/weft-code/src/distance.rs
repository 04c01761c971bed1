//! The exact tolerance of codes with local groups.
//!
//! Losses are beyond repair when they hold all units that are not zero in some stripe of data (a
//! *word*). So a code survives any d − 1 losses, where d is the weight of its lightest word: w data
//! units, the local parities of a groups whose data do not sum to zero, and b global parities.
//!
//! One data unit with all its parities weighs r + 2. Which words are lighter? Row t of the globals
//! is α_j^t, α_j = 2^j, t = 1..r. If b = 0, r consecutive powers vanish, hence w > r, or w > r + 1
//! with a = 0: not lighter. So b ≥ 1, and w ≤ d − 2. A lighter word has at least w − 1 global
//! zeros; if those have rank w − 1 on its data they determine it, up to a factor. So for each
//! choice of w data units and w − 1 rows there is one candidate, whose sums over the groups are
//! then checked, stripe by stripe of the period. Two things make that few:
//! * Moving all units by the same number multiplies each row by a constant: the candidate stays the
//!   same. Only choices that start with unit 0 are solved (*shapes*), and moved only if they
//!   promise a lighter word. Nearly all do not: their coefficients would have to sum to zero.
//! * Light words are looked for first, with few data units, and a word found bounds the search for
//!   further ones.
//!
//! Where the zeros have a smaller rank (it takes units 51 or more apart), the sums over groups
//! belong to what determines the word, and all choices of rows are tried, local ones among them.
//!
//! Finding the lightest word is hard in general. Beyond a bounded number of candidates the search
//! ends, and what it has excluded is a lower bound.

use std::collections::BTreeSet;

use weft_gf::field;

use crate::combinations::{binomial, sets};
use crate::matrix::{add_multiple, rank};
use crate::rows;
use crate::units::UnitSet;

/// Candidates that are solved: about a second.
const CANDIDATES_MAX: u64 = 1_500_000;

/// How many losses a code survives, in any combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tolerance {
    pub losses: usize,
    /// Some larger set of losses is known that does not survive.
    pub exact: bool,
}

/// Of a code with `r` global parities; `groups` are the groups of its k data units, for each stripe
/// of the period.
pub(crate) fn tolerance(groups: &[Vec<usize>], r: usize) -> Tolerance {
    let k = groups[0].len();
    let mut search = Search { groups, k, r, lightest: r + 2 };
    let mut candidates = 0_u64;
    let mut units = 2;
    while units + 2 <= search.lightest && units <= k {
        let shapes = binomial(k - 1, units - 1);
        candidates = candidates.saturating_add(shapes.saturating_mul(binomial(r, units - 1)));
        if candidates > CANDIDATES_MAX {
            // Heavier words have at least this many data units and one global parity.
            return Tolerance { losses: units.min(search.lightest - 1), exact: false };
        }
        let zeros: Vec<Vec<usize>> =
            sets(r, units - 1).map(|rows: UnitSet| rows.iter().collect()).collect();
        for rest in sets::<usize>(k - 1, units - 1) {
            let shape: Vec<usize> =
                std::iter::once(0).chain(rest.iter().map(|unit| unit + 1)).collect();
            zeros.iter().for_each(|rows| search.try_rows(&shape, rows));
        }
        units += 1;
    }
    Tolerance { losses: search.lightest - 1, exact: true }
}

struct Search<'a> {
    groups: &'a [Vec<usize>],
    k: usize,
    r: usize,
    /// Weight of the lightest word that is known.
    lightest: usize,
}

impl Search<'_> {
    /// The word on `shape` and what it is moved to, that `rows` of the globals leave zero.
    fn try_rows(&mut self, shape: &[usize], rows: &[usize]) {
        let matrix = rows.iter().map(|&t| self.global(t, shape)).collect();
        match null_vector(matrix) {
            Some(word) => self.try_word(shape, &word),
            None => self.try_singular(shape),
        }
    }

    fn try_word(&mut self, shape: &[usize], word: &[u8]) {
        if word.contains(&0) {
            return; // seen with fewer data units
        }
        let zeros = (0..self.r).filter(|&t| product(&self.global(t, shape), word) == 0).count();
        let weight = shape.len() + self.r - zeros;
        // Parities of groups are not counted yet. Without any all groups sum to zero.
        let sum = word.iter().fold(0, |sum, x| sum ^ x);
        if weight + usize::from(sum != 0) >= self.lightest {
            return;
        }
        for moved in self.moved(shape) {
            for groups in self.groups {
                let sums = |&unit: &usize| {
                    let group = groups[unit];
                    let of_group = moved.iter().zip(word).filter(|(u, _)| groups[**u] == group);
                    (group, of_group.fold(0, |sum, (_, x)| sum ^ x))
                };
                let all: BTreeSet<_> = moved.iter().map(sums).collect();
                let lost = all.iter().filter(|(_, sum)| *sum != 0).count();
                self.lightest = self.lightest.min(weight + lost);
                if weight + usize::from(sum != 0) >= self.lightest {
                    return;
                }
            }
        }
    }

    /// All words on these units, by trying every choice of rows that may determine one.
    fn try_singular(&mut self, shape: &[usize]) {
        let units = shape.len();
        let globals: Vec<Vec<u8>> = (0..self.r).map(|t| self.global(t, shape)).collect();
        let mut seen = BTreeSet::new();
        for moved in self.moved(shape) {
            for groups in self.groups {
                let local = |&unit: &usize| {
                    moved.iter().map(|&u| u8::from(groups[u] == groups[unit])).collect::<Vec<_>>()
                };
                let locals: BTreeSet<Vec<u8>> = moved.iter().map(local).collect();
                if !seen.insert(locals.clone()) {
                    continue;
                }
                let all: Vec<Vec<u8>> = locals.into_iter().chain(globals.clone()).collect();
                for rows in sets::<usize>(all.len(), units - 1) {
                    let matrix = rows.iter().map(|row| all[row].clone()).collect();
                    let Some(word) = null_vector(matrix) else { continue };
                    let data = word.iter().filter(|x| **x != 0).count();
                    let parities = all.iter().filter(|row| product(row, &word) != 0).count();
                    self.lightest = self.lightest.min(data + parities);
                }
            }
        }
    }

    /// The units of a shape, moved as far as there are units.
    fn moved(&self, shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
        let (shape, k) = (shape.to_vec(), self.k);
        let last = shape[shape.len() - 1];
        (0..k - last).map(move |by| shape.iter().map(|unit| unit + by).collect())
    }

    fn global(&self, t: usize, units: &[usize]) -> Vec<u8> {
        units.iter().map(|&unit| rows::global(t, unit)).collect()
    }
}

fn product(row: &[u8], word: &[u8]) -> u8 {
    row.iter().zip(word).fold(0, |sum, (&a, &b)| sum ^ field::mul(a, b))
}

/// What n − 1 rows of n coefficients leave zero, up to a factor; none if they are dependent.
fn null_vector(mut matrix: Vec<Vec<u8>>) -> Option<Vec<u8>> {
    let units = matrix.len() + 1;
    let mut free = None;
    let mut done = 0;
    for column in 0..units {
        let Some(found) = (done..matrix.len()).find(|&row| matrix[row][column] != 0) else {
            if free.replace(column).is_some() {
                return None;
            }
            continue;
        };
        matrix.swap(done, found);
        let one_over = field::inv(matrix[done][column]);
        let pivot: Vec<u8> = matrix[done].iter().map(|&c| field::mul(c, one_over)).collect();
        for (other, row) in matrix.iter_mut().enumerate() {
            let c = row[column];
            if other != done {
                add_multiple(row, c, &pivot);
            }
        }
        matrix[done] = pivot;
        done += 1;
    }
    let free = free?;
    debug_assert!(rank(matrix.clone()) == units - 1);
    // Each pivot's column is the free one's coefficient in its row.
    let rows = matrix.iter().map(|row| row[free]);
    let mut word: Vec<u8> = rows.collect();
    word.insert(free, 1);
    Some(word)
}
