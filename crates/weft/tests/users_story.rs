//! The story of the README: an array is created, served, used with ordinary NBD clients, loses
//! disks, gets new ones, and is stopped and started again.

use crate::common::Bench;
use weft_testkit::{Need, command, have, run};

#[test]
fn an_array_from_its_making_to_its_next_start() {
    if !have(&[Need::Tool("qemu-io"), Need::Tool("nbdcopy"), Need::Tool("nbdinfo")]) {
        return;
    }
    let mut bench = Bench::new("story");
    let members = ["d0", "d1", "d2", "d3", "d4", "d5", "d6"];
    let mut create = vec!["create", "tank", "--code", "drc-g:4,2,1", "--size", "48M"];
    create.extend(members);
    let planned = bench.weft(&[&create[..], &["--dry-run"]].concat());
    assert!(planned.contains("would create tank"), "{planned}");
    assert!(!bench.path("d0").exists(), "a dry run made a file");
    bench.weft(&create);
    assert!(bench.weft(&["examine", "d3"]).contains("slot 3 of tank"));

    bench.serve(&["--listen", "127.0.0.1:0", "."]);
    let uri = bench.uri("tank");
    let info = String::from_utf8(run(command("nbdinfo").arg(&uri)).stdout).expect("text");
    assert!(info.contains("can_multi_conn: true"), "{info}");
    run(command("qemu-io").args(["-f", "raw", &uri]).args([
        "-c",
        "write -P 0x5a 1M 20M",
        "-c",
        "flush",
    ]));

    assert!(bench.weft(&["fail", "tank", "d2", "--dry-run"]).contains("nothing was changed"));
    assert_eq!(bench.status("tank")["redundancy_remaining"], 2);
    bench.weft(&["fail", "tank", "d2"]);
    assert_eq!(bench.status("tank")["redundancy_remaining"], 1);
    bench.refused(&["status", "--check"], 3);
    run(command("qemu-io").args(["-f", "raw", &uri]).args([
        "-c",
        "read -P 0x5a 1M 20M",
        "-c",
        "read -P 0 0 1M",
    ]));

    let chosen = bench.weft(&["rebuild", "tank", "--order", "ascending", "--pace", "greedy"]);
    assert!(chosen.contains("order ascending, pace greedy"), "{chosen}");
    bench.weft(&["add", "tank", "spare0", "--size", "48M"]);
    bench.weft(&["rebuild", "tank"]);
    let chosen = bench.weft(&["rebuild", "tank", "--defaults", "--slice", "7", "--json"]);
    assert!(
        chosen.contains("\"order\":\"auto\"") && chosen.contains("\"slice_stripes\":7"),
        "{chosen}"
    );
    assert_eq!(bench.status("tank")["redundancy_remaining"], 2);
    bench.weft(&["replace", "tank", "5", "spare1", "--size", "48M"]);
    bench.weft(&["throttle", "tank", "--min", "1M", "--max", "100M"]);
    assert!(bench.weft(&["scrub", "tank"]).contains("0 mismatches"));
    bench.weft(&["status", "--check"]);

    let copy = crate::common::text(&bench.path("copy"));
    run(command("nbdcopy").args([&uri, &copy]));
    bench.weft(&["stop"]);
    bench.refused(&["status"], 5);
    let bytes = std::fs::read(&copy).expect("the copy");
    let (mib, pattern) = (1 << 20, 0x5a);
    assert!(bytes[mib..21 * mib].iter().all(|b| *b == pattern), "the pattern is not all there");
    assert!(
        bytes[..mib].iter().chain(&bytes[21 * mib..]).all(|b| *b == 0),
        "there is more than written"
    );

    // The folder also holds the members that were failed: they must not be mixed in.
    bench.serve(&["."]);
    let slots = bench.status("tank")["slots"].clone();
    assert!(slots[2]["disk"].as_str().is_some_and(|disk| disk.ends_with("spare0")), "{slots}");
    run(command("qemu-io").args(["-f", "raw", &uri]).args(["-c", "read -P 0x5a 1M 20M"]));
    bench.terminate();
}

#[test]
fn several_arrays_in_one_daemon_and_members_on_another() {
    if !have(&[Need::Tool("qemu-io")]) {
        return;
    }
    let mut bench = Bench::new("several");
    let far = Bench::new("far");
    let mut far = far;
    far.weft(&["create", "lun0", "--code", "raid1", "--size", "32M", "a", "b"]);
    far.serve(&["."]);
    let remote = far.uri("lun0");
    bench.weft(&["create", "one", "--code", "raid5", "--size", "24M", "a", "b", "c"]);
    bench.weft(&["create", "two", "--code", "raid1", "--size", "24M", "x", &remote]);
    bench.serve(&["a", "b", "c", "x", &remote]);
    for (array, pattern) in [("one", "0x11"), ("two", "0x22")] {
        let uri = bench.uri(array);
        let write = format!("write -P {pattern} 0 2M");
        let read = format!("read -P {pattern} 0 2M");
        run(command("qemu-io").args(["-f", "raw", &uri, "-c", &write, "-c", "flush", "-c", &read]));
    }
    bench.weft(&["stop", "one"]);
    assert!(bench.weft(&["status"]).contains("two:"));
    bench.refused(&["status", "one"], 1);
    bench.terminate();
    far.terminate();
}
