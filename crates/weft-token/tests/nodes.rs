//! Several nodes with caches, on one store, through an authority: whatever the order of messages,
//! operations, deaths and new authorities, no node reads old contents, and the parity of each line
//! fits its data.
//!
//! A value of the store is a number; a line of a redundant file is four blocks and the XOR of them.
//! A node writes the blocks of a line and its parity one after the other, and the parity as a
//! difference, so that two nodes at one line would leave a wrong one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use weft_random::Rng;
use weft_testkit::for_seeds;
use weft_token::{
    Acquired, Ask, Authority, Event, Holder, Kind, Mode, NodeId, Space, ToAuthority, ToNode, UseId,
    widened,
};

const LINE: u64 = 4;
const BLOCKS: u64 = 24;
/// Files up to this one have redundancy.
const REDUNDANT: u64 = 1;

type Place = (Space, u64);

/// What is on the disks.
#[derive(Default)]
struct Store {
    values: BTreeMap<Place, u64>,
    parity: BTreeMap<Place, u64>,
}

impl Store {
    fn value(&self, place: Place) -> u64 {
        self.values.get(&place).copied().unwrap_or(0)
    }

    fn xor(&self, (space, line): Place) -> u64 {
        (0..LINE).fold(0, |xor, unit| xor ^ self.value((space, line * LINE + unit)))
    }
}

fn is_redundant(space: Space) -> bool {
    space.kind == Kind::Data && space.ino <= REDUNDANT
}

/// An operation: what it needs, in the order in which it asks.
#[derive(Clone, Debug)]
struct Operation {
    asks: Vec<(Space, Range<u64>, Mode)>,
    uses: Vec<(Space, UseId)>,
}

/// A range that is written because it is given up.
struct Writing {
    space: Space,
    range: Range<u64>,
    keeps: bool,
    /// The steps that are left: a block, or the parity of a line by a difference.
    steps: VecDeque<Step>,
}

enum Step {
    Block(u64, u64),
    /// Reads the parity of a line; the next step writes it.
    ReadParity(u64, u64),
    WriteParity(u64, u64),
}

#[derive(Default)]
struct Node {
    holder: Holder,
    cache: BTreeMap<Place, u64>,
    dirty: BTreeSet<Place>,
    waiting: BTreeMap<UseId, Operation>,
    running: Vec<Operation>,
    writings: Vec<Writing>,
    /// Lines that its log names.
    log: BTreeSet<Place>,
    inbox: VecDeque<ToNode>,
}

struct World {
    rng: Rng,
    store: Store,
    /// What readers must see.
    truth: BTreeMap<Place, u64>,
    authority: Authority,
    nodes: BTreeMap<NodeId, Node>,
    /// Nodes that are dead, and not recovered.
    dead: BTreeMap<NodeId, Node>,
    to_authority: BTreeMap<NodeId, VecDeque<ToAuthority>>,
    /// Nodes that the authority does not hear, nor they it.
    cut_off: BTreeSet<NodeId>,
    next_value: u64,
    epoch: u64,
    widens: bool,
    finished: u64,
    messages: u64,
}

impl World {
    fn new(seed: u64, nodes: u16, widens: bool) -> Self {
        let mut world = Self {
            rng: Rng::new(seed),
            store: Store::default(),
            truth: BTreeMap::new(),
            authority: Authority::default(),
            nodes: BTreeMap::new(),
            dead: BTreeMap::new(),
            to_authority: BTreeMap::new(),
            cut_off: BTreeSet::new(),
            next_value: 0,
            epoch: 0,
            widens,
            finished: 0,
            messages: 0,
        };
        for number in 0..nodes {
            world.mount(number);
        }
        world
    }

    fn mount(&mut self, number: u16) {
        self.epoch += 1;
        let id = NodeId { number, epoch: self.epoch };
        self.authority.join(id);
        self.nodes.insert(id, Node::default());
    }

