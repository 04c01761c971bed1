//! What commands ask of a mounted weftfs, by attributes of its root folder that only root may use.
//!
//! A value that is read or set is JSON, except for numbers of disks. Rebuilding, emptying a disk,
//! balancing, scrubbing and giving files another redundancy go on in the background: setting the
//! attribute starts them, and the status shows their progress and how the last one ended. A rebuild
//! starts automatically, and jobs that an unmount interrupted go on ([`Fs::keep`]). An errno cannot
//! tell why a command was refused, so the reason of the last refusal is an attribute as well.

use std::cell::RefCell;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use serde_json::{Value, json};
use weft_cli::output::log_line;
use weft_disk::{Bytes, Disk};
use weft_fs::{
    BalanceReport, Fs, FsError, FsckReport, Ino, Job, JobReport, RebuildReport, Result, ScrubReport,
};
use weft_rt::{MILLISECOND, Nanos, Rt};

use crate::counts::Counts;

/// Gives the state.
pub const STATUS: &str = "trusted.weft.status";
/// Reading it checks the metadata.
pub const CHECK: &str = "trusted.weft.check";
/// Reading it checks metadata and data.
pub const CHECK_DATA: &str = "trusted.weft.check_data";
/// Gives the reason why the last command was refused, as text.
pub const REFUSED: &str = "trusted.weft.refused";
/// Followed by the number of a disk, gives the files that would lose blocks without it.
pub const LOSS: &str = "trusted.weft.loss.";
/// Setting it to the number of a disk takes it out of service, unless files would lose blocks;
/// setting it to `{"disk": NUMBER, "force": true}` does it in any case.
pub const FAIL: &str = "trusted.weft.fail";
/// Setting it to `{"disk": PLACE, "force": BOOL}` adds a disk.
pub const ADD: &str = "trusted.weft.add";
/// Setting it to the number of a disk that has become larger lets the file system use all of it.
pub const GROW: &str = "trusted.weft.grow";
/// Setting it to a number starts to empty this disk, which then leaves.
pub const REMOVE: &str = "trusted.weft.remove";
/// Setting it starts to rebuild the contents of lost disks, unless that is in progress or done
/// already: the status shows how it ended.
pub const REBUILD: &str = "trusted.weft.rebuild";
/// Setting it to `{"inodes": [NUMBER, …], "redundancy": NAME}` sets the redundancy of these files,
/// and starts to rewrite them, at once or when the running job has ended.
pub const SET: &str = "trusted.weft.set";
/// Setting it starts to move existing data to disks with more room, unless that is in progress.
pub const BALANCE: &str = "trusted.weft.balance";
/// Setting it starts a scrub, or goes on with one that was interrupted, unless that is under way.
pub const SCRUB: &str = "trusted.weft.scrub";
/// Setting it ends the job that runs after its step, or if none runs, the most urgent one that
/// waits.
pub const CANCEL: &str = "trusted.weft.cancel";

/// How often it is looked whether a job has given way.
const LOOK_EVERY: Nanos = 100 * MILLISECOND;

/// Opens a disk by its place.
pub type OpenDisk =
    Rc<dyn Fn(String) -> LocalBoxFuture<'static, std::result::Result<Rc<dyn Disk>, String>>>;

/// The commands of one mount.
pub(crate) struct Control {
    rt: Rt,
    fs: Fs,
    open: OpenDisk,
    requests: Rc<Counts>,
    refused: RefCell<String>,
    /// How the last job ended.
    last_job: Rc<RefCell<Value>>,
}

impl Control {
    pub(crate) fn new(rt: Rt, fs: Fs, open: OpenDisk, requests: Rc<Counts>) -> Self {
        let last_job: Rc<RefCell<Value>> = Rc::default();
        let last = last_job.clone();
        let name = fs.label().name.clone();
        fs.on_stop(move |why| {
            log_line(&format!("ALERT: the file system '{name}' has stopped: {why}"));
        });
        let name = fs.label().name.clone();
        fs.on_lost_disk(move |number, disk, why| {
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            log_line(&format!(
                "ALERT: file system '{name}': disk {number} ({disk}) is lost and not used any more{why}"
            ));
        });
        let name = fs.label().name.clone();
        fs.on_lack_of_room(move |bytes| {
            let lack = Bytes(bytes);
            log_line(&format!(
                "ALERT: file system '{name}': the rebuild starts, and the disks lack room for {lack:#} of the \
                 lost data: add a disk"
            ));
        });
        let name = fs.label().name.clone();
        fs.on_wrong_metadata(move |what| log_line(&format!("file system '{name}': {what}")));
        fs.keep(move |job, ended| *last.borrow_mut() = outcome_json(job, ended));
        Self { rt, fs, open, requests, refused: RefCell::default(), last_job }
    }

