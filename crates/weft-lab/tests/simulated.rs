//! Simulated experiments: small ones with known outcomes, and the same bytes when repeated.

use weft_lab::report::html;
use weft_lab::store::{self, Keep};
use weft_lab::{Experiment, Figure, LabError, Models, RunOptions, run, run_part};
use weft_testkit::Scratch;

const DEGRADED: &str = r#"
title = "small"
source = "Fig. 0"
about = "RAID-5 and LRC, one disk failed"

[run]
kind = "degraded"
model = "850pro-256g"
disk_mib = 4
unit_kib = 64
failures = 1
rates = [[0]]
arrays = [
  { name = "RAID-5", code = "raid5", disks = 4 },
  { name = "LRC", code = "lrc:4,2,1", disks = 7 },
]
loads = [
  { name = "reads", access = "random-read", kib = 4, depth = 64, requests = 1000, utilisation = [[0]] },
  { name = "writes", access = "random-write", kib = 4, depth = 16, requests = 60 },
  { name = "runs", access = "sequential-write", kib = 64, depth = 8, requests = 30 },
]

[paper."reads, 1 failed"."worst position"]
"LRC" = 0.5
"#;

const REBUILD: &str = r#"
title = "small"
source = "Fig. 0"
about = "a rebuild"

[run]
kind = "rebuild"
model = "850pro-256g"
disk_mib = [8, 16]
region_mib = 1
whole_disk_mib = 8000
unit_kib = 64
kib = 4
depth = 16
requests = 1000
arrays = [
  { name = "RAID-6", code = "raid6", disks = 5, paper_mb_s = 100, right_mb_s = 200 },
  { name = "LRC", code = "lrc:4,2,1", disks = 7, paper_mb_s = 200, right_mb_s = 200 },
]
"#;

const TRACES: &str = r#"
title = "small"
source = "Fig. 0"
about = "traces during a rebuild"

[run]
kind = "rebuild-traces"
model = "850pro-256g"
disk_mib = 2000
unit_kib = 64
outstanding = 16
requests = 1000
traces = [
  { name = "Web", workload = "websearch1", file = "web.csv" },
  { name = "Money", workload = "financial1" },
]
arrays = [{ name = "RAID-6", code = "raid6", disks = 5, mb_s = 200 }]
"#;

const RECOVERY: &str = r#"
title = "small"
source = "Table 0"
about = "a recovery with several policies"

[run]
kind = "recovery"
model = "st3300831as"
disk_mb = 40
requests = 2000
interval_ms = 500
courses = ["RAID-5"]
traces = [{ name = "Web", workload = "pro-websearch", file = "web.csv", rate_milli = 100000 }]
cases = [
  { name = "RAID-5", code = "raid5", disks = 3, unit_kib = 64, region_mib = 1, min_kib_s = 4000, max_kib_s = 4000 },
  { name = "RAID-10", code = "raid10", disks = 4, unit_kib = 16, min_kib_s = 8000 },
]
policies = [
  { name = "PR", policy = { order = "ascending", piggyback = "off" }, parts = { pipelined = {}, pace = "md-sleep", redirect = false } },
  { name = "PR, redirecting", policy = { order = "ascending", piggyback = "off" }, parts = { pipelined = {}, pace = "md-sleep" } },
  { name = "weft", policy = { order = "popularity", zone_stripes = 8, piggyback = "widen" } },
]
"#;

const CACHE: &str = r#"
title = "small"
source = "Fig. 0"
about = "caches above a degraded array"

[run]
kind = "cache"
block_kib = 4
unit_kib = 64
blocks = [2000, 8000]
requests = 20000
repeats = 2
trace = { name = "Web", workload = "vdf-web", file = "web.csv" }
arrays = [
  { name = "RAID-5", code = "raid5", disks = 8, lost = 1 },
  { name = "RAID-6", code = "raid6", disks = 8, lost = 2 },
]
policies = ["lru", "vdf-lru", "s3fifo", "vdf-s3fifo", "greedy-dual"]
"#;

const CACHED: &str = r#"
title = "small"
source = "Table 0"
about = "recoveries below a cache"

