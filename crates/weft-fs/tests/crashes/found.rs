//! What is found after a crash, compared with what may be.

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_disk::Disk;
use weft_fs::{Fs, MountOptions, ROOT, SetAttr};
use weft_rt::Rt;

use super::client::Allowed;
use super::moments::{Moment, SIZE};
use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::*;

const SECTOR: usize = 512;

/// Mounts what a crash left, perhaps without a disk, and checks it.
pub(crate) async fn check(
    rt: &Rt,
    disks: &[Rc<TestDisk>],
    allowed: &Allowed,
    lost: Option<usize>,
    what: &str,
) {
    // It is the step, mostly.
    let seed = what.bytes().map(u64::from).sum();
    let there: Vec<Rc<dyn Disk>> = all(disks)
        .into_iter()
        .enumerate()
        .filter(|(n, _)| lost != Some(*n))
        .map(|(_, disk)| disk)
        .collect();
    let options = MountOptions {
        degraded: lost.is_some(),
        stale: lost.is_some(),
        nonce: 77,
        ..mounting_by(seed)
    };
    let fs = Fs::mount(rt, &there, options).await;
    let fs = fs.unwrap_or_else(|error| panic!("{what}: {error}"));
    let report = fs.check(true).await.expect("checked");
    assert_eq!(report.findings, [], "{what}");
    // All copies of all pages were compared.
    assert_eq!(fs.status().await.expect("known").meta_pages.wrong, 0, "{what}");
    let entries = fs.read_folder(ROOT, 2, 100).await.expect("listed");
    let names: BTreeMap<String, u64> = entries
        .into_iter()
        .map(|entry| (String::from_utf8(entry.name).expect("a name"), entry.ino))
        .collect();
    assert!(allowed.names.contains(&names), "{what}: {names:?}");
    for (name, ino) in names {
        let found = read_all(&fs, ino).await;
        if let Some(modified) = allowed.modified.get(&ino) {
            let found = fs.attr(ino).await.expect("there").modified;
            assert!(found >= *modified, "{what}: {name} was modified at {found:?}");
        }
        let Some(contents) = allowed.contents.get(&ino) else { continue };
        // A file that was made since the sync may be there without its contents.
        let sizes: Vec<usize> = contents.iter().map(Vec::len).collect();
        let may = may_have_size(found.len(), &sizes);
        assert!(may, "{what}: {name} has {} bytes of {sizes:?}", found.len());
        for (n, sector) in found.chunks(SECTOR).enumerate() {
            let at = n * SECTOR;
            let version = |bytes: &Vec<u8>| {
                let mut part = bytes.get(at..).unwrap_or_default().to_vec();
                part.resize(part.len().max(sector.len()), 0);
                part.truncate(sector.len());
                part
            };
            let mut versions = contents.iter().map(version);
            let fits = versions.any(|version| version == sector);
            assert!(fits, "{what}: sector {n} of {name}");
        }
        // What a crash left behind the end does not come to light.
        let longer = SetAttr { size: Some(found.len() as u64 + 5000), ..SetAttr::default() };
        fs.set_attr(ino, longer).await.expect("room");
        let longer = read_all(&fs, ino).await;
        assert!(longer[..found.len()] == found, "{what}: {name} grew");
        assert!(longer[found.len()..].iter().all(|byte| *byte == 0), "{what}: behind {name}");
    }
    if lost.is_some() {
        let report = fs.rebuild().await.expect("rebuilt");
        assert!(report.damaged.is_empty(), "{what}: {report:?}");
        let again = fs.check(true).await.expect("checked");
        assert_eq!(again.findings, [], "{what}, rebuilt");
    }
}

/// Whether a file may have this size after a crash, if it had these since it was synced. It may
/// have grown in part, up to the end of a block.
pub(crate) fn may_have_size(found: usize, sizes: &[usize]) -> bool {
    let is_between =
        sizes.iter().any(|size| *size < found) && sizes.iter().any(|size| found < *size);
    sizes.contains(&found) || is_between && found.is_multiple_of(BLOCK as usize)
}

pub(crate) fn crash(moment: &Moment, left: Leave, lost: Option<usize>, what: String) {
    crash_on(moment, left, lost, what, |_| {});
}

pub(crate) fn crash_on(
    moment: &Moment,
    left: Leave,
    lost: Option<usize>,
    what: String,
    prepare: fn(&[Rc<TestDisk>]),
) {
    let media: Vec<Medium> = left_of_all(left, &moment.media);
    let allowed = moment.allowed.clone();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &media);
        prepare(&disks);
        check(&rt, &disks, &allowed, lost, &what).await;
    });
}
