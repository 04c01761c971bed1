//! Several nodes on the same disks, each of which dies at a random moment, again and again: what it
//! has in memory is gone, and of each request that it has in flight a part reaches the disk. Then
//! it is fenced, node 0 recovers its log, and all that it had called durable is there; the node
//! mounts again. Node 0 dies as well, also in the middle of such a recovery, and nodes go on when
//! it is back. At the end the power fails for all of them, and one mount alone recovers all logs.
//!
//! Paths of single nodes to disks fail and come back: requests fail, and their writes may come
//! later. The node goes on through the keeper, and no disk is lost. A disk fails for all, or for
//! node 0.
//!
//! Jobs run meanwhile, of which all nodes carry out parts. Files get another redundancy.
//!
//! Nodes may commit early: what they sync is in the memory of node 0. If node 0 dies in the same
//! moment, what was synced since the last sync of everything may be gone, if the metadata says so.
//!
//! Files are written in random places, and synced at times: each by one node, or all by all. Each
//! sector has what was written there last, or, after a crash, at some time since it was synced. A
//! read sees what has been written before it. Parity must match everywhere.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use crate::common::cluster::node_0_at;
use crate::common::disk::{Medium, Power, TestDisk, holding};
use crate::common::links::Stream;
use crate::common::moments::drawn_leave;
use crate::common::network::{self, Network};
use crate::common::test_disks::{SIZE, blank, for_host};
use crate::common::*;
use weft_disk::Disk as _;
use weft_fs::{
    Fs, Ino, Job, META_CACHE_BYTES, NodeStatus, REDUNDANCY_XATTR, Redundancy, RemoteMetadata,
    create,
};
use weft_random::Rng;
use weft_rt::{MILLISECOND, Nanos, Rt};
use weft_testkit::for_seeds;
use weft_token::NodeId;
use weft_wire::{
    End, Frames, FromKeeper, Key, Part, Question, Restated, RowChange, Table, ToKeeper, VERSION,
};

const DISKS: usize = 5;
const SECTOR: usize = 512;
/// Sectors and redundancies of files. One is longer than what a node gets of it at a time.
const FILES: [(usize, &str); 3] = [(160, "raid5"), (160, "raid1"), (2600, "raid5")];

/// A rule that is broken, so that the test must find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Canary {
    None,
    /// The log of a dead node is empty.
    NotRecovered,
    /// The log of a dead node is recovered once more, after others have used its files.
    RecoveredTwice,
    /// The keeper has nothing of what it says that it has in memory.
    EarlyLost,
    /// The keeper does not hear that early commits are over.
    EarlyEndless,
}

/// What nodes do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Play {
    /// Whether all use the same files.
    is_shared: bool,
    /// Whether nodes commit early.
    is_early: bool,
    canary: Canary,
}

/// A write of some sectors of a file.
struct Write {
    version: u64,
    by: NodeId,
    begin: Nanos,
    /// When it had ended, or its node had died.
    end: Cell<Nanos>,
    is_synced: Cell<bool>,
    /// Whether the disks have had it since.
    is_on_disks: Cell<bool>,
    /// Whether its node has died before it was synced.
    may_be_lost: Cell<bool>,
}

impl Write {
    /// Whether this one is gone if the other one is there.
    fn is_before(&self, other: &Self) -> bool {
        self.end.get() < other.begin
    }
}

/// A file, and the writes of each of its sectors of which something may be left.
struct File {
    rt: Rt,
    ino: Ino,
    sectors: RefCell<Vec<Vec<Rc<Write>>>>,
    versions: Cell<u64>,
}

fn sector(ino: Ino, number: usize, version: u64) -> Vec<u8> {
    pattern(SECTOR, version << 24 | ino << 12 | number as u64)
}

