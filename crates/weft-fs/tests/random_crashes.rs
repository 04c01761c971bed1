//! Random operations, and a crash at a random step of a disk, again and again on the same disks;
//! often a disk is lost with the crash, or some time before it. Meanwhile blocks of the disks fail,
//! for good: some cannot be written any more, one at a time cannot be read. Disks join where others
//! were lost, those that were lost come back as they were, the metadata takes more room from the disks,
//! balances and scrubs begin, and are cancelled. In half of the lives another node contends for tokens, and dies now and then. One
//! slice of the metadata at a time refuses writes for a while, or has a sector that cannot be read
//! or has rotted. Then the file system has as many copies as before within a minute, and each of
//! them can be mounted alone.
//!
//! What may be found is a matter of history. Names, links and attributes are as they were after
//! some operation, and after it also as far as they were synced. Each file has a size that it had,
//! or ends with a block of a write that made it longer, and each of its sectors is as it was at
//! some time since the file was synced. Then the reference goes on from what was found.
//!
//! `WEFT_SEEDS=5000` and the like let it run for long; the clock of the disks is virtual.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::contender::Contender;
use crate::common::disk::{Leave, Medium, Power, TestDisk};
use crate::common::model::{Durable, Model, Named, Pair};
use crate::common::*;
use weft_disk::Disk;
use weft_fs::{Fs, FsError, Ino, Job, JobReport, Label, MetaCopy, MountOptions, ROOT};
use weft_random::Rng;
use weft_rt::{Rt, SECOND};
use weft_testkit::for_seeds;

const SIZE: u64 = 24 << 20;
/// Bytes of a disk that joins: it has much more room than the others, so a balance has much to
/// move.
const LARGE: u64 = 48 << 20;
const DISKS: usize = 6;
const DISKS_MIN: usize = 4;
const DISKS_MAX: usize = 8;
const LIVES: usize = 4;
const SECTOR: usize = 512;
/// Where the data blocks of a disk begin.
const DATA_AT: u64 = (64 << 10) + (8 << 20);
const REDUNDANCIES: [&str; 4] = ["auto", "raid1", "raid6", "raid5"];

/// Batches of new lines that were computed while others were written, in all lives.
static OVERLAPPED: AtomicU64 = AtomicU64::new(0);

/// Blocks that balances moved, in all lives.
static BALANCED: AtomicU64 = AtomicU64::new(0);

/// The reference after an operation, with the inodes of its files.
#[derive(Clone)]
struct Snapshot {
    model: Model,
    inos: BTreeMap<u64, Ino>,
}

/// The reference after each operation of a life, and since when what is durable.
#[derive(Clone)]
struct History {
    snapshots: Vec<Snapshot>,
    names_from: usize,
    contents_from: BTreeMap<u64, usize>,
    /// When names, links or attributes of a file changed last.
    touched: BTreeMap<u64, usize>,
}

impl History {
    fn new(pair: &Pair) -> Self {
        let snapshot = Snapshot { model: pair.model.clone(), inos: pair.inos.clone() };
        Self {
            snapshots: vec![snapshot],
            names_from: 0,
            contents_from: BTreeMap::new(),
            touched: BTreeMap::new(),
        }
    }

    fn note(&mut self, pair: &Pair) {
        let now = self.snapshots.len();
        let before = &self.snapshots[now - 1].model;
        for (id, file) in &pair.model.files {
            let names = |model: &Model| -> Vec<(u64, String)> {
                let of_file = model.names.iter().filter(|(_, named)| **named == Named::File(*id));
                of_file.map(|(name, _)| name.clone()).collect()
            };
            let same = before.files.get(id).is_some_and(|old| {
                (old.links, &old.attributes) == (file.links, &file.attributes)
                    && before.rights[id] == pair.model.rights[id]
                    && names(before) == names(&pair.model)
            });
            if !same {
                self.touched.insert(*id, now);
            }
        }
        self.snapshots.push(Snapshot { model: pair.model.clone(), inos: pair.inos.clone() });
    }

