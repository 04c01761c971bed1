//! A crash at every step that changes a disk, with and without a disk lost in the same moment.
//!
//! What was synced is there. What was written since is old or new, sector by sector, or zeros where
//! a file was cut. Everything else of the same lines is as it was: that is what the RAID log is for.
//! Names are those of some moment since the last sync. Metadata, checksums and parity agree.
#![allow(clippy::cast_possible_truncation, reason = "sizes and counts of a test are small")]

mod common;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use common::disk::{Leave, Medium, Power, TestDisk, holding};
use common::*;
use weft_disk::Disk;
use weft_fs::{Fs, Kind, MountOptions, ROOT, Rename, SetAttr, Time, create};
use weft_rt::{Frozen, Rt};

const SIZE: u64 = 20 << 20;
const DISKS: usize = 4;
const SECTOR: usize = 512;

/// What may be found: all contents of each file since the last sync, and all sets of names.
#[derive(Clone, Default)]
struct Allowed {
    /// Contents that are not synced come last.
    contents: BTreeMap<u64, Vec<Vec<u8>>>,
    names: Vec<BTreeMap<String, u64>>,
    /// Times of files that are synced.
    modified: BTreeMap<u64, Time>,
}

/// A client that knows what may be found after a crash.
#[derive(Clone)]
struct Client {
    fs: Fs,
    allowed: Rc<RefCell<Allowed>>,
}

impl Client {
    fn new(fs: Fs) -> Self {
        let allowed = Allowed { names: vec![BTreeMap::new()], ..Allowed::default() };
        Self { fs, allowed: Rc::new(RefCell::new(allowed)) }
    }

    fn names(&self, change: impl FnOnce(&mut BTreeMap<String, u64>)) {
        let mut allowed = self.allowed.borrow_mut();
        let mut names = allowed.names.last().expect("some").clone();
        change(&mut names);
        allowed.names.push(names);
    }

    fn contents(&self, ino: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let mut allowed = self.allowed.borrow_mut();
        let contents = allowed.contents.entry(ino).or_insert_with(|| vec![Vec::new()]);
        let mut next = contents.last().expect("some").clone();
        change(&mut next);
        contents.push(next);
    }

    async fn make(&self, name: &str, redundancy: &str) -> u64 {
        // The number is known before the file is: they count up.
        let next = {
            let allowed = self.allowed.borrow();
            let highest = allowed.names.iter().flat_map(|names| names.values()).max();
            highest.map_or(ROOT + 1, |ino| ino + 1)
        };
        self.names(|names| _ = names.insert(name.into(), next));
        self.contents(next, |_| {});
        let ino = make_as(&self.fs, name, redundancy).await;
        assert_eq!(ino, next);
        ino
    }

    async fn write(&self, ino: u64, offset: usize, len: usize, version: u64) {
        let data = pattern(len, version);
        self.contents(ino, |bytes| {
            bytes.resize(bytes.len().max(offset + len), 0);
            bytes[offset..offset + len].copy_from_slice(&data);
        });
        write(&self.fs, ino, offset as u64, &data).await;
    }

    /// Writes blocks that lie apart from each other, as one version of the contents.
    async fn write_apart(
        &self,
        ino: u64,
        blocks: impl Iterator<Item = usize> + Clone,
        version: u64,
    ) {
        let block = BLOCK as usize;
        let data = pattern(block, version);
        self.contents(ino, |bytes| {
            blocks.clone().for_each(|n| bytes[n * block..(n + 1) * block].copy_from_slice(&data));
        });
        for n in blocks {
            write(&self.fs, ino, (n * block) as u64, &data).await;
        }
    }

    /// Sets the time of the last write, as the kernel does before it asks for an fsync.
    async fn touch(&self, ino: u64) {
        let Time { s, ns } = self.fs.attr(ino).await.expect("there").modified;
        let time = Some(Time { s, ns: ns + 1 });
        let set = SetAttr { modified: time, changed: time, ..SetAttr::default() };
        let inode = self.fs.set_attr(ino, set).await.expect("set");
        assert_eq!(Some(inode.modified), time);
    }

    async fn cut(&self, ino: u64, size: usize) {
        self.contents(ino, |bytes| bytes.resize(size, 0));
        let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        self.fs.set_attr(ino, set).await.expect("cut");
    }

