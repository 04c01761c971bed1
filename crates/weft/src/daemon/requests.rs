//! The commands, carried out on the engine's thread.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use futures_util::future::join;
use serde_json::{Value, json};
use weft_array::reshape::ReshapeOptions;
use weft_array::superblock::{Role, ScrubMode, UNIT_BYTES, read_superblock};
use weft_array::{ArrayError, MemberState, SlotStatus, contents};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::size;
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::MICROSECOND;
use weft_ublk::device::path_of;

use crate::block::attachment::Via;
use crate::control::protocol::{
    Attached, BlockDevice, NewDisk, PolicyChange, Request, ServedArray, Snapshot,
};
use crate::control::server::Call;
use crate::daemon::caches;
use crate::daemon::drill::drill;
use crate::daemon::served::{Front, Served};
use crate::daemon::{Daemon, log};
use crate::report::status::unused_room;

/// How to name a member, where nothing else helps.
const MEMBERS: &str = "name a member by its slot, or by its path as `weft status` shows it";

fn refused(error: ArrayError) -> Failure {
    Failure::new(error.to_string())
}

fn value(answer: impl serde::Serialize) -> Result<Value, Failure> {
    serde_json::to_value(answer).map_err(|e| Failure::new(e.to_string()))
}

impl Daemon {
    /// Carries out a command and answers it.
    pub(super) async fn carry_out(&self, mut call: Call) {
        let descriptor = call.descriptor.take();
        let array = call.request.array().and_then(|array| self.find(array).ok());
        let work = self.outcome(call.request.clone(), descriptor);
        let outcome = match array {
            Some(served) => {
                let guarded = served.isolation.guard(Box::pin(work)).await;
                guarded.unwrap_or_else(|isolated| Err(isolated.into()))
            }
            None => work.await,
        };
        call.answer(outcome);
    }

    async fn outcome(
        &self,
        request: Request,
        descriptor: Option<OwnedFd>,
    ) -> Result<Value, Failure> {
        match request {
            Request::Status { array } => self.snapshot(array.as_deref()).and_then(value),
            Request::Fail { array, member, dry_run } => self.fail(&array, &member, dry_run).await,
            Request::Add { array, disk } => self.add(&array, &disk).await,
            Request::Replace { array, member, disk } => self.replace(&array, &member, &disk).await,
            Request::Reshape { array, code, unit_bytes, add, remove, used_bytes, dry_run } => {
                let asked = ReshapeOptions { unit_bytes, remove, used_bytes, ..Default::default() };
                self.reshape(&array, code.as_deref(), add, asked, dry_run).await
            }
            Request::Grow { array, member_bytes, dry_run } => {
                self.grow(&array, member_bytes, dry_run).await
            }
            Request::TurnReshape { array } => {
                self.find(&array)?.array.turn_reshape().await.map_err(refused)?;
                Ok(json!({ "done": true }))
            }
            Request::Announce { place } => {
                self.scan_soon();
                Ok(json!({ "announced": place }))
            }
            Request::PauseRebuild { array, pause } => self.find(&array).map(|served| {
                served.array.set_paused(pause);
                json!({ "paused": pause })
            }),
            Request::StartScrub { array, repair } => self.start_scrub(&array, repair).await,
            Request::CancelScrub { array } => self.cancel_scrub(&array).await,
            Request::Throttle { array, min_bytes_s, max_bytes_s, latency_us } => {
                self.throttle(&array, min_bytes_s, max_bytes_s, latency_us).await
            }
            Request::RebuildPolicy { array, change } => self.rebuild_policy(&array, &change).await,
            Request::Cache { array, max_bytes, policy } => {
                self.cache(&array, max_bytes, policy.as_deref()).await.and_then(value)
            }
            Request::Attach { .. } | Request::AttachUblk { .. } | Request::AttachNbd { .. }
                if self.stopping.get() =>
            {
                Err(Failure::new("the daemon is stopping and attaches no more arrays"))
            }
            Request::Attach { array } => {
                let served = self.find(&array)?;
                let channel = descriptor
                    .ok_or_else(|| Failure::new("an attach request must carry a FUSE channel"))?;
                self.attach_fuse(&served, channel).await?;
                value(attached(&served))
            }
            Request::AttachNbd { array, again } => {
                let served = self.find(&array)?;
                if again && served.forced {
                    return Err(Failure::new(
                        "the array was forced to start, and may be older than its users know it",
                    )
                    .hint(format!("end them with errors: `weft detach --force {array}`")));
                }
                let socket = descriptor
                    .ok_or_else(|| Failure::new("an attach request must carry a socket"))?;
                self.attach_nbd(&served, socket)?;
                value(attached(&served))
            }
            Request::AttachUblk { array, block_bytes, read_only } => {
                let served = self.find(&array)?;
                self.attach_ublk(&served, block_bytes, read_only).await.and_then(value)
            }
            Request::Start { targets, force_degraded, consistency, wait_s, dry_run } => {
                self.start_by_command(&targets, force_degraded, consistency, wait_s, dry_run).await
            }
            Request::Drill { array, member, before_ms, during_ms, memory_bytes } => {
                let served = self.find(&array)?;
                let slot = find_member(&served, &member).map_err(|e| e.hint(MEMBERS))?.slot;
                let (rt, times) = (&self.opener.rt, (before_ms, during_ms));
                drill(rt, &served.array, slot, times, memory_bytes).await.and_then(value)
            }
            Request::Remove { array, member, dry_run } => {
                self.remove(&array, &member, dry_run).await
            }
            Request::Stop { array, .. } => self.stop(array.as_deref().unwrap_or_default()).await,
        }
    }

