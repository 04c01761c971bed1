//! Rotation of parity over the slots: md's RAID-5 and RAID-6 algorithms.
//!
//! Left and right are the direction in which P moves from stripe to stripe; symmetric puts data
//! unit 0 just after the last parity (so consecutive data visit all slots in turn), asymmetric puts
//! data in slot order around the parity. In RAID-6 Q follows P, wrapping to slot 0. The names and
//! the placement are those of md (`raid5_compute_sector`) and mdadm.
//!
//! One thing more depends on the algorithm: md numbers the coefficients of Q by slot, from the slot
//! after Q around to the slot before P (the DDF kinds: by the slot's number itself). In the
//! symmetric algorithms that is the order of the data; in the other algorithms it is not, and
//! [`Algorithm::columns`] gives the difference.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::LayoutError;

/// How parity rotates over the slots of RAID-5, RAID-6 and `rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Parity moves left from the last slot; data in slot order.
    LeftAsymmetric,
    /// Parity moves right from slot 0; data in slot order.
    RightAsymmetric,
    /// Parity moves left from the last slot; data starts after it. md's default.
    #[default]
    LeftSymmetric,
    /// Parity moves right from slot 0; data starts after it.
    RightSymmetric,
    /// Parity always in the first slots.
    ParityFirst,
    /// Parity always in the last slots.
    ParityLast,
    /// RAID-6 only: as right-asymmetric, Q numbered by slot (DDF).
    DdfZeroRestart,
    /// RAID-6 only: as left-asymmetric one stripe ahead, Q numbered by slot (DDF).
    DdfNRestart,
    /// RAID-6 only: as left-symmetric with Q before P, Q numbered by slot (DDF).
    DdfNContinue,
    /// RAID-6 only: RAID-5 left-asymmetric, Q always in the last slot.
    LeftAsymmetric6,
    /// RAID-6 only: RAID-5 right-asymmetric, Q always in the last slot.
    RightAsymmetric6,
    /// RAID-6 only: RAID-5 left-symmetric, Q always in the last slot.
    LeftSymmetric6,
    /// RAID-6 only: RAID-5 right-symmetric, Q always in the last slot.
    RightSymmetric6,
    /// RAID-6 only: P always in the first slot, Q in the last.
    ParityFirst6,
}

use Algorithm::{
    DdfNContinue, DdfNRestart, DdfZeroRestart, LeftAsymmetric, LeftAsymmetric6, LeftSymmetric,
    LeftSymmetric6, ParityFirst, ParityFirst6, ParityLast, RightAsymmetric, RightAsymmetric6,
    RightSymmetric, RightSymmetric6,
};

