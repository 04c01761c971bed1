//! Wakers without allocation: a waker is a number.
//!
//! Waking is the executor's most frequent operation, and on one thread it should cost no atomic
//! operation, no lock and no allocation. A [`Waker`] must be usable from any thread, though, and
//! may outlive its task and even its executor. So its data is not a pointer but a [`TaskId`] packed
//! into one word: which executor, which slot in its table, and which generation of that slot.
//! Cloning copies the word, dropping does nothing.
//!
//! A wake looks for the executor among those of its own thread, and pushes the slot on that one's
//! queue. If it is not there, the wake comes from another thread: a registry of the process leads
//! to the executor's inbox and doorbell, which is slower and takes a lock. A waker that outlived
//! its task differs in generation, and is ignored. If a generation number is reused (after a
//! million tasks in one slot), the wake is merely spurious, which every future must tolerate.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{RawWaker, RawWakerVTable, Waker};

const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 20;
const EXECUTOR_BITS: u32 = 24;
const _: () = assert!(SLOT_BITS + GENERATION_BITS + EXECUTOR_BITS == usize::BITS);

/// Tasks of one executor that can be alive at the same time.
pub(crate) const TASKS_MAX: usize = 1 << SLOT_BITS;

const fn mask(bits: u32) -> usize {
    (1 << bits) - 1
}

/// A task of some executor of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskId {
    pub(crate) slot: usize,
    pub(crate) generation: usize,
}

impl TaskId {
    fn pack(self, executor: usize) -> usize {
        ((executor << GENERATION_BITS) | self.generation) << SLOT_BITS | self.slot
    }

    fn unpack(word: usize) -> (usize, Self) {
        let slot = word & mask(SLOT_BITS);
        let generation = (word >> SLOT_BITS) & mask(GENERATION_BITS);
        (word >> (SLOT_BITS + GENERATION_BITS), Self { slot, generation })
    }
}

/// What a slot of the task table looks like to wakers.
#[derive(Clone, Copy, Default)]
struct Mark {
    generation: usize,
    queued: bool,
}

/// The runnable tasks of one executor, as seen from its own thread.
#[derive(Default)]
struct Ready {
    marks: Vec<Mark>,
    queue: VecDeque<TaskId>,
}

impl Ready {
    fn wake(&mut self, task: TaskId) {
        match self.marks.get_mut(task.slot) {
            Some(mark) if mark.generation == task.generation && !mark.queued => {
                mark.queued = true;
                self.queue.push_back(task);
            }
            _ => {}
        }
    }

    /// A task was taken from the queue.
    fn unmark(&mut self, task: TaskId) {
        if let Some(mark) = self.marks.get_mut(task.slot)
            && mark.generation == task.generation
        {
            mark.queued = false;
        }
    }
}

/// Wakes from other threads.
struct Inbox {
    tasks: Mutex<Vec<TaskId>>,
    filled: AtomicBool,
    doorbell: Arc<dyn Fn() + Send + Sync>,
}

/// Executors of all threads; holds only live ones.
static REGISTRY: Mutex<(usize, BTreeMap<usize, Arc<Inbox>>)> = Mutex::new((0, BTreeMap::new()));

thread_local! {
    /// Executors of this thread; hardly ever more than one.
    static HERE: RefCell<Vec<(usize, Rc<RefCell<Ready>>)>> = const { RefCell::new(Vec::new()) };
}

/// The runnable tasks of one executor.
pub(crate) struct ReadyQueue {
    executor: usize,
    ready: Rc<RefCell<Ready>>,
    inbox: Arc<Inbox>,
}

impl ReadyQueue {
    pub(crate) fn new(doorbell: Arc<dyn Fn() + Send + Sync>) -> Self {
        let inbox =
            Arc::new(Inbox { tasks: Mutex::default(), filled: AtomicBool::new(false), doorbell });
        let executor = {
            let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
            let (next, inboxes) = &mut *registry;
            while inboxes.contains_key(next) {
                *next = (*next + 1) & mask(EXECUTOR_BITS);
            }
            let executor = *next;
            *next = (executor + 1) & mask(EXECUTOR_BITS);
            inboxes.insert(executor, inbox.clone());
            executor
        };
        let ready = Rc::default();
        HERE.with_borrow_mut(|here| here.push((executor, Rc::clone(&ready))));
        Self { executor, ready, inbox }
    }

