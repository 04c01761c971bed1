//! What must hold: no block is written by an incarnation whose fence was confirmed, each sector and
//! each name is a register, and an appended record is where it was appended. What was synced stays.
//!
//! A *life* is a process from its start to its end. It is *doomed* from when it is killed or
//! expelled: what it reads does not count any more, and what it wrote and did not sync may be lost.
//! It is *gone* when its log is recovered: then its last write has ended.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use weft_cluster::{Epoch, Incarnation, NodeName};
use weft_fs::{FsError, Job, JobReport};
use weft_rt::{Nanos, Rt};

/// A write of some registers.
pub struct Write<V> {
    pub value: V,
    pub life: u64,
    pub begin: Nanos,
    /// When it had ended, if it has.
    pub end: Cell<Nanos>,
    pub is_synced: Cell<bool>,
}

/// The writes of which something may be left.
pub type Register<V> = RefCell<Vec<Rc<Write<V>>>>;

#[derive(Default)]
struct Life {
    incarnation: Option<Incarnation>,
    may_keep: bool,
    doomed: Option<Nanos>,
    gone: Option<Nanos>,
}

/// What happened, by what it is called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    pub takeovers: u64,
    pub recoveries: u64,
    pub fences: u64,
    pub expelled: u64,
    pub killed: u64,
    /// Keepers that were killed before they served.
    pub killed_in_takeover: u64,
    /// Processes that ended in order, before others.
    pub left: u64,
    /// Members that a user evicted.
    pub evicted: u64,
    /// Processes that stood still just before they sent a request to a disk.
    pub pauses: u64,
    /// Paths to disks that were cut off: their nodes went on through the keeper.
    pub relayed: u64,
    /// Servers of disks that ended, and were started again.
    pub restarts: u64,
    /// Of these, with their machines' power.
    pub power_losses: u64,
    /// Disks that were lost, or were to leave.
    pub lost: u64,
    /// Disks that left, empty.
    pub rebuilt: u64,
    /// Jobs of which nodes did a part.
    pub parts: u64,
    /// Scrubs that came to their end.
    pub scrubs: u64,
    /// Balances that came to their end.
    pub balances: u64,
    /// Files that were laid out anew.
    pub sets: u64,
    /// Disks that came back.
    pub added: u64,
    /// Disks that nodes have opened when they joined.
    pub opened: u64,
    pub writes: u64,
    pub reads: u64,
    pub syncs: u64,
    pub names: u64,
    pub appends: u64,
}

impl Counts {
    pub fn list(&self) -> [(&'static str, u64); 25] {
        [
            ("takeovers", self.takeovers),
            ("recoveries", self.recoveries),
            ("fences", self.fences),
            ("expelled", self.expelled),
            ("killed", self.killed),
            ("killed_in_takeover", self.killed_in_takeover),
            ("left", self.left),
            ("evicted", self.evicted),
            ("pauses", self.pauses),
            ("relayed", self.relayed),
            ("restarts", self.restarts),
            ("power_losses", self.power_losses),
            ("lost", self.lost),
            ("rebuilt", self.rebuilt),
            ("parts", self.parts),
            ("scrubs", self.scrubs),
            ("balances", self.balances),
            ("sets", self.sets),
            ("added", self.added),
            ("opened", self.opened),
            ("writes", self.writes),
            ("reads", self.reads),
            ("syncs", self.syncs),
            ("names", self.names),
            ("appends", self.appends),
        ]
    }
}

pub struct Oracle {
    rt: Rt,
    lives: RefCell<Vec<Life>>,
    /// The highest epoch of each node whose fence each disk has confirmed.
    fenced: RefCell<BTreeMap<(usize, NodeName), Epoch>>,
    violations: RefCell<Vec<String>>,
    pub counts: RefCell<Counts>,
    /// Disks that were lost, for whichever reason.
    lost: RefCell<BTreeSet<usize>>,
    pub story: RefCell<Vec<String>>,
}

/// What is printed as it happens, by `WEFT_STORY`: 1 what happens to machines, 2 what programs do
/// as well, 3 all messages between nodes and keepers.
pub fn told() -> u64 {
    std::env::var("WEFT_STORY").ok().and_then(|level| level.parse().ok()).unwrap_or(0)
}

impl Oracle {
    pub fn new(rt: &Rt) -> Rc<Self> {
        Rc::new(Self {
            rt: rt.clone(),
            lives: RefCell::default(),
            fenced: RefCell::default(),
            violations: RefCell::default(),
            counts: RefCell::default(),
            lost: RefCell::default(),
            story: RefCell::default(),
        })
    }

