//! The client's side of the handshake, as a state machine over received bytes.
//!
//! Greeting → flags → `STRUCTURED_REPLY` (may be refused) → `GO` with a request for block sizes.
//! For a server that does not know `GO`, or is not fixed newstyle, the client uses `EXPORT_NAME`.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::wire::*;
use super::{BlockSizes, NAME_BYTES_MAX, OPTION_BYTES_MAX, OPTIONS_MAX, Violation, clip};

/// The export at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Export flags (`EXPORT_…`).
    pub flags: u16,
    /// Block sizes; the protocol's defaults if the server did not send them.
    pub block: BlockSizes,
    /// Whether replies to reads are structured.
    pub structured: bool,
}

/// What comes after a call of [`ClientNegotiation::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientStep {
    /// Nothing more can be done without more input.
    NeedMore,
    /// One message was dealt with; there may be another in the input.
    Again,
    /// The handshake is over.
    Ready(Peer),
}

/// The client's side of a handshake.
#[derive(Debug)]
pub struct ClientNegotiation {
    export: String,
    state: State,
    structured: bool,
    no_zeroes: bool,
    block: Option<BlockSizes>,
    head: Option<ExportHead>,
    replies: u32,
    /// Whether structured replies are not asked for.
    is_plain: bool,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Greeting,
    Structured,
    Go,
    ExportName,
}

impl ClientNegotiation {
    /// A handshake that will ask for `export`.
    ///
    /// # Errors
    /// The name is longer than the protocol allows.
    pub fn new(export: &str) -> Result<Self, Violation> {
        let (len, max) = (export.len() as u64, NAME_BYTES_MAX as u64);
        if len > max {
            return Err(Violation::TooLong { place: "an export name", len, max });
        }
        Ok(Self {
            export: export.to_owned(),
            state: State::Greeting,
            structured: false,
            no_zeroes: false,
            block: None,
            head: None,
            replies: 0,
            is_plain: false,
        })
    }

