//! The requests of a trace: recorded if its file exists, otherwise generated from its published
//! statistics.

use std::path::Path;

use serde::Deserialize;
use weft_trace::generate::workload;
use weft_trace::{Op, ReadOptions, Record};

use crate::figure::TraceUsed;
use crate::lab::{Lab, LabError, RunOptions};
use crate::rules::trace_file;

/// A trace.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Trace {
    /// Its name in the paper.
    pub(super) name: String,
    /// The generator fitted to its statistics.
    workload: Option<String>,
    /// The recorded file in the folder of traces, or beside the experiment.
    file: Option<String>,
    /// Requests per second, in thousandths, for replays at the trace's own times, which are
    /// stretched to this rate.
    #[serde(default)]
    pub(super) rate_milli: u32,
}

impl Trace {
    /// Its first `most` requests, and their origin.
    pub(super) fn requests(
        &self,
        most: usize,
        lab: &Lab<'_>,
    ) -> Result<(TraceUsed, Vec<Record>), LabError> {
        let used = |name: &str, generated, records: &[Record]| TraceUsed {
            name: name.to_owned(),
            generated,
            requests: records.len() as u64,
        };
        let folders = [lab.options.traces.as_deref(), lab.folder];
        let path = |name: &String| trace_file(folders.into_iter().flatten(), name);
        if let Some((name, path)) = self.file.as_ref().and_then(|name| Some((name, path(name)?))) {
            let records = recorded(&path, most).map_err(|e| lab.wrong(e))?;
            if records.is_empty() {
                return Err(lab.wrong(format!("the trace {} holds no request", self.name)));
            }
            lab.note(format!("the trace {}", self.name), || bytes(&records));
            return Ok((used(name, false, &records), records));
        }
        let Some(workload) = self.workload.as_deref().and_then(workload) else {
            let file = self.file.as_deref().unwrap_or_default();
            return Err(lab.wrong(format!("the trace {}: there is no file {file}", self.name)));
        };
        let records: Vec<Record> = workload.generate(lab.options.seed).take(most).collect();
        lab.note(format!("the trace {}", self.name), || bytes(&records));
        Ok((used(&self.name, true, &records), records))
    }

    /// The reads among its first `most` requests for each of some runs. Generated requests differ
    /// from run to run; recorded ones are there once, for all.
    pub(super) fn reads(
        &self,
        most: usize,
        runs: u64,
        lab: &Lab<'_>,
    ) -> Result<(TraceUsed, Vec<Vec<Record>>), LabError> {
        let mut reads = Vec::new();
        let mut first = None;
        for run in 0..runs.max(1) {
            let options = RunOptions { seed: lab.options.seed + run, ..lab.options.clone() };
            let (used, mut records) = self.requests(most, &Lab { options: &options, ..*lab })?;
            records.retain(|record| record.op == Op::Read);
            if records.is_empty() {
                return Err(lab.wrong(format!("the trace {} holds no read", self.name)));
            }
            reads.push(records);
            let generated = used.generated;
            first.get_or_insert(used);
            if !generated {
                break;
            }
        }
        Ok((first.expect("one run at least"), reads))
    }
}

impl Lab<'_> {
    /// The first `most` requests of each of some traces, and their origins.
    pub(super) fn traces(
        &self,
        traces: &[Trace],
        most: usize,
    ) -> Result<(Vec<TraceUsed>, Vec<Vec<Record>>), LabError> {
        let all: Result<Vec<_>, _> =
            traces.iter().map(|trace| trace.requests(most, self)).collect();
        Ok(all?.into_iter().unzip())
    }
}

/// What differs if a trace is another one.
fn bytes(records: &[Record]) -> Vec<u8> {
    let of = |record: &Record| format!("{record:?}").into_bytes();
    records.iter().flat_map(of).collect()
}

fn recorded(path: &Path, most: usize) -> Result<Vec<Record>, String> {
    let reader = weft_trace::open(path, &ReadOptions::default()).map_err(|e| e.to_string())?;
    reader.take(most).collect::<Result<_, _>>().map_err(|e| e.to_string())
}
