//! However wide an array and however large its units, stripe operations use no more memory than the
//! stated bound: 96 MiB, and one batch for each member's log.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::common::{assemble, options, pattern, read, rt, write};
use weft_array::{Array, CreateOptions, MemberState, ScrubMode, create};
use weft_code::SlotNo;
use weft_disk::{Class, Disk, DiskInfo, DoneFuture, RamDisk, ReadFuture, WriteOpts};
use weft_rt::{Buf, BufMemory, Frozen, Rt, SECOND};

const MIB: usize = 1 << 20;

/// The bound for stripe operations.
const BUDGET: usize = 96 * MIB;

/// Memory for a member's log: one batch, rounded up.
const LOG_BATCH: usize = MIB;

/// Bytes that are kept at the start of a disk: the metadata.
const KEPT: u64 = 34 << 20;

const PAGE: usize = 4096;

/// A disk that keeps its metadata only; its data always reads as zeros. So an array on it may be
/// wider and have larger units than this machine has memory for, and its parity matches its data.
struct Hollow {
    info: DiskInfo,
    /// Pages that are not all zeros.
    kept: RefCell<BTreeMap<u64, Vec<u8>>>,
    /// Bytes before this offset are kept.
    kept_bytes: u64,
    rt: Rt,
}

impl Hollow {
    fn new(rt: &Rt, number: usize) -> Rc<Self> {
        Self::keeping(rt, number, KEPT)
    }

    fn keeping(rt: &Rt, number: usize, kept_bytes: u64) -> Rc<Self> {
        let info = DiskInfo {
            name: format!("hollow{number}"),
            size_bytes: kept_bytes + (20 << 20),
            sector_bytes: 4096,
            fast_zeroes: true,
            volatile_cache: true,
            rotational: false,
        };
        Rc::new(Self { info, kept: RefCell::default(), kept_bytes, rt: rt.clone() })
    }

    /// Takes some time, so that requests overlap.
    async fn answer(&self) {
        self.rt.sleep(10_000).await;
    }
}

impl Disk for Hollow {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf, _: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            self.answer().await;
            buf.fill(0);
            for (page, part) in (offset / PAGE as u64..).zip(buf.chunks_mut(PAGE)) {
                if let Some(bytes) = self.kept.borrow().get(&page) {
                    part.copy_from_slice(bytes);
                }
            }
            (Ok(()), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            self.answer().await;
            for (page, part) in (offset / PAGE as u64..).zip(data.chunks(PAGE)) {
                if part.iter().all(|byte| *byte == 0) {
                    self.kept.borrow_mut().remove(&page);
                } else {
                    let is_label = page == self.info.size_bytes / PAGE as u64 - 1;
                    let is_metadata = page < self.kept_bytes / PAGE as u64 || is_label;
                    assert!(is_metadata, "zeros have zeros as parity");
                    self.kept.borrow_mut().insert(page, part.to_vec());
                }
            }
            Ok(())
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async { Ok(()) })
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: WriteOpts) -> DoneFuture<'_> {
        let pages = offset / PAGE as u64..(offset + len) / PAGE as u64;
        self.kept.borrow_mut().retain(|page, _| !pages.contains(page));
        Box::pin(async { Ok(()) })
    }

    fn discard(&self, _: u64, _: u64) -> DoneFuture<'_> {
        Box::pin(async { Ok(()) })
    }
}

fn wide(code: &str, unit: usize) -> CreateOptions {
    let unit_bytes = u32::try_from(unit).expect("a unit");
    CreateOptions { unit_bytes, region_bytes: None, ..options(code) }
}

/// Runs `work`, and checks its memory apart from `payload` bytes that belong to the caller.
async fn within(what: &str, width: usize, payload: usize, work: impl Future<Output = ()>) {
    let before = BufMemory::of_thread().now;
    BufMemory::start_anew();
    work.await;
    let held = BufMemory::of_thread().most - before;
    let bound = BUDGET + width * LOG_BATCH + payload;
    assert!(held <= bound, "{what}: {} MiB held, {} MiB is the bound", held / MIB, bound / MIB);
    eprintln!("{what}: {} MiB of {}", held / MIB, bound / MIB);
}

async fn write_zeros(array: &Array, offset: u64, data: &Frozen) {
    array.write(offset, data.clone(), false).await.expect("written");
}

async fn rebuilt(rt: &Rt, array: &Array) {
    while array.status().slots.iter().any(|slot| slot.state != MemberState::Active) {
        rt.sleep(SECOND).await;
    }
}

