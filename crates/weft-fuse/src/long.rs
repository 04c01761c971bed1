//! Requests that take long: to reserve space, to copy, to search for holes, to rewrite a file, to
//! truncate a long one.
//!
//! They do not take the slots of other requests ([`crate::channel`]): otherwise enough of them to
//! fill all slots would block the short requests of all users. Each user has a few at a time; more
//! of them wait. A program that is killed waits for the answer to its request, so the kernel
//! reports it as interrupted, and it ends after its current step.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};
use rustix::io::Errno;
use weft_rt::sync::{Notify, Permit, Semaphore};

/// Long requests of a user at a time.
const PER_USER: usize = 8;

/// A long request that was interrupted, or was not.
#[derive(Default)]
struct Interrupt {
    came: Cell<bool>,
    wakes: Notify,
}

/// The long requests of a mount.
#[derive(Default)]
pub(crate) struct Long {
    users: RefCell<BTreeMap<u32, Rc<Semaphore>>>,
    waiting: RefCell<BTreeMap<u64, Rc<Interrupt>>>,
}

/// A long request, until this is dropped.
pub(crate) struct Going {
    long: Rc<Long>,
    unique: u64,
    uid: u32,
    interrupt: Rc<Interrupt>,
    turn: Option<(Permit, Rc<Semaphore>)>,
}

impl Long {
    /// A long request of a user has come.
    pub(crate) fn begin(self: &Rc<Self>, unique: u64, uid: u32) -> Going {
        let interrupt: Rc<Interrupt> = Rc::default();
        self.waiting.borrow_mut().insert(unique, interrupt.clone());
        Going { long: self.clone(), unique, uid, interrupt, turn: None }
    }

    /// A request is to end, if it is one of these.
    pub(crate) fn interrupt(&self, unique: u64) {
        if let Some(interrupt) = self.waiting.borrow().get(&unique) {
            interrupt.came.set(true);
            interrupt.wakes.notify_all();
        }
    }

    /// All of them are to end.
    pub(crate) fn interrupt_all(&self) {
        let all: Vec<u64> = self.waiting.borrow().keys().copied().collect();
        all.into_iter().for_each(|unique| self.interrupt(unique));
    }
}

impl Going {
    /// Waits until fewer requests of this user go on.
    ///
    /// # Errors
    /// [`Errno::INTR`] if it is interrupted before.
    pub(crate) async fn turn(&mut self) -> Result<(), Errno> {
        let of_user = self
            .long
            .users
            .borrow_mut()
            .entry(self.uid)
            .or_insert_with(|| Rc::new(Semaphore::new(PER_USER)))
            .clone();
        while !self.interrupt.came.get() {
            let (turn, wakes) = (pin!(of_user.acquire(1)), pin!(self.interrupt.wakes.wait()));
            if let Either::Left((permit, _)) = select(turn, wakes).await {
                self.turn = Some((permit, of_user.clone()));
                return Ok(());
            }
        }
        Err(Errno::INTR)
    }

    /// Waits until it is interrupted.
    pub(crate) fn interrupted(&self) -> impl Future<Output = ()> + use<> {
        let interrupt = self.interrupt.clone();
        async move {
            while !interrupt.came.get() {
                interrupt.wakes.wait().await;
            }
        }
    }

    /// Says whether it is to go on.
    pub(crate) fn goes_on(&self) -> impl Fn() -> bool + 'static {
        let interrupt = self.interrupt.clone();
        move || !interrupt.came.get()
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.long.waiting.borrow_mut().remove(&self.unique);
        self.turn = None;
        let mut users = self.long.users.borrow_mut();
        if users.get(&self.uid).is_some_and(|of_user| Rc::strong_count(of_user) == 1) {
            users.remove(&self.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_rt::{Schedule, virtual_rt};

    use super::*;

    #[test]
    fn a_user_has_few_at_a_time_and_those_that_wait_can_be_interrupted() {
        let rt = virtual_rt(Schedule::Fifo);
        let inner = rt.clone();
        rt.block_on(async move {
            let long: Rc<Long> = Rc::default();
            let mut going: Vec<Going> = (0..PER_USER as u64).map(|n| long.begin(n, 7)).collect();
            for going in &mut going {
                going.turn().await.expect("its turn");
            }
            let ended = Rc::new(Cell::new(None));
            for unique in [100, 101] {
                let (long, ended) = (long.clone(), ended.clone());
                inner.launch(Box::pin(async move {
                    let mut going = long.begin(unique, 7);
                    ended.set(Some((unique, going.turn().await)));
                }));
            }
            inner.sleep(1).await;
            assert_eq!(ended.take(), None, "they wait");
            // Another user does not.
            long.begin(200, 8).turn().await.expect("its turn");
            long.interrupt(101);
            inner.sleep(1).await;
            assert_eq!(ended.take(), Some((101, Err(Errno::INTR))));
            let goes_on = going[0].goes_on();
            assert!(goes_on());
            long.interrupt(0);
            assert!(!goes_on());
            going.clear();
            inner.sleep(1).await;
            assert_eq!(ended.take(), Some((100, Ok(()))));
            assert!(long.users.borrow().is_empty() && long.waiting.borrow().is_empty());
        });
    }
}
