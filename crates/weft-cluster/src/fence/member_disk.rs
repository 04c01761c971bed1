//! A shared disk as a member of the cluster uses it: a member that was fenced stops, and takes its
//! disks for sound.
//!
//! A fence is not a failure of the disk. Whoever uses the disk must not conclude that it is lost,
//! and write that to another disk which has not been told of the fence yet. So a request that a
//! fence has met never ends. When one disk refuses this member, or the record says that it is none
//! any more, all requests to all its disks stand still ([`EndOfUse`]), and the process is told:
//! it ends.
//!
//! A disk server ends the connection of a node that is fenced, as it does when it stops. So before
//! a failed request is reported, the disk is asked whether the node was fenced. A disk with
//! reservations tells that with the request itself (EBADE).

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_disk::{
    Class, Disk, DiskError, DiskErrorKind, DiskInfo, DoneFuture, IoFuture, Layer, ReadFuture,
    WriteOpts,
};
use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{Buf, Frozen};

use super::{Fence, FenceError};
use crate::Incarnation;

/// Whether a process may use its disks; it ends once, for all of them.
#[derive(Debug, Default)]
pub struct EndOfUse {
    why: RefCell<Option<String>>,
    told: Notify,
}

impl EndOfUse {
    /// Ends the use of all disks.
    pub fn end(&self, why: impl Into<String>) {
        self.why.borrow_mut().get_or_insert_with(|| why.into());
        self.told.notify_all();
    }

    /// Why it has ended, if it has.
    pub fn why(&self) -> Option<String> {
        self.why.borrow().clone()
    }

    /// Waits for the end, and says why.
    pub async fn wait(&self) -> String {
        loop {
            let told = self.told.wait();
            if let Some(why) = self.why() {
                return why;
            }
            told.await;
        }
    }

    /// What a request gives, unless the use has ended: then it never ends.
    async fn unless_ended<T>(&self, request: IoFuture<'_, T>) -> T {
        if self.why.borrow().is_none() {
            let ended = Box::pin(self.wait());
            if let Either::Left((done, _)) = select(request, ended).await
                && self.why.borrow().is_none()
            {
                return done;
            }
        }
        std::future::pending().await
    }
}

/// A shared disk, as a member uses it.
pub struct MemberDisk {
    disk: Rc<dyn Disk>,
    info: DiskInfo,
    fence: Rc<dyn Fence>,
    own: Incarnation,
    end: Rc<EndOfUse>,
    /// Whether the disk itself tells a fence from a failure ([`super::LastingDisk`]).
    tells_fences: bool,
    asking: Semaphore,
    /// How often the disk was asked.
    asked: Cell<u64>,
}

impl fmt::Debug for MemberDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberDisk").field("name", &self.info.name).finish_non_exhaustive()
    }
}

impl MemberDisk {
    /// `disk` is what `own` uses of the disk of `fence`, which is at this place.
    pub fn new(
        disk: Rc<dyn Disk>,
        (fence, place): (Rc<dyn Fence>, String),
        own: Incarnation,
        end: Rc<EndOfUse>,
    ) -> Self {
        let info = DiskInfo { name: place, ..disk.info().clone() };
        let (asking, asked) = (Semaphore::new(1), Cell::new(0));
        Self { disk, info, fence, own, end, tells_fences: false, asking, asked }
    }

    /// The same for a disk that tells a fence from a failure, as [`super::LastingDisk`] does: it
    /// has asked the server before it reports a failure.
    pub fn lasting(
        disk: Rc<dyn Disk>,
        by: (Rc<dyn Fence>, String),
        own: Incarnation,
        end: Rc<EndOfUse>,
    ) -> Self {
        Self { tells_fences: true, ..Self::new(disk, by, own, end) }
    }

    /// Looks at a failure: ends the use if it comes from a fence.
    async fn look_at(&self, error: &DiskError) {
        match error.kind {
            // The server has carried the request out, as far as it could.
            DiskErrorKind::Medium | DiskErrorKind::NoSpace | DiskErrorKind::Invalid => return,
            DiskErrorKind::Fenced => return self.end.end(error.to_string()),
            DiskErrorKind::Gone if self.tells_fences => return,
            _ => {}
        }
        let asked = self.asked.get();
        let _one = self.asking.acquire(1).await;
        // Another request that failed at about the same time has asked.
        if self.asked.get() > asked + 1 {
            return;
        }
        self.asked.set(self.asked.get() + 1);
        // It must not register again: it would take back a fence by reservations.
        let refused = self.fence.confirm(&self.own).await;
        if let Err(error @ FenceError::Fenced { .. }) = refused {
            self.end.end(error.to_string());
        }
    }

    async fn done(&self, request: DoneFuture<'_>) -> Result<(), DiskError> {
        let request = async {
            let result = request.await;
            if let Err(error) = &result {
                self.look_at(error).await;
            }
            result
        };
        self.end.unless_ended(Box::pin(request)).await
    }
}

impl Layer for MemberDisk {
    fn below(&self) -> &dyn Disk {
        &*self.disk
    }

    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        let request = async move {
            let (result, buf) = self.disk.read(offset, buf, class).await;
            if let Err(error) = &result {
                self.look_at(error).await;
            }
            (result, buf)
        };
        Box::pin(self.end.unless_ended(Box::pin(request)))
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(self.done(self.disk.write(offset, data, opts)))
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(self.done(self.disk.flush()))
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(self.done(self.disk.write_zeroes(offset, len, opts)))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(self.done(self.disk.discard(offset, len)))
    }
}