    /// Prepares `slot` for a new task: its id and waker.
    pub(crate) fn admit(&self, slot: usize) -> (TaskId, Waker) {
        let mut ready = self.ready.borrow_mut();
        if ready.marks.len() <= slot {
            ready.marks.resize(slot + 1, Mark::default());
        }
        let id = TaskId { slot, generation: ready.marks[slot].generation };
        let data = std::ptr::without_provenance(id.pack(self.executor));
        // SAFETY: the functions of the table are safe for every data word: they treat it as a
        // number and own nothing.
        let waker = unsafe { Waker::from_raw(RawWaker::new(data, &VTABLE)) };
        (id, waker)
    }

    /// Makes a task runnable, from its own thread.
    pub(crate) fn wake(&self, task: TaskId) {
        self.ready.borrow_mut().wake(task);
    }

    /// The task in `slot` has ended: its wakers have no effect any more.
    pub(crate) fn retire(&self, slot: usize) {
        let mark = &mut self.ready.borrow_mut().marks[slot];
        let generation = (mark.generation + 1) & mask(GENERATION_BITS);
        *mark = Mark { generation, queued: false };
    }

    /// Whether `task` has not been retired.
    pub(crate) fn is_current(&self, task: TaskId) -> bool {
        let ready = self.ready.borrow();
        ready.marks.get(task.slot).is_some_and(|mark| mark.generation == task.generation)
    }

    /// Whether nothing is runnable.
    pub(crate) fn is_empty(&self) -> bool {
        self.read_inbox();
        self.ready.borrow().queue.is_empty()
    }

    /// Takes the task that has waited longest.
    pub(crate) fn pop(&self) -> Option<TaskId> {
        self.read_inbox();
        let mut ready = self.ready.borrow_mut();
        let task = ready.queue.pop_front()?;
        ready.unmark(task);
        Some(task)
    }

    /// Takes the runnable task at the place that `choose` gives, or none.
    pub(crate) fn pop_chosen(
        &self,
        choose: impl FnOnce(&VecDeque<TaskId>) -> Option<usize>,
    ) -> Option<TaskId> {
        self.read_inbox();
        let mut ready = self.ready.borrow_mut();
        if ready.queue.is_empty() {
            return None;
        }
        let place = choose(&ready.queue)?;
        let task = ready.queue.remove(place)?;
        ready.unmark(task);
        Some(task)
    }

    /// Clears the queue of runnable tasks.
    pub(crate) fn clear(&self) {
        self.read_inbox();
        let mut ready = self.ready.borrow_mut();
        ready.queue.clear();
        ready.marks.iter_mut().for_each(|mark| mark.queued = false);
    }

    fn read_inbox(&self) {
        if !self.inbox.filled.load(Ordering::Acquire) {
            return;
        }
        let tasks = {
            let mut tasks = self.inbox.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            self.inbox.filled.store(false, Ordering::Release);
            std::mem::take(&mut *tasks)
        };
        let mut ready = self.ready.borrow_mut();
        for task in tasks {
            ready.wake(task);
        }
    }
}

impl Drop for ReadyQueue {
    fn drop(&mut self) {
        let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        registry.1.remove(&self.executor);
        drop(registry);
        // No thread-local any more: the thread is ending, and the entry is already gone.
        let _ = HERE.try_with(|here| {
            here.borrow_mut().retain(|(executor, _)| *executor != self.executor);
        });
    }
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(
    |data| RawWaker::new(data, &VTABLE),
    |data| wake(data.addr()),
    |data| wake(data.addr()),
    |_| {},
);

fn wake(word: usize) {
    let (executor, task) = TaskId::unpack(word);
    let here = HERE.try_with(|here| {
        let here = here.borrow();
        match here.iter().rev().find(|(id, _)| *id == executor) {
            Some((_, ready)) => {
                ready.borrow_mut().wake(task);
                true
            }
            None => false,
        }
    });
    if here != Ok(true) {
        wake_elsewhere(executor, task);
    }
}

#[cold]
fn wake_elsewhere(executor: usize, task: TaskId) {
    let inbox = {
        let registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        // An executor that is gone has nothing to wake.
        let Some(inbox) = registry.1.get(&executor) else { return };
        inbox.clone()
    };
    {
        let mut tasks = inbox.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if !tasks.contains(&task) {
            tasks.push(task);
        }
        inbox.filled.store(true, Ordering::Release);
    }
    (inbox.doorbell)();
}
