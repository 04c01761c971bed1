//! Commands whose failure shows their output, and daemons that end with their test.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::need::find_tool;

/// How long anything may take before the test fails: a guard against hanging, far above the needs
/// of the slowest machine, never a measure of speed.
const PATIENCE: Duration = Duration::from_secs(600);

/// A command that is killed if the thread that starts it ends (also by `kill -9` of the whole
/// test), and that is found in `/sbin` too. Standard input is empty.
///
/// Start it from the thread of the test, not from one that ends earlier.
#[must_use]
pub fn command(program: impl AsRef<str>) -> Command {
    let program = program.as_ref();
    let path = find_tool(program).unwrap_or_else(|| program.into());
    // util-linux's setpriv, an essential package: the death signal without a line of unsafe code.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(path).stdin(Stdio::null());
    command
}

/// Runs `command` to its end and returns what it printed.
///
/// # Panics
/// With everything it printed, if it cannot be started or does not exit with status 0.
#[track_caller]
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("start {command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?} ended with {}\n--- stdout\n{}--- stderr\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Polls until `condition` holds.
///
/// # Panics
/// After ten minutes, saying `what` was waited for. It guards against hanging and tests no speed.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A daemon in a process group of its own. Dropping it kills the group (SIGKILL) and reaps it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    group: Pid,
}

impl Process {
    /// Starts `command`, usually one made by [`command`](fn@command).
    #[track_caller]
    #[must_use]
    pub fn spawn(command: &mut Command) -> Self {
        let started = command.process_group(0).spawn();
        let child = started.unwrap_or_else(|e| panic!("start {command:?}: {e}"));
        let group = Pid::from_child(&child);
        Self { child, group }
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The standard streams, where the command asked for pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("wait for a child").is_none()
    }

    /// Sends a signal to the process itself (not to its group).
    pub fn signal(&self, signal: Signal) {
        // It may just have ended on its own; a caller that cares checks its status.
        let _ = kill_process(self.group, signal);
    }

    /// `kill -9`, like a power cut for the daemon; returns when it is gone.
    pub fn kill9(self) {
        drop(self);
    }

    /// Asks it to stop (SIGTERM) and waits for it.
    ///
    /// # Panics
    /// If it does not end within ten minutes.
    #[track_caller]
    pub fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end within ten minutes.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        self.wait_for(PATIENCE).expect("a process did not end within ten minutes")
    }

    /// Waits for its end, but not longer than `patience`; `None` if it still runs then.
    #[must_use]
    pub fn wait_for(&mut self, patience: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            let status = self.child.try_wait().expect("wait for a child");
            if status.is_some() || start.elapsed() > patience {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The group's id stays reserved until the leader is reaped, so this can hit no other
        // process.
        if self.is_running() {
            let _ = kill_process_group(self.group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}
