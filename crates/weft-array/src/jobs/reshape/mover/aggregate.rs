//! Moving several new stripes together, in long requests.
//!
//! ```text
//!   read     what the stripes are made of: on each disk one long request for each stretch
//!   encode   parity, from memory alone
//!   write    the new stripes: on each disk one long request for each stretch
//! ```
//!
//! These are the m aggregated reads and m + n aggregated writes of "ALV" (Zhang, Zheng, Shu). The
//! old data of a disk has gaps where the old parity lies. A disk that rotates passes over them in
//! any case, so they are read too; other disks are spared them.
//!
//! Data units are read without their stripe's lock, as users' reads are: they do not change, for
//! writes to addresses that are moved wait. What cannot be read in this way – its disk is lost, or
//! has bad sectors – is gathered unit by unit under the lock, which also repairs it.
//!
//! *Memory.* Large units on many disks may take more than there is. Such stripes are moved in
//! parts: ranges of offsets in the new units ([`Step`]). If not even a page of each unit fits, the
//! reshape is refused when it is planned.

use std::ops::Range;

use futures_util::future::join_all;
use weft_disk::{Class, DiskError, WriteOpts};
use weft_rt::Buf;
use weft_stripe::{Access, Busy, InFlight, Location};

use super::{Mover, NO_MEMORY};
use crate::engine::runs::{Bit, grouped, span};
use crate::engine::{Engine, OPERATION_BYTES_MAX};
use crate::error::ArrayError;
use crate::format::length::to_len;
use crate::geometry::{Address, Geometry, Piece};

/// Longest request.
const REQUEST_BYTES: u64 = 1 << 20;

/// Gap over which a rotating disk reads on.
const GAP_BYTES: u64 = 256 << 10;

/// Shortest part of a unit that is moved at once: a sector of any member.
const PART_BYTES_MIN: usize = 4096;

/// How much is moved at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Bytes of each new unit.
    len: usize,
    /// Longest piece of an old unit that is gathered at once.
    piece: usize,
    /// Memory that this takes.
    pub memory: usize,
    /// The part of it with the data read. It is given back before the rest is gathered.
    read: usize,
}

impl Step {
    /// The step for `stripes` new stripes that are moved together; `None` if they take more than
    /// `most` bytes of memory, however short the step is.
    pub fn of(
        array: &Engine,
        [old, new]: [&Geometry; 2],
        rotational: bool,
        stripes: u64,
        most: usize,
    ) -> Option<Self> {
        let longest = |of: &Geometry| array.run_max(of).min(to_len(REQUEST_BYTES));
        let (mut len, mut piece) = (longest(new), longest(old));
        loop {
            let (code, data) = (old.code(), to_len(stripes) * len * new.code().k());
            // Disks that rotate read the gaps, too.
            let among = if rotational { code.k() } else { code.width() };
            let read = memory_on(data.div_ceil(among), code.width());
            let read = read.max(array.memory_of(old, piece));
            let memory = memory_on(to_len(stripes) * len, new.code().width()) + read;
            if memory <= most {
                return Some(Self { len, piece, memory, read });
            }
            match len.max(piece) {
                PART_BYTES_MIN => return None,
                longest if longest == len => len /= 2,
                _ => piece /= 2,
            }
        }
    }
}

/// Old data, and the address to which it belongs.
#[derive(Debug, Clone, Copy)]
struct Source {
    address: u64,
    at: Address,
    len: usize,
}

/// New stripes, or a range of offsets in the units of one, in memory.
struct Stripes {
    /// The number of the first.
    first: u64,
    /// The first offset in the units.
    from: u64,
    len: usize,
    /// For each stripe its units, data first.
    units: Vec<Vec<Buf>>,
}