    async fn punch(&self, ino: u64, offset: usize, len: usize) {
        self.contents(ino, |bytes| bytes[offset..offset + len].fill(0));
        self.fs.punch_hole(ino, offset as u64, len as u64).await.expect("punched");
    }

    async fn rename(&self, from: &str, to: &str) {
        self.names(|names| {
            let ino = names.remove(from).expect("there");
            names.insert(to.into(), ino);
        });
        let (from, to) = ((ROOT, from.as_bytes()), (ROOT, to.as_bytes()));
        self.fs.rename(from, to, Rename::Replace).await.expect("renamed");
    }

    async fn remove(&self, name: &str) {
        self.names(|names| _ = names.remove(name));
        self.fs.unlink(ROOT, name.as_bytes()).await.expect("removed");
    }

    /// Makes a file durable, whose name is.
    async fn fsync(&self, ino: u64) {
        let modified = self.fs.attr(ino).await.expect("there").modified;
        self.fs.fsync(ino).await.expect("synced");
        let mut allowed = self.allowed.borrow_mut();
        let contents = allowed.contents.get_mut(&ino).expect("a file");
        contents.drain(..contents.len() - 1);
        allowed.modified.insert(ino, modified);
    }

    /// The same, while the file is written again, once: what was there before that is durable.
    async fn fsync_and_write(&self, ino: u64, offset: usize, len: usize, version: u64) {
        let written = self.write(ino, offset, len, version);
        let (synced, ()) = futures_util::future::join(self.fs.fsync(ino), written).await;
        synced.expect("synced");
        let mut allowed = self.allowed.borrow_mut();
        let contents = allowed.contents.get_mut(&ino).expect("a file");
        contents.drain(..contents.len() - 2);
    }

    async fn sync(&self) {
        self.fs.sync().await.expect("synced");
        let mut allowed = self.allowed.borrow_mut();
        let names = allowed.names.pop().expect("some");
        allowed.contents.retain(|ino, _| names.values().any(|named| named == ino));
        for contents in allowed.contents.values_mut() {
            contents.drain(..contents.len() - 1);
        }
        allowed.names = vec![names];
    }
}

/// The files of the story: redundancies on four disks that survive one lost disk.
/// `middle` happens when the first files are there.
async fn story(client: &Client, middle: impl FnOnce()) {
    let a = client.make("a", "auto").await;
    let b = client.make("b", "raid1").await;
    let c = client.make("c", "raid6").await;
    for ino in [a, b, c] {
        client.write(ino, 0, 30_000, 1).await;
    }
    client.sync().await;
    middle();
    // Overwritten in place: one block of a line, parts of blocks, whole lines.
    client.write(a, 4096, 4096, 2).await;
    client.write(b, 100, 5000, 2).await;
    client.write(c, 8000, 9000, 2).await;
    client.fsync(a).await;
    client.write(a, 9000, 300, 3).await;
    client.write(a, 0, 4096, 4).await;
    client.sync().await;
    // A tail line grows; a new file; a hole.
    client.write(a, 30_000, 6000, 5).await;
    let d = client.make("d", "auto").await;
    client.write(d, 50_000, 100, 5).await;
    client.rename("b", "e").await;
    client.sync().await;
    client.write(d, 10_000, 20_000, 6).await;
    client.cut(a, 13_000).await;
    client.remove("e").await;
    client.rename("d", "c").await;
    client.write(a, 12_000, 12_000, 7).await;
    client.sync().await;
    overwritten_and_not_committed(client, a).await;
}

