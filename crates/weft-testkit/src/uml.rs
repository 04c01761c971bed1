//! A shell script inside a real Linux kernel with MD.
//!
//! Debian's `user-mode-linux` is the kernel as an ordinary program: it boots in about a second,
//! without root and without virtualisation, and has MD as modules. Its root is a folder made on the
//! spot (busybox, mdadm and their libraries) that it sees through hostfs; so is `/host`, the folder
//! where the script stands and through which it exchanges files with the test.
//!
//! It has one CPU, and its MD uses no SIMD: an oracle for bytes and behaviour, never for speed (for
//! that there is [`Vm`](crate::Vm)).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::need::{Need, find_tool, have};
use crate::process::{Process, command};
use crate::scratch::Scratch;

/// After this long a guest is taken to hang; far above what any script here needs.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where Debian puts the kernel's modules.
const MODULES: &str = "/usr/lib/uml/modules";

/// A kernel to be booted.
#[derive(Debug)]
pub struct Uml {
    host: PathBuf,
    memory_mib: u32,
    tools: Vec<&'static str>,
    disks: Vec<PathBuf>,
}

/// What became of the script.
#[derive(Debug)]
pub struct UmlOutcome {
    /// The script's exit status; `None` if the kernel ended before it did, or hung for five
    /// minutes.
    pub status: Option<i32>,
    /// What the script printed on both its streams.
    pub output: String,
    /// The kernel's console, for the case that it failed.
    pub console: String,
}

