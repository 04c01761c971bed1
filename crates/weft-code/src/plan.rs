//! The repair planner: which units to read, and how to combine them.
//!
//! The parity rows are equations: for each parity t, Σ coef·d_j + parity_t = 0. Every sum of multiples
//! of equations is an equation. A lost unit w can be computed exactly if some equation contains w
//! and no other lost unit; it is then the sum of the other terms. Let h(w) be one such equation
//! for each wanted unit, and let F ("free") be all equations without any lost unit. All ways to
//! repair w are h(w) + F, so the cheapest repair is the choice from these spaces with the cheapest
//! union of terms. (With one loss in a local group, the group's own row is among them.)
//!
//! Adding from F can strike units out: with dim F = m, any m units on which F is independent can be
//! struck out of all h(w) at once, and then nothing is left to choose. In an optimum nothing is
//! left to choose either (else another unit could be struck out), so
//! enumerating the independent m-subsets is an exact search. It is done depth first, dearest units
//! first, with the cost that can no longer be avoided as bound, and at most [`STEPS_MAX`] steps:
//! from greedy starts (dearest first; and first all that is outside a local group), so that a
//! search cut short still has local repair. For MDS codes any m units are independent
//! and every result has the same number of terms: greedy is exact, and no search is done.

use thiserror::Error;

use crate::code::Code;
use crate::matrix::{add_multiple, clear};
use crate::units::UnitSet;
use weft_gf::field;

/// Steps of elimination that the search for the cheapest plan may take.
const STEPS_MAX: usize = 4000;

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

/// A wanted unit cannot be computed from what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("unit {unit} cannot be computed while units {lost} are lost")]
pub struct Undecodable {
    /// The first such unit.
    pub unit: usize,
    /// The units that are lost.
    pub lost: UnitSet,
}

/// See [`Code::plan`].
pub(crate) fn plan(
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
        solved = Search::new(code, stripe, lost, costs).best(start);
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
#[derive(Clone)]
struct Choice {
    wanted: Vec<Vec<u8>>,
    free: Vec<Vec<u8>>,
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
                let c = row[unit];
                add_multiple(row, c, &pivot);
            }
            solved.push((unit, pivot));
        }
        let mut wanted = Vec::with_capacity(repair.len());
        for unit in repair.iter() {
            let row = solved.iter().position(|(pivot, _)| *pivot == unit);
            match row.map(|i| solved.swap_remove(i).1) {
                Some(row) if unsolved.iter().all(|u| row[u] == 0) => wanted.push(row),
                _ => return Err(Undecodable { unit, lost }),
            }
        }
        Ok(Self { wanted, free })
    }

    /// Strikes `unit` out of all equations, if the free ones allow it.
    fn strike(&mut self, unit: usize) -> bool {
        let Some(found) = self.free.iter().position(|row| row[unit] != 0) else { return false };
        let pivot = self.free.swap_remove(found);
        for row in self.wanted.iter_mut().chain(&mut self.free) {
            clear(row, &pivot, unit);
        }
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
    steps: usize,
    best: Option<(Score, Vec<Vec<u8>>)>,
}

impl Search {
    fn new(code: &Code, stripe: u64, lost: UnitSet, costs: Vec<u64>) -> Self {
        let mut order: Vec<_> = (0..code.width()).rev().filter(|&u| !lost.contains(u)).collect();
        order.sort_by_key(|&u| std::cmp::Reverse(costs[u]));
        let native = if code.is_mds() { vec![] } else { equations(code, stripe) };
        let native = native.iter().map(|row| support(row)).collect();
        Self { costs, order, native, exhaustive: !code.is_mds(), steps: 0, best: None }
    }

    fn best(mut self, start: Choice) -> Vec<Vec<u8>> {
        self.greedy(start.clone(), UnitSet::EMPTY);
        if self.exhaustive && !start.free.is_empty() {
            for keep in self.starts(&start) {
                self.greedy(start.clone(), keep);
            }
            self.descend(&start, 0);
        }
        self.best.expect("greedy always ends with a plan").1
    }

    /// Sets of units worth keeping: the cheapest native equation of each wanted unit, all together
    /// and one by one.
    fn starts(&self, start: &Choice) -> Vec<UnitSet> {
        let price = |units: &UnitSet| -> u64 { units.iter().map(|u| self.costs[u]).sum() };
        let alive: UnitSet = self.order.iter().copied().collect();
        let mut together = UnitSet::EMPTY;
        let mut starts = Vec::new();
        for row in &start.wanted {
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

    /// Strikes out what is not to be kept, then the rest, dearest first.
    fn greedy(&mut self, mut choice: Choice, keep: UnitSet) {
        let (last, first): (Vec<_>, Vec<_>) = self.order.iter().partition(|&&u| keep.contains(u));
        for unit in first.into_iter().chain(last) {
            choice.strike(unit);
        }
        self.offer(choice);
    }

    fn offer(&mut self, choice: Choice) {
        let score = self.score(&choice);
        if self.best.as_ref().is_none_or(|(best, _)| score < *best) {
            self.best = Some((score, choice.wanted));
        }
    }

    /// Tries all independent sets of units of `order[from..]` to strike out.
    fn descend(&mut self, choice: &Choice, from: usize) {
        if choice.free.is_empty() {
            self.offer(choice.clone());
            return;
        }
        if self.best.as_ref().is_some_and(|(best, _)| self.unavoidable(choice) > best.0) {
            return;
        }
        for i in from..self.order.len() {
            // too few units left to use up the free equations
            if self.order.len() - i < choice.free.len() || self.steps >= STEPS_MAX {
                return;
            }
            let mut next = choice.clone();
            if next.strike(self.order[i]) {
                self.steps += 1;
                self.descend(&next, i + 1);
            }
        }
    }

    /// Cost of the units that no free equation can strike out any more.
    fn unavoidable(&self, choice: &Choice) -> u64 {
        let fixed = |unit: usize| choice.free.iter().all(|row| row[unit] == 0);
        let needed = |unit: usize| choice.wanted.iter().any(|row| row[unit] != 0);
        let units = self.order.iter().filter(|&&u| self.costs[u] != 0 && needed(u) && fixed(u));
        units.map(|&u| self.costs[u]).sum()
    }

    fn score(&self, choice: &Choice) -> Score {
        let used = choice.wanted.iter().fold(UnitSet::EMPTY, |all, row| all.union(&support(row)));
        let reads = self.order.iter().filter(|&&u| used.contains(u)).map(|&u| self.costs[u]).sum();
        let terms = choice.wanted.iter().flatten();
        (reads, terms.map(|&c| usize::from(c != 0) + usize::from(c > 1)).sum())
    }
}

fn support(row: &[u8]) -> UnitSet {
    row.iter().enumerate().filter(|(_, c)| **c != 0).map(|(unit, _)| unit).collect()
}
