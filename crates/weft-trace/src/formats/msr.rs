//! MSR Cambridge: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
//!
//! The time is a Windows file time: units of 100 ns since 1601. Offset and size are in bytes, the
//! type is `Read` or `Write`, the response time is in units of 100 ns and not used. A file usually
//! holds one volume of one host; disks of further hosts in the same file are numbered on by 256
//! each, in the order in which the hosts appear.

use crate::fault::Fault;
use crate::fields::{Columns, number, number32, scaled, trim};
use crate::formats::{LineParser, Parsed};
use crate::record::{Op, Record};

/// Maximum number of hosts in one file.
const HOSTS_MAX: usize = 4096;

/// Numbers kept for the disks of one host.
const DISKS_OF_HOST: u32 = 256;

#[derive(Default)]
pub(crate) struct Msr {
    hosts: Vec<Box<[u8]>>,
}

impl Msr {
    fn device(&mut self, host: &[u8], disk: u32) -> Option<u32> {
        let known = self.hosts.iter().position(|known| **known == *host);
        let index = known.or_else(|| {
            (self.hosts.len() < HOSTS_MAX).then(|| {
                self.hosts.push(host.into());
                self.hosts.len() - 1
            })
        })?;
        let disk = Some(disk).filter(|disk| *disk < DISKS_OF_HOST)?;
        Some(u32::try_from(index).ok()? * DISKS_OF_HOST + disk)
    }
}

impl LineParser for Msr {
    fn parse(&mut self, line: &[u8]) -> Result<Parsed, Fault> {
        let mut columns = Columns::new(line);
        let at = columns.next("the line has no timestamp")?;
        let host = columns.next("the line has no host name")?;
        let disk = columns.next("the line has no disk number")?;
        let kind = trim(columns.next("the line has no type")?);
        let op = if kind.eq_ignore_ascii_case(b"Read") {
            Op::Read
        } else if kind.eq_ignore_ascii_case(b"Write") {
            Op::Write
        } else if at == b"Timestamp" {
            // Some copies start with the names of the columns.
            return Ok(Parsed::Nothing);
        } else {
            return Err(Fault::at("the type is neither Read nor Write", kind));
        };
        let at_ns = scaled("the timestamp is beyond all times", number("no timestamp", at)?, 100)?;
        let offset = number("no offset", columns.next("the line has no offset")?)?;
        let len = number("no size", columns.next("the line has no size")?)?;
        let number = number32("no disk number", disk)?;
        let device = self.device(trim(host), number);
        let device = device.ok_or_else(|| Fault::at("no disk number", disk))?;
        Ok(Parsed::Request(Record { at_ns, device, offset, len, op }))
    }
}
