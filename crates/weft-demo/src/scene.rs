//! The demo's scene: a scratch folder, a daemon or several, and commands run in it. Everything is
//! removed at the end, also if a step fails or the user interrupts the demo.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::signal::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{Answer, outln};
use weft_cli::size;

/// Where a file system is mounted, in the scene's folder.
pub const MOUNT_POINT: &str = "mnt";

/// The name of the process that mounts or serves, if there is one only.
const DAEMON: &str = "daemon";

/// A process that stays.
struct Actor {
    name: String,
    child: Child,
    /// The lines that it prints.
    lines: Receiver<String>,
}

/// What must go at the end, as the signals' thread sees it, too.
#[derive(Default)]
struct Stage {
    pids: Vec<Pid>,
    mounts: Vec<PathBuf>,
}

impl Stage {
    /// Ends and unmounts it all.
    fn clear(&self) {
        for pid in &self.pids {
            let _ = kill_process(*pid, Signal::KILL);
        }
        for place in &self.mounts {
            let _ = unmount(place, UnmountFlags::DETACH);
        }
    }
}

/// The scene of the demo.
pub struct Scene {
    folder: PathBuf,
    program: PathBuf,
    actors: Vec<Actor>,
    remove: bool,
    /// Prints nothing (JSON is asked for).
    silent: bool,
    stage: Arc<Mutex<Stage>>,
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
            actors: Vec::new(),
            remove: true,
            silent,
            stage: Arc::default(),
        };
        scene.will_mount(MOUNT_POINT);
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
        let (folder, stage) = (self.folder.clone(), self.stage.clone());
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Held to the end: nothing starts any more.
                let stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
                stage.clear();
                let _ = fs::remove_dir_all(&folder);
                std::process::exit(128 + signal);
            }
        });
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A folder of the scene that is to be unmounted at the end.
    pub fn will_mount(&self, folder: &str) {
        let folder = self.path(folder);
        self.stage().mounts.push(folder);
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

    /// Starts a process that stays until it is ended by its name; what it prints on stderr goes to
    /// `NAME.log`, if that is wanted.
    fn act(&mut self, name: &str, mut command: Command, has_log: bool) -> Outcome {
        if has_log {
            let log = self.path(&format!("{name}.log"));
            let file = fs::File::options().append(true).create(true).open(&log);
            let file = file.map_err(|e| Failure::new(format!("{}: {e}", log.display())))?;
            command.stderr(file);
        }
        command.stdout(Stdio::piped());
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn();
        let mut child = child.map_err(|e| {
            Failure::new(format!("{}: {e}", Path::new(command.get_program()).display()))
        })?;
        stage.pids.push(Pid::from_child(&child));
        drop(stage);
        let (sender, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        self.actors.push(Actor { name: name.to_owned(), child, lines });
        Ok(())
    }

    /// Starts a command of weft that stays; [`Scene::hear`] tells when it is ready.
    pub fn play(&mut self, name: &str, args: &[&str]) -> Outcome {
        self.show(args);
        let command = self.command(args);
        self.act(name, command, true)
    }

    /// The same with another program, whose arguments are shown in short.
    pub fn play_other(
        &mut self,
        name: &str,
        program: &Path,
        args: &[&str],
        shown: &str,
    ) -> Outcome {
        self.tell(&format!("$ {name} {shown}"));
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.folder).stdin(Stdio::null());
        self.act(name, command, true)
    }

    /// Waits until the process has printed a line with `word` in it, and shows that line.
    pub fn hear(&mut self, name: &str, word: &str, patience: Duration) -> Outcome {
        let deadline = Instant::now() + patience;
        loop {
            let line = match self.actor(name)?.lines.recv_timeout(until(deadline)) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.ended(name, &format!("did not say '{word}'")));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(name, "has ended")),
            };
            if line.contains(word) {
                self.tell(&line);
                return Ok(());
            }
        }
    }

    /// The failure of a process, with the last line of its log.
    fn ended(&self, name: &str, what: &str) -> Failure {
        let log = fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default();
        let failure = Failure::new(format!("{name} {what}"));
        match log.lines().last() {
            Some(last) => failure.hint(last.to_owned()),
            None => failure,
        }
    }

    fn actor(&mut self, name: &str) -> Result<&mut Actor, Failure> {
        let actor = self.actors.iter_mut().find(|actor| actor.name == name);
        actor.ok_or_else(|| Failure::new(format!("{name} does not run")))
    }

    /// Takes a process out of the cast, and what is to be done for it at the end.
    fn dismiss(&mut self, name: &str) -> Result<Child, Failure> {
        let at = self.actors.iter().position(|actor| actor.name == name);
        let at = at.ok_or_else(|| Failure::new(format!("{name} does not run")))?;
        let actor = self.actors.remove(at);
        // Before it is waited for: then its number may be given to another process.
        self.stage().pids.retain(|pid| *pid != Pid::from_child(&actor.child));
        Ok(actor.child)
    }

    /// `kill -9`.
    pub fn kill(&mut self, name: &str) -> Outcome {
        self.tell(&format!("$ kill -9 {name}"));
        let mut child = self.dismiss(name)?;
        let _ = child.kill();
        let _ = child.wait();
        Ok(())
    }

    /// Asks a process to end, and waits for it.
    pub fn end(&mut self, name: &str) -> Outcome {
        let child = self.dismiss(name)?;
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        self.finish(child)
    }

    /// The first line that a process prints; nothing if it has ended before.
    fn first_line(&mut self, name: &str) -> Result<String, Failure> {
        Ok(self.actor(name)?.lines.recv().unwrap_or_default())
    }

    /// Mounts the file system `name`, whose disks are in the scene's folder.
    pub fn mount(&mut self, name: &str) -> Outcome {
        let args = ["fs", "mount", name, MOUNT_POINT, "."];
        self.show(&args);
        let command = self.command(&args);
        self.act(DAEMON, command, false)?;
        match self.first_line(DAEMON)?.is_empty() {
            true => Err(Failure::new("the file system was not mounted")),
            false => Ok(()),
        }
    }

    /// Unmounts the file system; then everything is on its disks.
    pub fn unmount(&mut self) -> Outcome {
        self.unmount_of(DAEMON, MOUNT_POINT)
    }

    /// Unmounts a folder of the scene, and waits for the end of the process that serves it.
    pub fn unmount_of(&mut self, name: &str, folder: &str) -> Outcome {
        let place = self.path(folder);
        self.tell(&format!("$ umount {folder}"));
        unmount(&place, UnmountFlags::empty())
            .map_err(|e| Failure::new(format!("{}: {e}", place.display())))?;
        let child = self.dismiss(name)?;
        self.finish(child)
    }

    /// Starts the daemon; returns the array's NBD URI on loopback.
    pub fn serve(&mut self) -> Result<String, Failure> {
        // The kernel chooses the port: another daemon may run here already.
        let args = ["serve", "--listen", "127.0.0.1:0", "."];
        self.show(&args);
        let mut command = self.command(&args);
        command.arg("--json").stderr(Stdio::null());
        self.act(DAEMON, command, false)?;
        let line = self.first_line(DAEMON)?;
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

/// What is left until then.
pub fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Already stopped in order, or in the way of removing the folder.
        if self.remove {
            self.stage().clear();
        } else {
            for place in &self.stage().mounts {
                let _ = unmount(place, UnmountFlags::DETACH);
            }
        }
        for mut actor in std::mem::take(&mut self.actors) {
            let _ = actor.child.wait();
        }
        self.stage().pids.clear();
        if self.remove {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
