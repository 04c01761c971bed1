//! Requests of nodes to disks that node 0 carries out ([`crate::state::path_desk`]).

use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_disk::{Class, DiskError, DiskErrorKind, IoFuture, WriteOpts};
use weft_rt::{Buf, Frozen, Nanos, SECOND};
use weft_token::NodeId;
use weft_wire::{Answer, DiskFault, DiskReply, DiskRequest, DiskWork, PathVerdict};

use crate::disks::member::{Member, PresentDisk};
use crate::format::block::BLOCK_BYTES;
use crate::state::mounted::{Fs, FsState};
use crate::state::path_desk::CutPath;

/// How long a disk may take to show that it works.
const LOOK: Nanos = 60 * SECOND;
/// How often a cut is tried, and the pause between two attempts.
const CUTS: u32 = 3;
const CUT_AGAIN: Nanos = SECOND;

/// A request that has not ended.
struct TakenRequest {
    fs: Rc<FsState>,
    node: NodeId,
}

impl Drop for TakenRequest {
    fn drop(&mut self) {
        self.fs.path_desk().end(self.node);
    }
}

fn failed(fault: DiskFault, why: impl Into<String>) -> DiskReply {
    DiskReply::Failed { fault, why: why.into() }
}

impl PresentDisk {
    /// Whether other nodes may write these bytes: they are of the data, and not of the metadata; or
    /// a diagnostic block.
    fn is_for_nodes(&self, offset: u64, len: u64) -> bool {
        let label = self.label.borrow();
        let Some(end) = offset.checked_add(len) else { return false };
        if label.data().start <= offset && end <= label.data().end {
            let meets = |range: &std::ops::Range<u64>| range.start < end && offset < range.end;
            return !label.slice_ranges().iter().any(meets);
        }
        len == BLOCK_BYTES && label.sites().iter().any(|site| site.numbered == offset)
    }
}

impl FsState {
    /// A request to a disk starts, unless the node is not served any more.
    fn begin_request(self: &Rc<Self>, node: NodeId) -> Option<TakenRequest> {
        if !self.path_desk().takes(node) {
            return None;
        }
        self.path_desk().begin(node);
        Some(TakenRequest { fs: self.clone(), node })
    }

    /// A node cannot reach a disk. None: it is not served any more.
    pub(crate) async fn judge_path(
        self: Rc<Self>,
        node: NodeId,
        disk: u16,
        was_used: bool,
    ) -> Option<Answer> {
        // A cut is the last that happens to a node's own path in its life.
        let _taken = self.begin_request(node)?;
        let verdict = match self.pool().member(disk).filter(|member| member.is_present()) {
            None => PathVerdict::Lost(format!("there is no disk {disk}")),
            Some(member) => self.judge(node, &member, was_used).await,
        };
        if matches!(verdict, PathVerdict::ThroughKeeper { .. }) {
            self.path_desk().relayed.borrow_mut().insert((node, disk));
        }
        Some(Answer::Path(verdict))
    }

    async fn judge(&self, node: NodeId, member: &Rc<Member>, was_used: bool) -> PathVerdict {
        let works = {
            let looked = pin!(self.pool().diagnose(member));
            match select(looked, pin!(self.rt().sleep(LOOK))).await {
                Either::Left((works, _)) => works,
                Either::Right(_) => false,
            }
        };
        if !works {
            self.pool().lose(member);
        } else if was_used && !self.cut_path(node, member).await {
            return PathVerdict::Stop(format!(
                "its path to {} has failed, and the disk does not confirm that it refuses what was \
                 sent there",
                member.row().name
            ));
        }
        let why = member.why_lost.borrow().clone();
        match member.present().filter(|_| !member.is_lost()) {
            None => PathVerdict::Lost(why.unwrap_or_else(|| "it does not work".to_owned())),
            Some(present) => PathVerdict::ThroughKeeper {
                size_bytes: present.whole.size_now(),
                sector_bytes: present.whole.info().sector_bytes,
            },
        }
    }

    /// Makes a disk refuse what a node has sent it on its own path.
    async fn cut_path(&self, node: NodeId, member: &Member) -> bool {
        let Some(cut) = self.path_desk().cut.borrow().clone() else { return false };
        let Some(present) = member.present() else { return false };
        for n in 0..CUTS {
            if n > 0 {
                self.rt().sleep(CUT_AGAIN).await;
            }
            if cut(node, present.whole.info().name.clone()).await {
                return true;
            }
        }
        false
    }

