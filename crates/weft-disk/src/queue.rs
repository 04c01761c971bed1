//! A disk's queue: a limit of depth, and two classes.
//!
//! An overloaded disk serves everything late, and a user's request waits behind a hundred of a
//! rebuild. So at most `depth` requests are with the disk, of which at most `maintenance_depth`
//! belong to maintenance; the other places are always there for users. A request that finds no
//! place waits in the line of its class. When a place becomes free, the first user in line gets it
//! – except that of every `maintenance_every` places given while both classes wait, one goes to
//! maintenance. Hence
//! * a user never waits for more than the requests that are with the disk, the users before it, and
//!   one maintenance request for every `maintenance_every - 1` of them;
//! * maintenance is never starved: it gets at least one of `maintenance_every` places, and all
//!   of its `maintenance_depth` when no user waits.
//!
//! Flushes are not counted: they order nothing behind them and wait for no place. The queue does
//! not use time, so it behaves the same under both clocks.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use weft_rt::{Buf, Frozen};

use crate::{Class, Disk, DoneFuture, Layer, ReadFuture, WriteOpts};

/// The limits of a queue. All are taken as at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueConfig {
    /// Requests with the disk at most.
    pub depth: usize,
    /// Of these, maintenance's at most.
    pub maintenance_depth: usize,
    /// While both classes wait, one of so many places goes to maintenance.
    pub maintenance_every: usize,
}

/// Default maximum of requests with a disk.
pub const QUEUE_DEPTH: u16 = 64;

impl QueueConfig {
    /// At most `depth` requests with the disk, half of them maintenance's at most.
    pub fn of_depth(depth: usize) -> Self {
        Self { depth, maintenance_depth: depth / 2, maintenance_every: 16 }
    }
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self::of_depth(QUEUE_DEPTH.into())
    }
}

/// How full a queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueLoad {
    /// Requests with the disk.
    pub active: usize,
    /// Of these, maintenance's.
    pub active_maintenance: usize,
    /// Users in line.
    pub waiting_users: usize,
    /// Maintenance in line.
    pub waiting_maintenance: usize,
}

struct Waiter {
    waker: RefCell<Option<Waker>>,
    admitted: Cell<bool>,
}

#[derive(Default)]
struct Lines {
    active: usize,
    active_maintenance: usize,
    users: VecDeque<Rc<Waiter>>,
    maintenance: VecDeque<Rc<Waiter>>,
    /// Places given to users since maintenance got one, while it waited.
    users_in_a_row: usize,
}

/// A disk behind a queue.
pub struct QueuedDisk {
    disk: Rc<dyn Disk>,
    config: QueueConfig,
    lines: RefCell<Lines>,
}

impl std::fmt::Debug for QueuedDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuedDisk")
            .field("disk", &self.disk.info().name)
            .field("config", &self.config)
            .field("load", &self.load())
            .finish_non_exhaustive()
    }
}

impl QueuedDisk {
    /// Puts a queue before `disk`.
    pub fn new(disk: Rc<dyn Disk>, config: QueueConfig) -> Self {
        let depth = config.depth.max(1);
        let config = QueueConfig {
            depth,
            maintenance_depth: config.maintenance_depth.clamp(1, depth),
            maintenance_every: config.maintenance_every.max(1),
        };
        Self { disk, config, lines: RefCell::default() }
    }

    /// How full it is.
    pub fn load(&self) -> QueueLoad {
        let lines = self.lines.borrow();
        QueueLoad {
            active: lines.active,
            active_maintenance: lines.active_maintenance,
            waiting_users: lines.users.len(),
            waiting_maintenance: lines.maintenance.len(),
        }
    }

    /// Waits for a place.
    fn place(&self, class: Class) -> Admission<'_> {
        Admission { queue: self, class, waiter: None, done: false }
    }

    fn leave(&self, class: Class) {
        let mut lines = self.lines.borrow_mut();
        lines.active -= 1;
        lines.active_maintenance -= usize::from(class == Class::Maintenance);
        lines.admit(&self.config);
    }
}

