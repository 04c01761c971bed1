//! Every plan computes what it promises, exists whenever it can, and is the cheapest there is.

use weft_code::{Code, Plan, Undecodable, UnitSet, sets};
use weft_gf::field;

fn code(name: &str, slots: usize) -> Code {
    Code::new(name.parse().unwrap(), slots).unwrap()
}

/// Unit `unit` as a sum of data units.
fn in_data(code: &Code, stripe: u64, unit: usize) -> Vec<u8> {
    match unit.checked_sub(code.k()) {
        None => (0..code.k()).map(|j| u8::from(j == unit)).collect(),
        Some(parity) => code.row(stripe, parity).to_vec(),
    }
}

/// The plan answers the question, from units that are not lost, reading nothing in vain.
fn assert_right(code: &Code, stripe: u64, lost: UnitSet, wanted: UnitSet, plan: &Plan) {
    let outputs: UnitSet = plan.outputs.iter().map(|(unit, _)| *unit).collect();
    assert_eq!((outputs, plan.outputs.len()), (wanted, wanted.len()));
    assert!(plan.outputs.is_sorted());
    let mut used = UnitSet::EMPTY;
    for (unit, sources) in &plan.outputs {
        let mut sum = vec![0; code.k()];
        for &(source, coef) in sources {
            assert!(coef != 0 && !lost.contains(source));
            used.insert(source);
            for (s, c) in sum.iter_mut().zip(in_data(code, stripe, source)) {
                *s ^= field::mul(coef, c);
            }
        }
        assert_eq!(sum, in_data(code, stripe, *unit), "unit {unit}, lost {lost}: {plan:?}");
        assert_eq!(plan.output(*unit), Some(&sources[..]));
        if !lost.contains(*unit) {
            assert_eq!(*sources, [(*unit, 1)]);
        }
    }
    assert_eq!(plan.reads, used);
}

fn rank(mut rows: Vec<Vec<u8>>) -> usize {
    let mut rank = 0;
    for column in 0..rows.first().map_or(0, Vec::len) {
        let Some(i) = (rank..rows.len()).find(|&i| rows[i][column] != 0) else { continue };
        rows.swap(rank, i);
        let pivot = rows[rank].clone();
        for row in &mut rows[rank + 1..] {
            let c = field::div(row[column], pivot[column]);
            row.iter_mut().zip(&pivot).for_each(|(x, &y)| *x ^= field::mul(c, y));
        }
        rank += 1;
    }
    rank
}

/// Whether all of `wanted` can be computed from `from`.
fn spans(code: &Code, stripe: u64, from: UnitSet, wanted: UnitSet) -> bool {
    let rows = |units: UnitSet| units.iter().map(|u| in_data(code, stripe, u)).collect::<Vec<_>>();
    rank(rows(from)) == rank(rows(from.union(&wanted)))
}

fn price(units: UnitSet, cost: &dyn Fn(usize) -> u32) -> u32 {
    units.iter().map(cost).sum()
}

/// The least cost of reads, by trying all sets of the units that are left.
fn least(
    code: &Code,
    stripe: u64,
    lost: UnitSet,
    wanted: UnitSet,
    cost: &dyn Fn(usize) -> u32,
) -> Option<u32> {
    let left: Vec<_> = (0..code.width()).filter(|&u| !lost.contains(u)).collect();
    let direct = wanted.difference(&lost);
    let chosen = |bits: u32| (0..left.len()).filter(move |i| bits >> i & 1 == 1).map(|i| left[i]);
    let all = (0..1u32 << left.len()).map(|bits| chosen(bits).collect::<UnitSet>());
    let mut priced: Vec<_> = all
        .filter(|units| direct.is_subset(units))
        .map(|units| (price(units, cost), units))
        .collect();
    priced.sort();
    priced.iter().find(|(_, units)| spans(code, stripe, *units, wanted)).map(|(cost, _)| *cost)
}

const NARROW: [(&str, usize); 13] = [
    ("raid0", 3),
    ("raid1", 4),
    ("raid10:n3", 5),
    ("raid4", 4),
    ("raid5", 5),
    ("raid6", 6),
    ("rs:3+3", 6),
    ("rs:3+4", 7),
    ("lrc:4,2,1", 7),
    ("lrc:4,2,2", 8),
    ("lrc:6,3,0", 9),
    ("drc:4,2,1", 7),
    ("drc-oa:6,2,1", 9),
];

/// All losses, all single wants and the wish for all: right if decodable, refused if not.
#[test]
fn a_plan_exists_exactly_when_it_can() {
    for (name, slots) in NARROW {
        let code = code(name, slots);
        for stripe in 0..code.period() {
            for lost in (0..=code.width()).flat_map(|f| sets(code.width(), f)) {
                let left = UnitSet::first(code.width()).difference(&lost);
                let everything = UnitSet::first(code.width());
                for wanted in (0..code.width()).map(UnitSet::one).chain([everything, lost]) {
                    let possible = spans(&code, stripe, left, wanted);
                    match code.plan(stripe, lost, wanted, &|_| 1) {
                        Ok(plan) => assert_right(&code, stripe, lost, wanted, &plan),
                        Err(Undecodable { unit, lost: named }) => {
                            assert!(!spans(&code, stripe, left, UnitSet::one(unit)));
                            assert!(wanted.contains(unit) && named == lost);
                        }
                    }
                    assert_eq!(possible, code.plan(stripe, lost, wanted, &|_| 1).is_ok(), "{name}");
                }
                let data = UnitSet::first(code.k());
                assert_eq!(code.decodable(stripe, lost), spans(&code, stripe, left, data));
            }
        }
    }
}

