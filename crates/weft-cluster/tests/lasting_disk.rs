//! A shared disk outlasts the loss of its connection, the end of its server, and a loss of power of
//! the server's machine: what was acknowledged is read, what was flushed is durable, and no late
//! request comes over a newer one. It is given up when it does not come back, is another disk, or
//! refuses the node.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use futures_util::future::{Either, join_all, select};
use weft_cluster::fence::{
    DiskSource, DiskState, LastingDisk, NotOpened, Opened, Patience, Session,
};
use weft_disk::{
    Class, Disk, DiskError, DiskErrorKind, DiskInfo, DiskOp, DoneFuture, IoFuture, ReadFuture,
    WriteOpts,
};
use weft_rt::sync::{Notify, oneshot};
use weft_rt::{Buf, Frozen, MILLISECOND, Nanos, Rng, Rt, SECOND, Schedule, virtual_rt};
use weft_testkit::for_seeds;

const SECTOR: usize = 512;
const SECTORS: usize = 64;

/// What a broken server does not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Build {
    Sound,
    /// It takes a new session while requests of the one before are under way.
    NoDrain,
    /// Its machine loses what was flushed, too.
    LyingFlush,
}

/// A disk on another machine, and its server.
struct Machine {
    rt: Rt,
    rng: RefCell<Rng>,
    build: Build,
    info: DiskInfo,
    /// What is read.
    cache: RefCell<Vec<u8>>,
    durable: RefCell<Vec<u8>>,
    /// Sectors that were written and not flushed.
    unflushed: RefCell<Vec<usize>>,
    is_serving: Cell<bool>,
    is_fenced: Cell<bool>,
    state: Cell<DiskState>,
    /// How often the machine had no power: requests of earlier lives never come.
    life: Cell<u64>,
    /// The last session that this server has taken.
    session: Cell<u64>,
    /// Requests handed to the disk, by sessions.
    in_flight: RefCell<BTreeMap<u64, u64>>,
    ended: Notify,
    connections: RefCell<Vec<Rc<Connection>>>,
    breaks: Cell<u64>,
}

struct Connection {
    machine: Rc<Machine>,
    session: u64,
    life: u64,
    server: u64,
    is_cut: Cell<bool>,
    cut: Notify,
}

/// A request as the server carries it out.
#[derive(Clone)]
enum Request {
    Write(usize, Frozen, bool),
    Flush,
    Read(usize, usize),
}

impl Machine {
    fn new(rt: &Rt, seed: u64, build: Build) -> Rc<Self> {
        let bytes = SECTOR * SECTORS;
        Rc::new(Self {
            rt: rt.clone(),
            rng: RefCell::new(Rng::new(seed)),
            build,
            info: DiskInfo {
                name: "far".into(),
                size_bytes: bytes as u64,
                sector_bytes: 512,
                fast_zeroes: false,
                volatile_cache: true,
                rotational: false,
            },
            cache: RefCell::new(vec![0; bytes]),
            durable: RefCell::new(vec![0; bytes]),
            unflushed: RefCell::default(),
            is_serving: Cell::new(true),
            is_fenced: Cell::new(false),
            state: Cell::new(DiskState { disk: 7, server: 1, generation: 1 }),
            life: Cell::new(0),
            session: Cell::new(0),
            in_flight: RefCell::default(),
            ended: Notify::default(),
            connections: RefCell::default(),
            breaks: Cell::new(0),
        })
    }

    fn below(&self, bound: Nanos) -> Nanos {
        self.rng.borrow_mut().below(bound)
    }

    /// All connections end; the client notices at once.
    fn cut(&self) {
        self.breaks.set(self.breaks.get() + 1);
        for connection in self.connections.take() {
            connection.is_cut.set(true);
            connection.cut.notify_all();
        }
    }

    /// The server's process ends; its requests that were handed over are carried out.
    fn stop(&self) {
        self.is_serving.set(false);
        self.cut();
    }

