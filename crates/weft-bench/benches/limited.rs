//! The cost of redundancy when disks are the limit: reads while one disk is lost, rebuild, reshape.
//!
//! Members are RAM disks that are all limited to the same rate. In virtual time only that rate
//! counts, so the figures are exact and the same on every machine; in real time they show that the
//! engine keeps up. Any slot may be the lost one: the row shows the slot whose loss costs the most.
//!
//! The targets of degraded reads are what the DRC paper measured (0.50, 0.50, 0.68, 0.68 at the
//! queue depth of 128 that is used here too; for DRC the arithmetic of the code gives two thirds).

use std::rc::Rc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use weft_array::reshape::{ReshapeOptions, ReshapePlan};
use weft_array::superblock::Shape;
use weft_array::{Array, Consistency, create};
use weft_bench::{
    Load, Row, Table, TrivialDriver, assemble, create_options, fill, make, ram_disk, ram_disks,
    rebuilt, run, touch,
};
use weft_code::SlotNo;
use weft_disk::{Class, Disk, Fault, FaultDisk, Faults, RateLimit, WriteOpts};
use weft_layout::{DiskRange, Placement};
use weft_model::{Contents, Model, ModelDisk, ModelOptions};
use weft_rt::{Buf, Driver, Frozen, MILLISECOND, Nanos, Rt, SECOND, Schedule, VirtualTime};

/// Code, slots, least degraded rate by the healthy one.
const CODES: [(&str, usize, f64); 4] =
    [("raid6", 6, 0.50), ("lrc:4,2,1", 7, 0.50), ("drc:4,2,1", 7, 0.66), ("drc-g:4,2,1", 7, 0.68)];
const OPS_PER_S: u64 = 2000;
const DEPTH: usize = 128;
const REBUILD_BYTES_PER_S: u64 = 100 << 20;

#[derive(Clone, Copy)]
enum Time {
    Virtual,
    Real,
}

impl Time {
    fn rt(self) -> Rt {
        let driver: Rc<dyn Driver> = match self {
            Self::Virtual => Rc::new(VirtualTime::new(1, u64::MAX)),
            Self::Real => Rc::new(TrivialDriver::default()),
        };
        Rt::new(driver, Schedule::Fifo)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Virtual => "virtual time",
            Self::Real => "real time",
        }
    }

    /// How long requests are counted.
    fn turn(self) -> Duration {
        match self {
            Self::Virtual => Duration::from_secs(20),
            Self::Real => Duration::from_secs(2),
        }
    }
}

struct Limited {
    rt: Rt,
    array: Array,
    faults: Vec<Faults>,
}

impl Limited {
    fn new(time: Time, code: &str, slots: usize, member_mib: u64) -> Self {
        let rt = time.rt();
        let (disks, faults): (Vec<_>, Vec<_>) =
            ram_disks(slots, member_mib).into_iter().map(|disk| limited(&rt, disk)).unzip();
        let (rt2, code) = (rt.clone(), code.to_owned());
        let array = rt.block_on(async move {
            let array = make(&rt2, &code, Consistency::Bitmap, disks).await;
            fill(&array).await;
            array
        });
        Self { rt, array, faults }
    }

    fn limit(&self, limit: RateLimit) {
        self.faults.iter().for_each(|faults| faults.inject(Fault::Limit(limit)));
    }

    /// 4 KiB random reads per second.
    fn read_rate(&self, time: Time) -> f64 {
        let array = self.array.clone();
        let slots = array.size_bytes() >> 12;
        let turn = |turn| Load { depth: DEPTH, turn, seed: 7 };
        let request = move |random: u64| {
            let array = array.clone();
            async move { array.read((random % slots) << 12, Buf::new(4096)).await.0.expect("read") }
        };
        run(&self.rt, turn(time.turn() / 10), request.clone());
        run(&self.rt, turn(time.turn()), request).per_second()
    }

    fn fail(&self, slot: usize) {
        let array = self.array.clone();
        self.rt.block_on(async move { array.fail(SlotNo(slot)).await.expect("failed") });
    }
}

