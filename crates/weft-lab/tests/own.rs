//! Experiments and modelled disks of users' own: what a file may say, what is wrong in one, and
//! what comes out.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde::Deserialize as _;
use serde_json::Value;
use toml::Value as Toml;
use weft_lab::{Experiment, Models, experiment, models};
use weft_model::catalog::MODELS;
use weft_testkit::{Scratch, command};

/// A recovery of a small array under a trace of its own.
const MINE: &str = r#"title = "Mine"
source = "none: a test"
about = "A disk of my own under a trace of my own."

[run]
kind = "recovery"
model = "mine"
disk_mb = 20
requests = 500
interval_ms = 500
repeats = 2
courses = ["small"]
traces = [
  { name = "web", file = "web.csv", rate_milli = 100000 },
  { name = "made", workload = "pro-websearch", rate_milli = 100000 },
]
cases = [
  { name = "small", code = "raid5", disks = 3, unit_kib = 64, min_kib_s = 20000 },
]
policies = [
  { name = "MD", policy = { order = "ascending" }, parts = { pipelined = { heads = 16 }, pace = "md-sleep" } },
  { name = "weft" },
]

[paper."rebuild time, web"."MD"]
"small" = 1.0
"#;

fn lab(args: &[&str], at: &Path) -> Output {
    let mut program = command(env!("CARGO_BIN_EXE_weft-lab"));
    program.current_dir(at).arg("lab").args(args).output().expect("start weft-lab")
}

fn said(args: &[&str], at: &Path) -> String {
    let Output { status, stdout, stderr } = lab(args, at);
    let stdout = String::from_utf8(stdout).expect("text");
    assert!(status.success(), "{args:?}: {}{stdout}", String::from_utf8_lossy(&stderr));
    stdout
}

fn refused(args: &[&str], at: &Path, code: i32) -> String {
    let Output { status, stdout, stderr } = lab(args, at);
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(code), "{args:?}: {said}{}", String::from_utf8_lossy(&stdout));
    said
}

/// A folder with the experiment, its disk and its trace.
fn folder(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    fs::create_dir(scratch.join("models")).expect("a folder");
    let disk = said(&["show", "st3300831as"], scratch.path());
    let disk = disk.replace("rpm = 7200", "rpm = 15000").replace("title = \"", "title = \"My own ");
    fs::write(scratch.join("models/mine.toml"), disk).expect("a file");
    fs::write(scratch.join("mine.toml"), MINE).expect("a file");
    // The format of the Storage Performance Council.
    let line =
        |n: u64| format!("0,{},4096,r,{}.{:03}\n", n * 7919 % 4096 * 8, n / 100, n % 100 * 10);
    let trace: String = (0..500).map(line).collect();
    fs::write(scratch.join("web.csv"), trace).expect("a file");
    scratch
}

#[test]
fn an_experiment_of_my_own_runs_on_my_disk_under_my_trace() {
    let scratch = folder("lab-own");
    let at = scratch.path();
    let run = ["run", "mine.toml", "--models", "models"];
    let json = said(&[&run[..], &["--json"]].concat(), at);
    let figures: Value = serde_json::from_str(&json).expect("JSON");
    let figure = &figures["figures"][0];
    assert_eq!(figure["name"], "mine");
    assert!(figure["disk"].as_str().is_some_and(|disk| disk.starts_with("My own ")), "{figure}");
    let traces: Vec<_> =
        figure["traces"].as_array().expect("traces").iter().map(|t| &t["generated"]).collect();
    assert_eq!(traces, [false, true], "the trace beside the file, and a generated one");
    let csv = said(&[&run[..], &["--csv"]].concat(), at);
    let number = csv.lines().find(|line| line.contains("\"rebuild time, web\",MD,small"));
    assert!(number.is_some_and(|line| line.contains(",1,")), "no number to compare with:\n{csv}");
    let report = ["report", "mine.toml", "--models", "models", "--out", "page.html"];
    said(&[&report[..], &["--svg", "plots"]].concat(), at);
    let page = fs::read_to_string(scratch.join("page.html")).expect("a page");
    assert!(page.contains("A disk of my own under a trace of my own."), "{page}");
    assert!(scratch.join("plots/mine-1.svg").exists());
    let missing = refused(&["run", "mine.toml"], at, 1);
    assert!(missing.contains("mine.toml, line 7: run.model: no disk model is called"), "{missing}");
    fs::remove_file(scratch.join("web.csv")).expect("there");
    let missing = refused(&run, at, 1);
    let place = "mine.toml, line 14: run.traces[0].file: there is no file web.csv in .;";
    assert!(missing.contains(place), "{missing}");
    let missing = refused(&[&run[..], &["--traces", "models"]].concat(), at, 1);
    assert!(missing.contains("there is no file web.csv in models, .;"), "{missing}");
}

