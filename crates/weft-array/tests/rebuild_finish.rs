//! While the stale marks of rebuilt regions are cleared, users do not wait for a flush of the
//! members, however long it takes and however often they write to those very regions.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{assemble, options, pattern, read, rt};
use weft_array::{Array, CreateOptions, MemberState, ScrubMode, create};
use weft_code::SlotNo;
use weft_disk::{Class, Disk, DoneFuture, Layer, RamDisk, ReadFuture, WriteOpts};
use weft_rt::{Buf, Frozen, MICROSECOND, MILLISECOND, Nanos, Rt, SECOND};

/// A disk whose flushes can be slow.
struct SlowFlush {
    rt: Rt,
    ram: RamDisk,
    flush: Cell<Nanos>,
    flushes: Cell<u32>,
}

impl SlowFlush {
    fn new(rt: &Rt, number: usize) -> Rc<Self> {
        let ram = RamDisk::new(&format!("disk{number}"), 24 << 20, 512);
        let (flush, flushes) = (Cell::new(MICROSECOND), Cell::new(0));
        Rc::new(Self { rt: rt.clone(), ram, flush, flushes })
    }
}

impl Layer for SlowFlush {
    fn below(&self) -> &dyn Disk {
        &self.ram
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            self.rt.sleep(50 * MICROSECOND).await;
            self.ram.read(offset, buf, class).await
        })
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            self.rt.sleep(50 * MICROSECOND).await;
            self.ram.write(offset, data, opts).await
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async move {
            self.flushes.set(self.flushes.get() + 1);
            self.rt.sleep(self.flush.get()).await;
            self.ram.flush().await
        })
    }
}

const FLUSH: Nanos = 10 * SECOND;

/// Longest time that a request may take while only flushes are slow.
const LATENCY_MAX: Nanos = 100 * MILLISECOND;

const LEN: usize = 4096;

/// Rewrites the same places of all regions, and reads lost units, until the replacement is a
/// member. Returns the longest time that a request took.
async fn users(rt: &Rt, array: &Array, model: &mut [u8], slot: usize) -> Nanos {
    let size = array.size_bytes();
    let mut longest = 0;
    let mut version = 10_u8;
    while array.status().slots[slot].state != MemberState::Active {
        version = version.wrapping_add(1);
        for offset in (0..size - LEN as u64).step_by(200 << 10) {
            rt.sleep(20 * MILLISECOND).await;
            let bytes = pattern(offset, LEN, version);
            let began = rt.now();
            let data = Frozen::copy_from(&bytes);
            array.write(offset, data, false).await.expect("written");
            longest = longest.max(rt.now() - began);
            let at = usize::try_from(offset).expect("fits");
            model[at..at + LEN].copy_from_slice(&bytes);
            let began = rt.now();
            let (result, buf) = array.read(offset, Buf::new(LEN)).await;
            result.expect("read");
            longest = longest.max(rt.now() - began);
            assert_eq!(*buf, bytes[..]);
        }
        assert!(rt.now() < 3600 * SECOND, "the rebuild never ends");
    }
    longest
}

#[test]
fn requests_to_regions_that_are_being_finished_wait_for_no_flush() {
    // One slot is rebuilt, the others stay lost: their units are read degraded all the time.
    for (code, slots, lost) in
        [("raid5", 4, &[1][..]), ("raid6", 5, &[1, 3]), ("raid1", 3, &[1]), ("rs:3+2", 5, &[0, 2])]
    {
        let rt = rt();
        rt.clone().block_on(async move {
            let all: Vec<_> = (0..=slots).map(|n| SlowFlush::new(&rt, n)).collect();
            let disks: Vec<Rc<dyn Disk>> =
                all[..slots].iter().map(|disk| disk.clone() as Rc<dyn Disk>).collect();
            // A log large enough for everything written during a flush.
            let options = CreateOptions { log_bytes: Some(8 << 20), ..options(code) };
            create(&disks, &options).await.expect("created");
            let array = assemble(&rt, &disks).await;
            let size = usize::try_from(array.size_bytes()).expect("fits");
            let mut model = pattern(0, size, 1);
            array.write(0, Frozen::copy_from(&model), false).await.expect("written");
            for slot in lost {
                array.fail(SlotNo(*slot)).await.expect("failed");
            }
            array.flush().await.expect("flushed");
            array.add_spare(all[slots].clone()).await.expect("added");
            let rebuilding =
                |slot: &&usize| array.status().slots[**slot].state == MemberState::Rebuilding;
            let slot = loop {
                if let Some(slot) = lost.iter().find(rebuilding) {
                    break *slot;
                }
                rt.sleep(MICROSECOND).await;
            };
            let before: u32 = all.iter().map(|disk| disk.flushes.get()).sum();
            all.iter().for_each(|disk| disk.flush.set(FLUSH));
            let began = rt.now();
            let longest = users(&rt, &array, &mut model, slot).await;
            let flushes: u32 = all.iter().map(|disk| disk.flushes.get()).sum();
            assert!(flushes > before && rt.now() - began >= FLUSH, "{code}: nothing was flushed");
            assert!(longest < LATENCY_MAX, "{code}: a request took {} ms", longest / MILLISECOND);
            all.iter().for_each(|disk| disk.flush.set(MICROSECOND));
            assert!(read(&array, 0, size).await == model, "{code}");
            let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
            assert_eq!((report.mismatches, report.unreadable), (0, 0), "{code}");
            // The rebuilt units are there: another member may go.
            let other = (0..slots).find(|n| !lost.contains(n)).expect("a survivor");
            array.fail(SlotNo(other)).await.expect("failed");
            assert!(read(&array, 0, size).await == model, "{code}: from the rebuilt member");
        });
    }
}
