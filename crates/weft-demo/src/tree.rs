//! Real files of this machine, for the demo to store.

use std::fs;
use std::path::{Path, PathBuf};

use weft_cli::failure::Failure;

/// Maximum number of files: the demo is about bytes, and keeps a line for each file.
const FILES_MAX: usize = 20_000;

/// Trees that most machines have.
const USUAL: [&str; 4] = ["/usr/share", "/usr/lib", "/usr", "/etc"];

/// A file to store.
#[derive(Debug, Clone)]
pub struct Source {
    /// Where it is.
    pub path: PathBuf,
    /// Its length when it was listed, bytes.
    pub len: u64,
}

/// The tree to store, and its files up to `limit` bytes.
pub fn sources(asked: Option<&Path>, limit: u64) -> Result<(PathBuf, Vec<Source>), Failure> {
    let root = choose(asked)?;
    let files = list(&root, limit);
    if files.is_empty() {
        return Err(Failure::new(format!("{} contains no files to store", root.display()))
            .hint("choose another folder with --tree"));
    }
    Ok((root, files))
}

/// The tree to store.
fn choose(asked: Option<&Path>) -> Result<PathBuf, Failure> {
    match asked {
        Some(path) if path.is_dir() => Ok(path.to_owned()),
        Some(path) => Err(Failure::usage(format!("{} is not a folder", path.display()))),
        None => {
            let usual = USUAL.iter().map(Path::new).find(|path| path.is_dir());
            usual.map(Path::to_owned).ok_or_else(|| {
                Failure::new("no files to store").hint("choose a folder with --tree")
            })
        }
    }
}

/// The regular files below `root` that can be read, in the order of their names, up to
/// `limit` bytes.
fn list(root: &Path, limit: u64) -> Vec<Source> {
    let mut files = Vec::new();
    let mut left = limit;
    walk(root, &mut files, &mut left);
    files
}

fn walk(folder: &Path, files: &mut Vec<Source>, left: &mut u64) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        // Links are not followed: one may lead out of the tree, or form a loop.
        let Ok(data) = fs::symlink_metadata(&path) else { continue };
        if data.is_dir() {
            walk(&path, files, left);
        } else if data.is_file() && data.len() <= *left && files.len() < FILES_MAX {
            *left -= data.len();
            files.push(Source { path, len: data.len() });
        }
    }
}
