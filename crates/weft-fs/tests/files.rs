//! Files of all redundancies: written, read, read without disks, mounted again.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::test_disks::{SIZE, left_on};
use crate::common::*;
use weft_fs::{Fs, FsError, Ino, Kind, MountOptions, ROOT, Rename, SetAttr};
use weft_rt::{Frozen, MILLISECOND, SECOND};

const REDUNDANCIES: [(&str, usize); 8] = [
    ("auto", 1),
    ("none", 0),
    ("raid0", 0),
    ("raid1", 1),
    ("raid5", 1),
    ("raid6", 2),
    ("rs:2+2", 2),
    ("lrc:2,2,1", 2),
];

#[test]
fn what_was_written_is_read_also_after_a_mount() {
    run(|rt| async move {
        let disks = ram(&[24, 24, 24, 24, 24]);
        let fs = made(&rt, &disks).await;
        for (name, _) in REDUNDANCIES {
            let ino = make_as(&fs, name, name).await;
            for (offset, len) in [(0, 10), (5000, 100_000), (4096, 8192), (300_001, 77)] {
                write(&fs, ino, offset, &pattern(len, offset)).await;
            }
            fs.fsync(ino).await.expect("synced");
            write(&fs, ino, 20_000, &pattern(50_000, 9)).await;
        }
        let mut before = Vec::new();
        for (name, _) in REDUNDANCIES {
            before.push(read_all(&fs, find(&fs, name).await).await);
        }
        assert_eq!(before[0].len(), 300_078);
        assert!(before.iter().all(|bytes| *bytes == before[0]), "all are alike");
        assert_sound(&fs).await;
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &disks).await;
        for ((name, _), before) in REDUNDANCIES.iter().zip(&before) {
            assert_eq!(&read_all(&fs, find(&fs, name).await).await, before, "{name}");
        }
        assert_sound(&fs).await;
    });
}

/// Also while a file is flushed, when writes go another way.
#[test]
fn pages_of_a_mapped_file_never_make_it_longer() {
    run(|rt| async move {
        let disks = ram(&[24, 24, 24]);
        let fs = made(&rt, &disks).await;
        let ino = make_as(&fs, "file", "raid5").await;
        let mut expected = pattern(10_000, 1);
        write(&fs, ino, 0, &expected).await;
        for round in 0..4_u64 {
            for (offset, len) in [(8192, 4096), (12_288, 8192), (0, 10), (0, 65_536)] {
                let bytes = pattern(len, 2 + round);
                let flushing = fs.clone();
                let flushed = rt.spawn(async move { flushing.fsync(ino).await });
                let written = fs.write_pages(ino, offset, Frozen::copy_from(&bytes)).await;
                written.expect("written");
                flushed.await.expect("synced");
                let at = usize::try_from(offset).expect("small");
                let count = expected.len().saturating_sub(at).min(len);
                if count > 0 {
                    expected[at..at + count].copy_from_slice(&bytes[..count]);
                }
                assert_eq!(read_all(&fs, ino).await, expected, "{offset} {len}");
            }
            write(&fs, ino, 10_000 - 100 * round, &[7; 50]).await;
            let at = usize::try_from(10_000 - 100 * round).expect("small");
            expected.resize(expected.len().max(at + 50), 0);
            expected[at..at + 50].fill(7);
        }
        assert_sound(&fs).await;
    });
}

