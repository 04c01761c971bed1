//! Parts of jobs at other nodes: which nodes can do something, and what they were given.
//!
//! A node asks for a part of a job, with what came of the last one, and is answered when there is
//! one. So a node has one part at a time. A part whose node dies, or connects again without an
//! outcome, came to nothing: node 0 does it itself. What the node did of it is in the metadata, as
//! any change is, and doing it again changes nothing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use weft_rt::sync::{Receiver, Semaphore, Sender, oneshot};
use weft_token::NodeId;
use weft_wire::{Outcome, Task, Work, WorkDone};

/// What came of a part of a job, when that is known; none if it was not done.
pub(crate) type Awaited = Receiver<Option<Outcome>>;

/// A part that a node does, by its number, and who waits for what comes of it.
type GivenPart = (u64, Sender<Option<Outcome>>);

/// See the [module](self).
pub(crate) struct WorkDesk {
    parts: Cell<u64>,
    /// Nodes that wait for something to do.
    idle: RefCell<Vec<(NodeId, Sender<Work>)>>,
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
    /// A node can do something, and tells what came of its last part.
    pub(crate) fn ask(&self, node: NodeId, done: Option<WorkDone>) -> Receiver<Work> {
        let given = self.given.borrow_mut().remove(&node);
        if let Some((number, awaited)) = given {
            let its = done.filter(|done| done.number == number);
            awaited.send(its.and_then(|done| done.outcome));
        }
        let (sender, receiver) = oneshot();
        let mut idle = self.idle.borrow_mut();
        idle.retain(|(other, _)| other.number != node.number);
        idle.push((node, sender));
        receiver
    }

    /// A node is gone.
    pub(crate) fn forget(&self, node: NodeId) {
        self.idle.borrow_mut().retain(|(other, _)| *other != node);
        drop(self.given.borrow_mut().remove(&node));
    }

    /// How many nodes wait for something to do.
    pub(crate) fn idle(&self) -> usize {
        self.idle.borrow().len()
    }

    /// Gives a part of a job to a node that waits for one: there is one.
    pub(crate) fn give(&self, task: Task) -> Awaited {
        let number = self.parts.get() + 1;
        self.parts.set(number);
        let (sender, receiver) = oneshot();
        // In turns, if there are more nodes than parts.
        let (node, idle) = self.idle.borrow_mut().remove(0);
        drop(self.given.borrow_mut().insert(node, (number, sender)));
        idle.send(Work { number, task });
        receiver
    }
}

#[cfg(test)]
mod tests {
    use weft_wire::Checked;

    use super::*;

    const ONE: NodeId = NodeId { number: 1, epoch: 7 };
    const TASK: Task = Task::Check { from: (1, 0), to: (2, 0) };

    fn checked(number: u64) -> Option<WorkDone> {
        let outcome = Some(Outcome::Checked(Checked { blocks: number, ..Checked::default() }));
        Some(WorkDone { number, outcome })
    }

    #[test]
    fn an_outcome_is_taken_once_and_of_the_part_that_the_node_has() {
        let desk = WorkDesk::default();
        let mut asked = desk.ask(ONE, None);
        assert_eq!(desk.idle(), 1);
        let mut first = desk.give(TASK);
        assert_eq!(desk.idle(), 0);
        assert_eq!(asked.try_take().map(|work| work.number), Some(1));
        // The answer to this was lost with its connection, and the node asks again.
        let lost = desk.ask(ONE, checked(1));
        assert_eq!(first.try_take().flatten(), checked(1).and_then(|done| done.outcome));
        let mut second = desk.give(TASK);
        drop(lost);
        let mut again = desk.ask(ONE, checked(1));
        assert_eq!(second.try_take(), Some(None), "it never heard of the second one");
        let mut third = desk.give(TASK);
        assert_eq!(again.try_take().map(|work| work.number), Some(3));
        desk.forget(ONE);
        assert!(!third.is_ready() && third.try_take().is_none());
        let late = desk.ask(ONE, checked(3));
        desk.forget(ONE);
        assert_eq!(desk.idle(), 0);
        drop(late);
    }
}
