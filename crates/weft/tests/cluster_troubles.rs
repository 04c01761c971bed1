//! What a cluster meets that is not as it should be: disks whose servers are away at the start or
//! are full, an etcd that is away, clocks that differ by a year.

use std::fs;
use std::io;

use weft_testkit::{have, wait_until};

use crate::cluster::{disks_of, has, put};
use crate::common::cluster::{Cluster, NEEDS};
use crate::common::text;

const DISK: u64 = 96 << 20;

#[test]
fn a_keeper_starts_without_a_disk_if_it_may_and_waits_for_it_otherwise() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-degraded", 3, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    cluster.kill_server(2);
    let mut one = cluster.keeper("one", &["--degraded"]);
    one.mounts();
    assert!(one.said().contains("left out:"), "{}", one.said());
    put(&one.at.join("first"), 1, 300_000);
    let mut alpha = cluster.node("alpha", &[]);
    alpha.mounts();
    has(&alpha.at.join("first"), 1, 300_000);
    put(&alpha.at.join("second"), 2, 300_000);
    let lost = |at: &std::path::Path| {
        let disks = disks_of(&cluster, at);
        disks.iter().filter(|disk| disk["lost"] == true).count()
    };
    assert_eq!((lost(&one.at), lost(&alpha.at)), (1, 1));
    // A node has no metadata to check, and says who has.
    let said = cluster.bench.refused(&["fs", "fsck", &text(&alpha.at)], 1);
    assert!(said.contains("only its keeper can do this"), "{said}");
    cluster.bench.weft(&["fs", "fsck", "--data", &text(&one.at)]);
    cluster.start_server(2);
    let place = cluster.disks[2].clone();
    cluster.bench.weft(&["fs", "add", &text(&one.at), &place]);
    put(&alpha.at.join("third"), 3, 300_000);
    has(&one.at.join("third"), 3, 300_000);
    alpha.ends();
    one.ends();

    // Not degraded: the server has some seconds to come.
    cluster.kill_server(1);
    let mut one = cluster.keeper("one", &[]);
    one.says("waiting:");
    cluster.start_server(1);
    one.mounts();
    has(&one.at.join("second"), 2, 300_000);
    one.ends();
}

#[test]
fn an_etcd_that_is_away_is_waited_for_and_changes_nothing_for_who_is_mounted() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-no-etcd", 2, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    cluster.kill_etcd();
    let mut one = cluster.keeper("one", &[]);
    one.says("waiting:");
    cluster.start_etcd();
    one.mounts();
    let mut alpha = cluster.node("alpha", &[]);
    alpha.mounts();
    cluster.kill_etcd();
    put(&alpha.at.join("alphas"), 1, 300_000);
    has(&one.at.join("alphas"), 1, 300_000);
    let said = cluster.node("beta", &[]).fails();
    assert!(said.contains("check that etcd runs"), "{said}");
    cluster.start_etcd();
    put(&one.at.join("ones"), 2, 300_000);
    has(&alpha.at.join("ones"), 2, 300_000);
    alpha.ends();
    one.ends();
}

#[test]
fn a_node_on_full_disks_is_told_and_goes_on_when_there_is_room() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-full", 2, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &[]);
    one.mounts();
    let mut alpha = cluster.node("alpha", &[]);
    alpha.mounts();
    put(&alpha.at.join("kept"), 1, 300_000);
    let mut count = 0;
    let refused = loop {
        let written =
            fs::File::create(alpha.at.join(format!("large-{count}"))).and_then(|mut to| {
                io::Write::write_all(&mut to, &vec![7; 4 << 20])?;
                to.sync_all()
            });
        match written {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 100, "the disks are full by now");
    };
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull, "{refused}");
    assert!(count > 10, "{count} files");
    has(&one.at.join("kept"), 1, 300_000);
    for n in 0..=count {
        fs::remove_file(one.at.join(format!("large-{n}"))).expect("removed");
    }
    wait_until("room", || {
        let path = alpha.at.join("again");
        fs::write(&path, vec![3; 4 << 20]).and_then(|()| fs::File::open(&path)?.sync_all()).is_ok()
    });
    has(&one.at.join("again"), 3, 4 << 20);
    alpha.ends();
    cluster.bench.weft(&["fs", "fsck", "--data", &text(&one.at)]);
    one.ends();
}

/// Nothing goes by the time of another machine: neither leases nor tokens.
#[test]
fn a_node_whose_clock_is_a_year_off_is_a_node_like_others() {
    if !have(&NEEDS) || !Cluster::has_time_namespaces() {
        return;
    }
    let mut cluster = Cluster::new("cluster-clocks", 2, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &[]);
    one.mounts();
    let mut alpha = cluster.node_a_year_ahead("alpha");
    alpha.mounts();
    put(&alpha.at.join("alphas"), 1, 300_000);
    has(&one.at.join("alphas"), 1, 300_000);
    put(&one.at.join("alphas"), 2, 200_000);
    has(&alpha.at.join("alphas"), 2, 200_000);
    let mut two = cluster.keeper("two", &[]);
    two.says("stands by");
    one.kill9();
    put(&alpha.at.join("after"), 3, 300_000);
    two.mounts();
    has(&two.at.join("after"), 3, 300_000);
    alpha.kill9();
    has(&two.at.join("after"), 3, 300_000);
    put(&two.at.join("after"), 4, 100_000);
    two.ends();
}
