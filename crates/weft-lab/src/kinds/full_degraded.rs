//! Performance of full degraded reads (P_FDR) by the number of local groups.

use serde::Deserialize;
use weft_code::CodeSpec;
use weft_code::degraded::{FailureSets, additional_reads, ar_drc, ar_fixed, p_fdr};

use crate::figure::{Panel, Point};
use crate::lab::{Lab, Ran, Results, code};

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

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    lab.study(
        &(1..=parameters.failures).collect::<Vec<_>>(),
        |failures| format!("{failures} failed"),
        |failures| parameters.panel(*failures),
        |panels| Results { panels, ..Results::default() },
    )
}

impl Parameters {
    /// The panel for this many failures.
    fn panel(&self, failures: u32) -> Result<Panel, String> {
        let line = |of: &dyn Fn(u32) -> f64| {
            (1..=self.groups).map(|l| Point::at(f64::from(l), of(l))).collect()
        };
        let mut panel = Panel::lines(
            format!("{failures} failed"),
            "local groups (l)",
            "degraded reads, normal = 1",
        )
        .with("DRC, equations 1 and 2", line(&|l| p_fdr(ar_drc(l, failures))))
        .with("LRC and RAID-6, equations 2 and 3", line(&|_| p_fdr(ar_fixed(failures))));
        for units in &self.counted_units {
            let mut points = Vec::new();
            for l in 2..=self.groups {
                let (groups, k) = (l as usize, units * l as usize);
                let code = code(CodeSpec::Drc { k, l: groups, r: 1 }, k + groups + 1)?;
                if let Some(reads) = additional_reads(&code, failures as usize, FailureSets::All) {
                    points.push(Point::at(f64::from(l), p_fdr(reads.ratio())));
                }
            }
            panel = panel.with(format!("DRC counted, {units} data units a group"), points);
        }
        Ok(panel)
    }
}
