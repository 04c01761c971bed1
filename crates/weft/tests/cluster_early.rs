//! Early commit, with real processes: a node and a keeper are killed right after programs have
//! synced what then is in the keeper's memory only.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use weft_testkit::{have, wait_until};

use crate::cluster::{has, put, soon};
use crate::common::cluster::{Cluster, NEEDS};
use crate::common::text;

const DISK: u64 = 96 << 20;
const FILE: usize = 64 << 10;
const BLOCK: usize = 4096;

/// Overwrites a file, durably.
#[track_caller]
fn overwrite(path: &Path, byte: u8) {
    let (what, path) = (path.display().to_string(), path.to_owned());
    let written = soon(&what, move || {
        let file = File::options().write(true).open(path)?;
        file.write_all_at(&[byte; FILE], 0)?;
        file.sync_all()
    });
    written.unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// The status of the keeper's mount, which is what the document says.
#[track_caller]
fn status_of(cluster: &Cluster, keeper: &Path) -> serde_json::Value {
    let said = cluster.bench.weft(&["fs", "status", &text(keeper), "--json"]);
    let status = serde_json::from_str(&said).expect("JSON");
    let schema = crate::schema::Schema::read(include_str!("../../../docs/json.md"));
    schema.check("weft fs status", &status);
    let mut unseen = schema.unseen();
    unseen.retain(|row| row.starts_with("weft fs status: nodes[]."));
    let has_nodes = status["nodes"].as_array().is_some_and(|nodes| !nodes.is_empty());
    assert!(!has_nodes || unseen.is_empty(), "described, and not printed: {unseen:?}");
    status
}

/// Overwrites a file until what was synced is in the keeper's memory, and nowhere else.
#[track_caller]
fn overwrite_early(cluster: &Cluster, keeper: &Path, path: &Path, byte: u8) {
    wait_until("a sync to go early", || {
        overwrite(path, byte);
        let status = status_of(cluster, keeper);
        let nodes = status["nodes"].as_array().expect("a list");
        let [node] = nodes.as_slice() else { panic!("{status}") };
        assert!(node["mounted"] == true && node["early_commit"] == true, "{status}");
        node["early_blocks"].as_u64() >= Some((FILE / BLOCK) as u64)
    });
}

#[test]
fn what_is_synced_early_outlives_a_node_and_a_keeper_and_the_loss_of_both_is_told() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-early", 3, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &[]);
    one.mounts();
    let mut two = cluster.keeper("two", &[]);
    two.says("stands by");
    let early = ["--early-commit"];
    let mut alpha = cluster.node("alpha", &early);
    alpha.mounts();
    assert!(alpha.said().contains("early commit: "), "{}", alpha.said());
    put(&alpha.at.join("file"), 1, FILE);

    // The node dies.
    overwrite_early(&cluster, &one.at, &alpha.at.join("file"), 2);
    alpha.kill9();
    has(&one.at.join("file"), 2, FILE);

    // The keeper dies.
    let mut alpha = cluster.node("alpha", &early);
    alpha.mounts();
    overwrite_early(&cluster, &one.at, &alpha.at.join("file"), 3);
    one.kill9();
    two.mounts();
    has(&two.at.join("file"), 3, FILE);
    overwrite(&alpha.at.join("file"), 4);
    has(&two.at.join("file"), 4, FILE);

    // Both die: of what was synced last, some or nothing is there, and the status says so.
    let mut one = cluster.keeper("one", &[]);
    one.says("stands by");
    overwrite_early(&cluster, &two.at, &alpha.at.join("file"), 5);
    alpha.kill9();
    two.kill9();
    one.mounts();
    let path = one.at.join("file");
    let found = soon("read what is left", move || fs::read(path)).expect("read");
    let is_whole =
        |block: &[u8]| [4, 5].contains(&block[0]) && block.iter().all(|b| *b == block[0]);
    assert!(found.len() == FILE && found.chunks(BLOCK).all(is_whole));
    let status = status_of(&cluster, &one.at);
    let attention = status["attention"].to_string();
    assert!(attention.contains("died together with a keeper"), "{status}");
    cluster.bench.weft(&["fs", "fsck", "--data", &text(&one.at)]);

    // Once the node has been there in order again, that is over.
    let mut alpha = cluster.node("alpha", &[]);
    alpha.mounts();
    overwrite(&alpha.at.join("file"), 6);
    alpha.ends();
    has(&one.at.join("file"), 6, FILE);
    let status = status_of(&cluster, &one.at);
    assert_eq!(status["attention"], serde_json::json!([]), "{status}");
    one.ends();
}
