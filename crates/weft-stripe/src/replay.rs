//! Replaying the records of a band: what parity must be after a crash.
//!
//! parity := record + Σ coef·d_j over the units that were being written, as found. Whatever mixture
//! of old and new they are, parity then agrees with it, and every unit that was not being written
//! can be reconstructed. Where a unit that was being written cannot be read, a value is chosen that
//! contradicts nothing that is certain ([`Replay::choose_unknown`]).

use weft_code::UnitSet;
use weft_rt::{Buf, Frozen};

use crate::gather::{Access, gather_exactly, gather_readable};
use crate::owner::{Owner, Stripe};
use crate::{Units, value_in};

/// A band of a stripe, with the newest record of each of its parity units. They need not be of the
/// same write: if a later write does not touch a parity unit, that unit's record stays the newest.
#[derive(Debug)]
pub struct Replay {
    /// First offset in the units.
    pub from: u64,
    /// Length of the range in bytes.
    pub len: usize,
    /// The records.
    pub logged: Vec<LoggedParity>,
}

/// The record of a parity unit, as found in the log.
#[derive(Debug)]
pub struct LoggedParity {
    /// The parity unit.
    pub unit: usize,
    /// The data units that `partial` leaves out.
    pub written: UnitSet,
    /// The sum over the other units; none if it is zero.
    pub partial: Option<Frozen>,
}

impl Replay {
    /// A part of the band's range.
    #[must_use]
    pub fn part(&self, skip: usize, len: usize) -> Self {
        let part = |part: &LoggedParity| LoggedParity {
            partial: part.partial.as_ref().map(|partial| partial.slice(skip, len)),
            ..*part
        };
        let logged = self.logged.iter().map(part).collect();
        Self { from: self.from + skip as u64, len, logged }
    }

    /// The new contents of all logged parity units, and of units that were being written and cannot
    /// be read. Where such a unit cannot be read as a whole, `None`: the range must be halved, down
    /// to single sectors, in which it then counts as lost. The records are of parity units that are
    /// not lost.
    pub async fn values<O: Owner>(&self, owner: &O, stripe: Stripe<'_>) -> Option<Units> {
        let written = self.logged.iter().fold(UnitSet::new(), |all, p| all.union(&p.written));
        let readable = written.difference(&stripe.lost);
        let at = Access::user(self.from);
        let mut values = match gather_exactly(owner, stripe, at, self.len, readable).await {
            Ok(values) => values,
            Err(_) if self.len > owner.sector_bytes() => return None,
            Err(_) => gather_readable(owner, stripe, at, self.len, readable).await,
        };
        let known: UnitSet = values.iter().map(|(unit, _)| *unit).collect();
        let chosen = self.choose_unknown(owner, stripe, written.difference(&known)).await;
        let unreadable = chosen.iter().filter(|(unit, _)| !stripe.lost.contains(*unit));
        let mut fresh: Units =
            unreadable.map(|(unit, value)| (*unit, Buf::copy_from(value))).collect();
        values.extend(chosen);
        fresh.extend(self.logged.iter().map(|p| (p.unit, self.sum(stripe, p, &values))));
        Some(fresh)
    }

    /// A parity unit: its record, plus the units that the record leaves out, as far as `values` has
    /// them.
    fn sum(&self, stripe: Stripe<'_>, parity: &LoggedParity, values: &Units) -> Buf {
        let row = stripe.code().row(stripe.id.number, parity.unit - stripe.code().k());
        let mut sum = self.partial(parity);
        for (data, value) in values.iter().filter(|(data, _)| parity.written.contains(*data)) {
            weft_gf::mul_acc(&mut sum, row[*data], value);
        }
        sum
    }

    fn partial(&self, parity: &LoggedParity) -> Buf {
        let zero = || Buf::zeroed(self.len);
        parity.partial.as_ref().map_or_else(zero, |partial| Buf::copy_from(partial))
    }

