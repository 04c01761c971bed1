//! Requests and checkpoints of a whole reshape without users, by policy. Counted, without disks.

use serde::Deserialize;

use crate::figure::{Panel, Point};
use crate::lab::{Lab, LabError, Results};
use crate::reshape::{Counted, Grow, Job, Way, count};

/// A reshape and ways to do it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    disks: usize,
    added: usize,
    /// MiB used of each disk.
    disk_mib: u64,
    unit_kib: u64,
    /// KiB of buffers for each disk.
    buffer_kib: u64,
    policies: Vec<Policy>,
}

/// A policy and its name.
#[derive(Clone, Debug, Deserialize)]
struct Policy {
    name: String,
    #[serde(flatten)]
    way: Way,
}

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Result<Results, LabError> {
    let p = parameters;
    let grow = Grow {
        disks: p.disks,
        added: p.added,
        disk_bytes: p.disk_mib << 20,
        unit_bytes: p.unit_kib << 10,
    };
    let counted = lab.all(
        &p.policies,
        |policy| policy.name.clone(),
        |policy| {
            let mut job = Job::new(&grow).map_err(|e| e.to_string())?;
            Ok(count(&mut *policy.way.policy(&grow, p.buffer_kib << 10)?, &mut job))
        },
    )?;
    let mut panel = Panel::bars("requests of the reshape", "", "requests");
    panel.log_y = true;
    for (policy, Counted { reads, writes, checkpoints }) in p.policies.iter().zip(counted) {
        let point = |x: &str, n| Point::new(x, number(n));
        let points = vec![
            point("data reads", reads),
            point("data writes", writes),
            point("metadata updates", checkpoints),
        ];
        panel = panel.with(&policy.name, points);
    }
    Ok(Results { panels: vec![panel], ..Results::default() })
}

#[expect(clippy::cast_precision_loss, reason = "a count for people")]
fn number(n: u64) -> f64 {
    n as f64
}
