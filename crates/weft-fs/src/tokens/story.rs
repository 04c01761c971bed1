//! Several nodes at one keeper, with tokens over a network with trouble: connections end, keepers
//! and nodes die. Each node changes the attributes of files under exclusive tokens, and reads them
//! under shared ones. What it reads is what the last one wrote; of what a dead node wrote, that up
//! to one of its commits.
//!
//! Node 0 is played by the test: it is the authority, dies with its keeper, and has no log. Some of
//! the worlds break a rule, and must be found out.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use weft_array::{Array, Id};
use weft_disk::IoFuture;
use weft_random::Rng;
use weft_rt::{MILLISECOND, Rt, SECOND};
use weft_testkit::for_seeds;
use weft_token::{Holding, Mode, NodeId, ToAuthority, ToNode};
use weft_wire::{Answer, GiveBack, LockWish, Restated, RoomWish};

use super::local_node::Tokens;
use super::needs::Need;
use crate::format::inode::Ino;
use crate::meta::desk::{AskBack, Deliver, Desk, DeskClient};
use crate::meta::network::{self, Network};
use crate::meta::remote::RemoteKeeper;
use crate::meta::tests::with_rt_and_array;
use crate::meta::{Meta, NEXT_INODE, Tx};

const ID: Id = Id([9; 16]);
const FILES: Ino = 6;
const NODES: u16 = 3;
const WORKERS: u64 = 3;
const OPERATIONS: u64 = 60;

/// A rule that a world breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// Tokens are returned before what was changed under them is durable.
    EarlyReturn,
    /// A node does not say all that it holds.
    ShortRestatement,
    /// Recently read rows are not forgotten.
    KeptRows,
}

/// The attributes of a file.
type File = BTreeMap<Vec<u8>, Vec<u8>>;

/// What may be read of a file.
#[derive(Default)]
struct Truth {
    /// From the last one that is durable to the newest, each with a number; who wrote the newer
    /// ones.
    states: Vec<(u64, File)>,
    writer: Option<NodeId>,
    /// Whether the writer is dead, so that it is any of these.
    is_uncertain: bool,
}

struct Node {
    id: NodeId,
    rt: Rt,
    is_killed: Rc<Cell<bool>>,
    meta: Rc<Meta>,
    tokens: Rc<Tokens>,
}

struct World {
    rt: Rt,
    array: Array,
    network: Rc<Network>,
    broken: Broken,
    rng: RefCell<Rng>,
    authority: RefCell<Rc<Tokens>>,
    /// Counts authorities.
    terms: Cell<u64>,
    epoch: Cell<u64>,
    living: RefCell<BTreeMap<u16, Rc<Node>>>,
    /// Dead nodes whose tokens are kept from others.
    dead: RefCell<BTreeSet<NodeId>>,
    truth: RefCell<BTreeMap<Ino, Truth>>,
    /// Numbers that were given to files, and to which node if that is not durable.
    numbers: RefCell<BTreeMap<Ino, Option<NodeId>>>,
    /// Counts changes.
    changes: Cell<u64>,
    finished: Cell<u64>,
    running: Rc<Cell<u64>>,
    /// Whether an operation has found something wrong.
    is_wrong: Rc<Cell<bool>>,
}

/// One who works.
struct Running(Rc<Cell<u64>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Node 0: the authority.
struct Clerk(Rc<Tokens>);

impl Desk for Clerk {
    fn restated(
        &self,
        node: NodeId,
        all: Restated,
        deliver: Deliver,
    ) -> Result<(), Option<String>> {
        self.0.replace(node, all.tokens, deliver).map_err(|other| Some(other.to_string()))
    }

    fn take(&self, node: NodeId, message: ToAuthority) {
        self.0.take(node, message);
    }

    fn left(&self, _: NodeId) {}

    fn log(&self, _: NodeId) -> IoFuture<'static, Answer> {
        Box::pin(async { Answer::Log(Some("no node mounts".to_owned())) })
    }

    fn disks_changed(&self) {}

    fn reached(&self, _: NodeId, _: AskBack) {}

    fn room(&self, _: NodeId, _: RoomWish) -> IoFuture<'static, Option<Answer>> {
        Box::pin(async { None })
    }

    fn lock(&self, _: NodeId, _: LockWish) -> IoFuture<'static, Option<Answer>> {
        Box::pin(async { None })
    }

    fn take_back(&self, _: NodeId, _: GiveBack) -> Option<Answer> {
        None
    }
}

/// A node that does not say all.
struct Forgetful(Rc<Tokens>);

impl DeskClient for Forgetful {
    fn restate(&self) -> (Vec<Holding>, Vec<ToAuthority>) {
        let (mut held, asks) = self.0.restate();
        held.pop();
        (held, asks)
    }

