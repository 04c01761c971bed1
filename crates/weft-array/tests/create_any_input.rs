//! For any request, `create` either makes what it planned, or says why not and writes nothing. This
//! is the body of the fuzz target, over requests composed at random, from a seed, of sensible and
//! extreme values.

use crate::create_arguments::{Fate, exercise, wish};
use weft_testkit::for_seeds;

#[test]
fn every_wish_is_granted_as_planned_or_refused_with_nothing_written() {
    let (mut made, mut refused) = (0, 0);
    let counts = std::cell::RefCell::new((&mut made, &mut refused));
    for_seeds(0..1500, |rng| {
        let words = wish(&mut |bound| rng.index(bound));
        let fate = exercise(&words);
        match fate {
            Fate::Made => *counts.borrow_mut().0 += 1,
            Fate::Refused(_) => *counts.borrow_mut().1 += 1,
            Fate::Meaningless => {}
        }
    });
    assert!(
        made > 100 && refused > 500,
        "{made} made, {refused} refused: the requests are too wild or too tame"
    );
}
