//! Victim disk first: which list evicts the block at its end.
//!
//! The block to evict is that with the least p·MP. MP is the same for all blocks of a disk, as long
//! as no rebuild runs, and a policy orders the blocks of a disk by p as it orders all blocks. So it
//! is enough to keep a list for each disk, ordered as the policy orders its one list, and to
//! compare the ends of the lists (VDF, algorithms 1 and 2; LS there):
//!
//! ```text
//!   disk 0 (lost)  ● ● ● ● ● ● ● ● ● ●    MP 4, age 90   1/90 · 4 = .044
//!   disk 1         ● ● ● ● ● ●            MP 1, age 31   1/31 · 1 = .032
//!   disk 2         ● ● ● ● ● ● ●          MP 1, age 35   1/35 · 1 = .029   ◀ goes
//!                  newest … oldest
//! ```
//!
//! An end changes only when its block goes or is requested. The lists whose ends have changed are
//! noted, and looked at before the next comparison. With penalties that are equal, or weights that
//! stay what they are (frequency times penalty), the order of the ends is fixed in between, and a
//! tournament keeps the least: O(log n) for each change. Where p is 1 / age, the order of ends with
//! *different* penalties changes with time. So the tournament is among the lists with the most
//! common penalty, and its winner is compared with the ends of the few other lists.
//!
//! **Healthy, this is the policy itself.** The paper keeps a global list of all blocks as well
//! (GS), for arrays that have lost nothing. It is not needed: with equal penalties the least of the
//! ends is the end of the global list. So nothing has to be switched when a disk is lost or is
//! back; only penalties change. It also saves two links per block, and touching two more neighbours
//! at each hit.
//!
//! **Ties** go to the older block, by its stamp. Among blocks of equal frequency the paper does so
//! as well.
//!
//! **A rebuild** lowers the penalty of blocks one by one. When it has advanced, the ends that were
//! dear are asked for again. Behind an end that is still lost there are blocks that are rebuilt,
//! and those are found by a *scout*, which walks through the list from the end on, a few blocks at
//! each eviction, until it finds one that is cheaper. That block is weighed as well, as if it were
//! the end of a list of its own. The scout then starts again, up to the block that it found:
//!
//! ```text
//!   disk 0  ● ● ● ○ ● ● ○ ● ● ● ●    ● lost: MP 4, the end   ○ rebuilt: MP 1
//!                       ▲   ▲   the end, age 90 / 4 = 22
//!                   found   scout    age 70 / 1 = 70   ◀ goes
//! ```
//!
//! So a block is asked for once in each round of the scout, only while a rebuild advances, and the
//! work of an eviction is bounded. What the scout passed, and is rebuilt later, is found in the
//! next round.
//!
//! Penalties may be dear to compute. That of an end is asked for when the block becomes the end,
//! and again when the generation has changed.

use std::fmt;
use std::ops::Range;

use crate::penalty::{Block, Penalty};
use crate::slab::NONE;

/// The lists of a policy.
pub(crate) trait Lists {
    /// The end of a list.
    fn end(&self, list: u32) -> Option<End>;

    /// The block of the same list that would be its end without this one and the blocks after it.
    fn newer(&self, id: u32) -> Option<End>;
}

/// Blocks of a list that its scout looks at in an eviction.
const SCOUT_STEPS: u32 = 4;

/// The known blocks after an end that is lost.
#[derive(Clone, Copy, Debug)]
struct Scout {
    /// The block that it looked at last; none at the end.
    at: u32,
    /// The progress when it started, and whether it has been through since.
    begun: u64,
    is_done: bool,
    /// A cheaper block that it found.
    found: Option<(End, u32)>,
}

const RESTING: Scout = Scout { at: NONE, begun: 0, is_done: true, found: None };

/// The end of a list: the block that would go next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// Its number; none for an empty list.
    pub(crate) id: u32,
    pub(crate) key: u64,
    /// When it was last seen by the policy; unique, and below 2⁵².
    pub(crate) stamp: u64,
    /// Its frequency or credit, if the policy weighs that.
    pub(crate) value: u64,
}

const EMPTY: End = End { id: NONE, key: 0, stamp: 0, value: 0 };

