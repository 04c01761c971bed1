//! The figures of a plan are right: shares, speeds and times that can be computed by hand.

use weft_plan::{Emphasis, PlanError, PlanRequest, Row, candidates, picture, plan};

fn request(disks: usize) -> PlanRequest {
    PlanRequest {
        disks,
        size_bytes: 1 << 40,
        bandwidth_bytes_s: 100 << 20,
        rebuild_share: 1.0,
        mttf_h: 1e6,
        survive: 1,
        mttdl_years: None,
        capacity_bytes: None,
        emphasis: Emphasis::Balanced,
        monte_carlo_cycles: None,
        seed: 1,
    }
}

fn rows(request: &PlanRequest, codes: &[&str]) -> Vec<Row> {
    let codes: Vec<_> = codes.iter().map(|code| code.parse().unwrap()).collect();
    plan(request, &codes, |_, _| {}).unwrap().codes
}

fn row(disks: usize, code: &str) -> Row {
    rows(&request(disks), &[code]).remove(0)
}

fn shares(row: &Row) -> Vec<(u64, u64)> {
    assert!(row.survives.iter().all(|s| s.exact), "{row:?}");
    row.survives.iter().map(|s| (s.recoverable, s.of)).collect()
}

#[test]
fn shares_of_failures_survived_are_exact() {
    assert_eq!(shares(&row(7, "lrc:4,2,1")), [(7, 7), (21, 21), (27, 35), (0, 35)]);
    assert_eq!(shares(&row(7, "drc:4,2,1")), [(7, 7), (21, 21), (15, 35), (0, 35)]);
    assert_eq!(shares(&row(7, "drc-g:4,2,1")), [(7, 7), (21, 21), (0, 35), (0, 35)]);
    assert_eq!(shares(&row(6, "raid6")), [(6, 6), (15, 15), (0, 20), (0, 15)]);
    // pairs 01, 23, 45: as many sets as there are ways to take at most one of each
    assert_eq!(shares(&row(6, "raid10")), [(6, 6), (12, 15), (8, 20), (0, 15)]);
    assert_eq!(shares(&row(3, "raid1")), [(3, 3), (3, 3), (0, 1)]);
    assert_eq!(shares(&row(3, "raid0")), [(0, 3), (0, 3), (0, 1)]);
}

#[test]
fn speeds_and_times_are_those_of_the_layout() {
    let raid5 = row(6, "raid5");
    assert!((raid5.degraded.unwrap().worst - 0.5).abs() < 1e-9, "{raid5:?}");
    let rebuild = raid5.rebuild.unwrap();
    assert!((rebuild.reads - 5.0).abs() < 1e-9 && (rebuild.busiest - 1.0).abs() < 1e-9);
    assert!((rebuild.hours - 10485.76 / 3600.0).abs() < 1e-9, "1 TiB at 100 MiB/s");
    assert_eq!((raid5.write.reads, raid5.write.writes), (2.0, 2.0));
    assert_eq!((raid5.capacity_bytes, raid5.tolerance), (5 << 40, 1));

    // Spread over more disks, each has less to do for a failed one: (w-1)/(n-1) of its contents.
    let spread = row(13, "rs:3+1");
    let busiest = spread.rebuild.unwrap().busiest;
    assert!((0.25..0.27).contains(&busiest), "{spread:?}");
    assert!(spread.degraded.unwrap().worst > 0.75, "{spread:?}");

    let nothing = row(4, "raid0");
    assert_eq!((nothing.degraded, nothing.rebuild, nothing.tolerance), (None, None, 0));
}

/// The point of DRC: the same group size, the same disks, less on the busiest.
#[test]
fn shuffled_groups_are_faster_with_a_disk_lost() {
    let speed = |code| row(7, code).degraded.unwrap().worst;
    assert!(speed("drc:4,2,1") > 1.3 * speed("lrc:4,2,1"));
    assert!(speed("drc-g:4,2,1") >= speed("drc:4,2,1") - 1e-9);
}

#[test]
fn the_chain_and_the_simulation_agree() {
    let asked = PlanRequest { monte_carlo_cycles: Some(20_000), mttf_h: 20_000.0, ..request(7) };
    for row in rows(&asked, &["raid6", "drc:4,2,1", "lrc:4,2,1", "rs:2+2"]) {
        let simulated = row.simulated.unwrap();
        let off = (simulated.mttdl_years - row.mttdl_years).abs();
        assert!(off < 3.0 * simulated.standard_error_years, "{row:?}");
        assert!(simulated.standard_error_years < 0.1 * row.mttdl_years, "{row:?}");
    }
}

