//! The executor: a queue of runnable tasks on one thread.
//!
//! Turn by turn it polls runnable tasks, fires due timers, and lets the driver reap completions;
//! when nothing is runnable it parks in the driver until the next deadline. Runnable tasks are
//! taken first-in-first-out, or in an order drawn from a seed (`schedule.rs`), so that the
//! simulator explores interleavings that a busy ring would produce and can replay each exactly.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::Nanos;
use crate::domain::{Domain, contain};
use crate::pool::Keeping;
use crate::schedule::{Drawn, Next, Schedule};
use crate::timer::Timers;
use crate::waker::{ReadyQueue, TASKS_MAX, TaskId};

/// Number of polls between two calls of the driver. A long run of ready tasks must not starve I/O,
/// and the requests they submit should be in progress while the rest of them run. With many
/// requests in flight, longer turns let these travel in a convoy – all with us, then all with the
/// disks – where either waits for the other; shorter ones cost a call for every few requests.
const POLLS_PER_TURN: usize = 16;

/// The source of time and completions.
pub trait Driver {
    /// The time now.
    fn now(&self) -> Nanos;
    /// Reaps what has completed, without waiting; completions wake their tasks.
    fn poll(&self);
    /// Nothing is runnable: waits until something completes, `deadline` passes, or the doorbell
    /// rings. `None` means that no timer is set. Virtual time moves to `deadline` at once, and
    /// panics on `None`, because then nothing could ever happen again. A racing schedule also calls
    /// it while tasks are runnable, to let time pass.
    fn park(&self, deadline: Option<Nanos>);
    /// What a wake from another thread calls to end [`Driver::park`].
    fn doorbell(&self) -> Arc<dyn Fn() + Send + Sync>;
}

/// Handle of an executor; clones are handles of the same one, and of the same domain of failure if
/// it has one ([`Rt::domain`]).
#[derive(Clone)]
pub struct Rt(Rc<Core>, Option<Rc<Domain>>);

impl std::fmt::Debug for Rt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rt").field("now_ns", &self.now()).finish_non_exhaustive()
    }
}

struct Core {
    driver: Rc<dyn Driver>,
    tasks: RefCell<Vec<Slot>>,
    free: RefCell<Vec<usize>>,
    ready: ReadyQueue,
    pub(crate) timers: RefCell<Timers>,
    /// How runnable tasks are chosen, unless first in, first out.
    drawn: Option<Drawn>,
    /// Polls since the start: lets a simulation bound a livelock.
    polls: Cell<u64>,
    /// [`Rt::kill_all`] is running: nothing is polled.
    is_killing: Cell<bool>,
    /// See [`Rt::turn_time`]; none until it is asked for.
    turn_time: Cell<Option<Nanos>>,
    /// Last, since the tasks' own memory is kept too.
    _keeping: Keeping,
}

enum Slot {
    Free,
    Running(Option<Rc<Domain>>),
    Idle(Pin<Box<dyn Future<Output = ()>>>, Waker, Option<Rc<Domain>>),
}

impl Slot {
    fn domain(&self) -> Option<&Rc<Domain>> {
        match self {
            Slot::Free => None,
            Slot::Running(domain) | Slot::Idle(_, _, domain) => domain.as_ref(),
        }
    }
}

impl Rt {
    /// An executor for the calling thread.
    pub fn new(driver: Rc<dyn Driver>, schedule: Schedule) -> Self {
        let ready = ReadyQueue::new(driver.doorbell());
        let core = Core {
            driver,
            tasks: RefCell::default(),
            free: RefCell::default(),
            ready,
            timers: RefCell::default(),
            drawn: Drawn::new(schedule),
            polls: Cell::new(0),
            is_killing: Cell::new(false),
            turn_time: Cell::new(None),
            _keeping: Keeping::start(),
        };
        Rt(Rc::new(core), None)
    }

    /// A handle whose tasks fail together: when one of them panics, all of them are dropped where
    /// they stand, as [`Rt::kill_all`] does, and `failed` is called, once. Other tasks continue. An
    /// await of a task of a failed domain never ends, and tasks spawned in it later never run.
    #[must_use]
    pub fn domain(&self, failed: impl FnOnce() + 'static) -> Self {
        Rt(self.0.clone(), Some(Rc::new(Domain::new(failed))))
    }

