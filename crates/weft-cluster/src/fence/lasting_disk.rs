//! A shared disk that outlasts the end of its server, or of the way to it, for a while.
//!
//! When a connection is lost, requests wait, and the disk is opened again, in a new *session*
//! ([`Session`]), for at most [`Patience::reconnect`]. Then everything goes on, and the user of the
//! disk has seen a pause. Three things make that sound:
//!
//! * **What was not answered is asked again, and no old request comes after it.** The server takes
//!   a new session only when it has ended the earlier one and nothing of that is in flight any more
//!   (`gate.rs`). A server that was started again opens the disk only when the requests of the one
//!   before have ended. An answer that comes when the connection has been given up does not count.
//! * **What was acknowledged and not flushed is written again**, before anything else is asked. The
//!   machine of the server may have lost power, or its disk may. So all of it is kept until a flush
//!   that began after it has ended ([`Unflushed`]): whatever the server has lost is there again. If
//!   that gets too much the disk is flushed early.
//! * **It must be the same disk, in no earlier state** ([`DiskState`]).
//!
//! Changes of one place are made one after the other, so that it is known which of them came last.
//!
//! A disk that comes back with other contents, cannot take again what it had acknowledged, or does
//! not come back in time is gone, and stays so. A server that refuses this node because it was
//! fenced has ended the use of the disk.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::rc::Rc;

use futures_util::future::{Either, join_all, select};
use weft_disk::{
    Class, Disk, DiskError, DiskErrorKind, DiskInfo, DiskOp, DoneFuture, IoFuture, ReadFuture,
    WriteOpts,
};
use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{Buf, Frozen, MILLISECOND, Nanos, Rt, SECOND};

use super::session::{DiskState, Session};
use super::unflushed::{Content, Unflushed};

/// Pause before the next attempt: at first, and later.
const PAUSE: std::ops::Range<Nanos> = 20 * MILLISECOND..500 * MILLISECOND;
/// How many changes are written again at a time.
const AGAIN_AT_A_TIME: usize = 16;

/// How patient a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// How long a lost connection is tried to be made again.
    pub reconnect: Nanos,
    /// How much of what is not flushed is kept before the disk is flushed; at most twice of that
    /// is kept.
    pub unflushed_bytes: u64,
}

impl Default for Patience {
    /// Longer than a server waits that starts after a crash.
    fn default() -> Self {
        Self { reconnect: 10 * SECOND, unflushed_bytes: 64 << 20 }
    }
}

/// A disk as it was opened.
pub struct Opened {
    /// The disk, until its connection is lost.
    pub disk: Rc<dyn Disk>,
    /// Which disk it is, in which state.
    pub state: DiskState,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("state", &self.state).finish_non_exhaustive()
    }
}

/// Why a disk was not opened.
#[derive(Debug, thiserror::Error)]
pub enum NotOpened {
    /// This node was fenced.
    #[error("{0}")]
    Fenced(String),
    /// It is refused for another reason, which does not pass.
    #[error("{0}")]
    Refused(String),
    /// The server cannot be reached, or does not serve the disk at the moment.
    #[error("{0}")]
    Away(String),
}

/// Where a disk is opened, and opened again.
pub trait DiskSource {
    /// Opens it. A disk that is opened again in a later session takes no request of an earlier one
    /// any more, and none of those is in flight.
    fn open(&self, session: Session) -> IoFuture<'_, Result<Opened, NotOpened>>;
}

enum State {
    /// Connected, in a session of this number.
    Up(Rc<dyn Disk>, u64),
    Reconnecting,
    Gone(DiskErrorKind, String),
}

struct Shared {
    rt: Rt,
    source: Rc<dyn DiskSource>,
    patience: Patience,
    info: DiskInfo,
    state: RefCell<State>,
    changed: Notify,
    session: Cell<Session>,
    /// What the server said last of the disk.
    known: Cell<DiskState>,
    size_bytes: Cell<u64>,
    unflushed: RefCell<Unflushed>,
    changing: Ranges,
    /// Held by an early flush.
    flushing: Semaphore,
    /// An early flush has failed, and no one was told.
    flush_failure: RefCell<Option<DiskError>>,
    /// What is kept is not all that was not flushed: up to the change of this number.
    forgot: Cell<u64>,
    is_closed: Cell<bool>,
    was_away: Cell<bool>,
}

/// A disk that is opened again when its connection is lost.
pub struct LastingDisk(Rc<Shared>);

