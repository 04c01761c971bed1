//! `weft plan`: a table with a recommendation, the same as JSON, and clear messages for impossible
//! goals.

use crate::common::Bench;

#[test]
fn a_plan_is_a_table_with_a_recommendation() {
    let bench = Bench::new("plan");
    let said = bench.weft(&["plan", "--disks", "7", "--size", "4T", "--read", "--all"]);
    for part in ["drc-g:4,2,1", "DDL DDL G", "raid6", "57 %", " 77 ", "Take ", "weft create"] {
        assert!(said.contains(part), "no `{part}` in\n{said}");
    }
    let marked = said.lines().filter(|line| line.starts_with('→')).count();
    assert_eq!(marked, 1, "{said}");
    let again = bench.weft(&["plan", "--disks", "7", "--size", "4T", "--read", "--all"]);
    assert_eq!(said, again);
}

#[test]
fn a_plan_fits_a_terminal_of_80_columns() {
    let bench = Bench::new("plan-columns");
    for disks in ["2", "7", "12", "16"] {
        let said = bench.weft(&["plan", "--disks", disks, "--size", "20T", "--all"]);
        for line in said.lines() {
            assert!(line.chars().count() <= 80, "{disks} disks: {line}");
        }
    }
}

/// Half of the members are no majority.
#[test]
fn a_plan_tells_which_array_does_not_start_by_itself() {
    let bench = Bench::new("plan-majority");
    let plan = |disks: &str| bench.weft(&["plan", "--disks", disks, "--size", "1T"]);
    let said = plan("2").replace('\n', " ");
    assert!(said.contains("Note: with 1 of its 2 disks lost"), "{said}");
    assert!(said.contains("`weft start --force-degraded`"), "{said}");
    assert!(!plan("5").contains("Note: "));
}

#[test]
fn the_page_about_plans_shows_what_is_printed() {
    let bench = Bench::new("plan-page");
    let page = include_str!("../../../docs/plan.md");
    let block = page.split("```console\n").nth(1).and_then(|rest| rest.split("```").next());
    let (command, printed) = block.and_then(|block| block.split_once('\n')).expect("an example");
    let args: Vec<&str> = command.strip_prefix("$ weft ").expect("weft").split(' ').collect();
    let said = bench.weft(&args);
    assert!(said.contains(printed), "docs/plan.md shows\n{printed}\nbut it is\n{said}");
}

#[test]
fn the_same_as_json() {
    let bench = Bench::new("plan-json");
    let args = ["plan", "--json", "--disks", "7", "--size", "4T", "--mttf", "20000h"];
    let codes = ["--code", "lrc:4,2,1", "--code", "raid6", "--monte-carlo", "2000"];
    let said = bench.weft(&[&args[..], &codes].concat());
    let plan: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let codes = plan["codes"].as_array().expect("codes");
    let lrc = codes.iter().find(|row| row["code"] == "lrc:4,2,1").expect("the code asked for");
    assert_eq!(lrc["survives"][2]["recoverable"], 27);
    assert_eq!(lrc["survives"][2]["exact"], true);
    assert_eq!(lrc["picture"], "DDL DDL G");
    assert!(lrc["simulated"]["mttdl_years"].as_f64() > Some(0.0));
    assert!(codes.iter().any(|row| row["code"] == plan["recommended"]));
}

#[test]
fn members_give_their_number_and_size() {
    let bench = Bench::new("plan-members");
    let mut members = bench.members(5, 8 << 20);
    let _ = bench.scratch.file("small", 4 << 20);
    members.push("small".into());
    let mut args = vec!["plan", "--json"];
    args.extend(members.iter().map(String::as_str));
    let plan: serde_json::Value = serde_json::from_str(&bench.weft(&args)).expect("JSON");
    assert_eq!(plan["wish"]["disks"], 6);
    assert_eq!(plan["wish"]["size_bytes"], 4 << 20);
}

#[test]
fn what_cannot_be_is_said() {
    let bench = Bench::new("plan-bad");
    let disks = |more: &[&'static str]| -> Vec<&'static str> {
        [&["plan", "--disks", "6", "--size", "1T"], more].concat()
    };
    let cases: [(Vec<&str>, i32, &str); 13] = [
        (vec!["plan"], 2, "--disks"),
        (vec!["plan", "--disks", "6"], 2, "--size"),
        (vec!["plan", "--disks", "six", "--size", "1T"], 2, "six"),
        (vec!["plan", "--disks", "0", "--size", "1T"], 2, "0 disks"),
        (vec!["plan", "--disks", "1000", "--size", "1T"], 2, "1000 disks"),
        (vec!["plan", "no-such-file", "nor-this"], 1, "no-such-file"),
        (disks(&["--survive", "6"]), 2, "cannot survive the loss"),
        (disks(&["--mttdl", "long"]), 2, "not a time"),
        (disks(&["--rebuild-share", "2"]), 2, "the rebuild's share"),
        (disks(&["--read", "--write"]), 2, "cannot be used with"),
        (disks(&["--code", "raid7"]), 2, "raid7"),
        (disks(&["--code", "lrc:12,2,2"]), 1, "at least 16 slots"),
        (disks(&["--capacity", "6T"]), 1, "no code meets every goal"),
    ];
    for (args, code, why) in cases {
        let said = bench.refused(&args, code);
        assert!(said.contains(why), "weft {args:?} should say `{why}`, but says\n{said}");
    }
    let json = bench.refused(&disks(&["--capacity", "6T", "--json"]), 1);
    let plan: serde_json::Value = serde_json::from_str(&json).expect("one JSON document");
    assert!(plan["recommended"].is_null() && plan["reason"].is_string());
}