#[test]
fn files_survive_as_many_lost_disks_as_their_redundancy_says() {
    for lost in [vec![0], vec![4], vec![1, 3]] {
        run(move |rt| async move {
            let disks = ram(&[24, 24, 24, 24, 24]);
            let fs = made(&rt, &disks).await;
            let bytes = pattern(200_000, 3);
            for (name, _) in REDUNDANCIES {
                let ino = make_as(&fs, name, name).await;
                write(&fs, ino, 0, &bytes).await;
            }
            fs.unmount().await.expect("unmounted");
            let left: Vec<_> = disks
                .iter()
                .enumerate()
                .filter(|(n, _)| !lost.contains(n))
                .map(|(_, disk)| disk.clone())
                .collect();
            let refused = Fs::mount(&rt, &left, mounting()).await;
            assert!(refused.is_err(), "a disk is missing");
            let fs = mount_degraded(&rt, &left).await;
            for (name, survives) in REDUNDANCIES {
                if survives >= lost.len() {
                    let ino = find(&fs, name).await;
                    assert!(read_all(&fs, ino).await == bytes, "{name} without {lost:?}");
                    write(&fs, ino, 10_000, &pattern(20_000, 4)).await;
                }
            }
            fs.sync().await.expect("synced");
            let report = fs.rebuild().await.expect("rebuilt");
            let weak = report.damaged.iter().all(|ino| is_weak(*ino, lost.len()));
            assert!(weak && !report.damaged.is_empty(), "{report:?}");
            let mut wanted = bytes.clone();
            wanted[10_000..30_000].copy_from_slice(&pattern(20_000, 4));
            for (name, survives) in REDUNDANCIES {
                if survives >= lost.len() {
                    let ino = find(&fs, name).await;
                    assert!(read_all(&fs, ino).await == wanted, "{name} rebuilt");
                }
            }
        });
    }
}

/// So all disks share what is read of it, and what its parity costs; and each disk holds its part
/// of the file in one piece.
#[test]
fn the_parity_of_a_long_file_goes_round_all_disks() {
    for (redundancy, units) in [("raid5", [3, 3]), ("raid6", [2, 3])] {
        run(move |rt| async move {
            let disks = ram(&[24, 24, 24, 24]);
            let fs = made(&rt, &disks).await;
            let ino = make_as(&fs, "file", redundancy).await;
            let bytes = pattern(24 << 20, 1);
            for (n, part) in bytes.chunks(1 << 20).enumerate() {
                write(&fs, ino, (n as u64) << 20, part).await;
            }
            fs.sync().await.expect("synced");
            let (mut parity, mut runs) = (BTreeMap::new(), BTreeMap::new());
            for (_, record) in fs.places(ino).await.expect("known") {
                for (unit, column) in record.columns.iter().enumerate() {
                    let column = column.as_ref().expect("whole lines");
                    let of_parity = (units[0]..=units[1]).contains(&unit);
                    *parity.entry(column.disk).or_insert(0) += record.lines * u64::from(of_parity);
                    let run: &mut Vec<_> = runs.entry(column.disk).or_default();
                    run.push(column.start..column.start + record.lines);
                }
            }
            let (least, most) = (parity.values().min(), parity.values().max());
            let (least, most) = (*least.expect("some"), *most.expect("some"));
            assert!(most - least <= 256, "{redundancy}: {parity:?}");
            for (disk, mut runs) in runs {
                runs.sort_by_key(|run| run.start);
                let breaks = runs.windows(2).filter(|pair| pair[0].end != pair[1].start).count();
                assert_eq!(breaks, 0, "{redundancy}: disk {disk}");
            }
            assert!(read_all(&fs, ino).await == bytes);
            assert_sound(&fs).await;
        });
    }
}

/// The files were made in the order of the list, behind the root.
fn is_weak(ino: Ino, lost: usize) -> bool {
    REDUNDANCIES[ino as usize - 2].1 < lost
}

#[test]
fn a_disk_that_missed_writes_is_not_trusted_when_it_comes_back() {
    run(|rt| async move {
        let disks = ram(&[24, 24, 24, 24]);
        let fs = made(&rt, &disks).await;
        let ino = make(&fs, "file").await;
        write(&fs, ino, 0, &pattern(50_000, 1)).await;
        fs.unmount().await.expect("unmounted");
        let fs = mount_degraded(&rt, &disks[..3]).await;
        write(&fs, ino, 0, &pattern(50_000, 2)).await;
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &disks).await;
        assert!(fs.status().await.expect("known").disks[3].lost);
        assert_eq!(read_all(&fs, ino).await, pattern(50_000, 2));
        fs.rebuild().await.expect("rebuilt");
        assert_sound(&fs).await;
        assert_eq!(read_all(&fs, ino).await, pattern(50_000, 2));
    });
}

