//! How many units may be moved in any order while a RAID-5 grows, by the unit at which the reshape
//! is: as the ALV paper's Theorem 1 has it, and so that a crash together with a lost disk loses
//! nothing.

use serde::Deserialize;
use weft_layout::window::{safe_window, theorem_1};

use crate::figure::{Panel, Point};
use crate::lab::{Lab, Ran, Results};
use crate::number::real;

/// A reshape.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    disks: u64,
    added: u64,
    /// The last unit.
    units: u64,
}

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    let Parameters { disks, added, units } = *parameters;
    if disks < 2 || added < 1 {
        return Err(lab.wrong("a RAID-5 has at least two disks, and grows by at least one"));
    }
    let stripe = usize::try_from(disks + added - 1).unwrap_or(usize::MAX);
    let point = |x: u64, window: u64| Point::at(real(x), real(window));
    lab.study(
        &[()],
        |()| String::new(),
        |()| {
            let printed = (0..=units).map(|x| point(x, theorem_1(disks, added, x)));
            let safe = (0..=units).step_by(stripe).map(|x| point(x, safe_window(disks, added, x)));
            Ok(Panel::lines("size of the reordering window", "unit", "units")
                .with("Theorem 1", printed.collect())
                .with("safe, at the start of a new stripe", safe.collect()))
        },
        |panels| Results { panels, ..Results::default() },
    )
}