/// Overwrites that only the log has, one upon the other, and what must not come between log and
/// metadata.
async fn overwritten_and_not_committed(client: &Client, a: u64) {
    client.rename("c", "f").await;
    client.write(a, 4096, 4096, 8).await;
    client.touch(a).await;
    client.fsync(a).await;
    client.write(a, 0, 9000, 9).await;
    client.touch(a).await;
    client.fsync(a).await;
    client.write(a, 4096, 100, 10).await;
    client.fsync(a).await;
    // The tail grows within its block.
    client.write(a, 24_000, 500, 11).await;
    client.fsync(a).await;
    client.write(a, 24_576, 4096, 12).await;
    client.sync().await;
    // A line that exists gets another block, which is flushed; another block of it is overwritten;
    // and nothing is committed meanwhile.
    client.write(a, 28_672, 4096, 13).await;
    client.cut(a, 60_000).await;
    client.write(a, 24_576, 4096, 14).await;
    client.cut(a, 61_000).await;
    client.fsync(a).await;
    // More than goes to the log with its contents, and less before it, in one line.
    let big = client.make("big", "auto").await;
    client.write(big, 0, 78 * 4096, 16).await;
    client.sync().await;
    client.write(big, 73 * 4096, 4096, 17).await;
    client.fsync(big).await;
    client.write(big, 100, 270_000, 18).await;
    client.write(big, 74 * 4096, 4096, 18).await;
    client.fsync(big).await;
    client.write(big, 8192, 4096, 19).await;
    client.fsync(big).await;
    // Much of it at once goes to new places, over lines that only the log has. They are overwritten
    // again before that is committed, and what is free then is given to others.
    client.write(big, 4096, 200_000, 25).await;
    client.write(big, 60 * 4096, 60_000, 25).await;
    client.cut(big, 78 * 4096 + 100).await;
    client.write(big, 12_288, 5000, 26).await;
    client.fsync(big).await;
    client.write(big, 0, 70 * 4096, 27).await;
    client.fsync(big).await;
    let next = client.make("next", "auto").await;
    client.write(next, 0, 100 * 4096, 28).await;
    client.sync().await;
    // The log gets a block that is longer than the file, whose size it must not have.
    let tail = client.make("tail", "auto").await;
    client.write(tail, 0, 2222, 20).await;
    client.sync().await;
    client.fs.set_xattr(tail, b"user.note", b"1", weft_fs::SetXattr::default()).await.expect("set");
    client.write(tail, 2000, 1500, 21).await;
    client.cut(tail, 3600).await;
    client.write(tail, 9000, 50, 22).await;
    client.sync().await;
    // A line keeps its blocks when the file is cut. Two of them get contents, which the log has, and
    // one is new, so that the log does not have the size.
    let cut = client.make("cut", "auto").await;
    client.write(cut, 0, 3 * 4096, 23).await;
    client.sync().await;
    client.cut(cut, 4096).await;
    client.sync().await;
    client.write(cut, 4096, 3 * 4096, 24).await;
    client.sync().await;
}

/// More blocks than go to the log with their contents, apart from each other: they are overwritten in
/// place, behind a log record without contents. Before and after it come some that have them.
async fn blocks_apart(client: &Client, middle: impl FnOnce()) {
    let a = client.make("a", "auto").await;
    let b = client.make("b", "raid1").await;
    client.write(a, 0, 402 * 4096, 1).await;
    client.write(b, 0, 70 * 4096, 1).await;
    client.sync().await;
    middle();
    client.write(a, 8192, 4096, 2).await;
    client.fsync(a).await;
    client.write_apart(a, (2..402).step_by(6), 3).await;
    assert!(client.fs.status().await.expect("known").dirty_bytes > 64 * BLOCK);
    client.fsync(a).await;
    client.write(b, 100, 66 * 4096, 4).await;
    client.fsync(b).await;
    client.write(a, 8192, 100, 5).await;
    client.fsync(a).await;
    assert_eq!(client.fs.status().await.expect("known").counts.afresh_blocks, 0);
}

/// Long files, of which batches of new lines are written at the same time: by a sync, because many
/// blocks wait, and by fsync, with another file that is made durable meanwhile.
async fn long_files(client: &Client, middle: impl FnOnce()) {
    let a = client.make("a", "raid5").await;
    let b = client.make("b", "raid1").await;
    client.write(a, 0, 45 * 4096 + 700, 1).await;
    client.write(b, 0, 20 * 4096, 1).await;
    client.sync().await;
    middle();
    client.write(a, 45 * 4096 + 700, 50 * 4096, 2).await;
    let c = client.make("c", "raid6").await;
    client.write(c, 30_000, 21 * 4096, 3).await;
    client.write(b, 5 * 4096, 25 * 4096, 4).await;
    futures_util::future::join(client.fsync(b), client.fsync(a)).await;
    client.write(a, 100 * 4096, 9 * 4096, 5).await;
    client.write(a, 1000, 9000, 5).await;
    client.fsync(a).await;
    // Blocks that an fsync is about to write are written again.
    client.write(a, 109 * 4096, 24 * 4096, 6).await;
    client.fsync_and_write(a, 124 * 4096, 9 * 4096, 7).await;
    client.rename("c", "d").await;
    client.sync().await;
    let overlapped = client.fs.status().await.expect("known").overlapped_batches;
    assert!(overlapped > 5, "{overlapped} batches");
}

