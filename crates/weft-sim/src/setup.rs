//! Draws the array and the load of a run from the seed, and maps each byte to its slot.

mod growth;
mod reshape;
mod scale;

use std::cell::RefCell;
use std::collections::BTreeMap;

use weft_array::Consistency;
use weft_code::{Code, CodeSpec, Copies, SlotNo, SlotSet, UnitSet};
use weft_layout::{Algorithm, Layout, code_for, for_code};
use weft_rt::Rng;

use crate::format::METADATA_BYTES;
use crate::workload::Load;
pub use growth::GrowthSetup;
pub use reshape::ReshapeSetup;
use scale::Scale;

/// The latency factor of a slow disk.
pub(crate) const SLOW: u64 = 100;

/// A disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSetup {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes of a sector.
    pub sector_bytes: u32,
    /// Every delay is multiplied by this.
    pub latency_factor: u64,
    /// Whether the disk reports that zeroing is cheap.
    pub fast_zeroes: bool,
    /// Whether a power cut may take what it has completed.
    pub volatile_cache: bool,
}

/// The array and the load of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// The code.
    pub code: CodeSpec,
    /// The parity rotation.
    pub algorithm: Algorithm,
    /// The number of slots.
    pub slots: usize,
    /// Bytes of a unit.
    pub unit_bytes: u32,
    /// Consistency policy.
    pub policy: Consistency,
    /// Bytes of data per entry of the region map, which the engine rounds up to a power of two and
    /// at least a stripe; `None`: the engine's default.
    pub region_bytes: Option<u64>,
    /// The disks: members, then spares.
    pub disks: Vec<DiskSetup>,
    /// Whether the disks report that they rotate.
    pub rotational: bool,
    /// Bytes per cell of the oracle.
    pub cell_bytes: usize,
    /// The load.
    pub load: Load,
    /// The reshape, in a run that has one.
    pub reshape: Option<ReshapeSetup>,
    /// The growth, in a run in which disks become larger.
    pub growth: Option<GrowthSetup>,
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
        )?;
        if let Some(reshape) = &self.reshape {
            write!(f, ", {reshape:?}")?;
        }
        match &self.growth {
            Some(growth) => write!(f, ", {growth:?}"),
            None => Ok(()),
        }
    }
}

/// The codes to draw from, each with its range of slots.
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

/// Restricts the draws; `None` leaves a choice to the seed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetupFilter {
    /// This code, on this number of slots.
    pub code: Option<(CodeSpec, usize)>,
    /// This consistency policy.
    pub policy: Option<Consistency>,
    /// At most this many requests per client.
    pub requests_max: Option<u64>,
    /// Only codes with redundancy.
    pub redundant: bool,
}

