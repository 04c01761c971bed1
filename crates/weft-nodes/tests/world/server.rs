//! Disks and their servers, which enforce fences, end and are started again, and lose power.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use futures_util::future::{Either, select};
use weft_cluster::fence::{HEAD_BYTES, SharedDisk};
use weft_cluster::{DiskName, Incarnation};
use weft_disk::{
    Class, Disk, DiskError, DiskInfo, DoneFuture, Layer, ReadFuture, RestDisk, WriteOpts,
};
use weft_random::Rng;
use weft_rt::sync::Notify;
use weft_rt::{Buf, Frozen, MICROSECOND, MILLISECOND, Nanos, Rt};

use super::oracle::Oracle;
use super::test_disk::{Leave, TestDisk};

/// A request on its way to the disk: its number, where, of which bytes in memory, and whose.
type Known = (u64, u64, usize, Incarnation);

/// The disk below its server: slow at times. It tells the oracle whose blocks reach it. What it was
/// handed it carries out, also if its server ends meanwhile.
pub struct Backing {
    me: Weak<Self>,
    rt: Rt,
    rng: RefCell<Rng>,
    number: usize,
    below: Rc<TestDisk>,
    authors: RefCell<Vec<Known>>,
    requests: Cell<u64>,
    in_flight: Cell<usize>,
    oracle: Rc<Oracle>,
}

/// Ends what is known of the author of a request, if that never came to the disk.
pub struct Authored(Rc<Backing>, u64);

impl Drop for Authored {
    fn drop(&mut self) {
        self.0.authors.borrow_mut().retain(|(number, ..)| *number != self.1);
    }
}

impl Backing {
    pub fn new(
        rt: &Rt,
        number: usize,
        below: Rc<TestDisk>,
        rng: Rng,
        oracle: &Rc<Oracle>,
    ) -> Rc<Self> {
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            rt: rt.clone(),
            rng: RefCell::new(rng),
            number,
            below,
            authors: RefCell::default(),
            requests: Cell::new(0),
            in_flight: Cell::new(0),
            oracle: oracle.clone(),
        })
    }

    /// The next request for these bytes is of this author.
    pub fn note_author(self: &Rc<Self>, (at, bytes): (u64, usize), own: Incarnation) -> Authored {
        let number = self.requests.get();
        self.requests.set(number + 1);
        self.authors.borrow_mut().push((number, at, bytes, own));
        Authored(self.clone(), number)
    }

    fn take_author(&self, offset: u64, bytes: usize) -> Option<Incarnation> {
        let mut authors = self.authors.borrow_mut();
        let at = authors.iter().position(|(_, at, of, _)| (*at, *of) == (offset, bytes))?;
        Some(authors.swap_remove(at).3)
    }

    fn delay(&self, offset: u64) -> Nanos {
        let mut rng = self.rng.borrow_mut();
        match rng.below(1000) {
            // Claims that are late cost much time, and are another test's matter.
            0 if offset >= HEAD_BYTES => rng.within(1, 8000) * MILLISECOND,
            1..10 => rng.within(1, 100) * MILLISECOND,
            _ => rng.within(20, 400) * MICROSECOND,
        }
    }

    /// Hands a change to the disk.
    fn change<F: Future<Output = Result<(), DiskError>> + 'static>(
        &self,
        (offset, bytes): (u64, usize),
        request: impl FnOnce(Rc<TestDisk>) -> F + 'static,
    ) -> DoneFuture<'_> {
        let this = self.me.upgrade().expect("it is used");
        let author = self.take_author(offset, bytes);
        self.in_flight.set(self.in_flight.get() + 1);
        let task = self.rt.spawn(async move {
            let delay = this.delay(offset);
            this.rt.sleep(delay).await;
            let done = request(this.below.clone()).await;
            author.iter().for_each(|author| this.oracle.effect(this.number, author));
            this.in_flight.set(this.in_flight.get() - 1);
            done
        });
        Box::pin(task)
    }

    /// The machine loses power: what was written and not flushed may be lost.
    fn lose_power(&self) {
        let drawn = self.rng.borrow_mut().next_u64();
        let leave = if drawn.is_multiple_of(3) { Leave::Nothing } else { Leave::Some(drawn) };
        let left = leave.of(&self.below.medium.borrow());
        *self.below.medium.borrow_mut() = left;
    }
}

/// What stands for the bytes of zeros.
pub fn zeros(len: u64) -> usize {
    usize::MAX - len as usize
}

impl Layer for Backing {
    fn below(&self) -> &dyn Disk {
        &*self.below
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            self.rt.sleep(self.delay(offset)).await;
            Disk::read(&*self.below, offset, buf, class).await
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        let bytes = (offset, data.as_ptr() as usize);
        self.change(
            bytes,
            move |below| async move { Disk::write(&*below, offset, data, opts).await },
        )
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        self.change((offset, zeros(len)), move |below| async move {
            Disk::write_zeroes(&*below, offset, len, opts).await
        })
    }
}

/// What nodes see of a disk: without its head.
pub fn without_head(below: Rc<TestDisk>) -> Rc<dyn Disk> {
    Rc::new(RestDisk::new(below, HEAD_BYTES))
}