impl Uml {
    /// What a test that boots a kernel needs, beyond [`Uml::tool`]s of its own.
    pub const NEEDS: &'static [Need] = &[
        Need::Tool("linux.uml"),
        Need::File(MODULES),
        Need::Tool("mdadm"),
        Need::File("/bin/busybox"),
    ];

    /// A kernel that sees the folder `host` as `/host`, and everything in it.
    #[must_use]
    pub fn new(host: &Path) -> Self {
        Self { host: host.into(), memory_mib: 512, tools: vec!["mdadm"], disks: Vec::new() }
    }

    /// The machine's memory, 512 MiB unless told. Taken from the host only as it is touched.
    #[must_use]
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Brings one more program of this machine, with its libraries.
    #[must_use]
    pub fn tool(mut self, name: &'static str) -> Self {
        self.tools.push(name);
        self
    }

    /// Gives it a disk whose contents are this file's: the first is `/dev/ubda`, the next
    /// `/dev/ubdb`. The kernel has one request at a time with each.
    #[must_use]
    pub fn disk(mut self, file: &Path) -> Self {
        self.disks.push(file.into());
        self
    }

    /// Whether this machine can boot it; see [`have`].
    #[must_use]
    pub fn available() -> bool {
        have(Self::NEEDS)
    }

    /// Boots, runs `script` with busybox's shell (`set -eu`) standing in `/host`, and powers off.
    /// `modprobe brd rd_nr=N rd_size=KIB` gives it RAM disks.
    ///
    /// # Panics
    /// If the kernel cannot be started.
    #[track_caller]
    #[must_use]
    pub fn run(&self, script: &str) -> UmlOutcome {
        let root = Scratch::new("uml");
        let modules = kernel_modules();
        self.make_root(root.path(), &modules, script);
        let console = fs::File::create(root.join("console")).expect("create the console's file");
        // UML keeps the guest's memory in an unlinked file in TMPDIR that it maps executable.
        let memory_dir = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        let mut kernel = command("linux.uml");
        kernel
            .arg(format!("mem={}M", self.memory_mib))
            .args(["rootfstype=hostfs", "rw", "init=/init", "quiet", "con=null", "con0=null,fd:1"])
            .arg(format!("rootflags={}", root.path().display()))
            .env("TMPDIR", memory_dir)
            .env("HOME", root.path())
            .stdout(Stdio::from(console))
            .stderr(Stdio::null());
        for (letter, disk) in ('a'..='z').zip(&self.disks) {
            kernel.arg(format!("ubd{letter}={}", disk.display()));
        }
        // A guest that has halted leaves a status of no meaning; the script's own is in a file.
        // One that hangs is killed here, and what it printed until then tells why.
        let _ = Process::spawn(&mut kernel).wait_for(PATIENCE);
        let text = |name: &str| {
            let bytes = fs::read(root.join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        UmlOutcome {
            status: text("status").trim().parse().ok(),
            output: text("output"),
            console: text("console"),
        }
    }

    fn make_root(&self, root: &Path, modules: &Path, script: &str) {
        for dir in ["bin", "proc", "sys", "dev", "tmp", "run", "etc", "host"] {
            fs::create_dir(root.join(dir)).expect("make the guest's root");
        }
        let version = modules.file_name().expect("a version").to_str().expect("an ASCII version");
        fs::create_dir_all(root.join("lib/modules").join(version)).expect("make lib/modules");
        for tool in self.tools.iter().copied().chain(["busybox"]) {
            install(root, &find_tool(tool).unwrap_or_else(|| panic!("no {tool}")));
        }
        let init = INIT
            .replace("@HOST@", self.host.to_str().expect("a UTF-8 path"))
            .replace("@MODULES@", modules.to_str().expect("a UTF-8 path"))
            .replace("@VERSION@", version);
        fs::write(root.join("init"), init).expect("write init");
        make_executable(&root.join("init"));
        fs::write(root.join("script"), script).expect("write the script");
    }
}

impl UmlOutcome {
    /// What the script printed, if it ended well.
    ///
    /// # Panics
    /// With everything known, if it did not.
    #[track_caller]
    #[must_use]
    pub fn success(self) -> String {
        let Self { status, output, console } = self;
        assert_eq!(status, Some(0), "the guest failed\n--- output\n{output}--- console\n{console}");
        output
    }
}

/// The guest's first process. It tells the script's end by a file, as the console also carries
/// the kernel's own words.
const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mount -t tmpfs tmp /tmp
mount -t tmpfs tmp /run
mkdir -p /run/mdadm
mount -t hostfs -o @HOST@ none /host
mount -t hostfs -o @MODULES@ none /lib/modules/@VERSION@
for module in raid0 raid1 raid10 raid456; do modprobe $module; done
cd /host
sh -eu /script </dev/null >/output 2>&1
echo $? >/status
sync
poweroff -f
";

pub(crate) fn make_executable(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod");
}

/// Copies a program and the libraries it loads to the guest's root.
pub(crate) fn install(root: &Path, program: &Path) {
    let copy = |from: &Path, to: &Path| {
        fs::create_dir_all(to.parent().expect("a file has a folder")).expect("make a folder");
        fs::copy(from, to).unwrap_or_else(|e| panic!("copy {}: {e}", from.display()));
    };
    copy(program, &root.join("bin").join(program.file_name().expect("a program has a name")));
    // Lines such as `libc.so.6 => /lib/…/libc.so.6 (0x…)`; a static program has none, and ldd says
    // so with a status of 1.
    let listing = command("ldd").arg(program).output().expect("run ldd");
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    for library in listing.split_whitespace().filter(|word| word.starts_with('/')) {
        copy(Path::new(library), &root.join(&library[1..]));
    }
}

/// The folder of the newest installed kernel's modules.
fn kernel_modules() -> PathBuf {
    let listing = fs::read_dir(MODULES).unwrap_or_else(|e| panic!("{MODULES}: {e}"));
    let newest = listing.map(|entry| entry.expect("read a folder").path()).max();
    newest.unwrap_or_else(|| panic!("{MODULES} is empty"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_exchanges_files_and_gives_its_status() {
        if !Uml::available() {
            return;
        }
        let host = Scratch::new("uml-host");
        fs::write(host.join("in"), "warp").expect("write");
        let outcome =
            Uml::new(host.path()).run("cat in; cat in >out; test -e /sys/module/raid456; exit 7");
        assert_eq!((outcome.status, outcome.output.as_str()), (Some(7), "warp"), "{outcome:?}");
        assert_eq!(fs::read_to_string(host.join("out")).expect("read"), "warp");
    }
}
