//! Making a page durable: one write of a page at a time, shared by all that wait for it.

use std::rc::Rc;

use futures_util::future::join_all;
use weft_rt::Frozen;
use weft_rt::sync::Notify;

use super::page::{self, PER_PAGE};
use super::{DIRTY, MapError, MapStore, PENDING, RegionMap, WRITTEN};
use crate::region_map::RegionNo;

/// Pages written concurrently when the whole map is written.
const PAGES_AT_ONCE: usize = 16;

/// The state of a page and its writes.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// Number of the newest durable page.
    pub seq: u64,
    /// Failed writes since then.
    failed: u64,
    /// Number of changes; each is in memory at once, and durable later.
    changes: u64,
    /// Changes up to this one are durable.
    durable: u64,
    writing: bool,
    abandoned: bool,
    /// Regions whose flag PENDING is cleared by a successful write.
    pending: Vec<usize>,
    /// The page as found, if not all members have it: it is written before anything else.
    pub uneven: Option<Frozen>,
    /// Rings at the end of every write.
    bell: Rc<Notify>,
}

impl Page {
    pub fn note_change(&mut self) {
        self.changes += 1;
    }

    /// The contents in memory are those of the durable page `seq`.
    pub fn loaded(&mut self, seq: u64) {
        self.seq = seq;
        self.durable = self.changes;
    }

    pub fn set_pending(&mut self, index: usize) {
        self.changes += 1;
        self.pending.push(index);
    }
}

/// A page write in progress.
struct Attempt<'a> {
    map: &'a RegionMap,
    page: usize,
    bytes: Frozen,
    seq: u64,
    changes: u64,
    pending: Vec<usize>,
    outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq)]
enum Outcome {
    Abandoned,
    Failed,
    Durable,
}

enum Turn<'a> {
    Done,
    Wait(Rc<Notify>),
    Heal(Attempt<'a>),
    Write(Attempt<'a>),
}

impl RegionMap {
    /// Writes the page as often as needed until `durable()` holds.
    pub(super) async fn persist(
        &self,
        store: &dyn MapStore,
        page: usize,
        durable: impl Fn() -> bool,
    ) -> Result<(), MapError> {
        loop {
            match self.turn(page, &durable)? {
                Turn::Done => return Ok(()),
                Turn::Wait(bell) => bell.wait().await,
                Turn::Heal(mut attempt) | Turn::Write(mut attempt) => {
                    let offset = self.config.area_offset + page::place(page, attempt.seq);
                    let result = store.write_page(offset, attempt.bytes.clone()).await;
                    let ok = result.is_ok();
                    attempt.outcome = if ok { Outcome::Durable } else { Outcome::Failed };
                    drop(attempt);
                    result?;
                }
            }
        }
    }

    /// Makes all changes made so far on these pages durable.
    pub(super) async fn persist_pages(
        &self,
        store: &dyn MapStore,
        pages: impl IntoIterator<Item = usize>,
    ) -> Result<(), MapError> {
        let pages: Vec<usize> = pages.into_iter().collect();
        for pages in pages.chunks(PAGES_AT_ONCE) {
            let writes = pages.iter().map(|page| {
                let (page, target) = (*page, self.pages.borrow()[*page].changes);
                self.persist(store, page, move || self.pages.borrow()[page].durable >= target)
            });
            join_all(writes).await.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    /// The pages of these regions, without duplicates.
    pub(super) fn pages_of(regions: &[RegionNo]) -> std::collections::BTreeSet<usize> {
        regions.iter().map(|region| page::of(super::to_index(*region))).collect()
    }

    /// Writes every page to every member again, for a disk that is about to become a member.
    /// [`MapStore::write_page`] must already write to the disk.
    ///
    /// # Errors
    /// If the members cannot be written.
    pub async fn write_all(&self, store: &dyn MapStore) -> Result<(), MapError> {
        let count = self.pages.borrow().len();
        for page in self.pages.borrow_mut().iter_mut() {
            page.note_change();
        }
        self.persist_pages(store, 0..count).await
    }

    fn turn(&self, page: usize, durable: impl Fn() -> bool) -> Result<Turn<'_>, MapError> {
        if durable() {
            return Ok(Turn::Done);
        }
        let mut pages = self.pages.borrow_mut();
        let state = &mut pages[page];
        if state.abandoned {
            return Err(MapError::Abandoned { page });
        }
        if state.writing {
            return Ok(Turn::Wait(state.bell.clone()));
        }
        state.writing = true;
        if let Some(bytes) = &state.uneven {
            let attempt = Attempt {
                map: self,
                page,
                bytes: bytes.clone(),
                seq: state.seq,
                changes: state.durable,
                pending: std::mem::take(&mut state.pending),
                outcome: Outcome::Abandoned,
            };
            return Ok(Turn::Heal(attempt));
        }
        // Two more for each failed attempt, which keeps the place: see the head of `region_map.rs`.
        let seq = state.seq + 1 + 2 * state.failed;
        let changes = state.changes;
        let pending = std::mem::take(&mut state.pending);
        drop(pages);
        let first = page * PER_PAGE;
        let entries = self.entries.borrow();
        let last = (first + PER_PAGE).min(entries.len());
        let bytes = page::encode(self.config.array_id, page, seq, &entries[first..last]);
        let outcome = Outcome::Abandoned;
        Ok(Turn::Write(Attempt { map: self, page, bytes, seq, changes, pending, outcome }))
    }
}

impl Attempt<'_> {
    fn succeed(&mut self, state: &mut Page) {
        state.seq = self.seq;
        state.failed = 0;
        state.durable = self.changes;
        state.uneven = None;
        let first = self.page * PER_PAGE;
        let mut entries = self.map.entries.borrow_mut();
        for index in self.pending.drain(..) {
            let entry = &mut entries[index];
            // A flag may have been set (or cleared and set again) since the page was composed.
            let set = page::flags_in(&self.bytes, index - first);
            if entry.flags & (WRITTEN | DIRTY) & !set == 0 {
                entry.flags &= !PENDING;
            } else {
                state.pending.push(index);
            }
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut pages = self.map.pages.borrow_mut();
        let state = &mut pages[self.page];
        state.writing = false;
        match self.outcome {
            Outcome::Durable => self.succeed(state),
            Outcome::Failed | Outcome::Abandoned => {
                state.abandoned |= self.outcome == Outcome::Abandoned;
                // Rewriting a page unchanged does not use up a number.
                state.failed += u64::from(state.uneven.is_none());
                state.pending.append(&mut self.pending);
            }
        }
        let bell = state.bell.clone();
        drop(pages);
        bell.notify_all();
    }
}
