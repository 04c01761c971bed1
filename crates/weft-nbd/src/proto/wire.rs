//! Numbers and structures as they stand on the wire: big-endian, no padding.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// "NBDMAGIC": the first bytes of every server.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT": newstyle, and the head of every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The second magic of an oldstyle server.
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Head of every option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Head of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Head of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Head of a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Handshake flag: fixed newstyle.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag: no 124 zero bytes after `EXPORT_NAME`.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Option: choose an export, the old way.
pub const OPT_EXPORT_NAME: u32 = 1;
/// Option: give up.
pub const OPT_ABORT: u32 = 2;
/// Option: list the exports.
pub const OPT_LIST: u32 = 3;
/// Option: go on under TLS.
pub const OPT_STARTTLS: u32 = 5;
/// Option: describe an export.
pub const OPT_INFO: u32 = 6;
/// Option: choose an export.
pub const OPT_GO: u32 = 7;
/// Option: structured replies.
pub const OPT_STRUCTURED_REPLY: u32 = 8;
/// Option: list metadata contexts.
pub const OPT_LIST_META_CONTEXT: u32 = 9;
/// Option: choose metadata contexts.
pub const OPT_SET_META_CONTEXT: u32 = 10;

/// Option reply: done.
pub const REP_ACK: u32 = 1;
/// Option reply: an export of a list.
pub const REP_SERVER: u32 = 2;
/// Option reply: an information about an export.
pub const REP_INFO: u32 = 3;
/// Option reply: a metadata context.
pub const REP_META_CONTEXT: u32 = 4;
/// Set in every option reply that is an error.
pub const REP_ERROR: u32 = 1 << 31;
/// Option reply: the option is not known.
pub const REP_ERR_UNSUP: u32 = REP_ERROR | 1;
/// Option reply: forbidden by the server's policy.
pub const REP_ERR_POLICY: u32 = REP_ERROR | 2;
/// Option reply: malformed.
pub const REP_ERR_INVALID: u32 = REP_ERROR | 3;
/// Option reply: not on this platform.
pub const REP_ERR_PLATFORM: u32 = REP_ERROR | 4;
/// Option reply: only under TLS.
pub const REP_ERR_TLS_REQD: u32 = REP_ERROR | 5;
/// Option reply: no such export.
pub const REP_ERR_UNKNOWN: u32 = REP_ERROR | 6;
/// Option reply: the server is going down.
pub const REP_ERR_SHUTDOWN: u32 = REP_ERROR | 7;
/// Option reply: the client must honour block sizes.
pub const REP_ERR_BLOCK_SIZE_REQD: u32 = REP_ERROR | 8;
/// Option reply: too large.
pub const REP_ERR_TOO_BIG: u32 = REP_ERROR | 9;

/// Information: size and flags.
pub const INFO_EXPORT: u16 = 0;
/// Information: canonical name.
pub const INFO_NAME: u16 = 1;
/// Information: description.
pub const INFO_DESCRIPTION: u16 = 2;
/// Information: block sizes.
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Export flag: the other flags have a meaning.
pub const EXPORT_HAS_FLAGS: u16 = 1 << 0;
/// Export flag: no writes.
pub const EXPORT_READ_ONLY: u16 = 1 << 1;
/// Export flag: `FLUSH` works.
pub const EXPORT_SEND_FLUSH: u16 = 1 << 2;
/// Export flag: FUA works.
pub const EXPORT_SEND_FUA: u16 = 1 << 3;
/// Export flag: `TRIM` works.
pub const EXPORT_SEND_TRIM: u16 = 1 << 5;
/// Export flag: `WRITE_ZEROES` works.
pub const EXPORT_SEND_WRITE_ZEROES: u16 = 1 << 6;
/// Export flag: the DF flag of `READ` works.
pub const EXPORT_SEND_DF: u16 = 1 << 7;
/// Export flag: several connections see one another's writes, and a flush covers all.
pub const EXPORT_CAN_MULTI_CONN: u16 = 1 << 8;
/// Export flag: the `FAST_ZERO` flag works.
pub const EXPORT_SEND_FAST_ZERO: u16 = 1 << 11;

/// Command: read.
pub const CMD_READ: u16 = 0;
/// Command: write.
pub const CMD_WRITE: u16 = 1;
/// Command: disconnect.
pub const CMD_DISC: u16 = 2;
/// Command: flush.
pub const CMD_FLUSH: u16 = 3;
/// Command: trim.
pub const CMD_TRIM: u16 = 4;
/// Command: write zeroes.
pub const CMD_WRITE_ZEROES: u16 = 6;
/// Command: block status.
pub const CMD_BLOCK_STATUS: u16 = 7;

