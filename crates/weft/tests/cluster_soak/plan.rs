//! What happens in a round, and when: drawn from a seed, so that it can be had again.

use std::fmt;
use std::time::Duration;

use weft_testkit::Rng;

/// A machine, or whatever is the keeper at that moment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    Keeper,
    Machine(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `kill -9`; it is started again at the end.
    Kill,
    /// SIGTERM, as an administrator ends it.
    End,
    /// SIGSTOP, and SIGCONT at the end.
    Pause,
    /// No network until the end.
    Cut,
    /// What it sends to one other machine is lost until the end.
    CutOneWay,
    /// A slow network until the end.
    Slow,
    /// `weft fs evict`.
    Evict,
}

#[derive(Debug, Clone)]
pub struct Event {
    /// Since the round began.
    pub at: Duration,
    pub lasts: Duration,
    pub kind: Kind,
    pub target: Target,
    /// Draws what else is to be chosen.
    pub choice: u64,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = match &self.target {
            Target::Keeper => "the keeper",
            Target::Machine(name) => name,
        };
        let (at, lasts) = (self.at.as_secs_f32(), self.lasts.as_secs_f32());
        write!(f, "{at:5.1} s: {:?} {target} for {lasts:.1} s", self.kind)
    }
}

/// The machines of a cluster by what they do.
pub struct Machines<'a> {
    pub etcds: &'a [String],
    pub disks: &'a [String],
    /// Nodes that may die.
    pub nodes: &'a [String],
    pub can_cut: bool,
}

/// What may be in trouble at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Etcd,
    Disk,
    Keeper,
    Node,
}

/// What happens in a round of this length.
pub fn plan(rng: &mut Rng, length: Duration, machines: &Machines<'_>) -> Vec<Event> {
    let mut events: Vec<(Class, Event)> = Vec::new();
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).expect("short");
    let mut at = Duration::from_millis(1500 + rng.below(2000));
    let mut lost_disk = false;
    while at < length {
        let class = match rng.below(10) {
            0..=3 => Class::Keeper,
            4..=6 => Class::Node,
            7..=8 => Class::Etcd,
            _ => Class::Disk,
        };
        let names = match class {
            Class::Etcd => machines.etcds,
            Class::Disk => machines.disks,
            Class::Node => machines.nodes,
            Class::Keeper => &[],
        };
        let target = match names {
            [] => Target::Keeper,
            names => Target::Machine(names[rng.index(names.len())].clone()),
        };
        let mut kinds = match class {
            Class::Etcd => vec![Kind::Kill, Kind::End, Kind::Pause, Kind::Cut],
            Class::Disk => vec![Kind::Kill, Kind::Pause, Kind::Cut, Kind::Slow],
            Class::Keeper | Class::Node => vec![
                Kind::Kill,
                Kind::Kill,
                Kind::Pause,
                Kind::Pause,
                Kind::Cut,
                Kind::CutOneWay,
                Kind::Slow,
                Kind::Evict,
            ],
        };
        kinds.retain(|kind| {
            machines.can_cut || !matches!(kind, Kind::Cut | Kind::CutOneWay | Kind::Slow)
        });
        let kind = kinds[rng.index(kinds.len())];
        // A process waits half a minute for a disk. A minute is much longer than any lease.
        let seconds = match (class, rng.below(4)) {
            (Class::Disk, _) => 1 + rng.below(15),
            (_, 0) => 1 + rng.below(3),
            (_, 1 | 2) => 4 + rng.below(14),
            _ if kind == Kind::Pause => 60,
            _ => 20 + rng.below(10),
        };
        let lasts = Duration::from_millis(1000 * seconds + rng.below(1000));
        let choice = rng.next_u64();
        let next = at + Duration::from_millis(500 + rng.below(9000));
        let is_busy = |(of, event): &&(Class, Event)| {
            *of == class && event.at + event.lasts + Duration::from_secs(2) > at
        };
        let busy: Vec<&Event> = events.iter().filter(is_busy).map(|(_, event)| event).collect();
        let limit = match class {
            // Sometimes the majority is away, but not for long.
            Class::Etcd if millis(lasts) < 12_000 => 2,
            Class::Node => 2,
            _ => 1,
        };
        let is_same = busy.iter().any(|event| event.target == target);
        let is_second_loss = class == Class::Disk && kind == Kind::Kill && lost_disk;
        if busy.len() < limit && !is_same && !is_second_loss {
            lost_disk |= class == Class::Disk && kind == Kind::Kill;
            events.push((class, Event { at, lasts, kind, target, choice }));
        }
        at = next;
    }
    events.into_iter().map(|(_, event)| event).collect()
}