    /// The machine loses power, and with it some of what was not flushed.
    fn lose_power(&self) {
        self.stop();
        self.life.set(self.life.get() + 1);
        self.in_flight.borrow_mut().clear();
        self.ended.notify_all();
        let (mut cache, mut durable) = (self.cache.borrow_mut(), self.durable.borrow_mut());
        let sectors = self.unflushed.take();
        for at in sectors {
            let place = at * SECTOR..(at + 1) * SECTOR;
            if self.rng.borrow_mut().chance(50) {
                let kept = cache[place.clone()].to_vec();
                durable[place].copy_from_slice(&kept);
            }
        }
        if self.build == Build::LyingFlush {
            let at = self.rng.borrow_mut().index(SECTORS) * SECTOR;
            durable[at..at + SECTOR].fill(0xee);
        }
        cache.copy_from_slice(&durable);
    }

    fn start(&self) {
        let DiskState { disk, server, generation } = self.state.get();
        self.state.set(DiskState { disk, server: server + 1, generation: generation + 1 });
        self.session.set(0);
        self.is_serving.set(true);
    }

    async fn settled(&self, is_earlier: impl Fn(u64) -> bool) {
        loop {
            let ended = self.ended.wait();
            let is_any = self.in_flight.borrow().keys().any(|session| is_earlier(*session));
            if !is_any || self.build == Build::NoDrain {
                return;
            }
            ended.await;
        }
    }

    fn end_one(&self, session: u64) {
        let mut in_flight = self.in_flight.borrow_mut();
        let count = in_flight.get_mut(&session).expect("it is in flight");
        *count -= 1;
        if *count == 0 {
            in_flight.remove(&session);
        }
    }

    fn apply(&self, request: &Request) -> Vec<u8> {
        match request {
            Request::Write(at, data, fua) => {
                let place = at * SECTOR..at * SECTOR + data.len();
                self.cache.borrow_mut()[place.clone()].copy_from_slice(data);
                let sectors = *at..at + data.len() / SECTOR;
                let mut unflushed = self.unflushed.borrow_mut();
                if *fua {
                    self.durable.borrow_mut()[place].copy_from_slice(data);
                    unflushed.retain(|sector| !sectors.contains(sector));
                } else {
                    unflushed.extend(sectors);
                }
                Vec::new()
            }
            Request::Flush => {
                self.durable.borrow_mut().copy_from_slice(&self.cache.borrow());
                self.unflushed.borrow_mut().clear();
                Vec::new()
            }
            Request::Read(at, len) => self.cache.borrow()[at * SECTOR..at * SECTOR + len].to_vec(),
        }
    }
}

impl Connection {
    /// The server's side: the request arrives late, is handed to the disk, and ends late.
    async fn serve(self: Rc<Self>, request: Request) -> Option<Vec<u8>> {
        let machine = &self.machine;
        machine.rt.sleep(machine.below(30 * MILLISECOND)).await;
        let is_of_now = || machine.life.get() == self.life;
        let is_served = machine.is_serving.get() && machine.state.get().server == self.server;
        let is_last = machine.session.get() == self.session || machine.build == Build::NoDrain;
        if !is_of_now() || !is_served || !is_last {
            return None;
        }
        *machine.in_flight.borrow_mut().entry(self.session).or_default() += 1;
        // Some are very late.
        let slow = machine.rng.borrow_mut().chance(5);
        machine.rt.sleep(machine.below(if slow { SECOND } else { 30 * MILLISECOND })).await;
        if !is_of_now() {
            return None;
        }
        let answer = machine.apply(&request);
        machine.end_one(self.session);
        machine.ended.notify_all();
        machine.rt.sleep(machine.below(10 * MILLISECOND)).await;
        Some(answer)
    }
}

/// The client's side of a connection.
struct Near(Rc<Connection>);