#[test]
fn a_small_file_is_a_mirror_and_grows_without_moving() {
    run(|rt| async move {
        let disks = ram(&[24, 24, 24, 24]);
        let fs = made(&rt, &disks).await;
        let ino = make(&fs, "small").await;
        write(&fs, ino, 0, b"hello").await;
        fs.fsync(ino).await.expect("synced");
        let places = fs.places(ino).await.expect("known");
        let (_, record) = &places[0];
        let active: Vec<usize> = (0..4).filter(|unit| record.columns[*unit].is_some()).collect();
        assert_eq!((places.len(), record.coded.columns, active), (1, 4, vec![0, 3]));
        let first = |record: &weft_fs::Extent| {
            record.columns[0].as_ref().map(|column| (column.disk, column.start))
        };
        let was = first(record);
        write(&fs, ino, 5, &pattern(11_000, 1)).await;
        fs.fsync(ino).await.expect("synced");
        let (_, record) = &fs.places(ino).await.expect("known")[0];
        assert_eq!(record.columns.iter().flatten().count(), 4);
        assert_eq!(first(record), was);
        assert_sound(&fs).await;
    });
}

#[test]
fn bad_disks_are_refused_clearly() {
    run(|rt| async move {
        let disks = ram(&[24, 24, 24]);
        let none = Fs::mount(&rt, &disks, mounting()).await.map(drop);
        assert!(matches!(none, Err(FsError::Unmountable(_))), "{none:?}");
        let fs = made(&rt, &disks).await;
        fs.unmount().await.expect("unmounted");
        let again = weft_fs::create(&rt, &disks, &options()).await;
        assert!(matches!(again, Err(FsError::Invalid(_))), "{again:?}");
        let degraded = MountOptions { degraded: true, ..mounting() };
        let one = Fs::mount(&rt, &disks[..1], degraded).await.map(drop);
        one.expect("three copies of the metadata");
        let few = weft_fs::create(&rt, &ram(&[24]), &options()).await;
        assert!(matches!(few, Err(FsError::Invalid(_))), "{few:?}");
    });
}

#[test]
fn reserved_space_is_there_when_the_disks_are_full() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[20, 20, 20, 20])).await;
        let ino = make_as(&fs, "kept", "raid1").await;
        write(&fs, ino, 5000, &pattern(10_000, 1)).await;
        fs.allocate(ino, 0, 1 << 20, false).await.expect("reserved");
        let mut bytes = vec![0; 1 << 20];
        bytes[5000..15_000].copy_from_slice(&pattern(10_000, 1));
        assert!(read_all(&fs, ino).await == bytes, "contents stay");
        fs.allocate(ino, 1 << 20, 1 << 20, true).await.expect("reserved");
        assert_eq!(fs.attr(ino).await.expect("there").size, 1 << 20);
        fs.fsync(ino).await.expect("synced");
        // What cannot fit is refused before it takes anything.
        let refused = fs.allocate(ino, 0, 1 << 40, true).await;
        assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
        fs.fsync(ino).await.expect("synced");
        assert_eq!(fs.attr(ino).await.expect("there").blocks, 512);
        let other = make(&fs, "other").await;
        let mut at = 0;
        let part = Frozen::copy_from(&pattern(1 << 18, 2));
        while fs.write(other, at, part.clone()).await.is_ok() {
            at += 1 << 18;
        }
        assert!(at > 8 << 20, "{at} bytes fit");
        let refused = fs.allocate(other, at, 1 << 20, false).await;
        assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
        bytes = pattern(2 << 20, 3);
        for (n, part) in bytes.chunks(1 << 18).enumerate() {
            write(&fs, ino, (n << 18) as u64, part).await;
        }
        fs.fsync(ino).await.expect("synced");
        assert!(read_all(&fs, ino).await == bytes, "there was room");
        assert_sound(&fs).await;
    });
}

