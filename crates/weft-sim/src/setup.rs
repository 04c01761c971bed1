//! The array of a run and how it is treated: all drawn from the seed.

use weft_code::{Code, CodeSpec, Copies, UnitSet};
use weft_layout::{Algorithm, Layout, code_for, for_code};

use crate::format::METADATA_BYTES;
use crate::rng::Rng;
use crate::workload::Load;

/// How the array makes itself consistent after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Partial parity log.
    Ppl,
    /// Dirty regions.
    Bitmap,
    /// Nothing but a resync of everything.
    None,
}

/// One disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSetup {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes of a sector.
    pub sector_bytes: u32,
    /// How much slower than the others.
    pub factor: u64,
    /// Whether zeroing is said to be cheap.
    pub fast_zeroes: bool,
}

/// The array of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// The code.
    pub code: CodeSpec,
    /// Rotation of parity.
    pub algorithm: Algorithm,
    /// Slots.
    pub slots: usize,
    /// Bytes of a unit.
    pub unit_bytes: u32,
    /// Consistency policy.
    pub policy: Policy,
    /// Bytes of data that share an entry of the region map; `None` for the engine's choice.
    pub region_bytes: Option<u64>,
    /// The disks: members, then spares.
    pub disks: Vec<DiskSetup>,
    /// Bytes of a cell of the reference.
    pub cell_bytes: usize,
    /// What the clients do.
    pub load: Load,
}

impl std::fmt::Display for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sectors: Vec<_> = self.disks.iter().map(|disk| disk.sector_bytes).collect();
        write!(
            f,
            "{} ({}) on {} slots + {} spares, units of {} bytes, {:?}, regions {:?}, sectors {:?}, cells of {} bytes",
            self.code,
            self.algorithm,
            self.slots,
            self.disks.len() - self.slots,
            self.unit_bytes,
            self.policy,
            self.region_bytes,
            sectors,
            self.cell_bytes,
        )
    }
}

/// Codes tried, each with the numbers of slots it is tried on.
fn codes() -> Vec<(CodeSpec, std::ops::RangeInclusive<u64>)> {
    let raid10 = |arrangement, copies| CodeSpec::Raid10 { arrangement, copies };
    vec![
        (CodeSpec::Raid0, 1..=4),
        (CodeSpec::Raid1, 2..=3),
        (raid10(Copies::Near, 2), 2..=5),
        (raid10(Copies::Far, 2), 2..=5),
        (raid10(Copies::Offset, 2), 2..=5),
        (raid10(Copies::Near, 3), 3..=5),
        (CodeSpec::Raid4, 3..=5),
        (CodeSpec::Raid5, 3..=6),
        (CodeSpec::Raid5, 3..=6),
        (CodeSpec::Raid6, 4..=7),
        (CodeSpec::Raid6, 4..=7),
        (CodeSpec::Rs { k: 4, r: 3 }, 7..=8),
        (CodeSpec::Rs { k: 3, r: 1 }, 4..=5),
        (CodeSpec::Lrc { k: 4, l: 2, r: 1 }, 7..=7),
        (CodeSpec::Drc { k: 4, l: 2, r: 1 }, 7..=7),
        (CodeSpec::DrcG { k: 4, l: 2, r: 1 }, 7..=7),
        (CodeSpec::DrcOa { k: 6, l: 2, r: 1 }, 9..=9),
    ]
}

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::LeftSymmetric,
    Algorithm::LeftAsymmetric,
    Algorithm::RightSymmetric,
    Algorithm::RightAsymmetric,
    Algorithm::ParityFirst,
    Algorithm::ParityLast,
];

const ALGORITHMS_6: [Algorithm; 4] = [
    Algorithm::DdfNContinue,
    Algorithm::DdfZeroRestart,
    Algorithm::LeftSymmetric6,
    Algorithm::ParityFirst6,
];

/// What a run is to be made of; everything else is drawn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// This code and number of slots only.
    pub code: Option<(CodeSpec, usize)>,
    /// This policy only.
    pub policy: Option<Policy>,
    /// At most this many requests of each client.
    pub requests_max: Option<u64>,
    /// A redundant code.
    pub redundant: bool,
}

