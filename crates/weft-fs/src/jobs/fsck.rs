//! Whether the stored structures are consistent.
//!
//! All copies of the metadata are compared with its checksums. It is compared with itself: names,
//! positions, inodes, links, records and places. With `data`, every block of every file is read,
//! data and parity, and compared with its checksum; lines are compared with their code. Nothing is
//! changed, except that blocks and pages of the metadata which do not match their checksum are
//! rewritten from redundancy, and blocks that cannot be read get another place, as with every read.
//!
//! All of it goes in steps, with other operations in between, and in bounded memory
//! ([`crate::jobs::name_check`], [`crate::jobs::block_check`]).

use std::collections::BTreeSet;

use weft_code::UnitSet;
use weft_stripe::{Access, check};
use weft_token::Mode::Shared;

use crate::disks::extent_stripe::ExtentStripe;
use crate::disks::pool::Counts;
use crate::error::{FsError, Result};
use crate::files::acl;
use crate::format::block::{BLOCK, BLOCK_BYTES};
use crate::format::extent::{Column, Extent};
use crate::format::inode::{Ino, Inode, Kind};
use crate::jobs::findings::FsckReport;
use crate::jobs::name_check::Reaching;
use crate::meta::{NEXT_INODE, Tx};
use crate::state::mounted::{Fs, FsState};

/// The most inodes that are looked at in one operation, with what belongs to them.
const INODES_AT_A_TIME: usize = 32;

impl FsState {
    /// Looks at all inodes, in steps.
    async fn check_inodes(&self, report: &mut FsckReport) -> Result<()> {
        let (mut from, mut reaching) = (0, Reaching::default());
        loop {
            let mut long = Vec::new();
            let some = self.meta().run(|tx| {
                let inodes = tx.inodes(from, INODES_AT_A_TIME.min(self.meta().at_a_time()))?;
                for (ino, inode) in &inodes {
                    let whole = self.check_inode(tx, (*ino, inode), &mut reaching, report)?;
                    long.extend((!whole).then_some((*ino, inode.is_folder())));
                }
                report.inodes += inodes.len() as u64;
                Ok(inodes.last().map(|(ino, _)| *ino))
            });
            let Some(last) = some.await? else { return Ok(()) };
            from = last + 1;
            for (ino, is_folder) in long {
                match is_folder {
                    true => self.check_long_folder(ino, report).await?,
                    false => self.check_long_file(ino, report).await?,
                }
            }
            self.rt().yield_now().await;
        }
    }

    /// Looks at an inode. `false` if what belongs to it is too much for one operation.
    fn check_inode(
        &self,
        tx: &Tx<'_>,
        (ino, inode): (Ino, &Inode),
        reaching: &mut Reaching,
        report: &mut FsckReport,
    ) -> Result<bool> {
        if ino >= tx.state(NEXT_INODE)? {
            report.find(ino, "its number has not been given out yet");
        }
        if (inode.links == 0) != tx.is_orphan(ino)? {
            report.find(ino, "it has no names, or is to be deleted although it has");
        }
        if inode.kind() == Kind::Symlink && tx.symlink(ino).is_err() {
            report.find(ino, "the symbolic link has no target");
        }
        let [access, default] = [acl::ACCESS, acl::DEFAULT].map(|name| tx.xattr(ino, name));
        if let Some(what) = acl::fault(inode, access?.as_deref(), default?.as_deref()) {
            report.find(ino, what);
        }
        match inode.kind() {
            Kind::Folder => self.check_short_folder(tx, (ino, inode), reaching, report),
            Kind::File => self.check_short_file(tx, (ino, inode), report),
            _ => Ok(true),
        }
    }

    async fn check_metadata(&self) -> Result<FsckReport> {
        let mut report = FsckReport::default();
        self.check_inodes(&mut report).await?;
        self.check_names(&mut report).await?;
        self.check_maps(&mut report).await?;
        self.check_owners(&mut report).await?;
        self.meta()
            .run(|tx| {
                self.check_bad_blocks(tx, &mut report)?;
                if !self.meta().is_counted(tx)? {
                    report.find(0, "the bytes of all rows are not what was counted");
                }
                Ok(())
            })
            .await?;
        Ok(report)
    }

