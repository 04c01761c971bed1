//! Disks that let requests of a node wait: node 0 waits for them at the same time.
//!
//! A disk whose server ends, or the way to it, is waited for before it counts as gone. That is done
//! below this crate, and by each node for itself. A node that gives its path up asks node 0 whether
//! the disk works ([`crate::disks::relayed`]). If node 0 began to wait only then, requests would
//! wait twice as long. So a node says at once that it waits, and node 0 asks the disk for
//! something: if that waits, too, it is gone for both of them at about the same time.

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_disk::Class;
use weft_rt::{Buf, Nanos, SECOND};
use weft_wire::Question;

use crate::format::block::BLOCK;
use crate::state::mounted::{Fs, FsState};

/// How often a node looks whether its requests wait. If none has ended between two looks, they do.
const LOOK_EVERY: Nanos = SECOND;

impl FsState {
    /// The disks with requests in flight of which none has ended since the last look, and how many
    /// have ended by now.
    fn waiting_disks(&self, before: &mut BTreeMap<u16, u64>) -> Vec<u16> {
        let mut now = BTreeMap::new();
        for member in self.pool().members() {
            let present = member.present().filter(|of| !member.is_lost() && !of.is_relayed.get());
            let path = present.and_then(|present| present.path.as_ref());
            now.extend(path.and_then(|path| path.progress()).map(|ended| (member.number, ended)));
        }
        let waits =
            |(disk, ended): (&u16, &u64)| (before.get(disk) == Some(ended)).then_some(*disk);
        let waiting = now.iter().filter_map(waits).collect();
        *before = now;
        waiting
    }

    /// Of node 0: requests of another node to a disk wait.
    pub(crate) fn look_at_waiting_disk(self: &Rc<Self>, disk: u16) {
        if !self.path_desk().looking.borrow_mut().insert(disk) {
            return;
        }
        let fs = self.clone();
        self.rt().launch(Box::pin(async move {
            if let Some(member) = fs.pool().member(disk)
                && let Some(present) = member.present().filter(|_| !member.is_lost())
            {
                let (read, _) = present.whole.read(0, Buf::new(BLOCK), Class::Urgent).await;
                if read.is_err() && !fs.pool().diagnose(&member).await {
                    // Other nodes hear of it with this.
                    let _ = fs.commit().await;
                }
            }
            fs.path_desk().looking.borrow_mut().remove(&disk);
        }));
    }
}

impl Fs {
    /// From now on this node, which is not node 0, tells its keeper of disks that let its requests
    /// wait.
    pub(crate) fn tell_of_waiting_disks(&self) {
        let Some(link) = self.0.meta().link() else { return };
        let (weak, rt) = (Rc::downgrade(&self.0), self.0.rt().clone());
        self.0.rt().launch(Box::pin(async move {
            let mut before = BTreeMap::new();
            loop {
                rt.sleep(LOOK_EVERY).await;
                let Some(fs) = weak.upgrade().filter(|fs| !fs.is_stopped()) else { return };
                let waiting = fs.waiting_disks(&mut before);
                drop(fs);
                for disk in waiting {
                    if link.answer(Question::DiskWaits { disk }).await.is_err() {
                        return;
                    }
                }
            }
        }));
    }
}