    /// The value of an attribute; none if it is not one of these.
    pub(crate) async fn get(&self, name: &[u8]) -> Option<Result<Vec<u8>>> {
        let value = match std::str::from_utf8(name).ok()? {
            STATUS => self.status().await,
            CHECK => self.fs.check(false).await.map(|report| check_json(&report)),
            CHECK_DATA => self.fs.check(true).await.map(|report| check_json(&report)),
            REFUSED => return Some(Ok(self.refused.borrow().clone().into_bytes())),
            name => self.loss(name.strip_prefix(LOSS)?).await,
        };
        if let Err(error) = &value {
            *self.refused.borrow_mut() = error.to_string();
        }
        Some(value.map(|value| value.to_string().into_bytes()))
    }

    /// Carries out what setting an attribute means; none if it is not one of these.
    pub(crate) async fn set(&self, name: &[u8], value: &[u8]) -> Option<Result<()>> {
        let text = std::str::from_utf8(value).unwrap_or_default();
        let number = || number_of(text);
        let is_command = name.starts_with(b"trusted.weft.");
        if is_command && self.fs.is_read_only() {
            return Some(Err(FsError::ReadOnly));
        }
        let done = match std::str::from_utf8(name).ok()? {
            FAIL => self.fail(text).await,
            ADD => self.add(text).await,
            GROW => match number() {
                Ok(number) => self.fs.grow_disk(number).await.map(drop),
                Err(error) => Err(error),
            },
            REMOVE => match number() {
                Ok(number) => self.remove(number).await,
                Err(error) => Err(error),
            },
            REBUILD => self.rebuild().await,
            BALANCE => self.begin_once(Job::Balance),
            SCRUB => self.begin_once(Job::Scrub),
            SET => self.begin_set(text).await,
            CANCEL => self.cancel().await,
            _ => return None,
        };
        if let Err(error) = &done {
            *self.refused.borrow_mut() = error.to_string();
        }
        Some(done)
    }

    async fn loss(&self, number: &str) -> Result<Value> {
        let number = number_of(number)?;
        let loss = self.fs.loss_of(number).await?;
        Ok(json!({ "disk": number, "files": loss.files, "first_files": loss.first }))
    }

    async fn fail(&self, text: &str) -> Result<()> {
        let wanted: Value = serde_json::from_str(text).unwrap_or_default();
        if wanted["force"] == true {
            return self.fs.fail_disk(number_of(&wanted["disk"].to_string())?).await;
        }
        self.fs.fail_disk_without_loss(number_of(text)?).await
    }

    async fn add(&self, text: &str) -> Result<()> {
        let wanted: Value = serde_json::from_str(text).unwrap_or_default();
        let place = wanted["disk"].as_str().unwrap_or_default().to_owned();
        let disk = match (self.open)(place.clone()).await {
            Ok(disk) => disk,
            // It may be one that was lost, and is open still.
            Err(why)
                if (why.contains("in use") || why.contains("busy"))
                    && self.fs.status().await?.disks.iter().any(|disk| disk.lost) =>
            {
                self.fs.close_lost_disks().await?;
                (self.open)(place).await.map_err(|_| FsError::Invalid(why))?
            }
            Err(why) => return Err(FsError::Invalid(why)),
        };
        self.fs.add_disk(disk, wanted["force"] == true).await.map(drop)
    }

    /// Starts a job. What it meets shows in the status.
    fn begin(&self, job: Job) -> Result<()> {
        let running = self.fs.begin_job(job)?;
        self.launch(job, running);
        Ok(())
    }