#[test]
fn goals_are_met_or_the_reason_is_said() {
    let asked = PlanRequest { survive: 2, capacity_bytes: Some(5 << 40), ..request(8) };
    let answer = plan(&asked, &[], |_, _| {}).unwrap();
    let best = &answer.codes[0];
    assert_eq!(answer.recommended, Some(best.code));
    assert!(best.tolerance >= 2 && best.capacity_bytes >= 5 << 40);
    assert!(answer.reason.contains("of the "), "{}", answer.reason);
    for row in &answer.codes {
        let fits = row.tolerance >= 2 && row.capacity_bytes >= 5 << 40;
        assert_eq!(row.fits(), fits, "{row:?}");
        assert!(row.best_in_something <= fits);
    }
    let raid5 = answer.codes.iter().find(|row| row.code.to_string() == "raid5").unwrap();
    assert_eq!(raid5.misses, ["survives any one loss, not any 2"]);

    let too_much = PlanRequest { capacity_bytes: Some(9 << 40), ..request(8) };
    let answer = plan(&too_much, &[], |_, _| {}).unwrap();
    assert_eq!(answer.recommended, None);
    assert!(answer.reason.contains("too little capacity"), "{}", answer.reason);
    let long = PlanRequest { mttdl_years: Some(1e9), survive: 2, ..request(8) };
    assert!(plan(&long, &[], |_, _| {}).unwrap().codes[0].mttdl_years >= 1e9);
}

#[test]
fn what_matters_decides() {
    let take = |emphasis| {
        let answer =
            plan(&PlanRequest { emphasis, survive: 2, ..request(12) }, &[], |_, _| {}).unwrap();
        answer.codes.into_iter().next().unwrap()
    };
    let (read, write, most) =
        (take(Emphasis::Read), take(Emphasis::Write), take(Emphasis::Capacity));
    assert!(read.degraded.unwrap().worst > most.degraded.unwrap().worst);
    assert!(write.write.ops() < most.write.ops());
    assert!(most.efficiency > read.efficiency && most.efficiency > write.efficiency);
}

#[test]
fn stripes_are_drawn() {
    let drawn = |code: &str, disks| picture(code.parse().unwrap(), disks).unwrap();
    for (code, disks, want) in [
        ("drc-g:4,2,1", 7, "DDL DDL G"),
        ("lrc:6,2,2", 12, "DDDL DDDL GG / 12"),
        ("lrc:4,2,0", 6, "DDL DDL"),
        ("raid6", 6, "DDDD PQ"),
        ("raid5", 40, "39×D P"),
        ("rs:4+3", 7, "DDDD RRR"),
        ("raid10", 6, "DC / 6"),
        ("raid1", 3, "DCC"),
        ("raid0", 3, "DDD"),
        ("lrc:40,4,2", 46, "4×(10×DL) 2×G"),
    ] {
        assert_eq!(drawn(code, disks), want, "{code}");
    }
}

#[test]
fn candidates_can_all_be_built_and_none_comes_twice() {
    for disks in 1..=40 {
        let codes = candidates(disks);
        let mut names: Vec<String> = codes.iter().map(ToString::to_string).collect();
        assert!(codes.iter().all(|code| code.shape(disks).is_ok()), "{disks}: {names:?}");
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "{disks}");
    }
    let seven: Vec<String> = candidates(7).iter().map(ToString::to_string).collect();
    for name in ["raid5", "raid6", "lrc:4,2,1", "drc:4,2,1", "drc-g:4,2,1", "rs:4+3"] {
        assert!(seven.iter().any(|code| code == name), "{name} is not in {seven:?}");
    }
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let bad = [
        PlanRequest { disks: 0, ..request(8) },
        PlanRequest { disks: 1000, ..request(8) },
        PlanRequest { size_bytes: 0, ..request(8) },
        PlanRequest { bandwidth_bytes_s: 0, ..request(8) },
        PlanRequest { mttf_h: -1.0, ..request(8) },
        PlanRequest { rebuild_share: 1.5, ..request(8) },
        PlanRequest { survive: 8, ..request(8) },
        PlanRequest { mttdl_years: Some(f64::NAN), ..request(8) },
    ];
    for request in bad {
        assert!(
            matches!(plan(&request, &[], |_, _| {}), Err(PlanError::Request(_))),
            "{request:?}"
        );
    }
    let code = ["lrc:12,2,2".parse().unwrap()];
    assert!(matches!(plan(&request(8), &code, |_, _| {}), Err(PlanError::Layout(_))));
}
