//! The codes that are worth comparing on a number of disks.

use std::collections::BTreeSet;

use weft_code::{CodeSpec, Copies};

/// Local groups that are tried.
const GROUPS: [usize; 3] = [2, 3, 4];
/// Global parities that are tried.
const GLOBALS: [usize; 3] = [1, 2, 3];
/// Periods of shuffled groups beyond this are left to `drc-oa`.
const PERIOD_MAX: u64 = 256;
/// Arrays wider than this get no codes with groups across all disks.
const GROUPED_MAX: usize = 24;
/// Arrays wider than this also get codes with narrower stripes.
const WIDE: usize = 9;

/// Codes for `disks` disks, the simplest first.
#[must_use]
pub fn candidates(disks: usize) -> Vec<CodeSpec> {
    let n = disks;
    let mut codes = vec![CodeSpec::Raid0];
    if (2..=4).contains(&n) {
        codes.push(CodeSpec::Raid1);
    }
    let copies = |copies| CodeSpec::Raid10 { arrangement: Copies::Near, copies };
    codes.extend((2..=3).filter(|c| n > *c).map(copies));
    codes.extend([CodeSpec::Raid5, CodeSpec::Raid6]);
    codes.extend((3..=4).filter(|r| n >= 2 * r).map(|r| CodeSpec::Rs { k: n - r, r }));
    if n <= GROUPED_MAX {
        codes.extend(grouped(n));
    }
    if n > WIDE {
        let narrow = [6, 8, 10, 12, 16].into_iter().filter(|w| w + 1 < n);
        codes.extend(narrow.flat_map(|w| (2..=3).map(move |r| CodeSpec::Rs { k: w - r, r })));
        let lrc = [(4, 2, 1), (6, 2, 1), (8, 2, 1), (6, 2, 2), (12, 2, 2)];
        let lrc = lrc.into_iter().map(|(k, l, r)| CodeSpec::Lrc { k, l, r });
        codes.extend(lrc.filter(|code| code.shape(n).is_ok_and(|shape| shape.width() < n)));
    }
    codes.retain(|code| code.shape(n).is_ok_and(|shape| shape.k > 1 || code.is_mirror()));
    let mut seen = BTreeSet::new();
    codes.retain(|code| seen.insert(code.to_string()));
    codes
}

/// Codes with local groups as wide as the array, or one disk narrower if no group divides.
fn grouped(n: usize) -> Vec<CodeSpec> {
    let mut codes = Vec::new();
    for (l, r) in GROUPS.into_iter().flat_map(|l| GLOBALS.map(|r| (l, r))) {
        let Some(k) = n.checked_sub(l + r).filter(|k| k.is_multiple_of(l) && *k >= 2 * l) else {
            continue;
        };
        codes.push(CodeSpec::Lrc { k, l, r });
        let (drc, oa) = (CodeSpec::Drc { k, l, r }, CodeSpec::DrcOa { k, l, r });
        if drc.check().is_ok() && drc.period() <= PERIOD_MAX {
            codes.extend([CodeSpec::DrcG { k, l, r }, drc]);
        }
        if oa.check().is_ok() && (oa.period() < drc.period() || drc.check().is_err()) {
            codes.push(oa);
        }
    }
    codes
}
