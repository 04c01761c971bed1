//! One file that all nodes write in turns: what one has written the next one reads, byte by byte.
//! When a node dies, what was written there since the last sync may be gone, each byte for itself.
//! A machine that is in trouble may have been expelled and not know it yet: what it reads may be
//! from before, so it tells nothing of the others.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use weft_testkit::Rng;

use crate::common::append_load::{Moment, Seat};
use crate::context::Context;
use crate::relay_story::Story;

const LENGTH_MAX: u64 = 150_000;
/// Changes that are not synced, at most: each is a copy of the file.
const UNSYNCED_MAX: usize = 16;

/// What the file has, as far as it is known.
struct Model {
    bytes: Vec<u8>,
    /// What it had before each change that may be lost, and where that change was made.
    unsynced: Vec<(Vec<u8>, Arc<Seat>, Moment)>,
}

enum Change {
    Write { at: u64, bytes: Vec<u8> },
    Append { bytes: Vec<u8> },
    Truncate { length: u64 },
}

impl Change {
    fn draw(rng: &mut Rng, length: u64) -> Self {
        let length_max = if rng.chance(1, 3) { 30_000 } else { 500 };
        let mut bytes = vec![0; 1 + rng.index(length_max)];
        rng.fill(&mut bytes);
        match rng.below(8) {
            0 => Self::Truncate { length: rng.below(length + 5000).min(LENGTH_MAX) },
            1 | 2 if length < LENGTH_MAX => Self::Append { bytes },
            _ => Self::Write { at: rng.below(length.min(LENGTH_MAX) + 2000), bytes },
        }
    }

    fn make(&self, path: &std::path::Path) -> io::Result<()> {
        match self {
            Self::Write { at, bytes } => {
                File::options().write(true).open(path)?.write_all_at(bytes, *at)
            }
            Self::Append { bytes } => {
                io::Write::write_all(&mut File::options().append(true).open(path)?, bytes)
            }
            Self::Truncate { length } => File::options().write(true).open(path)?.set_len(*length),
        }
    }

    fn apply(&self, to: &mut Vec<u8>) {
        let usize = |n: &u64| usize::try_from(*n).expect("short");
        match self {
            Self::Write { at, bytes } => {
                let end = usize(at) + bytes.len();
                to.resize(to.len().max(end), 0);
                to[usize(at)..end].copy_from_slice(bytes);
            }
            Self::Append { bytes } => to.extend_from_slice(bytes),
            Self::Truncate { length } => to.resize(usize(length), 0),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { at, bytes } => write!(f, "writes {} bytes at {at}", bytes.len()),
            Self::Append { bytes } => write!(f, "appends {} bytes", bytes.len()),
            Self::Truncate { length } => write!(f, "truncates to {length}"),
        }
    }
}

impl Model {
    /// Whether a node has died, or may have, that had changes which were not synced.
    fn may_have_lost(&self) -> bool {
        self.unsynced.iter().any(|(_, seat, then)| !seat.was_sound_since(*then))
    }

    /// Why these bytes cannot be what is left after a node's death.
    fn is_impossible(&self, found: &[u8]) -> Option<String> {
        let states = || self.unsynced.iter().map(|(bytes, ..)| bytes).chain([&self.bytes]);
        if !states().any(|state| state.len() == found.len()) {
            let lengths: Vec<usize> = states().map(Vec::len).collect();
            return Some(format!("it has {} bytes, but had {lengths:?}", found.len()));
        }
        // What lies behind the end of a state is a hole in the next one that is longer.
        let may_be = |at: usize, byte: u8| {
            states().any(|state| state.get(at).map_or(byte == 0, |had| *had == byte))
        };
        let wrong = found.iter().enumerate().find(|(at, byte)| !may_be(*at, **byte));
        wrong.map(|(at, byte)| format!("byte {at} of {} is {byte:#04x}", found.len()))
    }
}

