//! Two parts of an array never run side by side. Whatever a crash leaves of a change of membership:
//! once some disks have been started unforced and written to, no other set of disks can be started
//! unforced unless it holds what was written.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::bench::{UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::*;
use weft_array::superblock::read_superblock;
use weft_array::{Array, AssembleOptions, Consistency};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{MILLISECOND, Rt};

const SIZE: u64 = (1 << 20) + 4 * UNIT;
const LEN: usize = 1024;

/// The contents of all disks.
type Moment = Vec<Medium>;

fn subsets(of: usize) -> impl Iterator<Item = Vec<usize>> {
    (1..1_usize << of).map(move |set| (0..of).filter(|m| set >> m & 1 == 1).collect())
}

/// Starts the array from some of the disks, if they suffice.
async fn start(rt: &Rt, disks: &[Rc<TestDisk>], which: &[usize], nonce: u64) -> Option<Array> {
    let disks: Vec<Rc<dyn Disk>> =
        which.iter().map(|m| disks[*m].clone() as Rc<dyn Disk>).collect();
    for disk in &disks {
        read_superblock(&**disk).await.ok()??;
    }
    let options = AssembleOptions { nonce, ..AssembleOptions::default() };
    Array::assemble(rt, disks, options).await.ok()
}

/// The contents of the disks after each operation of what `act` does to a mirror of `slots` that
/// was started from the disks `from`; there is one more disk.
fn record<F>(
    slots: usize,
    from: Vec<usize>,
    act: impl FnOnce(Rt, Array, Vec<Rc<TestDisk>>) -> F + 'static,
) -> Vec<Moment>
where
    F: Future<Output = ()> + 'static,
{
    let moments: Rc<RefCell<Vec<Moment>>> = Rc::default();
    let noted = moments.clone();
    run(move |rt| async move {
        let power = Power::new();
        let disk = |n| TestDisk::new(&rt, &power, n, SIZE, 512, Medium::new(512));
        let disks: Vec<_> = (0..=slots).map(disk).collect();
        let mut options = options("raid1");
        options.consistency = Consistency::Bitmap;
        weft_array::create(&members(&disks)[..slots], &options).await.expect("created");
        let all: Vec<usize> = (0..slots).collect();
        let array = start(&rt, &disks, &all, 1).await.expect("whole");
        write(&array, 0, &pattern(0, LEN, 1)).await;
        array.stop().await.expect("stopped");
        let watched = disks.clone();
        power.watch(move || {
            noted
                .borrow_mut()
                .push(watched.iter().map(|disk| disk.medium.borrow().clone()).collect());
        });
        let array = start(&rt, &disks, &from, 2).await.expect("enough");
        act(rt.clone(), array, disks).await;
        power.watch(|| {});
    });
    moments.take()
}

/// From each moment on: some of the disks continue, and then all others are tried.
fn check(moments: &[Moment], what: &str) {
    let mut tried = 0;
    for (number, moment) in moments.iter().enumerate() {
        for leave in [Leave::All, Leave::Nothing, Leave::Some(number as u64)] {
            let cut: Moment = moment.iter().map(|medium| leave.of(medium)).collect();
            for first in subsets(cut.len()) {
                let left = Rc::new(RefCell::new(None));
                let (cut, left2, started) = (cut.clone(), left.clone(), first.clone());
                run(move |rt| async move {
                    let disks = holding(&rt, &Power::new(), SIZE, &cut);
                    let Some(array) = start(&rt, &disks, &started, 3).await else { return };
                    write(&array, 0, &pattern(0, LEN, 2)).await;
                    array.stop().await.expect("stopped");
                    let media = disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
                    *left2.borrow_mut() = Some(media);
                });
                let Some(left): Option<Moment> = left.take() else { continue };
                let what = format!("{what}, moment {number}, {leave:?}, {first:?} went on");
                run(move |rt| async move {
                    for second in subsets(left.len()) {
                        let disks = holding(&rt, &Power::new(), SIZE, &left);
                        if let Some(array) = start(&rt, &disks, &second, 4).await {
                            let found = read(&array, 0, LEN).await;
                            assert!(found == pattern(0, LEN, 2), "{what}: {second:?} is stale");
                            array.stop().await.expect("stopped");
                        }
                    }
                });
                tried += 1;
            }
        }
    }
    assert!(tried > 100, "{what}: only {tried} parts went on");
}

/// Keeps the moments at which a superblock differs from that of the moment before.
fn of_superblocks(moments: Vec<Moment>) -> Vec<Moment> {
    let superblocks = |moment: &Moment| -> Vec<Vec<u8>> {
        let bytes = |medium: &Medium| {
            let mut bytes = vec![0; 256 << 10];
            medium.read(128 << 10, &mut bytes);
            bytes
        };
        moment.iter().map(bytes).collect()
    };
    let mut moments = moments;
    moments.dedup_by_key(|moment| superblocks(moment));
    moments
}

#[test]
fn after_a_start_without_some_members() {
    let moments = record(4, vec![1, 2, 3], |_, array, _| async move {
        array.stop().await.expect("stopped");
    });
    check(&of_superblocks(moments), "three of four");
}

#[test]
fn after_a_loss_of_two_at_once() {
    let moments = record(5, vec![0, 1, 2, 3, 4], |_, array, disks| async move {
        disks[3].faults.gone.set(true);
        disks[4].faults.gone.set(true);
        write(&array, 0, &pattern(0, LEN, 1)).await;
        array.stop().await.expect("stopped");
    });
    check(&of_superblocks(moments), "two of five lost");
}

#[test]
fn after_a_swap() {
    let moments = record(3, vec![0, 1, 2], |rt, array, disks| async move {
        array.replace(SlotNo(1), disks[3].clone()).await.expect("begun");
        while array.status().slots[1].replacement.is_some() {
            rt.sleep(MILLISECOND).await;
        }
        array.stop().await.expect("stopped");
    });
    check(&of_superblocks(moments), "one of three replaced");
}
