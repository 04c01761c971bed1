//! What happens to an array, for its listeners: the daemon's log, alerts, tests.
//!
//! Events inform people, and never steer the engine. Each listener has a bounded queue; a listener
//! that is too slow loses the oldest events.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use serde::Serialize;
use weft_code::SlotNo;
use weft_rt::sync::Notify;

/// Events kept for a slow listener.
const QUEUE_MAX: usize = 256;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum Event {
    /// A member was excluded.
    MemberFailed {
        /// Its slot.
        slot: SlotNo,
        /// Its name (path or URI).
        disk: String,
        /// Why.
        cause: String,
    },
    /// A member failed that the code cannot do without, or a change of membership could not take
    /// effect: the array takes no more writes.
    ArrayBroken {
        /// Why.
        cause: String,
    },
    /// Unreadable sectors were reconstructed and rewritten.
    ReadErrorRepaired {
        /// The member's slot.
        slot: SlotNo,
        /// Byte offset on the member.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A member's label, or one of its superblock copies, was damaged and has been written again.
    MetadataRepaired {
        /// The disk's name.
        disk: String,
        /// What was wrong.
        what: String,
    },
    /// The storage below a member is full. Writes that need space wait until there is some, or
    /// until the member is failed.
    NoSpace {
        /// Its slot.
        slot: SlotNo,
        /// Its name.
        disk: String,
    },
    /// A disk took the slot of a lost member; its rebuild has started.
    RebuildStarted {
        /// The slot.
        slot: SlotNo,
        /// The new disk's name.
        disk: String,
    },
    /// A former member came back with its data, and is being rebuilt where it lacks writes.
    MemberReturned {
        /// Its slot.
        slot: SlotNo,
        /// Its name.
        disk: String,
        /// Regions that it lacks: those written while it was away.
        stale_regions: u64,
    },
    /// A working member is being copied to the disk that will replace it.
    ReplaceStarted {
        /// The slot.
        slot: SlotNo,
        /// The new disk's name.
        disk: String,
    },
    /// A member was replaced; its old disk is free.
    ReplaceFinished {
        /// The slot.
        slot: SlotNo,
        /// The new disk's name.
        disk: String,
    },
    /// The replacement of a working member failed; the member stays.
    ReplacementFailed {
        /// The slot.
        slot: SlotNo,
        /// The replacement's name.
        disk: String,
        /// Why.
        cause: String,
    },
    /// A member is complete again.
    RebuildFinished {
        /// The slot.
        slot: SlotNo,
    },
    /// Regions that were being written at a crash are being resynced.
    ResyncStarted {
        /// Number of regions.
        regions: u64,
    },
    /// All regions are consistent.
    ResyncFinished,
    /// A scrub ended.
    ScrubFinished {
        /// Stripes whose redundancy did not match.
        mismatches: u64,
        /// How many of these stripes were repaired.
        repaired: u64,
    },
    /// The array is being moved to another geometry.
    ReshapeStarted {
        /// The code before.
        from: String,
        /// The code afterwards.
        to: String,
        /// Slots afterwards.
        slots: usize,
    },
    /// It goes back to the geometry that it was being moved from.
    ReshapeTurned {
        /// The code that it was being moved to.
        from: String,
        /// The code afterwards.
        to: String,
        /// Slots afterwards.
        slots: usize,
    },
    /// All of the array is in the new geometry.
    ReshapeFinished {
        /// Its size now, in bytes.
        size_bytes: u64,
    },
    /// The array uses more of each member.
    Grown {
        /// Its size now, in bytes.
        size_bytes: u64,
        /// Bytes of each member that it uses now.
        member_bytes: u64,
    },
    /// A job cannot continue; it is retried when the array changes.
    JobStalled {
        /// What the job was doing.
        job: String,
        /// Why.
        cause: String,
    },
    /// A spare failed and was dropped.
    SpareFailed {
        /// The disk's name.
        disk: String,
        /// Why.
        cause: String,
    },
    /// A spare joined the array.
    SpareAdded {
        /// The disk's name.
        disk: String,
    },
}

#[derive(Debug, Default)]
struct Queue {
    events: RefCell<VecDeque<Event>>,
    bell: Notify,
}

/// Delivers events to all listeners.
#[derive(Debug)]
pub(crate) struct Events {
    listeners: RefCell<Vec<Weak<Queue>>>,
    /// A listener from the very start, until the first caller asks for it: an array can be
    /// subscribed to only once it is assembled, and its start emits events, too.
    from_start: RefCell<Option<Subscription>>,
}

impl Events {
    pub fn new() -> Self {
        let events = Self { listeners: RefCell::default(), from_start: RefCell::default() };
        events.from_start.replace(Some(events.subscribe()));
        events
    }

    pub fn emit(&self, event: Event) {
        self.listeners.borrow_mut().retain(|listener| {
            let Some(queue) = listener.upgrade() else { return false };
            let mut events = queue.events.borrow_mut();
            if events.len() == QUEUE_MAX {
                events.pop_front();
            }
            events.push_back(event.clone());
            drop(events);
            queue.bell.notify_all();
            true
        });
    }

    pub fn subscribe(&self) -> Subscription {
        let queue = Rc::new(Queue::default());
        self.listeners.borrow_mut().push(Rc::downgrade(&queue));
        Subscription(queue)
    }

    /// The listener from the start, for the first caller. Later callers get only new events.
    pub fn subscribe_from_start(&self) -> Subscription {
        let first = self.from_start.take();
        first.unwrap_or_else(|| self.subscribe())
    }
}

/// A listener's end of its queue.
#[derive(Debug)]
pub struct Subscription(Rc<Queue>);

impl Subscription {
    /// Waits for the next event.
    pub async fn next(&self) -> Event {
        loop {
            let ring = self.0.bell.wait();
            if let Some(event) = self.try_next() {
                return event;
            }
            ring.await;
        }
    }

    /// The next event, if one is queued.
    pub fn try_next(&self) -> Option<Event> {
        self.0.events.borrow_mut().pop_front()
    }
}
