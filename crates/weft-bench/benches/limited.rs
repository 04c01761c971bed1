//! The cost of redundancy when disks are the limit: reads while one disk is lost, and rebuild.
//!
//! Members are RAM disks that are all limited to the same rate. In virtual time only that rate
//! counts, so the figures are exact and the same on every machine; in real time they show that the
//! engine keeps up. Any slot may be the lost one: the row shows the slot whose loss costs the most.
//!
//! The targets of degraded reads are what the DRC paper measured (0.50, 0.50, 0.68, 0.68 at the
//! queue depth of 128 that is used here too; for DRC the arithmetic of the code gives two thirds).

use std::rc::Rc;
use std::time::Duration;

use weft_array::{Array, Consistency};
use weft_bench::{
    Load, Row, Table, TrivialDriver, fill, make, ram_disk, ram_disks, rebuilt, run, touch,
};
use weft_code::SlotNo;
use weft_disk::{Disk, Fault, FaultDisk, Faults, RateLimit};
use weft_rt::{Buf, Driver, Nanos, Rt, SECOND, Schedule, VirtualTime};

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
}
