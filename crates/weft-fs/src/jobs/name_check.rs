//! Whether names, positions, folders and links agree, for `fsck`.
//!
//! Everything is checked in steps; each is one operation of the metadata: what belongs to a row or
//! a short folder is looked at within one. A long folder takes several steps, and the names of a
//! file may be anywhere. So files that change during the check are noted; if one does that seems to
//! be wrong, it is looked at again. One that changes each time is not judged.
//!
//! *Memory.* Links are counted for [`COUNTED`] inodes at a time, with a walk through all names for
//! each such part; folders that are known to reach the root are [`KNOWN_MAX`] at most.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::error::{FsError, Result};
use crate::format::inode::{Ino, Inode, ROOT};
use crate::jobs::findings::FsckReport;
use crate::meta::{Entry, Tx};
use crate::state::mounted::FsState;

/// Numbers of inodes whose links are counted in one walk: 16 MiB of counts.
const COUNTED: u64 = 4 << 20;
/// Files that seem to be wrong and are looked at again together.
const AGAIN_MAX: usize = 4096;
/// How often an inode that changes during the check is checked again.
const TRIES: usize = 5;
/// The most folders that are remembered to reach the root.
const KNOWN_MAX: usize = 1 << 19;

/// Folders that are known to reach the root.
#[derive(Default)]
pub(crate) struct Reaching(HashSet<Ino>);

impl Reaching {
    /// Whether the way up from a folder ends at the root. `parent` is the folder that one is in, if
    /// it is there.
    fn reaches_root(
        &mut self,
        mut ino: Ino,
        mut parent: impl FnMut(Ino) -> Result<Option<Ino>>,
    ) -> Result<bool> {
        let mut way = HashSet::new();
        while ino != ROOT && !self.0.contains(&ino) {
            // Who meets this folder again on the way up goes in a circle.
            if !way.insert(ino) {
                return Ok(false);
            }
            match parent(ino)? {
                Some(above) => ino = above,
                None => return Ok(false),
            }
        }
        if self.0.len() + way.len() > KNOWN_MAX {
            self.0.clear();
        }
        self.0.extend(way);
        Ok(true)
    }
}

/// What was counted of a folder.
#[derive(Default)]
struct FolderCount {
    names: u64,
    folders: u32,
    /// What is wrong with single entries.
    wrong: Vec<(Ino, String)>,
}

impl FolderCount {
    /// Looks at entries of a folder from a position on. Returns where to go on, if anywhere.
    fn look(
        &mut self,
        tx: &Tx<'_>,
        (folder, inode): (Ino, &Inode),
        from: u64,
        max: usize,
    ) -> Result<Option<u64>> {
        let mut rows = tx.positions_from((folder, from), max)?;
        let is_all = rows.len() < max;
        rows.retain(|(of, ..)| *of == folder);
        let next = rows.last().filter(|_| !is_all && rows.len() == max);
        let next = next.map(|(_, position, _)| position + 1);
        for (_, position, name) in rows {
            let text = String::from_utf8_lossy(&name);
            let Some(entry) = tx.entry(folder, &name)? else {
                self.wrong.push((folder, format!("position {position} has no entry")));
                continue;
            };
            if entry.position != position {
                self.wrong.push((folder, format!("'{text}' is not at its position")));
                continue;
            }
            self.names += 1;
            if inode.next_position <= position {
                let what = format!("'{text}' is in something that cannot hold it");
                self.wrong.push((folder, what));
            }
            self.folders += u32::from(self.look_at_target(tx, folder, &text, &entry)?);
        }
        Ok(next)
    }

    /// Looks at what an entry names. Returns whether it is a folder.
    fn look_at_target(
        &mut self,
        tx: &Tx<'_>,
        folder: Ino,
        text: &str,
        entry: &Entry,
    ) -> Result<bool> {
        let named = match tx.inode(entry.ino) {
            Err(FsError::NotFound) => {
                let what = format!("'{text}' names inode {}, which is not there", entry.ino);
                self.wrong.push((folder, what));
                return Ok(false);
            }
            named => named?,
        };
        if named.kind().mode() != entry.mode {
            self.wrong.push((entry.ino, format!("its name '{text}' has another type")));
        }
        if named.is_folder() && named.parent != folder {
            let what = format!("it is in {folder}, and not in {}", named.parent);
            self.wrong.push((entry.ino, what));
        }
        Ok(named.is_folder())
    }

