//! Where the log of a node lies: on the metadata array, or on blocks of disks.
//!
//! Node 0 has the metadata array. Each other node has a ring of its own on up to three disks, given
//! by node 0 ([`crate::mount::rings`]). Each copy is as long as the others.
//!
//! *Writes* go to all copies, and are durable on all of them before anything follows. If one fails
//! the disk is diagnosed. A disk that does not work is lost, as always. On one that works the copy
//! is *given up*. Either is durable in the metadata before anything is acknowledged that this copy
//! does not have: recovery does not look at such copies, so it never takes one for complete that
//! lacks log records. A copy on a disk that the node does not know is given up as well: the node
//! that recovers may know the disk.
//!
//! *Reads* go to the copies in their order, and the first that has a right log record will do, as
//! on the array ([`crate::raid_log::ring`]).

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_array::Array;
use weft_disk::{Class, WriteOpts};
use weft_rt::{Buf, Frozen};

use crate::disks::member::Member;
use crate::disks::pool::Pool;
use crate::error::{FsError, Result};
use crate::format::block::BLOCK_BYTES;
use crate::meta::{RingRun, Tx};
use crate::raid_log::{Medium, ring};

/// Where a log lies.
pub(crate) enum LogMedium {
    /// On a part of the metadata array.
    Array(Array, Range<u64>),
    /// On blocks of disks.
    Ring(Ring),
}

impl Medium for LogMedium {
    fn bytes(&self) -> u64 {
        match self {
            Self::Array(_, area) => area.end - area.start,
            Self::Ring(ring) => ring.blocks * BLOCK_BYTES,
        }
    }

    async fn write(&self, at: u64, bytes: Frozen) -> Result<()> {
        match self {
            Self::Array(array, area) => Ok(array.write(area.start + at, bytes, true).await?),
            Self::Ring(ring) => ring.write(at, &bytes).await,
        }
    }

    async fn read_any<T>(
        &self,
        at: u64,
        len: impl Fn(&[u8]) -> Option<usize>,
        decode: impl Fn(&mut [u8]) -> Option<T>,
    ) -> Result<Option<(Buf, T)>> {
        match self {
            Self::Array(array, area) => ring::read_any(array, area.start + at, len, decode).await,
            Self::Ring(ring) => ring.read_any(at, len, decode).await,
        }
    }
}

impl LogMedium {
    /// The ring, if it is one of disks.
    pub(crate) fn ring(&self) -> Option<&Ring> {
        match self {
            Self::Array(..) => None,
            Self::Ring(ring) => Some(ring),
        }
    }
}

/// A copy of a ring: all of its runs are on one disk.
struct RingCopy {
    disk: u16,
    runs: Vec<Range<u64>>,
    is_given_up: Cell<bool>,
}

impl RingCopy {
    /// Where bytes of the ring lie: byte of the disk, and length.
    fn pieces(&self, at: u64, len: u64) -> Vec<(u64, u64)> {
        let (mut pieces, mut first) = (Vec::new(), 0);
        for run in &self.runs {
            let bytes = (run.end - run.start) * BLOCK_BYTES;
            let (from, to) = (at.max(first), (at + len).min(first + bytes));
            if from < to {
                pieces.push((run.start * BLOCK_BYTES + from - first, to - from));
            }
            first += bytes;
        }
        pieces
    }

    async fn write(&self, member: &Member, at: u64, bytes: &Frozen) -> bool {
        let Some(disk) = member.data() else { return false };
        let mut done = 0;
        let pieces = self.pieces(at, bytes.len() as u64);
        let writes = pieces.into_iter().map(|(to, len)| {
            let len = usize::try_from(len).expect("of a log record");
            let part = bytes.slice(done, len);
            done += len;
            disk.write(to, part, WriteOpts::USER_FUA)
        });
        join_all(writes).await.iter().all(std::result::Result::is_ok)
    }

    async fn read(&self, member: &Member, at: u64, len: usize) -> Option<Buf> {
        let disk = member.data()?;
        let (mut whole, mut done) = (Buf::new(len), 0);
        for (from, len) in self.pieces(at, len as u64) {
            let len = usize::try_from(len).expect("of a log record");
            let (result, part) = disk.read(from, Buf::new(len), Class::User).await;
            result.ok()?;
            whole[done..done + len].copy_from_slice(&part);
            done += len;
        }
        (done == len).then_some(whole)
    }
}

/// A ring of which disks have copies.
pub(crate) struct Ring {
    pool: Rc<Pool>,
    node: u16,
    blocks: u64,
    copies: Vec<RingCopy>,
    /// Copies that were given up, and how many of these the metadata has.
    given_up: Cell<u64>,
    recorded: Cell<u64>,
}

impl Ring {
    /// The ring of a node, if these are its runs.
    ///
    /// # Errors
    /// If they are not, or the copies differ in length.
    pub(crate) fn new(pool: &Rc<Pool>, node: u16, runs: &[RingRun]) -> Result<Self> {
        let mut copies: Vec<RingCopy> = Vec::new();
        for RingRun { run, is_given_up } in runs {
            let range = run.start..run.start + run.blocks;
            match copies.iter_mut().find(|copy| copy.disk == run.disk) {
                Some(copy) => {
                    copy.runs.push(range);
                    copy.is_given_up.set(copy.is_given_up.get() || *is_given_up);
                }
                None => copies.push(RingCopy {
                    disk: run.disk,
                    runs: vec![range],
                    is_given_up: Cell::new(*is_given_up),
                }),
            }
        }
        let blocks = |copy: &RingCopy| copy.runs.iter().map(|run| run.end - run.start).sum::<u64>();
        let len = copies.first().map_or(0, blocks);
        if len == 0 || copies.iter().any(|copy| blocks(copy) != len) {
            return Err(FsError::Damaged(format!("node {node} has no ring, or half of one")));
        }
        Ok(Self {
            pool: pool.clone(),
            node,
            blocks: len,
            copies,
            given_up: Cell::new(0),
            recorded: Cell::new(0),
        })
    }

