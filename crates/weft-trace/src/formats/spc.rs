//! The format of the Storage Performance Council's traces: `ASU,LBA,size,opcode,timestamp[,…]`.
//!
//! The application storage unit (ASU) counts from 0, and each has an address space of its own. The
//! address is in blocks of 512 bytes, the size in bytes (any number; 0 is legal), the opcode `r` or
//! `w` in either case, the time in seconds. Blanks may follow a comma; a line may have further
//! columns, which are ignored. Source: SPC, *Trace File Format Specification*, revision
//! 1.0.1.

use crate::fault::Fault;
use crate::fields::{Columns, decimal, number, number32, trim};
use crate::formats::{LineParser, Parsed};
use crate::record::{Op, Record};

const BLOCK_BYTES: u64 = 512;

pub(crate) struct Spc;

impl LineParser for Spc {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, Fault> {
        let mut columns = Columns::new(line);
        let device = number32("no ASU", columns.next("the line has no ASU")?)?;
        let block = number("no LBA", columns.next("the line has no LBA")?)?;
        let len = number("no size", columns.next("the line has no size")?)?;
        let op = match trim(columns.next("the line has no opcode")?) {
            b"r" | b"R" => Op::Read,
            b"w" | b"W" => Op::Write,
            other => return Err(Fault::at("the opcode is neither r nor w", other)),
        };
        let at = columns.next("the line has no timestamp")?;
        let at_ns = decimal("no timestamp in seconds", at, 1_000_000_000)?;
        let offset = block.checked_mul(BLOCK_BYTES);
        let offset = offset.ok_or_else(|| Fault::new("the address is beyond 2^64 bytes"))?;
        Ok(Parsed::Request(Record { at_ns, device, offset, len, op }))
    }
}
