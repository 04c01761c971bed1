//! Real traces in their own formats are read as an independent converter read them. They may not be
//! redistributed, so this test needs a folder of them in `WEFT_TRACES` (and says so when it is not
//! set).

use std::path::{Path, PathBuf};

use weft_trace::{Format, Op, ReadOptions, Record, Survey, open};

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("WEFT_TRACES").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("SKIPPED real traces: WEFT_TRACES names no folder");
    }
    folder
}

fn all(path: &Path) -> (Format, Vec<Record>) {
    let mut reader = open(path, &ReadOptions::default()).expect("a known format");
    let records: Result<Vec<_>, _> = reader.by_ref().collect();
    let records = records.expect("a sound trace");
    assert_eq!((reader.stats().bad, reader.stats().backwards), (0, 0), "{}", path.display());
    (reader.format(), records)
}

#[test]
fn raw_traces_equal_their_conversions() {
    let Some(folder) = folder() else { return };
    for (raw, csv, format) in [
        ("raw/msr-web_3.csv.xz", "msr-web_3-full.csv.xz", Format::Msr),
        ("raw/hplajw-1week.srt.xz", "hplajw-1week.csv.xz", Format::Srt),
        ("raw/cloudPhysicsIO.vscsi.xz", "cloudphysics.csv.xz", Format::Vscsi),
    ] {
        let (found, raw_records) = all(&folder.join(raw));
        assert_eq!(found, format, "{raw}");
        let (found, csv_records) = all(&folder.join(csv));
        assert_eq!(found, Format::Weft, "{csv}");
        assert_eq!(raw_records.len(), csv_records.len(), "{raw}");
        for (n, (raw_record, csv_record)) in raw_records.iter().zip(&csv_records).enumerate() {
            // The conversion counted in floating point: file times to 2 µs.
            let off_ns = raw_record.at_ns.abs_diff(csv_record.at_ns);
            assert!(off_ns <= 2500, "{raw} request {n}: {raw_record:?} {csv_record:?}");
            let same = Record { at_ns: csv_record.at_ns, ..*raw_record };
            assert_eq!(same, *csv_record, "{raw} request {n}");
        }
    }
    let (format, records) = all(&folder.join("raw/ycsb-ext4.blkparse.txt.xz"));
    assert_eq!(format, Format::Blkparse);
    // The summary at the end of the file counts the same.
    let of = |op| records.iter().filter(|record| record.op == op).count();
    assert_eq!((of(Op::Read), of(Op::Write)), (9039, 849));
}

/// The table in the folder's README: records, share of reads in hundredths of a percent, touched
/// bytes in hundredths of a gigabyte.
const TABLE: [(&str, u64, u64, u64); 8] = [
    ("websearch1-50k", 50_000, 9998, 76),
    ("financial1-50k", 50_000, 5840, 13),
    ("dtrs", 127_043, 8900, 520),
    ("tpcc-mqsim", 6_999, 6260, 8),
    ("hplajw-1week", 44_519, 2930, 3),
    ("cloudphysics", 113_872, 4130, 110),
    ("msr-web_3-full", 31_380, 3200, 63),
    ("fiu-cheetah-10k", 9_998, 8900, 4),
];

#[test]
fn their_statistics_are_those_told_with_them() {
    let Some(folder) = folder() else { return };
    for (name, requests, reads, touched) in TABLE {
        let mut survey = Survey::default();
        all(&folder.join(format!("{name}.csv.xz"))).1.iter().for_each(|record| survey.add(record));
        let info = survey.finish();
        println!(
            "{name}: {} reads {} ppm mean {} span {} s touched {} reuse {} ppm",
            info.requests,
            info.read_ppm,
            info.sizes.mean,
            info.span_ns / 1_000_000_000,
            info.footprint_bytes,
            info.reuse_ppm
        );
        assert_eq!(info.requests, requests, "{name}");
        assert!(info.read_ppm.abs_diff(reads * 100) <= 500, "{name}");
        let hundredths = info.footprint_bytes / 10_000_000;
        assert!(hundredths.abs_diff(touched) <= touched / 10 + 1, "{name}: {hundredths}");
    }
}