    fn snapshot(&self, wanted: Option<&str>) -> Result<Snapshot, Failure> {
        let chosen = match wanted {
            Some(wanted) => vec![self.find(wanted)?],
            None => self.arrays.borrow().values().cloned().collect(),
        };
        // An array that fails just now is listed as not started the next time.
        let arrays = chosen.iter().filter_map(|served| {
            let status = served.isolation.call(|| served.array.status()).ok()?;
            let nbd_uris = self.uris(&status.name);
            let front = served.front.borrow();
            let (attached, read_only) = (front.is_some(), served.read_only);
            let vanished = self.vanished.borrow().get(&status.name).cloned().unwrap_or_default();
            let (disks, block_device) = (self.disks_of(&status), front.as_ref().map(known));
            let nbd_outdated = self.server.connections_of_other_size(&status.name);
            Some(ServedArray {
                status,
                disks,
                nbd_uris,
                nbd_outdated,
                attached,
                block_device,
                read_only,
                vanished,
                cache: caches::report(&served.cache),
            })
        });
        let arrays: Vec<ServedArray> = arrays.collect();
        let in_use = |disk: &str| arrays.iter().any(|a| a.status.disks().iter().any(|d| d == disk));
        let unused = self.pending.unused.borrow();
        let unused = unused.iter().filter(|unused| wanted.is_none() && !in_use(&unused.disk));
        Ok(Snapshot {
            daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
            daemon_pid: std::process::id(),
            unused: unused.cloned().collect(),
            not_started: match wanted {
                Some(_) => Vec::new(),
                None => self.pending.not_started.borrow().clone(),
            },
            dead_devices: Vec::new(),
            arrays,
        })
    }

    async fn fail(&self, array: &str, member: &str, dry_run: bool) -> Result<Value, Failure> {
        let served = self.find(array)?;
        if let Some((slot, disk)) = find_replacement(&served, member) {
            if !dry_run {
                served.array.fail_replacement(slot).await.map_err(refused)?;
            }
            let status = served.array.status();
            return Ok(json!({
                "slot": slot,
                "disk": disk,
                "done": !dry_run,
                "redundancy_remaining": status.redundancy_remaining,
                "redundancy_exact": status.redundancy_exact,
            }));
        }
        let slot = find_member(&served, member)?;
        if slot.state == MemberState::Missing {
            return Err(Failure::new(format!("slot {} is already missing", slot.slot))
                .hint("`weft status` shows the members"));
        }
        if served.array.essential_slots().contains(&slot.slot) {
            return Err(Failure::new(format!(
                "cannot fail {}: the array would lose data",
                slot.disk
            ))
            .hint("add a disk and wait for its rebuild first; nothing was changed"));
        }
        let left = served.array.redundancy_without(slot.slot);
        if !dry_run {
            served.array.fail(slot.slot).await.map_err(refused)?;
        }
        Ok(json!({
            "slot": slot.slot,
            "disk": slot.disk,
            "done": !dry_run,
            "redundancy_remaining": left.map(|left| left.losses),
            "redundancy_exact": left.is_none_or(|left| left.exact),
        }))
    }

