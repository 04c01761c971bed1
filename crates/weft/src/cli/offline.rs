//! Commands that need no daemon: create, examine, wipe.

use clap::Args;
use clap::builder::PossibleValue;
use weft_array::Consistency;
use weft_cli::size;

use super::named;

/// `weft create`.
#[derive(Debug, Args)]
#[command(after_help = "\
Codes:
  raid0  raid1  raid10  raid10:n2  raid4  raid5  raid6
  rs:K+R       Reed-Solomon: K data, R parity; survives any R losses
  lrc:K,L,R    K data in L local groups of one parity each, R global parities
  drc:K,L,R    lrc whose groups change from stripe to stripe: faster degraded
  drc-g:K,L,R  drc with every unit rotated over all disks
  drc-oa:K,L,R drc with a shorter period
The array needs at least as many members, not counting spares, as a stripe has units.

Without --force, weft refuses a disk that has nonzero data at its start, its end or at samples \
between, even if it does not recognise the data.

Examples:
  Seven new files of 1 GiB; any two may be lost:
    weft create tank --code drc-g:4,2,1 --size 1G d0 d1 d2 d3 d4 d5 d6
  Block devices, the last one a hot spare:
    weft create vault --code raid6 --spares 1 /dev/sd[b-h]
  A member on another machine; check only, change nothing:
    weft create far --code raid5 --dry-run /dev/sdb /dev/sdc nbd://10.0.0.2/disk")]
pub struct CreateArgs {
    /// Name of the array: letters, digits, `-`, `_`, `.`
    pub name: String,
    /// Files, block devices or nbd:// URIs, in slot order; spares last
    #[arg(required = true, value_name = "MEMBER")]
    pub members: Vec<String>,
    /// Redundancy code (see below)
    #[arg(long, value_name = "CODE")]
    pub code: String,
    /// Unit size: bytes of a stripe on one member
    #[arg(long, default_value = "64K", value_parser = size::parse_u32, value_name = "SIZE")]
    pub unit: u32,
    /// Order of data and parity for raid4/5/6, by Linux md's names [default: left-symmetric]
    #[arg(long, value_name = "NAME")]
    pub algorithm: Option<String>,
    /// Protection of stripes against a crash in the middle of a write
    /// [default: ppl for parity codes, bitmap for mirrors]
    #[arg(long, value_parser = named(Consistency::ALL, protection))]
    pub consistency: Option<Consistency>,
    /// Number of hot spares, taken from the end of the members
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub spares: usize,
    /// Create member files that do not exist, of this size
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub size: Option<u64>,
    /// Do not reserve the space of member files: writes stall whenever their file system is full
    #[arg(long)]
    pub sparse: bool,
    /// Array bytes per entry of the region map, which tracks what needs resync or rebuild; rounded
    /// up to a power of two and at least a stripe
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub region: Option<u64>,
    /// Space to leave before the data on each member, for later reshapes (`weft grow`)
    /// [default: a 64th of the smallest disk, at most 128M]
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub head_room: Option<u64>,
    /// Use disks that belong to an array or hold data of any kind (that data is lost)
    #[arg(long)]
    pub force: bool,
    /// Check everything and show what would be done, but change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// What a policy protects.
pub(super) fn protection(policy: Consistency) -> PossibleValue {
    PossibleValue::new(policy.name()).help(match policy {
        Consistency::Ppl => {
            "Partial parity log: no write hole, even if a disk is lost in the crash"
        }
        Consistency::Bitmap => "Tracks only what to resync; the write hole stays open",
        Consistency::None => {
            "Tracks nothing: after a crash, everything ever written is resynced; the write hole \
             stays open"
        }
    })
}

/// `weft examine`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weft examine d0
  weft examine --json /dev/sd[b-h]")]
pub struct ExamineArgs {
    /// Files, block devices or nbd:// URIs
    #[arg(required = true, value_name = "DISK")]
    pub disks: Vec<String>,
}

/// `weft wipe`.
#[derive(Debug, Args)]
#[command(after_help = "\
Erases the label and the superblocks that make a disk a member; with --zero everything on it. \
Without --force it only shows the disk's contents. Needs no daemon. Refuses a disk that a daemon, \
a mounted file system or another program uses. Leaves the signatures of other programs: erase \
those with `wipefs -a`.

Examples:
  weft wipe d1                  (only shows what would be erased)
  weft wipe /dev/sdx --force
  weft wipe old0 old1 --force --zero")]
pub struct WipeArgs {
    /// Files, block devices or nbd:// URIs
    #[arg(required = true, value_name = "DISK")]
    pub disks: Vec<String>,
    /// Erase it: the disk's array loses this member
    #[arg(long)]
    pub force: bool,
    /// Make everything on the disk read as zeros
    #[arg(long)]
    pub zero: bool,
    /// Only show what would be erased
    #[arg(long, conflicts_with = "force")]
    pub dry_run: bool,
}
