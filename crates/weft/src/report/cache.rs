//! A cache in words.

use weft_cli::size;

use crate::control::protocol::{CacheCounts, CacheReport};

/// One line of what it is, one of what it does, and a table by slot if the slots differ.
pub fn lines(report: &CacheReport) -> Vec<String> {
    let mut lines = vec![extent(report), effect(report)];
    if report.total.requested_blocks > 0 {
        lines.push(format!(
            "{:>6}  {:>12}  {:>6}  {:>6}  {:>12}",
            "slot", "blocks asked", "hits", "RGR", "reads saved"
        ));
        lines.extend(report.slots.iter().enumerate().map(|(slot, of)| {
            format!(
                "{slot:>6}  {:>12}  {:>6}  {:>6.2}  {:>12}",
                of.requested_blocks,
                percent(of.hit_blocks, of.requested_blocks),
                ratio(of.disk_blocks, of.requested_blocks),
                of.saved_blocks + of.spared_blocks
            )
        }));
    }
    lines
}

/// Policy and size.
fn extent(report: &CacheReport) -> String {
    let CacheReport { policy, max_bytes, used_bytes, .. } = report;
    format!("{policy}, {} of {} used", size::show(*used_bytes), size::show(*max_bytes))
}

/// Everything in one line, for the status.
pub fn summary(report: &CacheReport) -> String {
    let hits = percent(report.total.hit_blocks, report.total.requested_blocks);
    format!("{}; {hits} hits, RGR {:.2}", extent(report), report.rgr)
}

/// What it does, in one line.
fn effect(report: &CacheReport) -> String {
    let CacheCounts { requested_blocks, hit_blocks, saved_blocks, spared_blocks, .. } =
        report.total;
    let saved = saved_blocks + spared_blocks;
    if requested_blocks == 0 {
        return "nothing was read yet".into();
    }
    format!(
        "{} of the blocks read were in it; {:.2} blocks read from disks for each (RGR); {saved} disk \
         reads saved",
        percent(hit_blocks, requested_blocks),
        report.rgr,
    )
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.0} %", 100.0 * ratio(part, whole))
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
