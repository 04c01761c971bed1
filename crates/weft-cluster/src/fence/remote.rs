//! Fencing at a disk server, as `server.rs` describes it.

use std::rc::Rc;

use weft_disk::{Class, Disk as _, IoFuture};
use weft_nbd::client::OpenError;
use weft_nbd::proto::Violation;
use weft_nbd::{NbdDisk, NbdOptions, NbdUri};
use weft_rt::ring::Ring;
use weft_rt::{Buf, Nanos, Rt};

use super::lasting_disk::{DiskSource, NotOpened, Opened};
use super::remote_leases::lease_export_of;
use super::server::{STATE, STATE_BYTES};
use super::session::Session;
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

    /// Where its leases are as the node of a number uses them; with none, as they are to be read.
    pub fn uri_of_leases(&self, number: Option<u32>) -> NbdUri {
        let export = match number {
            Some(number) => lease_export_of(&self.disk, &self.cluster, number),
            None => self.disk.to_string(),
        };
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

/// A disk of a disk server as a member of the cluster uses it, in one session after the other.
#[derive(Debug)]
pub struct MemberSource {
    fence: Rc<RemoteFence>,
    own: Incarnation,
    request_timeout: Nanos,
}

impl MemberSource {
    /// The disk that `fence` reaches, as `own` uses it. A request may take `request_timeout`.
    pub fn new(fence: Rc<RemoteFence>, own: Incarnation, request_timeout: Nanos) -> Self {
        Self { fence, own, request_timeout }
    }

    async fn open_in(&self, session: Session) -> Result<Opened, NotOpened> {
        let RemoteFence { rt, ring, uri, disk, cluster, patience } = &*self.fence;
        let mut export = format!("{}/{}", export_of(disk, cluster, &self.own), session.number);
        if let Some(after) = session.after {
            export = format!("{export}/{after}");
        }
        let away = |error: &dyn std::fmt::Display| NotOpened::Away(error.to_string());
        let options = NbdOptions {
            connect_timeout: *patience,
            request_timeout: self.request_timeout,
            // That is what sessions are for.
            reconnect_attempts: 0,
            ..NbdOptions::default()
        };
        let uri_of = |export: String| NbdUri { export, ..uri.clone() };
        let opened = NbdDisk::open(rt, ring, &uri_of(export), options).await;
        let opened = opened.map_err(|error| match &error {
            OpenError::Protocol(Violation::Refused { reason, .. }) => refusal_of(reason),
            _ => away(&error),
        })?;
        // After the connection: its server, or a later one, says it.
        let options = NbdOptions { read_only: true, ..options };
        let state = uri_of(format!("{disk}/{STATE}"));
        let state = NbdDisk::open(rt, ring, &state, options).await.map_err(|e| away(&e))?;
        let len = usize::try_from(STATE_BYTES).unwrap_or(0);
        let (read, bytes) = state.read(0, Buf::new(len), Class::Urgent).await;
        read.map_err(|error| away(&error))?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(len);
        let state = serde_json::from_slice(&bytes[..end]).map_err(|error| away(&error))?;
        Ok(Opened { disk: Rc::new(opened), state })
    }
}

/// What a server's refusal means.
fn refusal_of(reason: &str) -> NotOpened {
    let text = reason.to_owned();
    match reason {
        _ if reason.contains("fenced: ") => NotOpened::Fenced(text),
        _ if ["in another session", "belongs to cluster", "a name has the form"]
            .iter()
            .any(|what| reason.contains(what)) =>
        {
            NotOpened::Refused(text)
        }
        // It may serve the disk in some seconds.
        _ => NotOpened::Away(text),
    }
}

impl DiskSource for MemberSource {
    fn open(&self, session: Session) -> IoFuture<'_, Result<Opened, NotOpened>> {
        Box::pin(self.open_in(session))
    }
}

impl Fence for RemoteFence {
    fn disk(&self) -> &DiskName {
        &self.disk
    }

    fn register<'a>(&'a self, own: &'a Incarnation) -> FenceFuture<'a> {
        Box::pin(self.name(export_of(&self.disk, &self.cluster, own)))
    }

    fn confirm<'a>(&'a self, own: &'a Incarnation) -> FenceFuture<'a> {
        self.register(own)
    }

    fn fence<'a>(&'a self, _: &'a Incarnation, victim: &'a Incarnation) -> FenceFuture<'a> {
        let export = export_of(&self.disk, &self.cluster, victim) + "/fence";
        Box::pin(self.name(export))
    }
}