    /// Opens a disk that is to join an array. Refuses one that holds something, and, even if
    /// forced, one that is in use here. The labels decide that: names, also the kernel's, differ
    /// for one disk that is reached in two ways.
    async fn open_new(&self, disk: &NewDisk) -> Result<Rc<dyn Disk>, Failure> {
        let place = &disk.place;
        self.refuse_used(place).await?;
        // Claimed for a dry run, too, which writes nothing and sees what stands in the way.
        let opened = self.open_member(place, false).await?;
        let holds = contents(&*opened).await.map_err(|e| Failure::new(e.to_string()))?;
        match holds {
            Some(what) if !disk.force => Err(Failure::new(format!("{place} holds {what}"))
                .hint("if this is the right disk, --force overwrites it; nothing was changed")),
            _ => Ok(opened),
        }
    }

    /// Refuses a disk that one of the arrays served here uses.
    async fn refuse_used(&self, place: &str) -> Outcome {
        // If it cannot be examined, opening it will report why.
        let Ok(disk) = self.opener.open(place, true).await else { return Ok(()) };
        let Ok(Some(own)) = read_superblock(&*disk).await else { return Ok(()) };
        for (name, served) in &*self.arrays.borrow() {
            let (id, used) = served.array.identities();
            if id == own.array_id && used.contains(&own.self_id) {
                let what = match own.role_of(own.self_id) {
                    Role::Spare => "a spare",
                    _ => "a member",
                };
                return Err(Failure::new(format!("{place} is in use: it is {what} of {name}")).hint(
                    "choose another disk; `weft status` lists those in use. Nothing was changed",
                ));
            }
        }
        Ok(())
    }

    async fn add(&self, array: &str, new: &NewDisk) -> Result<Value, Failure> {
        let served = self.find(array)?;
        if let Some(slot) = self.take_back(&served, new).await? {
            return Ok(json!({ "disk": new.place, "slot": slot, "done": !new.dry_run }));
        }
        let disk = self.open_new(new).await?;
        if !new.dry_run {
            served.array.add_spare(disk).await.map_err(refused)?;
        }
        Ok(json!({ "disk": new.place, "slot": null, "done": !new.dry_run }))
    }

    /// Takes back a member that left the array, with its contents; not with `--force`, which asks
    /// for a new disk.
    async fn take_back(&self, served: &Served, new: &NewDisk) -> Result<Option<SlotNo>, Failure> {
        if new.force {
            return Ok(None);
        }
        self.refuse_used(&new.place).await?;
        let disk = self.open_member(&new.place, false).await?;
        if new.dry_run {
            let own = read_superblock(&*disk).await.ok().flatten();
            return Ok(own.and_then(|own| Some(served.array.slot_left_by(&own)?.0)));
        }
        served.array.take_back(disk).await.map_err(refused)
    }

    async fn replace(&self, array: &str, member: &str, new: &NewDisk) -> Result<Value, Failure> {
        let served = self.find(array)?;
        let slot = find_member(&served, member)?;
        if slot.state == MemberState::Rebuilding
            && served.array.essential_slots().contains(&slot.slot)
        {
            return Err(Failure::new(format!(
                "cannot replace {} now: the array would lose data during the rebuild",
                slot.disk
            ))
            .hint("replace the missing members first; nothing was changed"));
        }
        let disk = self.open_new(new).await?;
        if !new.dry_run {
            served.array.replace(slot.slot, disk).await.map_err(refused)?;
        }
        Ok(json!({ "slot": slot.slot, "disk": new.place, "done": !new.dry_run }))
    }

    async fn reshape(
        &self,
        array: &str,
        code: Option<&str>,
        add: Option<usize>,
        asked: ReshapeOptions,
        dry_run: bool,
    ) -> Result<Value, Failure> {
        let served = self.find(array)?;
        let code = code.map(str::parse).transpose().map_err(|e| {
            Failure::usage(format!("--code: {e}")).hint("`weft create --help` lists the codes")
        })?;
        let status = served.array.status();
        let spares = status.spares.len() - status.spares_too_small.len();
        let grows = code.is_none() && asked.unit_bytes.is_none() && asked.remove == 0;
        if grows && spares == 0 && add.is_none() {
            let larger = unused_room(&status).map_or_else(String::new, |room| format!("; {room}"));
            return Err(Failure::new(format!("{array} has no spare to add"))
                .hint(format!("`weft add {array} DISK` adds one{larger}; nothing was changed")));
        }
        let is_unit = |bytes: u64| bytes.is_power_of_two() && UNIT_BYTES.contains(&bytes);
        if let Some(unit) = asked.unit_bytes.filter(|unit| !is_unit(*unit)) {
            return Err(Failure::new(format!(
                "a unit of {unit} bytes is not possible: it must be a power of two from 4 KiB to 16 MiB"
            ))
            .hint("for example --unit 64K; nothing was changed"));
        }
        refuse_reshaping(&served, array)?;
        // Spares are kept for failures: the number that will join must be given.
        if grows && spares > 1 && add.is_none() {
            return Err(Failure::new(format!("{array} has {spares} spares")).hint(format!(
                "`weft grow {array} --add N` gives the number that joins the array; nothing was changed"
            )));
        }
        let add = add.unwrap_or(if grows { spares } else { 0 });
        let options = ReshapeOptions { code, add, ..asked };
        let plan = match dry_run {
            true => served.array.plan_reshape(&options),
            false => served.array.reshape(options).await,
        };
        value(plan.map_err(refused)?)
    }

