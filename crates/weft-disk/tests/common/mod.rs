//! Virtual time for the tests of disks.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use weft_rt::{Driver, Nanos, Rt, Schedule};

#[derive(Default)]
struct Virtual(Cell<Nanos>);

impl Driver for Virtual {
    fn now(&self) -> Nanos {
        self.0.get()
    }
    fn poll(&self) {}
    fn park(&self, deadline: Option<Nanos>) {
        let deadline = deadline.expect("nothing can ever happen again");
        self.0.set(self.0.get().max(deadline));
    }
    fn doorbell(&self) -> Arc<dyn Fn() + Send + Sync> {
        Arc::new(|| {})
    }
}

/// An executor whose clock jumps.
pub fn virtual_rt() -> Rt {
    Rt::new(Rc::new(Virtual::default()), Schedule::Fifo)
}

/// Runs `body` to its end in virtual time.
pub fn run(body: impl AsyncFnOnce(Rt) + 'static) {
    let rt = virtual_rt();
    let rt2 = rt.clone();
    rt.block_on(async move { body(rt2).await });
}