/// Against all sets of reads, for several costs, some units being at hand or dear.
#[test]
fn no_cheaper_plan_exists() {
    let costs: [&dyn Fn(usize) -> u32; 4] =
        [&|_| 1, &|u| u32::from(u % 3 != 0), &|u| [5, 1, 2, 9, 0][u * 7 % 5], &|u| 1 << (u % 4)];
    for (name, slots) in NARROW {
        let code = code(name, slots);
        let stripe = code.period() - 1;
        let both = |a: usize, b: usize| UnitSet::from([a, b]);
        for lost in (1..=3).flat_map(|f| sets(code.width(), f)) {
            let pairs =
                lost.iter().flat_map(|a| (0..code.width()).step_by(2).map(move |b| both(a, b)));
            for wanted in pairs.chain([lost]) {
                for (i, cost) in costs.iter().enumerate() {
                    let Ok(plan) = code.plan(stripe, lost, wanted, cost) else { continue };
                    let want = least(&code, stripe, lost, wanted, cost);
                    let cost = price(plan.reads, cost);
                    assert_eq!(
                        Some(cost),
                        want,
                        "{name} lost {lost} wanted {wanted} cost {i}: {plan:?}"
                    );
                }
            }
        }
    }
}

/// Wider stripes, where all sets are too many: single and double losses still repair locally.
#[test]
fn wide_stripes_repair_locally() {
    for (name, slots, group) in [
        ("lrc:12,2,2", 16, 6),
        ("lrc:48,4,3", 55, 12),
        ("lrc:200,10,4", 214, 20),
        ("drc:24,4,2", 30, 6),
    ] {
        let code = code(name, slots);
        let stripe = 1;
        let members = |g: usize| {
            let data = (0..code.k()).filter(|&j| code.group(stripe, j) == Some(g));
            data.chain([code.k() + g]).collect::<UnitSet>()
        };
        for unit in (0..code.k()).step_by(5) {
            let own = members(code.group(stripe, unit).unwrap());
            let lost = UnitSet::one(unit);
            let plan = code.plan(stripe, lost, lost, &|_| 1).unwrap();
            assert_right(&code, stripe, lost, lost, &plan);
            assert_eq!(plan.reads, own.without(unit));
            // another loss elsewhere does not matter, nor do both at once
            let other = (0..code.k()).find(|&j| !own.contains(j)).unwrap();
            let lost = lost.with(other);
            let plan = code.plan(stripe, lost, UnitSet::one(unit), &|_| 1).unwrap();
            assert_eq!(plan.reads, own.without(unit));
            let plan = code.plan(stripe, lost, lost, &|_| 1).unwrap();
            assert_right(&code, stripe, lost, lost, &plan);
            assert_eq!(plan.reads.len(), 2 * group);
        }
    }
}

/// Losses at random in wide stripes, up to what the code promises and beyond.
#[test]
fn wide_stripes_repair_whatever_is_decodable() {
    let mut seed = 7u64;
    let mut below = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % n
    };
    let (mut solved, mut refused) = (0, 0);
    for (name, slots) in [
        ("rs:40+10", 50),
        ("rs:240+15", 255),
        ("lrc:24,4,4", 32),
        ("lrc:60,6,3", 69),
        ("drc:18,3,2", 23),
    ] {
        let code = code(name, slots);
        for _ in 0..60 {
            let failures = 1 + below(code.p() + 1);
            let lost: UnitSet = (0..failures).map(|_| below(code.width())).collect();
            let stripe = below(50) as u64;
            let dear = below(code.width());
            match code.plan(stripe, lost, lost, &|u| if u == dear { 100 } else { 1 }) {
                Ok(plan) => assert_right(&code, stripe, lost, lost, &plan),
                Err(_) => assert!(!code.decodable(stripe, lost), "{name} {lost}"),
            }
            if code.decodable(stripe, lost) { solved += 1 } else { refused += 1 }
        }
    }
    assert!(solved > 100 && refused > 10, "{solved} solved, {refused} refused");
}

#[test]
fn units_at_hand_are_preferred() {
    // the same request reads all data but d0: one parity more is enough
    let rs = code("rs:8+3", 11);
    let at_hand = UnitSet::first(8).without(0);
    let lost = UnitSet::one(0);
    let plan = rs.plan(0, lost, lost, &|u| u32::from(!at_hand.contains(u))).unwrap();
    assert_eq!(plan.reads.difference(&at_hand), UnitSet::one(8));

    // wanted units that are read anyway cost a repair nothing
    let lrc = code("lrc:4,2,1", 7);
    let plan = lrc.plan(0, lost, UnitSet::from([0, 1]), &|_| 1).unwrap();
    assert_eq!(plan.reads, UnitSet::from([1, 4]));

    // a slow group parity: go through the globals
    let plan = lrc.plan(0, lost, lost, &|u| if u == 4 { 10 } else { 1 }).unwrap();
    assert_eq!(plan.reads, UnitSet::from([1, 2, 3, 6]));
}