    /// As [`Rt::domain`], for a process of a simulated machine: its clock shows `rate` nanoseconds
    /// of its own in a thousand, and it can be stopped ([`Rt::stop_domain`]).
    ///
    /// # Panics
    /// If `rate` is 0.
    #[must_use]
    pub fn machine(&self, rate: u64, failed: impl FnOnce() + 'static) -> Self {
        Rt(self.0.clone(), Some(Rc::new(Domain::with_rate(rate, failed))))
    }

    /// No task of the domain of this handle runs until [`Rt::go_on`], as if its machine stood
    /// still. Time goes on, and what its tasks have started outside it.
    pub fn stop_domain(&self) {
        self.1.iter().for_each(|domain| domain.stop());
    }

    /// Tasks of a domain that was stopped run again.
    pub fn go_on(&self) {
        let held = self.1.iter().flat_map(|domain| domain.go_on());
        held.for_each(|task| self.0.ready.wake(task));
    }

    /// Ends the domain of this handle as a panic in one of its tasks does.
    pub fn fail_domain(&self) {
        if let Some(domain) = &self.1 {
            self.end_domain(domain);
        }
    }

    fn end_domain(&self, domain: &Rc<Domain>) {
        let Some(failed) = domain.fail() else { return };
        // What is dropped may panic as well: its state is that of a task that did.
        let slots = 0..self.0.tasks.borrow().len();
        for slot in slots {
            let is_its = || {
                let tasks = self.0.tasks.borrow();
                tasks.get(slot).and_then(Slot::domain).is_some_and(|its| Rc::ptr_eq(its, domain))
            };
            if is_its() {
                contain(|| self.kill(slot));
            }
        }
        failed();
    }

    /// The time now, from the driver.
    pub fn now(&self) -> Nanos {
        self.shown(self.0.driver.now())
    }

    fn shown(&self, time: Nanos) -> Nanos {
        self.1.as_ref().map_or(time, |domain| domain.shown(time))
    }

    /// The time of the driver at which this handle's clock shows `deadline`.
    pub(crate) fn due(&self, deadline: Nanos) -> Nanos {
        self.1.as_ref().map_or(deadline, |domain| domain.due(deadline))
    }

    /// The time in this turn of the executor, which is a few polls long. Costs less than
    /// [`Rt::now`] if many ask. Under virtual time it is exact.
    pub fn turn_time(&self) -> Nanos {
        let time = self.0.turn_time.get().unwrap_or_else(|| self.0.driver.now());
        self.0.turn_time.set(Some(time));
        self.shown(time)
    }

