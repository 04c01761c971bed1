//! Group shuffling: which local group a data unit belongs to, stripe by stripe.
//!
//! With fixed groups (LRC) the members of a failed unit's group do all the repair reads while the
//! other disks idle. DRC lets every two data units of different *position* meet in a group
//! equally often, so that the reads of a repair spread over k−l data units and l local parities
//! (Sung and Park, "Fast Reconstruction for Degraded Reads and Recovery Process in Primary Array
//! Storage Systems", Theorem 1). Data unit j has base group j/(k/l) and position j mod (k/l);
//! in stripe i it is in group `base + shift(i, position)`.
//!
//! * **Algorithm 1** of the paper: `shift(i, pos) = i / l^pos`. The digits of i in base l, so every
//!   combination of shifts occurs: period l^(k/l).
//! * **Orthogonal array**: balance needs only that any *two* positions see all l² pairs of shifts
//!   equally often, which is an orthogonal array of strength 2. The linear one over GF(l): row r in
//!   GF(l)^t, column c a point of the projective space, entry ⟨r, c⟩. Two different points are
//!   linearly independent, hence all pairs. There are (l^t − 1)/(l − 1) points, so the period is
//!   l^t for the least t with that many ≥ k/l: (12,2) repeats after 8 stripes in place of 64.

use crate::small_field::SmallField;

/// Longest pattern of shuffled groups, in stripes, that is accepted: its rows are kept in memory.
pub const PERIOD_MAX: u64 = 1 << 16;

/// l^(k/l), or none if that is more than is accepted.
pub(crate) fn period(k: usize, l: usize) -> Option<u64> {
    if l == 0 || !k.is_multiple_of(l) {
        return None;
    }
    power_at_most(l, k / l, PERIOD_MAX)
}

/// Period of the orthogonal array, or none if `l` is not a prime power.
pub(crate) fn period_oa(k: usize, l: usize) -> Option<u64> {
    if l == 0 || !k.is_multiple_of(l) {
        return None;
    }
    if l == 1 {
        return Some(1);
    }
    SmallField::characteristic(l)?;
    power_at_most(l, dimension(k / l, l), PERIOD_MAX)
}

fn power_at_most(base: usize, exponent: usize, max: u64) -> Option<u64> {
    (0..exponent).try_fold(1u64, |x, _| {
        let next = if base == 1 { x } else { x * base as u64 };
        (next <= max).then_some(next)
    })
}

/// Least t with at least `positions` points in the projective space of GF(l)^t.
fn dimension(positions: usize, l: usize) -> usize {
    let (mut t, mut points) = (1, 1);
    while points < positions {
        points = points * l + 1;
        t += 1;
    }
    t
}

/// Fixed groups: one stripe, group of unit j is j/(k/l).
pub(crate) fn fixed(k: usize, l: usize) -> Vec<Vec<usize>> {
    vec![(0..k).map(|j| j / (k / l)).collect()]
}

/// Algorithm 1: the groups of the k data units, for each stripe of a period.
pub(crate) fn algorithm_1(k: usize, l: usize) -> Option<Vec<Vec<usize>>> {
    let size = k / l;
    let stripes = usize::try_from(period(k, l)?).ok()?;
    let group = |i: usize, j: usize| {
        let (base, pos) = (j / size, j % size);
        let degree = (0..pos).fold(i, |x, _| x / l);
        (base + degree) % l
    };
    Some((0..stripes).map(|i| (0..k).map(|j| group(i, j)).collect()).collect())
}

/// Shuffling by an orthogonal array of strength 2: the groups, for each stripe of a period.
pub(crate) fn orthogonal(k: usize, l: usize) -> Option<Vec<Vec<usize>>> {
    if l == 1 {
        return Some(fixed(k, l));
    }
    let field = SmallField::new(l)?;
    let size = k / l;
    let t = dimension(size, l);
    let stripes = usize::try_from(period_oa(k, l)?).ok()?;
    let vector = |n: usize| digits(n, l, t);
    let points: Vec<_> = (1..stripes)
        .map(vector)
        .filter(|v| v.iter().find(|&&x| x != 0) == Some(&1))
        .take(size)
        .collect();
    let shift = |row: &[usize], point: &[usize]| {
        row.iter().zip(point).fold(0, |sum, (&a, &b)| field.add(sum, field.mul(a, b)))
    };
    let stripe = |i: usize| {
        let row = vector(i);
        (0..k).map(|j| field.add(j / size, shift(&row, &points[j % size]))).collect()
    };
    Some((0..stripes).map(stripe).collect())
}

/// The `t` digits of `n` in base `l`, lowest first.
fn digits(mut n: usize, l: usize, t: usize) -> Vec<usize> {
    (0..t)
        .map(|_| {
            let digit = n % l;
            n /= l;
            digit
        })
        .collect()
}
