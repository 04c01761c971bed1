//! A plug merges adjacent requests and changes nothing else: every client reads what it wrote, the
//! disk receives one request instead of thirty-two, and an error affects only the requests that it
//! concerns.

use std::rc::Rc;

use futures_util::future::join_all;
use weft_disk::{Class, Disk, Fault, FaultDisk, WriteOpts};
use weft_model::plug::Joined;
use weft_model::{Model, ModelDisk, ModelOptions, PluggedDisk};
use weft_rt::{Buf, Frozen, Rng, Schedule, virtual_rt};

const PAGE: u64 = 4096;

fn disk(rt: &weft_rt::Rt) -> Rc<ModelDisk> {
    let options = ModelOptions { size_bytes: Some(16 << 20), ..ModelOptions::default() };
    ModelDisk::open(rt, Model::find("wd10eals").expect("a model"), options)
}

fn page(tag: u64) -> Frozen {
    let bytes: Vec<u8> = tag.to_le_bytes().repeat(512);
    Frozen::copy_from(&bytes)
}

#[test]
fn neighbours_of_one_moment_become_one_request() {
    let rt = virtual_rt(Schedule::Fifo);
    let model = disk(&rt);
    let plug = Rc::new(PluggedDisk::new(&rt, model.clone()));
    let below = model.clone();
    let (clients, pages) = (plug.clone(), 80_u64);
    rt.block_on(async move {
        // In descending order, with a durable write among them.
        let write = |n: u64| {
            let opts = if n == 40 { WriteOpts::USER_FUA } else { WriteOpts::USER };
            clients.write(n * PAGE, page(n), opts)
        };
        for written in join_all((0..pages).rev().map(write)).await {
            written.expect("written");
        }
        // 0 to 31, 32 to 39, 40, 41 to 72, 73 to 79.
        assert_eq!((below.stats().writes, clients.joined().writes), (5, 75));
        // The two classes are not merged with each other.
        let read = |n: u64| {
            let class = if n < 20 { Class::User } else { Class::Maintenance };
            clients.read(n * PAGE, Buf::new(4096), class)
        };
        for (n, (result, buf)) in (0..).zip(join_all((0..40).map(read)).await) {
            result.expect("read");
            assert!(buf[..] == page(n)[..], "page {n}");
        }
        assert_eq!((below.stats().reads, below.stats().read_bytes), (2, 40 * PAGE));
        // A request that comes later is not merged with one in flight.
        clients.read(0, Buf::new(4096), Class::User).await.0.expect("read");
        clients.read(PAGE, Buf::new(4096), Class::User).await.0.expect("read");
        assert_eq!(below.stats().reads, 4);
    });
    assert_eq!(plug.joined(), Joined { reads: 38, writes: 75 });
}

#[test]
fn clients_read_what_they_wrote() {
    let rt = virtual_rt(Schedule::Fifo);
    let plug = Rc::new(PluggedDisk::new(&rt, disk(&rt)));
    let disk = plug.clone();
    rt.block_on(async move {
        let clients = (0..16_u64).map(|client| {
            let disk = disk.clone();
            async move {
                let mut rng = Rng::new(client);
                let mut own = [u64::MAX; 64];
                for step in 0..200_u64 {
                    // Adjacent pages belong to different clients, and all clients start at the same
                    // place.
                    let slot = if step == 0 { 0 } else { rng.index(own.len()) };
                    let offset = (slot as u64 * 16 + client) * PAGE;
                    if own[slot] == u64::MAX || rng.chance(50) {
                        own[slot] = client << 32 | step;
                        let opts = WriteOpts { class: Class::User, fua: rng.chance(10) };
                        disk.write(offset, page(own[slot]), opts).await.expect("written");
                    } else {
                        let (result, buf) = disk.read(offset, Buf::new(4096), Class::User).await;
                        result.expect("read");
                        assert!(buf[..] == page(own[slot])[..], "client {client}");
                    }
                }
            }
        });
        join_all(clients.collect::<Vec<_>>()).await;
    });
    assert_ne!(plug.joined(), Joined::default());
}

#[test]
fn an_error_hits_only_whom_it_concerns() {
    let rt = virtual_rt(Schedule::Fifo);
    let (faulty, faults) = FaultDisk::new(&rt, disk(&rt));
    let plug = PluggedDisk::new(&rt, Rc::new(faulty));
    rt.block_on(async move {
        join_all((0..8).map(|n| plug.write(n * PAGE, page(n), WriteOpts::USER))).await;
        faults.inject(Fault::Medium(5 * PAGE..6 * PAGE));
        let reads =
            join_all((0..8).map(|n| plug.read(n * PAGE, Buf::new(4096), Class::User))).await;
        for (n, (result, buf)) in (0..).zip(reads) {
            assert_eq!(result.is_err(), n == 5, "page {n}");
            assert!(n == 5 || buf[..] == page(n)[..], "page {n}");
        }
    });
}
