//! The most accessed keys are kept, and the coldest gives way.

use weft_rt::SECOND;
use weft_stripe::PopularityTable;

fn table(keys: usize) -> PopularityTable<u64, ()> {
    PopularityTable::new(keys, SECOND)
}

#[test]
fn popular_keys_survive_any_number_of_single_accesses() {
    let mut table = table(8);
    for n in 0..10_000u64 {
        let now = n * SECOND / 100;
        // One access in five; the rest never come back.
        table.note(if n % 5 == 0 { 0 } else { 1000 + n }, now, ());
        assert!(table.all(now).len() <= 8);
        if n > 100 {
            assert_eq!(table.hottest(now).map(|(key, ..)| key), Some(0), "{n}");
        }
    }
}

/// However keys come, grow, leave and age: the one that is replaced is one of the coldest.
#[test]
fn the_coldest_gives_way() {
    let mut table = table(16);
    let mut random = 1u64;
    for n in 0..20_000u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let key = (random >> 60).pow(2) + (random >> 40) % 24;
        // Not so long that what is cold is forgotten.
        let now = n / 64 * SECOND / 16;
        let before: Vec<(u64, f64)> =
            table.all(0).into_iter().map(|(key, _)| (key, table.popularity(key))).collect();
        let known = before.iter().any(|(other, _)| *other == key);
        table.note(key, now, ());
        let gone: Vec<f64> = before
            .iter()
            .filter(|(key, _)| table.popularity(*key) == 0.0)
            .map(|(_, popularity)| *popularity)
            .collect();
        let least = before.iter().map(|(_, popularity)| *popularity).min_by(f64::total_cmp);
        match gone[..] {
            [] => assert!(known || before.len() < 16, "{n}"),
            [gone] => assert!(!known && Some(gone) == least, "{n}: {gone} {least:?}"),
            _ => panic!("{n}: more than one gave way"),
        }
        if random >> 32 & 15 == 0 {
            table.remove(key);
        }
    }
}

#[test]
fn an_access_counts_half_after_a_half_life_also_when_weights_are_scaled() {
    let mut table = table(8);
    for _ in 0..8 {
        table.note(0, 0, ());
    }
    for seconds in [0u32, 1, 2, 3] {
        let all = table.all(u64::from(seconds) * SECOND);
        assert_eq!(all, [(0, 8.0 / f64::from(1 << seconds))]);
    }
    // Three accesses now outweigh eight from two half-lives ago.
    for _ in 0..3 {
        table.note(1, 2 * SECOND, ());
    }
    assert_eq!(table.hottest(2 * SECOND).map(|(key, ..)| key), Some(1));
    for n in 0..100 {
        table.note(2, 40 * SECOND + n, ());
    }
    table.note(3, 100 * SECOND, ());
    table.note(3, 101 * SECOND, ());
    assert_eq!(table.hottest(101 * SECOND).map(|(key, ..)| key), Some(3));
    assert_eq!(table.all(101 * SECOND)[0].1, 1.5);
    assert_eq!(table.all(1000 * SECOND), []);
    assert!(table.hottest(1000 * SECOND).is_none());
}

#[test]
fn a_smaller_table_keeps_the_hottest() {
    let mut table = table(8);
    for key in [0, 0, 0, 1, 2, 2] {
        table.note(key, 0, ());
    }
    table.keep(2);
    assert_eq!(table.all(0), [(0, 3.0), (2, 2.0)]);
}
