//! Locks of files, compared with a model that knows each byte.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use weft_random::Rng;
use weft_token::{
    FileLock, FileLocks, LockAnswer, LockFamily, LockOwner, LockRequest, LockedFile, Mode, NodeId,
};

const BYTES: u64 = 12;

fn owner(node: u16, number: u64) -> LockOwner {
    LockOwner { node: NodeId { number: node, epoch: 1 }, number }
}

fn lock(owner: LockOwner, bytes: Range<u64>, mode: Mode) -> FileLock {
    FileLock { owner, pid: 1, bytes, mode }
}

fn posix(ino: u64) -> LockedFile {
    LockedFile { family: LockFamily::Posix, ino }
}

/// What a lock of each byte is, by its owner; and requests in their order.
#[derive(Default)]
struct Model {
    held: BTreeMap<(LockedFile, u64, LockOwner), Mode>,
    waiting: Vec<(LockRequest, LockedFile, FileLock)>,
}

impl Model {
    fn owners_before(&self, file: LockedFile, lock: &FileLock) -> Vec<LockOwner> {
        let held = self.held.iter().filter(|((of, byte, owner), mode)| {
            *of == file
                && lock.bytes.contains(byte)
                && *owner != lock.owner
                && (**mode == Mode::Exclusive || lock.mode == Mode::Exclusive)
        });
        held.map(|((_, _, owner), _)| *owner).collect()
    }

    /// Whether an owner waits for another one in the end.
    fn waits_for(&self, from: LockOwner, to: LockOwner) -> bool {
        let mut reached = BTreeSet::from([from]);
        loop {
            let of = |(_, file, waiting): &(LockRequest, LockedFile, FileLock)| {
                let counts = file.family == LockFamily::Posix && reached.contains(&waiting.owner);
                if counts { self.owners_before(*file, waiting) } else { Vec::new() }
            };
            let more: Vec<LockOwner> = self.waiting.iter().flat_map(of).collect();
            let known = reached.len();
            reached.extend(more);
            if reached.contains(&to) || reached.len() == known {
                return reached.contains(&to);
            }
        }
    }

    fn add(&mut self, file: LockedFile, lock: &FileLock) {
        for byte in lock.bytes.clone() {
            self.held.insert((file, byte, lock.owner), lock.mode);
        }
    }

    fn remove(&mut self, file: LockedFile, owner: LockOwner, bytes: Range<u64>) {
        self.held
            .retain(|(of, byte, by), _| !(*of == file && *by == owner && bytes.contains(byte)));
    }

    fn advance(&mut self, granted: &mut Vec<LockRequest>) {
        while let Some(at) = self
            .waiting
            .iter()
            .position(|(_, file, waiting)| self.owners_before(*file, waiting).is_empty())
        {
            let (request, file, lock) = self.waiting.remove(at);
            self.add(file, &lock);
            granted.push(request);
        }
    }

    fn lock(
        &mut self,
        file: LockedFile,
        lock: FileLock,
        waits: Option<LockRequest>,
        granted: &mut Vec<LockRequest>,
    ) -> LockAnswer {
        if file.family == LockFamily::Flock && !self.owners_before(file, &lock).is_empty() {
            self.remove(file, lock.owner, lock.bytes.clone());
            self.advance(granted);
        }
        let before = self.owners_before(file, &lock);
        if before.is_empty() {
            self.add(file, &lock);
            self.advance(granted);
            return LockAnswer::Granted;
        }
        let Some(request) = waits else { return LockAnswer::Busy };
        let is_circle = before.iter().any(|before| self.waits_for(*before, lock.owner));
        if file.family == LockFamily::Posix && is_circle {
            return LockAnswer::Deadlock;
        }
        self.waiting.push((request, file, lock));
        LockAnswer::Waits
    }
}

