//! `weft lab list`, `run`, `report`: the paper's numbers next to ours, and a page that a browser
//! shows.

use std::fs;
use std::process::Output;

use crate::common::Bench;
use weft_testkit::{Need, command, have};

#[test]
fn experiments_are_listed_and_run() {
    let bench = Bench::new("lab");
    let list = bench.weft(&["lab", "list"]);
    for name in ["drc-table1", "drc-fig11", "drc-fig12", "drc-fig14", "drc-fig15"] {
        assert!(list.contains(name), "{list}");
    }
    assert!(list.contains("takes about") && list.contains("a moment"), "{list}");
    // Columns stand below each other, however long a name is.
    let at = list.find("shows").expect("a heading");
    for line in list.lines().skip(1).filter(|line| !line.starts_with('(')) {
        let (before, title) = line.split_at(at);
        assert!(!title.starts_with(' ') && before.ends_with("  "), "{line}");
        assert!(!before.trim_end_matches("  ").ends_with(' '), "{line}");
    }
    let said = bench.weft(&["lab", "run", "drc-table1", "drc-fig11", "--seed", "5"]);
    for part in
        ["seed 5", "no trace", "paper 125", "error in the paper", "equation 1", "ours/paper"]
    {
        assert!(said.contains(part), "no `{part}` in\n{said}");
    }
    let json = bench.weft(&["lab", "run", "drc-table1", "--json"]);
    assert_eq!(json, bench.weft(&["lab", "run", "drc-table1", "--json"]), "the same bytes");
    let figures: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(figures["figures"][0]["panels"][0]["series"][0]["points"][1]["paper"], 1.5);
    let csv = bench.weft(&["lab", "run", "drc-table1", "--csv"]);
    assert!(csv.starts_with("figure,panel,series,x,ours,low,high,paper,seed\n"), "{csv}");
    assert!(csv.lines().count() > 20, "{csv}");
}

#[test]
fn what_cannot_be_run_is_said() {
    let bench = Bench::new("lab-bad");
    let cases: [(&[&str], i32, &str); 7] = [
        (&["lab", "run"], 2, "NAME"),
        (&["lab", "run", "fig99"], 2, "drc-fig11"),
        (&["lab", "report", "fig99"], 2, "drc-fig11"),
        (&["lab", "run", "--all", "drc-table1"], 2, "cannot be used with"),
        (&["lab", "run", "drc-table1", "--traces", "nowhere"], 1, "no such folder"),
        (&["lab", "run", "drc-table1", "--seed", "x"], 2, "invalid value"),
        (&["lab", "report", "drc-table1", "--out", "no/where.html"], 1, "cannot write"),
    ];
    for (args, code, why) in cases {
        let said = bench.refused(args, code);
        assert!(said.contains(why), "weft {args:?} should say `{why}`, but says\n{said}");
    }
    let said = bench.refused(&["lab", "report", "fig99", "--out", "page.html"], 2);
    assert!(!bench.path("page.html").exists(), "an empty page is left: {said}");
}

/// Opens a page in Chromium; the document as it stands then, and what the browser logged.
fn browse(bench: &Bench, page: &str) -> (String, String) {
    let mut chromium = command("chromium");
    chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    chromium.args(["--no-first-run", "--disable-extensions", "--enable-logging=stderr"]);
    chromium.arg(format!("--user-data-dir={}", bench.path("browser").display()));
    chromium.env("HOME", bench.scratch.path());
    chromium.arg("--dump-dom").arg(format!("file://{}", bench.path(page).display()));
    let Output { status, stdout, stderr } = chromium.output().expect("start chromium");
    let [dom, log] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(status.success() && dom.contains("</html>"), "chromium ended with {status}:\n{log}");
    (dom, log)
}

#[test]
fn the_report_is_shown_by_a_browser() {
    if !have(&[Need::Tool("chromium")]) {
        return;
    }
    let bench = Bench::new("lab-report");
    let report = ["lab", "report", "drc-table1", "drc-fig11", "--out", "page.html"];
    bench.weft(&[&report[..], &["--svg", "plots"]].concat());
    let page = fs::read_to_string(bench.path("page.html")).expect("the page");
    let plots = page.matches("<svg").count();
    assert!(plots >= 9, "{plots} plots");

    let (_, log) = browse(&bench, "page.html");
    assert!(!log.contains("CONSOLE"), "the page complains:\n{log}");

    // The same page, with a script that measures what is really laid out and drawn.
    let probe = "<img width=9 src=plots/drc-fig11-6.svg><script>onload = () => {
        const sizes = [...document.querySelectorAll('svg')].map(svg => svg.getBoundingClientRect());
        const bars = [...document.querySelectorAll('svg rect title')].map(t => t.parentNode.getBBox());
        const lines = [...document.querySelectorAll('svg path[fill=none]')].map(p => p.getTotalLength());
        document.body.dataset.plots = sizes.filter(s => s.width > 300 && s.height > 100).length;
        document.body.dataset.bars = bars.filter(b => b.width > 1 && b.height > 0.5).length;
        document.body.dataset.lines = lines.filter(length => length > 50).length;
        document.body.dataset.picture = document.querySelector('img').naturalWidth;
        document.body.dataset.overflow = document.documentElement.scrollWidth > innerWidth;
        console.error('the console is heard');
        }</script></body>";
    fs::write(bench.path("probe.html"), page.replace("</body>", probe)).expect("a page");
    let (dom, log) = browse(&bench, "probe.html");
    assert!(log.contains("the console is heard"), "a complaint would not be seen:\n{log}");
    let told = |name: &str| {
        let at = dom.find(&format!("data-{name}=\"")).expect("what the script found");
        dom[at..].split('"').nth(1).expect("a value").to_owned()
    };
    assert_eq!(told("plots"), plots.to_string());
    assert!(told("bars").parse::<u32>().expect("a number") > 40, "{} bars", told("bars"));
    assert!(told("lines").parse::<u32>().expect("a number") >= 8, "{} lines", told("lines"));
    assert_eq!(told("picture"), "820", "Chromium reads the picture");
    assert_eq!(told("overflow"), "false", "wider than the window");
}
