//! The metadata takes more room from the disks as it fills: with every crash on the way, with disks
//! that fail, are away, come back, join and leave meanwhile, and until the disks are full.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::select;

use crate::common::disk::{Medium, Power, holding};
use crate::common::moments::*;
use crate::common::test_disks::blank;
use crate::common::*;
use weft_disk::{Disk, WriteOpts};
use weft_fs::{CreateOptions, Fs, FsError, Kind, Label, MountOptions, ROOT, create};
use weft_random::Rng;
use weft_rt::{Frozen, MICROSECOND, Rt, SECOND};
use weft_testkit::for_seeds;

/// Slices with the smallest database.
fn small() -> CreateOptions {
    CreateOptions { slice_bytes: Some(4 * MIB), ..options() }
}

async fn made_small(rt: &Rt, disks: &[Rc<dyn Disk>]) -> Fs {
    create(rt, disks, &small()).await.expect("created");
    mount(rt, disks).await
}

/// Bytes of rows that everyone may fill, before the metadata grows.
async fn most(fs: &Fs) -> u64 {
    fs.status().await.expect("known").meta_bytes.1
}

fn name_of(n: u64) -> String {
    format!("{n:05} {:0200}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Makes empty files with these numbers.
async fn make_some(fs: &Fs, numbers: std::ops::Range<u64>) -> Result<(), FsError> {
    for n in numbers {
        fs.make(ROOT, name_of(n).as_bytes(), new_file(Kind::File)).await?;
    }
    Ok(())
}

/// Bytes of the metadata slice of each disk.
async fn slices(disks: &[Rc<dyn Disk>]) -> Vec<u64> {
    let mut bytes = Vec::new();
    for disk in disks {
        let label = Label::read(&**disk).await.expect("readable").expect("a label");
        let pieces: u64 = label.pieces.iter().map(|piece| piece.end - piece.start).sum();
        bytes.push(label.slice_bytes + pieces * BLOCK);
    }
    bytes
}

#[test]
fn empty_files_take_the_disks_and_as_many_as_was_said() {
    run(|rt| async move {
        let disks = ram(&[48; 4]);
        let fs = made_small(&rt, &disks).await;
        let said = fs.status().await.expect("known").free_inodes;
        let free = fs.free_bytes("auto".parse().expect("known"));
        let first = most(&fs).await;
        let mut made = 0;
        let refused = loop {
            let name = format!("{made:08}");
            match fs.make(ROOT, name.as_bytes(), new_file(Kind::File)).await {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, FsError::NoSpace), "{refused}");
        let status = fs.status().await.expect("known");
        assert!(made > said && made < said * 4, "{made} of {said}");
        assert!(status.free_inodes < said / 50, "{} are left of {said}", status.free_inodes);
        assert!(most(&fs).await > 8 * first, "{first} {}", most(&fs).await);
        let now = fs.free_bytes("auto".parse().expect("known"));
        assert!(now < free, "the metadata has taken room: {now} of {free}");
        fs.sync().await.expect("synced");
        assert_sound(&fs).await;
        let all = slices(&disks).await;
        assert!(all.iter().all(|bytes| *bytes == all[0] && *bytes > 16 * MIB), "{all:?}");
        for n in 0..made - 10 {
            fs.unlink(ROOT, format!("{n:08}").as_bytes()).await.expect("deleted");
        }
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &disks).await;
        assert_sound(&fs).await;
        assert_eq!(fs.status().await.expect("known").inodes, 11);
        // Each copy has all of it.
        drop(fs);
        let options = MountOptions { degraded: true, stale: true, ..mounting() };
        let fs = Fs::mount(&rt, &disks[2..3], options).await.expect("mounted alone");
        assert_eq!(fs.read_folder(ROOT, 2, 100).await.expect("read").len(), 10);
    });
}

#[test]
fn files_that_fill_the_disks_leave_the_metadata_no_room_and_df_says_so() {
    run(|rt| async move {
        let disks = ram(&[24; 3]);
        let fs = made_small(&rt, &disks).await;
        let before = fs.status().await.expect("known").free_inodes;
        let ino = make_as(&fs, "large", "none").await;
        let piece = pattern(1 << 18, 7);
        let mut written = 0;
        while fs.write(ino, written * (1 << 18), Frozen::copy_from(&piece)).await.is_ok() {
            written += 1;
        }
        fs.sync().await.expect("synced");
        let after = fs.status().await.expect("known");
        assert!(after.free_inodes < before / 4, "{} of {before}", after.free_inodes);
        assert!(!fs.grow_metadata().await.expect("nothing fails"), "there is no room");
        let mut made = 0;
        while fs.make(ROOT, format!("{made:08}").as_bytes(), new_file(Kind::File)).await.is_ok() {
            made += 1;
        }
        assert!(made >= after.free_inodes, "{made} of {}", after.free_inodes);
        // With room on the disks there is room for names again.
        fs.unlink(ROOT, b"large").await.expect("deleted");
        fs.sync().await.expect("synced");
        fs.make(ROOT, b"one more", new_file(Kind::File)).await.expect("made");
        assert_sound(&fs).await;
    });
}

#[test]
fn a_disk_that_joins_comes_back_or_leaves_has_as_much_as_the_others() {
    run(|rt| async move {
        let disks = ram(&[48; 6]);
        let fs = made_small(&rt, &disks[..4]).await;
        make_some(&fs, 0..100).await.expect("made");
        fs.sync().await.expect("synced");
        fs.fail_disk(3).await.expect("a spare, out of service");
        assert!(fs.grow_metadata().await.expect("grown"), "without the spare");
        make_some(&fs, 100..400).await.expect("made");
        let back = fs.add_disk(disks[3].clone(), false).await.expect("taken back");
        assert_eq!(fs.add_disk(disks[4].clone(), false).await.expect("added"), back + 1);
        rt.sleep(30 * SECOND).await;
        fs.rebuild().await.expect("rebuilt");
        let all = slices(&disks[..5]).await;
        assert!(all.iter().all(|bytes| *bytes >= all[0]), "{all:?}");
        assert_sound(&fs).await;
        // A copy goes to one that came later.
        fs.remove_disk(0).await.expect("removed");
        let copies = fs.status().await.expect("known").meta_copies;
        assert_eq!(copies, (3, 3));
        assert!(fs.grow_metadata().await.expect("grown"), "again");
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &disks[1..5]).await;
        assert_eq!(fs.read_folder(ROOT, 2, 1000).await.expect("read").len(), 400);
        assert_sound(&fs).await;
    });
}