impl File {
    fn new(rt: &Rt, ino: Ino, len: usize) -> Self {
        let first = Rc::new(Write {
            version: 0,
            by: NodeId { number: 0, epoch: 0 },
            begin: 0,
            end: Cell::new(0),
            is_synced: Cell::new(true),
            is_on_disks: Cell::new(true),
            may_be_lost: Cell::new(false),
        });
        let sectors = RefCell::new(vec![vec![first]; len]);
        Self { rt: rt.clone(), ino, sectors, versions: Cell::new(0) }
    }

    fn len(&self) -> usize {
        self.sectors.borrow().len()
    }

    fn draw_range(&self, rng: &mut Rng) -> Range<usize> {
        let from = rng.index(self.len());
        let most = if rng.chance(20) { 160 } else { 20 };
        from..(from + 1 + rng.index(most)).min(self.len())
    }

    /// Writes a random part of it.
    async fn write_some(&self, (by, fs): (NodeId, &Fs), rng: &mut Rng) -> Rc<Write> {
        let range = self.draw_range(rng);
        let version = self.versions.get() + 1;
        self.versions.set(version);
        let write = Rc::new(Write {
            version,
            by,
            begin: self.rt.now(),
            end: Cell::new(Nanos::MAX),
            is_synced: Cell::new(false),
            is_on_disks: Cell::new(false),
            may_be_lost: Cell::new(false),
        });
        let bytes: Vec<u8> = range.clone().flat_map(|n| sector(self.ino, n, version)).collect();
        let at = (range.start * SECTOR) as u64;
        self.sectors.borrow_mut()[range].iter_mut().for_each(|of| of.push(write.clone()));
        self::write(fs, self.ino, at, &bytes).await;
        write.end.set(self.rt.now());
        write
    }

    /// What a node has written is there from now on. If it commits early, all that it syncs may be
    /// in memory; a sync of everything is not.
    async fn sync(&self, fs: &Fs, written: &mut Vec<Rc<Write>>, is_whole: bool) {
        match is_whole {
            true => fs.sync().await.expect("synced"),
            false => fs.fsync(self.ino).await.expect("synced"),
        }
        let is_on_disks = is_whole || !fs.early_status().is_on;
        for write in &*written {
            write.is_synced.set(true);
            write.is_on_disks.set(is_on_disks);
        }
        if !is_on_disks {
            return;
        }
        written.clear();
        for of in &mut *self.sectors.borrow_mut() {
            let there: Vec<_> = of.iter().filter(|of| of.is_on_disks.get()).cloned().collect();
            of.retain(|write| !there.iter().any(|later| write.is_before(later)));
        }
    }

    /// A node has died.
    fn note_death(&self, id: NodeId) {
        for write in self.sectors.borrow().iter().flatten().filter(|write| write.by == id) {
            write.end.set(write.end.get().min(self.rt.now()));
            write.may_be_lost.set(!write.is_on_disks.get());
        }
    }

    /// A node that has died was recovered. What it had committed early is there, or is lost.
    fn note_recovery(&self, id: NodeId, is_lost: bool) {
        for write in self.sectors.borrow().iter().flatten().filter(|write| write.by == id) {
            let is_there = write.is_on_disks.get() || write.is_synced.get() && !is_lost;
            write.is_synced.set(is_there);
            write.is_on_disks.set(is_there);
            write.may_be_lost.set(!is_there);
        }
    }

    /// Reads a random part of it, while others write.
    async fn read_some(&self, fs: &Fs, rng: &mut Rng) {
        let (range, begin) = (self.draw_range(rng), self.rt.now());
        let before: Vec<_> = self.sectors.borrow()[range.clone()].to_vec();
        let (at, len) = ((range.start * SECTOR) as u64, range.len() * SECTOR);
        let found = fs.read(self.ino, at, len).await.expect("read");
        for ((n, bytes), before) in range.zip(found.chunks(SECTOR)).zip(before) {
            let now = self.sectors.borrow()[n].clone();
            let all = || now.iter().chain(&before);
            // Those that have ended before this read began, and cannot be lost.
            let counts = |write: &&Rc<Write>| write.end.get() < begin && !write.may_be_lost.get();
            let is_right = |write: &Rc<Write>| {
                sector(self.ino, n, write.version) == bytes
                    && !all().filter(counts).any(|later| write.is_before(later))
            };
            let version = (0..=self.versions.get()).find(|of| sector(self.ino, n, *of) == bytes);
            let ino = self.ino;
            assert!(all().any(is_right), "sector {n} of inode {ino} has version {version:?}");
        }
    }