    fn durable(&mut self, what: Durable) {
        let now = self.snapshots.len() - 1;
        match what {
            Durable::All => {
                self.names_from = now;
                let files = self.snapshots[now].model.files.keys();
                self.contents_from.extend(files.map(|id| (*id, now)));
            }
            Durable::File(id) => self.durable_file(id, now),
            Durable::Before(id) => self.durable_file(id, now - 1),
        }
    }

    fn durable_file(&mut self, id: u64, at: usize) {
        // A commit takes everything before it along.
        self.names_from = self.names_from.max(self.touched.get(&id).copied().unwrap_or(0));
        self.contents_from.insert(id, at);
    }

    /// The snapshot whose names are found. Their files get the contents that are found.
    async fn found(&self, fs: &Fs, what: &str) -> Snapshot {
        let mut names = BTreeMap::new();
        let mut folders = vec![ROOT];
        while let Some(folder) = folders.pop() {
            for entry in fs.read_folder(folder, 2, 100).await.expect("listed") {
                let name = String::from_utf8(entry.name).expect("a name");
                if entry.kind == weft_fs::Kind::Folder {
                    folders.push(entry.ino);
                }
                names.insert((folder, name), entry.ino);
            }
        }
        let mut fits = Vec::new();
        for (n, snapshot) in self.snapshots.iter().enumerate().skip(self.names_from) {
            let number = |named: &Named| match named {
                Named::File(id) | Named::Folder(id) => snapshot.inos[id],
            };
            let of_snapshot = snapshot.model.names.iter();
            let of_snapshot = of_snapshot
                .map(|((folder, name), named)| {
                    ((snapshot.inos[folder], name.clone()), number(named))
                })
                .collect::<BTreeMap<_, _>>();
            if of_snapshot == names && self.has_attributes(fs, snapshot).await {
                fits.push(n);
            }
        }
        let last = fits.last().unwrap_or_else(|| {
            panic!("{what}: names of no time since {}: {names:?}", self.names_from)
        });
        let mut snapshot = self.snapshots[*last].clone();
        for (id, file) in &mut snapshot.model.files {
            let ino = snapshot.inos[id];
            file.bytes = read_all(fs, ino).await;
            let last = (file.bytes.len() as u64).saturating_sub(BLOCK);
            let ends_with_block = fs.seek(ino, last, true).await.expect("a file") == Some(last);
            self.check_contents(*id, &file.bytes, ends_with_block, what);
        }
        snapshot
    }

    async fn has_attributes(&self, fs: &Fs, snapshot: &Snapshot) -> bool {
        for (id, file) in &snapshot.model.files {
            let ino = snapshot.inos[id];
            let rights = &snapshot.model.rights[id];
            if !rights.are_of(fs, ino, &file.attributes).await
                || fs.attr(ino).await.expect("there").links != file.links
            {
                return false;
            }
        }
        for named in snapshot.model.names.values() {
            if let Named::Folder(id) = named
                && let rights = &snapshot.model.rights[id]
                && !rights.are_of(fs, snapshot.inos[id], &BTreeMap::new()).await
            {
                return false;
            }
        }
        let root = &snapshot.model.rights[&0];
        if !root.are_of(fs, ROOT, &BTreeMap::new()).await {
            return false;
        }
        true
    }

