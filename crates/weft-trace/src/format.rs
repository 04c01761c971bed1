//! The trace formats, by name. How each is read is in `formats`.

use std::fmt;

use serde::Serialize;

/// A trace format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// weft's own: `t_us,dev,offset,size,op`.
    Weft,
    /// Storage Performance Council: `ASU,LBA,size,opcode,timestamp`.
    Spc,
    /// MSR Cambridge: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
    Msr,
    /// Microsoft's production servers: disk events of Event Tracing for Windows.
    Etw,
    /// HP Labs SRT.
    Srt,
    /// CloudPhysics vscsi, version 1 and 2.
    Vscsi,
    /// Alibaba 2020.
    Alibaba,
    /// Tencent CBS 2018.
    Tencent,
    /// fio's I/O log, version 2 and 3.
    Fio,
    /// The output of blkparse.
    Blkparse,
    /// The ARC paper's: `starting_block number_of_blocks ignore request_number`.
    Arc,
}

/// Name and description of each format.
const TABLE: &[(Format, &str, &str)] = &[
    (Format::Weft, "weft", "weft's own CSV: t_us,dev,offset,size,op"),
    (Format::Spc, "spc", "Storage Performance Council, UMass (.spc)"),
    (Format::Msr, "msr", "MSR Cambridge CSV"),
    (Format::Etw, "etw", "Microsoft production servers: disk events of ETW, CSV"),
    (Format::Srt, "srt", "HP Labs SRT (hplajw, snake, cello), binary"),
    (Format::Vscsi, "vscsi", "CloudPhysics vscsi 1 and 2, binary"),
    (Format::Alibaba, "alibaba", "Alibaba block traces 2020, CSV"),
    (Format::Tencent, "tencent", "Tencent CBS 2018, CSV"),
    (Format::Fio, "fio", "fio I/O log, version 2 and 3"),
    (Format::Blkparse, "blkparse", "output of blkparse for a Linux block trace"),
    (Format::Arc, "arc", "the ARC paper's (.lis): reads, no times"),
];

impl Format {
    /// Every format with its name and a line about it.
    pub fn all() -> impl Iterator<Item = (Self, &'static str, &'static str)> {
        TABLE.iter().copied()
    }

    /// The names of all formats, for messages.
    pub fn known() -> String {
        let names: Vec<&str> = Self::all().map(|(_, name, _)| name).collect();
        names.join(", ")
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::all().find(|(format, ..)| *format == self).map_or("?", |(_, name, _)| name)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
