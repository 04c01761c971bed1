//! Modelled disks of users' own: a TOML file each, named as the disk.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;
use serde_json::Value;
use toml::de::DeTable;
use weft_model::catalog::MODELS;
use weft_model::{HddSpec, Kind, Model, SsdSpec};

use crate::schema::{self, Rules, Wrong, number};

/// The schema of a file.
pub const SCHEMA: &str = include_str!("../experiments/model.schema.json");

/// The modelled disks that an experiment may name: the products, and those of users.
#[derive(Clone, Debug, Default)]
pub struct Models {
    own: Vec<&'static Model>,
}

/// Why a folder of models cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// A file or the folder cannot be read.
    #[error("{}: {cause}", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// A file is no model.
    #[error("{}, {wrong}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong in it, and where.
        wrong: Wrong,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    #[serde(default)]
    source: String,
    #[serde(default)]
    inferred: String,
    sector_bytes: u32,
    capacity_bytes: u64,
    hdd: Option<HddSpec>,
    ssd: Option<SsdSpec>,
}

struct Disk;

impl Rules for Disk {
    fn word(&self, _: &str, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn table(&self, check: &str, table: &DeTable<'_>) -> Result<(), (&'static str, String)> {
        let ms = |key| number(table, key).unwrap_or(0.0);
        match check {
            "seek" if ms("average_ms") <= ms("track_to_track_ms") => {
                Err(("average_ms", "must be longer than track_to_track_ms".into()))
            }
            "seek" if ms("full_stroke_ms") <= ms("average_ms") => {
                Err(("full_stroke_ms", "must be longer than average_ms".into()))
            }
            "disk" if table.contains_key("hdd") == table.contains_key("ssd") => {
                Err(("hdd", "give either hdd or ssd".into()))
            }
            _ => Ok(()),
        }
    }
}

impl Models {
    /// Reads every `*.toml` in a folder. A disk is named as its file; one that is named as a
    /// product replaces it.
    ///
    /// # Errors
    /// If the folder or a file cannot be read, or a file is no model.
    pub fn read(dir: &Path) -> Result<Self, ModelsError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |cause| ModelsError::Io { path, cause }
        };
        let mut own = Vec::new();
        for entry in fs::read_dir(dir).map_err(failed(dir))? {
            let path = entry.map_err(failed(dir))?.path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                let text = fs::read_to_string(&path).map_err(failed(&path))?;
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                let model = parse(&name, &text);
                own.push(model.map_err(|wrong| ModelsError::Wrong { path: path.clone(), wrong })?);
            }
        }
        own.sort_by_key(|model| model.name);
        Ok(Self { own })
    }

    /// All: the products, and then those of users.
    pub fn all(&self) -> impl Iterator<Item = &'static Model> {
        let is_replaced =
            |model: &&Model| self.own.iter().any(|own| own.name.eq_ignore_ascii_case(model.name));
        MODELS.iter().filter(move |model| !is_replaced(model)).chain(self.own.iter().copied())
    }

    /// The modelled disk with this name, in any case.
    ///
    /// # Errors
    /// If there is none; the error lists all.
    pub fn find(&self, name: &str) -> Result<&'static Model, String> {
        let own = self.own.iter().find(|model| model.name.eq_ignore_ascii_case(name));
        own.copied().map_or_else(|| Model::find(name), Ok).map_err(|error| {
            let own = self.own.iter().map(|model| format!(", {}", model.name));
            let own: String = own.collect();
            let missing = if own.is_empty() { "; --models DIR adds your own" } else { "" };
            format!("{error}{own}{missing}")
        })
    }
}

/// Reads a model. It stays in memory: models are referred to for as long as the program runs.
///
/// # Errors
/// What is wrong, and where.
pub fn parse(name: &str, text: &str) -> Result<&'static Model, Wrong> {
    schema::check(SCHEMA, text, &Disk)?;
    let file: File = toml::from_str(text).map_err(|e| Wrong {
        line: 1,
        key: String::new(),
        cause: e.message().to_owned(),
    })?;
    let kind =
        file.hdd.map(Kind::Hdd).or_else(|| file.ssd.map(Kind::Ssd)).expect("as the schema says");
    let stays = |text: String| &*text.leak();
    Ok(Box::leak(Box::new(Model {
        name: stays(name.to_owned()),
        title: stays(file.title),
        source: stays(file.source),
        inferred: stays(file.inferred),
        sector_bytes: file.sector_bytes,
        capacity_bytes: file.capacity_bytes,
        kind,
        sheet: &[],
    })))
}

/// A model as a file, to start from.
#[must_use]
pub fn show(model: &Model) -> String {
    let (name, spec) = match &model.kind {
        Kind::Hdd(spec) => ("hdd", serde_json::to_value(spec)),
        Kind::Ssd(spec) => ("ssd", serde_json::to_value(spec)),
    };
    let mut text = String::new();
    let all = [("title", model.title), ("source", model.source), ("inferred", model.inferred)];
    for (key, value) in all {
        text.push_str(&format!("{key} = {}\n", Value::from(value)));
    }
    text.push_str(&format!("sector_bytes = {}\n", model.sector_bytes));
    text.push_str(&format!("capacity_bytes = {}\n", model.capacity_bytes));
    table(&mut text, name, &spec.expect("numbers and words"));
    text
}

fn table(text: &mut String, name: &str, value: &Value) {
    text.push_str(&format!("\n[{name}]\n"));
    let all = || value.as_object().into_iter().flatten();
    for (key, value) in all().filter(|(_, value)| !value.is_object()) {
        text.push_str(&format!("{key} = {value}\n"));
    }
    for (key, value) in all().filter(|(_, value)| value.is_object()) {
        table(text, &format!("{name}.{key}"), value);
    }
}
