//! Other nodes want what this one uses: each waits for the other, and finds what it wrote.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::contender::Contender;
use crate::common::model::{Named, Pair};
use crate::common::test_disks::{SIZE, on_test_disks, seen};
use crate::common::waits::{a_while, begin};
use crate::common::*;
use weft_fs::{Fs, FsError, Ino, Kind as FileKind, ROOT, SetAttr};
use weft_rt::{Frozen, Rt, SECOND};
use weft_token::{Kind, Mode};

fn begin_write(rt: &Rt, fs: &Fs, ino: Ino, block: u64, version: u64) -> Rc<Cell<bool>> {
    let fs = fs.clone();
    begin(rt, async move {
        let data = Frozen::copy_from(&pattern(BLOCK as usize, version));
        fs.write(ino, block * BLOCK, data).await.expect("written");
    })
}

#[test]
fn another_node_reads_what_was_written_and_holds_writers_up() {
    run(|rt| async move {
        let (disks, fs) = on_test_disks(&rt, 4).await;
        let ino = make_as(&fs, "file", "raid5").await;
        let mut bytes = pattern(100_000, 1);
        write(&fs, ino, 0, &bytes).await;
        let other = Contender::new(&rt, &fs, 1);
        for mode in [Mode::Shared, Mode::Exclusive] {
            assert_ne!(fs.status().await.expect("known").dirty_bytes, 0);
            let data = other.acquire_all(Kind::Data, ino, mode).await;
            assert!(read_all(&seen(&rt, &disks).await, ino).await == bytes, "{mode:?}");
            if mode == Mode::Shared {
                assert!(read_all(&fs, ino).await == bytes, "readers do not wait");
            }
            let (near, far) = (begin_write(&rt, &fs, ino, 3, 2), begin_write(&rt, &fs, ino, 20, 2));
            for block in [3, 20] {
                let at = block * BLOCK as usize;
                bytes[at..at + BLOCK as usize].copy_from_slice(&pattern(BLOCK as usize, 2));
            }
            a_while(&rt).await;
            assert!(!near.get() && !far.get(), "{mode:?}");
            other.done(data);
            a_while(&rt).await;
            assert!(near.get() && far.get(), "{mode:?}");
        }
        assert!(read_all(&fs, ino).await == bytes);
        assert_sound(&fs).await;
    });
}

#[test]
fn ranges_are_widened_to_lines_and_no_further() {
    run(|rt| async move {
        let (disks, fs) = on_test_disks(&rt, 4).await;
        let ino = make_as(&fs, "file", "raid5").await;
        write(&fs, ino, 0, &pattern(200 * BLOCK as usize, 1)).await;
        let other = Contender::new(&rt, &fs, 1);
        let data = other.acquire(Kind::Data, ino, 100..101, Mode::Exclusive).await;
        let far = begin_write(&rt, &fs, ino, 5, 2);
        let same_line = begin_write(&rt, &fs, ino, 101, 2);
        a_while(&rt).await;
        assert!(far.get() && !same_line.get());
        other.done(data);
        a_while(&rt).await;
        assert!(same_line.get());
        // Both at their ends: no message once each has used its blocks.
        let mut counts = Vec::new();
        for round in 0..20 {
            let at = 180 + round % 10;
            let data = other.acquire(Kind::Data, ino, at..at + 1, Mode::Exclusive).await;
            other.done(data);
            let wrote = begin_write(&rt, &fs, ino, round % 10, round);
            a_while(&rt).await;
            assert!(wrote.get());
            counts.push(other.messages.get());
        }
        assert_eq!(counts[10], counts[19], "{counts:?}");
        fs.sync().await.expect("synced");
        assert!(read_all(&seen(&rt, &disks).await, ino).await == read_all(&fs, ino).await);
    });
}

