//! Disks that became larger while the file system is mounted: with every crash on the way, and with
//! the new blocks used afterwards.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::disk::{Medium, Power, TestDisk, holding};
use crate::common::moments::*;
use crate::common::*;
use weft_disk::RamDisk;
use weft_fs::{Fs, FsError, Label};
use weft_rt::Rt;

const LARGER: u64 = SIZE + (7 << 20) + 4096;

async fn data_bytes(fs: &Fs) -> Vec<u64> {
    fs.status().await.expect("known").disks.iter().map(|disk| disk.data_bytes).collect()
}

/// Writes a file that fills the file system, and reads it back.
async fn fill_up(fs: &Fs, what: &str) -> u64 {
    let ino = make_as(fs, "large", "none").await;
    let piece = pattern(1 << 20, 77);
    let free =
        fs.status().await.expect("known").disks.iter().map(|disk| disk.free_bytes).sum::<u64>();
    // Some is for the metadata of lines and for blocks that are to be free.
    let count = free * 9 / 10 / (1 << 20);
    for n in 0..count {
        write(fs, ino, n << 20, &piece).await;
        if n % 4 == 3 {
            fs.sync().await.expect("synced");
        }
    }
    fs.sync().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    let all = read_all(fs, ino).await;
    assert!(all.chunks(1 << 20).all(|chunk| *chunk == piece), "{what}: the large file");
    count << 20
}

fn wrong<T: std::fmt::Debug>(result: Result<T, FsError>) -> String {
    match result {
        Err(FsError::Invalid(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn larger_disks_have_more_blocks() {
    run(|rt| async move {
        let ram: Vec<Rc<RamDisk>> =
            (0..4).map(|n| Rc::new(RamDisk::new(&format!("ram{n}"), SIZE, 512))).collect();
        let disks: Vec<Rc<dyn weft_disk::Disk>> =
            ram.iter().map(|disk| disk.clone() as _).collect();
        let fs = made(&rt, &disks).await;
        fill(&fs).await;
        let before = data_bytes(&fs).await;
        let why = wrong(fs.grow_disk(1).await);
        assert!(why.contains("ram1") && why.contains("all of it is used"), "{why}");
        wrong(fs.grow_disk(9).await);
        for (n, disk) in ram.iter().enumerate() {
            disk.enlarge(LARGER + ((n as u64) << 20));
        }
        let status = fs.status().await.expect("known");
        let more: Vec<u64> = (0..4).map(|n| LARGER - SIZE + (n << 20)).collect();
        let unused: Vec<u64> = status.disks.iter().map(|disk| disk.unused_bytes).collect();
        assert_eq!(unused, more);
        assert_eq!(data_bytes(&fs).await, before, "nothing is used without being told");
        for (n, more) in (0..).zip(&more) {
            let gained = fs.grow_disk(n).await.expect("grown");
            assert_eq!(gained, *more, "disk {n}");
        }
        let after = data_bytes(&fs).await;
        assert!((0..4).all(|n| after[n] == before[n] + more[n]), "{before:?} {after:?}");
        assert_filled(&fs, "grown").await;
        fill_up(&fs, "grown").await;
        assert_filled(&fs, "full").await;
        fs.scrub().await.expect("scrubbed");
        fs.unmount().await.expect("unmounted");
        for disk in &disks {
            let label = Label::read(&**disk).await.expect("readable").expect("a label");
            assert_eq!(label.size_bytes, disk.size_now() / 4096 * 4096);
        }
        // The second copy of the label counts like the first.
        let zeros = weft_rt::Frozen::zeros(4096);
        disks[2].write(0, zeros, weft_disk::WriteOpts::USER).await.expect("written");
        let fs = mount(&rt, &disks).await;
        assert_eq!(data_bytes(&fs).await, after);
        assert_filled(&fs, "mounted again").await;
    });
}

#[test]
fn a_lost_disk_does_not_grow() {
    run(|rt| async move {
        let ram: Vec<Rc<RamDisk>> =
            (0..4).map(|n| Rc::new(RamDisk::new(&format!("ram{n}"), SIZE, 512))).collect();
        let disks: Vec<Rc<dyn weft_disk::Disk>> =
            ram.iter().map(|disk| disk.clone() as _).collect();
        let fs = made(&rt, &disks).await;
        ram.iter().for_each(|disk| disk.enlarge(LARGER));
        fs.fail_disk(3).await.expect("failed");
        let why = wrong(fs.grow_disk(3).await);
        assert!(why.contains("lost"), "{why}");
        let status = fs.status().await.expect("known");
        assert_eq!(status.disks[3].unused_bytes, 0);
    });
}

/// What a crash left, on disks that are as large as they were then.
fn larger(rt: &Rt, media: &[Medium]) -> Vec<Rc<TestDisk>> {
    holding(rt, &Power::new(), LARGER, media)
}

#[test]
fn a_crash_while_a_disk_grows_leaves_the_old_size_or_the_new_one() {
    let moments = moments(4, |fs, disks| async move {
        disks.iter().for_each(|disk| disk.enlarge(LARGER));
        fs.grow_disk(1).await.expect("grown");
        let ino = make_as(&fs, "later", "none").await;
        write(&fs, ino, 0, &pattern(200_000, 5)).await;
        fs.sync().await.expect("synced");
    });
    let mut counts = [0; 2];
    let every = if moments.len() > 120 { moments.len() / 120 + 1 } else { 1 };
    for (n, media) in moments.iter().enumerate().filter(|(n, _)| *n < 40 || n % every == 0) {
        let media: Vec<Medium> = media.iter().map(|medium| leave(n).of(medium)).collect();
        let grown = Rc::new(RefCell::new(false));
        let result = grown.clone();
        run(move |rt| async move {
            let what = format!("step {n}, {:?}", leave(n));
            let disks = larger(&rt, &media);
            let fs = mounted(&rt, &disks, &what).await;
            let before = data_bytes(&fs).await;
            *result.borrow_mut() = before[1] > before[0];
            assert!(before[1] == before[0] || before[1] == before[0] + LARGER - SIZE, "{before:?}");
            for name in FILES {
                let ino = find(&fs, name).await;
                assert_eq!(read_all(&fs, ino).await.len(), 300_000, "{what}: {name}");
            }
            let report = fs.check(true).await.expect("checked");
            assert_eq!(report.findings, [], "{what}");
            if before[1] == before[0] {
                fs.grow_disk(1).await.expect("grown after all");
                assert_filled(&fs, &what).await;
            }
            let report = fs.scrub().await.expect("scrubbed");
            assert_eq!(report.damaged_files, 0, "{what}: {report:?}");
            fs.unmount().await.expect("unmounted");
            let fs = mounted(&rt, &disks, &what).await;
            assert_eq!(data_bytes(&fs).await[1], before[0] + LARGER - SIZE, "{what}");
        });
        counts[usize::from(*grown.borrow())] += 1;
    }
    assert!(counts[0] > 3 && counts[1] > 3, "{counts:?}");
}
