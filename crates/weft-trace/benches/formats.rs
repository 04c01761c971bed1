//! Requests per second that each format gives, read from memory; and bytes per second of each
//! decoder where its tool is installed. The first pass is thrown away.

use std::fmt::Write as _;
use std::io::{Cursor, Write as _};
use std::process::{Command, Stdio};
use std::time::Instant;

use weft_trace::generate::workload;
use weft_trace::{Format, ReadOptions, Record, Writer, read};

const REQUESTS: usize = 200_000;
const PASSES: u32 = 5;

fn records() -> Vec<Record> {
    let workload = workload("financial1").expect("a named workload");
    workload.generate(1).take(REQUESTS).collect()
}

/// The requests as text or records of `format`.
fn written(format: Format, records: &[Record]) -> Option<Vec<u8>> {
    let mut text = String::new();
    if format == Format::Etw {
        text.push_str("BeginHeader\nEndHeader\n");
    } else if format == Format::Fio {
        text.push_str("fio version 3 iolog\n");
    }
    let mut bytes = Vec::new();
    for (number, record) in records.iter().enumerate() {
        let Record { at_ns, device, offset, len, .. } = *record;
        let us = at_ns / 1000;
        let read = record.op == weft_trace::Op::Read;
        let pick = |r: &'static str, w: &'static str| if read { r } else { w };
        let sector = offset / 512;
        let _ = match format {
            Format::Spc => {
                writeln!(
                    text,
                    "{device},{sector},{len},{},{}.{:06}",
                    pick("r", "w"),
                    us / 1_000_000,
                    us % 1_000_000
                )
            }
            Format::Msr => {
                writeln!(
                    text,
                    "{},web,{device},{},{offset},{len},100",
                    128_166_372_003_061_629 + us * 10,
                    pick("Read", "Write")
                )
            }
            Format::Etw => writeln!(
                text,
                "{}, {us}, a.exe ( 4), 8, 0xff, {offset:#012x}, {len:#010x}, 100, {device}, 0x0, 1, 3, O, 0x1, \"C:\\f\"",
                pick("DiskRead", "DiskWrite")
            ),
            Format::Alibaba => writeln!(text, "{device},{},{offset},{len},{us}", pick("R", "W")),
            Format::Tencent => {
                writeln!(
                    text,
                    "{},{sector},{},{},{device}",
                    us / 1_000_000,
                    len / 512,
                    pick("0", "1")
                )
            }
            Format::Fio => writeln!(text, "{us} a {} {offset} {len}", pick("read", "write")),
            Format::Blkparse => writeln!(
                text,
                "  8,16   3        4     {}.{:09}  3645  Q   {} {sector} + {} [java]",
                at_ns / 1_000_000_000,
                at_ns % 1_000_000_000,
                pick("R", "WS"),
                len / 512
            ),
            Format::Arc => writeln!(text, "{sector} {} 0 {number}", len / 512),
            Format::Vscsi => {
                bytes.extend([9, u32::try_from(len).ok()?, 1].map(u32::to_le_bytes).concat());
                bytes.extend(
                    [if read { 0x28 } else { 0x2a }, 0x0100].map(u16::to_le_bytes).concat(),
                );
                bytes.extend([sector, us].map(u64::to_le_bytes).concat());
                Ok(())
            }
            Format::Srt => {
                if bytes.is_empty() {
                    bytes.extend(b"$$TR_IOREC\n\x0c");
                }
                let word = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
                let words = [
                    56,
                    0x4_0001,
                    word(us / 1_000_000),
                    word(us % 1_000_000),
                    0,
                    0,
                    word(len),
                    word(sector),
                    0x0800_0008,
                    4,
                    1,
                    u32::from(read),
                    0,
                    1,
                ];
                bytes.extend(words.map(u32::to_be_bytes).concat());
                Ok(())
            }
            Format::Weft => {
                let mut writer = Writer::new(Vec::new(), &[]).ok()?;
                records.iter().try_for_each(|record| writer.write(record)).ok()?;
                return writer.finish().ok();
            }
        };
    }
    Some(if bytes.is_empty() { text.into_bytes() } else { bytes })
}

/// Seconds of the fastest pass, without the first.
fn fastest(format: Option<Format>, bytes: &[u8]) -> f64 {
    let mut best = f64::INFINITY;
    for pass in 0..=PASSES {
        let source = Cursor::new(bytes.to_vec());
        let options = ReadOptions { format, skip_bad: false };
        let begun = Instant::now();
        let reader = read("memory", source, &options).expect("a known format");
        let count = reader.inspect(|record| assert!(record.is_ok(), "a damaged trace")).count();
        let seconds = begun.elapsed().as_secs_f64();
        assert_eq!(count, REQUESTS);
        if pass > 0 {
            best = best.min(seconds);
        }
    }
    best
}

fn compressed(tool: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut command = Command::new(tool);
    command.arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut stdin = child.stdin.take()?;
    let bytes = bytes.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output().ok()?;
    feeder.join().ok()?.ok()?;
    Some(output.stdout)
}

fn main() {
    let records = records();
    println!("{:<10} {:>14} {:>10}", "format", "requests/s", "MB/s");
    for (format, name, _) in Format::all() {
        let bytes = written(format, &records).expect("a sample");
        let seconds = fastest(Some(format), &bytes);
        let (rate, mega) = (REQUESTS as f64 / seconds, bytes.len() as f64 / seconds / 1e6);
        println!("{name:<10} {rate:>14.0} {mega:>10.0}");
    }
    let plain = written(Format::Weft, &records).expect("a sample");
    let parsing = fastest(None, &plain);
    println!(
        "\n{:<10} {:>14} {:>10}   (weft, uncompressed bytes)",
        "decoder", "requests/s", "MB/s"
    );
    for tool in ["gzip", "xz", "zstd"] {
        let Some(bytes) = compressed(tool, &plain) else {
            println!("{tool:<10} not installed");
            continue;
        };
        let seconds = fastest(None, &bytes);
        // Without the parsing: the decoder alone.
        let mega = plain.len() as f64 / (seconds - parsing).max(1e-9) / 1e6;
        println!("{tool:<10} {:>14.0} {mega:>10.0}", REQUESTS as f64 / seconds);
    }
}