/// What a crash left, with small slices.
fn moments_of_growth() -> Vec<Vec<Medium>> {
    moments(4, |fs, _| async move {
        assert!(fs.grow_metadata().await.expect("grown"), "there is room");
        make_some(&fs, 0..4).await.expect("made");
        fs.sync().await.expect("synced");
        assert!(fs.grow_metadata().await.expect("grown"), "there is room again");
    })
}

#[test]
fn a_crash_while_the_metadata_grows_leaves_what_there_was_and_it_grows_later() {
    let moments = moments_of_growth();
    let every = if moments.len() > 160 { moments.len() / 160 + 1 } else { 1 };
    let seen = Rc::new(RefCell::new(std::collections::BTreeSet::new()));
    for (n, media) in moments.iter().enumerate().filter(|(n, _)| n % every == 0) {
        let media: Vec<Medium> = media.iter().map(|medium| leave(n).of(medium)).collect();
        let seen = seen.clone();
        run(move |rt| async move {
            let what = format!("step {n}, {:?}", leave(n));
            let disks = holding(&rt, &Power::new(), SIZE, &media);
            let lost = n % 3 == 2;
            // One of them may be lost with the crash.
            let given = if lost { &disks[..3] } else { &disks[..] };
            let options = MountOptions { degraded: lost, ..mounting() };
            let given: Vec<Rc<dyn Disk>> = all(given).into_iter().take(4).collect();
            let fs = Fs::mount(&rt, &given, options).await;
            let fs = fs.unwrap_or_else(|error| panic!("{what}: {error}"));
            let reach = most(&fs).await;
            seen.borrow_mut().insert(reach);
            assert_filled(&fs, &what).await;
            fill_again(&fs).await;
            // What was taken and is not used yet is enough, or there is room for more.
            let before = most(&fs).await;
            let grown = fs.grow_metadata().await.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(grown, most(&fs).await > before, "{what}");
            assert_filled(&fs, &what).await;
            fs.unmount().await.expect("unmounted");
            let fs = Fs::mount(&rt, &given, options).await.expect("mounted");
            assert_filled(&fs, &what).await;
            assert_eq!(grown, most(&fs).await > before, "{what}");
        });
    }
    assert_eq!(seen.borrow().len(), 3, "sizes of the metadata: {seen:?}");
}

/// Takes blocks that the crash may have left free, and gives them back.
async fn fill_again(fs: &Fs) {
    let ino = make_as(fs, "again", "none").await;
    write(fs, ino, 0, &pattern(6 << 20, 3)).await;
    fs.sync().await.expect("synced");
    fs.unlink(ROOT, b"again").await.expect("deleted");
    fs.sync().await.expect("synced");
}