    fn pick(&mut self) -> NodeId {
        let at = self.rng.below(self.nodes.len() as u64);
        *self.nodes.keys().nth(usize::try_from(at).expect("few")).expect("a node")
    }

    fn send(&mut self, from: NodeId, message: ToAuthority) {
        self.messages += 1;
        if self.cut_off.contains(&from) {
            return;
        }
        self.to_authority.entry(from).or_default().push_back(message);
    }

    fn deliver(&mut self, messages: Vec<(NodeId, ToNode)>) {
        for (to, message) in messages {
            self.messages += 1;
            if self.cut_off.contains(&to) {
                continue;
            }
            self.nodes.get_mut(&to).expect("the dead hear nothing").inbox.push_back(message);
        }
    }

    fn ask(&self, (space, range, mode): (Space, Range<u64>, Mode)) -> Ask {
        let lines = is_redundant(space) && mode == Mode::Exclusive && self.widens;
        let needed = if lines { widened(range, LINE) } else { range };
        // Without the widening nodes get no more than they need, or else they would never meet.
        let wanted = if self.widens { 0..u64::MAX } else { needed.clone() };
        Ask { space, needed, wanted, mode }
    }

    /// The operation asks for its next token, or runs.
    fn go_on(&mut self, id: NodeId, mut operation: Operation) {
        loop {
            let Some(next) = operation.asks.get(operation.uses.len()).cloned() else {
                self.nodes.get_mut(&id).expect("it lives").running.push(operation);
                return;
            };
            let space = next.0;
            let ask = self.ask(next);
            let node = self.nodes.get_mut(&id).expect("it lives");
            match node.holder.acquire(ask) {
                Acquired::Now(of) => operation.uses.push((space, of)),
                Acquired::Later(of, message) => {
                    node.waiting.insert(of, operation);
                    self.send(id, message);
                    return;
                }
            }
        }
    }

    fn handle(&mut self, id: NodeId, events: Vec<Event>) {
        for event in events {
            let node = self.nodes.get_mut(&id).expect("it lives");
            match event {
                Event::Send(message) => self.send(id, message),
                Event::Ready(of) => {
                    let mut operation = node.waiting.remove(&of).expect("it waits");
                    let space = operation.asks[operation.uses.len()].0;
                    operation.uses.push((space, of));
                    self.go_on(id, operation);
                }
                Event::Write { space, range, leaves } => {
                    let steps = self.steps(id, space, &range);
                    let node = self.nodes.get_mut(&id).expect("it lives");
                    node.writings.push(Writing { space, range, keeps: leaves.is_some(), steps });
                }
            }
        }
    }

    /// The steps that write what a node has changed in a range.
    fn steps(&mut self, id: NodeId, space: Space, range: &Range<u64>) -> VecDeque<Step> {
        let node = self.nodes.get_mut(&id).expect("it lives");
        let within = (space, range.start)..(space, range.end);
        let dirty: Vec<Place> = node.dirty.range(within).copied().collect();
        let mut steps = VecDeque::new();
        let mut change: BTreeMap<u64, u64> = BTreeMap::new();
        for place in dirty {
            let value = node.cache[&place];
            let line = place.1 / LINE;
            *change.entry(line).or_default() ^= value ^ self.store.value(place);
            steps.push_back(Step::Block(place.1, value));
            if is_redundant(space) {
                node.log.insert((space, line));
            }
        }
        if is_redundant(space) {
            let parities = change.into_iter().map(|(line, change)| Step::ReadParity(line, change));
            steps.extend(parities);
        }
        steps
    }

