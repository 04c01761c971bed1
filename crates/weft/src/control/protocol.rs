//! Messages of the control socket.
//!
//! Request: `{"version":1,"request":{"status":{"array":null}}}`. Answer: `{"ok":…}` or
//! `{"error":{"code":1,"message":"…","hint":"…"}}`. A daemon refuses versions it does not know.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use weft_array::{Consistency, Piggyback, RebuildOrder, RebuildPace, RebuildPolicy};
use weft_cli::failure::Failure;
use weft_code::SlotNo;
use weft_disk::IoCounts;
use weft_ublk::device::number_of;

use crate::block::attachment::Via;
use crate::device::Device;

/// Version of the protocol.
pub const VERSION: u32 = 1;

/// A line from client to daemon.
#[derive(Debug, Serialize, Deserialize)]
pub struct Envelope {
    /// Must be [`VERSION`].
    pub version: u32,
    /// The request.
    pub request: Request,
}

/// A client's request. Arrays are given by name or id.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Status of all arrays, or of one; answers with a [`Snapshot`].
    Status {
        /// Only this one.
        array: Option<String>,
    },
    /// Take a member out of service.
    Fail {
        /// The array.
        array: String,
        /// Slot, path, or end of the path.
        member: String,
        /// Only check.
        dry_run: bool,
    },
    /// Rehearse the loss of a member; answers with a [`weft_array::drill::DrillReport`].
    Drill {
        /// The array.
        array: String,
        /// Slot, path, or end of the path.
        member: String,
        /// How long users are observed before, in milliseconds.
        before_ms: u64,
        /// How long the rebuild runs at the most, in milliseconds.
        during_ms: u64,
        /// Most bytes of memory for what it writes.
        memory_bytes: u64,
    },
    /// Add a spare.
    Add {
        /// The array.
        array: String,
        /// The disk.
        disk: NewDisk,
    },
    /// Rebuild a slot onto a new disk.
    Replace {
        /// The array.
        array: String,
        /// Slot, path, or end of the path.
        member: String,
        /// The disk.
        disk: NewDisk,
    },
    /// Move an array to another geometry; answers with its [`weft_array::reshape::ReshapePlan`].
    Reshape {
        /// The array.
        array: String,
        /// The new code; `None` leaves it.
        code: Option<String>,
        /// The new unit in bytes; `None` leaves it.
        unit_bytes: Option<u64>,
        /// Spares to add; `None` adds the only one, or none if the code or the unit changes, or
        /// disks are removed.
        add: Option<usize>,
        /// Disks to remove.
        remove: usize,
        /// Bytes in use: data beyond it may be discarded. `None`: nothing that was written may.
        used_bytes: Option<u64>,
        /// Only plan.
        dry_run: bool,
    },
    /// Use more of each member; answers with its [`weft_array::GrowthPlan`].
    Grow {
        /// The array.
        array: String,
        /// Bytes to use of each member; `None`: all that the smallest has.
        member_bytes: Option<u64>,
        /// Only plan.
        dry_run: bool,
    },
    /// Turn a reshape back.
    TurnReshape {
        /// The array.
        array: String,
    },
    /// A disk has appeared: look for members soon.
    Announce {
        /// Its path.
        place: String,
    },
    /// Pause (`true`) or resume rebuilds.
    PauseRebuild {
        /// The array.
        array: String,
        /// Pause or resume.
        pause: bool,
    },
    /// Start a scrub.
    StartScrub {
        /// The array.
        array: String,
        /// Repair what does not match.
        repair: bool,
    },
    /// Stop a scrub.
    CancelScrub {
        /// The array.
        array: String,
    },
    /// Change the bandwidth of maintenance.
    Throttle {
        /// The array.
        array: String,
        /// Lowest rate in bytes per second; `None` leaves it.
        min_bytes_s: Option<u64>,
        /// Highest rate in bytes per second; `None` leaves it.
        max_bytes_s: Option<u64>,
        /// Mean time of users' requests to aim at, in microseconds; 0: none; `None` leaves it.
        #[serde(default)]
        latency_us: Option<u64>,
    },
    /// Show or change an array's cache; answers with its [`CacheReport`], or null if it is off.
    Cache {
        /// The array.
        array: String,
        /// Bytes that it may take; 0 switches it off, `None` leaves it.
        max_bytes: Option<u64>,
        /// The policy's name; `None` leaves it.
        policy: Option<String>,
    },
    /// Change the rebuild policy from now on; answers with the whole [`weft_array::RebuildPolicy`].
    RebuildPolicy {
        /// The array.
        array: String,
        /// The changes.
        change: PolicyChange,
    },
    /// Serve the array on the FUSE channel whose descriptor comes with this message.
    Attach {
        /// The array.
        array: String,
    },
    /// Serve the array on the socket whose descriptor comes with this message, for the kernel's NBD
    /// client at its other end.
    AttachNbd {
        /// The array.
        array: String,
        /// Whether the device has users who waited for a daemon.
        #[serde(default)]
        again: bool,
    },
    /// Make the array a ublk device; answers with [`UblkAnswer`].
    AttachUblk {
        /// The array.
        array: String,
        /// Its logical block, bytes; `None`: that of the array.
        block_bytes: Option<u32>,
        /// Whether it takes no writes.
        read_only: bool,
    },
    /// Start arrays that were found and are not served.
    Start {
        /// Arrays, or disks of them.
        targets: Vec<StartTarget>,
        /// Start them even if half of their members or more are missing.
        force_degraded: bool,
        /// Keep them consistent in this way from now on; `None` leaves it.
        #[serde(default)]
        consistency: Option<Consistency>,
        /// Seconds to wait for members whose place a spare would take; `None`: as `weft serve`.
        #[serde(default)]
        wait_s: Option<u64>,
        /// Only check.
        dry_run: bool,
    },
    /// Take a spare out of an array, or forget the disk that was last in a missing slot.
    Remove {
        /// The array.
        array: String,
        /// Slot, path, or end of the path.
        member: String,
        /// Only check.
        dry_run: bool,
    },
    /// Stop cleanly: one array, or the daemon.
    Stop {
        /// Only this one.
        array: Option<String>,
        /// Keep block devices that the next daemon can take over.
        #[serde(default)]
        keep_devices: bool,
    },
}