    fn check_contents(&self, id: u64, found: &[u8], ends_with_block: bool, what: &str) {
        let from = self.contents_from.get(&id).copied().unwrap_or(0);
        let versions = self.snapshots[from..].iter().filter_map(|at| at.model.files.get(&id));
        let mut versions: Vec<&Vec<u8>> = versions.map(|file| &file.bytes).collect();
        let nothing = Vec::new();
        if !self.contents_from.contains_key(&id) && !self.snapshots[0].model.files.contains_key(&id)
        {
            // It was made since.
            versions.push(&nothing);
        }
        let sizes: Vec<usize> = versions.iter().map(|bytes| bytes.len()).collect();
        // Writes behind the end may take several flushes, in order, with a commit between them.
        // Then the file ends with a block that has been written, or in a hole that was punched
        // there.
        let end = found.len();
        let may_be_hole = |bytes: &&Vec<u8>| {
            let last = bytes.get(end.saturating_sub(BLOCK as usize)..end);
            last.is_some_and(|last| last.iter().all(|byte| *byte == 0))
        };
        let is_part = sizes.windows(2).any(|pair| pair[0] < end && end < pair[1])
            && end.is_multiple_of(BLOCK as usize)
            && (ends_with_block || versions.iter().any(may_be_hole));
        let fits = sizes.contains(&end) || is_part;
        assert!(fits, "{what}: file {id}: {end} of {sizes:?}");
        for (n, sector) in found.chunks(SECTOR).enumerate() {
            let fits = |bytes: &&Vec<u8>| {
                let there = bytes.get(n * SECTOR..).unwrap_or_default();
                let len = there.len().min(sector.len());
                there[..len] == sector[..len] && sector[len..].iter().all(|byte| *byte == 0)
            };
            assert!(versions.iter().any(fits), "{what}: sector {n} of file {id}");
        }
    }
}

/// Disks that came back, in all lives.
static RETURNED: AtomicU64 = AtomicU64::new(0);

/// A disk as it is after a crash: its contents, sectors that cannot be read until they are written,
/// and some that cannot be read or written any more.
#[derive(Clone)]
struct Left {
    bytes: u64,
    medium: Medium,
    unreadable: BTreeSet<u64>,
    dead_reads: BTreeSet<u64>,
    dead_writes: BTreeSet<u64>,
}

impl Left {
    fn of(disk: &TestDisk) -> Self {
        Self {
            bytes: disk.info().size_bytes,
            medium: disk.medium.borrow().clone(),
            unreadable: disk.faults.unreadable.borrow().clone(),
            dead_reads: disk.faults.dead_reads.borrow().clone(),
            dead_writes: disk.faults.dead_writes.borrow().clone(),
        }
    }
}

/// Disks by number, as they are after a crash.
type Media = BTreeMap<usize, Left>;

/// Lets a block fail: mostly one that a file uses, otherwise one that may be used next. With
/// `may_lose` it cannot be read either. Returns whether a block with contents cannot be read.
async fn fail_block(
    pair: &mut Pair,
    disks: &BTreeMap<usize, Rc<TestDisk>>,
    may_lose: bool,
) -> bool {
    let mut used = Vec::new();
    for id in pair.model.files.keys() {
        for (_, record) in pair.fs.places(pair.inos[id]).await.expect("known") {
            used.extend(record.columns.into_iter().flatten());
        }
    }
    if used.is_empty() {
        return false;
    }
    let column = pair.rng.pick(&used).clone();
    let (lines, is_used) = (column.sums.len() as u64, pair.rng.chance(60));
    let block = column.start + pair.rng.below(lines) + if is_used { 0 } else { lines };
    let Some(disk) = disks.get(&usize::from(column.disk)) else { return false };
    // All of the block, or a sector of it.
    // One that joined later may have a larger slice.
    let label = Label::read(&**disk).await.expect("readable").expect("a label");
    let first = (label.data().start + block * BLOCK) / 512;
    let one = pair.rng.below(8);
    let sectors = if pair.rng.chance(50) { first..first + 8 } else { first + one..first + one + 1 };
    let faults = &disk.faults;
    let lose = may_lose && is_used && pair.rng.chance(60);
    match lose && pair.rng.chance(50) {
        true => faults.unreadable.borrow_mut().extend(sectors),
        false => {
            faults.dead_writes.borrow_mut().extend(sectors.clone());
            if lose {
                faults.dead_reads.borrow_mut().extend(sectors);
            }
        }
    }
    lose
}

/// The database lies in the second half of a slice, and there are other things before it.
const SLICE: Range<u64> = (64 << 10)..DATA_AT;
/// What is in the slice of a disk that no checksum covers: the superblocks and the map of the
/// metadata array, and its log.
const CHECKED_FROM: u64 = (64 << 10) + (1 << 20) + (64 << 10) + (896 << 10);

