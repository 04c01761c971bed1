//! A request: parsed from 28 bytes, then judged against what the export allows.

use zerocopy::FromBytes;

use super::wire::*;
use super::{Errno, Violation};

/// A request as it came, not yet judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Command flags.
    pub flags: u16,
    /// Command number.
    pub command: u16,
    /// Comes back in the reply.
    pub cookie: u64,
    /// Byte offset.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// A request that makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Read; `df` asks for one chunk.
    Read {
        /// Do not fragment.
        df: bool,
    },
    /// Write the payload.
    Write {
        /// Durable when answered.
        fua: bool,
    },
    /// The client leaves.
    Disconnect,
    /// Make all answered writes durable.
    Flush,
    /// The range is not needed.
    Trim {
        /// Durable when answered.
        fua: bool,
    },
    /// The range reads as zeros.
    WriteZeroes {
        /// Durable when answered.
        fua: bool,
        /// May deallocate.
        may_trim: bool,
        /// Fail rather than be slow.
        fast: bool,
    },
    /// Which parts are allocated.
    BlockStatus {
        /// One extent suffices.
        one: bool,
    },
}

/// What a session allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Size of the export, in bytes.
    pub size_bytes: u64,
    /// Offsets and lengths are multiples of it; a power of two.
    pub block_min: u32,
    /// Largest payload, in bytes.
    pub payload_max: u32,
    /// No writes.
    pub read_only: bool,
    /// Structured replies were agreed on.
    pub structured: bool,
    /// `base:allocation` was chosen.
    pub base_allocation: bool,
}

impl Request {
    /// The request at the front of `input`, which must hold [`REQUEST_BYTES`].
    ///
    /// # Errors
    /// The magic is wrong or bytes are missing: the connection must be closed.
    pub fn parse(input: &[u8]) -> Result<Self, Violation> {
        let (head, _) = RequestHead::ref_from_prefix(input)
            .map_err(|_| Violation::Malformed("request: it is cut off"))?;
        if head.magic.get() != REQUEST_MAGIC {
            let found = head.magic.get().into();
            return Err(Violation::Magic { place: "a request", found });
        }
        Ok(Self {
            flags: head.flags.get(),
            command: head.command.get(),
            cookie: head.cookie.get(),
            offset: head.offset.get(),
            len: head.len.get(),
        })
    }

    /// Bytes that follow the request's head on the wire.
    pub fn payload_len(&self) -> u32 {
        if self.command == CMD_WRITE { self.len } else { 0 }
    }

    /// Judges the request.
    ///
    /// # Errors
    /// What to answer, with a reason for people.
    pub fn check(&self, limits: &Limits) -> Result<Command, (Errno, &'static str)> {
        let has = |flag| self.flags & flag != 0;
        let fua = has(CMD_FLAG_FUA);
        let (command, flags_known) = match self.command {
            CMD_READ => (Command::Read { df: has(CMD_FLAG_DF) }, CMD_FLAG_DF),
            CMD_WRITE => (Command::Write { fua }, 0),
            CMD_DISC => return Ok(Command::Disconnect),
            CMD_FLUSH => (Command::Flush, 0),
            CMD_TRIM => (Command::Trim { fua }, 0),
            CMD_WRITE_ZEROES => {
                let (may_trim, fast) = (!has(CMD_FLAG_NO_HOLE), has(CMD_FLAG_FAST_ZERO));
                let known = CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO;
                (Command::WriteZeroes { fua, may_trim, fast }, known)
            }
            CMD_BLOCK_STATUS => {
                (Command::BlockStatus { one: has(CMD_FLAG_REQ_ONE) }, CMD_FLAG_REQ_ONE)
            }
            _ => return Err((Errno::Invalid, "unknown command")),
        };
        // FUA is accepted with every command, as the protocol demands.
        if self.flags & !(flags_known | CMD_FLAG_FUA) != 0 {
            return Err((Errno::Invalid, "flags that do not go with the command"));
        }
        self.check_kind(command, limits)?;
        self.check_range(command, limits)?;
        Ok(command)
    }

    fn check_kind(&self, command: Command, limits: &Limits) -> Result<(), (Errno, &'static str)> {
        match command {
            Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. }
                if limits.read_only =>
            {
                Err((Errno::Perm, "the export is read-only"))
            }
            Command::Read { df: true } if !limits.structured => {
                Err((Errno::Invalid, "DF without structured replies"))
            }
            Command::Flush if self.offset != 0 || self.len != 0 => {
                Err((Errno::Invalid, "a flush has no range"))
            }
            Command::BlockStatus { .. } if !limits.base_allocation => {
                Err((Errno::Invalid, "no metadata context was chosen"))
            }
            Command::BlockStatus { .. } if self.len == 0 => {
                Err((Errno::Invalid, "block status of nothing"))
            }
            _ => Ok(()),
        }
    }

    fn check_range(&self, command: Command, limits: &Limits) -> Result<(), (Errno, &'static str)> {
        let carries_data = matches!(command, Command::Read { .. } | Command::Write { .. });
        if carries_data && self.len > limits.payload_max {
            return Err((Errno::Invalid, "more than the largest payload"));
        }
        let mask = u64::from(limits.block_min) - 1;
        if (self.offset | u64::from(self.len)) & mask != 0 {
            return Err((Errno::Invalid, "not aligned to the minimum block size"));
        }
        let end = self.offset.checked_add(self.len.into());
        if end.is_some_and(|end| end <= limits.size_bytes) {
            return Ok(());
        }
        match command {
            Command::Write { .. } | Command::WriteZeroes { .. } => {
                Err((Errno::NoSpace, "beyond the end of the export"))
            }
            _ => Err((Errno::Invalid, "beyond the end of the export")),
        }
    }
}
