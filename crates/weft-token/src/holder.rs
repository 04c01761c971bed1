//! A node's tokens: what it holds, what uses it, and what it is returning.
//!
//! ```text
//!   revoked ──▶ draining ──▶ writing ──▶ released
//!               until no       until what was changed
//!               operation      in the range is durable
//!               uses it
//! ```
//!
//! From the revocation on, operations that need the returned token ask the authority again, and
//! queue after the node that wants it.

use std::collections::BTreeMap;
use std::ops::Range;

use rangemap::{RangeMap, RangeSet};

use crate::authority::{give_up, grant, overlap};
use crate::message::{Ask, BySpace, Holding, Mode, Release, Revoke, Space, ToAuthority, ToNode};

/// An operation that uses a token, or waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UseId(u64);

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The operation may go on. It ends with [`Holder::done`].
    Now(UseId),
    /// This must be sent; [`Event::Ready`] follows.
    Later(UseId, ToAuthority),
}

/// What the driver of a holder is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// An operation that waited may go on. It ends with [`Holder::done`].
    Ready(UseId),
    /// What this node changed in the range must become durable, and if nothing is left to the node,
    /// what it cached be forgotten. Then it calls [`Holder::written`].
    Write {
        /// Of what.
        space: Space,
        /// The range.
        range: Range<u64>,
        /// What it may keep.
        leaves: Option<Mode>,
    },
    /// This must be sent.
    Send(ToAuthority),
}

/// A token that is being returned.
#[derive(Debug)]
struct Leaving {
    revoke: Revoke,
    /// Ranges that are written now; none while operations still use them.
    writing: Option<RangeSet<u64>>,
}

impl Leaving {
    /// Whether an operation must not start during this.
    fn bars(&self, range: &Range<u64>, mode: Mode) -> bool {
        let bars = self.revoke.leaves.is_none_or(|leaves| leaves < mode);
        let written = || self.writing.iter().any(|writing| writing.overlaps(range));
        bars && (overlap(&self.revoke.needed, range) || written())
    }
}

/// An operation that waits.
#[derive(Debug)]
struct Waiting {
    of: UseId,
    ask: Ask,
    /// Whether the authority still has its request.
    is_asked: bool,
}

#[derive(Debug, Default)]
struct State {
    held: RangeMap<u64, Mode>,
    /// What operations have used of it.
    used: RangeSet<u64>,
    uses: BTreeMap<UseId, (Range<u64>, Mode)>,
    waiting: Vec<Waiting>,
    leaving: Vec<Leaving>,
}

impl State {
    fn is_unused(&self) -> bool {
        self.held.is_empty()
            && self.uses.is_empty()
            && self.waiting.is_empty()
            && self.leaving.is_empty()
    }

    fn covers(&self, range: &Range<u64>, mode: Mode) -> bool {
        self.held.gaps(range).next().is_none()
            && self.held.overlapping(range).all(|(_, held)| *held >= mode)
    }

    fn may_begin(&self, range: &Range<u64>, mode: Mode) -> bool {
        self.covers(range, mode) && !self.leaving.iter().any(|leaving| leaving.bars(range, mode))
    }

    fn begin(&mut self, of: UseId, range: Range<u64>, mode: Mode) {
        self.used.insert(range.clone());
        self.uses.insert(of, (range, mode));
    }

