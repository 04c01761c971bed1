//! Running an experiment.

use std::path::PathBuf;
use std::thread;

use crate::experiment::Experiment;
use crate::figure::Figure;
use crate::kinds::Lab;

/// How experiments are run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Everything that is drawn is drawn from it.
    pub seed: u64,
    /// Folder with recorded traces; without it generated ones stand in, and are marked as such.
    pub traces: Option<PathBuf>,
    /// Threads.
    pub threads: usize,
    /// Divides the requests of every simulated run: quicker, coarser.
    pub divide: u64,
}

impl Default for RunOptions {
    fn default() -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Self { seed: 1, traces: None, threads, divide: 1 }
    }
}

/// Why an experiment gave no figure.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The experiment's file asks for what there is not.
    #[error("experiment '{name}': {cause}")]
    Experiment {
        /// The experiment.
        name: String,
        /// What is wrong.
        cause: String,
    },
    /// A run failed, or its data were not what had been written.
    #[error("experiment '{name}', {run}: {cause}")]
    Run {
        /// The experiment.
        name: String,
        /// Which of its runs.
        run: String,
        /// What happened.
        cause: String,
    },
}

/// Runs `experiment`. `progress(done, of)` is told, from any thread, of the steps that are done.
///
/// # Errors
/// If the experiment asks for what there is not, a run fails, or the paper's numbers in its file
/// belong to no point of the figure.
pub fn run(
    experiment: &Experiment,
    options: &RunOptions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Figure, LabError> {
    let lab = Lab { name: &experiment.name, options, progress };
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
    let orphans = figure.lay_beside(&experiment.paper);
    if orphans.is_empty() {
        return Ok(figure);
    }
    let cause = format!("the paper's numbers have no place: {}", orphans.join("; "));
    Err(LabError::Experiment { name: experiment.name.clone(), cause })
}
