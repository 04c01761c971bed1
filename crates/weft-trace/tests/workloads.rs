//! Generated workloads have the statistics that they are fitted to, and a seed always gives the
//! same requests.

use weft_trace::generate::{Arrivals, Looped, Workload, names, workload};
use weft_trace::{Info, Op, Record, Survey, TraceError, Writer};

fn named(name: &str) -> Workload {
    workload(name).unwrap_or_else(|| panic!("no workload {name}"))
}

fn survey(workload: &Workload, seed: u64, requests: usize) -> Info {
    let mut survey = Survey::default();
    workload.generate(seed).take(requests).for_each(|record| survey.add(&record));
    survey.finish()
}

/// Whether `found` is within `per_mille` thousandths of `expected`.
#[track_caller]
fn near(what: &str, found: u64, expected: u64, per_mille: u64) {
    let off = found.abs_diff(expected);
    assert!(off * 1000 <= expected * per_mille, "{what}: {found}, published {expected}");
}

/// Name; reads in ppm; mean length in bytes; requests in 1000 s; volume in GiB: as the papers print
/// them (DRC Table 2, PRO Table 2).
type Figures = (&'static str, Option<u64>, Option<u64>, Option<u64>, Option<u64>);

const PUBLISHED: [Figures; 6] = [
    ("websearch1", Some(990_000), Some(15_432), Some(323_750), Some(994)),
    ("websearch2", Some(990_000), Some(15_770), None, Some(1508)),
    ("financial1", Some(150_000), Some(3451), Some(64_060), Some(182)),
    ("financial2", Some(780_000), Some(2447), None, Some(66)),
    ("pro-websearch", Some(999_800), None, Some(323_750), None),
    ("pro-financial", Some(359_100), None, Some(64_060), None),
];

#[test]
fn fits_have_the_published_statistics() {
    for (name, reads, mean, rate, volume) in PUBLISHED {
        let workload = named(name);
        let info = survey(&workload, 1, 200_000);
        println!(
            "{name}: {} ppm, {} B, {}/1000 s",
            info.read_ppm, info.sizes.mean, info.requests_per_1000_s
        );
        if let Some(reads) = reads {
            // Within half a percent of all requests.
            assert!(info.read_ppm.abs_diff(reads) < 5000, "{name}: {} reads", info.read_ppm);
        }
        if let Some(mean) = mean {
            near(name, info.sizes.mean, mean, 10);
        }
        if let Some(rate) = rate {
            near(name, info.requests_per_1000_s, rate, 30);
        }
        if let Some(gib) = volume {
            let [device] = &info.devices[..] else { panic!("{name} has one volume") };
            assert!(device.end_bytes <= gib << 30);
            near(name, device.end_bytes, gib << 30, 20);
        }
    }
}

#[test]
fn what_a_paper_says_in_words_holds_too() {
    // ALV on Cello-99: "highly bursty", "temporal locality is quite poor"; VDF on LM-TBE: reads
    // only, 4 KiB blocks.
    let gaps = |name: &str| {
        let at: Vec<f64> = named(name).generate(1).take(50_000).map(|r| r.at_ns as f64).collect();
        let gaps: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64 / mean.powi(2)
    };
    // The squared coefficient of variation of a Poisson process is 1.
    assert!((gaps("tpcc") - 1.0).abs() < 0.1);
    assert!(gaps("cello99") > 10.0, "{}", gaps("cello99"));
    let cello = survey(&named("cello99"), 1, 50_000);
    let financial = survey(&named("financial1"), 1, 50_000);
    assert!(cello.reuse_ppm < 100_000, "{}", cello.reuse_ppm);
    assert!(financial.reuse_ppm > 3 * cello.reuse_ppm, "{}", financial.reuse_ppm);
    let live_maps = named("lm-tbe");
    for record in live_maps.generate(1).take(50_000) {
        assert!(record.op == Op::Read && record.offset % 4096 == 0 && record.len % 4096 == 0);
    }
}

#[test]
fn every_workload_keeps_to_its_description() {
    for (name, about) in names() {
        let workload = named(name);
        assert_eq!((&*workload.name, &*workload.about), (name, about));
        assert!(
            workload.label(7).starts_with("generated: ") && workload.label(7).contains("seed 7")
        );
        let info = survey(&workload, 3, 40_000);
        let mut last_ns = 0;
        for record in workload.generate(3).take(40_000) {
            assert!(record.end() <= workload.device_bytes && record.len > 0, "{name}: {record:?}");
            assert!(record.offset % workload.align_bytes == 0 && record.at_ns >= last_ns);
            last_ns = record.at_ns;
        }
        assert!(info.read_ppm.abs_diff(u64::from(workload.read_ppm)) < 10_000, "{name}");
        // A jump of a stream may go on by chance, too.
        let sequential = u64::from(workload.sequential_ppm);
        let streams = u64::from(workload.streams);
        if streams == 1 {
            assert!(info.sequential_ppm.abs_diff(sequential) < 10_000, "{name}");
        }
        let bursty = matches!(workload.arrivals, Arrivals::Bursty { .. });
        near(name, info.requests_per_1000_s, workload.rate_milli, if bursty { 200 } else { 20 });
    }
}

#[test]
fn a_seed_gives_the_same_bytes_for_ever() {
    let text = |name: &str, seed: u64, requests: usize| {
        let workload = named(name);
        let label = workload.label(seed);
        let mut writer = Writer::new(Vec::new(), &[&label]).expect("memory");
        for record in workload.generate(seed).take(requests) {
            writer.write(&record).expect("memory");
        }
        String::from_utf8(writer.finish().expect("memory")).expect("text")
    };
    // Golden bytes: if these change, every published figure of a generated workload changes.
    assert_eq!(text("financial1", 7, 5), GOLDEN_FINANCIAL);
    assert_eq!(text("cello99", 1, 4), GOLDEN_CELLO);
    assert_eq!(text("websearch1", 1, 2000), text("websearch1", 1, 2000));
    assert_ne!(text("websearch1", 1, 5), text("websearch1", 2, 5));
}

const GOLDEN_FINANCIAL: &str = "\
# generated: workload financial1, seed 7
t_us,dev,offset,size,op
0.000,0,24664515072,2048,W
18920.275,0,12794760192,4096,R
39641.542,0,12794764288,512,W
57932.398,0,70141229056,2048,W
110586.127,0,153454072320,4096,W
";
const GOLDEN_CELLO: &str = "\
# generated: workload cello99, seed 1
t_us,dev,offset,size,op
0.000,0,14382227456,2048,R
20664.746,0,2461396992,4096,W
780322.119,0,15392456704,8192,W
823669.187,0,9070437376,8192,W
";

#[test]
fn a_looped_excerpt_shifts_time_and_nothing_else() {
    let excerpt: Vec<Record> = named("zipf").generate(1).take(100).collect();
    let open = || Ok::<_, TraceError>(excerpt.clone().into_iter().map(Ok));
    let looped: Result<Vec<Record>, _> = Looped::new(open, None, 250).collect();
    let looped = looped.expect("no errors");
    let span = excerpt[99].at_ns;
    for (n, record) in looped.iter().enumerate() {
        let shift = n as u64 / 100 * (span + span / 99);
        let of_excerpt = excerpt[n % 100];
        assert_eq!(*record, Record { at_ns: of_excerpt.at_ns + shift, ..of_excerpt });
    }
    assert_eq!(looped.len(), 250);
    let part: Result<Vec<Record>, _> = Looped::new(open, Some(30), 61).collect();
    assert_eq!(part.expect("no errors")[60].offset, excerpt[0].offset);
    let none = Looped::new(|| Ok::<_, TraceError>(std::iter::empty()), None, 5);
    assert_eq!(none.count(), 0);
}
