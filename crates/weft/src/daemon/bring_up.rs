//! Decides which arrays are served: starts the arrays found, and scans again for missing disks.
//!
//! A bad disk affects at most its own array. The daemon starts what it can; the status lists the
//! rest with the reason, and the daemon scans for it again in the background:
//!
//! * A disk that appears later starts its array as soon as a second scan finds the same disks (more
//!   may be about to appear). If its array already runs without it, the array takes it back and
//!   rebuilds the regions that were written since. A disk that failed is not taken back: the status
//!   tells how to add it.
//! * An array that was stopped by command stays stopped until `weft start`.
//! * Of two arrays with the same name neither starts automatically, as clients could not know which
//!   one they get. `weft start` with an id starts one.
//! * Where a member is missing and the array would rebuild onto a spare at once, it waits for the
//!   member for a while: disks appear one after the other, and their names change. Missing members
//!   are searched for by label on all block devices.
//! * A member that another program has claimed will most likely be free soon. Its array waits for
//!   it: if it started without the member, it would have to rebuild it.
//!
//! Scans run on a thread of their own, so a disk that hangs when it is opened blocks no user.

mod by_command;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use weft_array::assemble::decide;
use weft_array::superblock::read_superblock;
use weft_array::{
    Array, ArrayError, AssembleError, AssembleOptions, Consistency, FoundDisk, Id, MemberState,
};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::log_line;
use weft_cli::{size, thread};
use weft_disk::Disk;
use weft_rt::{Nanos, SECOND};

use crate::background;
use crate::cli::ServeArgs;
use crate::control::protocol::{NotStarted, UnusedDisk};
use crate::daemon::alerts::{self, Alert};
use crate::daemon::scan::{self, FoundArray, SCANNED_AGAIN, Scan, SearchPlace};
use crate::daemon::served::Served;
use crate::daemon::{Daemon, log, notify};

/// Time between two scans during `--wait`.
const SCAN_SOON: Nanos = SECOND / 2;
/// Disks that appear in this time are searched for by one scan.
const ANNOUNCED_TOGETHER: Nanos = SECOND / 3;
/// Time between two scans later, while something changes.
const SCAN_EVERY: Nanos = 5 * SECOND;
/// The interval after many scans without change.
const SCAN_SELDOM: Nanos = 60 * SECOND;

/// The arrays and disks that are not served.
#[derive(Debug)]
pub struct Pending {
    /// Where to search for members.
    places: RefCell<Vec<SearchPlace>>,
    /// Serve only these, by name or id; all if empty.
    only: Vec<String>,
    /// How long to wait for missing members; `None`: only where a spare would take their place.
    wait: Option<Duration>,
    force_degraded: bool,
    /// Serve on although no array is found.
    allow_empty: bool,
    pub read_only: bool,
    pub not_started: RefCell<Vec<NotStarted>>,
    pub unused: RefCell<Vec<UnusedDisk>>,
    /// Stopped by command.
    stopped: RefCell<BTreeSet<Id>>,
    /// Taken out of service after an internal error; only a restart of the daemon brings them back.
    failed: RefCell<BTreeMap<Id, Failure>>,
    /// The members that the last scan found, for each array that was not started.
    last_seen: RefCell<BTreeMap<Id, Vec<String>>>,
    /// Since when arrays have been seen that would use a spare if they started.
    would_use_spare: RefCell<BTreeMap<Id, Nanos>>,
    /// An array waits for members for which a spare would be used.
    holds_spare: Cell<bool>,
    /// An array was found that cannot start before more of its members are there.
    lacks_members: Cell<bool>,
    /// The block devices of this machine at the last search.
    devices: RefCell<Vec<String>>,
    /// The first scan is complete.
    is_up: Cell<bool>,
}

/// How long an array waits for a member before it uses a spare, by default (`--wait`).
pub const SPARE_WAIT: Duration = Duration::from_secs(30);

/// When a scan may start arrays that are not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Not yet: wait for the missing members.
    Wait,
    /// Now, if they can run without them.
    Now,
    /// If the previous scan found the same members.
    Settled,
}