[run]
kind = "cached-recovery"
model = "wd10eals"
data_mb = 300
unit_kib = 64
blocks = [12000]
requests = 80000
degraded = 40000
repeats = 2
min_kib_s = 4000
trace = { name = "Web", workload = "vdf-web", rate_milli = 300000 }
arrays = [{ name = "RAID-5", code = "raid5", disks = 5 }]
policies = ["lru", "vdf-lru"]
ways = [
  { name = "not redirecting", policy = { order = "ascending", piggyback = "off" }, parts = { pipelined = {}, pace = "md-depth", redirect = false } },
  { name = "weft" },
]
"#;

const SERVICE: &str = r#"
title = "small"
source = "Fig. 0"
about = "reads below a cache"

[run]
kind = "service-rate"
model = "wd10eals"
data_mb = 200
unit_kib = 64
blocks = [8000]
threads = [4, 40]
requests = 16000
measured = 1000
repeats = 2
trace = { name = "Web", workload = "vdf-web" }
arrays = [{ name = "RAID-5", code = "raid5", disks = 8 }]
policies = ["lru", "vdf-lru"]
"#;

const RESHAPE: &str = r#"
title = "small"
source = "Fig. 0"
about = "a reshape"

[run]
kind = "reshape"
model = "st3146807fc"
write_cache = false
disk_mib = 128
requests = 1000
interval_ms = 1000
repeats = 2
courses = ["TPC-C"]
traces = [{ name = "TPC-C", workload = "tpcc", file = "tpcc.csv", rate_milli = 60000 }]
cases = [
  { name = "TPC-C", trace = "TPC-C", disks = 3, added = 1, unit_kib = 64, buffer_kib = 2048, min_kib_s = 1000 },
  { name = "unloaded", disks = 5, added = 2, unit_kib = 16, buffer_kib = 1024, min_kib_s = 1000, queue_depth = 1 },
]
policies = [
  { name = "MD", way = "md", pacing = { md = "md-lenient" } },
  { name = "MD today", way = "md-today", pacing = { md = "md-depth" } },
  { name = "GA", way = "ga", pacing = "greedy" },
  { name = "ALV", way = "alv", pacing = { valve = { period_ms = 100, bound_ms = 15, slack_milli = 100 } } },
  { name = "ALV, skipping", way = "alv", skip_empty = true, pacing = "greedy" },
]

[paper."redistribution time below MD's"."ALV"]
"unloaded" = 14.43
"#;

const FILES: &str = r#"
title = "Files"
source = "a test"
about = "A test."

[run]
kind = "file-raid"
model = "atlas-v"
disk_mib = 2048
file_mib = 16
long_file_mib = 32
cache_mib = 8
overwrites = [{ cache_mib = 8 }]
request_kib = [4, 256]
read_ahead_kib = 1024
read_ahead_depth = 4
repeats = 1
files = [
  { name = "Raw", disks = 1, data_disks = 1 },
  { name = "RAID0-2", disks = 2, redundancy = "raid0", data_disks = 2 },
  { name = "RAID1", disks = 2, redundancy = "raid1", data_disks = 1 },
  { name = "RAID5-2", disks = 3, redundancy = "raid5", data_disks = 2, plain = "RAID0-2" },
]
"#;

const FILES_REBUILT: &str = r#"
title = "Files"
source = "a test"
about = "A test."

[run]
kind = "file-rebuild"
model = "st3300831as"
disks = 4
disk_mb = 2000
files = 12
file_mib = 32
cache_mib = 1
requests = 2000
interval_ms = 1000
repeats = 3
healthy_s = 2
observed_s = 40
traces = [{ name = "habits", workload = "pro-websearch", file = "habits.csv", rate_milli = 60000 }]
systems = [
  { name = "by change", redundancy = "raid5", order = "changed" },
  { name = "hot parts", redundancy = "raid5", order = "hot-parts", base = "by change" },
]
"#;

const TOGETHER: &str = r#"
title = "small"
source = "Fig. 0"
about = "one life of an array"

[run]
kind = "together"
model = "st3300831as"
disk_mb = 60
unit_kib = 64
requests = 4000
interval_ms = 500
repeats = 2
healthy_s = 2
degraded_s = 2
min_kib_s = 8000
trace = { name = "Web", workload = "pro-websearch", rate_milli = 100000 }
systems = [
  { name = "MD", code = "raid6", disks = 9, policy = { order = "ascending", piggyback = "off" }, parts = { pipelined = { request_bytes = 65536, heads = 16 }, pace = "md-depth" } },
  { name = "weft", code = "drc-g:4,2,1", disks = 9, cache = "vdf-lru", blocks = 4000, target_ms = 20 },
]
"#;

