//! Starts arrays by command, and remembers those stopped by command.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use weft_array::{Consistency, Id};
use weft_cli::disks::{DiskAddress, absolute};
use weft_cli::failure::Failure;
use weft_rt::SECOND;

use super::SCAN_SOON;
use crate::control::protocol::{NotStarted, StartTarget};
use crate::daemon::scan::{FoundMember, Scan};
use crate::daemon::served::Served;
use crate::daemon::{Daemon, log};

impl Daemon {
    /// `weft start`.
    pub(in crate::daemon) async fn start_by_command(
        &self,
        targets: &[StartTarget],
        force_degraded: bool,
        consistency: Option<Consistency>,
        wait_s: Option<u64>,
        dry_run: bool,
    ) -> Result<Value, Failure> {
        let is_disk = |place: &str| match DiskAddress::of(place) {
            DiskAddress::Uri(_) => true,
            DiskAddress::Path(path) => path.exists(),
        };
        let disks = targets.iter().map(|target| &target.place).filter(|place| is_disk(place));
        let more: Vec<String> = disks.cloned().collect();
        let wait = wait_s.map_or_else(|| self.pending.spare_wait(), |s| s.saturating_mul(SECOND));
        let deadline = self.opener.rt.now().saturating_add(wait);
        let mut has_told = false;
        let mut started = Vec::new();
        let scan = loop {
            if self.stopping.get() {
                return Err(Failure::new("the daemon is stopping and starts no more arrays"));
            }
            let mut scan = self.scan(&more, !has_told).await?;
            let mut wanted = BTreeSet::new();
            for target in targets {
                match self.find_to_start(target, &scan) {
                    Ok(id) => drop(wanted.insert(id)),
                    // What this waited for has come, and the daemon has started it automatically.
                    Err(_) if has_told && self.find(&target.text).is_ok() => {}
                    Err(failure) => return Err(failure),
                }
            }
            scan.arrays.retain(|found| wanted.contains(&found.id));
            let waiting = scan.arrays.iter().find(|found| found.would_use_spare());
            let Some(found) = waiting.filter(|_| !dry_run && self.opener.rt.now() < deadline)
            else {
                break scan;
            };
            if !std::mem::replace(&mut has_told, true) {
                let missing = found.missing().join(", ");
                log::about(&found.name(), &format!("waiting for {missing} before a spare is used"));
            }
            self.opener.rt.sleep(SCAN_SOON).await;
        };
        let _turn = self.starting.acquire(1).await;
        for served in targets.iter().filter_map(|target| self.find(&target.text).ok()) {
            let status = served.array.status();
            let (name, id, uris) = (&status.name, &status.id, self.uris(&status.name));
            let none: [&str; 0] = [];
            started.push(json!({ "name": name, "id": id, "missing": none, "nbd_uris": uris }));
        }
        if !dry_run {
            self.pending.add_places(more);
        }
        for found in scan.arrays.iter().filter(|found| !self.is_served(found)) {
            let (name, missing) = (found.name(), found.missing());
            if self.arrays.borrow().contains_key(&name) {
                return Err(Failure::new(format!("another array named {name} is being served"))
                    .hint(format!("`weft stop {name}` stops it")));
            }
            if !dry_run {
                self.pending.stopped.borrow_mut().remove(&found.id);
                let force = force_degraded || self.pending.force_degraded;
                let mut unused = Vec::new();
                self.start_one(found, force, consistency, &mut unused).await?;
                let id = found.id.to_string();
                self.pending.not_started.borrow_mut().retain(|array| array.id != id);
                self.pending.unused.borrow_mut().extend(unused);
            }
            let uris = self.uris(&name);
            let id = found.id.to_string();
            started.push(json!({ "name": name, "id": id, "missing": missing, "nbd_uris": uris }));
        }
        Ok(json!({ "arrays": started, "done": !dry_run }))
    }

    /// The array that a target of `weft start` means.
    fn find_to_start(&self, target: &StartTarget, scan: &Scan) -> Result<Id, Failure> {
        let StartTarget { text, place } = target;
        let named = scan.arrays.iter().filter(|found| found.is_called(text));
        let holding = scan.arrays.iter().filter(|found| {
            let same = |m: &FoundMember| m.place == *place;
            absolute(place).is_ok() && found.members.iter().any(same)
        });
        let (named, holding): (Vec<_>, Vec<_>) = (named.collect(), holding.collect());
        let chosen = match (named.as_slice(), holding.as_slice()) {
            ([], []) => {
                let unused = scan.unused.iter().find(|disk| disk.disk == *place);
                return Err(match unused {
                    Some(disk) => Failure {
                        hint: disk.hint.clone(),
                        ..Failure::new(format!("{}: {}", disk.disk, disk.why))
                    },
                    None => Failure::new(format!("{text} is neither an array nor a member of one"))
                        .hint(
                            "`weft status` lists the arrays found; `weft start` also takes disks",
                        ),
                });
            }
            ([], found) | (found, _) if found.len() > 1 => {
                let ids: Vec<String> = found.iter().map(|found| found.id.to_string()).collect();
                return Err(Failure::new(format!("several arrays are named {text}"))
                    .hint(format!("use the id of one: {}", ids.join(" or "))));
            }
            ([], [found]) | ([found], _) => found,
            _ => unreachable!("several are handled above"),
        };
        if self.is_served(chosen) {
            let name = chosen.name();
            return Err(Failure::new(format!("{name} is already being served"))
                .hint(format!("`weft status {name}` shows it")));
        }
        Ok(chosen.id)
    }

    /// Remembers an array that is stopped by command, and where its disks are.
    pub(in crate::daemon) fn note_stopped(&self, served: &Served) {
        let (id, _) = served.array.identities();
        let status = served.array.status();
        self.pending.add_places(status.disks());
        self.pending.stopped.borrow_mut().insert(id);
        self.pending.not_started.borrow_mut().push(NotStarted {
            hint: Some(format!("`weft start {}` starts it again", status.name)),
            name: status.name,
            id: id.to_string(),
            why: "stopped by command".to_owned(),
            stopped: true,
        });
    }
}