fn limited(rt: &Rt, disk: Rc<dyn Disk>) -> (Rc<dyn Disk>, Faults) {
    let (disk, faults) = FaultDisk::new(rt, disk);
    (Rc::new(disk), faults)
}

const MEMBER_MIB: u64 = 32;

fn degraded(table: &Table, time: Time, code: &str, slots: usize, target: f64) {
    let ops = RateLimit { ops_per_s: OPS_PER_S, bytes_per_s: 0 };
    let rates = |slot: Option<usize>| {
        let limited = Limited::new(time, code, slots, MEMBER_MIB);
        slot.into_iter().for_each(|slot| limited.fail(slot));
        limited.limit(ops);
        limited.read_rate(time)
    };
    let healthy = rates(None);
    let lost: Vec<usize> = match time {
        Time::Virtual => (0..slots).collect(),
        Time::Real => vec![0],
    };
    let of_slot = lost.into_iter().map(|slot| (slot, rates(Some(slot))));
    let (slot, worst) = of_slot.min_by(|a, b| a.1.total_cmp(&b.1)).expect("there are slots");
    table.row(&Row {
        what: format!("{code}, slot {slot} lost, {}", time.name()),
        weft: format!("{worst:.0} reads/s"),
        peer: format!("healthy {healthy:.0} reads/s"),
        ratio: Some(worst / healthy),
        target: Some(target),
    });
}

#[expect(clippy::cast_precision_loss, reason = "rates for people")]
fn rebuild(table: &Table, time: Time, code: &str, slots: usize) {
    let member_mib = 128;
    let limited = Limited::new(time, code, slots, member_mib);
    let bytes = RateLimit { ops_per_s: 0, bytes_per_s: REBUILD_BYTES_PER_S };
    limited.fail(1);
    limited.limit(bytes);
    let (rt, array) = (limited.rt.clone(), limited.array.clone());
    let (disk, faults) = self::limited(&rt, ram_disk("new", member_mib));
    let new = disk.clone();
    rt.block_on(async move { touch(&*new).await });
    let before = faults.counts().written_bytes;
    faults.inject(Fault::Limit(bytes));
    let elapsed: Nanos = limited.rt.block_on(async move {
        let start = rt.now();
        array.add_spare(disk).await.expect("added");
        rebuilt(&rt, &array).await;
        rt.now() - start
    });
    limited.rt.kill_all();
    let rate = (faults.counts().written_bytes - before) as f64 * SECOND as f64 / elapsed as f64;
    let limit = REBUILD_BYTES_PER_S as f64;
    table.row(&Row {
        what: format!("{code}, slot 1 rebuilt, {}", time.name()),
        weft: format!("{:.1} MB/s", rate / 1e6),
        peer: format!("one disk {:.1} MB/s", limit / 1e6),
        ratio: Some(rate / limit),
        target: Some(0.95),
    });
}

/// A reshape to measure.
struct Reshape {
    code: &'static str,
    slots: usize,
    to: &'static str,
    add: usize,
}

const RESHAPES: [Reshape; 4] = [
    Reshape { code: "raid5", slots: 3, to: "raid5", add: 1 },
    Reshape { code: "raid6", slots: 6, to: "raid6", add: 2 },
    Reshape { code: "raid5", slots: 5, to: "raid6", add: 1 },
    Reshape { code: "drc-g:4,2,1", slots: 7, to: "drc-g:4,2,1", add: 2 },
];

/// What a member must read and write.
#[derive(Clone, Copy, Default)]
struct Moved {
    read: u64,
    /// From the first to the last byte that is read: the old parity between them, too.
    passed: u64,
    written: u64,
}

impl Moved {
    fn total(self) -> u64 {
        self.read + self.written
    }
}

impl Reshape {
    fn name(&self) -> String {
        let Self { code, slots, to, add } = self;
        format!("{code} of {slots} to {to} of {}", slots + add)
    }

