//! The processes that use a mounted file system. They are found by the links in `/proc`, without
//! touching the file system itself, which may be dead.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of processes named.
const SHOWN_MAX: usize = 3;
/// A file that is there while udev is at work.
const UDEV_QUEUE: &str = "/run/udev/queue";
/// How long that may take on a busy machine.
const UDEV_PATIENCE: Duration = Duration::from_secs(60);

/// How long to wait for a program that only looks at a device, as udev does after each change:
/// `usual`, or longer while udev is at work.
pub fn patience(usual: Duration) -> Duration {
    if Path::new(UDEV_QUEUE).exists() { usual.max(UDEV_PATIENCE) } else { usual }
}

/// Processes that have a file open below one of `targets`, or run there, in words; empty if none is
/// visible.
pub fn processes_in(targets: &[PathBuf]) -> String {
    if targets.is_empty() {
        return String::new();
    }
    let below = |link: &Path| {
        fs::read_link(link).is_ok_and(|path| targets.iter().any(|target| path.starts_with(target)))
    };
    let uses = |process: &Path| {
        let fixed = ["cwd", "root", "exe"].map(|name| process.join(name));
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        fixed.into_iter().chain(open.map(|entry| entry.path())).any(|link| below(&link))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut names = processes.filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        let path = entry.path();
        if !uses(&path) {
            return None;
        }
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        Some(format!("{} ({number})", name.trim()))
    });
    let mut shown: Vec<String> = names.by_ref().take(SHOWN_MAX).collect();
    if names.next().is_some() {
        shown.push("others".into());
    }
    shown.join(", ")
}
