//! `weft drill`: rehearses the loss of a disk, and shows what it would bring.

use std::time::{Duration, Instant};

use weft_array::drill::{DrillReport, UserRequests};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{self, log_line, outln};
use weft_cli::progress::Progress;
use weft_cli::{size, thread};
use weft_disk::Latency;

use crate::cli::DrillArgs;
use crate::control::client::Client;
use crate::control::protocol::Request;
use crate::report;
use crate::runtime_dir::RuntimeDir;

/// Time between two updates of the progress bar.
const STEP: Duration = Duration::from_millis(100);

/// `weft drill`.
pub fn drill(args: &DrillArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    let mut client = Client::connect(dir)?;
    let name = client.array_name(&args.array)?;
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let request = Request::Drill {
        array: name.clone(),
        member: args.fail.clone(),
        before_ms: ms(args.before),
        during_ms: ms(args.during),
        memory_bytes: args.memory,
    };
    let whole = args.before + args.during;
    thread::on_signals(|signal, _| {
        log_line("interrupted: the drill ends, and has changed nothing");
        std::process::exit(128 + signal);
    })?;
    let found = std::thread::scope(|scope| {
        let asking = scope.spawn(move || client.ask::<DrillReport>(request));
        let (begun, mut progress) = (Instant::now(), Progress::new("drill", ms(whole), json));
        while !asking.is_finished() {
            let past = begun.elapsed().min(whole);
            let phase = if past < args.before { "observing users" } else { "rebuilding a copy" };
            let left = size::show_duration(whole - past);
            progress.at(ms(past), ms(whole), &format!("{phase}, at most {left} more"));
            std::thread::sleep(STEP);
        }
        asking.join().unwrap_or_else(|_| Err(Failure::new("the drill's answer was lost")))
    })?;
    if json {
        return output::answer(&found);
    }
    show(&name, &found);
    Ok(())
}

fn show(name: &str, found: &DrillReport) {
    let DrillReport { slot, disk, .. } = found;
    outln!("{name} without slot {slot} ({}); nothing was changed", output::visible(disk));
    let (rate, bytes) = (size::show_rate(found.rate_bytes_s), size::show(found.rebuild_bytes));
    match (found.rebuild_ms, found.rebuild_bytes) {
        (_, 0) => outln!("  rebuild     nothing: the array holds no data"),
        (Some(ms), _) => {
            let time = size::show_duration(Duration::from_millis(ms));
            let about = if found.complete { "" } else { "about " };
            outln!("  rebuild     {about}{time}: {bytes} at {rate}");
        }
        (None, _) => {
            outln!(
                "  rebuild     too slow to tell: {bytes} to rebuild; give it more time with --for"
            );
        }
    }
    let more = report::status::more_disks(found.redundancy_remaining, found.redundancy_exact);
    let exposed: Vec<_> = found.exposed.iter().map(|disk| output::visible(disk)).collect();
    outln!("  meanwhile   the array can lose {more}");
    if !exposed.is_empty() {
        outln!("              losing one of these would lose data: {}", exposed.join(", "));
    }
    outln!("  users                     mean       p50       p99    a second");
    show_phase("reads, now", &found.before, found.before.reads);
    show_phase("reads, rebuild", &found.during, found.during.reads);
    show_phase("  reconstructed", &found.during, found.reconstructed);
    show_phase("writes, now", &found.before, found.before.writes);
    show_phase("writes, rebuild", &found.during, found.during.writes);
    if found.reads_left_out > 0 {
        outln!("  {} reads were not repeated: too many at a time", found.reads_left_out);
    }
}

/// A line of the table of users.
fn show_phase(what: &str, phase: &UserRequests, of: Latency) {
    if of.requests == 0 {
        outln!("    {what:<18}         –         –         –          0");
        return;
    }
    let ms = |ns: u64| format!("{}.{:02} ms", ns / 1_000_000, ns / 10_000 % 100);
    let rate = of.requests.saturating_mul(1000) / phase.phase_ms.max(1);
    let (mean, p50, p99) = (ms(of.mean_ns), ms(of.p50_ns), ms(of.p99_ns));
    outln!("    {what:<18} {mean:>9} {p50:>9} {p99:>9} {rate:>10}");
}
