//! From members to a running array, and back: assembly, replacements, and the clean stop.
//!
//! Assembly changes nothing on disk until it is certain that the array may be started
//! ([`crate::members::assemble`] decides that from the superblocks; where members are being
//! rebuilt, the region map tells what they hold). Then absent members are excluded, durably. If the
//! array was not stopped cleanly, it recovers (`recovery.rs`) without them, and only then makes the
//! new state durable: not clean, a new log epoch. A crash before that repeats the recovery.

use std::rc::Rc;

use futures_util::future::join_all;
use weft_code::{SLOTS_MAX, SlotNo, SlotSet};
use weft_disk::{Disk, DiskInfo};
use weft_rt::Rt;

use crate::engine::{Engine, WallClock};
use crate::error::ArrayError;
use crate::format::consistency::Consistency;
use crate::format::uuid::Id;
use crate::geometry::border::{Border, Geometries, geometry};
use crate::io::map_store::{PAGES_AT_ONCE, read_pages};
use crate::log::{Log, LogId};
use crate::maintenance::Jobs;
use crate::members::assemble::{Assembly, FoundDisk, decide};
use crate::members::preparation::map_config;
use crate::members::slot::lanes_of;
use crate::members::{Members, Spare};
use crate::region_map::{LoadReport, RegionMap};
use crate::superblock::{
    Predecessor, SlotState, Superblock, SuperblockError, read_superblock, write_superblock,
};

/// Options of [`Array::assemble`](crate::Array::assemble).
#[derive(Debug, Clone, Copy, Default)]
pub struct AssembleOptions {
    /// Start even if the missing members may hold newer data.
    pub force_degraded: bool,
    /// Change nothing on the members, and take no writes.
    pub read_only: bool,
    /// From now on keep the array consistent in this way. It must have been stopped cleanly, and
    /// all members must be there.
    pub consistency: Option<Consistency>,
    /// The time now, in seconds since 1970: the base of the dates in the status.
    pub now_unix_s: u64,
    /// A random number, new for each assembly: distinguishes this assembly's log records from any
    /// other bytes.
    pub nonce: u64,
}

/// Assembles an array from its members, given in any order. Recovers from a crash before it
/// returns, and starts resync and rebuild in the background if they are due.
///
/// # Errors
/// If the disks are not of one array, or not enough of it; nothing on them is changed then.
pub(crate) async fn assemble(
    rt: &Rt,
    disks: Vec<Rc<dyn Disk>>,
    options: AssembleOptions,
) -> Result<Rc<Engine>, ArrayError> {
    let mut found = find(&disks).await;
    loop {
        let assembly = decide(&found, options.force_degraded, &survives)?;
        match start(rt, &disks, assembly, &options).await? {
            Start::Done(array) => return Ok(array),
            // As if their superblocks could not be read either: the array may do without them.
            Start::Without(failed) => {
                for (index, error) in failed {
                    found[index].superblock = Err(error);
                }
            }
        }
    }
}

/// Assembles copies of members that are in use, without a look at what was being written: what
/// stripes hold may be wrong, and must not be used. For drills.
///
/// # Errors
/// As [`assemble`], or if a member is missing.
pub(crate) async fn assemble_copies(
    rt: &Rt,
    copies: &[Rc<dyn Disk>],
    nonce: u64,
) -> Result<Rc<Engine>, ArrayError> {
    let mut assembly = decide(&find(copies).await, false, &survives)?;
    assembly.needs_recovery = false;
    let options = AssembleOptions { nonce, ..AssembleOptions::default() };
    match start(rt, copies, assembly, &options).await? {
        Start::Done(array) if array.incomplete_slots().is_empty() => Ok(array),
        _ => Err(ArrayError::Refused("a member cannot be read".into())),
    }
}

/// Reads what the disks say. Concurrently: each that does not answer takes its full time limit.
async fn find(disks: &[Rc<dyn Disk>]) -> Vec<FoundDisk> {
    let found = disks.iter().map(|disk| async move {
        let superblock = read_superblock(&**disk).await;
        // It may be larger now than when it was opened.
        let disk = DiskInfo { size_bytes: disk.size_now(), ..disk.info().clone() };
        FoundDisk { superblock, disk }
    });
    join_all(found).await
}