#[test]
fn sixty_members_with_the_largest_units_stay_within_the_bound() {
    for code in ["raid6", "rs:56+4"] {
        let rt = rt();
        let hollow: Vec<Rc<Hollow>> = (0..62).map(|n| Hollow::new(&rt, n)).collect();
        let (all, driver) = (hollow.clone(), rt.clone());
        driver.block_on(async move {
            let disks: Vec<Rc<dyn Disk>> =
                hollow[..60].iter().map(|disk| disk.clone() as Rc<dyn Disk>).collect();
            create(&disks, &wide(code, 16 * MIB)).await.expect("created");
            let array = assemble(&rt, &disks).await;
            let stripe = usize::try_from(array.stripe_bytes()).expect("fits");
            let data = Buf::zeroed(stripe).freeze();
            let part = data.slice(0, 24 * MIB);
            let name = |what: &str| format!("{code}, {what}");
            let load = |what: &'static str| {
                let (array, rt, data, part) = (&array, &rt, &data, &part);
                let what = name(what);
                async move {
                    let whole = write_zeros(array, 0, data);
                    within(&format!("{what} full stripe"), 60, 0, whole).await;
                    // Several at a time, across units and unaligned.
                    let tasks: Vec<_> = (0..8)
                        .map(|n| {
                            let (array, part) = (array.clone(), part.clone());
                            let offset = n * (40 << 20) + 4096 * 3;
                            rt.spawn(async move { write_zeros(&array, offset, &part).await })
                        })
                        .collect();
                    let all = async {
                        for task in tasks {
                            task.await;
                        }
                    };
                    within(&format!("{what} part of a stripe"), 60, 0, all).await;
                    let reads = async {
                        for offset in [0, 17 << 20, 100 << 20] {
                            let (result, buf) = array.read(offset, Buf::new(32 * MIB)).await;
                            result.expect("read");
                            assert!(buf.iter().all(|byte| *byte == 0));
                        }
                    };
                    within(&format!("{what} reads"), 60, 32 * MIB, reads).await;
                }
            };
            load("healthy").await;
            let scrub = async { drop(array.scrub(ScrubMode::Check).await.expect("scrubbed")) };
            within(&name("scrub"), 60, 0, scrub).await;
            array.fail(SlotNo(3)).await.expect("failed");
            array.fail(SlotNo(20)).await.expect("failed");
            load("degraded").await;
            let rebuild = async {
                for spare in &hollow[60..] {
                    array.add_spare(spare.clone()).await.expect("added");
                }
                rebuilt(&rt, &array).await;
            };
            within(&name("rebuild"), 60, 0, rebuild).await;
            write_zeros(&array, 4096, &part).await;
        });
        // A crash with dirty regions.
        driver.kill_all();
        let rt = driver.clone();
        driver.block_on(async move {
            let disks: Vec<_> = all.into_iter().map(|disk| disk as Rc<dyn Disk>).collect();
            let mut again = None;
            let recovery = async { again = Some(assemble(&rt, &disks).await) };
            within(&format!("{code}, recovery"), 60, 0, recovery).await;
            let again = again.expect("assembled");
            assert!(again.status().regions.resync > 0, "{code}: nothing is dirty");
            let resync = async {
                while again.status().regions.resync > 0 {
                    rt.sleep(SECOND).await;
                }
            };
            within(&format!("{code}, resync"), 60, 0, resync).await;
        });
    }
}

#[test]
fn recovery_reads_logs_in_pieces_however_large_they_are() {
    const LOG: u64 = 256 << 20;
    let rt = rt();
    let hollow: Vec<Rc<Hollow>> = (0..3).map(|n| Hollow::keeping(&rt, n, KEPT + LOG)).collect();
    let disks: Vec<_> = hollow.into_iter().map(|disk| disk as Rc<dyn Disk>).collect();
    let (members, driver) = (disks.clone(), rt.clone());
    rt.block_on(async move {
        let options = CreateOptions { log_bytes: Some(LOG), ..wide("raid5", 64 << 10) };
        create(&members, &options).await.expect("created");
        let array = assemble(&driver, &members).await;
        for offset in 0..16 {
            write_zeros(&array, offset << 16, &Buf::zeroed(4096).freeze()).await;
        }
    });
    rt.kill_all();
    let driver = rt.clone();
    rt.block_on(async move {
        within("large logs", 3, 0, async { drop(assemble(&driver, &disks).await) }).await;
    });
}

#[test]
fn operations_that_are_cut_into_parts_keep_every_byte() {
    let rt = rt();
    rt.clone().block_on(async move {
        let ram = |n: usize| -> Rc<dyn Disk> {
            Rc::new(RamDisk::new(&format!("disk{n}"), 52 << 20, 512))
        };
        let disks: Vec<_> = (0..5).map(ram).collect();
        create(&disks, &wide("raid6", 16 * MIB)).await.expect("created");
        let array = assemble(&rt, &disks).await;
        let size = usize::try_from(array.size_bytes()).expect("fits");
        let mut model = pattern(0, size, 1);
        write(&array, 0, &model).await;
        let update = async |array: &Array, model: &mut Vec<u8>, version| {
            // The ends are anywhere in units, also within sectors.
            for (from, len) in [(5, 3 * MIB), (15 * MIB - 77, 2 * MIB + 4096), (MIB, 30 * MIB)] {
                let bytes = pattern(from as u64, len, version);
                model[from..from + len].copy_from_slice(&bytes);
                write(array, from as u64, &bytes).await;
            }
        };
        update(&array, &mut model, 2).await;
        assert!(read(&array, 0, size).await == model, "healthy");
        array.fail(SlotNo(0)).await.expect("failed");
        array.fail(SlotNo(3)).await.expect("failed");
        assert!(read(&array, 0, size).await == model, "degraded");
        update(&array, &mut model, 3).await;
        assert!(read(&array, 0, size).await == model, "written while degraded");
        array.add_spare(ram(5)).await.expect("added");
        array.add_spare(ram(6)).await.expect("added");
        rebuilt(&rt, &array).await;
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!((report.mismatches, report.unreadable), (0, 0));
        array.fail(SlotNo(1)).await.expect("failed");
        array.fail(SlotNo(4)).await.expect("failed");
        assert!(read(&array, 0, size).await == model, "from the rebuilt members");
    });
}