#[test]
fn files_are_as_long_as_the_kernel_lets_them_be() {
    run(|rt| async move {
        let disks = ram(&[24, 24, 24]);
        let fs = made(&rt, &disks).await;
        let ino = make(&fs, "long").await;
        let end = i64::MAX as u64;
        write(&fs, ino, end - 5000, &pattern(5000, 1)).await;
        let more = fs.write(ino, end - 1, Frozen::copy_from(&[1; 2])).await;
        assert!(matches!(more, Err(FsError::TooLarge)), "{more:?}");
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &disks).await;
        assert_eq!(*fs.read(ino, end - 5000, 9000).await.expect("read"), pattern(5000, 1)[..]);
        assert_eq!(fs.seek(ino, 0, true).await.expect("found"), Some((end - 5000) / BLOCK * BLOCK));
        let set = SetAttr { size: Some(10), ..SetAttr::default() };
        fs.set_attr(ino, set).await.expect("cut");
        assert_eq!(fs.attr(ino).await.expect("there").blocks, 0);
        assert_sound(&fs).await;
    });
}

#[test]
fn the_time_of_an_access_tells_whether_a_file_was_read_since_it_changed() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[24, 24, 24])).await;
        let ino = make(&fs, "file").await;
        let later = || rt.sleep(SECOND);
        later().await;
        write(&fs, ino, 0, &pattern(10, 1)).await;
        later().await;
        let accessed = async || fs.attr(ino).await.expect("there").accessed;
        fs.read(ino, 0, 1).await.expect("read");
        let first = accessed().await;
        assert!(first > fs.attr(ino).await.expect("there").modified, "it was read");
        later().await;
        fs.read(ino, 0, 1).await.expect("read");
        assert_eq!(accessed().await, first, "again on the same day");
        rt.sleep(25 * 3600 * SECOND).await;
        fs.read(ino, 0, 1).await.expect("read");
        assert!(accessed().await > first, "on the next one");
    });
}

/// Before memory is short, only new lines are written: blocks that have a place wait for more of
/// them.
#[test]
fn new_lines_are_written_before_overwrites() {
    const PART: u64 = 260;
    run(|rt| async move {
        let disks = ram(&[64; 4]);
        weft_fs::create(&rt, &disks, &options()).await.expect("created");
        // Of 8 MiB half may wait: four parts, and some for the index.
        let mounting = MountOptions { cache_bytes: 8 << 20, ..mounting() };
        let fs = Fs::mount(&rt, &disks, mounting).await.expect("mounted");
        let waiting = async || {
            rt.sleep(MILLISECOND).await;
            fs.status().await.expect("known").dirty_bytes / BLOCK
        };
        let (old, new) = (make_as(&fs, "old", "raid5").await, make_as(&fs, "new", "raid5").await);
        write(&fs, old, 0, &pattern((4 * PART * BLOCK) as usize, 1)).await;
        fs.sync().await.expect("written");
        let overwrite = async |blocks: Range<u64>| {
            for block in blocks {
                write(&fs, old, block * BLOCK, &pattern(BLOCK as usize, 2)).await;
            }
        };
        overwrite(0..PART * 3 / 2).await;
        assert_eq!(waiting().await, PART * 3 / 2);
        for at in 0..2 {
            write(&fs, new, at * PART * BLOCK, &pattern((PART * BLOCK) as usize, 3)).await;
            let waiting = waiting().await;
            assert!((PART * 3 / 2..PART * 7 / 4).contains(&waiting), "{waiting} blocks wait");
        }
        // Behind blocks that have a place, a file's new lines wait as well.
        write(&fs, old, 4 * PART * BLOCK, &pattern((PART * BLOCK) as usize, 4)).await;
        assert!(waiting().await >= PART * 5 / 2);
        overwrite(PART * 3 / 2..PART * 5 / 2).await;
        assert!(waiting().await < PART);
        let bytes = pattern(BLOCK as usize, 2).repeat((PART * 5 / 2) as usize);
        let all = read_all(&fs, old).await;
        assert!(all[..bytes.len()] == bytes);
        assert!(all[(4 * PART * BLOCK) as usize..] == pattern((PART * BLOCK) as usize, 4));
        assert_sound(&fs).await;
    });
}