    async fn grow(
        &self,
        array: &str,
        member_bytes: Option<u64>,
        dry_run: bool,
    ) -> Result<Value, Failure> {
        let served = self.find(array)?;
        refuse_reshaping(&served, array)?;
        let plan = match dry_run {
            true => served.array.plan_growth(member_bytes),
            false => served.array.grow(member_bytes).await,
        };
        value(plan.map_err(refused)?)
    }

    async fn cancel_scrub(&self, array: &str) -> Result<Value, Failure> {
        let served = self.find(array)?;
        let was_running = served.array.status().scrub.is_some_and(|scrub| scrub.running);
        served.array.cancel_scrub().await;
        Ok(json!({ "cancelled": was_running }))
    }

    async fn start_scrub(&self, array: &str, repair: bool) -> Result<Value, Failure> {
        let served = self.find(array)?;
        let is_running = || served.array.status().scrub.is_some_and(|scrub| scrub.running);
        if is_running() {
            return Err(Failure::new("a scrub is already running").hint(format!(
                "`weft scrub {array} wait` follows it, `restart` starts over, `cancel` stops it"
            )));
        }
        let mode = if repair { ScrubMode::Repair } else { ScrubMode::Check };
        let scrubbed = served.array.clone();
        let rt = served.isolation.rt();
        let task = rt.spawn(async move { scrubbed.scrub(mode).await.map(drop) });
        while !is_running() && !task.is_finished() {
            self.opener.rt.yield_now().await;
        }
        // If it ended this soon, it was refused, or there was little to do.
        if task.is_finished() {
            task.await.map_err(refused)?;
        }
        Ok(json!({ "started": true }))
    }

    async fn throttle(
        &self,
        array: &str,
        min: Option<u64>,
        max: Option<u64>,
        latency_us: Option<u64>,
    ) -> Result<Value, Failure> {
        let served = self.find(array)?;
        let now = served.array.status().throttle;
        let min = min.unwrap_or(now.min_bytes_s);
        let max = match max {
            Some(u64::MAX) => None,
            Some(max) => Some(max),
            None => now.max_bytes_s,
        };
        if let Some(max) = max.filter(|max| *max < min || *max == 0) {
            let (max, min) = (size::show_rate(max), size::show_rate(min));
            return Err(Failure::new(format!(
                "the maximum rate, {max}, is below the minimum, {min}"
            ))
            .hint("give both --min and --max; nothing was changed"));
        }
        served.array.set_throttle(min, max);
        if let Some(latency_us) = latency_us {
            let target = latency_us.saturating_mul(MICROSECOND);
            served.array.set_latency_target(Some(target).filter(|target| *target > 0));
        }
        served.array.store_throttle().await;
        Ok(json!(served.array.status().throttle))
    }

    async fn rebuild_policy(&self, array: &str, change: &PolicyChange) -> Result<Value, Failure> {
        let served = self.find(array)?;
        let policy = change.of(served.array.rebuild_policy());
        if let Err(wrong) = policy.check() {
            return Err(Failure::new(wrong).hint("nothing was changed"));
        }
        served.array.set_rebuild_policy(policy.clone()).await.map_err(refused)?;
        value(policy)
    }

    async fn stop(&self, array: &str) -> Result<Value, Failure> {
        let served = self.find(array)?;
        let name = served.array.status().name;
        if served.front.borrow().is_some() {
            let user = self.user_of(&name).await;
            let user = user.map_or_else(String::new, |user| format!(", {user}"));
            return Err(Failure::new(format!("{name} is attached as a block device{user}")).hint(
                format!("unmount it, run `weft detach {name}`, then stop; nothing was changed"),
            ));
        }
        self.arrays.borrow_mut().remove(&name);
        self.note_stopped(&served);
        join(self.server.remove_export(&name), self.remove_vhost(&name)).await;
        served.stop().await?;
        log::about(&name, "stopped by command");
        Ok(json!({ "stopped": [name] }))
    }

