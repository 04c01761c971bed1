//! The mount mark: of the hosts that can reach the disks, one mounts them at a time.
//!
//! A local disk is opened by one program at a time. A network disk has no such owner. So each disk
//! has a block that names the mount, and the host that has mounted it changes the block every two
//! seconds. Clocks of hosts differ, so no times are compared: a mark that *changes* is alive.
//!
//! ```text
//!   read the marks ── none, or ended ────────────────────────────┐
//!                  └─ claimed or mounted: does it change in 20 s? ┤ no
//!                                       │ yes: refused            ▼
//!                          write a claim ── 6 s later it still stands ──▶ mounted
//!                                        └─ another mark has replaced it ──▶ refused
//! ```
//!
//! Of two claims at the same time the later one stays. A host that has mounted the disks replaces a
//! claim with its own mark. If it finds that another host has *mounted* them, because it stalled
//! for more than 20 seconds itself, it stops at once.
//!
//! *Limits.* Marks are no fence: a request that a stalled host sent before may still reach a disk.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_array::Id;
use weft_disk::Disk;
use weft_rt::{Nanos, Rt, SECOND};

use crate::error::Result;
use crate::format::mount_mark::{Host, Mark, State};
use crate::state::mounted::{Fs, FsState};

/// Time between two changes.
const BEAT: Nanos = 2 * SECOND;
/// Time between two looks whether a mount is done.
const LOOK: Nanos = SECOND / 10;
/// How long a claim has to stand: longer than the time between two changes.
const CLAIM: Nanos = 6 * SECOND;
/// How long a mark that is not alive has to stand still.
const STILL: Nanos = 20 * SECOND;

async fn read_all(disks: &[Rc<dyn Disk>], fs_id: Id) -> Vec<Option<Mark>> {
    join_all(disks.iter().map(|disk| Mark::read(&**disk, fs_id))).await
}

/// Claims disks for this host and mount, before anything else is written to them.
///
/// # Errors
/// If another one has mounted them.
pub(crate) async fn claim(
    rt: &Rt,
    disks: &[Rc<dyn Disk>],
    (fs_id, host, nonce): (Id, Host, u64),
) -> Result<()> {
    let before = read_all(disks, fs_id).await;
    let is_taken = |mark: &Option<Mark>| mark.is_some_and(|mark| mark.state != State::Ended);
    let until = rt.now() + STILL;
    while before.iter().any(is_taken) && rt.now() < until {
        rt.sleep(SECOND).await;
        let now = read_all(disks, fs_id).await;
        let changed = now.iter().zip(&before).find(|(now, before)| now.is_some() && now != before);
        match changed {
            // It was unmounted. Other hosts that wait for it write claims, too.
            Some((Some(mark), _)) if mark.state == State::Ended => break,
            Some((Some(mark), _)) => return Err(mark.refusal()),
            _ => {}
        }
    }
    let claim = Mark { state: State::Claimed, nonce, beat: 0, host };
    claim.write(disks, fs_id).await;
    rt.sleep(CLAIM).await;
    let others = read_all(disks, fs_id).await.into_iter().flatten();
    match others.filter(|mark| mark.nonce != nonce).find(|mark| mark.state != State::Ended) {
        Some(mark) => Err(mark.refusal()),
        None => {
            Mark { state: State::Mounted, ..claim }.write(disks, fs_id).await;
            Ok(())
        }
    }
}

/// Keeps the marks of a mount that has claimed the disks changing until it is `done`, which may
/// take long: a recovery reads and writes much.
///
/// # Errors
/// If another host has mounted one of them meanwhile.
pub(crate) async fn keep_claimed(
    rt: &Rt,
    disks: &[Rc<dyn Disk>],
    (fs_id, host, nonce): (Id, Host, u64),
    done: &Cell<bool>,
) -> Result<()> {
    let mut mark = Mark { state: State::Mounted, nonce, beat: 0, host };
    loop {
        for _ in 0..BEAT / LOOK {
            rt.sleep(LOOK).await;
            if done.get() {
                return Ok(());
            }
        }
        let found = read_all(disks, fs_id).await.into_iter().flatten();
        let mut others = found.filter(|found| found.nonce != nonce);
        if let Some(other) = others.find(|other| other.state == State::Mounted) {
            return Err(other.refusal());
        }
        mark.beat += 1;
        mark.write(disks, fs_id).await;
    }
}

impl FsState {
    fn marked_disks(&self) -> Vec<(u16, Rc<dyn Disk>)> {
        let members = self.pool().members();
        let works = members.iter().filter(|member| !member.is_lost());
        works.filter_map(|member| Some((member.number, member.present()?.whole.clone()))).collect()
    }

    /// Changes the mark of a disk, unless another host has mounted it.
    async fn beat(&self, disk: &Rc<dyn Disk>, mark: Mark) {
        let fs_id = self.label().fs_id;
        let found = Mark::read(&**disk, fs_id).await;
        let is_other = |found: &Mark| found.state == State::Mounted && found.nonce != mark.nonce;
        match found.filter(is_other) {
            Some(other) => self.meta().fail(&other.refusal().to_string()),
            None if self.has_mark_ended() => {}
            None => mark.write(std::slice::from_ref(disk), fs_id).await,
        }
    }

    /// Ends the marks: other hosts may mount the disks.
    pub(crate) async fn end_mark(&self) {
        self.set_mark_ended();
        if let Some((host, nonce)) = self.marked_as() {
            let mark = Mark { state: State::Ended, nonce, beat: 0, host };
            let disks: Vec<_> = self.marked_disks().into_iter().map(|(_, disk)| disk).collect();
            mark.write(&disks, self.label().fs_id).await;
        }
    }
}

impl Fs {
    /// Keeps the marks changing, each disk's independently: one that takes long to answer must not
    /// delay the marks of the other disks.
    pub(crate) fn keep_marked(&self) {
        let Some((host, nonce)) = self.0.marked_as() else { return };
        let (fs, rt) = (Rc::downgrade(&self.0), self.0.rt().clone());
        let busy: Rc<RefCell<BTreeSet<u16>>> = Rc::default();
        self.0.rt().spawn(async move {
            let mut mark = Mark { state: State::Mounted, nonce, beat: 0, host };
            loop {
                rt.sleep(BEAT).await;
                let alive = |fs: &Rc<FsState>| !fs.has_mark_ended() && !fs.meta().is_failed();
                let Some(fs) = fs.upgrade().filter(alive) else { return };
                mark.beat += 1;
                for (number, disk) in fs.marked_disks() {
                    if !busy.borrow_mut().insert(number) {
                        continue;
                    }
                    let (fs, busy) = (fs.clone(), busy.clone());
                    rt.spawn(async move {
                        fs.beat(&disk, mark).await;
                        busy.borrow_mut().remove(&number);
                    });
                }
            }
        });
    }
}
