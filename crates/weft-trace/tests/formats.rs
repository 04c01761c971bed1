//! Every format is recognised and read as its description says, and damage is located.

use std::io::Cursor;

use weft_trace::{Format, Op, ReadOptions, ReadStats, Record, TraceError, read};

fn record(at_us: u64, device: u32, offset: u64, len: u64, op: Op) -> Record {
    Record { at_ns: at_us * 1000, device, offset, len, op }
}

#[track_caller]
fn read_all(bytes: &[u8], options: &ReadOptions) -> (Vec<Record>, ReadStats, Format) {
    let mut reader = read("t", Cursor::new(bytes.to_vec()), options).expect("a known format");
    let records: Result<Vec<_>, _> = reader.by_ref().collect();
    (records.expect("a sound trace"), reader.stats().clone(), reader.format())
}

/// The sample is recognised, and read the same when its format is named.
#[track_caller]
fn holds(format: Format, bytes: &[u8], expected: &[Record]) {
    let (records, _, found) = read_all(bytes, &ReadOptions::default());
    assert_eq!((found, &records[..]), (format, expected));
    let named = ReadOptions { format: Some(format), ..ReadOptions::default() };
    assert_eq!(read_all(bytes, &named).0, expected);
}

/// The message about the first damaged place, and how much is read when it is skipped.
#[track_caller]
fn refused(bytes: &[u8], format: Format, why: &str, rest: u64) {
    let options = ReadOptions { format: Some(format), skip_bad: false };
    let mut reader = read("t", Cursor::new(bytes.to_vec()), &options).expect("the format is named");
    let error = reader.find_map(Result::err).expect("a damaged trace");
    assert!(matches!(error, TraceError::Bad { .. }) && error.to_string().contains(why), "{error}");
    assert!(reader.next().is_none(), "a trace goes on behind an error");
    let (records, stats, _) = read_all(bytes, &ReadOptions { skip_bad: true, ..options });
    assert!(stats.bad > 0 && stats.bad_first[0].contains(why), "{stats:?}");
    assert_eq!(records.len() as u64, rest);
}

#[test]
fn weft() {
    let text = b"# generated: by hand\nt_us,dev,offset,size,op\n0.000,0,4096,512,R\n\
        10.5,8:1,0,8192,W\r\n\n11,2,0,0,F\n12.125,2,65536,131072,T\n";
    holds(
        Format::Weft,
        text,
        &[
            record(0, 0, 4096, 512, Op::Read),
            Record { at_ns: 10_500, ..record(0, 8 << 20 | 1, 0, 8192, Op::Write) },
            record(11, 2, 0, 0, Op::Flush),
            Record { at_ns: 12_125, ..record(0, 2, 65536, 131_072, Op::Trim) },
        ],
    );
    // Without a header it is recognised, too.
    holds(
        Format::Weft,
        b"5,0,0,512,R\n6,0,512,512,W",
        &[record(0, 0, 0, 512, Op::Read), record(1, 0, 512, 512, Op::Write)],
    );
    refused(b"0,0,0,512,R\n1,0,0,512\n2,0,0,512,R\n", Format::Weft, "t:2: the line has no op", 2);
    refused(b"0,0,0,512,R,\n", Format::Weft, "t:1: the line has more", 0);
    refused(b"0,0,-1,512,R\n", Format::Weft, "t:1: no offset: `-1`", 0);
    refused(b"0,0,0,512,X\n", Format::Weft, "R, W, F, T: `X`", 0);
    refused(b"0,0,18446744073709551104,1024,R\n", Format::Weft, "beyond 2^64", 0);
}

#[test]
fn spc() {
    let text = b"0,303567,3584,w,0.000000\n1,55590,3072,R,0.011413, extra\n0, 0, 7, r, 1.5\n";
    holds(
        Format::Spc,
        text,
        &[
            record(0, 0, 303_567 * 512, 3584, Op::Write),
            record(11_413, 1, 55_590 * 512, 3072, Op::Read),
            record(1_500_000, 0, 0, 7, Op::Read),
        ],
    );
    refused(b"0,1,512,r\n", Format::Spc, "t:1: the line has no timestamp", 0);
    refused(b"0,1,512,x,0.0\n0,1,512,r,0.1\n", Format::Spc, "neither r nor w: `x`", 1);
    refused(b"0,36028797018963968,512,r,0.0\n", Format::Spc, "beyond 2^64", 0);
}