fn figure(text: &str, threads: usize, seed: u64) -> Figure {
    let options = RunOptions { threads, seed, ..RunOptions::default() };
    let experiment = Experiment::parse("small", text, &Models::default()).unwrap();
    run(&experiment, &options, &|_, _| {}).unwrap()
}

fn ours(figure: &Figure, panel: &str, series: &str, x: &str) -> f64 {
    let panel = figure.panels.iter().find(|p| p.title == panel).expect("the panel");
    let series = panel.series.iter().find(|s| s.name == series).expect("the series");
    series.points.iter().find(|p| p.x == x).expect("the point").ours
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    for text in [DEGRADED, REBUILD, TRACES, RECOVERY, CACHE, CACHED, SERVICE, RESHAPE] {
        let (one, two) = (figure(text, 1, 7), figure(text, 2, 7));
        let bytes = |figure: &Figure| serde_json::to_string(figure).unwrap();
        assert_eq!(bytes(&one), bytes(&two));
        assert_eq!(html(std::slice::from_ref(&one)), html(&[two]));
        assert_ne!(bytes(&one), bytes(&figure(text, 2, 8)), "the seed has no influence");
    }
}

/// A text of each kind that is not computed.
const SMALL: [&str; 11] = [
    DEGRADED,
    REBUILD,
    TRACES,
    RECOVERY,
    CACHE,
    CACHED,
    SERVICE,
    RESHAPE,
    FILES,
    FILES_REBUILT,
    TOGETHER,
];

#[test]
fn shards_give_the_bytes_of_one_run() {
    let small = SMALL.map(|text| Experiment::parse("small", text, &Models::default()).unwrap());
    let computed = ["drc-table1", "drc-fig9", "drc-fig11", "alv-fig2", "alv-table1"];
    let computed = computed.map(|name| Experiment::find(name).unwrap());
    let kinds: Vec<_> =
        small.iter().chain(&computed).map(|e| std::mem::discriminant(&e.run)).collect();
    for experiment in Experiment::all() {
        let kind = std::mem::discriminant(&experiment.run);
        assert!(kinds.contains(&kind), "no experiment of the kind of {}", experiment.name);
    }
    for (number, experiment) in small.iter().chain(&computed).enumerate() {
        let scratch = Scratch::new(&format!("lab-shards-{number}"));
        let options = RunOptions { threads: 2, seed: 7, divide: 4, ..RunOptions::default() };
        let options = |keep| RunOptions { keep, ..options.clone() };
        let whole = run(experiment, &options(None), &|_, _| {}).unwrap();
        for shard in ["2/3", "3/3", "1/3"] {
            let (dir, shard) = (scratch.path().to_owned(), shard.parse().unwrap());
            let keep = Keep::In { dir, resume: false, shard, place: 0 };
            run_part(experiment, &options(Some(keep)), &|_, _| {}).unwrap().unwrap_err();
        }
        let parts = store::collect(&[scratch.path().to_owned()]).unwrap().remove(0);
        let merged = run(experiment, &options(Some(Keep::Merged(parts))), &|_, _| {}).unwrap();
        let bytes = |figure: &Figure| serde_json::to_string(figure).unwrap();
        assert_eq!(bytes(&whole), bytes(&merged), "{}, number {number}", experiment.name);
        assert_eq!(whole.csv_lines(), merged.csv_lines(), "{}", experiment.name);
        assert_eq!(html(&[whole]), html(&[merged]));
    }
}

