//! Wrong blocks, bad sectors, disks that die while they are used, disks that come back, full disks.

use std::rc::Rc;

use crate::common::model::Pair;
use crate::common::test_disks::on_test_disks;
use crate::common::*;
use weft_disk::{Disk, Fault, FaultDisk, Faults};
use weft_fs::{Fs, FsError, Ino, ROOT};
use weft_rt::Frozen;

/// Where the data blocks of a disk begin.
const DATA_AT: u64 = (64 << 10) + (8 << 20);

/// Disk and byte offset of a line of a column, in the file's first record.
async fn place(fs: &Fs, ino: Ino, unit: usize, line: u64) -> (usize, u64) {
    let places = fs.places(ino).await.expect("known");
    let column = places[0].1.columns[unit].clone().expect("active");
    (column.disk.into(), DATA_AT + (column.start + line) * BLOCK)
}

#[test]
fn wrong_blocks_and_bad_sectors_are_repaired_from_redundancy() {
    run(|rt| async move {
        let (disks, fs) = on_test_disks(&rt, 5).await;
        let bytes = pattern(100_000, 1);
        for redundancy in ["auto", "raid1", "raid6", "rs:2+2"] {
            let ino = make_as(&fs, redundancy, redundancy).await;
            write(&fs, ino, 0, &bytes).await;
            fs.fsync(ino).await.expect("synced");
            let before = fs.status().await.expect("known").counts;
            let (disk, at) = place(&fs, ino, 0, 2).await;
            disks[disk].medium.borrow_mut().poke(at + 512, &[0x5a; 1024]);
            assert!(read_all(&fs, ino).await == bytes, "{redundancy}");
            let (disk, at) = place(&fs, ino, 1, 1).await;
            disks[disk].faults.unreadable.borrow_mut().insert(at / 512 + 3);
            assert!(read_all(&fs, ino).await == bytes, "{redundancy}");
            fs.check(true).await.expect("checked");
            let counts = fs.status().await.expect("known").counts;
            assert_eq!(counts.wrong_blocks - before.wrong_blocks, 1, "{redundancy}");
            assert!(counts.unreadable_blocks > before.unreadable_blocks, "{redundancy}");
            assert!(counts.repaired_blocks >= before.repaired_blocks + 2, "{redundancy}");
            assert_sound(&fs).await;
        }
    });
}

/// New lines are flushed by the commit that names them, when they are not in memory any more.
#[test]
fn fsync_tells_of_blocks_that_went_with_the_cache_of_a_disk() {
    run(|rt| async move {
        let (disks, faults): (Vec<Rc<dyn Disk>>, Vec<Faults>) = ram(&[24; 4])
            .into_iter()
            .map(|disk| {
                let (disk, faults) = FaultDisk::new(&rt, disk);
                (Rc::new(disk) as Rc<dyn Disk>, faults)
            })
            .unzip();
        let fs = made(&rt, &disks).await;
        let gone = make_as(&fs, "gone", "none").await;
        let kept = make_as(&fs, "kept", "raid1").await;
        fs.begin_use(gone);
        write(&fs, gone, 0, &pattern(8192, 1)).await;
        fs.fsync(gone).await.expect("synced");
        let (disk, _) = place(&fs, gone, 0, 0).await;
        write(&fs, kept, 0, &pattern(100_000, 2)).await;
        // The run goes on there; the disk takes the blocks, and fails when it is flushed.
        faults[disk].inject(Fault::FailFlushes(true));
        write(&fs, gone, 8192, &pattern(8192, 3)).await;
        let lost = fs.fsync(gone).await;
        assert!(matches!(lost, Err(FsError::Unreadable { .. })), "{lost:?}");
        fs.fsync(gone).await.expect("it was told");
        fs.fsync(kept).await.expect("synced");
        assert!(read_all(&fs, kept).await == pattern(100_000, 2));
    });
}

#[test]
fn a_wrong_block_without_redundancy_is_an_error_and_never_wrong_data() {
    run(|rt| async move {
        let (disks, fs) = on_test_disks(&rt, 3).await;
        let ino = make_as(&fs, "none", "none").await;
        write(&fs, ino, 0, &pattern(20_000, 1)).await;
        fs.fsync(ino).await.expect("synced");
        let (disk, at) = place(&fs, ino, 0, 1).await;
        disks[disk].medium.borrow_mut().poke(at, &[1; 512]);
        let read = fs.read(ino, 4096, 4096).await;
        assert!(matches!(read, Err(FsError::Unreadable { block: 1, .. })), "{read:?}");
        assert_eq!(*fs.read(ino, 0, 4096).await.expect("read"), pattern(4096, 1));
        let report = fs.check(true).await.expect("checked");
        assert_eq!(report.findings.len(), 1, "{report:?}");
        // Written anew, the block is right again.
        write(&fs, ino, 4096, &pattern(4096, 2)).await;
        fs.fsync(ino).await.expect("synced");
        assert_sound(&fs).await;
    });
}

