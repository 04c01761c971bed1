//! How a crash is drawn: what it leaves of the writes in flight and of the cache.
//!
//! The seed draws how a power cut picks among the candidates of a sector, because different
//! patterns reveal different bugs: keep everything, lose everything, keep or lose whole writes,
//! keep a prefix in time, or pick independently for each sector.

use weft_model::Medium;
use weft_rt::Rng;
use weft_rt::rng::mix;

/// How a power cut picks among the candidates.
#[derive(Debug, Clone, Copy)]
enum CutOutcome {
    KeepAll,
    LoseAll,
    /// Whole writes; this percentage is kept.
    Whole(u64, u64),
    /// Everything that completed up to this point.
    Prefix(u64),
    /// Independently for each sector; this percentage keeps its newest version.
    Sectors(u64),
}

/// The program was killed and the machine was not: completed writes stay in the cache, at risk;
/// writes in flight are stored, partly stored or lost.
pub(super) fn program_killed(medium: &mut Medium, rng: &mut Rng) {
    medium.land(|sectors| match rng.below(3) {
        0 => 0..0,
        1 => 0..sectors,
        _ => {
            let (a, b) = (rng.below(sectors + 1), rng.below(sectors + 1));
            a.min(b)..a.max(b)
        }
    });
}

/// The power is cut: picks a candidate for each sector at risk. Returns these sectors.
pub(super) fn power_cut(medium: &mut Medium, rng: &mut Rng) -> Vec<u64> {
    let completed = medium.mark();
    medium.land(|sectors| 0..sectors);
    let outcome = match rng.below(10) {
        0 => CutOutcome::KeepAll,
        1 => CutOutcome::LoseAll,
        2 | 3 => CutOutcome::Whole(rng.next_u64(), *rng.pick(&[10, 50, 90])),
        4 | 5 => {
            let oldest = medium.at_risk().map(|(_, list)| list[0].order).min().unwrap_or(0);
            CutOutcome::Prefix(rng.within(oldest.saturating_sub(1), medium.mark()))
        }
        _ => CutOutcome::Sectors(*rng.pick(&[10, 50, 50, 90])),
    };
    let interrupted = medium.at_risk().map(|(sector, _)| sector).collect();
    medium.cut(|_, versions| {
        let mut newest_first = versions.iter().rev();
        match outcome {
            CutOutcome::KeepAll => {
                newest_first.find(|v| v.order <= completed || mix(v.order).is_multiple_of(2))
            }
            CutOutcome::LoseAll => None,
            CutOutcome::Whole(salt, percent) => {
                newest_first.find(|v| mix(v.order ^ salt) % 100 < percent)
            }
            CutOutcome::Prefix(last) => newest_first.find(|v| v.order <= last),
            CutOutcome::Sectors(percent) if rng.chance(percent) => versions.last(),
            CutOutcome::Sectors(_) => {
                let candidate = rng.index(versions.len() + 1);
                candidate.checked_sub(1).map(|i| &versions[i])
            }
        }
    });
    interrupted
}
