//! Parts of the running job that other nodes have, with the files of each
//! ([`crate::jobs::part`] has the other end).

use std::collections::VecDeque;

use weft_wire::{Moved, Outcome, Task};

use crate::error::Result;
use crate::format::inode::Ino;
use crate::state::mounted::FsState;
use crate::state::work_desk::Awaited;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Parts {
    given: VecDeque<(Vec<Ino>, Awaited)>,
    /// How many there were.
    pub(crate) count: usize,
}

impl FsState {
    /// Gives parts to nodes that have nothing to do and speak this version of messages. `next`
    /// takes the files of one of so many out, and says what is to be done with them.
    pub(crate) fn give_parts(
        &self,
        parts: &mut Parts,
        version: u16,
        mut next: impl FnMut(usize) -> Option<(Vec<Ino>, Task)>,
    ) {
        while let idle = self.work_desk().idle(version)
            && idle > 0
            && let Some((files, task)) = next(idle)
        {
            parts.given.push_back((files, self.work_desk().give(task)));
            parts.count += 1;
        }
    }

    /// What came of a part that is done, or of the first one if this node has nothing else to do
    /// and `waits`. Its files are left if it came to nothing.
    pub(crate) async fn end_part(&self, parts: &mut Parts, waits: bool) -> Result<Option<Moved>> {
        let ready = match waits {
            true => Some(0),
            false => parts.given.iter().position(|(_, part)| part.is_ready()),
        };
        let Some((files, mut part)) = ready.and_then(|at| parts.given.remove(at)) else {
            return Ok(None);
        };
        Ok(Some(match self.await_part(&mut part).await? {
            Some(Outcome::Moved(moved)) => moved,
            _ => Moved { waiting: files, ..Moved::default() },
        }))
    }
}