#[test]
fn what_was_measured_is_shown_though_a_number_of_the_paper_fits_nowhere() {
    let scratch = folder("lab-unmatched");
    let at = scratch.path();
    let wrong = MINE.replace("\"small\" = 1.0", "\"smell\" = 1.0");
    fs::write(scratch.join("mine.toml"), wrong).expect("a file");
    let run = lab(&["run", "mine.toml", "--models", "models", "--csv"], at);
    assert_eq!(run.status.code(), Some(1));
    let told = String::from_utf8_lossy(&run.stderr);
    assert!(told.contains("match no point: mine: rebuild time, web / MD / smell"), "{told}");
    let csv = String::from_utf8_lossy(&run.stdout);
    assert!(csv.contains("\"rebuild time, web\",MD,small"), "{csv}");
}

#[test]
fn two_experiments_of_one_name_are_refused_before_any_is_measured() {
    let scratch = folder("lab-twice");
    let at = scratch.path();
    fs::create_dir(scratch.join("other")).expect("a folder");
    fs::copy(scratch.join("mine.toml"), scratch.join("other/mine.toml")).expect("a copy");
    let run = ["run", "drc-table1", "mine.toml", "other/mine.toml", "--models", "models"];
    fs::copy(scratch.join("web.csv"), scratch.join("other/web.csv")).expect("a copy");
    let said = refused(&run, at, 2);
    assert!(said.contains("two experiments are named mine"), "{said}");
}

#[test]
fn disks_of_ones_own_are_listed_behind_the_products() {
    let scratch = folder("lab-list");
    let list = ["disk", "--list", "--models", "models", "--json"];
    let json: Value = serde_json::from_str(&said(&list, scratch.path())).expect("JSON");
    let names: Vec<_> =
        json["models"].as_array().expect("models").iter().map(|model| &model["name"]).collect();
    assert_eq!(names.len(), MODELS.len() + 1);
    assert_eq!(*names[MODELS.len()], "mine");
}

