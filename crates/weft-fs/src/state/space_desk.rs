//! Node 0's account of the blocks that other nodes have.
//!
//! Blocks that were granted are taken in the map of node 0, as those of files are. Which of them
//! are whose is not written down anywhere: a node uses them, others free them. What is known is how
//! many free blocks a node said it has, for reports.
//!
//! *A node dies.* After its log is recovered, node 0 takes the token of everything exclusively. To
//! return theirs, the other nodes give back all free blocks that they have. Then the blocks that no
//! record names are free ([`crate::mount::free_blocks`]).
//!
//! *Node 0 dies.* The next one works out its map from the records. Before it grants or takes any
//! block, all nodes that may be alive have stated which they have, or were fenced and recovered.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use weft_rt::sync::{Notify, Semaphore};
use weft_token::NodeId;
use weft_wire::{DiskBlocks, GiveBack, Run};

use crate::disks::granted_space::Spaces;
use crate::meta::desk::AskBack;

/// A node as the desk knows it.
struct Customer {
    /// Its last wish, and what it got.
    last: Option<(u64, Vec<Run>)>,
    next_give_back: u64,
    /// Free blocks of each disk that it has.
    has: BTreeMap<u16, u64>,
    /// The last round in which it has given back what it did not need.
    round: u64,
    ask_back: Option<AskBack>,
    /// Held while a wish is answered.
    turn: Rc<Semaphore>,
}

/// See the [module](self).
pub(crate) struct SpaceDesk {
    nodes: RefCell<BTreeMap<NodeId, Customer>>,
    rounds: Cell<u64>,
    /// Told when something was given back.
    given_back: Notify,
    /// Nodes that may have blocks, and have not stated which.
    expected: RefCell<BTreeSet<NodeId>>,
    /// Told when one of them has, or is gone.
    stated: Notify,
}

impl Default for SpaceDesk {
    fn default() -> Self {
        Self {
            nodes: RefCell::default(),
            rounds: Cell::new(0),
            given_back: Notify::default(),
            expected: RefCell::default(),
            stated: Notify::default(),
        }
    }
}

fn counts_of(has: &[DiskBlocks]) -> BTreeMap<u16, u64> {
    has.iter().map(|of| (of.disk, of.blocks)).collect()
}

impl SpaceDesk {
    /// These nodes may have blocks of a former node 0.
    pub(crate) fn expect(&self, nodes: &[NodeId]) {
        self.expected.borrow_mut().extend(nodes);
    }

    /// Whether it is known which blocks are free.
    pub(crate) fn knows_all(&self) -> bool {
        self.expected.borrow().is_empty()
    }

    /// Waits until it is known which blocks are free, for those who take some without a token.
    pub(crate) async fn known(&self) {
        loop {
            let stated = self.stated.wait();
            if self.knows_all() {
                return;
            }
            stated.await;
        }
    }

    fn expect_no_more(&self, node: NodeId) {
        let is_over = |other: &NodeId| other.number == node.number && other.epoch <= node.epoch;
        self.expected.borrow_mut().retain(|other| !is_over(other));
        self.stated.notify_all();
    }

    /// A node states which blocks it has: they are taken. It is new here, or comes on a new
    /// connection.
    pub(crate) fn restated(
        &self,
        node: NodeId,
        (runs, next_give_back): (&[Run], u64),
        spaces: &Spaces<'_>,
    ) {
        for run in runs {
            let Some((_, space)) = spaces.iter().find(|(disk, _)| *disk == run.disk) else {
                continue;
            };
            let mut space = space.borrow_mut();
            let blocks = run.blocks.min(space.blocks().saturating_sub(run.start));
            // Those of records are taken already.
            space.take_free(run.start, blocks);
        }
        let mut nodes = self.nodes.borrow_mut();
        nodes.retain(|other, _| other.number != node.number || other.epoch == node.epoch);
        let of = nodes.entry(node).or_insert_with(|| Customer {
            last: None,
            next_give_back,
            has: BTreeMap::new(),
            round: 0,
            ask_back: None,
            turn: Rc::new(Semaphore::new(1)),
        });
        if of.has.is_empty() {
            for run in runs {
                *of.has.entry(run.disk).or_default() += run.blocks;
            }
        }
        drop(nodes);
        self.expect_no_more(node);
    }

