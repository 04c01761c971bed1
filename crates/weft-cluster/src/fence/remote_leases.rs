//! The leases on a disk of a disk server.
//!
//! A connection that ended is opened again **by a read, and never by a write**: what is written was
//! decided by what was read before, on the same connection. The server ends a connection when
//! another process of the node comes ([`LeaseVolume`](super::LeaseVolume)), so nothing is written
//! over what that one has written.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use weft_disk::{Class, Disk, DiskError, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts};
use weft_nbd::{NbdDisk, NbdOptions, NbdUri};
use weft_rt::ring::Ring;
use weft_rt::sync::Semaphore;
use weft_rt::{Buf, Frozen, Nanos, Rt};

use crate::coordinator::disks::AREA_BYTES;
use crate::{ClusterName, DiskName};

/// The export of a disk's leases, as the node of a number uses them.
pub fn lease_export_of(disk: &DiskName, cluster: &ClusterName, number: u32) -> String {
    format!("{disk}/{cluster}/lease-{number}")
}

/// The leases on a disk, through its server.
pub struct RemoteLeases {
    rt: Rt,
    ring: Ring,
    uri: NbdUri,
    options: NbdOptions,
    info: DiskInfo,
    link: RefCell<Option<Rc<NbdDisk>>>,
    opening: Semaphore,
    why: RefCell<Option<String>>,
}

impl std::fmt::Debug for RemoteLeases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteLeases").field("uri", &self.uri).finish_non_exhaustive()
    }
}

impl RemoteLeases {
    /// The leases at this URI, of which a request may take as long as `patience`. They are not
    /// reached yet.
    pub fn new(rt: &Rt, ring: &Ring, uri: NbdUri, read_only: bool, patience: Nanos) -> Self {
        let options = NbdOptions {
            read_only,
            connect_timeout: patience,
            request_timeout: patience,
            reconnect_attempts: 0,
            ..NbdOptions::default()
        };
        let info = DiskInfo {
            name: uri.to_string(),
            size_bytes: AREA_BYTES,
            sector_bytes: 4096,
            fast_zeroes: false,
            volatile_cache: true,
            rotational: false,
        };
        let (rt, ring, opening) = (rt.clone(), ring.clone(), Semaphore::new(1));
        let (link, why) = Default::default();
        Self { rt, ring, uri, options, info, link, opening, why }
    }

    /// Why they were not reached when that was tried last.
    pub fn why(&self) -> Option<String> {
        self.why.borrow().clone()
    }

    fn now(&self) -> Option<Rc<NbdDisk>> {
        self.link.borrow().clone()
    }

    fn failed(&self, op: DiskOp, offset: u64, len: usize, why: String) -> DiskError {
        DiskError::new(&self.info.name, op, offset, len as u64, io::Error::other(why))
    }

    async fn reached(&self) -> Result<Rc<NbdDisk>, String> {
        let _one = self.opening.acquire(1).await;
        if let Some(link) = self.now() {
            return Ok(link);
        }
        let opened = NbdDisk::open(&self.rt, &self.ring, &self.uri, self.options).await;
        let opened = opened.map(Rc::new).map_err(|error| error.to_string());
        *self.why.borrow_mut() = opened.as_ref().err().cloned();
        *self.link.borrow_mut() = opened.as_ref().ok().cloned();
        opened
    }

    /// A connection of which a request failed is not used again.
    fn check<T>(&self, link: &Rc<NbdDisk>, result: &Result<T, DiskError>) {
        if result.is_err() {
            self.link.borrow_mut().take_if(|now| Rc::ptr_eq(now, link));
        }
    }

    fn change<'a>(
        &'a self,
        op: DiskOp,
        request: impl AsyncFnOnce(&NbdDisk) -> Result<(), DiskError> + 'a,
    ) -> DoneFuture<'a> {
        Box::pin(async move {
            let link = self
                .now()
                .ok_or_else(|| self.failed(op, 0, 0, "the connection has ended".to_owned()))?;
            let result = request(&link).await;
            self.check(&link, &result);
            result
        })
    }
}

impl Disk for RemoteLeases {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let link = match self.reached().await {
                Ok(link) => link,
                Err(why) => {
                    return (Err(self.failed(DiskOp::Read, offset, buf.len(), why)), buf);
                }
            };
            let (result, buf) = link.read(offset, buf, class).await;
            self.check(&link, &result);
            (result, buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        self.change(DiskOp::Write, async move |disk| disk.write(offset, data, opts).await)
    }

    fn flush(&self) -> DoneFuture<'_> {
        self.change(DiskOp::Flush, async move |disk| disk.flush().await)
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        self.change(DiskOp::Write, async move |disk| disk.write_zeroes(offset, len, opts).await)
    }

    fn discard(&self, _: u64, _: u64) -> DoneFuture<'_> {
        Box::pin(async { Ok(()) })
    }
}
