//! What the parts of the benchmark of clusters share.

pub mod cached;
pub mod file;
pub mod folder;
pub mod scaling;
pub mod synced;
pub mod takeover;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use weft_testkit::{LoopDevice, Mount, Scratch, command, run};

use crate::common::cluster::{Cluster, Member};
use crate::common::weftfs::Mounted;

/// Disks of each file system, so files of `auto` are RAID-5.
pub const DISKS: usize = 3;
pub const DISK_BYTES: u64 = 1 << 30;
/// Room for metadata on each disk.
const METADATA: &str = "256M";
/// A unit in which Linux tells programs their processor time, on all machines.
const TICK_S: f64 = 0.01;

/// A cluster with nodes; the keeper has no mount.
pub struct Machines {
    // First: processes end before the folder of the cluster goes.
    pub nodes: Vec<Member>,
    pub keeper: Member,
    pub cluster: Cluster,
}

impl Machines {
    pub fn new(name: &str, nodes: usize) -> Self {
        Self::with(name, &vec![&[][..]; nodes])
    }

    /// Nodes with options of their mounts.
    pub fn with(name: &str, nodes: &[&[&str]]) -> Self {
        let mut cluster = Cluster::new(name, DISKS, DISK_BYTES);
        // The metadata does not grow by what nodes write.
        cluster.weft(&["create", "home"], &["--node", "admin", "--metadata", METADATA]);
        let mut keeper = cluster.start("keeper", &["keeper", "home"], &[]);
        keeper.says("keeps");
        let node = |(n, options): (usize, &&[&str])| {
            let mut node = cluster.node(&format!("node{n}"), options);
            node.mounts();
            node
        };
        Self { nodes: nodes.iter().enumerate().map(node).collect(), keeper, cluster }
    }

    /// Where a node has mounted it.
    pub fn at(&self, node: usize) -> &Path {
        &self.nodes[node].at
    }

    /// Does something, and tells what it took.
    pub fn spent(&self, work: impl FnOnce()) -> Spent {
        let nodes: Vec<u32> = self.nodes.iter().map(Member::id).collect();
        let of =
            [vec![self.keeper.id()], nodes, self.cluster.server_ids(), vec![std::process::id()]];
        let read = || of.each_ref().map(|ids| ids.iter().map(|id| processor_s(*id)).sum::<f64>());
        let (start, before) = (Instant::now(), read());
        work();
        let seconds = start.elapsed().as_secs_f64();
        let after = read();
        let [keeper, nodes, servers, programs] = [0, 1, 2, 3].map(|n| after[n] - before[n]);
        Spent { seconds, keeper, nodes, servers, programs }
    }
}

/// What something took: seconds, and seconds of processors of the keeper, all nodes, all servers of
/// disks, and the programs that use the mounts.
#[derive(Debug, Clone, Copy)]
pub struct Spent {
    pub seconds: f64,
    pub keeper: f64,
    pub nodes: f64,
    pub servers: f64,
    pub programs: f64,
}

/// The processor time that a process has taken.
fn processor_s(id: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).expect("it runs");
    // The name before them may hold anything.
    let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = [11, 12].map(|field: usize| fields[field].parse::<f64>().expect("a number"));
    ticks.iter().sum::<f64>() * TICK_S
}

/// The same file system on one machine, without a cluster.
pub fn alone(name: &str) -> Mounted {
    Mounted::on_disks(name, DISKS, DISK_BYTES)
}

/// ext4 on a loop device: what a file system can do that is on one machine, in the kernel, and
/// without redundancy.
pub struct Ext4 {
    // In this order: what uses another one goes before it.
    _mount: Mount,
    _device: LoopDevice,
    _scratch: Scratch,
    pub at: PathBuf,
}

impl Ext4 {
    pub fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let (disk, at) = (scratch.file("disk", DISK_BYTES), scratch.join("mnt"));
        fs::create_dir(&at).expect("a mount point");
        let device = LoopDevice::attach(&disk, true);
        run(command("mkfs.ext4").args(["-q", "-E", "lazy_itable_init=0"]).arg(device.path()));
        let mount = Mount::new(device.path(), &at, "");
        Self { _mount: mount, _device: device, _scratch: scratch, at }
    }
}

/// Runs a program on each of these, at the same time.
pub fn side_by_side<T: Sync>(each: &[T], program: impl Fn(usize, &T) + Sync) {
    std::thread::scope(|scope| {
        for (n, one) in each.iter().enumerate() {
            let program = &program;
            scope.spawn(move || program(n, one));
        }
    });
}

/// Writes what is in memory of a file or folder.
pub fn sync(path: &Path) {
    File::open(path).and_then(|file| file.sync_all()).expect("synced");
}

/// A file in which each MiB is filled with its number.
pub fn write_stream(path: &Path, mib: usize) {
    let mut file = File::create(path).expect("created");
    for n in 0..mib {
        file.write_all(&vec![n as u8; 1 << 20]).expect("written");
    }
    file.sync_all().expect("synced");
}

/// Reads it again, from the disks.
pub fn read_stream(path: &Path, mib: usize) {
    let mut file = File::open(path).expect("there");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
    let mut bytes = vec![0; 1 << 20];
    for n in 0..mib {
        file.read_exact(&mut bytes).expect("read");
        assert!(bytes.iter().all(|byte| *byte == n as u8), "MiB {n} of {}", path.display());
    }
}