#[test]
fn attributes_and_names_are_durable_when_another_node_has_their_tokens() {
    run(|rt| async move {
        let (disks, fs) = on_test_disks(&rt, 4).await;
        let ino = make(&fs, "file").await;
        fs.sync().await.expect("synced");
        let other = Contender::new(&rt, &fs, 1);
        let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
        fs.set_attr(ino, mode(0o600)).await.expect("set");
        write(&fs, ino, 0, &pattern(10_000, 1)).await;
        let attributes = other.acquire_all(Kind::Attributes, ino, Mode::Exclusive).await;
        let there = seen(&rt, &disks).await.attr(ino).await.expect("there");
        assert_eq!((there.mode & 0o777, there.size), (0o600, 10_000));
        let (ours, theirs) = (fs.clone(), fs.clone());
        let looked = begin(&rt, async move { assert!(ours.attr(ino).await.is_ok()) });
        let found = begin(&rt, async move { drop(theirs.lookup(ROOT, b"file").await) });
        a_while(&rt).await;
        assert!(!looked.get() && !found.get());
        other.done(attributes);
        a_while(&rt).await;
        assert!(looked.get() && found.get());

        let new = make(&fs, "new").await;
        let names = other.acquire_all(Kind::Names, ROOT, Mode::Shared).await;
        assert_eq!(find(&seen(&rt, &disks).await, "new").await, new);
        assert_eq!(find(&fs, "new").await, new, "looking up does not wait");
        let ours = fs.clone();
        let gone = begin(&rt, async move { ours.unlink(ROOT, b"new").await.expect("removed") });
        a_while(&rt).await;
        assert!(!gone.get());
        other.done(names);
        a_while(&rt).await;
        assert!(gone.get());
        let _names = other.acquire_all(Kind::Names, ROOT, Mode::Shared).await;
        seen(&rt, &disks).await.lookup(ROOT, b"new").await.expect_err("it is gone");
    });
}

#[test]
fn who_has_everything_stops_all_others() {
    run(|rt| async move {
        let (disks, fs) = on_test_disks(&rt, 4).await;
        let ino = make_as(&fs, "file", "raid1").await;
        write(&fs, ino, 0, &pattern(5000, 1)).await;
        let other = Contender::new(&rt, &fs, 1);
        let everything = other.acquire_all(Kind::Everything, 0, Mode::Exclusive).await;
        let there = seen(&rt, &disks).await;
        assert_eq!(read_all(&there, ino).await, pattern(5000, 1));
        let (ours, theirs) = (fs.clone(), fs.clone());
        let looked = begin(&rt, async move { assert!(ours.attr(ino).await.is_ok()) });
        let checked = begin(&rt, async move { assert!(theirs.check(false).await.is_ok()) });
        a_while(&rt).await;
        assert!(!looked.get() && !checked.get());
        other.done(everything);
        a_while(&rt).await;
        assert!(looked.get() && checked.get());
        // The other way round: a look at all metadata waits for the other node's operations.
        let shared = other.acquire_all(Kind::Everything, 0, Mode::Shared).await;
        fs.attr(ino).await.expect("does not wait");
        let ours = fs.clone();
        let checked = begin(&rt, async move { drop(ours.check(false).await.expect("checked")) });
        a_while(&rt).await;
        assert!(!checked.get());
        other.done(shared);
        a_while(&rt).await;
        assert!(checked.get());
    });
}

#[test]
fn what_a_dead_node_held_is_free_when_it_is_recovered() {
    run(|rt| async move {
        let (_, fs) = on_test_disks(&rt, 4).await;
        let ino = make(&fs, "file").await;
        write(&fs, ino, 0, &pattern(5000, 1)).await;
        let other = Contender::new(&rt, &fs, 1);
        let _data = other.acquire_all(Kind::Data, ino, Mode::Exclusive).await;
        let wrote = begin_write(&rt, &fs, ino, 0, 2);
        a_while(&rt).await;
        other.die();
        rt.sleep(10 * SECOND).await;
        assert!(!wrote.get(), "its log may have lines that are being written");
        other.recovered();
        a_while(&rt).await;
        assert!(wrote.get());
        // One that dies while it waits does not hold others up.
        let other = Contender::new(&rt, &fs, 2);
        let third = Contender::new(&rt, &fs, 3);
        let data = third.acquire_all(Kind::Data, ino, Mode::Shared).await;
        let waits = other.clone();
        let got = begin(&rt, async move {
            waits.acquire_all(Kind::Data, ino, Mode::Exclusive).await;
        });
        a_while(&rt).await;
        assert!(!got.get());
        other.die();
        other.recovered();
        fs.read(ino, 0, 10).await.expect("read");
        third.done(data);
    });
}

#[test]
fn old_contents_are_not_at_hand_when_another_node_may_write() {
    run(|rt| async move {
        let (_, fs) = on_test_disks(&rt, 4).await;
        let ino = make_as(&fs, "file", "raid5").await;
        let other_file = make_as(&fs, "other", "raid5").await;
        for ino in [ino, other_file] {
            write(&fs, ino, 0, &pattern(30 * BLOCK as usize, 1)).await;
        }
        fs.sync().await.expect("synced");
        let at_hand = async || fs.status().await.expect("known").at_hand_bytes;
        let before = at_hand().await;
        let other = Contender::new(&rt, &fs, 1);
        let data = other.acquire_all(Kind::Data, ino, Mode::Shared).await;
        assert_eq!(at_hand().await, before);
        other.done(data);
        let data = other.acquire_all(Kind::Data, ino, Mode::Exclusive).await;
        assert_eq!(at_hand().await, before / 2);
        other.done(data);
    });
}

