//! Sets of a given size: how many there are, and all of them.

use crate::units::{Number, NumberSet};

/// Sets of `size` of n things; `u64::MAX` if there are more.
pub(crate) fn binomial(n: usize, size: usize) -> u64 {
    if size > n {
        return 0;
    }
    let step = |c: u64, i: usize| c.saturating_mul((n - i) as u64) / (i as u64 + 1);
    (0..size).fold(1, step)
}

/// All sets of `size` of the numbers 0..n, in lexicographic order.
pub fn sets<T: Number>(n: usize, size: usize) -> impl Iterator<Item = NumberSet<T>> {
    let mut next: Option<Vec<usize>> = (size <= n).then(|| (0..size).collect());
    std::iter::from_fn(move || {
        let current = next.take()?;
        let set = current.iter().copied().map(T::of).collect();
        if let Some(i) = (0..size).rev().find(|&i| current[i] < n - size + i) {
            let mut following = current;
            let from = following[i] + 1;
            for (offset, member) in following[i..].iter_mut().enumerate() {
                *member = from + offset;
            }
            next = Some(following);
        }
        Some(set)
    })
}
