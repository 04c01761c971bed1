//! The demo's scene: a scratch folder, a daemon, and commands run in it. Everything is removed at
//! the end, also if a step fails or the user interrupts the demo.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::signal::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{Answer, outln};
use weft_cli::size;

/// Where a file system is mounted, in the scene's folder.
pub const MOUNT_POINT: &str = "mnt";

/// The scene of the demo.
pub struct Scene {
    folder: PathBuf,
    program: PathBuf,
    daemon: Option<Child>,
    remove: bool,
    /// Prints nothing (JSON is asked for).
    silent: bool,
    /// The daemon's process, for the signals' thread; 0 for none.
    daemon_pid: Arc<AtomicI32>,
}

impl Scene {
    /// Creates the folder; there must be room for `bytes` below it.
    pub fn open(dir: Option<&Path>, bytes: u64, silent: bool) -> Result<Self, Failure> {
        let folder = match dir {
            Some(dir) => std::path::absolute(dir)
                .map_err(|e| Failure::new(format!("{}: {e}", dir.display())))?,
            None => std::env::temp_dir().join(format!("weft-demo-{}", std::process::id())),
        };
        let program = std::env::current_exe()
            .map_err(|e| Failure::new(format!("cannot find this program's own file: {e}")))?;
        fs::create_dir(&folder).map_err(|e| {
            Failure::new(format!("{}: {e}", folder.display()))
                .hint("choose a folder that does not exist yet with --dir")
        })?;
        let scene = Self {
            folder,
            program,
            daemon: None,
            remove: true,
            silent,
            daemon_pid: Arc::default(),
        };
        let room = rustix::fs::statvfs(&scene.folder);
        if let Ok(room) = room.map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize))
            && room < bytes
        {
            let place = scene.folder.display();
            return Err(Failure::new(format!(
                "{place} has {} free, but the demo may need {}",
                size::show(room),
                size::show(bytes)
            ))
            .hint("choose another folder with --dir, or store less with --limit 64M"));
        }
        scene.clean_up_on_signals();
        Ok(scene)
    }

    fn clean_up_on_signals(&self) {
        let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
        let (folder, daemon) = (self.folder.clone(), self.daemon_pid.clone());
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                if let Some(daemon) = Pid::from_raw(daemon.load(Ordering::Acquire)) {
                    let _ = kill_process(daemon, Signal::KILL);
                }
                let _ = unmount(folder.join(MOUNT_POINT), UnmountFlags::DETACH);
                let _ = fs::remove_dir_all(&folder);
                std::process::exit(128 + signal);
            }
        });
    }

    /// Announces a step, in plain words.
    pub fn say(&self, words: &str) {
        if !self.silent {
            outln!("\n{words}");
        }
    }

    /// Prints a result, in plain words.
    pub fn tell(&self, words: &str) {
        if !self.silent {
            outln!("  {words}");
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .current_dir(&self.folder)
            .env("WEFT_RUNTIME_DIR", self.folder.join("run"));
        command.stdin(Stdio::null());
        if self.silent {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        command
    }

    fn show(&self, args: &[&str]) {
        if !self.silent {
            outln!("  $ weft {}", args.join(" "));
            let _ = Answer.flush();
        }
    }

    /// Runs a command to its end.
    pub fn weft(&self, args: &[&str]) -> Outcome {
        let child = self.start(args)?;
        self.finish(child)
    }

    /// Starts a command.
    pub fn start(&self, args: &[&str]) -> Result<Child, Failure> {
        self.show(args);
        self.command(args)
            .spawn()
            .map_err(|e| Failure::new(format!("{}: {e}", self.program.display())))
    }

    /// Waits for a command's end.
    pub fn finish(&self, mut child: Child) -> Outcome {
        match child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure::new(format!("the command ended with {status}"))),
            Err(e) => Err(Failure::new(format!("waiting for a command: {e}"))),
        }
    }

    /// A path in the scene's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs a command to its end; returns its JSON output.
    pub fn ask(&self, args: &[&str]) -> Result<serde_json::Value, Failure> {
        self.show(args);
        let output = self.command(args).arg("--json").stdout(Stdio::piped()).output();
        let output =
            output.map_err(|e| Failure::new(format!("{}: {e}", self.program.display())))?;
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        match told["error"]["message"].as_str() {
            Some(error) => Err(Failure::new(error)),
            None if !output.status.success() => {
                Err(Failure::new(format!("the command ended with {}", output.status)))
            }
            None => Ok(told),
        }
    }

    /// Mounts the file system `name`, whose disks are in the scene's folder.
    pub fn mount(&mut self, name: &str) -> Outcome {
        let args = ["fs", "mount", name, MOUNT_POINT, "."];
        self.show(&args);
        let mut command = self.command(&args);
        command.stdout(Stdio::piped());
        let child = command.spawn();
        let mut child = child.map_err(|e| Failure::new(format!("cannot mount: {e}")))?;
        let stdout = child.stdout.take();
        self.daemon_pid.store(Pid::from_child(&child).as_raw_pid(), Ordering::Release);
        self.daemon = Some(child);
        let mut line = String::new();
        let _ = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line));
        match line.is_empty() {
            true => Err(Failure::new("the file system was not mounted")),
            false => Ok(()),
        }
    }

    /// Unmounts the file system; then everything is on its disks.
    pub fn unmount(&mut self) -> Outcome {
        let place = self.path(MOUNT_POINT);
        self.tell(&format!("$ umount {MOUNT_POINT}"));
        unmount(&place, UnmountFlags::empty())
            .map_err(|e| Failure::new(format!("{}: {e}", place.display())))?;
        self.daemon_pid.store(0, Ordering::Release);
        self.daemon.take().map_or(Ok(()), |child| self.finish(child))
    }

    /// Starts the daemon; returns the array's NBD URI on loopback.
    pub fn serve(&mut self) -> Result<String, Failure> {
        // The kernel chooses the port: another daemon may run here already.
        let args = ["serve", "--listen", "127.0.0.1:0", "."];
        self.show(&args);
        let mut command = self.command(&args);
        command.arg("--json").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child =
            command.spawn().map_err(|e| Failure::new(format!("cannot start the daemon: {e}")))?;
        let stdout = child.stdout.take();
        self.daemon_pid.store(Pid::from_child(&child).as_raw_pid(), Ordering::Release);
        self.daemon = Some(child);
        let mut line = String::new();
        let _ = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line));
        let told: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        if let Some(error) = told["error"]["message"].as_str() {
            return Err(Failure::new(error));
        }
        let uris = told["nbd_uris"].as_array().into_iter().flatten().filter_map(|uri| uri.as_str());
        let uri = uris.into_iter().find(|uri| uri.starts_with("nbd://")).map(str::to_owned);
        let uri = uri.ok_or_else(|| Failure::new("the daemon did not start"))?;
        self.tell(&format!("serving demo at {uri}"));
        Ok(uri)
    }

    /// Ends the demo: removes everything, or reports where it is.
    pub fn close(mut self, keep: bool) -> Outcome {
        self.remove = !keep;
        if keep {
            self.tell(&format!(
                "kept in {}: `weft serve {0}` serves it again",
                self.folder.display()
            ));
        }
        Ok(())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = unmount(self.path(MOUNT_POINT), UnmountFlags::DETACH);
        if let Some(mut daemon) = self.daemon.take() {
            // Already stopped in order, or in the way of removing the folder.
            if self.remove {
                let _ = daemon.kill();
            }
            let _ = daemon.wait();
            self.daemon_pid.store(0, Ordering::Release);
        }
        if self.remove {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