    /// One step of something that a node writes.
    fn write(&mut self, id: NodeId) {
        let count = self.nodes[&id].writings.len() as u64;
        if count == 0 {
            return;
        }
        let at = usize::try_from(self.rng.below(count)).expect("few");
        let node = self.nodes.get_mut(&id).expect("it lives");
        let writing = &mut node.writings[at];
        let space = writing.space;
        match writing.steps.pop_front() {
            Some(Step::Block(block, value)) => {
                self.store.values.insert((space, block), value);
                node.dirty.remove(&(space, block));
            }
            Some(Step::ReadParity(line, change)) => {
                let old = self.store.parity.get(&(space, line)).copied().unwrap_or(0);
                writing.steps.push_front(Step::WriteParity(line, old ^ change));
            }
            Some(Step::WriteParity(line, parity)) => {
                self.store.parity.insert((space, line), parity);
                node.log.remove(&(space, line));
            }
            None => {
                let Writing { range, keeps, .. } = node.writings.swap_remove(at);
                let within = |place: &Place| place.0 == space && range.contains(&place.1);
                assert!(!node.dirty.iter().any(within), "nothing is left dirty");
                if !keeps {
                    node.cache.retain(|place, _| !within(place));
                }
                let events = node.holder.written(space, &range);
                self.handle(id, events);
            }
        }
    }

    /// An operation does what it is for, and ends.
    fn finish(&mut self, id: NodeId) {
        let count = self.nodes[&id].running.len() as u64;
        if count == 0 {
            return;
        }
        let at = usize::try_from(self.rng.below(count)).expect("few");
        let node = self.nodes.get_mut(&id).expect("it lives");
        let operation = node.running.swap_remove(at);
        for (space, range, mode) in &operation.asks {
            for index in range.clone() {
                let place = (*space, index);
                let truth = self.truth.get(&place).copied().unwrap_or(0);
                let read = *node.cache.entry(place).or_insert_with(|| self.store.value(place));
                assert_eq!(read, truth, "{place:?} as {id:?} sees it");
                if *mode == Mode::Exclusive {
                    self.next_value += 1;
                    node.cache.insert(place, self.next_value);
                    node.dirty.insert(place);
                    self.truth.insert(place, self.next_value);
                }
            }
        }
        self.finished += 1;
        for (space, of) in operation.uses {
            let events = self.nodes.get_mut(&id).expect("it lives").holder.done(space, of);
            self.handle(id, events);
        }
    }

    /// A random operation: on one file, or on two names and a file's attributes as a rename.
    fn operation(&mut self) -> Operation {
        let rng = &mut self.rng;
        let space = |kind, ino| Space { kind, ino };
        let mode = if rng.below(2) == 0 { Mode::Shared } else { Mode::Exclusive };
        let mut asks = match rng.below(8) {
            0 => {
                let name = |rng: &mut Rng| {
                    let at = rng.below(8);
                    (space(Kind::Names, rng.below(2)), at..at + 1, Mode::Exclusive)
                };
                let ino = rng.below(3);
                let attributes = (space(Kind::Attributes, ino), 0..1, Mode::Exclusive);
                vec![name(rng), name(rng), attributes]
            }
            // Reading a folder.
            1 => vec![(space(Kind::Names, rng.below(2)), 0..8, Mode::Shared)],
            _ => {
                let start = rng.below(BLOCKS);
                let end = (start + 1 + rng.below(6)).min(BLOCKS);
                let ino = rng.below(3);
                vec![
                    (space(Kind::Attributes, ino), 0..1, mode),
                    (space(Kind::Data, ino), start..end, mode),
                ]
            }
        };
        asks.sort_by_key(|(space, _, _)| *space);
        // One token of each space: two names in a folder are asked for with all between them.
        asks.dedup_by(|(space, range, _), (first, both, _)| {
            let is_one = space == first;
            if is_one {
                *both = both.start.min(range.start)..both.end.max(range.end);
            }
            is_one
        });
        Operation { asks, uses: Vec::new() }
    }