    /// Starts to empty a disk. What is refused at once is no job that has failed.
    async fn remove(&self, number: u16) -> Result<()> {
        if let Some(status) = self.fs.status().await?.job {
            return Err(FsError::Busy(status.job.name()));
        }
        self.fs.check_removal(number).await?;
        self.begin(Job::Remove(number))
    }

    /// Starts a job unless it already runs: an interrupted one may have continued automatically.
    fn begin_once(&self, job: Job) -> Result<()> {
        match self.begin(job) {
            Err(FsError::Busy(running)) if running == job.name() => Ok(()),
            begun => begun,
        }
    }

    /// Starts a rebuild. One that started automatically is enough, and another job gives way to it.
    async fn rebuild(&self) -> Result<()> {
        loop {
            let status = self.fs.status().await?;
            let is_lost = status.disks.iter().any(|disk| disk.lost);
            let runs = status.job.is_some_and(|status| status.job == Job::Rebuild);
            if runs || !is_lost && self.last_job.borrow()["job"] == Job::Rebuild.name() {
                return Ok(());
            }
            match self.begin(Job::Rebuild) {
                Err(FsError::Busy(_)) if is_lost => self.rt.sleep(LOOK_EVERY).await,
                begun => return begun,
            }
        }
    }

    async fn begin_set(&self, text: &str) -> Result<()> {
        let wanted: Value = serde_json::from_str(text).unwrap_or_default();
        let inos = wanted["inodes"].as_array().into_iter().flatten().map(Value::as_u64);
        let inos: Option<Vec<Ino>> = inos.collect();
        let inos = inos.filter(|inos| !inos.is_empty());
        let inos = inos.ok_or_else(|| FsError::Invalid("numbers of inodes are missing".into()))?;
        let redundancy = wanted["redundancy"].as_str().unwrap_or_default().parse()?;
        self.fs.want_redundancy(&inos, redundancy).await?;
        match self.begin(Job::Set) {
            // It starts when that one ends.
            Err(FsError::Busy(_)) => Ok(()),
            begun => begun,
        }
    }

    /// Cancels a job. One that only waited has ended as well.
    async fn cancel(&self) -> Result<()> {
        let job = self.fs.cancel().await?;
        *self.last_job.borrow_mut() = outcome_json(job, Err(FsError::Cancelled));
        Ok(())
    }

    fn launch(&self, job: Job, running: impl Future<Output = Result<JobReport>> + 'static) {
        let last = self.last_job.clone();
        self.rt.launch(Box::pin(async move {
            let ended = running.await;
            *last.borrow_mut() = outcome_json(job, ended);
        }));
    }

