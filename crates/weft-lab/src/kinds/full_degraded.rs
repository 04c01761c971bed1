//! Performance of full degraded reads (P_FDR) by the number of local groups.

use serde::Deserialize;
use weft_code::CodeSpec;
use weft_code::degraded::{Tried, additional_reads, ar_drc, ar_fixed, p_fdr};

use super::{Found, Lab};
use crate::figure::{Panel, Point};
use crate::run::LabError;

/// What is shown.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// A panel for each number of failures up to this.
    failures: u32,
    /// Local groups, from 1 on.
    groups: u32,
    /// Counted for DRC with so many data units a group.
    counted_units: Vec<usize>,
}

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Result<Found, LabError> {
    let mut panels = Vec::new();
    for failures in 1..=parameters.failures {
        let line = |from: u32, of: &dyn Fn(u32) -> f64| {
            (from..=parameters.groups).map(|l| Point::at(f64::from(l), of(l))).collect()
        };
        let mut panel = Panel::lines(
            format!("{failures} failed"),
            "local groups (l)",
            "degraded reads, normal = 1",
        )
        .with("DRC, equations 1 and 2", line(1, &|l| p_fdr(ar_drc(l, failures))))
        .with("LRC and RAID-6, equations 2 and 3", line(1, &|_| p_fdr(ar_fixed(failures))));
        for units in &parameters.counted_units {
            let mut points = Vec::new();
            for l in 2..=parameters.groups {
                let groups = usize::try_from(l).map_err(|e| lab.wrong(e))?;
                let (k, count) = (units * groups, usize::try_from(failures).unwrap_or(1));
                let spec = CodeSpec::Drc { k, l: groups, r: 1 };
                let code = lab.code(spec, k + groups + 1)?;
                if let Some(reads) = additional_reads(&code, count, Tried::All) {
                    points.push(Point::at(f64::from(l), p_fdr(reads.ratio())));
                }
            }
            panel = panel.with(format!("DRC counted, {units} data units a group"), points);
        }
        panels.push(panel);
        (lab.progress)(panels.len(), usize::try_from(parameters.failures).unwrap_or(1));
    }
    Ok(Found { panels, ..Found::default() })
}