    /// Compares the table of bad blocks with the blocks kept out of use.
    fn check_bad_blocks(&self, tx: &Tx<'_>, report: &mut FsckReport) -> Result<()> {
        let mut kept = BTreeSet::new();
        for member in self.pool().members() {
            let space = member.space.borrow();
            kept.extend(space.bad_blocks().iter().map(|block| (member.number, *block)));
        }
        for (disk, block) in tx.bad_blocks()? {
            if !kept.remove(&(disk, block)) {
                report
                    .find(0, format!("block {block} of disk {disk} is bad, and not kept from use"));
            }
        }
        for (disk, block) in kept {
            report
                .find(0, format!("block {block} of disk {disk} is not in the table of bad blocks"));
        }
        Ok(())
    }

    /// Reads every block of a file.
    async fn check_data(&self, ino: Ino, report: &mut FsckReport) -> Result<()> {
        let mut from = 0;
        while let Some(first) = self.meta().run(|tx| tx.next_record(ino, from)).await? {
            self.check_record(ino, first).await?.tell(report);
            from = first + 1;
        }
        Ok(())
    }

    /// Reads every block of a record, if it is still there. Those that are wrong are repaired.
    /// While nothing is wrong users do not wait for it.
    pub(crate) async fn check_record(&self, ino: Ino, first: u64) -> Result<ExtentCheck> {
        if let Some(checked) = self.check_unlocked(ino, first).await? {
            return Ok(checked);
        }
        let before = self.pool().counts.get();
        let file = self.lock_to_check(ino).await;
        let checked = self.check_locked(ino, first).await;
        drop(file);
        self.relocate().await?;
        let counts = self.pool().counts.get();
        let found = |counts: Counts| counts.wrong_blocks + counts.unreadable_blocks;
        let bad = found(counts) - found(before);
        let repaired = counts.repaired_blocks - before.repaired_blocks;
        Ok(ExtentCheck { bad, repaired, ..checked? })
    }

    /// Reads every block of a record without the lock of its file. None if something is not as the
    /// record says, or cannot be: it may have changed meanwhile.
    async fn check_unlocked(&self, ino: Ino, first: u64) -> Result<Option<ExtentCheck>> {
        let _everything = self.hold_everything().await;
        let tokens = self.hold_files_of_batch([ino], Shared).await;
        let record = self.meta().run(|tx| tx.record_at(ino, first)).await?;
        drop(tokens);
        let mut checked = ExtentCheck { ino, first, ..ExtentCheck::default() };
        let Some(record) = record.filter(|record| !record.unwritten) else {
            return Ok(Some(checked));
        };
        let _turn = self.job_pace().turn(self.rt()).await;
        let laid = self.pool().lay(&record)?;
        let units: UnitSet = record.active().map(|(unit, _)| unit).collect();
        if laid.stripe().lost.intersects(&units) || self.pool().bad.any_suspects() {
            return Ok(None);
        }
        checked.blocks = record.lines * units.len() as u64;
        if laid.read_unlocked(&record, units, 0..record.lines).await.is_none() {
            return Ok(None);
        }
        if record.coded.p() > 0 {
            let len = usize::try_from(record.lines).expect("few lines") * BLOCK;
            let compared = check(&laid, laid.stripe(), Access::maintenance(0), len).await;
            if !compared.is_ok_and(|compared| compared.wrong.is_empty()) {
                return Ok(None);
            }
        }
        Ok(Some(checked))
    }

    async fn check_locked(&self, ino: Ino, first: u64) -> Result<ExtentCheck> {
        let mut checked = ExtentCheck { ino, first, ..ExtentCheck::default() };
        let mut found = self.meta().run(|tx| tx.records(ino, first, first + 1)).await?;
        let Some((_, record)) = found.pop().filter(|(at, _)| *at == first) else {
            return Ok(checked);
        };
        if record.unwritten {
            return Ok(checked);
        }
        let laid = self.pool().lay(&record)?;
        let units: UnitSet = record.active().map(|(unit, _)| unit).collect();
        let units = units.difference(&laid.stripe().lost);
        checked.blocks = record.lines * units.len() as u64;
        let is_back = |(_, column): (usize, &Column)| self.pool().successor(column.disk).is_some();
        let units = match record.active().any(is_back) {
            // What a disk that has come back holds is as good, if it is right.
            true if !laid.is_readable() => UnitSet::first(record.coded.k()),
            _ => units,
        };
        if let Some(unit) = lost_unit(&laid, &record).filter(|unit| !units.contains(*unit)) {
            checked.unreadable = Some(first + unit as u64);
            return Ok(checked);
        }
        match laid.read(&record, (ino, first), units, 0..record.lines).await {
            Ok(_) => {}
            Err(FsError::Unreadable { block, .. }) => {
                checked.unreadable = Some(block);
                return Ok(checked);
            }
            Err(error) => return Err(error),
        }
        let stripe = laid.stripe();
        // A block that is about to move still has its old contents.
        let is_settled = stripe.lost.is_empty() && !self.pool().bad.any_suspects();
        if is_settled && record.coded.p() > 0 {
            for line in 0..record.lines {
                let access = Access::maintenance(line * BLOCK_BYTES);
                let compared = check(&laid, stripe, access, BLOCK).await;
                if !compared.is_ok_and(|compared| compared.wrong.is_empty()) {
                    checked.wrong_parity.push(first + line * record.k());
                }
            }
        }
        Ok(checked)
    }
}

