//! The copies of the metadata: as many as there are to be, and each of them complete.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::disks::{Left, Media, given, open};
use super::history::{Moment, Snapshot};
use crate::common::disk::{Power, TestDisk};
use crate::common::*;
use weft_disk::Disk;
use weft_fs::{Fs, FsError, Label, MetaCopy, MountOptions, ROOT};
use weft_rt::{Rt, SECOND};

/// Within a while there are as many complete copies of the metadata as there are to be.
pub(super) async fn assert_copies(rt: &Rt, fs: &Fs, what: &str) {
    let mut copies = (0, 0);
    // A slice that fails again and again waits for up to ten minutes.
    for _ in 0..400 {
        copies = fs.status().await.expect("known").meta_copies;
        if copies.0 == copies.1 {
            return;
        }
        rt.sleep(2 * SECOND).await;
    }
    panic!("{what}: {copies:?} copies of the metadata");
}

/// A slice has failed, and works again: what was wrong is made right.
pub(super) async fn mend_slices(rt: &Rt, fs: &Fs, what: &str) {
    assert_copies(rt, fs, what).await;
    let mut scrubbed = fs.scrub().await;
    while matches!(scrubbed, Err(FsError::Busy(_) | FsError::GivenWay)) {
        rt.sleep(SECOND).await;
        scrubbed = fs.scrub().await;
    }
    let report = scrubbed.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(report.metadata_damaged, 0, "{what}");
}

/// Each disk with a copy of the metadata has all of it, mounted alone.
pub(super) async fn assert_each_alone(
    rt: &Rt,
    fs: &Fs,
    disks: &BTreeMap<usize, Rc<TestDisk>>,
    what: &str,
) {
    fs.sync().await.expect("synced");
    let list = async |fs: &Fs| {
        let entries = fs.read_folder(ROOT, 2, 1000).await.expect("listed");
        entries.into_iter().map(|entry| (entry.name, entry.ino)).collect::<Vec<_>>()
    };
    let expected = list(fs).await;
    let of_disks = fs.status().await.expect("known").disks;
    let media: Media = disks.iter().map(|(n, disk)| (*n, Left::of(disk))).collect();
    for disk in of_disks.iter().filter(|disk| disk.metadata == MetaCopy::Current && !disk.lost) {
        let number = usize::from(disk.number);
        let Some(left) = media.get(&number) else { continue };
        let alone = open(rt, &Power::new(), &BTreeMap::from([(number, left.clone())]), 0);
        let options = MountOptions { degraded: true, stale: true, nonce: 5, ..mounting() };
        let fs = Fs::mount(rt, &given(&alone), options).await;
        let fs = fs.unwrap_or_else(|error| panic!("{what}: disk {number} alone: {error}"));
        assert_eq!(list(&fs).await, expected, "{what}: disk {number} alone");
    }
}

/// After the last crash: each disk that has a copy of the metadata is mounted without any other.
/// All names are there, and what can be read is right.
pub(super) async fn alone(rt: &Rt, seed: u64, before: Moment) {
    let power = Power::new();
    let Moment { media, history, .. } = before;
    let mut disks = BTreeMap::new();
    for (_, disk) in open(rt, &power, &media, 0) {
        if let Some(label) = Label::read(&*disk).await.expect("readable") {
            disks.insert(usize::from(label.number), disk);
        }
    }
    let fs = Fs::mount(rt, &given(&disks), mounting_by(seed)).await.expect("mounted");
    fs.rebuild().await.expect("rebuilt");
    rt.sleep(60 * SECOND).await;
    let Snapshot { model, inos } = history.found(&fs, "the last one").await;
    let status = fs.status().await.expect("known");
    let has_copy = |disk: &&weft_fs::DiskStatus| disk.metadata == weft_fs::MetaCopy::Current;
    let with_copies: Vec<usize> =
        status.disks.iter().filter(has_copy).map(|disk| usize::from(disk.number)).collect();
    assert_eq!(with_copies.len(), status.meta_copies.1, "{status:?}");
    fs.unmount().await.expect("unmounted");
    for number in with_copies {
        let disk = &disks[&number];
        let (bytes, medium) = (disk.info().size_bytes, disk.medium.borrow().clone());
        let disk = TestDisk::new(rt, &power, number, bytes, 512, medium);
        let options = MountOptions { degraded: true, ..mounting_by(seed) };
        let fs = Fs::mount(rt, &[disk as Rc<dyn Disk>], options).await;
        let fs = fs.unwrap_or_else(|error| panic!("disk {number} alone: {error}"));
        for (id, file) in &model.files {
            let ino = inos[id];
            let size = fs.attr(ino).await.expect("there").size;
            assert_eq!(size, file.bytes.len() as u64, "disk {number} alone: file {id}");
            for (n, block) in file.bytes.chunks(BLOCK as usize).enumerate() {
                match fs.read(ino, n as u64 * BLOCK, block.len()).await {
                    Ok(found) => {
                        assert!(*found == *block, "disk {number} alone: file {id}, block {n}");
                    }
                    Err(FsError::Unreadable { .. }) => {}
                    Err(error) => panic!("disk {number} alone: {error}"),
                }
            }
        }
    }
}
