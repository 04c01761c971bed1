//! Every policy, plain and with victim disk first, evicts the same blocks in the same order as a
//! slow and obvious model, whatever happens in between: disks are lost, rebuilt and back, blocks
//! are invalidated, the cache grows and shrinks.

mod model;
mod world;

use model::Model;
use weft_cache::{Cache, Choice};
use weft_random::Rng;
use world::World;

const STEPS: u64 = 4000;

/// Keys in which some are much more frequent than others, with scans in between.
fn key(rng: &mut Rng, step: u64, keys: u64) -> u64 {
    match rng.below(10) {
        0..6 => {
            let most = rng.within(1, keys);
            rng.below(most)
        }
        6..8 => rng.below(keys / 8 + 1),
        _ => step % keys,
    }
}

fn change(world: &mut World, rng: &mut Rng, keys: u64) {
    world.generation += 1;
    match rng.below(4) {
        0 => world.lost.clear(),
        1 => {
            world.rebuilt = rng.below(keys);
            world.rebuilt_cost = u32::from(rng.chance(50));
        }
        _ => {
            world.lost.insert(u16::try_from(rng.below(world.classes.into())).expect("a class"));
            world.rebuilt = 0;
        }
    }
}

fn compare(choice: Choice, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut world = World::new(u16::try_from(rng.within(1, 9)).expect("few"));
    let mut capacity = rng.index(60) + 1;
    let keys = rng.within(2, 200);
    let mut cache = Cache::new(choice, capacity, world.classes.into()).expect("sound");
    let mut model = Model::new(choice, capacity);
    for step in 0..STEPS {
        let at = format!("{choice}, seed {seed}, step {step}");
        match rng.below(200) {
            0..4 => change(&mut world, &mut rng, keys),
            4..12 => {
                let key = key(&mut rng, step, keys);
                assert_eq!(cache.remove(key), model.remove(key).then_some(key), "{at}");
            }
            12 => {
                capacity = rng.index(60) + 1;
                let mut evicted = Vec::new();
                let resized = cache.resize(capacity, &world, |key, value| {
                    assert_eq!(key, value, "{at}");
                    evicted.push(key);
                });
                resized.expect("sound");
                assert_eq!(evicted, model.resize(capacity, &world), "{at}");
            }
            _ => {
                let block = world.block(key(&mut rng, step, keys));
                let hit = cache.get(block, &world).copied();
                let evicted = match hit {
                    Some(_) => None,
                    None => cache.insert(block, block.key, &world),
                };
                let (model_hit, model_evicted) = model.request(block, &world);
                assert_eq!(hit, model_hit.then_some(block.key), "{at}");
                assert_eq!(evicted, model_evicted.map(|key| (key, key)), "{at}");
            }
        }
        assert_eq!(cache.len(), model.len(), "{at}");
        if step % 16 == 0 {
            cache.check();
        }
    }
}

#[test]
fn every_policy_evicts_what_its_model_does() {
    for choice in Choice::all() {
        for seed in 0..60 {
            compare(choice, seed);
        }
    }
}
