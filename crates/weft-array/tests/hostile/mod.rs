//! Members with hostile metadata: an array is made and written, then its superblocks, map and log
//! are changed and given right checksums, and the result is assembled and used. Shared by the tests
//! and the fuzz target.
//!
//! Whatever the disks say, nothing panics, no request leaves a disk, none takes more memory than
//! [`REQUEST_BYTES_MAX`], and the engine terminates.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use crc_fast::{CrcAlgorithm, checksum};
use futures_util::future::{Either, select};
use serde_json::Value;
use weft_array::area::{MAP_OFFSET, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use weft_array::reshape::ReshapeOptions;
use weft_array::{
    Array, AssembleOptions, Consistency, CreateOptions, ScrubMode, Superblock, create,
};
use weft_code::SlotNo;
use weft_disk::{Class, Disk, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts};
use weft_rt::{Buf, Frozen, MILLISECOND, Rt, SECOND, Schedule, virtual_rt};

use crate::exercise::seal;

/// No single request to a disk may be larger: units have at most 16 MiB.
const REQUEST_BYTES_MAX: u64 = 32 << 20;
const BLOCK: u64 = 4096;

/// A disk of any size that stores written blocks. Requests take a millisecond.
struct Sparse {
    info: DiskInfo,
    rt: Rt,
    blocks: RefCell<BTreeMap<u64, Rc<[u8]>>>,
}

impl Sparse {
    fn check(&self, op: DiskOp, offset: u64, len: u64) {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.info.size_bytes);
        let aligned = offset.is_multiple_of(512) && len.is_multiple_of(512);
        assert!(inside && aligned, "{op:?} of {len} bytes at {offset} of {:?}", self.info);
        let bounded = op == DiskOp::WriteZeroes || len <= REQUEST_BYTES_MAX;
        assert!(bounded, "{op:?} of {len} bytes at once");
    }

    fn get(&self, offset: u64, out: &mut [u8]) {
        let blocks = self.blocks.borrow();
        out.fill(0);
        let end = offset + out.len() as u64;
        for (n, block) in blocks.range(offset / BLOCK..end.div_ceil(BLOCK)) {
            let (from, to) = ((n * BLOCK).max(offset), ((n + 1) * BLOCK).min(end));
            out[at(from - offset)..at(to - offset)]
                .copy_from_slice(&block[at(from - n * BLOCK)..at(to - n * BLOCK)]);
        }
    }

    fn put(&self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        for n in offset / BLOCK..end.div_ceil(BLOCK) {
            let (from, to) = ((n * BLOCK).max(offset), ((n + 1) * BLOCK).min(end));
            let mut block = vec![0; at(BLOCK)];
            self.get(n * BLOCK, &mut block);
            block[at(from - n * BLOCK)..at(to - n * BLOCK)]
                .copy_from_slice(&data[at(from - offset)..at(to - offset)]);
            self.blocks.borrow_mut().insert(n, block.into());
        }
    }

    fn zero(&self, offset: u64, len: u64) {
        let (first, last) = (offset.div_ceil(BLOCK), (offset + len) / BLOCK);
        if first >= last {
            return self.put(offset, &vec![0; at(len)]);
        }
        let mut blocks = self.blocks.borrow_mut();
        let mut after = blocks.split_off(&first);
        blocks.append(&mut after.split_off(&last));
        drop(blocks);
        self.put(offset, &vec![0; at(first * BLOCK - offset)]);
        self.put(last * BLOCK, &vec![0; at(offset + len - last * BLOCK)]);
    }
}

fn at(n: u64) -> usize {
    usize::try_from(n).expect("small")
}

