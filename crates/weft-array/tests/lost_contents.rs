//! A member that has lost contents, or may have, does not come back as one that lacks only what was
//! written since it left: it is rebuilt completely.

use std::rc::Rc;

use crate::common::bench::{UNIT, members, options, run};
use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::*;
use weft_array::{Array, ArrayState, AssembleOptions, ScrubMode, create};
use weft_code::SlotNo;
use weft_disk::{Disk, DiskErrorKind};
use weft_rt::{MILLISECOND, Rt};

const SIZE: u64 = (2 << 20) + 16 * UNIT;
const LEAVES: usize = 1;

async fn assembled(rt: &Rt, disks: &[Rc<dyn Disk>], nonce: u64) -> Array {
    let options = AssembleOptions { nonce, ..AssembleOptions::default() };
    Array::assemble(rt, disks.to_vec(), options).await.expect("assembled")
}

async fn healthy(rt: &Rt, array: &Array, what: &str) {
    for _ in 0..20_000 {
        if array.status().state == ArrayState::Healthy {
            return;
        }
        rt.sleep(MILLISECOND).await;
    }
    panic!("{what}: {:#?}", array.status());
}

/// How the member fails.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fails {
    /// Its disk is gone for a while: it keeps what it holds.
    Gone,
    /// A write fails.
    Write,
    /// It is shorter than it was.
    Shrunk,
}

#[test]
fn a_member_that_failed_with_errors_of_its_own_is_rebuilt_completely() {
    for (code, slots) in CODES {
        for fails in [Fails::Gone, Fails::Write, Fails::Shrunk] {
            run(move |rt| async move {
                let what = format!("{code}, {fails:?}");
                let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); slots]);
                let all = members(&disks);
                let superblock = create(&all, &options(code)).await.expect("created");
                let array = assembled(&rt, &all, 1).await;
                let len = 16 * array.stripe_bytes() as usize;
                let mut bytes = pattern(0, len, 1);
                write(&array, 0, &bytes).await;
                array.flush().await.expect("flushed");
                rt.sleep(10_000 * MILLISECOND).await;
                let faults = &disks[LEAVES].faults;
                match fails {
                    Fails::Gone => faults.gone.set(true),
                    Fails::Write => *faults.unwritable.borrow_mut() = 0..SIZE,
                    Fails::Shrunk => faults.kind.set(Some(DiskErrorKind::Shrunk)),
                }
                let part = pattern(0, array.stripe_bytes() as usize, 2);
                bytes[..part.len()].copy_from_slice(&part);
                write(&array, 0, &part).await;
                array.flush().await.expect("flushed");
                faults.gone.set(false);
                faults.kind.set(None);
                faults.unwritable.replace(0..0);
                if fails != Fails::Gone {
                    // All of its data is zeros now.
                    let data = superblock.area.data_offset;
                    let zeros = vec![0; (SIZE - data) as usize];
                    disks[LEAVES].medium.borrow_mut().poke(data, &zeros);
                }
                let returned = array.take_back(all[LEAVES].clone()).await.expect("read");
                assert_eq!(returned.is_some(), fails == Fails::Gone, "{what}");
                if returned.is_none() {
                    array.add_spare(all[LEAVES].clone()).await.expect("added");
                }
                healthy(&rt, &array, &what).await;
                let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
                assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
                array.fail(SlotNo(0)).await.expect("can lose it");
                assert!(read(&array, 0, len).await == bytes, "{what}");
            });
        }
    }
}

/// When a member is found too short.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Short {
    AtAssembly,
    /// It was absent then; now it is added, or found by the daemon.
    WhenAdded,
}

#[test]
fn a_member_that_was_too_short_once_is_rebuilt_completely() {
    for short in [Short::AtAssembly, Short::WhenAdded] {
        run(move |rt| async move {
            let what = format!("{short:?}");
            let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); 4]);
            let all = members(&disks);
            create(&all, &options("raid5")).await.expect("created");
            let array = assembled(&rt, &all, 1).await;
            let len = (array.size_bytes() / array.stripe_bytes() * array.stripe_bytes()) as usize;
            let bytes = pattern(0, len, 1);
            write(&array, 0, &bytes).await;
            array.stop().await.expect("stopped");
            let held = Leave::All.of(&disks[LEAVES].medium.borrow());
            let sized = |number, size, medium: &Medium| -> Rc<dyn Disk> {
                TestDisk::new(&rt, &Power::new(), number, size, 512, medium.clone())
            };
            let shrunk = sized(8, SIZE / 2, &held);
            let mut given: Vec<_> = [&all[..LEAVES], &all[LEAVES + 1..]].concat();
            if short == Short::AtAssembly {
                given.push(shrunk.clone());
            }
            let array = assembled(&rt, &given, 2).await;
            if short == Short::WhenAdded {
                array.take_back(shrunk).await.expect_err("too small");
            }
            // It has its size again, and zeros behind its former end.
            let mut cut = held;
            cut.poke(SIZE / 2, &vec![0; (SIZE / 2) as usize]);
            let again = sized(9, SIZE, &cut);
            assert_eq!(array.take_back(again.clone()).await.expect("read"), None, "{what}");
            array.add_spare(again).await.expect("added");
            healthy(&rt, &array, &what).await;
            let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
            assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
            array.fail(SlotNo(0)).await.expect("can lose it");
            assert!(read(&array, 0, len).await == bytes, "{what}");
        });
    }
}