    /// Begins it, waits until it has ended, and returns how long that took, with what the busiest
    /// member must read and write: the old data, and the new stripes with these data.
    async fn run(&self, rt: &Rt, array: &Array, added: Vec<Rc<dyn Disk>>) -> (Nanos, Moved) {
        for disk in added {
            array.add_spare(disk).await.expect("added");
        }
        let start = rt.now();
        let to = Some(self.to.parse().expect("a code"));
        let options = ReshapeOptions { code: to, add: self.add, ..ReshapeOptions::default() };
        let plan = array.reshape(options).await.expect("begun");
        while array.is_reshaping() {
            rt.sleep(MILLISECOND).await;
        }
        (rt.now() - start, self.busiest(&plan))
    }

    fn busiest(&self, plan: &ReshapePlan) -> Moved {
        let placement = |shape: &Shape| {
            let Shape { code, algorithm, slots, rows, unit_bytes, .. } = *shape;
            Placement::new(code, algorithm, slots, rows * unit_bytes, unit_bytes).expect("fits")
        };
        let mut moved = vec![Moved::default(); self.slots + self.add];
        let bytes = |extent: &DiskRange| extent.bytes.end - extent.bytes.start;
        let mut ends = vec![[u64::MAX, 0]; moved.len()];
        for extent in placement(&plan.from).data(0..plan.size_bytes) {
            moved[extent.disk].read += bytes(&extent);
            let [first, end] = &mut ends[extent.disk];
            (*first, *end) = (extent.bytes.start.min(*first), extent.bytes.end);
        }
        for (moved, [first, end]) in moved.iter_mut().zip(ends) {
            moved.passed = end.saturating_sub(first);
        }
        for extent in placement(&plan.to).rows(0..plan.size_bytes) {
            moved[extent.disk].written += bytes(&extent);
        }
        moved.into_iter().max_by_key(|moved| moved.total()).expect("there are members")
    }

    #[expect(clippy::cast_precision_loss, reason = "rates for people")]
    fn on_ram(&self, table: &Table, time: Time) {
        let member_mib = 256;
        let limited = Limited::new(time, self.code, self.slots, member_mib);
        let bytes = RateLimit { ops_per_s: 0, bytes_per_s: REBUILD_BYTES_PER_S };
        let rt = limited.rt.clone();
        let (added, faults): (Vec<_>, Vec<_>) = (0..self.add)
            .map(|n| self::limited(&rt, ram_disk(&format!("new{n}"), member_mib)))
            .unzip();
        let (rt2, array) = (rt.clone(), limited.array.clone());
        let new = added.clone();
        rt.block_on(async move {
            for disk in &new {
                touch(&**disk).await;
            }
        });
        limited.limit(bytes);
        faults.iter().for_each(|faults| faults.inject(Fault::Limit(bytes)));
        let reshape = Self { ..*self };
        let (took, moved) = rt.block_on(async move { reshape.run(&rt2, &array, added).await });
        rt.kill_all();
        let rate = moved.total() as f64 * SECOND as f64 / took as f64;
        let limit = REBUILD_BYTES_PER_S as f64;
        table.row(&Row {
            what: format!("{}, {}", self.name(), time.name()),
            weft: format!("{} MiB at {:.1} MB/s", moved.total() >> 20, rate / 1e6),
            peer: format!("one disk {:.1} MB/s", limit / 1e6),
            ratio: Some(rate / limit),
            target: Some(0.95),
        });
    }

