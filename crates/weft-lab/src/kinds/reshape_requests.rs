//! Requests and checkpoints of a whole reshape without users, by policy. Counted, without disks.

use serde::Deserialize;

use crate::figure::{Panel, Point};
use crate::lab::{Lab, Ran, Results};
use crate::number::real;
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

pub(super) fn run(parameters: &Parameters, lab: &Lab<'_>) -> Ran {
    let p = parameters;
    let grow = Grow {
        disks: p.disks,
        added: p.added,
        disk_bytes: p.disk_mib << 20,
        unit_bytes: p.unit_kib << 10,
    };
    lab.study(
        &p.policies,
        |policy| policy.name.clone(),
        |policy| {
            let mut job = Job::new(&grow).map_err(|e| e.to_string())?;
            Ok(count(&mut *policy.way.policy(&grow, p.buffer_kib << 10)?, &mut job))
        },
        |counted| {
            let panel = Panel::bars("requests of the reshape", "", "requests");
            let panel = Panel { log_y: true, ..panel };
            let all = p.policies.iter().zip(counted);
            let panel = all.fold(panel, |panel, (policy, counted)| {
                let Counted { reads, writes, checkpoints } = counted;
                let points = [
                    ("data reads", reads),
                    ("data writes", writes),
                    ("metadata updates", checkpoints),
                ];
                panel.with(&policy.name, points.map(|(x, n)| Point::new(x, real(n))).into())
            });
            Results { panels: vec![panel], ..Results::default() }
        },
    )
}
