//! Workloads generated from a description and a seed.
//!
//! Real traces of many published experiments are no longer available, or may not be passed on. A
//! [`Workload`] describes one by its statistics: how requests arrive, how many are reads, their
//! lengths, and where they go. A workload and seed give the same requests, byte for byte, on every
//! machine. Everything generated is marked: [`Workload::label`] is shown with all its figures, and
//! written into its files.
//!
//! * **Arrivals** at even distances, as a Poisson process, or in bursts: runs of requests at a
//!   multiple of the mean rate, with quiet runs between them, such that the mean rate and the share
//!   of requests in bursts are as described.
//! * **Lengths** drawn from a table, one for reads and one for writes.
//! * **Places**: a share of the requests continues where the previous one (of the same stream)
//!   ended; the remaining requests go to a region of the volume, drawn by Zipf's law or evenly, and
//!   to any place in it.

mod looped;
mod math;
mod named;

use crate::record::{Op, Record};
use math::{Rng, Zipf, scatter, to_u64};

pub use looped::Looped;
pub use named::{names, workload};

/// How requests arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrivals {
    /// At even distances.
    Even,
    /// Independent of each other.
    Poisson,
    /// In bursts; Poisson at one rate within them, and at a lower one between.
    Bursty {
        /// Rate in a burst as a multiple of the mean rate; at least 2.
        factor: u32,
        /// Requests in bursts, of a million.
        share_ppm: u32,
        /// Mean number of requests of a burst.
        mean_len: u32,
    },
}

/// Where requests go that do not continue the previous one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Places {
    /// Uniformly anywhere.
    Uniform,
    /// To regions by Zipf's law, scattered over the volume.
    Zipf {
        /// A thousand times the exponent; 0 is uniform.
        theta_milli: u32,
        /// Length of a region in bytes.
        region_bytes: u64,
    },
}

/// A length of requests, and how often it is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Length in bytes.
    pub len: u64,
    /// How often, relative to the other rows of its table.
    pub weight: u32,
}

/// A workload, described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// What it is fitted to, with the source and the assumptions.
    pub about: String,
    /// Requests in 1000 seconds.
    pub rate_milli: u64,
    /// How they arrive.
    pub arrivals: Arrivals,
    /// Reads, of a million requests; the rest are writes.
    pub read_ppm: u32,
    /// Lengths of reads.
    pub read_sizes: Vec<Size>,
    /// Lengths of writes.
    pub write_sizes: Vec<Size>,
    /// Volumes, all alike; requests choose one evenly.
    pub devices: u32,
    /// Bytes of each volume.
    pub device_bytes: u64,
    /// Requests, of a million, that continue where the previous one of their stream ended.
    pub sequential_ppm: u32,
    /// Streams of each volume, taken in turn.
    pub streams: u32,
    /// The places of the other requests.
    pub places: Places,
    /// Offsets are multiples of this many bytes.
    pub align_bytes: u64,
}

impl Workload {
    /// A plain workload: 100 reads of 4 KiB a second, evenly spread over `bytes`.
    pub fn plain(name: &str, bytes: u64) -> Self {
        let sizes = vec![Size { len: 4096, weight: 1 }];
        Self {
            name: name.to_owned(),
            about: "a plain workload".to_owned(),
            rate_milli: 100_000,
            arrivals: Arrivals::Poisson,
            read_ppm: 1_000_000,
            read_sizes: sizes.clone(),
            write_sizes: sizes,
            devices: 1,
            device_bytes: bytes,
            sequential_ppm: 0,
            streams: 1,
            places: Places::Uniform,
            align_bytes: 4096,
        }
    }

    /// The label of its figures.
    pub fn label(&self, seed: u64) -> String {
        format!("generated: workload {}, seed {seed}", self.name)
    }

    /// Its requests, without end.
    pub fn generate(&self, seed: u64) -> Generator {
        Generator::new(self, seed)
    }
}

/// The requests of a [`Workload`]; never ends.
#[derive(Debug, Clone)]
pub struct Generator {
    workload: Workload,
    seed: u64,
    /// One random generator for each thing that is drawn.
    times: Rng,
    kinds: Rng,
    lengths: Rng,
    offsets: Rng,
    read_sizes: SizeTable,
    write_sizes: SizeTable,
    clock: Clock,
    zipf: Option<(Zipf, u64)>,
    /// Where each stream of each volume continues.
    streams: Vec<u64>,
    turn: usize,
}

impl Generator {
    fn new(workload: &Workload, seed: u64) -> Self {
        let regions = match workload.places {
            Places::Uniform => None,
            Places::Zipf { theta_milli, region_bytes } => {
                let regions = workload.device_bytes.div_ceil(region_bytes.max(1)).max(1);
                Some((Zipf::new(regions, theta_milli), regions))
            }
        };
        let mut offsets = Rng::new(seed, 4);
        let count = workload.devices.max(1) as usize * workload.streams.max(1) as usize;
        let align = workload.align_bytes.max(1);
        let starts = |_| offsets.below(workload.device_bytes / align) * align;
        let streams = (0..count).map(starts).collect();
        Self {
            workload: workload.clone(),
            seed,
            times: Rng::new(seed, 1),
            kinds: Rng::new(seed, 2),
            lengths: Rng::new(seed, 3),
            offsets,
            read_sizes: SizeTable::new(&workload.read_sizes),
            write_sizes: SizeTable::new(&workload.write_sizes),
            clock: Clock::new(workload),
            zipf: regions,
            streams,
            turn: 0,
        }
    }

