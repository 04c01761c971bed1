//! Splits a text into lines, without copying lines that are whole in the buffer.

use std::io::{self, BufRead};

use crate::input::fill;

/// A line longer than this is damaged; it is not kept.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

/// A step through a text.
pub(crate) enum Line<'a> {
    /// A line, without its end.
    Text(&'a [u8]),
    /// A line of more than [`LINE_BYTES_MAX`].
    TooLong,
    /// The end of the text.
    End,
}

pub(crate) struct Lines {
    source: Box<dyn BufRead>,
    /// The start of a line whose rest is not in the buffer yet.
    carry: Vec<u8>,
    number: u64,
}

impl Lines {
    pub(crate) fn new(source: Box<dyn BufRead>) -> Self {
        Self { source, carry: Vec::new(), number: 0 }
    }

    /// The number of the line that was read last, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Passes the next line to `f`.
    pub(crate) fn next<T>(&mut self, f: impl FnOnce(Line<'_>) -> T) -> io::Result<T> {
        self.carry.clear();
        self.number += 1;
        let mut too_long = false;
        loop {
            let buffered = fill(&mut *self.source)?;
            if buffered.is_empty() {
                return Ok(match (too_long, self.carry.is_empty()) {
                    (true, _) => f(Line::TooLong),
                    (false, true) => f(Line::End),
                    (false, false) => f(Line::Text(strip(&self.carry))),
                });
            }
            let Some(end) = memchr::memchr(b'\n', buffered) else {
                let len = buffered.len();
                too_long |= self.carry.len() + len > LINE_BYTES_MAX;
                if too_long {
                    self.carry.clear();
                } else {
                    self.carry.extend_from_slice(buffered);
                }
                self.source.consume(len);
                continue;
            };
            too_long |= self.carry.len() + end > LINE_BYTES_MAX;
            let result = if too_long {
                f(Line::TooLong)
            } else if self.carry.is_empty() {
                f(Line::Text(strip(&buffered[..end])))
            } else {
                self.carry.extend_from_slice(&buffered[..end]);
                f(Line::Text(strip(&self.carry)))
            };
            self.source.consume(end + 1);
            return Ok(result);
        }
    }
}

/// Removes the carriage return of a text from Windows.
fn strip(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}
