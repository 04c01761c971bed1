//! weftfs as a user meets it: created on files, mounted, used by programs, killed, mounted without a
//! disk, rebuilt.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::Path;

use common::Bench;
use common::weftfs::{Mounted, NEEDS};
use weft_testkit::have;

const FILES: [(&str, &str); 4] =
    [("auto", "auto"), ("mirror", "raid1"), ("five", "raid5"), ("six", "raid6")];

fn contents(len: usize, version: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 4096 * 7 + version).to_le_bytes()[0]).collect()
}

fn set(at: &Path, redundancy: &str, bench: &Bench) {
    bench.weft(&["fs", "set", redundancy, at.to_str().expect("text")]);
}

#[test]
fn files_of_many_redundancies_survive_a_kill_and_a_lost_disk() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::new("weftfs");
    for (n, size) in [40, 40, 48, 64, 40].into_iter().enumerate() {
        let _ = mounted.bench.scratch.file(&format!("d{n}"), size << 20);
    }
    mounted.bench.weft(&["fs", "create", "home", "d0", "d1", "d2", "d3", "d4"]);
    mounted.bench.refused(&["fs", "create", "home", "d0", "d1"], 1);
    mounted.mount(&["d0", "d1", "d2", "d3", "d4"]);
    let at = mounted.at.clone();
    for (name, redundancy) in FILES {
        fs::write(at.join(name), contents(10, 0)).expect("written");
        set(&at.join(name), redundancy, &mounted.bench);
        fs::write(at.join(name), contents(1_000_003, 1)).expect("written");
    }
    // What programs do with files.
    fs::create_dir(at.join("folder")).expect("made");
    for n in 0..300 {
        fs::write(at.join(format!("folder/f{n}")), contents(n * 37, n)).expect("written");
    }
    for n in (0..300).step_by(3) {
        fs::remove_file(at.join(format!("folder/f{n}"))).expect("removed");
    }
    assert_eq!(fs::read_dir(at.join("folder")).expect("a folder").count(), 200);
    symlink("folder/f1", at.join("link")).expect("linked");
    fs::hard_link(at.join("folder/f2"), at.join("hard")).expect("linked");
    fs::rename(at.join("folder/f4"), at.join("moved")).expect("renamed");
    assert_eq!(fs::read(at.join("link")).expect("read"), contents(37, 1));
    assert_eq!(fs::metadata(at.join("hard")).expect("there").nlink(), 2);
    let mut options = fs::File::options();
    let sparse = options.read(true).write(true).create_new(true).open(at.join("sparse"));
    let sparse = sparse.expect("made");
    sparse.write_all_at(b"end", 5_000_000_000).expect("written");
    assert!(sparse.metadata().expect("there").blocks() < 100);
    sparse.sync_all().expect("synced");
    // What is not synced may be missing after a kill.
    for name in FILES.iter().map(|(name, _)| *name).chain(["moved"]) {
        let file = fs::File::open(at.join(name)).expect("there");
        file.sync_all().expect("synced");
    }
    mounted.kill9();
    mounted.mount(&["d4", "d3", "d2", "d1", "d0"]);
    let mut end = [1; 4];
    let sparse = fs::File::open(at.join("sparse")).expect("there");
    assert_eq!(sparse.read_at(&mut end, 4_999_999_999).expect("read"), 4);
    assert_eq!(end, *b"\0end");
    assert_eq!(fs::read(at.join("moved")).expect("read"), contents(4 * 37, 4));
    for (name, _) in FILES {
        assert!(fs::read(at.join(name)).expect("read") == contents(1_000_003, 1), "{name}");
    }
    mounted.bench.weft(&["fs", "fsck", "mnt", "--data"]);
    drop(sparse);
    mounted.unmount();
    mounted.bench.refused(&["fs", "mount", "mnt", "d0", "d1", "d3", "d4"], 1);
    mounted.mount(&["--degraded", "d0", "d1", "d3", "d4"]);
    for (name, _) in FILES {
        let file = fs::File::options().write(true).open(at.join(name)).expect("there");
        file.write_all_at(&contents(5000, 2), 70_001).expect("written");
        file.sync_all().expect("synced");
    }
    let mut wanted = contents(1_000_003, 1);
    wanted[70_001..75_001].copy_from_slice(&contents(5000, 2));
    for (name, _) in FILES {
        assert!(fs::read(at.join(name)).expect("read") == wanted, "{name} without a disk");
    }
    let report = mounted.bench.weft(&["fs", "rebuild", "mnt"]);
    assert!(report.contains("[2]"), "{report}");
    mounted.bench.weft(&["fs", "fsck", "mnt", "--data"]);
    mounted.unmount();
    mounted.mount(&["d0", "d1", "d3", "d4"]);
    for (name, _) in FILES {
        assert!(fs::read(at.join(name)).expect("read") == wanted, "{name} rebuilt");
    }
    assert!(mounted.bench.weft(&["fs", "status", "mnt"]).contains("left for"));
    mounted.unmount();
}
