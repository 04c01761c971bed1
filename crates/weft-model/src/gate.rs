//! Admission: how many commands a disk accepts at a time.
//!
//! A disk with a queue of depth N accepts N commands; further ones wait in the host, in order. A
//! SATA disk's flush cannot be queued: it is sent when all other commands have completed, and later
//! ones wait for it.

use std::collections::VecDeque;

use weft_rt::Nanos;

use crate::command::{Command, Verb};

/// A command, with its time of arrival.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub(super) tag: u64,
    pub(super) command: Command,
    pub(super) at: Nanos,
}

#[derive(Debug)]
pub(super) struct Gate {
    depth: usize,
    lone_flush: bool,
    inside: usize,
    flushing: bool,
    waiting: VecDeque<Arrival>,
}

impl Gate {
    /// `lone_flush`: a flush is sent without other commands.
    pub(super) fn new(depth: u32, lone_flush: bool) -> Self {
        let depth = usize::try_from(depth.max(1)).unwrap_or(1);
        Self { depth, lone_flush, inside: 0, flushing: false, waiting: VecDeque::new() }
    }

    pub(super) fn arrive(&mut self, arrival: Arrival) {
        self.waiting.push_back(arrival);
    }

    /// The next command that the disk accepts.
    pub(super) fn admit(&mut self) -> Option<Arrival> {
        let first = self.waiting.front()?;
        let is_flush = first.command.verb == Verb::Flush && self.lone_flush;
        if self.flushing || self.inside >= self.depth || (is_flush && self.inside > 0) {
            return None;
        }
        self.flushing = is_flush;
        self.inside += 1;
        self.waiting.pop_front()
    }

    /// A command has completed.
    pub(super) fn leave(&mut self) {
        self.inside -= 1;
        // A flush is never inside together with another command.
        self.flushing = false;
    }
}