    /// Works on it until the node dies.
    async fn work(self: Rc<Self>, rt: Rt, (id, fs): (NodeId, Fs), seed: u64) {
        let (mut rng, mut written) = (Rng::new(seed), Vec::new());
        loop {
            match rng.below(4) {
                0 => self.read_some(&fs, &mut rng).await,
                _ => written.push(self.write_some((id, &fs), &mut rng).await),
            }
            if rng.chance(30) {
                let is_whole = fs.early_status().is_on && rng.chance(10);
                self.sync(&fs, &mut written, is_whole).await;
            }
            if rng.chance(30) {
                rt.sleep(rng.below(5 * MILLISECOND)).await;
            }
        }
    }

    /// The writes of each sector at this moment, and whether what they wrote, or something later,
    /// must be there.
    fn written(&self, must_be_there: impl Fn(&Write) -> bool) -> Vec<Vec<(Rc<Write>, bool)>> {
        let noted = |write: &Rc<Write>| (write.clone(), must_be_there(write));
        self.sectors.borrow().iter().map(|of| of.iter().map(noted).collect()).collect()
    }

    /// Fails if anything is there that must not be, by what was written at some moment.
    async fn check_by(&self, fs: &Fs, written: &[Vec<(Rc<Write>, bool)>], what: &str) {
        let (ino, found) = (self.ino, read_all(fs, self.ino).await);
        assert_eq!(found.len(), self.len() * SECTOR, "{what}: inode {ino}");
        for (n, (bytes, writes)) in found.chunks(SECTOR).zip(written).enumerate() {
            let is_gone = |write: &Write| {
                writes.iter().any(|(later, is_there)| *is_there && write.is_before(later))
            };
            let is_it = |(write, _): &(Rc<Write>, bool)| {
                sector(ino, n, write.version) == bytes && !is_gone(write)
            };
            if !writes.iter().any(is_it) {
                let any = (0..=self.versions.get()).find(|of| sector(ino, n, *of) == bytes);
                let of: Vec<u64> = writes.iter().map(|(write, _)| write.version).collect();
                panic!("{what}: sector {n} of inode {ino}: {any:?}, and not of {of:?}");
            }
        }
    }

    /// Fails if anything is there that must not be. No node writes it, and what is there stays.
    async fn check(&self, fs: &Fs, what: &str) {
        self.check_by(fs, &self.written(|write| write.is_synced.get()), what).await;
        let found = read_all(fs, self.ino).await;
        for ((n, of), bytes) in
            self.sectors.borrow_mut().iter_mut().enumerate().zip(found.chunks(SECTOR))
        {
            of.retain(|write| sector(self.ino, n, write.version) == bytes);
            of[0].is_synced.set(true);
            of[0].is_on_disks.set(true);
        }
    }
}

/// A node that runs.
struct Running {
    id: NodeId,
    rt: Rt,
    /// Whether one of its tasks has failed.
    failed: Rc<Cell<bool>>,
    fs: Fs,
    disks: Vec<Rc<TestDisk>>,
}

/// Where the tasks of a node run, and whether one has failed.
fn domain(rt: &Rt) -> (Rt, Rc<Cell<bool>>) {
    let failed = Rc::new(Cell::new(false));
    let flag = failed.clone();
    (rt.domain(move || flag.set(true)), failed)
}

