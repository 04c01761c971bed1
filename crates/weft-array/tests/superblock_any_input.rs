//! Whatever members' metadata says under right checksums: either it is refused with a reason, or it
//! is an array that can be used. This is the body of the fuzz target `assemble`, from seeds.

use std::cell::Cell;

use crate::hostile::{Fate, exercise};
use weft_testkit::for_seeds;

#[test]
fn crafted_members_are_refused_or_used_without_harm() {
    let (refused, used, unfinished) = (Cell::new(0), Cell::new(0), Cell::new(0));
    for_seeds(0..120, |rng| {
        let count = |counter: &Cell<u32>| counter.set(counter.get() + 1);
        match exercise(&mut |bound| rng.index(bound)) {
            Fate::Refused(why) => {
                assert!(!why.is_empty());
                count(&refused);
            }
            Fate::Used => count(&used),
            Fate::Unfinished => count(&unfinished),
        }
    });
    let (refused, used, unfinished) = (refused.get(), used.get(), unfinished.get());
    assert!(
        refused > 8 && used > 30 && unfinished < 50,
        "{refused} refused, {used} used, {unfinished} unfinished: too wild or too tame"
    );
}
