//! The server's side of the handshake, as a state machine over received bytes.
//!
//! It waits for the client's flags, then takes options one after the other, and answers each before
//! it parses the next. `GO` or `EXPORT_NAME` ends it with a [`Session`], `ABORT` with a close. It
//! skips and refuses an option that is too large.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::wire::*;
use super::{
    BlockSizes, NAME_BYTES_MAX, OPTION_BYTES_MAX, OPTION_BYTES_SKIPPED_MAX, OPTIONS_MAX, Violation,
    clip,
};

/// What a client may learn of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its name.
    pub name: String,
    /// A sentence for people.
    pub description: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Block sizes.
    pub block: BlockSizes,
    /// Export flags (`EXPORT_…`).
    pub flags: u16,
}

/// The exports on offer, and which one the empty name means.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalogue {
    /// In the order in which they are listed.
    pub exports: Vec<ExportInfo>,
    /// Index of the one that the empty name means.
    pub default: Option<usize>,
    /// Whether there may be exports that are not listed: [`Step::Resolve`] asks for them.
    pub resolves: bool,
    /// Names that were asked for in vain, and what the client is told.
    pub refusals: Vec<(String, String)>,
}

impl Catalogue {
    /// The index of an export.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.exports
            .iter()
            .position(|export| export.name == name)
            .or_else(|| self.default.filter(|_| name.is_empty()))
    }

    fn refusal(&self, name: &str) -> Option<&str> {
        let refusal = self.refusals.iter().find(|(refused, _)| refused == name);
        refusal.map(|(_, text)| text.as_str())
    }

    fn is_unresolved(&self, name: &str) -> bool {
        self.resolves && self.find(name).is_none() && self.refusal(name).is_none()
    }
}

/// What client and server agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Index in the catalogue.
    pub export: usize,
    /// Replies to reads are structured.
    pub structured: bool,
    /// `BLOCK_STATUS` of `base:allocation` may be asked.
    pub base_allocation: bool,
}

/// What comes after a call of [`Negotiation::step`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing more can be done without more input.
    NeedMore,
    /// One message was dealt with; there may be another in the input.
    Again,
    /// The client names an export that is not listed. The caller adds it to the catalogue, or the
    /// name to its refusals, and repeats the step with the same input.
    Resolve(String),
    /// The handshake is over; what follows in the input are requests.
    Transmission(Session),
    /// The client has ended the handshake: send the output, and close.
    Close,
}

/// The server's side of a handshake.
#[derive(Debug)]
pub struct Negotiation {
    state: State,
    fixed: bool,
    no_zeroes: bool,
    structured: bool,
    /// The export for which `base:allocation` was chosen.
    base_allocation: Option<usize>,
    options: u32,
}

#[derive(Debug, Clone, Copy)]
enum State {
    ClientFlags,
    Option,
    Skip(usize),
}

impl Negotiation {
    /// A new handshake, and what the server sends first.
    pub fn new() -> (Self, Greeting) {
        let greeting = Greeting {
            init_magic: INIT_MAGIC.into(),
            option_magic: OPTION_MAGIC.into(),
            flags: (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).into(),
        };
        let state = Self {
            state: State::ClientFlags,
            fixed: false,
            no_zeroes: false,
            structured: false,
            base_allocation: None,
            options: 0,
        };
        (state, greeting)
    }

    /// Deals with at most one message at the front of `input`; answers are appended to `out`.
    /// Returns how many bytes of the input it consumed.
    ///
    /// # Errors
    /// The connection must be closed.
    pub fn step(
        &mut self,
        input: &[u8],
        catalogue: &Catalogue,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step), Violation> {
        match self.state {
            State::ClientFlags => self.client_flags(input),
            State::Skip(left) => {
                let skipped = left.min(input.len());
                self.state =
                    if skipped == left { State::Option } else { State::Skip(left - skipped) };
                Ok((skipped, if skipped == 0 { Step::NeedMore } else { Step::Again }))
            }
            State::Option => self.option(input, catalogue, out),
        }
    }