impl Setup {
    /// Draws an array.
    ///
    /// # Panics
    /// If `wishes` asks for a code that cannot be built.
    pub fn draw(rng: &mut Rng, wishes: &Wishes) -> Self {
        let (code, slots) = wishes.code.unwrap_or_else(|| {
            loop {
                let codes = codes();
                let (code, slots) = rng.pick(&codes).clone();
                let slots = rng.within(*slots.start(), *slots.end());
                if !(wishes.redundant && code == CodeSpec::Raid0) {
                    break (code, usize::try_from(slots).unwrap_or(1));
                }
            }
        });
        let algorithm = match code {
            CodeSpec::Raid6 if rng.chance(30) => *rng.pick(&ALGORITHMS_6),
            CodeSpec::Raid5 | CodeSpec::Raid6 if rng.chance(60) => *rng.pick(&ALGORITHMS),
            _ => Algorithm::LeftSymmetric,
        };
        let width = code.shape(slots).expect("a code of the table").width();
        let unit_bytes = *rng.pick(&[4096, 4096, 8192, 16384, 65536]);
        let parity = !code.is_mirror() && code != CodeSpec::Raid0;
        let drawn = rng.below(10);
        let policy = match wishes.policy {
            _ if code == CodeSpec::Raid0 => Policy::None,
            Some(Policy::Ppl) if !parity => Policy::Bitmap,
            Some(policy) => policy,
            None => match drawn {
                0..=5 if parity => Policy::Ppl,
                0..=8 => Policy::Bitmap,
                _ => Policy::None,
            },
        };
        let stripes = rng.within(6, if unit_bytes > 16384 { 12 } else { 40 });
        let rows = stripes * width as u64 / slots as u64 + 2;
        let spares = if rng.chance(40) { rng.within(1, 2) } else { 0 };
        let mixed = rng.chance(15);
        let fast_zeroes = rng.chance(70);
        let sector = *rng.pick(&[512, 512, 4096]);
        let disks = (0..slots as u64 + spares)
            .map(|_| DiskSetup {
                size_bytes: METADATA_BYTES
                    + rows * u64::from(unit_bytes)
                    + rng.below(3) * u64::from(unit_bytes)
                    + rng.below(8) * 4096,
                sector_bytes: if mixed { *rng.pick(&[512, 4096]) } else { sector },
                fast_zeroes: fast_zeroes || rng.chance(30),
                factor: if rng.chance(4) { 100 } else { rng.within(1, 3) },
            })
            .collect::<Vec<_>>();
        let block = disks[..slots].iter().map(|disk| disk.sector_bytes).max().unwrap_or(512);
        let cell_bytes = match rng.below(10) {
            // Nothing is aligned to anything.
            0 => 328,
            1 => 1000,
            2 => 512,
            _ => block as usize,
        };
        let k = code.shape(slots).expect("a code of the table").k as u64;
        let stripe_cells = k * u64::from(unit_bytes) / cell_bytes as u64;
        let load = Self::draw_load(rng, wishes, stripe_cells, cell_bytes as u64);
        let region_bytes = rng.chance(70).then(|| k * u64::from(unit_bytes) * rng.within(1, 4));
        Self { code, algorithm, slots, unit_bytes, policy, region_bytes, disks, cell_bytes, load }
    }

    fn draw_load(rng: &mut Rng, wishes: &Wishes, stripe_cells: u64, cell_bytes: u64) -> Load {
        let requests = *rng.pick(&[10, 40, 120, 300]);
        Load {
            clients: usize::try_from(rng.within(1, 6)).unwrap_or(1),
            requests: requests.min(wishes.requests_max.unwrap_or(u64::MAX)),
            reads_percent: *rng.pick(&[10, 30, 60]),
            flushes_percent: *rng.pick(&[0, 2, 10]),
            fua_percent: *rng.pick(&[0, 5, 30, 100]),
            zeroes_percent: *rng.pick(&[0, 5, 20]),
            cells_max: (rng.within(1, 3) * stripe_cells / 2).clamp(1, 256 * 1024 / cell_bytes),
            stripe_cells,
            pause_max: *rng.pick(&[1_000_000, 20_000_000, 8_000_000_000]),
            vanish_percent: *rng.pick(&[0, 0, 3]),
            empty_percent: 2,
        }
    }
}

/// Which slot holds which byte of the volume, and what the code survives: independent of the
/// engine, straight from the code and the layout.
#[derive(Debug)]
pub struct Map {
    code: Code,
    layout: Box<dyn Layout>,
    unit_bytes: u64,
    stripes: u64,
    mirror: bool,
    /// Largest sector of the disks: what a request touches, it touches in whole sectors.
    sector_bytes: u64,
}

/// A run of bytes in one unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The unit's stripe.
    pub stripe: u64,
    /// The slot that holds the unit.
    pub slot: usize,
    /// The bytes of the volume.
    pub bytes: std::ops::Range<u64>,
    /// The bytes of the unit.
    pub columns: std::ops::Range<u64>,
}