#[test]
fn degraded_arrays_are_slower_by_what_the_layout_says() {
    let figure = figure(DEGRADED, 2, 1);
    // Each survivor of RAID-5 reads once for itself, and once for the lost.
    let raid5 = ours(&figure, "reads, 1 failed", "worst position", "RAID-5");
    assert!((0.4..0.6).contains(&raid5), "{raid5}");
    // The group alone would give one half; reads go around it when its disks have the longer
    // queues, over the global parity and the other group, which then is no longer idle.
    let lrc = ours(&figure, "reads, 1 failed", "worst position", "LRC");
    assert!((0.55..0.75).contains(&lrc), "{lrc}");
    let busy = |disk| ours(&figure, "reads, utilisation with #0 failed", "LRC", disk);
    assert!(busy("#1") > 90.0, "{}", busy("#1"));
    assert!((1.0..busy("#1")).contains(&busy("#6")), "{}", busy("#6"));
    let normal = ours(&figure, "reads, rates", "normal", "LRC");
    let failed = ours(&figure, "reads, rates", "failed #0", "LRC");
    assert!(normal > 1.3 * failed, "{normal} {failed}");
    assert!(ours(&figure, "writes, rates", "normal", "LRC") > 0.0);
    assert!(
        figure.disk.as_deref().is_some_and(|disk| disk.contains("850 Pro")),
        "{:?}",
        figure.disk
    );
}

/// With the fewest reads what does not take part in a repair stays idle (the paper's Table 3: the
/// global parity of LRC is busy 0.03 % of the time); going around the busiest it helps.
#[test]
fn with_fewest_reads_only_the_group_is_busy() {
    let text =
        DEGRADED.replace("failures = 1", "failures = 1\nrepairs = [\"fewest\", \"load-aware\"]");
    let figure = figure(&text, 2, 1);
    let worst = |series| ours(&figure, "reads, 1 failed", series, "LRC");
    let (fewest, load_aware) = (worst("worst position"), worst("worst position, load-aware"));
    assert!((0.45..0.54).contains(&fewest), "the group serves twice its share: {fewest}");
    assert!(load_aware > 1.1 * fewest, "{load_aware} {fewest}");
    let busy = |series, disk| ours(&figure, "reads, utilisation with #0 failed", series, disk);
    assert!(busy("LRC", "#6") < 0.1, "{}", busy("LRC", "#6"));
    assert!(busy("LRC, load-aware", "#6") > 1.0);
    let failed = |series| ours(&figure, "reads, rates", series, "RAID-5");
    // RAID-5 has no choice.
    assert_eq!(failed("failed #0"), failed("failed #0, load-aware"));
}

#[test]
fn a_rebuild_takes_as_long_as_its_bandwidth_says() {
    let figure = figure(REBUILD, 2, 1);
    let time = |series| ours(&figure, "time until all is normal again", series, "RAID-6");
    let printed = time("the paper's bandwidths");
    assert!((1.7..2.3).contains(&printed), "half the bandwidth, twice the time: {printed}");
    let right = time("with the actual n");
    assert!((0.8..1.2).contains(&right), "{right}");
    let begin = ours(&figure, "reads when the recovery starts", "with the actual n", "RAID-6");
    assert!((0.05..1.0).contains(&begin), "{begin}");
}

#[test]
fn a_recovery_shows_what_users_feel_of_each_policy() {
    let figure = figure(RECOVERY, 2, 1);
    let of = |what: &str, policy: &str| ours(&figure, &format!("{what}, Web"), policy, "RAID-5");
    // 40 MB at 4000 KiB/s.
    for policy in ["PR", "PR, redirecting", "weft"] {
        let time = of("rebuild time", policy);
        assert!((9.0..11.0).contains(&time), "{policy}: {time}");
    }
    // A third of the units are lost, and without redirection remain so until the end.
    let full = |policy| of("reads at full speed over the recovery", policy);
    assert!((60.0..73.0).contains(&full("PR")), "{}", full("PR"));
    assert!(full("PR") + 10.0 < full("PR, redirecting"), "{}", full("PR, redirecting"));
    assert!(full("PR") + 10.0 < full("weft"), "{}", full("weft"));
    let until = |policy| of("time until 90 % of reads run at full speed", policy);
    assert_eq!(until("PR"), of("rebuild time", "PR"));
    let (weft, redirecting) = (until("weft"), until("PR, redirecting"));
    assert!(weft <= redirecting, "{weft} {redirecting}");
    // Equal time ends with the slowest, for which it is its own; the others' goes on without
    // losses.
    let policies = ["PR", "PR, redirecting", "weft"];
    let slowest =
        policies.into_iter().max_by(|a, b| of("rebuild time", a).total_cmp(&of("rebuild time", b)));
    for policy in policies {
        let own = of("mean response time", policy);
        let equal = of("mean response time over equal time", policy);
        assert_eq!(own == equal, Some(policy) == slowest, "{policy}: {own} {equal}");
        assert!(equal <= own, "{policy}: {own} {equal}");
    }
    let course = "reads at full speed over the recovery, Web, RAID-5";
    let course = figure.panels.iter().find(|panel| panel.title == course).expect("the course");
    assert!(course.series.iter().all(|series| series.points.len() >= 16));
    let mirror = ours(&figure, "rebuild time, Web", "weft", "RAID-10");
    // 40 MB from a disk of 76 MB/s that serves users as well.
    assert!((0.52..5.0).contains(&mirror), "{mirror}");
}