/// How the least p·MP is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// p is 1 / age: the greatest age / MP goes.
    Age,
    /// p is the end's value.
    Value,
    /// The end's value has the penalty in it.
    Whole,
}

/// Bits of a class in the order of a place; the remaining bits are the stamp's.
const CLASS_BITS: u32 = 12;
/// The order of a list that does not take part. Stamps are below 2⁵².
const LAST: u64 = u64::MAX;

/// A list's place in a tournament: the least is worth least. `u64` if only the end's stamp decides;
/// this is the case worth optimising: half of the work.
pub(crate) trait Rank: Copy + Ord + fmt::Debug {
    /// After all others: what no list has.
    const LAST: Self;

    /// By weight, then by order: stamp and class.
    fn new(weight: u64, order: u64) -> Self;

    fn order(self) -> u64;
}

impl Rank for u64 {
    const LAST: Self = LAST;

    fn new(_: u64, order: u64) -> Self {
        order
    }

    fn order(self) -> u64 {
        self
    }
}

impl Rank for u128 {
    const LAST: Self = Self::MAX;

    fn new(weight: u64, order: u64) -> Self {
        Self::from(weight) << 64 | Self::from(order)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low half")]
    fn order(self) -> u64 {
        self as u64
    }
}

/// Compares the ends of the lists of each queue.
#[derive(Debug)]
pub(crate) struct Victims<P> {
    weight: Weight,
    classes: u16,
    /// Bits of a list's number that are its class; the remaining lists are its queue.
    bits: u32,
    /// When the penalties were asked for; none is as great as the first.
    generation: u64,
    /// The ends by list, and their penalties, when last looked at.
    ends: Vec<(End, u32)>,
    /// A tournament for each queue: the root at 1, the lists' places in the second half.
    places: Vec<P>,
    /// By age: the penalty of the lists in the tournaments.
    common: u32,
    /// By age: the lists whose ends have another penalty.
    others: Vec<u32>,
    /// By list, while a rebuild advances; otherwise all are resting.
    scouts: Vec<Scout>,
    is_scouting: bool,
    progress: u64,
    /// Lists whose ends may have changed since, and whether a list is among them.
    changed: Vec<u32>,
    is_changed: Vec<bool>,
}

impl<P: Rank> Victims<P> {
    pub(crate) fn new(weight: Weight, queues: usize, classes: u16) -> Self {
        let lists = Self::lists_of(queues, classes);
        Self {
            weight,
            classes,
            bits: bits(classes),
            generation: u64::MAX,
            ends: vec![(EMPTY, 0); lists],
            places: vec![P::LAST; 2 * lists],
            common: 0,
            others: Vec::with_capacity(lists),
            scouts: vec![RESTING; lists],
            is_scouting: false,
            progress: 0,
            changed: Vec::with_capacity(lists),
            is_changed: vec![false; lists],
        }
    }

    /// Lists for this number of queues; not all may be used.
    pub(crate) fn lists_of(queues: usize, classes: u16) -> usize {
        queues << bits(classes)
    }

    /// The number of the list of a class in a queue.
    pub(crate) fn list(&self, queue: u32, class: u16) -> u32 {
        queue << self.bits | u32::from(class)
    }

    /// The lists of a queue.
    pub(crate) fn lists(&self, queue: u32) -> Range<u32> {
        self.list(queue, 0)..self.list(queue, self.classes - 1) + 1
    }

    /// The queue of a list.
    pub(crate) fn queue(&self, list: u32) -> u32 {
        list >> self.bits
    }

    /// The class of a list.
    #[expect(clippy::cast_possible_truncation, reason = "the low bits are the class")]
    pub(crate) fn class(&self, list: u32) -> u16 {
        (list & ((1 << self.bits) - 1)) as u16
    }

    /// The end of `list` may have changed.
    pub(crate) fn changed(&mut self, list: u32) {
        if !std::mem::replace(&mut self.is_changed[list as usize], true) {
            self.changed.push(list);
        }
    }

    /// Blocks have new numbers.
    pub(crate) fn renumbered(&mut self) {
        self.scouts.fill(RESTING);
        self.all_changed();
    }

