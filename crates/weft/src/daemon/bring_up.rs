//! Which arrays are served: starting what was found, looking again for what is missing.
//!
//! One bad disk stops nothing but, at most, its own array. What can be started is started; the rest
//! is listed in the status with the reason, and looked for again in the background:
//!
//! * A disk that appears later starts its array, once a second look finds the same disks (more may
//!   be on their way). If its array runs without it, it is taken back, and what was written since is
//!   rebuilt. One that failed is not: the status says how to give it back.
//! * An array that was stopped by command stays so until `weft start`.
//! * Of two arrays of one name neither is started by itself: clients would not know whose bytes
//!   they get. `weft start` with the id of one settles it.
//! * A member that another program has claimed is there, and will most likely be free soon. Its
//!   array waits: started without it, the member would have to be rebuilt.
//!
//! Scans run on a thread of their own. A disk that hangs when it is opened hangs that thread, and no
//! user.

mod by_command;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use weft_array::assemble::decide;
use weft_array::superblock::read_superblock;
use weft_array::{Array, ArrayError, AssembleOptions, Found, Id};
use weft_disk::Disk;
use weft_rt::{Nanos, SECOND};

use crate::cli::ServeArgs;
use crate::control::protocol::{NotStarted, UnusedDisk};
use crate::daemon::scan::{self, FoundArray, LOOKED_FOR_AGAIN, Scan, SearchPlace};
use crate::daemon::served::Served;
use crate::daemon::{Daemon, log, notify};
use crate::failure::{Failure, Outcome};
use crate::thread;

/// Time between two looks while `--wait` lasts.
const LOOK_SOON: Nanos = SECOND / 2;
/// Time between two looks later, while there is news.
const LOOK_EVERY: Nanos = 5 * SECOND;
/// The same after many looks without news.
const LOOK_SELDOM: Nanos = 60 * SECOND;

/// What is known of arrays and disks that are not served.
#[derive(Debug)]
pub struct Pending {
    /// Where members are.
    places: RefCell<Vec<SearchPlace>>,
    /// Serve only these, by name or id; all if empty.
    only: Vec<String>,
    wait: Duration,
    force_degraded: bool,
    pub read_only: bool,
    pub not_started: RefCell<Vec<NotStarted>>,
    pub unused: RefCell<Vec<UnusedDisk>>,
    /// Stopped by command.
    stopped: RefCell<BTreeSet<Id>>,
    /// Taken out of service after an internal error, which nothing but a new daemon mends.
    failed: RefCell<BTreeMap<Id, Failure>>,
    /// The members found by the last look, for each array that was not started.
    last_seen: RefCell<BTreeMap<Id, Vec<String>>>,
    /// The first look is over.
    is_up: Cell<bool>,
}

/// How eager a look is to start arrays that are not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Wait for the rest.
    Wait,
    /// Start what can be started.
    Now,
    /// Start it if the look before found the same members.
    Settled,
}

impl Pending {
    pub fn new(args: &ServeArgs) -> Self {
        Self {
            places: RefCell::new(args.members.iter().map(|m| SearchPlace::named(m)).collect()),
            only: args.arrays.clone(),
            wait: args.wait,
            force_degraded: args.force_degraded,
            read_only: args.read_only,
            not_started: RefCell::default(),
            unused: RefCell::default(),
            stopped: RefCell::default(),
            failed: RefCell::default(),
            last_seen: RefCell::default(),
            is_up: Cell::new(false),
        }
    }

    /// Whether a further look may find what is missing.
    fn is_incomplete(&self) -> bool {
        self.not_started.borrow().iter().any(|array| !array.stopped)
            || self.unused.borrow().iter().any(|disk| disk.attention)
    }

    /// Looks there too from now on; what is gone from there is not missed.
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

    /// Replaces what is known by what the last look found; news go to the log.
    fn set(&self, not_started: Vec<NotStarted>, unused: Vec<UnusedDisk>) -> bool {
        let before = self.not_started.replace(not_started);
        let unused_before = self.unused.replace(unused);
        let mut news = false;
        for array in self.not_started.borrow().iter().filter(|array| !before.contains(array)) {
            news = true;
            if !array.stopped {
                log::about(&array.name, &format!("ALERT: not started: {}", array.why));
            }
        }
        for disk in self.unused.borrow().iter().filter(|disk| !unused_before.contains(disk)) {
            news = true;
            let (alert, hint) = (if disk.attention { "ALERT: " } else { "" }, &disk.hint);
            let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
            log::line(&format!("{alert}{} is not used: {}{hint}", disk.disk, disk.why));
        }
        news
    }
}

