//! Experiments as data: one file each, in `experiments/`.
//!
//! A file gives the title, the source, what to run (`[run]`, by kind), the paper's numbers
//! (`[paper]`, by panel, series and point), errors in the paper, and how long it takes. The kinds
//! are programs ([`crate::kinds`]); everything that can differ from figure to figure is in the
//! file.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::figure::Numbers;
use crate::kinds::Kind;
use crate::models::Models;
use crate::rules::Known;
use crate::schema::{self, Wrong};

/// The schema of a file.
pub const SCHEMA: &str = include_str!("../experiments/experiment.schema.json");

/// The files, in the order in which they are listed.
const FILES: &[(&str, &str)] = &[
    ("drc-table1", include_str!("../experiments/drc-table1.toml")),
    ("drc-fig4", include_str!("../experiments/drc-fig4.toml")),
    ("drc-fig9", include_str!("../experiments/drc-fig9.toml")),
    ("drc-fig11", include_str!("../experiments/drc-fig11.toml")),
    ("drc-fig12", include_str!("../experiments/drc-fig12.toml")),
    ("drc-fig13", include_str!("../experiments/drc-fig13.toml")),
    ("drc-fig14", include_str!("../experiments/drc-fig14.toml")),
    ("drc-fig15", include_str!("../experiments/drc-fig15.toml")),
    ("drc-beyond", include_str!("../experiments/drc-beyond.toml")),
    ("pro-table3", include_str!("../experiments/pro-table3.toml")),
    ("pro-fig2", include_str!("../experiments/pro-fig2.toml")),
    ("pro-fig3", include_str!("../experiments/pro-fig3.toml")),
    ("pro-disks", include_str!("../experiments/pro-disks.toml")),
    ("pro-depth", include_str!("../experiments/pro-depth.toml")),
    ("pro-loads", include_str!("../experiments/pro-loads.toml")),
    ("pro-ssd", include_str!("../experiments/pro-ssd.toml")),
    ("pro-sweeps", include_str!("../experiments/pro-sweeps.toml")),
    ("vdf-fig3", include_str!("../experiments/vdf-fig3.toml")),
    ("vdf-fig4", include_str!("../experiments/vdf-fig4.toml")),
    ("vdf-fig5", include_str!("../experiments/vdf-fig5.toml")),
    ("vdf-recovery", include_str!("../experiments/vdf-recovery.toml")),
    ("vdf-busy", include_str!("../experiments/vdf-busy.toml")),
    ("vdf-service", include_str!("../experiments/vdf-service.toml")),
    ("vdf-threads", include_str!("../experiments/vdf-threads.toml")),
    ("vdf-rebuild", include_str!("../experiments/vdf-rebuild.toml")),
    ("vdf-pro", include_str!("../experiments/vdf-pro.toml")),
    ("vdf-pro-recorded", include_str!("../experiments/vdf-pro-recorded.toml")),
    ("vdf-beyond", include_str!("../experiments/vdf-beyond.toml")),
    ("alv-fig2", include_str!("../experiments/alv-fig2.toml")),
    ("alv-table1", include_str!("../experiments/alv-table1.toml")),
    ("alv-fig10", include_str!("../experiments/alv-fig10.toml")),
    ("alv-fig15", include_str!("../experiments/alv-fig15.toml")),
    ("alv-fig17", include_str!("../experiments/alv-fig17.toml")),
    ("alv-beyond", include_str!("../experiments/alv-beyond.toml")),
    ("together", include_str!("../experiments/together.toml")),
    ("together-financial", include_str!("../experiments/together-financial.toml")),
    ("together-dtrs", include_str!("../experiments/together-dtrs.toml")),
    ("together-ssd", include_str!("../experiments/together-ssd.toml")),
    ("together-without", include_str!("../experiments/together-without.toml")),
    ("file-raid", include_str!("../experiments/file-raid.toml")),
    ("file-rebuild", include_str!("../experiments/file-rebuild.toml")),
];