impl Lines {
    fn line(&mut self, class: Class) -> &mut VecDeque<Rc<Waiter>> {
        match class {
            Class::User => &mut self.users,
            Class::Maintenance => &mut self.maintenance,
        }
    }

    fn has_place(&self, class: Class, config: &QueueConfig) -> bool {
        self.active < config.depth
            && (class == Class::User || self.active_maintenance < config.maintenance_depth)
    }

    /// Whose turn it is, among those in line that may go.
    fn next_class(&self, config: &QueueConfig) -> Option<Class> {
        let user = !self.users.is_empty() && self.has_place(Class::User, config);
        let maintenance =
            !self.maintenance.is_empty() && self.has_place(Class::Maintenance, config);
        let due = self.users_in_a_row + 1 >= config.maintenance_every;
        match (user, maintenance) {
            (true, true) if due => Some(Class::Maintenance),
            (true, _) => Some(Class::User),
            (false, true) => Some(Class::Maintenance),
            (false, false) => None,
        }
    }

    fn enter(&mut self, class: Class) {
        self.active += 1;
        match class {
            Class::Maintenance => {
                self.active_maintenance += 1;
                self.users_in_a_row = 0;
            }
            Class::User if self.maintenance.is_empty() => self.users_in_a_row = 0,
            Class::User => self.users_in_a_row += 1,
        }
    }

    /// Gives free places to those in line.
    fn admit(&mut self, config: &QueueConfig) {
        while let Some(class) = self.next_class(config) {
            let Some(waiter) = self.line(class).pop_front() else { return };
            self.enter(class);
            waiter.admitted.set(true);
            if let Some(waker) = waiter.waker.take() {
                waker.wake();
            }
        }
    }
}

/// Future of a place in the queue.
struct Admission<'a> {
    queue: &'a QueuedDisk,
    class: Class,
    waiter: Option<Rc<Waiter>>,
    done: bool,
}

/// A place; dropping it lets the next in line go.
struct Place<'a>(&'a QueuedDisk, Class);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

impl<'a> Future for Admission<'a> {
    type Output = Place<'a>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Place<'a>> {
        let (queue, class) = (self.queue, self.class);
        if let Some(waiter) = &self.waiter {
            if !waiter.admitted.get() {
                *waiter.waker.borrow_mut() = Some(cx.waker().clone());
                return Poll::Pending;
            }
        } else {
            let mut lines = queue.lines.borrow_mut();
            if !lines.line(class).is_empty() || !lines.has_place(class, &queue.config) {
                let waker = RefCell::new(Some(cx.waker().clone()));
                let waiter = Rc::new(Waiter { waker, admitted: Cell::new(false) });
                lines.line(class).push_back(waiter.clone());
                drop(lines);
                self.waiter = Some(waiter);
                return Poll::Pending;
            }
            lines.enter(class);
        }
        self.done = true;
        Poll::Ready(Place(queue, class))
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take().filter(|_| !self.done) else { return };
        if waiter.admitted.get() {
            self.queue.leave(self.class);
            return;
        }
        let mut lines = self.queue.lines.borrow_mut();
        lines.line(self.class).retain(|other| !Rc::ptr_eq(other, &waiter));
    }
}

impl Layer for QueuedDisk {
    fn below(&self) -> &dyn Disk {
        self.disk.as_ref()
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let _place = self.place(class).await;
            self.disk.read(offset, buf, class).await
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let _place = self.place(opts.class).await;
            self.disk.write(offset, data, opts).await
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let _place = self.place(opts.class).await;
            self.disk.write_zeroes(offset, len, opts).await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(async move {
            let _place = self.place(Class::User).await;
            self.disk.discard(offset, len).await
        })
    }
}
