//! Memory that several operations share.

use weft_rt::sync::{Permit, Semaphore};

/// Bytes to be taken and given back, first come, first served.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: Semaphore,
    total: usize,
}

impl Budget {
    pub fn new(total: usize) -> Self {
        Self { bytes: Semaphore::new(total), total }
    }

    /// Waits for memory.
    ///
    /// # Panics
    /// If there is less in all: the wait would never end, and later requests would wait for it.
    /// Plans and sizes of steps must prevent that.
    pub fn acquire(&self, bytes: usize) -> impl Future<Output = Permit> + use<> {
        assert!(bytes <= self.total, "{bytes} bytes wanted of {} in all", self.total);
        self.bytes.acquire(bytes)
    }

    /// Takes memory if it is free, and no one waits for some.
    pub fn try_acquire(&self, bytes: usize) -> Option<Permit> {
        self.bytes.try_acquire(bytes)
    }

    /// Waits for all of it: nothing that takes some is in progress then.
    pub fn acquire_all(&self) -> impl Future<Output = Permit> + use<> {
        self.acquire(self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_can_be_taken() {
        let budget = Budget::new(10);
        drop(budget.acquire_all());
        assert!(budget.try_acquire(10).is_some());
    }

    #[test]
    #[should_panic(expected = "11 bytes wanted of 10 in all")]
    fn more_than_there_is_fails_at_once() {
        drop(Budget::new(10).acquire(11));
    }
}