struct World {
    rt: Rt,
    rng: Rc<RefCell<Rng>>,
    network: Rc<Network>,
    media: Vec<Rc<TestDisk>>,
    hosts: Cell<u64>,
    nodes: Rc<RefCell<BTreeMap<u16, Running>>>,
    /// Whether a disk was to be lost.
    has_failed: Cell<bool>,
    /// The files of each node, or those that all of them use.
    files: BTreeMap<u16, Vec<Rc<File>>>,
    play: Play,
    /// How often a node has lost what it had committed early.
    losses: Cell<u64>,
}

impl World {
    async fn new(rt: &Rt, seed: u64, play: Play) -> Self {
        let media = blank(rt, DISKS);
        create(rt, &all(&media), &options()).await.expect("created");
        let broken = match play.canary {
            Canary::EarlyLost => network::Canary::EarlyLost,
            Canary::EarlyEndless => network::Canary::EarlyEndless,
            _ => network::Canary::None,
        };
        let network = Network::new(rt, options().id, META_CACHE_BYTES, seed, broken);
        let mut world = Self {
            rt: rt.clone(),
            rng: Rc::new(RefCell::new(Rng::new(seed))),
            network,
            media,
            hosts: Cell::new(1),
            nodes: Rc::default(),
            has_failed: Cell::new(false),
            files: BTreeMap::new(),
            play,
            losses: Cell::new(0),
        };
        world.start_0(&[]).await;
        let fs = world.fs_0();
        for node in 0..if play.is_shared { 1 } else { 3 } {
            let mut files = Vec::new();
            for (n, (len, redundancy)) in FILES.iter().enumerate() {
                let ino = make_as(&fs, &format!("{node} {n}"), redundancy).await;
                let bytes: Vec<u8> = (0..*len).flat_map(|n| sector(ino, n, 0)).collect();
                write(&fs, ino, 0, &bytes).await;
                files.push(Rc::new(File::new(rt, ino, *len)));
            }
            world.files.insert(node, files);
        }
        fs.sync().await.expect("synced");
        world
    }

    fn draw(&self, below: u64) -> u64 {
        self.rng.borrow_mut().below(below)
    }

    fn chance(&self, percent: u64) -> bool {
        self.draw(100) < percent
    }

    /// The files that a node uses.
    fn files_of(&self, number: u16) -> &[Rc<File>] {
        &self.files[&if self.play.is_shared { 0 } else { number }]
    }

    fn fs_0(&self) -> Fs {
        self.nodes.borrow()[&0].fs.clone()
    }

    /// The disks for a host that was never there.
    fn host(&self, rt: &Rt) -> (u64, Vec<Rc<TestDisk>>) {
        let host = self.hosts.get();
        self.hosts.set(host + 1);
        (host, for_host(rt, &self.media, host))
    }

    fn add(&self, running: Running) {
        self.nodes.borrow_mut().insert(running.id.number, running);
    }

    /// Node 0 mounts, beside the nodes that live.
    async fn start_0(&self, expected: &[NodeId]) {
        let (rt, failed) = domain(&self.rt);
        let (epoch, disks) = self.host(&rt);
        let id = NodeId { number: 0, epoch };
        let mounting = (epoch, mounting_by(epoch));
        let fs = node_0_at(&rt, &all(&disks), &self.network, mounting).await;
        fs.serve_nodes(&self.network.keeper(), expected);
        let (nodes, rng) = (self.nodes.clone(), self.rng.clone());
        let clock = rt.clone();
        fs.cut_paths_by(move |node, name| {
            let (nodes, rng, clock) = (nodes.clone(), rng.clone(), clock.clone());
            async move {
                let time = rng.borrow_mut().below(5 * MILLISECOND);
                clock.sleep(time).await;
                let nodes = nodes.borrow();
                // One that is dead has nothing in flight.
                let running = nodes.get(&node.number).filter(|running| running.id == node);
                for disk in running.iter().flat_map(|running| &running.disks) {
                    if disk.info().name == name {
                        disk.faults.gone.set(true);
                        disk.end_writes(|sectors| rng.borrow_mut().below(sectors + 1));
                    }
                }
                true
            }
        });
        self.add(Running { id, rt, failed, fs, disks });
    }

