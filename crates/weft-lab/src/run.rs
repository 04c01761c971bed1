//! Runs an experiment.

use crate::experiment::Experiment;
use crate::figure::Figure;
use crate::lab::{Lab, LabError, RunOptions};

/// Runs `experiment`. `progress(done, of)` is called, from any thread, when a step is done.
///
/// # Errors
/// If the experiment asks for something that does not exist, a run fails, or the paper's numbers in
/// its file belong to no point of the figure.
pub fn run(
    experiment: &Experiment,
    options: &RunOptions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Figure, LabError> {
    let folder = experiment.folder.as_deref();
    let lab = Lab { name: &experiment.name, folder, options, progress };
    let found = experiment.run.run(&lab)?;
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
    };
    let orphans = figure.add_paper_numbers(&experiment.paper);
    if orphans.is_empty() {
        return Ok(figure);
    }
    let cause = format!("numbers of the paper that match no point: {}", orphans.join("; "));
    Err(LabError::Experiment { name: experiment.name.clone(), cause })
}
