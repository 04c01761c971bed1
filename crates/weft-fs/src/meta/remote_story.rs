//! Node and keeper with a network between them: random changes, commits, crashes of either, and
//! connections that end, as [`super::story`] has them in one process as well; and what the keeper
//! makes of messages that no node sends.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use weft_array::Array;
use weft_disk::IoFuture;
use weft_rt::{MILLISECOND, Rt, SECOND};
use weft_testkit::for_seeds;
use weft_token::{NodeId, ToAuthority};
use weft_wire::{
    Answer, End, Frames, FromKeeper, GiveBack, LockWish, Part, Question, Restated, RoomWish,
    ToKeeper, VERSION,
};

use super::desk::{AskBack, Deliver, Desk};
use super::network::{Canary, Network};
use super::old_way::OldWay;
use super::remote::RemoteKeeper;
use super::rows::{RowChange, RowKey, TableId, all};
use super::story::{ID, Site, story};
use super::stream::{Connector, Stream};
use super::tests::with_rt_and_array;
use super::{Meta, NEXT_INODE};

/// A desk that knows of no tokens.
struct NoDesk;

impl Desk for NoDesk {
    fn log(&self, _: NodeId) -> IoFuture<'static, Answer> {
        Box::pin(async { Answer::Log(Some("no node mounts".to_owned())) })
    }

    fn disks_changed(&self) {}

    fn reached(&self, _: NodeId, _: AskBack) {}

    fn room(&self, _: NodeId, _: RoomWish) -> IoFuture<'static, Option<Answer>> {
        Box::pin(async { None })
    }

    fn take_back(&self, _: NodeId, _: GiveBack) -> Option<Answer> {
        None
    }

    fn lock(&self, _: NodeId, _: LockWish) -> IoFuture<'static, Option<Answer>> {
        Box::pin(async { None })
    }

    fn restated(&self, _: NodeId, _: Restated, _: Deliver) -> Result<(), Option<String>> {
        Ok(())
    }

    fn take(&self, _: NodeId, _: ToAuthority) {}

    fn left(&self, _: NodeId) {}
}

fn network(rt: &Rt, seed: u64, canary: Canary) -> Rc<Network> {
    let network = Network::new(rt, ID.0, 1 << 20, seed, canary);
    network.on_start(|keeper| keeper.set_desk(Rc::new(NoDesk)));
    network
}

/// A keeper behind a network with trouble.
struct Remote {
    rt: Rt,
    array: Array,
    network: Rc<Network>,
    /// Where the trouble comes from.
    storm: RefCell<Option<Rt>>,
    epoch: Cell<u64>,
}

impl Remote {
    fn new(rt: &Rt, array: &Array, seed: u64, canary: Canary) -> Self {
        let network = network(rt, seed, canary);
        let (storm, epoch) = (RefCell::default(), Cell::new(0));
        Self { rt: rt.clone(), array: array.clone(), network, storm, epoch }
    }

    async fn node(&self, cache: u64) -> Meta {
        self.epoch.set(self.epoch.get() + 1);
        let node = NodeId { number: 3, epoch: self.epoch.get() };
        let keeper = RemoteKeeper::open(&self.rt, self.network.clone(), ID, node).await;
        let keeper = keeper.expect("connected");
        Meta::open_remote(Some(self.array.clone()), ID, keeper, cache).await.expect("opened")
    }

    fn calm(&self) {
        self.storm.take().iter().for_each(Rt::fail_domain);
    }
}

impl Site for Remote {
    async fn open(&self, cache: u64) -> Meta {
        self.network.start(&self.array).await;
        let storm = self.rt.domain(|| {});
        drop(storm.spawn(self.network.clone().storm(60 * MILLISECOND)));
        *self.storm.borrow_mut() = Some(storm);
        self.node(cache).await
    }

    async fn reopen(&self, cache: u64, lives_on: bool) -> Meta {
        self.calm();
        if !lives_on {
            self.network.kill().await;
        }
        // What was in flight has ended.
        self.rt.sleep(SECOND).await;
        self.network.start(&self.array).await;
        let meta = self.node(cache).await;
        if !lives_on {
            // What the database itself has is looked at.
            drop(meta);
            self.network.kill().await;
            return Meta::open(self.array.clone(), ID, cache).await.expect("opened");
        }
        meta
    }
}