    pub fn tell(&self, text: String) {
        let line = format!("{:>9} {text}", self.rt.now() / 1_000_000);
        if told() > 0 {
            eprintln!("{line}");
        }
        self.story.borrow_mut().push(line);
    }

    pub fn violate(&self, text: String) {
        self.tell(format!("VIOLATION {text}"));
        self.violations.borrow_mut().push(text);
    }

    pub fn violations(&self) -> Vec<String> {
        self.violations.borrow().clone()
    }

    pub fn has_failed(&self) -> bool {
        !self.violations.borrow().is_empty()
    }

    pub fn lose(&self, disk: usize) {
        if self.lost.borrow_mut().insert(disk) {
            self.counts.borrow_mut().lost += 1;
            self.tell(format!("disk {disk} is lost"));
        }
    }

    pub fn lost(&self) -> BTreeSet<usize> {
        self.lost.borrow().clone()
    }

    /// A job of the file system has ended.
    pub fn job(&self, job: Job, ended: &Result<JobReport, FsError>) {
        self.tell(format!("{job:?}: {ended:?}"));
        let Ok(report) = ended else { return };
        let mut counts = self.counts.borrow_mut();
        let elsewhere = match report {
            JobReport::Moved(report) => {
                counts.rebuilt += report.removed_disks.len() as u64;
                report.elsewhere_blocks
            }
            JobReport::Scrubbed(report) => {
                counts.scrubs += 1;
                report.elsewhere_blocks
            }
            JobReport::Balanced(report) => {
                counts.balances += 1;
                report.elsewhere_blocks
            }
            JobReport::Set(report) => {
                counts.sets += 1;
                report.elsewhere_blocks
            }
        };
        counts.parts += u64::from(elsewhere > 0);
        drop(counts);
        let damaged = match report {
            JobReport::Moved(report) => !report.damaged.is_empty(),
            JobReport::Scrubbed(report) => report.damaged_files > 0 || report.metadata_damaged > 0,
            JobReport::Balanced(report) => !report.damaged.is_empty(),
            JobReport::Set(_) => false,
        };
        if damaged && self.lost().len() <= 1 {
            self.violate(format!("{job:?} has lost something: {report:?}"));
        }
    }

    pub fn begin_life(&self, may_keep: bool) -> u64 {
        self.lives.borrow_mut().push(Life { may_keep, ..Life::default() });
        self.lives.borrow().len() as u64 - 1
    }

    pub fn joined(&self, life: u64, incarnation: &Incarnation) {
        self.lives.borrow_mut()[life as usize].incarnation = Some(incarnation.clone());
    }

    pub fn doom(&self, life: u64) {
        self.lives.borrow_mut()[life as usize].doomed.get_or_insert_with(|| self.rt.now());
    }

    /// A member was expelled.
    pub fn expelled(&self, incarnation: &Incarnation) {
        self.tell(format!("expelled: {incarnation}"));
        self.counts.borrow_mut().expelled += 1;
        let life = self.life_of(incarnation);
        life.into_iter().for_each(|life| self.doom(life));
    }

    fn life_of(&self, incarnation: &Incarnation) -> Option<u64> {
        let lives = self.lives.borrow();
        let is_it = |life: &Life| life.incarnation.as_ref() == Some(incarnation);
        lives.iter().position(is_it).map(|life| life as u64)
    }

