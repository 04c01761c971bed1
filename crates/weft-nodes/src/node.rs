//! A node's mount, which waits for its keeper.

use std::rc::Rc;

use weft_cluster::{Incarnation, Outlook};
use weft_disk::Disk;
use weft_fs::{Fs, FsError, MountOptions, RemoteMetadata, Reopen, Result};
use weft_rt::{MILLISECOND, Nanos, Rt};
use weft_token::NodeId;

use crate::KeeperWay;
use crate::labels::labelled;

/// Pause between two attempts to mount.
const PAUSE: Nanos = 500 * MILLISECOND;

/// The number and epoch of a member that is not the keeper, once the record has its number.
pub fn number_of(outlook: &Outlook, own: &Incarnation) -> Option<NodeId> {
    let number = *outlook.view.record.as_ref()?.numbers.get(&own.node)?;
    Some(NodeId { number, epoch: own.epoch.0 })
}

/// Mounts as a node, which opens disks that join with `open`. What may pass by itself is waited
/// for, for this long: a keeper prepares a node as soon as it hears of it.
///
/// # Errors
/// As [`Fs::mount_node_opening`].
pub async fn mount_when_ready(
    rt: &Rt,
    (disks, open, options): (&[Rc<dyn Disk>], Option<&Reopen>, MountOptions),
    (node, way): (NodeId, &Rc<KeeperWay>),
    patience: Nanos,
) -> Result<Fs> {
    let deadline = rt.now() + patience;
    let disks = &labelled(disks).await;
    loop {
        let metadata = RemoteMetadata { node, way: way.clone() };
        let mounting = Fs::mount_node_opening(rt, disks, options, metadata, open.cloned());
        let error = match mounting.await {
            Ok(fs) => return Ok(fs),
            Err(error) => error,
        };
        use FsError::{Damaged, Invalid, Unmountable};
        let may_pass = matches!(error, Damaged(_) | Invalid(_) | Unmountable(_));
        if !may_pass || rt.now() >= deadline {
            return Err(error);
        }
        way.say(format!("waiting for the keeper: {error}"));
        rt.sleep(PAUSE).await;
    }
}
