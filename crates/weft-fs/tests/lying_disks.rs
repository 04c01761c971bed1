//! A disk that says yes to writes that it does not carry out, or carries out elsewhere: checksums
//! find that, and other disks have what it should hold. And thin pools, which are full for a while.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use weft_disk::{Disk, DoneFuture, Layer, WriteOpts};
use weft_fs::{Fs, FsError, Ino};
use weft_random::Rng;
use weft_rt::Frozen;
use weft_testkit::for_seeds;

use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::model::Pair;
use crate::common::test_disks::{blank, left_on};
use crate::common::*;

const MIB: u64 = 1 << 20;
/// Where the data blocks of a disk begin.
const DATA_AT: u64 = (64 << 10) + (8 << 20);
/// Behind them are diagnostic blocks, and the second label.
const BEHIND: u64 = 64 << 10;

/// A disk that loses some writes of data, or puts them elsewhere.
struct LyingDisk {
    below: Rc<dyn Disk>,
    rng: RefCell<Rng>,
    /// Of a hundred writes, so many.
    of_hundred: Cell<u64>,
    lies: Cell<u64>,
}

impl Layer for LyingDisk {
    fn below(&self) -> &dyn Disk {
        &*self.below
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        let end = self.below.info().size_bytes - BEHIND;
        let len = data.len() as u64;
        let is_data = offset >= DATA_AT && offset + len <= end;
        let mut rng = self.rng.borrow_mut();
        if !is_data || !rng.chance(self.of_hundred.get()) {
            return self.below.write(offset, data, opts);
        }
        self.lies.set(self.lies.get() + 1);
        match rng.below(3) {
            // Lost.
            0 => Box::pin(async { Ok(()) }),
            // Only the first block of it is written.
            1 if len > BLOCK => self.below.write(offset, data.slice(0, BLOCK as usize), opts),
            // It goes to another place.
            _ => {
                let blocks = (end - DATA_AT - len) / BLOCK;
                let near = offset.saturating_sub(rng.below(40) * BLOCK).max(DATA_AT);
                let far = DATA_AT + rng.below(blocks) * BLOCK;
                self.below.write(if rng.chance(70) { near } else { far }, data, opts)
            }
        }
    }
}

#[test]
fn writes_that_a_disk_loses_or_misdirects_are_found_and_made_right() {
    let lies = Cell::new(0);
    for_seeds(0..12, |rng| {
        let seed = rng.next_u64();
        let found = Rc::new(Cell::new(0));
        let told = found.clone();
        run(move |rt| async move {
            let mut rng = Rng::new(seed);
            let mut disks = ram(&[32; 5]);
            let at = rng.index(5);
            let lying = Rc::new(LyingDisk {
                below: disks[at].clone(),
                rng: RefCell::new(Rng::new(rng.next_u64())),
                of_hundred: Cell::new(0),
                lies: Cell::new(0),
            });
            disks[at] = lying.clone();
            let fs = made_by(&rt, &disks, seed).await;
            let mut pair = Pair::new(fs, seed, &["auto", "raid1", "raid6", "raid5"]);
            for _ in 0..5 {
                lying.of_hundred.set(1 + rng.below(40));
                for _ in 0..50 {
                    pair.step().await;
                }
                pair.fs.sync().await.expect("synced");
                // Nothing is read from memory.
                pair.fs.unmount().await.expect("unmounted");
                pair.fs = mount_by(&rt, &disks, seed).await;
                pair.compare().await;
                lying.of_hundred.set(0);
                pair.fs.scrub().await.expect("scrubbed");
                pair.compare().await;
                assert_sound(&pair.fs).await;
            }
            assert_eq!(pair.fs.status().await.expect("known").disks.len(), 5);
            told.set(lying.lies.get());
        });
        lies.set(lies.get() + found.get());
    });
    assert!(lies.get() > 100, "{} lies", lies.get());
}

/// Changes blocks of files, until there is no room below a disk. Returns whether anything failed.
async fn use_files(
    fs: &Fs,
    files: &mut [(Ino, Vec<Vec<u8>>)],
    rng: &mut Rng,
    version: u64,
) -> bool {
    let mut failed = false;
    for _ in 0..20 {
        let (ino, versions) = &mut files[rng.index(4)];
        let (at, len) = (rng.index(300_000), 1 + rng.index(40_000));
        let mut bytes = versions.last().expect("some").clone();
        bytes.resize(bytes.len().max(at + len), 0);
        bytes[at..at + len].copy_from_slice(&pattern(len, version));
        // Some of it may be written whatever it returns.
        let data = Frozen::copy_from(&bytes[at..at + len]);
        versions.push(bytes);
        let mut done = fs.write(*ino, at as u64, data).await;
        if rng.chance(30) {
            done = done.and(fs.fsync(*ino).await);
        }
        match done {
            Ok(()) => {}
            Err(FsError::NoSpace | FsError::Stopped(_)) => failed = true,
            Err(error) => panic!("{error}"),
        }
    }
    failed
}

