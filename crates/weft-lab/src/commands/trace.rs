//! `weft trace`: inspects, converts and generates traces.

mod args;
pub mod report;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{Answer, answer, out, outln};
use weft_cli::progress::Progress;
use weft_cli::size;
use weft_trace::generate::{self, Looped, Workload};
use weft_trace::{Format, ReadOptions, ReadStats, Reader, Record, Survey, TraceError, Writer};

use args::{ConvertArgs, GenerateArgs, InfoArgs, TraceCommand};
pub use args::{TraceArgs, TraceFile};
use report::TraceSummary;

/// Records between two progress updates.
const STEP: u64 = 4096;

/// `weft trace`.
///
/// # Errors
/// If a trace cannot be read or written.
pub fn trace(args: &TraceArgs, json: bool) -> Outcome {
    match &args.command {
        TraceCommand::List => list(json),
        TraceCommand::Info(args) => info(args, json),
        TraceCommand::Convert(args) => convert(args, json),
        TraceCommand::Generate(args) => generate(args, json),
    }
}

fn list(json: bool) -> Outcome {
    if json {
        let named = |name: &str, about: &str| json!({ "name": name, "about": about });
        let formats: Vec<_> = Format::all().map(|(_, name, about)| named(name, about)).collect();
        let workloads: Vec<_> = generate::names().map(|(name, about)| named(name, about)).collect();
        return answer(&json!({ "formats": formats, "workloads": workloads }));
    }
    outln!("Formats (compressed with gzip, xz or zstd as well):");
    Format::all().for_each(|(_, name, about)| outln!("  {name:<14} {about}"));
    outln!("Workloads (generated; each lists its sources and assumptions):");
    generate::names().for_each(|(name, about)| outln!("  {name:<14} {about}"));
    Ok(())
}

fn info(args: &InfoArgs, json: bool) -> Outcome {
    let summary = survey(&find(&args.file), &args.how, None, json)?;
    if json {
        answer(&summary)?;
    } else {
        out!("{}", report::show(&summary));
    }
    Ok(())
}

/// Reads a trace, or its first `requests`, for its statistics.
pub fn survey(
    file: &Path,
    how: &TraceFile,
    requests: Option<u64>,
    silent: bool,
) -> Result<TraceSummary, Failure> {
    let mut reader = open(file, how)?;
    let at = reader.progress();
    let mut progress = Progress::new("reading", at.total_bytes(), silent);
    let mut survey = Survey::default();
    let mut count = 0u64;
    while count < requests.unwrap_or(u64::MAX)
        && let Some(record) = reader.next()
    {
        survey.add(&record.map_err(explain)?);
        count += 1;
        if count.is_multiple_of(STEP) {
            let message = format!("{count} requests, {} read", size::show(at.done_bytes()));
            progress.at(at.done_bytes(), at.total_bytes(), &message);
        }
    }
    drop(progress);
    Ok(TraceSummary {
        name: file.display().to_string(),
        format: Some(reader.format()),
        generated: reader.label().map(str::to_owned),
        read: Some(reader.stats().clone()),
        info: survey.finish(),
    })
}

/// The file, or the one of the same name in `$WEFT_TRACES`.
pub fn find(file: &Path) -> PathBuf {
    if file.exists() || file.is_absolute() {
        return file.to_owned();
    }
    let elsewhere = std::env::var_os("WEFT_TRACES").map(|folder| Path::new(&folder).join(file));
    elsewhere.filter(|path| path.exists()).unwrap_or_else(|| file.to_owned())
}

/// Opens a trace.
pub fn open(file: &Path, how: &TraceFile) -> Result<Reader, Failure> {
    let options = ReadOptions { format: how.format, skip_bad: how.skip_bad };
    weft_trace::open(file, &options).map_err(explain)
}

/// A failure that names the next step.
pub fn explain(error: TraceError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        TraceError::Bad { .. } => {
            failure.hint("--skip-bad skips and counts damaged lines; --format names another format")
        }
        TraceError::Unrecognised { .. } => {
            failure.hint("give the format with --format; `weft trace list` lists them")
        }
        TraceError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            failure.hint("check the name; $WEFT_TRACES was searched, too")
        }
        TraceError::Io { source, .. } if source.kind() == io::ErrorKind::UnexpectedEof => {
            failure.hint("the compressed file is truncated: fetch it again")
        }
        TraceError::Io { .. } | TraceError::UnknownFormat { .. } => failure,
    }
}

/// The workload called `name`.
pub fn workload(name: &str) -> Result<Workload, Failure> {
    generate::workload(name).ok_or_else(|| {
        let known: Vec<&str> = generate::names().map(|(name, _)| name).collect();
        Failure::usage(format!("no workload is named `{name}`; known are {}", known.join(", ")))
    })
}

