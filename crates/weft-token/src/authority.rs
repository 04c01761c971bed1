//! The authority: which node holds what, and who waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rangemap::RangeMap;

use crate::message::{
    Ask, BySpace, Holding, Mode, NodeId, Release, Revoke, Space, ToAuthority, ToNode,
};

/// Adds a range to what a node holds. Where it holds more, that stays.
pub(crate) fn grant(held: &mut RangeMap<u64, Mode>, range: Range<u64>, mode: Mode) {
    match mode {
        Mode::Exclusive => held.insert(range, mode),
        Mode::Shared => {
            let gaps: Vec<_> = held.gaps(&range).collect();
            gaps.into_iter().for_each(|gap| held.insert(gap, mode));
        }
    }
}

/// Gives up a range, but for what `leaves` allows.
pub(crate) fn give_up(held: &mut RangeMap<u64, Mode>, range: &Range<u64>, leaves: Option<Mode>) {
    let within: Vec<_> = held.overlapping(range).map(|(of, mode)| (of.clone(), *mode)).collect();
    held.remove(range.clone());
    let Some(most) = leaves else { return };
    for (of, mode) in within {
        held.insert(of.start.max(range.start)..of.end.min(range.end), mode.min(most));
    }
}

pub(crate) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Another node holds a range that a node claims to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("node {} holds an overlapping token", with.number)]
pub struct Conflict {
    /// The other node.
    pub with: NodeId,
}

/// A request that waits.
#[derive(Debug)]
struct Waiting {
    node: NodeId,
    ask: Ask,
    /// Nodes that were told to return the range that it needs.
    told: BTreeSet<NodeId>,
}

impl Waiting {
    fn conflicts(&self, node: NodeId, ask: &Ask) -> bool {
        self.node != node
            && self.ask.mode.conflicts(ask.mode)
            && overlap(&self.ask.needed, &ask.needed)
    }
}

/// What a node holds of a space.
#[derive(Debug, Default)]
struct Held {
    ranges: RangeMap<u64, Mode>,
    /// Grants that may still be on their way, by number.
    sent: Vec<(u64, Range<u64>, Mode)>,
}

impl Held {
    fn grant(&mut self, number: u64, range: Range<u64>, mode: Mode) {
        grant(&mut self.ranges, range.clone(), mode);
        self.sent.reserve_exact(1);
        self.sent.push((number, range, mode));
    }

    /// The node has got the grants up to this one.
    fn has_seen(&mut self, last: u64) {
        self.sent.retain(|(number, _, _)| *number > last);
    }

