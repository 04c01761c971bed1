//! A disk that a node reaches through the keeper, as its own path to it has failed.
//!
//! ```text
//!   a request fails, and the diagnosis ── all requests to the disk have ended
//!        ── ask the keeper (`NoPath`) ──┬─ node 0 does not reach it either ──▶ it is lost for all
//!                                       └─ it works: node 0 makes the disk refuse what this node
//!                                          has sent it (`Fs::cut_paths_by`), and answers; if that
//!                                          cannot be had, this node stops
//!        ── flush, and read back what was not durable ──▶ requests go on, as messages
//! ```
//!
//! So the cable of one node costs no disk (Shinkai et al., *path failure*: there, requests of the
//! node fail). Once cut off, the node's own path stays closed until it mounts again.
//!
//! *Order.* A request of the old path may still be in flight when its node has given it up, at a
//! server that hangs, say. It would come after a later one that goes through the keeper. The cut is
//! a fence of the node at this one disk: it is confirmed when nothing of that can come any more.
//! From then on requests are ordered as follows:
//!
//! | what may come late | why it does not |
//! |---|---|
//! | a message of a connection that has ended | the keeper welcomes the next one when all that it took on the old one has ended, and takes nothing more there |
//! | a request of a keeper that is followed by another | it is fenced at the disks |
//! | a request of this node when it is fenced | its keeper waits for it before it says that the node is fenced, and before it recovers its log |
//! | a request whose caller does not wait for it any more | it goes on here, and a later one to the same bytes waits for it |
//!
//! *Durability.* Writes are durable when they are answered. Another keeper that flushes the disk
//! could not know whether the disk has forgotten what an earlier one wrote, as it was without power
//! for a moment. For the same reason the flush at the beginning comes before what is read back.
//!
//! *Limits.* It is as slow as the network, and as node 0. If node 0 itself has lost its path, the
//! disk counts as lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::rc::{Rc, Weak};

use weft_disk::{
    Class, Disk, DiskError, DiskErrorKind, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts,
};
use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{Buf, Frozen, Rt};
use weft_wire::{
    Answer, DISK_BYTES_MAX, DiskFault, DiskReply, DiskRequest, DiskWork, PathVerdict, Question,
};

use crate::disks::reopen::Reopen;
use crate::meta::remote::Link;

/// Requests that are with the keeper at a time.
const REQUESTS_MAX: usize = 8;

/// See the [module](self).
pub(crate) struct RelayedDisk {
    me: Weak<Self>,
    rt: Rt,
    link: Rc<Link>,
    number: u16,
    info: DiskInfo,
    places: Semaphore,
    order: Rc<WriteOrder>,
}

/// What is being written to a disk, however often it is reached anew.
#[derive(Default)]
pub(crate) struct WriteOrder {
    bytes: RefCell<BTreeMap<u64, Range<u64>>>,
    writes: Cell<u64>,
    written: Notify,
}

impl WriteOrder {
    /// Waits until none of these bytes are being written. From then on they are, until the end of
    /// this write, which has the number that is returned.
    async fn begin(&self, bytes: Range<u64>) -> u64 {
        loop {
            let written = self.written.wait();
            let meets = |other: &Range<u64>| other.start < bytes.end && bytes.start < other.end;
            if !self.bytes.borrow().values().any(meets) {
                break;
            }
            written.await;
        }
        let number = self.writes.get();
        self.writes.set(number + 1);
        self.bytes.borrow_mut().insert(number, bytes);
        number
    }

    fn end(&self, number: u64) {
        self.bytes.borrow_mut().remove(&number);
        self.written.notify_all();
    }
}

/// Opens a disk through the keeper in place of its own path, and notes that.
pub(crate) fn through_keeper(
    (rt, link): (&Rt, &Rc<Link>),
    number: u16,
    is_relayed: Rc<Cell<bool>>,
) -> Reopen {
    let (rt, link, order) = (rt.clone(), link.clone(), Rc::<WriteOrder>::default());
    Rc::new(move |name| {
        let (rt, link, order) = (rt.clone(), link.clone(), order.clone());
        let is_relayed = is_relayed.clone();
        Box::pin(async move {
            let disk = RelayedDisk::reach((&rt, &link), (number, name), Some(&order)).await?;
            is_relayed.set(true);
            Ok(disk)
        })
    })
}

