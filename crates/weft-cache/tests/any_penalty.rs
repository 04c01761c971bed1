//! Penalties that change at any moment, as in a rebuild, and any order of calls: a cache keeps its
//! bounds and never lacks a block to evict.

use std::cell::RefCell;

use weft_cache::{Block, Cache, Choice, Penalty};
use weft_random::Rng;

struct Whims(RefCell<Rng>, u64, u64);

impl Penalty for Whims {
    fn generation(&self) -> u64 {
        self.1
    }

    fn progress(&self) -> u64 {
        self.2
    }

    fn of(&self, _: Block) -> u32 {
        u32::try_from(self.0.borrow_mut().below(4)).expect("small")
    }
}

#[test]
fn whatever_the_penalties_there_is_a_block_to_evict() {
    for (choice, seed) in Choice::all().flat_map(|choice| (0..40).map(move |seed| (choice, seed))) {
        let mut rng = Rng::new(seed);
        let mut whims = Whims(RefCell::new(Rng::new(seed + 1000)), 0, 0);
        let classes = rng.index(8) + 1;
        let mut cache = Cache::new(choice, rng.index(30) + 1, classes).expect("sound");
        for _ in 0..3000 {
            let key = rng.below(100);
            match rng.below(100) {
                0 => whims.1 += 1,
                1 => whims.2 += 1,
                2..6 => drop(cache.remove(key)),
                6 => cache.resize(rng.index(30) + 1, &whims, |_, _| ()).expect("sound"),
                7..40 => drop(cache.get(Block { key, class: 0 }, &whims).map(|value| *value)),
                _ => {
                    let class =
                        u16::try_from(key).expect("small") % u16::try_from(classes).unwrap();
                    cache.insert(Block { key, class }, key, &whims);
                }
            }
            cache.check();
        }
    }
}
