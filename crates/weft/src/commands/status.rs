//! `weft status`.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use weft_array::ArrayState;

use crate::cli::StatusArgs;
use crate::control::client::Client;
use crate::control::protocol::Snapshot;
use crate::failure::{ATTENTION, DATA_UNAVAILABLE, Failure, Outcome};
use crate::report;
use crate::runtime_dir::RuntimeDir;

/// `weft status`.
pub fn status(args: &StatusArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    let pause = match args.watch {
        Some(seconds) => Some(Duration::try_from_secs_f64(seconds).map_err(|e| {
            Failure::usage(format!("--watch {seconds}: {e}")).hint("write seconds, such as 0.5")
        })?),
        None => None,
    };
    loop {
        // A connection for each look: between two of them it would only take up a place.
        let mut client = Client::connect(dir)?;
        let snapshot = client.snapshot(args.array.as_deref())?;
        drop(client);
        show(&snapshot, json, pause.is_some())?;
        match pause {
            Some(pause) => std::thread::sleep(pause.max(Duration::from_millis(50))),
            None if args.check => return check(&snapshot),
            None => return Ok(()),
        }
    }
}

fn show(snapshot: &Snapshot, json: bool, again: bool) -> Outcome {
    let text = if json {
        let text = if again {
            serde_json::to_string(snapshot)
        } else {
            serde_json::to_string_pretty(snapshot)
        };
        text.map_err(|e| Failure::new(e.to_string()))? + "\n"
    } else {
        report::status::snapshot(snapshot, again)
    };
    let mut out = std::io::stdout().lock();
    let clear = if again && !json && out.is_terminal() { "\x1b[H\x1b[J" } else { "" };
    // A reader that has seen enough (`head`) is no failure.
    if write!(out, "{clear}{text}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
    Ok(())
}

/// The verdict for scripts.
fn check(snapshot: &Snapshot) -> Outcome {
    let names = |wanted: &dyn Fn(ArrayState, bool) -> bool| -> Vec<String> {
        let arrays = snapshot.arrays.iter().map(|array| &array.status);
        let chosen = arrays.filter(|s| wanted(s.state, s.redundancy_remaining.is_none()));
        chosen.map(|status| status.name.clone()).collect()
    };
    let mut failed = names(&|state, lost| lost || state == ArrayState::Broken);
    failed.extend(snapshot.not_started.iter().map(|array| array.name.clone()));
    if !failed.is_empty() {
        return Err(
            Failure::new(format!("failed: {}", failed.join(", "))).with_code(DATA_UNAVAILABLE)
        );
    }
    let reduced = names(&|state, _| matches!(state, ArrayState::Degraded | ArrayState::Rebuilding));
    if !reduced.is_empty() {
        return Err(Failure::new(format!("redundancy is reduced: {}", reduced.join(", ")))
            .with_code(ATTENTION)
            .hint("`weft add ARRAY DISK` gives an array a disk to rebuild on"));
    }
    Ok(())
}
