//! What a cache promises whatever its policy: sizes, memory, counts, and names for what is wrong.

mod world;

use weft_cache::{Base, Block, Cache, CacheError, Choice, Penalty};
use weft_random::Rng;
use world::World;

/// A trace with locality, over the disks of `world`.
fn trace(world: &World, seed: u64, requests: usize, keys: u64) -> Vec<Block> {
    let mut rng = Rng::new(seed);
    let mut draw = || {
        let most = rng.within(1, keys);
        let most = rng.within(1, most);
        world.block(rng.below(most))
    };
    (0..requests).map(|_| draw()).collect()
}

#[test]
fn with_nothing_lost_victim_disk_first_is_its_base() {
    let world = World::new(7);
    let trace = trace(&world, 5, 40_000, 3000);
    for first in Choice::all().filter(|choice| choice.victim_first) {
        let base = match first.base {
            Base::GreedyDual => Base::Lru,
            base => base,
        };
        let mut plain =
            Cache::<()>::new(Choice { base, victim_first: false }, 300, 7).expect("sound");
        let mut weighed = Cache::<()>::new(first, 300, 7).expect("sound");
        for block in &trace {
            let hit = plain.request(*block, &world);
            assert_eq!(weighed.request(*block, &world), hit, "{first}, {block:?}");
        }
        assert_eq!(plain.stats(), weighed.stats(), "{first}");
    }
}

/// The point of it all, on a trace without any memory of its own.
#[test]
fn with_a_disk_lost_fewer_blocks_are_read() {
    let mut world = World::new(7);
    world.lost.insert(2);
    let trace = trace(&world, 6, 60_000, 3000);
    for first in Choice::all().filter(|choice| choice.victim_first) {
        let base = if first.base == Base::GreedyDual { Base::Lru } else { first.base };
        let rgr = |choice| {
            let mut cache = Cache::<()>::new(choice, 300, 7).expect("sound");
            for block in &trace {
                cache.request(*block, &world);
            }
            cache.stats().rgr()
        };
        let (plain, weighed) = (rgr(Choice { base, victim_first: false }), rgr(first));
        assert!(weighed < 0.95 * plain, "{first}: {weighed}, {base:?}: {plain}");
    }
}

#[test]
fn misses_count_what_they_read() {
    let mut world = World::new(5);
    world.lost.insert(0);
    let mut cache = Cache::<()>::new("vdf-lru".parse().expect("known"), 10, 5).expect("sound");
    // Misses: one of the lost disk, two of others. A hit.
    for key in [0, 1, 2, 1] {
        cache.request(world.block(key), &world);
    }
    let stats = cache.take_stats();
    assert_eq!((stats.hits, stats.misses, stats.disk_blocks), (1, 3, 4 + 1 + 1));
    assert!((stats.rgr() - 6.0 / 4.0).abs() < 1e-9);
    assert!((stats.hit_ratio() - 1.0 / 4.0).abs() < 1e-9);
    assert_eq!(cache.stats().requests(), 0);
    assert!(cache.stats().rgr().abs() < 1e-9);
}

#[test]
fn a_block_takes_no_more_than_64_bytes() {
    const BLOCKS: usize = 100_000;
    let world = World::new(8);
    for choice in Choice::all() {
        let mut cache = Cache::<()>::new(choice, BLOCKS, 8).expect("sound");
        let made = cache.memory_bytes();
        assert!(made <= 64 * BLOCKS, "{choice}: {made}");
        for key in 0..3 * BLOCKS as u64 {
            cache.request(world.block(key), &world);
            cache.request(world.block(key / 2), &world);
        }
        assert_eq!(cache.memory_bytes(), made, "{choice}: nothing is allocated on the way");
        assert_eq!(cache.len(), BLOCKS, "{choice}");
    }
}

#[test]
fn memory_is_given_back_and_values_stay_with_their_blocks() {
    let world = World::new(3);
    for choice in Choice::all() {
        let mut cache = Cache::new(choice, 10_000, 3).expect("sound");
        for key in 0..10_000 {
            cache.insert(world.block(key), key, &world);
        }
        let before = cache.memory_bytes();
        let mut evicted = 0;
        cache.resize(100, &world, |_, _| evicted += 1).expect("sound");
        assert_eq!((evicted, cache.len(), cache.capacity()), (9900, 100, 100), "{choice}");
        assert!(cache.memory_bytes() < before / 50, "{choice}: {}", cache.memory_bytes());
        cache.resize(5000, &world, |_, _| panic!("there is more room")).expect("sound");
        let left: Vec<u64> = (0..10_000).filter(|key| cache.peek(*key) == Some(key)).collect();
        assert_eq!(left.len(), 100, "{choice}");
        for key in left {
            assert_eq!(cache.remove(key), Some(key), "{choice}");
            assert_eq!(cache.remove(key), None, "{choice}");
        }
        assert!(cache.is_empty(), "{choice}");
        cache.check();
    }
}