impl Algorithm {
    /// All, with mdadm's names.
    pub const ALL: [(Self, &'static str); 14] = [
        (LeftSymmetric, "left-symmetric"),
        (LeftAsymmetric, "left-asymmetric"),
        (RightSymmetric, "right-symmetric"),
        (RightAsymmetric, "right-asymmetric"),
        (ParityFirst, "parity-first"),
        (ParityLast, "parity-last"),
        (DdfZeroRestart, "ddf-zero-restart"),
        (DdfNRestart, "ddf-N-restart"),
        (DdfNContinue, "ddf-N-continue"),
        (LeftSymmetric6, "left-symmetric-6"),
        (LeftAsymmetric6, "left-asymmetric-6"),
        (RightSymmetric6, "right-symmetric-6"),
        (RightAsymmetric6, "right-asymmetric-6"),
        (ParityFirst6, "parity-first-6"),
    ];

    /// Whether it is defined for P and Q only.
    #[must_use]
    pub fn raid6_only(self) -> bool {
        self.is_ddf() || self.raid5_part().is_some()
    }

    fn is_ddf(self) -> bool {
        matches!(self, DdfZeroRestart | DdfNRestart | DdfNContinue)
    }

    /// The RAID-5 algorithm on all slots but the last, which holds Q.
    fn raid5_part(self) -> Option<Self> {
        match self {
            LeftAsymmetric6 => Some(LeftAsymmetric),
            RightAsymmetric6 => Some(RightAsymmetric),
            LeftSymmetric6 => Some(LeftSymmetric),
            RightSymmetric6 => Some(RightSymmetric),
            ParityFirst6 => Some(ParityFirst),
            _ => None,
        }
    }

    /// The slots of all units, data then parity, for each of the stripes after which the placement
    /// on `slots` slots with `parities` parity units repeats.
    pub(crate) fn turns(self, slots: usize, parities: usize) -> Vec<Vec<usize>> {
        let turns = match self {
            ParityFirst | ParityLast | ParityFirst6 => 1,
            _ if self.raid5_part().is_some() => slots - 1,
            _ => slots,
        };
        (0..turns).map(|stripe| self.stripe(stripe, slots, parities)).collect()
    }

    fn stripe(self, stripe: usize, n: usize, p: usize) -> Vec<usize> {
        let k = n - p;
        let left = n - 1 - stripe % n;
        let right = stripe % n;
        match self {
            LeftSymmetric => symmetric(left, n, p),
            RightSymmetric => symmetric(right, n, p),
            LeftAsymmetric => asymmetric(left, n, p),
            RightAsymmetric | DdfZeroRestart => asymmetric(right, n, p),
            DdfNRestart => asymmetric(n - 1 - (stripe + 1) % n, n, p),
            DdfNContinue => {
                let data = (0..k).map(|j| (left + 1 + j) % n);
                data.chain([left, (left + n - 1) % n]).collect()
            }
            ParityFirst => (p..n).chain(0..p).collect(),
            ParityLast => (0..n).collect(),
            LeftAsymmetric6 | RightAsymmetric6 | LeftSymmetric6 | RightSymmetric6
            | ParityFirst6 => {
                let raid5 = self.raid5_part().expect("one of those");
                let mut units = raid5.stripe(stripe, n - 1, 1);
                units.push(n - 1);
                units
            }
        }
    }

    /// The coefficient of Q that each data unit takes, by its index, stripe by stripe, for
    /// `weft_code::Code::with_columns`.
    pub(crate) fn columns(self, slots: usize, parities: usize) -> Vec<Vec<usize>> {
        let k = slots - parities;
        let columns = |units: &Vec<usize>| -> Vec<usize> {
            if self.is_ddf() {
                return units[..k].to_vec();
            }
            // places counted from the slot after the last parity; a data unit's column is the
            // number of data units on the way to it
            let start = units[slots - 1] + 1;
            let place = |slot: usize| (slot + slots - start) % slots;
            let data = &units[..k];
            let before = |at: usize| data.iter().filter(|&&slot| place(slot) < place(at)).count();
            data.iter().map(|&slot| before(slot)).collect()
        };
        let columns: Vec<_> = self.turns(slots, parities).iter().map(columns).collect();
        if columns.iter().all(|c| *c == columns[0]) { columns[..1].to_vec() } else { columns }
    }
}

/// Parities from `first` on, then data, around the slots.
fn symmetric(first: usize, n: usize, p: usize) -> Vec<usize> {
    (p..n).chain(0..p).map(|i| (first + i) % n).collect()
}

/// Parities from `first` on, around the slots; data in slot order on the rest.
fn asymmetric(first: usize, n: usize, p: usize) -> Vec<usize> {
    let parity: Vec<_> = (0..p).map(|i| (first + i) % n).collect();
    (0..n).filter(|slot| !parity.contains(slot)).chain(parity.iter().copied()).collect()
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::ALL.iter().find(|(algorithm, _)| algorithm == self);
        f.pad(found.expect("all are listed").1)
    }
}

impl FromStr for Algorithm {
    type Err = LayoutError;

    fn from_str(given: &str) -> Result<Self, LayoutError> {
        let found = Self::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(given));
        found.map(|(algorithm, _)| *algorithm).ok_or_else(|| LayoutError::UnknownAlgorithm {
            given: given.into(),
            known: Self::ALL.map(|(_, name)| name).join(" "),
        })
    }
}

impl Serialize for Algorithm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Algorithm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
