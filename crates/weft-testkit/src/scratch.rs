//! Folders that are removed with the test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A fresh folder below the system's temporary folder (`TMPDIR`), removed on drop.
///
/// `WEFT_KEEP=1` keeps it, and prints where it is. Paths stay short, so that a Unix socket in it
/// fits the 108 bytes of `sockaddr_un`.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes a fresh folder whose name starts with `weft-NAME`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::below(&std::env::temp_dir(), name)
    }

    /// A folder in memory (`$WEFT_TEST_MEMORY`, else `/dev/shm`), for tests that move much data; on
    /// disk where there is none.
    ///
    /// O_DIRECT and io_uring behave differently on tmpfs: choose [`Scratch::new`] when the test is
    /// about them.
    #[must_use]
    pub fn in_memory(name: &str) -> Self {
        let memory = std::env::var_os("WEFT_TEST_MEMORY").unwrap_or_else(|| "/dev/shm".into());
        let memory = Path::new(&memory);
        if memory.is_dir() { Self::below(memory, name) } else { Self::new(name) }
    }

    fn below(parent: &Path, name: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("weft-{name}-{}-{n}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Self { path },
                // Left over from a killed run whose process id came round again.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => panic!("create {}: {e}", path.display()),
            }
        }
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of `name` in the folder; nothing is created.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Creates a sparse file of `bytes` bytes, such as a member of an array.
    #[must_use]
    pub fn file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.join(name);
        File::create(&path)
            .and_then(|file| file.set_len(bytes))
            .unwrap_or_else(|e| panic!("create {}: {e}", path.display()));
        path
    }

    /// Creates `count` sparse files `PREFIX0`, `PREFIX1`, … of `bytes` bytes each.
    #[must_use]
    pub fn files(&self, prefix: &str, count: usize, bytes: u64) -> Vec<PathBuf> {
        (0..count).map(|i| self.file(&format!("{prefix}{i}"), bytes)).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::env::var_os("WEFT_KEEP").is_some() {
            eprintln!("kept {}", self.path.display());
        } else if let Err(e) = fs::remove_dir_all(&self.path) {
            eprintln!("could not remove {}: {e}", self.path.display());
        }
    }
}