impl fmt::Debug for LastingDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastingDisk").field("name", &self.0.info.name).finish_non_exhaustive()
    }
}

impl Drop for LastingDisk {
    fn drop(&mut self) {
        self.0.close("it was closed");
    }
}

impl LastingDisk {
    /// Opens it for the first time.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub async fn open(
        rt: &Rt,
        source: Rc<dyn DiskSource>,
        patience: Patience,
    ) -> Result<Self, NotOpened> {
        let session = Session::first();
        let Opened { disk, state } = source.open(session).await?;
        Ok(Self(Rc::new(Shared {
            rt: rt.clone(),
            source,
            patience,
            info: disk.info().clone(),
            size_bytes: Cell::new(disk.size_now()),
            state: RefCell::new(State::Up(disk, session.number)),
            changed: Notify::default(),
            session: Cell::new(session),
            known: Cell::new(state),
            unflushed: RefCell::default(),
            changing: Ranges::default(),
            flushing: Semaphore::new(1),
            flush_failure: RefCell::default(),
            forgot: Cell::new(0),
            is_closed: Cell::new(false),
            was_away: Cell::new(false),
        })))
    }

    /// Whether it is gone because its server ended, or the way to it. The disk itself may work.
    pub fn was_away(&self) -> bool {
        self.0.was_away.get()
    }
}

/// Whether the connection is lost with a request: whether it was carried out is not known.
fn is_lost(error: &DiskError) -> bool {
    matches!(error.kind, DiskErrorKind::Gone | DiskErrorKind::TimedOut)
}

impl Shared {
    fn set_state(&self, state: State) {
        let old = self.state.replace(state);
        drop(old);
        self.changed.notify_all();
    }

    fn set_gone(&self, kind: DiskErrorKind, why: String) {
        if !matches!(*self.state.borrow(), State::Gone(..)) {
            self.set_state(State::Gone(kind, why));
        }
    }

    /// Nothing is asked any more.
    fn close(&self, why: &str) {
        self.is_closed.set(true);
        if let State::Up(disk, _) = &*self.state.borrow() {
            disk.sever(why);
        }
        self.set_gone(DiskErrorKind::Gone, why.to_owned());
    }

    /// The disk, once there is a connection.
    async fn connected(
        &self,
        op: DiskOp,
        offset: u64,
        len: u64,
    ) -> Result<(Rc<dyn Disk>, u64), DiskError> {
        loop {
            let changed = self.changed.wait();
            match &*self.state.borrow() {
                State::Up(disk, session) => return Ok((disk.clone(), *session)),
                State::Gone(kind, why) => {
                    let source = io::Error::new(io::ErrorKind::NotConnected, why.clone());
                    let mut error = DiskError::new(&self.info.name, op, offset, len, source);
                    error.kind = *kind;
                    return Err(error);
                }
                State::Reconnecting => {}
            }
            changed.await;
        }
    }

    fn is_current(&self, session: u64) -> bool {
        matches!(&*self.state.borrow(), State::Up(_, now) if *now == session)
    }

    /// Makes a request, again on each new connection, until it is answered there. When this
    /// returns success, the connection that has answered is the present one.
    async fn request(
        self: &Rc<Self>,
        (op, offset, len): (DiskOp, u64, u64),
        ask: impl AsyncFn(&dyn Disk) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        loop {
            let (disk, session) = self.connected(op, offset, len).await?;
            let answer = ask(&*disk).await;
            match answer {
                // Given up meanwhile: what was written again may have come after it.
                _ if !self.is_current(session) => {}
                Err(error) if is_lost(&error) => self.lost(&disk, &error),
                answer => return answer,
            }
        }
    }

    /// The present connection has ended.
    fn lost(self: &Rc<Self>, disk: &Rc<dyn Disk>, error: &DiskError) {
        disk.sever("its connection was lost");
        let why = error.source.to_string();
        if self.forgot.get() > 0 {
            let why = format!("{why}, with writes that were not flushed");
            self.was_away.set(true);
            return self.set_gone(DiskErrorKind::Gone, why);
        }
        self.set_state(State::Reconnecting);
        drop(self.rt.spawn(self.clone().reconnect(why)));
    }

