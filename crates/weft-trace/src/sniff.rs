//! Detects the format of a trace from its start.
//!
//! Each line format tries to parse the first lines. The format that finds the most requests wins;
//! at least half of the lines must be valid, so that a damaged line at the start does not hide
//! the format. Binary formats have checks of their own.

use crate::format::Format;
use crate::formats::{Parsed, Parser};

/// Bytes examined.
pub(crate) const HEAD_BYTES: u64 = 64 << 10;

/// Lines examined.
const LINES_MAX: usize = 200;

/// The format of a trace that starts with `head`.
pub(crate) fn format_of(head: &[u8]) -> Option<Format> {
    let certain = Format::all().map(|(format, ..)| format).find(|format| format.is_sure(head));
    certain.or_else(|| {
        let mut best = (0, None);
        for (format, ..) in Format::all() {
            let requests = requests_in(format, head);
            if requests > best.0 {
                best = (requests, Some(format));
            }
        }
        best.1
    })
}

/// Requests in the first lines, if at least half of the lines are sound.
fn requests_in(format: Format, head: &[u8]) -> usize {
    let Parser::Lines(mut parser) = format.parser(head) else { return 0 };
    // The last line may be cut off.
    let whole = match head.iter().rposition(|byte| *byte == b'\n') {
        Some(end) => &head[..end],
        None => head,
    };
    let (mut requests, mut bad) = (0, 0);
    for line in whole.split(|byte| *byte == b'\n').take(LINES_MAX) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match parser.parse(line) {
            _ if line.is_empty() => {}
            Ok(Parsed::Request(_)) => requests += 1,
            Ok(Parsed::Nothing) => {}
            Err(_) => bad += 1,
        }
    }
    if bad > requests { 0 } else { requests }
}