#[test]
fn a_sweep_changes_one_parameter_and_shows_it_as_a_line() {
    let sweep = "sweeps = [{ parameter = \"zone-stripes\", values = [1, 64] }]\nrepeats = 2\n[[";
    let text = RECOVERY.replace("courses = [", sweep).replace("[[\"RAID-5\"]", "");
    let figure = figure(&text, 2, 1);
    let panel = figure
        .panels
        .iter()
        .find(|panel| panel.title == "mean response time by stripes of a zone, Web");
    let panel = panel.expect("the panel");
    assert_eq!(panel.series.len(), 2);
    for series in &panel.series {
        let points: Vec<_> = series.points.iter().map(|p| (&*p.x, p.at, p.range)).collect();
        assert!(matches!(points[..], [("1", 1.0, Some(_)), ("64", 64.0, Some(_))]), "{points:?}");
    }
}

#[test]
fn a_cache_that_knows_what_is_lost_reads_less() {
    let figure = figure(CACHE, 2, 1);
    let rgr = |policy, array| ours(&figure, "RGR, 8000 blocks", policy, array);
    let hits = |policy| ours(&figure, "hits, 8000 blocks", policy, "RAID-5") / 100.0;
    // Lost blocks are an eighth of all, and cost seven reads: (7/8 + 7/8) a miss.
    let expected = (1.0 - hits("lru")) * 7.0 / 4.0;
    assert!((rgr("lru", "RAID-5") / expected - 1.0).abs() < 0.03, "{expected}");
    // With two lost a quarter of all blocks, and six reads each: 3/4 + 6/4.
    let ratio = rgr("lru", "RAID-6") / rgr("lru", "RAID-5");
    assert!((ratio / (9.0 / 7.0) - 1.0).abs() < 0.03, "{ratio}");
    // Of a lost block's siblings some are cached; its parity never is.
    for (policy, array, parities) in
        [("lru", "RAID-5", 1.0), ("vdf-s3fifo", "RAID-5", 1.0), ("lru", "RAID-6", 2.0)]
    {
        let helped = ours(&figure, "RGR with cached siblings, 8000 blocks", policy, array);
        assert!(helped < 0.995 * rgr(policy, array), "{policy}, {array}: {helped}");
        let lost = parities / 8.0;
        let least = (1.0 - hits("lru").max(hits(policy))) * (1.0 - lost);
        assert!(least < helped, "{policy}, {array}: {helped} {least}");
    }
    for (weighed, base) in [("vdf-lru", "lru"), ("vdf-s3fifo", "s3fifo"), ("greedy-dual", "lru")] {
        for array in ["RAID-5", "RAID-6"] {
            let below = ours(&figure, "RGR below the base policy's, 8000 blocks", weighed, array);
            assert!(below > 2.0, "{weighed}, {array}: {below}");
        }
        let healthy =
            |policy| ours(&figure, "hits with nothing lost, 8000 blocks", policy, "RAID-5");
        assert_eq!(healthy(weighed), healthy(base), "{weighed} with nothing lost");
        let best = ours(&figure, "greatest reduction of RGR", "Web", weighed);
        assert!(best > 2.0, "{weighed}: {best}");
    }
}

