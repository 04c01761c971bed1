//! Parts of jobs at other nodes: which nodes can do something, and what they were given.
//!
//! A node asks for a part of a job, with what came of the last one, and is answered when there is
//! one. So a node has one part at a time. A part whose node dies, or connects again without an
//! outcome, came to nothing: node 0 does it itself. What the node did of it is in the metadata, as
//! any change is, and doing it again changes nothing.
//!
//! A node of an earlier version is not given what it does not know ([`Task::version`]).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use weft_rt::sync::{Receiver, Semaphore, Sender, oneshot};
use weft_token::NodeId;
use weft_wire::{DiskBlocks, Outcome, Task, Work, WorkDone};

/// What came of a part of a job, when that is known; none if it was not done.
pub(crate) type Awaited = Receiver<Option<Outcome>>;

/// A node that waits for something to do.
struct IdleNode {
    node: NodeId,
    /// The version of messages that it speaks.
    version: u16,
    gets: Sender<Work>,
}

/// A part that a node does.
struct GivenPart {
    number: u64,
    /// The share of each disk's free blocks that it has for that ([`Task::Even`]).
    share: Vec<DiskBlocks>,
    /// Who waits for what comes of it.
    awaited: Sender<Option<Outcome>>,
}

/// See the [module](self).
pub(crate) struct WorkDesk {
    parts: Cell<u64>,
    idle: RefCell<Vec<IdleNode>>,
    /// What other nodes do.
    given: RefCell<BTreeMap<NodeId, GivenPart>>,
    /// At the other end: held while this node does something for node 0.
    pub(crate) working: Semaphore,
}

impl Default for WorkDesk {
    fn default() -> Self {
        Self {
            parts: Cell::new(0),
            idle: RefCell::default(),
            given: RefCell::default(),
            working: Semaphore::new(1),
        }
    }
}

impl WorkDesk {
    /// A node that speaks this version can do something, and tells what came of its last part.
    pub(crate) fn ask(
        &self,
        (node, version): (NodeId, u16),
        done: Option<WorkDone>,
    ) -> Receiver<Work> {
        let given = self.given.borrow_mut().remove(&node);
        if let Some(GivenPart { number, awaited, .. }) = given {
            let its = done.filter(|done| done.number == number);
            awaited.send(its.and_then(|done| done.outcome));
        }
        let (gets, receiver) = oneshot();
        let mut idle = self.idle.borrow_mut();
        idle.retain(|other| other.node.number != node.number);
        idle.push(IdleNode { node, version, gets });
        receiver
    }

    /// A node is gone.
    pub(crate) fn forget(&self, node: NodeId) {
        self.idle.borrow_mut().retain(|other| other.node != node);
        drop(self.given.borrow_mut().remove(&node));
    }

    /// How many nodes that know tasks of this version wait for something to do.
    pub(crate) fn idle(&self, version: u16) -> usize {
        self.idle.borrow().iter().filter(|node| node.version >= version).count()
    }

    /// Gives a part of a job to a node that waits for one, and knows it: there is one.
    pub(crate) fn give(&self, task: Task) -> Awaited {
        let number = self.parts.get() + 1;
        self.parts.set(number);
        let (awaited, receiver) = oneshot();
        // In turns, if there are more nodes than parts.
        let mut idle = self.idle.borrow_mut();
        let at = idle.iter().position(|node| node.version >= task.version());
        let IdleNode { node, gets, .. } = idle.remove(at.expect("a node that knows it waits"));
        drop(idle);
        let share = match &task {
            Task::Even { free, .. } => free.clone(),
            Task::Move { .. } | Task::Check { .. } | Task::Lay { .. } => Vec::new(),
        };
        drop(self.given.borrow_mut().insert(node, GivenPart { number, share, awaited }));
        gets.send(Work { number, task });
        receiver
    }

    /// The free blocks of each disk that nodes have as their shares, also for parts for which
    /// nobody waits any more.
    pub(crate) fn shares(&self) -> BTreeMap<u16, u64> {
        let mut shares = BTreeMap::new();
        for DiskBlocks { disk, blocks } in self.given.borrow().values().flat_map(|of| &of.share) {
            *shares.entry(*disk).or_default() += blocks;
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use weft_wire::{Checked, FIRST_VERSION, VERSION};

    use super::*;

    const ONE: NodeId = NodeId { number: 1, epoch: 7 };
    const TWO: NodeId = NodeId { number: 2, epoch: 8 };
    const TASK: Task = Task::Check { from: (1, 0), to: (2, 0) };

    fn checked(number: u64) -> Option<WorkDone> {
        let outcome = Some(Outcome::Checked(Checked { blocks: number, ..Checked::default() }));
        Some(WorkDone { number, outcome })
    }

    #[test]
    fn an_outcome_is_taken_once_and_of_the_part_that_the_node_has() {
        let desk = WorkDesk::default();
        let ask = |done| desk.ask((ONE, FIRST_VERSION), done);
        let mut asked = ask(None);
        assert_eq!(desk.idle(FIRST_VERSION), 1);
        let mut first = desk.give(TASK);
        assert_eq!(desk.idle(FIRST_VERSION), 0);
        assert_eq!(asked.try_take().map(|work| work.number), Some(1));
        // The answer to this was lost with its connection, and the node asks again.
        let lost = ask(checked(1));
        assert_eq!(first.try_take().flatten(), checked(1).and_then(|done| done.outcome));
        let mut second = desk.give(TASK);
        drop(lost);
        let mut again = ask(checked(1));
        assert_eq!(second.try_take(), Some(None), "it never heard of the second one");
        let mut third = desk.give(TASK);
        assert_eq!(again.try_take().map(|work| work.number), Some(3));
        desk.forget(ONE);
        assert!(!third.is_ready() && third.try_take().is_none());
        let late = ask(checked(3));
        desk.forget(ONE);
        assert_eq!(desk.idle(FIRST_VERSION), 0);
        drop(late);
    }

    #[test]
    fn a_node_gets_only_what_its_version_knows_and_its_share_counts_until_it_asks_again() {
        let desk = WorkDesk::default();
        let mut older = desk.ask((ONE, FIRST_VERSION), None);
        let mut newer = desk.ask((TWO, VERSION), None);
        let even = Task::Even { free: vec![DiskBlocks { disk: 3, blocks: 9 }], files: vec![5] };
        assert_eq!((desk.idle(FIRST_VERSION), desk.idle(even.version())), (2, 1));
        let given = desk.give(even.clone());
        assert_eq!(newer.try_take().map(|work| work.task), Some(even.clone()));
        assert!(older.try_take().is_none());
        assert_eq!((desk.idle(FIRST_VERSION), desk.idle(even.version())), (1, 0));
        // Who gave it does not wait any more.
        drop(given);
        assert_eq!(desk.shares(), [(3, 9)].into());
        drop(desk.ask((TWO, VERSION), None));
        assert_eq!(desk.shares(), [].into());
        drop(desk.give(TASK));
        assert_eq!(older.try_take().map(|work| work.task), Some(TASK));
    }
}
