//! `weft fs create --cluster`: makes a file system of shared disks.

use std::rc::Rc;

use weft_cli::disks::Opener;
use weft_cli::failure::Failure;
use weft_disk::Disk;
use weft_fs::{CreateOptions, PlannedRoom, plan_room};

use super::{Party, Role, failed};
use crate::cli::FsClusterArgs;

/// Makes it as a member of the cluster: the disks take the writes of no one else.
pub(in crate::commands::fs) async fn create(
    opener: &Opener,
    cluster: &FsClusterArgs,
    places: &[String],
    options: &CreateOptions,
) -> Result<PlannedRoom, Failure> {
    let role = Role { creates: Some(options.force), ..Role::member() };
    let party = Party::start(opener, &options.name, cluster, places, role).await?;
    let own = party.joined().await?;
    let record = party.until(false, |outlook| outlook.view.record.clone()).await?;
    let other = record.members.keys().find(|node| **node != own.node);
    let outcome = match other {
        Some(node) => Err(Failure::new(format!("the cluster is in use: {node} is a member"))
            .hint("stop its keepers and nodes first")),
        // It may be that of an earlier file system of this name.
        None => match party.membership.node().forget_notes().await {
            Ok(()) => made(&party, &own, options).await,
            Err(error) => Err(failed(&error, &party.at)),
        },
    };
    party.leave().await?;
    outcome
}

async fn made(
    party: &Party,
    own: &weft_cluster::Incarnation,
    options: &CreateOptions,
) -> Result<PlannedRoom, Failure> {
    let disks: Vec<Rc<dyn Disk>> = party.open_disks(own, &Default::default(), false).await?;
    let made = weft_fs::create(&party.opener.rt, &disks, options).await;
    made.map_err(crate::commands::fs::failed)?;
    let sizes: Vec<u64> = disks.iter().map(|disk| disk.info().size_bytes).collect();
    Ok(plan_room(&sizes, options.redundancy, options.slice_bytes))
}
