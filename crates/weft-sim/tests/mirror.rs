//! The simulator finds well-known faults: it finds each fault of a naive mirror within a few seeds,
//! and the same mirror without faults passes all of them.

use std::cell::Cell;
use std::rc::Rc;

use weft_disk::{Class, Disk, DoneFuture, ReadFuture, Volume, VolumeError, VolumeInfo, WriteOpts};
use weft_rt::{Buf, Frozen, Rng, Rt};
use weft_sim::oracle::Oracle;
use weft_sim::workload::{ClientHarness, Load};
use weft_sim::{Platter, SimDisk, World, sim_rt};

const SIZE: u64 = 256 * 1024;

/// The fault of the mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The copies differ after a crash, and reads use either.
    NoResync,
    /// A flush reaches only one copy.
    HalfFlush,
    /// FUA is dropped.
    NoFua,
    /// A write is acknowledged when one copy has it.
    EarlyAck,
}

struct Mirror {
    rt: Rt,
    disks: [Rc<SimDisk>; 2],
    fault: Fault,
    turn: Cell<usize>,
}

impl Mirror {
    /// Opens the copies and copies the first over the second, except with [`Fault::NoResync`].
    async fn open(world: &World, platters: &[Platter; 2], fault: Fault) -> Rc<Self> {
        let disks = [SimDisk::open(world, &platters[0]), SimDisk::open(world, &platters[1])];
        if fault != Fault::NoResync {
            for at in (0..SIZE).step_by(64 * 1024) {
                let (result, buf) =
                    disks[0].read(at, Buf::new(64 * 1024), Class::Maintenance).await;
                result.expect("reads");
                let written = disks[1].write(at, buf.freeze(), WriteOpts::MAINTENANCE).await;
                written.expect("writes");
            }
            disks[1].flush().await.expect("flushes");
        }
        Rc::new(Self { rt: world.rt().clone(), disks, fault, turn: Cell::new(0) })
    }
}

impl Volume for Mirror {
    fn info(&self) -> VolumeInfo {
        VolumeInfo { align_bytes: 512, block_bytes: 512, fast_zeroes: false }
    }

    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn read(&self, offset: u64, buf: Buf) -> ReadFuture<'_, VolumeError> {
        self.turn.set(1 - self.turn.get());
        Box::pin(async move {
            // Only the first copy is certain to have the last acknowledged write while another
            // write to the same range is in flight.
            let from = if self.fault == Fault::NoResync { self.turn.get() } else { 0 };
            let (result, buf) = self.disks[from].read(offset, buf, Class::User).await;
            (result.map_err(Into::into), buf)
        })
    }

    fn write(&self, offset: u64, data: Frozen, fua: bool) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move {
            let opts = WriteOpts { class: Class::User, fua: fua && self.fault != Fault::NoFua };
            if self.fault == Fault::EarlyAck {
                let (disk, copy) = (self.disks[0].clone(), data.clone());
                self.rt.spawn(async move { disk.write(offset, copy, opts).await });
                return Ok(self.disks[1].write(offset, data, opts).await?);
            }
            let first = self.disks[0].write(offset, data.clone(), opts);
            let second = self.disks[1].write(offset, data, opts);
            let (first, second) = futures_util::future::join(first, second).await;
            Ok(first.and(second)?)
        })
    }

    fn flush(&self) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move {
            if self.fault != Fault::HalfFlush {
                self.disks[0].flush().await?;
            }
            Ok(self.disks[1].flush().await?)
        })
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        _: bool,
    ) -> DoneFuture<'_, VolumeError> {
        let zeros = Buf::zeroed(usize::try_from(len).expect("fits")).freeze();
        self.write(offset, zeros, fua)
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_, VolumeError> {
        Box::pin(async move {
            self.disks[0].discard(offset, len).await?;
            Ok(self.disks[1].discard(offset, len).await?)
        })
    }
}

/// Three crashes under load. Returns the violation, if any, and the hash of the trace.
fn run(seed: u64, fault: Fault) -> (Option<String>, u64) {
    let rt = sim_rt(seed, 1_000_000);
    let world = World::new(&rt, seed);
    let platters = [0, 1].map(|n| Platter::new(n, SIZE, 512, world.rng(10 + n as u64)));
    let harness = ClientHarness::new(&world, Oracle::new(seed, SIZE, 512));
    let load = Load {
        clients: 4,
        requests: 400,
        reads_percent: 50,
        flushes_percent: 5,
        fua_percent: 10,
        zeroes_percent: 10,
        cells_max: 32,
        stripe_cells: 16,
        pause_ns_max: 2_000_000,
        abandon_percent: 0,
        empty_percent: 0,
        status_percent: 5,
        whole_after: u64::MAX,
        other_stripe_cells: 16,
    };
    let mut rng = Rng::new(seed);
    for life in 0..3 {
        world.restore();
        world.cut_at(Some(world.steps() + rng.within(50, 1500)));
        let (harness2, platters2, load, clients) =
            (harness.clone(), platters.clone(), load.clone(), world.rng(life));
        let (world2, rt2) = (world.clone(), rt.clone());
        rt.block_on(async move {
            let work = async {
                let mirror: Rc<dyn Volume> = Mirror::open(&world2, &platters2, fault).await;
                harness2.read_all(&*mirror, 99).await;
                harness2.read_all(&*mirror, 99).await;
                for client in harness2.start(&mirror, &load, &clients) {
                    client.await;
                }
                rt2.sleep(1).await;
            };
            world2.while_on(work).await
        });
        rt.kill_all();
        if let Some(violation) = harness.violation.take() {
            return (Some(violation.text), world.trace_hash());
        }
        platters.iter().for_each(Platter::power_cut);
        harness.oracle.borrow_mut().power_cut();
    }
    (None, world.trace_hash())
}

#[test]
fn a_correct_mirror_passes() {
    for seed in 0..60 {
        let (violation, _) = run(seed, Fault::None);
        assert_eq!(violation, None, "seed {seed}");
    }
}

#[test]
fn every_fault_is_found() {
    for fault in [Fault::NoResync, Fault::HalfFlush, Fault::NoFua, Fault::EarlyAck] {
        let found = (0..30).find(|seed| run(*seed, fault).0.is_some());
        assert!(found.is_some(), "{fault:?} was not found in 30 seeds");
    }
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 0..10 {
        assert_eq!(run(seed, Fault::NoResync), run(seed, Fault::NoResync));
    }
}
