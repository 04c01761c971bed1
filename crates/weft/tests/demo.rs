//! The promise of `weft demo`: it says when all is well, notices one wrong byte, and leaves
//! nothing behind.

use crate::common::Bench;
use crate::common::weftfs::NEEDS;
use weft_testkit::{Need, command, have, run};

/// A small tree, so that the demo is short.
fn tree(bench: &Bench) -> String {
    let tree = bench.path("tree/below");
    std::fs::create_dir_all(&tree).expect("a folder");
    for n in 0_u8..60 {
        let bytes: Vec<u8> = (0..usize::from(n) * 1001).map(|i| i.to_le_bytes()[0] ^ n).collect();
        std::fs::write(tree.join(format!("file{n}")), bytes).expect("a file");
    }
    crate::common::text(&bench.path("tree"))
}

#[test]
fn it_loses_two_disks_and_no_byte_and_leaves_nothing() {
    let bench = Bench::new("demo");
    let tree = tree(&bench);
    let dir = crate::common::text(&bench.path("scene"));
    let said = bench.weft(&["demo", "--tree", &tree, "--limit", "4M", "--dir", &dir]);
    assert!(said.contains("60 files, every checksum matches"), "{said}");
    assert!(said.contains("demo: CANNOT LOSE ANOTHER DISK · degraded"), "{said}");
    assert!(said.contains("Two disks failed at once, and no byte was lost"), "{said}");
    assert!(!bench.path("scene").exists(), "the scene is still there");
}

#[test]
fn it_fails_if_one_byte_is_wrong() {
    let bench = Bench::new("demo-wrong");
    let tree = tree(&bench);
    let dir = crate::common::text(&bench.path("scene"));
    let said =
        bench.refused(&["demo", "--corrupt", "--tree", &tree, "--limit", "4M", "--dir", &dir], 1);
    assert!(said.contains("1 of 60 files differ from the stored ones"), "{said}");
    assert!(!bench.path("scene").exists(), "the scene is still there");
}

#[test]
fn the_file_system_loses_a_disk_and_no_byte_and_leaves_nothing() {
    if !have(&NEEDS) {
        return;
    }
    let bench = Bench::new("demo-fs");
    let tree = tree(&bench);
    let dir = crate::common::text(&bench.path("scene"));
    let args = ["demo", "fs", "--tree", &tree, "--limit", "4M", "--dir", &dir];
    let said = bench.weft(&args);
    assert!(said.contains("60 files, every checksum matches"), "{said}");
    assert!(said.contains("A disk failed, and no byte was lost"), "{said}");
    assert!(!bench.path("scene").exists(), "the scene is still there");
    let said = bench.refused(&[&args[..], &["--corrupt"]].concat(), 1);
    assert!(said.contains("1 of 60 files differ from the stored ones"), "{said}");
    assert!(!bench.path("scene").exists(), "the scene is still there");
    let told = bench.weft(&[&args[..], &["--json"]].concat());
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    // Two copies or parity of 1.8 MB on six disks.
    let rebuilt = told["rebuilt_bytes"].as_u64().expect("a number");
    assert!(rebuilt > 0 && rebuilt < 2 << 20, "{told}");
}

#[test]
fn the_cluster_loses_its_keeper_and_a_disk_and_no_byte_and_leaves_nothing() {
    if !have(&crate::common::cluster::NEEDS) {
        return;
    }
    let bench = Bench::new("demo-cluster");
    let tree = tree(&bench);
    let dir = crate::common::text(&bench.path("scene"));
    let args = ["demo", "cluster", "--tree", &tree, "--limit", "4M", "--dir", &dir];
    let told = bench.weft(&[&args[..], &["--json"]].concat());
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let document = include_str!("../../../docs/json.md");
    crate::schema::Schema::read(document).check("weft demo cluster", &told);
    assert_eq!((&told["files"], &told["wrong_files"]), (&60.into(), &0.into()), "{told}");
    assert!(!bench.path("scene").exists(), "the scene is still there");
    let said = bench.refused(&[&args[..], &["--corrupt"]].concat(), 1);
    assert!(said.contains("$ kill -9 one") && said.contains("$ kill -9 d3"), "{said}");
    assert!(said.contains("two keeps 'demo' in term"), "{said}");
    assert!(said.contains("1 of 60 files differ from the stored ones"), "{said}");
    assert!(!bench.path("scene").exists(), "the scene is still there");
    let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
    assert!(!mounts.contains(&dir), "{mounts}");
    // Nothing of it runs: all of it had this folder.
    let here = |entry: std::fs::DirEntry| std::fs::read_link(entry.path().join("cwd")).ok();
    let processes = std::fs::read_dir("/proc").expect("processes").flatten().filter_map(here);
    assert!(!processes.into_iter().any(|cwd| cwd.to_string_lossy().starts_with(&dir)));

    let mut without = command("env");
    without.args(["PATH=/nowhere", env!("CARGO_BIN_EXE_weft")]).args(args);
    let output = without.output().expect("start weft");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no etcd here") && said.contains("apt install etcd-server"), "{said}");
}

#[test]
fn what_is_kept_can_be_served_again() {
    let mut bench = Bench::new("demo-keep");
    let tree = tree(&bench);
    let dir = crate::common::text(&bench.path("scene"));
    bench.weft(&["demo", "--keep", "--tree", &tree, "--limit", "4M", "--dir", &dir]);
    bench.serve(&[&dir]);
    assert_eq!(bench.status("demo")["redundancy_remaining"], 2);
    bench.terminate();
}

/// The picture with what differs from run to run made equal: numbers, the folder that was stored,
/// and whether the rebuild took long enough to be seen.
fn general(picture: &str) -> String {
    let mut lines = Vec::new();
    for line in picture.lines() {
        let mut line = line.replace("nothing to rebuild", "rebuilt");
        for (from, to) in [("the files of ", " over NBD"), ("all intact. (", "</text>")] {
            let start = line.find(from).map(|at| at + from.len());
            let end = start.and_then(|start| Some(start + line[start..].find(to)?));
            if let (Some(start), Some(end)) = (start, end) {
                line.replace_range(start..end, "");
            }
        }
        let mut text = String::new();
        for c in line.chars() {
            // A number has one `#`.
            let is_number = c.is_ascii_digit() || c == '.' && text.ends_with('#');
            match is_number {
                true if text.ends_with('#') => {}
                true => text.push('#'),
                false => text.push(c),
            }
        }
        lines.push(text);
    }
    lines.join("\n")
}

#[test]
fn the_picture_in_the_readme_is_of_this_demo() {
    if !have(&[Need::Tool("awk")]) {
        return;
    }
    let docs = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
    let bench = Bench::new("demo-picture");
    let tree = tree(&bench);
    let said = bench.weft(&["demo", "--tree", &tree, "--limit", "4M"]);
    std::fs::write(bench.path("said"), &said).expect("written");
    let mut draw = command(docs.join("terminal").to_str().expect("text"));
    let drawn = run(draw.arg(bench.path("said"))).stdout;
    let drawn = String::from_utf8(drawn).expect("text");
    let shown = std::fs::read_to_string(docs.join("demo.svg")).expect("a picture");
    assert_eq!(general(&shown), general(&drawn), "see docs/terminal for how to draw it again");
}