    /// The node returns a range. It holds what it is granted after that.
    fn release(&mut self, release: &Release) {
        self.has_seen(release.seen);
        give_up(&mut self.ranges, &release.range, release.leaves);
        for (_, range, mode) in &self.sent {
            grant(&mut self.ranges, range.clone(), *mode);
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// By node. Mostly it is one, of very many spaces: a map would take ten times its room.
    held: Vec<(NodeId, Held)>,
    queue: Vec<Waiting>,
}

impl State {
    fn is_unused(&self) -> bool {
        self.queue.is_empty() && self.held.iter().all(|(_, held)| held.ranges.is_empty())
    }

    /// What a node holds, if it ever held something.
    fn held_by(&mut self, node: NodeId) -> Option<&mut Held> {
        self.held.iter_mut().find(|(of, _)| *of == node).map(|(_, held)| held)
    }

    fn hold(&mut self, node: NodeId) -> &mut Held {
        let known = self.held.iter().position(|(of, _)| *of == node);
        let at = known.unwrap_or_else(|| {
            self.held.reserve_exact(1);
            self.held.push((node, Held::default()));
            self.held.len() - 1
        });
        &mut self.held[at].1
    }

    /// Ranges of other nodes that conflict with a request, over `within`.
    fn obstacles<'a>(
        &'a self,
        node: NodeId,
        mode: Mode,
        within: &'a Range<u64>,
    ) -> impl Iterator<Item = (NodeId, &'a Range<u64>, Mode)> {
        let others = self.held.iter().filter(move |(other, _)| *other != node);
        others.flat_map(move |(other, held)| {
            let ranges = held.ranges.overlapping(within).filter(move |(_, of)| of.conflicts(mode));
            ranges.map(|(range, of)| (*other, range, *of))
        })
    }

    /// As much of what a request wants as no other node holds or awaits. Nothing conflicts with
    /// what it needs.
    fn granted(&self, node: NodeId, ask: &Ask) -> Range<u64> {
        let awaited = self.queue.iter().filter(|waiting| waiting.node != node);
        let awaited = awaited.filter(|waiting| waiting.ask.mode.conflicts(ask.mode));
        let awaited = awaited.map(|waiting| waiting.ask.needed.clone());
        let held = self.obstacles(node, ask.mode, &ask.wanted).map(|(_, range, _)| range.clone());
        let mut range = ask.wanted.clone();
        for obstacle in held.chain(awaited) {
            if obstacle.end <= ask.needed.start {
                range.start = range.start.max(obstacle.end);
            } else if obstacle.start >= ask.needed.end {
                range.end = range.end.min(obstacle.start);
            } else {
                // Awaited by a request that came later: it gets its turn, after this one.
                return ask.needed.clone();
            }
        }
        range
    }

    /// The first request that can be granted, if there is one.
    fn next(&self) -> Option<usize> {
        (0..self.queue.len()).find(|at| {
            let Waiting { node, ask, .. } = &self.queue[*at];
            self.is_next(*at) && self.obstacles(*node, ask.mode, &ask.needed).next().is_none()
        })
    }

    /// Whether no request before this one conflicts with it.
    fn is_next(&self, at: usize) -> bool {
        let Waiting { node, ask, .. } = &self.queue[at];
        !self.queue[..at].iter().any(|before| before.conflicts(*node, ask))
    }

    fn advance(
        &mut self,
        space: Space,
        nodes: &mut BTreeMap<NodeId, u64>,
        out: &mut Vec<(NodeId, ToNode)>,
    ) {
        while let Some(at) = self.next() {
            let Waiting { node, ask, .. } = self.queue.remove(at);
            let range = self.granted(node, &ask);
            let granted = nodes.get_mut(&node).expect("dead nodes wait for nothing");
            *granted += 1;
            let (number, mode) = (*granted, ask.mode);
            self.hold(node).grant(number, range.clone(), mode);
            out.push((node, ToNode::Grant { number, space, range, mode }));
        }
        for at in 0..self.queue.len() {
            if !self.is_next(at) {
                continue;
            }
            let Waiting { node, ask, told } = &self.queue[at];
            let in_the_way: BTreeSet<NodeId> =
                self.obstacles(*node, ask.mode, &ask.needed).map(|(other, _, _)| other).collect();
            let revoke = Revoke {
                space,
                needed: ask.needed.clone(),
                wanted: ask.wanted.clone(),
                leaves: (ask.mode == Mode::Shared).then_some(Mode::Shared),
            };
            let new: Vec<NodeId> = in_the_way.difference(told).copied().collect();
            // The dead hear nothing: what they hold is free once they are recovered.
            let living = new.iter().filter(|other| nodes.contains_key(other));
            out.extend(living.map(|other| (*other, ToNode::Revoke(revoke.clone()))));
            self.queue[at].told.extend(new);
        }
    }
}

/// Grants tokens, and revokes them.
#[derive(Debug, Default)]
pub struct Authority {
    /// The living nodes, and the number of the last grant to each.
    nodes: BTreeMap<NodeId, u64>,
    spaces: BySpace<State>,
    /// Nodes whose tokens are not known yet. Until they are, nothing is granted.
    expected: BTreeSet<NodeId>,
}

impl Authority {
    /// A node has mounted the file system.
    pub fn join(&mut self, node: NodeId) {
        self.nodes.insert(node, 0);
    }

    /// These nodes may hold tokens of a former authority. Nothing is granted until each of them has
    /// said what it holds ([`Self::replace`]) or is [recovered](Self::recovered).
    pub fn expect(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        self.expected.extend(nodes);
    }

    /// The nodes that have yet to say what they hold.
    pub fn expected(&self) -> impl Iterator<Item = NodeId> {
        self.expected.iter().copied()
    }

