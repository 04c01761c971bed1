//! A solid-state disk: flash dies on channels, a write buffer, a link.
//!
//! A *way* is a part of the flash that works independently: a die, or a plane of a die whose planes
//! read independently. Page p is on way (p + h(p / ways)) mod ways, with a hash h: adjacent pages
//! are on different ways, so that a long read uses all of them, and no stride maps to a single way.
//! Ways are assigned to channels in turn.
//!
//! **A read** of a page occupies its way for `read_us`, one read after another; then the data
//! crosses the channel and the link. Reads overtake programs: a running program is suspended within
//! `suspend_us`, and ends that much later.
//!
//! **A write** completes when it is in the buffer. The buffer collects whole programs, which go to
//! the ways in turn and take `program_us` each. If the buffer is full, a write waits until programs
//! have freed enough space, in order. A disk whose buffer survives a power cut (`protected`) has
//! nothing to do on a flush.
//!
//! **Links and channels** limit bandwidth but are not queues. Each has a time until which its
//! bandwidth is reserved; a transfer advances that time by its duration, starting at the arrival of
//! the request. A request completes when its own transfers are done, and not before the time that
//! it has reserved on each. Commands also take the controller's time, which counts towards the
//! link: this limits the commands per second. In a strict queue, early data would wait for late
//! data that was requested first; real controllers do not work like that.
//!
//! The disk is in the state after a secure erase; garbage collection of a full disk under random
//! writes is not modelled.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use serde::{Deserialize, Serialize};
use weft_rt::Nanos;
use weft_rt::rng::mix;

use crate::command::{Command, Done, Mechanism, Verb, Work};
use crate::gate::{Arrival, Gate};
use crate::number::{US, instant, ns_per_byte, whole};

/// The parameters of a solid-state disk. Rates are in millions of bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SsdSpec {
    /// Channels between controller and flash.
    pub channels: u32,
    /// Dies, or independent planes, per channel.
    pub ways_per_channel: u32,
    /// Bytes that a way reads at a time.
    pub page_bytes: u32,
    /// Read time: from the cells to the die's register.
    pub read_us: f64,
    /// Bytes that a way programs at a time.
    pub program_bytes: u32,
    /// Program time.
    pub program_us: f64,
    /// Time to suspend a program for a read.
    pub suspend_us: f64,
    /// Rate of a channel.
    pub channel_mb_s: f64,
    /// Rate of the link for reads.
    pub link_read_mb_s: f64,
    /// Rate of the link for writes.
    pub link_write_mb_s: f64,
    /// Whether both directions work at the same time (PCIe yes, SATA no).
    pub duplex: bool,
    /// Controller time per read. Together with the link it limits the reads per second.
    pub read_command_us: f64,
    /// Controller time per write.
    pub write_command_us: f64,
    /// Other time of a read, in addition to flash, channel, link and controller.
    pub read_overhead_us: f64,
    /// Other time of a write, in addition to link and controller.
    pub write_overhead_us: f64,
    /// Write buffer in bytes.
    pub buffer_bytes: u64,
    /// Bytes that can be written fast (as single-level cells) before the rate falls …
    #[serde(default = "all", skip_serializing_if = "is_all")]
    pub fast_bytes: u64,
    /// … to this one.
    pub slow_mb_s: f64,
    /// Whether the buffer survives a power cut.
    pub protected: bool,
    /// Time of a flush in addition to emptying the buffer.
    pub flush_us: f64,
    /// Commands that the disk accepts at a time.
    pub queue_depth: u32,
    /// Whether a flush is sent without other commands (SATA).
    pub lone_flush: bool,
}