/// Files with [`SHORT`] bytes, whose last block holds more on the disks: a crash has left the block
/// new and the size old.
async fn short_files(rt: &Rt) -> Vec<Medium> {
    let disks = holding(rt, &Power::new(), SIZE, &vec![Medium::new(512); DISKS]);
    let fs = made(rt, &all(&disks)).await;
    for (name, redundancy) in SHORT_FILES {
        let ino = make_as(&fs, name, redundancy).await;
        write(&fs, ino, 0, &pattern(SHORT, 1)).await;
    }
    fs.sync().await.expect("synced");
    for (name, _) in SHORT_FILES {
        let ino = find(&fs, name).await;
        write(&fs, ino, SHORT as u64, &[0xEE; 6000]).await;
        // It is flushed, and not committed.
        let longer = SetAttr { size: Some(20_000), ..SetAttr::default() };
        fs.set_attr(ino, longer).await.expect("room");
    }
    disks.iter().map(|disk| Leave::All.of(&disk.medium.borrow())).collect()
}

const SHORT: usize = 5672;
const SHORT_FILES: [(&str, &str); 4] =
    [("punched", "raid1"), ("cut", "raid1"), ("grown", "auto"), ("other", "auto")];

/// Such files grow over their old end, and what was written behind it is removed again or finds bad
/// blocks.
async fn over_an_old_end(client: &Client, middle: impl FnOnce()) {
    let mut inos = BTreeMap::new();
    for (name, _) in SHORT_FILES {
        let ino = find(&client.fs, name).await;
        assert_eq!(read_all(&client.fs, ino).await, pattern(SHORT, 1));
        client.contents(ino, |bytes| *bytes = pattern(SHORT, 1));
        inos.insert(name.to_owned(), ino);
    }
    client.names(|names| names.clone_from(&inos));
    client.sync().await;
    middle();
    let [punched, cut, grown, other] = SHORT_FILES.map(|(name, _)| inos[name]);
    client.write(punched, 6000, 8192 - 6000, 2).await;
    client.punch(punched, 100, 8192 - 100).await;
    client.write(cut, 30_000, 80_000, 3).await;
    client.cut(cut, 1000).await;
    client.fsync(punched).await;
    client.write(grown, 13 * 4096, 100 * 4096, 4).await;
    // Between any two steps of one file, others may commit.
    let commits = async {
        for _ in 0..4 {
            client.touch(other).await;
            client.fsync(other).await;
        }
    };
    futures_util::future::join(client.fsync(grown), commits).await;
    client.sync().await;
}

/// Files with 10 blocks, and lines with old contents behind them: a crash has left the size that the log
/// had, and not the commit.
async fn cut_files(rt: &Rt) -> Vec<Medium> {
    let disks = holding(rt, &Power::new(), SIZE, &vec![Medium::new(512); DISKS]);
    let fs = made(rt, &all(&disks)).await;
    for (name, blocks) in CUT_FILES {
        let ino = make_as(&fs, name, "auto").await;
        write(&fs, ino, 0, &pattern(blocks * 4096, 1)).await;
    }
    fs.sync().await.expect("synced");
    for (name, _) in CUT_FILES {
        let ino = find(&fs, name).await;
        write(&fs, ino, 0, &pattern(4096, 1)).await;
        let shorter = SetAttr { size: Some(CUT as u64), ..SetAttr::default() };
        fs.set_attr(ino, shorter).await.expect("cut");
    }
    disks.iter().map(|disk| Leave::All.of(&disk.medium.borrow())).collect()
}

const CUT: usize = 10 * 4096;
/// Those that are to grow by few blocks, and by more than the log takes with their contents.
const CUT_FILES: [(&str, usize); 2] = [("few", 30), ("many", 100)];

/// Such files grow over these lines.
async fn over_old_lines(client: &Client, _: impl FnOnce()) {
    let mut inos = BTreeMap::new();
    for (name, blocks) in CUT_FILES {
        let ino = find(&client.fs, name).await;
        assert!(read_all(&client.fs, ino).await == pattern(blocks * 4096, 1)[..CUT]);
        let places = client.fs.places(ino).await.expect("known");
        let (first, last) = places.last().expect("lines");
        assert!(first + last.lines * 3 >= blocks as u64, "lines behind the end are there");
        client.contents(ino, |bytes| *bytes = pattern(CUT, 1));
        inos.insert(name.to_owned(), ino);
    }
    client.names(|names| names.clone_from(&inos));
    client.sync().await;
    let [few, many] = CUT_FILES.map(|(name, _)| inos[name]);
    client.write(few, CUT, 3 * 4096, 2).await;
    // New lines are written with it, so the log has no contents.
    let new = client.make("new", "auto").await;
    client.write(new, 0, 8000, 3).await;
    client.sync().await;
    client.write(many, CUT, 70 * 4096, 4).await;
    client.fsync(many).await;
}

