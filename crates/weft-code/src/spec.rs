//! The names of the codes: what a user types, what a superblock keeps, what status prints.
//!
//! A specification names the code; how wide it is may depend on the number of slots (`raid5` on n
//! slots has k = n−1). [`CodeSpec::shape`] settles that and refuses what cannot be built.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

use crate::shuffle::{self, PERIOD_MAX};

/// Most units a stripe, and most slots an array, may have.
pub const SLOTS_MAX: usize = 255;

/// The names as the help and the errors give them.
pub const KNOWN: &str = "raid0 raid1 raid10[:nC|:fC|:oC] raid4 raid5 raid6 rs:K+R lrc:K,L,R \
                         drc:K,L,R drc-g:K,L,R drc-oa:K,L,R";

/// How RAID-10 arranges its copies (md's words; see `weft-layout`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Copies {
    /// Copies side by side in the same row.
    Near,
    /// Copies a whole section of the disk apart, one slot further.
    Far,
    /// Copies in the following rows, one slot further.
    Offset,
}

/// A stripe code by name. Parsed from and printed as the string a user types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeSpec {
    /// Striping, no redundancy.
    Raid0,
    /// Every slot holds a copy.
    Raid1,
    /// `copies` copies, spread over any number of slots.
    Raid10 {
        /// Where the copies go.
        arrangement: Copies,
        /// How many copies, the first included.
        copies: usize,
    },
    /// XOR parity on the last slot.
    Raid4,
    /// XOR parity, rotated.
    Raid5,
    /// P = Σ d_j and Q = Σ 2^j·d_j, rotated.
    Raid6,
    /// Reed–Solomon: k data units, r parity units, any r losses survive.
    Rs {
        /// Data units.
        k: usize,
        /// Parity units.
        r: usize,
    },
    /// Local reconstruction code: l XOR parities over fixed groups, r global parities.
    Lrc {
        /// Data units.
        k: usize,
        /// Local groups.
        l: usize,
        /// Global parities.
        r: usize,
    },
    /// Distributed reconstruction code: as LRC, with groups shuffled from stripe to stripe.
    Drc {
        /// Data units.
        k: usize,
        /// Local groups.
        l: usize,
        /// Global parities.
        r: usize,
    },
    /// DRC with the global parity rotated over all slots.
    DrcG {
        /// Data units.
        k: usize,
        /// Local groups.
        l: usize,
        /// Global parities.
        r: usize,
    },
    /// DRC with groups shuffled by an orthogonal array of strength 2 (short period).
    DrcOa {
        /// Data units.
        k: usize,
        /// Local groups.
        l: usize,
        /// Global parities.
        r: usize,
    },
}

/// Why a code cannot be built as specified.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// No code of that name.
    #[error("unknown code '{0}'; known: {KNOWN}")]
    Unknown(String),
    /// The name is known, what follows it is not understood.
    #[error("cannot read '{given}': {want}")]
    Syntax {
        /// What was given.
        given: String,
        /// The form that is understood.
        want: &'static str,
    },
    /// The parameters describe no code.
    #[error("{spec}: {why}")]
    Parameters {
        /// The code asked for.
        spec: String,
        /// What must hold instead.
        why: String,
    },
    /// The number of slots does not suit the code.
    #[error("{spec} needs {need}, got {slots} slot{}", if *slots == 1 { "" } else { "s" })]
    Slots {
        /// The code asked for.
        spec: String,
        /// What it needs.
        need: String,
        /// What there was.
        slots: usize,
    },
}

/// The width of a stripe: `k` data units, then `p` parity units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Data units of a stripe.
    pub k: usize,
    /// Parity units (or further copies) of a stripe.
    pub p: usize,
}

impl Shape {
    /// Units of a stripe.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.k + self.p
    }
}