/// Something is wrong with one slice of the metadata.
fn fail_slice(rng: &mut Rng, disk: &TestDisk) {
    let sector = (CHECKED_FROM + rng.below(SLICE.end - CHECKED_FROM)) / 512;
    match rng.below(3) {
        0 => *disk.faults.unwritable.borrow_mut() = SLICE,
        1 => drop(disk.faults.unreadable.borrow_mut().insert(sector)),
        _ => {
            let mut medium = disk.medium.borrow_mut();
            let mut bytes = [0; 512];
            medium.read(sector * 512, &mut bytes);
            bytes[rng.index(512)] ^= 1 << rng.below(8);
            medium.poke(sector * 512, &bytes);
        }
    }
}

/// Within a while there are as many complete copies of the metadata as there are to be.
async fn assert_copies(rt: &Rt, fs: &Fs, what: &str) {
    let mut copies = (0, 0);
    // A slice that fails again and again waits for up to ten minutes.
    for _ in 0..400 {
        copies = fs.status().await.expect("known").meta_copies;
        if copies.0 == copies.1 {
            return;
        }
        rt.sleep(2 * SECOND).await;
    }
    panic!("{what}: {copies:?} copies of the metadata");
}

/// A slice has failed, and works again: what was wrong is made right.
async fn mend_slices(rt: &Rt, fs: &Fs, what: &str) {
    assert_copies(rt, fs, what).await;
    let mut scrubbed = fs.scrub().await;
    while matches!(scrubbed, Err(FsError::Busy(_) | FsError::GivenWay)) {
        rt.sleep(SECOND).await;
        scrubbed = fs.scrub().await;
    }
    let report = scrubbed.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(report.metadata_damaged, 0, "{what}");
}

/// Each disk with a copy of the metadata has all of it, mounted alone.
async fn assert_each_alone(rt: &Rt, fs: &Fs, disks: &BTreeMap<usize, Rc<TestDisk>>, what: &str) {
    fs.sync().await.expect("synced");
    let list = async |fs: &Fs| {
        let entries = fs.read_folder(ROOT, 2, 1000).await.expect("listed");
        entries.into_iter().map(|entry| (entry.name, entry.ino)).collect::<Vec<_>>()
    };
    let expected = list(fs).await;
    let of_disks = fs.status().await.expect("known").disks;
    let media: Media = disks.iter().map(|(n, disk)| (*n, Left::of(disk))).collect();
    for disk in of_disks.iter().filter(|disk| disk.metadata == MetaCopy::Current && !disk.lost) {
        let number = usize::from(disk.number);
        let Some(left) = media.get(&number) else { continue };
        let alone = open(rt, &Power::new(), &BTreeMap::from([(number, left.clone())]), 0);
        let options = MountOptions { degraded: true, stale: true, nonce: 5, ..mounting() };
        let fs = Fs::mount(rt, &given(&alone), options).await;
        let fs = fs.unwrap_or_else(|error| panic!("{what}: disk {number} alone: {error}"));
        assert_eq!(list(&fs).await, expected, "{what}: disk {number} alone");
    }
}

/// What is there when the power fails.
struct Moment {
    media: Media,
    history: History,
    /// Whether a block with contents may be unreadable: no disk may be lost as well.
    may_lack: bool,
    /// Whether a disk is lost that may not be rebuilt yet: no block may be unreadable as well.
    may_be_degraded: bool,
    /// Whether a slice of the metadata was not as it should be: no disk may be lost as well.
    may_lack_copy: bool,
    /// Blocks that were overwritten at new places.
    afresh: u64,
}

fn assert_ended(job: Job, ended: weft_fs::Result<JobReport>) {
    assert!(matches!(ended, Ok(_) | Err(FsError::Cancelled)), "{job:?}: {ended:?}");
    if let Ok(JobReport::Balanced(report)) = ended {
        BALANCED.fetch_add(report.blocks, Ordering::Relaxed);
    }
}