    fn die(&mut self, id: NodeId) {
        let node = self.nodes.remove(&id).expect("it lives");
        self.to_authority.remove(&id);
        self.cut_off.remove(&id);
        // What it had not written is lost: as if it had never been.
        for place in &node.dirty {
            self.truth.insert(*place, self.store.value(*place));
        }
        self.dead.insert(id, node);
        let mut out = Vec::new();
        self.authority.fence(id, &mut out);
        self.deliver(out);
    }

    fn recover(&mut self) {
        let Some((id, node)) = self.dead.pop_first() else { return };
        for line in node.log {
            let parity = self.store.xor(line);
            self.store.parity.insert(line, parity);
        }
        let mut out = Vec::new();
        self.authority.recovered(id, &mut out);
        self.deliver(out);
        self.mount(id.number);
    }

    /// The authority dies; another one is told what nodes hold, and what the dead held.
    fn replace_authority(&mut self) {
        self.authority = Authority::default();
        self.to_authority.clear();
        self.cut_off.clear();
        for (id, node) in self.nodes.iter_mut().chain(&mut self.dead) {
            node.inbox.clear();
            self.authority.join(*id);
            for (space, range, mode) in node.holder.held() {
                self.authority.restate(*id, space, range, mode).expect("no two hold the same");
            }
        }
        let dead: Vec<NodeId> = self.dead.keys().copied().collect();
        for id in dead {
            self.authority.fence(id, &mut Vec::new());
        }
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            let asks = self.nodes.get_mut(&id).expect("it lives").holder.ask_again();
            asks.into_iter().for_each(|ask| self.send(id, ask));
        }
    }

    /// The authority dies. The next one does not know who holds what until it has heard all.
    fn begin_authority(&mut self) {
        self.authority = Authority::default();
        self.authority.expect(self.nodes.keys().chain(self.dead.keys()).copied());
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        ids.into_iter().for_each(|id| self.cut_off(id));
    }

    /// What is on its way from and to a node is lost.
    fn cut_off(&mut self, id: NodeId) {
        self.cut_off.insert(id);
        self.to_authority.remove(&id);
        self.nodes.get_mut(&id).expect("it lives").inbox.clear();
    }

    /// A node says what it holds, and asks again.
    fn come_back(&mut self) {
        let Some(id) = self.cut_off.pop_first() else { return };
        let held = self.nodes[&id].holder.held();
        let mut out = Vec::new();
        self.authority.replace(id, held, &mut out).expect("no two hold the same");
        self.deliver(out);
        let asks = self.nodes.get_mut(&id).expect("it lives").holder.ask_again();
        asks.into_iter().for_each(|ask| self.send(id, ask));
    }

    fn receive(&mut self, id: NodeId) {
        if let Some(message) = self.nodes.get_mut(&id).expect("it lives").inbox.pop_front() {
            let events = self.nodes.get_mut(&id).expect("it lives").holder.take(message);
            self.handle(id, events);
        }
    }

    fn authority_receives(&mut self, id: NodeId) {
        let message = self.to_authority.get_mut(&id).and_then(VecDeque::pop_front);
        if let Some(message) = message {
            let mut out = Vec::new();
            self.authority.take(id, message, &mut out);
            self.deliver(out);
        }
    }

    fn step(&mut self, begins: bool, dies: bool) {
        match self.rng.below(1000) {
            0..150 if begins => {
                let id = self.pick();
                let operation = self.operation();
                self.go_on(id, operation);
            }
            150..300 => {
                let id = self.pick();
                self.finish(id);
            }
            300..500 => {
                let id = self.pick();
                self.write(id);
            }
            500..750 => {
                let id = self.pick();
                self.receive(id);
            }
            750..975 => {
                let id = self.pick();
                self.authority_receives(id);
            }
            975..985 if begins => {
                let id = self.pick();
                let space = self.operation().asks[0].0;
                let events = self.nodes.get_mut(&id).expect("it lives").holder.give_up(space);
                self.handle(id, events);
            }
            985..987 if dies && self.nodes.len() > 1 => {
                let id = self.pick();
                self.die(id);
            }
            987..988 if dies => self.replace_authority(),
            988..989 if dies => self.begin_authority(),
            989..991 if dies => {
                let id = self.pick();
                self.cut_off(id);
            }
            991..995 => self.come_back(),
            995..1000 => self.recover(),
            _ => {}
        }
        self.check();
    }

    /// What nodes believe to hold agrees.
    fn check(&self) {
        let all = self.nodes.iter().chain(&self.dead);
        let held: Vec<_> = all.map(|(id, node)| (id, node.holder.held())).collect();
        for (at, (id, ours)) in held.iter().enumerate() {
            for (other, theirs) in &held[at + 1..] {
                for (space, range, mode) in ours {
                    let meets = theirs.iter().any(|(of, with, has)| {
                        of == space
                            && mode.conflicts(*has)
                            && with.start < range.end
                            && range.start < with.end
                    });
                    assert!(!meets, "{id:?} and {other:?} hold {space:?} {range:?}");
                }
            }
        }
    }

    fn is_idle(&self) -> bool {
        let idle = |node: &Node| {
            node.waiting.is_empty()
                && node.running.is_empty()
                && node.writings.is_empty()
                && node.inbox.is_empty()
        };
        self.dead.is_empty()
            && self.cut_off.is_empty()
            && self.nodes.values().all(idle)
            && self.to_authority.values().all(VecDeque::is_empty)
    }

    fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if self.is_idle() {
                return;
            }
            self.step(false, false);
        }
        panic!("operations wait for ever");
    }

    /// Lines of which the parity does not fit, when all is written.
    fn wrong_lines(&mut self) -> usize {
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            for (space, _, _) in self.nodes[&id].holder.held() {
                let events = self.nodes.get_mut(&id).expect("it lives").holder.give_up(space);
                self.handle(id, events);
            }
        }
        self.settle();
        assert_eq!(self.authority.spaces(), 0, "nothing is held any more");
        let lines: BTreeSet<Place> =
            self.store.values.keys().filter(|(space, _)| is_redundant(*space)).copied().collect();
        let lines: BTreeSet<Place> =
            lines.into_iter().map(|(space, block)| (space, block / LINE)).collect();
        let parity = |line: &Place| self.store.parity.get(line).copied().unwrap_or(0);
        lines.iter().filter(|line| parity(line) != self.store.xor(**line)).count()
    }
}