    fn take(&self, message: ToNode) {
        DeskClient::take(&*self.0, message);
    }
}

impl World {
    async fn new(rt: Rt, array: Array, seed: u64, broken: Broken) -> Rc<Self> {
        let meta = Meta::create(array.clone(), ID, 1 << 20).await.expect("made");
        meta.commit(|tx| tx.set_state(NEXT_INODE, 100)).await.expect("committed");
        meta.checkpoint().await.expect("written");
        drop(meta);
        let network = Network::new(&rt, ID.0, 1 << 20, seed, network::Canary::None);
        let world = Rc::new(Self {
            rt,
            array: array.clone(),
            network: network.clone(),
            broken,
            rng: RefCell::new(Rng::new(seed)),
            authority: RefCell::new(Tokens::new(0)),
            terms: Cell::new(0),
            epoch: Cell::new(0),
            living: RefCell::default(),
            dead: RefCell::default(),
            truth: RefCell::default(),
            numbers: RefCell::default(),
            changes: Cell::new(0),
            finished: Cell::new(0),
            running: Rc::default(),
            is_wrong: Rc::default(),
        });
        let weak = Rc::downgrade(&world);
        network.on_start(move |keeper| {
            let Some(world) = weak.upgrade() else { return };
            world.terms.set(world.terms.get() + 1);
            let authority = Tokens::new(world.terms.get());
            let living: Vec<NodeId> = world.living.borrow().values().map(|node| node.id).collect();
            let dead: Vec<NodeId> = world.dead.borrow().iter().copied().collect();
            authority.expect(&[living, dead].concat());
            keeper.set_desk(Rc::new(Clerk(authority.clone())));
            *world.authority.borrow_mut() = authority;
        });
        network.start(&array).await;
        world
    }

    fn below(&self, end: u64) -> u64 {
        self.rng.borrow_mut().below(end)
    }

    async fn mount(self: &Rc<Self>, number: u16) {
        self.epoch.set(self.epoch.get() + 1);
        let id = NodeId { number, epoch: self.epoch.get() };
        let is_killed = Rc::new(Cell::new(false));
        let (killed, wrong) = (is_killed.clone(), self.is_wrong.clone());
        let rt = self.rt.domain(move || wrong.set(wrong.get() | !killed.get()));
        let keeper = RemoteKeeper::open(&rt, self.network.clone(), ID, id).await;
        let keeper = keeper.expect("connected");
        let cache = if self.below(2) == 0 { 0 } else { 1 << 20 };
        let meta = Meta::open_remote(Some(self.array.clone()), ID, keeper, cache).await;
        let meta = Rc::new(meta.expect("opened"));
        let link = meta.link().expect("it is elsewhere");
        let to = Rc::downgrade(&link);
        let tokens = Tokens::elsewhere(id, move |message| {
            to.upgrade().iter().for_each(|link| link.tell(message.clone()));
        });
        let client: Rc<dyn DeskClient> = match self.broken {
            Broken::ShortRestatement => Rc::new(Forgetful(tokens.clone())),
            _ => tokens.clone(),
        };
        link.set_client(Rc::downgrade(&client));
        let recent = meta.recent_rows();
        if self.broken != Broken::KeptRows {
            tokens.on_others(move || recent.borrow_mut().clear());
        }
        tokens.keep_contended(&rt);
        let node = Rc::new(Node { id, rt: rt.clone(), is_killed, meta, tokens });
        let (world, weak) = (Rc::downgrade(self), Rc::downgrade(&node));
        node.tokens.on_give_up(move |given| {
            let (Some(world), Some(node)) = (world.upgrade(), weak.upgrade()) else { return };
            drop(node.rt.clone().spawn(async move {
                if world.broken != Broken::EarlyReturn {
                    world.commit(&node).await;
                }
                given.iter().for_each(|given| node.tokens.written(given));
            }));
        });
        self.living.borrow_mut().insert(number, node.clone());
        for _ in 0..WORKERS {
            let (world, node, client) = (self.clone(), node.clone(), client.clone());
            self.running.set(self.running.get() + 1);
            let running = Running(self.running.clone());
            drop(rt.spawn(async move {
                let _these = (client, running);
                world.work(&node).await;
            }));
        }
    }

    /// What was there when the commit began is durable when it has ended.
    async fn commit(&self, node: &Node) {
        let (known, numbers) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let committed = node.meta.commit(|_| {
            let truth = self.truth.borrow();
            let own = truth.iter().filter(|(_, of)| of.writer == Some(node.id));
            let newest = |of: &Truth| of.states.last().expect("there is one").0;
            known.replace(own.map(|(ino, of)| (*ino, newest(of))).collect());
            let given = self.numbers.borrow();
            let own = given.iter().filter(|(_, of)| **of == Some(node.id));
            numbers.replace(own.map(|(number, _)| *number).collect());
            Ok(())
        });
        committed.await.expect("committed");
        for (ino, newest) in known.take() {
            let mut truth = self.truth.borrow_mut();
            let of = truth.get_mut(&ino).expect("known");
            of.states.retain(|(number, _)| *number >= newest);
        }
        for number in numbers.take() {
            self.numbers.borrow_mut().insert(number, None);
        }
    }

