//! The metadata takes more room from the disks when nodes other than node 0 fill it.

use crate::common::cluster::*;
use crate::common::*;
use weft_fs::{CreateOptions, Fs, FsError, Kind, ROOT, create};
use weft_rt::SECOND;

/// Slices with the smallest database.
fn small() -> CreateOptions {
    CreateOptions { slice_bytes: Some(4 * MIB), ..options() }
}

/// Bytes of rows that everyone may fill, before the metadata grows.
async fn most(fs: &Fs) -> u64 {
    fs.status().await.expect("known").meta_bytes.1
}

/// Makes files until there is no room, or so many are there. Returns how many it made.
async fn fill(fs: &Fs, node: u16, max: u64) -> u64 {
    for n in 0..max {
        let name = format!("{node} {n:05} {:0200}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        match fs.make(ROOT, name.as_bytes(), new_file(Kind::File)).await {
            Ok(_) => {}
            Err(FsError::NoSpace) => return n,
            Err(error) => panic!("{error}"),
        }
    }
    max
}

#[test]
fn the_metadata_grows_when_only_other_nodes_fill_it() {
    run(|rt| async move {
        let disks = ram(&[32; 4]);
        create(&rt, &disks, &small()).await.expect("created");
        let network = network(&rt, 1);
        let fs = node_0_at(&rt, &disks, &network, (1, mounting())).await;
        fs.serve_nodes(&network.keeper(), &[]);
        let one = joined(&rt, &disks, &network, (1, 7)).await;
        let two = joined(&rt, &disks, &network, (2, 7)).await;
        let (before, said) = (most(&fs).await, one.status().await.expect("known").free_inodes);
        // One of them makes more files than fit in before, and then the other one until no more do.
        let first = fill(&one, 1, 500).await;
        assert_eq!(first, 500, "of {said}");
        let grown = most(&fs).await;
        assert!(grown > 2 * before, "{before} {grown}");
        let made = fill(&two, 2, u64::MAX).await;
        assert!(most(&fs).await > grown, "{made}");
        // Both were told how much there is, and the disks are full of it.
        rt.sleep(5 * SECOND).await;
        for fs in [&fs, &one, &two] {
            let status = fs.status().await.expect("known");
            assert!(status.free_inodes < made / 10, "{} of {made}", status.free_inodes);
            assert_eq!(status.meta_bytes.1, most(&two).await);
        }
        let report = fs.scrub().await.expect("scrubbed");
        assert_eq!((report.damaged_files, report.metadata_damaged), (0, 0), "{report:?}");
        one.unmount().await.expect("unmounted");
        two.unmount().await.expect("unmounted");
        fs.unmount().await.expect("unmounted");
        drop((network, fs));
        let fs = mount(&rt, &disks).await;
        assert_eq!(fs.status().await.expect("known").inodes, 1 + first + made);
        assert_sound(&fs).await;
    });
}