impl Pending {
    pub fn new(args: &ServeArgs) -> Self {
        Self {
            places: RefCell::new(args.members.iter().map(|m| SearchPlace::named(m)).collect()),
            only: args.arrays.clone(),
            wait: args.wait,
            force_degraded: args.force_degraded,
            allow_empty: args.allow_empty,
            read_only: args.read_only,
            not_started: RefCell::default(),
            unused: RefCell::default(),
            stopped: RefCell::default(),
            failed: RefCell::default(),
            last_seen: RefCell::default(),
            would_use_spare: RefCell::default(),
            holds_spare: Cell::new(false),
            lacks_members: Cell::new(false),
            devices: RefCell::default(),
            is_up: Cell::new(false),
        }
    }

    /// Whether the first scan is complete.
    pub fn is_up(&self) -> bool {
        self.is_up.get()
    }

    /// How long the first start waits for missing members, in words, until it is over.
    fn first_wait(&self) -> Option<String> {
        let wait = self.wait.filter(|wait| !self.is_up.get() && !wait.is_zero())?;
        Some(format!("for at most {} (`weft serve --wait`)", size::show_duration(wait)))
    }

    /// How long an array waits for a member before a spare takes its place.
    fn spare_wait(&self) -> Nanos {
        let wait = self.wait.unwrap_or(SPARE_WAIT);
        Nanos::try_from(wait.as_nanos()).unwrap_or(Nanos::MAX)
    }

    /// Whether `found` would rebuild onto a spare, and has not been waiting for long at `now`: its
    /// disks may be about to appear.
    fn holds_spare_of(&self, found: &FoundArray, now: Nanos) -> bool {
        let mut since = self.would_use_spare.borrow_mut();
        if !found.would_use_spare() {
            since.remove(&found.id);
            return false;
        }
        now < since.entry(found.id).or_insert(now).saturating_add(self.spare_wait())
    }

    /// The places where members are searched for.
    fn places_in_words(&self) -> String {
        let places = self.places.borrow();
        let places: Vec<&str> = places.iter().map(|place| place.text.as_str()).collect();
        places.join(", ")
    }

    /// Whether another scan may find missing members.
    fn is_incomplete(&self) -> bool {
        self.not_started.borrow().iter().any(|array| !array.stopped)
            || self.unused.borrow().iter().any(|disk| disk.attention)
    }

    /// Adds places to scan; a disk that disappears from them is not reported as missing.
    fn add_places(&self, more: impl IntoIterator<Item = String>) {
        let mut places = self.places.borrow_mut();
        for text in more {
            if places.iter().all(|place| place.text != text) {
                places.push(SearchPlace { text, named: false });
            }
        }
    }

    fn note_not_started(&self, found: &FoundArray, why: &str, hint: Option<String>) -> NotStarted {
        let (name, id) = (found.name(), found.id);
        let stopped = self.stopped.borrow().contains(&id);
        NotStarted { name, id: id.to_string(), why: why.to_owned(), hint, stopped }
    }

    /// Notes that an array was taken out of service after an internal error.
    pub fn note_failed(&self, id: Id, name: String, failure: Failure) {
        let Failure { message: why, hint, .. } = failure.clone();
        self.failed.borrow_mut().insert(id, failure);
        let array = NotStarted { name, id: id.to_string(), why, hint, stopped: false };
        self.not_started.borrow_mut().push(array);
    }

    /// Replaces the lists with the results of the last scan, and logs what changed.
    fn set(&self, not_started: Vec<NotStarted>, unused: Vec<UnusedDisk>) -> bool {
        let before = self.not_started.replace(not_started);
        let waits = !self.is_up.get();
        let unused_before = self.unused.replace(unused);
        let mut news = false;
        for array in self.not_started.borrow().iter().filter(|array| !before.contains(array)) {
            news = true;
            if !array.stopped {
                let hint =
                    array.hint.as_ref().map_or_else(String::new, |hint| format!(" ({hint})"));
                let text = format!("not started: {}{hint}", array.why);
                if waits {
                    background::tell_starter(&format!("{}: {text}", array.name));
                }
                log::about(&array.name, &format!("ALERT: {text}"));
                alerts::tell(Alert {
                    event: "ArrayNotStarted",
                    array: array.name.clone(),
                    member: None,
                    text,
                    // Until the first scan is complete members may be about to appear.
                    attention: self.is_up.get(),
                });
            }
        }
        for disk in self.unused.borrow().iter().filter(|disk| !unused_before.contains(disk)) {
            news = true;
            let (alert, hint) = (if disk.attention { "ALERT: " } else { "" }, &disk.hint);
            let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
            log_line(&format!("{alert}{} is not used: {}{hint}", disk.disk, disk.why));
        }
        news
    }
}