    async fn reconnect(self: Rc<Self>, first: String) {
        let began = self.rt.now();
        let until = began.saturating_add(self.patience.reconnect);
        let mut pause = PAUSE.start;
        while !self.is_closed.get() {
            let why = match self.try_again(until).await {
                Ok((disk, session)) => {
                    if !self.is_closed.get() {
                        self.size_bytes.set(self.size_bytes.get().max(disk.size_now()));
                        self.set_state(State::Up(disk, session));
                    }
                    return;
                }
                Err(NotOpened::Fenced(why)) => return self.set_gone(DiskErrorKind::Fenced, why),
                Err(NotOpened::Refused(why)) => return self.set_gone(DiskErrorKind::Gone, why),
                Err(NotOpened::Away(why)) => why,
            };
            let now = self.rt.now();
            if now >= until {
                let waited = (now - began) / SECOND;
                let why = format!("{first}; not back within {waited} seconds: {why}");
                self.was_away.set(true);
                return self.set_gone(DiskErrorKind::Gone, why);
            }
            self.rt.sleep(pause.min(until - now)).await;
            pause = (2 * pause).min(PAUSE.end);
        }
    }

    /// Opens the disk again, and writes to it what it may have lost.
    async fn try_again(&self, until: Nanos) -> Result<(Rc<dyn Disk>, u64), NotOpened> {
        let session = self.session.get().next();
        self.session.set(session);
        let late = Box::pin(self.rt.sleep_until(until));
        let Opened { disk, state } = match select(self.source.open(session), late).await {
            Either::Left((opened, _)) => opened?,
            Either::Right(_) => return Err(NotOpened::Away("it does not answer".to_owned())),
        };
        let is_like = disk.info().sector_bytes == self.info.sector_bytes
            && disk.size_now() >= self.size_bytes.get();
        if !is_like || !state.may_follow(&self.known.get()) {
            disk.sever("it is another disk");
            let why = "the server came back with another disk, or an earlier state of it";
            return Err(NotOpened::Refused(why.to_owned()));
        }
        // The requests that it takes have a limit of their own.
        if let Err(error) = self.write_again(&*disk).await {
            disk.sever("it was not written again");
            let text = error.source.to_string();
            return Err(match is_lost(&error) {
                true => NotOpened::Away(text),
                false => NotOpened::Refused(format!(
                    "what was not flushed cannot be written again: {text}"
                )),
            });
        }
        self.known.set(state);
        Ok((disk, session.number))
    }

    async fn write_again(&self, disk: &dyn Disk) -> Result<(), DiskError> {
        let pieces = self.unflushed.borrow().pieces();
        for some in pieces.chunks(AGAIN_AT_A_TIME) {
            let writes = some.iter().map(|(offset, len, content)| match content {
                Content::Data(data) => disk.write(*offset, data.clone(), WriteOpts::USER),
                Content::Zeroes => disk.write_zeroes(*offset, *len, WriteOpts::USER),
            });
            for written in join_all(writes).await {
                written?;
            }
        }
        Ok(())
    }

    /// A change was acknowledged on the present connection.
    fn note(&self, offset: u64, len: u64, content: Option<Content>) {
        self.unflushed.borrow_mut().note(offset, len, content);
        if self.forgot.get() > 0 {
            self.forget_all();
        }
    }

    /// Keeps nothing until a flush has succeeded.
    fn forget_all(&self) {
        let mut unflushed = self.unflushed.borrow_mut();
        let last = unflushed.last();
        unflushed.flushed(last);
        self.forgot.set(last);
    }

    async fn flush(self: &Rc<Self>) -> Result<(), DiskError> {
        let before = Cell::new(0);
        let ask = async |disk: &dyn Disk| {
            before.set(self.unflushed.borrow().last());
            disk.flush().await
        };
        self.request((DiskOp::Flush, 0, 0), ask).await?;
        self.unflushed.borrow_mut().flushed(before.get());
        if before.get() >= self.forgot.get() {
            self.forgot.set(0);
        }
        Ok(())
    }

    /// Flushes if too much is kept. Only if it is far too much a change waits for that.
    async fn make_room(self: &Rc<Self>) {
        let kept = || self.unflushed.borrow().bytes();
        let max = self.patience.unflushed_bytes;
        if kept() <= max {
            return;
        }
        if let Some(turn) = self.flushing.try_acquire(1) {
            let shared = self.clone();
            drop(self.rt.spawn(async move {
                shared.flush_early().await;
                drop(turn);
            }));
        }
        while kept() > 2 * max {
            let _turn = self.flushing.acquire(1).await;
            if kept() > max {
                self.flush_early().await;
            }
        }
    }

