//! `weft lab list`, `show`, `run`, `report`: experiments, weft's and users' own.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::Instant;

use serde_json::json;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{answer, log_line, out, outln};
use weft_cli::thread;

use super::args::{LabMergeArgs, LabReportArgs, LabRunArgs, LabRuns};
use super::watch::{Pace, shown, watched};
use crate::figure::{CSV_HEADER, Panel};
use crate::report::{facts, html, number, ratio, svg};
use crate::store::{self, Keep, Shard};
use crate::{
    Experiment, Figure, Models, RunOptions, UnknownExperiment, experiment, models, run_part,
};

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
    let width = all.iter().map(|experiment| experiment.name.len()).max().unwrap_or(0).max(13);
    outln!("{:<width$} takes about  shows", "experiment");
    for experiment in all {
        let takes = match pace.seconds(&experiment) {
            seconds if seconds < 1.0 => "a moment".to_owned(),
            seconds if seconds < 60.0 => shown(seconds),
            seconds => format!("{:.0} min", seconds / 60.0),
        };
        outln!("{:<width$} {takes:>11}  {}", experiment.name, experiment.title);
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
    if json {
        return answer(&json!({ "name": name, "text": text }));
    }
    out!("{text}");
    Ok(())
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
    let options = options(&args.runs)?;
    let shard = args.shard.unwrap_or(Shard::WHOLE);
    let keep = |place| {
        let dir = args.out.clone()?;
        Some(Keep::In { dir, resume: args.resume, shard, place })
    };
    let runs = experiments(&args.names, &options)?.into_iter().enumerate();
    let runs = runs.map(|(place, e)| (e, RunOptions { keep: keep(place), ..options.clone() }));
    say_how_to_go_on(args.out.as_deref())?;
    let figures = run_all(&runs.collect::<Vec<_>>(), json)?;
    let Some(dir) = args.out.as_deref().filter(|_| shard != Shard::WHOLE) else {
        return print(&whole(figures), args.csv, json);
    };
    let cells: usize = figures.iter().filter_map(|figure| figure.as_ref().err()).sum();
    if json {
        return answer(&json!({ "shard": shard.to_string(), "cells": cells, "out": dir }));
    }
    outln!("shard {shard}: {cells} cells in {}", dir.display());
    outln!("`weft lab merge` shows the figures once all {} shards are finished", shard.of);
    Ok(())
}

/// Of a whole run all figures are there.
fn whole(figures: Vec<Result<Figure, usize>>) -> Vec<Figure> {
    figures.into_iter().filter_map(Result::ok).collect()
}

fn print(figures: &[Figure], csv: bool, json: bool) -> Outcome {
    if json {
        answer(&json!({ "figures": figures }))?;
    } else if csv {
        outln!("{CSV_HEADER}");
        figures.iter().for_each(|figure| out!("{}", figure.csv_lines()));
    } else {
        figures.iter().for_each(show_figure);
    }
    refuse_unmatched(figures)
}

/// Fails if numbers of the paper stand beside no point. What was measured has been printed.
fn refuse_unmatched(figures: &[Figure]) -> Outcome {
    let wrong = |figure: &Figure| match figure.unmatched.is_empty() {
        true => None,
        false => Some(format!("{}: {}", figure.name, figure.unmatched.join("; "))),
    };
    let wrong: Vec<String> = figures.iter().filter_map(wrong).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    let cause = format!("numbers of the paper that match no point: {}", wrong.join("; "));
    Err(Failure::new(cause)
        .hint("the figure has the others; [paper.\"PANEL\".\"SERIES\"] names them as it does"))
}

/// Ctrl-C prints how to resume the run. All that is finished is in files already.
fn say_how_to_go_on(out: Option<&Path>) -> Outcome {
    let hint = match out {
        None => "nothing was kept; with --out DIR a run can be interrupted and go on".to_owned(),
        Some(out) => {
            let word = |word: String| match word.contains(char::is_whitespace) {
                true => format!("'{word}'"),
                false => word,
            };
            let again = std::env::args().skip(1).filter(|arg| arg != "--resume").map(word);
            let again = again.collect::<Vec<_>>().join(" ");
            format!("finished cells are in {}; go on with: weft {again} --resume", out.display())
        }
    };
    thread::on_signals(move |signal, _| {
        log_line(&format!("interrupted: {hint}"));
        std::process::exit(128 + signal);
    })
}