    /// A node's log was recovered.
    pub fn recovered(&self, incarnation: &Incarnation) {
        self.counts.borrow_mut().recoveries += 1;
        if let Some(life) = self.life_of(incarnation) {
            self.doom(life);
            self.lives.borrow_mut()[life as usize].gone.get_or_insert_with(|| self.rt.now());
        }
    }

    /// A keeper has mounted: those before it are gone.
    pub fn keeps(&self, own: u64) {
        self.counts.borrow_mut().takeovers += 1;
        for (number, life) in self.lives.borrow_mut().iter_mut().enumerate() {
            if life.may_keep && number as u64 != own && life.doomed.is_some() {
                life.gone.get_or_insert_with(|| self.rt.now());
            }
        }
    }

    pub fn is_doomed(&self, life: u64) -> bool {
        self.lives.borrow()[life as usize].doomed.is_some()
    }

    /// A disk has confirmed a fence.
    pub fn fenced(&self, disk: usize, victim: &Incarnation) {
        self.counts.borrow_mut().fences += 1;
        let mut fenced = self.fenced.borrow_mut();
        let bound = fenced.entry((disk, victim.node.clone())).or_default();
        *bound = victim.epoch.max(*bound);
    }

    /// A block has reached a disk.
    pub fn effect(&self, disk: usize, author: &Incarnation) {
        let fenced = self.fenced.borrow();
        if fenced.get(&(disk, author.node.clone())).is_some_and(|bound| author.epoch <= *bound) {
            self.violate(format!("{author} wrote to disk {disk}, which had confirmed its fence"));
        }
    }

    fn end_of<V>(&self, write: &Write<V>) -> Nanos {
        let gone = self.lives.borrow()[write.life as usize].gone;
        write.end.get().min(gone.unwrap_or(Nanos::MAX))
    }

    fn may_be_lost<V>(&self, write: &Write<V>) -> bool {
        !write.is_synced.get() && self.is_doomed(write.life)
    }

    /// Whether one is gone if the other one is there.
    fn is_before<V>(&self, one: &Write<V>, other: &Write<V>) -> bool {
        self.end_of(one) < other.begin
    }

    /// A write begins, of these registers.
    pub fn begin<V>(&self, value: V, life: u64, registers: &[Register<V>]) -> Rc<Write<V>> {
        let write = Rc::new(Write {
            value,
            life,
            begin: self.rt.now(),
            end: Cell::new(Nanos::MAX),
            is_synced: Cell::new(false),
        });
        registers.iter().for_each(|register| register.borrow_mut().push(write.clone()));
        write
    }

    /// What was there at first.
    pub fn first<V>(value: V) -> Rc<Write<V>> {
        let (end, is_synced) = (Cell::new(0), Cell::new(true));
        Rc::new(Write { value, life: 0, begin: 0, end, is_synced })
    }

    pub fn end<V>(&self, write: &Write<V>) {
        write.end.set(self.rt.now());
    }

    /// What was written before a sync began is there.
    pub fn synced<V>(&self, written: &mut Vec<Rc<Write<V>>>) {
        self.counts.borrow_mut().syncs += 1;
        written.drain(..).for_each(|write| write.is_synced.set(true));
    }

    /// Forgets writes over which others have gone that are synced.
    pub fn prune<V>(&self, register: &Register<V>) {
        let of = register.borrow().clone();
        let synced: Vec<_> = of.iter().filter(|write| write.is_synced.get()).collect();
        let is_left = |write: &Rc<Write<V>>| !synced.iter().any(|by| self.is_before(write, by));
        register.borrow_mut().retain(is_left);
    }

    /// Whether a read that began at a time may have found this: `before` is the register as it was
    /// then.
    pub fn may_read<V>(
        &self,
        begin: Nanos,
        before: &[Rc<Write<V>>],
        register: &Register<V>,
        is_it: impl Fn(&V) -> bool,
    ) -> bool {
        let now = register.borrow();
        let all = || now.iter().chain(before);
        let counts = |write: &&Rc<Write<V>>| self.end_of(write) < begin && !self.may_be_lost(write);
        all().any(|write| {
            is_it(&write.value) && !all().filter(counts).any(|by| self.is_before(write, by))
        })
    }
}