    async fn start(&self, number: u16) {
        let (rt, failed) = domain(&self.rt);
        let (epoch, disks) = self.host(&rt);
        let (way, node) = (self.network.clone(), NodeId { number, epoch });
        let remote = RemoteMetadata { node, way };
        let mounted = Fs::mount_node(&rt, &all(&disks), mounting_by(epoch), remote).await;
        let fs = mounted.expect("mounted");
        if self.play.is_early {
            let early = fs.clone();
            let begun = rt.spawn(async move { early.begin_early_commits().await });
            begun.await.expect("it is not node 0");
        }
        self.add(Running { id: node, rt, failed, fs, disks });
    }

    /// Lets a node work on its files.
    fn work(&self, number: u16) {
        let nodes = self.nodes.borrow();
        let Running { id, rt, fs, .. } = &nodes[&number];
        for file in self.files_of(number) {
            let working = file.clone().work(rt.clone(), (*id, fs.clone()), self.draw(u64::MAX));
            drop(rt.spawn(working));
        }
    }

    /// A node dies where it stands, and no disk takes anything of it any more.
    fn die(&self, number: u16) -> NodeId {
        let Running { id, rt, failed, fs, disks } =
            self.nodes.borrow_mut().remove(&number).expect("it runs");
        assert!(!failed.get(), "node {number} has failed");
        rt.fail_domain();
        drop(fs);
        for disk in &disks {
            disk.end_writes(|sectors| self.draw(sectors + 1));
        }
        self.files.values().flatten().for_each(|file| file.note_death(id));
        id
    }

    /// Node 0 dies with its keeper, and another one comes.
    async fn restart_0(&self) {
        self.network.kill().await;
        self.die(0);
        let living = self.nodes.borrow().values().map(|node| node.id).collect::<Vec<_>>();
        self.start_0(&living).await;
    }

    /// Node 0 is back, and all nodes that have died are recovered: it goes on.
    async fn go_on(&self) {
        if !self.play.is_shared {
            for file in self.files_of(0) {
                file.check(&self.fs_0(), "node 0").await;
            }
        }
        self.work(0);
    }

    /// Paths of single nodes to disks fail, or come back.
    fn change_paths(&self) {
        for running in self.nodes.borrow().values().filter(|running| running.id.number != 0) {
            for disk in &running.disks {
                let fails = match disk.faults.cut.get() {
                    true => self.chance(60),
                    false => self.chance(15),
                };
                disk.faults.cut.set(fails);
            }
        }
    }

    /// Something happens to the network, or a disk fails: for node 0 or for all that run now, and
    /// all do without it. Returns whether a disk has failed.
    fn trouble(&self, may_fail: bool) -> bool {
        if self.chance(30) {
            self.network.cut();
        }
        if self.play.canary == Canary::None {
            self.change_paths();
        }
        let fails = may_fail && self.chance(20);
        let nodes = self.nodes.borrow();
        if fails {
            self.has_failed.set(true);
            let disk = self.draw(DISKS as u64) as usize;
            let is_for_all = self.chance(50);
            for running in nodes.values().filter(|of| is_for_all || of.id.number == 0) {
                running.disks[disk].faults.gone.set(true);
            }
        }
        // All nodes carry out parts of a job.
        let (rt, fs) = (nodes[&0].rt.clone(), nodes[&0].fs.clone());
        if !may_fail && self.chance(30) {
            drop(rt.spawn(async move { drop(fs.rebuild().await) }));
        } else if self.play.canary == Canary::None && self.chance(20) {
            let job = [Job::Scrub, Job::Balance, Job::Set][self.draw(3) as usize];
            let file = self.draw(FILES.len() as u64) as usize;
            let inos: Vec<Ino> = self.files.values().map(|files| files[file].ino).collect();
            let redundancy = ["raid1", "raid5", "raid6"][self.draw(3) as usize];
            drop(rt.spawn(async move {
                if job == Job::Set {
                    let redundancy = redundancy.parse().expect("known");
                    drop(fs.want_redundancy(&inos, redundancy).await);
                }
                if let Ok(running) = fs.begin_job(job) {
                    drop(running.await);
                }
            }));
        }
        fails
    }

