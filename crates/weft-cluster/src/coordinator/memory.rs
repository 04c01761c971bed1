//! A coordinator in the memory of one process: for tests, and for nodes that share a process.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use weft_rt::sync::Notify;
use weft_rt::{Nanos, Rt};

use super::{Coordinator, CoordinatorFuture, Swap, Version, View};
use crate::{Record, Session};

/// The record in memory. It answers at once, and never fails.
#[derive(Debug)]
pub struct MemoryCoordinator {
    rt: Rt,
    lease: Nanos,
    version: Cell<Version>,
    record: RefCell<Option<Record>>,
    /// When leases end.
    leases: RefCell<BTreeMap<Session, Nanos>>,
    changes: Notify,
}

impl MemoryCoordinator {
    /// A coordinator without a record, whose leases last for `lease`.
    pub fn new(rt: &Rt, lease: Nanos) -> Self {
        Self {
            rt: rt.clone(),
            lease,
            version: Cell::default(),
            record: RefCell::default(),
            leases: RefCell::default(),
            changes: Notify::default(),
        }
    }

    fn view(&self) -> View {
        let now = self.rt.now();
        self.leases.borrow_mut().retain(|_, end| *end > now);
        View {
            version: self.version.get(),
            record: self.record.borrow().clone(),
            alive: self.leases.borrow().keys().cloned().collect(),
        }
    }
}

impl Coordinator for MemoryCoordinator {
    fn read(&self) -> CoordinatorFuture<'_, View> {
        Box::pin(async { Ok(self.view()) })
    }

    fn compare_and_set(&self, expected: Version, record: Record) -> CoordinatorFuture<'_, Swap> {
        Box::pin(async move {
            if self.version.get() != expected {
                return Ok(Swap::Conflict);
            }
            let version = Version(expected.0 + 1);
            self.version.set(version);
            *self.record.borrow_mut() = Some(record);
            self.changes.notify_all();
            Ok(Swap::Done(version))
        })
    }

    fn keep_alive<'a>(&'a self, session: &'a Session) -> CoordinatorFuture<'a, ()> {
        Box::pin(async {
            let end = self.rt.now().saturating_add(self.lease);
            if self.leases.borrow_mut().insert(session.clone(), end).is_none() {
                self.changes.notify_all();
            }
            Ok(())
        })
    }

    fn end_lease<'a>(&'a self, session: &'a Session) -> CoordinatorFuture<'a, ()> {
        Box::pin(async {
            self.leases.borrow_mut().remove(session);
            self.changes.notify_all();
            Ok(())
        })
    }

    fn changed<'a>(&'a self, seen: &'a View) -> CoordinatorFuture<'a, ()> {
        Box::pin(async move {
            loop {
                let change = self.changes.wait();
                let now = self.view();
                if now.version != seen.version || now.alive != seen.alive {
                    return Ok(());
                }
                change.await;
            }
        })
    }
}
