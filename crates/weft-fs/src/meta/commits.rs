//! Commits: what waits in memory goes to the keeper, and becomes durable.
//!
//! A commit freezes what waits, sends it to the store in parts, between which operations go on,
//! ends the batch, and then writes its epochs. To a keeper on another machine it sends all of it
//! again until that calls it durable. Changes go to a store in this process early if they may
//! change more pages than it has room for: then it is known how many they are.

use weft_rt::fiber;
use weft_wire::{Answer, Question};

use super::overlay::Overlay;
use super::reach::Reach;
use super::remote::RemoteKeeper;
use super::row_bytes::row_bytes_name;
use super::transaction::Tx;
use super::{Meta, room};
use crate::error::{FsError, Result};
use crate::format::extent::Run;

/// What may always be added to rows before a commit.
const ADDED_BYTES_MIN: u64 = 16 << 10;

impl Meta {
    /// Whether so much waits that it is to be committed before more changes.
    pub(crate) fn is_crowded(&self) -> bool {
        self.is_much_waiting() || self.may_change_much() || self.is_room_scarce()
    }

    /// Whether what waits takes much of the room for rows that the keeper has told. With the commit
    /// it tells how much there is now.
    fn is_room_scarce(&self) -> bool {
        let Reach::Remote(keeper) = &self.keeper else { return false };
        let added = u64::try_from(self.added_bytes()).unwrap_or(0);
        added > ADDED_BYTES_MIN && added > keeper.room().left / 2
    }

    /// Whether what waits takes all the memory that it may.
    fn is_much_waiting(&self) -> bool {
        self.node.open().bytes() > self.waiting_bytes_max
    }

    /// Whether what waits may change more pages than the store has room for.
    fn may_change_much(&self) -> bool {
        self.sent_bytes() + self.node.open().due_pages() > self.changed_bytes_max()
    }

    /// Bytes of the pages that changed with what the store has of the open changes.
    fn sent_bytes(&self) -> u64 {
        // Until a commit has ended they are those of the commit.
        match &self.keeper {
            Reach::Here(keeper) if self.node.frozen().is_none() => keeper.image.changed_bytes(),
            // Nothing is sent early to another machine: there the store is for all nodes.
            _ => 0,
        }
    }

    /// Before a commit that is due as much waits: returns whether it is, after all. The commit that
    /// is under way ends first. Then changes go to the store early, so that it is known which pages
    /// they change.
    pub(crate) async fn needs_commit(&self) -> Result<bool> {
        let _none = self.committing.acquire(1).await;
        self.check()?;
        if self.keeper.here().is_some() && !self.is_much_waiting() && self.may_change_much() {
            self.send_frozen().await?;
            let _alone = self.operating.acquire(1).await;
            self.send_early().await?;
            // Few rows more would be too much again.
            return Ok(self.sent_bytes() > self.changed_bytes_max() / 4 * 3);
        }
        Ok(self.is_crowded())
    }

    /// Sends all due changes, for a caller that holds `operating`. Nothing is frozen, and the
    /// keeper is here.
    pub(super) async fn send_early(&self) -> Result<()> {
        let Some(keeper) = self.keeper.here() else { return Ok(()) };
        let mut last = None;
        loop {
            let part = self.node.part(&self.node.open(), last.as_ref(), self.at_a_time());
            let Some(part) = part else { break };
            fiber::run(|| self.failing(keeper.take(&part.rows))).await?;
            last = part.rows.last().map(|row| (row.table, row.key.clone()));
        }
        self.node.change(Overlay::sent);
        Ok(())
    }

    /// Sends the frozen changes, and ends the batch. The caller holds `committing`.
    async fn send_frozen(&self) -> Result<()> {
        let Some(frozen) = self.node.frozen() else { return Ok(()) };
        let keeper = match &self.keeper {
            Reach::Here(keeper) => keeper,
            Reach::Remote(keeper) => {
                while !self.failing(self.send_to(keeper, &frozen).await)? {}
                self.node.thaw();
                return Ok(());
            }
        };
        let mut last = None;
        while let Some(part) = self.node.part(&frozen, last.as_ref(), self.at_a_time()) {
            let _alone = self.operating.acquire(1).await;
            self.check()?;
            fiber::run(|| self.failing(keeper.take(&part.rows))).await?;
            last = part.rows.last().map(|row| (row.table, row.key.clone()));
        }
        let _alone = self.operating.acquire(1).await;
        self.check()?;
        // A flush of many files that was under way may have changed more than was kept for it: that
        // is taken from the second generation, which is seldom needed.
        debug_assert!(
            keeper.image.changed_bytes()
                <= self.changed_bytes_max() + room::reserve_bytes(self.capacity()),
            "a batch may change {} bytes, and changes {}",
            self.changed_bytes_max(),
            keeper.image.changed_bytes()
        );
        let end = || {
            keeper.end(self.is_ending.get())?;
            self.node.thaw();
            Ok(())
        };
        fiber::run(|| self.failing(end())).await
    }