impl Disk for Sparse {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf, _: Class) -> ReadFuture<'_> {
        self.check(DiskOp::Read, offset, buf.len() as u64);
        Box::pin(async move {
            self.rt.sleep(MILLISECOND).await;
            self.get(offset, &mut buf);
            (Ok(()), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        self.check(DiskOp::Write, offset, data.len() as u64);
        Box::pin(async move {
            self.rt.sleep(MILLISECOND).await;
            self.put(offset, &data);
            Ok(())
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async move {
            self.rt.sleep(MILLISECOND).await;
            Ok(())
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: WriteOpts) -> DoneFuture<'_> {
        self.check(DiskOp::WriteZeroes, offset, len);
        Box::pin(async move {
            self.rt.sleep(MILLISECOND).await;
            self.zero(offset, len);
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        self.write_zeroes(offset, len, WriteOpts::USER)
    }
}

/// The outcome.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// The members were refused, with this text.
    Refused(String),
    /// They were an array, which was used to the end.
    Used,
    /// They were an array, which was still working when the time was up.
    Unfinished,
}

type Pick<'a> = &'a mut dyn FnMut(usize) -> usize;

const CODES: [&str; 10] = [
    "raid0",
    "raid1",
    "raid10",
    "raid10:f2",
    "raid5",
    "raid6",
    "rs:3+2",
    "lrc:4,2,1",
    "drc:4,2,1",
    "drc-g:4,2,1",
];

/// Runs one story; `pick(n)` chooses one of n.
pub fn exercise(pick: Pick<'_>) -> Fate {
    let rt = virtual_rt(Schedule::Fifo);
    let code = CODES[pick(CODES.len())];
    let count = [4, 4, 4, 4, 4, 5, 6, 8, 8, 8][CODES.iter().position(|c| *c == code).unwrap_or(0)];
    let spares = pick(2);
    let size_bytes = [16 << 20, 16 << 20, 40 << 20, 4 << 40][pick(4)];
    let disks: Vec<Rc<Sparse>> = (0..count + spares + 1)
        .map(|n| {
            let fast_zeroes = pick(4) != 0;
            let name = format!("disk{n}");
            let info = DiskInfo {
                name,
                size_bytes,
                sector_bytes: 512,
                fast_zeroes,
                volatile_cache: true,
                rotational: false,
            };
            Rc::new(Sparse { info, rt: rt.clone(), blocks: RefCell::default() })
        })
        .collect();
    let all = |disks: &[Rc<Sparse>]| -> Vec<Rc<dyn Disk>> {
        disks.iter().map(|disk| disk.clone() as Rc<dyn Disk>).collect()
    };
    let (members, fresh) = (all(&disks[..count + spares]), all(&disks[count + spares..]));
    let options = options(code, spares, [4096, 16 << 10, 64 << 10][pick(3)]);
    let (clean, lost, reshaped) = (pick(3) == 0, pick(4) == 0, pick(6));
    rt.block_on({
        let (rt, members) = (rt.clone(), members.clone());
        async move {
            create(&members, &options).await.expect("a sensible array");
            let array = Array::assemble(&rt, members, with_nonce(5)).await.expect("whole");
            for n in 0..6 {
                let data = Frozen::copy_from(&vec![n; 12 << 10]);
                array.write(u64::from(n) * 300 * 1024, data, n % 2 == 0).await.expect("written");
            }
            if lost && array.fail(SlotNo(0)).await.is_ok() {
                rt.sleep(20 * MILLISECOND).await;
            }
            if matches!(reshaped, 1 | 2) {
                // In the middle; where it is not possible, without.
                array.set_throttle(0, Some(64 << 10));
                let wanted = ReshapeOptions {
                    add: if reshaped == 1 { spares } else { 0 },
                    remove: usize::from(reshaped == 2),
                    used_bytes: Some(0),
                    ..ReshapeOptions::default()
                };
                if array.reshape(wanted).await.is_ok() {
                    rt.sleep(50 * MILLISECOND).await;
                }
            }
            if clean {
                array.stop().await.expect("stopped");
            }
        }
    });
    // A crash, unless the array was stopped.
    rt.kill_all();
    mutate(&disks[..count + spares], pick);
    let fate = Rc::new(Cell::new(None));
    let words: Vec<usize> = (0..24).map(|_| pick(1 << 16)).collect();
    let refusal = Rc::new(RefCell::new(String::new()));
    rt.block_on({
        let (rt, fate, refusal) = (rt.clone(), fate.clone(), refusal.clone());
        async move {
            let patience = Box::pin(rt.sleep(3 * SECOND));
            let work = Box::pin(async {
                match Array::assemble(&rt, members, with_nonce(6)).await {
                    Ok(array) => {
                        fate.set(Some(true));
                        use_it(&rt, &array, fresh, &words).await;
                        fate.set(Some(false));
                    }
                    Err(error) => *refusal.borrow_mut() = error.to_string(),
                }
            });
            if let Either::Right(_) = select(work, patience).await {
                fate.set(Some(true));
            }
        }
    });
    rt.kill_all();
    match fate.get() {
        None => Fate::Refused(refusal.take()),
        Some(true) => Fate::Unfinished,
        Some(false) => Fate::Used,
    }
}

fn with_nonce(nonce: u64) -> AssembleOptions {
    AssembleOptions { nonce, ..AssembleOptions::default() }
}

fn options(code: &str, spares: usize, unit_bytes: u32) -> CreateOptions {
    let code = code.parse().expect("a code");
    CreateOptions {
        name: "hostile".into(),
        code,
        algorithm: None,
        unit_bytes,
        consistency: Consistency::default_for(code),
        region_bytes: None,
        log_bytes: None,
        head_room_bytes: None,
        spares,
        force: false,
        id: [9; 16],
        now_unix_s: 0,
    }
}

/// What clients and administrators do with an array; errors are valid answers.
async fn use_it(rt: &Rt, array: &Array, mut fresh: Vec<Rc<dyn Disk>>, words: &[usize]) {
    let size = array.size_bytes();
    let places = [0, size / 2, size.saturating_sub(5000), size];
    for word in words {
        let offset = places[word / 16 % 4];
        let len = [0, 512, 5000, 200 << 10][word / 64 % 4].min(at((size - offset).min(1 << 20)));
        match word % 16 {
            0..4 => {
                let (result, buf) = array.read(offset, Buf::new(len)).await;
                assert!(result.is_err() || buf.len() == len);
            }
            4..8 => {
                let data = Frozen::copy_from(&vec![7; len]);
                let written = array.write(offset, data, word % 2 == 0).await;
                if written.is_ok() && len > 0 {
                    let (result, buf) = array.read(offset, Buf::new(len)).await;
                    assert!(result.is_err() || buf.iter().all(|byte| *byte == 7), "read {offset}");
                }
            }
            8 => drop(array.flush().await),
            9 => drop(array.write_zeroes(offset, len as u64, true, word / 256 % 2 == 0).await),
            10 => drop(array.discard(0, (4 << 20).min(size)).await),
            11 => {
                let extents = array.allocation(offset, (64 << 20).min(size - offset));
                let extents = extents.expect("inside the array");
                assert!(extents.iter().all(|extent| extent.len > 0));
            }
            12 => drop(array.fail(SlotNo(word / 16 % 8)).await),
            13 => {
                let mode = if word / 16 % 2 == 0 { ScrubMode::Check } else { ScrubMode::Repair };
                drop(array.scrub(mode).await);
            }
            14 => {
                if let Some(disk) = fresh.pop() {
                    drop(array.add_spare(disk).await);
                }
            }
            _ => rt.sleep(50 * MILLISECOND).await,
        }
        assert!(!array.status().name.is_empty());
    }
    drop(array.stop().await);
}

const NUMBERS: [u64; 26] = [
    0,
    1,
    2,
    3,
    7,
    8,
    255,
    512,
    4095,
    4096,
    65_536,
    512 << 10,
    1 << 20,
    2 << 20,
    (1 << 20) + 4096,
    16 << 20,
    1 << 26,
    1 << 30,
    1 << 32,
    1 << 40,
    1 << 46,
    1 << 48,
    1 << 62,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];
const TEXTS: [&str; 16] = [
    "",
    ".",
    "..",
    "a/b",
    "../../etc/cron.d",
    "x\u{1b}[2J",
    "\u{0}",
    "raid0",
    "raid1",
    "raid5",
    "raid6",
    "drc:12,3,1",
    "none",
    "bitmap",
    "active",
    "missing",
];

/// Changes the members' metadata, with right checksums.
fn mutate(disks: &[Rc<Sparse>], pick: Pick<'_>) {
    let newest: Vec<Superblock> = disks.iter().filter_map(|disk| newest(disk)).collect();
    let common = newest.iter().max_by_key(|own| own.seq).expect("some member is whole");
    let mut value = serde_json::to_value(common).expect("text");
    for _ in 0..=pick(6) {
        change(&mut value, pick);
    }
    let only = (pick(4) == 0).then(|| pick(disks.len()));
    for (n, disk) in disks.iter().enumerate() {
        if only.is_none_or(|only| only == n) {
            let own = newest.iter().find(|own| own.self_id == common.array_id.member(0, n as u64));
            let id = own.map_or(common.self_id, |own| own.self_id);
            value["self_id"] = serde_json::to_value(id).expect("text");
            let seq = value["seq"].as_u64().unwrap_or(common.seq);
            let payload = serde_json::to_vec(&value).expect("text");
            let bytes = seal(seq, common.array_id, &payload);
            if bytes.len() as u64 <= SUPERBLOCK_BYTES {
                disk.put(SUPERBLOCK_OFFSETS[usize::from(seq % 2 == 1)], &bytes);
            }
        }
        if pick(4) == 0 {
            change_page(disk, pick);
        }
        if pick(4) == 0 {
            change_log(disk, common.area.log_offset, pick);
        }
    }
}

fn newest(disk: &Sparse) -> Option<Superblock> {
    let copies = SUPERBLOCK_OFFSETS.into_iter().filter_map(|offset| {
        let mut bytes = vec![0; at(SUPERBLOCK_BYTES)];
        disk.get(offset, &mut bytes);
        Superblock::decode(&bytes).ok()
    });
    copies.max_by_key(|copy| copy.seq)
}

/// Changes one value somewhere.
fn change(value: &mut Value, pick: Pick<'_>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let n = pick(fields.len());
            let (_, field) = fields.iter_mut().nth(n).expect("chosen among them");
            change(field, pick);
        }
        Value::Array(items) if !items.is_empty() => match pick(4) {
            0 => drop(items.pop()),
            1 => items.push(items[0].clone()),
            _ => {
                let n = pick(items.len());
                change(&mut items[n], pick);
            }
        },
        Value::Number(number) => {
            let old = number.as_u64().unwrap_or(0);
            let new = match pick(8) {
                0 => old.saturating_add(1),
                1 => old.saturating_sub(1),
                2 => old.saturating_mul(2),
                3 => old / 2,
                _ => NUMBERS[pick(NUMBERS.len())],
            };
            *value = new.into();
        }
        Value::String(text) => {
            let new = match pick(6) {
                0 => "n".repeat(300),
                _ => TEXTS[pick(TEXTS.len())].to_owned(),
            };
            *text = new;
        }
        Value::Bool(flag) => *flag = !*flag,
        _ => *value = NUMBERS[pick(NUMBERS.len())].into(),
    }
}

/// Changes bytes of a block and recomputes its checksum.
fn reseal(disk: &Sparse, offset: u64, crc_at: usize, change: impl FnOnce(&mut [u8])) {
    let mut block = vec![0; at(BLOCK)];
    disk.get(offset, &mut block);
    change(&mut block);
    block[crc_at..crc_at + 4].fill(0);
    let crc = u32::try_from(checksum(CrcAlgorithm::Crc32Iscsi, &block)).expect("32 bits");
    block[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    disk.put(offset, &block);
}

/// Changes the first page of the map: its number of regions, its sequence number, or regions.
fn change_page(disk: &Sparse, pick: Pick<'_>) {
    let number = NUMBERS[pick(NUMBERS.len())].to_le_bytes();
    let place = MAP_OFFSET + BLOCK * pick(2) as u64;
    let (field, region) = ([12, 16, 24, 64, 64][pick(5)], 64 + 2 * pick(40));
    reseal(disk, place, 8, |page| match field {
        12 => page[12..16].copy_from_slice(&number[..4]),
        64 => page[region..region + 8].copy_from_slice(&number),
        field => page[field..field + 8].copy_from_slice(&number),
    });
}

/// Changes a batch header: its retirement, its entries and length, or the first entry.
fn change_log(disk: &Sparse, log_offset: u64, pick: Pick<'_>) {
    let number = NUMBERS[pick(NUMBERS.len())].to_le_bytes();
    let (field, wide) = [
        (32, 8),
        (40, 4),
        (44, 4),
        (64, 8),
        (72, 8),
        (80, 8),
        (112, 4),
        (116, 4),
        (120, 4),
        (128, 2),
    ][pick(10)];
    // Batches of small writes have two blocks.
    let place = log_offset + BLOCK * pick(6) as u64;
    reseal(disk, place, 48, |head| head[field..field + wide].copy_from_slice(&number[..wide]));
}
