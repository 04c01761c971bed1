//! Simulated disk requests per second of one core: how long the lab's experiments take.
//!
//! Each row is a model under 4 KiB requests, a third of them writes, at a depth, three ways: the
//! bare machine; as a disk in virtual time without contents (executor, timers and all); and with
//! contents. Wanted are half a million a second without contents, a hundred thousand with.

use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use weft_bench::CpuClock;
use weft_disk::{Class, Disk, WriteOpts};
use weft_model::measure::closed_loop;
use weft_model::{Command, Contents, Model, ModelDisk, ModelOptions, catalog::MODELS};
use weft_rt::{Buf, Frozen, Rng, Schedule, virtual_rt};

const PAGE: u64 = 4096;
const REQUESTS: u64 = 200_000;
/// Approximate part of a disk that the papers use.
const SIZE: u64 = 4 << 30;
const ROUNDS: usize = 3;

fn offset(rng: &mut Rng) -> u64 {
    rng.below(SIZE / PAGE) * PAGE
}

fn bare(model: &Model, depth: u32) -> Duration {
    let mut rng = Rng::new(1);
    let next = || {
        let at = offset(&mut rng);
        if rng.chance(33) { Command::write(at, PAGE) } else { Command::read(at, PAGE) }
    };
    let begun = CpuClock::start();
    closed_loop(&mut *model.mechanism(1), depth, (0, REQUESTS), next);
    begun.elapsed()
}

fn disk(model: &Model, depth: u32, contents: Contents) -> Duration {
    let rt = virtual_rt(Schedule::Fifo);
    let options = ModelOptions { size_bytes: Some(SIZE), contents, ..ModelOptions::default() };
    let disk: Rc<dyn Disk> = ModelDisk::open(&rt, model, options);
    let data = Frozen::copy_from(&[7; 4096]);
    let clients = (0..u64::from(depth)).map(|client| {
        let (disk, data) = (disk.clone(), data.clone());
        async move {
            let mut rng = Rng::new(client);
            let mut buf = Buf::new(4096);
            for _ in 0..REQUESTS / u64::from(depth) {
                let at = offset(&mut rng);
                if rng.chance(33) {
                    disk.write(at, data.clone(), WriteOpts::USER).await.expect("written");
                } else {
                    let (result, back) = disk.read(at, buf, Class::User).await;
                    result.expect("read");
                    buf = back;
                }
            }
        }
    });
    let tasks: Vec<_> = clients.map(|client| rt.spawn(client)).collect();
    let begun = CpuClock::start();
    rt.block_on(async move { drop(join_all(tasks).await) });
    begun.elapsed()
}

fn rate(run: impl Fn() -> Duration) -> f64 {
    let best = (0..ROUNDS).map(|_| run()).min().expect("rounds");
    REQUESTS as f64 / best.as_secs_f64() / 1e3
}

fn main() {
    println!("thousands of simulated requests per second of processor time, 4 KiB, 33 % writes");
    println!("{:<14}{:>6}{:>12}{:>12}{:>12}", "model", "depth", "machine", "as a disk", "contents");
    for model in &MODELS {
        for depth in [1, 32] {
            let machine = rate(|| bare(model, depth));
            let empty = rate(|| disk(model, depth, Contents::KeptBelow(0)));
            let full = rate(|| disk(model, depth, Contents::Kept));
            println!("{:<14}{depth:>6}{machine:>12.0}{empty:>12.0}{full:>12.0}", model.name);
        }
    }
}
