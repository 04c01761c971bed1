//! Ways to reshape a RAID-5 onto more disks, to compare: Linux MD's, gradual assimilation, and ALV.
//!
//! A way is a [`Policy`], one file each. It decides which data moves next and when the progress is
//! recorded, and knows neither time nor disks. Two things carry it out: [`count`] counts its
//! requests, and [`Reshaping`](array::Reshaping) issues them to modelled disks while users use the
//! array. What must be the same for all ways is there: how far may be written without a checkpoint
//! ([`weft_layout::window`]), what a user's write costs, and what a checkpoint is.
//!
//! The engine's own reshape is no policy: it runs itself, on disks of the same model ([`engine`]).

mod alv;
mod array;
mod engine;
mod ga;
mod given;
mod md;
mod measure;
mod valve;

use std::ops::Range;

use serde::Deserialize;
use weft_code::CodeSpec;
use weft_layout::window::Window;
use weft_layout::{Algorithm, DiskRange, LayoutError, Placement};
use weft_rt::Nanos;

use alv::Alv;
use ga::GradualAssimilation;
pub(crate) use given::{Pacing, Run};
use md::{Era, Md};
pub(crate) use measure::{Measured, measure};

/// Bytes at the start of each disk that are not data: the metadata.
const DATA_OFFSET: u64 = 1 << 20;

/// Requests are merged up to this length on their way to a disk (`BLK_PLUG_FLUSH_SIZE`).
const MERGED_BYTES_MAX: u64 = 128 << 10;

/// What to reshape: a RAID-5, left-asymmetric, onto more disks.
#[derive(Clone, Debug)]
pub(crate) struct Grow {
    pub(crate) disks: usize,
    pub(crate) added: usize,
    /// Bytes used of each disk.
    pub(crate) disk_bytes: u64,
    pub(crate) unit_bytes: u64,
}

impl Grow {
    fn placement(&self, disks: usize) -> Result<Placement, LayoutError> {
        let (code, algorithm) = (CodeSpec::Raid5, Algorithm::LeftAsymmetric);
        let placement = Placement::new(code, algorithm, disks, self.disk_bytes, self.unit_bytes)?;
        Ok(placement.with_data_offset(DATA_OFFSET))
    }
}

/// A reshape, and what may be written of it when.
pub(crate) struct Job {
    window: Window,
    /// Addresses with data; those above are what the array gains.
    data_end: u64,
    /// Addresses of the new geometry.
    end: u64,
}

impl Job {
    pub(crate) fn new(grow: &Grow) -> Result<Self, LayoutError> {
        let old = grow.placement(grow.disks)?;
        let new = grow.placement(grow.disks + grow.added)?;
        let (data_end, end) = (old.size_bytes(), new.size_bytes());
        Ok(Self { window: Window::new(old, new), data_end, end })
    }

    /// Bytes of the array in a new stripe.
    fn new_stripe(&self) -> u64 {
        self.window.placements()[1].stripe_bytes()
    }

    /// How far may be written while `checkpoint` is durable.
    fn limit(&mut self, checkpoint: u64) -> u64 {
        // Behind the data nothing is left to overwrite.
        if checkpoint >= self.data_end { self.end } else { self.window.limit(checkpoint, u64::MAX) }
    }

    /// The requests that move these addresses.
    fn requests(&self, addresses: Range<u64>, cut: Cut) -> Move {
        let [old, new] = self.window.placements();
        let reads = old.data(addresses.start..addresses.end.min(self.data_end));
        let writes = new.rows(addresses.clone());
        let (reads, writes) = match cut {
            Cut::Whole => (hulls(reads), hulls(writes)),
            Cut::Pieces(_) => (reads, writes),
        };
        Move { addresses, reads, writes, cut }
    }
}

/// From the first to the last byte on each disk.
fn hulls(extents: Vec<DiskRange>) -> Vec<DiskRange> {
    let mut hulls: Vec<DiskRange> = Vec::new();
    for extent in extents {
        match hulls.last_mut() {
            Some(last) if last.disk == extent.disk => last.bytes.end = extent.bytes.end,
            _ => hulls.push(extent),
        }
    }
    hulls
}

/// How a move is cut into requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// One request for each disk, which passes over what lies between.
    Whole,
    /// Requests of this many bytes. On their way to a disk adjacent ones are merged.
    Pieces(u64),
}

/// Addresses being moved, and where they lie on the disks.
#[derive(Debug)]
struct Move {
    addresses: Range<u64>,
    reads: Vec<DiskRange>,
    writes: Vec<DiskRange>,
    cut: Cut,
}

/// How far a reshape is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Addresses below are durably in the new geometry.
    pub(crate) checkpoint: u64,
    /// When that was recorded.
    pub(crate) checkpoint_ns: Nanos,
    /// Addresses below are moved, or being moved.
    pub(crate) begun: u64,
    pub(crate) now: Nanos,
}

/// What is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The addresses up to here are moved.
    MoveTo(u64),
    /// The progress is recorded, once all that was started is complete.
    Checkpoint,
    /// Nothing is left.
    Done,
}

/// What users wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsersWait {
    /// Requests to data moved or being moved wait for the next checkpoint.
    ForCheckpoint,
    /// Requests to data being moved wait until it is moved. A write to moved data has the progress
    /// recorded first.
    ForMove,
}

/// A way to reshape.
pub(crate) trait Policy {
    /// What is done next.
    fn next(&mut self, job: &mut Job, at: Progress) -> Step;

