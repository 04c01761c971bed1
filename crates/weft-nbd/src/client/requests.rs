//! Splits requests to the server's maximum size, sends them, and repeats them where that is safe.

use std::io;

use futures_util::future::join_all;
use weft_disk::{
    Class, Disk, DiskError, DiskErrorKind, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts,
};
use weft_rt::{Buf, Frozen, Nanos, ZEROS_BYTES_MAX};

use super::link::{Answer, Link};
use super::{LATE, NbdDisk, Shared, State, before, witness};
use crate::proto::{Errno, PAYLOAD_BYTES_MAX, Request, wire};

/// Zeros of one request, at most: even a server that writes them out is done within its timeout.
const ZEROES_BYTES_MAX: u64 = 64 << 20;

/// A request to the server.
struct Call {
    op: DiskOp,
    flags: u16,
    offset: u64,
    len: u64,
    data: Option<Frozen>,
    buf: Option<Buf>,
}

impl Shared {
    /// One request, from start to end.
    async fn call(&self, mut call: Call) -> (Result<(), DiskError>, Option<Buf>) {
        let started = self.rt.now();
        // What is sent at once is in the table of the link, where `watch` looks at its time.
        let answer = match (self.slots.try_acquire(1), self.link_now()) {
            (Some(slot), Some(link)) => {
                let buf = call.buf.take();
                let answer = self.submit(&link, &call, buf, started).await;
                drop(slot);
                answer
            }
            _ => Answer::Lost(call.buf.take()),
        };
        let outcome = match answer {
            Answer::Lost(buf) => Box::pin(self.call_later(&call, buf, started)).await,
            answered => answered,
        };
        let Call { op, offset, len, .. } = call;
        match outcome {
            Answer::Done(buf) => (Ok(()), buf),
            Answer::Refused(errno, text, buf) => {
                (Err(self.refused(op, offset, len, errno, text)), buf)
            }
            Answer::Lost(buf) => {
                let why = self.gone_because();
                (Err(self.gone_error(op, offset, len, why)), buf)
            }
        }
    }

    /// A request that has to wait for a place or a connection, or lost its own: within the rest of
    /// its time.
    async fn call_later(&self, call: &Call, buf: Option<Buf>, started: Nanos) -> Answer {
        let deadline = started.saturating_add(self.options.request_timeout);
        let answer = before(&self.rt, deadline, self.try_again(call, buf, started)).await;
        answer.unwrap_or_else(|| {
            self.give_up(LATE);
            Answer::Lost(None)
        })
    }

    /// Whether a request that was lost may be sent again is decided where the link ended: if not,
    /// there is no other link. A read that kills each link is not tried forever.
    async fn try_again(&self, call: &Call, mut buf: Option<Buf>, started: Nanos) -> Answer {
        let _slot = self.slots.acquire(1).await;
        for _ in 0..=self.options.reconnect_attempts {
            let Ok(link) = self.link().await else { break };
            if buf.is_none() && call.op == DiskOp::Read {
                buf = Some(Buf::new(usize::try_from(call.len).unwrap_or(0)));
            }
            match self.submit(&link, call, buf.take(), started).await {
                Answer::Lost(back) => buf = back,
                answered => return answered,
            }
        }
        Answer::Lost(buf)
    }

    async fn submit(&self, link: &Link, call: &Call, buf: Option<Buf>, started: Nanos) -> Answer {
        let command = match call.op {
            DiskOp::Read | DiskOp::Open => wire::CMD_READ,
            DiskOp::Write => wire::CMD_WRITE,
            DiskOp::Flush => wire::CMD_FLUSH,
            DiskOp::WriteZeroes => wire::CMD_WRITE_ZEROES,
            DiskOp::Discard => wire::CMD_TRIM,
        };
        let len = u32::try_from(call.len).expect("requests are cut to the largest payload");
        let request = Request { flags: call.flags, command, cookie: 0, offset: call.offset, len };
        let answer = link.submit(request, call.data.clone(), buf, started, &self.durability);
        answer.await.unwrap_or(Answer::Lost(None))
    }