    /// Reports the faults of a folder that was checked completely.
    fn tell(self, ino: Ino, inode: &Inode, report: &mut FsckReport) {
        if inode.size != self.names {
            report.find(ino, "the number of its entries is wrong");
        }
        if inode.links > 0 && inode.links != 2 + self.folders {
            let what = format!("{} links, and {} folders in it", inode.links, self.folders);
            report.find(ino, what);
        }
        self.wrong.into_iter().for_each(|(ino, what)| report.find(ino, what));
    }
}

impl FsState {
    /// Looks at a folder, within one operation. `false` if it is too long for that.
    pub(crate) fn check_short_folder(
        &self,
        tx: &Tx<'_>,
        (ino, inode): (Ino, &Inode),
        reaching: &mut Reaching,
        report: &mut FsckReport,
    ) -> Result<bool> {
        let parent = |ino| match tx.inode(ino) {
            Ok(inode) => Ok(inode.is_folder().then_some(inode.parent)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        };
        if inode.links > 0 && !reaching.reaches_root(ino, parent)? {
            report.find(ino, "the folder cannot be reached from the root");
        }
        let mut count = FolderCount::default();
        if count.look(tx, (ino, inode), 0, self.meta().at_a_time())?.is_some() {
            return Ok(false);
        }
        count.tell(ino, inode, report);
        Ok(true)
    }

    /// Looks at a long folder, in steps.
    pub(crate) async fn check_long_folder(&self, ino: Ino, report: &mut FsckReport) -> Result<()> {
        for _ in 0..TRIES {
            self.meta().watch();
            let (mut count, mut from) = (FolderCount::default(), Some(0));
            while let Some(position) = from {
                let max = self.meta().at_a_time();
                let look = |tx: &Tx<'_>| match tx.inode(ino) {
                    Ok(inode) => count.look(tx, (ino, &inode), position, max),
                    Err(FsError::NotFound) => Ok(None),
                    Err(error) => Err(error),
                };
                from = self.meta().run(look).await?;
                self.rt().yield_now().await;
            }
            let judged = self.meta().run(|tx| {
                if self.meta().may_have_changed(ino) {
                    return Ok(false);
                }
                let inode = tx.inode(ino)?;
                count.tell(ino, &inode, report);
                Ok(true)
            });
            if judged.await? {
                break;
            }
        }
        Ok(())
    }

    /// Compares all names with their positions, and links with names.
    pub(crate) async fn check_names(&self, report: &mut FsckReport) -> Result<()> {
        let mut from = 0;
        let last = self.meta().run(|tx| tx.last_inode()).await?.unwrap_or(0);
        while from <= last {
            let inos = from..(from + COUNTED).min(last + 1);
            let mut wrong =
                self.miscounted(inos.clone(), (from == 0).then_some(&mut *report)).await?;
            // Ones that have changed since may be correct.
            for _ in 0..TRIES {
                wrong = self.tell_miscounted(wrong, report).await?;
                if wrong.is_empty() {
                    break;
                }
            }
            from = inos.end;
        }
        self.check_folders_of_positions(report).await
    }

    /// Inodes of a range that do not have as many names as links. With a report, each name is
    /// looked at on the way.
    async fn miscounted(
        &self,
        inos: std::ops::Range<Ino>,
        mut report: Option<&mut FsckReport>,
    ) -> Result<BTreeSet<Ino>> {
        let index = |ino: Ino| usize::try_from(ino - inos.start).expect("a part of them");
        let mut counts = vec![0_u32; index(inos.end)];
        let count = |ino: Ino| {
            if inos.contains(&ino) {
                counts[index(ino)] += 1;
            }
        };
        self.each_name(count, |tx, row| match &mut report {
            Some(report) => look_at_name(tx, row, report),
            None => Ok(()),
        })
        .await?;
        let (mut wrong, mut from) = (BTreeSet::new(), inos.start);
        while from < inos.end {
            let some = self.meta().run(|tx| tx.inodes(from, self.meta().at_a_time())).await?;
            let Some((last, _)) = some.last() else { break };
            from = last + 1;
            let of_range = some.iter().filter(|(ino, _)| inos.contains(ino));
            let is_wrong =
                |(ino, inode): &&(Ino, Inode)| !has_names(*ino, inode, counts[index(*ino)]);
            wrong.extend(of_range.filter(is_wrong).map(|(ino, _)| *ino));
            self.rt().yield_now().await;
        }
        Ok(wrong)
    }