    async fn work(&self, node: &Node) {
        for _ in 0..OPERATIONS {
            node.rt.sleep(self.below(8) * MILLISECOND).await;
            match self.below(40) {
                0 => self.look_at_all(node).await,
                1..4 => self.commit(node).await,
                4..7 => self.make_file(node).await,
                _ => self.use_files(node).await,
            }
            self.finished.set(self.finished.get() + 1);
        }
    }

    /// Reads or changes one or two files.
    async fn use_files(&self, node: &Node) {
        let mode = |world: &Self| match world.below(2) {
            0 => Mode::Shared,
            _ => Mode::Exclusive,
        };
        let mut files = BTreeMap::from([(1 + self.below(FILES), mode(self))]);
        if self.below(3) == 0 {
            files.insert(1 + self.below(FILES), mode(self));
        }
        if self.below(4) == 0 {
            // Without a token: what it finds counts for nothing.
            let ino = *files.keys().next().expect("one");
            let looked = node.meta.run(|tx| read(tx, ino)).await;
            looked.expect("read");
        }
        let attributes = files.iter().map(|(ino, mode)| Need::attributes(*ino, *mode));
        let needs = [Need::everything(Mode::Shared)].into_iter().chain(attributes);
        let held = node.tokens.hold(needs.collect()).await;
        let used = node.meta.run(|tx| {
            for (ino, mode) in &files {
                self.check(tx, *ino)?;
                if *mode == Mode::Exclusive {
                    self.change(node, tx, *ino)?;
                }
            }
            Ok(())
        });
        used.await.expect("done");
        node.rt.sleep(self.below(3) * MILLISECOND).await;
        drop(held);
    }

    /// What is read of a file is what the last one wrote.
    fn check(&self, tx: &Tx<'_>, ino: Ino) -> crate::error::Result<()> {
        let found = read(tx, ino)?;
        let mut truth = self.truth.borrow_mut();
        let of = truth.entry(ino).or_default();
        if of.states.is_empty() {
            of.states.push((0, File::new()));
        }
        if std::mem::take(&mut of.is_uncertain) {
            let known = of.states.iter().find(|(_, file)| *file == found);
            of.states = vec![known.expect("one of what a dead node wrote").clone()];
            of.writer = None;
        }
        assert_eq!(Some(&found), of.states.last().map(|(_, file)| file), "attributes of {ino}");
        Ok(())
    }

    fn change(&self, node: &Node, tx: &Tx<'_>, ino: Ino) -> crate::error::Result<()> {
        let name = format!("user.{}", self.below(3)).into_bytes();
        let newest = |truth: &BTreeMap<Ino, Truth>| truth[&ino].states.last().cloned();
        let (_, mut file) = newest(&self.truth.borrow()).expect("it was looked at");
        if file.contains_key(&name) && self.below(3) == 0 {
            tx.remove_xattr(ino, &name)?;
            file.remove(&name);
        } else {
            let value = self.below(u64::MAX).to_le_bytes().to_vec();
            tx.put_xattr(ino, &name, &value)?;
            file.insert(name, value);
        }
        // Others look at it while the store is asked, and so nothing is borrowed before.
        let mut truth = self.truth.borrow_mut();
        let of = truth.get_mut(&ino).expect("it was looked at");
        if of.writer != Some(node.id) {
            // The one before it has made all durable.
            of.states.drain(..of.states.len() - 1);
            of.writer = Some(node.id);
        }
        self.changes.set(self.changes.get() + 1);
        of.states.push((self.changes.get(), file));
        Ok(())
    }

    async fn make_file(&self, node: &Node) {
        let held = node.tokens.hold(vec![Need::everything(Mode::Shared)]).await;
        let made = node.meta.run(|tx| {
            let number = tx.new_number()?;
            let before = self.numbers.borrow_mut().insert(number, Some(node.id));
            assert_eq!(before, None, "file {number} is made twice");
            tx.put_xattr(number, b"user.made", b"yes")
        });
        made.await.expect("made");
        drop(held);
    }

    /// Looks at all files, alone.
    async fn look_at_all(&self, node: &Node) {
        let held = node.tokens.hold(vec![Need::everything(Mode::Exclusive)]).await;
        let looked = node.meta.run(|tx| {
            (1..=FILES).try_for_each(|ino| self.check(tx, ino))?;
            assert!(node.meta.is_counted(tx)?, "bytes of rows");
            let next = tx.state(NEXT_INODE)?;
            let numbers = self.numbers.borrow();
            assert!(numbers.iter().all(|(number, of)| of.is_some() || *number < next));
            Ok(())
        });
        looked.await.expect("read");
        drop(held);
    }

