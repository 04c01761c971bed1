//! Files on some disks, and these disks before every step of what is done to them.

use std::cell::RefCell;
use std::rc::Rc;

use weft_disk::Disk;
use weft_fs::{Fs, Label};
use weft_random::Rng;
use weft_rt::Rt;

use super::disk::{Leave, Medium, Power, TestDisk, holding};
pub use super::test_disks::SIZE;
use super::*;

/// Files, which are called after their redundancy.
pub const FILES: [&str; 4] = ["auto", "none", "raid1", "raid6"];

pub async fn fill(fs: &Fs) {
    for (n, name) in FILES.iter().enumerate() {
        let ino = make_as(fs, name, name).await;
        write(fs, ino, 0, &pattern(300_000, n as u64)).await;
    }
    fs.sync().await.expect("synced");
}

pub async fn assert_filled(fs: &Fs, what: &str) {
    for (n, name) in FILES.iter().enumerate() {
        let ino = find(fs, name).await;
        assert!(read_all(fs, ino).await == pattern(300_000, n as u64), "{what}: {name}");
    }
    let report = fs.check(true).await.expect("checked");
    assert_eq!(report.findings, [], "{what}");
}

pub async fn numbers(fs: &Fs) -> Vec<u16> {
    fs.status().await.expect("known").disks.iter().map(|disk| disk.number).collect()
}

/// The disks before every step that changes one of them while `act` runs.
pub fn moments<F: Future<Output = ()> + 'static>(
    count: usize,
    act: impl FnOnce(Fs, Vec<Rc<TestDisk>>) -> F + 'static,
) -> Vec<Vec<Medium>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let result = seen.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disks = holding(&rt, &power, SIZE, &vec![Medium::new(512); 6]);
        let fs = made(&rt, &all(&disks[..count])).await;
        fill(&fs).await;
        let watched = disks.clone();
        power.watch(move || {
            let media: Vec<Medium> =
                watched.iter().map(|disk| disk.medium.borrow().clone()).collect();
            seen.borrow_mut().push(media);
        });
        act(fs, disks).await;
        power.watch(|| {});
    });
    result.take()
}

pub fn leave(n: usize) -> Leave {
    [Leave::Nothing, Leave::All, Leave::Completed, Leave::Cached, Leave::Some(n as u64)][n % 5]
}

/// What a crash leaves; some of what was cached in all but four of `of` cases.
pub fn drawn_leave(rng: &mut Rng, of: u64) -> Leave {
    match rng.below(of) {
        0 => Leave::Nothing,
        1 => Leave::All,
        2 => Leave::Completed,
        3 => Leave::Cached,
        _ => Leave::Some(rng.next_u64()),
    }
}

/// Mounts what a crash left, with every disk that has a label of the file system.
pub async fn mounted(rt: &Rt, disks: &[Rc<TestDisk>], what: &str) -> Fs {
    let mut there: Vec<Rc<dyn Disk>> = Vec::new();
    for disk in all(disks) {
        if Label::read(&*disk).await.expect("readable").is_some() {
            there.push(disk);
        }
    }
    let fs = Fs::mount(rt, &there, mounting()).await;
    fs.unwrap_or_else(|error| panic!("{what}: {error}"))
}
