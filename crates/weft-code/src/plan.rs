//! The repair planner: which units to read, and how to combine them.
//!
//! The parity rows are equations: for each parity t, Σ coef·d_j + parity_t = 0. Every sum of
//! multiples of equations is an equation. A lost unit w can be computed exactly if some equation
//! contains w and no other lost unit; it is then the sum of the other terms. Let h(w) be one such
//! equation for each wanted unit, and let F ("free") be all equations without any lost unit. All
//! ways to repair w are h(w) + F, so the cheapest repair is the choice from these spaces with the
//! cheapest union of terms. (With one loss in a local group, the group's own row is among them.)
//!
//! Adding from F can strike units out: with dim F = m, any m units on which F is independent can be
//! struck out of all h(w) at once, and then nothing is left to choose. In an optimum nothing is
//! left to choose either (else another unit could be struck out), so enumerating the independent
//! m-subsets is an exact search. It goes depth first through the units, dearest first, taking of
//! every subset that can be struck out together its first basis: a unit that was passed over
//! although it could have been struck out is then read for certain, as is one that no free
//! equation can touch any more, and the sum of these costs bounds the branch. The search starts
//! from greedy plans (dearest first; first all that is outside a local group) and stops after
//! [`WORK_MAX`], so that one cut short still has local repair. For MDS codes any m units are
//! independent and every result has the same number of terms: greedy is exact, no search is done.

use thiserror::Error;

use crate::code::Code;
use crate::matrix::clear;
use crate::units::UnitSet;
use weft_gf::field;

/// Products of coefficients that the search for the cheapest plan may take: about a millisecond.
const WORK_MAX: usize = 300_000;

/// Local rows tried one by one as a start.
const STARTS_MAX: usize = 16;

/// How to get wanted units: read some, combine them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// All units that the outputs are computed from, those at hand included.
    pub reads: UnitSet,
    /// For each wanted unit, ascending: the sources and coefficients whose sum it is. A unit that
    /// is not lost is `[(itself, 1)]`.
    pub outputs: Vec<(usize, Vec<(usize, u8)>)>,
}

impl Plan {
    /// The sources and coefficients of `unit`, if it was wanted.
    #[must_use]
    pub fn output(&self, unit: usize) -> Option<&[(usize, u8)]> {
        let found = self.outputs.binary_search_by_key(&unit, |(wanted, _)| *wanted).ok()?;
        Some(&self.outputs[found].1)
    }
}

/// A wanted unit cannot be computed from the surviving units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("unit {unit} cannot be computed while units {lost} are lost")]
pub struct Undecodable {
    /// The first such unit.
    pub unit: usize,
    /// The units that are lost.
    pub lost: UnitSet,
}

impl Code {
    /// The cheapest set of reads that gives all `wanted` units while `lost` are lost; `cost(unit)`
    /// is 0 for a unit that is at hand anyway. Wanted units that are not lost are simply read.
    /// The search is exact for maximum-distance-separable codes and for stripes of a dozen or two
    /// units; on wider ones with local groups it is bounded and may be a little off the optimum.
    ///
    /// # Errors
    /// If a wanted unit cannot be computed from the surviving units.
    pub fn plan(
        &self,
        stripe: u64,
        lost: UnitSet,
        wanted: UnitSet,
        cost: &dyn Fn(usize) -> u32,
    ) -> Result<Plan, Undecodable> {
        plan(self, stripe, lost, wanted, cost)
    }
}

fn plan(
    code: &Code,
    stripe: u64,
    lost: UnitSet,
    wanted: UnitSet,
    cost: &dyn Fn(usize) -> u32,
) -> Result<Plan, Undecodable> {
    let repair = wanted.intersection(&lost);
    let direct = wanted.difference(&lost);
    let mut solved = Vec::new();
    if !repair.is_empty() {
        let start = Choice::new(code, stripe, lost, repair)?;
        let costs = (0..code.width())
            .map(|unit| if direct.contains(unit) { 0 } else { cost(unit).into() })
            .collect();
        solved = Search::new(code, stripe, lost, costs).best(&start);
    }
    Ok(assemble(wanted, repair, &solved))
}