struct Moment {
    media: Vec<Medium>,
    allowed: Allowed,
}

/// Sectors of data blocks of a disk that cannot be written any more: some that files have, and some
/// that they come to.
fn dead(disk: usize) -> BTreeSet<u64> {
    let blocks = [1, 4, 9, 10, 30, 33].map(|block| block + disk as u64);
    blocks.into_iter().map(sector_of).collect()
}

/// One of the sectors of a data block.
fn sector_of(block: u64) -> u64 {
    let data_at = (64 << 10) + (8 << 20);
    (data_at + block * BLOCK) / 512 + block % 8
}

fn kill_blocks(disks: &[Rc<TestDisk>]) {
    for (n, disk) in disks.iter().enumerate() {
        *disk.faults.dead_writes.borrow_mut() = dead(n);
    }
}

/// Blocks to which the last block of a short file would go.
fn kill_first_blocks(disks: &[Rc<TestDisk>]) {
    for disk in disks {
        *disk.faults.dead_writes.borrow_mut() = [sector_of(1)].into();
    }
}

/// The disks and what may be found, before every step that changes a disk.
fn moments(seed: u64) -> Vec<Moment> {
    moments_on(seed, |_| {})
}

/// The same, with disks that something is done to when the first files are there.
fn moments_on(seed: u64, prepare: fn(&[Rc<TestDisk>])) -> Vec<Moment> {
    let cache_bytes = mounting().cache_bytes;
    moments_of(seed, cache_bytes, prepare, async |client, middle| story(client, middle).await)
}

/// The same for any story.
fn moments_of(
    seed: u64,
    cache_bytes: u64,
    prepare: fn(&[Rc<TestDisk>]),
    story: impl AsyncFnOnce(&Client, &dyn Fn()) + 'static,
) -> Vec<Moment> {
    let created = async |rt: &Rt| {
        let disks = holding(rt, &Power::new(), SIZE, &vec![Medium::new(512); DISKS]);
        create(rt, &all(&disks), &options()).await.expect("created");
        disks.iter().map(|disk| disk.medium.borrow().clone()).collect()
    };
    moments_from(created, seed, cache_bytes, prepare, story)
}

/// The same for a story that begins with these disks.
fn moments_from(
    before: impl AsyncFnOnce(&Rt) -> Vec<Medium> + 'static,
    seed: u64,
    cache_bytes: u64,
    prepare: fn(&[Rc<TestDisk>]),
    story: impl AsyncFnOnce(&Client, &dyn Fn()) + 'static,
) -> Vec<Moment> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let result = seen.clone();
    run(move |rt| async move {
        let power = Power::new();
        let media = before(&rt).await;
        let disks = holding(&rt, &power, SIZE, &media);
        let mounting = MountOptions { cache_bytes, ..mounting_by(seed) };
        let fs = Fs::mount(&rt, &all(&disks), mounting).await.expect("mounted");
        let client = Client::new(fs);
        let (watched, allowed) = (disks.clone(), client.allowed.clone());
        power.watch(move || {
            let media = watched.iter().map(|disk| disk.medium.borrow().clone()).collect();
            seen.borrow_mut().push(Moment { media, allowed: allowed.borrow().clone() });
        });
        story(&client, &|| prepare(&disks)).await;
        power.watch(|| {});
    });
    result.take()
}

fn leave(n: usize) -> Leave {
    match n % 5 {
        0 => Leave::Nothing,
        1 => Leave::All,
        2 => Leave::Completed,
        3 => Leave::Cached,
        _ => Leave::Some(n as u64),
    }
}