#[test]
fn a_file_that_replaces_another_is_whole_after_a_crash_without_fsync() {
    run(|rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); 3]);
        let fs = made(&rt, &all(&disks)).await;
        let (old, new) = (pattern(10_000, 1), pattern(12_345, 2));
        let ino = make(&fs, "file").await;
        write(&fs, ino, 0, &old).await;
        fs.sync().await.expect("synced");
        let ino = make(&fs, "new").await;
        write(&fs, ino, 0, &new).await;
        let names = ((ROOT, &b"new"[..]), (ROOT, &b"file"[..]));
        fs.rename(names.0, names.1, Rename::Replace).await.expect("renamed");
        // Somebody makes names durable.
        fs.fsync(ROOT).await.expect("synced");
        let left = left_on(&disks, Leave::Nothing);
        drop(fs);
        let disks = holding(&rt, &Power::new(), SIZE, &left);
        let fs = mount(&rt, &all(&disks)).await;
        assert!(read_all(&fs, find(&fs, "file").await).await == new);
        assert_sound(&fs).await;
    });
}

#[test]
fn readers_of_a_folder_do_not_meet_what_replaces_entries_again() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[24; 3])).await;
        for n in 0..10 {
            make(&fs, &n.to_string()).await;
        }
        let positions = async || {
            let entries = fs.read_folder(ROOT, 2, 100).await.expect("read");
            let of = |entry: weft_fs::DirEntry| (entry.name, entry.position);
            entries.into_iter().map(of).collect::<BTreeMap<_, _>>()
        };
        let before = positions().await;
        for n in 0..10 {
            let name = n.to_string();
            make(&fs, "new").await;
            let (from, to) = ((ROOT, &b"new"[..]), (ROOT, name.as_bytes()));
            fs.rename(from, to, Rename::Replace).await.expect("renamed");
        }
        assert_eq!(positions().await, before);
        let (from, to) = ((ROOT, &b"1"[..]), (ROOT, &b"8"[..]));
        fs.rename(from, to, Rename::Exchange).await.expect("exchanged");
        assert_eq!(positions().await, before);
        assert_sound(&fs).await;
    });
}

#[test]
fn a_rename_leaves_a_whiteout_at_the_place_of_the_old_name() {
    run(|rt| async move {
        let disks = ram(&[24; 3]);
        let fs = made(&rt, &disks).await;
        for n in 0..4 {
            make(&fs, &n.to_string()).await;
        }
        let rename = async |from: &str, to: &str, how| {
            let (from, to) = ((ROOT, from.as_bytes()), (ROOT, to.as_bytes()));
            fs.rename_leaving_whiteout(from, to, how, (5, 6)).await
        };
        rename("0", "4", Rename::NoReplace).await.expect("renamed");
        rename("1", "2", Rename::Replace).await.expect("renamed");
        let refused = rename("2", "3", Rename::NoReplace).await;
        assert!(matches!(refused, Err(FsError::Exists)), "{refused:?}");
        rename("2", "3", Rename::Exchange).await.expect_err("no name is free then");
        let names = async |fs: &weft_fs::Fs| {
            let entries = fs.read_folder(ROOT, 2, 100).await.expect("read");
            entries.into_iter().map(|entry| (entry.name, entry.kind)).collect::<Vec<_>>()
        };
        let device = weft_fs::Kind::Special(0o020_000);
        let file = weft_fs::Kind::File;
        let expected = [("0", device), ("1", device), ("2", file), ("3", file), ("4", file)];
        let expected = expected.map(|(name, kind)| (name.as_bytes().to_vec(), kind));
        assert_eq!(names(&fs).await, expected);
        let whiteout = fs.attr(find(&fs, "0").await).await.expect("there");
        assert_eq!((whiteout.mode, whiteout.device, whiteout.links), (0o020_000, 0, 1));
        assert_eq!((whiteout.uid, whiteout.gid), (5, 6));
        assert_sound(&fs).await;
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &disks).await;
        assert_eq!(names(&fs).await, expected);
    });
}

