//! Telling failures apart: has a block failed, the way to the disk, or the disk?
//!
//! A single failed request tells little. So the file system asks the disk something that it must be
//! able to do, if it works at all (Shinkai et al., *Recovery from disk failures*): it reads and
//! writes *diagnostic blocks*, which lie at fixed places beside the labels.
//!
//! ```text
//!   a read or write fails ── diagnostic blocks ──┬─ work ───▶ block failure: the block is moved,
//!                                                │            and not used again (`relocate`)
//!                                                └─ do not ── opened again, they ──┐
//!            path failure: the request is repeated (`path`) ◀── work ──────────────┤
//!            device failure: the disk is lost, and rebuilt onto others ◀── do not ─┘
//! ```
//!
//! There are two *sites*, at the start and at the end of a disk, and one that works is enough: a
//! bad spot that meets a site does not condemn the disk. A site has two blocks. One is written when
//! the disk joins, and only read: it holds the disk's identity, so that another disk that has come
//! to the same place does not pass. The other is written with a new number each time, durably, and
//! read back. A scrub looks at all sites, and mends them.
//!
//! *A disk that was cut short* has lost what it held there, whether its diagnostic blocks work or
//! not, and also if it is long again when it is opened the next time. As long as nothing asks it
//! for anything no request fails, so it is looked for now and then ([`Pool::look_at_sizes`]).
//!
//! *What cannot be told apart.* A flush that fails loses the disk: which blocks went with its cache
//! is not known. So does a request that gets no answer in time: it may still be carried out, after
//! a later one to the same block.

use weft_disk::{Class, Disk, WriteOpts};
use weft_rt::{Buf, Frozen};

use crate::disks::member::{Member, PresentDisk};
use crate::disks::pool::Pool;
use crate::format::block::BLOCK;
use crate::format::label::{Label, Site};

/// What a diagnosis writes: what the disk is known by, and a number.
fn numbered(label: &Label, number: u64) -> Frozen {
    let mut block = Buf::copy_from(&label.diagnostic());
    block[..8].copy_from_slice(&number.to_le_bytes());
    block.freeze()
}

/// Whether a block can be read, and holds this.
async fn holds(disk: &dyn Disk, at: u64, expected: &[u8]) -> bool {
    let (result, found) = disk.read(at, Buf::new(BLOCK), Class::User).await;
    result.is_ok() && *found == *expected
}

/// Whether a site's block can be written, and read back. Another node may write its own number
/// there at the same time: then that is found, and not what was there before.
async fn takes(disk: &dyn Disk, at: u64, data: Frozen) -> bool {
    let (_, before) = disk.read(at, Buf::new(BLOCK), Class::User).await;
    if disk.write(at, data.clone(), WriteOpts::USER_FUA).await.is_err() {
        return false;
    }
    let (result, found) = disk.read(at, Buf::new(BLOCK), Class::User).await;
    let is_new = found[..8] == data[..8] || found[..8] != before[..8];
    result.is_ok() && is_new && found[8..] == data[8..]
}

impl PresentDisk {
    /// Whether one of its sites works.
    async fn works(&self, number: u64) -> bool {
        let sites = self.label.borrow().sites();
        for site in sites {
            if self.works_at(site, number).await {
                return true;
            }
        }
        false
    }

    /// The error of a read of a disk that does not work.
    async fn why(&self) -> Option<String> {
        let (result, _) = self.whole.read(0, Buf::new(BLOCK), Class::User).await;
        result.err().map(|error| error.to_string())
    }

    async fn works_at(&self, site: Site, number: u64) -> bool {
        let (label, whole) = (self.label.borrow().clone(), &self.whole);
        holds(&**whole, site.known, &label.diagnostic()).await
            && takes(&**whole, site.numbered, numbered(&label, number)).await
    }
}

impl Pool {
    /// Finds out, after a request failed, whether the disk works. If it does not, it is lost.
    pub(crate) async fn diagnose(&self, member: &Member) -> bool {
        let _one = member.diagnosing.acquire(1).await;
        let Some(present) = member.present().filter(|_| !member.is_lost()) else { return false };
        let number = self.next_diagnosis();
        let has_shrunk = present.whole.has_shrunk();
        let mut works = !has_shrunk && present.works(number).await;
        if !works {
            // If it cannot be opened again, it says no more than that.
            let mut why = present.why().await;
            if has_shrunk {
                why = why.or_else(|| Some("it has become shorter than it was".to_owned()));
            } else if let Some(path) = &present.path {
                works = path.try_again().await && present.works(number).await;
            }
            if !works {
                *member.why_lost.borrow_mut() = why;
                self.lose(member);
            }
        }
        !member.is_lost()
    }

    /// Loses disks that were cut short.
    pub(crate) async fn look_at_sizes(&self) {
        for member in self.members() {
            let present = member.present().filter(|_| !member.is_lost());
            if present.is_some_and(|present| present.whole.has_shrunk()) {
                self.diagnose(&member).await;
            }
        }
    }

    /// Looks at all diagnostic blocks of a disk, and writes those anew that are wrong. Returns how
    /// many were.
    pub(crate) async fn mend_diagnostics(&self, member: &Member) -> u64 {
        let _one = member.diagnosing.acquire(1).await;
        let Some(present) = member.present().filter(|_| !member.is_lost()) else { return 0 };
        let (label, whole) = (present.label.borrow().clone(), &present.whole);
        let number = self.next_diagnosis();
        let mut wrong = 0;
        for site in label.sites() {
            if !holds(&**whole, site.known, &label.diagnostic()).await {
                wrong += 1;
                // Whether that helped is found by the next one.
                let _ = whole.write(site.known, label.diagnostic(), WriteOpts::USER_FUA).await;
            }
            if !takes(&**whole, site.numbered, numbered(&label, number)).await {
                wrong += 1;
            }
        }
        wrong
    }
}