/// Command flag: durable when answered.
pub const CMD_FLAG_FUA: u16 = 1 << 0;
/// Command flag: write zeroes without deallocating.
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
/// Command flag: answer a read with one chunk.
pub const CMD_FLAG_DF: u16 = 1 << 2;
/// Command flag: one extent suffices.
pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
/// Command flag: fail rather than write zeroes slowly.
pub const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

/// Chunk flag: the last of its reply.
pub const CHUNK_DONE: u16 = 1 << 0;
/// Chunk: nothing, success.
pub const CHUNK_NONE: u16 = 0;
/// Chunk: data at an offset.
pub const CHUNK_OFFSET_DATA: u16 = 1;
/// Chunk: zeros at an offset.
pub const CHUNK_OFFSET_HOLE: u16 = 2;
/// Chunk: extents.
pub const CHUNK_BLOCK_STATUS: u16 = 5;
/// Set in every chunk that is an error.
pub const CHUNK_ERROR_BIT: u16 = 1 << 15;
/// Chunk: error.
pub const CHUNK_ERROR: u16 = CHUNK_ERROR_BIT | 1;
/// Chunk: error at an offset.
pub const CHUNK_ERROR_OFFSET: u16 = CHUNK_ERROR_BIT | 2;

/// The one metadata context that is served.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Its number on a connection.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// Extent flag of `base:allocation`: not allocated.
pub const STATE_HOLE: u32 = 1 << 0;
/// Extent flag of `base:allocation`: reads as zeros.
pub const STATE_ZERO: u32 = 1 << 1;

/// What a newstyle server sends first.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Greeting {
    /// [`INIT_MAGIC`].
    pub init_magic: U64,
    /// [`OPTION_MAGIC`].
    pub option_magic: U64,
    /// Handshake flags.
    pub flags: U16,
}

/// Head of an option.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OptionHead {
    /// [`OPTION_MAGIC`].
    pub magic: U64,
    /// Which.
    pub option: U32,
    /// Bytes that follow.
    pub len: U32,
}

/// Head of an option reply.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OptionReplyHead {
    /// [`OPTION_REPLY_MAGIC`].
    pub magic: U64,
    /// The option that is answered.
    pub option: U32,
    /// Kind of reply.
    pub kind: U32,
    /// Bytes that follow.
    pub len: U32,
}

/// Size and flags: [`INFO_EXPORT`] without its type, and the reply to `EXPORT_NAME`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExportHead {
    /// Size in bytes.
    pub size: U64,
    /// Export flags.
    pub flags: U16,
}

/// [`INFO_BLOCK_SIZE`] without its type.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BlockSizeInfo {
    /// Smallest, in bytes.
    pub min: U32,
    /// Best, in bytes.
    pub preferred: U32,
    /// Largest payload, in bytes.
    pub max: U32,
}

/// A request; the payload of a write follows.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RequestHead {
    /// [`REQUEST_MAGIC`].
    pub magic: U32,
    /// Command flags.
    pub flags: U16,
    /// Command.
    pub command: U16,
    /// Comes back in the reply.
    pub cookie: U64,
    /// Byte offset.
    pub offset: U64,
    /// Length in bytes.
    pub len: U32,
}

/// A simple reply; a successful read's data follows.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SimpleReply {
    /// [`SIMPLE_REPLY_MAGIC`].
    pub magic: U32,
    /// 0, or an error number.
    pub error: U32,
    /// The request's.
    pub cookie: U64,
}

/// Head of a chunk of a structured reply.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChunkHead {
    /// [`CHUNK_MAGIC`].
    pub magic: U32,
    /// Chunk flags.
    pub flags: U16,
    /// Kind of chunk.
    pub kind: U16,
    /// The request's.
    pub cookie: U64,
    /// Bytes that follow.
    pub len: U32,
}

/// Bytes of a [`RequestHead`].
pub const REQUEST_BYTES: usize = size_of::<RequestHead>();
/// Bytes of a [`SimpleReply`].
pub const SIMPLE_REPLY_BYTES: usize = size_of::<SimpleReply>();
/// Bytes of a [`ChunkHead`].
pub const CHUNK_HEAD_BYTES: usize = size_of::<ChunkHead>();

const _: () = assert!(size_of::<Greeting>() == 18);
const _: () = assert!(size_of::<OptionHead>() == 16);
const _: () = assert!(size_of::<OptionReplyHead>() == 20);
const _: () = assert!(size_of::<ExportHead>() == 10);
const _: () = assert!(REQUEST_BYTES == 28);
const _: () = assert!(SIMPLE_REPLY_BYTES == 16);
const _: () = assert!(CHUNK_HEAD_BYTES == 20);