impl CodeSpec {
    /// The widths this code has on `slots` slots.
    ///
    /// # Errors
    /// If the code cannot be built on that many slots.
    pub fn shape(&self, slots: usize) -> Result<Shape, SpecError> {
        self.check()?;
        let refuse = |need: String| Err(SpecError::Slots { spec: self.to_string(), need, slots });
        let (least, shape) = match *self {
            Self::Raid0 => (1, Shape { k: slots, p: 0 }),
            Self::Raid1 => (2, Shape { k: 1, p: slots.saturating_sub(1) }),
            Self::Raid10 { copies, .. } => (copies.max(2), Shape { k: 1, p: copies - 1 }),
            Self::Raid4 | Self::Raid5 => (2, Shape { k: slots.saturating_sub(1), p: 1 }),
            Self::Raid6 => (4, Shape { k: slots.saturating_sub(2), p: 2 }),
            Self::Rs { k, r } => (k + r, Shape { k, p: r }),
            Self::Lrc { k, l, r }
            | Self::Drc { k, l, r }
            | Self::DrcG { k, l, r }
            | Self::DrcOa { k, l, r } => (k + l + r, Shape { k, p: l + r }),
        };
        if slots < least {
            return refuse(format!("at least {least} slot{}", if least == 1 { "" } else { "s" }));
        }
        if slots > SLOTS_MAX {
            return refuse(format!("at most {SLOTS_MAX} slots"));
        }
        Ok(shape)
    }

    /// Stripes after which the parity rows repeat (before any placement is considered).
    /// Zero if the parameters describe no code.
    #[must_use]
    pub fn period(&self) -> u64 {
        match *self {
            Self::Drc { k, l, .. } | Self::DrcG { k, l, .. } => shuffle::period(k, l),
            Self::DrcOa { k, l, .. } => shuffle::period_oa(k, l),
            _ => Some(1),
        }
        .unwrap_or(0)
    }

    /// (k, l, r) of a code with local groups.
    #[must_use]
    pub const fn groups(&self) -> Option<(usize, usize, usize)> {
        match *self {
            Self::Lrc { k, l, r }
            | Self::Drc { k, l, r }
            | Self::DrcG { k, l, r }
            | Self::DrcOa { k, l, r } => Some((k, l, r)),
            _ => None,
        }
    }

    /// Whether every unit holds the same bytes.
    #[must_use]
    pub const fn is_mirror(&self) -> bool {
        matches!(self, Self::Raid1 | Self::Raid10 { .. })
    }

    /// Refuses parameters that describe no code on any number of slots.
    ///
    /// # Errors
    /// Says which condition fails.
    pub fn check(&self) -> Result<(), SpecError> {
        let no = |why: String| Err(SpecError::Parameters { spec: self.to_string(), why });
        match *self {
            Self::Raid10 { copies, .. } if !(2..=SLOTS_MAX).contains(&copies) => {
                return no(format!("copies must be 2 to {SLOTS_MAX}"));
            }
            Self::Rs { k, r } => {
                if k == 0 || r == 0 {
                    return no("K and R must be at least 1".into());
                }
                if k.saturating_add(r) > SLOTS_MAX {
                    return no(format!("K+R must be at most {SLOTS_MAX}"));
                }
            }
            _ => {}
        }
        let Some((k, l, r)) = self.groups() else { return Ok(()) };
        if k == 0 || l == 0 {
            return no("K and L must be at least 1".into());
        }
        if !k.is_multiple_of(l) {
            return no(format!("L must divide K ({k} is not a multiple of {l})"));
        }
        if k.saturating_add(l).saturating_add(r) > SLOTS_MAX {
            return no(format!("K+L+R must be at most {SLOTS_MAX}"));
        }
        match self {
            Self::DrcOa { .. } if shuffle::period_oa(k, l).is_none() => no(format!(
                "L must be a prime or the power of one (2 3 4 5 7 8 9 11 …); {l} is not; use drc"
            )),
            Self::Drc { .. } | Self::DrcG { .. } if shuffle::period(k, l).is_none() => no(format!(
                "the pattern would repeat only after {l}^{} stripes, more than {PERIOD_MAX}; \
                 use more groups, or drc-oa",
                k / l
            )),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for CodeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Raid0 => f.pad("raid0"),
            Self::Raid1 => f.pad("raid1"),
            Self::Raid10 { arrangement: Copies::Near, copies: 2 } => f.pad("raid10"),
            Self::Raid10 { arrangement, copies } => f.pad(&format!("raid10:{arrangement}{copies}")),
            Self::Raid4 => f.pad("raid4"),
            Self::Raid5 => f.pad("raid5"),
            Self::Raid6 => f.pad("raid6"),
            Self::Rs { k, r } => f.pad(&format!("rs:{k}+{r}")),
            Self::Lrc { k, l, r } => f.pad(&format!("lrc:{k},{l},{r}")),
            Self::Drc { k, l, r } => f.pad(&format!("drc:{k},{l},{r}")),
            Self::DrcG { k, l, r } => f.pad(&format!("drc-g:{k},{l},{r}")),
            Self::DrcOa { k, l, r } => f.pad(&format!("drc-oa:{k},{l},{r}")),
        }
    }
}

