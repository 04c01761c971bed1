//! Disks that join and leave a file system on several machines while all of them use it: nodes go
//! on with them, and so does a keeper that stood by meanwhile.

use weft_testkit::{have, wait_until};

use crate::cluster::{disks_of, has, put};
use crate::common::cluster::{Cluster, NEEDS};
use crate::common::text;

const DISK: u64 = 96 << 20;

/// The names of the disks, as the record has them.
fn recorded(cluster: &Cluster) -> Vec<String> {
    let status = cluster.status();
    let disks = status["disks"].as_array().expect("disks");
    disks.iter().map(|disk| disk["disk"].as_str().expect("a name").to_owned()).collect()
}

fn numbers(cluster: &Cluster, at: &std::path::Path) -> Vec<u64> {
    let disks = disks_of(cluster, at);
    for disk in &disks {
        assert!(disk["lost"] == false && disk["through_keeper"] == false, "{disks:?}");
    }
    disks.iter().map(|disk| disk["number"].as_u64().expect("a number")).collect()
}

#[test]
fn disks_join_and_leave_while_nodes_use_the_file_system_and_a_keeper_stands_by() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-joins", 3, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &[]);
    one.mounts();
    let mut two = cluster.keeper("two", &[]);
    two.says("stands by");
    let mut alpha = cluster.node("alpha", &[]);
    alpha.mounts();
    put(&alpha.at.join("before"), 1, 3_000_000);
    wait_until("the disks to be recorded", || recorded(&cluster) == ["d0", "d1", "d2"]);

    // No process is started again for it.
    let given = cluster.disks.clone();
    let new = cluster.serve_new("d3", DISK);
    cluster.disks = given;
    let at = text(&one.at);
    cluster.bench.weft(&["fs", "add", &at, &new]);
    put(&alpha.at.join("after"), 2, 3_000_000);
    assert_eq!(numbers(&cluster, &alpha.at), [0, 1, 2, 3]);
    alpha.says("has joined the file system");
    two.says("has joined the file system");
    assert_eq!(recorded(&cluster), ["d0", "d1", "d2", "d3"]);
    has(&one.at.join("after"), 2, 3_000_000);

    // The keeper dies, and who follows was started without the disk.
    one.kill9();
    two.mounts();
    assert_eq!(numbers(&cluster, &two.at), [0, 1, 2, 3]);
    has(&two.at.join("after"), 2, 3_000_000);
    put(&alpha.at.join("before"), 3, 2_000_000);
    has(&two.at.join("before"), 3, 2_000_000);

    // A disk leaves. Its server is not needed any more, for a takeover neither.
    let mut one = cluster.keeper("one", &[]);
    one.says("stands by");
    cluster.bench.weft(&["fs", "remove", &text(&two.at), "0"]);
    put(&alpha.at.join("last"), 4, 2_000_000);
    assert_eq!(numbers(&cluster, &alpha.at), [1, 2, 3]);
    wait_until("the record without the disk", || recorded(&cluster) == ["d1", "d2", "d3"]);
    one.says("is no disk of the file system");
    cluster.kill_server(0);
    two.kill9();
    one.mounts();
    has(&one.at.join("last"), 4, 2_000_000);
    put(&alpha.at.join("before"), 5, 500_000);
    has(&one.at.join("before"), 5, 500_000);
    assert_eq!(numbers(&cluster, &one.at), [1, 2, 3]);
    alpha.ends();
    cluster.bench.weft(&["fs", "fsck", "--data", &text(&one.at)]);
    one.ends();
}