impl Daemon {
    /// The first start: waits, at most for `--wait`, until the arrays seen are complete.
    ///
    /// # Errors
    /// If nothing could be started, and no missing disk would change that.
    pub(super) async fn start_all(&self) -> Outcome {
        let wait = self.pending.wait.unwrap_or_default();
        let wait = Nanos::try_from(wait.as_nanos()).unwrap_or(Nanos::MAX);
        let deadline = self.opener.rt.now().saturating_add(wait);
        let mut has_told = false;
        loop {
            let waiting = self.opener.rt.now() < deadline;
            self.scan_and_start(if waiting { Patience::Wait } else { Patience::Now }).await?;
            // Without any member there may never be one: the machine does not wait for it.
            let nothing_yet = self.arrays.borrow().is_empty() && !self.pending.allow_empty;
            let waits = waiting && (nothing_yet || self.pending.is_incomplete());
            if self.stopping.get() || !waits && !self.pending.holds_spare.get() {
                break;
            }
            if nothing_yet && !self.pending.is_incomplete() && !has_told {
                has_told = true;
                let places = self.pending.places_in_words();
                let wait = self.pending.first_wait().unwrap_or_default();
                let text = format!("waiting for members: there are none in {places} yet, {wait}");
                log_line(&text);
                background::tell_starter(&text);
            }
            notify::extend_timeout();
            self.opener.rt.sleep(SCAN_SOON).await;
        }
        self.pending.is_up.set(true);
        let pending = &self.pending;
        if !self.arrays.borrow().is_empty() {
            return Ok(());
        }
        if pending.allow_empty {
            log_line("no array yet: waiting for members");
            return Ok(());
        }
        if let Some(array) = pending.not_started.borrow().first()
            && pending.lacks_members.get()
            && background::is_detached()
        {
            let waited = pending
                .wait
                .filter(|wait| !wait.is_zero())
                .map_or_else(String::new, |wait| format!(" after {}", size::show_duration(wait)));
            let hint = array.hint.as_deref().map_or_else(String::new, |hint| format!("{hint}; "));
            return Err(Failure::new(format!("{} is not started{waited}: {}", array.name, array.why))
                .hint(format!(
                    "{hint}`--wait 1m` waits a minute for missing members, `--allow-empty` until they come"
                )));
        }
        if pending.lacks_members.get() {
            log_line("waiting for the missing members; `weft status` shows them");
            return Ok(());
        }
        let missed = |wanted: &&String| {
            let not_started = pending.not_started.borrow();
            !not_started.iter().any(|array| array.name == **wanted || array.id == **wanted)
        };
        if let Some(wanted) = pending.only.iter().find(missed) {
            return Err(Failure::new(format!("no member of an array {wanted} was found"))
                .hint("`weft examine DISK` shows which array a disk belongs to"));
        }
        if let Some(array) = pending.not_started.borrow().first() {
            return Err(Failure { hint: array.hint.clone(), ..Failure::new(&*array.why) });
        }
        if let Some(disk) = pending.unused.borrow().iter().find(|disk| disk.attention) {
            let failure = Failure::new(format!("{}: {}", disk.disk, disk.why));
            // The daemon ends, so it will not search again.
            let hint = disk.hint.as_deref().filter(|hint| *hint != SCANNED_AGAIN);
            return Err(failure.hint(hint.unwrap_or("check the name, and that you may read it")));
        }
        Err(Failure::new(format!("no members found in {}", pending.places_in_words()))
            .hint("create an array with `weft create`, or name its disks"))
    }

    /// Scans again, as long as something is missing, until the daemon stops.
    pub(super) async fn keep_scanning(self: Rc<Self>) {
        let mut pause = SCAN_EVERY;
        while !self.stopping.get() {
            let pause_now = if self.pending.holds_spare.get() { SECOND } else { pause };
            self.opener.rt.sleep(pause_now).await;
            let lacks = self.pending.is_incomplete()
                || self.has_absent()
                || self.arrays.borrow().is_empty();
            if !lacks || self.stopping.get() {
                pause = SCAN_EVERY;
                continue;
            }
            let news = self.scan_and_start(Patience::Settled).await.unwrap_or(false);
            pause = if news { SCAN_EVERY } else { (pause * 2).min(SCAN_SELDOM) };
        }
    }