/// After each random operation, what another node finds with its tokens is what the reference has.
#[test]
fn another_node_always_finds_what_was_done() {
    for seed in 0..6 {
        run(move |rt| async move {
            let (disks, fs) = on_test_disks(&rt, 4).await;
            let mut pair = Pair::new(fs, seed, &["auto", "raid1", "raid5"]);
            let others = [Contender::new(&rt, &pair.fs, 1), Contender::new(&rt, &pair.fs, 2)];
            for step in 0..120 {
                pair.step().await;
                let files: Vec<u64> = pair.model.files.keys().copied().collect();
                if files.is_empty() || pair.rng.below(4) > 0 {
                    continue;
                }
                let id = *pair.rng.pick(&files);
                let ino = pair.inos[&id];
                let other = &others[pair.rng.below(2) as usize];
                let mode = if pair.rng.chance(50) { Mode::Shared } else { Mode::Exclusive };
                // It finds the file by its name.
                let named = |(_, named): &(_, &Named)| **named == Named::File(id);
                let name = pair.model.names.iter().find(named).expect("it has a name").0;
                let folder = pair.inos[&name.0];
                let names = other.acquire_all(Kind::Names, folder, Mode::Shared).await;
                let attributes = other.acquire_all(Kind::Attributes, ino, mode).await;
                let data = other.acquire_all(Kind::Data, ino, mode).await;
                let there = seen(&rt, &disks).await;
                let found = read_all(&there, ino).await;
                assert!(found == pair.model.files[&id].bytes, "seed {seed}, step {step}");
                other.done(data);
                other.done(attributes);
                other.done(names);
            }
            pair.compare().await;
            assert_sound(&pair.fs).await;
        });
    }
}

/// Operations and other nodes that want their tokens at any time, for random times, and die.
#[test]
fn operations_agree_with_the_reference_while_others_contend() {
    for seed in 0..6 {
        run(move |rt| async move {
            let (_, fs) = on_test_disks(&rt, 4).await;
            let mut pair = Pair::new(fs, seed, &["auto", "raid1", "raid5"]);
            for n in 0..2 {
                let contend =
                    Contender::contend(rt.clone(), pair.fs.clone(), 1 + 1000 * n, seed + 100);
                drop(rt.spawn(contend));
            }
            for _ in 0..200 {
                pair.step().await;
            }
            pair.compare().await;
            assert_sound(&pair.fs).await;
        });
    }
}

#[test]
fn a_file_without_a_name_goes_when_no_node_has_it_open() {
    run(|rt| async move {
        let (_, fs) = on_test_disks(&rt, 4).await;
        fs.share();
        let free = async || fs.status().await.expect("known").disks[0].free_bytes;
        let other = Contender::new(&rt, &fs, 1);
        let unlinked = async |name: &str| {
            let ino = make_as(&fs, name, "raid1").await;
            write(&fs, ino, 0, &pattern(50_000, 1)).await;
            fs.sync().await.expect("synced");
            ino
        };
        // Another node has it open, and this one removes its name.
        let ino = unlinked("one").await;
        let open = other.acquire_all(Kind::Open, ino, Mode::Shared).await;
        fs.unlink(ROOT, b"one").await.expect("removed");
        a_while(&rt).await;
        assert_eq!(fs.attr(ino).await.expect("it is open").links, 0);
        assert_eq!(read_all(&fs, ino).await, pattern(50_000, 1));
        other.done(open);
        a_while(&rt).await;
        fs.attr(ino).await.expect_err("it is closed");

        // This node has it open, and another one waits to free it.
        let ino = unlinked("two").await;
        fs.begin_use(ino);
        fs.begin_open(ino).await.expect("opened");
        fs.begin_open(ino).await.expect("opened again");
        let waits = other.clone();
        let freed = begin(&rt, async move {
            let open = waits.acquire_all(Kind::Open, ino, Mode::Exclusive).await;
            waits.done(open);
        });
        fs.end_open(ino);
        a_while(&rt).await;
        assert!(!freed.get());
        fs.end_open(ino);
        a_while(&rt).await;
        assert!(freed.get());

        // The node that has it open dies, and so had the one that removed the name.
        let ino = unlinked("three").await;
        let _open = other.acquire_all(Kind::Open, ino, Mode::Shared).await;
        let before = free().await;
        fs.unlink(ROOT, b"three").await.expect("removed");
        other.die();
        a_while(&rt).await;
        fs.attr(ino).await.expect("its node is not recovered");
        other.recovered();
        a_while(&rt).await;
        fs.attr(ino).await.expect_err("no node has it open");
        fs.sync().await.expect("synced");
        assert!(free().await > before);

        // One that is gone cannot be opened, and one that is made open stays.
        assert!(matches!(fs.begin_open(ino).await, Err(FsError::NotFound)));
        let new = new_file(FileKind::File);
        let (ino, _) = fs.make_opened(ROOT, None, new).await.expect("made");
        let other = Contender::new(&rt, &fs, 2);
        other.die();
        other.recovered();
        a_while(&rt).await;
        fs.attr(ino).await.expect("it is open");
        fs.end_open(ino);
        fs.end_uses(ino, 0).await.expect("ended");
        a_while(&rt).await;
        fs.attr(ino).await.expect_err("it is closed");
        assert_sound(&fs).await;
    });
}