    async fn flush_early(self: &Rc<Self>) {
        if let Err(error) = self.flush().await {
            // The next flush tells it: what was acknowledged may be lost.
            self.flush_failure.borrow_mut().get_or_insert(error);
            self.forget_all();
        }
    }

    async fn write(
        self: &Rc<Self>,
        offset: u64,
        data: Frozen,
        opts: WriteOpts,
    ) -> Result<(), DiskError> {
        self.make_room().await;
        let len = data.len() as u64;
        let _alone = self.changing.lock(offset, len).await;
        let ask = async |disk: &dyn Disk| disk.write(offset, data.clone(), opts).await;
        self.request((DiskOp::Write, offset, len), ask).await?;
        self.note(offset, len, (!opts.fua).then_some(Content::Data(data)));
        Ok(())
    }

    async fn write_zeroes(
        self: &Rc<Self>,
        offset: u64,
        len: u64,
        opts: WriteOpts,
    ) -> Result<(), DiskError> {
        self.make_room().await;
        let _alone = self.changing.lock(offset, len).await;
        let ask = async |disk: &dyn Disk| disk.write_zeroes(offset, len, opts).await;
        self.request((DiskOp::WriteZeroes, offset, len), ask).await?;
        self.note(offset, len, (!opts.fua).then_some(Content::Zeroes));
        Ok(())
    }

    async fn discard(self: &Rc<Self>, offset: u64, len: u64) -> Result<(), DiskError> {
        let _alone = self.changing.lock(offset, len).await;
        let ask = async |disk: &dyn Disk| disk.discard(offset, len).await;
        self.request((DiskOp::Discard, offset, len), ask).await?;
        self.note(offset, len, None);
        Ok(())
    }

    async fn read(
        self: &Rc<Self>,
        offset: u64,
        mut buf: Buf,
        class: Class,
    ) -> (Result<(), DiskError>, Buf) {
        let len = buf.len();
        loop {
            let connected = self.connected(DiskOp::Read, offset, len as u64).await;
            let (disk, session) = match connected {
                Ok(connected) => connected,
                Err(error) => return (Err(error), buf),
            };
            let (result, back) = disk.read(offset, buf, class).await;
            buf = back;
            match result {
                Err(error) if is_lost(&error) => {
                    if self.is_current(session) {
                        self.lost(&disk, &error);
                    }
                    if buf.len() != len {
                        buf = Buf::new(len);
                    }
                }
                result => return (result, buf),
            }
        }
    }
}

impl Disk for LastingDisk {
    fn info(&self) -> &DiskInfo {
        &self.0.info
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(self.0.read(offset, buf, class))
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(self.0.write(offset, data, opts))
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async {
            let flushed = self.0.flush().await;
            match self.0.flush_failure.take() {
                Some(earlier) => Err(earlier),
                None => flushed,
            }
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(self.0.write_zeroes(offset, len, opts))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(self.0.discard(offset, len))
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        match &*self.0.state.borrow() {
            State::Up(disk, _) => disk.next_data(offset),
            _ => (offset < self.0.size_bytes.get()).then_some(offset),
        }
    }

    fn size_now(&self) -> u64 {
        if let State::Up(disk, _) = &*self.0.state.borrow() {
            self.0.size_bytes.set(self.0.size_bytes.get().max(disk.size_now()));
        }
        self.0.size_bytes.get()
    }

    fn sever(&self, why: &str) {
        self.0.close(why);
    }
}

/// Ranges that are being changed.
#[derive(Default)]
struct Ranges {
    held: RefCell<BTreeMap<u64, u64>>,
    freed: Notify,
}

struct RangeGuard<'a>(&'a Ranges, Option<u64>);

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        if let Some(offset) = self.1 {
            self.0.held.borrow_mut().remove(&offset);
            self.0.freed.notify_all();
        }
    }
}

impl Ranges {
    /// Waits until nothing of a range is being changed.
    async fn lock(&self, offset: u64, len: u64) -> RangeGuard<'_> {
        if len == 0 {
            return RangeGuard(self, None);
        }
        let end = offset.saturating_add(len);
        loop {
            let freed = self.freed.wait();
            // None overlaps another one, so the last before the end is the one to look at.
            let is_free = {
                let held = self.held.borrow();
                held.range(..end).next_back().is_none_or(|(_, held_end)| *held_end <= offset)
            };
            if is_free {
                self.held.borrow_mut().insert(offset, end);
                return RangeGuard(self, Some(offset));
            }
            freed.await;
        }
    }
}