    /// Whether an array that is served lacks a member that would be taken back.
    fn has_absent(&self) -> bool {
        let lacks = |served: &Rc<Served>| {
            let status = served.array.status();
            status.slots.iter().any(|slot| slot.state == MemberState::Missing)
        };
        self.arrays.borrow().values().any(lacks)
    }

    /// Scans now, at a user's request.
    pub(super) async fn scan_now(&self) {
        if let Err(failure) = self.scan_and_start(Patience::Now).await {
            log_line(&format!("could not scan for disks: {failure}"));
        }
    }

    /// Scans soon, as a disk has appeared: arrays that are complete then start, and absent members
    /// are taken back. Disks that appear together cost one scan.
    pub(super) fn scan_soon(&self) {
        // The first start scans all the time.
        if !self.pending.is_up() || self.announced.replace(true) {
            return;
        }
        let Some(daemon) = self.me.upgrade() else { return };
        drop(self.opener.rt.spawn(async move {
            daemon.opener.rt.sleep(ANNOUNCED_TOGETHER).await;
            daemon.announced.set(false);
            if daemon.stopping.get() {
                return;
            }
            if let Err(failure) = daemon.scan_and_start(Patience::Wait).await {
                log_line(&format!("could not scan for disks: {failure}"));
            }
        }));
    }

    /// Scans all places and starts what can be started. Returns whether anything changed.
    async fn scan_and_start(&self, patience: Patience) -> Result<bool, Failure> {
        let scan = self.scan(&[], patience == Patience::Now).await?;
        let _turn = self.starting.acquire(1).await;
        let mut holds_spare = false;
        self.pending.lacks_members.set(false);
        let arrays_before = self.arrays.borrow().len();
        let mut unused = scan.unused;
        let mut not_started = Vec::new();
        let mut seen = BTreeMap::new();
        for found in &scan.arrays {
            if self.stopping.get() || self.is_served(found) {
                continue;
            }
            let places: Vec<String> = found.members.iter().map(|m| m.place.clone()).collect();
            let settled = self.pending.last_seen.borrow().get(&found.id) == Some(&places);
            seen.insert(found.id, places);
            if let Some(array) = self.reason_not_to_start(found, &scan.arrays) {
                not_started.extend(array);
                continue;
            }
            let missing = found.missing();
            let holds = self.pending.holds_spare_of(found, self.opener.rt.now());
            holds_spare |= holds;
            let must_wait = match patience {
                Patience::Wait => true,
                Patience::Settled => !settled || holds,
                Patience::Now => holds,
            };
            if must_wait && !missing.is_empty() {
                let why = format!("waiting for {}", missing.join(", "));
                let hint = match holds {
                    true => {
                        let wait = Duration::from_nanos(self.pending.spare_wait());
                        let wait = size::show_duration(wait);
                        Some(format!("a spare takes its place after {wait} (`weft serve --wait`)"))
                    }
                    false => self.pending.first_wait(),
                };
                not_started.push(self.pending.note_not_started(found, &why, hint));
                continue;
            }
            match self.start_one(found, self.pending.force_degraded, None, &mut unused).await {
                Ok(()) => {}
                Err(failure) => {
                    let Failure { message, hint, .. } = failure;
                    not_started.push(self.pending.note_not_started(found, &message, hint));
                }
            }
        }
        self.pending.holds_spare.set(holds_spare);
        let refused = self.take_back_absent(&scan.arrays).await;
        let left_out = self.left_out(&scan.arrays).into_iter();
        unused.extend(left_out.filter(|disk| refused.iter().all(|one| one.disk != disk.disk)));
        for disk in refused {
            unused.retain(|other| other.disk != disk.disk);
            unused.push(disk);
        }
        let in_use: Vec<String> = self
            .arrays
            .borrow()
            .values()
            .flat_map(|served| served.array.status().disks())
            .collect();
        unused.retain(|disk| !in_use.contains(&disk.disk));
        *self.pending.last_seen.borrow_mut() = seen;
        let started = self.arrays.borrow().len() != arrays_before;
        Ok(self.pending.set(not_started, unused) || started)
    }