    /// Sends the frozen changes to a keeper on another machine, and waits until they are durable
    /// there. Operations go on meanwhile. `false`: the connection was lost, and this is to be tried
    /// again.
    async fn send_to(&self, keeper: &RemoteKeeper, frozen: &Overlay) -> Result<bool> {
        self.check()?;
        let connection = keeper.connected().await?;
        let end = self.node.end(self.is_ending.get());
        if connection.next_batch() < end.batch {
            return Err(FsError::Stopped(format!(
                "its keeper has lost batch {} of the metadata, which was durable",
                connection.next_batch()
            )));
        }
        let is_there = connection.next_batch() > end.batch;
        let mut last = None;
        while !is_there
            && let Some(part) = self.node.part(frozen, last.as_ref(), connection.rows_max())
        {
            last = part.rows.last().map(|row| (row.table, row.key.clone()));
            if !keeper.send(&connection, Question::Part(part)).await? {
                return Ok(false);
            }
        }
        keeper.send(&connection, Question::End(end)).await
    }

    fn changed_bytes_max(&self) -> u64 {
        room::changed_bytes_max(self.capacity(), self.row_bytes())
    }

    /// From now on places in records are noted when they are put.
    pub(crate) fn note_places(&self) {
        self.node.note_places();
    }

    /// Places in records that were put since this was called last.
    pub(crate) fn take_places(&self) -> Vec<Run> {
        self.node.take_places()
    }

    /// Asks a keeper on another machine, until it answers.
    pub(crate) async fn ask_keeper(&self, question: Question) -> Result<Answer> {
        self.check()?;
        match &self.keeper {
            Reach::Remote(keeper) => self.failing(keeper.answer(question).await),
            Reach::Here(_) => Err(FsError::Stopped("its keeper is no other node's".into())),
        }
    }

    /// Whether there is nothing to commit. What was being committed is durable when this returns.
    pub(crate) async fn is_settled(&self) -> Result<bool> {
        let _none = self.committing.acquire(1).await;
        self.check()?;
        // A commit may have been dropped on its way.
        let has_epochs = self.keeper.here().is_some_and(|keeper| keeper.image.has_epochs());
        let is_on_its_way = self.node.frozen().is_some() || has_epochs;
        Ok(!self.changes.any() && !is_on_its_way)
    }

    /// The last commit is about to come: from now on commits store which pages of the database are
    /// free, and the next mount need not look at all of them to find out. That takes two bits for
    /// each page.
    pub(crate) fn end(&self) {
        self.is_ending.set(true);
    }

    /// Ends the transaction, with `last` as its last operation. When this returns it is durable,
    /// and so is every one before it.
    pub(crate) async fn commit<T>(&self, last: impl FnOnce(&Tx<'_>) -> Result<T>) -> Result<T> {
        let _one = self.committing.acquire(1).await;
        // One that was dropped before its end.
        self.send_frozen().await?;
        let alone = self.operating.acquire(1).await;
        let last = |tx: &Tx<'_>| {
            let given = last(tx)?;
            if self.is_ending.get() {
                tx.return_numbers()?;
            }
            tx.set_state(&row_bytes_name(self.number()), self.changes.row_bytes())?;
            Ok(given)
        };
        let given = self.run_alone(last).await?;
        self.changes.begin_commit();
        self.node.freeze(self.changes.row_bytes());
        drop(alone);
        self.send_frozen().await?;
        if let Some(keeper) = self.keeper.here() {
            self.failing_to_write(keeper.image.write_epochs().await)?;
        }
        self.changes.end_commit();
        Ok(given)
    }

    /// Writes what only the journal has to its place: the next mount need not.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        self.check()?;
        let Some(keeper) = self.keeper.here() else { return Ok(()) };
        self.failing_to_write(keeper.image.checkpoint().await)
    }

    /// Checkpoints in small steps if the journal is long, so that no commit has to wait for it
    /// later.
    pub(crate) async fn checkpoint_if_due(&self) -> Result<()> {
        self.check()?;
        let Some(keeper) = self.keeper.here() else { return Ok(()) };
        self.failing_to_write(keeper.image.checkpoint_in_steps().await)
    }
}