/// A data block of lines that no disk gives any more, as those with it and with parity are lost.
fn lost_unit(laid: &ExtentStripe, record: &Extent) -> Option<usize> {
    if laid.is_readable() {
        return None;
    }
    let lost = laid.stripe().lost;
    let mut data = record.active().map(|(unit, _)| unit).filter(|unit| *unit < record.coded.k());
    data.find(|unit| lost.contains(*unit))
}

/// What the blocks of a record are like.
#[derive(Debug, Default)]
pub(crate) struct ExtentCheck {
    ino: Ino,
    first: u64,
    pub(crate) blocks: u64,
    pub(crate) bad: u64,
    pub(crate) repaired: u64,
    /// The first block that cannot be had.
    unreadable: Option<u64>,
    /// Lines, by their first block, whose blocks match their checksums but not each other.
    wrong_parity: Vec<u64>,
}

impl ExtentCheck {
    /// Whether something is wrong that could not be repaired.
    pub(crate) fn is_damaged(&self) -> bool {
        self.unreadable.is_some() || !self.wrong_parity.is_empty()
    }

    fn tell(&self, report: &mut FsckReport) {
        report.blocks += self.blocks;
        let Self { ino, first, bad, repaired, .. } = self;
        if let Some(block) = self.unreadable {
            report.find(*ino, format!("block {block} cannot be read or reconstructed"));
        } else if *bad > 0 {
            let what =
                format!("{bad} of the blocks from {first} on were wrong; {repaired} repaired");
            report.find(*ino, what);
        }
        for block in &self.wrong_parity {
            report.find(*ino, format!("parity of the line of block {block} is wrong"));
        }
    }
}

