//! Random writes while disks are lost, often more than redundancy survives, and come back in any
//! order. What is read is never wrong; a fsync tells of what could not be written, and so does a
//! sync of everything; and when all disks are back, everything that was acknowledged is there. In
//! half of the stories some copies of the metadata lag.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use crate::common::disk::TestDisk;
use crate::common::test_disks::blank;
use crate::common::*;
use weft_fs::{Fs, FsError, Ino};
use weft_random::Rng;
use weft_rt::{Frozen, MILLISECOND};
use weft_testkit::for_seeds;

const DISKS: usize = 5;
const BLOCKS: usize = 64;
/// Where the metadata is on a disk.
const SLICE: Range<u64> = (64 << 10)..(64 << 10) + (8 << 20);
const REDUNDANCIES: [&str; 5] = ["auto", "raid1", "raid6", "raid5", "none"];

/// A block of a file: versions that may be found, and the one that no fsync has told of yet.
#[derive(Clone)]
struct Block {
    allowed: Vec<u64>,
    pending: Option<u64>,
}

struct File {
    ino: Ino,
    blocks: Vec<Block>,
}

fn contents(version: u64) -> Vec<u8> {
    match version {
        0 => vec![0; BLOCK as usize],
        version => pattern(BLOCK as usize, version),
    }
}

/// Whether an error tells of blocks that could not be written.
fn is_told(error: &FsError) -> bool {
    matches!(error, FsError::Unreadable { .. } | FsError::NoSpace)
}

struct Story {
    fs: Fs,
    rng: Rng,
    files: Vec<File>,
    version: u64,
    working: BTreeMap<u16, Rc<TestDisk>>,
    away: Vec<Rc<TestDisk>>,
}

impl Story {
    async fn write(&mut self) {
        let file = self.rng.index(self.files.len());
        let most = if self.rng.chance(20) { 40 } else { 6 };
        let count = 1 + self.rng.index(most);
        let first = self.rng.index(BLOCKS - count);
        for n in first..first + count {
            self.version += 1;
            let (ino, data) = (self.files[file].ino, contents(self.version));
            // An error here is one of blocks that waited before.
            let written = self.fs.write(ino, n as u64 * BLOCK, Frozen::copy_from(&data)).await;
            let block = &mut self.files[file].blocks[n];
            block.allowed.push(self.version);
            block.pending = written.is_ok().then_some(self.version);
        }
    }

    async fn fsync(&mut self) {
        let file = self.rng.index(self.files.len());
        let synced = self.fs.fsync(self.files[file].ino).await;
        assert!(synced.as_ref().map_or_else(is_told, |()| true), "{synced:?}");
        for block in &mut self.files[file].blocks {
            if let Some(version) = block.pending.take().filter(|_| synced.is_ok()) {
                block.allowed = vec![version];
            }
        }
    }

    /// Once it has told, it says nothing of what was written before.
    async fn sync(&mut self) {
        let synced = self.fs.sync().await;
        assert!(synced.as_ref().map_or_else(is_told, |()| true), "{synced:?}");
        for block in self.files.iter_mut().flat_map(|file| &mut file.blocks) {
            if let Some(version) = block.pending.take().filter(|_| synced.is_ok()) {
                block.allowed = vec![version];
            }
        }
    }

    async fn lose(&mut self) {
        let numbers: Vec<u16> = self.working.keys().copied().collect();
        let number = *self.rng.pick(&numbers);
        if numbers.len() > 2 && self.fs.fail_disk(number).await.is_ok() {
            self.away.extend(self.working.remove(&number));
        }
    }

    async fn come_back(&mut self) {
        if self.away.is_empty() {
            return;
        }
        let disk = self.away.remove(self.rng.index(self.away.len()));
        let number = self.fs.add_disk(disk.clone(), false).await.expect("it was a disk of it");
        self.working.insert(number, disk);
    }

    /// Reads some blocks, or all; with `all_are_back` what was acknowledged must be there.
    async fn judge(&self, chance: u64, all_are_back: bool) {
        let mut rng = self.rng.clone();
        for (file, redundancy) in self.files.iter().zip(REDUNDANCIES) {
            for (n, block) in file.blocks.iter().enumerate() {
                if !rng.chance(chance) {
                    continue;
                }
                match self.fs.read(file.ino, n as u64 * BLOCK, BLOCK as usize).await {
                    Ok(found) => {
                        let is_it = |version: &u64| contents(*version)[..found.len()] == *found;
                        assert!(
                            block.allowed.iter().any(is_it),
                            "{redundancy}: block {n} is wrong"
                        );
                    }
                    Err(FsError::Unreadable { .. }) => {
                        let acknowledged = block.allowed.len() == 1;
                        assert!(
                            !(all_are_back && acknowledged),
                            "{redundancy}: block {n} was acknowledged, and nothing gives it"
                        );
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

#[test]
fn what_was_acknowledged_is_there_when_all_disks_are_back() {
    for_seeds(0..24, |rng| {
        let seed = rng.next_u64();
        run(move |rt| async move {
            let disks = blank(&rt, DISKS);
            let fs = made_by(&rt, &all(&disks), seed).await;
            let mut files = Vec::new();
            for name in REDUNDANCIES {
                let ino = make_as(&fs, name, name).await;
                fs.begin_use(ino);
                write(&fs, ino, 0, &contents(1).repeat(BLOCKS)).await;
                files.push(File {
                    ino,
                    blocks: vec![Block { allowed: vec![1], pending: None }; BLOCKS],
                });
            }
            fs.sync().await.expect("synced");
            let working = (0..).zip(disks.iter().cloned()).collect();
            let mut rng = Rng::new(seed);
            for disk in disks.iter().filter(|_| seed.is_multiple_of(2)) {
                if rng.chance(40) {
                    *disk.faults.slow.borrow_mut() = SLICE;
                    disk.faults.slow_ns.set((1 + rng.below(300)) * MILLISECOND);
                }
            }
            let mut story = Story { fs, rng, files, version: 1, working, away: Vec::new() };
            for _ in 0..80 {
                match story.rng.below(12) {
                    0 if story.away.len() < 3 => story.lose().await,
                    1 | 2 if story.rng.chance(60) => story.come_back().await,
                    3 => drop(story.fs.rebuild().await.expect("it runs")),
                    4 | 5 if story.rng.chance(25) => story.sync().await,
                    4 | 5 => story.fsync().await,
                    6 => story.judge(10, false).await,
                    7 if story.rng.chance(10) => {
                        // It writes first what waits, and tells of it as a fsync does.
                        let scrubbed = story.fs.scrub().await;
                        assert!(scrubbed.as_ref().map_or_else(is_told, |_| true), "{scrubbed:?}");
                    }
                    // A copy of it may be missing.
                    8 if story.rng.chance(30) => drop(story.fs.grow_metadata().await),
                    _ => story.write().await,
                }
            }
            while !story.away.is_empty() {
                story.come_back().await;
            }
            for _ in 0..3 {
                story.fs.rebuild().await.expect("it runs");
            }
            story.judge(100, true).await;
            drop(story.fs.scrub().await);
            story.judge(100, true).await;
            // Lines of blocks that a fsync has told of wait for them.
            let mut blocks = story.files.iter().flat_map(|file| &file.blocks);
            if blocks.all(|block| block.allowed.len() == 1) {
                let disks = story.fs.status().await.expect("known").disks;
                assert!(disks.iter().all(|disk| !disk.lost), "all of them are back: {disks:?}");
            }
        });
    });
}
