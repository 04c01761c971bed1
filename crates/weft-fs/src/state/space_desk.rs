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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use weft_random::Rng;
    use weft_testkit::for_seeds;
    use weft_wire::RoomWish;

    use super::*;
    use crate::disks::free_map::Space;
    use crate::disks::granted_space::Stock;
    use crate::format::extent;

    const DISKS: u16 = 2;
    const BLOCKS: u64 = 3000;

    fn spaces(of: &[RefCell<Space>]) -> Vec<(u16, &RefCell<Space>)> {
        (0..).zip(of).collect()
    }

    /// Changes of a node that are to become durable together.
    #[derive(Debug, Clone, Default)]
    struct Batch {
        named: Vec<extent::Run>,
        freed: Vec<extent::Run>,
    }

    /// A node: node 0, or another one with its stock.
    struct Node {
        id: NodeId,
        stock: Option<Stock>,
        spaces: Vec<RefCell<Space>>,
        /// Taken, and in no batch yet.
        taken: Vec<extent::Run>,
        open: Batch,
        /// A batch on its way, and whether it is durable: the node does not know.
        frozen: Option<(Batch, bool)>,
        /// A grant on its way.
        coming: Vec<Run>,
    }

    impl Node {
        fn new(id: NodeId) -> Self {
            let space = |_| match id.number {
                0 => Space::new(BLOCKS),
                _ => Space::granted(BLOCKS),
            };
            Self {
                id,
                stock: (id.number > 0).then(|| Stock::new(100)),
                spaces: (0..DISKS).map(|disk| RefCell::new(space(disk))).collect(),
                taken: Vec::new(),
                open: Batch::default(),
                frozen: None,
                coming: Vec::new(),
            }
        }

        fn freed(&self) -> Vec<extent::Run> {
            let frozen = self.frozen.iter().flat_map(|(batch, _)| batch.freed.clone());
            frozen.chain(self.open.freed.clone()).collect()
        }

        /// What was frozen is durable, and the node knows.
        fn end_batch(&mut self) {
            let Some((batch, _)) = self.frozen.take() else { return };
            for run in batch.named {
                self.spaces[usize::from(run.disk)].borrow_mut().settle(run.start, run.blocks);
            }
            for run in batch.freed {
                self.spaces[usize::from(run.disk)].borrow_mut().release(run.start, run.blocks);
            }
        }
    }

    /// A rule that is broken, so that the test must find out.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Canary {
        None,
        /// Nodes do not state what they free.
        FreedUnstated,
        /// Nodes do not state what no durable record names yet.
        TakenUnstated,
        /// Nodes take grants although they have stated since what they have.
        LateGrant,
        /// A repeated give back counts again.
        RepeatedGiveBack,
    }

    /// What is durable, and who is there.
    struct World {
        canary: Canary,
        rng: Rng,
        desk: SpaceDesk,
        nodes: Vec<Node>,
        /// Runs that durable records name, and that no node is about to remove.
        files: Vec<extent::Run>,
        epochs: u64,
    }

    impl World {
        fn new(seed: u64, canary: Canary) -> Self {
            let nodes = (0..4).map(|number| Node::new(NodeId { number, epoch: 1 })).collect();
            let world = Self {
                canary,
                rng: Rng::new(seed),
                desk: SpaceDesk::default(),
                nodes,
                files: Vec::new(),
                epochs: 1,
            };
            (1..4).for_each(|n| world.restate(n));
            world
        }

        fn restate(&self, n: usize) {
            let node = &self.nodes[n];
            let stock = node.stock.as_ref().expect("of another node");
            let is_stated = self.canary != Canary::FreedUnstated;
            let freed = node.freed().into_iter().filter(|_| is_stated);
            if self.canary == Canary::TakenUnstated {
                for space in &node.spaces {
                    space.borrow_mut().settle(0, BLOCKS);
                }
            }
            let (runs, next) = stock.state(&spaces(&node.spaces), freed);
            let next = if self.canary == Canary::RepeatedGiveBack { 0 } else { next };
            let keeper = spaces(&self.nodes[0].spaces);
            self.desk.restated(node.id, (&runs, next), &keeper);
        }

        /// A frozen batch becomes durable.
        fn store(&mut self, n: usize) {
            if let Some((batch, is_durable)) = &mut self.nodes[n].frozen
                && !std::mem::replace(is_durable, true)
            {
                self.files.extend(batch.named.iter().copied());
            }
        }

        fn commit(&mut self, n: usize) {
            self.store(n);
            self.nodes[n].end_batch();
            self.nodes[n].frozen = Some((std::mem::take(&mut self.nodes[n].open), false));
            self.store(n);
            self.nodes[n].end_batch();
        }

        /// Sends the wish of a node that waits for an answer, which may be lost.
        fn send_wish(&mut self, n: usize, is_answered: bool) {
            let stock = self.nodes[n].stock.as_ref().expect("of another node");
            let Some((wish, statements)) = stock.wish() else { return };
            let RoomWish { number, wanted, has, .. } = wish;
            let id = self.nodes[n].id;
            let runs = self.desk.granted_before(id, number).unwrap_or_else(|| {
                let mut runs = Vec::new();
                for DiskBlocks { disk, blocks } in &wanted {
                    let space = &self.nodes[0].spaces[usize::from(*disk)];
                    let taken = space.borrow_mut().grant(*blocks, 9);
                    runs.extend(taken.into_iter().map(|run| Run {
                        disk: *disk,
                        start: run.start,
                        blocks: run.end - run.start,
                    }));
                }
                assert!(self.desk.grant(id, number, &has, &runs), "it is known");
                runs
            });
            let node = &mut self.nodes[n];
            node.coming.clone_from(&runs);
            // It may state what it has before it looks at the answer.
            match self.rng.below(10) {
                0 if is_answered => self.restate(n),
                1 if is_answered => self.die(0),
                _ => {}
            }
            let node = &mut self.nodes[n];
            let stock = node.stock.as_ref().expect("of another node");
            let statements = match self.canary {
                Canary::LateGrant => stock.wish().map_or(0, |(_, now)| now),
                _ => statements,
            };
            if is_answered && stock.take_grant(&spaces(&node.spaces), &runs, statements).is_some() {
                node.coming.clear();
            }
        }

        fn send_back(&mut self, n: usize, is_answered: bool) {
            let node = &self.nodes[n];
            let stock = node.stock.as_ref().expect("of another node");
            let Some(given) = stock.give_back() else { return };
            let keeper = spaces(&self.nodes[0].spaces);
            assert!(self.desk.take_back(node.id, &given, &keeper), "{given:?}");
            if is_answered {
                stock.end_give_back();
            }
        }

        /// All nodes but 0 give back what they have.
        fn return_all(&mut self) {
            for n in 1..self.nodes.len() {
                while self.nodes[n].stock.as_ref().is_some_and(|stock| stock.wish().is_some()) {
                    self.send_wish(n, true);
                }
                let taken = std::mem::take(&mut self.nodes[n].taken);
                self.nodes[n].open.named.extend(taken);
                self.commit(n);
                loop {
                    self.send_back(n, true);
                    let node = &self.nodes[n];
                    let stock = node.stock.as_ref().expect("of another node");
                    let is_all = stock.begin_give_back(&spaces(&node.spaces), |_| 0, 7);
                    self.send_back(n, true);
                    if is_all {
                        break;
                    }
                }
            }
        }

        /// Node 0 works out which blocks are free.
        fn find_free(&mut self) {
            let fresh: Vec<_> = (0..DISKS).map(|_| RefCell::new(Space::new(BLOCKS))).collect();
            // What a node is about to remove is still there.
            let doomed = self.nodes.iter().flat_map(|node| {
                let frozen = node.frozen.iter().filter(|(_, is_durable)| !is_durable);
                let frozen = frozen.flat_map(|(batch, _)| batch.freed.clone());
                frozen.chain(node.open.freed.clone()).collect::<Vec<_>>()
            });
            for run in self.files.iter().copied().chain(doomed) {
                let mut space = fresh[usize::from(run.disk)].borrow_mut();
                assert!(space.take(run.start, run.blocks), "{run:?} has one owner");
            }
            self.nodes[0].spaces = fresh;
        }

        /// A node dies. Its batch may be durable, or not.
        fn die(&mut self, n: usize) {
            if self.rng.chance(50) {
                self.store(n);
            }
            self.epochs += 1;
            let id = NodeId { number: self.nodes[n].id.number, epoch: self.epochs };
            let dead = std::mem::replace(&mut self.nodes[n], Node::new(id));
            let kept = match dead.frozen {
                Some((_, true)) | None => Vec::new(),
                Some((batch, false)) => batch.freed,
            };
            self.files.extend(kept.into_iter().chain(dead.open.freed));
            if n == 0 {
                self.desk = SpaceDesk::default();
                self.find_free();
                (1..self.nodes.len()).for_each(|n| self.restate(n));
                return;
            }
            self.desk.forget(dead.id);
            self.restate(n);
            self.reclaim();
        }

        fn reclaim(&mut self) {
            self.return_all();
            let taken = std::mem::take(&mut self.nodes[0].taken);
            self.nodes[0].open.named.extend(taken);
            self.commit(0);
            let before: Vec<_> = self.nodes[0].spaces.clone();
            self.find_free();
            for (before, after) in before.iter().zip(&self.nodes[0].spaces) {
                let mut before = before.borrow_mut();
                for run in after.borrow().own_runs().iter() {
                    before.take_free(run.start, run.end - run.start);
                }
                assert_eq!(before.free_blocks(), 0, "nothing was free that is not");
            }
            let free: u64 = self.nodes[0].spaces.iter().map(|of| of.borrow().free_blocks()).sum();
            let used: u64 = self.files.iter().map(|run| run.blocks).sum();
            assert_eq!(free + used, u64::from(DISKS) * BLOCKS, "no block is lost");
        }

        /// Each block has one owner at most.
        fn check(&self) {
            let blocks = usize::try_from(BLOCKS).expect("few");
            let mut owned = vec![vec![false; blocks]; usize::from(DISKS)];
            let mut own = |run: extent::Run, whose: &str| {
                for at in run.start..run.start + run.blocks {
                    let of = &mut owned[usize::from(run.disk)][usize::try_from(at).expect("few")];
                    assert!(!std::mem::replace(of, true), "{at} of {} is {whose} too", run.disk);
                }
            };
            self.files.iter().for_each(|run| own(*run, "of a file"));
            for node in &self.nodes {
                for run in &node.taken {
                    own(*run, "taken");
                }
                for run in &node.open.named {
                    own(*run, "named soon");
                }
                if let Some((batch, false)) = &node.frozen {
                    batch.named.iter().for_each(|run| own(*run, "named soon"));
                }
                node.freed().into_iter().for_each(|run| own(run, "freed soon"));
                for (disk, space) in spaces(&node.spaces) {
                    let mut free = space.borrow().clone();
                    let unsettled = space.borrow().own_runs();
                    for run in unsettled.iter() {
                        for at in run.clone().filter(|at| free.take(*at, 1)) {
                            own(extent::Run { disk, start: at, blocks: 1 }, "free");
                        }
                    }
                }
                let known = |run: &&Run| {
                    let keeper = &self.nodes[0].spaces[usize::from(run.disk)];
                    keeper.borrow().first_free(run.start, run.blocks).is_none()
                };
                let wish = node.stock.as_ref().and_then(|stock| stock.wish());
                let granted =
                    wish.and_then(|(wish, _)| self.desk.granted_before(node.id, wish.number));
                for run in granted.iter().flatten().filter(known) {
                    let Run { disk, start, blocks } = *run;
                    own(extent::Run { disk, start, blocks }, "granted");
                }
            }
        }

        fn step(&mut self) {
            let n = self.rng.index(self.nodes.len());
            let is_answered = self.rng.chance(70);
            let disk = u16::try_from(self.rng.below(u64::from(DISKS))).expect("few");
            match self.rng.below(20) {
                0..6 => {
                    let blocks = 1 + self.rng.below(64);
                    let space = &self.nodes[n].spaces[usize::from(disk)];
                    let start = space.borrow_mut().allocate(blocks);
                    let run = start.map(|start| extent::Run { disk, start, blocks });
                    self.nodes[n].taken.extend(run);
                }
                6..9 => {
                    let some = self.rng.index(self.nodes[n].taken.len() + 1);
                    let some: Vec<_> = self.nodes[n].taken.drain(..some).collect();
                    self.nodes[n].open.named.extend(some);
                }
                9..12 if !self.files.is_empty() => {
                    let at = self.rng.index(self.files.len());
                    let run = self.files.swap_remove(at);
                    self.nodes[n].open.freed.push(run);
                }
                12 => {
                    // What was not written after all.
                    if let Some(run) = self.nodes[n].taken.pop() {
                        let space = &self.nodes[n].spaces[usize::from(run.disk)];
                        space.borrow_mut().release(run.start, run.blocks);
                    }
                }
                13 if self.nodes[n].frozen.is_none() => {
                    self.nodes[n].frozen = Some((std::mem::take(&mut self.nodes[n].open), false));
                }
                13 => self.store(n),
                14 => self.commit(n),
                15 | 16 if n > 0 => {
                    let node = &self.nodes[n];
                    let stock = node.stock.as_ref().expect("of another node");
                    if stock.wish().is_none() {
                        let wanted = vec![DiskBlocks { disk, blocks: 1 + self.rng.below(300) }];
                        stock.begin_wish(&spaces(&node.spaces), wanted, false);
                    }
                    self.send_wish(n, is_answered);
                }
                17 if n > 0 => {
                    let kept = self.rng.below(200);
                    let node = &self.nodes[n];
                    let stock = node.stock.as_ref().expect("of another node");
                    if stock.give_back().is_none() {
                        stock.begin_give_back(&spaces(&node.spaces), |_| kept, 0);
                    }
                    if self.rng.chance(80) {
                        self.send_back(n, is_answered);
                    }
                }
                18 if n > 0 => self.restate(n),
                19 if self.rng.chance(30) => self.die(n),
                _ => {}
            }
        }
    }

    /// Random grants, give backs, commits, lost messages, deaths of nodes and of node 0: no block
    /// has two owners, and none is lost after the free blocks were worked out again.
    #[test]
    fn blocks_have_one_owner_and_none_is_lost() {
        for_seeds(0..15, |rng| live(rng.next_u64(), Canary::None));
    }

    fn live(seed: u64, canary: Canary) {
        let mut world = World::new(seed, canary);
        for _ in 0..600 {
            world.step();
            world.check();
        }
        world.reclaim();
    }

    #[test]
    fn a_rule_that_is_broken_is_found_out() {
        for canary in [
            Canary::FreedUnstated,
            Canary::TakenUnstated,
            Canary::LateGrant,
            Canary::RepeatedGiveBack,
        ] {
            let is_found = |seed| catch_unwind(AssertUnwindSafe(|| live(seed, canary))).is_err();
            assert!((0..30).any(is_found), "{canary:?}");
        }
    }

    #[test]
    fn a_repeated_message_changes_nothing_and_what_is_free_is_not_taken_back() {
        let desk = SpaceDesk::default();
        let (node, keeper) = (NodeId { number: 1, epoch: 1 }, [RefCell::new(Space::new(100))]);
        desk.restated(node, (&[], 0), &spaces(&keeper));
        let run = Run { disk: 0, start: 10, blocks: 5 };
        keeper[0].borrow_mut().take(10, 5);
        let given = GiveBack { number: 0, runs: vec![run], has: Vec::new(), round: 0 };
        assert!(desk.take_back(node, &given, &spaces(&keeper)));
        keeper[0].borrow_mut().take(10, 5);
        assert!(desk.take_back(node, &given, &spaces(&keeper)), "it was heard before");
        assert_eq!(keeper[0].borrow().free_blocks(), 95);
        let twice = GiveBack { number: 1, runs: vec![run, run], ..given };
        assert!(!desk.take_back(node, &twice, &spaces(&keeper)));
        let other = NodeId { number: 2, epoch: 1 };
        assert!(!desk.take_back(other, &twice, &spaces(&keeper)), "it is not known");
    }
}