impl Map {
    /// The whole sectors around a range.
    pub fn sectors(&self, bytes: &std::ops::Range<u64>) -> std::ops::Range<u64> {
        let sector = self.sector_bytes;
        bytes.start - bytes.start % sector..bytes.end.next_multiple_of(sector)
    }

    /// The map of an array of `size_bytes`.
    ///
    /// # Panics
    /// If the setup's code cannot be built.
    pub fn new(setup: &Setup, size_bytes: u64) -> Self {
        let code = code_for(setup.code, setup.algorithm, setup.slots).expect("a code of the table");
        let unit_bytes = u64::from(setup.unit_bytes);
        let stripes = size_bytes / unit_bytes / code.k() as u64;
        let of = |rows| {
            for_code(setup.code, setup.algorithm, setup.slots, rows).expect("a code of the table")
        };
        // The smallest slots on which so many stripes fit: the engine's may be a little larger,
        // with the same placement.
        let mut rows = stripes * code.width() as u64 / setup.slots as u64;
        while of(rows).stripes(rows) < stripes {
            rows += 1;
        }
        let mirror = setup.code.is_mirror();
        let sectors = setup.disks.iter().map(|disk| u64::from(disk.sector_bytes));
        let sector_bytes = sectors.max().unwrap_or(512);
        Self { layout: of(rows), code, unit_bytes, stripes, mirror, sector_bytes }
    }

    /// Whether every unit of a stripe is a copy of one.
    pub fn is_mirror(&self) -> bool {
        self.mirror
    }

    /// The stripe of a byte of the volume, and the slot that holds it.
    pub fn of(&self, offset: u64) -> (u64, usize) {
        let number = offset / self.unit_bytes;
        let k = self.code.k() as u64;
        let (stripe, unit) = (number / k, usize::try_from(number % k).unwrap_or(0));
        (stripe, self.layout.place(stripe, unit).slot)
    }

    /// Cuts a range of bytes at the ends of units.
    pub fn pieces(&self, bytes: std::ops::Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = bytes.start;
        while at < bytes.end {
            let end = bytes.end.min(at - at % self.unit_bytes + self.unit_bytes);
            let (stripe, slot) = self.of(at);
            let column = at % self.unit_bytes;
            pieces.push(Piece { stripe, slot, bytes: at..end, columns: column..column + end - at });
            at = end;
        }
        pieces
    }

    /// Byte ranges of the data that lies on `slots` in the stripe and the columns of a piece.
    pub fn beside(&self, piece: &Piece, slots: UnitSet) -> Vec<std::ops::Range<u64>> {
        let k = self.code.k();
        let on = |unit: &usize| slots.contains(self.layout.place(piece.stripe, *unit).slot);
        let range = |unit: usize| {
            let start = (piece.stripe * k as u64 + unit as u64) * self.unit_bytes;
            start + piece.columns.start..start + piece.columns.end
        };
        (0..k).filter(on).map(range).collect()
    }

    /// Where a piece lies: the slot, and the bytes of its disk from the beginning of the data area.
    pub fn place(&self, piece: &Piece) -> (usize, std::ops::Range<u64>) {
        let k = self.code.k() as u64;
        let unit = usize::try_from(piece.bytes.start / self.unit_bytes % k).unwrap_or(0);
        self.place_of(piece, unit)
    }

    /// Where the copies of a piece lie, of a mirror.
    pub fn copies(&self, piece: &Piece) -> Vec<(usize, std::ops::Range<u64>)> {
        (0..self.code.width()).map(|unit| self.place_of(piece, unit)).collect()
    }

    fn place_of(&self, piece: &Piece, unit: usize) -> (usize, std::ops::Range<u64>) {
        let place = self.layout.place(piece.stripe, unit);
        let start = place.row * self.unit_bytes;
        (place.slot, start + piece.columns.start..start + piece.columns.end)
    }

    /// Whether all data can be had without these slots.
    pub fn survives(&self, slots: UnitSet) -> bool {
        (0..self.stripes).all(|stripe| {
            let lost = (0..self.code.width())
                .filter(|unit| slots.contains(self.layout.place(stripe, *unit).slot))
                .collect();
            self.code.decodable(stripe, lost)
        })
    }

    /// Whether a byte of the volume can be had without these slots.
    pub fn readable(&self, offset: u64, slots: UnitSet) -> bool {
        let number = offset / self.unit_bytes;
        let k = self.code.k() as u64;
        let (stripe, unit) = (number / k, usize::try_from(number % k).unwrap_or(0));
        let lost = (0..self.code.width())
            .filter(|unit| slots.contains(self.layout.place(stripe, *unit).slot))
            .collect();
        self.code.plan(stripe, lost, UnitSet::one(unit), &|_| 1).is_ok()
    }
}