    /// How a node is asked to give blocks back.
    pub(crate) fn reached(&self, node: NodeId, ask_back: AskBack) {
        if let Some(of) = self.nodes.borrow_mut().get_mut(&node) {
            of.ask_back = Some(ask_back);
        }
    }

    /// What is held while a wish of a node is answered; none if it is not known.
    pub(crate) fn turn(&self, node: NodeId) -> Option<Rc<Semaphore>> {
        self.nodes.borrow().get(&node).map(|of| of.turn.clone())
    }

    /// What a node got for this wish before, if it is the last one.
    pub(crate) fn granted_before(&self, node: NodeId, number: u64) -> Option<Vec<Run>> {
        let nodes = self.nodes.borrow();
        let (last, runs) = nodes.get(&node)?.last.as_ref()?;
        (*last == number).then(|| runs.clone())
    }

    /// A node gets these for a wish. It had so many before. `false`: it is not known any more, and
    /// gets nothing.
    pub(crate) fn grant(
        &self,
        node: NodeId,
        number: u64,
        has: &[DiskBlocks],
        runs: &[Run],
    ) -> bool {
        let mut nodes = self.nodes.borrow_mut();
        let Some(of) = nodes.get_mut(&node) else { return false };
        of.has = counts_of(has);
        for run in runs {
            *of.has.entry(run.disk).or_default() += run.blocks;
        }
        of.last = Some((number, runs.to_vec()));
        true
    }

    /// A node gives blocks back. `false` if it is not known, or what it gives cannot be.
    pub(crate) fn take_back(&self, node: NodeId, given: &GiveBack, spaces: &Spaces<'_>) -> bool {
        let mut nodes = self.nodes.borrow_mut();
        let Some(of) = nodes.get_mut(&node) else { return false };
        if given.number < of.next_give_back {
            return true;
        }
        for run in &given.runs {
            let Some((_, space)) = spaces.iter().find(|(disk, _)| *disk == run.disk) else {
                continue;
            };
            let mut space = space.borrow_mut();
            // What is free cannot be given back.
            if run.start + run.blocks > space.blocks()
                || space.first_free(run.start, run.blocks).is_some()
            {
                return false;
            }
            space.release(run.start, run.blocks);
        }
        of.next_give_back = given.number + 1;
        of.has = counts_of(&given.has);
        of.round = of.round.max(given.round);
        drop(nodes);
        self.given_back.notify_all();
        true
    }

    /// A node is dead, or gone.
    pub(crate) fn forget(&self, node: NodeId) {
        self.nodes.borrow_mut().remove(&node);
        self.given_back.notify_all();
        self.expect_no_more(node);
    }

    /// A node that said last that it has free blocks, if there is one.
    pub(crate) fn any_with_blocks(&self) -> Option<NodeId> {
        let nodes = self.nodes.borrow();
        let has_any = |of: &Customer| of.has.values().any(|blocks| *blocks > 0);
        nodes.iter().find(|(_, of)| has_any(of)).map(|(node, _)| *node)
    }

    /// Whether any node is known.
    pub(crate) fn has_nodes(&self) -> bool {
        !self.nodes.borrow().is_empty()
    }

    /// Free blocks of a disk that nodes have, but for one.
    pub(crate) fn at_nodes(&self, disk: u16, but: Option<NodeId>) -> u64 {
        let nodes = self.nodes.borrow();
        let others = nodes.iter().filter(|(node, _)| but != Some(**node));
        others.map(|(_, of)| of.has.get(&disk).copied().unwrap_or(0)).sum()
    }

    /// Asks all nodes but one to give back what they do not need. Returns the number of the round,
    /// and how many were asked.
    pub(crate) fn ask_all_back(&self, but: Option<NodeId>) -> (u64, usize) {
        let round = self.rounds.get() + 1;
        self.rounds.set(round);
        let nodes = self.nodes.borrow();
        let others = nodes.iter().filter(|(node, _)| but != Some(**node));
        let asked: Vec<AskBack> = others.filter_map(|(_, of)| of.ask_back.clone()).collect();
        drop(nodes);
        (round, asked.into_iter().filter(|ask_back| ask_back(round)).count())
    }

    /// How many nodes have answered a round.
    pub(crate) fn answered(&self, round: u64) -> usize {
        self.nodes.borrow().values().filter(|of| of.round >= round).count()
    }

    /// Completes when something is given back.
    pub(crate) fn given_back(&self) -> impl Future<Output = ()> + '_ {
        self.given_back.wait()
    }
}
