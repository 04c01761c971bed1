//! A keeper in its term: it mounts node 0, whose keeper is in its process, and serves nodes.
//!
//! ```text
//!   is keeper, all before it fenced ── not_regained ── mount ── serve_nodes ── end
//! ```
//!
//! A process that is not the keeper any more, or that a disk refuses, ends wherever it stands
//! ([`EndOfUse`](weft_cluster::fence::EndOfUse)); its caller drops what runs here.

use std::collections::BTreeSet;
use std::rc::Rc;

use weft_cluster::{DiskName, Epoch, Fence, Incarnation, Keeper, Membership};
use weft_disk::Disk;
use weft_fs::{Fs, FsError, KeeperServer, Label, MountOptions, RemoteMetadata, Result};
use weft_rt::{Nanos, Rt, SECOND};
use weft_token::NodeId;

use crate::labels::labelled;
use crate::{Attendance, MemoryWay, Say, name_of};

/// How long a keeper that ends waits for nodes that commit early: they write every 5 seconds, and
/// the lease of one that is dead ends after 5.
const EARLY_PATIENCE: Nanos = 20 * SECOND;

/// A keeper in its term.
pub struct Term {
    /// Where its tasks run.
    pub rt: Rt,
    /// Its process's part in the cluster.
    pub membership: Rc<Membership>,
    /// The way to the keeper.
    pub way: Rc<MemoryWay>,
    /// Who it is.
    pub keeper: Keeper,
    /// Hears what happens.
    pub say: Say,
}

impl std::fmt::Debug for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Term").field("keeper", &self.keeper).finish_non_exhaustive()
    }
}

impl Term {
    /// Those of the lost disks that do not refuse yet all that they must.
    pub async fn not_regained(&self, lost: &BTreeSet<DiskName>) -> BTreeSet<DiskName> {
        let mut left = lost.clone();
        for disk in lost {
            match self.membership.node().regain_disk(disk).await {
                Ok(true) => {
                    left.remove(disk);
                }
                Ok(false) => {
                    (self.say)(&format!("{disk} is not used: it may take what it must refuse"));
                }
                Err(error) => (self.say)(&format!("{disk} is not used: {error}")),
            }
        }
        left
    }

    /// Mounts node 0.
    ///
    /// # Errors
    /// As [`Fs::mount_with_keeper`].
    pub async fn mount(&self, disks: &[Rc<dyn Disk>], options: MountOptions) -> Result<Fs> {
        let disks = &labelled(disks).await;
        let mut id = None;
        for disk in disks {
            // One that cannot be read is looked at by the mount.
            let label = Label::read(&**disk).await.ok().flatten();
            id = id.or_else(|| label.map(|label| label.fs_id.0));
        }
        let id = id.ok_or_else(|| FsError::Unmountable("no disk has a label".to_owned()))?;
        let (rt, way) = (self.rt.clone(), self.way.clone());
        let (cache, term) = (options.meta_cache_bytes, self.keeper.term.0);
        let found = move |array| {
            let (rt, way) = (rt.clone(), way.clone());
            async move {
                way.lead_to(None);
                let server = KeeperServer::open(&rt, array, id, cache).await?;
                way.lead_to(Some(server));
                Ok(RemoteMetadata { node: NodeId { number: 0, epoch: term }, way })
            }
        };
        Fs::mount_with_keeper(&self.rt, disks, options, found).await
    }

    /// A node that has lost its path to a disk is fenced there: what it has sent by that path must
    /// not come after what it sends through the keeper. `fence_of` finds the fence of a disk by the
    /// name that the disk has in this process.
    pub fn cut_paths(&self, fs: &Fs, fence_of: impl Fn(&str) -> Option<Rc<dyn Fence>> + 'static) {
        let (membership, own) = (self.membership.clone(), self.keeper.node.clone());
        let say = self.say.clone();
        fs.cut_paths_by(move |node, disk| {
            let name = name_of(&membership.outlook(), node.number);
            let victim = name.map(|name| Incarnation { node: name, epoch: Epoch(node.epoch) });
            let (fence, own, say) = (fence_of(&disk), own.clone(), say.clone());
            async move {
                let (Some(victim), Some(fence)) = (victim, fence) else { return false };
                let fenced = fence.fence(&own, &victim).await;
                let node = &victim.node;
                match &fenced {
                    Ok(()) => say(&format!(
                        "node {node} does not reach {disk}: it uses the disk through this keeper"
                    )),
                    Err(error) => say(&error.to_string()),
                }
                fenced.is_ok()
            }
        });
    }

    /// From now on other nodes are served: those that were mounted under an earlier keeper first
    /// say what they have.
    ///
    /// # Errors
    /// If the metadata cannot be read.
    pub async fn serve_nodes(&self, fs: &Fs) -> Result<Rc<Attendance>> {
        let server = self.way.server();
        let server = server.ok_or_else(|| FsError::Stopped("there is no keeper".to_owned()))?;
        let mounted = fs.nodes().await?.into_iter();
        let mounted: Vec<NodeId> = mounted.filter(|of| of.is_mounted).map(|of| of.node).collect();
        fs.serve_nodes(&server, &mounted);
        let by = (fs, &server);
        Ok(Attendance::begin(&self.rt, &self.membership, by, &self.say, mounted))
    }

    /// Ends in order: nodes wait for the next keeper, and do not hear that this one fails. What
    /// they have committed early goes to the disks before.
    ///
    /// # Errors
    /// As [`Fs::unmount`].
    pub async fn end(&self, fs: &Fs, attendance: &Attendance) -> Result<()> {
        if !fs.settle_early_commits(EARLY_PATIENCE).await {
            (self.say)("not all nodes have written what they have committed early");
        }
        // A job, or the search for free blocks, may wait for tokens that nodes have.
        fs.end_background().await;
        self.way.turn_nodes_away();
        attendance.end();
        fs.unmount().await
    }
}