/// Returns how often connections were cut, and keepers started.
fn run(seed: u64, canary: Canary) -> (u64, u64) {
    let counts = Rc::new(Cell::new((0, 0)));
    let given = counts.clone();
    with_rt_and_array(move |rt, array| async move {
        let site = Remote::new(&rt, &array, seed, canary);
        story(array, &site, seed).await;
        site.calm();
        given.set((site.network.cuts.get(), site.network.keepers.get()));
    });
    counts.get()
}

#[test]
fn nothing_durable_is_lost_over_a_network_and_a_crash_leaves_whole_batches() {
    let counts = Cell::new((0, 0, 0));
    for_seeds(0..20, |rng| {
        let (cuts, keepers) = run(rng.next_u64(), Canary::None);
        let (seeds, all_cuts, all_keepers) = counts.get();
        counts.set((seeds + 1, all_cuts + cuts, all_keepers + keepers));
    });
    let (seeds, cuts, keepers) = counts.get();
    assert!(cuts > 20 * seeds && keepers > 10 * seeds, "{cuts} cuts, {keepers} keepers");
}

/// A network that breaks one rule must be found out.
fn is_caught(canary: Canary) {
    let is_found = |seed: &u64| catch_unwind(AssertUnwindSafe(|| run(*seed, canary))).is_err();
    let seed = (0..40).find(is_found);
    eprintln!("{canary:?} found out by seed {}", seed.expect("it was not found out"));
}

#[test]
fn a_part_that_is_lost_is_caught() {
    is_caught(Canary::PartLost);
}

#[test]
fn a_batch_that_is_applied_twice_is_caught() {
    is_caught(Canary::BatchRepeated);
}

#[test]
fn a_batch_that_counts_as_durable_too_early_is_caught() {
    is_caught(Canary::DurableEarly);
}

/// A node that speaks for itself.
struct Speaker {
    stream: Rc<dyn Stream>,
    frames: Frames,
}

impl Speaker {
    async fn new(network: &Network) -> Self {
        let stream = network.connect().await.expect("connected");
        Self { stream, frames: Frames::default() }
    }

    async fn tell(&mut self, message: &ToKeeper) -> Option<FromKeeper> {
        self.stream.write(message.to_bytes()).await.ok()?;
        self.hear().await
    }

    async fn hear(&mut self) -> Option<FromKeeper> {
        loop {
            match FromKeeper::next(&mut self.frames).expect("sound") {
                Some(FromKeeper::Room(_)) => {}
                Some(message) => return Some(message),
                None => match self.stream.read().await.expect("bytes or the end") {
                    bytes if bytes.is_empty() => return None,
                    bytes => self.frames.push(&bytes),
                },
            }
        }
    }

    async fn hello(&mut self, number: u16, epoch: u64) -> Option<FromKeeper> {
        let node = NodeId { number, epoch };
        self.tell(&ToKeeper::Hello { version: VERSION, file_system: ID.0, node }).await
    }

    /// The batch that comes next.
    async fn welcome(network: &Network, number: u16, epoch: u64) -> (Self, u64) {
        let mut speaker = Self::new(network).await;
        let next_batch = match speaker.hello(number, epoch).await {
            Some(FromKeeper::Welcome { next_batch, .. }) => next_batch,
            other => panic!("{other:?}"),
        };
        let all = ToKeeper::Restate(Restated { is_last: true, ..Restated::default() });
        speaker.stream.write(all.to_bytes()).await.expect("sent");
        (speaker, next_batch)
    }

    async fn ask(&mut self, question: Question) -> Option<Answer> {
        match self.tell(&ToKeeper::Ask { number: 1, question }).await? {
            FromKeeper::Answer { answer, .. } => Some(answer),
            other => panic!("{other:?}"),
        }
    }

    async fn part(&mut self, batch: u64, rows: Vec<RowChange>) -> Option<Answer> {
        self.ask(Question::Part(Part { batch, rows })).await
    }