    /// The offset of a request of `len` bytes of stream `stream`.
    fn place(&mut self, stream: usize, len: u64) -> u64 {
        let Workload { device_bytes, sequential_ppm, align_bytes, .. } = self.workload;
        let align = align_bytes.max(1);
        // The last place at which it fits.
        let last = device_bytes.saturating_sub(len) / align * align;
        let goes_on = self.offsets.chance(sequential_ppm);
        let next = self.streams[stream].next_multiple_of(align);
        let offset = match &self.zipf {
            _ if goes_on && next <= last => next,
            _ if goes_on => 0,
            None => self.offsets.below(last / align + 1) * align,
            Some((zipf, regions)) => {
                let rank = zipf.draw(&mut self.offsets);
                let region = scatter(rank, *regions, self.seed);
                let Places::Zipf { region_bytes, .. } = self.workload.places else { return 0 };
                let begin = region * region_bytes;
                let within = self.offsets.below((region_bytes / align).max(1)) * align;
                ((begin + within) / align * align).min(last)
            }
        };
        self.streams[stream] = offset + len;
        offset
    }
}

impl Iterator for Generator {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let at_ns = self.clock.next(&mut self.times);
        let read = self.kinds.chance(self.workload.read_ppm);
        let (op, sizes) =
            if read { (Op::Read, &self.read_sizes) } else { (Op::Write, &self.write_sizes) };
        let len = sizes.draw(&mut self.lengths).min(self.workload.device_bytes);
        let devices = u64::from(self.workload.devices.max(1));
        let device = self.kinds.below(devices);
        let streams = self.workload.streams.max(1) as usize;
        self.turn = (self.turn + 1) % streams;
        let device = u32::try_from(device).unwrap_or(0);
        let offset = self.place(device as usize * streams + self.turn, len);
        Some(Record { at_ns, device, offset, len, op })
    }
}

/// Lengths with the sums of their weights.
#[derive(Debug, Clone)]
struct SizeTable {
    /// Upper end of each length's share, and the length.
    ends: Vec<(u64, u64)>,
    total: u64,
}

impl SizeTable {
    fn new(sizes: &[Size]) -> Self {
        let mut total = 0;
        let ends = sizes.iter().map(|size| {
            total += u64::from(size.weight);
            (total, size.len)
        });
        Self { ends: ends.collect(), total }
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        let at = rng.below(self.total);
        // An empty table means requests of one sector.
        self.ends.iter().find(|(end, _)| at < *end).map_or(512, |(_, len)| *len)
    }
}

/// Draws the times of arrival.
#[derive(Debug, Clone)]
struct Clock {
    now_ns: f64,
    begun: bool,
    arrivals: Arrivals,
    /// Mean distance of requests in nanoseconds: over all, in bursts, between bursts.
    mean_ns: f64,
    burst_ns: f64,
    quiet_ns: f64,
    /// Requests, of a million, after which a burst or a quiet run ends.
    burst_ends_ppm: u32,
    quiet_ends_ppm: u32,
    in_burst: bool,
}

impl Clock {
    fn new(workload: &Workload) -> Self {
        let mean_ns = 1e12 / workload.rate_milli.max(1) as f64;
        let (mut burst_ns, mut quiet_ns) = (mean_ns, mean_ns);
        let (mut burst_ends_ppm, mut quiet_ends_ppm) = (0, 0);
        if let Arrivals::Bursty { factor, share_ppm, mean_len } = workload.arrivals {
            let (factor, len) = (f64::from(factor.max(2)), f64::from(mean_len.max(1)));
            let share = f64::from(share_ppm.clamp(1, 999_999)) / 1e6;
            burst_ns = mean_ns / factor;
            // share·burst + (1 − share)·quiet = mean.
            quiet_ns = mean_ns * (1.0 - share / factor) / (1.0 - share);
            let ppm = |len: f64| u32::try_from(to_u64(1e6 / len.max(1.0))).unwrap_or(1_000_000);
            burst_ends_ppm = ppm(len);
            quiet_ends_ppm = ppm(len * (1.0 - share) / share);
        }
        Self {
            now_ns: 0.0,
            begun: false,
            arrivals: workload.arrivals.clone(),
            mean_ns,
            burst_ns,
            quiet_ns,
            burst_ends_ppm,
            quiet_ends_ppm,
            in_burst: false,
        }
    }

    fn next(&mut self, rng: &mut Rng) -> u64 {
        if !std::mem::replace(&mut self.begun, true) {
            return 0;
        }
        self.now_ns += match self.arrivals {
            Arrivals::Even => self.mean_ns,
            Arrivals::Poisson => rng.exponential(self.mean_ns),
            Arrivals::Bursty { .. } => {
                let (mean_ns, ends_ppm) = if self.in_burst {
                    (self.burst_ns, self.burst_ends_ppm)
                } else {
                    (self.quiet_ns, self.quiet_ends_ppm)
                };
                self.in_burst ^= rng.chance(ends_ppm);
                rng.exponential(mean_ns)
            }
        };
        to_u64(self.now_ns)
    }
}
