//! What goes out on a connection: whole messages, in their order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use weft_rt::Rt;
use weft_rt::sync::Semaphore;

use super::stream::Stream;

/// Short messages that have come together are written in one go.
const TOGETHER_BYTES_MAX: usize = 16 << 10;

/// The way out on a connection.
pub(super) struct Outbox {
    pub(super) stream: Rc<dyn Stream>,
    writing: Semaphore,
    /// Messages that are not being written yet.
    posted: RefCell<VecDeque<Vec<u8>>>,
    is_posting: Cell<bool>,
    has_ended: Cell<bool>,
}

/// Ends a stream unless all of a message was written: a part of it may have been.
struct PartGuard<'a>(&'a dyn Stream, bool);

impl Drop for PartGuard<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.close();
        }
    }
}

impl Outbox {
    pub(super) fn new(stream: Rc<dyn Stream>) -> Rc<Self> {
        let (writing, posted) = (Semaphore::new(1), RefCell::default());
        let (is_posting, has_ended) = (Cell::new(false), Cell::new(false));
        Rc::new(Self { stream, writing, posted, is_posting, has_ended })
    }

    /// Writes a message after the earlier ones. `false`: the stream has ended.
    pub(super) async fn write(&self, bytes: Vec<u8>) -> bool {
        self.posted.borrow_mut().push_back(bytes);
        let _one = self.writing.acquire(1).await;
        self.write_posted().await
    }

    /// Takes messages that are posted, to be written together.
    fn take_some(&self) -> Option<Vec<u8>> {
        let mut posted = self.posted.borrow_mut();
        let mut bytes = posted.pop_front()?;
        while let Some(next) = posted.front()
            && bytes.len() + next.len() <= TOGETHER_BYTES_MAX
        {
            bytes.extend_from_slice(next);
            posted.pop_front();
        }
        Some(bytes)
    }

    /// Writes what is posted. `false`: the stream has ended. The caller holds `writing`.
    async fn write_posted(&self) -> bool {
        loop {
            let Some(bytes) = self.take_some() else { return !self.has_ended.get() };
            let mut whole = PartGuard(&*self.stream, false);
            whole.1 = self.stream.write(bytes).await.is_ok();
            if !whole.1 {
                // Nothing more goes out.
                self.has_ended.set(true);
                self.posted.borrow_mut().clear();
            }
        }
    }

    /// Sends a message after the earlier ones, and does not wait for that.
    pub(super) fn post(self: &Rc<Self>, rt: &Rt, bytes: Vec<u8>) {
        self.posted.borrow_mut().push_back(bytes);
        if self.is_posting.replace(true) {
            return;
        }
        let outbox = self.clone();
        drop(rt.spawn(async move {
            let _one = outbox.writing.acquire(1).await;
            outbox.is_posting.set(false);
            outbox.write_posted().await;
        }));
    }
}
