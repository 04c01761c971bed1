//! Figures and the page: the paper's numbers next to ours, and the same bytes for the same seed.

use weft_lab::report::{html, png};
use weft_lab::{Experiment, Figure, LabError, RunOptions, figure, run};

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
    assert!(Experiment::parse("x", "title = 1").is_err());
    assert!(Experiment::parse("x", "").unwrap_err().to_string().contains("title"));
}

#[test]
fn the_papers_numbers_stand_beside_ours() {
    let figures = closed_forms();
    for figure in &figures {
        let points = figure.panels.iter().flat_map(|p| &p.series).flat_map(|s| &s.points);
        assert!(points.filter(|p| p.paper.is_some()).count() >= 4, "{}", figure.name);
        assert!(!figure.errors.is_empty(), "{}", figure.name);
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
fn numbers_without_a_place_are_an_error() {
    let mut experiment = Experiment::find("drc-table1").unwrap();
    let series = experiment.paper.get_mut("2 local groups").unwrap();
    series.get_mut("equation 1").unwrap().insert("F = 9".into(), 1.0);
    let result = run(&experiment, &RunOptions::default(), &|_, _| {});
    let Err(LabError::Experiment { cause, .. }) = result else { panic!("{result:?}") };
    assert!(cause.contains("2 local groups / equation 1 / F = 9"), "{cause}");
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

/// The pixels of a PNG, checked against its own sums: width, height, red-green-blue.
fn pixels(file: &[u8]) -> (usize, usize, Vec<u8>) {
    assert_eq!(&file[..8], b"\x89PNG\r\n\x1a\n");
    let word = |at: usize| u32::from_be_bytes(file[at..at + 4].try_into().unwrap());
    let (width, height) = (word(16) as usize, word(20) as usize);
    let (mut at, mut data) = (8, Vec::new());
    while at < file.len() {
        let len = word(at) as usize;
        let mut crc = flate2::Crc::new();
        crc.update(&file[at + 4..at + 8 + len]);
        assert_eq!(crc.sum(), word(at + 8 + len), "a chunk's sum");
        if &file[at + 4..at + 8] == b"IDAT" {
            data.extend_from_slice(&file[at + 8..at + 8 + len]);
        }
        at += 12 + len;
    }
    let mut lines = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::ZlibDecoder::new(&data[..]), &mut lines).unwrap();
    assert_eq!(lines.len(), height * (1 + 3 * width));
    let rgb = lines.chunks_exact(1 + 3 * width).flat_map(|line| line[1..].to_vec()).collect();
    (width, height, rgb)
}

#[test]
fn a_picture_shows_what_the_page_shows() {
    let figures = closed_forms();
    let panel = &figures[0].panels[0];
    let file = png(panel);
    assert_eq!(file, png(panel), "the same bytes");
    let (width, height, rgb) = pixels(&file);
    assert!(width > 1000 && height > 600);
    let count = |colour: [u8; 3]| rgb.chunks_exact(3).filter(|pixel| *pixel == colour).count();
    // Four series of bars in the colours of the page, the paper's diamonds and the words in dark.
    for colour in [[0, 0x72, 0xb2], [0xe6, 0x9f, 0], [0, 0x9e, 0x73], [0xcc, 0x79, 0xa7]] {
        assert!(count(colour) > 5000, "{colour:?}: {}", count(colour));
    }
    assert!(count([0x1d, 0x21, 0x25]) > 2000 && count([255, 255, 255]) > width * height / 2);
    // Bars have pixels in proportion to their numbers.
    let wanted = panel.series[0].points.iter().map(|p| p.ours).sum::<f64>();
    let (blue, legend) = (count([0, 0x72, 0xb2]) as f64, 24.0 * 24.0);
    let other = figures[0].panels[0].series[1].points.iter().map(|p| p.ours).sum::<f64>();
    let orange = count([0xe6, 0x9f, 0]) as f64 - legend;
    let (ours, theirs) = ((blue - legend) / orange, wanted / other);
    assert!((ours / theirs - 1.0).abs() < 0.1, "{ours} {theirs}");
}