impl Mover<'_> {
    /// Writes new stripes, from what the old geometry has.
    pub(super) async fn move_stripes(&self, stripes: Range<u64>) -> Result<(), ArrayError> {
        let bytes = self.new.stripe_bytes();
        self.drain(stripes.start * bytes..stripes.end * bytes).await;
        let unit = self.new.unit_len();
        let step = self.step_of(stripes.end - stripes.start)?;
        for from in (0..unit).step_by(step.len) {
            let len = step.len.min(unit - from);
            self.move_part(&stripes, from as u64, Step { len, ..step }).await?;
        }
        Ok(())
    }

    /// Whether these stripes fit into this memory with whole units.
    pub(super) fn fit_whole(&self, stripes: u64, most: usize) -> bool {
        let rotational = self.array.members().any_rotational();
        let step = Step::of(self.array, [self.old, self.new], rotational, stripes, most);
        step.is_some_and(|step| step.len >= self.new.unit_len())
    }

    /// Offsets within the units that are moved at once, for this number of stripes.
    fn step_of(&self, stripes: u64) -> Result<Step, ArrayError> {
        let (array, rotational) = (self.array, self.array.members().any_rotational());
        Step::of(array, [self.old, self.new], rotational, stripes, OPERATION_BYTES_MAX)
            .ok_or_else(|| ArrayError::Refused(NO_MEMORY.to_owned()))
    }

    /// Moves a range of offsets in the units of these stripes.
    async fn move_part(
        &self,
        stripes: &Range<u64>,
        from: u64,
        step: Step,
    ) -> Result<(), ArrayError> {
        let (array, len) = (self.array, step.len);
        let _memory = array.memory().acquire(step.memory).await;
        if array.service().is_stopped() {
            return Err(ArrayError::Stopped);
        }
        let mut writes = self.places(stripes, from, len);
        let mut moved = self.make_room(stripes.start, from, len, &mut writes);
        self.read(&mut moved, step).await?;
        for (number, units) in (moved.first..).zip(&mut moved.units) {
            self.encode(number, units);
            // Users' requests come first where there is much to encode.
            array.rt().yield_now().await;
        }
        self.write(&mut writes, moved).await?;
        array.check_writable()
    }

    /// Where the units lie, each with the number of its stripe among them and its own.
    fn places(&self, stripes: &Range<u64>, from: u64, len: usize) -> Vec<Bit<(usize, usize)>> {
        let mut places = Vec::new();
        for (index, stripe) in stripes.clone().enumerate() {
            for unit in self.new.units().iter() {
                let (slot, offset) = self.new.locate(stripe, unit, from);
                let place = Location { slot, offset };
                places.push(Bit { place, len: len as u64, what: (index, unit) });
            }
        }
        places
    }

    /// Memory for the stripes. Units that are written together are contiguous.
    fn make_room(
        &self,
        first: u64,
        from: u64,
        len: usize,
        writes: &mut [Bit<(usize, usize)>],
    ) -> Stripes {
        let width = self.new.code().width();
        let count = writes.len() / width;
        let empty = || (0..width).map(|_| Buf::empty()).collect();
        let mut units: Vec<Vec<Buf>> = (0..count).map(|_| empty()).collect();
        for group in grouped(writes, 0, REQUEST_BYTES) {
            let mut rest = Buf::new(to_len(span(group).1));
            for Bit { what: (stripe, unit), .. } in group {
                let tail = rest.split_off(len);
                units[*stripe][*unit] = std::mem::replace(&mut rest, tail);
            }
        }
        Stripes { first, from, len, units }
    }

    /// Computes the parity of a stripe.
    fn encode(&self, stripe: u64, units: &mut [Buf]) {
        let code = self.new.code();
        let (data, parity) = units.split_at_mut(code.k());
        if parity.is_empty() {
            return;
        }
        let rows: Vec<&[u8]> = (0..code.p()).map(|row| code.row(stripe, row)).collect();
        let data: Vec<&[u8]> = data.iter().map(|unit| &**unit).collect();
        let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(|unit| &mut **unit).collect();
        weft_gf::encode(&rows, &data, &mut parity);
    }

    /// Fills the data units. Behind the old end, and where nothing was ever written, are zeros.
    async fn read(&self, moved: &mut Stripes, step: Step) -> Result<(), ArrayError> {
        let array = self.array;
        let mut direct = Vec::new();
        let mut others = Vec::new();
        for (address, len) in self.stretches(moved) {
            let there = to_len(self.old.size_bytes().saturating_sub(address).min(len as u64));
            self.put_zeros(moved, address + there as u64, len - there);
            for source in self.sources(address, there, step.piece) {
                let Source { at, len, .. } = source;
                let stripe = array.stripe(at.stripe);
                if !array.map().is_written(array.region_of(at.stripe)) {
                    self.put_zeros(moved, source.address, len);
                } else if stripe.lost.contains(at.unit) || stripe.unsure {
                    others.push(source);
                } else {
                    let (slot, offset) = self.old.locate(at.stripe.number, at.unit, at.unit_offset);
                    let place = Location { slot, offset };
                    direct.push(Bit { place, len: len as u64, what: source });
                }
            }
        }
        others.extend(self.read_directly(direct, moved).await);
        let at_once = step.read / array.memory_of(self.old, step.piece);
        for others in others.chunks(at_once) {
            let gathered = join_all(others.iter().map(|source| self.gather(source))).await;
            for (source, buf) in others.iter().zip(gathered) {
                self.put(moved, source.address, &buf?);
            }
        }
        Ok(())
    }

    /// Where the old geometry has these addresses, in pieces of at most `bytes`.
    fn sources(&self, address: u64, len: usize, most: usize) -> impl Iterator<Item = Source> {
        let mut address = address;
        self.old.pieces(address, len).flat_map(move |Piece { at, len }| {
            let start = address;
            address += len as u64;
            (0..len).step_by(most).map(move |skipped| Source {
                address: start + skipped as u64,
                at: Address { unit_offset: at.unit_offset + skipped as u64, ..at },
                len: most.min(len - skipped),
            })
        })
    }

    /// The addresses of the data, each with its length.
    fn stretches(&self, moved: &Stripes) -> Vec<(u64, usize)> {
        if moved.len == self.new.unit_len() {
            let start = moved.first * self.new.stripe_bytes();
            return vec![(start, moved.units.len() * to_len(self.new.stripe_bytes()))];
        }
        let unit = |unit| (self.new.offset(moved.first, unit, moved.from), moved.len);
        self.new.data_units().iter().map(unit).collect()
    }

    /// Reads from the disks. Returns what could not be read.
    async fn read_directly(
        &self,
        mut sources: Vec<Bit<Source>>,
        moved: &mut Stripes,
    ) -> Vec<Source> {
        let members = self.array.members();
        let gap = if members.any_rotational() { GAP_BYTES } else { 0 };
        let mut failed = Vec::new();
        let mut reads = Vec::new();
        for group in grouped(&mut sources, gap, REQUEST_BYTES) {
            match members.disk(group[0].place.slot) {
                Some(disk) => reads.push((group, disk)),
                None => failed.extend(group.iter().map(|bit| bit.what)),
            }
        }
        let mut flight = InFlight::with_capacity(reads.len());
        for (group, disk) in &reads {
            let (place, len) = span(group);
            let busy = Busy::on(members.in_flight(place.slot));
            let buf = Buf::new(to_len(len));
            flight.push(disk.read(place.offset, buf, Class::Maintenance), busy);
        }
        let done = |index: usize, (result, buf): (Result<(), DiskError>, Buf)| {
            let (group, disk) = &reads[index];
            let first = group[0].place;
            // If it left its slot since, it may be wiped for another use. What is wrong with it is
            // found when the units are gathered.
            let is_read = result.is_ok() && members.holds(first.slot, disk);
            for Bit { place, what, .. } in *group {
                if is_read {
                    let skipped = to_len(place.offset - first.offset);
                    self.put(moved, what.address, &buf[skipped..skipped + what.len]);
                } else {
                    failed.push(*what);
                }
            }
        };
        flight.all(done).await;
        failed
    }

    /// Gathers a part of an old unit under its stripe's lock.
    async fn gather(&self, source: &Source) -> Result<Buf, ArrayError> {
        let (array, at) = (self.array, source.at);
        let _lock = array.locks().shared(at.stripe).await;
        array.check_not_torn(at.stripe)?;
        let access = Access::maintenance(at.unit_offset);
        let wanted = vec![(at.unit, Buf::new(source.len))];
        let (result, mut units) = array.gather(array.stripe(at.stripe), access, wanted).await;
        result?;
        let (_, buf) = units.pop().expect("the unit comes back");
        Ok(buf)
    }

    fn put(&self, moved: &mut Stripes, address: u64, mut bytes: &[u8]) {
        self.each_piece(moved, address, bytes.len(), |unit| {
            let (first, rest) = bytes.split_at(unit.len());
            unit.copy_from_slice(first);
            bytes = rest;
        });
    }

    fn put_zeros(&self, moved: &mut Stripes, address: u64, len: usize) {
        self.each_piece(moved, address, len, |unit| unit.fill(0));
    }

    /// The parts of new data units that hold these addresses, in order.
    fn each_piece(
        &self,
        moved: &mut Stripes,
        address: u64,
        len: usize,
        mut with: impl FnMut(&mut [u8]),
    ) {
        for Piece { at, len } in self.new.pieces(address, len) {
            let unit = &mut moved.units[to_len(at.stripe.number - moved.first)][at.unit];
            let from = to_len(at.unit_offset - moved.from);
            with(&mut unit[from..from + len]);
        }
    }

    /// Writes the stripes to the members that are there.
    async fn write(
        &self,
        writes: &mut [Bit<(usize, usize)>],
        mut moved: Stripes,
    ) -> Result<(), ArrayError> {
        let array = self.array;
        let copies = |slot| array.members().copying(slot).is_some();
        debug_assert!(!array.members().slots().any(copies), "no slot has a second disk");
        let mut targets = Vec::new();
        for group in grouped(writes, 0, REQUEST_BYTES) {
            let take = |bit: &Bit<(usize, usize)>| {
                let (stripe, unit) = bit.what;
                std::mem::replace(&mut moved.units[stripe][unit], Buf::empty())
            };
            let data = Buf::rejoin(group.iter().map(take).collect()).freeze();
            let place = group[0].place;
            if let Some(disk) = array.members().disk(place.slot) {
                targets.push((place, disk, data));
            }
        }
        let mut flight = InFlight::with_capacity(targets.len());
        for (place, disk, data) in &targets {
            let busy = Busy::on(array.members().in_flight(place.slot));
            flight.push(disk.write(place.offset, data.clone(), WriteOpts::MAINTENANCE), busy);
        }
        let mut failed = Vec::new();
        flight.all(|index, result| failed.extend(result.err().map(|error| (index, error)))).await;
        failed.sort_by_key(|(index, _)| *index);
        let mut result = Ok(());
        for (index, error) in failed {
            let (place, disk, _) = &targets[index];
            result = array.job_write_failed(place.slot, disk, &error).await.and(result);
        }
        result
    }
}

/// Memory for requests over this many bytes of each disk. The first and the last are shorter than
/// the rest, and buffers have sizes that are powers of two.
fn memory_on(bytes: usize, disks: usize) -> usize {
    disks * (bytes + bytes.min(to_len(REQUEST_BYTES)))
}
