//! The shuffling of groups is balanced, and repeats when it should.

use weft_code::Code;

fn code(name: &str) -> Code {
    Code::new(name.parse().unwrap(), 255).unwrap()
}

fn groups(code: &Code, stripe: u64) -> Vec<usize> {
    (0..code.k()).map(|j| code.group(stripe, j).unwrap()).collect()
}

/// Each data unit meets every unit of another position, and every local parity, in the same share
/// 1/l of the stripes; units of the same position never meet.
fn assert_balanced(name: &str, l: usize, period: u64) {
    let code = code(name);
    let size = code.k() / l;
    assert_eq!(code.period(), period, "{name}");
    let count = |meets: &dyn Fn(u64) -> bool| (0..period).filter(|&i| meets(i)).count() as u64;
    for j in 0..code.k() {
        for g in 0..l {
            assert_eq!(count(&|i| code.coef(i, g, j) != 0), period / l as u64);
            assert_eq!(count(&|i| code.group(i, j) == Some(g)), period / l as u64);
        }
        for other in (0..code.k()).filter(|&other| other != j) {
            let met = count(&|i| code.group(i, j) == code.group(i, other));
            let want = if other % size == j % size { 0 } else { period / l as u64 };
            assert_eq!(met, want, "{name}: {j} and {other}");
        }
    }
    for stripe in 0..period {
        // one unit of each position in every group: groups are equally large
        for g in 0..l {
            assert_eq!(groups(&code, stripe).iter().filter(|&&x| x == g).count(), size);
        }
        assert_eq!(groups(&code, stripe), groups(&code, stripe + 3 * period));
    }
    // no shorter period
    for shorter in (1..period).filter(|shorter| period.is_multiple_of(*shorter)) {
        let repeats = |i| groups(&code, i) == groups(&code, i + shorter);
        assert!(!(0..period).all(repeats), "{name} repeats after {shorter}");
    }
}

/// DRC paper, Theorem 1.
#[test]
fn algorithm_1_is_balanced_with_period_l_to_the_k_over_l() {
    for (k, l) in
        [(4, 2), (6, 2), (8, 2), (12, 2), (6, 3), (9, 3), (12, 3), (8, 4), (12, 4), (10, 5)]
    {
        let period = (l as u64).pow(u32::try_from(k / l).unwrap());
        assert_balanced(&format!("drc:{k},{l},1"), l, period);
    }
}

#[test]
fn an_orthogonal_array_gives_the_same_balance_sooner() {
    for (k, l, period) in [
        (4, 2, 4),
        (6, 2, 4),
        (8, 2, 8),
        (12, 2, 8),
        (14, 2, 8),
        (16, 2, 16),
        (6, 3, 9),
        (9, 3, 9),
        (12, 3, 9),
        (15, 3, 27),
        (8, 4, 16),
        (20, 4, 16),
        (24, 4, 64),
        (30, 5, 25),
        (24, 8, 64),
        (27, 9, 81),
        (5, 5, 5),
        (64, 2, 64),
    ] {
        assert_balanced(&format!("drc-oa:{k},{l},1"), l, period);
    }
    assert_eq!(code("drc-oa:4,1,1").period(), 1);
}

/// DRC paper, Fig. 6(a).
#[test]
fn groups_of_4_2_1_are_those_of_the_figure() {
    let drc = code("drc:4,2,1");
    let stripes: Vec<_> = (0..4).map(|i| groups(&drc, i)).collect();
    assert_eq!(stripes, [[0, 0, 1, 1], [1, 0, 0, 1], [0, 1, 1, 0], [1, 1, 0, 0]]);
}

#[test]
fn rows_are_those_of_the_definition() {
    let lrc = code("lrc:4,2,2");
    let rows: Vec<_> = (0..4).map(|t| lrc.row(7, t)).collect();
    assert_eq!(rows, [[1, 1, 0, 0], [0, 0, 1, 1], [1, 2, 4, 8], [1, 4, 16, 64]]);
    assert_eq!(lrc.parities_of(0, 2).collect::<Vec<_>>(), [(1, 1), (2, 4), (3, 16)]);

    let drc = code("drc:4,2,1");
    assert_eq!(drc.parities_of(1, 0).collect::<Vec<_>>(), [(1, 1), (2, 1)]);
    assert_eq!(drc.parities_of(4, 0).collect::<Vec<_>>(), [(0, 1), (2, 1)]);

    let raid6 = Code::new("raid6".parse().unwrap(), 5).unwrap();
    assert_eq!((raid6.row(0, 0), raid6.row(0, 1)), (&[1, 1, 1][..], &[1, 2, 4][..]));
    let mirror = Code::new("raid1".parse().unwrap(), 3).unwrap();
    assert_eq!(
        (mirror.row(0, 0), mirror.row(0, 1), mirror.group(0, 0)),
        (&[1][..], &[1][..], None)
    );
}