fn assemble(wanted: UnitSet, repair: UnitSet, solved: &[Vec<u8>]) -> Plan {
    let mut plan = Plan { reads: wanted.difference(&repair), outputs: Vec::new() };
    let mut equations = solved.iter();
    for unit in wanted.iter() {
        let sources = if repair.contains(unit) {
            let equation = equations.next().expect("one equation a unit");
            let terms = equation.iter().copied().enumerate();
            terms.filter(|&(source, coef)| coef != 0 && source != unit).collect()
        } else {
            vec![(unit, 1)]
        };
        plan.reads = sources.iter().fold(plan.reads, |reads, &(source, _)| reads.with(source));
        plan.outputs.push((unit, sources));
    }
    plan
}

/// An equation for each wanted unit, and the equations that may still be added to them.
#[derive(Clone, Default)]
struct Choice {
    units: usize,
    /// Equations of wanted units, ascending, at the front.
    wanted: usize,
    /// Equations of `units` coefficients, one after the other.
    rows: Vec<u8>,
}

impl Choice {
    fn new(code: &Code, stripe: u64, lost: UnitSet, repair: UnitSet) -> Result<Self, Undecodable> {
        let mut free = equations(code, stripe);
        let mut solved: Vec<(usize, Vec<u8>)> = Vec::new();
        let mut unsolved = UnitSet::EMPTY;
        for unit in lost.iter().filter(|&u| u < code.width()) {
            let Some(found) = free.iter().position(|row| row[unit] != 0) else {
                unsolved.insert(unit);
                continue;
            };
            let mut pivot = free.swap_remove(found);
            let one_over = field::inv(pivot[unit]);
            pivot.iter_mut().for_each(|c| *c = field::mul(*c, one_over));
            for row in free.iter_mut().chain(solved.iter_mut().map(|(_, row)| row)) {
                clear(row, &pivot, unit);
            }
            solved.push((unit, pivot));
        }
        let mut rows = Vec::new();
        for unit in repair.iter() {
            match solved.iter().find(|(pivot, _)| *pivot == unit) {
                Some((_, row)) if unsolved.iter().all(|u| row[u] == 0) => rows.extend(row),
                _ => return Err(Undecodable { unit, lost }),
            }
        }
        rows.extend(free.iter().flatten());
        Ok(Self { units: code.width(), wanted: repair.len(), rows })
    }

    fn copy_from(&mut self, other: &Self) {
        (self.units, self.wanted) = (other.units, other.wanted);
        self.rows.clone_from(&other.rows);
    }

    /// The equations of the wanted units.
    fn wanted(&self) -> impl Iterator<Item = &[u8]> {
        self.rows.chunks_exact(self.units).take(self.wanted)
    }

    /// The equations that are left to add.
    fn free(&self) -> impl Iterator<Item = &[u8]> {
        self.rows.chunks_exact(self.units).skip(self.wanted)
    }

    fn free_len(&self) -> usize {
        self.rows.len() / self.units - self.wanted
    }

    /// Whether the free equations allow striking out `unit`.
    fn can_strike(&self, unit: usize) -> bool {
        self.free().any(|row| row[unit] != 0)
    }

    /// Strikes `unit` out of all equations, if the free ones allow it.
    fn strike(&mut self, unit: usize) -> bool {
        let Some(found) = self.free().position(|row| row[unit] != 0) else { return false };
        let last = self.rows.len() - self.units;
        let (others, pivot) = self.rows.split_at_mut(last);
        if let Some(row) = others[self.wanted * self.units..].chunks_mut(self.units).nth(found) {
            row.swap_with_slice(pivot);
        }
        others.chunks_mut(self.units).for_each(|row| clear(row, pivot, unit));
        self.rows.truncate(last);
        true
    }
}

/// Parity t as the equation Σ coef·d_j + parity_t = 0, one for each t.
fn equations(code: &Code, stripe: u64) -> Vec<Vec<u8>> {
    let equation = |t: usize| {
        let mut row = code.row(stripe, t).to_vec();
        row.resize(code.width(), 0);
        row[code.k() + t] = 1;
        row
    };
    (0..code.p()).map(equation).collect()
}

/// What a plan costs: reads first, then arithmetic.
type Score = (u64, usize);

struct Search {
    costs: Vec<u64>,
    /// Units that are left, dearest first; of equals the later (Q before P before data).
    order: Vec<usize>,
    /// Units of the native equations.
    native: Vec<UnitSet>,
    exhaustive: bool,
    work: usize,
    best: Option<(Score, Vec<Vec<u8>>)>,
}

