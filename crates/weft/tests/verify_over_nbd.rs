//! fio writes and verifies over NBD while members fail and are rebuilt.

use std::process::Stdio;

use crate::common::{Bench, have_fio_over_nbd};
use weft_testkit::command;

#[test]
fn fio_finds_every_byte_while_disks_fail() {
    if !have_fio_over_nbd() {
        return;
    }
    let mut bench = Bench::new("fio-nbd");
    let members: Vec<String> = (0..7).map(|n| format!("d{n}")).collect();
    let mut create = vec!["create", "tank", "--code", "drc-g:4,2,1", "--size", "48M"];
    create.extend(members.iter().map(String::as_str));
    bench.weft(&create);
    // Most requests wait in the queues before the disks, users' and the rebuild's.
    bench.serve(&["--disk-depth", "2", "."]);
    let mut fio = command("fio");
    fio.args(["--name=v", "--ioengine=nbd", "--rw=randwrite", "--bsrange=512-64k", "--iodepth=16"]);
    fio.args(["--size=48M", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--rate=24M"]);
    fio.args(["--randseed=11", &format!("--uri={}", bench.uri("tank"))]).stdout(Stdio::null());
    let mut fio = fio.current_dir(bench.scratch.path()).spawn().expect("start fio");
    bench.weft(&["fail", "tank", "d0"]);
    bench.weft(&["add", "tank", "spare0", "--size", "48M"]);
    bench.weft(&["rebuild", "tank"]);
    bench.weft(&["fail", "tank", "d6"]);
    bench.weft(&["fail", "tank", "d3"]);
    assert!(fio.wait().expect("wait for fio").success(), "fio found wrong bytes, or I/O failed");
    bench.weft(&["add", "tank", "spare1", "--size", "48M"]);
    bench.weft(&["add", "tank", "spare2", "--size", "48M"]);
    bench.weft(&["rebuild", "tank"]);
    bench.weft(&["scrub", "tank"]);
    bench.terminate();
}
