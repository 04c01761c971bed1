//! Mean time to data loss: a Markov chain over the number of failed disks, solved exactly.
//!
//! State f: f disks of n have failed and all data can still be read. Another disk fails with rate
//! (n−f)·λ; the share s of surviving sets of f+1 disks among those grown from a surviving set of f
//! decides whether the array goes on in state f+1 or is lost. A repair takes the array back to
//! state f−1 with rate μ (one repair at a time, as the DRC paper's Fig. 10 has it).
//!
//! ```text
//!         nλ            (n−1)λ·s₂          (n−2)λ·s₃
//!   (0) ───────▶ (1) ───────────▶ (2) ───────────▶ (3) ─ ─ ▶ lost
//!       ◀─────── μ │  ◀───────── μ  │ ◀────────── μ │
//!                  └ nothing lost   └ (n−2)λ·(1−s₃) ┴──────▶ lost
//! ```
//!
//! Failures are independent and repair times exponential: the usual model, good for *comparing*
//! codes. It leaves out disks of one batch that die together, and sectors that turn out unreadable
//! during a rebuild; real arrays lose data sooner.
//!
//! The rates differ by six orders of magnitude and the result by fifteen, so that a general linear
//! solver loses every digit. The recurrence below (Grassmann, Taksar and Heyman's idea: eliminate
//! without ever subtracting) is exact to rounding. With t_f the mean time from state f until the
//! array is first worse than f, and q_f the chance that it is then lost,
//!
//! ```text
//!   t_f = (1 + μ·t_{f−1}) / (b_f + d_f + μ·q_{f−1})       b_f: rate to f+1,  d_f: rate to lost
//!   q_f = (d_f + μ·q_{f−1}) / (b_f + d_f + μ·q_{f−1})     1 − q_f = b_f / (…)
//!   MTTDL = Σ_f t_f · Π_{g<f} (1 − q_g)
//! ```

/// Hours of a year as the DRC paper counts them (365 days).
pub const HOURS_PER_YEAR: f64 = 8760.0;

/// The disks of an array, all alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fleet {
    /// How many.
    pub disks: usize,
    /// Mean time to failure of one, in hours (1/λ).
    pub mttf_h: f64,
    /// Mean time of one repair, in hours (1/μ).
    pub mttr_h: f64,
}

impl Fleet {
    /// Mean time to data loss, in hours, of an array that survives the share `shares[f]` of all
    /// sets of f failed disks. What is beyond the end of `shares` is lost.
    ///
    /// # Panics
    /// If a time is not positive, or `shares` is not a falling sequence that starts with 1.
    #[must_use]
    pub fn mttdl_h(&self, shares: &[f64]) -> f64 {
        assert!(self.mttf_h > 0.0 && self.mttr_h > 0.0, "times must be positive: {self:?}");
        assert!(shares.first() == Some(&1.0), "an array survives that nothing fails");
        assert!(shares.is_sorted_by(|a, b| a >= b && *b >= 0.0), "shares must fall: {shares:?}");
        let repair = 1.0 / self.mttr_h;
        let mut total = 0.0;
        let (mut reached, mut time, mut lost) = (1.0, 0.0, 0.0);
        for (failed, share) in shares.iter().enumerate() {
            if *share == 0.0 {
                break;
            }
            let repair = if failed == 0 { 0.0 } else { repair };
            let fail = self.failure_rate(failed);
            let goes_on = fail * shares.get(failed + 1).copied().unwrap_or(0.0) / share;
            let out = fail + repair * lost;
            time = (1.0 + repair * time) / out;
            total += reached * time;
            lost = ((fail - goes_on) + repair * lost) / out;
            reached *= goes_on / out;
            if goes_on == 0.0 {
                break;
            }
        }
        total
    }

    /// Rate, per hour, at which some disk fails when `failed` have.
    pub(crate) fn failure_rate(&self, failed: usize) -> f64 {
        count(self.disks.saturating_sub(failed)) / self.mttf_h
    }

    /// The DRC paper's closed form (eq. 9), in hours: for arrays that survive any two failures, the
    /// share `p_d` of three, and never four. An approximation for MTTR ≪ MTTF.
    #[must_use]
    pub fn mttdl_eq9_h(&self, p_d: f64) -> f64 {
        let Self { mttf_h, mttr_h, .. } = *self;
        let n = count(self.disks);
        let fourth = mttr_h.powi(3) * (n - 3.0) * p_d;
        let third = mttr_h.powi(2) * mttf_h * (1.0 - p_d);
        mttf_h.powi(4) / (n * (n - 1.0) * (n - 2.0) * (fourth + third))
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of disks")]
fn count(disks: usize) -> f64 {
    disks as f64
}
