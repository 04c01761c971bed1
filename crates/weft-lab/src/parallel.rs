//! Independent work on a few threads, results in order.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Runs `work` on every item, on at most `threads` threads; returns the results in the order of the
/// items. Scheduling does not affect them as long as `work` uses only its item.
///
/// # Panics
/// If `work` does.
pub fn map<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<R>>> = Mutex::new(items.iter().map(|_| None).collect());
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                while let Some((index, item)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    items.get(index).map(|item| (index, item))
                } {
                    let result = work(item);
                    results.lock().expect("no worker has panicked")[index] = Some(result);
                }
            });
        }
    });
    let results = results.into_inner().expect("no worker has panicked");
    results.into_iter().map(|result| result.expect("every item was worked on")).collect()
}