    /// Carries out what a node asks of a disk. It counts from now on. None: the node is not served
    /// any more.
    pub(crate) fn use_disk(
        self: Rc<Self>,
        node: NodeId,
        request: DiskRequest,
    ) -> IoFuture<'static, Option<Answer>> {
        let Some(taken) = self.begin_request(node) else { return Box::pin(async { None }) };
        self.path_desk().relayed.borrow_mut().insert((node, request.disk));
        // It goes on if its connection ends.
        let rt = self.rt().clone();
        let task = rt.spawn(async move {
            let reply = self.carry_out(request).await;
            drop(taken);
            reply
        });
        Box::pin(async move { Some(Answer::Disk(task.await)) })
    }

    async fn carry_out(&self, request: DiskRequest) -> DiskReply {
        let DiskRequest { disk, offset, work } = request;
        let lost = || failed(DiskFault::Lost, format!("disk {disk} is lost"));
        let Some(member) = self.pool().member(disk) else { return lost() };
        let Some(present) = member.present().filter(|_| !member.is_lost()) else { return lost() };
        match self.carry_out_on(present, offset, work).await {
            Ok(reply) => reply,
            Err(error) => {
                use DiskErrorKind::{Invalid, NoSpace};
                let why = error.to_string();
                match error.kind {
                    NoSpace => failed(DiskFault::NoSpace, why),
                    Invalid => failed(DiskFault::Invalid, why),
                    _ if error.op == weft_disk::DiskOp::Flush => {
                        // What its cache lost is not known.
                        self.pool().lose(&member);
                        lost()
                    }
                    _ if self.pool().diagnose(&member).await => failed(DiskFault::Block, why),
                    _ => lost(),
                }
            }
        }
    }

    async fn carry_out_on(
        &self,
        present: &PresentDisk,
        offset: u64,
        work: DiskWork,
    ) -> Result<DiskReply, DiskError> {
        let len = match &work {
            DiskWork::Read { len } => u64::from(*len),
            DiskWork::Write { data } => data.len() as u64,
            DiskWork::WriteZeroes { len } => *len,
            DiskWork::Flush => {
                present.whole.flush().await?;
                return Ok(DiskReply::Done);
            }
        };
        let is_read = matches!(work, DiskWork::Read { .. });
        let whole = &present.whole;
        let sector = u64::from(whole.info().sector_bytes);
        let is_whole = offset.is_multiple_of(sector) && len.is_multiple_of(sector);
        let fits = offset.checked_add(len).is_some_and(|end| end <= whole.size_now());
        if len == 0 || !is_whole || !fits || !is_read && !present.is_for_nodes(offset, len) {
            return Ok(failed(DiskFault::Invalid, "no node has these bytes"));
        }
        // Requests for data wait in the disk's queue with those of this node.
        let data = present.label.borrow().data();
        let (disk, at) = match data.start <= offset && offset + len <= data.end {
            true => (&present.data, offset - data.start),
            false => (whole, offset),
        };
        match work {
            DiskWork::Read { .. } => {
                let bytes = usize::try_from(len).expect("it is short");
                let (result, buf) = disk.read(at, Buf::new(bytes), Class::User).await;
                result?;
                Ok(DiskReply::Data(buf[..].into()))
            }
            DiskWork::Write { data } => {
                disk.write(at, Frozen::copy_from(&data), WriteOpts::USER_FUA).await?;
                Ok(DiskReply::Done)
            }
            DiskWork::WriteZeroes { .. } => {
                disk.write_zeroes(at, len, WriteOpts::USER_FUA).await?;
                Ok(DiskReply::Done)
            }
            DiskWork::Flush => unreachable!("it is done"),
        }
    }
}

impl Fs {
    /// Of node 0: how a disk, by its name here, is made to refuse all that a node has sent it on
    /// its own path, and whatever it may still send there in this epoch. `cut` returns whether that
    /// is confirmed: then nothing of it takes effect any more. Without this, a node stops when its
    /// path to a disk fails that works here.
    pub fn cut_paths_by<F: Future<Output = bool> + 'static>(
        &self,
        cut: impl Fn(NodeId, String) -> F + 'static,
    ) {
        let cut: CutPath = Rc::new(move |node, disk| Box::pin(cut(node, disk)));
        *self.0.path_desk().cut.borrow_mut() = Some(cut);
    }

    /// The disks: number, name here, and whether it is lost.
    #[must_use]
    pub fn disk_names(&self) -> Vec<(u16, String, bool)> {
        let members = self.0.pool().members().into_iter();
        members.map(|of| (of.number, of.row().name.clone(), of.is_lost())).collect()
    }

    /// Of node 0: the disks that nodes reach through it, as their own paths have failed.
    #[must_use]
    pub fn relayed_disks(&self) -> Vec<(NodeId, u16)> {
        self.0.path_desk().relayed.borrow().iter().copied().collect()
    }
}
