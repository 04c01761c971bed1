//! Additional reads on the busiest disk (AR) of DRC: equation 1 of the paper compared with
//! counting.

use serde::Deserialize;
use weft_code::CodeSpec;
use weft_code::degraded::{FailureSets, additional_reads, ar_drc};

use crate::figure::{Panel, Point};
use crate::lab::{Lab, Ran, Results, code};

/// The panels.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// One panel for each.
    panels: Vec<Groups>,
}

/// Codes with the same number of groups.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Groups {
    /// Local groups.
    l: u32,
    /// Failures, from 1 on.
    failures: u32,
    /// Codes to count for.
    codes: Vec<CodeSpec>,
}

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    lab.study(
        &parameters.panels,
        |groups| format!("{} local groups", groups.l),
        Groups::panel,
        |panels| Results { panels, ..Results::default() },
    )
}

impl Groups {
    fn panel(&self) -> Result<Panel, String> {
        let label = |failures: u32| format!("F = {failures}");
        let closed = (1..=self.failures).map(|f| Point::new(label(f), ar_drc(self.l, f)));
        let mut panel = Panel::bars(
            format!("{} local groups", self.l),
            "failed data disks",
            "additional reads per read",
        )
        .with("equation 1", closed.collect());
        for spec in &self.codes {
            let (k, l, r) = spec.groups().ok_or_else(|| format!("{spec} has no groups"))?;
            let code = code(*spec, k + l + r)?;
            let counted = (1u32..=self.failures).filter_map(|f| {
                let reads = additional_reads(&code, usize::try_from(f).ok()?, FailureSets::All)?;
                Some(Point::new(label(f), reads.ratio()))
            });
            panel = panel.with(format!("counted, {spec}"), counted.collect());
        }
        Ok(panel)
    }
}
