//! A simulated disk keeps the promises of the `Disk` trait and no others.

use std::collections::BTreeSet;
use std::rc::Rc;

use weft_disk::{Class, Disk, DiskErrorKind, WriteOpts};
use weft_model::{Model, ModelDisk, ModelOptions};
use weft_rt::{Buf, Frozen, Rt, Schedule, virtual_rt};
use weft_sim::{Platter, SimDisk, World, sim_rt};

const SIZE: u64 = 64 * 1024;

fn setup(seed: u64) -> (Rt, World, Platter, Rc<SimDisk>) {
    let rt = sim_rt(seed, 100_000);
    let world = World::new(&rt, seed);
    let platter = Platter::new(0, SIZE, 512, world.rng(1));
    let disk = SimDisk::open(&world, &platter);
    (rt, world, platter, disk)
}

fn bytes(value: u8, len: usize) -> Frozen {
    Frozen::copy_from(&vec![value; len])
}

/// The first byte of each sector; checks that no sector is torn.
fn sectors(platter: &Platter, count: usize) -> Vec<u8> {
    let mut image = vec![0; count * 512];
    platter.peek(0, &mut image);
    let first = |sector: &[u8]| {
        assert!(sector.iter().all(|b| *b == sector[0]), "a torn sector");
        sector[0]
    };
    image.chunks(512).map(first).collect()
}

#[test]
fn a_full_disk_has_room_where_something_was_written_even_zeros() {
    let (rt, _, platter, disk) = setup(3);
    rt.block_on(async move {
        let write = |offset, value| disk.write(offset, bytes(value, 4096), WriteOpts::USER);
        write(8192, 0).await.expect("there is room");
        platter.faults(|f| f.full = true);
        write(8192, 1).await.expect("it was reserved by zeros");
        let refused = |result: Result<(), weft_disk::DiskError>| {
            assert!(result.expect_err("it is full").is_no_space());
        };
        refused(write(16_384, 1).await);
        platter.faults(|f| f.copies_on_write = true);
        refused(write(8192, 2).await);
    });
}

/// So the versions of its sectors that a power cut may leave take no more memory than that.
#[test]
fn a_full_cache_is_written_out() {
    let (rt, _, platter, disk) = setup(4);
    rt.block_on(async move {
        let mut at_risk = Vec::new();
        for value in 0..200 {
            let written = disk.write(0, bytes(value, 65_536), WriteOpts::USER).await;
            written.expect("writes");
            at_risk.push(platter.sectors_at_risk());
        }
        // A write may be in the cache in part before it completes, so that it counts twice.
        assert!(at_risk[..100].iter().all(|sectors| *sectors == 128), "6 MiB are at risk");
        assert!(at_risk[100..128].contains(&0), "it was written out");
    });
}

#[test]
fn a_power_cut_keeps_what_was_flushed_and_any_of_the_rest() {
    let mut seen: [BTreeSet<u8>; 3] = Default::default();
    for seed in 0..200 {
        let (rt, _, platter, disk) = setup(seed);
        rt.block_on(async move {
            disk.write(0, bytes(1, 1024), WriteOpts::USER).await.expect("writes");
            disk.flush().await.expect("flushes");
            disk.write(512, bytes(2, 1024), WriteOpts::USER).await.expect("writes");
            disk.write(512, bytes(3, 512), WriteOpts::USER_FUA).await.expect("writes");
            disk.write(512, bytes(4, 512), WriteOpts::USER).await.expect("writes");
        });
        assert_eq!(sectors(&platter, 3), [1, 4, 2], "before a cut the newest is read");
        platter.power_cut();
        for (seen, value) in seen.iter_mut().zip(sectors(&platter, 3)) {
            seen.insert(value);
        }
        assert_eq!(platter.sectors_at_risk(), 0);
    }
    assert_eq!(seen, [BTreeSet::from([1]), BTreeSet::from([3, 4]), BTreeSet::from([0, 2])]);
}

#[test]
fn a_flush_covers_only_what_had_completed_when_it_began() {
    let mut lost = 0;
    for seed in 0..100 {
        let (rt, _, platter, disk) = setup(seed);
        rt.block_on(async move {
            let write = disk.write(0, bytes(1, 512), WriteOpts::USER);
            let (_, flushed) = futures_util::future::join(write, disk.flush()).await;
            flushed.expect("flushes");
        });
        platter.power_cut();
        lost += usize::from(sectors(&platter, 1) == [0]);
    }
    assert!(lost > 10, "{lost}");
}