impl Daemon {
    /// The first start: waits for `--wait` until the arrays seen are complete.
    ///
    /// # Errors
    /// If nothing could be started.
    pub(super) async fn start_all(&self) -> Outcome {
        let wait = Nanos::try_from(self.pending.wait.as_nanos()).unwrap_or(Nanos::MAX);
        let deadline = self.opener.rt.now().saturating_add(wait);
        loop {
            let waiting = self.opener.rt.now() < deadline;
            self.look(if waiting { Patience::Wait } else { Patience::Now }).await?;
            let nothing_yet = self.arrays.borrow().is_empty();
            if !waiting || !nothing_yet && !self.pending.is_incomplete() {
                break;
            }
            notify::extend_timeout();
            self.opener.rt.sleep(LOOK_SOON).await;
        }
        self.pending.is_up.set(true);
        let pending = &self.pending;
        if !self.arrays.borrow().is_empty() {
            return Ok(());
        }
        let missed = |wanted: &&String| {
            let not_started = pending.not_started.borrow();
            !not_started.iter().any(|array| array.name == **wanted || array.id == **wanted)
        };
        if let Some(wanted) = pending.only.iter().find(missed) {
            return Err(Failure::new(format!("no member of an array {wanted} was found"))
                .hint("`weft examine DISK` says to which array a disk belongs"));
        }
        if let Some(array) = pending.not_started.borrow().first() {
            return Err(Failure { hint: array.hint.clone(), ..Failure::new(&*array.why) });
        }
        if let Some(disk) = pending.unused.borrow().iter().find(|disk| disk.attention) {
            let failure = Failure::new(format!("{}: {}", disk.disk, disk.why));
            // The daemon ends: it looks for nothing again.
            let hint = disk.hint.as_deref().filter(|hint| *hint != LOOKED_FOR_AGAIN);
            return Err(failure.hint(hint.unwrap_or("check the name, and that it can be read")));
        }
        let places = pending.places.borrow();
        let places: Vec<&str> = places.iter().map(|place| place.text.as_str()).collect();
        Err(Failure::new(format!("no members found in {}", places.join(", ")))
            .hint("make an array with `weft create`, or name the disks themselves"))
    }

    /// Looks again, as long as something is missing, until the daemon stops.
    pub(super) async fn keep_looking(self: Rc<Self>) {
        let mut pause = LOOK_EVERY;
        while !self.stopping.get() {
            self.opener.rt.sleep(pause).await;
            if !self.pending.is_incomplete() || self.stopping.get() {
                pause = LOOK_EVERY;
                continue;
            }
            let news = self.look(Patience::Settled).await.unwrap_or(false);
            pause = if news { LOOK_EVERY } else { (pause * 2).min(LOOK_SELDOM) };
        }
    }

    /// Looks again now, because a person asked for it.
    pub(super) async fn look_now(&self) {
        if let Err(failure) = self.look(Patience::Now).await {
            log::line(&format!("could not look for disks: {failure}"));
        }
    }

    /// Looks at all places and starts what can be started. Returns whether there is news.
    async fn look(&self, patience: Patience) -> Result<bool, Failure> {
        let scan = self.scan(&[]).await?;
        let _turn = self.starting.acquire(1).await;
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
            if let Some(array) = self.keeps_from_starting(found, &scan.arrays) {
                not_started.extend(array);
                continue;
            }
            let missing = found.missing();
            let must_wait = match patience {
                Patience::Wait => true,
                Patience::Settled => !settled,
                Patience::Now => false,
            };
            if must_wait && !missing.is_empty() {
                let why = format!("waiting for {}", missing.join(", "));
                not_started.push(self.pending.note_not_started(found, &why, None));
                continue;
            }
            match self.start_one(found, self.pending.force_degraded, &mut unused).await {
                Ok(()) => {}
                Err(failure) => not_started.push(self.pending.note_not_started(
                    found,
                    &failure.message,
                    failure.hint,
                )),
            }
        }
        self.take_back_absent(&scan.arrays).await;
        unused.extend(self.left_out(&scan.arrays));
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

    async fn scan(&self, more: &[String]) -> Result<Scan, Failure> {
        let mut places = self.pending.places.borrow().clone();
        let more = more.iter().map(|text| SearchPlace { text: text.clone(), named: false });
        places.extend(more);
        let look = move || {
            thread::run(move |opener| async move { Ok(scan::scan(&opener, &places).await) })
        };
        thread::elsewhere(look).await?
    }

