//! A code built for a number of slots: its parity rows, stripe by stripe.

use std::sync::OnceLock;

use crate::combinations::{binomial, sets};
use crate::distance::{self, Tolerance};
use crate::matrix::{full_rank, rank};
use crate::rows;
use crate::shuffle;
use crate::spec::{CodeSpec, Shape, SpecError};
use crate::units::UnitSet;

/// Sets of losses that [`Code::margin`] tries, over a whole period.
const MARGIN_CHECKS_MAX: u64 = 1_000_000;

/// Lost data units up to which decodability is settled without allocation.
const FEW: usize = 8;

/// A linear stripe code over GF(2^8): k data units 0..k, p parity units k..k+p, each parity a row
/// of coefficients over the data. Rows may differ from stripe to stripe with a period.
#[derive(Clone, Debug)]
pub struct Code {
    spec: CodeSpec,
    shape: Shape,
    period: u64,
    /// Coefficients: stripe of the period, then parity, then data.
    rows: Vec<u8>,
    /// Local group of each data unit: stripe of the period, then data. Empty without groups.
    groups: Vec<usize>,
    tolerance: OnceLock<Tolerance>,
}

/// How many more losses are survived, in any combination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Margin {
    /// So many.
    pub losses: usize,
    /// Some set of one more is known that is not survived; if not, `losses` is a lower bound, for
    /// very wide stripes.
    pub exact: bool,
}

impl Code {
    /// The code `spec` on `slots` slots.
    ///
    /// # Errors
    /// If it cannot be built on that many.
    pub fn new(spec: CodeSpec, slots: usize) -> Result<Self, SpecError> {
        let shape = spec.shape(slots)?;
        Self::with_columns(spec, slots, &[(0..shape.k).collect()])
    }

    /// As [`Code::new`], for a layout in which the coefficients of a data unit follow its place
    /// in the row, not its number: in stripe s data unit j has the coefficients of column
    /// `columns[s mod columns.len()][j]`. (md computes Q of RAID-6 in the order of the disks that
    /// follow Q; in the asymmetric algorithms this is not the order of the data.)
    ///
    /// # Errors
    /// If the code cannot be built on that many slots.
    ///
    /// # Panics
    /// If a list of columns is not k different numbers below 255, or if the code has local groups
    /// and `columns` is not the identity.
    pub fn with_columns(
        spec: CodeSpec,
        slots: usize,
        columns: &[Vec<usize>],
    ) -> Result<Self, SpecError> {
        let shape = spec.shape(slots)?;
        assert!(!columns.is_empty());
        for c in columns {
            let distinct: UnitSet = c.iter().copied().collect();
            assert!(c.len() == shape.k && distinct.len() == shape.k && !distinct.contains(255));
        }
        let (rows, groups) = match spec.groups() {
            Some((k, l, r)) => {
                let natural: Vec<_> = (0..k).collect();
                assert!(columns.iter().all(|c| *c == natural), "columns of a code with groups");
                let groups = match spec {
                    CodeSpec::Lrc { .. } => Some(shuffle::fixed(k, l)),
                    CodeSpec::DrcOa { .. } => shuffle::orthogonal(k, l),
                    _ => shuffle::algorithm_1(k, l),
                };
                let groups = groups.expect("the specification was checked");
                (grouped_rows(&groups, l, r), groups)
            }
            None => (plain_rows(spec, shape, columns), vec![vec![]; columns.len()]),
        };
        Ok(Self {
            spec,
            shape,
            period: groups.len() as u64,
            rows,
            groups: groups.concat(),
            tolerance: OnceLock::new(),
        })
    }

    /// The name it was built from.
    #[must_use]
    pub fn spec(&self) -> CodeSpec {
        self.spec
    }

    /// Data units of a stripe.
    #[must_use]
    pub fn k(&self) -> usize {
        self.shape.k
    }

    /// Parity units (or further copies) of a stripe.
    #[must_use]
    pub fn p(&self) -> usize {
        self.shape.p
    }

    /// Units of a stripe, k + p.
    #[must_use]
    pub fn width(&self) -> usize {
        self.shape.width()
    }

    /// Stripes after which the rows repeat.
    #[must_use]
    pub fn period(&self) -> u64 {
        self.period
    }

    /// The stripe of the first period that has the same rows as `stripe`.
    #[must_use]
    pub fn pattern(&self, stripe: u64) -> u64 {
        if self.period == 1 { 0 } else { stripe % self.period }
    }

    /// Coefficient of data unit `data` in parity row `parity` (0..p) of `stripe`.
    ///
    /// # Panics
    /// If `parity` or `data` is out of range.
    #[must_use]
    pub fn coef(&self, stripe: u64, parity: usize, data: usize) -> u8 {
        self.row(stripe, parity)[data]
    }

    /// The k coefficients of parity row `parity` (0..p) of `stripe`.
    ///
    /// # Panics
    /// If `parity` is out of range.
    #[must_use]
    pub fn row(&self, stripe: u64, parity: usize) -> &[u8] {
        let Shape { k, p } = self.shape;
        assert!(parity < p);
        &self.rows[(self.slot_of_pattern(stripe) * p + parity) * k..][..k]
    }

