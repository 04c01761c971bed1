//! Traces as users work with them: inspected, converted, generated, replayed to files and to an
//! array, and refused where they would do harm.

use std::fs;

use crate::common::Bench;
use weft_testkit::{Process, wait_until};

const SPC: &str = "0,0,4096,r,0.000\n0,8,4096,w,0.010\n1,0,512,R,0.020\n0,16,8192,r,0.500\n";

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("no JSON ({e}): {text}"))
}

#[test]
fn a_trace_is_looked_at_converted_and_generated() {
    let bench = Bench::new("trace-look");
    fs::write(bench.path("t.spc"), SPC).expect("write");
    let info = json(&bench.weft(&["trace", "info", "t.spc", "--json"]));
    assert_eq!((&info["format"], &info["info"]["requests"]), (&"spc".into(), &4.into()));
    assert_eq!(info["info"]["read_ppm"], 750_000);
    let text = bench.weft(&["trace", "info", "t.spc"]);
    assert!(text.contains("4: 3 reads, 1 writes") && text.contains("75.00 %"), "{text}");

    let csv = bench.weft(&["trace", "convert", "t.spc"]);
    assert!(
        csv.ends_with("500000.000,0,8192,8192,R\n") && csv.contains("10000.000,0,4096,4096,W"),
        "{csv}"
    );
    bench.weft(&["trace", "convert", "t.spc", "--requests", "6", "-o", "long.csv"]);
    let long = fs::read_to_string(bench.path("long.csv")).expect("it was written");
    assert!(long.starts_with("# looped: 6 requests of t.spc, which has 4"), "{long}");
    let info = bench.weft(&["trace", "info", "long.csv"]);
    assert!(info.contains("looped: 6 requests") && info.contains("requests    6"), "{info}");

    let generate = ["trace", "generate", "financial1", "--seed", "7", "--requests", "50"];
    let generated = bench.weft(&generate);
    assert!(generated.starts_with("# generated: workload financial1, seed 7\n"), "{generated}");
    assert_eq!(generated, bench.weft(&generate));
    fs::write(bench.path("g.csv"), &generated).expect("write");
    let info = json(&bench.weft(&["trace", "info", "g.csv", "--json"]));
    assert_eq!(info["generated"], "generated: workload financial1, seed 7");
    let list = bench.weft(&["trace", "list"]);
    assert!(list.contains("blkparse") && list.contains("websearch2"), "{list}");
}

