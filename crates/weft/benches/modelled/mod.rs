//! Arrays on modelled disks that are served in real time.
#![allow(dead_code, reason = "each benchmark uses some of it")]

use std::fmt::Write as _;
use std::fs::{self, File};
use std::time::Duration;

use serde_json::Value;
use weft_bench::median;
use weft_testkit::{Guest, Process, wait_until};

use crate::common::{Bench, laboratory};

/// Bytes of a unit.
pub const UNIT: u64 = 64 << 10;

/// The disks of an array, and more.
#[derive(Clone, Copy)]
pub struct Disks {
    /// The product.
    pub model: &'static str,
    /// MiB of each.
    pub mib: u64,
    /// Members of the array.
    pub members: u64,
    /// Disks beyond them.
    pub more: u64,
    /// The code of the array.
    pub code: &'static str,
    /// Units of data in its stripes.
    pub data: u64,
}

impl Disks {
    /// Those of a RAID-5, and one more.
    pub const fn raid5(model: &'static str, mib: u64, members: u64) -> Self {
        Self { model, mib, members, more: 1, code: "raid5", data: members - 1 }
    }

    /// Serves them with a fresh state: the server, and their addresses.
    pub fn serve(&self, bench: &Bench) -> (Process, Vec<String>) {
        let (out, socket) = (bench.path("disks.out"), bench.path("disks.sock"));
        let _ = fs::remove_file(&socket);
        let disks = self.members + self.more;
        let (size, count) = (format!("{}M", self.mib), disks.to_string());
        let mut lab = bench.command(&["lab", "disk", "--model", self.model, "--size", &size]);
        lab.args(["--count", &count, "--socket", "disks.sock"]);
        let mut process =
            Process::spawn(lab.stdout(File::create(&out).expect("a file for output")));
        let last = format!("serving d{}", disks - 1);
        wait_until("the disks", || {
            assert!(process.is_running(), "they ended");
            fs::read_to_string(&out).is_ok_and(|text| text.contains(&last))
        });
        let uri = |n| format!("nbd+unix:///d{n}?socket={}", socket.display());
        (process, (0..disks).map(uri).collect())
    }

    /// Creates the array `t` on the members, serves it and writes all of it.
    /// Returns the address of the array.
    pub fn array(&self, bench: &mut Bench, uris: &[String], serve: &[&str]) -> String {
        let members = usize::try_from(self.members).expect("a few");
        let members: Vec<&str> = uris[..members].iter().map(String::as_str).collect();
        let create =
            ["create", "t", "--code", self.code, "--unit", "64K", "--consistency", "bitmap"];
        bench.weft(&[&create[..], &["--force"], &members].concat());
        bench.serve(&[serve, &members].concat());
        let uri = bench.uri("t");
        // What was never written needs no rebuild.
        let size = bench.status("t")["size_bytes"].as_u64().expect("a size");
        let mut trace = String::from("t_us,dev,offset,size,op\n");
        let step = self.data * UNIT * 8;
        for n in 0..size / step {
            let _ = writeln!(trace, "{n}.000,0,{},{step},W", n * step);
        }
        fs::write(bench.path("fill.csv"), trace).expect("a trace");
        let fill = ["replay", "--trace", "fill.csv", "--fit", "exact", "--closed", "8"];
        bench.weft(&[&fill[..], &["--overwrite", &uri]].concat());
        uri
    }
}

/// A guest with these disks, and weft to replay. There is one ([`Guest::find`]).
pub fn guest(bench: &Bench, uris: &[String]) -> Guest {
    let guest = Guest::find(bench.scratch.path()).expect("it was found before");
    let guest = guest
        .program(env!("CARGO_BIN_EXE_weft"))
        .program(&laboratory())
        .patience(Duration::from_secs(900));
    uris.iter().fold(guest, |guest, uri| guest.disk(uri))
}

/// A number of what a replay found, as JSON.
pub fn outcome(found: &str, path: &str) -> f64 {
    let json: Value = serde_json::from_str(found).unwrap_or_else(|e| panic!("{e}: {found}"));
    let number = json["outcome"].pointer(path).and_then(Value::as_f64);
    number.unwrap_or_else(|| panic!("{path} of {found}"))
}

/// A response time of all its requests.
pub fn latency_ms(found: &str, what: &str) -> f64 {
    outcome(found, &format!("/all/{what}")) / 1e6
}

/// A figure of a turn, and its digits behind the point.
pub type Figure<T> = (fn(&T) -> f64, usize);

/// Prints a row of a table: of each figure the median, the least and the most of all turns; nothing
/// if there are no numbers.
pub fn print_row<T>(name: &str, turns: &[T], figures: &[Figure<T>]) {
    let mut row = format!("| {name} |");
    for (of, digits) in figures {
        let all: Vec<f64> = turns.iter().map(of).collect();
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        let most = all.iter().copied().fold(0.0, f64::max);
        if least.is_infinite() {
            row += " – |";
            continue;
        }
        let _ = write!(row, " {:.*} ({least:.*}–{most:.*}) |", digits, median(all), digits, digits);
    }
    println!("{row}");
}
