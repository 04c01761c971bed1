//! Disks that join and leave while a process takes part in its cluster.
//!
//! The record names the disks of the file system, and where each of them is. The keeper says that
//! ([`keep_notes`]): of a disk that joins before anything is written there, and of one that leaves
//! when it is none of the file system's any more. Who stands by as keeper follows the record
//! ([`follow_record`]): when it takes over it fences at all disks that the keeper before it may
//! have written to, whichever it was started with. A node hears of disks from the metadata, and
//! opens them ([`opens`]).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use futures_util::future::{Either, select};
use weft_cli::output::log_line;
use weft_cluster::{ClusterName, DiskName, DiskNotes, Incarnation, NodeError, Record};
use weft_disk::Disk;
use weft_fs::{Fs, Reopen};
use weft_nodes::name_of;
use weft_rt::{Nanos, SECOND};

use super::Party;
use super::device_name::path_of;
use super::pool::{self, PoolDisk};

/// How long a node waits for a disk that has joined before it uses it through the keeper.
const OPEN_PATIENCE: Nanos = 5 * SECOND;
/// How often the keeper looks whether it has to say something else of disks.
const NOTE_EVERY: Nanos = SECOND;
/// Pause before a disk that the record names is looked for once more.
const AGAIN: Nanos = 2 * SECOND;

/// Disks that are joining: they are in the record, and not yet in the file system.
#[derive(Default)]
pub(super) struct Joining(RefCell<BTreeSet<DiskName>>);

/// A disk that is joining, until it is in use or that has failed.
pub(super) struct JoiningDisk<'a>(&'a Joining, DiskName);

impl Joining {
    fn begin(&self, disk: DiskName) -> JoiningDisk<'_> {
        self.0.borrow_mut().insert(disk.clone());
        JoiningDisk(self, disk)
    }

    fn has(&self, disk: &DiskName) -> bool {
        self.0.borrow().contains(disk)
    }
}

impl Drop for JoiningDisk<'_> {
    fn drop(&mut self) {
        self.0.0.borrow_mut().remove(&self.1);
    }
}

fn said(error: NodeError) -> String {
    error.to_string()
}

impl Party {
    /// One of its disks.
    pub(super) fn disk(&self, name: &DiskName) -> Option<Rc<PoolDisk>> {
        self.disks.borrow().iter().find(|disk| disk.name() == *name).cloned()
    }

    fn record(&self) -> Option<Record> {
        self.membership.outlook().view.record
    }

    /// Finds a disk at the place that it has at the keeper, or by its name.
    async fn find(
        &self,
        cluster: &ClusterName,
        place: &str,
        terms: pool::Terms,
    ) -> Result<Rc<PoolDisk>, String> {
        let of_record = self.record().and_then(|record| {
            let mut of_record = record.disks.into_iter();
            of_record.find(|(_, at)| at == place)
        });
        match of_record {
            Some(of) => self.find_named(cluster, &of, terms).await,
            None => self.find_at(cluster, place, terms).await,
        }
    }

    /// Finds a disk whose name is known: at this place, or by its name.
    pub(super) async fn find_named(
        &self,
        cluster: &ClusterName,
        (name, place): &(DiskName, String),
        terms: pool::Terms,
    ) -> Result<Rc<PoolDisk>, String> {
        let here = path_of(place, name);
        let disk = self.find_at(cluster, here.as_ref().unwrap_or(place), terms).await?;
        match disk.name() {
            found if found == *name => Ok(disk),
            found => Err(format!("{place} is {found} here, and not {name}")),
        }
    }

    async fn find_at(
        &self,
        cluster: &ClusterName,
        place: &str,
        terms: pool::Terms,
    ) -> Result<Rc<PoolDisk>, String> {
        let found = pool::find(&self.opener, cluster, &[place.to_owned()], terms).await;
        Ok(found.map_err(|failure| failure.to_string())?.remove(0))
    }