impl RelayedDisk {
    /// Asks the keeper whether it reaches the disk. What this node has written there is durable
    /// then, as far as the disk still has it. Without `order` it has written nothing.
    ///
    /// # Errors
    /// Why the disk is lost.
    pub(crate) async fn reach(
        (rt, link): (&Rt, &Rc<Link>),
        (number, name): (u16, String),
        order: Option<&Rc<WriteOrder>>,
    ) -> Result<Rc<dyn Disk>, String> {
        let was_used = order.is_some();
        let answer = link.answer(Question::NoPath { disk: number, was_used }).await;
        let (size_bytes, sector_bytes) = match answer.map_err(|error| error.to_string())? {
            Answer::Path(PathVerdict::ThroughKeeper { size_bytes, sector_bytes }) => {
                (size_bytes, sector_bytes)
            }
            Answer::Path(PathVerdict::Lost(why)) => return Err(why),
            Answer::Path(PathVerdict::Stop(why)) => {
                // From now on it records nothing: the disk is not lost.
                link.refuse(&why);
                return Err(why);
            }
            _ => return Err("the keeper gave the answer to another question".to_owned()),
        };
        let info = DiskInfo {
            name,
            size_bytes,
            sector_bytes,
            fast_zeroes: false,
            volatile_cache: false,
            rotational: false,
        };
        let disk = Rc::new_cyclic(|me| Self {
            me: me.clone(),
            rt: rt.clone(),
            link: link.clone(),
            number,
            info,
            places: Semaphore::new(REQUESTS_MAX),
            order: order.cloned().unwrap_or_default(),
        });
        disk.flush().await.map_err(|error| error.to_string())?;
        Ok(disk)
    }

    fn failure(&self, place: (DiskOp, u64, u64), kind: DiskErrorKind, why: String) -> DiskError {
        let (op, offset, len) = place;
        let source = io::Error::other(format!("through the keeper: {why}"));
        let mut error = DiskError::new(&self.info.name, op, offset, len, source);
        error.kind = kind;
        error
    }

    /// What a request gives.
    async fn ask(&self, place: (DiskOp, u64, u64), work: DiskWork) -> Result<DiskReply, DiskError> {
        let (op, offset, _) = place;
        let _place = self.places.acquire(1).await;
        let request = DiskRequest { disk: self.number, offset, work };
        let (kind, why) = match self.link.answer(Question::Disk(request)).await {
            Ok(Answer::Disk(DiskReply::Failed { fault, why })) => {
                let kind = match fault {
                    DiskFault::Lost => DiskErrorKind::Gone,
                    DiskFault::NoSpace => DiskErrorKind::NoSpace,
                    DiskFault::Invalid => DiskErrorKind::Invalid,
                    DiskFault::Block if op == DiskOp::Read => DiskErrorKind::Medium,
                    DiskFault::Block => DiskErrorKind::Other,
                };
                (kind, why)
            }
            Ok(Answer::Disk(reply)) => return Ok(reply),
            Ok(_) => (DiskErrorKind::Other, "the answer to another question".to_owned()),
            Err(error) => (DiskErrorKind::Gone, error.to_string()),
        };
        Err(self.failure(place, kind, why))
    }

    /// Does something that returns no data.
    async fn done(&self, place: (DiskOp, u64, u64), work: DiskWork) -> Result<(), DiskError> {
        match self.ask(place, work).await? {
            DiskReply::Done => Ok(()),
            _ => Err(self.failure(place, DiskErrorKind::Other, "it is not done".to_owned())),
        }
    }

    /// Changes some bytes, after all earlier changes of them, and to its end even if this is
    /// dropped.
    async fn change(&self, place: (DiskOp, u64, u64), work: DiskWork) -> Result<(), DiskError> {
        let (_, offset, len) = place;
        let number = self.order.begin(offset..offset + len).await;
        let this = self.me.upgrade().expect("it is used");
        let task = self.rt.spawn(async move {
            let done = this.done(place, work).await;
            this.order.end(number);
            done
        });
        task.await
    }
}

impl Disk for RelayedDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf, _: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let mut from = offset;
            for piece in buf.chunks_mut(DISK_BYTES_MAX as usize) {
                let len = u32::try_from(piece.len()).expect("it is a piece");
                let place = (DiskOp::Read, from, u64::from(len));
                match self.ask(place, DiskWork::Read { len }).await {
                    Ok(DiskReply::Data(data)) if data.len() == piece.len() => {
                        piece.copy_from_slice(&data);
                    }
                    Ok(_) => {
                        let why = "other bytes than were asked for".to_owned();
                        return (Err(self.failure(place, DiskErrorKind::Other, why)), buf);
                    }
                    Err(error) => return (Err(error), buf),
                }
                from += u64::from(len);
            }
            (Ok(()), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            let mut to = offset;
            for piece in data.chunks(DISK_BYTES_MAX as usize) {
                let len = piece.len() as u64;
                let work = DiskWork::Write { data: piece.to_vec() };
                self.change((DiskOp::Write, to, len), work).await?;
                to += len;
            }
            Ok(())
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(self.done((DiskOp::Flush, 0, 0), DiskWork::Flush))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: WriteOpts) -> DoneFuture<'_> {
        let work = DiskWork::WriteZeroes { len };
        Box::pin(self.change((DiskOp::WriteZeroes, offset, len), work))
    }

    fn discard(&self, _: u64, _: u64) -> DoneFuture<'_> {
        Box::pin(async { Ok(()) })
    }
}