/// Something that ends once: a connection, or a server.
#[derive(Default)]
pub struct Life {
    has_ended: Cell<bool>,
    ended: Notify,
}

impl Life {
    pub fn end(&self) {
        self.has_ended.set(true);
        self.ended.notify_all();
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// What `work` gives, unless this ends before.
    pub async fn during<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let ended = self.ended.wait();
        if self.has_ended.get() {
            return None;
        }
        match select(Box::pin(work), Box::pin(ended)).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }
}

/// A connection of a process to a disk: the process's number, and its machine.
type Connection = (u64, usize, Rc<Life>);

/// A process that serves a disk.
#[derive(Clone)]
pub struct Serving {
    pub shared: Rc<SharedDisk>,
    /// Where its tasks run.
    rt: Rt,
    pub life: Rc<Life>,
}

/// A server of one shared disk, which may end and be started again.
pub struct DiskServer {
    rt: Rt,
    pub name: DiskName,
    pub number: usize,
    pub backing: Rc<Backing>,
    serving: RefCell<Option<Serving>>,
    is_starting: Cell<bool>,
    /// Whether disk and server are gone for good.
    pub is_dead: Cell<bool>,
    connections: RefCell<Vec<Connection>>,
    /// Processes that do not reach it any more.
    barred: RefCell<BTreeSet<u64>>,
    /// Whether it confirms fences and does nothing.
    pub skips_fences: bool,
}

impl DiskServer {
    pub fn new(
        rt: &Rt,
        name: DiskName,
        number: usize,
        backing: Rc<Backing>,
        skips_fences: bool,
    ) -> Rc<Self> {
        Rc::new(Self {
            rt: rt.clone(),
            name,
            number,
            backing,
            serving: RefCell::default(),
            is_starting: Cell::new(false),
            is_dead: Cell::new(false),
            connections: RefCell::default(),
            barred: RefCell::default(),
            skips_fences,
        })
    }

    /// Starts a server, which has the disk when the requests of the one before have ended.
    pub async fn start(&self, number: u64) {
        if self.is_dead.get() || self.is_starting.replace(true) {
            return;
        }
        while self.backing.in_flight.get() > 0 {
            self.rt.sleep(10 * MILLISECOND).await;
        }
        let rt = self.rt.domain(|| {});
        let shared = SharedDisk::open(&rt, self.backing.clone(), number).await.expect("opened");
        *self.serving.borrow_mut() = Some(Serving { shared, rt, life: Rc::default() });
        self.is_starting.set(false);
    }

    /// The server ends where it stands, with the power of its machine or alone.
    pub fn stop(&self, loses_power: bool) {
        if let Some(serving) = self.serving.take() {
            serving.life.end();
            serving.rt.fail_domain();
        }
        self.break_connections(|_, _| true);
        if loses_power {
            self.backing.lose_power();
        }
    }

    /// The server ends in order.
    pub async fn close(&self) {
        let serving = self.serving.borrow().clone();
        if let Some(serving) = serving {
            // If it fails, the next one waits.
            drop(serving.shared.close().await);
        }
        self.stop(false);
    }

    pub fn is_serving(&self) -> bool {
        self.serving.borrow().is_some()
    }

    pub fn serves(&self) -> Option<Serving> {
        self.serving.borrow().clone().filter(|_| !self.is_dead.get())
    }

    /// The same, after a while if it starts just now.
    pub async fn serves_soon(&self) -> Option<Serving> {
        for _ in 0..100 {
            if let Some(serving) = self.serves() {
                return Some(serving);
            }
            self.rt.sleep(100 * MILLISECOND).await;
        }
        None
    }

    /// Connections end: those of which the process and the machine are meant.
    fn break_connections(&self, is_meant: impl Fn(u64, usize) -> bool) {
        let connections = self.connections.borrow();
        let meant = connections.iter().filter(|(process, machine, _)| is_meant(*process, *machine));
        meant.for_each(|(_, _, life)| life.end());
    }

    /// A process connects.
    pub fn connect(&self, process: u64, machine: usize) -> Rc<Life> {
        let life = Rc::<Life>::default();
        let mut connections = self.connections.borrow_mut();
        connections.retain(|(_, _, life)| Rc::strong_count(life) > 1);
        connections.push((process, machine, life.clone()));
        life
    }

    /// The server, if a process reaches it.
    pub fn reached_by(&self, process: u64) -> Option<Serving> {
        self.serves().filter(|_| !self.barred.borrow().contains(&process))
    }

    /// The disk as its server sees it.
    pub fn info(&self) -> &DiskInfo {
        self.backing.below.info()
    }

    /// Connections of a machine end.
    pub fn break_off(&self, machine: usize) {
        self.break_connections(|_, of| of == machine);
    }

    /// A process does not reach the disk any more.
    pub fn bar(&self, process: u64) {
        self.barred.borrow_mut().insert(process);
        self.break_connections(|of, _| of == process);
    }

    pub fn die(&self) {
        self.is_dead.set(true);
        self.stop(false);
    }
}