#[test]
fn msr() {
    let text = b"128166372003061629,hm,1,Read,2096128,512,1331\n\
        128166372003061639,hm,0,Write,3014656,4096,1331\n\
        128166372003061739,web,2,Write,0,512,1\n";
    holds(
        Format::Msr,
        text,
        &[
            record(0, 1, 2_096_128, 512, Op::Read),
            record(1, 0, 3_014_656, 4096, Op::Write),
            record(11, 256 + 2, 0, 512, Op::Write),
        ],
    );
    refused(b"1,hm,1,Reed,0,512,1\n", Format::Msr, "t:1: the type is neither", 0);
    refused(b"1,hm,300,Read,0,512,1\n", Format::Msr, "no disk number: `300`", 0);
}

#[test]
fn etw() {
    let text = b"BeginHeader\n\
        DiskRead, TimeStamp, Process Name ( PID), ThreadID, CPU, IrpPtr, ByteOffset, IOSize, ElapsedTime, DiskNum, FileName\n\
        DiskWrite, TimeStamp, Process Name ( PID), ThreadID, CPU, IrpPtr, ByteOffset, IOSize, ElapsedTime, DiskNum, FileName\n\
        DiskReadInit, TimeStamp, Process Name ( PID), ThreadID, IrpPtr\n\
        DiskFlush, TimeStamp, Process Name ( PID), ThreadID, IrpPtr, ElapsedTime, DiskNum\n\
        EndHeader\n\
        DiskReadInit, 900, a.exe (4), 8, 0xff\n\
        DiskRead, 1000, a, b.exe ( 4), 8, 1, 0xff, 0x0018f000, 0x00001000, 100, 2, \"C:\\a,b.txt\"\n\
        DiskWrite, 1050, System (4), 8, 1, 0xff, 0x1000, 0x200, 500, 0, \"C:\\x\"\n\
        DiskFlush, 2000, System (4), 8, 0xff, 50, 1\n\
        CSwitch, 2001, x\n";
    // In the order in which they were issued: 550, 900, 1950.
    holds(
        Format::Etw,
        text,
        &[
            record(0, 0, 0x1000, 0x200, Op::Write),
            record(350, 2, 0x18_f000, 0x1000, Op::Read),
            record(1400, 1, 0, 0, Op::Flush),
        ],
    );
    let plain =
        b"DiskRead, 1000, a.exe ( 4), 8, 0xff, 0x0200, 0x400, 100, 2, 0x0, 1, 3, O, 0x1, \"f\"\n";
    let default = ReadOptions { format: Some(Format::Etw), skip_bad: false };
    assert_eq!(read_all(plain, &default).0, [record(0, 2, 0x200, 0x400, Op::Read)]);
    refused(b"DiskRead, 1000, a.exe ( 4), 8\n", Format::Etw, "t:1: no ElapsedTime", 0);
    refused(b"nonsense\n", Format::Etw, "t:1: the line is no event", 0);
}

fn srt(records: &[[u32; 14]]) -> Vec<u8> {
    let mut bytes = b"$$TR_IOREC-1.3\ntracedate = \"Sat May 30 00:03:06 1992\";\ndisks = {\n\
        0 -> {\n sectorsize = 256,\n sections = {\n 8 -> {\n size = (1 2),\n }\n }\n },\n\
        1 -> {\n sectorsize = 1024,\n }\n };\n\x0c"
        .to_vec();
    bytes.extend(records.iter().flatten().flat_map(|word| word.to_be_bytes()));
    bytes
}

#[test]
fn hp_srt() {
    let io = |at: u32, sector: u32, device: u32, flags: u32| {
        [56, 0x4_0001, 3, at, 7, 9, 4096, sector, device, 4, 1, flags, 0, 1]
    };
    let mut other = io(20, 1, 0, 1);
    other[1] = 0x4_0002;
    let good = [io(10, 100, 0x0800_0008, 0x1b), other, io(35, 7, 0x0800_0107, 0x10a)];
    holds(
        Format::Srt,
        &srt(&good),
        &[record(0, 0, 25_600, 4096, Op::Read), record(25, 1, 7168, 4096, Op::Write)],
    );
    let mut damaged = good;
    damaged[1][0] = 3;
    let begin = srt(&[]).len() + 56;
    let why = format!("t: record 2 at byte {begin}: the size of the record");
    refused(&srt(&damaged), Format::Srt, &why, 1);
    let mut cut = srt(&good);
    cut.truncate(cut.len() - 5);
    refused(&cut, Format::Srt, "record 3 at byte", 1);
    refused(b"$$TR_IOREC", Format::Srt, "the header has no end", 0);
}

