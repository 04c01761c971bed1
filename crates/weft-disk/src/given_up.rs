//! Giving a disk up: from one moment on all of its requests end.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::{DiskError, DiskErrorKind, DiskOp, IoFuture};

/// Whether a disk is severed and why, and the requests that end when it is.
#[derive(Default)]
pub(crate) struct GivenUpDisk {
    reason: RefCell<Option<(io::ErrorKind, String)>>,
    waiting: RefCell<Waiting>,
}

/// Those that wait for the disk, each in a place of its own.
#[derive(Default)]
struct Waiting {
    places: Vec<Option<Waker>>,
    free: Vec<usize>,
}

impl GivenUpDisk {
    /// It did not answer in time.
    pub fn time_out(&self, text: String) {
        self.give_up(io::ErrorKind::TimedOut, text);
    }

    /// Its owner does not use it any more.
    pub fn sever(&self, why: &str) {
        let text = format!("the disk is not used any more: {why}");
        self.give_up(io::ErrorKind::NotConnected, text);
    }

    fn give_up(&self, kind: io::ErrorKind, text: String) {
        if self.is_given_up() {
            return;
        }
        *self.reason.borrow_mut() = Some((kind, text));
        // Woken outside the borrow: a waker's drop may run code that asks the disk.
        let waiting = std::mem::take(&mut self.waiting.borrow_mut().places);
        waiting.into_iter().flatten().for_each(Waker::wake);
    }

    pub fn is_given_up(&self) -> bool {
        self.reason.borrow().is_some()
    }

    pub fn is_severed(&self) -> bool {
        matches!(*self.reason.borrow(), Some((io::ErrorKind::NotConnected, _)))
    }

    /// Fails a request to the disk named `disk` if it is severed.
    pub fn check(&self, disk: &str, op: DiskOp, offset: u64, len: u64) -> Result<(), DiskError> {
        let Some((reason, text)) = self.reason.borrow().clone() else { return Ok(()) };
        let kind = match reason {
            io::ErrorKind::TimedOut => DiskErrorKind::TimedOut,
            _ => DiskErrorKind::Gone,
        };
        let mut error = DiskError::new(disk, op, offset, len, io::Error::new(reason, text));
        error.kind = kind;
        Err(error)
    }

    /// Waits for a request to the disk; `None` if the disk is severed first.
    pub fn unless<'a, T>(&'a self, request: IoFuture<'a, T>) -> UnlessGivenUp<'a, T> {
        UnlessGivenUp { given_up: self, request: Some(request), place: None }
    }
}

/// A request in progress.
pub(crate) struct UnlessGivenUp<'a, T> {
    given_up: &'a GivenUpDisk,
    request: Option<IoFuture<'a, T>>,
    /// Where its waker is kept.
    place: Option<usize>,
}

impl<T> Future for UnlessGivenUp<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if self.given_up.is_given_up() {
            self.request = None;
            return Poll::Ready(None);
        }
        let Some(request) = &mut self.request else { return Poll::Ready(None) };
        if let Poll::Ready(value) = request.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        let waiting = &mut *self.given_up.waiting.borrow_mut();
        let place = self.place.unwrap_or_else(|| {
            waiting.free.pop().unwrap_or_else(|| {
                waiting.places.push(None);
                waiting.places.len() - 1
            })
        });
        match waiting.places.get_mut(place) {
            Some(Some(waker)) => waker.clone_from(cx.waker()),
            Some(empty) => *empty = Some(cx.waker().clone()),
            None => {}
        }
        self.place = Some(place);
        Poll::Pending
    }
}

impl<T> Drop for UnlessGivenUp<'_, T> {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let waker = {
            let waiting = &mut *self.given_up.waiting.borrow_mut();
            waiting.free.push(place);
            waiting.places.get_mut(place).and_then(Option::take)
        };
        drop(waker);
    }
}
