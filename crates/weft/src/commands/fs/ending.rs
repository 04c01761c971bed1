//! Ending the service of a mounted file system on a signal.
//!
//! If the mount were taken away while programs use it, what they write by path afterwards would
//! land in the folder beneath, and what they have open could not be found any more. At a shutdown
//! SIGTERM often comes before the unmounting. So a signal unmounts only an unused file system;
//! until then the file system is served, for at most `--stop-timeout`, and the log names the users.
//! After that the kernel writes what it holds, and the service ends; the mount stays, and answers
//! every request with an error, until it is unmounted or mounted again.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_channel::mpsc;
use futures_util::StreamExt as _;
use futures_util::future::select;
use rustix::io::Errno;
use signal_hook::consts::signal::SIGHUP;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::log_line;
use weft_cli::thread;
use weft_disk::mounts;
use weft_fuse::mount;
use weft_rt::sync::Notify;
use weft_rt::{Nanos, Rt, SECOND};

use crate::block::users;
use crate::daemon::notify;

const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How long the kernel may take to end the connection of a mount.
const CUT_PATIENCE: Nanos = 5 * SECOND;
/// How long a process may take to end at once, before its own signal thread ends it.
const EXIT_PATIENCE: Duration = Duration::from_secs(10);

/// The signals that end a process of a cluster, counted. What each of them does its engine decides;
/// the third one ends the process although the engine hangs.
pub(super) struct Signals {
    heard: Arc<AtomicUsize>,
    hangup_ends: Arc<AtomicBool>,
    told: Notify,
}

impl Signals {
    /// Counts every SIGTERM and SIGINT from now on, and SIGHUP until [`Signals::ignore_hangup`].
    ///
    /// # Errors
    /// If signals cannot be listened for.
    pub(super) fn listen(rt: &Rt) -> Result<Rc<Self>, Failure> {
        let signals = Rc::new(Self {
            heard: Arc::default(),
            hangup_ends: Arc::new(AtomicBool::new(true)),
            told: Notify::default(),
        });
        let (sender, mut inbox) = mpsc::unbounded();
        let (heard, hangup_ends) = (signals.heard.clone(), signals.hangup_ends.clone());
        thread::on_signals(move |signal, _| {
            if signal == SIGHUP && !hangup_ends.load(Ordering::Relaxed) {
                return log_line("SIGHUP: the file system stays mounted (SIGTERM unmounts it)");
            }
            let count = heard.fetch_add(1, Ordering::Relaxed) + 1;
            // The engine may have ended.
            let _ = sender.unbounded_send(());
            if count > 2 {
                log_line("third signal: ending at once");
                std::thread::sleep(EXIT_PATIENCE);
                std::process::exit(1);
            }
        })?;
        let told = Rc::downgrade(&signals);
        rt.spawn(async move {
            while let Some(()) = inbox.next().await {
                told.upgrade().iter().for_each(|signals| signals.told.notify_all());
            }
        });
        Ok(signals)
    }

    /// From now on a terminal that closes ends nothing.
    pub(super) fn ignore_hangup(&self) {
        self.hangup_ends.store(false, Ordering::Relaxed);
    }

    /// How many were heard.
    pub(super) fn heard(&self) -> usize {
        self.heard.load(Ordering::Relaxed)
    }

    /// How many were heard, for another thread.
    pub(super) fn counter(&self) -> Arc<AtomicUsize> {
        self.heard.clone()
    }

    /// Waits until this number was heard.
    pub(super) async fn wait(&self, number: usize) {
        loop {
            let told = self.told.wait();
            if self.heard() >= number {
                return;
            }
            told.await;
        }
    }
}

/// Ends the connection of a mount although requests wait: these get errors, and so does what the
/// kernel has not written back. Otherwise a thread that unmounts it would wait for the process, and
/// the process for its thread.
pub(super) async fn cut(rt: &Rt, folder: &Path) {
    let folder = folder.to_owned();
    let cutting = thread::elsewhere(move || mount::cut_off(&folder));
    // If it takes longer, the end of the process does it.
    drop(select(Box::pin(cutting), Box::pin(rt.sleep(CUT_PATIENCE))).await);
}

