//! Which data a read may return, given the replay's own writes.
//!
//! A disk promises that a read sees every write that was complete before the read started. Of
//! writes in flight at the same time it may see either state, and of two writes that overlapped in
//! time either may be the last. So for each block the verifier keeps the writes that *may* be its
//! contents: a write that completes removes exactly the values that were complete before it
//! started. A read accepts the writes kept when it started, and every write that started while it
//! ran.
//!
//! A failed write may or may not have happened: it is kept as one more possibility, and removes
//! nothing. After a trim the contents are undefined until a write that started after it is
//! complete. A block that the replay has never written holds unknown data: it is counted, not
//! judged.
//!
//! The numbers of writes are ticks of one counter, which advances at every start and every end;
//! they also name the writes in the stamps.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use weft_rt::rng::mix;

use crate::replay::stamp::{self, BlockContents};

/// Number of descriptions of wrong blocks that are kept.
const WRONG_KEPT: usize = 10;

/// Maximum number of possible contents of one block, not counting writes in flight.
const SEVERAL_MAX: usize = 64;

/// Hashes block numbers; they need no protection against collisions chosen by an attacker.
#[derive(Default)]
struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number);
    }
}

/// A write that may be the contents of a block.
#[derive(Debug, Clone, Copy)]
struct Write {
    began: u64,
    /// `u64::MAX` while it is in flight.
    ended: u64,
    /// A trim: leaves anything.
    anything: bool,
}

/// The writes that may be the contents of one block; nearly always one.
#[derive(Debug)]
enum Writes {
    One(Write),
    Several(Vec<Write>),
}

impl Writes {
    fn as_slice(&self) -> &[Write] {
        match self {
            Self::One(write) => std::slice::from_ref(write),
            Self::Several(writes) => writes,
        }
    }

    fn push(&mut self, write: Write) {
        match self {
            Self::One(first) => *self = Self::Several(vec![*first, write]),
            Self::Several(writes) => writes.push(write),
        }
    }

    fn end(&mut self, began: u64, now: u64, done: bool) {
        let ending = |write: &mut Write| {
            if write.began == began {
                write.ended = now;
            }
        };
        match self {
            Self::One(write) => ending(write),
            Self::Several(writes) => {
                writes.iter_mut().for_each(ending);
                if done {
                    writes.retain(|write| write.began == began || write.ended > began);
                }
                // A block whose writes keep failing: its contents count as unknown.
                if writes.len() > SEVERAL_MAX {
                    writes.retain(|write| write.ended == u64::MAX);
                    writes.push(Write { began: ANYTHING, ended: now, anything: true });
                }
                if let [only] = writes[..] {
                    *self = Self::One(only);
                }
            }
        }
    }
}

/// A write in flight.
#[derive(Debug)]
pub(crate) struct WriteTicket {
    first: u64,
    count: u64,
    /// Its number.
    pub(crate) began: u64,
}

/// A read in flight: what each of its blocks may hold.
#[derive(Debug)]
pub(crate) struct ReadTicket {
    first: u64,
    began: u64,
    /// For each block: nothing known, or the writes that may be there.
    may_hold: Vec<Option<Vec<u64>>>,
}

/// Name of "anything" in a [`ReadTicket`]; no write has it.
const ANYTHING: u64 = 0;

/// The results of verification.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Verified {
    /// Blocks that were read and are right.
    pub blocks_right: u64,
    /// Blocks that were read and are wrong.
    pub blocks_wrong: u64,
    /// Blocks that were read and had unknown contents: never written by this replay, or trimmed.
    pub blocks_unknown: u64,
    /// Writes of blocks that were not remembered, because too many already were.
    pub blocks_not_kept: u64,
    /// The first wrong blocks, described.
    pub wrong_first: Vec<String>,
}

/// Remembers the writes.
pub(crate) struct Tracker {
    blocks: HashMap<u64, Writes, BuildHasherDefault<BlockHasher>>,
    block_bytes: u64,
    blocks_max: usize,
    seed: u64,
    tick: u64,
    last_trim: u64,
    /// Trims in flight: they may also undo a write that starts now, of a block not known before.
    trims: Vec<(Range<u64>, Write)>,
    verified: Verified,
}

impl Tracker {
    pub(crate) fn new(block_bytes: u64, blocks_max: usize, seed: u64) -> Self {
        let blocks = HashMap::default();
        Self {
            blocks,
            block_bytes,
            blocks_max,
            seed,
            tick: ANYTHING,
            last_trim: 0,
            trims: Vec::new(),
            verified: Verified::default(),
        }
    }

    pub(crate) fn verified(&self) -> Verified {
        self.verified.clone()
    }

    fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// A write (or trim: `anything`) of these bytes starts.
    pub(crate) fn begin_write(&mut self, offset: u64, len: u64, anything: bool) -> WriteTicket {
        let began = self.tick();
        let (first, count) = (offset / self.block_bytes, len / self.block_bytes);
        let write = Write { began, ended: u64::MAX, anything };
        if anything {
            self.last_trim = began;
            // A trim may be as long as the disk: only known blocks are examined.
            self.of_range(first, count, |writes| writes.push(write));
            self.trims.push((first..first + count, write));
            return WriteTicket { first, count, began };
        }
        for block in first..first + count {
            let full = self.blocks.len() >= self.blocks_max;
            match self.blocks.entry(block) {
                Slot::Occupied(mut writes) => writes.get_mut().push(write),
                Slot::Vacant(_) if full => self.verified.blocks_not_kept += 1,
                // The previous contents are one more possibility: anything.
                Slot::Vacant(slot) => {
                    let before = Write { began: ANYTHING, ended: ANYTHING, anything: true };
                    let trims = self.trims.iter().filter(|(blocks, _)| blocks.contains(&block));
                    let trims = trims.map(|(_, trim)| *trim);
                    let all = std::iter::once(before).chain(trims).chain([write]);
                    slot.insert(Writes::Several(all.collect()));
                }
            }
        }
        WriteTicket { first, count, began }
    }

    fn of_range(&mut self, first: u64, count: u64, mut act: impl FnMut(&mut Writes)) {
        let known = self.blocks.len() as u64;
        if count <= known {
            for block in first..first + count {
                if let Some(writes) = self.blocks.get_mut(&block) {
                    act(writes);
                }
            }
        } else {
            // The map's order does not matter: every block is changed independently.
            for (block, writes) in &mut self.blocks {
                if (first..first + count).contains(block) {
                    act(writes);
                }
            }
        }
    }

    /// The write is complete, or has failed.
    pub(crate) fn end_write(&mut self, ticket: &WriteTicket, done: bool) {
        let now = self.tick();
        let began = ticket.began;
        self.trims.retain(|(_, trim)| trim.began != began);
        self.of_range(ticket.first, ticket.count, |writes| writes.end(began, now, done));
    }

    /// Stamps the data that write number `write` puts at `offset`.
    pub(crate) fn stamp(&self, write: u64, offset: u64, data: &mut [u8]) {
        let block_bytes = usize::try_from(self.block_bytes).unwrap_or(512);
        stamp::fill(data, block_bytes, self.seed, offset / self.block_bytes, write);
    }

    /// A read of these bytes starts.
    pub(crate) fn begin_read(&mut self, offset: u64, len: u64) -> ReadTicket {
        let began = self.tick();
        let (first, count) = (offset / self.block_bytes, len / self.block_bytes);
        let may_hold = (first..first + count).map(|block| {
            let writes = self.blocks.get(&block)?.as_slice();
            let name = |write: &Write| if write.anything { ANYTHING } else { write.began };
            Some(writes.iter().map(name).collect())
        });
        ReadTicket { first, began, may_hold: may_hold.collect() }
    }

    /// The read has returned `data`, which starts at `offset`.
    pub(crate) fn end_read(&mut self, ticket: &ReadTicket, offset: u64, data: &[u8]) {
        let block_bytes = usize::try_from(self.block_bytes).unwrap_or(512);
        let first = offset / self.block_bytes;
        for (block, bytes) in (first..).zip(data.chunks_exact(block_bytes)) {
            let at = usize::try_from(block - ticket.first).unwrap_or(usize::MAX);
            let may_hold = ticket.may_hold.get(at).and_then(Option::as_ref);
            let Some(may_hold) = may_hold else {
                self.verified.blocks_unknown += 1;
                continue;
            };
            let found = stamp::look(bytes, self.seed, block);
            match found {
                BlockContents::Write(write)
                    if write > ticket.began || may_hold.contains(&write) =>
                {
                    self.verified.blocks_right += 1;
                }
                _ if may_hold.contains(&ANYTHING) || self.last_trim > ticket.began => {
                    self.verified.blocks_unknown += 1;
                }
                _ => self.wrong(block, may_hold, found),
            }
        }
    }

    fn wrong(&mut self, block: u64, may_hold: &[u64], found: BlockContents) {
        self.verified.blocks_wrong += 1;
        if self.verified.wrong_first.len() >= WRONG_KEPT {
            return;
        }
        let expected: Vec<String> = may_hold.iter().map(ToString::to_string).collect();
        let found = match found {
            BlockContents::Write(write) => format!("write {write}, which had been overwritten"),
            BlockContents::Torn(write) => {
                format!("a damaged block with the stamp of write {write}")
            }
            BlockContents::OtherBlock(other) => {
                format!("the data of offset {}", other.saturating_mul(self.block_bytes))
            }
            BlockContents::OtherRun => "the stamp of another replay".to_owned(),
            BlockContents::Zeros => "zeros".to_owned(),
            BlockContents::Strange => "data that no replay wrote".to_owned(),
        };
        let text = format!(
            "offset {} should hold write {}, but holds {found}",
            block * self.block_bytes,
            expected.join(" or ")
        );
        self.verified.wrong_first.push(text);
    }

    /// Every run of blocks that were written, at most `len_max` bytes each: offset and length.
    pub(crate) fn written(&self, len_max: u64) -> Vec<(u64, u64)> {
        let mut blocks: Vec<u64> = self.blocks.keys().copied().collect();
        blocks.sort_unstable();
        let run_max = (len_max / self.block_bytes).max(1);
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for block in blocks {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == block && *count < run_max => *count += 1,
                _ => runs.push((block, 1)),
            }
        }
        runs.iter().map(|(first, n)| (first * self.block_bytes, n * self.block_bytes)).collect()
    }
}