    fn all_changed(&mut self) {
        for queue in 0..self.ends.len() >> self.bits {
            let lists = self.lists(u32::try_from(queue).expect("a few queues"));
            lists.for_each(|list| self.changed(list));
        }
    }

    /// The block of `queue` that is worth least at time `now`: its number and its penalty. If
    /// classes are not told apart, that counts as 1. Nothing has changed since [`Self::refresh`].
    pub(crate) fn least(
        &mut self,
        queue: u32,
        now: u64,
        penalty: &dyn Penalty,
        lists: &impl Lists,
    ) -> Option<(u32, u32)> {
        if self.classes == 1 {
            return lists.end(queue).map(|end| (end.id, 1));
        }
        let first = self.places[(2 << self.bits) * queue as usize + 1].order();
        let mut least = (first != LAST).then(|| {
            let class = first & ((1 << CLASS_BITS) - 1);
            self.ends[self.list(queue, u16::try_from(class).expect("a class")) as usize]
        });
        for list in &self.others {
            let other = self.ends[*list as usize];
            if self.queue(*list) == queue && least.is_none_or(|least| goes(other, least, now)) {
                least = Some(other);
            }
        }
        if self.is_scouting {
            for list in self.lists(queue) {
                let Some(found) = self.scout(list, penalty, lists) else { continue };
                if least.is_none_or(|least| self.goes(found, least, now)) {
                    least = Some(found);
                }
            }
        }
        least.map(|(end, penalty)| (end.id, penalty))
    }

    /// Looks for a block after the end of `list` that is cheaper than it. The oldest that is known.
    fn scout(
        &mut self,
        list: u32,
        penalty: &dyn Penalty,
        lists: &impl Lists,
    ) -> Option<(End, u32)> {
        let (end, dear) = self.ends[list as usize];
        let class = self.class(list);
        let scout = &mut self.scouts[list as usize];
        if end.id == NONE || dear <= 1 {
            *scout = RESTING;
            return None;
        }
        if scout.is_done && scout.begun != self.progress {
            *scout = Scout { at: end.id, begun: self.progress, is_done: false, ..*scout };
        }
        for _ in 0..SCOUT_STEPS {
            if scout.is_done {
                break;
            }
            let from = if scout.at == NONE { end.id } else { scout.at };
            let next = lists.newer(from);
            let Some(next) = next.filter(|next| scout.found.is_none_or(|(e, _)| e.id != next.id))
            else {
                scout.is_done = true;
                break;
            };
            scout.at = next.id;
            let its = penalty.of(Block { key: next.key, class });
            if its < dear {
                scout.found = Some((next, its));
                scout.is_done = true;
            }
        }
        scout.found
    }

    /// A block leaves its place in `list`, where `older` followed it.
    pub(crate) fn leaves(&mut self, id: u32, list: u32, older: u32) {
        if !self.is_scouting {
            return;
        }
        let scout = &mut self.scouts[list as usize];
        if scout.found.is_some_and(|(found, _)| found.id == id) {
            // There may be more where this one was.
            *scout = Scout { at: older, is_done: false, found: None, ..*scout };
        } else if scout.at == id {
            scout.at = older;
        }
    }

    /// Whether `a` is worth less than `b` at time `now`.
    fn goes(&self, a: (End, u32), b: (End, u32), now: u64) -> bool {
        let value = |(end, penalty): (End, u32)| (end.value * u64::from(penalty), end.stamp);
        match self.weight {
            Weight::Age => goes(a, b, now),
            Weight::Value => value(a) < value(b),
            Weight::Whole => false,
        }
    }

    /// How many of the blocks of `queue` do not count, if of each list only one in as many counts
    /// as the penalty of its end. `count(list)` tells the blocks of a list.
    pub(crate) fn spared(&self, queue: u32, count: impl Fn(u32) -> u32) -> usize {
        let of = |list: u32| {
            let (_, penalty) = self.ends[list as usize];
            (count(list) - count(list) / penalty.max(1)) as usize
        };
        if self.common > 1 {
            return self.lists(queue).map(of).sum();
        }
        let others = self.others.iter().copied();
        others.filter(|list| self.queue(*list) == queue).map(of).sum()
    }

