//! The coefficients of global parity rows.
//!
//! **Maximum distance separable rows** (RAID-5/6, Reed–Solomon): any p of the units may be lost.
//! That holds when every square submatrix of the rows is regular.
//! * Up to three rows they are powers: row t is 2^(t·j), t = 0, 1, 2 (P, Q and R of RAID-6 and of
//!   triple parity). Submatrices of rows {0,1,2}, {0,1} and {1,2} are Vandermonde up to a scaling
//!   of columns; those of rows {0,2} too, because squaring is one-to-one in GF(2^8). So three rows
//!   hold for all k ≤ 255.
//! * Four rows of powers do not (2^(3j) repeats after 85 units, and gaps in the exponents make
//!   singular submatrices long before). From four rows on they are a Cauchy matrix 1/(x_t + y_j)
//!   with x_t = 255 − t and y_j = j, all different while k + r ≤ 256; each of its square
//!   submatrices is regular; columns and rows are scaled so that row 0 and column 0 are ones, which
//!   changes no rank. The coefficient of (t, j) depends on neither k nor r.
//!
//! **Global rows in codes with local parities** (LRC, DRC): row t is 2^(j·t), t = 1..r; the XOR of
//! the local parities stands in for t = 0. For r ≤ 2 any r+1 losses survive, which is the best
//! possible when groups hold more than r data units. For r ≥ 3 the lost parities may leave gaps in
//! the exponents; some sets of r+1 losses are then beyond repair although a better choice of
//! coefficients would save them. The tolerance that is reported is computed, not assumed.

use weft_gf::field;

/// Coefficient of column `j` in row `t` of `r` maximum-distance-separable rows.
pub(crate) fn mds(r: usize, t: usize, j: usize) -> u8 {
    if r <= 3 { field::exp(t * j) } else { cauchy(t, j) }
}

/// Coefficient of column `j` in global row `t` (counted from 0) of a code with local parities.
pub(crate) fn global(t: usize, j: usize) -> u8 {
    field::exp((t + 1) * j)
}

fn cauchy(t: usize, j: usize) -> u8 {
    let byte = |n: usize| u8::try_from(n).expect("k + r is at most 255");
    let (x0, xt, y) = (255, 255 - byte(t), byte(j));
    let scale = field::mul(x0 ^ y, field::inv(xt ^ y));
    // y_0 = 0: column 0 of row t is x_0 / x_t before the row is scaled
    field::mul(scale, field::mul(xt, field::inv(x0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::rank;

    /// All square submatrices of `r` rows over `k` columns are regular.
    fn all_regular(r: usize, k: usize) {
        for rows in 1u32..1 << r {
            let rows: Vec<_> = (0..r).filter(|t| rows >> t & 1 == 1).collect();
            for columns in subsets(k, rows.len()) {
                let m = rows.iter().map(|&t| columns.iter().map(|&j| mds(r, t, j)).collect());
                assert_eq!(rank(m.collect()), rows.len(), "{r} rows, {rows:?} × {columns:?}");
            }
        }
    }

    fn subsets(n: usize, size: usize) -> Vec<Vec<usize>> {
        if size == 0 {
            return vec![vec![]];
        }
        let with_last = |last: usize| {
            subsets(last, size - 1).into_iter().map(move |mut s| {
                s.push(last);
                s
            })
        };
        (0..n).flat_map(with_last).collect()
    }

    #[test]
    fn few_rows_are_those_of_raid5_raid6_and_triple_parity() {
        for j in 0..255 {
            assert_eq!(mds(1, 0, j), 1);
            assert_eq!((mds(2, 0, j), mds(2, 1, j)), (1, field::exp(j)));
            assert_eq!(mds(3, 2, j), field::mul(field::exp(j), field::exp(j)));
        }
    }

    #[test]
    fn exhaustive_for_narrow_stripes() {
        for (r, k) in [(1, 40), (2, 40), (3, 24), (4, 14), (5, 12), (6, 10), (7, 9), (8, 8)] {
            all_regular(r, k);
        }
    }

    /// Every 2×2 minor at full width; for three rows also every 3×3 one, through the closed form of
    /// the Vandermonde determinant: it vanishes only if two of the points are equal.
    #[test]
    fn structural_for_wide_stripes() {
        let points: Vec<_> = (0..255).map(|j| mds(3, 1, j)).collect();
        let squares: std::collections::BTreeSet<_> = (0..255).map(|j| mds(3, 2, j)).collect();
        let distinct: std::collections::BTreeSet<_> = points.iter().collect();
        assert_eq!((distinct.len(), squares.len()), (255, 255));

        let r = 9;
        for t in 1..r {
            for u in 0..t {
                for j in 1..255 - r {
                    for i in 0..j {
                        let a = field::mul(mds(r, t, i), mds(r, u, j));
                        let b = field::mul(mds(r, t, j), mds(r, u, i));
                        assert_ne!(a, b, "rows {t} {u}, columns {i} {j}");
                    }
                }
            }
        }
    }

    #[test]
    fn cauchy_is_normalised_and_is_a_scaled_cauchy_matrix() {
        for t in 0..100u8 {
            assert_eq!((cauchy(t.into(), 0), cauchy(0, t.into())), (1, 1));
            for j in 0..150u8 {
                // undo the scaling: the rest must be 1/(x_t + y_j)
                let (column, row) = (field::inv(255 ^ j), field::mul(255, field::inv(255 - t)));
                let plain = field::mul(field::mul(cauchy(t.into(), j.into()), column), row);
                assert_eq!(field::mul(plain, (255 - t) ^ j), 1);
            }
        }
    }
}