    fn client_flags(&mut self, input: &[u8]) -> Result<(usize, Step), Violation> {
        let Ok((flags, _)) = U32::read_from_prefix(input) else {
            return Ok((0, Step::NeedMore));
        };
        let flags = flags.get();
        let known = u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        if flags & !known != 0 {
            return Err(Violation::Flags(flags));
        }
        self.fixed = flags & u32::from(FLAG_FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
        self.state = State::Option;
        Ok((4, Step::Again))
    }

    fn option(
        &mut self,
        input: &[u8],
        catalogue: &Catalogue,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step), Violation> {
        let Ok((head, rest)) = OptionHead::ref_from_prefix(input) else {
            return Ok((0, Step::NeedMore));
        };
        if head.magic.get() != OPTION_MAGIC {
            return Err(Violation::Magic { place: "an option", found: head.magic.get() });
        }
        let (option, len) = (head.option.get(), head.len.get());
        if len > OPTION_BYTES_SKIPPED_MAX {
            let max = OPTION_BYTES_SKIPPED_MAX.into();
            return Err(Violation::TooLong { place: "an option", len: len.into(), max });
        }
        if !self.fixed && option != OPT_EXPORT_NAME {
            return Err(Violation::OptionWithoutFixed(option));
        }
        let data_len = len as usize;
        if len > OPTION_BYTES_MAX {
            self.count_option()?;
            put_error(out, option, REP_ERR_TOO_BIG, "the option is too long");
            self.state = State::Skip(data_len);
            return Ok((size_of::<OptionHead>(), Step::Again));
        }
        let Some(data) = rest.get(..data_len) else {
            return Ok((0, Step::NeedMore));
        };
        if let Some(name) = named(option, data).filter(|name| catalogue.is_unresolved(name)) {
            return Ok((0, Step::Resolve(name.to_owned())));
        }
        self.count_option()?;
        let step = self.answer(option, data, catalogue, out)?;
        Ok((size_of::<OptionHead>() + data_len, step))
    }

    fn count_option(&mut self) -> Result<(), Violation> {
        self.options += 1;
        if self.options > OPTIONS_MAX { Err(Violation::TooManyOptions) } else { Ok(()) }
    }

    fn answer(
        &mut self,
        option: u32,
        data: &[u8],
        catalogue: &Catalogue,
        out: &mut Vec<u8>,
    ) -> Result<Step, Violation> {
        match option {
            OPT_EXPORT_NAME => return self.export_name(data, catalogue, out),
            OPT_ABORT => {
                put(out, option, REP_ACK, &[]);
                return Ok(Step::Close);
            }
            OPT_LIST => list(data, catalogue, out),
            OPT_INFO | OPT_GO => {
                if let Some(session) = self.info(option, data, catalogue, out) {
                    return Ok(Step::Transmission(session));
                }
            }
            OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                put(out, option, REP_ACK, &[]);
            }
            OPT_STRUCTURED_REPLY => {
                put_error(out, option, REP_ERR_INVALID, "the option takes no data");
            }
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => {
                self.meta_context(option, data, catalogue, out);
            }
            OPT_STARTTLS => put_error(out, option, REP_ERR_UNSUP, "this server offers no TLS"),
            _ => put_error(out, option, REP_ERR_UNSUP, "unknown option"),
        }
        Ok(Step::Again)
    }

    fn session(&self, export: usize) -> Session {
        let base_allocation = self.structured && self.base_allocation == Some(export);
        Session { export, structured: self.structured, base_allocation }
    }

    /// The old way to choose: its reply has no header and cannot refuse.
    fn export_name(
        &self,
        data: &[u8],
        catalogue: &Catalogue,
        out: &mut Vec<u8>,
    ) -> Result<Step, Violation> {
        let name = String::from_utf8_lossy(data);
        let Some(export) = catalogue.find(&name) else {
            return Err(Violation::UnknownExport(clip(&name).to_owned()));
        };
        out.extend_from_slice(export_head(&catalogue.exports[export]).as_bytes());
        if !self.no_zeroes {
            out.resize(out.len() + 124, 0);
        }
        Ok(Step::Transmission(self.session(export)))
    }

    /// `INFO` and `GO`: describe an export; `GO` also chooses it.
    fn info(
        &self,
        option: u32,
        data: &[u8],
        catalogue: &Catalogue,
        out: &mut Vec<u8>,
    ) -> Option<Session> {
        let mut fields = Fields(data);
        let parsed = fields.string().and_then(|name| Some((name, fields.u16()?)));
        let Some((name, count)) = parsed.filter(|(_, n)| fields.0.len() == usize::from(*n) * 2)
        else {
            put_error(out, option, REP_ERR_INVALID, "malformed option");
            return None;
        };
        let Some(index) = catalogue.find(name) else {
            put_missing(out, option, name, catalogue);
            return None;
        };
        let export = &catalogue.exports[index];
        put_info(out, option, INFO_EXPORT, export_head(export).as_bytes());
        let block = BlockSizeInfo {
            min: export.block.min.into(),
            preferred: export.block.preferred.into(),
            max: export.block.max.into(),
        };
        put_info(out, option, INFO_BLOCK_SIZE, block.as_bytes());
        let (mut named, mut described) = (false, false);
        for _ in 0..count {
            match fields.u16() {
                Some(INFO_NAME) if !std::mem::replace(&mut named, true) => {
                    put_info(out, option, INFO_NAME, export.name.as_bytes());
                }
                Some(INFO_DESCRIPTION) if !std::mem::replace(&mut described, true) => {
                    put_info(out, option, INFO_DESCRIPTION, clip(&export.description).as_bytes());
                }
                _ => {}
            }
        }
        put(out, option, REP_ACK, &[]);
        (option == OPT_GO).then(|| self.session(index))
    }

