//! The meter of a drill: measures users' requests, and repeats what the lost disk would not answer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use weft_code::SlotNo;
use weft_disk::{Histogram, Latency};
use weft_rt::{Buf, MILLISECOND, Nanos, Rt};

use super::UserRequests;
use crate::api::array::Array;
use crate::engine::Engine;
use crate::error::ArrayError;
use crate::state::observer::{Observer, ServedRequest};

/// Repeated reads in progress at a time; further ones are counted and left out.
const REPEATED_MAX: usize = 256;

/// The array's observer for as long as this lives.
pub(super) struct Observed(Rc<Engine>);

impl Observed {
    pub(super) fn begin(engine: &Rc<Engine>, meter: &Rc<Meter>) -> Result<Self, ArrayError> {
        if engine.observer().is_set() {
            let why = "a drill of this array is running already";
            return Err(ArrayError::Refused(why.into()));
        }
        engine.observer().set(Some(meter.clone()));
        Ok(Self(engine.clone()))
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.0.observer().set(None);
    }
}

/// Measures users' requests, and repeats those that the lost disk would not answer.
pub(super) struct Meter {
    rt: Rt,
    second: Array,
    slot: SlotNo,
    reads: Rc<RefCell<Histogram>>,
    writes: RefCell<Histogram>,
    /// Whether reads are repeated.
    repeats: Cell<bool>,
    repeated: Rc<RefCell<Histogram>>,
    in_progress: Rc<Cell<usize>>,
    left_out: Cell<u64>,
    /// Reads of mirrored data that the slot has a copy of.
    mirrored: Cell<usize>,
}

impl Meter {
    pub(super) fn new(rt: &Rt, second: &Array, slot: SlotNo) -> Self {
        Self {
            rt: rt.clone(),
            second: second.clone(),
            slot,
            reads: Rc::default(),
            writes: RefCell::default(),
            repeats: Cell::new(false),
            repeated: Rc::default(),
            in_progress: Rc::default(),
            left_out: Cell::new(0),
            mirrored: Cell::new(0),
        }
    }

    /// A phase starts.
    pub(super) fn clear(&self) {
        self.reads.borrow_mut().clear();
        self.writes.borrow_mut().clear();
    }

    /// What was measured since a phase started, which took so long.
    pub(super) fn requests(&self, phase: Nanos) -> UserRequests {
        UserRequests {
            phase_ms: phase / MILLISECOND,
            reads: Latency::from(&*self.reads.borrow()),
            writes: Latency::from(&*self.writes.borrow()),
        }
    }

    /// From now on reads of the lost disk's data are repeated.
    pub(super) fn begin_repeats(&self) {
        self.repeats.set(true);
    }

    /// The repeated reads.
    pub(super) fn reconstructed(&self) -> Latency {
        Latency::from(&*self.repeated.borrow())
    }

    /// How many reads were not repeated.
    pub(super) fn reads_left_out(&self) -> u64 {
        self.left_out.get()
    }

    /// The parts of a read that the lost disk answered: offset and length.
    fn lost_parts(&self, offset: u64, len: usize) -> Vec<(u64, usize)> {
        let engine = &self.second.0;
        let mut at = offset;
        let mut lost = Vec::new();
        for piece in engine.geometries().pieces(offset, len) {
            let geometry = engine.geometry_of(piece.at.stripe);
            let is_lost = match geometry.mirrored {
                false => engine.slot_of(piece.at.stripe, piece.at.unit) == self.slot,
                true => {
                    let copies = geometry.units().len();
                    let read = engine.unit_on(piece.at.stripe, self.slot).map(|_| {
                        self.mirrored.set(self.mirrored.get() + 1);
                        self.mirrored.get().is_multiple_of(copies)
                    });
                    read == Some(true)
                }
            };
            if is_lost {
                lost.push((at, piece.len));
            }
            at += piece.len as u64;
        }
        lost
    }

    fn repeat(&self, offset: u64, len: usize) {
        if self.in_progress.get() >= REPEATED_MAX {
            self.left_out.set(self.left_out.get() + 1);
            return;
        }
        self.in_progress.set(self.in_progress.get() + 1);
        let (rt, second) = (self.rt.clone(), self.second.clone());
        let (reads, repeated) = (self.reads.clone(), self.repeated.clone());
        let in_progress = self.in_progress.clone();
        drop(self.rt.spawn(async move {
            let begun = rt.now();
            if second.read(offset, Buf::new(len)).await.0.is_ok() {
                repeated.borrow_mut().add(rt.now() - begun);
                reads.borrow_mut().add(rt.now() - begun);
            }
            in_progress.set(in_progress.get() - 1);
        }));
    }
}

impl Observer for Meter {
    fn served(&self, request: ServedRequest) {
        let ServedRequest { is_write, offset, len, begun, took, succeeded } = request;
        if !succeeded {
            return;
        }
        let repeats = self.repeats.get();
        let lost = if is_write || !repeats { Vec::new() } else { self.lost_parts(offset, len) };
        if lost.is_empty() {
            let of_kind = if is_write { &self.writes } else { &*self.reads };
            of_kind.borrow_mut().add(took);
        }
        if lost.is_empty() && repeats {
            // The rebuild gives way to all users.
            let throttle = self.second.0.jobs().throttle();
            throttle.note_user(begun, len as u64);
            throttle.note_served(begun, || begun + took);
        }
        lost.into_iter().for_each(|(offset, len)| self.repeat(offset, len));
    }
}