/// `weft lab merge`.
pub fn merge(args: &LabMergeArgs, json: bool) -> Outcome {
    let traces = "give the --traces and --models of the run, if it had any";
    let models = models(args.models.as_deref())?;
    let mut runs = Vec::new();
    for parts in store::collect(&args.dirs).map_err(Failure::new)? {
        let plan = parts[0].plan.clone();
        let experiment = Experiment::parse(&plan.name, &plan.text, &models)
            .map_err(|e| Failure::new(e.to_string()).hint(traces))?;
        let options = RunOptions {
            seed: plan.seed,
            divide: plan.divide,
            traces: args.traces.clone(),
            models: models.clone(),
            keep: Some(Keep::Merged(parts)),
            ..RunOptions::default()
        };
        runs.push((Experiment { folder: plan.folder, ..experiment }, options));
    }
    let figures = whole(run_all(&runs, json).map_err(|failure| failure.hint(traces))?);
    if let Some(page) = &args.page {
        let failed = |e| Failure::new(format!("cannot write {}: {e}", page.display()));
        fs::write(page, html(&figures)).map_err(failed)?;
    }
    if let Some(dir) = &args.svg {
        pictures(dir, &figures)?;
    }
    print(&figures, args.csv, json)
}

/// `weft lab report`.
pub fn report(args: &LabReportArgs, json: bool) -> Outcome {
    let out = &args.out;
    let failed = |e| Failure::new(format!("cannot write {}: {e}", out.display()));
    // Checked before the work, which may take an hour.
    let is_new = !out.exists();
    OpenOptions::new().append(true).create(true).open(out).map_err(failed)?;
    let figures = figures(args, json).inspect_err(|_| {
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
        answer(&json!({ "page": out, "figures": figures.len(), "plots": plots }))?;
        return refuse_unmatched(&figures);
    }
    outln!("{}: {plots} plots; open it in any browser", out.display());
    if let Some(dir) = &args.svg {
        outln!("{}: each plot as an image", dir.display());
    }
    refuse_unmatched(&figures)
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

fn figures(args: &LabReportArgs, json: bool) -> Result<Vec<Figure>, Failure> {
    let options = options(&args.runs)?;
    let runs = experiments(&args.names, &options)?.into_iter().map(|e| (e, options.clone()));
    Ok(whole(run_all(&runs.collect::<Vec<_>>(), json)?))
}

/// The experiments called `names`, or all.
fn experiments(names: &[String], options: &RunOptions) -> Result<Vec<Experiment>, Failure> {
    if names.is_empty() {
        return Ok(Experiment::all());
    }
    let all: Vec<Experiment> =
        names.iter().map(|name| named(name, options)).collect::<Result<_, _>>()?;
    // Their cells, and their pictures, are named as they are.
    let is_twice = |(place, own): &(usize, &Experiment)| {
        all[..*place].iter().any(|other| other.name == own.name)
    };
    match all.iter().enumerate().find(is_twice) {
        None => Ok(all),
        Some((_, twice)) => {
            Err(Failure::usage(format!("two experiments are named {}", twice.name))
                .hint("an experiment of your own is named as its file: name the files differently"))
        }
    }
}

/// Runs experiments one after the other. A shard gives the number of its cells.
fn run_all(
    runs: &[(Experiment, RunOptions)],
    json: bool,
) -> Result<Vec<Result<Figure, usize>>, Failure> {
    let Some((_, first)) = runs.first() else { return Ok(Vec::new()) };
    let mut pace = Pace::new(first.threads, first.divide);
    let mut figures = Vec::new();
    for (number, (experiment, options)) in runs.iter().enumerate() {
        let begun = Instant::now();
        let others_s = runs[number + 1..].iter().map(|(e, _)| pace.seconds(e)).sum();
        let figure = watched(&experiment.name, pace.seconds(experiment), others_s, json, |told| {
            run_part(experiment, options, told)
        });
        figures.push(figure.map_err(|e| Failure::new(e.to_string()))?);
        pace.took(experiment, begun.elapsed().as_secs_f64());
    }
    Ok(figures)
}

/// An experiment of weft's, or a user's own.
fn named(name: &str, options: &RunOptions) -> Result<Experiment, Failure> {
    if !name.ends_with(".toml") {
        return Experiment::find(name).map_err(|e| unknown(&e));
    }
    let hint = "docs/lab.md describes the format; `weft lab show pro-table3` prints an example";
    Experiment::read(Path::new(name), &options.models, options.traces.as_deref())
        .map_err(|e| Failure::new(e.to_string()).hint(hint))
}

fn options(runs: &LabRuns) -> Result<RunOptions, Failure> {
    if let Some(dir) = runs.traces.as_ref().filter(|dir| !dir.is_dir()) {
        return Err(Failure::new(format!("--traces {}: no such folder", dir.display()))
            .hint("without --traces, generated traces replace the recorded ones"));
    }
    let options = RunOptions::default();
    Ok(RunOptions {
        seed: runs.seed,
        traces: runs.traces.clone(),
        models: models(runs.models.as_deref())?,
        threads: runs.threads.map_or(options.threads, usize::from),
        divide: runs.divide,
        keep: None,
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
