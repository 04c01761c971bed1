//! Fences: what keeps a node from writing to a disk.
//!
//! A fence is the only thing that safety rests on. Its contract: **when [`Fence::fence`] has
//! succeeded, no request of the victim, or of an earlier incarnation of its node, takes effect on
//! the disk any more** – not one that is under way, and not one that arrives a year later. It
//! outlives restarts of the program that enforces it. A fence that did not succeed may hold or not;
//! it is repeated, or the disk is not used.

mod claim;
mod gate;
mod head;
mod lasting_disk;
mod lease_turns;
mod lease_volume;
mod member_disk;
mod remote;
mod remote_leases;
pub mod reservation;
mod server;
mod session;
mod shared_disk;
mod unflushed;

use weft_disk::IoFuture;

use crate::{DiskName, Incarnation, Record};

pub use gate::{Bounds, BoundsFull, Gate, InFlight, NODES_MAX, Refusal};
pub use head::{HEAD_BYTES, HeadError, Preparation, is_blank, prepare};
pub use lasting_disk::{DiskSource, LastingDisk, NotOpened, Opened, Patience};
pub use lease_volume::LeaseVolume;
pub use member_disk::{EndOfUse, MemberDisk};
pub use remote::{MemberSource, RemoteFence, export_of};
pub use remote_leases::{RemoteLeases, lease_export_of};
pub use reservation::ReservationFence;
pub use server::{DiskServer, WhatToDo};
pub use session::{DiskState, Session};
pub use shared_disk::{SharedDisk, SharedDiskError, SharedVolume};

/// Why a disk did not confirm a fence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    /// It did not answer in time, or cannot be reached. The fence may hold or not.
    #[error("{disk} did not confirm the fence: {why}")]
    Unconfirmed {
        /// The disk.
        disk: DiskName,
        /// What happened.
        why: String,
    },
    /// The disk cannot fence: it must not be shared.
    #[error("{disk} can be used by one node only: {why}")]
    Unsupported {
        /// The disk.
        disk: DiskName,
        /// What it lacks.
        why: String,
    },
    /// The disk refuses the caller: it was fenced itself.
    #[error("{disk} refuses this node: it was fenced")]
    Fenced {
        /// The disk.
        disk: DiskName,
    },
}

/// Future of a fence's operation. Boxed: disks of several kinds stand side by side in a cluster.
pub type FenceFuture<'a> = IoFuture<'a, Result<(), FenceError>>;

/// A disk's way to refuse nodes.
pub trait Fence {
    /// The disk.
    fn disk(&self) -> &DiskName;

    /// Makes the disk accept requests of `own`, if it must be told. Afterwards the caller reads
    /// the record once more before it writes: only if it is still a member then, each later fence
    /// is sure to find the registration.
    fn register<'a>(&'a self, own: &'a Incarnation) -> FenceFuture<'a>;

    /// Asks the disk whether it accepts requests of `own`, which has registered; changes nothing.
    fn confirm<'a>(&'a self, own: &'a Incarnation) -> FenceFuture<'a>;

    /// Makes the disk refuse `victim`. `own` is the caller, which is registered.
    fn fence<'a>(&'a self, own: &'a Incarnation, victim: &'a Incarnation) -> FenceFuture<'a>;

    /// Makes the disk refuse all incarnations that are no members by a record: it may have missed
    /// any of their fences. `own` is the caller, which is registered.
    fn clear<'a>(&'a self, own: &'a Incarnation, record: &'a Record) -> FenceFuture<'a> {
        Box::pin(async move {
            for victim in record.bygone() {
                self.fence(own, &victim).await?;
            }
            Ok(())
        })
    }
}