/// All of the disk is written equally fast.
const fn all() -> u64 {
    u64::MAX
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_all(bytes: &u64) -> bool {
    *bytes == all()
}

#[derive(Debug, Clone, Copy, Default)]
struct Way {
    /// Busy with reads until this time.
    reads: f64,
    /// Busy with programs until this time.
    programs: f64,
}

/// The model of a solid-state disk.
#[derive(Debug)]
pub struct Ssd {
    spec: SsdSpec,
    gate: Gate,
    ways: Vec<Way>,
    /// Reserved until this time.
    channels: Vec<f64>,
    link_read: f64,
    link_write: f64,
    next_way: usize,
    /// Running programs: when each frees buffer space, and how many bytes.
    programs: VecDeque<(f64, u64)>,
    /// Bytes in the buffer, and how many of them do not fill a program yet.
    buffered: u64,
    gathering: u64,
    last_program: f64,
    fast_left: f64,
    complete: BinaryHeap<Reverse<Done>>,
    work: Work,
}

impl Ssd {
    /// An idle, erased disk.
    pub fn new(spec: &SsdSpec) -> Self {
        let count = |n: u32| usize::try_from(n.max(1)).unwrap_or(1);
        let channels = count(spec.channels);
        Self {
            gate: Gate::new(spec.queue_depth, spec.lone_flush),
            ways: vec![Way::default(); channels * count(spec.ways_per_channel)],
            channels: vec![0.0; channels],
            link_read: 0.0,
            link_write: 0.0,
            next_way: 0,
            programs: VecDeque::new(),
            buffered: 0,
            gathering: 0,
            last_program: 0.0,
            fast_left: spec.fast_bytes as f64,
            complete: BinaryHeap::new(),
            work: Work::default(),
            spec: *spec,
        }
    }

    fn way_of(&self, page: u64) -> usize {
        let ways = self.ways.len() as u64;
        usize::try_from((page % ways + mix(page / ways) % ways) % ways).unwrap_or(0)
    }

    fn channel(&mut self, way: usize) -> &mut f64 {
        let index = way % self.channels.len();
        &mut self.channels[index]
    }

    /// Reserves `span` of a channel or link. Returns the time until which it is reserved then.
    fn reserve(cap: &mut f64, now: f64, span: f64) -> f64 {
        *cap = cap.max(now) + span;
        *cap
    }

    fn link(&mut self, read: bool, now: f64, bytes: u64) -> (f64, f64) {
        let spec = &self.spec;
        let (mb_s, command_us) = if read {
            (spec.link_read_mb_s, spec.read_command_us)
        } else {
            (spec.link_write_mb_s, spec.write_command_us)
        };
        let span = command_us * US + bytes as f64 * ns_per_byte(mb_s);
        let cap = if read || !spec.duplex { &mut self.link_read } else { &mut self.link_write };
        (Self::reserve(cap, now, span), span)
    }

    fn read(&mut self, command: &Command, now: f64) -> f64 {
        let spec = self.spec;
        let (reserved_until, _) = self.link(true, now, command.len);
        let (page_bytes, end) = (u64::from(spec.page_bytes), command.end());
        let link_ns = ns_per_byte(spec.link_read_mb_s);
        let channel_ns = ns_per_byte(spec.channel_mb_s);
        let (mut at, mut arrived) = (command.offset, now);
        while at < end {
            let part = (page_bytes - at % page_bytes).min(end - at);
            let index = self.way_of(at / page_bytes);
            let way = &mut self.ways[index];
            let mut start = (now + spec.read_overhead_us * US).max(way.reads);
            let read_ns = spec.read_us * US;
            if way.programs > start {
                let suspend = (spec.suspend_us * US).min(way.programs - start);
                start += suspend;
                way.programs += suspend + read_ns;
            }
            way.reads = start + read_ns;
            let read_at = way.reads;
            let span = part as f64 * channel_ns;
            let crossed = Self::reserve(self.channel(index), now, span).max(read_at + span);
            arrived = arrived.max(crossed + part as f64 * link_ns);
            self.work.accesses += 1;
            self.work.transfer_ns += whole(read_ns);
            at += part;
        }
        (arrived + spec.read_command_us * US).max(reserved_until)
    }

    fn write(&mut self, command: &Command, now: f64) -> f64 {
        let (reserved_until, span) = self.link(false, now, command.len);
        let mut arrived = reserved_until.max(now + span);
        self.make_room(command.len, &mut arrived);
        self.buffered += command.len;
        self.gathering += command.len;
        let program_bytes = u64::from(self.spec.program_bytes);
        while self.gathering >= program_bytes {
            self.gathering -= program_bytes;
            self.program(program_bytes, arrived);
        }
        arrived + self.spec.write_overhead_us * US
    }

    /// Waits until the buffer has space for `bytes`.
    fn make_room(&mut self, bytes: u64, now: &mut f64) {
        while let Some((at, freed)) = self.programs.front().copied() {
            let full = self.buffered + bytes > self.spec.buffer_bytes;
            if !full && at > *now {
                return;
            }
            *now = now.max(at);
            self.buffered -= freed;
            self.programs.pop_front();
        }
    }

    /// Programs `bytes` of the buffer on the next way.
    fn program(&mut self, bytes: u64, now: f64) {
        let spec = self.spec;
        let index = self.next_way;
        self.next_way = (index + 1) % self.ways.len();
        let program_bytes = f64::from(spec.program_bytes);
        let slow_ns = self.ways.len() as f64 * program_bytes * ns_per_byte(spec.slow_mb_s);
        // Idle time moves data from the fast area to its final place.
        let idle = (now - self.last_program).max(0.0);
        let moved = idle / ns_per_byte(spec.slow_mb_s);
        self.fast_left = (self.fast_left + moved).min(spec.fast_bytes as f64);
        let fast = self.fast_left >= program_bytes;
        let program_ns = if fast { spec.program_us * US } else { slow_ns };
        self.fast_left -= if fast { program_bytes } else { 0.0 };
        let crossing = bytes as f64 * ns_per_byte(spec.channel_mb_s);
        let crossed = Self::reserve(self.channel(index), now, crossing).max(now + crossing);
        let way = &mut self.ways[index];
        way.programs = way.programs.max(way.reads).max(crossed) + program_ns;
        self.last_program = self.last_program.max(way.programs);
        self.programs.push_back((way.programs, bytes));
        self.work.accesses += 1;
        self.work.transfer_ns += whole(program_ns);
    }

    fn flush(&mut self, now: f64) -> f64 {
        let overhead = self.spec.write_overhead_us * US;
        if self.spec.protected || self.buffered == 0 {
            return now + overhead;
        }
        if self.gathering > 0 {
            let rest = std::mem::take(&mut self.gathering);
            self.program(rest, now);
        }
        let programmed = self.programs.iter().fold(now, |latest, (at, _)| latest.max(*at));
        programmed + self.spec.flush_us * US + overhead
    }

    fn admit(&mut self, now: f64) {
        while let Some(Arrival { tag, command, .. }) = self.gate.admit() {
            let at = match command.verb {
                Verb::Read => self.read(&command, now),
                Verb::Write if !command.fua || self.spec.protected => self.write(&command, now),
                Verb::Write => {
                    let written = self.write(&command, now);
                    self.flush(written)
                }
                // Only the mapping changes; the flash is not accessed.
                Verb::Zero => {
                    let (reserved_until, span) = self.link(false, now, 0);
                    reserved_until.max(now + span) + self.spec.write_overhead_us * US
                }
                Verb::Flush => self.flush(now),
            };
            self.complete.push(Reverse(Done { at: instant(at), tag }));
        }
    }
}

impl Mechanism for Ssd {
    fn submit(&mut self, now: Nanos, tag: u64, command: Command) {
        self.gate.arrive(Arrival { tag, command, at: now });
        self.admit(now as f64);
    }

    fn next_event(&self) -> Option<Nanos> {
        self.complete.peek().map(|Reverse(done)| done.at)
    }

    fn advance(&mut self, now: Nanos, done: &mut Vec<Done>) {
        while let Some(Reverse(next)) = self.complete.peek().copied()
            && next.at <= now
        {
            self.complete.pop();
            done.push(next);
            self.gate.leave();
            self.admit(next.at as f64);
        }
    }

    fn work(&self) -> Work {
        self.work
    }
}