    async fn end(&mut self, batch: u64) -> Option<Answer> {
        self.ask(Question::End(End { batch, is_last: false })).await
    }

    async fn count(&mut self) -> u64 {
        match self.ask(Question::Count { table: TableId::Bad }).await {
            Some(Answer::Count { rows, .. }) => rows,
            other => panic!("{other:?}"),
        }
    }
}

fn change(table: TableId, key: RowKey<'static>, value: &[u8]) -> RowChange {
    RowChange { table, key, value: Some(value.into()) }
}

fn bad(block: u64) -> Vec<RowChange> {
    vec![change(TableId::Bad, RowKey::pair(0, block), &[])]
}

fn with_keeper<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(Rt, Rc<Network>) -> F + 'static,
) {
    with_rt_and_array(|rt, array| async move {
        let meta = Meta::create(array.clone(), ID, 1 << 20).await.expect("made");
        meta.commit(|tx| tx.set_state(NEXT_INODE, 100)).await.expect("committed");
        meta.checkpoint().await.expect("written");
        drop(meta);
        let network = network(&rt, 1, Canary::None);
        network.start(&array).await;
        test(rt, network).await;
    });
}

#[test]
fn a_connection_that_ends_takes_its_parts_along_and_a_batch_ends_once() {
    with_keeper(|_, network| async move {
        let (mut first, batch) = Speaker::welcome(&network, 1, 1).await;
        assert_eq!(first.part(batch, bad(1)).await, Some(Answer::Taken));
        let (mut second, again) = Speaker::welcome(&network, 1, 1).await;
        assert_eq!(again, batch);
        assert_eq!(first.end(batch).await, None, "it has another connection");
        assert_eq!(second.part(batch, bad(2)).await, Some(Answer::Taken));
        assert_eq!(second.end(batch).await, Some(Answer::Durable));
        assert_eq!(second.count().await, 1);
        // Its answer may have been lost.
        let (mut third, next) = Speaker::welcome(&network, 1, 1).await;
        assert_eq!(next, batch + 1);
        assert_eq!(third.part(batch, bad(3)).await, Some(Answer::Taken));
        assert_eq!(third.end(batch).await, Some(Answer::Durable));
        assert_eq!(third.count().await, 1, "it was applied before");
        assert_eq!(third.part(batch + 2, bad(4)).await, None, "one lies between");
        // The end comes after the connection is cut, with no part before it.
        let (first, batch) = Speaker::welcome(&network, 2, 1).await;
        let part = Question::Part(Part { batch, rows: bad(7) });
        let end = Question::End(End { batch, is_last: false });
        for question in [part, end] {
            let asked = ToKeeper::Ask { number: 1, question };
            first.stream.write(asked.to_bytes()).await.expect("sent");
        }
        first.stream.close();
        let (mut second, again) = Speaker::welcome(&network, 2, 1).await;
        assert_eq!(second.count().await, 1 + again - batch, "all of it or nothing");
    });
}

#[test]
fn a_node_that_is_silent_does_not_hold_the_others_up() {
    with_keeper(|rt, network| async move {
        let (mut silent, batch) = Speaker::welcome(&network, 1, 1).await;
        assert_eq!(silent.part(batch, bad(1)).await, Some(Answer::Taken));
        let begin = rt.now();
        let (mut other, batch) = Speaker::welcome(&network, 2, 1).await;
        assert_eq!(other.part(batch, bad(2)).await, Some(Answer::Taken));
        assert!((9 * SECOND..11 * SECOND).contains(&(rt.now() - begin)));
        assert_eq!(other.end(batch).await, Some(Answer::Durable));
        assert_eq!(silent.end(batch).await, None, "its part is gone");
        assert_eq!(other.count().await, 1);
    });
}