#[test]
fn a_rebuild_is_shorter_below_a_cache_that_knows_what_is_lost() {
    let figure = figure(CACHED, 2, 1);
    for way in ["not redirecting", "weft"] {
        let of = |what: &str, series| {
            ours(&figure, &format!("{what}, 12000 blocks, {way}"), series, "RAID-5")
        };
        let time = |series| of("rebuild time", series);
        assert!(time("no users") < time("lru"), "{way}: {} {}", time("no users"), time("lru"));
        assert!(of("RGR", "vdf-lru") < of("RGR", "lru"), "{way}");
        let less = of("rebuild time below the base's", "vdf-lru");
        let expected = 100.0 - 100.0 * time("vdf-lru") / time("lru");
        assert!((less - expected).abs() < 2.0, "{way}: {less} {expected}");
        let predicted = of("rebuild time below the base's", "vdf-lru, eq. 4");
        assert!((0.0..40.0).contains(&predicted), "{way}: {predicted}");
    }
    // What is read from the replacement costs less.
    let rgr = |way| ours(&figure, &format!("RGR, 12000 blocks, {way}"), "lru", "RAID-5");
    assert!(rgr("weft") < rgr("not redirecting"), "{} {}", rgr("weft"), rgr("not redirecting"));
}

#[test]
fn more_threads_are_served_faster_and_a_cache_that_knows_what_is_lost_helps() {
    let figure = figure(SERVICE, 2, 1);
    let rate = |series, x| ours(&figure, "service rate, 8000 blocks", series, x);
    assert!(1.5 * rate("lru", "4 threads") < rate("lru", "40 threads"));
    assert!(rate("lru", "40 threads") < rate("vdf-lru", "40 threads"));
    let gain =
        |series| ours(&figure, "service rate above the base's, 8000 blocks", series, "40 threads");
    assert!(gain("vdf-lru") > 0.0, "{}", gain("vdf-lru"));
    assert!(gain("vdf-lru, by RGR") > 0.0, "{}", gain("vdf-lru, by RGR"));
}

#[test]
fn generated_traces_are_marked_and_recorded_ones_are_read() {
    let generated = figure(TRACES, 2, 1);
    assert!(generated.traces.iter().all(|trace| trace.generated && trace.requests == 1000));
    assert!(html(&[generated]).contains("GENERATED"));

    let scratch = weft_testkit::Scratch::new("lab-traces");
    let mut lines = String::from("t_us,dev,offset,size,op\n");
    for n in 0..200 {
        lines.push_str(&format!("{n},0,{},4096,R\n", n * 8192));
    }
    std::fs::write(scratch.join("web.csv"), lines).unwrap();
    let options =
        RunOptions { traces: Some(scratch.path().to_owned()), threads: 2, ..RunOptions::default() };
    let experiment = Experiment::parse("small", TRACES, &Models::default()).unwrap();
    let recorded = run(&experiment, &options, &|_, _| {}).unwrap();
    let kinds: Vec<_> = recorded.traces.iter().map(|t| (t.generated, t.requests)).collect();
    assert_eq!(kinds, [(false, 200), (true, 1000)]);

    std::fs::write(scratch.join("web.csv"), "t_us,dev,offset,size,op\n1,0,damaged\n").unwrap();
    let error = run(&experiment, &options, &|_, _| {}).unwrap_err().to_string();
    assert!(error.contains("web.csv"), "{error}");
}

/// Nineteen of twenty reads go to one of twelve files.
#[test]
fn fewer_reads_are_computed_if_the_file_that_users_read_is_rebuilt_first() {
    let scratch = Scratch::new("lab-files-rebuilt");
    let mut lines = String::from("t_us,dev,offset,size,op\n");
    let mut rng = weft_rt::Rng::new(1);
    for number in 0..2000 {
        let hot = 5 * 32_u64;
        let mib = if number % 20 == 0 { rng.below(12 * 32) } else { hot + rng.below(32) };
        let at = (mib << 20) + (rng.below(256) << 12);
        lines.push_str(&format!("{},0,{at},4096,R\n", number * 16_000));
    }
    std::fs::write(scratch.join("habits.csv"), lines).unwrap();
    let options =
        RunOptions { traces: Some(scratch.path().to_owned()), threads: 2, ..RunOptions::default() };
    let experiment = Experiment::parse("small", FILES_REBUILT, &Models::default()).unwrap();
    let figure = run(&experiment, &options, &|_, _| {}).unwrap();
    let of = |panel, system| ours(&figure, panel, system, "habits");
    let computed = |system| of("extents that were computed", system);
    let (changed, hot) = (computed("by change"), computed("hot parts"));
    assert!(hot < 0.7 * changed, "{hot} % {changed} %");
    for system in ["by change", "hot parts"] {
        let took = of("rebuild time", system);
        assert!((1.0..40.0).contains(&took), "{took}");
        let (own, equal) = (
            of("mean response time during the rebuild", system),
            of("mean response time over equal time", system),
        );
        assert!(own > equal, "users wait longer during the rebuild: {own} {equal}");
    }
}