#[test]
fn a_label_that_cannot_be_written_leaves_the_file_system_as_it_was() {
    run(|rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); 4]);
        let given = all(&disks);
        let fs = made_small(&rt, &given).await;
        fill(&fs).await;
        let before = most(&fs).await;
        // Both copies, and nothing else.
        *disks[1].faults.unwritable.borrow_mut() = 0..4096;
        disks[1].faults.dead_writes.borrow_mut().extend((SIZE - 4096) / 512..SIZE / 512);
        let failed = fs.grow_metadata().await;
        assert!(failed.is_err(), "{failed:?}");
        assert_eq!(most(&fs).await, before);
        assert_filled(&fs, "not grown").await;
        *disks[1].faults.unwritable.borrow_mut() = 0..0;
        assert!(fs.grow_metadata().await.expect("grown"), "with one copy of the label");
        assert!(most(&fs).await > before);
        disks[1].faults.dead_writes.borrow_mut().clear();
        assert!(fs.grow_metadata().await.expect("grown"), "with both");
        assert_filled(&fs, "grown").await;
        fs.unmount().await.expect("unmounted");
        // The first copy of one is overwritten: the second has all pieces.
        given[0].write(0, Frozen::zeros(4096), WriteOpts::USER).await.expect("written");
        let fs = mount(&rt, &given).await;
        assert_filled(&fs, "with the second copy").await;
        assert_eq!(fs.check(false).await.expect("checked").findings, []);
    });
}

/// Makes files until the next one finds that the metadata should grow. Returns how many.
async fn make_until_scarce(fs: &Fs) -> u64 {
    let mut made = 0;
    loop {
        let (rows, most) = fs.status().await.expect("known").meta_bytes;
        if most - rows < (most / 8).max(128 << 10) {
            return made;
        }
        make_some(fs, made..made + 1).await.expect("made");
        made += 1;
    }
}

#[test]
fn a_growth_goes_on_if_the_operation_that_waits_for_it_is_dropped() {
    for turns in 0..60 {
        run(move |rt| async move {
            let disks = blank(&rt, 4);
            let fs = made_small(&rt, &all(&disks)).await;
            let made = make_until_scarce(&fs).await;
            let before = most(&fs).await;
            let name = name_of(made);
            {
                let waiting = pin!(fs.make(ROOT, name.as_bytes(), new_file(Kind::File)));
                let dropped = pin!(rt.sleep(turns * 40 * MICROSECOND));
                select(waiting, dropped).await;
            }
            let more = before / 300;
            let result = make_some(&fs, made + 1..made + more).await;
            result.unwrap_or_else(|error| panic!("dropped after {turns} turns: {error}"));
            assert!(most(&fs).await > before);
            fs.sync().await.expect("synced");
            assert_sound(&fs).await;
        });
    }
}

/// One copy of a label cannot be written while the metadata grows: it is written later.
#[test]
fn a_copy_of_a_label_that_could_not_be_written_is_written_later() {
    for is_first in [true, false] {
        run(move |rt| async move {
            let disks = blank(&rt, 4);
            let given = all(&disks);
            let fs = made_small(&rt, &given).await;
            fill(&fs).await;
            let (copy, other) = if is_first { (0, SIZE - 4096) } else { (SIZE - 4096, 0) };
            *disks[1].faults.unwritable.borrow_mut() = copy..copy + 4096;
            assert!(fs.grow_metadata().await.expect("grown"), "with one copy of the label");
            rt.sleep(60 * SECOND).await;
            *disks[1].faults.unwritable.borrow_mut() = 0..0;
            rt.sleep(200 * SECOND).await;
            let label = |at: u64| {
                let mut label = vec![0; 4096];
                disks[1].medium.borrow().read(at, &mut label);
                label
            };
            assert!(label(copy) == label(other), "both name the new piece");
            assert_filled(&fs, "grown").await;
        });
    }
}

/// What the lives of a seed have seen.
static GROWN: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Names are made until the metadata has grown, often over a crash; those that were synced are
/// there.
fn lives(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut media = vec![Medium::new(512); 5];
    let (mut synced, mut made) = (0, 0);
    for life in 0..5 {
        let result = Rc::new(RefCell::new(None));
        let given_back = result.clone();
        let (left, seed) = (media.clone(), rng.next_u64());
        run(move |rt| async move {
            *given_back.borrow_mut() = Some(one_life(&rt, seed, life, left, (synced, made)).await);
        });
        let (crashed, counts) = result.take().expect("it ended");
        (synced, made) = counts;
        let how = drawn_leave(&mut rng, 5);
        media = left_of_all(how, &crashed);
    }
}