    async fn status(&self) -> Result<Value> {
        let status = self.fs.status().await?;
        let disk = |disk: &weft_fs::DiskStatus| {
            json!({
                "number": disk.number, "name": disk.name, "present": disk.present,
                "lost": disk.lost, "lost_because": disk.lost_because, "back_as": disk.back_as, "leaving": disk.leaving,
                "through_keeper": disk.through_keeper, "relayed_for": disk.relayed_for,
                "data_bytes": disk.data_bytes, "unused_bytes": disk.unused_bytes,
                "free_bytes": disk.free_bytes, "bad_blocks": disk.bad_blocks,
                "metadata": disk.metadata.name(),
            })
        };
        let space = |space: &weft_fs::SpaceFor| {
            json!({
                "redundancy": space.redundancy.to_string(), "free_bytes": space.free_bytes,
                "limited_by_metadata": space.is_limited_by_metadata,
            })
        };
        let job = status.job.map(|status| {
            let disk = match status.job {
                Job::Remove(number) => Some(number),
                Job::Rebuild | Job::Balance | Job::Scrub | Job::Set => None,
            };
            json!({
                "job": status.job.name(), "disk": disk, "done_blocks": status.done_blocks,
                "total_blocks": status.total_blocks, "lacking_blocks": status.lacking_blocks,
            })
        });
        let node = |of: &weft_fs::NodeStatus| {
            json!({
                "number": of.node.number, "epoch": of.node.epoch, "mounted": of.is_mounted,
                "early_commit": of.commits_early, "early_blocks": of.early_blocks,
                "lost_early_commits": of.lost_early_commits,
            })
        };
        let nodes = self.fs.nodes().await?;
        let early = self.fs.early_status();
        Ok(json!({
            "name": status.name, "id": status.id, "epoch": status.epoch,
            "stopped": status.stopped, "read_only": self.fs.is_read_only(),
            "disks": status.disks.iter().map(disk).collect::<Vec<_>>(),
            "space": status.space.iter().map(space).collect::<Vec<_>>(),
            "inodes": status.inodes, "free_inodes": status.free_inodes,
            "metadata_bytes": status.meta_bytes.0,
            "metadata_bytes_max": status.meta_bytes.1, "metadata_copies": status.meta_copies.0,
            "metadata_copies_wanted": status.meta_copies.1, "dirty_bytes": status.dirty_bytes,
            "files_in_memory": status.files_in_memory,
            "at_hand_bytes": status.at_hand_bytes, "at_hand_hits": status.at_hand.hits,
            "at_hand_misses": status.at_hand.misses, "at_hand_wrong": status.at_hand.wrong,
            "metadata_cache_bytes": status.meta_cache.bytes,
            "metadata_cache_bytes_max": status.meta_cache.bytes_max,
            "metadata_cache_hits": status.meta_cache.hits,
            "metadata_cache_misses": status.meta_cache.misses,
            "metadata_wrong_pages": status.meta_pages.wrong,
            "metadata_repaired_pages": status.meta_pages.repaired,
            "wrong_blocks": status.counts.wrong_blocks,
            "unreadable_blocks": status.counts.unreadable_blocks,
            "repaired_blocks": status.counts.repaired_blocks,
            "moved_blocks": status.counts.moved_blocks,
            "requests": self.requests.to_json(),
            "nodes": nodes.iter().map(node).collect::<Vec<_>>(),
            "early_commit": early.is_on, "early_blocks": early.waiting,
            "early_commits": early.counts.commits, "early_commits_refused": early.counts.refused,
            "job": job, "last_job": *self.last_job.borrow(),
        }))
    }
}

fn number_of(text: &str) -> Result<u16> {
    text.parse().map_err(|_| FsError::Invalid(format!("'{text}' is not a disk's number")))
}

fn outcome_json(job: Job, ended: Result<JobReport>) -> Value {
    let mut outcome = match ended {
        Ok(JobReport::Moved(report)) => rebuild_json(&report),
        Ok(JobReport::Balanced(report)) => balance_json(&report),
        Ok(JobReport::Scrubbed(report)) => scrub_json(&report),
        Ok(JobReport::Set(report)) => json!({ "blocks": report.blocks }),
        Err(error) => json!({
            "error": error.to_string(), "cancelled": matches!(error, FsError::Cancelled),
        }),
    };
    outcome["job"] = job.name().into();
    outcome
}

fn check_json(report: &FsckReport) -> Value {
    let finding = |finding: &weft_fs::Finding| json!({ "inode": finding.ino, "path": finding.path, "what": finding.what });
    let shown: Vec<_> = report.findings.iter().take(256).map(finding).collect();
    json!({
        "inodes": report.inodes, "blocks": report.blocks, "findings": report.findings.len(),
        "first_findings": shown,
    })
}

fn rebuild_json(report: &RebuildReport) -> Value {
    json!({
        "blocks": report.blocks, "kept_blocks": report.kept_blocks,
        "removed_disks": report.removed_disks,
        "damaged_files": report.damaged.len(), "waiting_files": report.waiting.len(),
    })
}

fn balance_json(report: &BalanceReport) -> Value {
    json!({
        "blocks": report.blocks, "damaged_files": report.damaged.len(),
        "crowded_files": report.crowded.len(),
    })
}

fn scrub_json(report: &ScrubReport) -> Value {
    json!({
        "blocks": report.blocks, "bad_blocks": report.bad_blocks,
        "repaired_blocks": report.repaired_blocks, "damaged_files": report.damaged_files,
        "diagnostic_blocks": report.diagnostic_blocks,
        "metadata_mismatches": report.metadata_mismatches,
        "metadata_damaged": report.metadata_damaged,
    })
}