/// Starts the array as decided.
async fn start(
    rt: &Rt,
    disks: &[Rc<dyn Disk>],
    mut assembly: Assembly,
    options: &AssembleOptions,
) -> Result<Start, ArrayError> {
    if let Some(consistency) = options.consistency {
        let is_settled = !assembly.needs_recovery && assembly.lost.is_empty();
        if options.read_only || !is_settled {
            return Err(ArrayError::Refused("another consistency policy needs an array that was stopped cleanly, with all of its members: start and stop it first".into()));
        }
        assembly.superblock = assembly.superblock.kept_consistent_by(consistency)?;
    }
    let array = open(rt, disks, &assembly, options).await?;
    let survives = assembly.survives || !array.has_lost_data();
    if !survives && !options.force_degraded {
        return Err(assembly.too_few().into());
    }
    if options.read_only && assembly.needs_recovery && survives {
        return Err(ArrayError::Refused(
            "the array was not stopped cleanly and must be recovered first: assemble it for writing".into(),
        ));
    }
    array.service().set_read_only(options.read_only || !survives);
    if !array.service().is_read_only() {
        let failed = catch_up(disks, &assembly).await?;
        if !failed.is_empty() {
            return Ok(Start::Without(failed));
        }
        array.recover(disks, &assembly, options.nonce).await?;
        for (_, index) in &assembly.returning {
            // If this fails, the disk stays out as before.
            let _ = array.take_back(&disks[*index]).await;
        }
        array.repair_metadata().await;
        array.repair_spares().await;
        array.start_jobs();
    }
    Ok(Start::Done(array))
}

/// How a start went.
enum Start {
    Done(Rc<Engine>),
    /// Nothing of the array was changed yet, and these disks (indices of found disks) must be left
    /// out.
    Without(Vec<(usize, SuperblockError)>),
}

/// Members that a crash kept from getting the newest superblock get it, before anything else is
/// written. Returns the members that do not take it: that superblock is in effect only without
/// them.
async fn catch_up(
    disks: &[Rc<dyn Disk>],
    assembly: &Assembly,
) -> Result<Vec<(usize, SuperblockError)>, ArrayError> {
    let mut failed = Vec::new();
    for index in &assembly.lagging {
        let disk = &*disks[*index];
        let caught_up = match read_superblock(disk).await {
            Ok(Some(own)) => write_superblock(disk, &assembly.newest, own.self_id).await,
            Ok(None) => Err(SuperblockError::NotThere),
            Err(error) => Err(error),
        };
        match caught_up {
            Ok(()) => {}
            // No member is at fault.
            Err(
                error @ (SuperblockError::TooLarge { .. } | SuperblockError::Impossible { .. }),
            ) => {
                return Err(error.into());
            }
            Err(error) => failed.push((*index, error)),
        }
    }
    Ok(failed)
}

/// Whether all data remains available without these slots.
fn survives(superblock: &Superblock, gone: &[SlotNo]) -> bool {
    geometries_of(superblock)
        .is_ok_and(|geometries| geometries.survives(gone.iter().copied().collect()))
}

