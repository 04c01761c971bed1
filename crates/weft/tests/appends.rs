//! Lines that programs on several nodes append to shared files have one order, which all of them
//! see, and those that were synced are there, once, whichever keeper or node dies meanwhile.

use weft_testkit::{Rng, have, wait_until};

use crate::common::append_load::{AppendLoad, Seat};
use crate::common::cluster::{Cluster, NEEDS};

const DISK: u64 = 96 << 20;

#[test]
fn lines_that_all_nodes_append_have_one_order_whoever_dies() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-appends", 3, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &[]);
    one.mounts();
    let mut two = cluster.keeper("two", &[]);
    two.says("stands by");
    let mut alpha = cluster.node("alpha", &[]);
    let mut beta = cluster.node("beta", &[]);
    alpha.mounts();
    beta.mounts();
    let seats = [&alpha, &beta, &one, &two];
    let names = ["alpha", "beta", "one", "two"];
    let seats: Vec<_> =
        seats.iter().zip(names).map(|(member, name)| Seat::new(name, &member.at)).collect();
    seats[..3].iter().for_each(|seat| seat.set_sound(true));
    let load = AppendLoad::start(&seats, "lists", 2, &mut Rng::new(1));
    let more = |what: &str| {
        let target = load.acknowledged() + 60;
        wait_until(what, || {
            assert_eq!(load.faults(), Vec::<String>::new(), "{what}");
            load.acknowledged() >= target
        });
    };
    more("lines of all");
    seats[2].set_sound(false);
    one.kill9();
    two.mounts();
    seats[3].set_sound(true);
    more("lines after a takeover");
    seats[1].set_sound(false);
    beta.kill9();
    more("lines after a node's death");
    let mut beta = cluster.node("beta", &[]);
    beta.mounts();
    seats[1].set_sound(true);
    more("lines of all that are left");
    let summary = load.finish().unwrap_or_else(|faults| panic!("{}", faults.join("\n")));
    assert!(summary.lines >= 240 && summary.reads > 60, "{summary:?}");
    alpha.ends();
    beta.ends();
    two.ends();
}
