//! The program under test, in a scratch folder of its own.
#![allow(dead_code, reason = "benchmarks and programs of their own use some of it")]

pub mod append_load;
pub mod cluster;
pub mod weftfs;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::Once;

use rustix::process::Signal;
use weft_testkit::{Need, Process, Scratch, command, have, run, wait_until};

/// A scratch folder with a runtime directory, and the daemon that was started last.
pub struct Bench {
    // First: the daemon ends before its folder goes.
    daemon: Option<Process>,
    pub scratch: Scratch,
}

impl Bench {
    pub fn new(name: &str) -> Self {
        Self { daemon: None, scratch: Scratch::new(name) }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// `weft ARGS`, in the scratch folder.
    pub fn command(&self, args: &[&str]) -> Command {
        if args.iter().any(|arg| ["lab", "trace", "replay", "simulate"].contains(arg)) {
            laboratory();
        }
        let mut command = command(env!("CARGO_BIN_EXE_weft"));
        command.args(args).current_dir(self.scratch.path());
        command.env("WEFT_RUNTIME_DIR", self.path("run"));
        command
    }

    /// Runs `weft ARGS`; returns its output.
    #[track_caller]
    pub fn weft(&self, args: &[&str]) -> String {
        String::from_utf8(run(&mut self.command(args)).stdout).expect("output is text")
    }

    /// Runs `weft ARGS`, which must exit with `code`; returns its output on both streams.
    #[track_caller]
    pub fn refused(&self, args: &[&str], code: i32) -> String {
        let Output { status, stdout, stderr } = self.command(args).output().expect("start weft");
        let text =
            [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert_eq!(status.code(), Some(code), "weft {args:?} printed\n{text}");
        text
    }

    /// Starts `weft serve ARGS` and waits until it serves.
    #[track_caller]
    pub fn serve(&mut self, args: &[&str]) {
        self.serve_with(args, &[]);
    }

    /// As [`Bench::serve`], with more in the environment.
    #[track_caller]
    pub fn serve_with(&mut self, args: &[&str], environment: &[(&str, &str)]) {
        let out = self.path("serve.out");
        let log = File::options().create(true).append(true).open(self.path("serve.log"));
        let mut serve = self.command(&["serve"]);
        serve.envs(environment.iter().copied());
        serve.args(args).stdout(File::create(&out).expect("a file for output"));
        serve.stderr(log.expect("a file for the log"));
        let mut daemon = Process::spawn(&mut serve);
        wait_until("the daemon to serve", || {
            assert!(daemon.is_running(), "the daemon ended:\n{}", self.log());
            std::fs::read_to_string(&out).is_ok_and(|text| text.contains("serving"))
        });
        self.daemon = Some(daemon);
    }

    /// Starts `weft serve ARGS`, which serves nothing yet: it waits for members.
    pub fn serve_waiting(&mut self, args: &[&str]) {
        let log = File::create(self.path("serve.log")).expect("a file for the log");
        let mut serve = self.command(&["serve"]);
        self.daemon = Some(Process::spawn(serve.args(args).stderr(log)));
        self.wait_for_log("waiting for the missing members");
    }

    /// The daemon's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("serve.log")).unwrap_or_default()
    }

    /// The daemon's process id.
    pub fn daemon_id(&self) -> u32 {
        self.daemon.as_ref().expect("a daemon runs").id()
    }

    /// Sends a signal to the daemon.
    pub fn signal(&self, signal: Signal) {
        self.daemon.as_ref().expect("a daemon runs").signal(signal);
    }

    /// Whether the daemon still runs.
    pub fn is_running(&mut self) -> bool {
        self.daemon.as_mut().expect("a daemon runs").is_running()
    }

    /// Waits until the daemon has ended by itself.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        self.daemon.take().expect("a daemon runs").wait()
    }

    /// Waits until the daemon has logged `what`.
    #[track_caller]
    pub fn wait_for_log(&self, what: &str) {
        wait_until(&format!("`{what}` in the log"), || self.log().contains(what));
    }

    /// `kill -9`.
    pub fn kill9(&mut self) {
        self.daemon.take().expect("a daemon runs").kill9();
    }

    /// SIGTERM; the daemon must end in order.
    #[track_caller]
    pub fn terminate(&mut self) {
        let status = self.daemon.take().expect("a daemon runs").terminate();
        assert!(status.success(), "the daemon ended with {status}:\n{}", self.log());
    }

    /// The export of `array` on the Unix socket.
    pub fn uri(&self, array: &str) -> String {
        format!("nbd+unix:///{array}?socket={}", self.path("run/nbd.sock").display())
    }

    /// Members `d0` … of `count` in a folder `disks`.
    pub fn members(&self, count: usize, bytes: u64) -> Vec<String> {
        (0..count).map(|n| text(&self.scratch.file(&format!("d{n}"), bytes))).collect()
    }

    /// The array's state as JSON.
    #[track_caller]
    pub fn status(&self, array: &str) -> serde_json::Value {
        let text = self.weft(&["status", array, "--json"]);
        let all: serde_json::Value = serde_json::from_str(&text).expect("status prints JSON");
        all["arrays"][0]["status"].clone()
    }
}

/// The program of the laboratory, built beside the one under test: cargo builds programs of other
/// crates only if it tests these, too.
pub fn laboratory() -> String {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let mut cargo = command(option_env!("CARGO").unwrap_or("cargo"));
        cargo.args(["build", "--quiet", "--locked", "--package", "weft-lab", "--bin", "weft-lab"]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        run(cargo.current_dir(env!("CARGO_MANIFEST_DIR")));
    });
    text(&Path::new(env!("CARGO_BIN_EXE_weft")).with_file_name("weft-lab"))
}

pub fn text(path: &Path) -> String {
    path.to_str().expect("scratch paths are text").to_owned()
}

/// A command with nothing to read and nothing to say.
pub fn quiet(program: &str) -> Command {
    let mut command = command(program);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Whether there is fio, with its engine for NBD.
pub fn have_fio_over_nbd() -> bool {
    if !have(&[Need::Tool("fio")]) {
        return false;
    }
    let engines = run(command("fio").arg("--enghelp"));
    String::from_utf8_lossy(&engines.stdout).contains("nbd")
        || have(&[Need::File("/fio was built without its nbd engine")])
}