impl Request {
    /// The one array that it concerns.
    pub fn array(&self) -> Option<&str> {
        match self {
            Self::Status { array } | Self::Stop { array, .. } => array.as_deref(),
            Self::Fail { array, .. }
            | Self::Drill { array, .. }
            | Self::Add { array, .. }
            | Self::Replace { array, .. }
            | Self::Reshape { array, .. }
            | Self::Grow { array, .. }
            | Self::TurnReshape { array }
            | Self::PauseRebuild { array, .. }
            | Self::StartScrub { array, .. }
            | Self::CancelScrub { array }
            | Self::Throttle { array, .. }
            | Self::Cache { array, .. }
            | Self::RebuildPolicy { array, .. }
            | Self::Remove { array, .. }
            | Self::AttachUblk { array, .. }
            | Self::AttachNbd { array, .. }
            | Self::Attach { array } => Some(array),
            Self::Start { .. } | Self::Announce { .. } => None,
        }
    }
}

/// A change of a [`weft_array::RebuildPolicy`]: `None` leaves a parameter as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyChange {
    /// Reset to the defaults first.
    pub reset: bool,
    /// Which stripes come first.
    pub order: Option<RebuildOrder>,
    /// Who comes first on a disk, between the limits of the rate.
    pub pace: Option<RebuildPace>,
    /// Opportunistic rebuild from user I/O.
    pub piggyback: Option<Piggyback>,
    /// Stripes per slice.
    pub slice_stripes: Option<u64>,
    /// Stripes per hot zone.
    pub zone_stripes: Option<u64>,
    /// Hot zones tracked at a time.
    pub zones: Option<usize>,
    /// Half-life of access popularity, in milliseconds.
    pub half_life_ms: Option<u64>,
    /// Leave a slice as soon as another zone is much more popular.
    pub preemptive: Option<bool>,
}

