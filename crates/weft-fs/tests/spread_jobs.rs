//! Nodes carry out parts of the jobs of node 0: rebuilds, emptying a disk, balances, laying out
//! files with another redundancy, scrubs. A node may die in the middle of its part, and node 0 may
//! die, or cancel the job.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::common::cluster::*;
use crate::common::disk::TestDisk;
use crate::common::jobs::*;
use crate::common::network::Network;
use crate::common::old_way::OldWay;
use crate::common::test_disks::blank;
use crate::common::*;
use futures_util::future::join;
use weft_fs::{
    BalanceReport, Fs, FsError, Ino, Job, JobReport, ROOT, RebuildReport, Redundancy, SetReport,
};
use weft_random::Rng;
use weft_rt::{MILLISECOND, Rt, Task};
use weft_token::NodeId;

const DISKS: usize = 6;
const FILES: u64 = 40;

/// Node 0 and two others, and files of different redundancies.
struct Cluster {
    disks: Vec<Rc<TestDisk>>,
    network: Rc<Network>,
    /// The domain of node 0, in which it can die.
    of_0: Rt,
    fs: Fs,
    of_node: Rt,
    one: Fs,
    two: Fs,
    files: Vec<(Ino, Vec<u8>)>,
    names: Vec<String>,
}

impl Cluster {
    async fn new(rt: &Rt) -> Self {
        Self::on(rt, DISKS).await
    }

    /// So many of the disks are used.
    async fn on(rt: &Rt, used: usize) -> Self {
        let disks = blank(rt, DISKS);
        let of_0 = rt.domain(|| {});
        let (network, fs) = node_0_in(&of_0, rt, &all(&disks[..used]), 1).await;
        let of_node = rt.domain(|| {});
        let one = joined_opening(&of_node, (&disks, used), &network, (1, 7)).await;
        let two = joined_opening(rt, (&disks, used), &network, (2, 8)).await;
        let (mut files, mut names) = (Vec::new(), Vec::new());
        for n in 0..FILES {
            let redundancy =
                ["raid5", "raid1", "raid6", "raid5"][usize::try_from(n % 4).expect("few")];
            // Each node has some of them open, so that tokens go back and forth.
            let at = [&fs, &one, &two][usize::try_from(n % 3).expect("few")];
            names.push(format!("file{n}"));
            let ino = make_as(at, &format!("file{n}"), redundancy).await;
            let bytes = pattern(200_000, n);
            write(at, ino, 0, &bytes).await;
            files.push((ino, bytes));
        }
        for at in [&fs, &one, &two] {
            at.sync().await.expect("synced");
        }
        Self { disks, network, of_0, fs, of_node, one, two, files, names }
    }

    /// Two disks have joined, and are empty.
    async fn with_empty_disks(rt: &Rt) -> Self {
        let cluster = Self::on(rt, DISKS - 2).await;
        for disk in &cluster.disks[DISKS - 2..] {
            cluster.fs.add_disk(disk.clone(), false).await.expect("added");
        }
        cluster
    }

    /// Blocks of files on each disk.
    async fn blocks_on(&self, at: &Fs) -> BTreeMap<u16, u64> {
        let mut blocks = BTreeMap::new();
        for (ino, _) in &self.files {
            for (_, record) in at.places(*ino).await.expect("known") {
                for column in record.columns.iter().flatten() {
                    *blocks.entry(column.disk).or_default() += record.lines;
                }
            }
        }
        blocks
    }

    async fn assert_files(&self, at: &Fs) {
        for (ino, bytes) in &self.files {
            assert!(read_all(at, *ino).await == *bytes, "file {ino}");
        }
    }

    /// All files are to have this redundancy, as a user of this node says.
    async fn want(&self, at: &Fs, name: &str) {
        let inos: Vec<Ino> = self.files.iter().map(|(ino, _)| *ino).collect();
        at.want_redundancy(&inos, name.parse().expect("known")).await.expect("set");
    }

    /// All lines have this redundancy, as wide as it can be, and no file waits for it.
    async fn assert_all_are(&self, name: &str) {
        let redundancy: Redundancy = name.parse().expect("known");
        for (ino, _) in &self.files {
            for (_, record) in self.fs.places(*ino).await.expect("known") {
                assert_eq!(Some(record.coded), redundancy.coded(DISKS), "file {ino}");
            }
        }
        let again = laid_out(self.fs.begin_job(Job::Set).expect("nothing else runs").await);
        assert_eq!(again, SetReport::default());
    }

    /// Node 0 dies, and another one goes on with its jobs.
    async fn replace_node_0(&mut self, rt: &Rt) -> jobs::Ended {
        self.network.kill().await;
        self.of_0.fail_domain();
        self.fs = node_0_at(rt, &all(&self.disks), &self.network, (2, mounting())).await;
        let nodes = [(1, 7), (2, 8)].map(|(number, epoch)| NodeId { number, epoch });
        self.fs.serve_nodes(&self.network.keeper(), &nodes);
        let ended = kept(&self.fs);
        settle(rt, &self.fs).await;
        ended
    }

