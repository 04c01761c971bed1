//! Figures and the page: the paper's numbers next to ours, and the same bytes for the same seed.

use weft_lab::report::{html, svg};
use weft_lab::{Experiment, Figure, Models, RunOptions, figure, run};

fn closed_forms() -> Vec<Figure> {
    let options = RunOptions { threads: 1, ..RunOptions::default() };
    ["drc-table1", "drc-fig9", "drc-fig11"]
        .map(|name| run(&Experiment::find(name).unwrap(), &options, &|_, _| {}).unwrap())
        .into()
}

fn point<'a>(figure: &'a Figure, panel: &str, series: &str, x: &str) -> &'a figure::Point {
    let panel = figure.panels.iter().find(|p| p.title == panel).expect("the panel");
    let series = panel.series.iter().find(|s| s.name == series).expect("the series");
    series.points.iter().find(|p| p.x == x).expect("the point")
}

#[test]
fn every_experiment_file_is_sound() {
    let all = Experiment::all();
    for experiment in &all {
        let source = &experiment.source;
        // A figure or table of a paper, or why there is none.
        let has_source = ["Fig", "Table", "none: "].iter().any(|word| source.contains(word));
        assert!(has_source && !experiment.title.is_empty(), "{}: {source}", experiment.name);
    }
    // The list shows which take long: all that simulate.
    let closed = ["drc-table1", "drc-fig9", "drc-fig11"];
    for experiment in &all {
        let at_once = experiment.processor_s == 0;
        assert_eq!(at_once, closed.contains(&&*experiment.name), "{}", experiment.name);
    }
    let error = Experiment::find("fig99").unwrap_err().to_string();
    for experiment in &all {
        assert!(error.contains(&experiment.name), "{error}");
    }
    assert!(Experiment::parse("x", "title = 1", &Models::default()).is_err());
    assert!(
        Experiment::parse("x", "", &Models::default()).unwrap_err().to_string().contains("title")
    );
}

#[test]
fn the_papers_numbers_stand_beside_ours() {
    let figures = closed_forms();
    for figure in &figures {
        let points = figure.panels.iter().flat_map(|p| &p.series).flat_map(|s| &s.points);
        assert!(points.filter(|p| p.paper.is_some()).count() >= 4, "{}", figure.name);
        assert!(!figure.errors.is_empty(), "{}", figure.name);
        assert_eq!(figure.unmatched, [""; 0], "{}", figure.name);
    }
    let table = point(&figures[0], "3 local groups", "equation 1", "F = 2");
    assert!((table.ours - table.paper.unwrap()).abs() < 1e-9);
    let counted = point(&figures[0], "3 local groups", "counted, drc:6,3,1", "F = 2");
    assert_eq!((counted.ours, counted.paper), (1.0, None));

    // The slip of the paper, and what is right: §1 of Fig. 11's file.
    let bandwidth = "recovery bandwidth for equal reliability";
    for (code, as_printed, right) in [
        ("RAID-6", 125.0, 125.0),
        ("LRC", 60.0, 78.0),
        ("DRC", 94.0, 124.0),
        ("DRC-G", 125.0, 164.0),
    ] {
        let ours = point(&figures[2], bandwidth, "n = 6", code);
        assert!((ours.ours - as_printed).abs() < 1.5, "{ours:?}");
        assert_eq!(ours.paper, Some(as_printed));
        let ours = point(&figures[2], bandwidth, "actual n", code);
        assert!((ours.ours - right).abs() < 1.5, "{ours:?}");
    }
}

#[test]
fn numbers_without_a_place_are_told() {
    let mut experiment = Experiment::find("drc-table1").unwrap();
    let series = experiment.paper.get_mut("2 local groups").unwrap();
    series.get_mut("equation 1").unwrap().insert("F = 9".into(), 1.0);
    let figure = run(&experiment, &RunOptions::default(), &|_, _| {}).unwrap();
    assert_eq!(figure.unmatched, ["2 local groups / equation 1 / F = 9"]);
    assert!(point(&figure, "2 local groups", "equation 1", "F = 2").paper.is_some());
}

#[test]
fn the_page_is_whole_and_stays_the_same() {
    let figures = closed_forms();
    let page = html(&figures);
    assert_eq!(page, html(&closed_forms()));
    let panels: usize = figures.iter().map(|figure| figure.panels.len()).sum();
    assert_eq!(page.matches("<svg").count(), panels);
    assert_eq!(page.matches("</svg>").count(), panels);
    for needed in ["seed 1", "Errors in the paper", "no trace", "class=\"paper\"", "ours / paper"] {
        assert!(page.contains(needed), "no {needed}");
    }
    for outside in ["<script", "http://", "https://", "NaN", "inf\""] {
        let page = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!page.contains(outside), "{outside} in the page");
    }
}

#[test]
fn csv_has_a_line_for_each_number() {
    let figures = closed_forms();
    let lines: String = figures.iter().map(Figure::csv_lines).collect();
    let columns = figure::CSV_HEADER.split(',').count();
    let line = "drc-table1,2 local groups,equation 1,F = 2,1.5,,,1.5,1";
    assert!(lines.lines().any(|l| l == line), "{lines}");
    for line in lines.lines().filter(|line| !line.contains('"')) {
        assert_eq!(line.split(',').count(), columns, "{line}");
    }
    let quoted = "drc-table1,2 local groups,\"counted, drc:4,2,1\",F = 1,0.5,,,,1";
    assert!(lines.lines().any(|l| l == quoted), "{lines}");
}

/// The heights of the bars of a colour. A legend's square comes first.
fn bars(picture: &str, colour: &str) -> Vec<f64> {
    let rects = picture.lines().filter(|line| line.starts_with("<rect") && line.contains(colour));
    let height = |line: &str| line.split("height=\"").nth(1)?.split('"').next()?.parse().ok();
    rects.map(|line| height(line).expect("a height")).skip(1).collect()
}

#[test]
fn a_picture_shows_what_the_figure_says() {
    let figures = closed_forms();
    let panel = &figures[0].panels[0];
    let picture = svg(panel);
    assert_eq!(picture, svg(panel), "the same bytes");
    assert!(picture.starts_with("<svg xmlns") && picture.ends_with("</svg>\n"), "a whole file");
    // Heights in proportion to the numbers, in pixels for each.
    let scale = |number: usize, colour: &str| {
        let points = &panel.series[number].points;
        let bars = bars(&picture, colour);
        assert_eq!(bars.len(), points.len(), "{colour}");
        bars.iter().sum::<f64>() / points.iter().map(|point| point.ours).sum::<f64>()
    };
    let colours = ["#0072b2", "#e69f00", "#009e73", "#cc79a7"];
    for (number, colour) in colours.iter().enumerate() {
        let ratio = scale(number, colour) / scale(0, colours[0]);
        assert!((ratio - 1.0).abs() < 0.01, "{colour}: {ratio}");
    }
    let points = panel.series.iter().flat_map(|series| &series.points);
    let papers = points.filter(|point| point.paper.is_some()).count();
    // And one in the legend.
    assert_eq!(picture.matches("class=\"paper\"").count(), papers + 1);
}
