//! A disk's queue: a limit of depth, and classes.
//!
//! An overloaded disk serves everything late, and a user's request waits for a hundred of a
//! rebuild. So at most `depth` requests are with the disk, and at most `maintenance_depth` of them
//! belong to maintenance; the other places are always there for users. A request that finds no
//! place waits in the line of its class. When a place becomes free, the first user in line gets it
//! – except that of every `maintenance_every` places given while both classes wait, one goes to
//! maintenance. Hence
//! * a user never waits for more than the requests that are with the disk, the users before it, and
//!   one maintenance request for every `maintenance_every - 1` of them;
//! * maintenance is never starved: it gets at least one of `maintenance_every` places, and all
//!   of its `maintenance_depth` when no user waits.
//!
//! *Beside users.* A user whose request comes between those of maintenance finds a place at once,
//! and waits nevertheless for what is with the disk: on a hard disk 10 ms for each long request.
//! So of the next [`BESIDE_REQUESTS`] of maintenance after a user's request at most
//! `maintenance_beside_users` are with the disk at a time.
//!
//! *Urgent requests* go before users. That is not enough on a disk that rotates: it serves next
//! what lies nearest to its heads, so one that lies elsewhere waits for all that is with the disk,
//! and for what joins that in the meantime, in the midst of a long stream above all. So *long*
//! requests of other tasks get no place while an urgent one is with such a disk; of every
//! `maintenance_every` places that pass one in this way, the next is its own. And as urgent
//! requests often follow each other, long writes among the next [`WARY_REQUESTS`] have at most
//! `long_bytes` with the disk together. A stream without competitors may fill the queue: some disks
//! that report that they rotate need that.
//!
//! Flushes are not counted: they order nothing after them and wait for no place. The queue does not
//! use time, so it behaves the same under both clocks.

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
    /// The same shortly after a user's request.
    pub maintenance_beside_users: usize,
    /// While other classes wait too, one place in this many goes to maintenance.
    pub maintenance_every: usize,
    /// Most bytes of long requests that are with a rotating disk after an urgent one when a long
    /// write joins them. If this is `u64::MAX`, none is ever held back.
    pub long_bytes: u64,
}

/// A request of more bytes is long; what programs read and write at random is mostly shorter.
const SHORT_BYTES: usize = 64 << 10;
/// The number of maintenance's requests after a user's that expect another user.
const BESIDE_REQUESTS: usize = 16;
/// The number of long requests after an urgent one that may delay the next.
const WARY_REQUESTS: usize = 64;

/// Default maximum of requests with a disk.
pub const QUEUE_DEPTH: u16 = 64;

impl QueueConfig {
    /// At most `depth` requests with the disk, half of them maintenance's at most, however long.
    pub fn of_depth(depth: usize) -> Self {
        Self {
            depth,
            maintenance_depth: depth / 2,
            maintenance_beside_users: depth / 2,
            maintenance_every: 16,
            long_bytes: u64::MAX,
        }
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
    /// Users in line, urgent ones as well.
    pub waiting_users: usize,
    /// Maintenance in line.
    pub waiting_maintenance: usize,
}

/// What a request needs.
#[derive(Debug, Clone, Copy)]
struct Need {
    class: Class,
    /// Its bytes, if it is long and may be held back.
    long_bytes: u64,
    is_read: bool,
}

struct Waiter {
    need: Need,
    waker: RefCell<Option<Waker>>,
    admitted: Cell<bool>,
}

#[derive(Default)]
struct Lines {
    active: usize,
    active_maintenance: usize,
    active_urgent: usize,
    /// Bytes of long requests with the disk.
    active_long_bytes: u64,
    /// Those in line, by class.
    waiting: [VecDeque<Rc<Waiter>>; 3],
    /// Places given to users since maintenance got one, while it waited.
    users_in_a_row: usize,
    /// Places given to urgent requests since a long one got one, while one waited.
    urgent_in_a_row: usize,
    /// Long requests to come that may delay the next urgent one.
    wary: usize,
    /// Maintenance's requests to come that expect a user.
    beside: usize,
}

/// A disk with a queue.
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
        let long_bytes = if disk.info().rotational { config.long_bytes } else { u64::MAX };
        let config = QueueConfig {
            depth,
            maintenance_depth: config.maintenance_depth.clamp(1, depth),
            maintenance_beside_users: config.maintenance_beside_users.max(1),
            maintenance_every: config.maintenance_every.max(1),
            long_bytes,
        };
        Self { disk, config, lines: RefCell::default() }
    }

    /// How full it is.
    pub fn load(&self) -> QueueLoad {
        let lines = self.lines.borrow();
        QueueLoad {
            active: lines.active,
            active_maintenance: lines.active_maintenance,
            waiting_users: lines.line(Class::Urgent).len() + lines.line(Class::User).len(),
            waiting_maintenance: lines.line(Class::Maintenance).len(),
        }
    }

    /// Waits for a place to read or write `bytes`.
    fn place(&self, class: Class, bytes: usize, is_read: bool) -> Admission<'_> {
        let may_wait = class != Class::Urgent && self.config.long_bytes < u64::MAX;
        let long_bytes = if may_wait && bytes > SHORT_BYTES { bytes as u64 } else { 0 };
        let need = Need { class, long_bytes, is_read };
        Admission { queue: self, need, waiter: None, done: false }
    }

    fn leave(&self, Need { class, long_bytes, .. }: Need) {
        let mut lines = self.lines.borrow_mut();
        lines.active -= 1;
        lines.active_maintenance -= usize::from(class == Class::Maintenance);
        lines.active_urgent -= usize::from(class == Class::Urgent);
        lines.active_long_bytes -= long_bytes;
        lines.admit(&self.config);
    }
}

