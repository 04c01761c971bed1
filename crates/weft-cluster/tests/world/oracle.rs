//! What must never happen, checked when a block reaches a disk.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::FutureExt as _;
use weft_cluster::coordinator::MemoryCoordinator;
use weft_cluster::{Coordinator as _, DiskName, Epoch, Incarnation, Record, Session};
use weft_rt::Nanos;

/// Who writes a block, and as what.
#[derive(Debug, Clone)]
pub struct Author {
    pub session: Session,
    pub own: Incarnation,
    /// The term, if it writes as the keeper.
    pub term: Option<Epoch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub takeovers: u64,
    pub accepted: u64,
    pub refused: u64,
}

#[derive(Default)]
struct State {
    authors: Vec<Author>,
    sessions: BTreeMap<Incarnation, Session>,
    terms: BTreeMap<Epoch, Session>,
    /// The last write of an active keeper to each disk.
    written: BTreeMap<DiskName, Nanos>,
    violations: Vec<String>,
    counts: Counts,
}

pub struct Oracle {
    coordinator: Rc<MemoryCoordinator>,
    state: RefCell<State>,
}

impl Oracle {
    pub fn new(coordinator: Rc<MemoryCoordinator>) -> Self {
        Self { coordinator, state: RefCell::default() }
    }

    /// The record as it is, whatever any node knows.
    fn record(&self) -> Option<Record> {
        let view = self.coordinator.read().now_or_never().expect("it answers at once");
        view.expect("it never fails").record
    }

    /// A number for a block that is going to be written.
    pub fn note(&self, author: Author) -> u64 {
        let mut state = self.state.borrow_mut();
        state.authors.push(author);
        state.authors.len() as u64
    }

    pub fn refused(&self) {
        self.state.borrow_mut().counts.refused += 1;
    }

    /// A block has reached the disk.
    pub fn effect(&self, disk: &DiskName, block: &[u8], now: Nanos) {
        let number = u64::from_le_bytes(block[..8].try_into().expect("a number"));
        let record = self.record().expect("a node has joined");
        let state = &mut *self.state.borrow_mut();
        let index = usize::try_from(number).expect("a number of ours") - 1;
        let author = state.authors[index].clone();
        state.counts.accepted += 1;
        let mut violate = |what: &str| {
            let at = now / 1_000_000;
            let text = format!("{what}: {author:?} on {disk} at {at} ms, record {record:?}");
            state.violations.push(text);
        };
        let is_lost = record.lost_disks.get(disk);
        let pending = |list: &weft_cluster::record::Incarnations| {
            list.get(&author.own.node).is_some_and(|epochs| epochs.contains(&author.own.epoch))
        };
        if !record.has(&author.own) && !pending(&record.fencing) && !is_lost.is_some_and(pending) {
            violate("a block of a fenced incarnation");
        }
        if let Some(term) = author.term {
            if let Some(keeper) = record.keeper.as_ref().filter(|keeper| keeper.active)
                && keeper.term > term
                && is_lost.is_none()
            {
                violate("a block of an earlier keeper");
            }
            let first = state.terms.entry(term).or_insert_with(|| author.session.clone());
            if *first != author.session {
                violate("two keepers of one term");
            }
        }
        let session = author.session.clone();
        let first = state.sessions.entry(author.own.clone()).or_insert(session);
        if *first != author.session {
            violate("two processes of one epoch");
        }
        if author.term.is_some() && is_lost.is_none() {
            state.written.insert(disk.clone(), now);
        }
    }

    pub fn disks_written_since(&self, start: Nanos) -> usize {
        let state = self.state.borrow();
        state.written.values().filter(|at| **at >= start).count()
    }

    pub fn result(&self) -> (Vec<String>, Counts) {
        let state = self.state.borrow();
        let counts = Counts { takeovers: state.terms.len() as u64, ..state.counts };
        (state.violations.clone(), counts)
    }
}