impl PolicyChange {
    /// Whether it changes anything.
    pub fn is_some(&self) -> bool {
        *self != Self::default()
    }

    /// The policy after the change.
    pub fn of(&self, policy: RebuildPolicy) -> RebuildPolicy {
        let base = if self.reset { RebuildPolicy::default() } else { policy };
        RebuildPolicy {
            order: self.order.unwrap_or(base.order),
            pace: self.pace.unwrap_or(base.pace),
            piggyback: self.piggyback.unwrap_or(base.piggyback),
            slice_stripes: self.slice_stripes.unwrap_or(base.slice_stripes),
            zone_stripes: self.zone_stripes.unwrap_or(base.zone_stripes),
            zones: self.zones.unwrap_or(base.zones),
            half_life_ms: self.half_life_ms.unwrap_or(base.half_life_ms),
            preemptive: self.preemptive.unwrap_or(base.preemptive),
            ..base
        }
    }
}

/// A target of `weft start`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StartTarget {
    /// As the user wrote it: a name or id of an array, or a disk.
    pub text: String,
    /// The disk as an absolute path or URI.
    pub place: String,
}

/// A disk that a command adds; the daemon opens it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewDisk {
    /// Absolute path or URI.
    pub place: String,
    /// Take it even if it belongs to an array.
    pub force: bool,
    /// Only check.
    pub dry_run: bool,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Success, with the result.
    Ok(serde_json::Value),
    /// Failure.
    Error(WireFailure),
}

/// [`Failure`] on the wire.
#[derive(Debug, Serialize, Deserialize)]
pub struct WireFailure {
    /// Exit code.
    pub code: u8,
    /// What is wrong.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
}

impl From<Failure> for WireFailure {
    fn from(Failure { code, message, hint }: Failure) -> Self {
        Self { code, message, hint }
    }
}

impl From<WireFailure> for Failure {
    fn from(WireFailure { code, message, hint }: WireFailure) -> Self {
        Self { code, message, hint }
    }
}

/// Answer to [`Request::Attach`] and [`Request::AttachNbd`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Attached {
    /// Smallest logical block that the array writes without a read-modify-write, bytes.
    pub block_bytes: u32,
    /// Whether the array is served read-only, and the device must be as well.
    #[serde(default)]
    pub read_only: bool,
}

/// Answer to [`Request::AttachUblk`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UblkAnswer {
    /// The array is a device.
    Device {
        /// Its number.
        number: u32,
    },
    /// This machine, or this daemon, cannot do it.
    Unavailable {
        /// The reason.
        why: String,
    },
}

/// Answer to [`Request::Status`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Snapshot {
    /// The daemon's version of weft.
    pub daemon_version: String,
    /// Its process id.
    pub daemon_pid: u32,
    /// The arrays, by name.
    pub arrays: Vec<ServedArray>,
    /// Arrays that were found and are not served, and why.
    pub not_started: Vec<NotStarted>,
    /// Disks that were named or found and are not used, and why.
    #[serde(default)]
    pub unused: Vec<UnusedDisk>,
    /// Block devices whose daemon has ended; filled in by the command.
    #[serde(default)]
    pub dead_devices: Vec<DeadDevice>,
}

/// A block device whose daemon has ended. By FUSE it returns only errors; by ublk its users wait
/// for the next daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeadDevice {
    /// The way to the daemon.
    pub via: Via,
    /// The array.
    pub array: String,
    /// The device, if it still exists.
    pub device: Option<PathBuf>,
    /// Who uses it, in words.
    pub user: Option<String>,
}