    /// A node dies where it stands, and comes again in a new epoch.
    async fn kill(self: &Rc<Self>, number: u16) {
        let Some(node) = self.living.borrow_mut().remove(&number) else { return };
        let id = node.id;
        self.dead.borrow_mut().insert(id);
        node.is_killed.set(true);
        node.rt.fail_domain();
        drop(node);
        for truth in self.truth.borrow_mut().values_mut().filter(|of| of.writer == Some(id)) {
            truth.is_uncertain = true;
        }
        // Others wait for what it held.
        self.rt.sleep(self.below(300) * MILLISECOND).await;
        loop {
            let term = self.terms.get();
            let fenced = self.network.at_keeper(|keeper| async move { keeper.fence(id).await });
            if let Some(Ok(())) = fenced.await
                && self.terms.get() == term
            {
                break;
            }
            self.rt.sleep(20 * MILLISECOND).await;
        }
        // A number that is in no durable batch may be given again.
        self.numbers.borrow_mut().retain(|_, of| *of != Some(id));
        let authority = self.authority.borrow().clone();
        authority.fence(id);
        self.rt.sleep(self.below(100) * MILLISECOND).await;
        self.dead.borrow_mut().remove(&id);
        self.authority.borrow().clone().recovered(id);
        self.mount(number).await;
    }
}

fn read(tx: &Tx<'_>, ino: Ino) -> crate::error::Result<File> {
    let mut file = File::new();
    for number in 0..3 {
        // One by one: rows that were read lately are kept.
        let name = format!("user.{number}").into_bytes();
        file.extend(tx.xattr(ino, &name)?.map(|value| (name, value)));
    }
    Ok(file)
}

/// Returns how often connections were cut, how many keepers there were, and nodes.
fn run(seed: u64, broken: Broken) -> (u64, u64, u64) {
    let counts = Rc::new(Cell::new((0, 0, 0)));
    let given = counts.clone();
    with_rt_and_array(move |rt, array| async move {
        let world = World::new(rt.clone(), array, seed, broken).await;
        for number in 1..=NODES {
            world.mount(number).await;
        }
        let storm = rt.domain(|| {});
        let every = [200, 1000, 100_000][usize::try_from(world.below(3)).expect("few")];
        drop(storm.spawn(world.network.clone().storm(every * MILLISECOND)));
        for _ in 0..world.below(4) {
            rt.sleep(world.below(2000) * MILLISECOND).await;
            let number = 1 + u16::try_from(world.below(u64::from(NODES))).expect("few");
            world.kill(number).await;
        }
        let until = rt.now() + 2000 * SECOND;
        while world.running.get() > 0 {
            assert!(!world.is_wrong.get(), "an operation has found something wrong");
            assert!(rt.now() < until, "operations wait for ever");
            rt.sleep(100 * MILLISECOND).await;
        }
        assert!(!world.is_wrong.get(), "an operation has found something wrong");
        storm.fail_domain();
        world.network.start(&world.array).await;
        let nodes: Vec<_> = world.living.borrow().values().cloned().collect();
        for node in nodes {
            world.look_at_all(&node).await;
        }
        given.set((world.network.cuts.get(), world.network.keepers.get(), world.epoch.get()));
    });
    counts.get()
}

#[test]
fn each_node_reads_what_the_last_one_wrote_whoever_dies() {
    let counts = Cell::new((0, 0, 0));
    for_seeds(0..30, |rng| {
        let (cuts, keepers, nodes) = run(rng.next_u64(), Broken::Nothing);
        let (all_cuts, all_keepers, all_nodes) = counts.get();
        counts.set((all_cuts + cuts, all_keepers + keepers, all_nodes + nodes));
    });
    eprintln!("{:?} cuts, keepers, nodes", counts.get());
}

/// A world that breaks a rule must be found out.
fn is_caught(broken: Broken) {
    let is_found = |seed: &u64| catch_unwind(AssertUnwindSafe(|| run(*seed, broken))).is_err();
    let seed = (0..40).find(is_found);
    eprintln!("{broken:?} found out by seed {}", seed.expect("it was not found out"));
}

#[test]
fn a_token_that_is_returned_before_its_changes_are_durable_is_caught() {
    is_caught(Broken::EarlyReturn);
}

#[test]
fn a_token_that_is_not_restated_is_caught() {
    is_caught(Broken::ShortRestatement);
}

#[test]
fn recently_read_rows_that_are_kept_are_caught() {
    is_caught(Broken::KeptRows);
}