    /// How its moves are cut into requests.
    fn cut(&self) -> Cut {
        Cut::Whole
    }

    /// How many moves run at the same time.
    fn moves_at_once(&self) -> usize {
        1
    }

    /// What users wait for.
    fn users_wait(&self) -> UsersWait {
        UsersWait::ForMove
    }
}

/// A policy by name, with its parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "way", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Way {
    /// [`Md`] of the paper's kernel.
    Md,
    /// [`Md`] of today.
    MdToday,
    /// [`GradualAssimilation`].
    Ga,
    /// [`Alv`].
    Alv {
        /// Whether it leaves out what the array gains, which holds no data.
        #[serde(default)]
        skip_empty: bool,
        /// Whether its windows are the paper's: [`Alv::as_printed`].
        #[serde(default)]
        as_printed: bool,
    },
    /// The engine's own ([`engine`]).
    Weft {
        /// How much of the array was ever written, in percent: the rest is not moved.
        written_percent: u64,
    },
}

impl Way {
    /// The policy, with this many bytes of buffers for each disk.
    ///
    /// # Errors
    /// If it is the engine's, which has none.
    pub(crate) fn policy(&self, grow: &Grow, buffer_bytes: u64) -> Result<Box<dyn Policy>, String> {
        Ok(match *self {
            Self::Md => Box::new(Md::new(Era::Paper, grow, buffer_bytes)),
            Self::MdToday => Box::new(Md::new(Era::Today, grow, buffer_bytes)),
            Self::Ga => Box::new(GradualAssimilation),
            Self::Alv { as_printed: true, .. } => Box::new(Alv::as_printed(grow, buffer_bytes)),
            Self::Weft { .. } => return Err("the engine's reshape has no policy".into()),
            Self::Alv { skip_empty, .. } => Box::new(Alv::new(grow, buffer_bytes, skip_empty)),
        })
    }
}

/// Requests and checkpoints of a whole reshape without users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) checkpoints: u64,
}

impl Counted {
    fn add(&mut self, moved: &Move) {
        let requests = |extents: &[DiskRange]| match moved.cut {
            Cut::Whole => extents.len() as u64,
            Cut::Pieces(bytes) => {
                extents.iter().map(|e| (e.bytes.end - e.bytes.start).div_ceil(bytes)).sum()
            }
        };
        self.reads += requests(&moved.reads);
        self.writes += requests(&moved.writes);
    }
}

/// Counts the requests of a policy.
pub(crate) fn count(policy: &mut dyn Policy, job: &mut Job) -> Counted {
    let mut counted = Counted::default();
    let mut at = Progress { checkpoint: 0, checkpoint_ns: 0, begun: 0, now: 0 };
    loop {
        match policy.next(job, at) {
            Step::MoveTo(end) => {
                counted.add(&job.requests(at.begun..end, policy.cut()));
                at.begun = end;
            }
            Step::Checkpoint => {
                counted.checkpoints += 1;
                at.checkpoint = at.begun;
            }
            Step::Done => return counted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The array of the paper's Table 1, a hundredth of its size.
    fn grow() -> Grow {
        Grow { disks: 3, added: 1, disk_bytes: 300 << 20, unit_bytes: 64 << 10 }
    }

    fn counted(way: &Way) -> Counted {
        let grow = grow();
        count(&mut *way.policy(&grow, 2 << 20).unwrap(), &mut Job::new(&grow).unwrap())
    }

    #[test]
    fn md_moves_stripe_heads_and_records_every_3000_kib_of_a_disk() {
        let Counted { reads, writes, checkpoints } = counted(&Way::Md);
        // 600 MiB of data in heads of 4 KiB, 300 MiB written on each of four disks.
        assert_eq!((reads, writes), (153_600, 307_200));
        // Every 47 rows of 64 KiB, and some more at the start, where the window is small.
        let rows = 300 * 16;
        assert!((rows / 47..rows / 47 + 25).contains(&checkpoints), "{checkpoints}");
    }

    #[test]
    fn gradual_assimilation_records_every_stripe() {
        let Counted { reads, writes, checkpoints } = counted(&Way::Ga);
        let stripes = 300 * 16;
        assert_eq!((writes, checkpoints), (4 * stripes, stripes));
        // A chunk is a request, except that two of a new stripe may be adjacent on a disk.
        assert!((9600 / 2..=9600).contains(&reads), "{reads}");
    }

    #[test]
    fn alv_aggregates_and_records_when_it_must() {
        let alv = |skip_empty, as_printed| counted(&Way::Alv { skip_empty, as_printed });
        // Windows of 63 units, 21 new stripes; at the start shorter ones.
        let Counted { reads, writes, checkpoints } = alv(false, false);
        let windows = (600 * 16_u64).div_ceil(63);
        assert!((windows * 3..(windows + 30) * 3).contains(&reads), "{reads}");
        let all = (900 * 16_u64).div_ceil(63);
        assert!((all * 4..(all + 30) * 4).contains(&writes), "{writes}");
        assert!((10..30).contains(&checkpoints), "{checkpoints}");
        // What the array gains takes a third of the writes.
        let skipping = alv(true, false);
        assert_eq!(skipping.reads, reads);
        assert!(skipping.writes * 10 < writes * 7, "{}", skipping.writes);
        // As printed: 4 MiB, though that is no multiple of a stripe.
        let printed = alv(false, true);
        assert!((450..540).contains(&printed.reads), "{printed:?}");
    }
}