#[test]
fn nodes_see_what_others_wrote_and_leave_lines_that_fit() {
    for_seeds(0..60, |rng| {
        let nodes = 2 + u16::try_from(rng.below(4)).expect("few");
        let some_die = rng.below(3) > 0;
        let mut world = World::new(rng.next_u64(), nodes, true);
        for _ in 0..6000 {
            world.step(true, some_die);
        }
        world.settle();
        assert!(world.finished > 20, "{} operations ended", world.finished);
        assert_eq!(world.wrong_lines(), 0);
        for (place, value) in &world.truth {
            assert_eq!(world.store.value(*place), *value, "{place:?} when all is written");
        }
    });
}

#[test]
fn without_whole_lines_two_nodes_spoil_a_parity() {
    let wrong = (0..20).map(|seed| {
        let mut world = World::new(seed, 4, false);
        (0..6000).for_each(|_| world.step(true, false));
        world.settle();
        world.wrong_lines()
    });
    assert!(wrong.sum::<usize>() > 0, "the check above can fail");
}

fn everything(mode: Mode) -> Ask {
    Ask { space: Space { kind: Kind::Everything, ino: 0 }, needed: 0..1, wanted: 0..1, mode }
}

/// Who is granted something, in order.
fn granted(messages: &[(NodeId, ToNode)]) -> Vec<u16> {
    let grants = messages.iter().filter(|(_, message)| matches!(message, ToNode::Grant { .. }));
    grants.map(|(node, _)| node.number).collect()
}