fn convert(args: &ConvertArgs, json: bool) -> Outcome {
    check_output(args.output.as_deref(), json)?;
    let file = find(&args.file);
    let reader = open(&file, &args.how)?;
    let mut comments: Vec<String> = reader.label().map(str::to_owned).into_iter().collect();
    let at = reader.progress();
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(requests) = args.requests else {
        comments.push(format!("converted from {name} ({})", reader.format()));
        let mut sink = Sink::new(args.output.as_deref(), &comments)?;
        let mut progress = Progress::new("converting", at.total_bytes(), json);
        let mut reader = reader;
        for record in reader.by_ref() {
            sink.write(&record.map_err(explain)?)?;
            if sink.written.is_multiple_of(STEP) {
                let message = format!("{} requests", sink.written);
                progress.at(at.done_bytes(), at.total_bytes(), &message);
            }
        }
        drop(progress);
        let written = sink.finish()?;
        return said(written, &args.output, Some(reader.stats()), json);
    };
    // The number of repetitions is known only at the end, but the comment comes first.
    let has = survey(&file, &args.how, Some(requests), json)?.info.requests;
    comments.push(match has < requests {
        true => format!("looped: {requests} requests of {name}, which has {has}, time shifted"),
        false => format!("the first {requests} requests of {name}"),
    });
    let mut sink = Sink::new(args.output.as_deref(), &comments)?;
    let options = ReadOptions { format: args.how.format, skip_bad: args.how.skip_bad };
    for record in Looped::new(|| weft_trace::open(&file, &options), None, requests) {
        sink.write(&record.map_err(explain)?)?;
    }
    let written = sink.finish()?;
    said(written, &args.output, None, json)
}

fn generate(args: &GenerateArgs, json: bool) -> Outcome {
    let mut workload = workload(&args.workload)?;
    if let Some(rate) = args.rate {
        workload.rate_milli = u64::from(rate) * 1000;
    }
    if let Some(percent) = args.reads {
        workload.read_ppm = u32::from(percent) * 10_000;
    }
    if let Some(volume) = args.volume {
        workload.device_bytes = volume;
    }
    if args.rate == Some(0) || workload.device_bytes < 4096 {
        return Err(Failure::usage(
            "a workload needs a rate above 0 and a volume of at least 4096 bytes",
        ));
    }
    check_output(args.output.as_deref(), json)?;
    let comments = [workload.label(args.seed), workload.about.clone()];
    let mut sink = Sink::new(args.output.as_deref(), &comments)?;
    let mut progress = Progress::new("generating", args.requests, json || args.output.is_none());
    for record in workload.generate(args.seed) {
        if sink.written == args.requests {
            break;
        }
        sink.write(&record)?;
        if sink.written.is_multiple_of(STEP) {
            progress.at(sink.written, args.requests, &format!("{} requests", sink.written));
        }
    }
    drop(progress);
    let written = sink.finish()?;
    said(written, &args.output, None, json)
}

/// JSON tells about a file that was written: without one, the requests have standard output.
fn check_output(output: Option<&Path>, json: bool) -> Outcome {
    if !json || output.is_some() {
        return Ok(());
    }
    Err(Failure::usage("--json needs --output: the requests are printed as CSV otherwise")
        .hint("`--output FILE --json` writes the requests to FILE, and prints JSON about it"))
}

/// Reports the written trace, unless the requests themselves went to standard output.
fn said(written: u64, output: &Option<PathBuf>, read: Option<&ReadStats>, json: bool) -> Outcome {
    let Some(output) = output else { return Ok(()) };
    if json {
        return answer(&json!({ "file": output, "requests": written, "read": read }));
    }
    outln!("{written} requests written to {}", output.display());
    if let Some(read) = read {
        out!("{}", report::show_read(read));
    }
    Ok(())
}

/// Writes requests as CSV.
struct Sink {
    writer: Writer<BufWriter<Box<dyn Write>>>,
    written: u64,
    name: String,
}

impl Sink {
    fn new(output: Option<&Path>, comments: &[String]) -> Result<Self, Failure> {
        let name = output.unwrap_or_else(|| Path::new("standard output")).display().to_string();
        let failed = |e: io::Error| Failure::new(format!("{name}: {e}"));
        let out: Box<dyn Write> = match output {
            Some(path) => Box::new(File::create(path).map_err(failed)?),
            None => Box::new(Answer),
        };
        let comments: Vec<&str> = comments.iter().map(String::as_str).collect();
        let writer = Writer::new(BufWriter::with_capacity(1 << 16, out), &comments);
        Ok(Self { writer: writer.map_err(failed)?, written: 0, name })
    }

    fn write(&mut self, record: &Record) -> Result<(), Failure> {
        self.written += 1;
        self.writer.write(record).map_err(|e| Failure::new(format!("{}: {e}", self.name)))
    }

    fn finish(self) -> Result<u64, Failure> {
        let Self { writer, written, name } = self;
        writer.finish().map_err(|e| Failure::new(format!("{name}: {e}")))?;
        Ok(written)
    }
}