#[test]
fn a_long_batch_is_not_cut_and_silence_counts_from_its_last_part() {
    with_keeper(|rt, network| async move {
        let (mut slow, batch) = Speaker::welcome(&network, 1, 1).await;
        let (mut other, others) = Speaker::welcome(&network, 2, 1).await;
        assert_eq!(slow.part(batch, bad(0)).await, Some(Answer::Taken));
        // The other one waits for its turn from now on.
        let question = Question::Part(Part { batch: others, rows: bad(100) });
        let asked = ToKeeper::Ask { number: 1, question };
        other.stream.write(asked.to_bytes()).await.expect("sent");
        for part in 1..10 {
            rt.sleep(4 * SECOND).await;
            assert_eq!(slow.part(batch, bad(part)).await, Some(Answer::Taken), "part {part}");
        }
        assert_eq!(slow.end(batch).await, Some(Answer::Durable));
        assert!(matches!(other.hear().await, Some(FromKeeper::Answer { .. })), "its turn");
        assert_eq!(other.end(others).await, Some(Answer::Durable));
        assert_eq!(other.count().await, 11);
        // It says nothing for nine seconds before anyone waits for it.
        assert_eq!(slow.part(batch + 1, bad(200)).await, Some(Answer::Taken));
        rt.sleep(9 * SECOND).await;
        let begin = rt.now();
        assert_eq!(other.part(others + 1, bad(101)).await, Some(Answer::Taken));
        assert!(rt.now() - begin < 2 * SECOND, "{}", rt.now() - begin);
    });
}

#[test]
fn a_node_is_told_only_numbers_of_batches_that_are_durable() {
    with_keeper(|rt, network| async move {
        let array = network.array();
        let mut told = 0;
        for pause in 0..400 {
            let (other, others) = Speaker::welcome(&network, 2, 1).await;
            let (speaker, batch) = Speaker::welcome(&network, 1, 1).await;
            assert!(batch >= told, "batch {told} was there, and now {batch} comes next");
            // The epochs of the other one are being written when those of this one come.
            for (speaker, batch) in [(&other, others), (&speaker, batch)] {
                let part = Question::Part(Part { batch, rows: bad(batch) });
                let end = Question::End(End { batch, is_last: false });
                for question in [part, end] {
                    let asked = ToKeeper::Ask { number: 1, question };
                    speaker.stream.write(asked.to_bytes()).await.expect("sent");
                }
            }
            rt.sleep(pause * MILLISECOND / 20).await;
            // It comes again while its batch becomes durable, and then the keeper dies.
            (_, told) = Speaker::welcome(&network, 1, 1).await;
            network.kill().await;
            network.start(&array).await;
        }
        assert!(told > 100, "{told} batches");
    });
}

#[test]
fn no_later_keeper_takes_a_batch_of_an_earlier_mount() {
    with_keeper(|_, network| async move {
        let array = network.array();
        let refused = async |epoch| match Speaker::new(&network).await.hello(1, epoch).await {
            Some(FromKeeper::Refused(why)) => why,
            other => panic!("{other:?}"),
        };
        let (mut first, batch) = Speaker::welcome(&network, 1, 1).await;
        let (mut second, same) = Speaker::welcome(&network, 1, 2).await;
        assert_eq!((same, first.end(batch).await), (batch, None));
        network.kill().await;
        network.start(&array).await;
        assert!(refused(1).await.contains("is fenced, or has been mounted once more"));
        assert_eq!(second.end(batch).await, None, "its keeper is dead");
        let (mut second, _) = Speaker::welcome(&network, 1, 2).await;
        assert_eq!(second.part(batch, bad(1)).await, Some(Answer::Taken));
        // It is dead from now on: its connection ends, with its batch, and for ever.
        let dead = NodeId { number: 1, epoch: 2 };
        let fenced = network.at_keeper(move |keeper| async move { keeper.fence(dead).await });
        fenced.await.expect("it lives").expect("durable");
        assert_eq!(second.end(batch).await, None);
        assert!(refused(2).await.contains("is fenced, or has been mounted once more"));
        network.kill().await;
        network.start(&array).await;
        assert!(refused(2).await.contains("is fenced, or has been mounted once more"));
        let (mut third, same) = Speaker::welcome(&network, 1, 3).await;
        assert_eq!((same, third.count().await), (batch, 0));
    });
}