/// Command, length, block and time of a request.
fn vscsi_1((command, len, block, at_us): (u16, u32, u64, u64)) -> Vec<u8> {
    let mut bytes = [9u32, len, 1].map(u32::to_le_bytes).concat();
    bytes.extend([command, 0x0100].map(u16::to_le_bytes).concat());
    bytes.extend([block, at_us].map(u64::to_le_bytes).concat());
    bytes
}

fn vscsi_2((command, len, block, at_us): (u16, u32, u64, u64)) -> Vec<u8> {
    let mut bytes = [command, 0x0200].map(u16::to_le_bytes).concat();
    bytes.extend([9u32, len, 1].map(u32::to_le_bytes).concat());
    bytes.extend([block, at_us, 77].map(u64::to_le_bytes).concat());
    bytes
}

#[test]
fn vscsi() {
    let requests = [(0x2a, 512, 100, 5), (0x88, 4096, 8, 7), (0x00, 512, 0, 8), (0x35, 0, 0, 9)];
    let expected = [
        record(0, 0, 51_200, 512, Op::Write),
        record(2, 0, 4096, 4096, Op::Read),
        record(4, 0, 0, 0, Op::Flush),
    ];
    holds(Format::Vscsi, &requests.map(vscsi_1).concat(), &expected);
    holds(Format::Vscsi, &requests.map(vscsi_2).concat(), &expected);
    // Lengths that cannot be bytes are sectors.
    let sectors = [(0x28, 8, 0, 0), (0x28, 3, 8, 1)].map(vscsi_1).concat();
    let expected = [record(0, 0, 0, 4096, Op::Read), record(1, 0, 4096, 1536, Op::Read)];
    holds(Format::Vscsi, &sectors, &expected);
    let mut cut = requests.map(vscsi_1).concat();
    cut.truncate(60);
    refused(&cut, Format::Vscsi, "t: record 2 at byte 32: the file ends within a record", 1);
    let mut damaged = requests.map(vscsi_1).concat();
    damaged[32 + 15] = 9;
    refused(&damaged, Format::Vscsi, "record 2 at byte 32: the record is of another version", 2);
}

#[test]
fn clouds() {
    holds(
        Format::Alibaba,
        b"64,W,4096,512,1577808000000000\n3,R,0,8192,1577808000000300\n",
        &[record(0, 64, 4096, 512, Op::Write), record(300, 3, 0, 8192, Op::Read)],
    );
    holds(
        Format::Tencent,
        b"1538323200,12910952,128,0,1063\n1538323202,0,8,1,7\n",
        &[
            record(0, 1063, 12_910_952 * 512, 65536, Op::Read),
            record(2_000_000, 7, 0, 4096, Op::Write),
        ],
    );
    refused(b"64,X,4096,512,1\n64,R,0,512,2\n", Format::Alibaba, "t:1: the opcode", 1);
    refused(b"1,2,3,4,5\n", Format::Tencent, "t:1: the IO type", 0);
}

#[test]
fn fio() {
    let v2 = b"fio version 2 iolog\na add\nb add\na open\na write 0 4096\nb wait 150 0\n\
        b read 8192 512\na sync 0 0\na wait 50 0\na trim 0 4096\na close\n";
    let expected = [
        record(0, 0, 0, 4096, Op::Write),
        record(150, 1, 8192, 512, Op::Read),
        record(150, 0, 0, 0, Op::Flush),
        record(200, 0, 0, 4096, Op::Trim),
    ];
    holds(Format::Fio, v2, &expected);
    let v3 = b"fio version 3 iolog\n0 a add\n0 b add\n0 a open\n10 a write 0 4096\n\
        160 b read 8192 512\n160 a datasync\n210 a trim 0 4096\n";
    holds(Format::Fio, v3, &expected);
    refused(b"fio version 3 iolog\n1 a write 0\n2 a write 0 512\n", Format::Fio, "t:2: ", 1);
    refused(b"fio version 2 iolog\na burn 0 1\n", Format::Fio, "t:2: the action is not known", 0);
    refused(b"fio version 1 iolog\n", Format::Fio, "neither 2 nor 3", 0);
}

