//! What reads one disk: its queue, and when the next read may start.
//!
//! *The queue* holds units in the order in which their stripes were started. A read takes the
//! first, and with it the units that directly follow it on the disk, up to 64 KiB: between two
//! requests of users a hard disk pays two seeks for each read of the rebuild, of any length, so
//! that small units read one by one would make a rebuild several times as long.
//!
//! *Turns.* With the pace `users-first` a process has one read on its disk while users are active,
//! and learns from its own reads whether it and its disk's users are in each other's way. A read
//! that takes much longer than the shortest of that length so far waited for other requests, and
//! they for it: the process *owes* users the time that it took. Before the next read it lets users
//! go first: it waits while they have requests on its disk, but no longer than it owes. So users
//! come first, bursts of them are served without a rebuild's reads in between (each would cost a
//! hard disk two seeks), and a rebuild still gets half of a disk that is never free. Where a disk
//! serves several requests at once, as SSDs do, few reads take much longer, and little is owed.
//!
//! *Without users.* Once users have been away for a while, several reads are in flight: several
//! members may be one device underneath, or a device may need many requests at once. The duration
//! of a read then has no meaning. The first user who comes back finds at most 16 of them on a disk.
//!
//! *Below the minimum rate* a process does not give way, but reads in *batches*. A hard disk serves
//! the nearest request first, and a process's next always is the nearest: as long as there is one,
//! users elsewhere on the disk wait. Between two batches it is their turn, and a batch is long
//! enough to make the seeks there and back cheap.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use weft_code::SlotNo;
use weft_disk::Class;
use weft_rt::sync::{Permit, Receiver, Semaphore, Sender, oneshot};
use weft_rt::{Buf, MILLISECOND, Nanos};
use weft_stripe::{Location, Owner};

use super::DiskOriented;

/// Longest read of several units.
const READ_BYTES: usize = 64 << 10;

/// Most reads of a process in flight while users are away. While they are active, more than one
/// would make reads of 4 KiB from an SSD wait longer than the rebuild gets shorter.
const DEPTH_ALONE: usize = 16;

/// Most that a process owes: users who never leave a disk idle do not stop it for longer.
const OWED_MAX: Nanos = 100 * MILLISECOND;

/// Shortest time between two looks whether users still have requests on the disk.
const LOOK: Nanos = MILLISECOND / 4;

/// A batch: on a hard disk some 20 ms of sequential access, then an access elsewhere of some 8 ms.
/// With a minimum that no disk reaches, half as much makes a rebuild under WebSearch take a quarter
/// longer, and twice as much makes users wait half as long again.
const BATCH_BYTES: usize = 5 << 18;

pub(super) struct Process {
    /// Units that wait to be read.
    queue: RefCell<VecDeque<AwaitedUnit>>,
    /// Whose turn it is to start a read.
    turn: Semaphore,
    /// Kept back while no other read may start.
    held: Cell<Option<Permit>>,
    /// Reads in flight.
    reading: Cell<usize>,
    /// Bytes of the present batch that were started; 0 if there is none.
    batch: Cell<usize>,
    /// By the length of a read, the shortest time that one took so far.
    shortest: RefCell<BTreeMap<usize, Nanos>>,
    owed: Cell<Nanos>,
}

/// A unit that waits to be read.
struct AwaitedUnit {
    offset: u64,
    len: usize,
    /// Gets its contents; is dropped if they cannot be read.
    done: Sender<Buf>,
}

/// A read in flight.
struct Reading<'a> {
    process: &'a Process,
    begun: Nanos,
    len: usize,
    /// Whether users were away.
    is_alone: bool,
}

impl Reading<'_> {
    /// Learns from a read that succeeded.
    fn learn(&self, now: Nanos) {
        if self.is_alone {
            return;
        }
        let Process { shortest, owed, .. } = self.process;
        let took = now - self.begun;
        let mut shortest = shortest.borrow_mut();
        let shortest = shortest.entry(self.len).or_insert(took);
        *shortest = took.min(*shortest);
        if took > *shortest + *shortest / 2 {
            owed.set((owed.get() + took).min(OWED_MAX));
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let Process { held, reading, batch, .. } = self.process;
        reading.set(reading.get() - 1);
        if reading.get() == 0 {
            batch.set(0);
        }
        // The next batch starts when all of this one has ended.
        if batch.get() == 0 {
            drop(held.take());
        }
    }
}