/// Begins a job or cancels it, or lets a disk join.
async fn use_jobs(
    rt: &Rt,
    pair: &mut Pair,
    power: &Rc<Power>,
    disks: &RefCell<BTreeMap<usize, Rc<TestDisk>>>,
) {
    if pair.rng.chance(20) {
        // The disks may have no room, a copy may be missing, or a slice fail.
        drop(pair.fs.grow_metadata().await);
        return;
    }
    match pair.rng.below(4) {
        0 => drop(pair.fs.cancel().await),
        1 if disks.borrow().len() < DISKS_MAX => {
            let numbers = pair.fs.status().await.expect("known").disks;
            // Its number may be higher, if disks have left.
            let next = 1 + numbers.last().map_or(0, |disk| usize::from(disk.number));
            let highest = disks.borrow().keys().last().map_or(0, |number| number + 1);
            let place = next.max(highest);
            let disk = TestDisk::new(rt, power, 100 + place, LARGE, 512, Medium::new(512));
            disks.borrow_mut().insert(place, disk.clone());
            let number = pair.fs.add_disk(disk.clone(), false).await.expect("added");
            disks.borrow_mut().remove(&place);
            disks.borrow_mut().insert(usize::from(number), disk);
            begin(rt, &pair.fs, Job::Balance);
        }
        2 => begin(rt, &pair.fs, Job::Scrub),
        _ => begin(rt, &pair.fs, Job::Balance),
    }
}

/// A disk that was missing at the mount comes back.
async fn come_back(
    pair: &Pair,
    (number, disk): (usize, Rc<TestDisk>),
    disks: &RefCell<BTreeMap<usize, Rc<TestDisk>>>,
) {
    disks.borrow_mut().insert(number, disk.clone());
    let now = pair.fs.add_disk(disk.clone(), false).await.expect("added");
    disks.borrow_mut().remove(&number);
    disks.borrow_mut().insert(usize::from(now), disk);
    RETURNED.fetch_add(1, Ordering::Relaxed);
}

/// Begins a job, unless one runs.
fn begin(rt: &Rt, fs: &Fs, job: Job) {
    if let Ok(running) = fs.begin_job(job) {
        drop(rt.spawn(async move { assert_ended(job, running.await) }));
    }
}

/// Uses the file system until a random step. If a disk is lost, it is rebuilt meanwhile.
async fn live(
    rt: &Rt,
    pair: &mut Pair,
    disks: BTreeMap<usize, Rc<TestDisk>>,
    power: &Rc<Power>,
    (mut away, may_be_degraded): (Option<(usize, Rc<TestDisk>)>, bool),
) -> Moment {
    let disks = Rc::new(RefCell::new(disks));
    let seen = Rc::new(RefCell::new(None));
    let left = Cell::new(pair.rng.below(600));
    let media = {
        let disks = disks.clone();
        move || disks.borrow().iter().map(|(n, disk)| (*n, Left::of(disk))).collect::<Media>()
    };
    let (cut, at_cut) = (seen.clone(), media.clone());
    power.watch(move || {
        left.set(left.get().wrapping_sub(1));
        if left.get() == 0 {
            *cut.borrow_mut() = Some(at_cut());
        }
    });
    if may_be_degraded || pair.rng.chance(30) {
        pair.fs.keep(assert_ended);
    }
    if pair.rng.chance(50) {
        let (fs, seed) = (pair.fs.clone(), pair.rng.next_u64());
        drop(rt.spawn(Contender::contend(rt.clone(), fs, 1, seed)));
    }
    let mut history = History::new(pair);
    let mut may_lack = false;
    // The disk whose slice of the metadata is not as it should be.
    let mut failing = None;
    for _ in 0..60 {
        if pair.rng.chance(4) && !may_be_degraded {
            match failing.take() {
                None => {
                    let disks = disks.borrow();
                    let numbers: Vec<usize> = disks.keys().copied().collect();
                    let number = *pair.rng.pick(&numbers);
                    fail_slice(&mut pair.rng, &disks[&number]);
                    failing = Some(number);
                }
                Some(number) => {
                    let disk = disks.borrow().get(&number).cloned();
                    disk.iter().for_each(|disk| *disk.faults.unwritable.borrow_mut() = 0..0);
                    let disks = disks.borrow().clone();
                    mend_slices(rt, &pair.fs, "after a fault of a slice").await;
                    assert_each_alone(rt, &pair.fs, &disks, "after a fault of a slice").await;
                }
            }
            if seen.borrow().is_some() {
                break;
            }
        }
        if pair.rng.chance(7) {
            let disks = disks.borrow().clone();
            may_lack |= fail_block(pair, &disks, !may_lack && !may_be_degraded).await;
        }
        if pair.rng.chance(10) {
            use_jobs(rt, pair, power, &disks).await;
        }
        if let Some(disk) = away.take_if(|_| pair.rng.chance(7)) {
            come_back(pair, disk, &disks).await;
        }
        match pair.rng.below(11) {
            0 => {
                let ms = pair.rng.below(4000);
                rt.sleep(ms * (SECOND / 1000)).await;
                continue;
            }
            1..=3 => pair.overwrite().await,
            4 if pair.rng.chance(50) => pair.fsync_and_write().await,
            4 => pair.fsync().await,
            5 if pair.rng.chance(40) => pair.append().await,
            5 => pair.burst().await,
            _ => pair.step().await,
        }
        history.note(pair);
        if seen.borrow().is_some() {
            break;
        }
        if let Some(durable) = pair.durable.take() {
            history.durable(durable);
        }
    }
    power.watch(|| {});
    let overlapped = pair.fs.status().await.expect("known").overlapped_batches;
    OVERLAPPED.fetch_add(overlapped, Ordering::Relaxed);
    let media = seen.take().unwrap_or_else(media);
    let afresh = pair.fs.status().await.map_or(0, |status| status.counts.out_of_place_blocks);
    let may_lack_copy = failing.is_some();
    Moment { media, history, may_lack, may_be_degraded, may_lack_copy, afresh }
}