    /// Scans all places, and `more`. Members that are missing there are searched for on all block
    /// devices, if these have changed since the last search, or `thoroughly`.
    async fn scan(&self, more: &[String], thoroughly: bool) -> Result<Scan, Failure> {
        let mut places = self.pending.places.borrow().clone();
        let more = more.iter().map(|text| SearchPlace { text: text.clone(), named: false });
        places.extend(more);
        let before = self.pending.devices.borrow().clone();
        let before = if thoroughly { Vec::new() } else { before };
        let look = move || {
            thread::run(move |opener| async move {
                let mut scan = scan::scan(&opener, &places).await;
                let added = scan::search_devices(&opener, &mut scan, &before).await;
                Ok((scan, added))
            })
        };
        let (mut scan, added) = thread::elsewhere(look).await??;
        self.pending.add_places(added);
        if let Some(devices) = scan.devices.take() {
            *self.pending.devices.borrow_mut() = devices;
        }
        Ok(scan)
    }

    fn is_served(&self, found: &FoundArray) -> bool {
        self.arrays.borrow().values().any(|served| served.array.identities().0 == found.id)
    }

    /// What keeps an array from starting automatically: `None` if nothing does, an empty list item
    /// if the array was not asked for at all.
    fn reason_not_to_start(
        &self,
        found: &FoundArray,
        all: &[FoundArray],
    ) -> Option<Option<NotStarted>> {
        let pending = &self.pending;
        let name = found.name();
        if !pending.only.is_empty() && !pending.only.iter().any(|wanted| found.is_called(wanted)) {
            return Some(None);
        }
        if let Some(Failure { message, hint, .. }) = pending.failed.borrow().get(&found.id) {
            return Some(Some(pending.note_not_started(found, message, hint.clone())));
        }
        if pending.stopped.borrow().contains(&found.id) {
            let hint = Some(format!("`weft start {name}` starts it again"));
            return Some(Some(pending.note_not_started(found, "stopped by command", hint)));
        }
        let wanted = |other: &&FoundArray| {
            pending.only.is_empty() || pending.only.iter().any(|wanted| other.is_called(wanted))
        };
        let same_name =
            |other: &&FoundArray| other.id != found.id && other.name() == name && wanted(other);
        let served = self.arrays.borrow().contains_key(&name);
        let other = all.iter().find(same_name);
        if !served && other.is_none() {
            return None;
        }
        let why = match other {
            Some(other) => {
                format!("two arrays are named {name}: {} and {}", found.id, other.id)
            }
            None => format!("another array named {name} is being served"),
        };
        let hint = format!(
            "`weft start {}` starts this one; `weft serve --array ID` always picks that one",
            found.id
        );
        Some(Some(pending.note_not_started(found, &why, Some(hint))))
    }

    /// Assembles an array from the members that were found, and serves it. Members that cannot be
    /// opened go to `unused`.
    async fn start_one(
        &self,
        found: &FoundArray,
        force_degraded: bool,
        consistency: Option<Consistency>,
        unused: &mut Vec<UnusedDisk>,
    ) -> Outcome {
        if let Some(failure) = self.pending.failed.borrow().get(&found.id) {
            return Err(failure.clone());
        }
        let name = found.name();
        let read_only = self.pending.read_only;
        let mut disks: Vec<Rc<dyn Disk>> = Vec::new();
        let mut refused = Vec::new();
        for member in &found.members {
            match self.open_member(&member.place, read_only).await {
                Ok(disk) => disks.push(disk),
                Err(error) if error.busy => return Err(error.failure),
                Err(error) => {
                    refused.push(error.failure.message.clone());
                    unused.push(scan::unused(&member.place, &error.failure, true));
                }
            }
        }
        tell_unused(&name, &disks, force_degraded).await;
        let options = AssembleOptions {
            force_degraded,
            read_only,
            consistency,
            now_unix_s: thread::unix_s(),
            nonce: u64::from_le_bytes(thread::random()?),
        };
        let isolation = self.isolate(found.id, &name);
        let assembling = Array::assemble(isolation.rt(), disks, options);
        let assembled = isolation.guard(Box::pin(assembling)).await?;
        let array = assembled.map_err(|error| {
            use AssembleError::{NoMajority, TooFew};
            let lacks = |why: &AssembleError| matches!(why, TooFew { .. } | NoMajority { .. });
            if matches!(&error, ArrayError::Assemble(why) if lacks(why))
                && !found.missing().is_empty()
            {
                self.pending.lacks_members.set(true);
            }
            explain(error, &refused)
        })?;
        let served = Served::new(&isolation, array, read_only, force_degraded);
        self.begin_cache(&name, &served);
        let added = self.server.add_export(&name, served.export());
        added.map_err(|e| Failure::new(e.to_string()))?;
        self.arrays.borrow_mut().insert(name.clone(), served.clone());
        // One that was forced to start may be older than what users of its device, or virtual
        // machines that connect again by themselves, have seen.
        if !force_degraded {
            self.add_vhost(&name, &served);
        }
        self.take_over_channel(&name, &served);
        if !force_degraded {
            self.take_over_nbd(name.clone(), served.clone());
            self.take_over_device(name.clone(), served);
        }
        if self.pending.is_up.get() {
            self.announce(&name);
        }
        Ok(())
    }

