//! What the relay did last, and which contents its file had: told when something is wrong.

use std::collections::VecDeque;
use std::time::Instant;

use crate::common::append_load::Seat;

/// Steps that are told.
const STEPS_TOLD: usize = 40;
/// Earlier contents that are kept.
const KNOWN_MAX: usize = 60;
/// Ranges of bytes that are told.
const RANGES_TOLD: usize = 30;

/// See the [module](self).
pub struct Story {
    start: Instant,
    steps: VecDeque<String>,
    /// Contents by their numbers.
    known: VecDeque<(u64, Vec<u8>)>,
    next: u64,
}

impl Story {
    pub fn new() -> Self {
        let (steps, known) = (VecDeque::new(), VecDeque::new());
        Self { start: Instant::now(), steps, known, next: 0 }
    }

    /// The relay has done something on a mount.
    pub fn step(&mut self, seat: &Seat, what: &str) {
        let (now, sound) = (self.start.elapsed().as_secs_f32(), seat.is_sound());
        let is_sound = if sound { "" } else { ", which may be in trouble," };
        self.steps.push_back(format!("{now:7.3} s {}{is_sound} {what}", seat.name));
        if self.steps.len() > STEPS_TOLD {
            self.steps.pop_front();
        }
    }

    /// The number of these contents.
    pub fn number(&mut self, bytes: &[u8]) -> u64 {
        if let Some((number, _)) = self.known.iter().rev().find(|(_, of)| of == bytes) {
            return *number;
        }
        self.next += 1;
        self.known.push_back((self.next, bytes.to_vec()));
        if self.known.len() > KNOWN_MAX {
            self.known.pop_front();
        }
        self.next
    }

    /// Which contents these bytes are from, the latest first, range by range.
    pub fn origin(&self, found: &[u8]) -> String {
        let mut ranges = Vec::new();
        let mut at = 0;
        while at < found.len() {
            let same = |(number, of): &(u64, Vec<u8>)| {
                let rest = of.get(at..).unwrap_or_default();
                (found[at..].iter().zip(rest).take_while(|(a, b)| a == b).count(), *number)
            };
            let longest = self.known.iter().map(same).max().filter(|(same, _)| *same > 0);
            let end = longest.map_or_else(|| found.len().min(at + 1), |(same, _)| at + same);
            let of = longest.map_or_else(|| "none".to_owned(), |(_, number)| number.to_string());
            ranges.push(format!("{at}..{end} of {of}"));
            if ranges.len() > RANGES_TOLD {
                ranges.push("…".to_owned());
                break;
            }
            at = end;
        }
        ranges.join(", ")
    }

    /// The last steps.
    pub fn tell(&self) -> String {
        let steps: Vec<&str> = self.steps.iter().map(String::as_str).collect();
        format!("what the relay did:\n  {}", steps.join("\n  "))
    }
}