impl Fs {
    /// Checks the metadata, and with `data` every block.
    ///
    /// # Errors
    /// If the metadata cannot be read at all.
    pub async fn check(&self, data: bool) -> Result<FsckReport> {
        self.0.meta().array()?;
        self.sync().await?;
        let _one = self.0.begin_check().await;
        // What other nodes have changed is in the metadata then. They go on meanwhile.
        let alone = self.0.hold_all_tokens().await;
        self.0.write_all().await?;
        drop(alone);
        let pages = self.0.meta().check_pages().await?;
        let checked = self.0.check_metadata().await;
        self.0.meta().end_watch();
        let mut report = checked?;
        for page in pages.damaged {
            report.find(0, format!("page {page} of the metadata is wrong on all copies"));
        }
        if data {
            let mut from = 0;
            loop {
                let inodes =
                    self.0.meta().run(|tx| tx.inodes(from, self.0.meta().at_a_time())).await?;
                let Some((last, _)) = inodes.last() else { break };
                from = last + 1;
                for (ino, _) in inodes.iter().filter(|(_, inode)| inode.kind() == Kind::File) {
                    self.0.check_data(*ino, &mut report).await?;
                }
            }
        }
        let inos: BTreeSet<Ino> = report.findings.iter().map(|finding| finding.ino).collect();
        let paths = self.0.paths_of(&inos).await?;
        report.findings.iter_mut().for_each(|of| of.path = paths.get(&of.ino).cloned());
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use weft_disk::{Disk, RamDisk};
    use weft_rt::{Frozen, Schedule, virtual_rt};

    use super::*;
    use crate::format::inode::ROOT;
    use crate::{AccessTimes, CreateOptions, MountOptions, NewFile, Redundancy, Time};

    /// What a plant of damage does to the metadata of file `ino`, which lies on `disk`.
    type Plant = fn(&Tx<'_>, u16, Ino) -> Result<()>;

    fn findings(plant: Plant) -> Vec<String> {
        let rt = virtual_rt(Schedule::Fifo);
        let inner = rt.clone();
        let found = rt.block_on(async move {
            let disk = |n| Rc::new(RamDisk::new(&format!("d{n}"), 20 << 20, 512)) as Rc<dyn Disk>;
            let disks: Vec<Rc<dyn Disk>> = (0..4).map(disk).collect();
            let now = Time { s: 0, ns: 0 };
            let options = CreateOptions {
                name: "test".into(),
                redundancy: Redundancy::Auto,
                slice_bytes: Some(8 << 20),
                force: false,
                id: [7; 16],
                now,
            };
            crate::create(&inner, &disks, &options).await.expect("created");
            let options = MountOptions {
                degraded: false,
                stale: false,
                read_only: false,
                access_times: AccessTimes::Relative,
                cache_bytes: 1 << 20,
                meta_cache_bytes: 0,
                nonce: 1,
                now,
                host: None,
                clock: None,
            };
            let fs = Fs::mount(&inner, &disks, options).await.expect("mounted");
            let mode = Kind::File.mode() | 0o644;
            let file = NewFile { mode, umask: 0, uid: 0, gid: 0, device: 0, target: b"" };
            let (ino, _) = fs.make(ROOT, b"file", file).await.expect("made");
            fs.write(ino, 0, Frozen::copy_from(&[1; 50_000])).await.expect("written");
            fs.sync().await.expect("synced");
            assert_eq!(fs.check(true).await.expect("checked").findings, []);
            let places = fs.places(ino).await.expect("known");
            let (_, column) = places[0].1.active().next().expect("active");
            fs.0.meta().run(|tx| plant(tx, column.disk, ino)).await.expect("planted");
            fs.check(false).await.expect("checked").findings
        });
        rt.kill_all();
        found.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn damage_in_the_maps_is_found() {
        let lacking = findings(|tx, disk, ino| tx.put_mapped(disk, ino, 0));
        assert!(lacking.len() == 1 && lacking[0].contains("lacks it"), "{lacking:?}");
        let wrong = findings(|tx, disk, ino| tx.put_mapped(disk, ino, 99));
        assert!(wrong.len() == 1 && wrong[0].contains("99 of its records"), "{wrong:?}");
        let stranger = findings(|tx, disk, _| tx.put_mapped(disk, 4711, 1));
        assert!(stranger.len() == 1 && stranger[0].contains("1 of its records"), "{stranger:?}");
    }
    #[test]
    fn damage_in_names_links_and_places_is_found() {
        let only = |plant: Plant, what: &str| {
            let found = findings(plant);
            assert!(found.len() == 1 && found[0].contains(what), "{what}: {found:?}");
        };
        only(
            |tx, _, ino| tx.put_inode(ino, &Inode { links: 2, ..tx.inode(ino)? }),
            "it has 1 names, and not 2",
        );
        only(
            |tx, _, ino| tx.put_inode(ino, &Inode { blocks: 99, ..tx.inode(ino)? }),
            "it has 13 blocks, and not 99",
        );
        only(
            |tx, _, _| tx.put_inode(ROOT, &Inode { size: 7, ..tx.inode(ROOT)? }),
            "the number of its entries is wrong",
        );
        only(
            |tx, _, _| {
                let entry = tx.entry(ROOT, b"file")?.expect("there");
                let mut inode = tx.inode(ROOT)?;
                inode.size += 1;
                tx.put_inode(ROOT, &inode)?;
                let stray = crate::meta::Entry { ino: 4711, ..entry };
                tx.put_entry(ROOT, b"stray", &crate::meta::Entry { position: 2, ..stray })
            },
            "'stray' names inode 4711, which is not there",
        );
        let twice = findings(|tx, _, ino| {
            let (_, record) = tx.records(ino, 0, 1)?.remove(0);
            tx.put_record(ino, 1000, &record)
        });
        let also = twice.iter().filter(|what| what.contains("is also")).count();
        assert_eq!(also, 4, "{twice:?}");
        let unnamed = findings(|tx, _, ino| {
            let entry = tx.entry(ROOT, b"file")?.expect("there");
            tx.remove_entry(ROOT, b"file", &entry)?;
            tx.put_inode(ino, &Inode { links: 1, ..tx.inode(ino)? })
        });
        assert!(unnamed.iter().any(|what| what.contains("it has 0 names")), "{unnamed:?}");
    }
}
