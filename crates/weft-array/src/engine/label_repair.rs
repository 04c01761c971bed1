//! The labels and superblock copies of the members, checked and written again where they are
//! damaged: at the start, and by each scrub. Otherwise the first sign of the damage would be an
//! array that does not start.
//!
//! A label is the same for ever, so it is written in its place. The second label is also written
//! where there was none: members of earlier versions do not have it, and the end of a disk that
//! became larger is another place. It is written only while no reshape starts and no growth is
//! under way, so no data comes to that place during this. Superblock copies are replaced by two
//! superblocks with the next numbers: each takes one of the two places, and between them every copy
//! is new.

use std::rc::Rc;

use futures_util::future::join_all;
use weft_disk::Disk;

use crate::engine::Engine;
use crate::format::uuid::Id;
use crate::state::events::Event;
use crate::superblock::area::second_label_offset;
use crate::superblock::{
    SecondLabel, SuperblockError, read_copies, read_second_label, write_label, write_second_label,
};

/// What is wrong with the metadata of one disk.
struct Faults {
    label: Option<String>,
    copies: Vec<String>,
}

impl Faults {
    fn of_all(what: String) -> Self {
        Self { label: Some(what.clone()), copies: vec![what] }
    }

    fn is_sound(&self) -> bool {
        self.label.is_none() && self.copies.is_empty()
    }
}

impl Engine {
    /// Checks the members, and repairs damage. A disk that fails here fails again where that is
    /// handled.
    pub(crate) async fn repair_metadata(&self) {
        let named = self.members.named_disks();
        let checks = named.iter().map(|(id, disk)| self.check_metadata(*id, disk));
        let damaged: Vec<_> = join_all(checks).await.into_iter().flatten().collect();
        if damaged.is_empty() {
            return;
        }
        for _ in 0..2 {
            if self.change(|_| ()).await.is_err() {
                return;
            }
        }
        for (disk, what) in damaged {
            self.events.emit(Event::MetadataRepaired { disk, what });
        }
    }

    /// As [`Engine::repair_metadata`], of the spares' labels: their superblocks are written anyway.
    /// Only at a start, when none is being removed.
    pub(crate) async fn repair_spares(&self) {
        let spares = self.members.spares().all().clone();
        for spare in spares {
            self.check_metadata(spare.id, &spare.disk).await;
        }
    }

    /// Writes a lost label again. Returns the fault of a superblock copy, and the disk's name.
    async fn check_metadata(&self, id: Id, disk: &Rc<dyn Disk>) -> Option<(String, String)> {
        let name = disk.info().name.clone();
        let mut faults = self.faults_of(id, disk).await?;
        if !faults.is_sound() {
            // A copy that was just being written may look damaged.
            self.members.changes().committed().await;
            faults = self.faults_of(id, disk).await?;
        }
        let array_id = self.members.superblock().array_id;
        if let Some(what) = faults.label
            && self.is_named(id, disk)
            && write_label(&**disk, array_id, id).await.is_ok()
        {
            self.events.emit(Event::MetadataRepaired { disk: name.clone(), what });
        }
        // Growth refuses to start while a scrub runs, and places the labels itself.
        if !self.growing.get() {
            self.repair_second_label(id, disk).await;
        }
        (!faults.copies.is_empty()).then(|| (name, faults.copies.join("; other copy: ")))
    }

    /// Writes the second labels of all disks where they belong, after the array has grown.
    pub(crate) async fn move_second_labels(&self) {
        let spares = self.members.spares().all().clone();
        let spares = spares.into_iter().map(|spare| (spare.id, spare.disk));
        for (id, disk) in self.members.named_disks().into_iter().chain(spares) {
            self.repair_second_label(id, &disk).await;
        }
    }

    /// Writes the second label of a disk that is known to be this member. The array can do without
    /// it, so a disk that fails here stays a member.
    async fn repair_second_label(&self, id: Id, disk: &Rc<dyn Disk>) {
        let superblock = self.members.superblock().clone();
        let size = disk.size_now();
        if second_label_offset(size, superblock.member_bytes()).is_none() {
            return;
        }
        let Ok(found) = read_second_label(&**disk, size).await else { return };
        let is_own = matches!(&found, SecondLabel::Whole(label)
            if (label.array_id, label.member_id) == (superblock.array_id, id));
        if is_own
            || !self.is_named(id, disk)
            || write_second_label(&**disk, &superblock, id).await.is_err()
        {
            return;
        }
        // None was there before, or it is new.
        if found != SecondLabel::Blank {
            let (disk, what) = (disk.info().name.clone(), "its second label is damaged".to_owned());
            self.events.emit(Event::MetadataRepaired { disk, what });
        }
    }

    /// `None` if the disk cannot be read, or holds a member of another array, or another one of
    /// this: then it is not ours to write to.
    async fn faults_of(&self, id: Id, disk: &Rc<dyn Disk>) -> Option<Faults> {
        let copies = match read_copies(&**disk).await {
            Ok(Some(copies)) => copies,
            Ok(None) => {
                return Some(Faults::of_all("it has no label and no superblock".to_owned()));
            }
            Err(fault @ SuperblockError::DamagedLabel { .. }) => {
                return Some(Faults::of_all(fault.to_string()));
            }
            Err(_) => return None,
        };
        let array_id = self.members.superblock().array_id;
        if (copies.label.array_id, copies.label.member_id) != (array_id, id) {
            return None;
        }
        let of_copy = |copy: &Result<_, SuperblockError>| match copy {
            // A new array has one copy only.
            Ok(_) | Err(SuperblockError::NotThere) => None,
            Err(fault) => Some(fault.to_string()),
        };
        let of_copies = copies.copies.iter().filter_map(of_copy).collect();
        Some(Faults { label: copies.label_fault, copies: of_copies })
    }

    /// Whether the disk still belongs to the array: one that is removed may be erased.
    fn is_named(&self, id: Id, disk: &Rc<dyn Disk>) -> bool {
        let spares = self.members.spares().all();
        let is_spare = spares.iter().any(|spare| spare.id == id);
        let members = self.members.named_disks();
        is_spare || members.iter().any(|(of, held)| *of == id && Rc::ptr_eq(held, disk))
    }
}
