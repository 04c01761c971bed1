//! The layouts of LRC, DRC and DRC-G give the disk loads and the survivable failures of the DRC
//! paper.

use weft_code::{Code, CodeSpec, SlotNo, Survival, UnitSet};
use weft_layout::{Algorithm, code_for, for_code};

fn spec(name: &str) -> CodeSpec {
    name.parse().unwrap()
}

/// Reads that each slot gets when every data unit of a whole period is read once, slot 0 failed.
fn loads(name: &str) -> Vec<u64> {
    let slots = 7;
    let code = Code::new(spec(name), slots).unwrap();
    let layout = for_code(spec(name), Algorithm::default(), slots, 1000).unwrap();
    let mut loads = vec![0; slots];
    for stripe in 0..layout.period() {
        let lost =
            (0..code.width()).filter(|&u| layout.place(stripe, u).slot == SlotNo(0)).collect();
        for unit in 0..code.k() {
            let plan = code.plan(stripe, lost, UnitSet::one(unit), &|_| 1).unwrap();
            for read in plan.reads.iter() {
                loads[layout.place(stripe, read).slot.0] += 1;
            }
        }
    }
    loads
}

/// Table 3(a): utilisation of disks #1–#6 relative to the busiest, in twelfths.
#[test]
fn loads_of_the_survivors_are_those_predicted_for_table_3a() {
    for (name, twelfths) in [
        ("lrc:4,2,1", [12, 12, 6, 6, 6, 0]),
        ("drc:4,2,1", [12, 12, 8, 12, 12, 0]),
        ("drc-oa:4,2,1", [12, 12, 8, 12, 12, 0]),
        ("drc-g:4,2,1", [12, 11, 9, 10, 11, 11]),
    ] {
        let loads = loads(name);
        let busiest = *loads.iter().max().unwrap();
        assert_eq!(loads[0], 0);
        let relative: Vec<_> = loads[1..].iter().map(|load| (load * 12, busiest)).collect();
        let want: Vec<_> = twelfths.iter().map(|t| (t * busiest, busiest)).collect();
        assert_eq!(relative, want, "{name}");
    }
}

fn share(name: &str, failures: usize) -> (u64, u64) {
    let width = spec(name).groups().map(|(k, l, r)| k + l + r).unwrap();
    let code = code_for(spec(name), Algorithm::default(), width).unwrap();
    let layout = for_code(spec(name), Algorithm::default(), width, 1).unwrap();
    let stripes = layout.period();
    assert_eq!(stripes % code.period(), 0);
    let survival = Survival::new(&code, width, stripes, |s, u| layout.place(s, u).slot);
    let share = survival.share(failures);
    (share.recoverable, share.total)
}

/// §2.2 and §3.1: p_d, the share of triple failures that the array survives.
#[test]
fn failure_sets_of_4_2_1() {
    assert_eq!(share("lrc:4,2,1", 3), (27, 35));
    assert_eq!(share("drc:4,2,1", 3), (15, 35));
    assert_eq!(share("drc-g:4,2,1", 3), (0, 35));
    for name in ["lrc:4,2,1", "drc:4,2,1", "drc-g:4,2,1", "drc-oa:4,2,1"] {
        assert_eq!((share(name, 1), share(name, 2)), ((7, 7), (21, 21)), "{name}");
    }
}

#[test]
fn failure_sets_of_other_shapes() {
    let thousandths = |name, failures| {
        let (recoverable, total) = share(name, failures);
        (recoverable * 1000 + total / 2) / total
    };
    for (name, failures, want) in [
        ("lrc:6,2,1", 3, 762),
        ("drc:6,2,1", 3, 333),
        ("lrc:6,3,1", 3, 900),
        ("drc:6,3,1", 3, 550),
        ("lrc:8,2,1", 3, 758),
        ("drc:8,2,1", 3, 273),
        ("lrc:6,2,2", 4, 857),
        ("drc-oa:6,2,1", 3, 333),
        ("drc:12,2,1", 3, 200),
        ("drc-oa:12,2,1", 3, 200),
        ("drc:9,3,1", 3, 434),
        ("drc-oa:9,3,1", 3, 434),
        ("drc:12,3,1", 3, 357),
        ("drc-oa:12,3,1", 3, 357),
    ] {
        assert_eq!(thousandths(name, failures), want, "{name}, {failures} failures");
    }
}

/// A shorter pattern has fewer stripes that could fail; turning the groups takes part of that back.
#[test]
fn without_rotation_the_orthogonal_array_survives_more() {
    for (name, recoverable) in [("drc:12,3,1", 200), ("drc-oa:12,3,1", 218)] {
        let code = Code::new(spec(name), 16).unwrap();
        let still = Survival::new(&code, 16, code.period(), |_, unit| SlotNo(unit));
        assert_eq!(still.share(3).recoverable, recoverable, "{name}");
    }
}
