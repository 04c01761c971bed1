//! The statistics of a trace and the outcome of a replay, in words.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use weft_cli::size;
use weft_trace::replay::{Latency, Outcome, Point};
use weft_trace::{Format, Info, ReadStats, Sizes};

/// Volumes shown one by one.
const DEVICES_SHOWN: usize = 20;

/// What to report about a trace.
#[derive(Debug, Serialize)]
pub struct TraceSummary {
    /// The file, or the workload.
    pub name: String,
    /// The format, if it is a file.
    pub format: Option<Format>,
    /// What generated it.
    pub generated: Option<String>,
    /// Irregularities found while reading.
    pub read: Option<ReadStats>,
    /// The statistics.
    pub info: Info,
}

impl TraceSummary {
    /// Whether its requests have times.
    pub fn has_times(&self) -> bool {
        self.format.is_none_or(Format::has_times)
    }
}

/// The statistics of a trace.
pub fn show(summary: &TraceSummary) -> String {
    let info = &summary.info;
    let mut text = summary.name.clone();
    if let Some(format) = summary.format {
        let _ = write!(text, " ({format})");
    }
    text.push('\n');
    if let Some(generated) = &summary.generated {
        let _ = writeln!(text, "  {generated}");
    }
    let _ = writeln!(
        text,
        "  requests    {}: {} reads, {} writes, {} flushes, {} trims",
        info.requests, info.reads, info.writes, info.flushes, info.trims
    );
    let _ = writeln!(
        text,
        "  reads       {} of reads and writes; {} read, {} written",
        percent(info.read_ppm),
        size::show(info.read_bytes),
        size::show(info.written_bytes)
    );
    for (what, sizes, any) in [
        ("lengths", &info.sizes, info.reads + info.writes),
        ("  reads", &info.read_sizes, info.reads),
        ("  writes", &info.write_sizes, info.writes),
    ] {
        if any > 0 {
            let _ = writeln!(text, "  {what:<11} {}", show_sizes(sizes));
        }
    }
    let _ = match summary.has_times() {
        false => writeln!(text, "  rate        unknown: the format has no times"),
        true => writeln!(
            text,
            "  rate        {} requests/s, {} over {}",
            thousandths(info.requests_per_1000_s),
            size::show_rate(info.bytes_per_s),
            size::show_duration(Duration::from_nanos(info.span_ns))
        ),
    };
    let _ = writeln!(
        text,
        "  footprint   {} touched, in blocks of {}; {} of touches are reuse, {} of requests sequential",
        size::show(info.footprint_bytes),
        size::show(info.footprint_block_bytes),
        percent(info.reuse_ppm),
        percent(info.sequential_ppm)
    );
    for device in info.devices.iter().take(DEVICES_SHOWN) {
        let _ = writeln!(
            text,
            "  device {:<4} {} requests ({} reads), {} touched of {}",
            device.device,
            device.requests,
            device.reads,
            size::show(device.footprint_bytes),
            size::show(device.end_bytes)
        );
    }
    if info.devices.len() > DEVICES_SHOWN {
        let _ = writeln!(text, "  … and {} more devices", info.devices.len() - DEVICES_SHOWN);
    }
    text + &summary.read.as_ref().map(show_read).unwrap_or_default()
}

/// Irregularities found while reading.
pub fn show_read(read: &ReadStats) -> String {
    let mut text = String::new();
    if read.bad > 0 {
        let _ = writeln!(text, "  damaged     {} lines or records skipped", read.bad);
        read.bad_first.iter().for_each(|bad| text.push_str(&format!("    {bad}\n")));
    }
    if read.empty > 0 {
        let _ = writeln!(text, "  empty       {} requests of 0 bytes left out", read.empty);
    }
    if read.backwards > 0 {
        let by = show_ns(read.backwards_ns_max);
        let _ = writeln!(
            text,
            "  backwards   {} requests earlier than their predecessor, by up to {by}: given its time",
            read.backwards
        );
    }
    text
}

fn show_sizes(sizes: &Sizes) -> String {
    format!(
        "mean {}, median {}, 90 % {}, 99 % {}, {} to {}",
        size::show(sizes.mean),
        size::show(sizes.p50),
        size::show(sizes.p90),
        size::show(sizes.p99),
        size::show(sizes.min),
        size::show(sizes.max)
    )
}

/// Millionths as percent, to hundredths.
fn percent(ppm: u64) -> String {
    format!("{}.{:02} %", ppm / 10_000, ppm % 10_000 / 100)
}

fn thousandths(count: u64) -> String {
    format!("{}.{:02}", count / 1000, count % 1000 / 10)
}

/// A latency: microseconds below a millisecond, else milliseconds.
fn show_ns(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{}.{} µs", ns / 1000, ns % 1000 / 100),
        1_000_000..10_000_000_000 => {
            format!("{}.{:02} ms", ns / 1_000_000, ns % 1_000_000 / 10_000)
        }
        _ => format!("{}.{} s", ns / 1_000_000_000, ns % 1_000_000_000 / 100_000_000),
    }
}