impl Setup {
    /// Draws an array and a load.
    ///
    /// # Panics
    /// If `filter` asks for a code that cannot be built.
    pub fn draw(rng: &mut Rng, filter: &SetupFilter) -> Self {
        let mut scale_rng = rng.fork(77);
        let scale = match filter.code {
            Some(_) => Scale::Usual,
            None => Scale::draw(&mut scale_rng),
        };
        let (code, slots) = filter.code.unwrap_or_else(|| {
            loop {
                let codes = scale.codes().unwrap_or_else(codes);
                let (code, slots) = rng.pick(&codes).clone();
                let slots = rng.within(*slots.start(), *slots.end());
                if !(filter.redundant && code == CodeSpec::Raid0) {
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
        let unit_bytes = scale.unit_bytes(*rng.pick(&[4096, 4096, 8192, 16384, 65536]));
        let parity = !code.is_mirror() && code != CodeSpec::Raid0;
        let drawn = rng.below(10);
        let policy = match filter.policy {
            _ if code == CodeSpec::Raid0 => Consistency::None,
            Some(Consistency::Ppl) if !parity => Consistency::Bitmap,
            Some(policy) => policy,
            None => match drawn {
                0..=5 if parity => Consistency::Ppl,
                0..=8 => Consistency::Bitmap,
                _ => Consistency::None,
            },
        };
        let stripes = rng.within(6, if unit_bytes > 16384 { 12 } else { 40 });
        let stripes = scale.stripes(stripes, &mut scale_rng);
        let rows = stripes * width as u64 / slots as u64 + 2;
        let spares = if rng.chance(40) { rng.within(1, 2) } else { 0 };
        let spares = scale.spares(spares, &mut scale_rng);
        let mixed = rng.chance(15);
        let fast_zeroes = rng.chance(70);
        let sector = *rng.pick(&[512, 512, 4096]);
        let mut disks = (0..slots as u64 + spares)
            .map(|_| DiskSetup {
                size_bytes: METADATA_BYTES
                    + rows * u64::from(unit_bytes)
                    + rng.below(3) * u64::from(unit_bytes)
                    + rng.below(8) * 4096,
                sector_bytes: if mixed { *rng.pick(&[512, 4096]) } else { sector },
                fast_zeroes: fast_zeroes || rng.chance(30),
                volatile_cache: true,
                latency_factor: if rng.chance(4) { SLOW } else { rng.within(1, 3) },
            })
            .collect::<Vec<_>>();
        let block = disks[..slots].iter().map(|disk| disk.sector_bytes).max().unwrap_or(512);
        let cell_bytes = match rng.below(10) {
            // Cells that are aligned to nothing.
            0 => 328,
            1 => 1000,
            2 => 512,
            _ => block as usize,
        };
        let k = code.shape(slots).expect("a code of the table").k as u64;
        let stripe_cells = k * u64::from(unit_bytes) / cell_bytes as u64;
        let load = Self::draw_load(rng, filter, stripe_cells, cell_bytes as u64);
        let load = match scale {
            Scale::LargeUnits => Load { requests: load.requests.min(40), ..load },
            _ => load,
        };
        // One to eight stripes; fewer and more by turns where a stripe is no power of two.
        let region_bytes = rng.chance(70).then(|| k * u64::from(unit_bytes) * rng.within(0, 4));
        let region_bytes = match scale {
            Scale::ManyStripes => Some(0),
            _ => region_bytes,
        };
        let volatile_percent = *rng.pick(&[0, 50, 100, 100]);
        for disk in &mut disks {
            disk.volatile_cache = rng.chance(volatile_percent);
        }
        Self {
            code,
            algorithm,
            slots,
            unit_bytes,
            policy,
            region_bytes,
            rotational: scale.rotate(&mut scale_rng.fork(1)),
            disks,
            cell_bytes,
            load,
            reshape: None,
            growth: None,
        }
    }

    /// Cells of a stripe.
    pub(crate) fn stripe_cells(&self) -> u64 {
        let k = self.code.shape(self.slots).map_or(1, |shape| shape.k as u64);
        k * u64::from(self.unit_bytes) / self.cell_bytes as u64
    }

    fn draw_load(rng: &mut Rng, filter: &SetupFilter, stripe_cells: u64, cell_bytes: u64) -> Load {
        let requests = *rng.pick(&[10, 40, 120, 300]);
        Load {
            clients: usize::try_from(rng.within(1, 6)).unwrap_or(1),
            requests: requests.min(filter.requests_max.unwrap_or(u64::MAX)),
            reads_percent: *rng.pick(&[10, 30, 60]),
            flushes_percent: *rng.pick(&[0, 2, 10]),
            fua_percent: *rng.pick(&[0, 5, 30, 100]),
            zeroes_percent: *rng.pick(&[0, 5, 20]),
            cells_max: (rng.within(1, 3) * stripe_cells / 2).clamp(1, 256 * 1024 / cell_bytes),
            stripe_cells,
            pause_ns_max: *rng.pick(&[1_000_000, 20_000_000, 8_000_000_000]),
            abandon_percent: *rng.pick(&[0, 0, 3]),
            empty_percent: 2,
            status_percent: 5,
            whole_after: u64::MAX,
            other_stripe_cells: stripe_cells,
        }
    }
}

/// Which slot holds which byte of the volume, and which losses the code tolerates. Computed from
/// the code and the layout, without the engine. Of an array that is reshaped, both geometries: it
/// has lost what either has lost.
#[derive(Debug)]
pub struct Map {
    geometries: Vec<Geometry>,
    /// The largest sector of the disks. A request affects whole sectors of this size.
    sector_bytes: u64,
}

#[derive(Debug)]
struct Geometry {
    code: Code,
    /// Whether all units of a stripe are copies.
    mirror: bool,
    layout: Box<dyn Layout>,
    unit_bytes: u64,
    stripes: u64,
    /// Whether the code survives the loss of some slots, for the sets asked so far.
    survived: RefCell<BTreeMap<[u64; 4], bool>>,
}

/// A range of bytes in one unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// In which of the geometries.
    geometry: usize,
    /// The stripe of the unit.
    pub stripe: u64,
    /// The slot that holds the unit.
    pub slot: SlotNo,
    /// Where in the volume.
    pub bytes: std::ops::Range<u64>,
    /// Where in the unit.
    pub in_unit: std::ops::Range<u64>,
}

impl Map {
    /// The range, extended to whole sectors.
    pub fn sectors(&self, bytes: &std::ops::Range<u64>) -> std::ops::Range<u64> {
        let sector = self.sector_bytes;
        bytes.start - bytes.start % sector..bytes.end.next_multiple_of(sector)
    }

    /// The map of an array of `size_bytes`.
    ///
    /// # Panics
    /// If the code of `setup` cannot be built.
    pub fn new(setup: &Setup, size_bytes: u64) -> Self {
        let after = setup.reshape.map(|reshape| reshape.after(setup));
        let setups = [setup].into_iter().chain(&after);
        let sectors = setup.disks.iter().map(|disk| u64::from(disk.sector_bytes));
        // An array that is reshaped or grows is larger before or after, and whether its code
        // survives some losses may depend on the stripe. Clients see what it has throughout, but
        // the engine has to survive losses in all of its stripes.
        let size_of = |setup: &Setup| match (setup.reshape, setup.growth) {
            (None, None) => size_bytes,
            _ => setup.data_bytes_max(),
        };
        Self {
            geometries: setups.map(|setup| Geometry::new(setup, size_of(setup))).collect(),
            sector_bytes: sectors.max().unwrap_or(512),
        }
    }

    /// Whether the array is a mirror, before its reshape or after.
    pub fn has_copies(&self) -> bool {
        self.geometries.iter().any(|geometry| geometry.mirror)
    }

    /// The stripe that holds a byte of the volume, and the slot.
    pub fn of(&self, offset: u64) -> (u64, SlotNo) {
        let holds = |geometry: &&Geometry| offset < geometry.end();
        self.geometries.iter().find(holds).unwrap_or(&self.geometries[0]).of(offset)
    }

    /// Splits a range at unit boundaries.
    pub fn pieces(&self, bytes: std::ops::Range<u64>) -> Vec<Piece> {
        let all = self.geometries.iter().enumerate();
        all.flat_map(|(number, geometry)| geometry.pieces(number, bytes.clone())).collect()
    }

    /// As [`Map::pieces`], of geometries that are no mirrors.
    pub fn coded_pieces(&self, bytes: std::ops::Range<u64>) -> Vec<Piece> {
        let mut pieces = self.pieces(bytes);
        pieces.retain(|piece| !self.geometries[piece.geometry].mirror);
        pieces
    }

    /// The data of the same stripe, at the same offsets in the unit, that is on `slots`: byte
    /// ranges of the volume.
    pub fn data_on(&self, piece: &Piece, slots: SlotSet) -> Vec<std::ops::Range<u64>> {
        let Geometry { code, layout, unit_bytes, .. } = &self.geometries[piece.geometry];
        let k = code.k();
        let on = |unit: &usize| slots.contains(layout.place(piece.stripe, *unit).slot);
        let range = |unit: usize| {
            let start = (piece.stripe * k as u64 + unit as u64) * unit_bytes;
            start + piece.in_unit.start..start + piece.in_unit.end
        };
        (0..k).filter(on).map(range).collect()
    }

    /// The slot of a piece, and its range from the start of the data area.
    pub fn place(&self, piece: &Piece) -> (SlotNo, std::ops::Range<u64>) {
        let geometry = &self.geometries[piece.geometry];
        let k = geometry.code.k() as u64;
        let unit = usize::try_from(piece.bytes.start / geometry.unit_bytes % k).unwrap_or(0);
        geometry.place_of(piece, unit)
    }

    /// The slots and ranges of all copies of a piece, in a mirror.
    pub fn copies(&self, piece: &Piece) -> Vec<(SlotNo, std::ops::Range<u64>)> {
        let geometry = &self.geometries[piece.geometry];
        (0..geometry.code.width()).map(|unit| geometry.place_of(piece, unit)).collect()
    }

    /// Whether all data can be decoded without these slots.
    pub fn survives(&self, slots: SlotSet) -> bool {
        self.geometries.iter().all(|geometry| geometry.survives(slots))
    }

    /// Whether a byte of the volume can be decoded without these slots.
    pub fn readable(&self, offset: u64, slots: SlotSet) -> bool {
        self.geometries.iter().all(|geometry| geometry.readable(offset, slots))
    }
}

impl Geometry {
    fn new(setup: &Setup, size_bytes: u64) -> Self {
        let code = code_for(setup.code, setup.algorithm, setup.slots).expect("a code of the table");
        let unit_bytes = u64::from(setup.unit_bytes);
        let stripes = (size_bytes / unit_bytes).div_ceil(code.k() as u64);
        let of = |rows| {
            for_code(setup.code, setup.algorithm, setup.slots, rows).expect("a code of the table")
        };
        // The smallest slots with room for this many stripes. The engine's slots may be slightly
        // larger, but place stripes in the same way.
        let mut rows = stripes * code.width() as u64 / setup.slots as u64;
        while of(rows).stripes(rows) < stripes {
            rows += 1;
        }
        let (mirror, survived) = (setup.code.is_mirror(), RefCell::default());
        Self { layout: of(rows), code, mirror, unit_bytes, stripes, survived }
    }

    fn of(&self, offset: u64) -> (u64, SlotNo) {
        let number = offset / self.unit_bytes;
        let k = self.code.k() as u64;
        let (stripe, unit) = (number / k, usize::try_from(number % k).unwrap_or(0));
        (stripe, self.layout.place(stripe, unit).slot)
    }

    /// Where its data ends.
    fn end(&self) -> u64 {
        self.stripes * self.code.k() as u64 * self.unit_bytes
    }

    fn pieces(&self, geometry: usize, bytes: std::ops::Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = bytes.start;
        // The other geometry may be larger.
        let last = bytes.end.min(self.end());
        while at < last {
            let end = last.min(at - at % self.unit_bytes + self.unit_bytes);
            let (stripe, slot) = self.of(at);
            let at_in_unit = at % self.unit_bytes;
            let in_unit = at_in_unit..at_in_unit + end - at;
            pieces.push(Piece { geometry, stripe, slot, bytes: at..end, in_unit });
            at = end;
        }
        pieces
    }

    fn place_of(&self, piece: &Piece, unit: usize) -> (SlotNo, std::ops::Range<u64>) {
        let place = self.layout.place(piece.stripe, unit);
        let start = place.row * self.unit_bytes;
        (place.slot, start + piece.in_unit.start..start + piece.in_unit.end)
    }

    fn survives(&self, slots: SlotSet) -> bool {
        *self.survived.borrow_mut().entry(slots.words()).or_insert_with(|| self.try_without(slots))
    }

    fn try_without(&self, slots: SlotSet) -> bool {
        (0..self.stripes).all(|stripe| {
            let lost = (0..self.code.width())
                .filter(|unit| slots.contains(self.layout.place(stripe, *unit).slot))
                .collect();
            self.code.decodable(stripe, lost)
        })
    }

    fn readable(&self, offset: u64, slots: SlotSet) -> bool {
        let number = offset / self.unit_bytes;
        let k = self.code.k() as u64;
        let (stripe, unit) = (number / k, usize::try_from(number % k).unwrap_or(0));
        let lost = (0..self.code.width())
            .filter(|unit| slots.contains(self.layout.place(stripe, *unit).slot))
            .collect();
        self.code.plan(stripe, lost, UnitSet::one(unit), &|_| 1).is_ok()
    }
}