/// An experiment as its file describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name, which is the file's name.
    #[serde(skip)]
    pub name: String,
    /// The file.
    #[serde(skip)]
    pub text: String,
    /// The folder of a file of a user's own, in which its traces are looked for, too.
    #[serde(skip)]
    pub folder: Option<PathBuf>,
    /// What it shows, in a line.
    pub title: String,
    /// Paper, figure, section.
    pub source: String,
    /// What it does and how to read the result.
    pub about: String,
    /// Errors in the paper.
    #[serde(default)]
    pub errors: Vec<String>,
    /// Approximate run time, in seconds of one processor, shown to users.
    #[serde(default)]
    pub processor_s: u32,
    /// What to run.
    pub run: Kind,
    /// The paper's numbers.
    #[serde(default)]
    pub paper: Numbers,
}

/// No experiment of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no experiment is named '{name}'; known are: {known}")]
pub struct UnknownExperiment {
    /// The name asked for.
    pub name: String,
    /// All names.
    pub known: String,
}

/// A file that is not a valid experiment.
#[derive(Debug, thiserror::Error)]
pub enum BadExperiment {
    /// It cannot be read.
    #[error("cannot read {file}: {cause}")]
    Unreadable {
        /// The file.
        file: String,
        /// Why not.
        cause: std::io::Error,
    },
    /// Something in it is wrong.
    #[error("{file}, {wrong}")]
    Wrong {
        /// The file.
        file: String,
        /// What is wrong, and where.
        wrong: Wrong,
    },
}

impl Experiment {
    /// Reads the text of an experiment file, which may name these modelled disks.
    ///
    /// # Errors
    /// If it is not TOML, or does not comply with [`SCHEMA`].
    pub fn parse(name: &str, text: &str, models: &Models) -> Result<Self, BadExperiment> {
        Self::parse_known(name, text, &Known { models, traces: None })
    }

    fn parse_known(name: &str, text: &str, known: &Known<'_>) -> Result<Self, BadExperiment> {
        let failed = |wrong| BadExperiment::Wrong { file: name.to_owned(), wrong };
        schema::check(SCHEMA, text, known).map_err(failed)?;
        let read = toml::from_str::<Self>(text).map_err(|e| {
            failed(Wrong { line: 1, key: String::new(), cause: e.message().to_owned() })
        })?;
        Ok(Self { name: name.to_owned(), text: text.to_owned(), ..read })
    }

    /// Reads an experiment file of a user's own. It is named as the file. Its traces must be in the
    /// folder `traces` or beside it.
    ///
    /// # Errors
    /// As [`Self::parse`], and if it cannot be read or a trace is missing.
    pub fn read(
        path: &Path,
        models: &Models,
        traces: Option<&Path>,
    ) -> Result<Self, BadExperiment> {
        let file = path.display().to_string();
        let text = fs::read_to_string(path)
            .map_err(|cause| BadExperiment::Unreadable { file: file.clone(), cause })?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let folder = path.parent();
        let traces: Vec<&Path> = [traces, folder].into_iter().flatten().collect();
        let known = Known { models, traces: Some(&traces) };
        let read = Self::parse_known(&file, &text, &known)?;
        Ok(Self { name, folder: folder.map(Path::to_owned), ..read })
    }

    /// The experiments that come with the lab.
    ///
    /// # Panics
    /// Never: a test reads every file.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let models = Models::default();
        let parse = |(name, text): &(&str, &str)| Self::parse(name, text, &models);
        FILES.iter().map(|file| parse(file).expect("a sound file")).collect()
    }

    /// The experiment called `name`.
    ///
    /// # Errors
    /// If there is none; the error lists all.
    pub fn find(name: &str) -> Result<Self, UnknownExperiment> {
        Self::all().into_iter().find(|experiment| experiment.name == name).ok_or_else(|| {
            let known: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
            UnknownExperiment { name: name.to_owned(), known: known.join(", ") }
        })
    }
}