#[test]
fn locks_are_what_the_model_says() {
    let (mut deadlocks, mut later) = (0, 0);
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let (mut locks, mut model) = (FileLocks::default(), Model::default());
        for number in 0..200 {
            let by = owner(*rng.pick(&[1, 2]), rng.below(3));
            let from = rng.below(BYTES);
            let (file, bytes) = match rng.chance(20) {
                true => (LockedFile { family: LockFamily::Flock, ino: 1 }, 0..BYTES),
                false => (posix(rng.below(2)), from..from + 1 + rng.below(BYTES - from)),
            };
            let (mut granted, mut expected) = (Vec::new(), Vec::new());
            match rng.below(10) {
                0..6 => {
                    let mode = if rng.chance(50) { Mode::Shared } else { Mode::Exclusive };
                    let waits = rng.chance(60);
                    // An owner waits for one lock at a time, as a thread does.
                    let is_waiting =
                        model.waiting.iter().any(|(_, _, waiting)| waiting.owner == by);
                    let request = LockRequest { node: by.node, number };
                    let request = (waits && !is_waiting).then_some(request);
                    let wanted = lock(by, bytes, mode);
                    let busy = locks.conflict(file, &wanted).is_some();
                    assert_eq!(busy, !model.owners_before(file, &wanted).is_empty());
                    let answer = locks.lock(file, wanted.clone(), request, &mut granted);
                    let right = model.lock(file, wanted, request, &mut expected);
                    assert_eq!(answer, right, "seed {seed}, {number}");
                    deadlocks += u64::from(answer == LockAnswer::Deadlock);
                }
                6..9 => {
                    locks.unlock(file, by, &bytes, &mut granted);
                    model.remove(file, by, bytes);
                    model.advance(&mut expected);
                }
                _ if rng.chance(80) => {
                    let Some((request, _, _)) = model.waiting.first().cloned() else { continue };
                    assert!(locks.cancel(request) && !locks.cancel(request));
                    model.waiting.remove(0);
                }
                _ => {
                    locks.end_node(by.node, &mut granted);
                    model.held.retain(|(_, _, owner), _| owner.node != by.node);
                    model.waiting.retain(|(request, _, _)| request.node != by.node);
                    model.advance(&mut expected);
                }
            }
            granted.sort_unstable();
            expected.sort_unstable();
            assert_eq!(granted, expected, "seed {seed}, {number}");
            later += granted.len();
            let mut held = BTreeMap::new();
            for node in [1, 2] {
                for (file, of) in locks.of_node(NodeId { number: node, epoch: 1 }) {
                    for byte in of.bytes.clone() {
                        assert_eq!(held.insert((file, byte, of.owner), of.mode), None);
                    }
                }
            }
            assert_eq!(held, model.held, "seed {seed}, {number}");
        }
    }
    assert!(deadlocks > 100 && later > 200, "{deadlocks} deadlocks, {later} granted later");
}

#[test]
fn a_new_keeper_hears_of_all_locks() {
    let mut locks = FileLocks::default();
    let mut granted = Vec::new();
    let (ours, theirs) = (owner(1, 5), owner(2, 5));
    locks.lock(posix(7), lock(ours, 0..10, Mode::Exclusive), None, &mut granted);
    locks.lock(posix(7), lock(ours, 3..5, Mode::Shared), None, &mut granted);
    locks.lock(posix(7), lock(theirs, 4..5, Mode::Shared), None, &mut granted);
    let mut next = FileLocks::default();
    for node in [theirs.node, ours.node] {
        for (file, lock) in locks.of_node(node) {
            assert!(next.restate(file, lock.clone()));
        }
    }
    assert_eq!(next.of_node(ours.node).count(), 3);
    // It comes again, with one lock less, for which another one has waited.
    let (third, request) = (owner(2, 9), LockRequest { node: theirs.node, number: 1 });
    let wanted = lock(third, 8..10, Mode::Shared);
    let answer = next.lock(posix(7), wanted, Some(request), &mut granted);
    assert_eq!((answer, &granted[..]), (LockAnswer::Waits, &[][..]));
    let held = vec![(posix(7), lock(ours, 0..3, Mode::Exclusive))];
    assert!(next.replace(ours.node, held.clone(), &mut granted));
    assert_eq!(granted, [request]);
    assert!(next.has(posix(7), third) && !next.has(posix(8), third));
    let held = vec![(posix(7), lock(theirs, 0..3, Mode::Shared))];
    assert!(!next.replace(theirs.node, held, &mut granted), "another node has it");
    let mut next = FileLocks::default();
    for node in [theirs.node, ours.node] {
        for (file, lock) in locks.of_node(node) {
            assert!(next.restate(file, lock.clone()));
        }
    }
    assert!(!next.restate(posix(7), lock(theirs, 0..1, Mode::Shared)), "another node has it");
    assert!(next.conflict(posix(7), &lock(owner(2, 9), 4..5, Mode::Shared)).is_none());
    let busy = lock(owner(2, 9), 4..6, Mode::Exclusive);
    assert!(next.conflict(posix(7), &busy).is_some());
}
