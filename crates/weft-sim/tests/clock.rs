//! Virtual time does not wait, and a program that hangs is detected.

use weft_rt::SECOND;
use weft_sim::sim_rt;

#[test]
fn a_year_passes_at_once() {
    let rt = sim_rt(1, 1000);
    let rt2 = rt.clone();
    rt.block_on(async move { rt2.sleep(365 * 86_400 * SECOND).await });
    assert_eq!(rt.now(), 365 * 86_400 * SECOND);
}

#[test]
#[should_panic(expected = "deadlock: nothing can ever happen again, at 0 ns (seed 17)")]
fn a_lost_wakeup_names_the_seed() {
    sim_rt(17, 1000).block_on(std::future::pending::<()>());
}

#[test]
#[should_panic(expected = "livelock: 1001 turns and no end")]
fn a_livelock_names_the_seed() {
    let rt = sim_rt(18, 1000);
    let rt2 = rt.clone();
    rt.block_on(async move {
        loop {
            rt2.yield_now().await;
        }
    });
}
