//! Random grants, give backs, lost messages and deaths of nodes, against a plain model of who has
//! which blocks.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use weft_random::Rng;
use weft_testkit::for_seeds;
use weft_token::NodeId;
use weft_wire::{DiskBlocks, GiveBack, RoomWish, Run};

use super::space_desk::SpaceDesk;
use crate::disks::free_map::Space;
use crate::disks::granted_space::{Stock, run_of};
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
                runs.extend(taken.into_iter().map(|blocks| run_of(*disk, blocks)));
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
            let granted = wish.and_then(|(wish, _)| self.desk.granted_before(node.id, wish.number));
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
    for canary in
        [Canary::FreedUnstated, Canary::TakenUnstated, Canary::LateGrant, Canary::RepeatedGiveBack]
    {
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
