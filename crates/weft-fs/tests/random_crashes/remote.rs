//! The same with the keeper of the metadata behind a network: connections end in the middle of
//! messages, bytes are swallowed, and the keeper dies while the node lives on. Then power fails for
//! both. Disks do not fail here.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::disks::{Left, Media, given, open};
use super::history::{History, Snapshot};
use crate::common::cluster::node_0_at;
use crate::common::disk::{Medium, Power};
use crate::common::model::Pair;
use crate::common::moments::drawn_leave;
use crate::common::network::{Canary, Network};
use crate::common::*;
use weft_fs::{META_CACHE_BYTES, MountOptions, create};
use weft_random::Rng;
use weft_rt::{MILLISECOND, Rt};
use weft_testkit::for_seeds;

const LIVES: u64 = 4;
const SIZE: u64 = 24 << 20;
const DISKS: usize = 4;

/// What a crash leaves, and what may be found.
type Moment = (Media, History);

/// How often connections were cut, and keepers started.
type Troubles = Rc<Cell<(u64, u64)>>;

async fn life(
    rt: &Rt,
    (seed, number): (u64, u64),
    before: Option<Moment>,
    (canary, troubles): (Canary, Troubles),
) -> Moment {
    let (power, mut rng) = (Power::new(), Rng::new(seed));
    let blank = || Left {
        bytes: SIZE,
        medium: Medium::new(512),
        unreadable: Default::default(),
        dead_reads: Default::default(),
        dead_writes: Default::default(),
    };
    let (media, history) = match before {
        Some((media, history)) => (media, Some(history)),
        None => ((0..DISKS).map(|place| (place, blank())).collect(), None),
    };
    let disks = open(rt, &power, &media, 0);
    if history.is_none() {
        create(rt, &given(&disks), &options()).await.expect("created");
    }
    let cache = *rng.pick(&[256 << 10, META_CACHE_BYTES]);
    let network = Network::new(rt, options().id, cache, rng.next_u64(), canary);
    let mounting = MountOptions { nonce: seed, ..mounting_by(seed) };
    let fs = node_0_at(rt, &given(&disks), &network, (number + 1, mounting)).await;
    drop(rt.spawn(network.clone().storm((50 + rng.below(500)) * MILLISECOND)));
    let what = format!("life {number}");
    let mut pair = Pair::new(fs, seed, &["auto", "raid1", "raid5"]);
    if let Some(history) = history {
        assert_eq!(pair.fs.check(true).await.expect("checked").findings, [], "{what}");
        let Snapshot { model, inos } = history.found(&pair.fs, &what).await;
        (pair.model, pair.inos) = (model, inos);
        pair.compare().await;
    }
    let (seen, left) = (Rc::new(RefCell::new(None)), Cell::new(rng.below(600)));
    let all = {
        let disks = disks.clone();
        move || disks.iter().map(|(n, disk)| (*n, Left::of(disk))).collect::<Media>()
    };
    let (cut, at_cut) = (seen.clone(), all.clone());
    power.watch(move || {
        left.set(left.get().wrapping_sub(1));
        if left.get() == 0 {
            *cut.borrow_mut() = Some(at_cut());
        }
    });
    let mut history = History::new(&pair);
    for _ in 0..60 {
        if !pair.step_or_wait(rt).await {
            continue;
        }
        history.note(&pair);
        if seen.borrow().is_some() {
            break;
        }
        if let Some(durable) = pair.durable.take() {
            history.durable(durable);
        }
    }
    power.watch(|| {});
    let (cuts, keepers) = troubles.get();
    troubles.set((cuts + network.cuts.get(), keepers + network.keepers.get()));
    let media = seen.take().unwrap_or_else(all);
    (media, history)
}

/// Lives of a file system; returns the trouble that they had.
fn lives(seed: u64, canary: Canary) -> (u64, u64) {
    let (mut rng, mut before) = (Rng::new(seed), None);
    let troubles = Troubles::default();
    for number in 0..LIVES {
        let (result, given, of) = (Rc::new(RefCell::new(None)), before.take(), troubles.clone());
        let (back, life_seed) = (result.clone(), rng.next_u64());
        run(move |rt| async move {
            let lived = life(&rt, (life_seed, number), given, (canary, of)).await;
            *back.borrow_mut() = Some(lived);
        });
        let (mut media, history): Moment = result.take().expect("it ended");
        let left = drawn_leave(&mut rng, 6);
        for (place, disk) in &mut media {
            disk.medium = left_of(left, *place, &disk.medium);
        }
        before = Some((media, history));
    }
    troubles.get()
}

#[test]
fn a_keeper_behind_a_network_that_dies_loses_nothing_that_was_synced() {
    let counts = Cell::new((0, 0, 0));
    for_seeds(0..12, |rng| {
        let (cuts, keepers) = lives(rng.next_u64(), Canary::None);
        let (seeds, all_cuts, all_keepers) = counts.get();
        counts.set((seeds + 1, all_cuts + cuts, all_keepers + keepers));
    });
    let (seeds, cuts, keepers) = counts.get();
    assert!(seeds < 12 || (cuts > 20 * seeds && keepers > 8 * seeds), "{cuts} {keepers}");
}

#[test]
fn a_network_that_loses_parts_of_batches_is_caught() {
    let is_found =
        |seed: &u64| catch_unwind(AssertUnwindSafe(|| lives(*seed, Canary::PartLost))).is_err();
    let seed = (0..20).find(is_found).expect("it was not found out");
    eprintln!("found out by seed {seed}");
}