    /// Looks at the ends that may have changed, or become cheaper.
    pub(crate) fn refresh(&mut self, penalty: &dyn Penalty, lists: &impl Lists) {
        if self.classes == 1 {
            return;
        }
        let (generation, progress) = (penalty.generation(), penalty.progress());
        if generation != self.generation {
            (self.generation, self.progress) = (generation, progress);
            self.stop_scouting();
            self.ends.fill((EMPTY, 0));
            self.all_changed();
            for at in 0..self.changed.len() {
                self.look(self.changed[at], penalty, lists);
            }
            self.common = self.majority();
        } else if progress != self.progress && self.weight != Weight::Whole {
            (self.progress, self.is_scouting) = (progress, true);
            for list in 0..self.ends.len() {
                if self.ends[list].1 > 1 {
                    self.ends[list].0 = EMPTY;
                    self.changed(u32::try_from(list).expect("few lists"));
                }
            }
        }
        while let Some(list) = self.changed.pop() {
            self.is_changed[list as usize] = false;
            self.look(list, penalty, lists);
            self.place(list);
        }
    }

    fn stop_scouting(&mut self) {
        self.is_scouting = false;
        self.scouts.fill(RESTING);
    }

    /// Looks at the end of a list.
    fn look(&mut self, list: u32, penalty: &dyn Penalty, lists: &impl Lists) {
        let found = lists.end(list).unwrap_or(EMPTY);
        let (known, its) = self.ends[list as usize];
        let is_known = found.key == known.key && known.id != NONE;
        let its = match found.id {
            NONE => 0,
            _ if is_known => its,
            _ => penalty.of(Block { key: found.key, class: self.class(list) }),
        };
        self.ends[list as usize] = (found, its);
    }

    /// Puts a list into the tournament, or among the other lists.
    fn place(&mut self, list: u32) {
        let (end, penalty) = self.ends[list as usize];
        let is_other = self.weight == Weight::Age && penalty != self.common && end.id != NONE;
        let among = self.others.iter().position(|other| *other == list);
        match among {
            None if is_other => self.others.push(list),
            Some(at) if !is_other => drop(self.others.swap_remove(at)),
            _ => {}
        }
        let weight = match self.weight {
            Weight::Age => 0,
            Weight::Value => end.value * u64::from(penalty),
            Weight::Whole => end.value,
        };
        let class = u64::from(self.class(list));
        let place = P::new(weight, end.stamp << CLASS_BITS | class);
        let place = if end.id == NONE || is_other { P::LAST } else { place };
        let tournament = &mut self.places[(2 << self.bits) * (list >> self.bits) as usize..];
        let mut at = (1 << self.bits) + usize::try_from(class).expect("a class");
        tournament[at] = place;
        while at > 1 {
            at /= 2;
            tournament[at] = tournament[2 * at].min(tournament[2 * at + 1]);
        }
    }

    /// A penalty that more than half of the ends have; any, if there is none.
    fn majority(&self) -> u32 {
        let ends = self.ends.iter().filter(|(end, _)| end.id != NONE);
        let vote = |(most, count), penalty: u32| match count {
            0 => (penalty, 1),
            _ if most == penalty => (most, count + 1),
            _ => (most, count - 1),
        };
        ends.fold((0, 0_u32), |votes, (_, penalty)| vote(votes, *penalty)).0
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.ends.capacity() * size_of::<(End, u32)>()
            + self.scouts.capacity() * size_of::<Scout>()
            + self.places.capacity() * size_of::<P>()
            + (self.others.capacity() + self.changed.capacity()) * size_of::<u32>()
            + self.is_changed.capacity()
    }
}

fn bits(classes: u16) -> u32 {
    classes.next_power_of_two().trailing_zeros()
}

/// Whether `a` is worth less than `b` at time `now`: whether its age / MP is greater, or as great
/// and its block older.
fn goes((a, a_penalty): (End, u32), (b, b_penalty): (End, u32), now: u64) -> bool {
    let weight = |end: End, others: u32| u128::from(now - end.stamp) * u128::from(others);
    (weight(a, b_penalty), b.stamp) > (weight(b, a_penalty), a.stamp)
}
