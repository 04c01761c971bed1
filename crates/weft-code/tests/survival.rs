//! What a stripe and an array survive, against plain enumeration.

use weft_code::{Code, Margin, SlotNo, SlotSet, Survival, UnitSet, sets};

fn code(name: &str, slots: usize) -> Code {
    Code::new(name.parse().unwrap(), slots).unwrap()
}

/// The most losses that every stripe survives, in any combination, by trying all.
fn enumerated(code: &Code) -> usize {
    let survives = |lost: UnitSet| (0..code.period()).all(|stripe| code.decodable(stripe, lost));
    (1..).find(|&f| !sets(code.width(), f).all(survives)).expect("all units are too many") - 1
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
        ("drc:8,2,3", 13, 4),
        ("drc-oa:12,2,2", 16, 3),
        ("lrc:12,4,3", 19, 4),
        ("drc:12,3,3", 18, 4),
        ("drc:12,4,3", 19, 4),
        ("drc-g:12,4,3", 19, 4),
        // Two units 85 apart in one group, with equal cubes; three of one group that sum to zero.
        ("lrc:90,1,3", 94, 3),
        ("lrc:56,2,3", 61, 3),
    ] {
        let code = code(name, slots);
        assert_eq!((code.tolerance(), code.tolerance_is_exact()), (tolerance, true), "{name}");
        assert_eq!(enumerated(&code), tolerance, "{name}");
    }
}

/// Every small code with local groups. Among them are some that survive less than r + 1.
#[test]
fn tolerance_of_every_small_code_is_what_enumeration_says() {
    let mut weaker = 0;
    for (k, l) in (2..=12_usize).flat_map(|k| (1..=k).map(move |l| (k, l))) {
        for (kind, r) in
            ["lrc", "drc", "drc-oa"].iter().flat_map(|kind| (3..=6).map(move |r| (kind, r)))
        {
            let name = format!("{kind}:{k},{l},{r}");
            let built = name.parse().ok().map(|spec| Code::new(spec, k + l + r));
            let Some(Ok(code)) = built else { continue };
            if code.period() > 81 || code.width() > 17 {
                continue;
            }
            assert!(code.tolerance_is_exact(), "{name}");
            assert_eq!(code.tolerance(), enumerated(&code), "{name}");
            weaker += u32::from(code.tolerance() < r + 1);
        }
    }
    assert!(weaker > 10, "only {weaker} are weaker");
}

/// Codes too wide for enumeration: some set of one loss more is beyond repair, which is looked for
/// in the groups.
#[test]
fn tolerance_of_wide_codes_is_exact_or_said_to_be_a_bound() {
    for (name, tolerance) in [
        ("lrc:100,4,2", 3),
        ("lrc:200,10,3", 4),
        ("lrc:200,10,4", 4),
        ("drc-oa:64,8,3", 3),
        ("drc:30,3,3", 3),
    ] {
        let code = code(name, 255);
        assert_eq!((code.tolerance(), code.tolerance_is_exact()), (tolerance, true), "{name}");
        let (k, width) = (code.k(), code.width());
        let groups = (0..k).filter_map(|unit| code.group(0, unit)).max().unwrap() + 1;
        let in_group = |stripe: u64, group: usize| -> Vec<usize> {
            let data = (0..k).filter(|unit| code.group(stripe, *unit) == Some(group)).take(20);
            data.chain([k + group]).chain(k + groups..width).collect()
        };
        let beyond = |stripe: u64, near: Vec<usize>| {
            sets(near.len(), tolerance + 1)
                .map(|set: UnitSet| set.iter().map(|at| near[at]).collect())
                .any(|lost| !code.decodable(stripe, lost))
        };
        let mut places = (0..code.period()).flat_map(|s| (0..groups).map(move |g| (s, g)));
        let found = places.any(|(stripe, group)| beyond(stripe, in_group(stripe, group)));
        assert!(found, "{name} survives all of {} in one group", tolerance + 1);
    }
    let bound = code("lrc:60,3,12", 255);
    assert!(!bound.tolerance_is_exact() && (3..13).contains(&bound.tolerance()));
}

fn exactly(losses: usize) -> Margin {
    Margin { losses, exact: true }
}

/// Where trying all sets of losses would take too long, what was tried is a lower bound, and said
/// to be one.
#[test]
fn the_margin_of_very_wide_stripes_is_a_bound_and_says_so() {
    let code = code("lrc:100,2,10", 112);
    let margin = code.margin(0, UnitSet::one(0)).expect("one loss is survived");
    assert!(!margin.exact && margin.losses >= 2, "{margin:?}");
    let parities = code.width() - code.k();
    assert!(margin.losses < parities, "{margin:?}");
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
            let want = want.map(exactly);
            assert_eq!(code.margin(stripe, lost), want, "{name} {stripe} {lost}");
        }
    }
}

/// An array is as strong as its weakest stripe, and a slot may hold other units in the next one.
#[test]
fn the_margin_of_an_array_is_that_of_its_weakest_stripe() {
    let lrc = code("lrc:4,2,1", 7);
    let still = Survival::new(&lrc, 7, 1, |_, unit| SlotNo(unit));
    // d0 d1 p0 | d2 d3 p1 | q, turning over all slots
    let line = |unit: usize| [0, 1, 3, 4, 2, 5, 6][unit];
    let turning = Survival::new(&lrc, 7, 7, |stripe, unit| {
        SlotNo((0..stripe).fold(line(unit), |slot, _| (slot + 1) % 7))
    });
    // still: one of each group, and the global; turning: in some stripe d2, d3 and q
    let lost = SlotSet::from([0, 2, 6].map(SlotNo));
    assert_eq!((still.survives(lost), still.margin(lost)), (true, Some(exactly(0))));
    assert_eq!((turning.survives(lost), turning.margin(lost)), (false, None));
    for failed in (0..=4).flat_map(|f| sets(7, f)) {
        let survives = |more| {
            let further = sets(7, more).filter(|set| !set.intersects(&failed));
            further.map(|set| set.union(&failed)).all(|failed| turning.survives(failed))
        };
        let want = (0..=7 - failed.len()).take_while(|&more| survives(more)).count();
        assert_eq!(turning.margin(failed), want.checked_sub(1).map(exactly), "{failed}");
    }
    assert_eq!(still.share(3).recoverable, 27);
    assert_eq!(turning.share(3).recoverable, 14);
}
