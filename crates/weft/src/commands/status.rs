//! `weft status`.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Instant;

use weft_array::ArrayState;
use weft_cli::failure::{ATTENTION, DATA_UNAVAILABLE, Failure, Outcome};
use weft_cli::output::{Answer, answer, out};

use crate::block::attachment::Attachment;
use crate::cli::StatusArgs;
use crate::control::client::Client;
use crate::control::protocol::{BlockDevice, DeadDevice, ServedArray, Snapshot};
use crate::report;
use crate::runtime_dir::RuntimeDir;

/// `weft status`.
pub fn status(args: &StatusArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    let mut before: Option<(Snapshot, Instant)> = None;
    loop {
        // One connection per refresh: between two it would only take up a place.
        let mut client = Client::connect(dir).map_err(|failure| tell_dead(failure, dir))?;
        let mut snapshot = client.snapshot(args.array.as_deref())?;
        drop(client);
        snapshot.dead_devices = dead_devices(dir, &snapshot.arrays);
        for served in snapshot.arrays.iter_mut().filter(|served| served.attached) {
            served.block_device =
                Attachment::of(dir, &served.status.name).map(|attachment| BlockDevice {
                    path: attachment.device(),
                    size_bytes: attachment.size_bytes(),
                    user: attachment.user(),
                });
        }
        if let Some(wanted) = &args.array {
            snapshot.dead_devices.retain(|device| device.array == *wanted);
        }
        let looked = Instant::now();
        let details = report::status::Details {
            watched: args.watch.is_some(),
            io: args.io,
            before: before.as_ref().map(|(then, at)| (then, looked - *at)),
        };
        show(&snapshot, json, details)?;
        match args.watch {
            Some(pause) => {
                before = Some((snapshot, looked));
                std::thread::sleep(pause);
            }
            None if args.check => return check(&snapshot),
            None => return Ok(()),
        }
    }
}

/// Block devices that no served array backs any more.
fn dead_devices(dir: &RuntimeDir, served: &[ServedArray]) -> Vec<DeadDevice> {
    let lives = |name: &str| served.iter().any(|array| array.status.name == name && array.attached);
    let attached = Attachment::all(dir).into_iter().filter(|attachment| !lives(&attachment.name));
    let dead = attached.map(|attachment| DeadDevice {
        device: attachment.device(),
        user: attachment.user_and_processes(),
        array: attachment.name,
    });
    dead.collect()
}

/// No daemon answers: adds what an earlier one has left.
fn tell_dead(failure: Failure, dir: &RuntimeDir) -> Failure {
    let dead = dead_devices(dir, &[]);
    if dead.is_empty() {
        return failure;
    }
    let lines: String = dead.iter().map(report::status::dead_device).collect();
    Failure { message: format!("{}\n{}", failure.message, lines.trim_end()), ..failure }
}

fn show(snapshot: &Snapshot, json: bool, details: report::status::Details<'_>) -> Outcome {
    if json {
        return answer(snapshot);
    }
    let text = report::status::snapshot(snapshot, details);
    let clear = if details.watched && io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" };
    out!("{clear}{text}");
    Answer.flush().map_err(|e| Failure::new(e.to_string()))?;
    Ok(())
}

/// The exit code for scripts.
fn check(snapshot: &Snapshot) -> Outcome {
    let names = |wanted: &dyn Fn(ArrayState, bool) -> bool| -> Vec<String> {
        let arrays = snapshot.arrays.iter().map(|array| &array.status);
        let chosen = arrays.filter(|s| wanted(s.state, s.redundancy_remaining.is_none()));
        chosen.map(|status| status.name.clone()).collect()
    };
    let mut failed = names(&|state, lost| lost || state == ArrayState::Broken);
    let not_started = snapshot.not_started.iter().filter(|array| !array.stopped);
    failed.extend(not_started.map(|array| array.name.clone()));
    let dead = snapshot.dead_devices.iter().filter(|device| device.user.is_some());
    failed.extend(dead.map(|device| format!("{} (dead block device)", device.array)));
    if !failed.is_empty() {
        return Err(
            Failure::new(format!("failed: {}", failed.join(", "))).with_code(DATA_UNAVAILABLE)
        );
    }
    if snapshot.arrays.is_empty() && snapshot.not_started.is_empty() {
        return Err(Failure::new("no array is being served")
            .with_code(ATTENTION)
            .hint("`weft start DISK` starts the array of a disk"));
    }
    let reduced = names(&|state, _| matches!(state, ArrayState::Degraded | ArrayState::Rebuilding));
    if !reduced.is_empty() {
        return Err(Failure::new(format!("redundancy is reduced: {}", reduced.join(", ")))
            .with_code(ATTENTION)
            .hint("`weft add ARRAY DISK` adds a disk to rebuild onto"));
    }
    let vanished = snapshot.arrays.iter().flat_map(|array| &array.vanished).map(|gone| &gone.disk);
    let unused = snapshot.unused.iter().filter(|disk| disk.attention).map(|disk| &disk.disk);
    let disks: Vec<&str> = vanished.chain(unused).map(String::as_str).collect();
    if !disks.is_empty() {
        return Err(Failure::new(format!("disks need attention: {}", disks.join(", ")))
            .with_code(ATTENTION)
            .hint("`weft status` shows what is wrong with each"));
    }
    Ok(())
}
