//! The engine alone: arrays on RAM disks, whose operations complete at once, so that the benchmark
//! measures processor time per request. The peer issues the same requests directly to the disk.

use std::rc::Rc;
use std::time::Duration;

use weft_array::{Array, Consistency};
use weft_bench::{
    Contestant, Load, MIB, Race, Row, Table, TrivialDriver, fill, make, ram_disks, run, touch,
};
use weft_code::SlotNo;
use weft_disk::{Class, Disk, WriteOpts};
use weft_rt::{Buf, Frozen, Rt, Schedule};

const ROUNDS: usize = 5;
const TURN: Duration = Duration::from_millis(100);
const MEMBER_MIB: u64 = 64;

/// Reads or writes of `len` bytes at multiples of their length.
#[derive(Clone, Copy)]
struct Shape {
    write: bool,
    len: u64,
    depth: usize,
}

fn array_rate(rt: &Rt, array: &Array, shape: Shape) -> f64 {
    let array = array.clone();
    let slots = array.size_bytes() / shape.len;
    let len = usize::try_from(shape.len).expect("fits memory");
    let data = Frozen::copy_from(&vec![0x5a; len]);
    run(rt, load(shape), move |random| {
        let (array, data) = (array.clone(), data.clone());
        async move {
            let offset = random % slots * shape.len;
            if shape.write {
                array.write(offset, data, false).await.expect("written");
            } else {
                array.read(offset, Buf::new(len)).await.0.expect("read");
            }
        }
    })
    .per_core()
}

/// The same requests, to one disk after the other.
fn disk_rate(rt: &Rt, disks: &[Rc<dyn Disk>], shape: Shape) -> f64 {
    let disks = disks.to_vec();
    let slots = MEMBER_MIB * MIB / shape.len;
    let len = usize::try_from(shape.len).expect("fits memory");
    let data = Frozen::copy_from(&vec![0x5a; len]);
    run(rt, load(shape), move |random| {
        let pick = usize::try_from(random >> 32).expect("fits memory") % disks.len();
        let (disk, data) = (disks[pick].clone(), data.clone());
        async move {
            let offset = random % slots * shape.len;
            if shape.write {
                disk.write(offset, data, WriteOpts::USER).await.expect("written");
            } else {
                disk.read(offset, Buf::new(len), Class::User).await.0.expect("read");
            }
        }
    })
    .per_core()
}

fn load(shape: Shape) -> Load {
    Load { depth: shape.depth, turn: TURN, seed: 42 }
}

fn report(table: &Table, rt: &Rt, what: &str, array: &Array, disks: &[Rc<dyn Disk>], shape: Shape) {
    let mut contestants: [Contestant<'_>; 2] =
        [Box::new(|| array_rate(rt, array, shape)), Box::new(|| disk_rate(rt, disks, shape))];
    let race = Race::run(ROUNDS, &mut contestants);
    table.row(&Row {
        what: what.into(),
        weft: figures(race.rate(0), shape),
        peer: format!("disk {}", figures(race.rate(1), shape)),
        ratio: Some(race.ratio(0, 1)),
        target: None,
    });
}

/// Thousands of requests per second, nanoseconds each; and bytes per second for long ones.
#[expect(clippy::cast_precision_loss, reason = "lengths are small")]
fn figures(rate: f64, shape: Shape) -> String {
    if shape.len >= 64 << 10 {
        format!("{:.2} GB/s, {:.1} us", rate * shape.len as f64 / 1e9, 1e6 / rate)
    } else {
        format!("{:.0} k/s, {:.0} ns", rate / 1e3, 1e9 / rate)
    }
}

/// Writes the disks, so that every page of their memory is there.
fn touched(rt: &Rt, disks: Vec<Rc<dyn Disk>>) -> Vec<Rc<dyn Disk>> {
    let all = disks.clone();
    rt.block_on(async move {
        for disk in all {
            touch(&*disk).await;
        }
    });
    disks
}

fn measure(table: &Table, code: &str, slots: usize) {
    let rt = Rt::new(Rc::new(TrivialDriver::default()), Schedule::Fifo);
    let spare_disks = touched(&rt, ram_disks(slots, MEMBER_MIB));
    let new = |consistency| {
        let disks = ram_disks(slots, MEMBER_MIB);
        let (rt2, code) = (rt.clone(), code.to_owned());
        rt.block_on(async move {
            let array = make(&rt2, &code, consistency, disks).await;
            fill(&array).await;
            array
        })
    };
    let array = new(Consistency::Bitmap);
    let stripe = array.stripe_bytes();
    for (len, depth) in [(4 << 10, 1), (4 << 10, 32), (64 << 10, 8), (MIB, 8)] {
        let what = format!("{code} read {} KiB, depth {depth}", len >> 10);
        report(table, &rt, &what, &array, &spare_disks, Shape { write: false, len, depth });
    }
    for policy in [Consistency::None, Consistency::Bitmap, Consistency::Ppl] {
        let array = new(policy);
        for (len, depth, name) in [(4 << 10, 32, "4 KiB"), (stripe, 4, "stripe")] {
            let what = format!("{code} write {name}, depth {depth}, {policy}");
            report(table, &rt, &what, &array, &spare_disks, Shape { write: true, len, depth });
        }
        let stop = array.clone();
        rt.block_on(async move { stop.stop().await.expect("stopped") });
    }
    let failed = array.clone();
    rt.block_on(async move { failed.fail(SlotNo(0)).await.expect("failed") });
    let what = format!("{code} read 4 KiB, depth 32, one disk lost");
    let shape = Shape { write: false, len: 4 << 10, depth: 32 };
    report(table, &rt, &what, &array, &spare_disks, shape);
    rt.kill_all();
}

fn main() {
    let table = Table::new(
        "The engine over RAM disks",
        "Requests per second of processor time of one core, and the time each takes. The peer is the\n\
         same request straight to a RAM disk, on the same executor.",
    );
    measure(&table, "raid6", 6);
    measure(&table, "drc-g:4,2,1", 7);
}