#[test]
fn blkparse() {
    let line = |event: &str, at: &str, rest: &str| {
        format!("  8,16   3        4     {at}  3645  {event}   {rest} [java]\n")
    };
    let body = [
        line("Q", "0.000011950", "R 4938888 + 256"),
        line("G", "0.000012", "R 4938888 + 256"),
        line("D", "0.000013", "R 4938888 + 256"),
        line("Q", "0.000111950", "WS 8 + 8"),
        line("m", "0.0002", "N cfq something"),
        line("Q", "0.000211950", "FWS"),
        line("Q", "0.000311950", "DS 0 + 2048"),
        "CPU0 (8,16):\n Reads Queued:           0,        0KiB\n".to_owned(),
    ];
    let disk = 8 << 20 | 16;
    holds(
        Format::Blkparse,
        body.concat().as_bytes(),
        &[
            record(0, disk, 4_938_888 * 512, 131_072, Op::Read),
            record(100, disk, 4096, 4096, Op::Write),
            record(200, disk, 0, 0, Op::Flush),
            record(300, disk, 0, 1 << 20, Op::Trim),
        ],
    );
    // A trace of the driver's events only.
    let issues = [line("D", "1.0", "R 8 + 8"), line("C", "1.5", "R 8 + 8")].concat();
    holds(Format::Blkparse, issues.as_bytes(), &[record(0, disk, 4096, 4096, Op::Read)]);
    refused(line("Q", "0.1", "R 8 +").as_bytes(), Format::Blkparse, "t:1: ", 0);
    refused(b"  8,16 3 4 0.1x 1 Q R 8 + 8 [a]\n", Format::Blkparse, "no time in seconds", 0);
}

#[test]
fn arc() {
    let text = b"110765 64 0 0\n110829 1 0 1\r\n7\t2 x 2\n8 0 0 3\n";
    let expected = [
        record(0, 0, 110_765 * 512, 32_768, Op::Read),
        record(0, 0, 110_829 * 512, 512, Op::Read),
        record(0, 0, 7 * 512, 1024, Op::Read),
    ];
    holds(Format::Arc, text, &expected);
    assert!(!Format::Arc.has_times() && Format::Spc.has_times());
    refused(b"1 2 0 0\n3 -4 0 1\n", Format::Arc, "t:2: no number of blocks: `-4`", 1);
    refused(b"1 2 0\n3 4 0 1\n", Format::Arc, "t:1: the line has no request number", 1);
    refused(b"1 2 0 0 1\n", Format::Arc, "t:1: the line has more than four columns", 0);
    let beyond = b"36028797018963968 1 0 0\n";
    refused(beyond, Format::Arc, "t:1: the address is beyond 2^64 bytes", 0);
}

#[test]
fn time_never_goes_backwards_and_nothing_is_nothing() {
    let text = b"0,1,512,r,1.0\n0,1,512,r,1.5\n0,9,512,r,1.2\n0,1,0,w,1.6\n0,1,512,w,1.7\n";
    let (records, stats, _) = read_all(text, &ReadOptions::default());
    let times: Vec<u64> = records.iter().map(|record| record.at_ns / 1_000_000).collect();
    assert_eq!(times, [0, 500, 500, 700]);
    assert_eq!(records[2].offset, 9 * 512);
    let expected = ReadStats {
        requests: 4,
        empty: 1,
        backwards: 1,
        backwards_ns_max: 300_000_000,
        ..ReadStats::default()
    };
    assert_eq!(stats, expected);
}

#[test]
fn names_are_known_and_unknown_ones_list_them() {
    for (format, name, about) in Format::all() {
        assert_eq!(name.parse::<Format>().expect("its own name"), format);
        assert!(!about.is_empty() && format.to_string() == name);
    }
    let error = "spd".parse::<Format>().expect_err("no format").to_string();
    assert!(error.contains("`spd`") && error.contains("spc, msr, etw"), "{error}");
    let text = Cursor::new("a poem\nof two lines\n");
    let error = read("poem", text, &ReadOptions::default()).expect_err("no trace").to_string();
    assert!(error.contains("poem looks like no") && error.contains("blkparse"), "{error}");
    assert!(read("empty", Cursor::new(""), &ReadOptions::default()).is_err());
}

#[test]
fn a_line_without_end_is_a_bad_line_not_memory() {
    let mut text = b"0,1,512,r,1.0\n".to_vec();
    text.extend(std::iter::repeat_n(b'9', 300_000));
    text.extend(b"\n0,1,512,r,1.5\n");
    refused(&text, Format::Spc, "t:2: the line is too long", 2);
}