    /// Operations start that can, and ask again if their grant came while it was being returned.
    fn begin_waiting(&mut self, seen: u64, out: &mut Vec<Event>) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            let Ask { needed, mode, .. } = waiting.ask.clone();
            if self.may_begin(&needed, mode) {
                self.begin(waiting.of, needed, mode);
                out.push(Event::Ready(waiting.of));
                continue;
            }
            if !waiting.is_asked && !self.covers(&needed, mode) {
                out.push(Event::Send(ToAuthority::Ask { ask: waiting.ask.clone(), seen }));
                waiting.is_asked = true;
            }
            self.waiting.push(waiting);
        }
    }

    /// The range returned for a revocation, once no operation uses it.
    fn given_up(&self, revoke: &Revoke) -> RangeSet<u64> {
        let Revoke { needed, wanted, leaves, .. } = revoke;
        let more = |mode: Mode| leaves.is_none_or(|leaves| leaves < mode);
        let mut ranges = RangeSet::new();
        for (range, _) in self.held.overlapping(wanted).filter(|(_, mode)| more(**mode)) {
            ranges.insert(range.start.max(wanted.start)..range.end.min(wanted.end));
        }
        // Readers get all the data written: it costs this node no more than a part would.
        let kept = if leaves.is_none() { self.used.clone() } else { RangeSet::new() };
        let in_use = self.uses.values().filter(|(_, mode)| more(*mode));
        let leaving = self.leaving.iter().filter_map(|leaving| leaving.writing.as_ref());
        let kept = kept.iter().cloned().collect::<Vec<_>>().into_iter();
        let kept = kept.chain(in_use.map(|(range, _)| range.clone()));
        for range in kept.chain(leaving.flat_map(|writing| writing.iter().cloned())) {
            for part in
                [range.start..range.end.min(needed.start), range.start.max(needed.end)..range.end]
            {
                if !part.is_empty() {
                    ranges.remove(part);
                }
            }
        }
        ranges
    }

    /// Starts to write what no operation uses any more.
    fn drain(&mut self, space: Space, out: &mut Vec<Event>) {
        for at in 0..self.leaving.len() {
            let Leaving { revoke, writing: None } = &self.leaving[at] else { continue };
            let more = |mode: Mode| revoke.leaves.is_none_or(|leaves| leaves < mode);
            let mut uses = self.uses.values();
            let is_used = uses.any(|(range, mode)| more(*mode) && overlap(range, &revoke.needed));
            let is_written = self.leaving.iter().filter_map(|other| other.writing.as_ref());
            if is_used || is_written.into_iter().any(|other| other.overlaps(&revoke.needed)) {
                continue;
            }
            let ranges = self.given_up(revoke);
            let leaves = revoke.leaves;
            for range in ranges.iter() {
                out.push(Event::Write { space, range: range.clone(), leaves });
            }
            self.leaving[at].writing = Some(ranges);
        }
        // Ranges that were returned already need nothing.
        let is_done = |leaving: &Leaving| leaving.writing.as_ref().is_some_and(RangeSet::is_empty);
        self.leaving.retain(|leaving| !is_done(leaving));
    }
}

/// The tokens of one node.
#[derive(Debug, Default)]
pub struct Holder {
    spaces: BySpace<State>,
    /// The operation that asked last.
    last: u64,
    /// Number of the last grant that arrived.
    seen: u64,
}

impl Holder {
    /// An operation is to use a token.
    pub fn acquire(&mut self, ask: Ask) -> Acquired {
        debug_assert!(!ask.needed.is_empty(), "it needs something");
        self.last += 1;
        let of = UseId(self.last);
        let state = self.spaces.entry(ask.space).or_default();
        if state.may_begin(&ask.needed, ask.mode) {
            state.begin(of, ask.needed, ask.mode);
            return Acquired::Now(of);
        }
        state.waiting.push(Waiting { of, ask: ask.clone(), is_asked: true });
        Acquired::Later(of, ToAuthority::Ask { ask, seen: self.seen })
    }

    /// An operation ends that used a token, or no longer waits for it.
    pub fn done(&mut self, space: Space, of: UseId) -> Vec<Event> {
        self.change(space, |state, _| {
            state.uses.remove(&of);
            state.waiting.retain(|waiting| waiting.of != of);
        })
    }