impl Process {
    pub fn new() -> Self {
        Self {
            queue: RefCell::default(),
            turn: Semaphore::new(1),
            held: Cell::new(None),
            reading: Cell::new(0),
            batch: Cell::new(0),
            shortest: RefCell::default(),
            owed: Cell::new(0),
        }
    }

    /// Queues a unit.
    fn ask(&self, offset: u64, len: usize) -> Receiver<Buf> {
        let (done, unit) = oneshot();
        self.queue.borrow_mut().push_back(AwaitedUnit { offset, len, done });
        unit
    }

    /// Whether no read has taken the unit at `offset` out of the queue yet.
    fn waits(&self, offset: u64) -> bool {
        self.queue.borrow().iter().any(|wanted| wanted.offset == offset)
    }

    /// Takes the unit at `offset` out of the queue, with the units after it that can be read in the
    /// same request.
    fn take(&self, offset: u64) -> Vec<AwaitedUnit> {
        let mut queue = self.queue.borrow_mut();
        let first = queue.iter().position(|wanted| wanted.offset == offset).unwrap_or(queue.len());
        let (mut end, mut bytes) = (offset, 0);
        let fits = |wanted: &&AwaitedUnit| {
            let fits = wanted.offset == end && (bytes == 0 || bytes + wanted.len <= READ_BYTES);
            (end, bytes) = (end + wanted.len as u64, bytes + wanted.len);
            fits
        };
        let count = queue.range(first..).take_while(fits).count();
        queue.drain(first..first + count).collect()
    }
}

impl DiskOriented {
    /// Reads a unit when its disk's process reaches it. `None` if it cannot be read.
    pub(super) async fn read_unit(
        &self,
        Location { slot, offset }: Location,
        len: usize,
    ) -> Option<Buf> {
        let process = &self.processes[slot.0];
        let unit = process.ask(offset, len);
        let turn = process.turn.acquire(1).await;
        if process.waits(offset) {
            self.read_next(slot, turn, offset).await;
        } else {
            drop(turn);
        }
        unit.await
    }

    /// Reads the unit at `offset`, and the units after it, in one request.
    async fn read_next(&self, slot: SlotNo, turn: Permit, offset: u64) {
        let Self { array, users_first, .. } = self;
        if *users_first {
            self.give_way(slot).await;
        }
        let units = self.processes[slot.0].take(offset);
        let len = units.iter().map(|unit| unit.len).sum();
        let reading = self.begin(slot, turn, len);
        let Some(disk) = array.disk(slot) else { return };
        let (result, mut buf) = disk.read(offset, Buf::new(len), Class::Maintenance).await;
        // The cause is found and handled later, under the lock. The disk may also have left its
        // slot since, and be wiped for another use.
        if result.is_err() || !array.holds(slot, &disk) {
            return;
        }
        reading.learn(array.rt().now());
        for unit in units {
            let rest = buf.split_off(unit.len);
            unit.done.send(std::mem::replace(&mut buf, rest));
        }
    }

    /// Starts a read of `len` bytes, and passes on the turn if one more may start.
    fn begin(&self, slot: SlotNo, turn: Permit, len: usize) -> Reading<'_> {
        let Self { array, users_first, .. } = self;
        let process = &self.processes[slot.0];
        let (now, throttle) = (array.rt().now(), array.jobs().throttle());
        let is_alone = throttle.users_are_away(now);
        process.reading.set(process.reading.get() + 1);
        let more = if !users_first {
            false
        } else if throttle.is_late(now) {
            process.batch.set(process.batch.get() + len);
            process.batch.get() < BATCH_BYTES
        } else {
            is_alone && process.reading.get() < DEPTH_ALONE
        };
        process.held.set((!more).then_some(turn));
        Reading { process, begun: now, len, is_alone }
    }

    /// Lets the users of a disk go first.
    async fn give_way(&self, slot: SlotNo) {
        let (rt, owed) = (self.array.rt(), &self.processes[slot.0].owed);
        let waits = |now| self.has_users(slot) && !self.array.jobs().throttle().is_late(now);
        if waits(rt.now()) {
            let owed = owed.take();
            let end = rt.now() + owed;
            while rt.now() < end && waits(rt.now()) {
                rt.sleep(LOOK.max(owed / 16)).await;
            }
        }
    }

    fn has_users(&self, slot: SlotNo) -> bool {
        self.array.members().in_flight(slot).get() > 0
    }
}