/// The outcome of a replay.
pub fn show_outcome(outcome: &Outcome) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "  measured {} requests in {}: {} requests/s, {}",
        outcome.all.requests,
        show_ns(outcome.elapsed_ns),
        thousandths(outcome.requests_per_1000_s),
        size::show_rate(outcome.bytes_per_s)
    );
    let _ = writeln!(
        text,
        "  {:<8} {:>9} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}",
        "", "requests", "mean", "50 %", "90 %", "99 %", "99.9 %", "max"
    );
    for (what, latency) in [
        ("all", &outcome.all),
        ("reads", &outcome.reads),
        ("writes", &outcome.writes),
        ("flushes", &outcome.flushes),
        ("trims", &outcome.trims),
        ("service", &outcome.service),
    ] {
        if latency.requests > 0 && (what != "service" || latency != &outcome.all) {
            text.push_str(&show_latency(what, latency));
        }
    }
    notes(&mut text, outcome);
    if !outcome.series.is_empty() {
        series(&mut text, &outcome.series);
    }
    text
}

fn show_latency(what: &str, latency: &Latency) -> String {
    let Latency { requests, mean_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns, .. } = *latency;
    let mut line = format!("  {what:<8} {requests:>9}");
    for ns in [mean_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns] {
        let _ = write!(line, " {:>11}", show_ns(ns));
    }
    line + "\n"
}

fn notes(text: &mut String, outcome: &Outcome) {
    let Outcome { late, failed, .. } = outcome;
    let mut note = |count: u64, line: String| {
        if count > 0 {
            let _ = writeln!(text, "  {line}");
        }
    };
    let started = format!(
        "{} requests started late: by {} on average, {} at most",
        late.requests,
        show_ns(late.mean_ns),
        show_ns(late.max_ns)
    );
    note(late.requests, started);
    note(outcome.warm_up, format!("{} requests of warm-up, not measured", outcome.warm_up));
    note(
        outcome.beyond,
        format!("{} requests beyond the end of the target, not issued", outcome.beyond),
    );
    note(outcome.widened, format!("{} requests widened to whole sectors", outcome.widened));
    let small = format!("{} trims of less than a sector, not issued", outcome.trims_too_small);
    note(outcome.trims_too_small, small);
    note(outcome.writes_skipped, format!("{} writes and trims skipped", outcome.writes_skipped));
    let failures = format!(
        "{} requests failed: {} reads, {} writes, {} flushes, {} trims",
        failed.total(),
        failed.reads,
        failed.writes,
        failed.flushes,
        failed.trims
    );
    note(failed.total(), failures);
    failed.first.iter().for_each(|error| note(1, format!("  {error}")));
    if let Some(verified) = &outcome.verified {
        let line = format!(
            "verified: {} blocks right, {} wrong, {} not written before",
            verified.blocks_right, verified.blocks_wrong, verified.blocks_unknown
        );
        note(1, line);
        note(
            verified.blocks_not_kept,
            format!(
                "  {} written blocks not checked: too many to remember",
                verified.blocks_not_kept
            ),
        );
        verified.wrong_first.iter().for_each(|wrong| note(1, format!("  {wrong}")));
    }
    for disk in &outcome.utilisation {
        let share = disk.busy_per_mille;
        note(1, format!("{}: busy {}.{} % of the time", disk.disk, share / 10, share % 10));
    }
}

fn series(text: &mut String, points: &[Point]) {
    let _ = writeln!(
        text,
        "  {:>10} {:>9} {:>13} {:>11} {:>11} {:>11}",
        "from", "requests", "bytes", "mean", "99 %", "max"
    );
    for point in points {
        let _ = writeln!(
            text,
            "  {:>10} {:>9} {:>13} {:>11} {:>11} {:>11}",
            show_ns(point.at_ns),
            point.latency.requests,
            size::show(point.read_bytes + point.written_bytes),
            show_ns(point.latency.mean_ns),
            show_ns(point.latency.p99_ns),
            show_ns(point.latency.max_ns)
        );
    }
}

/// The series as CSV, times in microseconds.
pub fn csv(points: &[Point]) -> String {
    let mut text = "at_s,len_s,requests,read_bytes,written_bytes,mean_us,p50_us,p90_us,p99_us,\
                    p999_us,max_us,in_flight\n"
        .to_owned();
    let seconds = |ns: u64| format!("{}.{:03}", ns / 1_000_000_000, ns / 1_000_000 % 1000);
    let micros = |ns: u64| format!("{}.{:03}", ns / 1000, ns % 1000);
    for point in points {
        let latency = &point.latency;
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{},{},{}",
            seconds(point.at_ns),
            seconds(point.len_ns),
            latency.requests,
            point.read_bytes,
            point.written_bytes,
            micros(latency.mean_ns),
            micros(latency.p50_ns),
            micros(latency.p90_ns),
            micros(latency.p99_ns),
            micros(latency.p999_ns),
            micros(latency.max_ns),
            point.in_flight
        );
    }
    text
}