#[test]
fn long_searches_and_reservations_let_others_go_on_and_can_be_ended() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[100; 3])).await;
        let ino = make_as(&fs, "file", "none").await;
        for at in 0..100 {
            fs.write(ino, at << 20, Frozen::copy_from(&[1; 1 << 20])).await.expect("written");
        }
        fs.sync().await.expect("synced");
        let size = 100 << 20;
        assert_eq!(fs.seek(ino, 0, false).await.expect("found"), Some(size));
        let asked = std::rc::Rc::new(std::cell::Cell::new(0));
        let most = |most: u32| {
            let asked = asked.clone();
            asked.set(0);
            move || {
                asked.set(asked.get() + 1);
                asked.get() <= most
            }
        };
        fs.seek_while(ino, 0, false, most(u32::MAX)).await.expect("found");
        assert!(asked.get() >= 2, "{} steps", asked.get());
        let ended = fs.seek_while(ino, 0, false, most(1)).await;
        assert!(matches!(ended, Err(FsError::Cancelled)), "{ended:?}");
        let other = make_as(&fs, "other", "none").await;
        let ended = fs.allocate_while(other, 0, 60 << 30, false, most(1)).await;
        assert!(matches!(ended, Err(FsError::NoSpace)), "{ended:?}");
        let ended = fs.allocate_while(other, 0, 120 << 20, false, most(1)).await;
        assert!(matches!(ended, Err(FsError::Cancelled)), "{ended:?}");
        assert!(fs.attr(other).await.expect("there").size == 0);
        assert_sound(&fs).await;
    });
}

#[test]
fn data_and_holes_are_found_as_they_are_block_by_block() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[64; 4])).await;
        let ino = make_as(&fs, "file", "raid6").await;
        let mut rng = weft_random::Rng::new(1);
        let mut is_data = vec![false; 3000];
        for round in 0..6 {
            for _ in 0..60 {
                let (at, len) = (rng.below(2900), 1 + rng.below(40));
                if rng.chance(70) {
                    write(&fs, ino, at * BLOCK, &pattern((len * BLOCK) as usize, round)).await;
                }
            }
            // Some is written, and some waits.
            if round % 2 == 0 {
                fs.sync().await.expect("synced");
            }
            let size = fs.attr(ino).await.expect("there").size / BLOCK;
            let zeros = [0; BLOCK as usize];
            for (block, is_data) in is_data.iter_mut().enumerate() {
                let found = fs.read(ino, block as u64 * BLOCK, BLOCK as usize).await.expect("read");
                *is_data = !found.is_empty() && found[..] != zeros[..found.len()];
            }
            for _ in 0..300 {
                let at = rng.below(size);
                let data = rng.chance(50);
                let next = (at..size).find(|block| is_data[*block as usize] == data);
                let expected = if data { next } else { Some(next.unwrap_or(size)) };
                let found = fs.seek(ino, at * BLOCK, data).await.expect("found");
                assert_eq!(found, expected.map(|block| block * BLOCK), "{at}, {data}");
            }
        }
        assert_sound(&fs).await;
    });
}

/// It is there as long as it is used, and nothing may come into it that would stay behind.
#[test]
fn a_folder_that_was_removed_takes_no_names() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[24; 3])).await;
        let file = make(&fs, "file").await;
        let folder = new_file(Kind::Folder);
        let (gone, _) = fs.make(ROOT, b"gone", folder).await.expect("made");
        fs.make(ROOT, b"folder", folder).await.expect("made");
        fs.begin_use(gone);
        fs.remove_folder(ROOT, b"gone").await.expect("removed");
        let refused = |result: Result<(), FsError>| {
            assert!(matches!(result, Err(FsError::NotFound)), "{result:?}");
        };
        refused(fs.make(gone, b"new", new_file(Kind::File)).await.map(drop));
        refused(fs.make(gone, b"new", folder).await.map(drop));
        refused(fs.link(file, gone, b"link").await.map(drop));
        for name in [&b"file"[..], b"folder"] {
            refused(fs.rename((ROOT, name), (gone, b"moved"), Rename::Replace).await);
        }
        assert_sound(&fs).await;
        fs.end_uses(gone, 1).await.expect("ended");
        assert!(fs.attr(gone).await.is_err());
        assert_sound(&fs).await;
    });
}
