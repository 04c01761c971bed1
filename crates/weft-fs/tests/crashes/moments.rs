//! The disks, and what may be found on them, before every step of a story that changes a disk.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use weft_fs::{Fs, MountOptions, create};
use weft_rt::Rt;

use super::client::{Allowed, Client};
use super::stories::story;
use crate::common::disk::{Medium, Power, TestDisk, holding};
use crate::common::*;

pub(crate) const SIZE: u64 = 20 << 20;
pub(crate) const DISKS: usize = 4;

pub(crate) struct Moment {
    pub(crate) media: Vec<Medium>,
    pub(crate) allowed: Allowed,
}

/// Sectors of data blocks of a disk that cannot be written any more: some that files have, and some
/// that they come to.
pub(crate) fn dead(disk: usize) -> BTreeSet<u64> {
    let blocks = [1, 4, 9, 10, 30, 33].map(|block| block + disk as u64);
    blocks.into_iter().map(sector_of).collect()
}

/// One of the sectors of a data block.
pub(crate) fn sector_of(block: u64) -> u64 {
    let data_at = (64 << 10) + (8 << 20);
    (data_at + block * BLOCK) / 512 + block % 8
}

pub(crate) fn kill_blocks(disks: &[Rc<TestDisk>]) {
    for (n, disk) in disks.iter().enumerate() {
        *disk.faults.dead_writes.borrow_mut() = dead(n);
    }
}

/// Blocks to which the last block of a short file would go.
pub(crate) fn kill_first_blocks(disks: &[Rc<TestDisk>]) {
    for disk in disks {
        *disk.faults.dead_writes.borrow_mut() = [sector_of(1)].into();
    }
}

/// The disks and what may be found, before every step that changes a disk.
pub(crate) fn moments(seed: u64) -> Vec<Moment> {
    moments_on(seed, |_| {})
}

/// Crashes at moments of a story in which something happens to the disks after the first files
/// exist.
pub(crate) fn moments_on(seed: u64, prepare: fn(&[Rc<TestDisk>])) -> Vec<Moment> {
    let cache_bytes = mounting().cache_bytes;
    moments_of(seed, cache_bytes, prepare, async |client, middle| story(client, middle).await)
}

/// Crashes at moments of any story.
pub(crate) fn moments_of(
    seed: u64,
    cache_bytes: u64,
    prepare: fn(&[Rc<TestDisk>]),
    story: impl AsyncFnOnce(&Client, &dyn Fn()) + 'static,
) -> Vec<Moment> {
    let created = async |rt: &Rt| {
        let disks = holding(rt, &Power::new(), SIZE, &vec![Medium::new(512); DISKS]);
        create(rt, &all(&disks), &options()).await.expect("created");
        disks.iter().map(|disk| disk.medium.borrow().clone()).collect()
    };
    moments_from(created, seed, cache_bytes, prepare, story)
}

/// Crashes at moments of a story that starts with these disks.
pub(crate) fn moments_from(
    before: impl AsyncFnOnce(&Rt) -> Vec<Medium> + 'static,
    seed: u64,
    cache_bytes: u64,
    prepare: fn(&[Rc<TestDisk>]),
    story: impl AsyncFnOnce(&Client, &dyn Fn()) + 'static,
) -> Vec<Moment> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let result = seen.clone();
    run(move |rt| async move {
        let power = Power::new();
        let media = before(&rt).await;
        let disks = holding(&rt, &power, SIZE, &media);
        let mounting = MountOptions { cache_bytes, ..mounting_by(seed) };
        let fs = Fs::mount(&rt, &all(&disks), mounting).await.expect("mounted");
        let client = Client::new(fs);
        let (watched, allowed) = (disks.clone(), client.allowed.clone());
        power.watch(move || {
            let media = watched.iter().map(|disk| disk.medium.borrow().clone()).collect();
            seen.borrow_mut().push(Moment { media, allowed: allowed.borrow().clone() });
        });
        story(&client, &|| prepare(&disks)).await;
        power.watch(|| {});
    });
    result.take()
}
