//! Disks that other nodes have lost: this node loses them as well, as soon as it is told
//! ([`crate::mount::learned_disks`]).

use std::rc::Rc;

use crate::state::mounted::Fs;

impl Fs {
    /// Loses disks that other nodes have lost. They may not be recorded durably yet, so this node
    /// records them with what it writes next.
    pub(crate) fn lose_when_told(&self) {
        let weak = Rc::downgrade(&self.0);
        self.0.meta().on_lost_disk(Rc::new(move |number| {
            let Some(fs) = weak.upgrade() else { return };
            if let Some(member) = fs.pool().member(number) {
                fs.pool().lose(&member);
            }
        }));
    }
}