    /// The parity rows that a write to data unit `data` changes, each with the coefficient that
    /// the change is multiplied by: parity row t lives in unit k + t.
    pub fn parities_of(&self, stripe: u64, data: usize) -> impl Iterator<Item = (usize, u8)> + '_ {
        (0..self.shape.p)
            .map(move |parity| (parity, self.coef(stripe, parity, data)))
            .filter(|&(_, coef)| coef != 0)
    }

    /// The local group of a data unit, counted from 0; none for codes without local groups.
    #[must_use]
    pub fn group(&self, stripe: u64, data: usize) -> Option<usize> {
        self.groups.get(self.slot_of_pattern(stripe) * self.shape.k + data).copied()
    }

    /// Whether any p losses survive, so that all repairs read k units and only cost decides which.
    #[must_use]
    pub fn is_mds(&self) -> bool {
        self.spec.groups().is_none()
    }

    /// Whether all data of `stripe` can be had while the units `lost` are lost.
    #[must_use]
    pub fn decodable(&self, stripe: u64, lost: UnitSet) -> bool {
        let Shape { k, p } = self.shape;
        let unknown = lost.intersection(&UnitSet::first(k));
        let equations = (0..p).filter(|t| !lost.contains(k + t)).map(|t| self.row(stripe, t));
        if unknown.len() > FEW {
            let row = |row: &[u8]| unknown.iter().map(|j| row[j]).collect();
            return rank(equations.map(row).collect()) == unknown.len();
        }
        let row = |row: &[u8]| {
            let mut few = [0; FEW];
            few.iter_mut().zip(unknown).for_each(|(c, j)| *c = row[j]);
            few
        };
        full_rank(equations.map(row), unknown.len())
    }

    /// Any this many lost units (hence any this many failed slots) leave all data readable, in
    /// every stripe. A proven lower bound if it is not [exact](Self::tolerance_is_exact).
    #[must_use]
    pub fn tolerance(&self) -> usize {
        self.known_tolerance().losses
    }

    /// Whether [`Code::tolerance`] is exact. It is but for codes of many global parities over wide
    /// stripes, where to find out takes too long.
    #[must_use]
    pub fn tolerance_is_exact(&self) -> bool {
        self.known_tolerance().exact
    }

    fn known_tolerance(&self) -> Tolerance {
        *self.tolerance.get_or_init(|| match self.spec.groups() {
            None => Tolerance { losses: self.shape.p, exact: true },
            Some((k, _, r)) => {
                let groups: Vec<Vec<usize>> = self.groups.chunks(k).map(<[_]>::to_vec).collect();
                distance::tolerance(&groups, r)
            }
        })
    }

    /// How many more units of `stripe` may be lost, in any combination, when `lost` are lost; none
    /// if data is lost already.
    #[must_use]
    pub fn margin(&self, stripe: u64, lost: UnitSet) -> Option<Margin> {
        let lost = lost.intersection(&UnitSet::first(self.width()));
        if self.is_mds() {
            let left = self.shape.p.checked_sub(lost.len());
            return left.map(|losses| Margin { losses, exact: true });
        }
        let least = self.tolerance().saturating_sub(lost.len());
        // A data unit with all its parities is beyond repair.
        let with_parities = |data: usize| {
            let parities = self.parities_of(stripe, data).map(|(parity, _)| self.k() + parity);
            parities.chain([data]).filter(|&unit| !lost.contains(unit)).count()
        };
        let beyond = (0..self.k()).map(with_parities).min().expect("a stripe has data");
        let most = beyond.saturating_sub(1);
        self.decodable(stripe, lost).then(|| self.search_margin(stripe, lost, least, most))
    }

    /// As [`Code::margin`], which is known to be at least `least` and at most `most`.
    fn search_margin(&self, stripe: u64, lost: UnitSet, least: usize, most: usize) -> Margin {
        let left: Vec<_> = (0..self.width()).filter(|&unit| !lost.contains(unit)).collect();
        let survives = |set: UnitSet| {
            self.decodable(stripe, set.iter().map(|i| left[i]).chain(lost).collect())
        };
        for more in least + 1..=most {
            let checks = binomial(left.len(), more).saturating_mul(self.period);
            if checks > MARGIN_CHECKS_MAX {
                return Margin { losses: more - 1, exact: false };
            }
            if !sets(left.len(), more).all(survives) {
                return Margin { losses: more - 1, exact: true };
            }
        }
        // `most` and one more are a data unit with all its parities.
        Margin { losses: most.max(least), exact: true }
    }

    fn slot_of_pattern(&self, stripe: u64) -> usize {
        usize::try_from(self.pattern(stripe)).expect("a period fits in memory")
    }
}

/// Rows of a code without local groups.
fn plain_rows(spec: CodeSpec, shape: Shape, columns: &[Vec<usize>]) -> Vec<u8> {
    let Shape { k, p } = shape;
    let mut rows = Vec::with_capacity(columns.len() * p * k);
    for columns in columns {
        for t in 0..p {
            let coef = |&c: &usize| if spec.is_mirror() { 1 } else { rows::mds(p, t, c) };
            rows.extend(columns.iter().map(coef));
        }
    }
    rows
}

/// One XOR row a group, then `r` global rows, for each stripe of a period.
fn grouped_rows(groups: &[Vec<usize>], l: usize, r: usize) -> Vec<u8> {
    let mut rows = Vec::new();
    for groups in groups {
        for local in 0..l {
            rows.extend(groups.iter().map(|&g| u8::from(g == local)));
        }
        for t in 0..r {
            rows.extend((0..groups.len()).map(|j| rows::global(t, j)));
        }
    }
    rows
}
