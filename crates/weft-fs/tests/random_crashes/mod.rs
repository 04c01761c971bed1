//! Random operations, and a crash at a random step of a disk, again and again on the same disks;
//! often a disk is lost with the crash, or some time before it. Meanwhile blocks of the disks fail,
//! for good: some cannot be written any more, one at a time cannot be read. Disks join where others
//! were lost, those that were lost come back as they were, the metadata takes more room, balances
//! and scrubs begin, and are cancelled. In half of the lives another node contends for tokens, and
//! dies now and then. One slice of the metadata at a time refuses writes for a while, or has a
//! sector that cannot be read or has rotted. Then the file system has as many copies as before
//! within a minute, and each of them can be mounted alone. In half of the lives writes to some
//! slices take long: copies that a crash left unlike each other are unlike still when the next one
//! comes, and a disk is lost.
//!
//! What may be found is a matter of history. Names, links and attributes are as they were after
//! some operation, and after it also as far as they were synced. Each file has a size that it had,
//! or ends with a block of a write that made it longer, and each of its sectors is as it was at
//! some time since the file was synced. Then the reference goes on from what was found.
//!
//! `WEFT_SEEDS=5000` and the like let it run for long; the clock of the disks is virtual.

mod copies;
mod disks;
mod history;
mod life;
mod remote;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use self::copies::alone;
use self::history::Moment;
use self::life::{BALANCED, OVERLAPPED, RETURNED, one_life};
use crate::common::moments::drawn_leave;
use crate::common::*;
use weft_random::Rng;
use weft_testkit::for_seeds;

const LIVES: usize = 4;

/// A life: from a mount to a crash. `before` is what the crash before it left, and what may be
/// found. Returns how many blocks were overwritten at new places.
fn lives(seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let mut before: Option<Moment> = None;
    let mut afresh = 0;
    for n in 0..LIVES {
        let life = rng.next_u64();
        let result = Rc::new(RefCell::new(None));
        let (given, given_back) = (before.take(), result.clone());
        run(move |rt| async move {
            *given_back.borrow_mut() = Some(one_life(&rt, life, n, given).await);
        });
        let mut moment: Moment = result.take().expect("it ended");
        let left = drawn_leave(&mut rng, 6);
        for (number, disk) in &mut moment.media {
            disk.medium = left_of(left, *number, &disk.medium);
        }
        afresh += moment.afresh;
        before = Some(moment);
    }
    let (last, moment) = (rng.next_u64(), before.expect("the last one"));
    if !moment.may_lack {
        run(move |rt| async move { alone(&rt, last, moment).await });
    }
    afresh
}

#[test]
fn crashes_leave_what_was_synced_and_nothing_that_never_was() {
    let (afresh, count) = (Cell::new(0), Cell::new(0));
    for_seeds(0..12, |rng| {
        afresh.set(afresh.get() + u64::from(lives(rng.next_u64()) > 0));
        count.set(count.get() + 1);
    });
    let returned = RETURNED.load(Ordering::Relaxed);
    assert!(count.get() < 12 || returned > 1, "{returned} disks came back");
    let balanced = BALANCED.load(Ordering::Relaxed);
    assert!(count.get() < 12 || balanced > 12, "{balanced} blocks moved by balances");
    let (afresh, overlapped) = (afresh.get(), OVERLAPPED.load(Ordering::Relaxed));
    assert!(count.get() < 12 || 3 * afresh >= count.get(), "{afresh} of {count:?} seeds");
    assert!(count.get() < 12 || overlapped > 12, "{overlapped} batches");
}
