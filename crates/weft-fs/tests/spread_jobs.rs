//! Nodes carry out parts of the jobs of node 0: rebuilds, emptying a disk, scrubs. A node may die
//! in the middle of its part, and node 0 may cancel the job.

use std::rc::Rc;

use crate::common::cluster::*;
use crate::common::disk::TestDisk;
use crate::common::network::Network;
use crate::common::test_disks::blank;
use crate::common::*;
use weft_fs::{Fs, Ino, Job, JobReport, RebuildReport};
use weft_rt::{MILLISECOND, Rt};

const DISKS: usize = 6;
const FILES: u64 = 40;

/// Node 0 and two others, and files of different redundancies.
struct Cluster {
    disks: Vec<Rc<TestDisk>>,
    network: Rc<Network>,
    fs: Fs,
    of_node: Rt,
    one: Fs,
    two: Fs,
    files: Vec<(Ino, Vec<u8>)>,
}

impl Cluster {
    async fn new(rt: &Rt) -> Self {
        let disks = blank(rt, DISKS);
        let (network, fs) = node_0(rt, &all(&disks)).await;
        let of_node = rt.domain(|| {});
        let one = joined(&of_node, &all(&disks), &network, (1, 7)).await;
        let two = joined(rt, &all(&disks), &network, (2, 8)).await;
        let mut files = Vec::new();
        for n in 0..FILES {
            let redundancy =
                ["raid5", "raid1", "raid6", "raid5"][usize::try_from(n % 4).expect("few")];
            // Each node has some of them open, so that tokens go back and forth.
            let at = [&fs, &one, &two][usize::try_from(n % 3).expect("few")];
            let ino = make_as(at, &format!("file{n}"), redundancy).await;
            let bytes = pattern(200_000, n);
            write(at, ino, 0, &bytes).await;
            files.push((ino, bytes));
        }
        for at in [&fs, &one, &two] {
            at.sync().await.expect("synced");
        }
        Self { disks, network, fs, of_node, one, two, files }
    }

    async fn assert_files(&self, at: &Fs) {
        for (ino, bytes) in &self.files {
            assert!(read_all(at, *ino).await == *bytes, "file {ino}");
        }
    }

    /// All end, and a mount alone finds everything.
    async fn assert_end(self, rt: &Rt, without: &[usize]) {
        self.assert_files(&self.two).await;
        self.assert_files(&self.fs).await;
        self.two.unmount().await.expect("unmounted");
        self.fs.unmount().await.expect("unmounted");
        let mut disks = self.disks;
        for disk in without {
            disks.remove(*disk);
        }
        let fs = mount(rt, &all(&disks)).await;
        for (ino, bytes) in &self.files {
            assert!(read_all(&fs, *ino).await == *bytes, "file {ino}");
        }
        assert_sound(&fs).await;
    }
}

fn moved(ended: weft_fs::Result<JobReport>) -> RebuildReport {
    match ended {
        Ok(JobReport::Moved(report)) => report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nodes_rebuild_parts_of_a_lost_disk() {
    run(|rt| async move {
        let cluster = Cluster::new(&rt).await;
        cluster.fs.fail_disk(1).await.expect("lost");
        let report = cluster.fs.rebuild().await.expect("rebuilt");
        assert_eq!(report.removed_disks, [1], "{report:?}");
        assert!(report.damaged.is_empty() && report.waiting.is_empty(), "{report:?}");
        assert!(report.elsewhere_blocks > 0, "{report:?}");
        cluster.one.unmount().await.expect("unmounted");
        cluster.assert_end(&rt, &[1]).await;
    });
}

#[test]
fn nodes_empty_parts_of_a_disk_that_leaves() {
    run(|rt| async move {
        let cluster = Cluster::new(&rt).await;
        let report = cluster.fs.remove_disk(2).await.expect("removed");
        assert_eq!(report.removed_disks, [2], "{report:?}");
        assert!(report.elsewhere_blocks > 0, "{report:?}");
        cluster.one.unmount().await.expect("unmounted");
        cluster.assert_end(&rt, &[2]).await;
    });
}

#[test]
fn nodes_scrub_parts_and_repair_what_is_wrong_there() {
    run(|rt| async move {
        let cluster = Cluster::new(&rt).await;
        let mut rotten = 0;
        for (ino, _) in &cluster.files {
            let places = cluster.fs.places(*ino).await.expect("known");
            let column = places[0].1.columns[0].clone().expect("active");
            let at = (64 << 10) + (8 << 20) + column.start * BLOCK;
            let disk = &cluster.disks[usize::from(column.disk)];
            disk.medium.borrow_mut().poke(at, &[0x5a; 512]);
            rotten += 1;
        }
        let report = cluster.fs.scrub().await.expect("scrubbed");
        assert_eq!((report.bad_blocks, report.repaired_blocks), (rotten, rotten), "{report:?}");
        assert_eq!(report.damaged_files, 0, "{report:?}");
        assert!(report.elsewhere_blocks > 0, "{report:?}");
        assert!(report.elsewhere_blocks < report.blocks, "{report:?}");
        let again = cluster.fs.scrub().await.expect("scrubbed");
        assert_eq!((again.blocks, again.bad_blocks), (report.blocks, 0), "{again:?}");
        cluster.one.unmount().await.expect("unmounted");
        cluster.assert_end(&rt, &[]).await;
    });
}

/// A node dies in the middle of its part, at many moments: node 0 does the part itself once the
/// node is fenced and recovered.
#[test]
fn a_node_that_dies_in_its_part_leaves_it_to_node_0() {
    for moment in 0..12 {
        run(move |rt| async move {
            let cluster = Cluster::new(&rt).await;
            cluster.fs.fail_disk(1).await.expect("lost");
            let job = rt.spawn(cluster.fs.begin_job(Job::Rebuild).expect("it runs"));
            rt.sleep(moment * 3 * MILLISECOND).await;
            cluster.of_node.fail_domain();
            rt.sleep(10 * MILLISECOND).await;
            die(&cluster.fs, &cluster.network, 1, 7).await;
            let report = moved(job.await);
            assert_eq!(report.removed_disks, [1], "{report:?}");
            assert!(report.damaged.is_empty() && report.waiting.is_empty(), "{report:?}");
            cluster.assert_end(&rt, &[1]).await;
        });
    }
}

#[test]
fn a_node_that_is_unmounted_ends_its_part_first() {
    run(|rt| async move {
        let cluster = Cluster::new(&rt).await;
        cluster.fs.fail_disk(1).await.expect("lost");
        let job = rt.spawn(cluster.fs.begin_job(Job::Rebuild).expect("it runs"));
        rt.sleep(4 * MILLISECOND).await;
        cluster.one.unmount().await.expect("unmounted");
        let report = moved(job.await);
        assert_eq!(report.removed_disks, [1], "{report:?}");
        cluster.assert_end(&rt, &[1]).await;
    });
}
