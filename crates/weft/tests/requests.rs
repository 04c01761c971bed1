//! How many requests of the kernel programs cost. What is asserted holds for all kernels; the
//! figures of one are in docs/performance.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::weftfs::{Mounted, NEEDS};
use weft_testkit::{Need, command, have, run};

const FOLDERS: u64 = 5;
const IN_FOLDER: u64 = 20;
const FILES: f64 = (FOLDERS * IN_FOLDER) as f64;

type Counts = BTreeMap<String, u64>;

/// Requests since the mount, by kind.
fn counts(mounted: &Mounted) -> Counts {
    mounted.has_answered_all();
    let status = mounted.status();
    let all = status["requests"].as_array().expect("a list").iter();
    let count = |of: &serde_json::Value| Some((of["kind"].as_str()?.into(), of["count"].as_u64()?));
    all.filter_map(count).collect()
}

/// What `work` costs: requests of each kind.
fn cost(mounted: &Mounted, work: impl FnOnce()) -> Counts {
    let before = counts(mounted);
    work();
    let after = counts(mounted);
    let more = |(kind, count): (String, u64)| {
        let more = count - before.get(&kind).copied().unwrap_or(0);
        (more > 0).then_some((kind, more))
    };
    after.into_iter().filter_map(more).collect()
}

fn of(counts: &Counts, kind: &str) -> u64 {
    counts.get(kind).copied().unwrap_or(0)
}

/// Shows what each file costs, and returns the sum.
fn for_each_file(what: &str, counts: &Counts) -> f64 {
    let each = |count: u64| count as f64 / FILES;
    let shown: Vec<String> =
        counts.iter().map(|(kind, count)| format!("{kind} {:.2}", each(*count))).collect();
    let sum = each(counts.values().sum());
    println!("{what}: {sum:.2} requests a file: {}", shown.join(", "));
    sum
}

fn tree(at: &Path) {
    for folder in 0..FOLDERS {
        let folder = at.join(format!("tree/f{folder}"));
        fs::create_dir_all(&folder).expect("made");
        for file in 0..IN_FOLDER {
            fs::write(folder.join(format!("n{file}")), [7; 300]).expect("written");
        }
    }
}

#[test]
fn programs_cost_few_requests() {
    let tools = ["tar", "find", "cp", "rm"].map(Need::Tool);
    if !have(&NEEDS) || !have(&tools) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-requests", 3, 64 << 20);
    let source = mounted.bench.path("source");
    tree(&source);
    let archive = mounted.bench.path("tree.tar");
    run(command("tar").arg("-cf").arg(&archive).arg("tree").current_dir(&source));

    let untar = || drop(run(command("tar").arg("-xf").arg(&archive).current_dir(&mounted.at)));
    let counted = cost(&mounted, untar);
    assert!(for_each_file("untar", &counted) <= 11.5, "{counted:?}");
    assert!(of(&counted, "opendir") + of(&counted, "releasedir") <= 1, "{counted:?}");

    mounted.unmount();
    mounted.mount_again();
    let at = |name: &str| mounted.at.join(name);
    let find = || {
        let mut find = command("find");
        drop(run(find.arg(at("tree")).args(["-type", "f", "-size", "+0"])));
    };
    let counted = cost(&mounted, find);
    assert!(for_each_file("find", &counted) <= 0.5, "{counted:?}");
    let counted = cost(&mounted, find);
    assert!(for_each_file("find again", &counted) <= 0.2, "{counted:?}");

    // Names that are not there.
    let look = || {
        for n in 0..FOLDERS * IN_FOLDER {
            assert!(!at(&format!("tree/f1/missing{n}")).exists());
        }
    };
    let counted = cost(&mounted, look);
    assert_eq!(of(&counted, "lookup"), FOLDERS * IN_FOLDER, "{counted:?}");
    let counted = cost(&mounted, || (0..3).for_each(|_| look()));
    assert!(of(&counted, "lookup") <= 2, "{counted:?}");

    let copy = || drop(run(command("cp").arg("-r").arg(at("tree")).arg(at("copy"))));
    let counted = cost(&mounted, copy);
    assert!(for_each_file("cp -r", &counted) <= 9.0, "{counted:?}");

    let remove = || drop(run(command("rm").arg("-r").arg(at("copy"))));
    let counted = cost(&mounted, remove);
    assert!(for_each_file("rm -r", &counted) <= 3.5, "{counted:?}");
    mounted.ends_sound();
}

#[test]
fn names_that_were_missing_are_found_when_they_are_there() {
    if !have(&NEEDS) {
        return;
    }
    let mounted = Mounted::on_disks("weftfs-missing", 3, 64 << 20);
    let at = |name: &str| mounted.at.join(name);
    fs::create_dir_all(at("a/b")).expect("made");
    fs::write(at("file"), "text").expect("written");
    let missing = |name: &str| assert!(!at(name).exists(), "{name}");
    let there = |name: &str| assert!(at(name).exists(), "{name}");
    let names = ["made", "folder", "linked", "symbolic", "renamed", "a/moved", "a/b/moved"];
    names.iter().for_each(|name| missing(name));
    fs::write(at("made"), "").expect("written");
    fs::create_dir(at("folder")).expect("made");
    fs::hard_link(at("file"), at("linked")).expect("linked");
    std::os::unix::fs::symlink("file", at("symbolic")).expect("linked");
    fs::rename(at("made"), at("renamed")).expect("renamed");
    fs::rename(at("folder"), at("a/moved")).expect("renamed");
    missing("made");
    missing("folder");
    names[2..6].iter().for_each(|name| there(name));
    // Below a folder that moves, and one that takes the place of another.
    missing("c/b/moved");
    fs::rename(at("a"), at("c")).expect("renamed");
    fs::create_dir(at("a")).expect("made");
    names[5..].iter().for_each(|name| missing(name));
    there("c/moved");
    missing("c/b/moved");
    fs::rename(at("c/moved"), at("c/b/moved")).expect("renamed");
    there("c/b/moved");
    // Removed, and made again as something else.
    for _ in 0..3 {
        fs::remove_file(at("linked")).expect("removed");
        missing("linked");
        fs::create_dir(at("linked")).expect("made");
        there("linked/..");
        fs::remove_dir(at("linked")).expect("removed");
        missing("linked");
        fs::hard_link(at("file"), at("linked")).expect("linked");
        there("linked");
    }
    mounted.ends_sound();
}
