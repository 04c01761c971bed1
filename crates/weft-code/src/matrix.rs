//! Elimination over GF(2^8) on short rows of coefficients.

use weft_gf::field;

/// dst ^= c · src, on coefficients (data goes through the kernels of weft-gf).
pub(crate) fn add_multiple(dst: &mut [u8], c: u8, src: &[u8]) {
    match c {
        0 => {}
        1 => dst.iter_mut().zip(src).for_each(|(d, s)| *d ^= s),
        _ => dst.iter_mut().zip(src).for_each(|(d, &s)| *d ^= field::mul(c, s)),
    }
}

/// Makes column `column` of `row` zero by adding a multiple of `pivot`, in which it is not zero.
pub(crate) fn clear(row: &mut [u8], pivot: &[u8], column: usize) {
    if row[column] != 0 {
        let c = field::mul(row[column], field::inv(pivot[column]));
        add_multiple(row, c, pivot);
    }
}

/// Rank of a matrix given by its rows.
pub(crate) fn rank(mut rows: Vec<Vec<u8>>) -> usize {
    let columns = rows.first().map_or(0, Vec::len);
    let mut rank = 0;
    for column in 0..columns {
        let Some(found) = (rank..rows.len()).find(|&i| rows[i][column] != 0) else { continue };
        rows.swap(rank, found);
        let (done, rest) = rows.split_at_mut(rank + 1);
        for row in rest {
            clear(row, &done[rank], column);
        }
        rank += 1;
    }
    rank
}

/// Whether rows of `columns` ≤ N coefficients (zeros beyond) have full column rank. Without
/// allocation, and done as soon as they have.
pub(crate) fn full_rank<const N: usize>(
    rows: impl Iterator<Item = [u8; N]>,
    columns: usize,
) -> bool {
    // reduced[c] starts in column c, with a one; all zeros if there is none yet
    let mut reduced = [[0; N]; N];
    let mut rank = 0;
    for mut row in rows {
        if rank == columns {
            break;
        }
        for column in 0..columns {
            if row[column] == 0 {
                continue;
            }
            if reduced[column][column] == 0 {
                let one_over = field::inv(row[column]);
                reduced[column] = row.map(|c| field::mul(one_over, c));
                rank += 1;
                break;
            }
            let c = row[column];
            add_multiple(&mut row, c, &reduced[column]);
        }
    }
    rank == columns
}
