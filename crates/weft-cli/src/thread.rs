//! The engine's thread: the executor and ring on which all array code runs.

use std::fs::File;
use std::io::Read as _;
use std::time::SystemTime;

use futures_channel::{mpsc, oneshot};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use weft_rt::ring::{self, RingConfig};

use crate::disks::Opener;
use crate::failure::{Failure, Outcome};
use crate::output::log_line;

/// Runs `work` on an executor with a ring of its own, on the calling thread.
///
/// # Errors
/// If there is no io_uring, and those of `work`.
pub fn run<T: 'static, F>(work: impl FnOnce(Opener) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>> + 'static,
{
    let (rt, ring) = start(RingConfig::default())?;
    let opener = Opener::new(&rt, ring);
    rt.block_on(work(opener))
}

/// An executor and its ring for the calling thread.
///
/// # Errors
/// If there is no io_uring.
pub fn start(config: RingConfig) -> Result<(weft_rt::Rt, ring::Ring), Failure> {
    ring::start(config).map_err(|e| {
        Failure::new(format!("no io_uring: {e}")).hint(
            "weft needs Linux 5.11 or later with io_uring allowed (sysctl kernel.io_uring_disabled=0; \
             containers often forbid it)",
        )
    })
}

/// Runs `work`, which may block, on a thread of its own.
///
/// # Errors
/// If the thread cannot be started, or panics.
pub async fn elsewhere<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let (sender, receiver) = oneshot::channel();
    let run = move || {
        // The receiver is gone if the daemon is ending.
        let _ = sender.send(work());
    };
    let thread = std::thread::Builder::new().name("weft-helper".into()).spawn(run);
    thread.map_err(|e| Failure::new(format!("cannot start a thread: {e}")))?;
    receiver.await.map_err(|_| Failure::new("a helper thread ended early"))
}

/// Calls `pass`, on a thread of its own, for every SIGTERM, SIGINT and SIGHUP, with the number of
/// earlier SIGTERMs and SIGINTs.
///
/// # Errors
/// If the handlers or the thread cannot be set up.
pub fn on_signals(pass: impl Fn(i32, usize) + Send + 'static) -> Outcome {
    let failed = |e: std::io::Error| Failure::new(format!("cannot listen for signals: {e}"));
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    let listen = move || {
        let mut before = 0;
        for signal in signals.forever() {
            pass(signal, before);
            before += usize::from(signal != SIGHUP);
        }
    };
    let thread = std::thread::Builder::new().name("weft-signals".into());
    thread.spawn(listen).map(drop).map_err(failed)
}

/// Receives every SIGTERM, SIGINT and SIGHUP, for a command that ends on the first of them. The
/// second one ends the process at once.
///
/// # Errors
/// As [`on_signals`].
pub fn ending_signals() -> Result<mpsc::UnboundedReceiver<i32>, Failure> {
    let (signals, inbox) = mpsc::unbounded();
    on_signals(move |signal, before| {
        if before > 0 {
            log_line("second signal: ending at once");
            std::process::exit(1);
        }
        let _ = signals.unbounded_send(signal);
    })?;
    Ok(inbox)
}

/// The wall clock, in seconds since 1970.
pub fn unix_s() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

/// Random bytes from the kernel.
///
/// # Errors
/// If `/dev/urandom` cannot be read.
pub fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|e| Failure::new(format!("/dev/urandom: {e}")))?;
    Ok(bytes)
}