    /// The log of a node is as if nothing had ever been written to it.
    async fn empty_log(&self, id: NodeId) {
        let nodes = self.fs_0().nodes().await.expect("known");
        let is_it = |node: &&NodeStatus| node.node.number == id.number;
        let log = nodes.iter().find(is_it).expect("it has a log").log.clone();
        for copy in log {
            let disk = &self.media[usize::from(copy.disk)];
            let label = weft_fs::Label::read(&**disk).await.expect("readable").expect("a label");
            for run in copy.blocks {
                let zeros = vec![0; ((run.end - run.start) * BLOCK) as usize];
                let at = label.data().start + run.start * BLOCK;
                disk.medium.borrow_mut().poke(at, &zeros);
            }
        }
    }

    async fn recover(&self, id: NodeId) {
        if self.play.canary == Canary::NotRecovered {
            self.empty_log(id).await;
        }
        let mark = match self.play.canary {
            Canary::RecoveredTwice => Some(self.mark_of(id.number).await),
            _ => None,
        };
        self.network.keeper().fence(id).await.expect("durable");
        let restarts = self.chance(30);
        if restarts {
            // Node 0 dies meanwhile.
            let (rt, fs) = (self.nodes.borrow()[&0].rt.clone(), self.fs_0());
            drop(rt.spawn(async move { fs.recover_node(id).await }));
            self.rt.sleep(self.draw(10 * MILLISECOND)).await;
            self.restart_0().await;
        }
        self.fs_0().recover_node(id).await.expect("recovered");
        self.note_recovery(id).await;
        if restarts {
            self.go_on().await;
        }
        if self.play.is_shared {
            return;
        }
        let files = self.files_of(id.number);
        for file in files {
            file.check(&self.fs_0(), &format!("node {}", id.number)).await;
        }
        if self.chance(50) || mark.is_some() {
            // Node 0 uses them as well.
            let mut rng = Rng::new(self.draw(u64::MAX));
            for file in files {
                let own = (self.nodes.borrow()[&0].id, &self.fs_0());
                let write = file.write_some(own, &mut rng).await;
                file.sync(&self.fs_0(), &mut vec![write], false).await;
            }
        }
        if let Some(mark) = mark {
            self.revive_log(id, mark).await;
            self.fs_0().recover_node(id).await.expect("recovered");
            for file in files {
                file.check(&self.fs_0(), &format!("node {}", id.number)).await;
            }
        }
    }

    /// What a dead node had committed early is there, or the metadata says that it may not be.
    async fn note_recovery(&self, id: NodeId) {
        if !self.play.is_early {
            return;
        }
        let nodes = self.fs_0().nodes().await.expect("known");
        let of_node = nodes.iter().find(|of| of.node.number == id.number).expect("it has a log");
        let is_lost = of_node.lost_early_commits == Some(id.epoch);
        self.losses.set(self.losses.get() + u64::from(is_lost));
        self.files.values().flatten().for_each(|file| file.note_recovery(id, is_lost));
    }

    /// After the power failed for all.
    async fn check_all(&self, what: &str) {
        let leave = drawn_leave(&mut self.rng.borrow_mut(), 6);
        let left: Vec<Medium> =
            self.media.iter().map(|disk| disk.medium.borrow().clone()).collect();
        // The nodes go on meanwhile, and sync what they have written: that does not count.
        let on_disks = |write: &Write| write.is_on_disks.get();
        let files = self.files.values().flatten();
        let files: Vec<_> = files.map(|file| (file, file.written(on_disks))).collect();
        let rt = self.rt.domain(|| {});
        let disks = holding(&rt, &Power::new(), SIZE, &left_of_all(leave, &left));
        let fs = mount(&rt, &all(&disks)).await;
        for (file, written) in files {
            file.check_by(&fs, &written, what).await;
        }
        // Redundancy would hide a write that has come late.
        let wrong = fs.status().await.expect("known").counts.wrong_blocks;
        assert_eq!(wrong, 0, "{what}");
        self.lay_out_waiting(&fs, what).await;
        assert_sound(&fs).await;
        rt.fail_domain();
    }

