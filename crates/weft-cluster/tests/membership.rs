//! Membership in virtual time: a process joins, becomes the keeper, tells where it listens, hears
//! of members that come and go, and of its own end; records of earlier versions can be read.

use std::rc::Rc;

use weft_cluster::coordinator::MemoryCoordinator;
use weft_cluster::{
    Coordinator, Fence, Membership, Node, NodeConfig, NodeError, Outlook, Record, Session,
    Standing, Swap, Version,
};
use weft_rt::{Nanos, Rt, SECOND, Schedule, virtual_rt};

const LEASE: Nanos = 5 * SECOND;

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rt, Rc<MemoryCoordinator>) -> F) {
    let rt = virtual_rt(Schedule::Fifo);
    let coordinator = Rc::new(MemoryCoordinator::new(&rt, LEASE));
    rt.block_on(test(rt.clone(), coordinator));
    rt.kill_all();
}

fn start(
    rt: &Rt,
    coordinator: &Rc<MemoryCoordinator>,
    (name, number): (&str, u64),
    address: Option<&str>,
) -> Membership {
    let session = Session { node: name.parse().expect("a name"), number };
    let config = NodeConfig {
        cluster: "home".parse().expect("a name"),
        session,
        disks_min: 0,
        may_keep: address.is_some(),
        address: address.map(str::to_owned),
    };
    let coordinator: Rc<dyn Coordinator> = coordinator.clone();
    let node = Node::new(coordinator.clone(), Vec::<Rc<dyn Fence>>::new(), config);
    Membership::start(rt, coordinator, node, LEASE)
}

async fn keeps(membership: &Membership) {
    let is_keeper = |outlook: &Outlook| matches!(outlook.standing, Standing::Keeper { .. });
    membership.until(|outlook| is_keeper(outlook).then_some(())).await;
}

fn has(outlook: &Outlook, name: &str) -> bool {
    let record = outlook.view.record.as_ref();
    record.is_some_and(|record| record.members.keys().any(|node| node.as_str() == name))
}

#[test]
fn a_standby_takes_over_and_nodes_hear_where_it_listens() {
    run(|rt, coordinator| async move {
        let one = start(&rt, &coordinator, ("one", 1), Some("10.0.0.1:7"));
        keeps(&one).await;
        let two = start(&rt, &coordinator, ("two", 2), Some("10.0.0.2:7"));
        let node = start(&rt, &coordinator, ("node", 3), None);
        let at = |membership: &Membership| membership.outlook().keeper_address().map(str::to_owned);
        node.until(|outlook| outlook.keeper_address().map(drop)).await;
        assert_eq!(at(&node).as_deref(), Some("10.0.0.1:7"));
        one.until(|outlook| (has(outlook, "two") && has(outlook, "node")).then_some(())).await;

        // It dies: no more signs of life.
        let begun = rt.now();
        drop(one);
        keeps(&two).await;
        assert!(rt.now() - begun < 2 * LEASE, "{}", rt.now() - begun);
        node.until(|outlook| (outlook.keeper_address() == Some("10.0.0.2:7")).then_some(())).await;
        assert!(!has(&node.outlook(), "one"));

        // A node dies, and comes back under its number.
        let number = |membership: &Membership| {
            let record = membership.outlook().view.record.expect("a record");
            record.numbers[&"node".parse().expect("a name")]
        };
        let before = number(&two);
        drop(node);
        two.until(|outlook| (!has(outlook, "node")).then_some(())).await;
        let node = start(&rt, &coordinator, ("node", 4), None);
        two.until(|outlook| has(outlook, "node").then_some(())).await;
        assert_eq!(number(&two), before);
        // In order it leaves at once.
        let begun = rt.now();
        node.until(|outlook| matches!(outlook.standing, Standing::Member(_)).then_some(())).await;
        node.end().await.expect("it has left");
        two.until(|outlook| (!has(outlook, "node")).then_some(())).await;
        assert!(rt.now() - begun < 2 * SECOND);
    });
}

#[test]
fn who_is_evicted_or_has_a_taken_name_hears_of_it() {
    run(|rt, coordinator| async move {
        let one = start(&rt, &coordinator, ("one", 1), Some("10.0.0.1:7"));
        keeps(&one).await;
        let node = start(&rt, &coordinator, ("node", 2), None);
        node.until(|outlook| matches!(outlook.standing, Standing::Member(_)).then_some(())).await;
        let same = start(&rt, &coordinator, ("node", 3), None);
        let failure = same.until(|outlook| outlook.failure.clone()).await;
        assert!(matches!(failure, NodeError::NameTaken(_)), "{failure}");
        drop(same);
        let view = coordinator.read().await.expect("an answer");
        let mut record = view.record.expect("a record");
        record.expel(&"node".parse().expect("a name"));
        let swap = coordinator.compare_and_set(view.version, record).await;
        assert!(matches!(swap, Ok(Swap::Done(_))), "{swap:?}");
        node.expelled().await;
        // The keeper has fenced it.
        one.until(|outlook| {
            outlook
                .view
                .record
                .as_ref()
                .is_some_and(|record| record.fencing.is_empty())
                .then_some(())
        })
        .await;
    });
}

#[test]
fn records_of_earlier_versions_are_read_and_completed() {
    let old = r#"{"format":1,"cluster":"home","epoch":4,
        "keeper":{"node":{"node":"one","epoch":3},"term":4,"active":true},
        "members":{"one":{"epoch":3,"session":1}},"fencing":{},"lost_disks":{}}"#;
    let record: Record = serde_json::from_str(old).expect("it is understood");
    assert!(record.is_understood() && record.numbers.is_empty());
    run(|rt, coordinator| async move {
        let swap = coordinator.compare_and_set(Version(0), record).await;
        assert!(matches!(swap, Ok(Swap::Done(_))), "{swap:?}");
        // The same process, after an upgrade in place of its address.
        let one = start(&rt, &coordinator, ("one", 1), Some("10.0.0.1:7"));
        keeps(&one).await;
        one.until(|outlook| outlook.keeper_address().map(drop)).await;
        let two = start(&rt, &coordinator, ("two", 2), None);
        two.until(|outlook| matches!(outlook.standing, Standing::Member(_)).then_some(())).await;
        let record = two.outlook().view.record.expect("a record");
        assert_eq!(record.numbers.values().copied().collect::<Vec<_>>(), [1]);
    });
}