#[test]
fn a_disk_that_dies_is_done_without_and_is_not_trusted_when_it_comes_back() {
    for (seed, writes) in [(1, 0), (2, 1), (3, 5), (4, 30), (5, 90), (6, 200)] {
        run(move |rt| async move {
            let (disks, fs) = on_test_disks(&rt, 6).await;
            let mut pair = Pair::new(fs, seed, &["auto", "raid1", "raid6"]);
            for _ in 0..60 {
                pair.step().await;
            }
            disks[3].faults.gone_after_writes.set(Some(writes));
            for _ in 0..120 {
                pair.step().await;
            }
            disks[3].faults.gone.set(true);
            pair.compare().await;
            pair.fs.unmount().await.expect("unmounted");
            disks[3].faults.gone.set(false);
            disks[3].faults.gone_after_writes.set(None);
            pair.fs = mount(&rt, &all(&disks)).await;
            pair.compare().await;
            let status = pair.fs.status().await.expect("known");
            assert!(status.disks[3].lost, "{status:?}");
            assert_sound(&pair.fs).await;
            pair.fs.rebuild().await.expect("rebuilt");
            assert_sound(&pair.fs).await;
            pair.compare().await;
        });
    }
}

/// The largest disk has room that copies on two disks cannot use. Nor can what has few copies take
/// the room of what waits and has more.
#[test]
fn a_write_is_refused_where_the_redundancy_finds_no_room() {
    for (redundancies, sizes) in [
        (["raid1", "raid1"], &[24, 24, 80][..]),
        (["auto", "auto"], &[20, 20, 60][..]),
        (["raid6", "none"], &[20, 20, 20, 24][..]),
        (["none", "raid1"], &[20, 20, 60][..]),
        (["raid6", "raid6"], &[24, 24, 24, 60, 60][..]),
    ] {
        for piece in [BLOCK as usize, 96 << 10] {
            run(move |rt| async move {
                let what = format!("{redundancies:?}, {piece}");
                let fs = made(&rt, &ram(sizes)).await;
                let files = [
                    make_as(&fs, "one", redundancies[0]).await,
                    make_as(&fs, "other", redundancies[1]).await,
                ];
                let part = |n: u64, file: usize| pattern(piece, 2 * n + file as u64);
                let mut written = [0, 0];
                let mut is_full = [false, false];
                while is_full != [true, true] {
                    for (file, ino) in files.into_iter().enumerate() {
                        let n = written[file];
                        let data = Frozen::copy_from(&part(n, file));
                        match fs.write(ino, n * piece as u64, data).await {
                            _ if is_full[file] => {}
                            Ok(()) => written[file] += 1,
                            Err(FsError::NoSpace) => is_full[file] = true,
                            Err(error) => panic!("{what}: {error}"),
                        }
                    }
                }
                for (file, ino) in files.into_iter().enumerate() {
                    fs.fsync(ino).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                    for n in 0..written[file] {
                        let read = fs.read(ino, n * piece as u64, piece).await.expect("read");
                        assert!(read[..] == part(n, file)[..], "{what}");
                    }
                }
                fs.unmount().await.expect("unmounted");
            });
        }
    }
}

#[test]
fn a_full_file_system_says_so_and_keeps_what_it_has() {
    run(|rt| async move {
        let disks = ram(&[20, 20, 14]);
        let fs = made(&rt, &disks).await;
        let part = pattern(256 << 10, 3);
        let mut files = Vec::new();
        let full = loop {
            let ino = make(&fs, &format!("f{}", files.len())).await;
            match fs.write(ino, 0, Frozen::copy_from(&part)).await {
                Ok(()) => files.push(ino),
                Err(error) => break error,
            }
        };
        assert!(matches!(full, FsError::NoSpace), "{full}");
        fs.sync().await.expect("synced");
        // 30 MiB of disks in all; lines on three disks, then on the two that are larger.
        assert!(files.len() > 50, "{} files", files.len());
        for ino in &files {
            assert!(read_all(&fs, *ino).await == part);
        }
        assert_sound(&fs).await;
        for n in 0..8 {
            fs.unlink(ROOT, format!("f{n}").as_bytes()).await.expect("removed");
        }
        fs.sync().await.expect("synced");
        let ino = make(&fs, "again").await;
        write(&fs, ino, 0, &part).await;
        fs.fsync(ino).await.expect("synced");
        assert_sound(&fs).await;
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &disks).await;
        assert_sound(&fs).await;
    });
}