#[test]
fn what_is_shown_can_be_run() {
    let scratch = Scratch::new("lab-show");
    for experiment in Experiment::all() {
        let text = said(&["show", &experiment.name], scratch.path());
        let read = Experiment::parse(&experiment.name, &text, &Models::default());
        assert_eq!(read.expect("a sound file").text, experiment.text);
    }
    for model in &MODELS {
        let text = said(&["show", model.name], scratch.path());
        let read =
            models::parse(model.name, &text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
        assert_eq!(*read, weft_model::Model { sheet: &[], ..*model });
    }
    for (name, schema) in
        [("experiment.schema.json", experiment::SCHEMA), ("model.schema.json", models::SCHEMA)]
    {
        assert_eq!(said(&["show", name], scratch.path()), schema);
    }
    let unknown = refused(&["show", "fig99"], scratch.path(), 2);
    assert!(unknown.contains("drc-fig11"), "{unknown}");
}

/// Each row: what is replaced by what, and the error: its line, its key, and what it says.
const WRONG: &[(&str, &str, usize, &str, &str)] = &[
    ("title = \"Mine\"", "title = ", 1, "", "value"),
    ("title = \"Mine\"\n", "", 1, "title", "is missing"),
    ("title = \"Mine\"", "title = \"\"", 1, "title", "the text is empty"),
    ("title = \"Mine\"", "title = 1", 1, "title", "1 is not text"),
    ("about =", "abuot =", 3, "abuot", "no such key; there are about"),
    ("[run]", "[rum]", 5, "rum", "no such key"),
    ("kind = \"recovery\"\n", "", 5, "run", "kind is missing: additional-reads"),
    ("\"recovery\"", "\"recover\"", 6, "run.kind", "\"recover\" is none of additional-reads"),
    ("kind = \"recovery\"", "kind = 3", 6, "run.kind", "3 is none of"),
    ("\"mine\"", "\"mime\"", 7, "run.model", "no disk model is called \"mime\""),
    ("disk_mb = 20", "disk_mb = 0", 8, "run.disk_mb", "0 is less than 1"),
    ("disk_mb = 20", "disk_mb = -20", 8, "run.disk_mb", "-20 is less than 1"),
    ("disk_mb = 20", "disk_mb = 2.5", 8, "run.disk_mb", "2.5 is not a whole number"),
    ("disk_mb = 20", "disk_mb = 9000000000", 8, "run.disk_mb", "is more than"),
    ("disk_mb = 20", "disk_mib = 20", 8, "run.disk_mib", "no such key; there are cases"),
    ("requests = 500", "requests = \"500\"", 9, "run.requests", "\"500\" is not a whole number"),
    ("requests = 500\n", "", 5, "run.requests", "is missing"),
    ("interval_ms = 500", "interval_ms = 500\ninterval_ms = 1", 11, "", "duplicate key"),
    ("repeats = 2", "repeats = 0", 11, "run.repeats", "0 is less than 1"),
    (
        "[\"small\"]",
        "[\"large\"]",
        12,
        "run.courses[0]",
        "no entry is named \"large\"; there are small",
    ),
    ("[\"small\"]", "\"small\"", 12, "run.courses", "\"small\" is not a list"),
    ("file = \"web.csv\", rate", "rate", 14, "run.traces[0].workload", "give a workload, a file"),
    ("100000 },\n  {", "1.5 },\n  {", 14, "run.traces[0].rate_milli", "1.5 is not a whole number"),
    ("pro-websearch", "pro-web", 15, "run.traces[1].workload", "no workload is named pro-web"),
    (
        "name = \"made\"",
        "name = \"web\"",
        15,
        "run.traces[1].name",
        "the name \"web\" is given twice",
    ),
    ("\"raid5\"", "\"raid7\"", 18, "run.cases[0].code", "raid7"),
    ("disks = 3", "disks = 1", 18, "run.cases[0].disks", "disk"),
    ("disks = 3", "disks = 3000", 18, "run.cases[0].disks", "3000 is more than 256"),
    ("unit_kib = 64", "unit_kib = 1", 18, "run.cases[0].unit_kib", "1 is less than 4"),
    (", min_kib_s = 20000", "", 18, "run.cases[0].min_kib_s", "is missing"),
    (
        "min_kib_s = 20000",
        "min_kib_s = 20000, max_kib_s = 19999",
        18,
        "run.cases[0].max_kib_s",
        "is less than min_kib_s",
    ),
    (
        "\"ascending\"",
        "\"rising\"",
        21,
        "run.policies[0].policy.order",
        "\"rising\" is none of auto, ascending",
    ),
    ("heads = 16", "heads = 0", 21, "run.policies[0].parts.pipelined.heads", "0 is less than 1"),
    (
        "heads = 16",
        "request_bytes = 5000",
        21,
        "run.policies[0].parts.pipelined.request_bytes",
        "5000 is none of",
    ),
    ("md-sleep", "md-nap", 21, "run.policies[0].parts.pace", "\"md-nap\" is none of md-sleep"),
    ("{ name = \"weft\" }", "\"weft\"", 22, "run.policies[1]", "\"weft\" is not a table"),
    (
        "\"small\" = 1.0",
        "\"small\" = \"1\"",
        26,
        "paper.rebuild time, web.MD.small",
        "\"1\" is not a number",
    ),
];

#[test]
fn an_error_in_a_file_has_its_line_and_its_key() {
    assert!(WRONG.len() >= 30);
    let scratch = folder("lab-wrong");
    let models = Models::read(&scratch.join("models")).expect("models");
    Experiment::parse("mine.toml", MINE, &models).expect("a sound file");
    for (from, to, line, key, cause) in WRONG {
        assert!(MINE.contains(from), "{from}");
        let text = MINE.replacen(from, to, 1);
        let error = Experiment::parse("mine.toml", &text, &models).expect_err(to).to_string();
        let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
        let begin = format!("mine.toml, line {line}: {key}");
        assert!(error.starts_with(&begin) && error.contains(cause), "{to}: {error}");
    }
    // Empty lists, of which nothing could be shown.
    for list in ["traces", "cases", "policies"] {
        let (before, after) = MINE.split_once(&format!("{list} = [")).expect("a list");
        let after = after.split_once("\n]").expect("its end").1;
        let text = format!("{before}{list} = []{after}").replace("courses = [\"small\"]", "");
        let error = Experiment::parse("mine.toml", &text, &models).expect_err(list).to_string();
        assert!(error.contains(&format!("run.{list}: the list is empty")), "{error}");
    }
    // The program says the same, and where the format is described.
    fs::write(scratch.join("mine.toml"), MINE.replace("disk_mb = 20", "disk_mb = 0"))
        .expect("a file");
    let said = refused(&["run", "mine.toml", "--models", "models"], scratch.path(), 1);
    assert!(said.contains("mine.toml, line 8: run.disk_mb: 0 is less than 1"), "{said}");
    assert!(said.contains("docs/lab.md"), "{said}");
    let said = refused(&["run", "yours.toml"], scratch.path(), 1);
    assert!(said.contains("cannot read yours.toml"), "{said}");
}

#[test]
fn an_error_in_a_modelled_disk_has_its_line_and_its_key() {
    let scratch = folder("lab-wrong-disk");
    let disk = fs::read_to_string(scratch.join("models/mine.toml")).expect("a disk");
    for (from, to, cause) in [
        ("rpm = 15000", "rpm = 0", "hdd.rpm: 0 is less than 1"),
        ("rpm = 15000\n", "", "hdd.rpm: is missing"),
        ("rpm = 15000", "rmp = 15000", "hdd.rmp: no such key"),
        ("sector_bytes = 512", "sector_bytes = 520", "sector_bytes: 520 is none of 512, 4096"),
        ("[hdd]", "[sdd]", "sdd: no such key"),
        (
            "average_ms = ",
            "average_ms = 900",
            "hdd.seek.full_stroke_ms: must be longer than average_ms",
        ),
        ("outer_mb_s = ", "outer_mb_s = -", "hdd.outer_mb_s: -"),
        ("outer_mb_s = ", "outer_mb_s = nan #", "hdd.outer_mb_s: nan is not a number"),
    ] {
        assert!(disk.contains(from), "{from}\n{disk}");
        fs::write(scratch.join("models/mine.toml"), disk.replacen(from, to, 1)).expect("a file");
        let error = Models::read(&scratch.join("models")).expect_err(to).to_string();
        assert!(error.contains("mine.toml, line ") && error.contains(cause), "{to}: {error}");
    }
    let said = refused(&["run", "drc-table1", "--models", "nowhere"], scratch.path(), 1);
    assert!(said.contains("--models: nowhere: "), "{said}");
}

/// A value that the schema allows, with every key that `keys` keeps.
fn example(schema: &Value, root: &Value, keys: &dyn Fn(&str) -> bool) -> Toml {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        return example(&root["$defs"][name], root, keys);
    }
    if let Some(word) = schema["enum"].get(0).or_else(|| schema.get("const")) {
        return word.as_str().map_or_else(
            || Toml::Integer(word.as_i64().expect("a number")),
            |word| Toml::String(word.into()),
        );
    }
    if let Some(branch) = schema["oneOf"].get(0) {
        return example(branch, root, keys);
    }
    let word = |format: Option<&str>| match format {
        Some("code") => "drc:4,2,1",
        Some("redundancy") => "raid5",
        Some("cache-policy") => "lru",
        Some("model") => "wd10eals",
        Some("workload") => "vdf-web",
        _ => "x",
    };
    match schema["type"].as_str().expect("a type") {
        "string" => Toml::String(word(schema["format"].as_str()).into()),
        "integer" => Toml::Integer(schema["minimum"].as_i64().unwrap_or(1).max(1) + 6),
        "number" => Toml::Float(1.5),
        "boolean" => Toml::Boolean(true),
        "array" => Toml::Array(vec![example(&schema["items"], root, keys)]),
        _ => {
            let all = schema["properties"].as_object().into_iter().flatten();
            let kept = all.filter(|(key, _)| keys(key));
            Toml::Table(
                kept.map(|(key, value)| (key.clone(), example(value, root, keys))).collect(),
            )
        }
    }
}

