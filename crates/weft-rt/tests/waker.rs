//! A waker may outlive its task, its executor and its thread, and may be used from anywhere.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use weft_rt::ring::{self, RingConfig};
use weft_rt::sync::oneshot;
use weft_rt::{MILLISECOND, Rt};

const SMALL: RingConfig = RingConfig { disk_ops_max: 4, socket_ops_max: 4, command_ops_max: 0 };

fn start() -> Rt {
    ring::start(SMALL).expect("this machine has io_uring").0
}

/// The waker of a task that ends at once.
fn waker_of_an_ended_task(rt: &Rt) -> Waker {
    let kept = Rc::new(RefCell::new(None));
    let kept2 = kept.clone();
    rt.block_on(std::future::poll_fn(move |cx| {
        *kept2.borrow_mut() = Some(cx.waker().clone());
        Poll::Ready(())
    }));
    kept.take().expect("it was polled")
}

#[test]
fn a_waker_of_an_ended_task_does_not_wake_the_next_in_its_slot() {
    let rt = start();
    let old = waker_of_an_ended_task(&rt);
    let rt2 = rt.clone();
    rt.block_on(async move {
        rt2.yield_now().await;
        let before = rt2.polls();
        old.wake_by_ref();
        std::thread::spawn(move || old.wake()).join().expect("woken from elsewhere");
        rt2.sleep(MILLISECOND).await;
        // Only the timer.
        assert_eq!(rt2.polls() - before, 1);
    });
}

#[test]
fn waking_a_task_twice_polls_it_once_and_waking_itself_polls_it_again() {
    let rt = start();
    let rt2 = rt.clone();
    rt.block_on(async move {
        let before = rt2.polls();
        let mut polls = 0;
        std::future::poll_fn(move |cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            cx.waker().wake_by_ref();
            if polls == 3 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        assert_eq!(rt2.polls() - before, 2);
    });
}

#[test]
fn executors_of_one_thread_do_not_take_each_others_wakes() {
    let (a, b) = (start(), start());
    let (sender, receiver) = oneshot();
    let in_b = b.spawn(receiver);
    b.block_on(async {});
    a.block_on(async move { sender.send(7) });
    assert_eq!(b.block_on(in_b), Some(7));
}

#[test]
fn a_waker_outlives_its_executor_and_its_thread() {
    let kept: Arc<Mutex<Option<Waker>>> = Arc::default();
    let kept2 = kept.clone();
    std::thread::spawn(move || {
        *kept2.lock().expect("no panic") = Some(waker_of_an_ended_task(&start()));
    })
    .join()
    .expect("the thread ends");
    let waker = kept.lock().expect("no panic").take().expect("it was kept");
    waker.wake_by_ref();
    let rt = start();
    rt.block_on(async {});
    waker.wake();
}