impl Near {
    async fn ask(&self, op: DiskOp, request: Request) -> Result<Vec<u8>, DiskError> {
        let connection = &self.0;
        let gone = || {
            let source = io::Error::new(io::ErrorKind::NotConnected, "the connection was cut");
            DiskError::new("far", op, 0, 0, source)
        };
        let cut = connection.cut.wait();
        if connection.is_cut.get() {
            return Err(gone());
        }
        let (sender, receiver) = oneshot();
        let serving = connection.clone();
        drop(connection.machine.rt.spawn(async move {
            if let Some(answer) = serving.serve(request).await {
                sender.send(answer);
            }
        }));
        match select(std::pin::pin!(receiver), std::pin::pin!(cut)).await {
            Either::Left((Some(answer), _)) if !connection.is_cut.get() => Ok(answer),
            Either::Left((None, cut)) => {
                cut.await;
                Err(gone())
            }
            _ => Err(gone()),
        }
    }
}

fn sector_of(offset: u64) -> usize {
    usize::try_from(offset).expect("small") / SECTOR
}

impl Disk for Near {
    fn info(&self) -> &DiskInfo {
        &self.0.machine.info
    }

    fn read(&self, offset: u64, mut buf: Buf, _: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let request = Request::Read(sector_of(offset), buf.len());
            match self.ask(DiskOp::Read, request).await {
                Ok(bytes) => {
                    buf.copy_from_slice(&bytes);
                    (Ok(()), buf)
                }
                Err(error) => (Err(error), buf),
            }
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        let request = Request::Write(sector_of(offset), data, opts.fua);
        Box::pin(async move { self.ask(DiskOp::Write, request).await.map(drop) })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async move { self.ask(DiskOp::Flush, Request::Flush).await.map(drop) })
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        let zeros = Frozen::zeros(usize::try_from(len).expect("small"));
        self.write(offset, zeros, opts)
    }

    fn discard(&self, _: u64, _: u64) -> DoneFuture<'_> {
        Box::pin(async { Ok(()) })
    }
}

struct Source(Rc<Machine>);

impl DiskSource for Source {
    fn open(&self, session: Session) -> IoFuture<'_, Result<Opened, NotOpened>> {
        let machine = self.0.clone();
        Box::pin(async move {
            machine.rt.sleep(machine.below(20 * MILLISECOND)).await;
            if !machine.is_serving.get() {
                return Err(NotOpened::Away("refused".into()));
            }
            if machine.is_fenced.get() {
                return Err(NotOpened::Fenced("fenced: a".into()));
            }
            let last = machine.session.get();
            if session.number <= last || session.after.is_some_and(|after| after < last) {
                return Err(NotOpened::Refused("in another session".into()));
            }
            machine.session.set(session.number);
            let state = machine.state.get();
            machine.settled(|earlier| earlier < session.number).await;
            if machine.state.get() != state || !machine.is_serving.get() {
                return Err(NotOpened::Away("the server has ended".into()));
            }
            let connection = Rc::new(Connection {
                machine: machine.clone(),
                session: session.number,
                life: machine.life.get(),
                server: state.server,
                is_cut: Cell::new(false),
                cut: Notify::default(),
            });
            machine.connections.borrow_mut().push(connection.clone());
            Ok(Opened { disk: Rc::new(Near(connection)), state })
        })
    }
}

/// Breaks what can break, for a while.
async fn break_things(machine: Rc<Machine>, times: u64) {
    for _ in 0..times {
        machine.rt.sleep(machine.below(400 * MILLISECOND)).await;
        match machine.below(4) {
            0 | 1 => machine.cut(),
            2 => {
                machine.stop();
                machine.rt.sleep(machine.below(2 * SECOND)).await;
                // The disk has one owner at a time: the requests of the one before keep it.
                machine.settled(|_| true).await;
                machine.start();
            }
            _ => {
                machine.lose_power();
                machine.rt.sleep(machine.below(2 * SECOND)).await;
                machine.start();
            }
        }
    }
}