/// Reads, writes and truncates a file on one node after the other.
pub fn run(context: &Context, rng: &mut Rng) {
    let path = |seat: &Seat| context.at(seat, "relay");
    let made = File::create(path(context.steady())).and_then(|file| file.sync_all());
    if let Err(error) = made {
        return context.fault(format!("a file for the relay: {error}"));
    }
    let mut model = Model { bytes: Vec::new(), unsynced: Vec::new() };
    let mut story = Story::new();
    while !context.stops() {
        let seat = context.seats[rng.index(context.seats.len())].clone();
        if !seat.is_sound() && !path(&seat).exists() {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        std::thread::sleep(Duration::from_millis(rng.below(10)));
        let then = seat.now();
        let expected = story.number(&model.bytes);
        // First what the last one has left.
        match fs::read(path(&seat)) {
            Ok(found) if found == model.bytes => {
                context.count("turns of the relay");
                story.step(&seat, &format!("reads {expected}, unsynced {}", model.unsynced.len()));
                let is_elsewhere = |(_, of, _): &(Vec<u8>, Arc<Seat>, Moment)| of.name != seat.name;
                // What was read here is durable there.
                if model.unsynced.last().is_some_and(is_elsewhere) && seat.was_sound_since(then) {
                    model.unsynced.clear();
                }
            }
            Ok(found) if !seat.was_sound_since(then) => {
                context.count("reads of the relay in trouble");
                let number = story.number(&found);
                story.step(
                    &seat,
                    &format!("reads {number} and not {expected}, which does not count"),
                );
                continue;
            }
            Ok(found) if model.may_have_lost() => {
                if let Some(why) = model.is_impossible(&found) {
                    return context.fault(format!(
                        "after a death the relay on {}: {why}; {}",
                        seat.name,
                        story.tell()
                    ));
                }
                context.count("losses of the relay");
                let number = story.number(&found);
                story.step(&seat, &format!("reads {number} and not {expected}"));
                let synced = File::open(path(&seat)).and_then(|file| file.sync_all());
                if synced.is_ok() && seat.was_sound_since(then) {
                    story.step(&seat, &format!("has synced {number}"));
                    model = Model { bytes: found, unsynced: Vec::new() };
                }
                continue;
            }
            Ok(found) => {
                let same = found.iter().zip(&model.bytes).take_while(|(a, b)| a == b).count();
                let last: Vec<&str> =
                    model.unsynced.iter().map(|(_, seat, _)| seat.name.as_str()).collect();
                return context.fault(format!(
                    "the relay on {} reads {} bytes and not {}, which differ at {same}; not synced were \
                     changes on {last:?}; it reads {} in place of {expected}; {}",
                    seat.name,
                    found.len(),
                    model.bytes.len(),
                    story.origin(&found),
                    story.tell()
                ));
            }
            Err(error) => {
                if seat.was_sound_since(then) {
                    return context.fault(format!("the relay reads on {}: {error}", seat.name));
                }
                continue;
            }
        }
        for _ in 0..rng.below(4) {
            let change = Change::draw(rng, model.bytes.len() as u64);
            let before = model.bytes.clone();
            change.apply(&mut model.bytes);
            model.unsynced.push((before, seat.clone(), then));
            let made = change.make(&path(&seat));
            let number = story.number(&model.bytes);
            story.step(&seat, &format!("{change}, which gives {number}: {made:?}"));
            if let Err(error) = made {
                if seat.was_sound_since(then) {
                    return context.fault(format!("the relay writes on {}: {error}", seat.name));
                }
                // It may be there in part.
                let after = model.bytes.clone();
                model.unsynced.push((after, seat.clone(), Moment::default()));
                break;
            }
        }
        let syncs = rng.chance(1, 4) || model.unsynced.len() > UNSYNCED_MAX;
        if syncs && !model.unsynced.is_empty() {
            let synced = File::open(path(&seat)).and_then(|file| file.sync_all());
            story.step(&seat, &format!("syncs: {synced:?}"));
            match synced {
                Ok(()) if !model.may_have_lost() => model.unsynced.clear(),
                Ok(()) => {}
                Err(error) if seat.was_sound_since(then) => {
                    return context.fault(format!("the relay syncs on {}: {error}", seat.name));
                }
                Err(_) => {}
            }
        }
    }
}
