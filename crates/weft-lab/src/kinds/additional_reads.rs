//! Additional reads on the busiest disk (AR) of DRC: equation 1 of the paper compared with
//! counting.

use serde::Deserialize;
use weft_code::CodeSpec;
use weft_code::degraded::{FailureSets, additional_reads, ar_drc};

use crate::figure::{Panel, Point};
use crate::lab::{Lab, LabError, Results};

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

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Result<Results, LabError> {
    let mut panels = Vec::new();
    for groups in &parameters.panels {
        let label = |failures: u32| format!("F = {failures}");
        let closed = (1..=groups.failures).map(|f| Point::new(label(f), ar_drc(groups.l, f)));
        let mut panel = Panel::bars(
            format!("{} local groups", groups.l),
            "failed data disks",
            "additional reads per read",
        )
        .with("equation 1", closed.collect());
        for spec in &groups.codes {
            let code = lab.code(*spec, slots(*spec).ok_or_else(|| lab.wrong("no groups"))?)?;
            let counted = (1u32..=groups.failures).filter_map(|f| {
                let reads = additional_reads(&code, usize::try_from(f).ok()?, FailureSets::All)?;
                Some(Point::new(label(f), reads.ratio()))
            });
            panel = panel.with(format!("counted, {spec}"), counted.collect());
        }
        panels.push(panel);
        (lab.progress)(panels.len(), parameters.panels.len());
    }
    Ok(Results { panels, ..Results::default() })
}

/// Slots of a code with local groups.
fn slots(spec: CodeSpec) -> Option<usize> {
    spec.groups().map(|(k, l, r)| k + l + r)
}