    async fn remove(&self, array: &str, member: &str, dry_run: bool) -> Result<Value, Failure> {
        let served = self.find(array)?;
        let status = served.array.status();
        let name = &status.name;
        let meant = status.spares.iter().filter(|spare| is_called(spare, member));
        let spares: Vec<&String> = meant.collect();
        if let [spare] = spares.as_slice() {
            if !dry_run {
                served.array.remove_spare(spare).await.map_err(refused)?;
                log::about(name, &format!("removed spare {spare}"));
            }
            return Ok(json!({ "disk": spare, "spare": true, "done": !dry_run }));
        }
        let slot = find_member(&served, member)?;
        if slot.state != MemberState::Missing {
            return Err(Failure::new(format!(
                "{} is in use in slot {}; only spares and missing members can be removed",
                slot.disk, slot.slot
            ))
            .hint(format!(
                "`weft replace {name} {} NEWDISK` moves its data elsewhere; `weft fail` takes it \
                 out of service. Nothing was changed",
                slot.slot
            )));
        }
        if !dry_run {
            served.array.forget(slot.slot).await.map_err(refused)?;
            log::about(name, &format!("slot {}: forgot {}", slot.slot, slot.disk));
        }
        Ok(json!({ "disk": slot.disk, "slot": slot.slot, "spare": false, "done": !dry_run }))
    }
}

/// What a command that attaches the array must know of it.
fn attached(served: &Served) -> Attached {
    let block_bytes = u32::try_from(served.array.block_bytes()).unwrap_or(4096);
    Attached { block_bytes, read_only: served.read_only }
}

/// What the daemon itself knows of a block device.
fn known(front: &Front) -> BlockDevice {
    let (via, path) = match front {
        Front::Fuse { .. } => (Via::Fuse, None),
        Front::Nbd => (Via::Nbd, None),
        Front::UblkStarting => (Via::Ublk, None),
        Front::Ublk { number, .. } => (Via::Ublk, Some(path_of(*number))),
    };
    BlockDevice { path, size_bytes: None, user: None, via, link: None }
}

/// Refuses what cannot be done while the array is being reshaped.
fn refuse_reshaping(served: &Served, array: &str) -> Outcome {
    if !served.array.is_reshaping() {
        return Ok(());
    }
    Err(Failure::new(format!("a reshape of {array} is running")).hint(format!(
        "`weft reshape {array} --wait` follows it, `--back` turns it back; nothing was changed"
    )))
}

/// The slot of a working member that the disk of this name is going to take over.
fn find_replacement(served: &Served, name: &str) -> Option<(SlotNo, String)> {
    let mut slots = served.array.status().slots.into_iter();
    slots.find_map(|slot| {
        let disk = slot.replacement?;
        is_called(&disk, name).then_some((slot.slot, disk))
    })
}

/// Whether a disk goes by this name: its own, or the end of its path.
fn is_called(disk: &str, name: &str) -> bool {
    disk == name || Path::new(disk).ends_with(name)
}

/// The slot that the user means: by number, by a disk's whole name, or by the end of its path.
fn find_member(served: &Served, member: &str) -> Result<SlotStatus, Failure> {
    if member.is_empty() {
        return Err(Failure::usage("the member's name is empty"));
    }
    let status = served.array.status();
    let slots = status.slots;
    let is_meant = |disk: &&String| is_called(disk, member);
    let named = |slot: &&SlotStatus| is_called(&slot.disk, member);
    let by_number = || slots.iter().find(|slot| slot.slot.to_string() == member);
    let matching: Vec<&SlotStatus> = slots.iter().filter(named).collect();
    match (matching.as_slice(), by_number()) {
        ([one], _) => Ok((*one).clone()),
        ([], Some(slot)) => Ok(slot.clone()),
        ([], None) if let Some(spare) = status.spares.iter().find(is_meant) => {
            Err(Failure::new(format!("{spare} is a spare of {}, not a member", status.name))
                .hint(format!("`weft remove {} {member}` removes it", status.name)))
        }
        ([], None) => Err(Failure::new(format!("no member {member}")).hint(format!(
            "give a slot, 0 to {}, or a path as `weft status` shows it",
            slots.len().saturating_sub(1)
        ))),
        _ => Err(Failure::new(format!("several members match {member}"))
            .hint("give more of the path, or the slot")),
    }
}
