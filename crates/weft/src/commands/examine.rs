//! `weft examine`: shows a disk's metadata.

use serde::Serialize;
use serde_json::json;
use weft_array::MemberReport;
use weft_array::examine::LabelReport;
use weft_cli::disks::{Opener, absolute};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{answer, out, visible};
use weft_cli::{size, thread};
use weft_fs::Label;

use crate::cli::ExamineArgs;
use crate::device::Device;
use crate::report;

/// A report, with the disk's hardware.
#[derive(Serialize)]
struct Examined<'a> {
    hardware: Device,
    #[serde(flatten)]
    report: &'a MemberReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_system: Option<FileSystem<'a>>,
}

/// The weft file system that a disk belongs to.
#[derive(Serialize)]
struct FileSystem<'a> {
    name: &'a str,
    id: String,
    disk: u16,
}

/// A disk, and its label if it belongs to a weft file system.
type ExaminedDisk = (MemberReport, Option<Label>);

impl<'a> Examined<'a> {
    fn of((report, label): &'a ExaminedDisk) -> Self {
        let file_system = label.as_ref().map(|label| FileSystem {
            name: &label.name,
            id: label.fs_id.to_string(),
            disk: label.number,
        });
        Self { hardware: Device::at(&report.disk), report, file_system }
    }
}

async fn examine_one(opener: &Opener, place: &str) -> Result<ExaminedDisk, Failure> {
    let disk = opener.open(place, true).await?;
    let report = weft_array::examine(&*disk).await.map_err(|e| Failure::new(e.to_string()))?;
    // What a member holds at its end may look like a label.
    let is_no_member = matches!(report.label, LabelReport::None { .. });
    let label = if is_no_member { Label::read(&*disk).await.ok().flatten() } else { None };
    Ok((report, label))
}

/// A disk of a file system, for a terminal.
fn show_label(disk: &str, label: &Label) -> String {
    let (disk, name) = (visible(disk), visible(&label.name));
    let (size, id) = (size::show(label.size_bytes), label.fs_id);
    format!(
        "{disk}: disk {} of the weft file system {name}\n  disk of {size}\n  id {id}\n",
        label.number
    )
}

/// `weft examine`. Fails if one of the disks is neither a member nor one of a weft file system, or
/// is damaged.
pub fn examine(args: &ExamineArgs, json: bool) -> Outcome {
    let places: Vec<String> = args.disks.iter().map(|d| absolute(d)).collect::<Result<_, _>>()?;
    // One disk that cannot be read does not hide the other disks.
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
        for (report, label) in &reports {
            match label {
                Some(label) => out!("{}", show_label(&report.disk, label)),
                None => out!("{}", report::member::show(report, &Device::at(&report.disk))),
            }
        }
    }
    let mut members = reports.iter().filter(|(_, label)| label.is_none());
    let fault = members
        .find_map(|(report, _)| report::member::fault(report).map(|what| (&report.disk, what)));
    match fault {
        _ if unread.is_some() => unread.map_or(Ok(()), Err),
        Some((disk, what)) => Err(Failure::new(format!("{disk}: {what}"))),
        None => Ok(()),
    }
}