#[test]
fn what_there_is_not_is_said() {
    let cases = [
        (DEGRADED.replace("850pro-256g", "floppy"), "850pro-256g"),
        (DEGRADED.replace("disks = 7", "disks = 6"), "lrc:4,2,1"),
        (TRACES.replace("\"financial1\"", "\"bank\""), "bank"),
        (CACHE.replace("vdf-s3fifo", "vdf-fifo"), "vdf-fifo"),
        (CACHE.replace("disks = 8", "disks = 1"), "raid5"),
    ];
    for (text, why) in cases {
        let error = Experiment::parse("small", &text, &Models::default()).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    // More failures than the code survives are a failed run, not a number.
    let text = DEGRADED.replace("failures = 1", "failures = 2");
    let experiment = Experiment::parse("small", &text, &Models::default()).unwrap();
    let error = run(&experiment, &RunOptions::default(), &|_, _| {}).unwrap_err();
    assert!(matches!(error, LabError::Run { .. }), "{error}");
}

#[test]
fn a_life_has_its_phases_and_users_read_what_was_written_in_all() {
    let figure = figure(TOGETHER, 2, 1);
    for system in ["MD", "weft"] {
        let of = |panel, phase| ours(&figure, panel, system, phase);
        for phase in ["healthy", "degraded", "rebuild", "reshape", "larger"] {
            let [p50, mean, p99] = [
                "median of response times",
                "mean response time",
                "99th percentile of response times",
            ]
            .map(|panel| of(panel, phase));
            assert!(
                p50 <= p99 && mean <= p99 && p99 > 0.0,
                "{system}, {phase}: {p50} {mean} {p99}"
            );
            assert!(of("duration", phase) > 1.0, "{system}, {phase}");
        }
        assert!((1.9..2.2).contains(&of("duration", "healthy")), "{system}");
    }
    // MD's rebuild has the priority of users.
    let mean = |phase| ours(&figure, "mean response time", "MD", phase);
    assert!(mean("rebuild") > mean("healthy"), "{} {}", mean("rebuild"), mean("healthy"));
    let life = figure.panels.iter().find(|panel| panel.title == "response time over the life");
    assert!(life.expect("the life").series.iter().all(|series| series.points.len() >= 12));
}

#[test]
fn aggregated_accesses_reshape_sooner_than_stripes_one_by_one() {
    let figure = figure(RESHAPE, 2, 1);
    for case in ["TPC-C", "unloaded"] {
        let time = |policy| ours(&figure, "redistribution time", policy, case);
        assert!(time("MD") < time("GA") && time("ALV") < time("GA"), "{case}");
    }
    let idle = |policy| ours(&figure, "redistribution time", policy, "unloaded");
    assert!(idle("ALV") < idle("MD") && idle("ALV, skipping") < idle("ALV"));
    let updates = |policy| ours(&figure, "metadata updates", policy, "unloaded");
    assert!(updates("ALV") < updates("MD") && updates("MD") < updates("GA"));
}

#[test]
fn files_are_as_fast_as_the_disks_that_hold_their_data() {
    let figure = figure(FILES, 2, 1);
    let raw = ours(&figure, "Fig. 4: sequential read, one request at a time", "Raw", "256");
    let ahead = "Fig. 4: sequential read with the kernel's read-ahead";
    let read = |file| ours(&figure, ahead, "rate", file);
    let write = |file| ours(&figure, "Fig. 3: sequential write", file, "256");
    // The disks of RAID-5 take turns with the parity, so all three are read.
    let files = [("RAID0-2", 2.0, 0.9..1.1), ("RAID1", 1.0, 0.9..1.1), ("RAID5-2", 2.0, 1.1..1.5)];
    for (file, disks, reads) in files {
        let (read, write) = (read(file) / raw / disks, write(file) / raw / disks);
        assert!(reads.contains(&read), "{file} is read at {read} of the bandwidth");
        assert!((0.6..1.05).contains(&write), "{file} is written at {write} of the bandwidth");
    }
    let ratio = ours(&figure, "random overwrites by those of RAID-0", "8 MiB", "RAID5-2");
    assert!((0.2..0.6).contains(&ratio), "at most one half: {ratio}");
}
