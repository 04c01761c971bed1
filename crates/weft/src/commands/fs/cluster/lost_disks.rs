//! Disks that the keeper takes back: those that were lost only as they were away.
//!
//! A disk is away while its server, or the way to it, does not answer: since the file system has
//! lost it, or when this keeper mounted without it. The keeper notes in the record which disks that
//! were ([`Record::away`]): it may die, and the file system may have been rebuilt without such a
//! disk, and have forgotten it. The next keeper takes them back as this one would.
//!
//! A disk that answers again is taken back as `weft fs add` does it. It refuses all incarnations
//! that are no members before it is used. What it has missed is not used: blocks that records still
//! name count with their checksums only; if no record names any, it joins as an empty one. Without
//! a label of the file system it is another one in its place, or has left: only users add it. A
//! disk that a user adds meanwhile is not awaited any more.
//!
//! [`Record::away`]: weft_cluster::Record::away

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_cli::output::log_line;
use weft_cluster::{ClusterName, DiskName, Incarnation};
use weft_disk::Disk;
use weft_fs::{DiskStatus, Fs, Label};
use weft_rt::{Nanos, SECOND};

use super::Party;
use super::pool;

/// How often the keeper looks whether a disk that was lost is there again.
const TAKE_BACK_EVERY: Nanos = 2 * SECOND;

/// A disk that was lost.
#[derive(Clone)]
struct LostDisk {
    place: String,
    /// Whether it was away since.
    was_away: bool,
}

/// Disks that were lost, and may be taken back.
#[derive(Default)]
pub(super) struct LostDisks(RefCell<BTreeMap<DiskName, LostDisk>>);

impl LostDisks {
    /// Those that were away, and where they were.
    pub(super) fn away(&self) -> BTreeMap<DiskName, String> {
        let lost = self.0.borrow();
        let away = lost.iter().filter(|(_, of)| of.was_away);
        away.map(|(name, of)| (name.clone(), of.place.clone())).collect()
    }

    /// The keeper before this one has lost these as they were away.
    pub(super) fn learn(&self, away: BTreeMap<DiskName, String>) {
        let lost = away.into_iter().map(|(name, place)| (name, LostDisk { place, was_away: true }));
        self.0.borrow_mut().extend(lost);
    }

    /// This one is in use, or a user adds it.
    pub(super) fn forget(&self, name: &DiskName) {
        self.0.borrow_mut().remove(name);
    }

    fn note(&self, name: DiskName, place: &str, was_away: bool) {
        let new = || LostDisk { place: place.to_owned(), was_away };
        self.0.borrow_mut().entry(name).or_insert_with(new);
    }

    /// Whether one was away is known anew, if it was not forgotten.
    fn set_away(&self, name: &DiskName, was_away: bool) {
        if let Some(of) = self.0.borrow_mut().get_mut(name) {
            of.was_away = was_away;
        }
    }

    fn all(&self) -> Vec<(DiskName, String)> {
        self.0.borrow().iter().map(|(name, of)| (name.clone(), of.place.clone())).collect()
    }
}

/// Takes disks back that were lost as they were away, once these are there again. One that has
/// failed although it was there stays out.
pub(super) async fn take_back(
    party: Rc<Party>,
    fs: Fs,
    (cluster, own): (ClusterName, Incarnation),
    terms: pool::Terms,
) {
    while party.end.why().is_none() && fs.why_stopped().is_ok() {
        party.opener.rt.sleep(TAKE_BACK_EVERY).await;
        let Ok(status) = fs.status().await else { continue };
        status.disks.iter().for_each(|row| party.note_lost(row));
        let lost = party.lost.all();
        let as_keeper = (&cluster, &own);
        let looked = lost.iter().map(|of| party.is_there(as_keeper, of, terms));
        for (of, is_there) in lost.iter().zip(join_all(looked).await) {
            let (name, place) = of;
            if !is_there {
                party.lost.set_away(name, true);
                continue;
            }
            if !party.lost.away().contains_key(name) {
                continue;
            }
            let back = async {
                party.check_label(as_keeper, of, terms, &status.id).await?;
                let disk = party.find_named(&cluster, of, terms).await?;
                let disk = party.join_disk(&own, disk).await?;
                fs.add_disk(disk, false).await.map_err(|error| error.to_string())
            };
            match back.await {
                Ok(number) => {
                    log_line(&format!("{place} is back, as disk {number}"));
                    party.lost.forget(name);
                }
                Err(why) => {
                    log_line(&format!("{place} is back, and is not used: {why}"));
                    party.lost.set_away(name, false);
                }
            }
        }
    }
}

impl Party {
    /// The file system is mounted with these disks: the others were away.
    pub(super) fn note_left_out(&self, opened: &[Rc<dyn Disk>]) {
        let is_opened = |place: &str| opened.iter().any(|disk| disk.info().name == place);
        for disk in self.disks.borrow().iter().filter(|disk| !is_opened(disk.place())) {
            self.lost.note(disk.name(), disk.place(), true);
        }
    }

    /// A disk of the file system works, or is lost.
    fn note_lost(&self, row: &DiskStatus) {
        let disk = self.disks.borrow().iter().find(|of| of.place() == row.name).cloned();
        match disk {
            Some(disk) if !row.lost => self.lost.forget(&disk.name()),
            Some(disk) if row.lost_because.is_some() && row.back_as.is_none() => {
                self.lost.note(disk.name(), disk.place(), disk.was_away());
            }
            _ => {}
        }
    }

    /// Whether a disk that was lost answers: as it was used until then, or as it is found.
    async fn is_there(
        &self,
        (cluster, own): (&ClusterName, &Incarnation),
        of: &(DiskName, String),
        terms: pool::Terms,
    ) -> bool {
        match self.disk(&of.0).filter(|disk| disk.in_use().is_some()) {
            Some(disk) => disk.fence().confirm(own).await.is_ok(),
            None => match self.find_named(cluster, of, terms).await {
                Ok(found) => found.answers(own).await,
                Err(_) => false,
            },
        }
    }

    /// Fails if a disk has no label of the file system with this identity.
    async fn check_label(
        &self,
        (cluster, own): (&ClusterName, &Incarnation),
        of: &(DiskName, String),
        terms: pool::Terms,
        id: &str,
    ) -> Result<(), String> {
        let disk = self.find_named(cluster, of, terms).await?;
        let opened = disk.open_as(&self.opener, own, &self.end).await;
        let opened = opened.map_err(|failure| failure.to_string())?;
        let label = Label::read(&*opened).await.map_err(|error| error.to_string())?;
        match label.is_some_and(|label| label.fs_id.to_string() == id) {
            true => Ok(()),
            false => {
                Err("it is no disk of the file system (any more): `weft fs add` adds it".into())
            }
        }
    }
}