    /// As the keeper, takes a disk in that a user adds, and opens it.
    pub(super) async fn add_disk(
        &self,
        (cluster, own): (&ClusterName, &Incarnation),
        place: &str,
        terms: pool::Terms,
    ) -> Result<Rc<dyn Disk>, String> {
        let disk = self.find_at(cluster, place, terms).await?;
        self.lost.forget(&disk.name());
        self.join_disk(own, disk).await
    }

    /// As the keeper, takes a disk in that joins, or comes back, and opens it.
    pub(super) async fn join_disk(
        &self,
        own: &Incarnation,
        disk: Rc<PoolDisk>,
    ) -> Result<Rc<dyn Disk>, String> {
        let (name, place, node) = (disk.name(), disk.place().to_owned(), self.membership.node());
        let _joining = self.joining.begin(name.clone());
        // The next keeper must fence there what is written from now on.
        let put = |notes: &mut DiskNotes| {
            notes.disks.insert(name.clone(), place.clone());
            notes.away = self.lost.away();
        };
        if !node.note_disks(put).await.map_err(said)? {
            return Err("another keeper has taken over".to_owned());
        }
        node.join_disk(disk.fence()).await.map_err(said)?;
        // Of what it was to refuse while it was away it may have heard nothing.
        node.clear_disk(&*disk.fence()).await.map_err(said)?;
        if !node.regain_disk(&name).await.map_err(said)? {
            return Err("it may take what it must refuse: add it again".to_owned());
        }
        let opened = disk.open_as(&self.opener, own, &self.end).await;
        self.takes(disk);
        opened.map_err(|failure| failure.to_string())
    }

    /// Opens a disk of which a node has heard. One that it was given, and does not reach, it may
    /// reach by now.
    async fn open_joined(
        &self,
        (cluster, own): (&ClusterName, &Incarnation),
        place: &str,
        terms: pool::Terms,
    ) -> Result<Rc<dyn Disk>, String> {
        let found = self.find(cluster, place, terms).await?;
        let disk = match self.disk(&found.name()) {
            Some(known) => known,
            None => {
                self.membership.node().join_disk(found.fence()).await.map_err(said)?;
                self.takes(found.clone());
                found
            }
        };
        disk.open_as(&self.opener, own, &self.end).await.map_err(|failure| failure.to_string())
    }

    /// Takes the disks on that the record names, and lets those go that it does not name. Returns
    /// whether all of them are known.
    async fn follow(
        &self,
        cluster: &ClusterName,
        terms: pool::Terms,
        said: &mut BTreeSet<String>,
    ) -> bool {
        let Some(record) = self.record().filter(|record| !record.disks.is_empty()) else {
            return true;
        };
        let node = self.membership.node();
        if node.own().is_none() {
            return false;
        }
        let mut are_all_known = true;
        for (name, place) in &record.disks {
            // As the keeper it takes disks in by itself, and has them in use.
            let is_taken = || self.disk(name).is_some() || self.joining.has(name);
            if is_taken() {
                continue;
            }
            let joined = async {
                let disk = self.find(cluster, place, terms).await?;
                if !is_taken() {
                    node.join_disk(disk.fence()).await.map_err(self::said)?;
                }
                if !is_taken() {
                    self.takes(disk);
                }
                Ok::<(), String>(())
            };
            let what = match joined.await {
                Ok(()) => format!("{place} has joined the file system"),
                Err(why) => {
                    are_all_known = false;
                    format!("{place} has joined the file system, and is not reached: {why}")
                }
            };
            if said.insert(what.clone()) {
                log_line(&what);
            }
        }
        self.let_go(&record.disks);
        are_all_known
    }

    /// Lets disks go that are none of the file system's.
    fn let_go(&self, disks: &BTreeMap<DiskName, String>) {
        let is_gone = |disk: &Rc<PoolDisk>| {
            let name = disk.name();
            !disks.contains_key(&name) && disk.in_use().is_none() && !self.joining.has(&name)
        };
        let gone: Vec<Rc<PoolDisk>> =
            self.disks.borrow().iter().filter(|of| is_gone(of)).cloned().collect();
        for disk in gone {
            let name = disk.name();
            self.membership.node().forget_disk(&name);
            self.disks.borrow_mut().retain(|other| other.name() != name);
            log_line(&format!("{} is no disk of the file system", disk.place()));
        }
    }

