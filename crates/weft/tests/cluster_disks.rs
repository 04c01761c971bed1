//! Disks of a cluster: a server that is killed and started again costs a pause, and no disk.

use weft_testkit::have;

use crate::cluster::{disks_of, has, put};
use crate::common::cluster::{Cluster, NEEDS};

const DISK: u64 = 96 << 20;

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