    /// Whether the known blocks are unchanged; `None` if the link ends first.
    pub(super) async fn is_same_disk(&self, link: &Link) -> Option<bool> {
        for offset in self.witness.blocks() {
            let (op, len) = (DiskOp::Read, witness::BLOCK as u64);
            let call = Call { op, flags: 0, offset, len, data: None, buf: None };
            let buf = Some(Buf::new(witness::BLOCK));
            match self.submit(link, &call, buf, self.rt.now()).await {
                Answer::Done(Some(buf)) if self.witness.is_same(offset, &buf) => {}
                // It cannot be read any more, or has other contents.
                Answer::Done(Some(_)) | Answer::Refused(..) => return Some(false),
                Answer::Done(None) | Answer::Lost(_) => return None,
            }
        }
        Some(true)
    }

    fn gone_because(&self) -> String {
        match &*self.state.borrow() {
            State::Gone(why) => why.clone(),
            _ => "the connection broke each time this request was sent".to_owned(),
        }
    }

    fn gone_error(&self, op: DiskOp, offset: u64, len: u64, why: String) -> DiskError {
        let source = io::Error::new(io::ErrorKind::NotConnected, why);
        DiskError::new(&self.info.name, op, offset, len, source)
    }

    fn refused(&self, op: DiskOp, offset: u64, len: u64, errno: Errno, text: String) -> DiskError {
        let code = i32::try_from(errno.code()).unwrap_or(i32::MAX);
        let source = io::Error::from_raw_os_error(code);
        let mut error = DiskError::new(&self.info.name, op, offset, len, source);
        match errno {
            Errno::Shutdown => error.kind = DiskErrorKind::Gone,
            // The request was checked before it was sent: the server is at fault, or has an error
            // that the protocol has no number for.
            Errno::Invalid => error.kind = DiskErrorKind::Other,
            _ => {}
        }
        if !text.is_empty() {
            let text = format!("{}: the server reports: {text}", error.source);
            error.source = io::Error::new(error.source.kind(), text);
        }
        error
    }

    fn check(&self, op: DiskOp, offset: u64, len: u64) -> Result<(), DiskError> {
        self.info.check_within(self.size_bytes.get(), op, offset, len)?;
        if op != DiskOp::Read && self.options.read_only {
            let source = io::Error::from(io::ErrorKind::PermissionDenied);
            return Err(DiskError::new(&self.info.name, op, offset, len, source));
        }
        Ok(())
    }

    fn payload_max(&self) -> u64 {
        let max = self.peer.block.max.min(PAYLOAD_BYTES_MAX);
        u64::from(max - max % self.info.sector_bytes).max(self.info.sector_bytes.into())
    }

    fn has(&self, flag: u16) -> bool {
        self.peer.flags & flag != 0
    }

    /// FUA as a flag, and whether a flush must follow instead.
    fn fua(&self, wanted: bool) -> (u16, bool) {
        match (wanted, self.has(wire::EXPORT_SEND_FUA)) {
            (false, _) => (0, false),
            (true, true) => (wire::CMD_FLAG_FUA, false),
            (true, false) => (0, true),
        }
    }

    async fn flush(&self) -> Result<(), DiskError> {
        let (op, flags) = (DiskOp::Flush, 0);
        self.call(Call { op, flags, offset: 0, len: 0, data: None, buf: None }).await.0
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Result<(), DiskError>, Buf) {
        let before = self.witness.before_read();
        let (result, buf) = self.read_all(offset, buf).await;
        if result.is_ok() {
            self.witness.note_read(before, offset, &buf);
        }
        (result, buf)
    }