    /// Counts the names of these inodes, and reports inodes with another number of links. Returns
    /// the ones that have changed since.
    async fn tell_miscounted(
        &self,
        inos: BTreeSet<Ino>,
        report: &mut FsckReport,
    ) -> Result<BTreeSet<Ino>> {
        let (all, mut again): (Vec<Ino>, _) = (inos.into_iter().collect(), BTreeSet::new());
        for some in all.chunks(AGAIN_MAX) {
            self.meta().watch();
            let mut counts: BTreeMap<Ino, u32> = some.iter().map(|ino| (*ino, 0)).collect();
            let count = |ino: Ino| {
                if let Some(count) = counts.get_mut(&ino) {
                    *count += 1;
                }
            };
            self.each_name(count, |_, _| Ok(())).await?;
            let tell = |tx: &Tx<'_>| {
                for (ino, count) in counts {
                    if self.meta().may_have_changed(ino) {
                        again.insert(ino);
                        continue;
                    }
                    let inode = match tx.inode(ino) {
                        Err(FsError::NotFound) => continue,
                        inode => inode?,
                    };
                    if !has_names(ino, &inode, count) {
                        let wanted = if inode.is_folder() { 1 } else { inode.links };
                        report.find(ino, format!("it has {count} names, and not {wanted}"));
                    }
                }
                Ok(())
            };
            self.meta().run(tell).await?;
        }
        Ok(again)
    }

    /// Counts what each name of any folder names, and looks at it, some in one operation.
    async fn each_name(
        &self,
        mut count: impl FnMut(Ino),
        mut look: impl FnMut(&Tx<'_>, &(Ino, Vec<u8>, Entry)) -> Result<()>,
    ) -> Result<()> {
        let mut last = (0, Vec::new());
        loop {
            let some = self.meta().run(|tx| {
                let some = tx.names_behind((last.0, &last.1), self.meta().at_a_time())?;
                some.iter().try_for_each(|row| {
                    count(row.2.ino);
                    look(tx, row)
                })?;
                Ok(some)
            });
            let Some((folder, name, _)) = some.await?.pop() else { return Ok(()) };
            last = (folder, name);
            self.rt().yield_now().await;
        }
    }

    /// Finds positions without a folder.
    async fn check_folders_of_positions(&self, report: &mut FsckReport) -> Result<()> {
        let mut from = 0;
        loop {
            let next = self.meta().run(|tx| {
                let Some((folder, ..)) = tx.positions_from((from, 0), 1)?.pop() else {
                    return Ok(None);
                };
                if !is_folder(tx, folder)? {
                    report.find(folder, "it has positions and is no folder");
                }
                Ok(Some(folder + 1))
            });
            match next.await? {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }
}

/// Whether an inode may have this number of names.
fn has_names(ino: Ino, inode: &Inode, names: u32) -> bool {
    match inode.is_folder() && inode.links > 0 {
        true => names == 1 || ino == ROOT,
        false => names == inode.links,
    }
}

fn is_folder(tx: &Tx<'_>, ino: Ino) -> Result<bool> {
    match tx.inode(ino) {
        Ok(inode) => Ok(inode.is_folder()),
        Err(FsError::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Looks at what only a walk through names finds: those without a position, or in no folder.
fn look_at_name(
    tx: &Tx<'_>,
    (folder, name, entry): &(Ino, Vec<u8>, Entry),
    report: &mut FsckReport,
) -> Result<()> {
    let text = String::from_utf8_lossy(name);
    if !is_folder(tx, *folder)? {
        report.find(*folder, format!("'{text}' is in something that cannot hold it"));
    }
    let at = tx.positions_from((*folder, entry.position), 1)?.pop();
    if at.is_none_or(|at| at != (*folder, entry.position, name.clone())) {
        report.find(*folder, format!("'{text}' is not at its position"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn folders_reach_the_root_or_not_however_deep_they_are() {
        // Each is in the one before; the deepest has the lowest number, or the highest.
        const DEEP: Ino = 200_000;
        let down = (ROOT + 1..DEEP).map(|ino| (ino, ino - 1));
        let up = (DEEP..2 * DEEP).map(|ino| (ino, ino + 1));
        let mut parents: BTreeMap<Ino, Ino> = down.chain(up).collect();
        parents.insert(2 * DEEP, ROOT);
        // One in a circle, one beside it, and one in nothing.
        parents.extend(
            [(-3, -2), (-2, -3), (-4, -3), (-6, -5)]
                .map(|(ino, above): (i64, i64)| (ino.cast_unsigned(), above.cast_unsigned())),
        );
        let (mut reaching, mut steps) = (Reaching::default(), 0_u64);
        let mut lost = Vec::new();
        for ino in parents.keys() {
            let parent = |ino| {
                steps += 1;
                Ok(parents.get(&ino).copied())
            };
            if !reaching.reaches_root(*ino, parent).expect("known") {
                lost.push(ino.cast_signed());
            }
        }
        assert_eq!(lost, [-6, -4, -3, -2]);
        assert!(steps < 3 * DEEP, "{steps} steps");
    }
}