/// Uses sectors of its own, one request after the other, and knows what they must hold.
async fn use_sectors(
    disk: Rc<LastingDisk>,
    own: std::ops::Range<usize>,
    mut rng: Rng,
    until: Rc<Cell<bool>>,
) -> Result<Vec<u8>, String> {
    let mut expected = vec![0_u8; own.len() * SECTOR];
    let mut stamp = 0_u64;
    while !until.get() {
        let from = rng.index(own.len());
        let len = 1 + rng.index(own.len() - from);
        let offset = ((own.start + from) * SECTOR) as u64;
        let place = from * SECTOR..(from + len) * SECTOR;
        let fua = rng.chance(20);
        let opts = WriteOpts { class: Class::User, fua };
        match rng.below(10) {
            0..=4 => {
                stamp += 1;
                let mut data = Buf::zeroed(len * SECTOR);
                for word in data.chunks_exact_mut(8) {
                    word.copy_from_slice(&stamp.to_le_bytes());
                }
                expected[place].copy_from_slice(&data);
                disk.write(offset, data.freeze(), opts).await.map_err(|e| e.to_string())?;
            }
            5 => {
                expected[place].fill(0);
                let zeroed = disk.write_zeroes(offset, (len * SECTOR) as u64, opts).await;
                zeroed.map_err(|e| e.to_string())?;
            }
            6 => disk.flush().await.map_err(|e| e.to_string())?,
            _ => {
                let (result, buf) = disk.read(offset, Buf::new(len * SECTOR), Class::User).await;
                result.map_err(|e| e.to_string())?;
                if *buf != expected[place] {
                    return Err(format!("sectors {from}+{len} of {own:?} hold something else"));
                }
            }
        }
    }
    Ok(expected)
}

/// One story; returns how often a connection broke.
fn story(seed: u64, build: Build) -> Result<u64, String> {
    let rt = virtual_rt(Schedule::Seeded(seed));
    let main = rt.clone();
    rt.block_on(async move {
        let machine = Machine::new(&main, seed, build);
        let source = Rc::new(Source(machine.clone()));
        let kept = if seed.is_multiple_of(2) { 4 << 10 } else { 64 << 20 };
        // Longer than several breaks in a row.
        let patience = Patience { reconnect: 300 * SECOND, unflushed_bytes: kept };
        let disk = LastingDisk::open(&main, source, patience).await.map_err(|e| e.to_string())?;
        let (disk, until) = (Rc::new(disk), Rc::new(Cell::new(false)));
        let users = (0..4).map(|number: usize| {
            let own = number * 16..number * 16 + 12;
            let rng = Rng::new(seed).fork(1 + number as u64);
            main.spawn(use_sectors(disk.clone(), own, rng, until.clone()))
        });
        let users: Vec<_> = users.collect();
        break_things(machine.clone(), 12).await;
        until.set(true);
        let mut expected = Vec::new();
        for user in users {
            expected.push(user.await?);
        }
        disk.flush().await.map_err(|error| error.to_string())?;
        machine.lose_power();
        for (number, expected) in expected.iter().enumerate() {
            let start = number * 16 * SECTOR;
            if machine.durable.borrow()[start..start + expected.len()] != expected[..] {
                return Err(format!("what user {number} flushed is not durable"));
            }
        }
        Ok(machine.breaks.get())
    })
}

#[test]
fn nothing_acknowledged_is_lost_and_no_old_request_comes_late() {
    for_seeds(0..150, |rng| {
        let seed = rng.next_u64();
        let breaks = story(seed, Build::Sound).unwrap_or_else(|error| panic!("{error}"));
        assert!(breaks > 10, "{breaks}");
    });
    for build in [Build::NoDrain, Build::LyingFlush] {
        let found = (0..60).filter(|seed| story(*seed, build).is_err()).count();
        assert!(found > 0, "{build:?} is not found out");
    }
}

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rt, Rc<Machine>) -> F) {
    let rt = virtual_rt(Schedule::Fifo);
    let machine = Machine::new(&rt, 1, Build::Sound);
    rt.block_on(test(rt.clone(), machine));
}