#[test]
fn messages_that_no_node_sends_end_the_connection_and_nothing_else() {
    with_keeper(|_, network| async move {
        let refused = async |file_system: [u8; 16], epoch| {
            let node = NodeId { number: 1, epoch };
            let mut speaker = Speaker::new(&network).await;
            match speaker.tell(&ToKeeper::Hello { version: VERSION, file_system, node }).await {
                Some(FromKeeper::Refused(why)) => why,
                other => panic!("{other:?}"),
            }
        };
        let (mut late, _) = Speaker::welcome(&network, 1, 7).await;
        assert!(refused([1; 16], 7).await.contains("another file system"));
        assert!(refused(ID.0, 6).await.contains("is fenced, or has been mounted once more"));
        assert_eq!(late.count().await, 0, "it was not disturbed");
        let named = |name: &'static [u8]| RowKey { first: 0, name: Cow::Borrowed(name), second: 0 };
        let unsorted = [bad(2), bad(1)].concat();
        for rows in [
            unsorted,
            [bad(1), bad(1)].concat(),
            vec![change(TableId::State, named(&[255]), &[0; 8])],
            vec![change(TableId::State, named(b"x"), &[0; 7])],
            vec![change(TableId::Names, named(b"x"), &[0; 8])],
            vec![change(TableId::Inodes, named(b"x"), &[0; 8])],
            vec![change(TableId::Bad, RowKey::pair(0, 1), &[1])],
            vec![change(TableId::Xattrs, named(&[1; 2000]), &[1])],
            vec![change(TableId::Xattrs, named(b"x"), &[0; 100_000])],
        ] {
            let (mut speaker, batch) = Speaker::welcome(&network, 2, 1).await;
            assert_eq!(speaker.part(batch, rows.clone()).await, None, "{rows:?}");
        }
        let (mut speaker, _) = Speaker::welcome(&network, 2, 1).await;
        let row = Question::Row { table: TableId::State, key: named(&[255]) };
        assert_eq!(speaker.ask(row).await, None);
        let (mut speaker, _) = Speaker::welcome(&network, 2, 1).await;
        let (table, range) = (TableId::State, all());
        let rows = Question::Rows { table, range, is_backward: false, max: u32::MAX };
        let rows = speaker.ask(rows).await;
        assert!(matches!(&rows, Some(Answer::Rows { is_end: true, .. })), "{rows:?}");
        assert_eq!(speaker.hello(2, 1).await, None, "it has said so");
        for garbage in [vec![0; 100], vec![255; 12], b"GET / HTTP/1.1\r\n\r\n".to_vec()] {
            let mut speaker = Speaker::new(&network).await;
            speaker.stream.write(garbage).await.expect("sent");
            assert_eq!(speaker.hear().await, None);
        }
        assert_eq!(late.count().await, 0);
    });
}

/// It would be the same on each connection, and the node would ask for ever.
#[test]
fn a_node_that_has_too_much_is_told_so() {
    with_keeper(|_, network| async move {
        let mut speaker = Speaker::new(&network).await;
        let welcome = speaker.hello(1, 7).await;
        assert!(matches!(welcome, Some(FromKeeper::Welcome { .. })), "{welcome:?}");
        let run = |start| weft_wire::Run { disk: 0, start, blocks: 1 };
        let runs = |from: u64| (from..from + 10_000).map(run);
        for part in 0..3 {
            let space = runs(part * 20_000).collect();
            let part = ToKeeper::Restate(Restated { space, ..Restated::default() });
            speaker.stream.write(part.to_bytes()).await.expect("sent");
        }
        let refused = speaker.hear().await;
        let Some(FromKeeper::Refused(why)) = &refused else { panic!("{refused:?}") };
        assert!(why.contains("it has more than 20000 tokens"), "{why}");
    });
}

#[test]
fn a_node_speaks_with_a_keeper_of_the_version_before_and_tries_its_own_first_each_time() {
    with_keeper(|rt, network| async move {
        let way = OldWay::to(&network);
        let node = NodeId { number: 1, epoch: 7 };
        let keeper = RemoteKeeper::open(&rt, way.clone(), ID, node).await;
        let keeper = keeper.expect("connected");
        assert_eq!(*way.versions.borrow(), [2, 1]);
        network.cut();
        rt.sleep(SECOND).await;
        assert_eq!(*way.versions.borrow(), [2, 1, 2, 1]);
        drop(keeper);
    });
}