    /// One for a client that does not know structured replies, as Linux's.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn plain(export: &str) -> Result<Self, Violation> {
        Ok(Self { is_plain: true, ..Self::new(export)? })
    }

    /// Deals with at most one message at the front of `input`; output is appended to `out`.
    /// Returns how many bytes of the input it consumed.
    ///
    /// # Errors
    /// The server refused, or broke the protocol: the connection must be closed.
    pub fn step(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, ClientStep), Violation> {
        match self.state {
            State::Greeting => self.greeting(input, out),
            State::Structured | State::Go => self.option_reply(input, out),
            State::ExportName => self.export_name_reply(input),
        }
    }

    fn greeting(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, ClientStep), Violation> {
        // Check each field as soon as it is there: a foreign server may send nothing more.
        if let Ok((magic, rest)) = U64::read_from_prefix(input) {
            if magic.get() != INIT_MAGIC {
                return Err(Violation::Magic { place: "the greeting", found: magic.get() });
            }
            match U64::read_from_prefix(rest) {
                Ok((magic, _)) if magic.get() == OLDSTYLE_MAGIC => return Err(Violation::Oldstyle),
                Ok((magic, _)) if magic.get() != OPTION_MAGIC => {
                    return Err(Violation::Magic { place: "the greeting", found: magic.get() });
                }
                _ => {}
            }
        }
        let Ok((greeting, _)) = Greeting::ref_from_prefix(input) else {
            return Ok((0, ClientStep::NeedMore));
        };
        // The server may know flags that we do not: only those both know are sent back.
        let flags = greeting.flags.get() & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        self.no_zeroes = flags & FLAG_NO_ZEROES != 0;
        out.extend_from_slice(U32::new(flags.into()).as_bytes());
        if flags & FLAG_FIXED_NEWSTYLE == 0 {
            self.ask_export_name(out);
        } else if self.is_plain {
            self.ask_go(out);
        } else {
            put_option(out, OPT_STRUCTURED_REPLY, &[]);
            self.state = State::Structured;
        }
        Ok((size_of::<Greeting>(), ClientStep::Again))
    }

    fn option_reply(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, ClientStep), Violation> {
        let Ok((head, rest)) = OptionReplyHead::ref_from_prefix(input) else {
            return Ok((0, ClientStep::NeedMore));
        };
        if head.magic.get() != OPTION_REPLY_MAGIC {
            return Err(Violation::Magic { place: "an option reply", found: head.magic.get() });
        }
        let (kind, len) = (head.kind.get(), head.len.get());
        if len > OPTION_BYTES_MAX {
            let max = OPTION_BYTES_MAX.into();
            return Err(Violation::TooLong { place: "an option reply", len: len.into(), max });
        }
        let expected = if matches!(self.state, State::Go) { OPT_GO } else { OPT_STRUCTURED_REPLY };
        if head.option.get() != expected {
            return Err(Violation::Malformed("option reply: it answers another option"));
        }
        let Some(data) = rest.get(..len as usize) else {
            return Ok((0, ClientStep::NeedMore));
        };
        self.replies += 1;
        if self.replies > OPTIONS_MAX {
            return Err(Violation::TooManyOptions);
        }
        let step = match self.state {
            State::Go => self.go_reply(kind, data, out)?,
            _ => {
                self.structured = kind == REP_ACK;
                self.ask_go(out);
                ClientStep::Again
            }
        };
        Ok((size_of::<OptionReplyHead>() + len as usize, step))
    }

    fn ask_go(&mut self, out: &mut Vec<u8>) {
        let len = U32::new(u32::try_from(self.export.len()).unwrap_or(0));
        let (count, wish) = (U16::new(1), U16::new(INFO_BLOCK_SIZE));
        let name = self.export.as_bytes();
        put_option(out, OPT_GO, &[len.as_bytes(), name, count.as_bytes(), wish.as_bytes()]);
        self.state = State::Go;
    }

    fn ask_export_name(&mut self, out: &mut Vec<u8>) {
        put_option(out, OPT_EXPORT_NAME, &[self.export.as_bytes()]);
        self.state = State::ExportName;
    }

    fn go_reply(
        &mut self,
        kind: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<ClientStep, Violation> {
        match kind {
            REP_INFO => self.info(data).map(|()| ClientStep::Again),
            REP_ACK => {
                let head = self.head.ok_or(Violation::Malformed("GO reply: no size was given"))?;
                self.ready(head).map(ClientStep::Ready)
            }
            REP_ERR_UNSUP => {
                self.ask_export_name(out);
                Ok(ClientStep::Again)
            }
            _ if kind & REP_ERROR != 0 => Err(self.refusal(kind, data)),
            _ => Err(Violation::Malformed("GO reply: unknown kind")),
        }
    }

    fn info(&mut self, data: &[u8]) -> Result<(), Violation> {
        let malformed = Violation::Malformed("information about the export");
        let Ok((info, rest)) = U16::read_from_prefix(data) else { return Err(malformed) };
        match info.get() {
            INFO_EXPORT => {
                self.head = Some(ExportHead::read_from_bytes(rest).map_err(|_| malformed)?);
            }
            INFO_BLOCK_SIZE => {
                let block = BlockSizeInfo::read_from_bytes(rest).map_err(|_| malformed)?;
                let (min, preferred) = (block.min.get(), block.preferred.get());
                let max = block.max.get();
                if !min.is_power_of_two() || min > 64 << 10 || max < min {
                    return Err(Violation::Malformed("block sizes"));
                }
                self.block = Some(BlockSizes { min, preferred, max });
            }
            // Names and descriptions were not asked for, but may come.
            _ => {}
        }
        Ok(())
    }

    fn refusal(&self, kind: u32, data: &[u8]) -> Violation {
        let what = match kind {
            REP_ERR_POLICY => "forbidden by its policy",
            REP_ERR_INVALID => "it calls the request invalid",
            REP_ERR_TLS_REQD => "it demands TLS, which is not supported here",
            REP_ERR_UNKNOWN => "it has no export of this name",
            REP_ERR_SHUTDOWN => "it is shutting down",
            REP_ERR_BLOCK_SIZE_REQD => "it demands block sizes that were not agreed on",
            _ => "no known reason",
        };
        let text = String::from_utf8_lossy(data);
        let reason =
            if text.is_empty() { what.to_owned() } else { format!("{what} ({})", clip(&text)) };
        Violation::Refused { export: self.export.clone(), reason }
    }

    fn export_name_reply(&mut self, input: &[u8]) -> Result<(usize, ClientStep), Violation> {
        let padding = if self.no_zeroes { 0 } else { 124 };
        let len = size_of::<ExportHead>() + padding;
        match ExportHead::read_from_prefix(input) {
            Ok((head, _)) if input.len() >= len => Ok((len, ClientStep::Ready(self.ready(head)?))),
            _ => Ok((0, ClientStep::NeedMore)),
        }
    }

    fn ready(&self, head: ExportHead) -> Result<Peer, Violation> {
        let (size_bytes, flags) = (head.size.get(), head.flags.get());
        if i64::try_from(size_bytes).is_err() {
            return Err(Violation::Malformed("size of the export: beyond 2^63"));
        }
        let block = self.block.unwrap_or_default();
        Ok(Peer { size_bytes, flags, block, structured: self.structured })
    }
}

fn put_option(out: &mut Vec<u8>, option: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let head = OptionHead {
        magic: OPTION_MAGIC.into(),
        option: option.into(),
        len: u32::try_from(len).expect("an option holds one bounded name").into(),
    };
    out.extend_from_slice(head.as_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}