async fn open(
    rt: &Rt,
    disks: &[Rc<dyn Disk>],
    assembly: &Assembly,
    options: &AssembleOptions,
) -> Result<Rc<Engine>, ArrayError> {
    let superblock = assembly.superblock.clone();
    let geometries = geometries_of(&superblock)?;
    let in_slots: Vec<Option<Rc<dyn Disk>>> =
        assembly.slots.iter().map(|index| index.map(|index| disks[index].clone())).collect();
    let replacements: Vec<Option<Rc<dyn Disk>>> =
        assembly.replacements.iter().map(|index| index.map(|index| disks[index].clone())).collect();
    let spares = assembly.spares.iter().map(|index| disks[*index].clone());
    let mut waiting = Vec::new();
    for disk in spares {
        // One that cannot be read any more is not needed to start.
        if let Ok(Some(own)) = read_superblock(&*disk).await {
            waiting.push(Spare::new(own.self_id, disk));
        }
    }
    let trusted: Vec<_> = in_slots.iter().chain(&replacements).flatten().cloned().collect();
    let map = load_map(&superblock, &trusted).await;
    map.set_live(geometries.live());
    for (slot, meta) in superblock.slots.iter().enumerate() {
        let Some(left) = &meta.left else { continue };
        match assembly.newest.slots[slot].state {
            SlotState::Active => map.start_absence(left.lane),
            SlotState::Missing | SlotState::Rebuilding { .. } => map.resume_absence(left.lane),
        }
    }
    let id = LogId { array: superblock.array_id.0, epoch: options.nonce };
    let log = (superblock.consistency == Consistency::Ppl)
        .then(|| Log::new(id, SLOTS_MAX, superblock.area.log_offset, superblock.area.log_bytes));
    let jobs = Jobs::new();
    let chosen = superblock.rebuild.clone().unwrap_or_default();
    jobs.rebuild().set_policy(chosen.policy);
    jobs.throttle().restore(&chosen.throttle);
    let in_effect = if assembly.forced { &superblock } else { &assembly.newest };
    let in_effect = Predecessor { seq: in_effect.seq, active: in_effect.active_members() };
    let lanes_on_disk = lanes_of(&assembly.newest).union(lanes_of(&superblock));
    let members =
        Members::new(superblock, in_effect, lanes_on_disk, in_slots, replacements, waiting);
    let clock = WallClock::new(rt.now(), options.now_unix_s);
    Ok(Engine::new(rt.clone(), clock, geometries, members, map, log, jobs))
}

/// The geometries of the array, as the superblock has them.
pub(crate) fn geometries_of(superblock: &Superblock) -> Result<Geometries, ArrayError> {
    let geometry = |shape, generation| geometry(shape, generation, superblock);
    let newest = geometry(superblock.shape(), superblock.generation)?;
    let Some(reshape) = superblock.reshape else { return Ok(Geometries::new(newest)) };
    let geometries = Geometries::new(geometry(reshape.from, reshape.from_generation)?);
    let border = Border { direction: reshape.direction, at: reshape.checkpoint_bytes };
    geometries.add(newest, border);
    Ok(geometries)
}

/// Loads the region map from all members in slots: the newest valid copy of each page.
async fn load_map(superblock: &Superblock, disks: &[Rc<dyn Disk>]) -> RegionMap {
    let map = RegionMap::new(map_config(superblock));
    let mut report = LoadReport::default();
    for from in (0..map.page_count()).step_by(PAGES_AT_ONCE) {
        let pages = from..(from + PAGES_AT_ONCE).min(map.page_count());
        let parts = read_pages(superblock.area.map_offset, disks, &pages).await;
        let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
        map.load_pages(pages, &parts, &mut report);
    }
    map
}

/// Makes the next superblock that of a new run, which has not replayed the log of `unreplayed`.
fn begin_run(superblock: &mut Superblock, nonce: u64, unreplayed: Option<u64>) {
    superblock.clean = false;
    superblock.log_epoch = nonce;
    superblock.unreplayed = unreplayed;
}