/// Mounts what a crash left, perhaps without a disk, and checks it.
async fn check(
    rt: &Rt,
    disks: &[Rc<TestDisk>],
    allowed: &Allowed,
    lost: Option<usize>,
    what: &str,
) {
    // It is the step, mostly.
    let seed = what.bytes().map(u64::from).sum();
    let there: Vec<Rc<dyn Disk>> = all(disks)
        .into_iter()
        .enumerate()
        .filter(|(n, _)| lost != Some(*n))
        .map(|(_, disk)| disk)
        .collect();
    let options = MountOptions { degraded: lost.is_some(), nonce: 77, ..mounting_by(seed) };
    let fs = Fs::mount(rt, &there, options).await;
    let fs = fs.unwrap_or_else(|error| panic!("{what}: {error}"));
    let report = fs.check(true).await.expect("checked");
    assert_eq!(report.findings, [], "{what}");
    let entries = fs.read_folder(ROOT, 2, 100).await.expect("listed");
    let names: BTreeMap<String, u64> = entries
        .into_iter()
        .map(|entry| (String::from_utf8(entry.name).expect("a name"), entry.ino))
        .collect();
    assert!(allowed.names.contains(&names), "{what}: {names:?}");
    for (name, ino) in names {
        let found = read_all(&fs, ino).await;
        if let Some(modified) = allowed.modified.get(&ino) {
            let found = fs.attr(ino).await.expect("there").modified;
            assert!(found >= *modified, "{what}: {name} was modified at {found:?}");
        }
        let Some(contents) = allowed.contents.get(&ino) else { continue };
        // A file that was made since the sync may be there without its contents.
        let sizes: Vec<usize> = contents.iter().map(Vec::len).collect();
        let may = may_have_size(found.len(), &sizes);
        assert!(may, "{what}: {name} has {} bytes of {sizes:?}", found.len());
        for (n, sector) in found.chunks(SECTOR).enumerate() {
            let at = n * SECTOR;
            let version = |bytes: &Vec<u8>| {
                let mut part = bytes.get(at..).unwrap_or_default().to_vec();
                part.resize(part.len().max(sector.len()), 0);
                part.truncate(sector.len());
                part
            };
            let mut versions = contents.iter().map(version);
            let fits = versions.any(|version| version == sector);
            assert!(fits, "{what}: sector {n} of {name}");
        }
        // What a crash left behind the end does not come to light.
        let longer = SetAttr { size: Some(found.len() as u64 + 5000), ..SetAttr::default() };
        fs.set_attr(ino, longer).await.expect("room");
        let longer = read_all(&fs, ino).await;
        assert!(longer[..found.len()] == found, "{what}: {name} grew");
        assert!(longer[found.len()..].iter().all(|byte| *byte == 0), "{what}: behind {name}");
    }
    if lost.is_some() {
        let report = fs.rebuild().await.expect("rebuilt");
        assert!(report.damaged.is_empty(), "{what}: {report:?}");
        let again = fs.check(true).await.expect("checked");
        assert_eq!(again.findings, [], "{what}, rebuilt");
    }
}

/// Whether a file may have this size after a crash, if it had these since it was synced. It may have
/// grown in part, up to the end of a block.
fn may_have_size(found: usize, sizes: &[usize]) -> bool {
    let is_between =
        sizes.iter().any(|size| *size < found) && sizes.iter().any(|size| found < *size);
    sizes.contains(&found) || is_between && found.is_multiple_of(BLOCK as usize)
}

fn crash(moment: &Moment, left: Leave, lost: Option<usize>, what: String) {
    crash_on(moment, left, lost, what, |_| {});
}

fn crash_on(
    moment: &Moment,
    left: Leave,
    lost: Option<usize>,
    what: String,
    prepare: fn(&[Rc<TestDisk>]),
) {
    let media: Vec<Medium> = moment.media.iter().map(|medium| left.of(medium)).collect();
    let allowed = moment.allowed.clone();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &media);
        prepare(&disks);
        check(&rt, &disks, &allowed, lost, &what).await;
    });
}

#[test]
fn every_crash_leaves_what_was_synced_and_whole_operations() {
    let moments = moments(2);
    assert!(moments.len() > 200, "{} steps", moments.len());
    for (n, moment) in moments.iter().enumerate() {
        crash(moment, leave(n), None, format!("step {n}, {:?}", leave(n)));
    }
}