/// Every table of an example, with its schema: a way to it by keys, of which `[` is a list's first.
fn tables<'a>(schema: &'a Value, root: &'a Value, way: &str, found: &mut Vec<(String, &'a Value)>) {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        return tables(&root["$defs"][name], root, way, found);
    }
    if schema["items"].is_object() {
        return tables(&schema["items"], root, &format!("{way}/["), found);
    }
    if schema["additionalProperties"] == false {
        found.push((way.to_owned(), schema));
    }
    for (key, value) in schema["properties"].as_object().into_iter().flatten() {
        tables(value, root, &format!("{way}/{key}"), found);
    }
}

fn at<'a>(document: &'a mut Toml, way: &str) -> Option<&'a mut toml::Table> {
    let mut keys = way.split('/').filter(|key| !key.is_empty());
    let inner = keys.try_fold(document, |value, key| match key {
        "[" => value.as_array_mut()?.first_mut(),
        key => value.as_table_mut()?.get_mut(key),
    });
    inner?.as_table_mut()
}

/// What the schema requires beyond the parser, which has a default.
const STRICTER: [&str; 1] = ["rate_milli"];
/// Keys that only some ways to reshape have.
const OF_WAYS: [&str; 3] = ["skip_empty", "as_printed", "written_percent"];

#[test]
fn the_schema_says_what_the_parser_takes() {
    let root: Value = serde_json::from_str(experiment::SCHEMA).expect("JSON");
    let kinds = root["properties"]["run"]["oneOf"].as_array().expect("kinds");
    let mut lists = 0;
    for kind in kinds {
        let mut schema = root.clone();
        schema["properties"]["run"] = kind.clone();
        let name = &kind["properties"]["kind"]["const"];
        let whole = example(&schema, &schema, &|key| !OF_WAYS.contains(&key));
        let parse =
            |document: Toml| Experiment::deserialize(document).map(drop).map_err(|e| e.to_string());
        parse(whole.clone()).unwrap_or_else(|e| panic!("{name}, with every key: {e}"));
        let required = |key: &str| {
            let has = |(_, table): &(String, &Value)| {
                table["required"].as_array().is_some_and(|all| all.iter().any(|k| k == key))
            };
            let mut all = Vec::new();
            tables(&schema, &schema, "", &mut all);
            all.iter().any(has)
        };
        let least = example(&schema, &schema, &|key| required(key));
        parse(least).unwrap_or_else(|e| panic!("{name}, with what is required: {e}"));
        let mut found = Vec::new();
        tables(&schema, &schema, "", &mut found);
        for (way, table) in found {
            let mut more = whole.clone();
            at(&mut more, &way).expect("in the example").insert("zzz".into(), Toml::Integer(1));
            // Of a way to reshape without parameters serde skips the others' keys.
            let Err(error) = parse(more) else {
                assert!(
                    way == "/run/policies/[" && table["properties"]["way"].is_object(),
                    "{way}"
                );
                continue;
            };
            // Which keys the parser knows; of flattened tables it does not say so.
            let known: Option<Vec<&str>> = error.split_once("expected ").map(|(_, known)| {
                known.lines().next().unwrap_or("").split('`').skip(1).step_by(2).collect()
            });
            if let Some(mut known) = known {
                let mut properties: Vec<&str> =
                    table["properties"].as_object().expect("keys").keys().map(|k| &**k).collect();
                // The parser takes the kind away first.
                properties.retain(|key| !(way == "/run" && *key == "kind"));
                known.sort_unstable();
                properties.sort_unstable();
                assert_eq!(known, properties, "{name}{way}");
                lists += 1;
            }
            for key in table["required"].as_array().expect("keys").iter().filter_map(Value::as_str)
            {
                let mut less = whole.clone();
                at(&mut less, &way).expect("in the example").remove(key).expect("in the example");
                let is_taken = parse(less).is_ok();
                assert_eq!(is_taken, STRICTER.contains(&key), "{name}{way}/{key}");
            }
        }
    }
    assert!(lists > 40, "the parser named its keys for {lists} tables");
    // What only some ways to reshape have.
    let text = |way: &str| {
        let mine = "title = 'x'\nsource = 'x'\nabout = 'x'\n[run]\nkind = 'reshape-requests'\ndisks = 3\n\
             added = 1\ndisk_mib = 64\nunit_kib = 64\nbuffer_kib = 64\npolicies = [{ name = 'x', ";
        Experiment::parse("x", &format!("{mine}{way} }}]"), &Models::default()).map(drop)
    };
    text("way = 'alv', skip_empty = true, as_printed = true").expect("ALV's");
    text("way = 'weft', written_percent = 50").expect("the engine's");
    for wrong in
        ["way = 'weft'", "way = 'md', written_percent = 50", "way = 'ga', skip_empty = true"]
    {
        assert!(text(wrong).is_err(), "{wrong}");
    }
}
