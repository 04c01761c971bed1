//! A disk of your own as a member of an array: thin disks in memory, which hold only what was
//! written. Three disks of 64 GiB make a RAID-5 in some 50 MiB of memory.
//!
//! `cargo run -p weft-array --example custom_disk`. Time is virtual here, as in the tests.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::rc::Rc;

use weft_array::{Array, AssembleOptions, Consistency, CreateOptions, create};
use weft_code::{CodeSpec, SlotNo};
use weft_disk::{Class, Disk, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts};
use weft_rt::{Buf, Frozen, Schedule, virtual_rt};

const SECTOR: usize = 4096;

/// A disk in memory. Sectors that are not in the map read as zeros.
struct ThinDisk {
    info: DiskInfo,
    sectors: RefCell<BTreeMap<u64, Box<[u8]>>>,
}

impl ThinDisk {
    fn new(name: String, size_bytes: u64) -> Self {
        let info = DiskInfo {
            name,
            size_bytes,
            sector_bytes: 4096,
            fast_zeroes: true,
            // What was acknowledged is kept, so a flush has nothing to do.
            volatile_cache: false,
            rotational: false,
        };
        Self { info, sectors: RefCell::default() }
    }
}

/// The number of the sector at `offset`.
fn sector(offset: u64) -> u64 {
    offset / SECTOR as u64
}

impl Disk for ThinDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf, _: Class) -> ReadFuture<'_> {
        Box::pin(async move {
            let inside = self.info.check(DiskOp::Read, offset, buf.len() as u64);
            if inside.is_ok() {
                let sectors = self.sectors.borrow();
                for (number, part) in (sector(offset)..).zip(buf.chunks_mut(SECTOR)) {
                    match sectors.get(&number) {
                        Some(bytes) => part.copy_from_slice(bytes),
                        None => part.fill(0),
                    }
                }
            }
            // The buffer goes back to its owner however the read ended.
            (inside, buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            self.info.check(DiskOp::Write, offset, data.len() as u64)?;
            let written = (sector(offset)..).zip(data.chunks(SECTOR).map(Box::from));
            self.sectors.borrow_mut().extend(written);
            Ok(())
        })
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: WriteOpts) -> DoneFuture<'_> {
        Box::pin(async move {
            self.info.check(DiskOp::WriteZeroes, offset, len)?;
            let zeroed = sector(offset)..sector(offset + len);
            self.sectors.borrow_mut().retain(|number, _| !zeroed.contains(number));
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        self.write_zeroes(offset, len, WriteOpts::USER)
    }
}

/// Makes the array and reads through the loss of a member.
///
/// # Errors
/// If a step fails.
pub fn main() -> Result<(), Box<dyn Error>> {
    let rt = virtual_rt(Schedule::Fifo);
    rt.clone().block_on(async move {
        let thin: Vec<_> =
            (0..3).map(|n| Rc::new(ThinDisk::new(format!("thin{n}"), 64 << 30))).collect();
        let disks: Vec<Rc<dyn Disk>> =
            thin.iter().map(|disk| disk.clone() as Rc<dyn Disk>).collect();
        let code = CodeSpec::Raid5;
        let options = CreateOptions {
            name: "thin".into(),
            code,
            algorithm: None,
            unit_bytes: 64 << 10,
            consistency: Consistency::default_for(code),
            region_bytes: None,
            log_bytes: None,
            head_room_bytes: None,
            spares: 0,
            force: false,
            id: [1; 16],
            now_unix_s: 0,
        };
        create(&disks, &options).await?;
        let array = Array::assemble(&rt, disks, AssembleOptions::default()).await?;

        let data = Frozen::copy_from(&[7; 64 << 10]);
        array.write(100 << 30, data.clone(), true).await?;
        array.fail(SlotNo(1)).await?;
        let (result, read) = array.read(100 << 30, Buf::new(64 << 10)).await;
        result?;
        assert_eq!(read[..], data[..], "read without the second member");

        let sectors: usize = thin.iter().map(|disk| disk.sectors.borrow().len()).sum();
        println!(
            "{} GiB of array in {} MiB of memory",
            array.size_bytes() >> 30,
            (sectors * SECTOR) >> 20
        );
        array.stop().await?;
        Ok(())
    })
}
