//! A file system on several machines, as processes on this one: an etcd, a server for each disk,
//! keepers and nodes, all on loopback.
//!
//! | part | what it measures |
//! |---|---|
//! | `scaling` | one, two and four nodes on files of their own; the processor time that keeper, nodes and disk servers take for it; what that means for 50 nodes |
//! | `folder` | two nodes that create files in one folder, and one that lists it meanwhile |
//! | `file` | one file that two nodes write from both ends |
//! | `cached` | operations that need nobody else, on a node, on one machine without a cluster, and on ext4 |
//! | `synced` | small writes with fdatasync |
//! | `takeover` | the time until programs go on when the keeper is killed, with few and many files |
//!
//! `WEFT_BENCH_PARTS` names those that run, with commas between (default: all). `WEFT_BENCH_FILES`
//! is the number of files of a takeover with many of them (default 100,000; the figures of the
//! documentation say which). The disks take up to 3 GB, with a million files.
//!
//! All nodes share this machine's processors, so rates of several nodes say little about several
//! machines: processor times for each file do.
#![allow(
    clippy::cast_possible_truncation,
    reason = "files are filled with the low bytes of numbers"
)]

#[path = "../tests/common/mod.rs"]
mod common;

mod clustered;
mod in_process;
mod modelled;
mod single_operations;

use clustered::{cached, file, folder, scaling, synced, takeover};
use weft_testkit::{Need, have};

const PARTS: [(&str, fn()); 6] = [
    ("scaling", scaling::run),
    ("folder", folder::run),
    ("file", file::run),
    ("cached", cached::run),
    ("synced", synced::run),
    ("takeover", takeover::run),
];

fn main() {
    let tools = ["etcd", "mkfs.ext4", "losetup"].map(Need::Tool);
    if !have(&[&tools[..], &[Need::Root, Need::Fuse, Need::Loop]].concat()) {
        return;
    }
    let wanted = std::env::var("WEFT_BENCH_PARTS").ok();
    let wanted: Option<Vec<&str>> = wanted.as_deref().map(|parts| parts.split(',').collect());
    for (name, run) in PARTS {
        if wanted.as_ref().is_none_or(|wanted| wanted.contains(&name)) {
            run();
        }
    }
}
