//! `weft lab list`, `show`, `run`, `report`: experiments, weft's and users' own.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::Instant;

use serde_json::json;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{answer, out, outln};

use super::args::{LabReportArgs, LabRunArgs, LabRuns};
use super::watch::{Pace, shown, watched};
use crate::figure::{CSV_HEADER, Panel};
use crate::report::{facts, html, number, ratio, svg};
use crate::{Experiment, Figure, Models, RunOptions, UnknownExperiment, experiment, models, run};

/// Curves with more points than this are printed only where the paper has a number.
const CURVE_LONG: usize = 20;

/// `weft lab list`.
pub fn list(json: bool) -> Outcome {
    let all = Experiment::all();
    if json {
        let list: Vec<_> = all
            .iter()
            .map(|e| {
                json!({
                    "name": e.name, "title": e.title, "source": e.source,
                    "processor_s": e.processor_s,
                })
            })
            .collect();
        return answer(&json!({ "experiments": list }));
    }
    let threads = RunOptions::default().threads;
    let pace = Pace::new(threads, 1);
    outln!("experiment    takes about  shows");
    for experiment in all {
        let takes = match pace.seconds(&experiment) {
            seconds if seconds < 1.0 => "a moment".to_owned(),
            seconds if seconds < 60.0 => shown(seconds),
            seconds => format!("{:.0} min", seconds / 60.0),
        };
        outln!("{:<13} {takes:>11}  {}", experiment.name, experiment.title);
    }
    outln!("(with {threads} threads; --divide 10 takes a tenth, and is less precise)");
    Ok(())
}

/// `weft lab show`.
pub fn show(name: &str, json: bool) -> Outcome {
    let text = match name {
        "experiment.schema.json" => experiment::SCHEMA.to_owned(),
        "model.schema.json" => models::SCHEMA.to_owned(),
        name => match (Experiment::find(name), Models::default().find(name)) {
            (Ok(experiment), _) => experiment.text,
            (_, Ok(model)) => models::show(model),
            (Err(error), _) => return Err(unknown(&error)),
        },
    };
    if json { answer(&json!({ "name": name, "text": text })) } else { Ok(out!("{text}")) }
}

fn unknown(error: &UnknownExperiment) -> Failure {
    Failure::usage(error.to_string())
        .hint("`weft lab list` describes them; a file of your own ends in .toml")
}

/// The modelled disks, with those of a folder.
pub fn models(dir: Option<&Path>) -> Result<Models, Failure> {
    dir.map_or_else(|| Ok(Models::default()), Models::read).map_err(|e| {
        Failure::new(format!("--models: {e}"))
            .hint("`weft lab show wd10eals` prints one to start from")
    })
}

/// `weft lab run`.
pub fn run_named(args: &LabRunArgs, json: bool) -> Outcome {
    let figures = figures(&args.names, &args.runs, json)?;
    if json {
        answer(&json!({ "figures": figures }))?;
    } else if args.csv {
        outln!("{CSV_HEADER}");
        figures.iter().for_each(|figure| out!("{}", figure.csv_lines()));
    } else {
        figures.iter().for_each(show_figure);
    }
    Ok(())
}

/// `weft lab report`.
pub fn report(args: &LabReportArgs, json: bool) -> Outcome {
    let out = &args.out;
    let failed = |e| Failure::new(format!("cannot write {}: {e}", out.display()));
    // Checked before the work, which may take an hour.
    let is_new = !out.exists();
    OpenOptions::new().append(true).create(true).open(out).map_err(failed)?;
    let figures = figures(&args.names, &args.runs, json).inspect_err(|_| {
        if is_new {
            let _ = fs::remove_file(out);
        }
    })?;
    fs::write(out, html(&figures)).map_err(failed)?;
    let plots: usize = figures.iter().map(|figure| figure.panels.len()).sum();
    if let Some(dir) = &args.svg {
        pictures(dir, &figures)?;
    }
    if json {
        return answer(&json!({ "page": out, "figures": figures.len(), "plots": plots }));
    }
    outln!("{}: {plots} plots; open it in any browser", out.display());
    if let Some(dir) = &args.svg {
        outln!("{}: each plot as an image", dir.display());
    }
    Ok(())
}

