//! Runs a mechanism on an executor's clock.
//!
//! Callers submit commands and wait. One task, the *attendant*, sleeps until the mechanism's next
//! event, advances it, and wakes the callers whose commands have completed. A new command wakes the
//! attendant only if it makes the next event earlier. The clock may be virtual or real. On a real
//! clock the attendant may run late; callers then learn of a completion late, but the mechanism's
//! times and counters remain those of the model.
//!
//! A caller that drops its future does not cancel the command: a real disk would carry it out, too.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use weft_rt::{Nanos, Rt};

use crate::command::{Command, Done, Mechanism};
use crate::stats::{Accounts, DiskStats};

/// A submitted command, until its caller has learned of its completion.
#[derive(Debug)]
struct Call {
    command: Command,
    arrived: Nanos,
    left: Option<Nanos>,
    waker: Option<Waker>,
    /// The caller has dropped its future.
    orphan: bool,
}

#[derive(Debug)]
struct State {
    mechanism: Box<dyn Mechanism>,
    accounts: Accounts,
    calls: Vec<Call>,
    free: Vec<usize>,
    done: Vec<Done>,
    attendant: Option<Waker>,
    /// When the attendant will wake up; [`Nanos::MAX`]: it will not.
    alarm: Nanos,
    closed: bool,
}

impl State {
    /// Advances the mechanism; collects the wakers of completed commands.
    fn advance(&mut self, now: Nanos, wakers: &mut Vec<Waker>) {
        self.mechanism.advance(now, &mut self.done);
        for done in self.done.drain(..) {
            let index = usize::try_from(done.tag).unwrap_or(usize::MAX);
            let call = &mut self.calls[index];
            self.accounts.left(&call.command, call.arrived, done.at);
            call.left = Some(done.at);
            wakers.extend(call.waker.take());
            if call.orphan {
                self.free.push(index);
            }
        }
    }

    fn submit(&mut self, now: Nanos, command: Command) -> usize {
        let call = Call { command, arrived: now, left: None, waker: None, orphan: false };
        let index = match self.free.pop() {
            Some(index) => {
                self.calls[index] = call;
                index
            }
            None => {
                self.calls.push(call);
                self.calls.len() - 1
            }
        };
        self.accounts.arrived(now);
        self.mechanism.submit(now, index as u64, command);
        index
    }
}

#[derive(Debug)]
struct Shared {
    rt: Rt,
    state: RefCell<State>,
}

/// A mechanism on an executor's clock; clones share the same one.
#[derive(Debug)]
pub struct Station(Rc<Shared>);

impl Clone for Station {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        // Only the attendant still holds the station.
        if Rc::strong_count(&self.0) == 2 {
            let attendant = {
                let mut state = self.0.state.borrow_mut();
                state.closed = true;
                state.attendant.take()
            };
            attendant.into_iter().for_each(Waker::wake);
        }
    }
}

impl Station {
    /// Starts `mechanism` on the clock of `rt`.
    pub fn new(rt: &Rt, mechanism: Box<dyn Mechanism>) -> Self {
        let state = State {
            mechanism,
            accounts: Accounts::new(rt.now()),
            calls: Vec::new(),
            free: Vec::new(),
            done: Vec::new(),
            attendant: None,
            alarm: Nanos::MAX,
            closed: false,
        };
        let shared = Rc::new(Shared { rt: rt.clone(), state: RefCell::new(state) });
        rt.spawn(attend(shared.clone()));
        Self(shared)
    }

    /// Submits `command` when the future is first polled; returns the time at which it completed by
    /// the model.
    pub fn serve(&self, command: Command) -> Service {
        Service { station: self.clone(), stage: Stage::Outside(command) }
    }

    /// The counters up to now.
    pub fn stats(&self) -> DiskStats {
        let now = self.0.rt.now();
        let mut wakers = Vec::new();
        let stats = {
            let state = &mut *self.0.state.borrow_mut();
            state.advance(now, &mut wakers);
            state.accounts.stats(now, state.mechanism.work())
        };
        wakers.into_iter().for_each(Waker::wake);
        stats
    }

    /// Resets the counters.
    pub fn reset_stats(&self) {
        self.0.state.borrow_mut().accounts.reset(self.0.rt.now());
    }
}

async fn attend(shared: Rc<Shared>) {
    let mut wakers = Vec::new();
    let mut sleep = None;
    poll_fn(move |cx| {
        loop {
            let now = shared.rt.now();
            let next = {
                let state = &mut *shared.state.borrow_mut();
                if state.closed {
                    return Poll::Ready(());
                }
                state.advance(now, &mut wakers);
                state.alarm = state.mechanism.next_event().unwrap_or(Nanos::MAX);
                if state.attendant.is_none() {
                    state.attendant = Some(cx.waker().clone());
                }
                state.alarm
            };
            wakers.drain(..).for_each(Waker::wake);
            if next == Nanos::MAX {
                sleep = None;
                return Poll::Pending;
            }
            let alarm = sleep.insert(shared.rt.sleep_until(next));
            if Pin::new(alarm).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

#[derive(Debug)]
enum Stage {
    Outside(Command),
    Inside(usize),
    Over,
}

/// The future of [`Station::serve`].
#[derive(Debug)]
pub struct Service {
    station: Station,
    stage: Stage,
}

impl Future for Service {
    type Output = Nanos;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Nanos> {
        let this = &mut *self;
        let shared = &this.station.0;
        match this.stage {
            Stage::Outside(command) => {
                let now = shared.rt.now();
                let mut wakers = Vec::new();
                let state = &mut *shared.state.borrow_mut();
                state.advance(now, &mut wakers);
                let index = state.submit(now, command);
                state.calls[index].waker = Some(cx.waker().clone());
                this.stage = Stage::Inside(index);
                if state.mechanism.next_event().is_some_and(|next| next < state.alarm) {
                    // The attendant may have been woken already; it sets the alarm only when it
                    // runs.
                    state.alarm = 0;
                    wakers.extend(state.attendant.clone());
                }
                wakers.into_iter().for_each(Waker::wake);
                Poll::Pending
            }
            Stage::Inside(index) => {
                let state = &mut *shared.state.borrow_mut();
                let call = &mut state.calls[index];
                let Some(left) = call.left else {
                    call.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                };
                state.free.push(index);
                state.accounts.learned(shared.rt.now().saturating_sub(left));
                this.stage = Stage::Over;
                Poll::Ready(left)
            }
            Stage::Over => Poll::Pending,
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Stage::Inside(index) = self.stage {
            let state = &mut *self.station.0.state.borrow_mut();
            let call = &mut state.calls[index];
            call.orphan = true;
            if call.left.is_some() {
                state.free.push(index);
            }
        }
    }
}