impl Lines {
    fn line(&self, class: Class) -> &VecDeque<Rc<Waiter>> {
        &self.waiting[class as usize]
    }

    fn line_mut(&mut self, class: Class) -> &mut VecDeque<Rc<Waiter>> {
        &mut self.waiting[class as usize]
    }

    fn has_place(&self, class: Class, config: &QueueConfig) -> bool {
        let most = match self.beside {
            0 => config.maintenance_depth,
            _ => config.maintenance_depth.min(config.maintenance_beside_users),
        };
        self.active < config.depth
            && (class != Class::Maintenance || self.active_maintenance < most)
    }

    /// Whether a request may go to the disk that is held back if it is long.
    fn may_go(&self, need: Need, config: &QueueConfig) -> bool {
        if need.long_bytes == 0 {
            return true;
        }
        let is_due = self.urgent_in_a_row + 1 >= config.maintenance_every;
        let fits = self.active_long_bytes.saturating_add(need.long_bytes) <= config.long_bytes;
        (is_due || self.active_urgent == 0 && self.line(Class::Urgent).is_empty())
            && (fits || need.is_read || self.wary == 0 || self.active_long_bytes == 0)
    }

    /// The first of a class in line that may go.
    fn first(&self, class: Class, config: &QueueConfig) -> Option<(Class, usize)> {
        if !self.has_place(class, config) {
            return None;
        }
        let first = self.line(class).iter().position(|waiter| self.may_go(waiter.need, config));
        first.map(|at| (class, at))
    }

    /// Whose turn it is, among those in line that may go: a class, and which of its line.
    fn next(&self, config: &QueueConfig) -> Option<(Class, usize)> {
        let first = |class| self.first(class, config);
        let user = first(Class::Urgent).or_else(|| first(Class::User));
        let due = self.users_in_a_row + 1 >= config.maintenance_every;
        match due {
            true => first(Class::Maintenance).or(user),
            false => user.or_else(|| first(Class::Maintenance)),
        }
    }

    fn enter(&mut self, Need { class, long_bytes, .. }: Need) {
        self.active += 1;
        self.active_long_bytes += long_bytes;
        if class == Class::Urgent {
            let passes_long = self.waiting.iter().flatten().any(|other| other.need.long_bytes > 0);
            self.urgent_in_a_row = if passes_long { self.urgent_in_a_row + 1 } else { 0 };
            self.active_urgent += 1;
            self.wary = WARY_REQUESTS;
        } else if long_bytes > 0 {
            self.urgent_in_a_row = 0;
            self.wary = self.wary.saturating_sub(1);
        }
        if class == Class::User {
            self.beside = BESIDE_REQUESTS;
        }
        match class {
            Class::Maintenance => {
                self.active_maintenance += 1;
                self.users_in_a_row = 0;
                self.beside = self.beside.saturating_sub(1);
            }
            _ if self.line(Class::Maintenance).is_empty() => self.users_in_a_row = 0,
            _ => self.users_in_a_row += 1,
        }
    }

    /// Gives free places to those in line.
    fn admit(&mut self, config: &QueueConfig) {
        while let Some((class, at)) = self.next(config) {
            let Some(waiter) = self.line_mut(class).remove(at) else { return };
            self.enter(waiter.need);
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
    need: Need,
    waiter: Option<Rc<Waiter>>,
    done: bool,
}

/// A place; dropping it lets the next in line go.
struct QueueSlot<'a>(&'a QueuedDisk, Need);

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

impl<'a> Future for Admission<'a> {
    type Output = QueueSlot<'a>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<QueueSlot<'a>> {
        let (queue, need) = (self.queue, self.need);
        if let Some(waiter) = &self.waiter {
            if !waiter.admitted.get() {
                *waiter.waker.borrow_mut() = Some(cx.waker().clone());
                return Poll::Pending;
            }
        } else {
            let mut lines = queue.lines.borrow_mut();
            // Who is in line and may go does not stay there: a short request passes long ones only.
            let in_turn = need.long_bytes == 0 || lines.line(need.class).is_empty();
            let may_go =
                lines.has_place(need.class, &queue.config) && lines.may_go(need, &queue.config);
            if !in_turn || !may_go {
                let waker = RefCell::new(Some(cx.waker().clone()));
                let waiter = Rc::new(Waiter { need, waker, admitted: Cell::new(false) });
                lines.line_mut(need.class).push_back(waiter.clone());
                drop(lines);
                self.waiter = Some(waiter);
                return Poll::Pending;
            }
            lines.enter(need);
        }
        self.done = true;
        Poll::Ready(QueueSlot(queue, need))
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take().filter(|_| !self.done) else { return };
        if waiter.admitted.get() {
            self.queue.leave(self.need);
            return;
        }
        let mut lines = self.queue.lines.borrow_mut();
        lines.line_mut(self.need.class).retain(|other| !Rc::ptr_eq(other, &waiter));
    }
}

impl Layer for QueuedDisk {
    fn below(&self) -> &dyn Disk {
        self.disk.as_ref()
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let _place = self.place(class, buf.len(), true).await;
            self.disk.read(offset, buf, class).await
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let _place = self.place(opts.class, data.len(), false).await;
            self.disk.write(offset, data, opts).await
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let _place = self.place(opts.class, 0, false).await;
            self.disk.write_zeroes(offset, len, opts).await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(async move {
            let _place = self.place(Class::User, 0, false).await;
            self.disk.discard(offset, len).await
        })
    }
}