    fn meta_context(&mut self, option: u32, data: &[u8], catalogue: &Catalogue, out: &mut Vec<u8>) {
        let set = option == OPT_SET_META_CONTEXT;
        if set {
            self.base_allocation = None;
        }
        if !self.structured {
            let text = "structured replies must be agreed on first";
            return put_error(out, option, REP_ERR_INVALID, text);
        }
        let Some((name, queries)) = meta_queries(data) else {
            return put_error(out, option, REP_ERR_INVALID, "malformed option");
        };
        let Some(export) = catalogue.find(name) else {
            return put_missing(out, option, name, catalogue);
        };
        let listed = |query: &&str| *query == BASE_ALLOCATION || (!set && *query == "base:");
        if queries.iter().any(listed) || (!set && queries.is_empty()) {
            // Contexts have numbers only when they are chosen.
            let id = U32::new(if set { BASE_ALLOCATION_ID } else { 0 });
            put(out, option, REP_META_CONTEXT, &[id.as_bytes(), BASE_ALLOCATION.as_bytes()]);
            if set {
                self.base_allocation = Some(export);
            }
        }
        put(out, option, REP_ACK, &[]);
    }
}

/// The export that an option names, of those options that need it.
fn named(option: u32, data: &[u8]) -> Option<&str> {
    match option {
        OPT_EXPORT_NAME => std::str::from_utf8(data).ok().filter(|name| !name.contains('\0')),
        OPT_INFO | OPT_GO | OPT_SET_META_CONTEXT => Fields(data).string(),
        _ => None,
    }
}

fn put_missing(out: &mut Vec<u8>, option: u32, name: &str, catalogue: &Catalogue) {
    match catalogue.refusal(name) {
        Some(text) => put_error(out, option, REP_ERR_POLICY, clip(text)),
        None => put_error(out, option, REP_ERR_UNKNOWN, "there is no export of this name"),
    }
}

fn list(data: &[u8], catalogue: &Catalogue, out: &mut Vec<u8>) {
    if !data.is_empty() {
        return put_error(out, OPT_LIST, REP_ERR_INVALID, "the option takes no data");
    }
    for export in &catalogue.exports {
        let len = U32::new(u32::try_from(export.name.len()).unwrap_or(0));
        let description = clip(&export.description).as_bytes();
        put(out, OPT_LIST, REP_SERVER, &[len.as_bytes(), export.name.as_bytes(), description]);
    }
    put(out, OPT_LIST, REP_ACK, &[]);
}

/// The export and the queries of a metadata option.
fn meta_queries(data: &[u8]) -> Option<(&str, Vec<&str>)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u32()?;
    // Each query has at least its length: a wrong count ends here, before any allocation.
    if u64::from(count) * 4 > fields.0.len() as u64 {
        return None;
    }
    let queries = (0..count).map(|_| fields.string()).collect::<Option<Vec<_>>>()?;
    fields.0.is_empty().then_some((name, queries))
}

fn export_head(export: &ExportInfo) -> ExportHead {
    ExportHead { size: export.size_bytes.into(), flags: export.flags.into() }
}

/// Reads fields off the front of an option's data.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn u16(&mut self) -> Option<u16> {
        let (value, rest) = U16::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value.get())
    }

    fn u32(&mut self) -> Option<u32> {
        let (value, rest) = U32::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value.get())
    }

    /// A string after its length: UTF-8, no NUL, not longer than the protocol allows.
    fn string(&mut self) -> Option<&'a str> {
        let len = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(len).filter(|_| len <= NAME_BYTES_MAX)?;
        self.0 = rest;
        std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
    }
}

fn put(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let head = OptionReplyHead {
        magic: U64::new(OPTION_REPLY_MAGIC),
        option: option.into(),
        kind: kind.into(),
        len: u32::try_from(len).expect("an option reply is made of a few bounded strings").into(),
    };
    out.extend_from_slice(head.as_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

fn put_error(out: &mut Vec<u8>, option: u32, kind: u32, text: &str) {
    put(out, option, kind, &[text.as_bytes()]);
}

fn put_info(out: &mut Vec<u8>, option: u32, info: u16, data: &[u8]) {
    put(out, option, REP_INFO, &[U16::new(info).as_bytes(), data]);
}