impl Search {
    fn new(code: &Code, stripe: u64, lost: UnitSet, costs: Vec<u64>) -> Self {
        let mut order: Vec<_> = (0..code.width()).rev().filter(|&u| !lost.contains(u)).collect();
        order.sort_by_key(|&u| std::cmp::Reverse(costs[u]));
        let native = if code.is_mds() { vec![] } else { equations(code, stripe) };
        let native = native.iter().map(|row| support(row)).collect();
        Self { costs, order, native, exhaustive: !code.is_mds(), work: 0, best: None }
    }

    fn best(mut self, start: &Choice) -> Vec<Vec<u8>> {
        self.greedy(start, UnitSet::EMPTY);
        if self.exhaustive && start.free_len() > 0 {
            for keep in self.starts(start) {
                self.greedy(start, keep);
            }
            let mut scratch = vec![Choice::default(); start.free_len()];
            self.descend(start, &mut scratch, 0, 0);
        }
        self.best.expect("greedy always ends with a plan").1
    }

    /// Sets of units worth keeping: the native equations of each wanted unit, and the cheapest of
    /// each all together.
    fn starts(&self, start: &Choice) -> Vec<UnitSet> {
        let price = |units: &UnitSet| -> u64 { units.iter().map(|u| self.costs[u]).sum() };
        let alive: UnitSet = self.order.iter().copied().collect();
        let mut together = UnitSet::EMPTY;
        let mut starts = Vec::new();
        for row in start.wanted() {
            // the wanted unit is the only lost one in its equation
            let wanted = support(row).difference(&alive);
            let mut rows: Vec<_> =
                self.native.iter().filter(|units| wanted.is_subset(units)).copied().collect();
            rows.sort_by_key(price);
            if let Some(cheapest) = rows.first() {
                together = together.union(cheapest);
            }
            starts.extend(rows);
        }
        starts.truncate(STARTS_MAX);
        starts.push(together);
        starts
    }

    /// Strikes out units that must not be kept, then the rest, most expensive first.
    fn greedy(&mut self, start: &Choice, keep: UnitSet) {
        let mut choice = start.clone();
        let (last, first): (Vec<_>, Vec<_>) = self.order.iter().partition(|&&u| keep.contains(u));
        for unit in first.into_iter().chain(last) {
            choice.strike(unit);
        }
        self.offer(&choice);
    }

    fn offer(&mut self, choice: &Choice) {
        let score = self.score(choice);
        if self.best.as_ref().is_none_or(|(best, _)| score < *best) {
            self.best = Some((score, choice.wanted().map(<[u8]>::to_vec).collect()));
        }
    }

    /// Tries all first bases among `order[from..]`; `paid` is the cost of the units passed over.
    fn descend(&mut self, choice: &Choice, scratch: &mut [Choice], from: usize, mut paid: u64) {
        let Some((next, scratch)) = scratch.split_first_mut() else {
            return self.offer(choice);
        };
        let fixed = self.unavoidable(choice);
        let worst = self.best.as_ref().map_or(u64::MAX, |(best, _)| best.0);
        for i in from..self.order.len() {
            let unit = self.order[i];
            if paid.saturating_add(fixed) >= worst || self.work >= WORK_MAX {
                return;
            }
            if !choice.can_strike(unit) {
                continue;
            }
            next.copy_from(choice);
            next.strike(unit);
            self.work += choice.rows.len();
            self.descend(next, scratch, i + 1, paid);
            paid += self.costs[unit];
        }
    }

    /// Cost of the units that no free equation can strike out any more.
    fn unavoidable(&self, choice: &Choice) -> u64 {
        let needed = |unit: usize| choice.wanted().any(|row| row[unit] != 0);
        let units = self.order.iter().filter(|&&u| self.costs[u] != 0);
        let fixed = units.filter(|&&u| needed(u) && !choice.can_strike(u));
        fixed.map(|&u| self.costs[u]).sum()
    }

    fn score(&self, choice: &Choice) -> Score {
        let used = choice.wanted().fold(UnitSet::EMPTY, |all, row| all.union(&support(row)));
        let reads = self.order.iter().filter(|&&u| used.contains(u)).map(|&u| self.costs[u]).sum();
        let terms = choice.wanted().flatten();
        (reads, terms.map(|&c| usize::from(c != 0) + usize::from(c > 1)).sum())
    }
}

fn support(row: &[u8]) -> UnitSet {
    row.iter().enumerate().filter(|(_, c)| **c != 0).map(|(unit, _)| unit).collect()
}
