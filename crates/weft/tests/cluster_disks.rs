//! Disks of a cluster: a server that is killed and started again costs a pause, and no disk. One
//! that was lost as its server was away for longer is taken back, by the next keeper as well.

use std::path::Path;

use weft_testkit::{have, wait_until};

use crate::cluster::{disks_of, has, put};
use crate::common::cluster::{Cluster, Member, NEEDS};

const DISK: u64 = 96 << 20;
/// What processes are given that do not wait long for a disk.
const IMPATIENT: [&str; 2] = ["--disk-patience", "2s"];

#[test]
fn a_disk_outlasts_its_server_at_the_keeper_and_at_nodes() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-disk-servers", 3, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let with = ["--disk-patience", "60s"];
    let mut one = cluster.keeper("one", &with);
    one.mounts();
    let mut alpha = cluster.node("alpha", &with);
    alpha.mounts();
    put(&one.at.join("keepers"), 1, 300_000);
    put(&alpha.at.join("alphas"), 2, 300_000);
    for number in 0..3_u8 {
        cluster.kill_server(number.into());
        let name = format!("while-{number}");
        let (at_alpha, at_one) = (alpha.at.join(&name), one.at.join(format!("{name}-too")));
        let writes = [(at_alpha.clone(), number), (at_one.clone(), number + 10)];
        let writers =
            writes.map(|(path, byte)| std::thread::spawn(move || put(&path, byte, 400_000)));
        cluster.start_server(number.into());
        for writer in writers {
            writer.join().expect("it was written");
        }
        has(&one.at.join(&name), number, 400_000);
        has(&alpha.at.join(format!("{name}-too")), number + 10, 400_000);
    }
    let disks = disks_of(&cluster, &one.at);
    assert!(disks.len() == 3 && disks.iter().all(|disk| disk["lost"] == false), "{disks:?}");
    has(&one.at.join("alphas"), 2, 300_000);
    alpha.ends();
    cluster.bench.weft(&["fs", "fsck", "--data", &crate::common::text(&one.at)]);
    one.ends();
}

/// The loss has to be seen first: by the keeper or by a node.
#[test]
fn a_disk_that_was_lost_with_its_server_is_taken_back_when_that_is_there_again() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-back", 3, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &IMPATIENT);
    one.mounts();
    let mut alpha = cluster.node("alpha", &IMPATIENT);
    alpha.mounts();
    put(&alpha.at.join("before"), 1, 3_000_000);
    cluster.kill_server(2);
    put(&alpha.at.join("without"), 2, 3_000_000);
    one.says("is lost and not used any more");
    cluster.start_server(2);
    one.says("is back, as disk 3");
    put(&alpha.at.join("with"), 3, 3_000_000);
    for (name, byte) in [("before", 1), ("without", 2), ("with", 3)] {
        has(&one.at.join(name), byte, 3_000_000);
        has(&alpha.at.join(name), byte, 3_000_000);
    }
    let disks = disks_of(&cluster, &alpha.at);
    assert!(disks.iter().any(|disk| disk["number"] == 3 && disk["lost"] == false), "{disks:?}");
    alpha.ends();
    cluster.bench.weft(&["fs", "fsck", "--data", &crate::common::text(&one.at)]);
    one.ends();
}

impl Cluster {
    /// A keeper that stands by, and takes over beside disks that are away.
    fn second_keeper(&mut self) -> Member {
        let with = [&IMPATIENT[..], &["--degraded"]].concat();
        let mut two = self.start("two", &["keeper", "home"], &with);
        two.says("stands by");
        two
    }

    fn away(&self) -> usize {
        self.status()["away"].as_array().expect("listed").len()
    }
}

/// Contents of files in the folder of a node.
fn have_all(at: &Path, files: &[(&str, u8)]) {
    for (name, byte) in files {
        has(&at.join(name), *byte, 3_000_000);
    }
}

#[test]
fn a_disk_that_one_keeper_lost_with_its_server_is_taken_back_by_the_next() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-back-later", 3, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &IMPATIENT);
    one.mounts();
    let mut two = cluster.second_keeper();
    let mut alpha = cluster.node("alpha", &IMPATIENT);
    alpha.mounts();
    put(&alpha.at.join("before"), 1, 3_000_000);
    put(&alpha.at.join("changes"), 2, 3_000_000);
    cluster.kill_server(2);
    put(&alpha.at.join("without"), 3, 3_000_000);
    one.says("is lost and not used any more");
    wait_until("the next keeper can know of it", || cluster.away() == 1);
    one.kill9();
    two.says("keeps");
    put(&alpha.at.join("changes"), 4, 3_000_000);
    assert_eq!(cluster.away(), 1, "it goes on waiting for it");
    cluster.start_server(2);
    two.says("is back, as disk 3");
    put(&alpha.at.join("with"), 5, 3_000_000);
    have_all(&alpha.at, &[("before", 1), ("changes", 4), ("without", 3), ("with", 5)]);
    wait_until("no disk is away", || cluster.away() == 0);
    assert_eq!(cluster.status()["disks"].as_array().map(Vec::len), Some(3));
    alpha.ends();
    two.ends();
}

/// Its machine may have had the server.
#[test]
fn a_disk_whose_server_dies_with_the_keeper_is_taken_back_by_the_next() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-back-both", 3, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &IMPATIENT);
    one.mounts();
    let mut two = cluster.second_keeper();
    let mut alpha = cluster.node("alpha", &IMPATIENT);
    alpha.mounts();
    put(&alpha.at.join("before"), 1, 3_000_000);
    put(&alpha.at.join("changes"), 2, 3_000_000);
    cluster.kill_server(2);
    one.kill9();
    two.says("keeps");
    put(&alpha.at.join("changes"), 3, 3_000_000);
    cluster.start_server(2);
    two.says("is back, as disk 3");
    put(&alpha.at.join("with"), 4, 3_000_000);
    have_all(&alpha.at, &[("before", 1), ("changes", 3), ("with", 4)]);
    alpha.ends();
    two.ends();
}
