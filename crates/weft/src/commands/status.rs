//! `weft status`.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Instant;

use weft_cli::failure::{Failure, Outcome};
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
            None if args.check => return report::verdict::check(&snapshot),
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
