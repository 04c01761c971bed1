//! Injected faults, to test what a panic costs. Only debug builds have them.
//!
//! `WEFT_PANIC_AT` names a file. While it exists, the place that it names panics: `flush DISK` in
//! the engine, where a member is flushed; `SIGHUP` in code that belongs to no array.

use std::rc::Rc;

use weft_disk::{Disk, DoneFuture, Layer};

/// Panics if the file asks for this place.
pub fn panic_point(place: &str) {
    let Some(file) = std::env::var_os("WEFT_PANIC_AT") else { return };
    let wanted = std::fs::read_to_string(file).unwrap_or_default();
    assert!(wanted != place, "asked for at {place}");
}

/// A member with such a place in its flushes.
pub struct Faulty(pub Rc<dyn Disk>);

impl Layer for Faulty {
    fn below(&self) -> &dyn Disk {
        &*self.0
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async {
            panic_point(&format!("flush {}", self.below().info().name));
            self.0.flush().await
        })
    }
}
