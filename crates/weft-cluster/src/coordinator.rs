//! The coordinator: keeps the one record of a cluster, and tells which nodes are alive.
//!
//! Only [`Coordinator::compare_and_set`] changes the record, and of several for the same version
//! at most one succeeds. A read sees every change that was confirmed before it started. Safety
//! needs nothing else of a coordinator. Leases may be wrong in both directions.

pub mod disks;
pub mod etcd;
mod memory;

use std::collections::BTreeSet;

use weft_disk::IoFuture;

use crate::{Record, Session};

pub use memory::MemoryCoordinator;

/// The version of the record: rises with every change. 0: there is no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(pub u64);

/// What a coordinator tells.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    /// The record's version.
    pub version: Version,
    /// The record, if there is one.
    pub record: Option<Record>,
    /// The processes whose leases have not ended, as far as the coordinator knows.
    pub alive: BTreeSet<Session>,
}

/// What became of a compare-and-set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swap {
    /// The record was replaced; this is its version.
    Done(Version),
    /// It was not: the record has another version. Rarely, it was replaced, and another change
    /// followed before the answer was known; every later reader of the record finds both.
    Conflict,
}

/// Why a coordinator gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoordinatorError {
    /// It cannot be reached, or does not answer in time. Nothing was changed.
    #[error("the coordinator cannot be reached: {0}")]
    Unreachable(String),
    /// It did not answer a change, which may have been made, or may still be made. Read the record
    /// to find out.
    #[error("the coordinator did not answer, and the change may have been made: {0}")]
    Unknown(String),
    /// It has something else than a record of this cluster, or refuses.
    #[error("the coordinator does not serve this cluster: {0}")]
    Refused(String),
    /// Another process has the place of this one: they have the same name.
    #[error("another process uses {0}")]
    Ousted(String),
}

/// Future of a coordinator's operation. Boxed: which coordinator a cluster has is chosen when a
/// program starts, and an operation is a message to another machine.
pub type CoordinatorFuture<'a, T> = IoFuture<'a, Result<T, CoordinatorError>>;

/// Keeps the record of one cluster.
pub trait Coordinator {
    /// The record, and who is alive.
    fn read(&self) -> CoordinatorFuture<'_, View>;

    /// Replaces the record of version `expected` by `record`. At most one of several calls with
    /// the same `expected` succeeds.
    fn compare_and_set(&self, expected: Version, record: Record) -> CoordinatorFuture<'_, Swap>;

    /// Starts or renews the lease of a process. It ends after the time that the coordinator was
    /// configured with.
    fn keep_alive<'a>(&'a self, session: &'a Session) -> CoordinatorFuture<'a, ()>;

    /// Ends the lease of a process now, if it has one.
    fn end_lease<'a>(&'a self, session: &'a Session) -> CoordinatorFuture<'a, ()>;

    /// Waits until the record or the leases have probably changed since `seen`. It may end early
    /// without a change, and late after one: a caller also looks from time to time.
    fn changed<'a>(&'a self, seen: &'a View) -> CoordinatorFuture<'a, ()>;
}
