//! A cache in front of an array: what users see of it, and that it never shows old bytes.

use std::process::Command;

use crate::common::{Bench, have_fio_over_nbd};
use serde_json::Value;
use weft_testkit::{command, run};

/// Reads with one request of fio: `size` bytes from the start, in blocks of 4 KiB.
fn fio(bench: &Bench, rw: &str, more: &[&str]) -> Command {
    let mut fio = command("fio");
    fio.args(["--name=v", "--ioengine=nbd", "--bs=4k", "--iodepth=8", "--size=4M"]);
    fio.args([&format!("--rw={rw}"), &format!("--uri={}", bench.uri("tank"))]).args(more);
    fio.current_dir(bench.scratch.path());
    fio
}

fn cache(bench: &Bench, more: &[&str]) -> Value {
    let args = [&["cache", "tank", "--json"], more].concat();
    let answer: Value = serde_json::from_str(&bench.weft(&args)).expect("JSON");
    answer["cache"].clone()
}

#[test]
fn a_degraded_array_answers_from_memory_and_never_with_old_bytes() {
    if !have_fio_over_nbd() {
        return;
    }
    let mut bench = Bench::new("cached");
    bench.weft(&["create", "tank", "--code", "raid5", "--size", "16M", "d0", "d1", "d2", "d3"]);
    bench.serve(&["--cache", "16M", "--cache-policy", "vdf-lru", "."]);
    run(&mut fio(&bench, "write", &["--verify=crc32c", "--do_verify=0", "--randseed=1"]));
    assert_eq!(cache(&bench, &[])["hit_blocks"], 0, "a write admits nothing");
    bench.weft(&["fail", "tank", "d1"]);
    // Twice: from the disks, and from memory.
    for _ in 0..2 {
        run(&mut fio(&bench, "read", &["--verify=crc32c", "--randseed=1"]));
    }
    let report = cache(&bench, &[]);
    assert_eq!(report["policy"], "vdf-lru");
    assert!(report["hit_blocks"].as_u64() >= Some(1024), "{report}");
    // Three disks are left: a block of the lost one takes three reads, less what is cached of its
    // stripe.
    let lost = &report["slots"][1];
    let count = |name: &str| lost[name].as_u64().expect("a number");
    let (read, spared) = (count("disk_blocks"), count("spared_blocks"));
    let missed = count("requested_blocks") - count("hit_blocks");
    assert!(missed > 0 && spared > 0 && read + spared == 3 * missed, "{report}");
    assert!(lost["saved_blocks"].as_u64() >= lost["hit_blocks"].as_u64().map(|hits| 3 * hits));
    // New bytes under the cache, verified while it is written and afterwards from memory.
    run(&mut fio(&bench, "randwrite", &["--verify=md5", "--verify_backlog=64", "--randseed=2"]));
    let text = bench.weft(&["cache", "tank"]);
    assert!(text.contains("vdf-lru") && text.contains("RGR"), "{text}");
    assert!(bench.weft(&["status", "tank"]).contains("cache vdf-lru"));
    // Smaller, another policy, off.
    let small = cache(&bench, &["--size", "1M", "--policy", "vdf-s3fifo"]);
    assert_eq!((&small["policy"], &small["max_bytes"]), (&"vdf-s3fifo".into(), &(1 << 20).into()));
    run(&mut fio(&bench, "randrw", &["--verify=md5", "--verify_backlog=64", "--randseed=3"]));
    assert!(cache(&bench, &[])["used_bytes"].as_u64() <= Some(1 << 20));
    assert_eq!(cache(&bench, &["--size", "off"]), Value::Null);
    bench.weft(&["scrub", "tank"]);
    bench.terminate();
}

#[test]
fn what_cannot_be_is_refused() {
    let mut bench = Bench::new("cache-refused");
    bench.weft(&["create", "tank", "--code", "raid1", "--size", "16M", "d0", "d1"]);
    let text = bench.refused(&["serve", "--cache", "0", "."], 2);
    assert!(text.contains("or off"), "{text}");
    let text = bench.refused(&["serve", "--cache", "1M", "--cache-policy", "best", "."], 2);
    assert!(
        text.contains("no cache policy is named 'best'") && text.contains("vdf-s3fifo"),
        "{text}"
    );
    let text = bench.refused(&["serve", "--cache", "900TiB", "."], 1);
    assert!(text.contains("this machine has"), "{text}");
    bench.serve(&["."]);
    assert_eq!(bench.weft(&["cache", "tank"]).trim(), "the cache is off");
    let text = bench.refused(&["cache", "tank", "--policy", "lru"], 1);
    assert!(text.contains("--size"), "{text}");
    let text = bench.refused(&["cache", "tank", "--size", "900TiB"], 1);
    assert!(text.contains("nothing was changed"), "{text}");
    let text = bench.refused(&["cache", "tank", "--size", "1K"], 1);
    assert!(text.contains("not possible"), "{text}");
    bench.terminate();
}
