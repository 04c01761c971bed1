//! Rows of a part of a table, as a node gets them of a keeper that is somewhere else: some with
//! each question, more and more of them. Extents that the keeper gave lately are not asked for
//! again ([`super::known_extents`]).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Bound;

use futures_util::future::join;
use redb::Value;
use weft_rt::fiber;
use weft_wire::{Answer, Question, Row};

use super::known_extents::KnownRows;
use super::recent_rows::RecentRows;
use super::remote::{RemoteKeeper, is_value, unexpected};
use super::rows::{KeyRange, RowKey, StoreKey, TableId, number_of};
use crate::error::{FsError, Result};

/// Rows that are asked for together: at first, and later.
const ROWS: std::ops::Range<u32> = 8..256;

impl RemoteKeeper {
    /// The rows of a part of a table. What `recent` has of them is not asked for.
    pub(super) fn rows<'a>(
        &'a self,
        table: TableId,
        (from, to): &KeyRange<'_>,
        recent: &'a RefCell<RecentRows>,
    ) -> RemoteRows<'a> {
        let owned = |bound: &Bound<RowKey<'_>>| bound.as_ref().map(|key| key.clone().into_owned());
        let range = (owned(from), owned(to));
        let (rows, is_end) = (VecDeque::new(), false);
        RemoteRows { keeper: self, table, range, recent, rows, is_end, max: ROWS.start }
    }
}

/// Rows that are asked for as they are needed.
pub(super) struct RemoteRows<'a> {
    keeper: &'a RemoteKeeper,
    table: TableId,
    /// What was not asked for.
    range: KeyRange<'static>,
    /// What the keeper said lately.
    recent: &'a RefCell<RecentRows>,
    rows: VecDeque<Row>,
    is_end: bool,
    max: u32,
}

/// Rows in an answer, and whether there are no more.
fn rows_in<K: StoreKey, V: Value>(answer: Answer) -> Result<(Vec<Row>, bool)> {
    let Answer::Rows { rows, is_end } = answer else { return Err(unexpected()) };
    let is_row = |(key, value): &Row| K::is_key(key) && is_value::<V>(value);
    if rows.is_empty() && !is_end || !rows.iter().all(is_row) {
        return Err(unexpected());
    }
    Ok((rows, is_end))
}

impl RemoteRows<'_> {
    /// The next row.
    pub(super) fn next<K: StoreKey, V: Value>(&mut self) -> Result<Option<Row>> {
        if self.rows.is_empty() && !self.is_end {
            let (rows, is_end) = self.next_rows::<K, V>()?;
            self.max = (2 * self.max).min(ROWS.end);
            if let Some((key, _)) = rows.last() {
                self.range.0 = Bound::Excluded(key.clone());
            }
            (self.rows, self.is_end) = (rows.into(), is_end);
        }
        Ok(self.rows.pop_front())
    }

    /// Whether rows that the keeper gives are kept. Jobs read those of several files without
    /// tokens: others may change them.
    fn keeps(&self) -> bool {
        self.table == TableId::Extents && number_of(&self.range).is_some()
    }

    fn next_rows<K: StoreKey, V: Value>(&self) -> Result<(Vec<Row>, bool)> {
        let keeps = self.keeps();
        let age = {
            let recent = self.recent.borrow();
            let known = keeps.then(|| recent.extents.first_of(&self.range, self.max as usize));
            if let Some(KnownRows { rows, is_end }) = known.flatten() {
                return Ok((rows, is_end));
            }
            recent.age()
        };
        let (rows, is_end) = rows_in::<K, V>(self.keeper.wait(self.question(false, self.max))?)?;
        let mut recent = self.recent.borrow_mut();
        if keeps && recent.age() == age {
            recent.extents.put_first(&self.range, &rows, is_end);
        }
        Ok((rows, is_end))
    }

    fn question(&self, is_backward: bool, max: u32) -> Question {
        Question::Rows { table: self.table, range: self.range.clone(), is_backward, max }
    }

    /// The last row. Nothing else may be asked for then.
    pub(super) fn last<K: StoreKey, V: Value>(self) -> Result<Option<Row>> {
        let one = self.question(true, 1);
        if !self.keeps() {
            let (rows, _) = rows_in::<K, V>(self.keeper.wait(one)?)?;
            return Ok(rows.into_iter().next());
        }
        let (age, ahead) = {
            let mut recent = self.recent.borrow_mut();
            if let Some(known) = recent.extents.last_of(&self.range) {
                return Ok(known);
            }
            (recent.age(), recent.extents.ahead_of(&self.range))
        };
        let asked = async {
            let one = self.keeper.answer(one);
            let Some((range, max)) = ahead else { return Ok((one.await?, None)) };
            let (table, is_backward) = (self.table, false);
            let question = Question::Rows { table, range: range.clone(), is_backward, max };
            let (one, behind) = join(one, self.keeper.answer(question)).await;
            Result::Ok((one?, Some((range, behind?))))
        };
        let answers = fiber::wait(asked).map_err(|gone| FsError::Stopped(gone.to_string()))?;
        let (one, behind) = answers?;
        let last = rows_in::<K, V>(one)?.0.into_iter().next();
        let mut recent = self.recent.borrow_mut();
        if recent.age() == age {
            recent.extents.put_last(&self.range, last.as_ref());
            if let Some((range, answer)) = behind {
                let (rows, is_end) = rows_in::<K, V>(answer)?;
                recent.extents.put_first(&range, &rows, is_end);
            }
        }
        Ok(last)
    }
}