    /// On modelled hard disks without contents, in virtual time. The peer is one such disk that
    /// first reads and then writes as much in order. Its heads pass over the old parity, too.
    #[expect(clippy::cast_precision_loss, reason = "seconds for people")]
    fn on_hard_disks(&self, table: &Table, model: &'static str) {
        let rt = Time::Virtual.rt();
        let disk = |seed: u64| -> Rc<dyn Disk> {
            let options = ModelOptions {
                name: Some(format!("disk{seed}")),
                size_bytes: Some(HARD_DISK_BYTES),
                contents: Contents::KeptBelow(HEAD_BYTES),
                seed,
                ..ModelOptions::default()
            };
            ModelDisk::open(&rt, Model::find(model).expect("a model"), options)
        };
        let mut disks: Vec<_> = (0..(self.slots + self.add) as u64).map(disk).collect();
        let added = disks.split_off(self.slots);
        let (rt2, lone) = (rt.clone(), disk(99));
        let reshape = Self { ..*self };
        let (took, alone) = rt.block_on(async move {
            let rt = rt2;
            let mut options = create_options(reshape.code, Consistency::Bitmap);
            // That of a disk of full size.
            options.head_room_bytes = Some(128 << 20);
            create(&disks, &options).await.expect("created");
            let array = assemble(&rt, disks).await;
            fill(&array).await;
            let (took, moved) = reshape.run(&rt, &array, added).await;
            let start = rt.now();
            in_order(&*lone, moved).await;
            (took, rt.now() - start)
        });
        rt.kill_all();
        table.row(&Row {
            what: format!("{}, {model}", self.name()),
            weft: format!("{:.1} s", took as f64 / SECOND as f64),
            peer: format!("one disk in order {:.1} s", alone as f64 / SECOND as f64),
            ratio: Some(alone as f64 / took as f64),
            target: None,
        });
    }
}

/// Bytes used of each hard disk, and those in front that hold the array's metadata.
const HARD_DISK_BYTES: u64 = 2 << 30;
const HEAD_BYTES: u64 = 128 << 20;

/// Reads and then writes `bytes` in order, four requests of 1 MiB at a time.
async fn in_order(disk: &dyn Disk, moved: Moved) {
    let at = |n: u64| HEAD_BYTES + (n << 20);
    let read = |n: u64| async move {
        disk.read(at(n), Buf::new(1 << 20), Class::User).await.0.expect("read");
    };
    stream::iter(0..moved.passed >> 20).map(read).buffer_unordered(4).collect::<Vec<()>>().await;
    let data = Frozen::zeros(1 << 20);
    let write = |n: u64| {
        let data = data.clone();
        async move { disk.write(at(n), data, WriteOpts::USER).await.expect("written") }
    };
    let writes = stream::iter(0..moved.written >> 20).map(write);
    writes.buffer_unordered(4).collect::<Vec<()>>().await;
    disk.flush().await.expect("flushed");
}

fn main() {
    let reads = Table::new(
        "4 KiB random reads with one disk lost, by the healthy rate of the same code",
        format!("{OPS_PER_S} requests a second and member, {DEPTH} in flight."),
    );
    for (code, slots, target) in CODES {
        degraded(&reads, Time::Virtual, code, slots, target);
        degraded(&reads, Time::Real, code, slots, target);
    }
    let rebuilds = Table::new(
        "Rebuild of an idle array, by the bandwidth of one disk",
        "From the command to the durable end, all members and the replacement held alike.",
    );
    for (code, slots) in [("raid1", 2), ("raid5", 5), ("raid6", 6), ("drc-g:4,2,1", 7)] {
        rebuild(&rebuilds, Time::Virtual, code, slots);
        rebuild(&rebuilds, Time::Real, code, slots);
    }
    let reshapes = Table::new(
        "Reshape of an idle array, by the bandwidth of one disk",
        "From the command to the durable end, all members held alike. Counted is what the busiest \
         member must read and write: the old data, and the new stripes.",
    );
    for reshape in &RESHAPES {
        reshape.on_ram(&reshapes, Time::Virtual);
        reshape.on_ram(&reshapes, Time::Real);
    }
    let hard_disks = Table::new(
        "The same on modelled hard disks, in virtual time",
        "The peer is a disk that reads all and then writes all in order, passing over old parity.",
    );
    for reshape in &RESHAPES {
        for model in ["st3146807fc", "st3300831as"] {
            reshape.on_hard_disks(&hard_disks, model);
        }
    }
}
