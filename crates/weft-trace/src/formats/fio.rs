//! fio's I/O logs, version 2 and 3 (`write_iolog`, `read_iolog`).
//!
//! The first line is `fio version N iolog`. Then, in version 2, `file add|open|close`, and `file
//! action offset length` in bytes; the action `wait` carries in place of an offset the microseconds
//! to wait since the wait before it, and everything between two waits is issued at once. (When fio
//! replays, it drops waits below 100 µs. Here they count: they were recorded.) In version 3 every
//! line starts with a timestamp, in microseconds since the start, and there are no waits.
//!
//! Actions: `read`, `write`, `trim`; `sync` and `datasync` are flushes. Files are numbered in the
//! order in which they appear.

use std::collections::HashMap;

use crate::fault::Fault;
use crate::fields::{number, scaled};
use crate::formats::{LineParser, Parsed};
use crate::record::{Op, Record};

/// Maximum number of files of one log.
const FILES_MAX: usize = 1 << 16;

/// Whether a file starts like an I/O log of fio.
pub(crate) fn is_sure(head: &[u8]) -> bool {
    head.starts_with(b"fio version 2 iolog") || head.starts_with(b"fio version 3 iolog")
}

#[derive(Default)]
pub(crate) struct Fio {
    version: Version,
    /// The time of version 2: the sum of its waits.
    now_us: u64,
    files: HashMap<Box<[u8]>, u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Version {
    #[default]
    Unknown,
    Two,
    Three,
}

impl Fio {
    fn file(&mut self, name: &[u8]) -> Result<u32, Fault> {
        if let Some(number) = self.files.get(name) {
            return Ok(*number);
        }
        let number = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        if self.files.len() >= FILES_MAX {
            return Err(Fault::at("the log has too many files", name));
        }
        self.files.insert(name.into(), number);
        Ok(number)
    }
}

impl LineParser for Fio {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, Fault> {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut word = |what: &'static str| words.next().ok_or_else(|| Fault::new(what));
        if line.starts_with(b"fio version ") {
            self.version = match line {
                b"fio version 2 iolog" => Version::Two,
                b"fio version 3 iolog" => Version::Three,
                _ => return Err(Fault::at("the version of the log is neither 2 nor 3", line)),
            };
            return Ok(Parsed::Nothing);
        }
        let mut at_us = self.now_us;
        match self.version {
            Version::Unknown => return Err(Fault::new("the log does not start with its version")),
            Version::Two => {}
            Version::Three => at_us = number("no timestamp", word("the line has no timestamp")?)?,
        }
        let file = word("the line has no file")?;
        let action = word("the line has no action")?;
        let op = match action {
            b"read" => Op::Read,
            b"write" => Op::Write,
            b"trim" => Op::Trim,
            b"sync" | b"datasync" => Op::Flush,
            b"add" | b"open" | b"close" => {
                self.file(file)?;
                return Ok(Parsed::Nothing);
            }
            b"wait" if self.version == Version::Two => {
                let wait = number("no time to wait", word("the line has no time to wait")?)?;
                let now = self.now_us.checked_add(wait);
                self.now_us = now.ok_or_else(|| Fault::new("the time is beyond all times"))?;
                return Ok(Parsed::Nothing);
            }
            other => return Err(Fault::at("the action is not known", other)),
        };
        let (mut offset, mut len) = (0, 0);
        if op != Op::Flush {
            offset = number("no offset", word("the line has no offset")?)?;
            len = number("no length", word("the line has no length")?)?;
        }
        let at_ns = scaled("the time is beyond all times", at_us, 1000)?;
        Ok(Parsed::Request(Record { at_ns, device: self.file(file)?, offset, len, op }))
    }
}
