//! What a stripe and an array survive, against plain enumeration.

use weft_code::{Code, Survival, UnitSet, sets};

fn code(name: &str, slots: usize) -> Code {
    Code::new(name.parse().unwrap(), slots).unwrap()
}

#[test]
fn tolerance_is_what_enumeration_says() {
    for (name, slots, tolerance) in [
        ("raid0", 3, 0),
        ("raid1", 4, 3),
        ("raid10:f3", 6, 2),
        ("raid5", 5, 1),
        ("raid6", 9, 2),
        ("rs:8+5", 13, 5),
        ("lrc:6,3,0", 9, 1),
        ("lrc:4,2,1", 7, 2),
        ("drc-g:4,2,1", 7, 2),
        ("lrc:12,2,2", 16, 3),
        ("lrc:4,4,2", 10, 3),
        ("lrc:4,4,1", 9, 2),
        ("lrc:8,2,3", 13, 4),
        ("drc-oa:12,2,2", 16, 3),
    ] {
        let code = code(name, slots);
        let survives = |f| {
            let mut all =
                sets(code.width(), f).flat_map(|lost| (0..code.period()).map(move |s| (s, lost)));
            all.all(|(stripe, lost)| code.decodable(stripe, lost))
        };
        assert_eq!(code.tolerance(), tolerance, "{name}");
        assert!((0..=tolerance).all(survives), "{name}");
        assert!(!survives(tolerance + 1), "{name}");
    }
    // too wide to enumerate: what is proven
    assert_eq!(code("lrc:100,4,2", 255).tolerance(), 3);
    assert_eq!(code("lrc:200,10,4", 255).tolerance(), 2);
}

/// The margin after any losses: all sets of so many further losses survive, some larger one does
/// not.
#[test]
fn margin_is_what_enumeration_says() {
    for (name, slots) in [
        ("raid6", 6),
        ("lrc:4,2,1", 7),
        ("lrc:4,2,2", 8),
        ("drc:4,2,1", 7),
        ("lrc:6,3,0", 9),
        ("raid1", 3),
    ] {
        let code = code(name, slots);
        let n = code.width();
        for (stripe, lost) in (0..code.period())
            .flat_map(|s| (0..=4).flat_map(move |f| sets(n, f).map(move |lost| (s, lost))))
        {
            let survives = |more| {
                let further = sets(n, more).filter(|set| !set.intersects(&lost));
                further.map(|set| set.union(&lost)).all(|lost| code.decodable(stripe, lost))
            };
            let want =
                (0..=n - lost.len()).take_while(|&more| survives(more)).count().checked_sub(1);
            assert_eq!(code.margin(stripe, lost), want, "{name} {stripe} {lost}");
        }
    }
}

/// An array is as strong as its weakest stripe, and a slot may hold other units in the next one.
#[test]
fn the_margin_of_an_array_is_that_of_its_weakest_stripe() {
    let lrc = code("lrc:4,2,1", 7);
    let still = Survival::new(&lrc, 7, 1, |_, unit| unit);
    // d0 d1 p0 | d2 d3 p1 | q, turning over all slots
    let line = |unit: usize| [0, 1, 3, 4, 2, 5, 6][unit];
    let turning = Survival::new(&lrc, 7, 7, |stripe, unit| {
        (0..stripe).fold(line(unit), |slot, _| (slot + 1) % 7)
    });
    // still: one of each group, and the global; turning: in some stripe d2, d3 and q
    let lost = UnitSet::from([0, 2, 6]);
    assert_eq!((still.survives(lost), still.margin(lost)), (true, Some(0)));
    assert_eq!((turning.survives(lost), turning.margin(lost)), (false, None));
    for failed in (0..=4).flat_map(|f| sets(7, f)) {
        let survives = |more| {
            let further = sets(7, more).filter(|set| !set.intersects(&failed));
            further.map(|set| set.union(&failed)).all(|failed| turning.survives(failed))
        };
        let want = (0..=7 - failed.len()).take_while(|&more| survives(more)).count();
        assert_eq!(turning.margin(failed), want.checked_sub(1), "{failed}");
    }
    assert_eq!(still.share(3).recoverable, 27);
    assert_eq!(turning.share(3).recoverable, 14);
}
