//! The closed forms for adding n disks to a RAID-5 of m, left-asymmetric: the size of the window at
//! chunk x, in chunks, when all chunks below x have been moved.

/// Theorem 1 of Zhang, Zheng and Shu, "ALV: A New Data Redistribution Approach to RAID-5 Scaling"
/// (IEEE Transactions on Computers, 2010), as printed. It protects data that were not moved yet,
/// but neither old parity nor what the parity needs: **not safe** if a crash and the loss of a disk
/// come together. It also differs from the paper's own Fig. 1, which protects old parity.
///
/// # Panics
/// If m is less than 2.
#[must_use]
pub fn theorem_1(m: u64, n: u64, x: u64) -> u64 {
    let (g, r) = (x / (m - 1), x % (m - 1));
    let t = m - 1 - g % m;
    let t_new = m + n - 1 - g % (m + n);
    // Never below 0: −1 needs r > t', which needs g > 0.
    match (r < t, r <= t_new, r < t_new) {
        (true, true, _) | (false, _, false) => n * g,
        (true, false, _) => n * g - 1,
        (false, _, true) => n * g + 1,
    }
}

/// The window that also survives a crash together with the loss of one disk, for an x that starts a
/// new stripe: n·⌊x/(m−1)⌋ − (x mod (m−1)). The old stripe that contains x stays whole. It is
/// Theorem 1 rounded down to whole new stripes, and what [`Window`](super::Window) computes.
///
/// # Panics
/// If m is less than 2.
#[must_use]
pub fn safe_window(m: u64, n: u64, x: u64) -> u64 {
    (n * (x / (m - 1))).saturating_sub(x % (m - 1))
}