    /// The copies that count, with their disks.
    fn in_use(&self) -> impl Iterator<Item = (&RingCopy, Rc<Member>)> {
        let copies = self.copies.iter().filter(|copy| !copy.is_given_up.get());
        let members = copies.filter_map(|copy| Some((copy, self.pool.member(copy.disk)?)));
        members.filter(|(_, member)| !member.is_lost())
    }

    /// Whether any copy counts.
    ///
    /// # Errors
    /// If none does.
    pub(crate) fn check(&self) -> Result<()> {
        self.in_use().next().map(drop).ok_or_else(|| self.none_left())
    }

    fn none_left(&self) -> FsError {
        FsError::Stopped(format!("no copy of the log of node {} is left", self.node))
    }

    /// Gives a copy up, unless it is.
    fn give_up(&self, copy: &RingCopy) {
        if !copy.is_given_up.replace(true) {
            self.given_up.set(self.given_up.get() + 1);
        }
    }

    async fn write(&self, at: u64, bytes: &Frozen) -> Result<()> {
        let is_unknown = |copy: &&RingCopy| self.pool.member(copy.disk).is_none();
        self.copies.iter().filter(is_unknown).for_each(|copy| self.give_up(copy));
        let writes = self.in_use().map(|(copy, member)| async move {
            if copy.write(&member, at, bytes).await {
                return;
            }
            // The way to it may have been opened again.
            let works = self.pool.diagnose(&member).await;
            if works && !copy.write(&member, at, bytes).await {
                self.give_up(copy);
            }
        });
        join_all(writes).await;
        self.check()
    }

    async fn read_any<T>(
        &self,
        at: u64,
        len: impl Fn(&[u8]) -> Option<usize>,
        decode: impl Fn(&mut [u8]) -> Option<T>,
    ) -> Result<Option<(Buf, T)>> {
        let read =
            async |(copy, member): &(&RingCopy, Rc<Member>), len| copy.read(member, at, len).await;
        let found = ring::first_right(self.in_use(), read, len, decode).await;
        found.map_err(|ring::Unreadable| self.none_left())
    }

    /// How many copies were given up, if the metadata does not have all of that.
    pub(crate) fn unrecorded(&self) -> Option<u64> {
        let given_up = self.given_up.get();
        (given_up != self.recorded.get()).then_some(given_up)
    }

    /// The metadata has it of so many copies that they were given up, durably.
    pub(crate) fn recorded(&self, count: u64) {
        self.recorded.set(self.recorded.get().max(count));
    }

    /// Puts it into the metadata which copies were given up.
    pub(crate) fn store(&self, tx: &Tx<'_>) -> Result<()> {
        let mut runs = tx.ring(self.node)?;
        for run in &mut runs {
            let copy = self.copies.iter().find(|copy| copy.disk == run.run.disk);
            run.is_given_up |= copy.is_some_and(|copy| copy.is_given_up.get());
        }
        tx.put_ring(self.node, &runs)
    }
}

#[cfg(test)]
mod tests {
    use weft_disk::RamDisk;
    use weft_rt::{Schedule, virtual_rt};

    use super::*;
    use crate::disks::old_block_cache::OldBlockCache;
    use crate::format::block::BLOCK;
    use crate::format::extent::Run;
    use crate::format::label::Label;
    use crate::meta::DiskRow;
    use crate::mount::present;

    fn member(number: u16) -> Member {
        let size = 24 << 20;
        let id = weft_array::Id([7; 16]);
        let label = Label::plan(id, "home", number, size, 1 << 20).expect("it fits");
        let disk: Rc<dyn weft_disk::Disk> = Rc::new(RamDisk::new("ram", size, 512));
        let present = present(&disk, &label, None).expect("it is whole");
        let id = label.disk_id.0;
        let row = DiskRow { id, blocks: label.blocks, lost: false, name: "ram".to_owned() };
        Member::new(number, row, Some(present))
    }

    /// The node that recovers may know it: it must not take the copy for one with all records.
    #[test]
    fn a_copy_on_a_disk_that_is_not_known_is_given_up() {
        virtual_rt(Schedule::Fifo).block_on(async {
            let cache = OldBlockCache::new(1 << 20).expect("there is room");
            let pool = Pool::new(vec![member(0), member(1)], cache);
            let run =
                |disk| RingRun { run: Run { disk, start: 0, blocks: 16 }, is_given_up: false };
            let ring = Ring::new(&pool, 1, &[run(0), run(1), run(4)]).expect("whole");
            let bytes = Buf::zeroed(BLOCK).freeze();
            for _ in 0..2 {
                ring.write(0, &bytes).await.expect("two copies are left");
                assert_eq!(ring.unrecorded(), Some(1));
            }
            let is_given_up = |copy: &RingCopy| copy.is_given_up.get();
            assert!(ring.copies.iter().map(is_given_up).eq([false, false, true]));
            ring.recorded(1);
            assert_eq!(ring.unrecorded(), None);
        });
    }
}