impl Engine {
    async fn recover(
        &self,
        disks: &[Rc<dyn Disk>],
        assembly: &Assembly,
        nonce: u64,
    ) -> Result<(), ArrayError> {
        // What was read may only be in a cache: recovery builds on it, and so does the next
        // superblock, even after an orderly stop whose program died at its last write. A member
        // that loses its newest superblock in the next crash would be two superblocks older than
        // the others. A flush that fails here fails again where the failure is handled.
        let members = assembly.slots.iter().chain(&assembly.replacements).flatten();
        join_all(members.map(|index| disks[*index].flush())).await;
        let found = &assembly.newest;
        let log_epoch = found.unreplayed.unwrap_or(found.log_epoch);
        if !assembly.lost.is_empty() || found.succeeds.is_some() {
            let has_log = assembly.needs_recovery && found.consistency == Consistency::Ppl;
            let unreplayed = has_log.then_some(log_epoch);
            self.members().edit(|superblock| begin_run(superblock, nonce, unreplayed));
            self.affirm(disks, assembly).await?;
            if assembly.needs_recovery {
                // Missing members will lack what recovery writes.
                self.change(|_| ()).await?;
            }
        }
        let mut unread = Vec::new();
        if assembly.needs_recovery {
            let superblock = self.members().superblock().clone();
            // A member and its replacement may hold different halves of a write in progress at the
            // crash; the member's contents count.
            let lanes = superblock.slots.iter().filter_map(|slot| slot.replacement.as_ref());
            let stale = lanes.map(|replacement| replacement.lane).collect();
            match superblock.consistency {
                Consistency::None => self.map().resync_written(self, stale).await?,
                _ => self.map().resync_dirty(self, stale).await?,
            }
            if superblock.consistency == Consistency::Ppl {
                let id = LogId { array: superblock.array_id.0, epoch: log_epoch };
                unread = self.replay_log(id, &superblock.area).await?;
            }
        }
        self.change(|change| begin_run(&mut change.superblock(), nonce, None)).await?;
        // Once more, as at the stop: every superblock of the time before this run is two
        // generations old from now on. A member that was set back to an image of that time lacks
        // the writes from here on, and a crash would otherwise make it look like one that it had
        // overtaken.
        self.change(|_| ()).await?;
        self.renew_log_blocks(unread).await;
        self.check_writable()
    }

    /// Makes the newest superblock that of this run before anything else relies on it: see the head
    /// of `members/assemble.rs`.
    async fn affirm(&self, disks: &[Rc<dyn Disk>], assembly: &Assembly) -> Result<(), ArrayError> {
        let turn = self.members().turn_to_commit().await;
        let (superblock, mut holders, failed) =
            self.members().affirm(assembly.newest.clone(), turn).await;
        for index in &assembly.outgoing {
            let disk = &*disks[*index];
            // The array does without it: one that fails here does not learn that it is out.
            if let Ok(Some(own)) = read_superblock(disk).await
                && write_superblock(disk, &superblock, own.self_id).await.is_ok()
            {
                holders.push(own.self_id);
            }
        }
        let by_most = |active: &[Id]| {
            2 * active.iter().filter(|id| holders.contains(id)).count() > active.len()
        };
        let before = superblock.succeeds.as_ref();
        let affirmed = by_most(&superblock.active_members())
            && before.is_none_or(|before| by_most(&before.active));
        let causes: Vec<String> = failed.iter().map(|(_, _, error)| error.to_string()).collect();
        if self.take_out_all(failed) && !affirmed && !assembly.forced {
            self.set_broken(
                SlotSet::new(),
                &format!(
                    "members failed while it was being assembled ({}); assemble it again",
                    causes.join("; ")
                ),
            );
        }
        Ok(())
    }

    /// Stops the array. See [`Array::stop`](crate::Array::stop).
    pub(crate) async fn stop(&self) -> Result<(), ArrayError> {
        if !self.service().stop() {
            return Err(ArrayError::Stopped);
        }
        let ended = self.end().await;
        // The disks may be assembled again at once: a superblock of this run must not follow.
        self.service().close();
        self.end_waits();
        self.members().changes().committed().await;
        ended
    }

    async fn end(&self) -> Result<(), ArrayError> {
        self.end_jobs().await;
        // Operations that change a stripe hold some of the budget, and so do commands that write to
        // members: with all of it, none is running.
        let _quiet = self.memory().acquire_all().await;
        self.flush_members().await;
        if let Some(disk) = self.space().abandoned() {
            return Err(ArrayError::Unclean { disk });
        }
        self.check_whole()?;
        if self.service().is_read_only() {
            return Ok(());
        }
        self.map().clean_all(self).await?;
        // Regions that await a resync are recorded in the map; the stop is clean all the same.
        self.change(|change| change.superblock().clean = true).await?;
        // Once more: after a clean stop every superblock of the time when the array was in use is
        // two generations old. A crash during the stop leaves one generation, and such a member
        // lacks nothing; two generations are an image of a member that was put back, which lacks
        // the writes since.
        self.change(|_| ()).await?;
        self.spares_updated().await;
        self.check_whole()
    }
}