    /// Lets every other runnable task have a turn.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                Poll::Ready(())
            } else {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        })
        .await;
    }

    /// Starts a task. Dropping the returned [`Task`] lets it run on unobserved.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        let (tx, rx) = crate::sync::oneshot();
        let task = self.admit(Box::pin(Observed { future: Some(future), result: Some(tx) }));
        self.0.ready.wake(task);
        Task(rx)
    }

    /// Starts a detached task, with its first poll in the caller's own turn: a
    /// request that can end at once does.
    pub fn launch(&self, future: Pin<Box<dyn Future<Output = ()>>>) {
        let task = self.admit(future);
        self.poll_task(task);
    }

    /// Runs a future as a part of the task that awaits it, without a task of its own. If it is
    /// dropped after it was started and before it has ended, it continues as a task.
    pub fn attach<F: Future + 'static>(&self, future: impl FnOnce() -> F) -> Attached<'_, F> {
        Attached { rt: self, future: Some(boxed(future)), begun: false }
    }

    /// Takes a task into the table.
    fn admit(&self, future: Pin<Box<dyn Future<Output = ()>>>) -> TaskId {
        let core = &self.0;
        let domain = self.1.clone();
        // Of a failed domain nothing runs any more.
        let future = match &domain {
            Some(domain) if domain.has_failed() => Box::pin(async {}),
            _ => future,
        };
        let slot = core.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut tasks = core.tasks.borrow_mut();
            assert!(tasks.len() < TASKS_MAX, "more than {TASKS_MAX} tasks at the same time");
            tasks.push(Slot::Free);
            tasks.len() - 1
        });
        let (task, waker) = core.ready.admit(slot);
        core.tasks.borrow_mut()[slot] = Slot::Idle(future, waker, domain);
        task
    }

    /// Runs every task until `future` is done, and returns what it gives.
    ///
    /// # Panics
    /// If called from inside a task of the same executor, or if the driver panics because
    /// nothing can ever happen again (virtual time only).
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let mut task = self.spawn(future);
        loop {
            self.run_ready();
            if let Some(value) = task.0.try_take() {
                return value;
            }
            self.wait();
        }
    }

    /// Drops every task where it stands, without running it further: what a power cut does to
    /// a program. Buffers of I/O in flight stay with the driver until the I/O completes.
    pub fn kill_all(&self) {
        // Destructors of tasks may spawn further tasks, and launch some.
        self.0.is_killing.set(true);
        while self.live_tasks() > 0 {
            let mut slots = 0..self.0.tasks.borrow().len();
            slots.by_ref().for_each(|slot| self.kill(slot));
        }
        self.0.ready.clear();
        self.0.is_killing.set(false);
    }

    fn kill(&self, slot: usize) {
        let killed = std::mem::replace(&mut self.0.tasks.borrow_mut()[slot], Slot::Free);
        if !matches!(killed, Slot::Free) {
            self.0.ready.retire(slot);
            self.0.free.borrow_mut().push(slot);
        }
    }

    /// Polls of tasks since the start.
    pub fn polls(&self) -> u64 {
        self.0.polls.get()
    }

    /// The tasks that are not finished.
    pub fn live_tasks(&self) -> usize {
        self.0.tasks.borrow().iter().filter(|s| !matches!(s, Slot::Free)).count()
    }

    /// Polls runnable tasks, up to a bound.
    fn run_ready(&self) {
        self.0.turn_time.set(None);
        self.fire_timers();
        let mut polled = 0;
        while polled < POLLS_PER_TURN
            && let Some(task) = self.next_ready()
        {
            self.poll_task(task);
            polled += 1;
        }
    }

    /// Reaps completions, and waits for them if nothing is runnable.
    fn wait(&self) {
        if !self.0.ready.is_empty() {
            self.0.driver.poll();
        } else {
            let deadline = self.0.timers.borrow().next_deadline();
            self.0.driver.park(deadline);
        }
    }

    fn fire_timers(&self) {
        if self.0.timers.borrow().next_deadline().is_none() {
            return;
        }
        let now = self.0.driver.now();
        // Wakes are made outside the borrow: a waker's drop may run code that sets timers.
        loop {
            let Some(waker) = self.0.timers.borrow_mut().pop_due(now) else { return };
            waker.wake();
        }
    }

    fn next_ready(&self) -> Option<TaskId> {
        match &self.0.drawn {
            None => self.0.ready.pop(),
            Some(drawn) => self.next_drawn(drawn),
        }
    }

    /// The next task of a drawn schedule, after time has passed if it is to.
    fn next_drawn(&self, drawn: &Drawn) -> Option<TaskId> {
        loop {
            let (now, deadline) = (self.0.driver.now(), self.0.timers.borrow().next_deadline());
            let mut passes = false;
            let task = self.0.ready.pop_chosen(|tasks| match drawn.next(tasks, now, deadline) {
                Next::Poll(place) => Some(place),
                Next::PassTime => {
                    passes = true;
                    None
                }
            });
            if !passes {
                return task;
            }
            self.0.driver.park(deadline);
            self.0.turn_time.set(None);
            self.fire_timers();
        }
    }

    fn poll_task(&self, task: TaskId) {
        let core = &self.0;
        // A task that woke itself in the very poll that ended it.
        if core.is_killing.get() || !core.ready.is_current(task) {
            return;
        }
        let slot = task.slot;
        let (mut future, waker, domain) = {
            let place = &mut core.tasks.borrow_mut()[slot];
            if place.domain().is_some_and(|domain| domain.holds(task)) {
                return;
            }
            match std::mem::replace(place, Slot::Free) {
                Slot::Idle(future, waker, domain) => {
                    *place = Slot::Running(domain.clone());
                    (future, waker, domain)
                }
                // A task whose poll panicked outside of any domain stays where it was, and is never
                // polled again.
                other => {
                    *place = other;
                    return;
                }
            }
        };
        core.polls.set(core.polls.get() + 1);
        let mut cx = Context::from_waker(&waker);
        let polled = match &domain {
            None => Some(future.as_mut().poll(&mut cx)),
            Some(_) => contain(|| future.as_mut().poll(&mut cx)),
        };
        let Some(polled) = polled else {
            contain(|| drop(future));
            domain.iter().for_each(|domain| self.end_domain(domain));
            return;
        };
        let done = polled.is_ready();
        // kill_all inside the poll, or the end of its domain, has freed the slot.
        if !core.ready.is_current(task) {
            contain(|| drop(future));
            return;
        }
        let idle = if done { Slot::Free } else { Slot::Idle(future, waker, domain) };
        core.tasks.borrow_mut()[slot] = idle;
        if done {
            core.ready.retire(slot);
            core.free.borrow_mut().push(slot);
        }
    }

    pub(crate) fn with_timers<T>(&self, f: impl FnOnce(&mut Timers) -> T) -> T {
        f(&mut self.0.timers.borrow_mut())
    }
}

