//! Operations that take far longer than usual.
//!
//! An engine is most fragile between a change and the moment when the change is durable. On a disk
//! with even latency that is about a millisecond. To make it longer, superblock writes of one disk
//! or of all disks may hang, and so may single operations of any kind; some hang until the power is
//! cut. Disks may also complete operations at the same instants, as on one controller.

use weft_rt::{MICROSECOND, MILLISECOND, Nanos, Rng, SECOND};

use crate::format::SUPERBLOCKS;

/// An operation that hangs for good gets its power cut after at most this time.
const PATIENCE: Nanos = 4 * SECOND;

/// Which operations of a disk hang, and for how long.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hangs {
    /// Percentage of superblock writes that hang.
    superblocks_percent: u64,
    /// One operation in this many hangs; 0: none.
    one_in: u64,
    /// The longest hang; `None`: until the power is cut.
    most: Option<Nanos>,
    /// A hanging write has not reached the disk: a crash loses all of it.
    held: bool,
    /// Operations end at multiples of this.
    quantum: Nanos,
}

/// How an operation hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hang {
    /// It takes this much longer.
    For(Nanos),
    /// It never ends; the power is cut after this time.
    UntilCut(Nanos),
}

impl Hangs {
    /// Draws the hangs of `count` disks for one life. `crash`: the life ends with a crash, so
    /// operations may hang for good.
    pub(crate) fn draw(rng: &mut Rng, count: usize, crash: bool) -> Vec<Self> {
        let long = *rng.pick(&[10 * MILLISECOND, 100 * MILLISECOND, 3 * SECOND]);
        let most = (!crash || rng.chance(70)).then_some(long);
        let mut hangs = Self::none(rng, count);
        let one = rng.index(count);
        match rng.below(24) {
            0..=4 => {
                let most = Some(long);
                hangs.iter_mut().for_each(|h| (h.superblocks_percent, h.most) = (100, most));
            }
            5..=7 => (hangs[one].superblocks_percent, hangs[one].most) = (100, most),
            8 => (hangs[one].superblocks_percent, hangs[one].most) = (30, most),
            9 => hangs.iter_mut().for_each(|h| (h.one_in, h.most) = (300, Some(long))),
            10 => (hangs[one].one_in, hangs[one].most) = (300, most),
            _ => {}
        }
        hangs
    }

    /// Draws the hangs of `count` disks for a power cut during a membership change: superblock
    /// writes of all disks, of one, or of the last, which is a new disk.
    pub(crate) fn draw_membership_change(rng: &mut Rng, count: usize) -> Vec<Self> {
        let long = *rng.pick(&[100 * MILLISECOND, 3 * SECOND]);
        let most = rng.chance(50).then_some(long);
        let mut hangs = Self::none(rng, count);
        // Requests that meet the same failure should meet it at the same time.
        let quantum = *rng.pick(&[1, 200 * MICROSECOND, MILLISECOND, 5 * MILLISECOND]);
        hangs.iter_mut().for_each(|h| h.quantum = quantum);
        let which = match rng.below(8) {
            0..=4 => 0..count,
            5 => count - 1..count,
            6 => {
                let one = rng.index(count);
                one..one + 1
            }
            _ => 0..0,
        };
        hangs[which].iter_mut().for_each(|h| (h.superblocks_percent, h.most) = (100, most));
        hangs
    }

    /// Any operation may hang, and one in this many does.
    pub(crate) fn of_one_in(one_in: u64) -> Self {
        Self { one_in, most: Some(SECOND), ..Self::default() }
    }

    /// Every superblock write takes long.
    pub(crate) fn of_superblocks() -> Self {
        Self { superblocks_percent: 100, most: Some(SECOND), quantum: 1, ..Self::default() }
    }

    /// Every superblock write takes long, and if `held` nothing of it reaches the disk before its
    /// end.
    pub(crate) fn of_held_superblocks(held: bool) -> Self {
        Self { held, ..Self::of_superblocks() }
    }

    /// No hangs. All disks complete operations at the same instants.
    fn none(rng: &mut Rng, count: usize) -> Vec<Self> {
        let quantum = *rng.pick(&[1, 1, 1, 50 * MICROSECOND, MILLISECOND]);
        vec![Self { quantum, held: rng.chance(80), ..Self::default() }; count]
    }

    /// Draws whether an operation hangs.
    pub(crate) fn draw_one(&self, offset: u64, is_write: bool, rng: &mut Rng) -> Option<Hang> {
        let superblock = is_write && SUPERBLOCKS.contains(&offset);
        let hangs = superblock && rng.chance(self.superblocks_percent)
            || self.one_in > 0 && rng.below(self.one_in) == 0;
        hangs.then(|| match self.most {
            Some(most) => Hang::For(rng.within(most / 10, most)),
            None => Hang::UntilCut(rng.below(PATIENCE)),
        })
    }

    /// Whether a hanging write has not reached the disk.
    pub(crate) fn holds(&self) -> bool {
        self.held
    }

    /// Rounds the time at which an operation ends.
    pub(crate) fn rounded(&self, at: Nanos) -> Nanos {
        at.next_multiple_of(self.quantum.max(1))
    }
}

#[cfg(test)]
mod tests {
    use weft_disk::{Disk, WriteOpts};
    use weft_rt::Frozen;

    use super::*;
    use crate::clock::sim_rt;
    use crate::disk::{Platter, SimDisk};
    use crate::world::World;

    #[test]
    fn a_superblock_that_hangs_for_good_is_lost_in_the_cut_that_it_brings_and_others_are_not() {
        for seed in 0..50 {
            let rt = sim_rt(seed, 100_000);
            let world = World::new(&rt, seed);
            let platter = Platter::new(0, 1 << 20, 512, world.rng(1));
            let hangs = Hangs { superblocks_percent: 100, held: true, ..Hangs::default() };
            platter.set_hangs(hangs);
            let disk = SimDisk::open(&world, &platter);
            let write = |offset: u64| {
                let (world, disk) = (world.clone(), disk.clone());
                let data = Frozen::copy_from(&[7; 512]);
                let write = async move { disk.write(offset, data, WriteOpts::USER_FUA).await };
                rt.spawn(async move { world.while_on(write).await })
            };
            let (superblock, data) = (write(SUPERBLOCKS.start), write(0));
            let (superblock, data) = rt.block_on(async { (superblock.await, data.await) });
            assert!(superblock.is_none() && !world.is_on() && rt.now() < PATIENCE + SECOND);
            assert!(data.is_none_or(|written| written.is_ok()));
            rt.kill_all();
            platter.power_cut();
            let mut found = [0; 512];
            platter.peek(SUPERBLOCKS.start, &mut found);
            assert_eq!(found, [0; 512], "seed {seed}");
        }
    }
}