impl fmt::Display for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Near => "n",
            Self::Far => "f",
            Self::Offset => "o",
        })
    }
}

impl FromStr for CodeSpec {
    type Err = SpecError;

    fn from_str(given: &str) -> Result<Self, SpecError> {
        let lower = given.to_ascii_lowercase();
        let (name, args) = match lower.split_once(':') {
            Some((name, args)) => (name, Some(args)),
            None => (lower.as_str(), None),
        };
        let syntax = |want| SpecError::Syntax { given: given.into(), want };
        let bare = |spec, want| if args.is_none() { Ok(spec) } else { Err(syntax(want)) };
        let klr = |want| {
            let numbers = args.map(|a| a.split(',').map(number).collect::<Option<Vec<_>>>());
            match numbers.flatten().as_deref() {
                Some(&[k, l, r]) => Ok((k, l, r)),
                _ => Err(syntax(want)),
            }
        };
        let spec = match name {
            "raid0" => bare(Self::Raid0, "raid0 takes no parameters"),
            "raid1" => bare(Self::Raid1, "raid1 takes no parameters"),
            "raid4" => bare(Self::Raid4, "raid4 takes its width from the number of slots"),
            "raid5" => bare(Self::Raid5, "raid5 takes its width from the number of slots"),
            "raid6" => bare(Self::Raid6, "raid6 takes its width from the number of slots"),
            "raid10" => raid10(args).ok_or_else(|| {
                syntax("write raid10, or raid10:n2, :f2, :o2 (near, far, offset; any number of copies)")
            }),
            "rs" => args
                .and_then(|a| a.split_once('+'))
                .and_then(|(k, r)| Some(Self::Rs { k: number(k)?, r: number(r)? }))
                .ok_or_else(|| syntax("write rs:K+R, for example rs:8+3")),
            "lrc" => klr("write lrc:K,L,R, for example lrc:12,2,2")
                .map(|(k, l, r)| Self::Lrc { k, l, r }),
            "drc" => klr("write drc:K,L,R, for example drc:4,2,1")
                .map(|(k, l, r)| Self::Drc { k, l, r }),
            "drc-g" => klr("write drc-g:K,L,R, for example drc-g:4,2,1")
                .map(|(k, l, r)| Self::DrcG { k, l, r }),
            "drc-oa" => klr("write drc-oa:K,L,R, for example drc-oa:12,2,1")
                .map(|(k, l, r)| Self::DrcOa { k, l, r }),
            _ => Err(SpecError::Unknown(given.into())),
        }?;
        spec.check()?;
        Ok(spec)
    }
}

/// Digits only: no sign, no space.
fn number(s: &str) -> Option<usize> {
    (!s.is_empty() && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse().ok()).flatten()
}

fn raid10(args: Option<&str>) -> Option<CodeSpec> {
    let Some(args) = args else {
        return Some(CodeSpec::Raid10 { arrangement: Copies::Near, copies: 2 });
    };
    let arrangement = match args.as_bytes().first()? {
        b'n' => Copies::Near,
        b'f' => Copies::Far,
        b'o' => Copies::Offset,
        _ => return None,
    };
    Some(CodeSpec::Raid10 { arrangement, copies: number(&args[1..])? })
}

impl Serialize for CodeSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CodeSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
