//! What an experiment's file must comply with beyond its schema.

use std::path::{Path, PathBuf};

use toml::de::DeTable;
use weft_cache::Choice;
use weft_code::CodeSpec;
use weft_fs::Redundancy;
use weft_trace::generate::{names, workload};

use crate::lab::code;
use crate::models::Models;
use crate::schema::{Rules, integer, text};

/// What a file may name.
pub(crate) struct Known<'a> {
    pub(crate) models: &'a Models,
    /// The folders in which its traces are looked for, if it is to be run as it is.
    pub(crate) traces: Option<&'a [&'a Path]>,
}

/// The recorded trace of this name in the first of these folders that has it.
pub(crate) fn trace_file<'a>(
    folders: impl IntoIterator<Item = &'a Path>,
    name: &str,
) -> Option<PathBuf> {
    folders.into_iter().map(|folder| folder.join(name)).find(|path| path.exists())
}

impl Known<'_> {
    /// Whether the file of a trace is in one of the folders.
    fn trace(&self, file: &str) -> Result<(), String> {
        let Some(folders) = self.traces else { return Ok(()) };
        if trace_file(folders.iter().copied(), file).is_some() {
            return Ok(());
        }
        let shown = |folder: &&Path| match folder.as_os_str().is_empty() {
            true => ".".to_owned(),
            false => folder.display().to_string(),
        };
        let folders: Vec<String> = folders.iter().map(shown).collect();
        Err(format!("there is no file {file} in {}; --traces names a folder", folders.join(", ")))
    }
}

impl Rules for Known<'_> {
    fn word(&self, format: &str, word: &str) -> Result<(), String> {
        match format {
            "code" => word.parse::<CodeSpec>().map(drop).map_err(|e| e.to_string()),
            "cache-policy" => word.parse::<Choice>().map(drop).map_err(|e| e.to_string()),
            "redundancy" => word.parse::<Redundancy>().map(drop).map_err(|e| e.to_string()),
            "model" => self.models.find(word).map(drop),
            "workload" if workload(word).is_none() => {
                let known: Vec<&str> = names().map(|(name, _)| name).collect();
                Err(format!("no workload is named {word}; known are {}", known.join(", ")))
            }
            _ => Ok(()),
        }
    }

    fn table(&self, check: &str, table: &DeTable<'_>) -> Result<(), (&'static str, String)> {
        let way = text(table, "way").unwrap_or_default();
        let least = integer(table, "min_kib_s").unwrap_or(0);
        if integer(table, "max_kib_s").is_some_and(|most| most < least) {
            return Err(("max_kib_s", "is less than min_kib_s".into()));
        }
        match check {
            "array" => {
                let spec = text(table, "code").and_then(|name| name.parse::<CodeSpec>().ok());
                let disks = integer(table, "disks").and_then(|disks| usize::try_from(disks).ok());
                let fits =
                    spec.zip(disks).map_or(Ok(()), |(spec, disks)| code(spec, disks).map(drop));
                fits.map_err(|cause| ("disks", cause))
            }
            "trace" if !table.contains_key("workload") && !table.contains_key("file") => {
                Err(("workload", "give a workload, a file, or both".into()))
            }
            "trace" if !table.contains_key("workload") => text(table, "file")
                .map_or(Ok(()), |file| self.trace(file))
                .map_err(|cause| ("file", cause)),
            "reshape" if (way == "weft") != table.contains_key("written_percent") => {
                Err(("written_percent", "belongs to the way weft, which needs it".into()))
            }
            "reshape" if way != "alv" => {
                let alv =
                    ["skip_empty", "as_printed"].into_iter().find(|key| table.contains_key(*key));
                alv.map_or(Ok(()), |key| Err((key, "belongs to the way alv".into())))
            }
            _ => Ok(()),
        }
    }
}
