//! A value handed over once.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
struct OneshotState<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender_gone: bool,
}

/// The giving end.
#[derive(Debug)]
pub struct Sender<T>(Rc<RefCell<OneshotState<T>>>);

/// The taking end: a future that gives `Some(value)`, or `None` if the sender was dropped.
#[derive(Debug)]
pub struct Receiver<T>(Rc<RefCell<OneshotState<T>>>);

/// A connected pair.
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let inner =
        Rc::new(RefCell::new(OneshotState { value: None, waker: None, sender_gone: false }));
    (Sender(inner.clone()), Receiver(inner))
}

impl<T> Sender<T> {
    /// Hands the value over; it is dropped if the receiver is gone.
    pub fn send(self, value: T) {
        self.0.borrow_mut().value = Some(value);
        // Dropping self wakes the receiver.
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut inner = self.0.borrow_mut();
            inner.sender_gone = true;
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// The value, if it has come.
    pub fn try_take(&mut self) -> Option<T> {
        self.0.borrow_mut().value.take()
    }

    /// Whether the value has come.
    pub fn is_ready(&self) -> bool {
        self.0.borrow().value.is_some()
    }
}

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut inner = self.0.borrow_mut();
        if let Some(value) = inner.value.take() {
            return Poll::Ready(Some(value));
        }
        if inner.sender_gone {
            return Poll::Ready(None);
        }
        inner.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