#[test]
fn a_write_in_flight_at_the_cut_is_torn_at_sectors() {
    let mut images = BTreeSet::new();
    for seed in 0..2000 {
        let (rt, world, platter, disk) = setup(seed);
        world.cut_at(Some(2));
        let world2 = world.clone();
        let done = rt.block_on(async move {
            world2
                .while_on(async move { disk.write(0, bytes(1, 2048), WriteOpts::USER).await })
                .await
        });
        assert!(done.is_none(), "the power went before the write completed");
        rt.kill_all();
        platter.power_cut();
        images.insert(sectors(&platter, 4));
    }
    assert_eq!(images.len(), 16, "every subset of four sectors");
}

#[test]
fn a_killed_program_leaves_the_cache_alone() {
    for seed in 0..50 {
        let (rt, _, platter, disk) = setup(seed);
        rt.block_on(async move {
            disk.write(0, bytes(1, 512), WriteOpts::USER).await.expect("writes");
        });
        platter.program_killed();
        assert_eq!(sectors(&platter, 1), [1]);
        assert_eq!(platter.sectors_at_risk(), 1);
    }
}

#[test]
fn faults_do_what_they_say() {
    let (rt, _, platter, disk) = setup(5);
    platter.faults(|f| f.unreadable.extend([3, 9]));
    let platter2 = platter.clone();
    rt.block_on(async move {
        let (result, _) = disk.read(1024, Buf::new(1024), Class::User).await;
        assert_eq!(result.expect_err("sector 3").kind, DiskErrorKind::Medium);
        disk.write(1536, bytes(1, 512), WriteOpts::USER).await.expect("writes");
        disk.read(1024, Buf::new(1024), Class::User).await.0.expect("written, so readable again");

        platter2.faults(|f| f.lose_write_in = Some(0..512));
        disk.write(0, bytes(7, 512), WriteOpts::USER_FUA).await.expect("acknowledged");
        platter2.faults(|f| f.misdirect_write_in = Some((0..512, 512)));
        disk.write(0, bytes(8, 512), WriteOpts::USER_FUA).await.expect("acknowledged");
        assert_eq!(sectors(&platter2, 4), [0, 8, 0, 1]);
        platter2.rot(1536, 512);

        platter2.faults(|f| f.full = true);
        disk.write(0, bytes(1, 512), WriteOpts::USER).await.expect("has its room already");
        let error = disk.write(8192, bytes(1, 512), WriteOpts::USER).await.expect_err("is full");
        assert_eq!(error.kind, DiskErrorKind::NoSpace);

        platter2.faults(|f| f.gone_after_ops = Some(1));
        disk.flush().await.expect("one more");
        assert_eq!(disk.flush().await.expect_err("gone").kind, DiskErrorKind::Gone);
    });
    let mut rotten = [0; 512];
    platter.peek(1536, &mut rotten);
    assert!(rotten.iter().all(|b| *b != 1));
}

#[test]
#[should_panic(expected = "breaks the contract")]
fn a_misaligned_request_is_a_bug_of_the_caller() {
    let (rt, _, _, disk) = setup(0);
    rt.block_on(async move { disk.read(100, Buf::new(512), Class::User).await.0.is_ok() });
}

/// With a product's model a disk takes as long as the product, to the nanosecond, and a power cut
/// still loses unflushed data.
#[test]
fn with_a_model_it_has_the_products_times_and_still_loses_power() {
    let model = Model::find("wd10eals").expect("a model");
    let size = 64 << 20;
    let work = |disk: Rc<dyn Disk>| async move {
        for n in 0..40_u64 {
            let offset = n * 7919 % 16_000 * 4096;
            if n % 3 == 0 {
                disk.write(offset, bytes(7, 4096), WriteOpts::USER).await.expect("written");
            } else {
                disk.read(offset, Buf::new(4096), Class::User).await.0.expect("read");
            }
        }
        disk.flush().await.expect("flushed");
    };
    let rt = virtual_rt(Schedule::Fifo);
    let options = ModelOptions { size_bytes: Some(size), ..ModelOptions::default() };
    rt.block_on(work(ModelDisk::open(&rt, model, options)));
    let product = rt.now();

    let (mut kept, cuts) = (0, 40);
    for seed in 0..cuts {
        let rt = virtual_rt(Schedule::Fifo);
        let world = World::new(&rt, seed);
        let platter = Platter::new(0, size, 512, world.rng(1));
        platter.set_model(*model);
        let disk = SimDisk::open(&world, &platter);
        rt.block_on(work(disk.clone()));
        assert_eq!(rt.now(), product, "the times are not the product's");
        rt.block_on(async move {
            disk.write(0, bytes(1, 512), WriteOpts::USER).await.expect("written");
            disk.flush().await.expect("flushed");
            disk.write(512, bytes(2, 512), WriteOpts::USER).await.expect("written");
        });
        platter.power_cut();
        let found = sectors(&platter, 2);
        assert_eq!(found[0], 1, "what was flushed is gone");
        kept += u64::from(found[1] == 2);
    }
    assert!(0 < kept && kept < cuts, "{kept}");
}
