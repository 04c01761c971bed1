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
    let (array, watch) = args.watched()?;
    let mut before: Option<(Snapshot, Instant)> = None;
    loop {
        // One connection per refresh: between two it would only take up a place.
        let mut client = Client::connect(dir).map_err(|failure| tell_dead(failure, dir))?;
        let mut snapshot = client.snapshot(array)?;
        drop(client);
        snapshot.dead_devices = dead_devices(dir, &snapshot.arrays);
        for served in snapshot.arrays.iter_mut().filter(|served| served.attached) {
            if let Some(found) = Attachment::of(dir, &served.status.name, served.ublk()) {
                served.block_device = Some(BlockDevice {
                    path: found.device(),
                    size_bytes: found.size_bytes(),
                    user: found.user(),
                    via: found.via(),
                    link: found.link(),
                });
            }
        }
        if let Some(wanted) = array {
            snapshot.dead_devices.retain(|device| device.array == wanted);
        }
        let looked = Instant::now();
        let details = report::status::Details {
            watched: watch.is_some(),
            io: args.io,
            before: before.as_ref().map(|(then, at)| (then, looked - *at)),
        };
        show(&snapshot, json, details)?;
        match watch {
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
    let attached = Attachment::all_fuse(dir).into_iter().chain(Attachment::all_nbd(dir));
    let attached = attached.filter(|attachment| !lives(&attachment.name));
    let dead = attached.chain(Attachment::orphans()).map(|attachment| DeadDevice {
        via: attachment.via(),
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
    if details.watched && io::stdout().is_terminal() {
        let size = rustix::termios::tcgetwinsize(io::stdout());
        let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));
        out!("\x1b[H\x1b[J{}", cut_to(&text, rows.into(), columns.into()));
    } else {
        out!("{text}");
    }
    Answer.flush().map_err(|e| Failure::new(e.to_string()))?;
    Ok(())
}

/// The first lines of `text` that fit a terminal, and how many more there are: the first ones
/// report problems, and must not scroll out of sight.
fn cut_to(text: &str, rows: usize, columns: usize) -> String {
    // A terminal that does not know its size reports 0.
    if rows == 0 || columns == 0 {
        return text.to_owned();
    }
    let rows_of = |line: &str| line.chars().count().max(1).div_ceil(columns);
    let needed: usize = text.lines().map(rows_of).sum();
    // The cursor stays in the row after the last.
    if needed < rows {
        return text.to_owned();
    }
    let (mut used, mut shown) = (0, String::new());
    let mut lines = text.lines();
    for line in lines.by_ref() {
        used += rows_of(line);
        if used + 2 > rows {
            let rest = 1 + lines.count();
            shown.push_str(&format!("… {rest} more lines: the terminal has {rows} rows"));
            return shown;
        }
        shown.push_str(line);
        shown.push('\n');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::cut_to;

    #[test]
    fn a_small_terminal_shows_the_first_lines() {
        let text: String = (0..20).map(|n| format!("line {n}\n")).collect();
        assert_eq!(cut_to(&text, 21, 80), text);
        assert_eq!(cut_to(&text, 0, 0), text);
        let shown = cut_to(&text, 10, 80);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 9, "{shown}");
        assert_eq!((lines[0], lines[7]), ("line 0", "line 7"));
        assert!(lines[8].starts_with("… 12 more lines"), "{shown}");
        // Long lines take several rows.
        let wide = format!("{}\nshort\nlast\n", "x".repeat(170));
        assert!(cut_to(&wide, 5, 80).contains("… 2 more lines"), "{}", cut_to(&wide, 5, 80));
        assert_eq!(cut_to(&wide, 6, 80), wide);
    }
}
