//! Files whose pages the kernel gives back, and requests that wait for tokens of these files.
//!
//! A request may become a late one ([`super::returned_pages`]) whenever a round begins in which the
//! kernel drops pages. Until then it waits for its tokens, as any other.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_rt::sync::Notify;

use crate::format::inode::Ino;
use crate::tokens::returned_pages::ReturnedPages;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct LateRequests {
    files: RefCell<BTreeMap<Ino, Rc<ReturnedPages>>>,
    /// Told when a round begins.
    rounds: Notify,
}

impl LateRequests {
    /// The pages of a file that the kernel is giving back.
    pub(crate) fn pages(&self, ino: Ino) -> Option<Rc<ReturnedPages>> {
        self.files.borrow().get(&ino).cloned()
    }

    /// The kernel is about to give the pages of a file back.
    pub(crate) fn begin_return(&self, ino: Ino) -> Rc<ReturnedPages> {
        let pages = ReturnedPages::new();
        self.files.borrow_mut().insert(ino, pages.clone());
        pages
    }

    /// A round of this begins: requests that wait may be late ones.
    pub(crate) fn begin_round(&self) {
        self.rounds.notify_all();
    }

    /// The kernel has given the pages of a file back.
    pub(crate) fn end_return(&self, ino: Ino) {
        self.files.borrow_mut().remove(&ino);
    }

    /// What `hold` waits for, unless `be_late` returns something first: that is called at once, and
    /// in each round.
    pub(super) async fn hold_or_be_late<T>(
        &self,
        hold: impl Future<Output = T>,
        be_late: impl Fn() -> Option<T>,
    ) -> T {
        let mut hold = pin!(hold);
        loop {
            let round = pin!(self.rounds.wait());
            if let Some(late) = be_late() {
                return late;
            }
            if let Either::Left((held, _)) = select(hold.as_mut(), round).await {
                return held;
            }
        }
    }
}
