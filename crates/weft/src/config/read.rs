//! The files of a configuration.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A larger file is a mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Something wrong in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; none for the file as a whole.
    pub line: Option<usize>,
    /// The key, with its tables.
    pub key: Option<String>,
    /// What is wrong.
    pub why: String,
}

impl Wrong {
    /// A file as a whole.
    pub fn file(file: &Path, why: impl fmt::Display) -> Self {
        Self { file: file.into(), line: None, key: None, why: why.to_string() }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(key) = &self.key {
            write!(f, ": {key}")?;
        }
        write!(f, ": {}", self.why)
    }
}

/// The files of the configuration at `file`, in order, and what cannot be found out. If `named`,
/// `file` must exist.
pub fn files(file: &Path, named: bool) -> (Vec<PathBuf>, Vec<Wrong>) {
    let mut files = Vec::new();
    let mut wrong = Vec::new();
    match fs::metadata(file) {
        Ok(_) => files.push(file.to_owned()),
        Err(e) if e.kind() == ErrorKind::NotFound && !named => {}
        Err(e) => wrong.push(Wrong::file(file, e)),
    }
    let folder = file.with_extension("d");
    match drop_ins(&folder) {
        Ok(more) => files.extend(more),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
        Err(e) => wrong.push(Wrong::file(&folder, e)),
    }
    (files, wrong)
}

/// `*.toml` in a folder, in the order of their names; no hidden ones.
fn drop_ins(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
        if !is_hidden && path.extension().is_some_and(|of| of == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The text of a file.
pub fn text(file: &Path) -> Result<String, Wrong> {
    let wrong = |e: std::io::Error| Wrong::file(file, e);
    let found = fs::metadata(file).map_err(wrong)?;
    if !found.is_file() {
        return Err(Wrong::file(file, "it is not a file"));
    }
    if found.len() > FILE_BYTES_MAX {
        return Err(Wrong::file(file, "it is larger than 1 MiB"));
    }
    let bytes = fs::read(file).map_err(wrong)?;
    String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Wrong { line: Some(line), ..Wrong::file(file, "it is not UTF-8") }
    })
}