    /// Takes a message of the authority.
    pub fn take(&mut self, message: ToNode) -> Vec<Event> {
        match message {
            ToNode::Grant { number, space, range, mode } => {
                self.seen = number;
                self.change(space, |state, out| {
                    for waiting in &mut state.waiting {
                        let Ask { needed, mode: wanted, .. } = &waiting.ask;
                        let contains = range.start <= needed.start && needed.end <= range.end;
                        waiting.is_asked &= !(contains && *wanted <= mode);
                    }
                    grant(&mut state.held, range, mode);
                    // Operations use their grant before it is returned.
                    state.begin_waiting(number, out);
                })
            }
            ToNode::Revoke(revoke) => self.change(revoke.space, |state, _| {
                state.leaving.push(Leaving { revoke, writing: None });
            }),
        }
    }

    /// Gives up what the node holds of this, as soon as no operation uses it: it caches nothing of
    /// it any more, or too much.
    pub fn give_up(&mut self, space: Space) -> Vec<Event> {
        self.change(space, |state, _| {
            let all = 0..u64::MAX;
            let revoke = Revoke { space, needed: all.clone(), wanted: all, leaves: None };
            state.leaving.push(Leaving { revoke, writing: None });
        })
    }

    /// All writes to this range are durable.
    pub fn written(&mut self, space: Space, range: &Range<u64>) -> Vec<Event> {
        let seen = self.seen;
        self.change(space, |state, out| {
            for leaving in &mut state.leaving {
                let Some(writing) = &mut leaving.writing else { continue };
                if !writing.overlaps(range) {
                    continue;
                }
                writing.remove(range.clone());
                let leaves = leaving.revoke.leaves;
                give_up(&mut state.held, range, leaves);
                if leaves.is_none() {
                    state.used.remove(range.clone());
                }
                let release = Release { space, range: range.clone(), leaves, seen };
                out.push(Event::Send(ToAuthority::Release(release)));
            }
        })
    }

    fn change(
        &mut self,
        space: Space,
        change: impl FnOnce(&mut State, &mut Vec<Event>),
    ) -> Vec<Event> {
        let (mut out, seen) = (Vec::new(), self.seen);
        let state = self.spaces.entry(space).or_default();
        change(state, &mut out);
        state.drain(space, &mut out);
        state.begin_waiting(seen, &mut out);
        if state.uses.is_empty() {
            // An empty map keeps the room of its last entries, in very many spaces.
            state.uses = BTreeMap::new();
        }
        if state.is_unused() {
            self.spaces.remove(&space);
        }
        out
    }

    /// There is a new authority. When all nodes have told it what they hold
    /// ([`Authority::restate`]), these must be sent: what operations wait for.
    ///
    /// [`Authority::restate`]: crate::Authority::restate
    pub fn ask_again(&mut self) -> Vec<ToAuthority> {
        self.seen = 0;
        let waiting = self.spaces.values_mut().flat_map(|state| &mut state.waiting);
        let mut waiting: Vec<&mut Waiting> = waiting.collect();
        waiting.sort_by_key(|waiting| waiting.of);
        let ask = |waiting: &mut Waiting| {
            waiting.is_asked = true;
            ToAuthority::Ask { ask: waiting.ask.clone(), seen: 0 }
        };
        waiting.into_iter().map(ask).collect()
    }

    /// Whether the node has all of a range in this mode. It may be returning it.
    pub fn covers(&self, space: Space, range: &Range<u64>, mode: Mode) -> bool {
        self.spaces.get(&space).is_some_and(|state| state.covers(range, mode))
    }

    /// What the node may do with all of a range, and nothing of the space is being returned.
    pub fn whole(&self, space: Space, range: &Range<u64>) -> Option<Mode> {
        let state = self.spaces.get(&space).filter(|state| state.leaving.is_empty())?;
        [Mode::Exclusive, Mode::Shared].into_iter().find(|mode| state.covers(range, *mode))
    }

    /// What the node holds.
    pub fn held(&self) -> Vec<Holding> {
        let mut spaces: Vec<_> = self.spaces.iter().collect();
        spaces.sort_by_key(|(space, _)| **space);
        let each = spaces.into_iter().flat_map(|(space, state)| {
            state.held.iter().map(|(range, mode)| (*space, range.clone(), *mode))
        });
        each.collect()
    }
}
