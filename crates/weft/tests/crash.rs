//! The daemon is killed in the middle of writes, again and again: every byte that was flushed
//! is there after the next start, and the redundancy matches the data.

mod common;

use common::Bench;
use weft_testkit::{Need, Process, command, have, run};

/// Blocks of one round.
const BLOCKS: usize = 64;

#[test]
fn what_was_flushed_survives_every_kill() {
    if !have(&[Need::Tool("qemu-io")]) {
        return;
    }
    for code in ["drc-g:4,2,1", "raid6"] {
        killed_again_and_again(code);
    }
}

fn killed_again_and_again(code: &str) {
    let mut bench = Bench::new("crash");
    let members: Vec<String> = (0..7).map(|n| format!("d{n}")).collect();
    let mut create = vec!["create", "t", "--code", code, "--size", "24M"];
    create.extend(members.iter().map(String::as_str));
    bench.weft(&create);
    bench.serve(&["."]);
    let uri = bench.uri("t");
    for round in 1..=4 {
        // What must survive: odd places and lengths, so that stripes are written in part.
        let mut flushed = vec!["-f".to_owned(), "raw".into(), uri.clone()];
        for block in 0..BLOCKS {
            let (offset, len) = place(block);
            flushed.extend([
                "-c".into(),
                format!("write -P {} {offset} {len}", pattern(round, block)),
            ]);
        }
        flushed.extend(["-c".into(), "flush".into()]);
        run(command("qemu-io").args(&flushed));
        // What goes on when the daemon dies: writes between those places.
        let mut noise = common::quiet("qemu-io");
        noise.args(["-f", "raw", &uri]);
        for n in 0..4000 {
            let offset = (n * 7919 % BLOCKS) * 100_352 + 65_536;
            noise.args(["-c", &format!("aio_write -P {} {offset} 8192", n % 251)]);
        }
        let noise = Process::spawn(&mut noise);
        std::thread::sleep(std::time::Duration::from_millis(40 * round as u64));
        bench.kill9();
        drop(noise);
        bench.serve(&["."]);
        let mut reads = vec!["-f".to_owned(), "raw".into(), uri.clone()];
        for block in 0..BLOCKS {
            let (offset, len) = place(block);
            reads
                .extend(["-c".into(), format!("read -P {} {offset} {len}", pattern(round, block))]);
        }
        let said = run(command("qemu-io").args(&reads));
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(!said.contains("failed"), "round {round} of {code}: {said}");
    }
    let scrubbed = bench.weft(&["scrub", "t"]);
    assert!(scrubbed.contains("0 mismatches"), "{code}: {scrubbed}");
    bench.terminate();
}

/// Where a block lies: offset and length in bytes.
fn place(block: usize) -> (usize, usize) {
    (block * 100_352, 512 * (1 + block % 100))
}

fn pattern(round: usize, block: usize) -> usize {
    1 + (round * 37 + block * 3) % 250
}