/// From a mount to a crash at a random step. Returns what is left, and how many names are there at
/// least and at most.
async fn one_life(
    rt: &Rt,
    seed: u64,
    life: usize,
    media: Vec<Medium>,
    (synced, made): (u64, u64),
) -> (Vec<Medium>, (u64, u64)) {
    let mut rng = Rng::new(seed);
    let power = Power::new();
    let disks = holding(rt, &power, 40 << 20, &media);
    let given = all(&disks);
    let meta_cache_bytes = [0, 512 << 10, 64 << 20][rng.index(3)];
    let options = MountOptions { meta_cache_bytes, nonce: seed, ..mounting() };
    if life == 0 {
        create(rt, &given, &small()).await.expect("created");
    }
    let fs = Fs::mount(rt, &given, options).await;
    let fs = fs.unwrap_or_else(|error| panic!("life {life}: {error}"));
    assert_eq!(fs.check(true).await.expect("checked").findings, [], "life {life}");
    let entries = fs.read_folder(ROOT, 2, usize::MAX).await.expect("read");
    let names: std::collections::BTreeSet<Vec<u8>> =
        entries.into_iter().filter(|entry| entry.name[0] != b'f').map(|entry| entry.name).collect();
    let count = names.len() as u64;
    assert!((synced..=made).contains(&count), "life {life}: {count} of {synced} to {made}");
    assert!((0..count).all(|n| names.contains(name_of(n).as_bytes())), "life {life}: in order");
    let (seen, left) = (Rc::new(RefCell::new(None)), Cell::new(1 + rng.below(3000)));
    let (cut, watched) = (seen.clone(), disks.clone());
    power.watch(move || {
        left.set(left.get().wrapping_sub(1));
        if left.get() == 0 {
            let media = watched.iter().map(|disk| disk.medium.borrow().clone());
            *cut.borrow_mut() = Some(media.collect::<Vec<_>>());
        }
    });
    let first = most(&fs).await;
    let (mut synced, mut made) = (count, count);
    for round in 0..40 {
        let some = rng.below(60);
        let before = made;
        made += some;
        if make_some(&fs, before..made).await.is_err() {
            panic!("life {life}: there is room for {made}");
        }
        if seen.borrow().is_some() {
            break;
        }
        if rng.chance(30) {
            let ino = make_as(&fs, &format!("f{life} {round}"), "raid1").await;
            write(&fs, ino, 0, &pattern(rng.index(200_000), round)).await;
        }
        if rng.chance(5) {
            fs.grow_metadata().await.expect("grown");
        }
        if rng.chance(20) {
            rt.sleep(rng.below(8) * SECOND).await;
        }
        if rng.chance(40) {
            let all = made;
            fs.sync().await.expect("synced");
            if seen.borrow().is_none() {
                synced = all;
            }
        }
        if seen.borrow().is_some() {
            break;
        }
    }
    power.watch(|| {});
    let grown = u64::from(most(&fs).await > first);
    GROWN.fetch_add(grown, std::sync::atomic::Ordering::Relaxed);
    let now = || disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
    let media = seen.take().unwrap_or_else(now);
    (media, (synced, made))
}

#[test]
fn names_are_there_in_order_however_often_it_crashes_while_the_metadata_grows() {
    let count = Cell::new(0);
    for_seeds(0..8, |rng| {
        lives(rng.next_u64());
        count.set(count.get() + 1);
    });
    let grown = GROWN.load(std::sync::atomic::Ordering::Relaxed);
    assert!(count.get() < 8 || grown > 8, "it has grown {grown} times");
}

/// Says how many pages of the metadata mounts read. `cargo test --release -- --ignored pages_that`
/// with `WEFT_FILES`.
#[test]
#[ignore = "a measurement"]
fn pages_that_a_mount_reads_after_an_unmount_and_after_a_kill() {
    let files = std::env::var("WEFT_FILES").ok().and_then(|files| files.parse().ok());
    let files: u64 = files.unwrap_or(50_000);
    run(move |rt| async move {
        let disks = ram(&[files / 300 + 100; 2]);
        create(&rt, &disks, &CreateOptions { slice_bytes: Some(8 * MIB), ..options() })
            .await
            .expect("created");
        let fs = mount(&rt, &disks).await;
        let mut rng = Rng::new(1);
        for n in 0..files {
            let ino = make(&fs, &format!("{:016x}", rng.next_u64())).await;
            write(&fs, ino, 0, &n.to_le_bytes()).await;
        }
        fs.sync().await.expect("synced");
        let rows = fs.status().await.expect("known").meta_bytes.0;
        fs.unmount().await.expect("unmounted");
        for (after, mounts) in [("an unmount", 1), ("a kill", 2)] {
            let mut fs = mount(&rt, &disks).await;
            for _ in 1..mounts {
                // What commits of files without a sync before the kill.
                make(&fs, &format!("after {after}")).await;
                fs.sync().await.expect("synced");
                drop(fs);
                let begun = std::time::Instant::now();
                fs = mount(&rt, &disks).await;
                println!("mounted in {:?}", begun.elapsed());
            }
            let counts = fs.status().await.expect("known").meta_cache;
            println!(
                "after {after}: {files} files, {rows} bytes of rows, {} pages of 4 KiB read, {} wanted",
                counts.misses,
                counts.hits + counts.misses
            );
            fs.unmount().await.expect("unmounted");
        }
    });
}