/// Ends the service of the mount on `folder`, a path without links, when a signal asks for it.
///
/// # Errors
/// If signals cannot be listened for.
pub(super) fn on_signals(folder: &Path, patience: Duration) -> Outcome {
    let folder = folder.to_owned();
    let signals = Arc::new(AtomicUsize::new(0));
    thread::on_signals(move |signal, before| {
        if signal == SIGHUP {
            // A terminal that closes is no reason to take files away from programs.
            return log_line("SIGHUP: the file system stays mounted (SIGTERM unmounts it)");
        }
        signals.store(before + 1, Ordering::Relaxed);
        match before {
            0 => {
                notify::systemd("STOPPING=1");
                let (folder, signals) = (folder.clone(), signals.clone());
                let drain = move || drain(&folder, patience, &signals);
                // The thread that receives the signals must be free for the next one.
                let thread = std::thread::Builder::new().name("weft-drain".into());
                if let Err(e) = thread.spawn(drain) {
                    log_line(&format!("cannot start a thread: {e}"));
                }
            }
            1 => log_line("second signal: ending without waiting for users"),
            _ => {
                // What was synced is safe; the next mount recovers the rest.
                log_line("third signal: ending at once");
                std::process::exit(1);
            }
        }
    })
}

/// Unmounts when nothing uses the file system, or ends its service when the time is up.
pub(super) fn drain(folder: &Path, patience: Duration, signals: &AtomicUsize) {
    let deadline = Instant::now().checked_add(patience);
    let mut said = String::new();
    loop {
        match mount::unmount_unused(folder) {
            Ok(()) => return,
            Err(Errno::BUSY) => {}
            // Somebody else has unmounted it; what still has it open ends the service by closing
            // it.
            Err(Errno::INVAL | Errno::NOENT) => return,
            Err(e) => log_line(&format!("{}: cannot be unmounted: {e}", folder.display())),
        }
        let user = user_of(folder);
        let out_of_time = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if out_of_time || signals.load(Ordering::Relaxed) > 1 {
            log_line(&format!(
                "ALERT: stopped while {} is {user}: it returns errors from now on; unmount it, or \
                 mount it again",
                folder.display()
            ));
            mount::end_service(folder);
            return;
        }
        if user != said {
            log_line(&format!(
                "ALERT: cannot stop yet: {} is {user}; close what is open there (a second signal \
                 ends without waiting)",
                folder.display()
            ));
            said.clone_from(&user);
        }
        notify::systemd(&format!("STATUS=stopping: {} is {user}", folder.display()));
        notify::extend_timeout();
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Who keeps a mounted file system in use, in words.
fn user_of(folder: &Path) -> String {
    let processes = users::processes_in(&[folder.to_owned()]);
    let mounted = mounts::all().unwrap_or_default().into_iter().map(|mount| mount.target);
    let below = mounted.filter(|target| target != folder && target.starts_with(folder));
    let below: Vec<String> = below.map(|target| target.display().to_string()).collect();
    let devices = loop_devices_below(folder);
    let of = |what: &str, names: String| (!names.is_empty()).then(|| format!("{what} {names}"));
    let users: Vec<String> = [
        of("used by", processes),
        of("below the mounts", below.join(", ")),
        of("below the devices", devices.join(", ")),
    ]
    .into_iter()
    .flatten()
    .collect();
    match users.is_empty() {
        true => "in use, by a process that this one cannot see".to_owned(),
        false => users.join(", "),
    }
}

/// Loop devices whose files are below a folder.
fn loop_devices_below(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let is_below = |device: &PathBuf| {
        let file = fs::read(device.join("loop/backing_file")).unwrap_or_default();
        Path::new(OsStr::from_bytes(&file)).starts_with(folder)
    };
    let devices = entries.map(|entry| entry.path()).filter(is_below);
    devices.filter_map(|path| Some(format!("/dev/{}", path.file_name()?.display()))).collect()
}
