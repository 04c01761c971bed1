//! A panel as SVG: bars or lines, the paper's numbers as diamonds.

use std::fmt::Write as _;

use super::axis::Axis;
use super::{escape, number};
use crate::figure::{Panel, Point, Series, Shape};

const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 12.0;
const BOTTOM: f64 = 54.0;
const LEGEND_LINE: f64 = 20.0;
/// Width of a letter of the legend, about.
const LETTER: f64 = 6.9;

/// Colours that people with any colour vision can tell apart (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a8a", "#1d2125"];

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// The panel as an SVG element.
#[must_use]
pub fn svg(panel: &Panel) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" role=\"img\" aria-label=\"{}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>",
        escape(&panel.title)
    );
    let top = legend(&mut out, panel);
    let values = || {
        let points = panel.series.iter().flat_map(|series| &series.points);
        points.flat_map(|p| {
            [Some(p.ours), p.paper, p.range.map(|r| r.0), p.range.map(|r| r.1)]
                .into_iter()
                .flatten()
        })
    };
    let y = Axis::over(values(), panel.log_y, true, HEIGHT - BOTTOM, top);
    frame(&mut out, panel, &y, top);
    match panel.shape {
        Shape::Bars => bars(&mut out, panel, &y),
        Shape::Lines => lines(&mut out, panel, &y, false),
        Shape::LogLines => lines(&mut out, panel, &y, true),
    }
    out.push_str("</svg>\n");
    out
}

/// Names and colours, in as many lines as needed; where the plot begins.
fn legend(out: &mut String, panel: &Panel) -> f64 {
    let has_paper =
        panel.series.iter().flat_map(|series| &series.points).any(|point| point.paper.is_some());
    let (mut x, mut y) = (LEFT, 18.0);
    let mut place = |name: &str| {
        #[expect(clippy::cast_precision_loss, reason = "letters of a name")]
        let width = 26.0 + LETTER * name.chars().count() as f64;
        if x + width > WIDTH && x > LEFT {
            (x, y) = (LEFT, y + LEGEND_LINE);
        }
        let at = (x, y);
        x += width;
        at
    };
    for (index, series) in panel.series.iter().enumerate() {
        let (x, y) = place(&series.name);
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{y:.1}\" fill=\"#1d2125\">{}</text>",
            y - 11.0,
            colour(index),
            x + 17.0,
            escape(&series.name)
        );
    }
    if has_paper {
        let (x, y) = place("the paper");
        diamond(out, x + 6.0, y - 5.0, "#1d2125", "the paper's numbers");
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{y:.1}\" fill=\"#1d2125\">the paper</text>",
            x + 17.0
        );
    }
    y + 16.0
}

/// Axes, grid and labels.
fn frame(out: &mut String, panel: &Panel, y: &Axis, top: f64) {
    let bottom = HEIGHT - BOTTOM;
    for (value, label) in y.ticks() {
        let at = y.place(value);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{label}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.5
        );
    }
    let middle = f64::midpoint(top, bottom);
    let _ = writeln!(
        out,
        "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{bottom}\" y2=\"{bottom}\" stroke=\"#1d2125\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#1d2125\">{}</text>\
         <text transform=\"translate(16 {middle:.1}) rotate(-90)\" text-anchor=\"middle\" \
         fill=\"#1d2125\">{}</text>",
        WIDTH - RIGHT,
        f64::midpoint(LEFT, WIDTH - RIGHT),
        HEIGHT - 10.0,
        escape(&panel.x_label),
        escape(&panel.y_label)
    );
}

/// The labels of all series, in the order in which they first come.
fn labels(panel: &Panel) -> Vec<&str> {
    let mut labels: Vec<&str> = Vec::new();
    for point in panel.series.iter().flat_map(|series| &series.points) {
        if !labels.contains(&point.x.as_str()) {
            labels.push(&point.x);
        }
    }
    labels
}

#[expect(clippy::cast_precision_loss, reason = "a handful of labels and series")]
fn bars(out: &mut String, panel: &Panel, y: &Axis) {
    let labels = labels(panel);
    let group = (WIDTH - LEFT - RIGHT) / labels.len().max(1) as f64;
    let bar = (group * 0.8 / panel.series.len().max(1) as f64).min(60.0);
    let bottom = HEIGHT - BOTTOM;
    for (index, label) in labels.iter().enumerate() {
        let middle = LEFT + group * (index as f64 + 0.5);
        let _ = writeln!(
            out,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#1d2125\">{}</text>",
            bottom + 18.0,
            escape(label)
        );
        let first = middle - bar * panel.series.len() as f64 / 2.0;
        for (number, series) in panel.series.iter().enumerate() {
            let Some(point) = series.points.iter().find(|point| point.x == *label) else {
                continue;
            };
            let left = first + bar * number as f64;
            let top = y.place(point.ours);
            let _ = writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\">\
                 <title>{}</title></rect>",
                left + 1.0,
                bar - 2.0,
                (bottom - top).max(0.0),
                colour(number),
                escape(&tip(series, point))
            );
            marks(out, point, left + bar / 2.0, y, series);
        }
    }
}

fn lines(out: &mut String, panel: &Panel, y: &Axis, log: bool) {
    let places = || panel.series.iter().flat_map(|series| &series.points).map(|point| point.at);
    let x = Axis::over(places(), log, false, LEFT + 8.0, WIDTH - RIGHT - 16.0);
    let bottom = HEIGHT - BOTTOM;
    for (value, label) in x.ticks() {
        let at = x.place(value);
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{bottom}\" y2=\"{:.1}\" stroke=\"#1d2125\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{label}</text>",
            bottom + 5.0,
            bottom + 19.0
        );
    }
    for (index, series) in panel.series.iter().enumerate() {
        let mut path = String::new();
        for (number, point) in series.points.iter().enumerate() {
            let letter = if number == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{:.1} {:.1}", x.place(point.at), y.place(point.ours));
        }
        let _ = writeln!(
            out,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\" \
             stroke-linejoin=\"round\"><title>{}</title></path>",
            colour(index),
            escape(&series.name)
        );
        for point in &series.points {
            marks(out, point, x.place(point.at), y, series);
        }
    }
}

/// The range and the paper's number of a point.
fn marks(out: &mut String, point: &Point, x: f64, y: &Axis, series: &Series) {
    if let Some((low, high)) = point.range {
        let (low, high) = (y.place(low), y.place(high));
        let _ = writeln!(
            out,
            "<path d=\"M{0:.1} {high:.1}H{1:.1}M{x:.1} {high:.1}V{low:.1}M{0:.1} {low:.1}H{1:.1}\" \
             fill=\"none\" stroke=\"#1d2125\" stroke-width=\"1.5\"/>",
            x - 5.0,
            x + 5.0
        );
    }
    if let Some(paper) = point.paper {
        diamond(out, x, y.place(paper), "#1d2125", &tip(series, point));
    }
}

fn diamond(out: &mut String, x: f64, y: f64, fill: &str, title: &str) {
    let _ = writeln!(
        out,
        "<path class=\"paper\" d=\"M{x:.1} {:.1}l6 6l-6 6l-6 -6z\" fill=\"{fill}\" stroke=\"#fff\" \
         stroke-width=\"1.5\"><title>{}</title></path>",
        y - 6.0,
        escape(title)
    );
}

fn tip(series: &Series, point: &Point) -> String {
    let paper = point.paper.map_or_else(String::new, |p| format!(", the paper {}", number(p)));
    format!("{}, {}: {}{paper}", series.name, point.x, number(point.ours))
}