    fn is_served(&self, found: &FoundArray) -> bool {
        self.arrays.borrow().values().any(|served| served.array.identities().0 == found.id)
    }

    /// What keeps an array from being started by itself: `None` if nothing does, an empty list item
    /// if it was not asked for at all.
    fn keeps_from_starting(
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
                format!("two arrays are called {name}: {} and {}", found.id, other.id)
            }
            None => format!("another array called {name} is being served"),
        };
        let hint = format!(
            "`weft start {}` starts this one; `weft serve --array ID` always picks one of them",
            found.id
        );
        Some(Some(pending.note_not_started(found, &why, Some(hint))))
    }

    /// Assembles an array of the members that were found, and serves it. Members that cannot be
    /// opened go to `unused`.
    async fn start_one(
        &self,
        found: &FoundArray,
        force_degraded: bool,
        unused: &mut Vec<UnusedDisk>,
    ) -> Outcome {
        if let Some(failure) = self.pending.failed.borrow().get(&found.id) {
            return Err(failure.clone());
        }
        let name = found.name();
        let read_only = self.pending.read_only;
        let mut disks: Vec<Rc<dyn Disk>> = Vec::new();
        for member in &found.members {
            match self.open_member(&member.place, read_only).await {
                Ok(disk) => disks.push(disk),
                Err(error) if error.busy => return Err(error.failure),
                Err(error) => unused.push(scan::unused(&member.place, &error.failure, true)),
            }
        }
        tell_unused(&name, &disks, force_degraded).await;
        let options = AssembleOptions {
            force_degraded,
            read_only,
            now_unix_s: thread::unix_s(),
            nonce: u64::from_le_bytes(thread::random()?),
        };
        let isolation = self.isolate(found.id, &name);
        let assembling = Array::assemble(isolation.rt(), disks, options);
        let array = isolation.guard(assembling).await?.map_err(explain)?;
        let served = Served::new(&isolation, array, read_only);
        let added = self.server.add_export(&name, served.export.clone());
        added.map_err(|e| Failure::new(e.to_string()))?;
        self.arrays.borrow_mut().insert(name.clone(), served);
        if self.pending.is_up.get() {
            self.announce(&name);
        }
        Ok(())
    }

    /// Takes members back that were not there when their arrays were started.
    async fn take_back_absent(&self, all: &[FoundArray]) {
        let served: Vec<Rc<Served>> = self.arrays.borrow().values().cloned().collect();
        for served in served.iter().filter(|served| !served.read_only) {
            let (id, _) = served.array.identities();
            for member in all.iter().filter(|found| found.id == id).flat_map(|f| &f.members) {
                let slot = served.array.slot_left_by(&member.superblock);
                if slot.is_none_or(|(_, absent)| !absent) {
                    continue;
                }
                // If it fails, the status says how to try again.
                if let Ok(disk) = self.open_member(&member.place, false).await {
                    let _ = served.array.take_back(disk).await;
                }
            }
        }
    }

    /// Members that were found of arrays that run without them.
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
                        "`weft add {name} {place}` takes it back: only what was written since it \
                         left is rebuilt"
                    )
                } else {
                    format!("`weft add {name} {place} --force` makes it a spare, to be rebuilt on")
                };
                let failure = Failure::new(format!("{name} runs without it"))
                    .hint(format!("{add}; `weft wipe {place} --force` frees it"));
                left_out.push(scan::unused(place, &failure, false));
            }
        }
        left_out
    }
}

/// Members that are left out, because they missed writes, are worth a word.
async fn tell_unused(name: &str, disks: &[Rc<dyn Disk>], force_degraded: bool) {
    // All at once: of disks that do not answer, each takes its time limit.
    let found = disks.iter().map(|disk| async move {
        let superblock = read_superblock(&**disk).await;
        Found { disk: disk.info().clone(), superblock }
    });
    let found = join_all(found).await;
    // Whether it survives what is missing is not the question here.
    if let Ok(assembly) = decide(&found, force_degraded, &|_, _| true) {
        for unused in &assembly.unused {
            let disk = &found[unused.index].disk.name;
            log::about(name, &format!("ALERT: {disk} is left out: {}", unused.why));
        }
    }
}

/// Says what to do about an array that cannot be assembled.
fn explain(error: ArrayError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        ArrayError::Assemble(_) => failure.hint(
            "give all members there are, or add --force-degraded if the others are lost for good; \
             `weft examine` shows what each says. Nothing was changed",
        ),
        _ => failure,
    }
}