    /// All end, and a mount alone finds everything. Returns it.
    async fn assert_end(self, rt: &Rt, without: &[usize]) -> Fs {
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
        fs
    }

    /// The same, and the disks are as even as a balance makes them.
    async fn assert_even_end(self, rt: &Rt, without: &[usize]) {
        let fs = self.assert_end(rt, without).await;
        let disks = fs.status().await.expect("known").disks;
        let free: Vec<u64> = disks.iter().map(|disk| disk.free_bytes / BLOCK).collect();
        let (most, least) = (free.iter().max().expect("disks"), free.iter().min().expect("disks"));
        assert!(most - least <= (most / 16).max(128), "{free:?}");
    }
}

type Ended = weft_fs::Result<JobReport>;

fn moved(ended: Ended) -> RebuildReport {
    match ended {
        Ok(JobReport::Moved(report)) => report,
        other => panic!("{other:?}"),
    }
}

fn balanced(ended: Ended) -> BalanceReport {
    match ended {
        Ok(JobReport::Balanced(report)) => report,
        other => panic!("{other:?}"),
    }
}

fn laid_out(ended: Ended) -> SetReport {
    match ended {
        Ok(JobReport::Set(report)) => report,
        other => panic!("{other:?}"),
    }
}

/// A job, and the cluster in which it has something to do.
#[derive(Clone, Copy)]
enum Work {
    /// A disk is lost.
    Rebuild,
    /// Two disks are empty.
    Balance,
    /// All files are to have this redundancy.
    Set(&'static str),
}

impl Work {
    async fn cluster(self, rt: &Rt) -> Cluster {
        match self {
            Self::Balance => Cluster::with_empty_disks(rt).await,
            Self::Rebuild | Self::Set(_) => Cluster::new(rt).await,
        }
    }

    /// Begins the job on node 0.
    async fn begin(self, cluster: &Cluster) -> impl Future<Output = Ended> + use<> {
        let job = match self {
            Self::Rebuild => {
                cluster.fs.fail_disk(1).await.expect("lost");
                Job::Rebuild
            }
            Self::Balance => Job::Balance,
            Self::Set(name) => {
                cluster.want(&cluster.fs, name).await;
                Job::Set
            }
        };
        cluster.fs.begin_job(job).expect("nothing else runs")
    }
}

/// Something happens while a job runs: at so many moments, with the number of each.
fn during<F: Future<Output = ()> + 'static>(
    work: Work,
    moments: u64,
    what: impl Fn(Rt, Cluster, Task<Ended>, u64) -> F + Copy + 'static,
) {
    for moment in 0..moments {
        run(move |rt| async move {
            let cluster = work.cluster(&rt).await;
            let job = rt.spawn(work.begin(&cluster).await);
            rt.sleep(moment * 3 * MILLISECOND).await;
            what(rt, cluster, job, moment).await;
        });
    }
}

