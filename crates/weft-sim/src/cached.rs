//! A cache between the clients and the array, in some lives.

use std::rc::Rc;

use weft_cache::{CachedVolume, Choice, PAGE_BYTES};
use weft_disk::Volume;
use weft_rt::{Rng, Rt};

/// Most blocks of the cache: few, so that it evicts.
const BLOCKS_MAX: u64 = 64;

/// Most times that it is changed in one life.
const CHANGES_MAX: u64 = 6;

/// `volume`, or a cache above it that is switched on, off and changed now and then.
pub(crate) fn perhaps(rt: &Rt, mut rng: Rng, volume: Rc<dyn Volume>) -> Rc<dyn Volume> {
    if rng.chance(50) {
        return volume;
    }
    let cached = Rc::new(CachedVolume::new(volume));
    switch(&mut rng, &cached);
    let (rt2, changed) = (rt.clone(), cached.clone());
    drop(rt.spawn(async move {
        for _ in 0..rng.below(CHANGES_MAX) {
            rt2.sleep(rng.below(200_000_000)).await;
            switch(&mut rng, &changed);
        }
    }));
    cached
}

fn switch(rng: &mut Rng, cached: &CachedVolume) {
    if rng.chance(20) {
        return cached.switch_off();
    }
    let policies: Vec<Choice> = Choice::all().collect();
    let bytes = rng.within(1, BLOCKS_MAX) * 2 * PAGE_BYTES;
    // An unchanged policy keeps the cached blocks.
    let known = cached.usage().map(|usage| usage.policy).filter(|_| rng.chance(50));
    let policy = known.unwrap_or_else(|| *rng.pick(&policies));
    cached.switch_on(policy, bytes).expect("room for a block");
}
