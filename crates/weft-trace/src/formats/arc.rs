//! The traces of the ARC paper (Megiddo and Modha, FAST 2003): `P1.lis`, `OLTP.lis`, `S1.lis` …
//!
//! Four numbers a line, separated by blanks: `starting_block number_of_blocks ignore
//! request_number`, in blocks of 512 bytes. The format has neither times nor operations. Every
//! request is a read, since the authors kept only reads, and all have the same time: only their
//! order is known, and a replay is a closed loop. The request number counts the lines from 0. It is
//! checked to be a number, but may start anywhere, so that excerpts and joined files can be read.

use crate::fault::Fault;
use crate::fields::number;
use crate::formats::{LineParser, Parsed, in_sectors};
use crate::record::Op;

pub(crate) struct Arc;

impl LineParser for Arc {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, Fault> {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut word = |what: &'static str| words.next().ok_or_else(|| Fault::new(what));
        let first = number("no starting block", word("the line has no starting block")?)?;
        let count = number("no number of blocks", word("the line has no number of blocks")?)?;
        word("the line has no third column")?;
        number("no request number", word("the line has no request number")?)?;
        if words.next().is_some() {
            return Err(Fault::new("the line has more than four columns"));
        }
        in_sectors(0, 0, Op::Read, (first, count), 512).map(Parsed::Request)
    }
}
