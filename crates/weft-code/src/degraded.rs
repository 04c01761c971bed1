//! The DRC paper's model of degraded reads (Sung and Park, IEICE Trans. Inf. & Syst. 2017, §3.2.1).
//!
//! All data disks are read equally. A read of a failed disk becomes reads of other disks; the
//! *additional reads* AR of the busiest surviving data disk, per read of its own, show how much
//! slower the array has become. [`additional_reads`] counts them, to check the closed forms of the
//! paper.
//!
//! Eq. 1 is exact for one failure, for two groups, and for two failures when groups hold three
//! units or more; elsewhere it is an upper bound (a union bound: it counts a stripe once for each
//! failed disk that shares the group). It also assumes that every lost unit is rebuilt separately;
//! a rebuild that takes all lost units of a stripe from one set of reads needs fewer.
//!
//! Parity rotation is left out here, as in the paper; [`Traffic`](crate::Traffic) has it.

use crate::code::Code;
use crate::combinations::sets;
use crate::units::UnitSet;

/// AR of DRC with `l` local groups and `failures` failed data disks (eq. 1, Table 1).
#[must_use]
pub fn ar_drc(l: u32, failures: u32) -> f64 {
    let (l, f) = (f64::from(l), f64::from(failures));
    ((l - 1.0) * f + 1.0) * f / (l * l)
}

/// AR of RAID-6 and LRC (eq. 3).
#[must_use]
pub fn ar_fixed(failures: u32) -> f64 {
    f64::from(failures)
}

/// Performance of full degraded reads, relative to normal reads (eq. 2).
#[must_use]
pub fn p_fdr(ar: f64) -> f64 {
    1.0 / (1.0 + ar)
}

/// The most bandwidth that a recovery can use: min(B_read / AR, B_write), in the unit of its
/// arguments.
#[must_use]
pub fn recovery_bandwidth_max(ar: f64, read: f64, write: f64) -> f64 {
    (read / ar).min(write)
}

/// Utilisation that a recovery of `recovery` bandwidth adds to the busiest disks (eq. 4).
#[must_use]
pub fn u_rp(recovery: f64, ar: f64, read: f64) -> f64 {
    recovery * ar / read
}

/// Performance of degraded reads while a recovery is running (eq. 5).
#[must_use]
pub fn p_edr(p_fdr: f64, u_rp: f64) -> f64 {
    p_fdr * (1.0 - u_rp)
}

/// Which sets of failed disks [`additional_reads`] goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureSets {
    /// All sets, also the ones that lose data.
    All,
    /// Those after which all data can still be recovered.
    Recoverable,
}

/// Additional reads, counted over a whole period of the code's groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdditionalReads {
    /// Reads for reconstruction on the busiest surviving data disk.
    pub extra: u64,
    /// Direct reads of that disk, one a stripe.
    pub direct: u64,
}

impl AdditionalReads {
    /// AR.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    pub fn ratio(&self) -> f64 {
        self.extra as f64 / self.direct as f64
    }
}

/// AR of `code` by counting: the worst set of `failures` failed data disks, its busiest data disk.
/// Each lost unit is rebuilt separately, as in the paper: from its local group (or, without groups,
/// from the other data and the first parity) if nothing else of it is lost, else by reading
/// everything that is left of the stripe. None if no set of that size is of the kind `tried`.
#[must_use]
pub fn additional_reads(
    code: &Code,
    failures: usize,
    tried: FailureSets,
) -> Option<AdditionalReads> {
    let recoverable =
        |lost: &UnitSet| (0..code.period()).all(|stripe| code.decodable(stripe, *lost));
    let worst = sets(code.k(), failures)
        .filter(|lost| tried == FailureSets::All || recoverable(lost))
        .map(|lost| busiest(code, lost))
        .max()?;
    Some(AdditionalReads { extra: worst, direct: code.period() })
}

/// Reads for reconstruction on the busiest data disk over a period.
fn busiest(code: &Code, lost: UnitSet) -> u64 {
    let mut reads = vec![0; code.k()];
    for stripe in 0..code.period() {
        for unit in lost {
            let row = code.group(stripe, unit).unwrap_or(0);
            let member = |other: &usize| code.coef(stripe, row, *other) != 0;
            let alone = lost.iter().filter(member).count() == 1;
            let left = (0..code.k()).filter(|other| !lost.contains(*other));
            left.filter(|other| !alone || member(other)).for_each(|other| reads[other] += 1);
        }
    }
    reads.into_iter().max().unwrap_or(0)
}