/// Writes every panel as an image in `dir`.
fn pictures(dir: &Path, figures: &[Figure]) -> Outcome {
    let failed = |path: &Path, e| Failure::new(format!("cannot write {}: {e}", path.display()));
    fs::create_dir_all(dir).map_err(|e| failed(dir, e))?;
    for figure in figures {
        for (number, panel) in (1..).zip(&figure.panels) {
            let path = dir.join(format!("{}-{number}.svg", figure.name));
            fs::write(&path, svg(panel)).map_err(|e| failed(&path, e))?;
        }
    }
    Ok(())
}

/// Runs the experiments called `names`, or all.
fn figures(names: &[String], runs: &LabRuns, json: bool) -> Result<Vec<Figure>, Failure> {
    let options = options(runs)?;
    let experiments = if names.is_empty() {
        Experiment::all()
    } else {
        names.iter().map(|name| named(name, &options.models)).collect::<Result<_, _>>()?
    };
    if let Some(dir) = runs.traces.as_ref().filter(|dir| !dir.is_dir()) {
        return Err(Failure::new(format!("--traces {}: no such folder", dir.display()))
            .hint("without --traces, generated traces replace the recorded ones"));
    }
    let mut pace = Pace::new(options.threads, options.divide);
    let mut figures = Vec::new();
    for (number, experiment) in experiments.iter().enumerate() {
        let begun = Instant::now();
        let others_s = experiments[number + 1..].iter().map(|e| pace.seconds(e)).sum();
        let figure = watched(&experiment.name, pace.seconds(experiment), others_s, json, |told| {
            run(experiment, &options, told)
        });
        figures.push(figure.map_err(|e| Failure::new(e.to_string()))?);
        pace.took(experiment, begun.elapsed().as_secs_f64());
    }
    Ok(figures)
}

/// An experiment of weft's, or a user's own.
fn named(name: &str, models: &Models) -> Result<Experiment, Failure> {
    if !name.ends_with(".toml") {
        return Experiment::find(name).map_err(|e| unknown(&e));
    }
    let hint = "docs/lab.md describes the format; `weft lab show pro-table3` prints an example";
    Experiment::read(Path::new(name), models).map_err(|e| Failure::new(e.to_string()).hint(hint))
}

fn options(runs: &LabRuns) -> Result<RunOptions, Failure> {
    let options = RunOptions::default();
    Ok(RunOptions {
        seed: runs.seed,
        traces: runs.traces.clone(),
        models: models(runs.models.as_deref())?,
        threads: runs.threads.map_or(options.threads, usize::from),
        divide: runs.divide,
    })
}

fn show_figure(figure: &Figure) {
    outln!("{}", figure.title);
    outln!("  {}", figure.source);
    outln!("  {}", facts(figure));
    for error in &figure.errors {
        outln!("  error in the paper: {error}");
    }
    for note in &figure.notes {
        outln!("  note: {note}");
    }
    figure.panels.iter().for_each(show_panel);
    outln!();
}

fn show_panel(panel: &Panel) {
    outln!("\n  {} ({})", panel.title, panel.y_label);
    for series in &panel.series {
        let long = series.points.len() > CURVE_LONG;
        for point in series.points.iter().filter(|p| !long || p.paper.is_some()) {
            let range = point.range.map_or_else(String::new, |(low, high)| {
                format!("  ({} to {})", number(low), number(high))
            });
            let paper = point.paper.map_or_else(String::new, |paper| {
                let part = ratio(point).map(|part| format!(", ours/paper {part}"));
                format!("  paper {}{}", number(paper), part.unwrap_or_default())
            });
            outln!(
                "    {:<34} {:<12} {:>9}{range}{paper}",
                series.name,
                point.x,
                number(point.ours)
            );
        }
        if long {
            outln!("    {:<34} a curve of {} points", series.name, series.points.len());
        }
    }
}
