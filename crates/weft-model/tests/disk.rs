//! A modelled disk keeps its contents, its order and its counters.

use std::cell::RefCell;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_disk::{Class, Disk, DiskErrorKind, RamDisk, WriteOpts};
use weft_model::catalog::MODELS;
use weft_model::{
    Command, Contents, DiskStats, Done, Kind, Mechanism, Model, ModelDisk, ModelOptions, Verb,
};
use weft_rt::{Buf, Frozen, MILLISECOND, Nanos, Rng, Rt, Schedule, virtual_rt};

const PAGE: u64 = 4096;

fn model(name: &str) -> &'static Model {
    Model::find(name).expect("a model")
}

fn small(contents: Contents) -> ModelOptions {
    ModelOptions { size_bytes: Some(64 << 20), contents, seed: 3, ..ModelOptions::default() }
}

fn page(tag: u64) -> Vec<u8> {
    let mut rng = Rng::new(tag);
    (0..PAGE / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// Eight clients write, zero, flush and read back their own ranges. Returns the time.
fn exercise(rt: &Rt, disk: Rc<dyn Disk>) -> Nanos {
    let clients = (0..8_u64).map(|client| {
        let disk = disk.clone();
        async move {
            let mut rng = Rng::new(client);
            let mut own = vec![vec![0; 4096]; 64];
            for step in 0..300_u64 {
                let slot = rng.index(own.len());
                let offset = (slot as u64 * 100 + client * 12) * PAGE;
                match rng.below(10) {
                    0..4 => {
                        own[slot] = page(client << 32 | step);
                        let opts =
                            if step % 7 == 0 { WriteOpts::USER_FUA } else { WriteOpts::USER };
                        let data = Frozen::copy_from(&own[slot]);
                        disk.write(offset, data, opts).await.expect("written");
                    }
                    4 => {
                        own[slot] = vec![0; 4096];
                        let done = disk.write_zeroes(offset, PAGE, WriteOpts::USER).await;
                        done.expect("zeroed");
                    }
                    5 => disk.flush().await.expect("flushed"),
                    _ => {
                        let (result, buf) = disk.read(offset, Buf::new(4096), Class::User).await;
                        result.expect("read");
                        assert!(
                            buf[..] == own[slot][..],
                            "client {client} read what was not its own"
                        );
                    }
                }
            }
        }
    });
    let clients: Vec<_> = clients.collect();
    rt.block_on(async move { drop(join_all(clients).await) });
    rt.now()
}

#[test]
fn every_model_gives_back_what_was_written() {
    for model in &MODELS {
        let rt = virtual_rt(Schedule::Fifo);
        exercise(&rt, ModelDisk::open(&rt, model, small(Contents::Kept)));
        let rt = virtual_rt(Schedule::Fifo);
        let below = Rc::new(RamDisk::new("ram", 32 << 20, model.sector_bytes));
        let disk = ModelDisk::open(&rt, model, small(Contents::On(below)));
        assert_eq!(disk.info().size_bytes, 32 << 20);
        exercise(&rt, disk);
    }
}

#[test]
fn the_same_requests_take_the_same_time_to_the_nanosecond() {
    for model in &MODELS {
        let run = || {
            let rt = virtual_rt(Schedule::Fifo);
            let disk = ModelDisk::open(&rt, model, small(Contents::Kept));
            (exercise(&rt, disk.clone()), disk.stats())
        };
        let (first, again): ((Nanos, DiskStats), _) = (run(), run());
        assert_eq!(first, again, "{}", model.name);
        assert!(first.0 > 0);
    }
}

#[test]
fn what_is_not_kept_reads_as_zeros() {
    let rt = virtual_rt(Schedule::Fifo);
    let disk = ModelDisk::open(&rt, model("wd10eals"), small(Contents::KeptBelow(PAGE + 512)));
    let read = {
        let disk = disk.clone();
        rt.block_on(async move {
            let data = Frozen::copy_from(&[7; 8192]);
            disk.write(0, data, WriteOpts::USER).await.expect("written");
            let (result, buf) = disk.read(0, Buf::new(8192), Class::User).await;
            result.expect("read");
            buf
        })
    };
    assert!(read[..4608].iter().all(|b| *b == 7) && read[4608..].iter().all(|b| *b == 0));
    let mut peeked = [1; 16];
    disk.peek(0, &mut peeked);
    assert_eq!((peeked, disk.stored_bytes()), ([7; 16], 8192));
}

#[test]
fn requests_outside_are_refused_and_take_no_time() {
    let rt = virtual_rt(Schedule::Fifo);
    let disk = ModelDisk::open(&rt, model("exos-x20"), small(Contents::Kept));
    let requests = disk.clone();
    rt.block_on(async move {
        let disk = requests;
        for (offset, len) in [(64 << 20, 4096), (512, 4096), (4096, 512), (u64::MAX - 4095, 4096)] {
            let (result, _) = disk.read(offset, Buf::new(len), Class::User).await;
            assert_eq!(result.expect_err("refused").kind, DiskErrorKind::Invalid);
            let data = Frozen::copy_from(&vec![0; len]);
            let error = disk.write(offset, data, WriteOpts::USER).await.expect_err("refused");
            assert_eq!(error.kind, DiskErrorKind::Invalid);
        }
    });
    assert_eq!((rt.now(), disk.stats().requests()), (0, 0));
}

/// What callers measure matches the disk's counters, and utilisation is the fraction of time in
/// which the disk was busy.
#[test]
fn the_accounts_are_those_of_the_callers() {
    for model in &MODELS {
        let rt = virtual_rt(Schedule::Fifo);
        let disk = ModelDisk::open(&rt, model, small(Contents::Kept));
        let seen = Rc::new(RefCell::new((0_u64, 0_u64)));
        let clients = (0..4_u64).map(|client| {
            let (rt, disk, seen) = (rt.clone(), disk.clone(), seen.clone());
            async move {
                let mut rng = Rng::new(client);
                for _ in 0..100 {
                    let begun = rt.now();
                    let offset = rng.below(16_000) * PAGE;
                    if client == 0 {
                        let data = Frozen::copy_from(&[1; 4096]);
                        disk.write(offset, data, WriteOpts::USER).await.expect("written");
                        seen.borrow_mut().1 += rt.now() - begun;
                    } else {
                        disk.read(offset, Buf::new(4096), Class::User).await.0.expect("read");
                        seen.borrow_mut().0 += rt.now() - begun;
                    }
                }
            }
        });
        let clients: Vec<_> = clients.collect();
        rt.block_on(async move { drop(join_all(clients).await) });
        let stats = disk.stats();
        let (reads, writes) = *seen.borrow();
        assert_eq!((stats.read_ns, stats.write_ns), (reads, writes), "{}", model.name);
        assert_eq!((stats.reads, stats.writes, stats.in_flight), (300, 100, 0));
        assert_eq!((stats.read_bytes, stats.written_bytes), (300 * PAGE, 100 * PAGE));
        assert_eq!(stats.depth_ns, u128::from(reads + writes));
        assert_eq!((stats.busy_ns, stats.elapsed_ns, stats.late_ns), (rt.now(), rt.now(), 0));
        // As long again without requests: half utilised.
        let (rest, clock) = (rt.now(), rt.clone());
        rt.block_on(async move { clock.sleep(rest).await });
        assert!((disk.stats().utilisation() - 0.5).abs() < 1e-9);
        disk.reset_stats();
        let work = disk.stats().work;
        assert_eq!(disk.stats(), DiskStats { work, ..DiskStats::default() });
    }
}

#[test]
fn a_request_that_nobody_waits_for_is_carried_out() {
    let rt = virtual_rt(Schedule::Fifo);
    let disk = ModelDisk::open(&rt, model("st3300831as"), small(Contents::Kept));
    let (requests, clock) = (disk.clone(), rt.clone());
    rt.block_on(async move {
        let read = requests.read(40 << 20, Buf::new(4096), Class::User);
        let soon = clock.sleep(MILLISECOND / 10);
        let (read, soon) = (std::pin::pin!(read), std::pin::pin!(soon));
        drop(futures_util::future::select(read, soon).await);
        // The disk serves the first, and the second waits.
        requests.read(0, Buf::new(4096), Class::User).await.0.expect("read");
    });
    assert_eq!((disk.stats().reads, disk.stats().in_flight), (2, 0));
}

fn drain(machine: &mut dyn Mechanism) -> Vec<Done> {
    let mut done = Vec::new();
    while let Some(event) = machine.next_event() {
        machine.advance(event, &mut done);
    }
    done
}

fn hdds() -> impl Iterator<Item = &'static Model> {
    MODELS.iter().filter(|model| matches!(model.kind, Kind::Hdd(_)))
}

/// Every command completes once, in order of time, and not before its arrival.
#[test]
fn whatever_arrives_leaves_once() {
    for model in &MODELS {
        for write_cache in [false, true] {
            let mut machine = model.with_write_cache(write_cache).mechanism(1);
            let mut rng = Rng::new(11);
            let (mut now, mut done, mut arrivals) = (0, Vec::new(), Vec::new());
            for tag in 0..20_000_u64 {
                now += rng.below(8) * rng.below(2 * MILLISECOND);
                let verb =
                    *rng.pick(&[Verb::Read, Verb::Read, Verb::Write, Verb::Write, Verb::Zero]);
                let verb = if rng.chance(1) { Verb::Flush } else { verb };
                let offset = rng.below(model.capacity_bytes / PAGE - 1000) * PAGE;
                // Half of them near each other, to hit caches and streams.
                let offset = if rng.chance(50) { rng.below(500) * PAGE } else { offset };
                let len = if rng.chance(3) { 3 << 20 } else { (1 + rng.below(32)) * PAGE };
                let len = if verb == Verb::Flush { 0 } else { len };
                let command = Command { verb, offset, len, fua: rng.chance(5) };
                machine.advance(now, &mut done);
                machine.submit(now, tag, command);
                arrivals.push(now);
            }
            done.extend(drain(&mut *machine));
            assert!(done.windows(2).all(|pair| pair[0].at <= pair[1].at), "{}", model.name);
            let mut tags: Vec<u64> = done.iter().map(|done| done.tag).collect();
            tags.sort_unstable();
            assert!(tags.iter().copied().eq(0..20_000), "{}: {} left", model.name, tags.len());
            for Done { at, tag } in done {
                let arrived = arrivals[usize::try_from(tag).expect("small")];
                assert!(at > arrived, "{}: {tag} took no time", model.name);
            }
        }
    }
}

/// The result does not depend on how often a model is advanced.
#[test]
fn looking_changes_nothing() {
    for model in &MODELS {
        let run = |looks: bool| {
            let (mut machine, mut rng) = (model.mechanism(1), Rng::new(2));
            let (mut now, mut done) = (0, Vec::new());
            for tag in 0..500_u64 {
                let then = now + rng.below(3 * MILLISECOND);
                while looks && now + 50_000 < then {
                    now += 50_000;
                    machine.advance(now, &mut done);
                }
                now = then;
                machine.advance(now, &mut done);
                let offset = rng.below(100_000) * PAGE;
                let write = rng.chance(30);
                let command =
                    if write { Command::write(offset, PAGE) } else { Command::read(offset, PAGE) };
                machine.submit(now, tag, command);
            }
            done.extend(drain(&mut *machine));
            done
        };
        assert_eq!(run(false), run(true), "{}", model.name);
    }
}

/// A disk serves a full queue faster than single commands, and still no command waits for ever: one
/// at the far end is served although nearer ones keep arriving.
#[test]
fn a_hard_disk_orders_its_queue_and_starves_nobody() {
    for model in hdds() {
        let mut machine = model.mechanism(1);
        let mut rng = Rng::new(4);
        let near = 1 << 30;
        let far = model.capacity_bytes / PAGE * PAGE - PAGE;
        machine.submit(0, 0, Command::read(0, PAGE));
        machine.submit(0, 1, Command::read(far, PAGE));
        let (mut now, mut done, mut tag) = (0, Vec::new(), 2);
        let served = loop {
            while tag < 32 {
                machine.submit(now, tag, Command::read(rng.below(near / PAGE) * PAGE, PAGE));
                tag += 1;
            }
            now = machine.next_event().expect("there is work");
            machine.advance(now, &mut done);
            if let Some(served) = done.iter().find(|done| done.tag == 1) {
                break served.at;
            }
            for _ in done.drain(..) {
                machine.submit(now, tag, Command::read(rng.below(near / PAGE) * PAGE, PAGE));
                tag += 1;
            }
            assert!(now < 10_000 * MILLISECOND, "{} starves the far one", model.name);
        };
        let Kind::Hdd(spec) = model.kind else { unreachable!() };
        assert!(served as f64 > spec.age_limit_ms * 1e6 * 0.5, "{} has no order", model.name);
        assert!((served as f64) < spec.age_limit_ms * 1e6 + 100e6, "{}: {served} ns", model.name);
    }
}

/// A write cache acknowledges at once, and the flush takes the time; without it every write does.
#[test]
fn a_write_cache_defers_the_work() {
    for model in hdds() {
        let run = |cache: bool| {
            let mut machine = model.with_write_cache(cache).mechanism(1);
            let mut rng = Rng::new(9);
            for tag in 0..20 {
                let offset = rng.below(model.capacity_bytes / PAGE) * PAGE;
                machine.submit(0, tag, Command::write(offset, PAGE));
            }
            machine.submit(0, 20, Command::FLUSH);
            let done = drain(&mut *machine);
            (done[19].at, done[20].at, done[20].tag, machine.work().accesses)
        };
        let (acknowledged, flushed, last, accesses) = run(true);
        assert!(acknowledged < 10 * MILLISECOND, "{}: {acknowledged} ns", model.name);
        assert!(flushed > 40 * MILLISECOND, "{}: {flushed} ns", model.name);
        assert_eq!((last, accesses), (20, 20));
        let (written, flushed, last, accesses) = run(false);
        assert!(written > 40 * MILLISECOND, "{}: {written} ns", model.name);
        assert!(flushed - written < 2 * MILLISECOND, "{}", model.name);
        assert_eq!((last, accesses), (20, 20));
    }
}

/// Small sequential writes become few long accesses; small sequential reads hit the cache.
#[test]
fn neighbours_cost_one_access() {
    for model in hdds() {
        let mut machine = model.with_write_cache(true).mechanism(1);
        let mut done = Vec::new();
        let mut now = 0;
        for tag in 0..512 {
            machine.submit(now, tag, Command::read(tag * PAGE, PAGE));
            now = machine.next_event().expect("busy");
            machine.advance(now, &mut done);
            while done.len() <= usize::try_from(tag).expect("small") {
                now = machine.next_event().expect("busy");
                machine.advance(now, &mut done);
            }
        }
        assert!(machine.work().accesses < 12, "{}: {:?}", model.name, machine.work());
        let before = machine.work().accesses;
        for tag in 512..1024 {
            machine.submit(now, tag, Command::write((1 << 30) + tag * PAGE, PAGE));
        }
        done.extend(drain(&mut *machine));
        let writes = machine.work().accesses - before;
        assert!(writes < 40, "{}: {writes} accesses", model.name);
    }
}

#[test]
fn an_unknown_model_lists_the_known() {
    let error = Model::find("st506").expect_err("not modelled");
    let text = error.to_string();
    assert!(Model::names().iter().all(|name| text.contains(name)), "{text}");
    assert_eq!(Model::find("WD10EALS").expect("in any case").name, "wd10eals");
}
