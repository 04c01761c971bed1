//! The executor keeps its promises under virtual time: order, timers, fairness, a clean end.

use std::cell::RefCell;
use std::rc::Rc;

use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{SECOND, Schedule, virtual_rt};

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines() {
    let rt = virtual_rt(Schedule::Fifo);
    let log = Rc::new(RefCell::new(Vec::new()));
    let main = {
        let (rt, log) = (rt.clone(), log.clone());
        async move {
            let tasks: Vec<_> = [30u64, 10, 20, 10]
                .into_iter()
                .enumerate()
                .map(|(i, delay)| {
                    let (rt2, log) = (rt.clone(), log.clone());
                    rt.spawn(async move {
                        rt2.sleep(delay).await;
                        log.borrow_mut().push((rt2.now(), i));
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
        }
    };
    rt.block_on(main);
    assert_eq!(*log.borrow(), [(10, 1), (10, 3), (20, 2), (30, 0)]);
    assert_eq!(rt.live_tasks(), 0);
}

#[test]
fn a_seed_decides_the_interleaving_and_repeats_it() {
    let run = |seed| {
        let rt = virtual_rt(Schedule::Seeded(seed));
        let log = Rc::new(RefCell::new(Vec::new()));
        let (rt2, log2) = (rt.clone(), log.clone());
        rt.block_on(async move {
            let tasks: Vec<_> = (0..8)
                .map(|i| {
                    let (rt, log) = (rt2.clone(), log2.clone());
                    rt2.spawn(async move {
                        for _ in 0..3 {
                            log.borrow_mut().push(i);
                            rt.yield_now().await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
        });
        Rc::try_unwrap(log).expect("all tasks ended").into_inner()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// Runs a task that is always runnable and one that sleeps again and again. Gives the time at
/// which the first ended, and how often the second had woken until then.
fn busy_beside_a_sleeper(schedule: Schedule) -> (u64, u64) {
    let rt = virtual_rt(schedule);
    let rt2 = rt.clone();
    rt.block_on(async move {
        let woken = Rc::new(RefCell::new(0));
        let (rt3, woken2) = (rt2.clone(), woken.clone());
        drop(rt2.spawn(async move {
            loop {
                rt3.sleep(100).await;
                *woken2.borrow_mut() += 1;
            }
        }));
        for _ in 0..500 {
            rt2.yield_now().await;
        }
        let woken = *woken.borrow();
        (rt2.now(), woken)
    })
}

#[test]
fn time_passes_while_tasks_are_runnable_only_under_a_racing_schedule() {
    assert_eq!(busy_beside_a_sleeper(Schedule::Fifo), (0, 0));
    assert_eq!(busy_beside_a_sleeper(Schedule::Seeded(1)), (0, 0));
    let runs: Vec<_> = (0..50).map(|seed| busy_beside_a_sleeper(Schedule::Racing(seed))).collect();
    assert_eq!(runs[7], busy_beside_a_sleeper(Schedule::Racing(7)), "a seed repeats itself");
    // Some runs are slow by the clock, some fast; timers that came due fired meanwhile.
    assert!(runs.iter().any(|(at, _)| *at < 1000), "{runs:?}");
    assert!(runs.iter().any(|(at, woken)| *at > 100_000 && *woken > 500), "{runs:?}");
}

#[test]
fn a_racing_schedule_starves_tasks_and_polls_them_in_the_end() {
    let mut longest = 0;
    for seed in 0..200 {
        let rt = virtual_rt(Schedule::Racing(seed));
        let rt2 = rt.clone();
        let waited = rt.block_on(async move {
            let rt3 = rt2.clone();
            drop(rt2.spawn(async move {
                loop {
                    rt3.sleep(100).await;
                }
            }));
            let (rt3, began) = (rt2.clone(), rt2.now());
            rt2.spawn(async move { rt3.now() - began }).await
        });
        // A phase is 4.3 s long at most, and a task may starve in one after the other.
        assert!(waited < 60 * SECOND, "seed {seed}: {waited} ns");
        longest = longest.max(waited);
    }
    // That is more than a thousand times the pause of the sleeper.
    assert!(longest > 100_000, "{longest} ns");
}

#[test]
fn the_semaphore_serves_the_first_in_line_even_if_it_wants_more() {
    let rt = virtual_rt(Schedule::Fifo);
    let log = Rc::new(RefCell::new(Vec::new()));
    let (rt2, log2) = (rt.clone(), log.clone());
    rt.block_on(async move {
        let semaphore = Semaphore::new(4);
        let held = semaphore.acquire(3).await;
        let tasks: Vec<_> = [4usize, 1, 1]
            .into_iter()
            .enumerate()
            .map(|(i, wanted)| {
                let (semaphore, log) = (semaphore.clone(), log2.clone());
                rt2.spawn(async move {
                    let _permit = semaphore.acquire(wanted).await;
                    log.borrow_mut().push(i);
                })
            })
            .collect();
        rt2.sleep(1).await;
        assert!(semaphore.try_acquire(1).is_none(), "nobody may jump the line");
        drop(held);
        for task in tasks {
            task.await;
        }
        assert_eq!(semaphore.available(), 4);
    });
    assert_eq!(*log.borrow(), [0, 1, 2]);
}

#[test]
fn a_ring_between_wait_and_poll_is_not_missed() {
    let rt = virtual_rt(Schedule::Fifo);
    rt.block_on(async {
        let bell = Notify::default();
        let wait = bell.wait();
        bell.notify_all();
        wait.await;
    });
}

#[test]
fn killing_drops_every_task_where_it_stands() {
    let rt = virtual_rt(Schedule::Fifo);
    let alive = Rc::new(());
    for _ in 0..4 {
        let (held, rt2) = (alive.clone(), rt.clone());
        rt.spawn(async move {
            rt2.sleep(1000).await;
            drop(held);
        });
    }
    let rt2 = rt.clone();
    rt.block_on(async move { rt2.sleep(1).await });
    assert_eq!(Rc::strong_count(&alive), 5);
    rt.kill_all();
    assert_eq!(Rc::strong_count(&alive), 1);
}

#[test]
fn a_panic_ends_its_domain_and_no_other() {
    let rt = virtual_rt(Schedule::Fifo);
    let log = Rc::new(RefCell::new(Vec::new()));
    let (main, seen) = (rt.clone(), log.clone());
    rt.block_on(async move {
        let (rt, log) = (main, seen);
        let note = |what: &'static str| log.borrow_mut().push(what);
        let failed = log.clone();
        let domain = rt.domain(move || failed.borrow_mut().push("failed"));
        /// Panics when it is dropped.
        struct Bad;
        impl Drop for Bad {
            fn drop(&mut self) {
                panic!("in a destructor");
            }
        }
        let (clock, sleepers) = (rt.clone(), log.clone());
        let sleeper = domain.spawn(async move {
            let _bad = Bad;
            clock.sleep(50).await;
            sleepers.borrow_mut().push("a task of a failed domain ran on");
        });
        let (clock, others) = (rt.clone(), log.clone());
        let other = rt.spawn(async move {
            clock.sleep(100).await;
            others.borrow_mut().push("another task");
        });
        let clock = rt.clone();
        drop(domain.spawn(async move {
            clock.sleep(10).await;
            panic!("injected");
        }));
        other.await;
        assert!(!sleeper.is_finished());
        let late = log.clone();
        drop(domain.spawn(async move { late.borrow_mut().push("started in a failed domain") }));
        rt.sleep(10).await;
        domain.fail_domain();
        note("the end");
    });
    assert_eq!(*log.borrow(), ["failed", "another task", "the end"]);
    assert_eq!(rt.live_tasks(), 0);
}

#[test]
fn a_machine_has_a_clock_of_its_own_and_stands_still_when_it_is_stopped() {
    let rt = virtual_rt(Schedule::Fifo);
    let log = Rc::new(RefCell::new(Vec::new()));
    let note = log.clone();
    let (world, slow) = (rt.clone(), rt.machine(500, || {}));
    rt.block_on(async move {
        world.sleep(1000).await;
        assert_eq!((world.now(), slow.now()), (1000, 500));
        let (true_time, clock, notes) = (world.clone(), slow.clone(), note.clone());
        drop(slow.spawn(async move {
            loop {
                clock.sleep(50).await;
                notes.borrow_mut().push((true_time.now(), clock.now()));
            }
        }));
        world.sleep(150).await;
        slow.stop_domain();
        world.sleep(1000).await;
        assert_eq!(*note.borrow(), [(1100, 550)]);
        slow.go_on();
        world.sleep(10).await;
        slow.stop_domain();
        slow.fail_domain();
        slow.go_on();
        world.sleep(1000).await;
    });
    assert_eq!(*log.borrow(), [(1100, 550), (2150, 1075)]);
    assert_eq!(rt.live_tasks(), 0);
}

/// It would wait forever, and all later requests would wait in line after it.
#[test]
#[should_panic(expected = "5 permits wanted of 4 in all")]
fn a_request_for_more_permits_than_there_are_fails_at_once() {
    drop(Semaphore::new(4).acquire(5));
}

#[test]
fn permits_that_were_taken_beforehand_come_back() {
    let semaphore = Semaphore::all_taken(4);
    assert!(semaphore.try_acquire(1).is_none() && !semaphore.is_idle());
    semaphore.give_back(4);
    assert!(semaphore.is_idle());
    let rt = virtual_rt(Schedule::Fifo);
    rt.block_on(async move { drop(semaphore.acquire(4).await) });
}