    async fn read_all(&self, offset: u64, mut buf: Buf) -> (Result<(), DiskError>, Buf) {
        let len = buf.len() as u64;
        let op = DiskOp::Read;
        if let Err(error) = self.check(op, offset, len) {
            return (Err(error), buf);
        }
        if len == 0 {
            return (Ok(()), buf);
        }
        let max = usize::try_from(self.payload_max()).unwrap_or(usize::MAX);
        let total = buf.len();
        if total <= max {
            let call = Call { op, flags: 0, offset, len, data: None, buf: Some(buf) };
            let (result, buf) = self.call(call).await;
            return (result, buf.unwrap_or_else(|| Buf::new(total)));
        }
        let mut calls = Vec::new();
        let mut at = offset;
        while !buf.is_empty() {
            let rest = buf.split_off(buf.len().min(max));
            let len = buf.len() as u64;
            let piece = std::mem::replace(&mut buf, rest);
            calls.push(Call { op, flags: 0, offset: at, len, data: None, buf: Some(piece) });
            at += len;
        }
        let mut outcome = Ok(());
        let mut whole: Option<Buf> = None;
        for (result, part) in join_all(calls.into_iter().map(|call| self.call(call))).await {
            outcome = outcome.and(result);
            match (&mut whole, part) {
                (None, part) => whole = part,
                // A part that was lost with its connection was replaced; the read has failed.
                (Some(whole), Some(part)) => _ = whole.join(part),
                (Some(_), None) => {}
            }
        }
        let whole = whole.filter(|whole| whole.len() == total);
        (outcome, whole.unwrap_or_else(|| Buf::new(total)))
    }

    async fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> Result<(), DiskError> {
        let (op, len) = (DiskOp::Write, data.len() as u64);
        self.check(op, offset, len)?;
        let changing = self.witness.change(offset, len);
        let (flags, flush) = self.fua(opts.fua);
        let max = self.payload_max();
        let mut calls = Vec::new();
        for start in (0..len).step_by(usize::try_from(max).unwrap_or(usize::MAX)) {
            let part = max.min(len - start);
            let index = |n: u64| usize::try_from(n).expect("inside a buffer");
            let data = Some(data.slice(index(start), index(part)));
            calls.push(Call { op, flags, offset: offset + start, len: part, data, buf: None });
        }
        for (result, _) in join_all(calls.into_iter().map(|call| self.call(call))).await {
            result?;
        }
        if let Some(changing) = changing {
            changing.done(offset, &data);
        }
        if flush { self.flush().await } else { Ok(()) }
    }

    async fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> Result<(), DiskError> {
        let op = DiskOp::WriteZeroes;
        self.check(op, offset, len)?;
        let _changing = self.witness.change(offset, len);
        let (flags, flush) = self.fua(opts.fua);
        let command = self.has(wire::EXPORT_SEND_WRITE_ZEROES);
        let max =
            if command { ZEROES_BYTES_MAX } else { self.payload_max().min(ZEROS_BYTES_MAX as u64) };
        let mut start = 0;
        while start < len {
            let part = max.min(len - start);
            let offset = offset + start;
            let (op, data) = if command {
                (op, None)
            } else {
                (DiskOp::Write, usize::try_from(part).ok().map(Frozen::zeros))
            };
            self.call(Call { op, flags, offset, len: part, data, buf: None }).await.0?;
            start += part;
        }
        if flush { self.flush().await } else { Ok(()) }
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        let op = DiskOp::Discard;
        self.check(op, offset, len)?;
        let _changing = self.witness.change(offset, len);
        if !self.has(wire::EXPORT_SEND_TRIM) {
            return Ok(());
        }
        let mut start = 0;
        while start < len {
            let part = ZEROES_BYTES_MAX.min(len - start);
            let offset = offset + start;
            let call = Call { op, flags: 0, offset, len: part, data: None, buf: None };
            self.call(call).await.0?;
            start += part;
        }
        Ok(())
    }
}

impl Disk for NbdDisk {
    fn info(&self) -> &DiskInfo {
        &self.0.info
    }

    fn read(&self, offset: u64, buf: Buf, _class: Class) -> ReadFuture<'_> {
        Box::pin(self.0.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(self.0.write(offset, data, opts))
    }

    fn flush(&self) -> DoneFuture<'_> {
        // Read-only: there is nothing to flush, and the server may not offer it.
        Box::pin(async { if self.0.options.read_only { Ok(()) } else { self.0.flush().await } })
    }

    fn write_zeroes(&self, offset: u64, len: u64, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(self.0.write_zeroes(offset, len, opts))
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        Box::pin(self.0.discard(offset, len))
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        (offset < self.size_now()).then_some(offset)
    }

    fn size_now(&self) -> u64 {
        self.0.size_bytes.get()
    }

    fn sever(&self, _why: &str) {
        self.0.sever();
    }
}
