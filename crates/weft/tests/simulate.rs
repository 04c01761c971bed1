//! `weft simulate` runs seeds, and the same seed is the same run.

use crate::common::Bench;

#[test]
fn seeds_are_run_and_repeat_exactly() {
    let bench = Bench::new("simulate");
    let once = bench.weft(&["simulate", "--seed", "5", "--runs", "4", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&once).expect("JSON");
    assert_eq!(told["runs"], 4);
    assert!(told["requests"].as_u64().is_some_and(|requests| requests > 0), "{told}");
    assert_eq!(once, bench.weft(&["simulate", "--seed", "5", "--runs", "4", "--json"]));
}
