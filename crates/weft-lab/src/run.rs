//! Runs an experiment.

use std::sync::Mutex;

use crate::experiment::Experiment;
use crate::figure::Figure;
use crate::lab::{Lab, LabError, RunOptions};

/// Runs `experiment`. `progress(done, of)` is called, from any thread, when a step is done.
///
/// # Errors
/// If the experiment asks for something that does not exist, or a run fails. Also if only a shard
/// is run.
pub fn run(
    experiment: &Experiment,
    options: &RunOptions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Figure, LabError> {
    run_part(experiment, options, progress)?.map_err(|_| LabError::Experiment {
        name: experiment.name.clone(),
        cause: "a shard has no figure".into(),
    })
}

/// Runs `experiment` as [`run`], or a shard of it, which gives no figure but the number of its
/// cells.
///
/// # Errors
/// As [`run`].
pub fn run_part(
    experiment: &Experiment,
    options: &RunOptions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Result<Figure, usize>, LabError> {
    let (name, text, folder) = (&experiment.name, &experiment.text, experiment.folder.as_deref());
    let lab = Lab { name, folder, options, progress, text, inputs: &Mutex::default() };
    let found = match experiment.run.run(&lab)? {
        Ok(found) => found,
        Err(cells) => return Ok(Err(cells)),
    };
    let mut figure = Figure {
        name: experiment.name.clone(),
        title: experiment.title.clone(),
        source: experiment.source.clone(),
        about: experiment.about.clone(),
        seed: options.seed,
        disk: found.disk,
        traces: found.traces,
        errors: experiment.errors.clone(),
        notes: found.notes,
        panels: found.panels,
        unmatched: Vec::new(),
    };
    figure.add_paper_numbers(&experiment.paper);
    Ok(Ok(figure))
}