/// A node dies in the middle of its part: the job ends once the node is fenced and recovered.
fn when_a_node_dies<F: Future<Output = ()> + 'static>(
    work: Work,
    then: impl Fn(Rt, Cluster, Ended) -> F + Copy + 'static,
) {
    during(work, 12, move |rt, cluster, job, _| async move {
        cluster.of_node.fail_domain();
        rt.sleep(10 * MILLISECOND).await;
        die(&cluster.fs, &cluster.network, 1, 7).await;
        let ended = job.await;
        then(rt, cluster, ended).await;
    });
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

#[test]
fn a_node_that_dies_in_its_part_leaves_it_to_node_0() {
    when_a_node_dies(Work::Rebuild, |rt, cluster, ended| async move {
        let report = moved(ended);
        assert_eq!(report.removed_disks, [1], "{report:?}");
        assert!(report.damaged.is_empty() && report.waiting.is_empty(), "{report:?}");
        cluster.assert_end(&rt, &[1]).await;
    });
}

#[test]
fn a_node_that_is_unmounted_ends_its_part_first() {
    during(Work::Rebuild, 3, |rt, cluster, job, _| async move {
        cluster.one.unmount().await.expect("unmounted");
        let report = moved(job.await);
        assert_eq!(report.removed_disks, [1], "{report:?}");
        cluster.assert_end(&rt, &[1]).await;
    });
}

#[test]
fn nodes_even_out_parts_of_a_balance_and_no_column_goes_to_and_fro() {
    run(|rt| async move {
        let cluster = Cluster::with_empty_disks(&rt).await;
        let before = cluster.blocks_on(&cluster.fs).await;
        let job = cluster.fs.begin_job(Job::Balance).expect("it runs");
        let report = balanced(job.await);
        let after = cluster.blocks_on(&cluster.fs).await;
        assert!(report.elsewhere_blocks > 0, "{report:?}");
        assert!(report.elsewhere_blocks < report.blocks, "{report:?}");
        assert!(report.damaged.is_empty() && report.crowded.is_empty(), "{report:?}");
        // What was moved is on the disks that were empty, each block once.
        let gained: u64 = after.range(4..).map(|(_, blocks)| blocks).sum();
        assert_eq!(report.blocks, gained, "{before:?} {after:?}");
        assert!(gained > 1000 && after[&4].abs_diff(after[&5]) < 128, "{before:?} {after:?}");
        cluster.one.unmount().await.expect("unmounted");
        cluster.assert_even_end(&rt, &[]).await;
    });
}

#[test]
fn a_node_that_dies_in_its_part_of_a_balance_leaves_it_to_node_0() {
    when_a_node_dies(Work::Balance, |rt, cluster, ended| async move {
        let report = balanced(ended);
        assert!(report.damaged.is_empty() && report.crowded.is_empty(), "{report:?}");
        cluster.assert_even_end(&rt, &[]).await;
    });
}

#[test]
fn a_balance_goes_on_when_node_0_dies_and_nodes_are_in_their_parts() {
    during(Work::Balance, 10, |rt, mut cluster, job, _| async move {
        let ended = cluster.replace_node_0(&rt).await;
        drop(job);
        // That it was wanted may not have been durable yet, or it was done just before.
        assert!([&[][..], &[Job::Balance]].contains(&&jobs(&ended)[..]), "{ended:?}");
        if ended.borrow().is_empty() {
            balanced(cluster.fs.begin_job(Job::Balance).expect("it runs").await);
        }
        cluster.one.unmount().await.expect("unmounted");
        cluster.assert_even_end(&rt, &[]).await;
    });
}

#[test]
fn a_disk_is_lost_while_nodes_even_out_parts() {
    during(Work::Balance, 10, |rt, cluster, job, moment| async move {
        let ended = kept(&cluster.fs);
        let lost = [0, 4][usize::try_from(moment % 2).expect("few")];
        cluster.fs.fail_disk(lost).await.expect("lost");
        let balance = job.await;
        assert!(matches!(balance, Ok(_) | Err(FsError::GivenWay)), "{balance:?}");
        let has_given_way = balance.is_err();
        settle(&rt, &cluster.fs).await;
        let expected = match has_given_way {
            true => &[Job::Rebuild, Job::Balance][..],
            false => &[Job::Rebuild],
        };
        assert_eq!(jobs(&ended), expected);
        assert!(ended.borrow().iter().all(|(_, ended)| ended.is_ok()), "{ended:?}");
        cluster.one.unmount().await.expect("unmounted");
        match has_given_way {
            true => cluster.assert_even_end(&rt, &[lost.into()]).await,
            false => drop(cluster.assert_end(&rt, &[lost.into()]).await),
        }
    });
}

/// What nodes do of their parts after that counts for the next balance, too.
#[test]
fn a_balance_that_is_cancelled_while_nodes_are_in_their_parts_can_begin_again() {
    during(Work::Balance, 8, |rt, cluster, job, _| async move {
        let cancelled = cluster.fs.cancel().await;
        let ended = job.await;
        assert!(ended.is_ok() || matches!(ended, Err(FsError::Cancelled)), "{ended:?}");
        assert!(ended.is_err() || cancelled.is_err());
        let report = balanced(Work::Balance.begin(&cluster).await.await);
        assert!(report.damaged.is_empty() && report.crowded.is_empty(), "{report:?}");
        cluster.one.unmount().await.expect("unmounted");
        cluster.assert_even_end(&rt, &[]).await;
    });
}

#[test]
fn files_are_written_and_deleted_on_all_nodes_during_a_balance_and_a_node_is_unmounted() {
    during(Work::Balance, 4, |rt, mut cluster, job, seed| async move {
        let mut rng = Rng::new(seed);
        let nodes = [cluster.fs.clone(), cluster.two.clone()];
        let uses = async {
            for _ in 0..60 {
                let n = rng.below(cluster.files.len() as u64);
                let n = usize::try_from(n).expect("few");
                let at = rng.pick(&nodes);
                if rng.chance(10) {
                    drop(cluster.files.remove(n));
                    let name = cluster.names.remove(n);
                    at.unlink(ROOT, name.as_bytes()).await.expect("removed");
                    continue;
                }
                let (ino, bytes) = &mut cluster.files[n];
                let from = usize::try_from(rng.below(180_000)).expect("short");
                overwrite(at, *ino, bytes, from..from + 9000, rng.below(1000)).await;
                rt.sleep(rng.below(MILLISECOND)).await;
            }
        };
        let (unmounted, ()) = join(cluster.one.unmount(), uses).await;
        unmounted.expect("unmounted");
        let report = balanced(job.await);
        assert!(report.damaged.is_empty(), "{report:?}");
        cluster.assert_end(&rt, &[]).await;
    });
}

#[test]
fn nodes_lay_out_files_that_get_another_redundancy() {
    for name in ["raid1", "raid6"] {
        during(Work::Set(name), 1, move |rt, cluster, job, _| async move {
            let report = laid_out(job.await);
            assert!(report.elsewhere_blocks > 0, "{report:?}");
            assert!(report.elsewhere_blocks < report.blocks, "{report:?}");
            cluster.assert_all_are(name).await;
            cluster.one.unmount().await.expect("unmounted");
            cluster.assert_end(&rt, &[]).await;
        });
    }
}

#[test]
fn a_node_that_dies_while_it_lays_out_files_leaves_them_to_node_0() {
    when_a_node_dies(Work::Set("raid6"), |rt, cluster, ended| async move {
        laid_out(ended);
        cluster.assert_all_are("raid6").await;
        cluster.assert_end(&rt, &[]).await;
    });
}

#[test]
fn the_next_node_0_lays_out_the_files_that_still_wait_while_nodes_are_in_their_parts() {
    during(Work::Set("raid6"), 10, |rt, mut cluster, job, _| async move {
        let ended = cluster.replace_node_0(&rt).await;
        drop(job);
        assert!(ended.borrow().iter().all(|(_, ended)| ended.is_ok()), "{ended:?}");
        cluster.assert_all_are("raid6").await;
        cluster.one.unmount().await.expect("unmounted");
        cluster.assert_end(&rt, &[]).await;
    });
}

#[test]
fn a_disk_is_lost_while_nodes_lay_out_files() {
    during(Work::Set("raid1"), 8, |rt, cluster, job, _| async move {
        let ended = kept(&cluster.fs);
        cluster.fs.fail_disk(3).await.expect("lost");
        let set = job.await;
        assert!(matches!(set, Ok(_) | Err(FsError::GivenWay)), "{set:?}");
        settle(&rt, &cluster.fs).await;
        assert!(ended.borrow().iter().all(|(_, ended)| ended.is_ok()), "{ended:?}");
        cluster.assert_all_are("raid1").await;
        cluster.one.unmount().await.expect("unmounted");
        cluster.assert_end(&rt, &[3]).await;
    });
}

#[test]
fn files_that_are_set_again_or_deleted_while_nodes_lay_them_out_are_as_was_wanted_last() {
    during(Work::Set("raid6"), 8, |rt, mut cluster, job, _| async move {
        let ended = kept(&cluster.fs);
        for n in 0..10 {
            let name = cluster.names.remove(0);
            drop(cluster.files.remove(0));
            let at = if n % 2 == 0 { &cluster.one } else { &cluster.fs };
            at.unlink(ROOT, name.as_bytes()).await.expect("removed");
        }
        cluster.want(&cluster.two, "raid1").await;
        laid_out(job.await);
        // Node 0 looks for files that were set on other nodes.
        settle(&rt, &cluster.fs).await;
        cluster.assert_all_are("raid1").await;
        for name in ["raid5", "raid6"] {
            cluster.want(&cluster.two, name).await;
            settle(&rt, &cluster.fs).await;
            cluster.assert_all_are(name).await;
        }
        assert!(ended.borrow().iter().all(|(_, ended)| ended.is_ok()), "{ended:?}");
        cluster.one.unmount().await.expect("unmounted");
        cluster.assert_end(&rt, &[]).await;
    });
}

#[test]
fn a_node_of_the_version_before_gets_only_parts_that_it_knows() {
    run(|rt| async move {
        let mut cluster = Cluster::with_empty_disks(&rt).await;
        cluster.one.unmount().await.expect("unmounted");
        cluster.two.unmount().await.expect("unmounted");
        let way = OldWay::to(&cluster.network);
        cluster.two = node(&rt, &all(&cluster.disks), &way, (2, 9)).await.expect("mounted");
        assert_eq!(*way.versions.borrow(), [2, 1]);
        let job = cluster.fs.begin_job(Job::Balance).expect("it runs");
        let report = balanced(job.await);
        assert!(report.blocks > 1000 && report.elsewhere_blocks == 0, "{report:?}");
        let report = laid_out(Work::Set("raid1").begin(&cluster).await.await);
        assert!(report.blocks > 1000 && report.elsewhere_blocks == 0, "{report:?}");
        let report = cluster.fs.remove_disk(2).await.expect("removed");
        assert!(report.elsewhere_blocks > 0, "{report:?}");
        cluster.assert_end(&rt, &[2]).await;
    });
}
