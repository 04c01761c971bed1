//! `weft examine`: shows a disk's metadata.

use serde::Serialize;
use serde_json::json;
use weft_array::MemberReport;
use weft_cli::disks::{Opener, absolute};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{answer, out};
use weft_cli::thread;

use crate::cli::ExamineArgs;
use crate::device::Device;
use crate::report;

/// A report, with the disk's hardware.
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

async fn examine_one(opener: &Opener, place: &str) -> Result<MemberReport, Failure> {
    let disk = opener.open(place, true).await?;
    weft_array::examine(&*disk).await.map_err(|e| Failure::new(e.to_string()))
}

/// `weft examine`. Fails if one of the disks is not a member, or is damaged.
pub fn examine(args: &ExamineArgs, json: bool) -> Outcome {
    let places: Vec<String> = args.disks.iter().map(|d| absolute(d)).collect::<Result<_, _>>()?;
    // One disk that cannot be read does not hide the others.
    let (reports, unread) = thread::run(move |opener: Opener| async move {
        let (mut reports, mut unread) = (Vec::new(), None);
        for place in &places {
            match examine_one(&opener, place).await {
                Ok(report) => reports.push(report),
                Err(failure) => unread = unread.or(Some(failure)),
            }
        }
        Ok((reports, unread))
    })?;
    if let Some(failure) = unread.clone().filter(|_| reports.is_empty()) {
        return Err(failure);
    }
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
        _ if unread.is_some() => unread.map_or(Ok(()), Err),
        Some((disk, what)) => Err(Failure::new(format!("{disk}: {what}"))),
        None => Ok(()),
    }
}