    /// A node has joined, or is back: messages between it and the authority were lost, and this is
    /// all that it holds. It takes the place of what was known of it. What it waits for it asks for
    /// again ([`Holder::ask_again`]), and what is revoked it is told again.
    ///
    /// [`Holder::ask_again`]: crate::Holder::ask_again
    ///
    /// # Errors
    /// If another node holds some of that: then nothing is changed.
    pub fn replace(
        &mut self,
        node: NodeId,
        held: Vec<Holding>,
        out: &mut Vec<(NodeId, ToNode)>,
    ) -> Result<(), Conflict> {
        for (space, range, mode) in &held {
            let state = self.spaces.get(space);
            let other = state.and_then(|state| state.obstacles(node, *mode, range).next());
            if let Some((with, _, _)) = other {
                return Err(Conflict { with });
            }
        }
        for state in self.spaces.values_mut() {
            state.queue.retain(|waiting| waiting.node != node);
            state.held.retain(|(of, _)| *of != node);
            for waiting in &mut state.queue {
                waiting.told.remove(&node);
            }
        }
        self.nodes.insert(node, 0);
        for (space, range, mode) in held {
            grant(&mut self.spaces.entry(space).or_default().hold(node).ranges, range, mode);
        }
        self.expected.remove(&node);
        self.advance_all(out);
        Ok(())
    }

    /// What a node of the former authority holds. To be told by all nodes before the first message
    /// is taken.
    ///
    /// # Errors
    /// If another node holds that.
    pub fn restate(
        &mut self,
        node: NodeId,
        space: Space,
        range: Range<u64>,
        mode: Mode,
    ) -> Result<(), Conflict> {
        let state = self.spaces.entry(space).or_default();
        if let Some((with, _, _)) = state.obstacles(node, mode, &range).next() {
            return Err(Conflict { with });
        }
        grant(&mut state.hold(node).ranges, range, mode);
        Ok(())
    }

    /// Takes a node's message, and adds what to send. What comes from a node that is dead, or never
    /// joined, is ignored.
    pub fn take(&mut self, node: NodeId, message: ToAuthority, out: &mut Vec<(NodeId, ToNode)>) {
        if !self.nodes.contains_key(&node) {
            return;
        }
        let space = match &message {
            ToAuthority::Ask { ask, .. } => ask.space,
            ToAuthority::Release(release) => release.space,
        };
        let state = self.spaces.entry(space).or_default();
        match message {
            ToAuthority::Ask { ask, seen } => {
                if let Some(held) = state.held_by(node) {
                    held.has_seen(seen);
                }
                debug_assert!(!ask.needed.is_empty(), "it needs something");
                state.queue.push(Waiting { node, ask, told: BTreeSet::new() });
            }
            ToAuthority::Release(release) => {
                if let Some(held) = state.held_by(node) {
                    held.release(&release);
                }
            }
        }
        self.advance(space, out);
    }

    /// A node is dead: it waits for nothing any more, and its tokens are kept from all other nodes
    /// until [`Self::recovered`].
    pub fn fence(&mut self, node: NodeId, out: &mut Vec<(NodeId, ToNode)>) {
        self.nodes.remove(&node);
        for state in self.spaces.values_mut() {
            state.queue.retain(|waiting| waiting.node != node);
        }
        self.advance_all(out);
    }

    /// The log of a dead node is recovered: its tokens are free.
    pub fn recovered(&mut self, node: NodeId, out: &mut Vec<(NodeId, ToNode)>) {
        for state in self.spaces.values_mut() {
            state.held.retain(|(of, _)| *of != node);
        }
        self.expected.remove(&node);
        self.advance_all(out);
    }

    fn advance_all(&mut self, out: &mut Vec<(NodeId, ToNode)>) {
        let mut spaces: Vec<Space> = self.spaces.keys().copied().collect();
        spaces.sort();
        spaces.into_iter().for_each(|space| self.advance(space, out));
    }

    fn advance(&mut self, space: Space, out: &mut Vec<(NodeId, ToNode)>) {
        let Some(state) = self.spaces.get_mut(&space) else { return };
        if !self.expected.is_empty() {
            return;
        }
        state.advance(space, &mut self.nodes, out);
        if state.is_unused() {
            self.spaces.remove(&space);
        }
    }

    /// What nodes hold of this.
    pub fn held(&self, space: Space) -> Vec<(NodeId, Range<u64>, Mode)> {
        let held = self.spaces.get(&space).into_iter().flat_map(|state| &state.held);
        held.flat_map(|(node, held)| {
            held.ranges.iter().map(|(range, mode)| (*node, range.clone(), *mode))
        })
        .collect()
    }

    /// Files and folders with tokens held or awaited.
    pub fn spaces(&self) -> usize {
        self.spaces.len()
    }
}
