//! Recommends a code.
//!
//! Among the codes that meet all goals, the one with the highest weighted *product* of usable
//! share, degraded speed, and the inverses of write operations and rebuild reads is recommended. It
//! is a product because twice as good should count the same for every figure. The emphasis shifts
//! the weights. A longer MTTDL counts a little, and beyond [`MTTDL_ENOUGH_YEARS`] not at all: data
//! is then lost by other causes than independent disk failures.

use super::{Emphasis, Plan, PlanRequest, Row};

/// A mean time to data loss beyond this does not count.
pub(super) const MTTDL_ENOUGH_YEARS: f64 = 1e7;
const MTTDL_WEIGHT: f64 = 0.03;

/// Exponents of the product.
struct Weights {
    capacity: f64,
    degraded: f64,
    write: f64,
    rebuild: f64,
}

fn weights(emphasis: Emphasis) -> Weights {
    let even = Weights { capacity: 1.0, degraded: 0.5, write: 0.25, rebuild: 0.15 };
    match emphasis {
        Emphasis::Balanced => even,
        Emphasis::Read => Weights { degraded: 2.0, ..even },
        Emphasis::Write => Weights { write: 1.5, ..even },
        Emphasis::Capacity => Weights { capacity: 4.0, ..even },
    }
}

/// Sorts and marks the codes, and recommends one.
pub(super) fn choose(request: PlanRequest, mut rows: Vec<Row>) -> Plan {
    let better: Vec<bool> = (0..rows.len())
        .map(|i| rows[i].fits() && !(0..rows.len()).any(|j| beats(&rows, j, i)))
        .collect();
    rows.iter_mut().zip(better).for_each(|(row, best)| row.best_in_something = best);
    let weights = weights(request.emphasis);
    rows.sort_by(|a, b| {
        let by_score = || score(b, &weights).total_cmp(&score(a, &weights));
        b.fits().cmp(&a.fits()).then_with(by_score)
    });
    let best = rows.first().filter(|row| row.fits());
    let recommended = best.map(|row| row.code);
    let reason = best.map_or_else(|| nothing(&rows), |best| reason(best, &rows, &request));
    let notes = best.map_or_else(Vec::new, |best| notes(best, request.disks));
    Plan { request, codes: rows, recommended, reason, notes }
}

/// What to know before this code is taken.
fn notes(best: &Row, disks: usize) -> Vec<String> {
    // Half of the members are no majority: the other half may have continued without them.
    let half = disks.div_ceil(2);
    if half > best.tolerance {
        return Vec::new();
    }
    vec![format!(
        "with {half} of its {disks} disks lost, the array works on, but after a stop it does not \
         start automatically, as the lost disks may hold newer data: it waits for them, and \
         `weft start --force-degraded` starts it without them"
    )]
}

/// The score's logarithm.
fn score(row: &Row, weights: &Weights) -> f64 {
    let degraded = row.degraded.map_or(0.01, |degraded| degraded.worst);
    let rebuild = row.rebuild.map_or(100.0, |rebuild| rebuild.reads);
    weights.capacity * row.efficiency.ln() + weights.degraded * degraded.ln()
        - weights.write * row.write.ops().ln()
        - weights.rebuild * rebuild.ln()
        + MTTDL_WEIGHT * row.mttdl_years.min(MTTDL_ENOUGH_YEARS).ln()
}

/// The figures by which codes are compared, larger being better.
fn merits(row: &Row) -> [f64; 6] {
    [
        row.efficiency,
        row.degraded.map_or(0.0, |degraded| degraded.worst),
        row.rebuild.map_or(f64::NEG_INFINITY, |rebuild| -rebuild.reads),
        row.rebuild.map_or(f64::NEG_INFINITY, |rebuild| -rebuild.hours),
        -row.write.ops(),
        row.mttdl_years,
    ]
}

/// Whether `rows[j]` fits, is at least as good as `rows[i]` in every figure, and is better in one
/// or listed first.
fn beats(rows: &[Row], j: usize, i: usize) -> bool {
    if i == j || !rows[j].fits() {
        return false;
    }
    let (ours, theirs) = (merits(&rows[j]), merits(&rows[i]));
    let at_least = ours.iter().zip(&theirs).all(|(a, b)| *a >= *b - 1e-9 * b.abs());
    let more = ours.iter().zip(&theirs).any(|(a, b)| *a > *b + 1e-9 * b.abs());
    at_least && (more || j < i)
}

fn reason(best: &Row, rows: &[Row], request: &PlanRequest) -> String {
    let fitting: Vec<&Row> = rows.iter().filter(|row| row.fits()).collect();
    let what = match request.emphasis {
        Emphasis::Balanced => "the best balance of capacity, degraded reads, writes and rebuild",
        Emphasis::Read => "the best for reads, also with a disk lost, at a reasonable cost",
        Emphasis::Write => "the best for small writes at a reasonable cost",
        Emphasis::Capacity => "the most capacity at a reasonable cost in the other figures",
    };
    let mut reason = match fitting.len() {
        1 => "the only code compared that meets every goal".to_owned(),
        n => format!("of the {n} codes that meet every goal, {what}"),
    };
    // Compared with the best-known alternative, or else with the runner-up.
    let known = ["raid6", "raid5", "raid10", "rs:"];
    let known = known.iter().find_map(|name| {
        fitting.iter().find(|row| row.code != best.code && row.code.to_string().starts_with(name))
    });
    if let Some(other) = known.or_else(|| fitting.get(1)) {
        reason.push_str(&comparison(best, other));
    }
    reason
}

/// How `best` compares with `other`.
fn comparison(best: &Row, other: &Row) -> String {
    let mut words = Vec::new();
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let mut add = |what: &str, ours: String, theirs: String| {
        if ours != theirs {
            words.push(format!("{what} {ours} instead of {theirs}"));
        }
    };
    add("usable", percent(best.efficiency), percent(other.efficiency));
    if let (Some(ours), Some(theirs)) = (best.degraded, other.degraded) {
        add("read speed with a disk lost", percent(ours.worst), percent(theirs.worst));
    }
    if let (Some(ours), Some(theirs)) = (best.rebuild, other.rebuild) {
        let reads = |reads: f64| format!("{reads:.1}");
        add("bytes read per byte rebuilt", reads(ours.reads), reads(theirs.reads));
    }
    let ops = |row: &Row| format!("{:.1}", row.write.ops());
    add("disk operations per small write", ops(best), ops(other));
    let years = |row: &Row| format!("{:.1e}", row.mttdl_years);
    add("years of MTTDL", years(best), years(other));
    if words.is_empty() {
        return format!("; {} is equally good", other.code);
    }
    format!("; compared with {}: {}", other.code, words.join(", "))
}

fn nothing(rows: &[Row]) -> String {
    let closest = rows.iter().min_by_key(|row| row.misses.len());
    closest.map_or_else(
        || "no code fits these disks".into(),
        |row| {
            let misses = row.misses.join(", ");
            format!("no code meets every goal; the closest is {}: {misses}", row.code)
        },
    )
}
