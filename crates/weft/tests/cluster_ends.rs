//! Processes of a cluster that are asked to end while what they need for that is away: each says
//! what it waits for, ends, and loses nothing that was synced.

use weft_testkit::have;

use crate::cluster::{has, put};
use crate::common::cluster::{Cluster, NEEDS};

const DISK: u64 = 96 << 20;

#[test]
fn nodes_end_without_a_keeper() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-ends", 2, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &[]);
    one.mounts();
    let mut alpha = cluster.node("alpha", &["--stop-timeout", "3s"]);
    let mut beta = cluster.node("beta", &[]);
    alpha.mounts();
    beta.mounts();
    put(&alpha.at.join("alphas"), 1, 300_000);
    put(&beta.at.join("betas"), 2, 300_000);
    one.ends();

    // One that is stopped gives up by itself.
    alpha.terminate();
    let said = alpha.fails();
    assert!(said.contains("waiting at most 3.0 s for a keeper"), "{said}");
    assert!(said.contains("there is no keeper: the mount has ended"), "{said}");
    assert!(said.contains("what was synced is safe"), "{said}");
    // One that was unmounted ends when it is asked to.
    // (`umount` asks for attributes of the folder first, and waits as any program.)
    rustix::mount::unmount(&beta.at, rustix::mount::UnmountFlags::NOFOLLOW).expect("unmounted");
    beta.says("waiting at most 1 min 0 s for a keeper");
    beta.terminate();
    let said = beta.fails();
    assert!(said.contains("a signal has ended it"), "{said}");
    // So does one that waits to be mounted, and it leaves the cluster.
    let mut gamma = cluster.node("gamma", &[]);
    gamma.says("waiting: there is no keeper");
    gamma.terminate();
    let said = gamma.fails();
    assert!(said.contains("before it was mounted"), "{said}");
    assert!(!cluster.status()["members"].to_string().contains("gamma"), "it has left");

    let mut one = cluster.keeper("one", &[]);
    one.mounts();
    has(&one.at.join("alphas"), 1, 300_000);
    has(&one.at.join("betas"), 2, 300_000);
    let mut alpha = cluster.node("alpha", &[]);
    alpha.mounts();
    has(&alpha.at.join("betas"), 2, 300_000);
    alpha.ends();
    one.ends();
}

#[test]
fn keepers_end_without_etcd_and_disks() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-keeper-ends", 2, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &[]);
    one.mounts();
    put(&one.at.join("file"), 1, 300_000);
    let mut two = cluster.keeper("two", &[]);
    two.says("stands by");
    cluster.kill_etcd();
    two.terminate();
    let said = two.fails();
    assert!(said.contains("nothing is lost"), "{said}");
    // Its disks answer nothing; programs wait, and so does an end in order.
    cluster.pause_servers();
    one.terminate();
    std::thread::sleep(std::time::Duration::from_secs(1));
    one.terminate();
    let said = one.fails();
    assert!(said.contains("it could not end in order, and has ended at once"), "{said}");

    cluster.resume_servers();
    cluster.start_etcd();
    let mut one = cluster.keeper("one", &[]);
    one.mounts();
    has(&one.at.join("file"), 1, 300_000);
    one.ends();
}
