//! A cached plan is the plan; the cache is bounded, and what it holds depends on nothing but the
//! questions.

use std::sync::Arc;

use weft_code::{Code, PlanCache, UnitSet, sets};

#[test]
fn answers_are_those_of_the_code_however_small_the_cache() {
    let code = Code::new("drc:4,2,1".parse().unwrap(), 7).unwrap();
    for capacity in [0, 2, 16, 4096] {
        let mut cache = PlanCache::new(capacity);
        for round in 0..2 {
            for stripe in 0..9 {
                for lost in (1..=3).flat_map(|f| sets(7, f)) {
                    let at_hand = UnitSet::first(round * 2).difference(&lost);
                    let cost = |unit| u32::from(!at_hand.contains(unit));
                    let direct = code.plan(stripe, lost, lost, &cost);
                    let cached = cache.plan(&code, stripe, lost, lost, at_hand);
                    assert_eq!(cached.map(|plan| (*plan).clone()), direct);
                }
            }
        }
    }
}

#[test]
fn a_question_asked_again_is_not_worked_out_again() {
    let code = Code::new("raid6".parse().unwrap(), 8).unwrap();
    let mut cache = PlanCache::new(64);
    let mut ask = |stripe, lost| cache.plan(&code, stripe, lost, lost, UnitSet::EMPTY).unwrap();
    let first = ask(5, UnitSet::one(3));
    assert!(Arc::ptr_eq(&first, &ask(6, UnitSet::one(3))));
    assert!(!Arc::ptr_eq(&first, &ask(5, UnitSet::one(4))));
    assert!(Arc::ptr_eq(&first, &ask(5, UnitSet::one(3))));
    cache.clear();
    let again = cache.plan(&code, 5, UnitSet::one(3), UnitSet::one(3), UnitSet::EMPTY).unwrap();
    assert!(!Arc::ptr_eq(&first, &again) && first == again);
}

#[test]
fn the_cache_holds_no_more_than_its_capacity() {
    let code = Code::new("raid6".parse().unwrap(), 20).unwrap();
    let mut cache = PlanCache::new(16);
    let plans: Vec<_> =
        sets(20, 2).map(|lost| cache.plan(&code, 0, lost, lost, UnitSet::EMPTY).unwrap()).collect();
    let held = plans.iter().filter(|plan| Arc::strong_count(plan) > 1).count();
    assert!((8..=16).contains(&held), "{held}");
}

/// As many questions as half the capacity, over and over, with others in between: none is lost.
#[test]
fn what_is_asked_often_stays() {
    let code = Code::new("rs:20+2".parse().unwrap(), 22).unwrap();
    let mut cache = PlanCache::new(32);
    let often: Vec<_> = (0..8).map(UnitSet::one).collect();
    let mut ask = |lost| cache.plan(&code, 0, lost, lost, UnitSet::EMPTY).unwrap();
    let first: Vec<_> = often.iter().map(|&lost| ask(lost)).collect();
    for seldom in sets(22, 2) {
        ask(seldom);
        assert!(often.iter().zip(&first).all(|(&lost, plan)| Arc::ptr_eq(plan, &ask(lost))));
    }
}

#[test]
fn a_unit_to_be_avoided_is_read_only_if_it_must_be() {
    for (name, slots) in [("raid6", 6), ("drc-g:4,2,1", 7), ("raid5", 6)] {
        let code = Code::new(name.parse().unwrap(), slots).unwrap();
        let mut cache = PlanCache::new(256);
        let none = UnitSet::EMPTY;
        let units = || (0..code.width()).map(UnitSet::one);
        let pairs = || units().flat_map(|a| units().map(move |b| (a, b))).filter(|(a, b)| a != b);
        for (stripe, (lost, dear)) in (0..code.period()).flat_map(|n| pairs().map(move |p| (n, p)))
        {
            let plan = cache.plan_avoiding(&code, stripe, lost, lost, none, dear).unwrap();
            let can_do_without = code.decodable(stripe, lost.union(&dear));
            assert_eq!(plan.reads.intersects(&dear), !can_do_without, "{lost} without {dear}");
            // Asked without a wish, the answer is as ever.
            let plain = cache.plan(&code, stripe, lost, lost, none).unwrap();
            assert_eq!(*plain, code.plan(stripe, lost, lost, &|_| 1).expect("planned"));
        }
    }
}