/// Of batches that are written at the same time each may be there or not, and nothing names what is
/// not; with all disks, without one, and with blocks that cannot be written.
#[test]
fn every_crash_is_survived_while_batches_of_new_lines_overlap() {
    let bad_blocks: [fn(&[Rc<TestDisk>]); 2] = [|_| {}, kill_blocks];
    for (of, prepare) in bad_blocks.into_iter().enumerate() {
        let story = async |client: &Client, middle: &dyn Fn()| long_files(client, middle).await;
        let moments = moments_of(2, mounting().cache_bytes, prepare, story);
        assert!(moments.len() > 200, "{} steps", moments.len());
        for (n, moment) in moments.iter().enumerate().skip(of).step_by(3) {
            let lost = n.is_multiple_of(2).then_some(n / 2 % DISKS);
            let left = leave(n / 3);
            let what = format!("step {n}, {left:?}, without {lost:?}, disks {of}");
            crash_on(moment, left, lost, what, prepare);
        }
    }
}

#[test]
fn every_crash_is_survived_while_many_blocks_apart_are_overwritten() {
    let story = async |client: &Client, middle: &dyn Fn()| blocks_apart(client, middle).await;
    let moments = moments_of(2, 4 << 20, |_| {}, story);
    assert!(moments.len() > 200, "{} steps", moments.len());
    for (n, moment) in moments.iter().enumerate().step_by(3) {
        let lost = n.is_multiple_of(2).then_some(n / 2 % DISKS);
        let left = leave(n / 3);
        crash(moment, left, lost, format!("step {n}, {left:?}, without {lost:?}"));
    }
}

/// What a crash left behind a file's end does not come to light: not if what is written over it is
/// removed again, nor if a part of that has to be written elsewhere.
#[test]
fn every_crash_is_survived_while_files_grow_over_an_old_end() {
    let kill: [fn(&[Rc<TestDisk>]); 2] = [|_| {}, kill_first_blocks];
    for (of, prepare) in kill.into_iter().enumerate() {
        let story = async |c: &Client, middle: &dyn Fn()| over_an_old_end(c, middle).await;
        let cache_bytes = mounting().cache_bytes;
        let before = async |rt: &Rt| short_files(rt).await;
        let moments = moments_from(before, 2, cache_bytes, prepare, story);
        assert!(moments.len() > 100, "{} steps", moments.len());
        for (n, moment) in moments.iter().enumerate() {
            let what = format!("step {n}, {:?}, disks {of}", leave(n));
            crash_on(moment, leave(n), None, what, prepare);
        }
    }
}

/// A file does not grow over lines that hold what was cut off before what is written there is on the
/// disks, or in the log.
#[test]
fn every_crash_is_survived_while_files_grow_over_old_lines() {
    let story = async |c: &Client, middle: &dyn Fn()| over_old_lines(c, middle).await;
    let before = async |rt: &Rt| cut_files(rt).await;
    let moments = moments_from(before, 3, mounting().cache_bytes, |_| {}, story);
    assert!(moments.len() > 60, "{} steps", moments.len());
    for (n, moment) in moments.iter().enumerate() {
        for left in [Leave::Nothing, Leave::Cached, Leave::Some(n as u64)] {
            crash_on(moment, left, None, format!("step {n}, {left:?}"), |_| {});
        }
    }
}

/// Blocks that cannot be written are found on the way, by writes of all kinds and by recovery.
#[test]
fn every_crash_is_survived_on_disks_with_bad_blocks() {
    let moments = moments_on(1, kill_blocks);
    for (n, moment) in moments.iter().enumerate().step_by(2) {
        let lost = n.is_multiple_of(3).then_some(n / 3 % DISKS);
        let what = format!("step {n}, {:?}, without {lost:?}, bad blocks", leave(n / 2));
        crash_on(moment, leave(n / 2), lost, what, kill_blocks);
    }
}

#[test]
fn every_crash_with_a_lost_disk_leaves_all_that_was_not_being_written() {
    for (n, moment) in moments(0).iter().enumerate() {
        let (lost, left) = (n % DISKS, leave(n / DISKS));
        crash(moment, left, Some(lost), format!("step {n}, {left:?}, without {lost}"));
    }
}