    /// All files have the redundancy that was wanted once those are laid out that wait for that.
    async fn lay_out_waiting(&self, fs: &Fs, what: &str) {
        let ended = fs.begin_job(Job::Set).expect("nothing else runs").await;
        assert!(ended.is_ok(), "{what}: {ended:?}");
        for file in self.files.values().flatten() {
            let name = fs.xattr(file.ino, REDUNDANCY_XATTR).await.expect("known");
            let wanted: Redundancy = String::from_utf8_lossy(&name).parse().expect("known");
            let spec = wanted.coded(DISKS).map(|of| of.spec);
            for (first, record) in fs.places(file.ino).await.expect("known") {
                let coded = record.coded;
                let inode = file.ino;
                assert_eq!(Some(coded.spec), spec, "{what}: block {first} of inode {inode}");
            }
        }
    }
}

/// Rows of the state that say where the log of a node starts.
fn mark_rows(number: u16) -> [String; 3] {
    ["completed", "log", "live log"].map(|what| format!("{what} of node {number}"))
}

fn state_key(name: &str) -> Key<'static> {
    Key::named(0, name.as_bytes()).into_owned()
}

/// A node that asks the keeper what it wants.
struct Speaker {
    stream: Rc<dyn Stream>,
    frames: Frames,
}

impl Speaker {
    async fn new(network: &Network, epoch: u64) -> (Self, u64) {
        use crate::common::links::Connector as _;
        let stream = network.connect().await.expect("connected");
        let mut speaker = Self { stream, frames: Frames::default() };
        let node = NodeId { number: 99, epoch };
        let hello = ToKeeper::Hello { version: VERSION, file_system: options().id, node };
        match speaker.tell(hello).await {
            FromKeeper::Welcome { next_batch, .. } => {
                let nothing = Restated { is_last: true, ..Restated::default() };
                let said = ToKeeper::Restate(nothing).to_bytes();
                speaker.stream.write(said).await.expect("sent");
                (speaker, next_batch)
            }
            other => panic!("{other:?}"),
        }
    }

    async fn tell(&mut self, message: ToKeeper) -> FromKeeper {
        self.stream.write(message.to_bytes()).await.expect("sent");
        self.next().await
    }

    async fn next(&mut self) -> FromKeeper {
        loop {
            match FromKeeper::next(&mut self.frames).expect("sound") {
                Some(message) => return message,
                None => {
                    let bytes = self.stream.read().await.expect("bytes");
                    assert!(!bytes.is_empty(), "the keeper has ended the connection");
                    self.frames.push(&bytes);
                }
            }
        }
    }