    /// What the keeper says of disks now.
    fn notes(&self, fs: &Fs, record: &Record) -> DiskNotes {
        let names = fs.disk_names();
        let is_any_lost = names.iter().any(|(_, _, is_lost)| *is_lost);
        let mut notes = DiskNotes { away: self.lost.away(), ..DiskNotes::default() };
        let mut numbers = BTreeMap::new();
        for disk in self.disks.borrow().iter() {
            let (name, place) = (disk.name(), disk.place().to_owned());
            let row = names.iter().find(|(_, of, is_lost)| *of == place && !is_lost);
            numbers.extend(row.map(|(number, _, _)| (*number, name.clone())));
            if row.is_some() || is_any_lost || disk.in_use().is_some() {
                notes.disks.insert(name, place);
            }
        }
        for (name, place) in &record.disks {
            // What a lost one must refuse it is told when it comes back.
            if is_any_lost || self.joining.has(name) {
                notes.disks.entry(name.clone()).or_insert_with(|| place.clone());
            }
        }
        let outlook = self.membership.outlook();
        for (node, number) in fs.relayed_disks() {
            if let (Some(disk), Some(node)) = (numbers.get(&number), name_of(&outlook, node.number))
            {
                notes.relayed.entry(disk.clone()).or_default().insert(node);
            }
        }
        notes
    }
}

/// Says of disks what is so, as long as this process keeps the file system.
pub(super) async fn keep_notes(party: Rc<Party>, fs: Fs) {
    while party.end.why().is_none() && fs.why_stopped().is_ok() {
        if let Some(record) = party.record() {
            let notes = party.notes(&fs, &record);
            if notes != record.disk_notes() {
                // It is tried again.
                let _ = party
                    .membership
                    .node()
                    .note_disks(|before| {
                        let mut now = notes.clone();
                        for (name, place) in &before.disks {
                            if party.joining.has(name) {
                                now.disks.insert(name.clone(), place.clone());
                            }
                        }
                        *before = now;
                    })
                    .await;
            }
            party.let_go(&notes.disks);
        }
        party.opener.rt.sleep(NOTE_EVERY).await;
    }
}

/// Follows the record, in a process that may become the keeper.
pub(super) async fn follow_record(party: Weak<Party>, cluster: ClusterName, terms: pool::Terms) {
    let mut said = BTreeSet::new();
    while let Some(party) = party.upgrade() {
        let seen = party.membership.outlook().view.version;
        let has_changed = || party.membership.until(|now| (now.view.version != seen).then_some(()));
        match party.follow(&cluster, terms, &mut said).await {
            true => has_changed().await,
            false => party.opener.rt.sleep(AGAIN).await,
        }
    }
}

/// How a node opens disks that have joined.
pub(super) fn opens(
    party: &Rc<Party>,
    cluster: ClusterName,
    own: &Incarnation,
    terms: pool::Terms,
) -> Reopen {
    let (party, own) = (party.clone(), own.clone());
    Rc::new(move |place| {
        let (party, own, cluster) = (party.clone(), own.clone(), cluster.clone());
        Box::pin(async move {
            let opening = Box::pin(party.open_joined((&cluster, &own), &place, terms));
            let late = Box::pin(party.opener.rt.sleep(OPEN_PATIENCE));
            let opened = match select(opening, late).await {
                Either::Left((opened, _)) => opened,
                Either::Right(_) => Err("it does not answer".to_owned()),
            };
            match &opened {
                Ok(_) => log_line(&format!("{place} has joined the file system")),
                Err(why) => log_line(&format!("{place}: {why}; it is used through the keeper")),
            }
            opened
        })
    })
}
