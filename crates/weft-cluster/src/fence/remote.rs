//! Fencing at a disk server, as `server.rs` describes it.

use weft_nbd::client::OpenError;
use weft_nbd::proto::Violation;
use weft_nbd::{NbdDisk, NbdOptions, NbdUri};
use weft_rt::ring::Ring;
use weft_rt::{Nanos, Rt};

use super::{Fence, FenceError, FenceFuture};
use crate::{ClusterName, DiskName, Incarnation};

/// The export of a disk as `who` uses it.
pub fn export_of(disk: &DiskName, cluster: &ClusterName, who: &Incarnation) -> String {
    format!("{disk}/{cluster}/{}/{}", who.node, who.epoch)
}

/// The fence of a disk served by a disk server.
#[derive(Debug)]
pub struct RemoteFence {
    rt: Rt,
    ring: Ring,
    /// The server; the export is the disk's name.
    uri: NbdUri,
    disk: DiskName,
    cluster: ClusterName,
    patience: Nanos,
}

impl RemoteFence {
    /// The fence of the disk that `uri` names, which must answer within `patience`.
    ///
    /// # Errors
    /// The export is not the name of a disk.
    pub fn new(
        rt: &Rt,
        ring: &Ring,
        uri: NbdUri,
        cluster: ClusterName,
        patience: Nanos,
    ) -> Result<Self, crate::NameError> {
        let disk = uri.export.parse()?;
        Ok(Self { rt: rt.clone(), ring: ring.clone(), uri, disk, cluster, patience })
    }

    /// Where the disk is.
    pub fn place(&self) -> String {
        self.uri.to_string()
    }

    /// Where the disk is as `who` uses it.
    pub fn uri_of(&self, who: &Incarnation) -> NbdUri {
        let export = export_of(&self.disk, &self.cluster, who);
        NbdUri { export, ..self.uri.clone() }
    }

    async fn open(&self, export: String) -> Result<(), OpenError> {
        let uri = NbdUri { export, ..self.uri.clone() };
        let (connect_timeout, read_only) = (self.patience, true);
        let options = NbdOptions { connect_timeout, read_only, ..NbdOptions::default() };
        NbdDisk::open(&self.rt, &self.ring, &uri, options).await.map(drop)
    }

    async fn name(&self, export: String) -> Result<(), FenceError> {
        let disk = self.disk.clone();
        // Some servers accept every name, and mean nothing by that.
        if self.open(format!("{disk}/-")).await.is_ok() {
            let why = "its NBD server accepts any name; serve it with `weft disks serve`";
            return Err(FenceError::Unsupported { disk, why: why.to_owned() });
        }
        match self.open(export).await {
            Ok(()) => Ok(()),
            Err(OpenError::Protocol(Violation::Refused { reason, .. })) => {
                Err(match reason.as_str() {
                    text if text.contains("fenced: ") => FenceError::Fenced { disk },
                    text if text.contains("no export of this name") => {
                        let why = "its NBD server knows no nodes; serve it with `weft disks serve`";
                        FenceError::Unsupported { disk, why: why.to_owned() }
                    }
                    _ => FenceError::Unconfirmed { disk, why: reason },
                })
            }
            Err(error) => Err(FenceError::Unconfirmed { disk, why: error.to_string() }),
        }
    }
}

impl Fence for RemoteFence {
    fn disk(&self) -> &DiskName {
        &self.disk
    }

    fn register<'a>(&'a self, own: &'a Incarnation) -> FenceFuture<'a> {
        Box::pin(self.name(export_of(&self.disk, &self.cluster, own)))
    }

    fn fence<'a>(&'a self, _: &'a Incarnation, victim: &'a Incarnation) -> FenceFuture<'a> {
        let export = export_of(&self.disk, &self.cluster, victim) + "/fence";
        Box::pin(self.name(export))
    }
}