/// Opens disks. What each is called moves by `shift`: names of disks differ from boot to boot.
fn open(rt: &Rt, power: &Rc<Power>, media: &Media, shift: usize) -> BTreeMap<usize, Rc<TestDisk>> {
    let open = |(n, left): (&usize, &Left)| {
        let disk = TestDisk::new(rt, power, *n + shift, left.bytes, 512, left.medium.clone());
        *disk.faults.unreadable.borrow_mut() = left.unreadable.clone();
        *disk.faults.dead_reads.borrow_mut() = left.dead_reads.clone();
        *disk.faults.dead_writes.borrow_mut() = left.dead_writes.clone();
        (*n, disk)
    };
    media.iter().map(open).collect()
}

fn given(disks: &BTreeMap<usize, Rc<TestDisk>>) -> Vec<Rc<dyn Disk>> {
    disks.values().map(|disk| disk.clone() as Rc<dyn Disk>).collect()
}

/// A life: from a mount to a crash. `before` is what the crash before it left, and what may be
/// found. Returns how many blocks were overwritten at new places.
fn lives(seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let mut before: Option<Moment> = None;
    let mut afresh = 0;
    for n in 0..LIVES {
        let life = rng.next_u64();
        let result = Rc::new(RefCell::new(None));
        let (given, given_back) = (before.take(), result.clone());
        run(move |rt| async move {
            *given_back.borrow_mut() = Some(one_life(&rt, life, n, given).await);
        });
        let mut moment: Moment = result.take().expect("it ended");
        let left = match rng.below(6) {
            0 => Leave::Nothing,
            1 => Leave::All,
            2 => Leave::Completed,
            3 => Leave::Cached,
            _ => Leave::Some(rng.next_u64()),
        };
        for (number, disk) in &mut moment.media {
            disk.medium = left_of(left, *number, &disk.medium);
        }
        afresh += moment.afresh;
        before = Some(moment);
    }
    let (last, moment) = (rng.next_u64(), before.expect("the last one"));
    if !moment.may_lack {
        run(move |rt| async move { alone(&rt, last, moment).await });
    }
    afresh
}