    /// Takes back members that were absent when their arrays started. Returns the members that stay
    /// absent, with the reason.
    async fn take_back_absent(&self, all: &[FoundArray]) -> Vec<UnusedDisk> {
        let mut refused = Vec::new();
        let served: Vec<Rc<Served>> = self.arrays.borrow().values().cloned().collect();
        for served in served.iter().filter(|served| !served.read_only) {
            let (id, _) = served.array.identities();
            for member in all.iter().filter(|found| found.id == id).flat_map(|f| &f.members) {
                let slot = served.array.slot_left_by(&member.superblock);
                if slot.is_none_or(|(_, absent)| !absent) {
                    continue;
                }
                match self.open_member(&member.place, false).await {
                    // If it fails, the status tells how to try again.
                    Ok(disk) => drop(served.array.take_back(disk).await),
                    Err(error) => refused.push(scan::unused(&member.place, &error.failure, true)),
                }
            }
        }
        refused
    }

    /// Members of arrays that already run without them.
    fn left_out(&self, all: &[FoundArray]) -> Vec<UnusedDisk> {
        let arrays = self.arrays.borrow();
        let mut left_out = Vec::new();
        for served in arrays.values() {
            let (id, used) = served.array.identities();
            let name = served.array.status().name;
            let found = all.iter().filter(|found| found.id == id).flat_map(|found| &found.members);
            for member in found.filter(|member| !used.contains(&member.superblock.self_id)) {
                let place = &member.place;
                let add = if served.array.slot_left_by(&member.superblock).is_some() {
                    format!(
                        "`weft add {name} {place}` takes it back: only the regions written since it \
                         left are rebuilt"
                    )
                } else {
                    format!("`weft add {name} {place} --force` makes it a spare to rebuild onto")
                };
                let failure = Failure::new(format!("{name} is running without it"))
                    .hint(format!("{add}; `weft wipe {place} --force` frees it"));
                left_out.push(scan::unused(place, &failure, false));
            }
        }
        left_out
    }
}

/// Logs members that are left out because they missed writes.
async fn tell_unused(name: &str, disks: &[Rc<dyn Disk>], force_degraded: bool) {
    // All at once: each disk that does not answer takes its full time limit.
    let found = disks.iter().map(|disk| async move {
        let superblock = read_superblock(&**disk).await;
        FoundDisk { disk: disk.info().clone(), superblock }
    });
    let found = join_all(found).await;
    // Whether the array survives the missing members is decided elsewhere.
    if let Ok(assembly) = decide(&found, force_degraded, &|_, _| true) {
        for unused in &assembly.unused {
            let disk = &found[unused.index].disk.name;
            log::about(name, &format!("ALERT: {disk} is not used: {}", unused.why));
        }
    }
}

/// The failure of an array that cannot be assembled, with what to do. Members that are there and
/// were `refused` are part of the reason.
fn explain(error: ArrayError, refused: &[String]) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        ArrayError::Assemble(_) if !refused.is_empty() => {
            Failure::new(format!("{error}; {}", refused.join("; "))).hint(
                "let weft write to these disks, or only read the array: `weft serve --read-only`",
            )
        }
        ArrayError::Assemble(_) => failure.hint(
            "give all members there are, or add --force-degraded if the others are lost for good; \
             `weft examine` shows what each says. Nothing was changed",
        ),
        _ => failure,
    }
}
