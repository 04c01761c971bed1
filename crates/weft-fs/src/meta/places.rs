//! The places of the database's pages on the metadata array.

use std::collections::BTreeMap;
use std::ops::Range;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use weft_array::{Array, Id};
use weft_rt::{Buf, Frozen, ZEROS_BYTES_MAX};

use super::header::{self, Stored};
use super::journal::{self, Length, Tail};
use super::pages::{Page, pages_of};
use crate::error::{FsError, Result};
use crate::format::block::{BLOCK, BLOCK_BYTES};

/// Bytes of one write at most.
const WRITE_BYTES_MAX: usize = 256 << 10;
/// Writes side by side: disks with platters take them in their own order.
const WRITES_MAX: usize = 16;

/// The place of the database, and its header.
pub(super) struct Places {
    pub(super) array: Array,
    pub(super) fs_id: Id,
    /// Of page 0, and the end.
    pub(super) db: Range<u64>,
}

impl Places {
    /// The most bytes that a database may have here.
    pub(super) fn bytes(&self) -> u64 {
        self.db.end - self.db.start
    }

    /// Reads `count` pages.
    pub(super) async fn read(&self, first: u64, count: usize) -> Result<Buf> {
        let at = self.db.start + first * BLOCK_BYTES;
        let (result, buf) = self.array.read(at, Buf::new(count * BLOCK)).await;
        result?;
        Ok(buf)
    }

    /// Writes pages.
    pub(super) async fn write(&self, pages: &BTreeMap<u64, Page>) -> Result<()> {
        let pages: Vec<(u64, &Page)> = pages.iter().map(|(number, page)| (*number, page)).collect();
        let follow = |a: &(u64, &Page), b: &(u64, &Page)| a.0 + 1 == b.0;
        let runs = pages.chunk_by(follow).flat_map(|run| run.chunks(WRITE_BYTES_MAX / BLOCK));
        let write = |run: &[(u64, &Page)]| {
            let mut bytes = Buf::zeroed(run.len() * BLOCK);
            let parts = bytes.chunks_exact_mut(BLOCK);
            run.iter().zip(parts).for_each(|((_, page), part)| part.copy_from_slice(&page[..]));
            self.array.write(self.db.start + run[0].0 * BLOCK_BYTES, bytes.freeze(), false)
        };
        let written = stream::iter(runs.map(write)).buffer_unordered(WRITES_MAX);
        Ok(written.try_collect::<()>().await?)
    }

    /// Writes zeros where none of these pages is in a range.
    pub(super) async fn write_zeros(
        &self,
        range: Range<u64>,
        pages: &BTreeMap<u64, Page>,
    ) -> Result<()> {
        let mut from = range.start;
        for number in pages.range(range.clone()).map(|(number, _)| *number) {
            self.write_zero_run(from..number).await?;
            from = number + 1;
        }
        self.write_zero_run(from..range.end).await
    }

    async fn write_zero_run(&self, range: Range<u64>) -> Result<()> {
        let step = ZEROS_BYTES_MAX.min(WRITE_BYTES_MAX) as u64;
        let (mut at, end) = (range.start * BLOCK_BYTES, range.end * BLOCK_BYTES);
        while at < end {
            let len = (end - at).min(step);
            let zeros = Frozen::zeros(usize::try_from(len).expect("at most WRITE_BYTES_MAX"));
            self.array.write(self.db.start + at, zeros, false).await?;
            at += len;
        }
        Ok(())
    }

    /// Writes the header; with `durable` it is so on return.
    pub(super) async fn write_header(&self, stored: Stored, durable: bool) -> Result<()> {
        header::write(&self.array, self.fs_id, stored, durable).await
    }

    /// Writes what the journal holds to its place. Returns the header as it is then.
    pub(super) async fn replay(&self, area: &Range<u64>, stored: Stored) -> Result<Stored> {
        let Some(tail) = stored.journal else { return Ok(stored) };
        let found = journal::scan(&self.array, area, self.fs_id, tail).await?;
        let Length { db_bytes, zeros_from } =
            found.length.unwrap_or(Length { db_bytes: stored.db_bytes, zeros_from: 0 });
        let is_within = |number: &u64| *number < pages_of(db_bytes);
        if db_bytes > self.bytes() || !found.pages.keys().all(is_within) {
            return Err(FsError::Damaged("the journal names pages outside the database".into()));
        }
        // What the header speaks of is in its place, and what was written early.
        let zeros_from = zeros_from.max(pages_of(stored.db_bytes));
        self.write(&found.pages).await?;
        self.write_zeros(zeros_from..pages_of(db_bytes).max(zeros_from), &found.pages).await?;
        self.array.flush().await?;
        let tail = Tail { generation: found.end.generation + 1, ..found.end };
        let stored = Stored { db_bytes, journal: Some(tail) };
        // A new database has no header before it has pages.
        if db_bytes > 0 {
            self.write_header(stored, true).await?;
        }
        Ok(stored)
    }
}