/// Each sector is as in one of these versions.
fn assert_any(found: &[u8], versions: &[Vec<u8>], what: &str) {
    for (n, sector) in found.chunks(512).enumerate() {
        let fits = |bytes: &Vec<u8>| {
            let there = bytes.get(n * 512..).unwrap_or_default();
            let len = there.len().min(sector.len());
            there[..len] == sector[..len] && sector[len..].iter().all(|byte| *byte == 0)
        };
        assert!(versions.iter().any(fits), "{what}: sector {n}");
    }
}

#[test]
fn thin_pools_that_are_full_for_a_while_lose_nothing_that_was_synced() {
    let failures = Cell::new(0);
    for_seeds(0..16, |rng| {
        let seed = rng.next_u64();
        let any = Rc::new(Cell::new(false));
        let told = any.clone();
        run(move |rt| async move {
            let mut rng = Rng::new(seed);
            let media = vec![Medium::new(512); 5];
            let mut disks = holding(&rt, &Power::new(), 32 * MIB, &media);
            let mut fs = made_by(&rt, &all(&disks), seed).await;
            let mut files = Vec::new();
            for name in ["auto", "raid1", "raid6", "none"] {
                files.push((make_as(&fs, name, name).await, vec![Vec::new()]));
            }
            for round in 0..6 {
                use_files(&fs, &mut files, &mut rng, 10 * round).await;
                fs.sync().await.expect("there is room");
                for (_, versions) in &mut files {
                    versions.drain(..versions.len() - 1);
                }
                // The metadata has its room: a slice that lacks it is out of the array.
                let is_full =
                    |offset: u64, _, is_old: bool| (offset >= DATA_AT && !is_old).then_some(0);
                for disk in disks.iter().filter(|_| rng.chance(60)) {
                    *disk.faults.room.borrow_mut() = Some(Box::new(is_full));
                }
                let failed = use_files(&fs, &mut files, &mut rng, 10 * round + 1).await;
                let failed = fs.sync().await.is_err() || failed;
                told.set(told.get() || failed);
                let stopped = fs.status().await.is_ok_and(|status| status.stopped.is_some());
                disks.iter().for_each(|disk| *disk.faults.room.borrow_mut() = None);
                if stopped || rng.chance(30) {
                    drop(fs);
                    let media = left_on(&disks, Leave::Completed);
                    disks = holding(&rt, &Power::new(), 32 * MIB, &media);
                    fs = mount_by(&rt, &all(&disks), seed).await;
                }
                for (ino, versions) in &mut files {
                    let found = read_all(&fs, *ino).await;
                    assert_any(&found, versions, &format!("round {round}, file {ino}"));
                    *versions = vec![found];
                }
                let lost = fs.status().await.expect("known").disks;
                assert!(lost.iter().all(|disk| !disk.lost), "a full disk is not lost: {lost:?}");
                assert_sound(&fs).await;
            }
        });
        failures.set(failures.get() + u64::from(any.get()));
    });
    assert!(failures.get() > 8, "{} lives met a full pool", failures.get());
}

/// A lost parity column whose lines were overwritten since has no checksums. A rebuild computes it
/// from blocks that match theirs, although a disk returns something else.
#[test]
fn lost_parity_is_computed_from_blocks_that_match_their_checksums() {
    run(|rt| async move {
        let disks = blank(&rt, 6);
        let fs = made(&rt, &all(&disks[..5])).await;
        let ino = make_as(&fs, "file", "raid6").await;
        write(&fs, ino, 0, &pattern(12 * BLOCK as usize, 1)).await;
        fs.sync().await.expect("synced");
        let (_, record) = fs.places(ino).await.expect("known").remove(0);
        let k = record.columns.len() - 2;
        let parity = record.columns[k].as_ref().expect("active").disk;
        fs.add_disk(disks[5].clone(), false).await.expect("added");
        fs.fail_disk(parity).await.expect("lost");
        let bytes = pattern(12 * BLOCK as usize, 2);
        write(&fs, ino, 0, &bytes).await;
        fs.sync().await.expect("synced");
        let (_, record) = fs.places(ino).await.expect("known").remove(0);
        let column = record.columns[0].as_ref().expect("active");
        assert_eq!(record.columns[k].as_ref().map(|column| column.sums[0]), Some(0), "unknown");
        let rotten = DATA_AT + column.start * BLOCK;
        disks[usize::from(column.disk)].medium.borrow_mut().poke(rotten, &[0x5a; 512]);
        let report = fs.rebuild().await.expect("rebuilt");
        assert_eq!((report.damaged.len(), report.waiting.len()), (0, 0), "{report:?}");
        assert!(read_all(&fs, ino).await == bytes);
        assert_sound(&fs).await;
        fs.unmount().await.expect("unmounted");
    });
}