#[test]
fn what_a_node_says_again_takes_the_place_of_what_was_known_of_it() {
    let node = |number| NodeId { number, epoch: 1 };
    let (mut authority, mut out) = (Authority::default(), Vec::new());
    let ask = |mode| ToAuthority::Ask { ask: everything(mode), seen: 0 };
    authority.join(node(1));
    authority.join(node(2));
    authority.take(node(1), ask(Mode::Exclusive), &mut out);
    authority.take(node(2), ask(Mode::Exclusive), &mut out);
    assert!(matches!(&out[..], [(_, ToNode::Grant { .. }), (_, ToNode::Revoke(_))]), "{out:?}");
    // It still holds it, and hears of the wish again.
    out.clear();
    let held = vec![(everything(Mode::Shared).space, 0..1, Mode::Exclusive)];
    authority.replace(node(1), held.clone(), &mut out).expect("it is alone");
    assert!(matches!(&out[..], [(NodeId { number: 1, .. }, ToNode::Revoke(_))]), "{out:?}");
    let conflict = authority.replace(node(3), held.clone(), &mut out).expect_err("1 has it");
    assert_eq!(conflict.with, node(1));
    // Its return was lost: it has nothing any more. What 2 waits for it asks for again as well.
    out.clear();
    authority.replace(node(2), Vec::new(), &mut out).expect("it holds nothing");
    authority.replace(node(1), Vec::new(), &mut out).expect("it holds nothing");
    assert_eq!(out, []);
    authority.take(node(2), ask(Mode::Exclusive), &mut out);
    assert_eq!(granted(&out), [2]);
}

#[test]
fn a_new_authority_grants_nothing_until_it_has_heard_all() {
    let node = |number| NodeId { number, epoch: 1 };
    let (mut authority, mut out) = (Authority::default(), Vec::new());
    let ask = |mode| ToAuthority::Ask { ask: everything(mode), seen: 0 };
    authority.join(node(0));
    authority.expect([node(1), node(2), node(3)]);
    authority.take(node(0), ask(Mode::Shared), &mut out);
    let held = vec![(everything(Mode::Shared).space, 0..1, Mode::Shared)];
    authority.replace(node(1), held, &mut out).expect("it is alone");
    authority.take(node(1), ask(Mode::Exclusive), &mut out);
    authority.replace(node(2), Vec::new(), &mut out).expect("it holds nothing");
    authority.fence(node(3), &mut out);
    assert_eq!((granted(&out), authority.expected().count()), (vec![], 1));
    authority.recovered(node(3), &mut out);
    assert_eq!(granted(&out), [0]);
}

fn data(range: Range<u64>) -> Operation {
    let space = Space { kind: Kind::Data, ino: 0 };
    Operation { asks: vec![(space, range, Mode::Exclusive)], uses: Vec::new() }
}

/// Lets everything that is under way happen.
fn run(world: &mut World, id: NodeId, operation: Operation) {
    world.go_on(id, operation);
    world.settle();
}

#[test]
fn who_is_alone_asks_once() {
    let mut world = World::new(1, 2, true);
    let id = *world.nodes.keys().next().expect("a node");
    for block in 0..1000 {
        run(&mut world, id, data(block % BLOCKS..block % BLOCKS + 1));
    }
    assert_eq!((world.finished, world.messages), (1000, 2));
}

#[test]
fn two_nodes_that_write_at_two_ends_soon_have_a_half_each() {
    let mut world = World::new(1, 2, true);
    let ids: Vec<NodeId> = world.nodes.keys().copied().collect();
    let mut messages = Vec::new();
    for round in 0..50 {
        run(&mut world, ids[0], data(round % 8..round % 8 + 1));
        run(&mut world, ids[1], data(12 + round % 8..13 + round % 8));
        messages.push(world.messages);
    }
    assert_eq!(messages[10], messages[49], "no message after the first rounds: {messages:?}");
}