/// A disk that is not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusedDisk {
    /// Its path or URI.
    pub disk: String,
    /// Why not.
    pub why: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Something is wrong with it that needs attention.
    pub attention: bool,
}

/// A member whose file or device node has gone while it is in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VanishedDisk {
    /// The disk, by the name under which it was opened.
    pub disk: String,
    /// What happened to it.
    pub what: String,
}

/// The block device of an attached array.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BlockDevice {
    /// Its path; not known while `weft attach` is still running.
    pub path: Option<PathBuf>,
    /// Its size: not yet that of the array just after this has changed.
    pub size_bytes: Option<u64>,
    /// Who uses it, in words: where it is mounted, and by which processes.
    pub user: Option<String>,
    /// The way to the daemon.
    pub via: Via,
    /// The link that leads to it.
    pub link: Option<PathBuf>,
}

impl ServedArray {
    /// The number of its ublk device.
    pub fn ublk(&self) -> Option<u32> {
        let device = self.block_device.as_ref().filter(|device| device.via == Via::Ublk)?;
        number_of(device.path.as_ref()?.file_name()?.to_str()?)
    }
}

/// A disk of an array that is served, or that was when it failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DiskStatus {
    /// The path or URI by which it was opened.
    pub disk: String,
    /// Its role in the array.
    pub role: DiskRole,
    /// The slot that it holds, held last, or is about to take.
    pub slot: Option<SlotNo>,
    /// Which piece of hardware it is.
    pub hardware: Device,
    /// Its I/O since it was opened.
    pub io: Option<IoCounts>,
}

/// The role of a disk in its array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskRole {
    /// It holds a slot, or was the last to do so.
    Member,
    /// It is about to replace a working member.
    Replacement,
    /// It is a spare.
    Spare,
}

/// An array that the daemon serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServedArray {
    /// The engine's status.
    pub status: weft_array::Status,
    /// Its disks.
    pub disks: Vec<DiskStatus>,
    /// Where NBD clients find it.
    pub nbd_uris: Vec<String>,
    /// NBD connections that were told an earlier size: clients learn it when they connect.
    #[serde(default)]
    pub nbd_outdated: usize,
    /// Whether it is attached as a block device.
    pub attached: bool,
    /// That device, as far as the daemon knows it; the command fills in the rest.
    #[serde(default)]
    pub block_device: Option<BlockDevice>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Members whose file or device node has gone while they are in use.
    #[serde(default)]
    pub vanished: Vec<VanishedDisk>,
    /// Its cache, if that is on.
    #[serde(default)]
    pub cache: Option<CacheReport>,
}

/// What a cache is and does. Blocks are of 4 KiB.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheReport {
    /// Its policy.
    pub policy: String,
    /// Bytes of memory that it may take.
    pub max_bytes: u64,
    /// Bytes of the blocks that it holds.
    pub used_bytes: u64,
    /// Share of the requested blocks that it had, 0 to 1.
    pub hit_ratio: f64,
    /// Blocks read from working disks for each block requested (requests generation ratio).
    pub rgr: f64,
    /// Since it was switched on, all together.
    #[serde(flatten)]
    pub total: CacheCounts,
    /// These counts for the blocks of each slot.
    pub slots: Vec<CacheCounts>,
}

/// Counts of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheCounts {
    /// Requested.
    pub requested_blocks: u64,
    /// Of these, the blocks that it had.
    pub hit_blocks: u64,
    /// Read from working disks for the missing ones.
    pub disk_blocks: u64,
    /// Not read for them, as other blocks of their stripes were in it.
    pub spared_blocks: u64,
    /// What hits would have read from working disks.
    pub saved_blocks: u64,
}

/// An array that was found, but could not be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotStarted {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// Why.
    pub why: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// It was stopped by command, so nothing is wrong.
    #[serde(default)]
    pub stopped: bool,
}