/// Blocks 0, 2, 4, … are lost with disk 0 and cost 7, until they are rebuilt; others cost 1.
struct Rebuilding {
    below: u64,
    asked: std::cell::Cell<u64>,
}

impl Penalty for Rebuilding {
    fn generation(&self) -> u64 {
        3
    }

    fn progress(&self) -> u64 {
        self.below
    }

    fn of(&self, block: Block) -> u32 {
        self.asked.set(self.asked.get() + 1);
        if block.class == 0 && block.key >= self.below { 7 } else { 1 }
    }
}

/// Lost blocks are rebuilt from the lowest address on, and were requested in descending order, so
/// that the rebuilt ones are behind those that are still lost.
#[test]
fn blocks_that_are_rebuilt_no_longer_stay_for_what_they_cost_before() {
    const KEYS: u64 = 800;
    let block = |key| Block { key, class: u16::from(key % 2 == 1) };
    for choice in Choice::all().filter(|choice| choice.victim_first) {
        let mut penalty = Rebuilding { below: 0, asked: 0.into() };
        let mut cache = Cache::<()>::new(choice, 400, 2).expect("sound");
        for key in (0..KEYS).rev() {
            cache.request(block(key), &penalty);
            cache.request(block(key), &penalty);
        }
        let cached = |cache: &Cache<()>, rebuilt: bool| {
            let lost = (0..KEYS).filter(|key| key % 2 == 0 && (*key < KEYS / 2) == rebuilt);
            lost.filter(|key| cache.peek(*key).is_some()).count()
        };
        let before = [cached(&cache, false), cached(&cache, true)];
        assert!(before[0] > 20 && before[1] > 100, "{choice}: {before:?}");
        penalty.below = KEYS / 2;
        penalty.asked.set(0);
        let requests = 350;
        for key in 0..requests {
            // More often than the others: LFU and S3-FIFO would give up the new ones instead.
            for _ in 0..3 {
                cache.request(block(KEYS + 1 + 2 * key), &penalty);
            }
        }
        cache.check();
        if choice.base == Base::GreedyDual {
            continue;
        }
        let after = [cached(&cache, false), cached(&cache, true)];
        let left = |n: usize| after[n] as f64 / before[n] as f64;
        assert!(left(1) < left(0) - 0.2, "{choice}: {before:?}, {after:?}");
        let asked = penalty.asked.get();
        assert!(asked < 20 * requests, "{choice}: asked {asked} times in {requests} requests");
    }
}

/// The penalty of a block is asked for when it comes to an end, and when the generation changes.
#[test]
fn penalties_are_not_polled() {
    struct Counting(std::cell::Cell<u64>);
    impl Penalty for Counting {
        fn generation(&self) -> u64 {
            7
        }
        fn of(&self, block: Block) -> u32 {
            self.0.set(self.0.get() + 1);
            1 + u32::from(block.class == 1)
        }
    }
    let penalty = Counting(std::cell::Cell::new(0));
    let mut cache = Cache::<()>::new("vdf-lru".parse().expect("known"), 1000, 60).expect("sound");
    for key in 0..100_000_u64 {
        let class = u16::try_from(key % 60).expect("a class");
        cache.insert(Block { key, class }, (), &penalty);
        cache.get(Block { key, class }, &penalty);
    }
    let asked = penalty.0.get();
    assert!(asked <= 100_000, "{asked} for 99,000 evictions of 60 classes");
}

#[test]
fn what_is_wrong_is_named() {
    let lru = "lru".parse().expect("known");
    let new = |capacity, classes| Cache::<()>::new(lru, capacity, classes).map(|_| ());
    assert_eq!(new(0, 1), Err(CacheError::NoRoom));
    assert!(matches!(new(1 << 40, 1), Err(CacheError::TooLarge { .. })));
    assert!(matches!(new(usize::MAX, 1), Err(CacheError::TooLarge { .. })));
    assert!(matches!(new(1, 0), Err(CacheError::Classes { classes: 0, .. })));
    assert!(matches!(new(1, 5000), Err(CacheError::Classes { classes: 5000, .. })));
    let unknown = "vdf-fifo".parse::<Choice>().expect_err("unknown");
    assert!(unknown.to_string().contains("known are: lru, lfu, clock"), "{unknown}");
    let mut cache = Cache::<()>::new(lru, 5, 1).expect("sound");
    let world = World::new(1);
    assert_eq!(cache.resize(0, &world, |_, ()| ()), Err(CacheError::NoRoom));
    assert_eq!(cache.capacity(), 5);
}

#[test]
fn names_are_read_as_they_are_written() {
    for choice in Choice::all() {
        assert_eq!(choice.to_string().parse(), Ok(choice));
    }
}