/// The future that `make` makes, in a box. It is made there: futures of requests take kilobytes,
/// which [`Box::pin`] would copy.
pub fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}

/// A task's future, and where its result goes. Not an async block: that would hold the future
/// twice, as what it captured and as what it awaits.
struct Observed<F: Future> {
    future: Option<F>,
    result: Option<crate::sync::Sender<F::Output>>,
}

impl<F: Future> Future for Observed<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: `future` is never moved: it is polled and dropped where it is. `result` is
        // never treated as pinned.
        let (mut future, result) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &mut this.result)
        };
        let Some(running) = future.as_mut().as_pin_mut() else { return Poll::Ready(()) };
        let Poll::Ready(value) = running.poll(cx) else { return Poll::Pending };
        // What the task held is released before its result can be seen.
        future.set(None);
        if let Some(result) = result.take() {
            result.send(value);
        }
        Poll::Ready(())
    }
}

/// A future that ends even if it is dropped: see [`Rt::attach`]. A panic in it is one in its
/// handle's domain, and it then never ends.
pub struct Attached<'a, F: Future + 'static> {
    rt: &'a Rt,
    future: Option<Pin<Box<F>>>,
    begun: bool,
}

impl<F: Future> std::fmt::Debug for Attached<'_, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attached").field("begun", &self.begun).finish_non_exhaustive()
    }
}

impl<F: Future> Future for Attached<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let Some(future) = &mut this.future else { return Poll::Pending };
        this.begun = true;
        let polled = match &this.rt.1 {
            None => Some(future.as_mut().poll(cx)),
            Some(domain) if domain.has_failed() => None,
            Some(_) => contain(|| future.as_mut().poll(cx)),
        };
        match polled {
            Some(Poll::Pending) => Poll::Pending,
            Some(Poll::Ready(value)) => {
                this.future = None;
                Poll::Ready(value)
            }
            None => {
                let future = this.future.take();
                contain(|| drop(future));
                this.rt.fail_domain();
                Poll::Pending
            }
        }
    }
}

impl<F: Future + 'static> Drop for Attached<'_, F> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take()
            && self.begun
        {
            let task = self.rt.admit(Box::pin(async move { drop(future.await) }));
            self.rt.0.ready.wake(task);
        }
    }
}

/// A running task; as a future it gives the task's output.
#[derive(Debug)]
pub struct Task<T>(crate::sync::Receiver<T>);

impl<T> Task<T> {
    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_ready()
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    /// A task that was dropped before it ended never gives its output ([`Rt::kill_all`],
    /// [`Rt::domain`]).
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match Pin::new(&mut self.0).poll(cx) {
            Poll::Ready(Some(value)) => Poll::Ready(value),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}