async fn open(rt: &Rt, machine: &Rc<Machine>, patience: Patience) -> LastingDisk {
    let source = Rc::new(Source(machine.clone()));
    LastingDisk::open(rt, source, patience).await.expect("it is served")
}

fn sector(byte: u8) -> Frozen {
    Frozen::copy_from(&[byte; SECTOR])
}

#[test]
fn a_disk_that_does_not_come_back_is_gone_in_time() {
    run(|rt, machine| async move {
        let disk = open(&rt, &machine, Patience::default()).await;
        disk.write(0, sector(1), WriteOpts::USER).await.expect("written");
        machine.stop();
        let start = rt.now();
        let error = disk.write(0, sector(2), WriteOpts::USER).await.expect_err("it is away");
        let waited = rt.now() - start;
        assert_eq!(error.kind, DiskErrorKind::Gone);
        assert!((10 * SECOND..11 * SECOND).contains(&waited), "{waited}");
        assert!(error.to_string().contains("not back within 10 seconds"), "{error}");
        assert!(disk.was_away());
        // It stays so.
        machine.start();
        disk.flush().await.expect_err("it is gone");
    });
}

#[test]
fn another_disk_and_an_earlier_state_are_refused() {
    for other in [
        DiskState { disk: 8, server: 2, generation: 2 },
        DiskState { disk: 7, server: 2, generation: 1 },
        DiskState { disk: 7, server: 1, generation: 0 },
    ] {
        run(move |rt, machine| async move {
            let disk = open(&rt, &machine, Patience::default()).await;
            disk.write(0, sector(1), WriteOpts::USER).await.expect("written");
            machine.stop();
            machine.start();
            machine.state.set(other);
            let before = machine.cache.borrow().clone();
            let error = disk.write(0, sector(2), WriteOpts::USER).await.expect_err("another disk");
            assert!(error.to_string().contains("another disk"), "{error}");
            assert!(!disk.was_away(), "its server is there");
            assert_eq!(*machine.cache.borrow(), before, "nothing is written to another disk");
        });
    }
}

#[test]
fn a_node_that_was_fenced_meanwhile_is_told_so() {
    run(|rt, machine| async move {
        let disk = open(&rt, &machine, Patience::default()).await;
        machine.is_fenced.set(true);
        machine.cut();
        let error = disk.write(0, sector(2), WriteOpts::USER).await.expect_err("it was fenced");
        assert_eq!(error.kind, DiskErrorKind::Fenced);
    });
}

#[test]
fn what_is_kept_is_bounded_and_changes_of_one_place_have_an_order() {
    run(|rt, machine| async move {
        let patience = Patience { unflushed_bytes: 8 << 10, ..Patience::default() };
        let disk = open(&rt, &machine, patience).await;
        for round in 0..200_u8 {
            disk.write(0, sector(round), WriteOpts::USER).await.expect("written");
        }
        let unflushed = machine.unflushed.borrow().len();
        assert!(unflushed < 50, "it was flushed early: {unflushed} writes are not");
        // What two writes at once have left stays.
        for round in 0..50 {
            let writes = [1, 2].map(|byte| disk.write(0, sector(byte), WriteOpts::USER));
            for written in join_all(writes).await {
                written.expect("written");
            }
            let (result, before) = disk.read(0, Buf::new(SECTOR), Class::User).await;
            result.expect("read");
            if round % 2 == 0 {
                machine.lose_power();
                machine.start();
            } else {
                machine.cut();
            }
            let (result, after) = disk.read(0, Buf::new(SECTOR), Class::User).await;
            result.expect("read");
            assert_eq!(before[0], after[0], "round {round}");
        }
    });
}