#[test]
fn what_is_wrong_with_a_trace_is_said() {
    let bench = Bench::new("trace-bad");
    fs::write(bench.path("bad.spc"), SPC.replace(",w,", ",?,")).expect("write");
    let said = bench.refused(&["trace", "info", "bad.spc", "--format", "spc"], 1);
    assert!(said.contains("bad.spc:2: the opcode") && said.contains("--skip-bad"), "{said}");
    let info = json(&bench.weft(&["trace", "info", "bad.spc", "--skip-bad", "--json"]));
    assert_eq!((&info["read"]["bad"], &info["info"]["requests"]), (&1.into(), &3.into()));
    let said = bench.refused(&["trace", "info", "bad.spc", "--format", "spd"], 2);
    assert!(said.contains("spd") && said.contains("tencent"), "{said}");
    fs::write(bench.path("poem"), "a poem\n").expect("write");
    assert!(bench.refused(&["trace", "info", "poem"], 1).contains("looks like no known"));
    fs::write(bench.path("cut.spc.gz"), b"\x1f\x8b\x08\0\0\0\0\0\x02\x03\x33").expect("write");
    let said = bench.refused(&["trace", "info", "cut.spc.gz"], 1);
    assert!(said.contains("cut.spc.gz") && said.contains("is truncated"), "{said}");
    assert!(bench.refused(&["trace", "info", "none"], 1).contains("WEFT_TRACES"));
    let said = bench.refused(&["trace", "generate", "websearch9"], 2);
    assert!(said.contains("known are uniform"), "{said}");
    // A file that is not here may be in the folder of traces.
    let folder = bench.path("traces");
    fs::create_dir(&folder).expect("make a folder");
    fs::rename(bench.path("bad.spc"), folder.join("there.spc")).expect("move");
    let mut command = bench.command(&["trace", "info", "there.spc", "--skip-bad"]);
    let output = command.env("WEFT_TRACES", &folder).output().expect("start weft");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_replay_to_a_file_measures_verifies_and_asks_before_it_destroys() {
    let bench = Bench::new("replay-file");
    let target = bench.scratch.file("target", 8 << 20);
    fs::write(&target, vec![0x77; 8 << 20]).expect("write");
    fs::write(bench.path("t.spc"), SPC).expect("write");
    let before = fs::read(&target).expect("read");
    let said = bench.refused(&["replay", "--trace", "t.spc", "target"], 2);
    assert!(said.contains("--overwrite") && said.contains("--reads-only"), "{said}");
    let found = bench.weft(&["replay", "--trace", "t.spc", "--reads-only", "target", "--json"]);
    let outcome = &json(&found)["outcome"];
    assert_eq!((&outcome["issued"], &outcome["completed"]), (&3.into(), &3.into()));
    assert_eq!((&outcome["writes_skipped"], &outcome["read_bytes"]), (&1.into(), &12_800.into()));
    assert!(outcome["elapsed_ns"].as_u64() >= Some(500_000_000), "it was not an open loop");
    assert!(before == fs::read(&target).expect("read"), "reads changed the target");

    // Without times only the order is known.
    fs::write(bench.path("P.lis"), "0 64 0 0\n64 8 0 1\n0 64 0 2\n").expect("write");
    let info = bench.weft(&["trace", "info", "P.lis"]);
    assert!(info.contains("(arc)") && info.contains("no times"), "{info}");
    let text = bench.weft(&["replay", "--trace", "P.lis", "target"]);
    assert!(text.contains("one request at a time"), "{text}");
    for (more, closed) in [(&[][..], 1), (&["--closed", "2"], 2)] {
        let args = [&["replay", "--trace", "P.lis", "target", "--json"], more].concat();
        let found = json(&bench.weft(&args));
        assert_eq!((&found["closed"], &found["outcome"]["completed"]), (&closed.into(), &3.into()));
    }

    let load = ["replay", "--workload", "financial1", "--requests", "3000", "--closed", "16"];
    let more = ["--overwrite", "--verify", "--csv", "series.csv", "target"];
    let text = bench.weft(&[&load[..], &more].concat());
    assert!(text.contains("generated: workload financial1, seed 1"), "{text}");
    assert!(text.contains("fitted by scale") && text.contains(" 0 wrong"), "{text}");
    let series = fs::read_to_string(bench.path("series.csv")).expect("it was written");
    assert!(series.starts_with("at_s,len_s,requests,") && series.lines().count() > 1, "{series}");
    let said = bench.refused(&["replay", "--trace", "t.spc", "--reads-only", "nowhere"], 1);
    assert!(said.contains("nowhere"), "{said}");
    assert!(said.contains("truncate -s"), "{said}");
    for nothing in [["--closed", "0"], ["--requests", "0"], ["--duration", "0"]] {
        let args = ["replay", "--workload", "zipf", "--reads-only", "target"];
        let said = bench.refused(&[&args[..], &nothing].concat(), 2);
        assert!(said.contains(nothing[0]), "{said}");
    }
    bench.refused(&["replay", "--reads-only", "target"], 2);
    bench.refused(&["replay", "--trace", "t.spc", "--workload", "zipf", "target"], 2);
}

#[test]
fn a_replay_that_is_asked_to_end_tells_what_it_measured() {
    let bench = Bench::new("replay-ended");
    let target = bench.scratch.file("target", 8 << 20);
    let (out, err) = (bench.path("out"), bench.path("err"));
    let args = ["replay", "--workload", "zipf", "--duration", "3600", "--reads-only"];
    let mut replay = bench.command(&args);
    replay
        .arg(target)
        .stdout(fs::File::create(&out).expect("a file"))
        .stderr(fs::File::create(&err).expect("a file"));
    let replay = Process::spawn(&mut replay);
    wait_until("progress", || {
        fs::read_to_string(&err).is_ok_and(|text| text.contains("replaying"))
    });
    assert!(replay.terminate().success());
    let text = fs::read_to_string(&out).expect("read");
    assert!(text.contains("zipf on ") && text.contains("requests/s"), "{text}");
}

#[test]
fn a_replay_to_an_array_finds_its_data_again() {
    let mut bench = Bench::new("replay-array");
    bench.members(4, 8 << 20);
    bench.weft(&["create", "t", "--code", "raid5", "d0", "d1", "d2"]);
    // Behind the array's back nothing is written.
    let said = bench.refused(&["replay", "--workload", "bursty", "--overwrite", "d0"], 1);
    assert!(said.contains("d0 is a member of an array"), "{said}");
    bench.serve(&["d0", "d1", "d2"]);
    bench.weft(&["fail", "t", "d1"]);
    let uri = bench.uri("t");
    let load = ["replay", "--workload", "bursty", "--requests", "2000", "--closed", "8"];
    let found = bench.weft(&[&load[..], &["--overwrite", "--verify", "--json", &uri]].concat());
    let found = json(&found);
    let verified = &found["outcome"]["verified"];
    assert!(
        verified["blocks_right"].as_u64() > Some(0) && verified["blocks_wrong"] == 0,
        "{verified}"
    );
    assert_eq!((&found["fit"], &found["outcome"]["failed"]["reads"]), (&"scale".into(), &0.into()));
    bench.terminate();
}

/// In virtual time, so that the figures are the same on every machine: a disk is as busy as
/// requests of known length make it, and an array that lost a disk loads those that repair.
#[test]
fn a_replay_to_a_model_needs_no_disk_and_tells_how_busy_each_was() {
    let bench = Bench::new("replay-model");
    let disk = ["--json", "replay", "--workload", "uniform", "--requests", "200", "--closed", "1"];
    let disk = [&disk[..], &["--reads-only", "--model", "850pro-256g"]].concat();
    let one = json(&bench.weft(&disk));
    // About 100 µs a read of 4 KiB, one at a time: the disk is never idle.
    let mean_us = one["outcome"]["all"]["mean_ns"].as_u64().expect("a mean") / 1000;
    assert!((90..200).contains(&mean_us), "{mean_us}");
    let busy = |answer: &serde_json::Value| -> Vec<u64> {
        let disks = answer["outcome"]["utilisation"].as_array().expect("disks").clone();
        disks.iter().map(|disk| disk["busy_per_mille"].as_u64().expect("a share")).collect()
    };
    assert!(busy(&one)[0] > 990, "{:?}", busy(&one));

    let array =
        ["--json", "replay", "--workload", "uniform", "--requests", "3000", "--closed", "8"];
    let model = ["--model", "850pro-256g", "--code", "lrc:4,2,1", "--disks", "7"];
    let array = [&array[..], &model, &["--disk-size", "1G", "--verify", "--overwrite"]].concat();
    let healthy = json(&bench.weft(&array));
    assert_eq!(healthy["outcome"]["verified"]["blocks_wrong"], 0);
    let degraded = [&array[..], &["--failed", "0"]].concat();
    let degraded = json(&bench.weft(&degraded));
    assert_eq!(degraded["outcome"]["verified"]["blocks_wrong"], 0);
    assert_eq!((busy(&healthy).len(), busy(&degraded)[0]), (7, 0));
    let again = json(&bench.weft(&array));
    assert_eq!(healthy["outcome"], again["outcome"], "not the same twice");
    let rebuilt = [&array[..], &["--failed", "0", "--rebuild", "100M"]].concat();
    let rebuilt = json(&bench.weft(&rebuilt));
    assert_eq!(busy(&rebuilt).len(), 8);
    assert!(busy(&rebuilt)[7] > 0, "nothing came to the new disk");

    let few = ["replay", "--workload", "zipf", "--requests", "9", "--model"];
    let unknown = bench.refused(&[&few[..], &["floppy"]].concat(), 2);
    assert!(unknown.contains("850pro-256g"), "{unknown}");
    let code =
        bench.refused(&[&few[..], &["atlas-v", "--code", "raid7", "--disks", "4"]].concat(), 2);
    assert!(code.contains("raid6"), "{code}");
    bench.refused(&[&few[..], &["atlas-v", "--code", "raid5", "--disks", "1"]].concat(), 1);
    let lost = ["atlas-v", "--code", "raid5", "--disks", "3", "--failed", "0,1"];
    bench.refused(&[&few[..], &lost].concat(), 1);
    let no_disks = ["atlas-v", "--code", "raid5", "--disk-size", "1G"];
    bench.refused(&[&few[..], &no_disks].concat(), 2);
}
