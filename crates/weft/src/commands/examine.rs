//! `weft examine`: what a disk says of itself.

use serde::Serialize;
use serde_json::json;
use weft_array::MemberReport;

use crate::cli::ExamineArgs;
use crate::device::Device;
use crate::failure::{Failure, Outcome};
use crate::members::{Opener, absolute};
use crate::output::{answer, out};
use crate::report;
use crate::thread;

/// A report, with what the disk is.
#[derive(Serialize)]
struct Examined<'a> {
    hardware: Device,
    #[serde(flatten)]
    report: &'a MemberReport,
}

impl<'a> Examined<'a> {
    fn of(report: &'a MemberReport) -> Self {
        Self { hardware: Device::at(&report.disk), report }
    }
}

/// `weft examine`. Fails if one of the disks is no member, or a damaged one.
pub fn examine(args: &ExamineArgs, json: bool) -> Outcome {
    let places: Vec<String> = args.disks.iter().map(|d| absolute(d)).collect::<Result<_, _>>()?;
    let reports: Vec<MemberReport> = thread::run(move |opener: Opener| async move {
        let mut reports = Vec::new();
        for place in &places {
            let disk = opener.open(place, true).await?;
            let report = weft_array::examine(&*disk).await;
            reports.push(report.map_err(|e| Failure::new(e.to_string()))?);
        }
        Ok(reports)
    })?;
    if json {
        let disks: Vec<Examined<'_>> = reports.iter().map(Examined::of).collect();
        answer(&json!({ "disks": disks }))?;
    } else {
        for report in &reports {
            out!("{}", report::member::show(report, &Device::at(&report.disk)));
        }
    }
    let fault = reports.iter().find_map(|r| report::member::fault(r).map(|what| (&r.disk, what)));
    match fault {
        Some((disk, what)) => Err(Failure::new(format!("{disk}: {what}"))),
        None => Ok(()),
    }
}
