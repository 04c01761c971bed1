//! Values that stay on their thread, for interfaces that demand more.

use std::cell::Cell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number that the next thread gets.
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The number of this thread: that of no other one, ever. 0 until it is asked for.
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

fn thread() -> u64 {
    match THREAD.get() {
        0 => {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            THREAD.set(number);
            number
        }
        number => number,
    }
}

/// A value that only the thread that made it can use, although it seems to be one for all threads:
/// libraries demand that of what they are given, whether they use other threads or not.
pub struct Local<T> {
    thread: u64,
    value: ManuallyDrop<T>,
}

// SAFETY: the value is used and dropped by the thread that made it only.
unsafe impl<T> Send for Local<T> {}
// SAFETY: see above.
unsafe impl<T> Sync for Local<T> {}

impl<T> Local<T> {
    /// A value of this thread.
    pub fn new(value: T) -> Self {
        Self { thread: thread(), value: ManuallyDrop::new(value) }
    }

    /// The value.
    ///
    /// # Panics
    /// On another thread.
    pub fn get(&self) -> &T {
        assert!(self.thread == thread(), "the value belongs to another thread");
        &self.value
    }
}

impl<T> Drop for Local<T> {
    /// On another thread the value is leaked.
    fn drop(&mut self) {
        if self.thread == thread() {
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T> fmt::Debug for Local<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("thread", &self.thread).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::thread;

    use super::*;

    #[test]
    fn a_value_is_used_and_dropped_by_its_thread_only() {
        let mark = Rc::new(7);
        let local = Local::new(mark.clone());
        assert_eq!(**local.get(), 7);
        thread::scope(|scope| {
            let used = scope.spawn(|| **local.get());
            used.join().expect_err("another thread may not use it");
        });
        drop(local);
        assert_eq!(Rc::strong_count(&mark), 1);
        let local = Local::new(mark.clone());
        thread::spawn(move || drop(local)).join().expect("it may be dropped");
        assert_eq!(Rc::strong_count(&mark), 2, "it is leaked");
    }
}
