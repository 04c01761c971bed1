//! Whether what is stored makes sense.
//!
//! All copies of the metadata are compared with its checksums. It is compared with itself: names,
//! positions, inodes, links, records and places. With `data`, every block of every file is read,
//! data and parity, and compared with its checksum; lines are compared with their code. Nothing is
//! changed, except that blocks and pages of the metadata which do not match their checksum are
//! rewritten from redundancy, and blocks that cannot be read get another place, as with every read.

use std::collections::{BTreeMap, BTreeSet};

use weft_code::UnitSet;
use weft_stripe::{Access, check};

use crate::disks::extent_stripe::ExtentStripe;
use crate::disks::pool::{Counts, runs_of};
use crate::error::{FsError, Result};
use crate::files::acl;
use crate::format::block::BLOCK_BYTES;
use crate::format::extent::{Column, Extent};
use crate::format::inode::{Ino, Inode, Kind, ROOT};
use crate::jobs::paths::paths_of;
use crate::meta::Tx;
use crate::state::mounted::{Fs, FsState};

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub ino: Ino,
    /// Its path, if it has one and it is known: files of which something is lost.
    pub path: Option<String>,
    /// What.
    pub what: String,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FsckReport {
    /// Inodes checked.
    pub inodes: u64,
    /// Blocks read.
    pub blocks: u64,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

impl FsckReport {
    fn find(&mut self, ino: Ino, what: impl Into<String>) {
        self.findings.push(Finding { ino, path: None, what: what.into() });
    }
}

impl FsState {
    fn check_metadata(&self, tx: &Tx<'_>) -> Result<FsckReport> {
        let mut report = FsckReport::default();
        let inodes: BTreeMap<Ino, Inode> = tx.inodes(0, usize::MAX)?.into_iter().collect();
        report.inodes = inodes.len() as u64;
        check_names(tx, &inodes, &mut report)?;
        let next = tx.state("next inode")?;
        let orphans: BTreeSet<Ino> = tx.orphans()?.into_iter().collect();
        for (ino, inode) in &inodes {
            if *ino >= next {
                report.find(*ino, "its number has not been given out yet");
            }
            if (inode.links == 0) != orphans.contains(ino) {
                report.find(*ino, "it has no names, or is to be deleted although it has");
            }
            if inode.kind() == Kind::Symlink && tx.symlink(*ino).is_err() {
                report.find(*ino, "the symbolic link has no target");
            }
            let [access, default] = [acl::ACCESS, acl::DEFAULT].map(|name| tx.xattr(*ino, name));
            if let Some(what) = acl::fault(inode, access?.as_deref(), default?.as_deref()) {
                report.find(*ino, what);
            }
        }
        self.check_records(tx, &inodes, &mut report)?;
        if !self.meta.is_counted(tx)? {
            report.find(0, "the bytes of all rows are not what was counted");
        }
        Ok(report)
    }

    fn check_records(
        &self,
        tx: &Tx<'_>,
        inodes: &BTreeMap<Ino, Inode>,
        report: &mut FsckReport,
    ) -> Result<()> {
        let mut owners: BTreeMap<(u16, u64), Ino> = BTreeMap::new();
        let mut blocks: BTreeMap<Ino, u64> = BTreeMap::new();
        let mut named: BTreeMap<u16, u64> = BTreeMap::new();
        let mut mapped: BTreeMap<(u64, Ino), u64> = BTreeMap::new();
        tx.each_record(|ino, first, record| {
            *blocks.entry(ino).or_default() += record.data_blocks();
            if inodes.get(&ino).is_none_or(|inode| inode.kind() != Kind::File) {
                report.find(ino, "it has blocks and is no file");
            }
            let mut disks = BTreeSet::new();
            for run in runs_of(&record) {
                if !disks.insert(run.disk) {
                    report.find(ino, format!("two columns of block {first} are on the same disk"));
                }
                *named.entry(run.disk).or_default() += run.blocks;
                *mapped.entry((run.disk.into(), ino)).or_default() += 1;
                let member = self.pool.member(run.disk);
                let end = run.start.saturating_add(run.blocks);
                if member.as_ref().is_none_or(|member| end > member.blocks()) {
                    report.find(ino, format!("block {first} is beyond disk {}", run.disk));
                    continue;
                }
                for block in run.start..end {
                    // What is reserved gets other places when it is written.
                    let is_bad = member.as_ref().is_some_and(|member| member.is_bad(block));
                    if is_bad && !record.unwritten {
                        let spot = format!("block {block} of disk {}", run.disk);
                        report.find(ino, format!("it uses {spot}, which is bad (from {first} on)"));
                    }
                    if let Some(other) =
                        owners.insert((self.pool.last_number(run.disk), block), ino)
                    {
                        let what = format!("block {block} of disk {} is also {other}'s", run.disk);
                        report.find(ino, what);
                    }
                }
            }
            Ok(())
        })?;
        check_maps(tx, mapped, report)?;
        self.check_bad_blocks(tx, report)?;
        for (ino, inode) in inodes {
            let stored = blocks.get(ino).copied().unwrap_or(0);
            if inode.blocks != stored {
                report.find(*ino, format!("it has {stored} blocks, and not {}", inode.blocks));
            }
        }
        for member in self.pool.members().iter().filter(|member| !member.is_lost()) {
            let named = named.get(&member.number).copied().unwrap_or(0);
            let taken = member.blocks() - member.free_blocks();
            if taken < named {
                let what =
                    format!("disk {} has {taken} blocks taken, and files {named}", member.number);
                report.find(0, what);
            }
        }
        Ok(())
    }

    /// Compares the table of bad blocks with what is kept from being used.
    fn check_bad_blocks(&self, tx: &Tx<'_>, report: &mut FsckReport) -> Result<()> {
        let mut kept = BTreeSet::new();
        for member in self.pool.members() {
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
        while let Some(first) = self.meta.run(|tx| tx.next_record(ino, from)).await? {
            self.check_record(ino, first).await?.tell(report);
            from = first + 1;
        }
        Ok(())
    }

    /// Reads every block of a record, if it is still there. Those that are wrong are repaired.
    pub(crate) async fn check_record(&self, ino: Ino, first: u64) -> Result<ExtentCheck> {
        let before = self.pool.counts.get();
        let held = self.hold_to_check(ino).await;
        let node = self.in_use.node(ino);
        let alone = node.alone().await;
        let checked = self.check_locked(ino, first).await;
        drop(alone);
        self.in_use.forget_clean(&node);
        drop(held);
        self.relocate().await?;
        let counts = self.pool.counts.get();
        let found = |counts: Counts| counts.wrong_blocks + counts.unreadable_blocks;
        let bad = found(counts) - found(before);
        let repaired = counts.repaired_blocks - before.repaired_blocks;
        Ok(ExtentCheck { bad, repaired, ..checked? })
    }

    async fn check_locked(&self, ino: Ino, first: u64) -> Result<ExtentCheck> {
        let mut checked = ExtentCheck { ino, first, ..ExtentCheck::default() };
        let mut found = self.meta.run(|tx| tx.records(ino, first, first + 1)).await?;
        let Some((_, record)) = found.pop().filter(|(at, _)| *at == first) else {
            return Ok(checked);
        };
        if record.unwritten {
            return Ok(checked);
        }
        let laid = self.pool.lay(&record)?;
        let units: UnitSet = record.active().map(|(unit, _)| unit).collect();
        let units = units.difference(&laid.stripe().lost);
        checked.blocks = record.lines * units.len() as u64;
        let is_back = |(_, column): (usize, &Column)| self.pool.successor(column.disk).is_some();
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
        let is_settled = stripe.lost.is_empty() && !self.pool.bad.any_suspects();
        if is_settled && record.coded.p() > 0 {
            for line in 0..record.lines {
                let access = Access::maintenance(line * BLOCK_BYTES);
                let compared = check(&laid, stripe, access, crate::format::block::BLOCK).await;
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

/// Compares the inode maps with the records that files have on each disk.
fn check_maps(
    tx: &Tx<'_>,
    mut expected: BTreeMap<(u64, Ino), u64>,
    report: &mut FsckReport,
) -> Result<()> {
    for (disk, ino, records) in tx.all_mapped()? {
        let there = expected.remove(&(disk, ino)).unwrap_or(0);
        if there != records {
            let what = format!("the map of disk {disk} has {records} of its records, not {there}");
            report.find(ino, what);
        }
    }
    for ((disk, ino), there) in expected {
        report.find(ino, format!("the map of disk {disk} lacks it: {there} records are there"));
    }
    Ok(())
}

fn check_names(tx: &Tx<'_>, inodes: &BTreeMap<Ino, Inode>, report: &mut FsckReport) -> Result<()> {
    let entries = tx.all_entries()?;
    let positions: BTreeMap<(Ino, u64), Vec<u8>> = tx
        .all_positions()?
        .into_iter()
        .map(|(folder, position, name)| ((folder, position), name))
        .collect();
    if positions.len() != entries.len() {
        report.find(ROOT, "there are not as many positions as names");
    }
    let mut links: BTreeMap<Ino, u32> = BTreeMap::new();
    let mut sizes: BTreeMap<Ino, u64> = BTreeMap::new();
    let mut folders: BTreeMap<Ino, u32> = BTreeMap::new();
    for (folder, name, entry) in &entries {
        let text = String::from_utf8_lossy(name);
        *links.entry(entry.ino).or_default() += 1;
        *sizes.entry(*folder).or_default() += 1;
        if positions.get(&(*folder, entry.position)) != Some(name) {
            report.find(*folder, format!("'{text}' is not at its position"));
        }
        let above = inodes.get(folder);
        if above.is_none_or(|above| !above.is_folder() || above.next_position <= entry.position) {
            report.find(*folder, format!("'{text}' is in something that cannot hold it"));
        }
        let Some(inode) = inodes.get(&entry.ino) else {
            report.find(*folder, format!("'{text}' names inode {}, which is not there", entry.ino));
            continue;
        };
        if inode.kind().mode() != entry.mode {
            report.find(entry.ino, format!("its name '{text}' has another type"));
        }
        if inode.is_folder() {
            *folders.entry(*folder).or_default() += 1;
            if inode.parent != *folder {
                report.find(entry.ino, format!("it is in {folder}, and not in {}", inode.parent));
            }
        }
    }
    let mut known = BTreeMap::new();
    for (ino, inode) in inodes {
        let named = links.get(ino).copied().unwrap_or(0);
        if inode.is_folder() && inode.links > 0 {
            let inside = folders.get(ino).copied().unwrap_or(0);
            if inode.links != 2 + inside || (named != 1 && *ino != ROOT) {
                let what = format!("{} links, {named} names, {inside} folders in it", inode.links);
                report.find(*ino, what);
            }
            if inode.size != sizes.get(ino).copied().unwrap_or(0) {
                report.find(*ino, "the number of its entries is wrong");
            }
            if !reaches_root(inodes, &mut known, *ino) {
                report.find(*ino, "the folder cannot be reached from the root");
            }
        } else if inode.links != named {
            report.find(*ino, format!("it has {named} names, and not {}", inode.links));
        }
    }
    Ok(())
}

/// Whether the way up from a folder ends at the root. Folders of which that is known are in
/// `known`, and none is walked through twice.
fn reaches_root(
    inodes: &BTreeMap<Ino, Inode>,
    known: &mut BTreeMap<Ino, bool>,
    mut ino: Ino,
) -> bool {
    let mut way = Vec::new();
    let reaches = loop {
        if ino == ROOT {
            break true;
        }
        if let Some(reaches) = known.get(&ino) {
            break *reaches;
        }
        // Who meets this folder again on the way up goes in a circle.
        known.insert(ino, false);
        way.push(ino);
        match inodes.get(&ino) {
            Some(inode) => ino = inode.parent,
            None => break false,
        }
    };
    known.extend(way.into_iter().map(|ino| (ino, reaches)));
    reaches
}

impl Fs {
    /// Checks the metadata, and with `data` every block.
    ///
    /// # Errors
    /// If the metadata cannot be read at all.
    pub async fn check(&self, data: bool) -> Result<FsckReport> {
        self.sync().await?;
        let alone = self.0.hold_all_tokens().await;
        self.0.write_all().await?;
        let pages = self.0.meta.check_pages().await?;
        let mut report = self.0.meta.run(|tx| self.0.check_metadata(tx)).await?;
        drop(alone);
        for page in pages.damaged {
            report.find(0, format!("page {page} of the metadata is wrong on all copies"));
        }
        if data {
            let mut from = 0;
            loop {
                let inodes = self.0.meta.run(|tx| tx.inodes(from, self.0.meta.at_a_time())).await?;
                let Some((last, _)) = inodes.last() else { break };
                from = last + 1;
                for (ino, _) in inodes.iter().filter(|(_, inode)| inode.kind() == Kind::File) {
                    self.0.check_data(*ino, &mut report).await?;
                }
            }
        }
        let inos: BTreeSet<Ino> = report.findings.iter().map(|finding| finding.ino).collect();
        let paths = self.0.meta.run(|tx| paths_of(tx, &inos)).await?;
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
    use crate::{AccessTimes, CreateOptions, MountOptions, NewFile, Redundancy, Time};

    #[test]
    fn folders_reach_the_root_or_not_however_deep_they_are() {
        let now = Time { s: 0, ns: 0 };
        let folder = |parent| Inode {
            mode: Kind::Folder.mode(),
            uid: 0,
            gid: 0,
            links: 2,
            device: 0,
            size: 0,
            accessed: now,
            modified: now,
            changed: now,
            born: None,
            flags: crate::Flags::default(),
            blocks: 0,
            parent,
            next_position: 3,
            generation: 0,
            redundancy: Redundancy::Auto,
        };
        // Each is in the one before; the deepest has the lowest number, or the highest.
        const DEEP: Ino = 200_000;
        let down = (ROOT + 1..DEEP).map(|ino| (ino, folder(ino - 1)));
        let up = (DEEP..2 * DEEP).map(|ino| (ino, folder(ino + 1)));
        let mut inodes: BTreeMap<Ino, Inode> = down.chain(up).collect();
        inodes.insert(2 * DEEP, folder(ROOT));
        // One in a circle, one beside it, and one in nothing.
        inodes.extend(
            [(-3, -2), (-2, -3), (-4, -3), (-6, -5)].map(|(ino, above): (i64, i64)| {
                (ino.cast_unsigned(), folder(above.cast_unsigned()))
            }),
        );
        let mut known = BTreeMap::new();
        let lost = inodes.keys().filter(|ino| !reaches_root(&inodes, &mut known, **ino));
        let lost: Vec<i64> = lost.map(|ino| ino.cast_signed()).collect();
        assert_eq!(lost, [-6, -4, -3, -2]);
    }

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
            fs.0.meta.run(|tx| plant(tx, column.disk, ino)).await.expect("planted");
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
}
