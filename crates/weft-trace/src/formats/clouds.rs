//! The block traces of two clouds, CSV without a header.
//!
//! * **Alibaba** 2020: `device_id,opcode,offset,length,timestamp`: `R` or `W`, bytes, microseconds
//!   since 1970.
//! * **Tencent** CBS 2018: `Timestamp,Offset,Size,IOType,VolumeID`: whole seconds since 1970,
//!   offset and size in sectors of 512 bytes, 0 for reads and 1 for writes. All requests of a
//!   second have the same time: only their order is known.

use crate::fault::Fault;
use crate::fields::{Columns, number, number32, scaled, trim};
use crate::formats::{LineParser, Parsed, in_sectors};
use crate::record::{Op, Record};

pub(crate) struct Alibaba;

impl LineParser for Alibaba {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, Fault> {
        let mut columns = Columns::new(line);
        let device = number32("no device", columns.next("the line has no device")?)?;
        let op = match trim(columns.next("the line has no opcode")?) {
            b"R" => Op::Read,
            b"W" => Op::Write,
            other => return Err(Fault::at("the opcode is neither R nor W", other)),
        };
        let offset = number("no offset", columns.next("the line has no offset")?)?;
        let len = number("no length", columns.next("the line has no length")?)?;
        let at = number("no timestamp", columns.next("the line has no timestamp")?)?;
        if columns.has_more() {
            return Err(Fault::new("the line has more than five columns"));
        }
        let at_ns = scaled("the timestamp is beyond all times", at, 1000)?;
        Ok(Parsed::Request(Record { at_ns, device, offset, len, op }))
    }
}

pub(crate) struct Tencent;

impl LineParser for Tencent {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, Fault> {
        let mut columns = Columns::new(line);
        let at = number("no timestamp", columns.next("the line has no timestamp")?)?;
        let first = number("no offset", columns.next("the line has no offset")?)?;
        let count = number("no size", columns.next("the line has no size")?)?;
        let op = match trim(columns.next("the line has no IO type")?) {
            b"0" => Op::Read,
            b"1" => Op::Write,
            other => return Err(Fault::at("the IO type is neither 0 nor 1", other)),
        };
        let device = number32("no volume", columns.next("the line has no volume")?)?;
        if columns.has_more() {
            return Err(Fault::new("the line has more than five columns"));
        }
        let at_ns = scaled("the timestamp is beyond all times", at, 1_000_000_000)?;
        in_sectors(at_ns, device, op, (first, count), 512).map(Parsed::Request)
    }
}