/// After the last crash: each disk that has a copy of the metadata is mounted without any other.
/// All names are there, and what can be read is right.
async fn alone(rt: &Rt, seed: u64, before: Moment) {
    let power = Power::new();
    let Moment { media, history, .. } = before;
    let mut disks = BTreeMap::new();
    for (_, disk) in open(rt, &power, &media, 0) {
        if let Some(label) = Label::read(&*disk).await.expect("readable") {
            disks.insert(usize::from(label.number), disk);
        }
    }
    let fs = Fs::mount(rt, &given(&disks), mounting_by(seed)).await.expect("mounted");
    fs.rebuild().await.expect("rebuilt");
    rt.sleep(60 * SECOND).await;
    let Snapshot { model, inos } = history.found(&fs, "the last one").await;
    let status = fs.status().await.expect("known");
    let has_copy = |disk: &&weft_fs::DiskStatus| disk.metadata == weft_fs::MetaCopy::Current;
    let with_copies: Vec<usize> =
        status.disks.iter().filter(has_copy).map(|disk| usize::from(disk.number)).collect();
    assert_eq!(with_copies.len(), status.meta_copies.1, "{status:?}");
    fs.unmount().await.expect("unmounted");
    for number in with_copies {
        let disk = &disks[&number];
        let (bytes, medium) = (disk.info().size_bytes, disk.medium.borrow().clone());
        let disk = TestDisk::new(rt, &power, number, bytes, 512, medium);
        let options = MountOptions { degraded: true, ..mounting_by(seed) };
        let fs = Fs::mount(rt, &[disk as Rc<dyn Disk>], options).await;
        let fs = fs.unwrap_or_else(|error| panic!("disk {number} alone: {error}"));
        for (id, file) in &model.files {
            let ino = inos[id];
            let size = fs.attr(ino).await.expect("there").size;
            assert_eq!(size, file.bytes.len() as u64, "disk {number} alone: file {id}");
            for (n, block) in file.bytes.chunks(BLOCK as usize).enumerate() {
                match fs.read(ino, n as u64 * BLOCK, block.len()).await {
                    Ok(found) => {
                        assert!(*found == *block, "disk {number} alone: file {id}, block {n}");
                    }
                    Err(FsError::Unreadable { .. }) => {}
                    Err(error) => panic!("disk {number} alone: {error}"),
                }
            }
        }
    }
}