    async fn ask(&mut self, question: Question) -> weft_wire::Answer {
        self.stream.write(ToKeeper::Ask { number: 1, question }.to_bytes()).await.expect("sent");
        loop {
            match self.next().await {
                FromKeeper::Answer { answer, .. } => return answer,
                FromKeeper::Room(_) | FromKeeper::LostDisks(_) | FromKeeper::Capacity(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

impl World {
    /// Where the log of a node starts, as the metadata has it.
    async fn mark_of(&self, number: u16) -> Vec<RowChange> {
        let (mut speaker, _) = Speaker::new(&self.network, self.hosts.get()).await;
        let mut rows = Vec::new();
        for name in mark_rows(number) {
            let (table, key) = (Table::State, state_key(&name));
            match speaker.ask(Question::Row { table, key: key.clone() }).await {
                weft_wire::Answer::Row(value) => rows.push(RowChange { table, key, value }),
                other => panic!("{other:?}"),
            }
        }
        rows.sort_by(|one, other| one.key.cmp(&other.key));
        rows
    }

    /// The log of a node starts there again.
    async fn revive_log(&self, _: NodeId, rows: Vec<RowChange>) {
        let (mut speaker, batch) = Speaker::new(&self.network, self.hosts.get()).await;
        speaker.ask(Question::Part(Part { batch, rows })).await;
        speaker.ask(Question::End(End { batch, is_last: false })).await;
    }
}

/// Returns how often a node died, and how often it lost what it had committed early.
fn lives(seed: u64, play: Play) -> (u64, u64) {
    let count = Rc::new(Cell::new((0, 0)));
    let (counted, canary) = (count.clone(), play.canary);
    run(move |rt| async move {
        let mut deaths = 0;
        let world = World::new(&rt, seed, play).await;
        world.work(0);
        for number in 1..3 {
            world.start(number).await;
            world.work(number);
        }
        let mut may_fail = canary == Canary::None;
        for _ in 0..6 {
            rt.sleep(world.draw(60 * MILLISECOND)).await;
            may_fail &= !world.trouble(may_fail);
            let number = 1 + world.draw(2) as u16;
            if canary == Canary::None && world.chance(25) {
                world.restart_0().await;
                world.go_on().await;
                continue;
            }
            let id = world.die(number);
            deaths += 1;
            world.recover(id).await;
            if canary == Canary::None && world.chance(30) {
                world.check_all(&format!("after the death of node {number}")).await;
            }
            world.start(number).await;
            world.work(number);
        }
        let status = world.fs_0().status().await.expect("known");
        let is_any_lost = status.disks.iter().any(|disk| disk.lost);
        assert!(world.has_failed.get() || !is_any_lost, "{:?}", status.disks);
        world.check_all("at the end").await;
        counted.set((deaths, world.losses.get()));
    });
    count.get()
}

fn many_lives(is_shared: bool, is_early: bool) {
    let counts = Cell::new((0, 0, 0));
    for_seeds(0..8, |rng| {
        let (seeds, deaths, losses) = counts.get();
        let play = Play { is_shared, is_early, canary: Canary::None };
        let (died, lost) = lives(rng.next_u64(), play);
        counts.set((seeds + 1, deaths + died, losses + lost));
    });
    let (seeds, deaths, losses) = counts.get();
    assert!(seeds < 8 || deaths > 2 * seeds, "{deaths}");
    // Only if the keeper died as well.
    assert!(seeds < 8 || losses < deaths / 2, "{losses} of {deaths}");
}

#[test]
fn what_a_node_has_synced_is_there_when_it_was_recovered() {
    many_lives(false, false);
}

#[test]
fn nodes_that_die_leave_files_of_all_as_they_were_synced() {
    many_lives(true, false);
}

#[test]
fn what_a_node_has_committed_early_is_there_when_it_was_recovered() {
    many_lives(false, true);
}

#[test]
fn nodes_that_commit_early_leave_files_of_all_as_they_were_synced() {
    many_lives(true, true);
}

fn is_caught(canary: Canary) {
    let is_early = matches!(canary, Canary::EarlyLost | Canary::EarlyEndless);
    let play = Play { is_shared: false, is_early, canary };
    let is_found = |seed: &u64| catch_unwind(AssertUnwindSafe(|| lives(*seed, play))).is_err();
    let seed = (0..20).find(is_found).expect("it was not found out");
    eprintln!("{canary:?} found out by seed {seed}");
}

#[test]
fn a_log_that_is_not_recovered_is_caught() {
    is_caught(Canary::NotRecovered);
}

#[test]
fn a_log_that_is_recovered_twice_is_caught() {
    is_caught(Canary::RecoveredTwice);
}

#[test]
fn early_commits_that_the_keeper_does_not_have_are_caught() {
    is_caught(Canary::EarlyLost);
}

#[test]
fn early_commits_that_never_end_are_caught() {
    is_caught(Canary::EarlyEndless);
}