    /// Chooses values for lost units that were being written. Either the old or the new value is
    /// correct for such a unit itself, but parity rows that the write did not touch, and lost units
    /// that no write touched, must agree with it. So the certain cases come first: each record is a
    /// sum over units that were not being written, and each parity unit without a record is a sum
    /// over all of its units. What this leaves open follows from the logged parity units as found,
    /// so that a write that reached all disks keeps its value. A unit that nothing determines
    /// becomes zeros.
    async fn choose_unknown<O: Owner>(
        &self,
        owner: &O,
        stripe: Stripe<'_>,
        unknown: UnitSet,
    ) -> Units {
        if unknown.is_empty() {
            return Units::new();
        }
        let all = stripe.coding.data_units();
        let lost = owner.resolve(stripe.id).lost;
        let present = stripe.coding.units().difference(&lost).difference(&unknown);
        let at = Access::user(self.from);
        let read = gather_readable(owner, stripe, at, self.len, present).await;
        let (known, found): (Units, Units) =
            read.into_iter().partition(|(unit, _)| all.contains(*unit));
        let equation = |parity, units, sum| equation(stripe, parity, units, sum, &known);
        let mut equations = Vec::new();
        for parity in &self.logged {
            let Some(found) = value_in(&found, parity.unit) else { continue };
            let mut rest = Buf::copy_from(found);
            if let Some(partial) = &parity.partial {
                weft_gf::xor_acc(&mut rest, &[partial]);
            }
            equations.push(equation(parity.unit, parity.written, rest));
        }
        for parity in &self.logged {
            let counted = all.difference(&parity.written);
            equations.push(equation(parity.unit, counted, self.partial(parity)));
        }
        for (parity, value) in found {
            if self.logged.iter().all(|logged| logged.unit != parity) {
                equations.push(equation(parity, all, value));
            }
        }
        // `solve` takes the last equations first.
        let mut values = solve(equations);
        values.retain(|(unit, _)| unknown.contains(*unit));
        let solved: UnitSet = values.iter().map(|(unit, _)| *unit).collect();
        let zeros = |unit| (unit, Buf::zeroed(self.len));
        values.extend(unknown.difference(&solved).iter().map(zeros));
        values
    }
}

/// Units with their coefficients in an equation.
type Coefs = Vec<(usize, u8)>;

/// The equation "the sum over `units` with the coefficients of a parity unit is `sum`", in the
/// units that are not `known`.
fn equation(
    stripe: Stripe<'_>,
    parity: usize,
    units: UnitSet,
    mut sum: Buf,
    known: &Units,
) -> (Coefs, Buf) {
    let row = stripe.code().row(stripe.id.number, parity - stripe.code().k());
    let mut open = units;
    for (unit, value) in known.iter().filter(|(unit, _)| units.contains(*unit)) {
        weft_gf::mul_acc(&mut sum, row[*unit], value);
        open.remove(*unit);
    }
    let coefs = open.iter().map(|unit| (unit, row[unit])).filter(|(_, coef)| *coef != 0);
    (coefs.collect(), sum)
}

/// Solves the equations Σ coef·value = right-hand side, the last ones first. Undetermined units
/// count as zeros and are left out of the result.
fn solve(mut equations: Vec<(Coefs, Buf)>) -> Units {
    let mut pivots: Vec<(usize, Coefs, Buf)> = Vec::new();
    while let Some((coefs, rest)) = equations.pop() {
        let Some((unit, pivot)) = coefs.first().copied() else { continue };
        let scale = weft_gf::field::inv(pivot);
        let mut right = Buf::new(rest.len());
        weft_gf::mul(&mut right, scale, &rest);
        let equation: Coefs =
            coefs.iter().map(|(u, c)| (*u, weft_gf::field::mul(scale, *c))).collect();
        for (coefs, rest) in &mut equations {
            eliminate(unit, &equation, &right, coefs, rest);
        }
        for (_, coefs, rest) in &mut pivots {
            eliminate(unit, &equation, &right, coefs, rest);
        }
        pivots.push((unit, equation, right));
    }
    // Units that remain next to a pivot are undetermined, and count as zeros.
    pivots.into_iter().map(|(unit, _, value)| (unit, value)).collect()
}

/// Subtracts a multiple of `equation`, whose leading unit is `unit` (with coefficient 1).
fn eliminate(
    unit: usize,
    equation: &[(usize, u8)],
    right: &[u8],
    coefs: &mut Coefs,
    rest: &mut [u8],
) {
    let Some(factor) = coefs.iter().find(|(u, _)| *u == unit).map(|(_, c)| *c) else { return };
    weft_gf::mul_acc(rest, factor, right);
    for (u, c) in equation {
        let delta = weft_gf::field::mul(factor, *c);
        match coefs.iter_mut().find(|(held, _)| held == u) {
            Some((_, held)) => *held ^= delta,
            None => coefs.push((*u, delta)),
        }
    }
    coefs.retain(|(_, c)| *c != 0);
}
