//! Performance of full degraded reads (P_FDR) by the number of local groups.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Deserialize;
use weft_code::CodeSpec;
use weft_code::degraded::{FailureSets, additional_reads, ar_drc, ar_fixed, p_fdr};

use crate::figure::{Panel, Point};
use crate::lab::{Lab, LabError, Results};
use crate::parallel;

/// Parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// A panel for each number of failures up to this.
    failures: u32,
    /// Local groups, from 1 on.
    groups: u32,
    /// Counted for DRC with this many data units per group.
    counted_units: Vec<usize>,
}

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Result<Results, LabError> {
    let failures: Vec<u32> = (1..=parameters.failures).collect();
    let done = AtomicUsize::new(0);
    let panels = parallel::map(&failures, lab.options.threads, |failed| {
        let panel = panel(parameters, lab, *failed);
        (lab.progress)(done.fetch_add(1, Ordering::Relaxed) + 1, failures.len());
        panel
    });
    let panels = panels.into_iter().collect::<Result<_, _>>()?;
    Ok(Results { panels, ..Results::default() })
}

/// The panel for this many failures.
fn panel(parameters: &Parameters, lab: &Lab<'_>, failures: u32) -> Result<Panel, LabError> {
    let line = |of: &dyn Fn(u32) -> f64| {
        (1..=parameters.groups).map(|l| Point::at(f64::from(l), of(l))).collect()
    };
    let mut panel = Panel::lines(
        format!("{failures} failed"),
        "local groups (l)",
        "degraded reads, normal = 1",
    )
    .with("DRC, equations 1 and 2", line(&|l| p_fdr(ar_drc(l, failures))))
    .with("LRC and RAID-6, equations 2 and 3", line(&|_| p_fdr(ar_fixed(failures))));
    for units in &parameters.counted_units {
        let mut points = Vec::new();
        for l in 2..=parameters.groups {
            let groups = usize::try_from(l).map_err(|e| lab.wrong(e))?;
            let count = usize::try_from(failures).map_err(|e| lab.wrong(e))?;
            let k = units * groups;
            let code = lab.code(CodeSpec::Drc { k, l: groups, r: 1 }, k + groups + 1)?;
            if let Some(reads) = additional_reads(&code, count, FailureSets::All) {
                points.push(Point::at(f64::from(l), p_fdr(reads.ratio())));
            }
        }
        panel = panel.with(format!("DRC counted, {units} data units a group"), points);
    }
    Ok(panel)
}
