//! What disks hold that were used for something else: members of another array of the same kind,
//! and file systems, made where a member's own data is.

use std::cell::RefCell;
use std::rc::Rc;

use weft_rt::Rng;

use crate::disk::Platter;

/// The id of the other array.
pub(crate) const FOREIGN_ID: [u8; 16] = *b"another array...";

/// Disks of another array, by number: none if the run has no such array.
#[derive(Debug, Clone, Default)]
pub(crate) struct Foreign(Rc<RefCell<Vec<Platter>>>);

impl Foreign {
    pub(crate) fn set(&self, disks: Vec<Platter>) {
        *self.0.borrow_mut() = disks;
    }

    /// The disk holds something else from now on.
    pub(crate) fn take_over(&self, platter: &Platter, rng: &mut Rng) {
        let other = self.0.borrow().get(platter.number()).cloned();
        match other.filter(|_| rng.chance(60)) {
            Some(other) => platter.set_back(&other),
            None => make_file_system(platter, rng),
        }
    }
}

/// As `mkfs.ext4`: its superblock goes into the label, and the rest here and there.
fn make_file_system(platter: &Platter, rng: &mut Rng) {
    let mut block = [0; 4096];
    block[1024 + 56..1024 + 58].copy_from_slice(b"\x53\xef");
    platter.poke(0, &block);
    for _ in 0..rng.within(4, 40) {
        let at = rng.below(platter.size_bytes() / 4096) * 4096;
        block.fill(rng.next_u64().to_le_bytes()[0]);
        if at > 0 {
            platter.poke(at, &block);
        }
    }
}
