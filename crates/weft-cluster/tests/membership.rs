//! Membership in virtual time: a process joins, becomes the keeper, tells where it listens, hears
//! of members that come and go, and of its own end; records of earlier versions can be read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use weft_cluster::coordinator::MemoryCoordinator;
use weft_cluster::fence::FenceFuture;
use weft_cluster::{
    Coordinator, DiskName, DiskNotes, Fence, FenceError, Incarnation, Membership, Node, NodeConfig,
    NodeError, NodeName, Outlook, Record, Session, Standing, Swap, Version,
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

#[test]
fn a_record_of_a_later_version_is_left_as_it_is() {
    run(|rt, coordinator| async move {
        let mut record = Record::new("home".parse().expect("a name"));
        record.format += 1;
        let swap = coordinator.compare_and_set(Version(0), record.clone()).await;
        assert!(matches!(swap, Ok(Swap::Done(_))), "{swap:?}");
        let one = start(&rt, &coordinator, ("one", 1), Some("10.0.0.1:7"));
        let failure = one.until(|outlook| outlook.failure.clone()).await;
        assert_eq!(failure, NodeError::UnknownFormat(2));
        assert!(failure.to_string().contains("this version of weft does not know"));
        rt.sleep(10 * SECOND).await;
        assert_eq!(one.outlook().view.record, Some(record));
    });
}

/// A disk, and what was asked of it.
struct Spy {
    disk: DiskName,
    is_away: Cell<bool>,
    fenced: RefCell<Vec<Incarnation>>,
}

impl Spy {
    fn new(disk: &str) -> Rc<Self> {
        let disk = disk.parse().expect("a name");
        Rc::new(Self { disk, is_away: Cell::new(false), fenced: RefCell::default() })
    }

    fn done(&self) -> FenceFuture<'_> {
        let unconfirmed =
            || FenceError::Unconfirmed { disk: self.disk.clone(), why: "it is away".into() };
        let is_away = self.is_away.get();
        Box::pin(async move { if is_away { Err(unconfirmed()) } else { Ok(()) } })
    }

    /// Up to which epoch it refuses a node.
    fn refuses(&self, node: &str) -> Option<u64> {
        let fenced = self.fenced.borrow();
        fenced.iter().filter(|of| of.node.as_str() == node).map(|of| of.epoch.0).max()
    }
}

impl Fence for Spy {
    fn disk(&self) -> &DiskName {
        &self.disk
    }

    fn register<'a>(&'a self, _: &'a Incarnation) -> FenceFuture<'a> {
        self.done()
    }

    fn confirm<'a>(&'a self, _: &'a Incarnation) -> FenceFuture<'a> {
        self.done()
    }

    fn fence<'a>(&'a self, _: &'a Incarnation, victim: &'a Incarnation) -> FenceFuture<'a> {
        if !self.is_away.get() {
            self.fenced.borrow_mut().push(victim.clone());
        }
        self.done()
    }
}

fn start_on(
    rt: &Rt,
    coordinator: &Rc<MemoryCoordinator>,
    (name, number): (&str, u64),
    disks: &[Rc<Spy>],
) -> Membership {
    let session = Session { node: name.parse().expect("a name"), number };
    let cluster = "home".parse().expect("a name");
    let address = Some(format!("10.0.0.{number}:7"));
    let config = NodeConfig { cluster, session, disks_min: disks.len(), may_keep: true, address };
    let coordinator: Rc<dyn Coordinator> = coordinator.clone();
    let fences = disks.iter().map(|disk| disk.clone() as Rc<dyn Fence>).collect();
    let node = Node::new(coordinator.clone(), fences, config);
    Membership::start(rt, coordinator, node, LEASE)
}

/// The keeper says that a disk is about to join, and dies. Who follows must fence it there, too.
#[test]
fn a_takeover_waits_for_the_fence_at_a_disk_that_has_joined() {
    run(|rt, coordinator| async move {
        let disks = [Spy::new("d0"), Spy::new("d1")];
        let joined = Spy::new("d2");
        let one = start_on(&rt, &coordinator, ("one", 1), &disks);
        keeps(&one).await;
        let two = start_on(&rt, &coordinator, ("two", 2), &disks);
        two.until(|outlook| matches!(outlook.standing, Standing::Member(_)).then_some(())).await;
        let note = |notes: &mut DiskNotes| {
            for disk in disks.iter().chain([&joined]) {
                notes.disks.insert(disk.disk.clone(), format!("nbd://s/{}", disk.disk));
            }
            notes.away.insert("d9".parse().expect("a name"), "nbd://s/d9".into());
        };
        assert_eq!(one.node().note_disks(note).await, Ok(true));
        assert_eq!(two.node().note_disks(note).await, Ok(false), "it is not the keeper");
        one.node().join_disk(joined.clone()).await.expect("joined");
        drop(one);
        // It has not heard of the disk, and is no keeper without that.
        let failure = two.until(|outlook| outlook.failure.clone()).await;
        let NodeError::TooFewDisks { lost, .. } = &failure else { panic!("{failure:?}") };
        assert_eq!(lost, "d2");
        assert_eq!(joined.refuses("one"), None);
        two.node().join_disk(joined.clone()).await.expect("joined");
        keeps(&two).await;
        assert_eq!((joined.refuses("one"), disks[0].refuses("one")), (Some(1), Some(1)));
        let record = two.outlook().view.record.expect("a record");
        assert_eq!((record.disks.len(), record.away.len()), (3, 1), "as one has said");
        // The disk leaves, and its server ends: nothing waits for it.
        let leaves = |notes: &mut DiskNotes| drop(notes.disks.remove(&joined.disk));
        assert_eq!(two.node().note_disks(leaves).await, Ok(true));
        two.node().forget_disk(&joined.disk);
        joined.is_away.set(true);
        let one = start_on(&rt, &coordinator, ("one", 3), &disks);
        one.until(|outlook| matches!(outlook.standing, Standing::Member(_)).then_some(())).await;
        drop(two);
        keeps(&one).await;
        // It comes back: it refuses all that were fenced while it was away.
        joined.is_away.set(false);
        one.node().join_disk(joined.clone()).await.expect("joined");
        one.node().clear_disk(&*joined).await.expect("cleared");
        let record = one.outlook().view.record.expect("a record");
        let own = record.members[&"one".parse::<NodeName>().expect("a name")].epoch.0;
        assert_eq!(joined.refuses("two"), Some(record.epoch.0));
        assert_eq!(joined.refuses("one"), Some(own - 1), "not the keeper itself");
    });
}