#[test]
fn a_crash_in_recovery_changes_nothing() {
    let moments = moments(0);
    for (n, moment) in moments.iter().enumerate().skip(3).step_by(23) {
        let media: Vec<Medium> = moment.media.iter().map(|medium| leave(n).of(medium)).collect();
        let allowed = moment.allowed.clone();
        let seen = Rc::new(RefCell::new(Vec::new()));
        let again = seen.clone();
        run(move |rt| async move {
            let power = Power::new();
            let disks = holding(&rt, &power, SIZE, &media);
            let watched = disks.clone();
            power.watch(move || {
                let media = watched.iter().map(|disk| disk.medium.borrow().clone()).collect();
                seen.borrow_mut().push(Moment { media, allowed: allowed.clone() });
            });
            Fs::mount(&rt, &all(&disks), mounting()).await.expect("mounted");
            power.watch(|| {});
        });
        for (m, moment) in again.take().iter().enumerate().step_by(5) {
            let lost = m.is_multiple_of(2).then_some(m / 2 % DISKS);
            crash(moment, leave(m), lost, format!("step {n}, then {m}, without {lost:?}"));
        }
    }
}

/// Recovery takes blocks as it finds them whose contents the log does not have. If only the program
/// was killed, they may be in the caches of the disks, and the power fails behind recovery.
#[test]
fn what_recovery_has_found_is_durable() {
    let story = async |client: &Client, middle: &dyn Fn()| {
        let a = client.make("a", "auto").await;
        client.write(a, 0, 3 * 4096, 1).await;
        client.sync().await;
        middle();
        // New lines are written with it, so the log has no contents.
        client.write(a, 4096, 4096, 2).await;
        let b = client.make("b", "auto").await;
        client.write(b, 0, 4096, 2).await;
        client.sync().await;
    };
    let moments = moments_of(2, mounting().cache_bytes, |_| {}, story);
    for (n, moment) in moments.iter().enumerate() {
        for lost in [None, Some(0), Some(1), Some(2), Some(3)] {
            let media: Vec<Medium> =
                moment.media.iter().map(|medium| Leave::Cached.of(medium)).collect();
            let (after, allowed) = (Rc::new(RefCell::new(None)), moment.allowed.clone());
            let seen = after.clone();
            run(move |rt| async move {
                let disks = holding(&rt, &Power::new(), SIZE, &media);
                let there = all(&disks).into_iter().enumerate();
                let there: Vec<_> =
                    there.filter(|(n, _)| lost != Some(*n)).map(|(_, disk)| disk).collect();
                let options = MountOptions { degraded: lost.is_some(), ..mounting() };
                Fs::mount(&rt, &there, options).await.expect("mounted");
                let media = disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
                *seen.borrow_mut() = Some(Moment { media, allowed });
            });
            let after = after.take().expect("mounted");
            crash(&after, Leave::Nothing, lost, format!("step {n}, mounted, without {lost:?}"));
        }
    }
}

/// The log has the time with the blocks: a commit would take several writes and flushes more.
#[test]
fn the_time_of_the_last_write_does_not_make_fsync_dearer() {
    run(|rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); DISKS]);
        let client = Client::new(made(&rt, &all(&disks)).await);
        let ino = client.make("file", "auto").await;
        client.write(ino, 0, 30_000, 1).await;
        client.sync().await;
        let steps = Rc::new(Cell::new(0));
        let count = steps.clone();
        power.watch(move || count.set(count.get() + 1));
        let mut costs = Vec::new();
        for version in 2..6 {
            let before = steps.get();
            client.write(ino, 5000, 100, version).await;
            if version > 3 {
                client.touch(ino).await;
            }
            client.fsync(ino).await;
            costs.push(steps.get() - before);
        }
        power.watch(|| {});
        // The first one marks a region of the metadata array as dirty.
        assert!(costs[1..].iter().all(|cost| *cost == costs[1]), "{costs:?}");
    });
}

#[test]
fn a_file_that_was_open_without_a_name_goes_at_the_next_mount() {
    run(|rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); DISKS]);
        let fs = made(&rt, &all(&disks)).await;
        let ino = make(&fs, "gone").await;
        fs.begin_use(ino);
        fs.write(ino, 0, Frozen::copy_from(&[1; 5000])).await.expect("written");
        fs.unlink(ROOT, b"gone").await.expect("removed");
        assert_eq!(*fs.read(ino, 0, 5).await.expect("read"), [1; 5]);
        fs.sync().await.expect("synced");
        drop(fs);
        let media: Vec<Medium> = disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
        let disks = holding(&rt, &Power::new(), SIZE, &media);
        let fs = mount(&rt, &all(&disks)).await;
        fs.attr(ino).await.expect_err("it is gone");
        assert_eq!(fs.status().await.expect("known").inodes, 1);
        assert_sound(&fs).await;
        assert_eq!(Kind::of_mode(0o100_644), Kind::File);
    });
}