async fn one_life(rt: &Rt, seed: u64, n: usize, before: Option<Moment>) -> Moment {
    let power = Power::new();
    let mut rng = Rng::new(seed);
    let blank = || Left {
        bytes: SIZE,
        medium: Medium::new(512),
        unreadable: BTreeSet::new(),
        dead_reads: BTreeSet::new(),
        dead_writes: BTreeSet::new(),
    };
    let blank = || (0..DISKS).map(|n| (n, blank())).collect();
    let (media, history, may_lack, may_be_degraded, may_lack_copy) = match before {
        Some(Moment { media, history, may_lack, may_be_degraded, may_lack_copy, .. }) => {
            (media, Some(history), may_lack, may_be_degraded, may_lack_copy)
        }
        None => (blank(), None, false, false, false),
    };
    let history_is_new = history.is_none();
    let mut disks = BTreeMap::new();
    for (place, disk) in open(rt, &power, &media, rng.below(3) as usize) {
        // One that was joining has a label, with its number, or is none of the file system.
        match Label::read(&*disk).await.expect("readable") {
            Some(label) => drop(disks.insert(usize::from(label.number), disk)),
            None if history_is_new => drop(disks.insert(place, disk)),
            None => {}
        }
    }
    let Some(history) = history else {
        let fs = made_by(rt, &given(&disks), seed).await;
        let mut pair = Pair::new(fs, seed, &REDUNDANCIES);
        return live(rt, &mut pair, disks, &power, (None, false)).await;
    };
    // With the last one of these, requests to disks are so long that metadata passes them.
    let cache_bytes = [1 << 20, 2 << 20, 16 << 20][rng.below(3) as usize];
    let mut options =
        MountOptions { degraded: true, stale: true, cache_bytes, nonce: seed, ..mounting_by(seed) };
    let (mut missing, mut away) = (None, None);
    let may_lose = !may_lack && !may_be_degraded && !may_lack_copy;
    if disks.len() > DISKS_MIN && rng.chance(40) && may_lose {
        let numbers: Vec<usize> = disks.keys().copied().collect();
        let number = *rng.pick(&numbers);
        away = disks.remove(&number).map(|disk| (number, disk));
        missing = Some(number);
    } else {
        options.degraded = false;
    }
    let what = format!("life {n} on {:?}", disks.keys());
    if std::env::var_os("WEFT_SEED").is_some() {
        eprintln!("{what}");
    }
    let fs = Fs::mount(rt, &given(&disks), options).await;
    let fs = fs.unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut report = fs.check(true).await.expect("checked");
    if may_lack {
        // Reading has moved what could not be read.
        report = fs.check(true).await.expect("checked");
    }
    assert_eq!(report.findings, [], "{what}");
    match may_lack_copy {
        true => mend_slices(rt, &fs, &what).await,
        false => assert_eq!(fs.status().await.expect("known").meta_pages.wrong, 0, "{what}"),
    }
    let lost = fs.status().await.expect("known").disks.iter().filter(|disk| disk.lost).count();
    let may_be_lost = usize::from(options.degraded || may_be_degraded);
    // One that was joining may not have been a disk yet, or one that came back had left before.
    let members = fs.status().await.expect("known").disks;
    let is_member = |number: &usize| members.iter().any(|disk| usize::from(disk.number) == *number);
    let must_be_lost = missing.filter(is_member);
    let is_expected = (usize::from(must_be_lost.is_some())..=may_be_lost).contains(&lost);
    assert!(
        is_expected,
        "{what}: {lost} lost of {members:?}, missing {missing:?}: blocks failed, and no disk"
    );
    if rng.chance(20) {
        assert_copies(rt, &fs, &what).await;
        assert_each_alone(rt, &fs, &disks, &what).await;
    }
    let Snapshot { model, inos } = history.found(&fs, &what).await;
    let mut pair = Pair::new(fs, seed, &REDUNDANCIES);
    (pair.model, pair.inos) = (model, inos);
    pair.compare().await;
    let is_left_to_keeper = lost > 0 && rng.chance(50);
    if lost > 0 && !is_left_to_keeper {
        for _ in 0..rng.below(30) {
            pair.step().await;
        }
        pair.compare().await;
        if let Some(disk) = away.take_if(|_| rng.chance(50)) {
            let there = RefCell::new(disks);
            come_back(&pair, disk, &there).await;
            disks = there.into_inner();
            for _ in 0..rng.below(10) {
                pair.step().await;
            }
        }
        let report = pair.fs.rebuild().await.expect("rebuilt");
        assert!(report.damaged.is_empty() && report.waiting.is_empty(), "{what}: {report:?}");
        assert_sound(&pair.fs).await;
    }
    pair.compare().await;
    away = away.filter(|_| rng.chance(50));
    live(rt, &mut pair, disks, &power, (away, is_left_to_keeper)).await
}

#[test]
fn crashes_leave_what_was_synced_and_nothing_that_never_was() {
    let (afresh, count) = (Cell::new(0), Cell::new(0));
    for_seeds(0..12, |rng| {
        afresh.set(afresh.get() + u64::from(lives(rng.next_u64()) > 0));
        count.set(count.get() + 1);
    });
    let returned = RETURNED.load(Ordering::Relaxed);
    assert!(count.get() < 12 || returned > 1, "{returned} disks came back");
    let balanced = BALANCED.load(Ordering::Relaxed);
    assert!(count.get() < 12 || balanced > 12, "{balanced} blocks moved by balances");
    let (afresh, overlapped) = (afresh.get(), OVERLAPPED.load(Ordering::Relaxed));
    assert!(count.get() < 12 || 3 * afresh >= count.get(), "{afresh} of {count:?} seeds");
    assert!(count.get() < 12 || overlapped > 12, "{overlapped} batches");
}
