//! A forged member, with arbitrary numbers under a valid checksum, is refused with a reason, and
//! the other arrays start.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::common::Bench;
use crc_fast::{CrcAlgorithm, checksum};
use serde_json::{Value, json};

const COPIES: [u64; 2] = [128 << 10, 256 << 10];
const HEADER: usize = 48;

/// The expected message.
type Change = fn(&mut Value);

/// Changes what both copies of a member's superblock say, and seals them again.
fn craft(bench: &Bench, member: &str, change: impl Fn(&mut Value)) {
    let disk = File::options().read(true).write(true).open(bench.path(member)).expect("a member");
    for offset in COPIES {
        let mut bytes = vec![0; 128 << 10];
        disk.read_exact_at(&mut bytes, offset).expect("a copy");
        if !bytes.starts_with(b"WEFTSB\r\n") {
            continue;
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let end = HEADER + usize::try_from(word(20)).expect("small");
        let mut value: Value = serde_json::from_slice(&bytes[HEADER..end]).expect("JSON");
        change(&mut value);
        let payload = serde_json::to_vec(&value).expect("text");
        let mut copy = bytes[..HEADER].to_vec();
        copy[20..24].copy_from_slice(&u32::try_from(payload.len()).expect("small").to_le_bytes());
        copy[24..32].copy_from_slice(&value["seq"].as_u64().expect("a number").to_le_bytes());
        copy.extend(payload);
        copy[8..12].fill(0);
        let crc = checksum(CrcAlgorithm::Crc32Iscsi, &copy).to_le_bytes();
        copy[8..12].copy_from_slice(&crc[..4]);
        disk.write_all_at(&copy, offset).expect("written");
    }
}

#[test]
fn an_array_with_a_crafted_superblock_does_not_keep_others_from_starting() {
    let cases: [(&str, Change); 8] = [
        ("its log is too small", |s| s["area"]["log_bytes"] = json!(0)),
        ("its log is too small", |s| s["area"]["log_bytes"] = json!(4096)),
        ("too large", |s| {
            s["area"]["log_bytes"] = json!(1u64 << 40);
            s["area"]["data_offset"] = json!(1u64 << 41);
        }),
        ("the size of its regions", |s| s["region_bytes"] = json!(1u64 << 46)),
        ("its sequence number", |s| s["seq"] = json!(u64::MAX)),
        ("its name must", |s| s["name"] = json!("../../etc/cron.d")),
        ("its name must", |s| s["name"] = json!("b\u{1b}[2J")),
        ("its size is out of range", |s| s["rows"] = json!(u64::MAX)),
    ];
    for (why, change) in cases {
        let mut bench = Bench::new("hostile");
        for (name, members) in [("good", ["d0", "d1", "d2"]), ("bad", ["x0", "x1", "x2"])] {
            let create = ["create", name, "--code", "raid5", "--size", "16M"];
            bench.weft(&[&create[..], &members].concat());
        }
        for member in ["x0", "x1", "x2"] {
            craft(&bench, member, change);
        }
        bench.serve(&["."]);
        let log = bench.log();
        assert!(log.contains(why) && !log.contains('\u{1b}'), "not said ({why}):\n{log}");
        assert_eq!(bench.status("good")["redundancy_remaining"], 1);
        let said = bench.refused(&["examine", "x0"], 1);
        assert!(said.contains(why) && !said.contains('\u{1b}'), "not said ({why}):\n{said}");
        bench.terminate();
    }
}
