//! The one policy for tests that need something that the machine may lack.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Something a test needs from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A program on the search path (`/sbin` and `/usr/sbin` are searched too).
    Tool(&'static str),
    /// The powers of root.
    Root,
    /// `/dev/fuse`, usable by this user.
    Fuse,
    /// Loop devices, usable by this user.
    Loop,
    /// A file that must exist, such as a library.
    File(&'static str),
}

impl Need {
    /// Why the need is not met; `None` if it is.
    fn missing(self) -> Option<String> {
        let openable = |path| OpenOptions::new().read(true).write(true).open(path);
        match self {
            Self::Tool(name) => find_tool(name).is_none().then(|| format!("no {name}")),
            Self::Root => (!rustix::process::geteuid().is_root()).then(|| "not root".into()),
            Self::Fuse => openable("/dev/fuse").err().map(|e| format!("/dev/fuse: {e}")),
            Self::Loop => openable("/dev/loop-control").err().map(|e| format!("loop devices: {e}")),
            Self::File(path) => (!Path::new(path).exists()).then(|| format!("no {path}")),
        }
    }
}

/// Whether all `needs` are met; a test returns when they are not.
///
/// ```no_run
/// use weft_testkit::{Need, have};
/// if !have(&[Need::Tool("fio"), Need::Loop]) {
///     return;
/// }
/// ```
///
/// A skip is printed, and appended to the file that `WEFT_SKIP_LOG` names, from which `./test`
/// lists all skips at its end.
///
/// # Panics
/// With `WEFT_NOTHING_SKIPPED=1`, if a need is not met.
#[must_use]
pub fn have(needs: &[Need]) -> bool {
    let missing: Vec<String> = needs.iter().filter_map(|need| need.missing()).collect();
    if missing.is_empty() {
        return true;
    }
    skip(&missing.join(", "));
    false
}

/// Reports that the calling test is skipped, and `why`; for needs that only the test itself can
/// check. [`have`] describes the policy.
///
/// # Panics
/// With `WEFT_NOTHING_SKIPPED=1`.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let line = format!("{}: {why}", thread.name().unwrap_or("?"));
    let strict = std::env::var_os("WEFT_NOTHING_SKIPPED").is_some_and(|value| value == "1");
    assert!(!strict, "nothing may be skipped, but {line}; ./test installs what tests need");
    eprintln!("SKIPPED {line}");
    if let Some(path) = std::env::var_os("WEFT_SKIP_LOG") {
        let log = OpenOptions::new().append(true).create(true).open(path);
        log.and_then(|mut file| writeln!(file, "{line}")).expect("write the list of skipped tests");
    }
}

/// The place of `name` on the search path, or in the folders of administrators' tools.
pub(crate) fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(extra).map(|dir| dir.join(name)).find(|file| file.is_file())
}