/// Operations on contents of a file, by number; the last one is none.
async fn operate(fs: &Fs, ino: Ino, number: u32) -> Option<Result<(), FsError>> {
    let piece = || Frozen::copy_from(&pattern(100, 5));
    let size = SetAttr { size: Some(50_000), ..SetAttr::default() };
    Some(match number {
        0 => fs.read(ino, 0, 200_000).await.map(drop),
        1 => fs.write(ino, 1000, piece()).await,
        2 => fs.punch_hole(ino, 1000, 100).await,
        3 => fs.set_attr(ino, size).await.map(drop),
        4 => fs.seek(ino, 0, true).await.map(drop),
        5 => fs.allocate(ino, 0, 300_000, false).await,
        _ => return None,
    })
}

/// The file is neither in memory nor locked, and another node gets all of it.
async fn assert_released(rt: &Rt, fs: &Fs, ino: Ino, what: &str) {
    // Blocks that failed are moved, if that is possible, and their disks are diagnosed.
    rt.sleep(10 * SECOND).await;
    assert_eq!(fs.status().await.expect("known").files_in_memory, 0, "{what}");
    let (other, ended) = (Contender::new(rt, fs, 1), Rc::new(Cell::new(false)));
    let (using, done) = (other.clone(), ended.clone());
    drop(rt.spawn(async move {
        for kind in [Kind::Data, Kind::Attributes] {
            let held = using.acquire_all(kind, ino, Mode::Exclusive).await;
            using.done(held);
        }
        done.set(true);
    }));
    a_while(rt).await;
    assert!(ended.get(), "{what}: another node gets its tokens");
    other.die();
    other.recovered();
}

#[test]
fn an_operation_that_fails_releases_its_file() {
    let (mut failed, missing) = (0, 999_999);
    for number in 0..6 {
        let result = Rc::new(Cell::new(0));
        let count = result.clone();
        run(move |rt| async move {
            let (disks, fs) = on_test_disks(&rt, 4).await;
            let ino = make_as(&fs, "file", "raid1").await;
            write(&fs, ino, 0, &pattern(200_000, 1)).await;
            fs.unmount().await.expect("unmounted");
            // Nothing is cached.
            let fs = mount(&rt, &all(&disks)).await;
            let all_data = (64 << 10) + (8 << 20)..SIZE - 12_288;
            for disk in &disks {
                let sectors = all_data.start / 512..all_data.end / 512;
                disk.faults.dead_reads.borrow_mut().extend(sectors);
            }
            for of in [missing, ino] {
                let what = format!("operation {number} of file {of}");
                let done = operate(&fs, of, number).await.expect("there is one");
                assert!(done.is_err() || of == ino, "{what}");
                count.set(count.get() + u32::from(done.is_err()));
                if done.is_err() {
                    assert_released(&rt, &fs, of, &what).await;
                }
            }
            disks.iter().for_each(|disk| disk.faults.dead_reads.borrow_mut().clear());
            let again = operate(&fs, ino, number).await.expect("there is one");
            again.unwrap_or_else(|error| panic!("operation {number}: {error}"));
            fs.sync().await.expect("synced");
        });
        failed += result.get();
    }
    // Those on a file that is not there, and those that read blocks.
    assert!(failed >= 9, "{failed}");
}
