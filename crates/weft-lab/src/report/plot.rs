//! A panel as marks on a plane: rectangles, lines, diamonds and words. The code that draws them
//! knows nothing of series and axes.

use super::axis::Axis;
use super::number;
use crate::figure::{Panel, Point, Series, Shape};

/// The plane.
pub(super) const WIDTH: f64 = 820.0;
/// Downwards.
pub(super) const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 12.0;
const BOTTOM: f64 = 54.0;
const LEGEND_LINE: f64 = 20.0;
/// Approximate width of a letter of the legend.
const LETTER: f64 = 6.9;
/// Half the width of a diamond.
pub(super) const DIAMOND: f64 = 6.0;

/// Colours that are distinguishable with any colour vision (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a8a", "#1d2125"];
const DARK: &str = "#1d2125";
const GREY: &str = "#555555";
const FAINT: &str = "#dddddd";

/// The alignment of words relative to their point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A mark. Places in the plane's units, y downwards; colours as `#rrggbb`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mark {
    Rect { x: f64, y: f64, width: f64, height: f64, colour: &'static str, tip: String },
    Line { points: Vec<(f64, f64)>, colour: &'static str, width: f64, tip: String },
    Diamond { x: f64, y: f64, tip: String },
    Text { x: f64, y: f64, anchor: Anchor, upwards: bool, colour: &'static str, text: String },
}

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// The marks of a panel.
pub(super) fn plot(panel: &Panel) -> Vec<Mark> {
    let mut marks = Vec::new();
    let top = legend(&mut marks, panel);
    let points = panel.series.iter().flat_map(|series| &series.points);
    let values = points.flat_map(|p| {
        let (low, high) = p.range.unzip();
        [Some(p.ours), p.paper, low, high].into_iter().flatten()
    });
    let y = Axis::over(values, panel.log_y, true, HEIGHT - BOTTOM, top);
    frame(&mut marks, panel, &y, top);
    match panel.shape {
        Shape::Bars => bars(&mut marks, panel, &y),
        Shape::Lines => lines(&mut marks, panel, &y, top, false),
        Shape::LogLines => lines(&mut marks, panel, &y, top, true),
    }
    marks
}

fn text(x: f64, y: f64, anchor: Anchor, colour: &'static str, text: &str) -> Mark {
    Mark::Text { x, y, anchor, upwards: false, colour, text: text.to_owned() }
}

fn line(points: Vec<(f64, f64)>, colour: &'static str, width: f64) -> Mark {
    Mark::Line { points, colour, width, tip: String::new() }
}

/// The legend, in as many lines as needed; returns where the plot starts.
fn legend(marks: &mut Vec<Mark>, panel: &Panel) -> f64 {
    let has_paper =
        panel.series.iter().flat_map(|series| &series.points).any(|point| point.paper.is_some());
    let (mut x, mut y) = (LEFT, 18.0);
    let mut place = |name: &str| {
        #[expect(clippy::cast_precision_loss, reason = "letters of a name")]
        let width = 32.0 + LETTER * name.chars().count() as f64;
        if x + width > WIDTH && x > LEFT {
            (x, y) = (LEFT, y + LEGEND_LINE);
        }
        let at = (x, y);
        x += width;
        at
    };
    for (index, series) in panel.series.iter().enumerate() {
        let (x, y) = place(&series.name);
        let (width, height) = (12.0, 12.0);
        let tip = String::new();
        marks.push(Mark::Rect { x, y: y - 11.0, width, height, colour: colour(index), tip });
        marks.push(text(x + 17.0, y, Anchor::Start, DARK, &series.name));
    }
    if has_paper {
        let (x, y) = place("the paper");
        let tip = "the paper's numbers".to_owned();
        marks.push(Mark::Diamond { x: x + 6.0, y: y - 5.0, tip });
        marks.push(text(x + 17.0, y, Anchor::Start, DARK, "the paper"));
    }
    y + 16.0
}

/// Axes, grid and labels.
fn frame(marks: &mut Vec<Mark>, panel: &Panel, y: &Axis, top: f64) {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for (value, label) in y.ticks() {
        let at = y.place(value);
        marks.push(line(vec![(LEFT, at), (right, at)], FAINT, 1.0));
        marks.push(text(LEFT - 6.0, at + 4.5, Anchor::End, GREY, &label));
    }
    marks.push(line(vec![(LEFT, bottom), (right, bottom)], DARK, 1.0));
    let middle = f64::midpoint(LEFT, right);
    marks.push(text(middle, HEIGHT - 10.0, Anchor::Middle, DARK, &panel.x_label));
    marks.push(Mark::Text {
        x: 16.0,
        y: f64::midpoint(top, bottom),
        anchor: Anchor::Middle,
        upwards: true,
        colour: DARK,
        text: panel.y_label.clone(),
    });
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
fn bars(marks: &mut Vec<Mark>, panel: &Panel, y: &Axis) {
    let labels = labels(panel);
    let group = (WIDTH - LEFT - RIGHT) / labels.len().max(1) as f64;
    let bar = (group * 0.8 / panel.series.len().max(1) as f64).min(60.0);
    let bottom = HEIGHT - BOTTOM;
    for (index, label) in labels.iter().enumerate() {
        let middle = LEFT + group * (index as f64 + 0.5);
        marks.push(text(middle, bottom + 18.0, Anchor::Middle, DARK, label));
        let first = middle - bar * panel.series.len() as f64 / 2.0;
        for (number, series) in panel.series.iter().enumerate() {
            let Some(point) = series.points.iter().find(|point| point.x == *label) else {
                continue;
            };
            let (left, top) = (first + bar * number as f64, y.place(point.ours));
            marks.push(Mark::Rect {
                x: left + 1.0,
                y: top,
                width: bar - 2.0,
                height: (bottom - top).max(0.0),
                colour: colour(number),
                tip: tip(series, point),
            });
            annotations(marks, point, left + bar / 2.0, y, series);
        }
    }
}

fn lines(marks: &mut Vec<Mark>, panel: &Panel, y: &Axis, top: f64, log: bool) {
    let places = panel.series.iter().flat_map(|series| &series.points).map(|point| point.at);
    let x = Axis::over(places, log, false, LEFT + 8.0, WIDTH - RIGHT - 16.0);
    let bottom = HEIGHT - BOTTOM;
    for (value, label) in x.ticks() {
        let at = x.place(value);
        marks.push(line(vec![(at, bottom), (at, bottom + 5.0)], DARK, 1.0));
        marks.push(text(at, bottom + 19.0, Anchor::Middle, GREY, &label));
    }
    for (at, name) in &panel.phases {
        let at = x.place(*at);
        marks.push(line(vec![(at, top), (at, bottom)], FAINT, 1.0));
        marks.push(text(at + 4.0, top + 13.0, Anchor::Start, GREY, name));
    }
    for (index, series) in panel.series.iter().enumerate() {
        let place = |point: &Point| (x.place(point.at), y.place(point.ours));
        let points = series.points.iter().map(place).collect();
        let tip = series.name.clone();
        marks.push(Mark::Line { points, colour: colour(index), width: 2.5, tip });
        series.points.iter().for_each(|p| annotations(marks, p, x.place(p.at), y, series));
    }
}

/// The range and the paper's number of a point.
fn annotations(marks: &mut Vec<Mark>, point: &Point, x: f64, y: &Axis, series: &Series) {
    if let Some((low, high)) = point.range {
        let (low, high) = (y.place(low), y.place(high));
        let foot = |y: f64| vec![(x - 5.0, y), (x + 5.0, y)];
        let strokes = [foot(high), vec![(x, high), (x, low)], foot(low)];
        marks.extend(strokes.map(|points| line(points, DARK, 1.5)));
    }
    if let Some(paper) = point.paper {
        marks.push(Mark::Diamond { x, y: y.place(paper), tip: tip(series, point) });
    }
}

fn tip(series: &Series, point: &Point) -> String {
    let paper = point.paper.map_or_else(String::new, |p| format!(", the paper {}", number(p)));
    format!("{}, {}: {}{paper}", series.name, point.x, number(point.ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phases_of_a_life_have_their_names_where_they_start() {
        let points = [0.0, 50.0, 100.0].map(|at| Point::at(at, 1.0)).to_vec();
        let panel = Panel::lines("life", "seconds", "ms").with("weft", points);
        let panel = panel.with_phase(0.0, "healthy").with_phase(50.0, "degraded");
        let marks = plot(&panel);
        let place = |name: &str| {
            let is_it = |mark: &&Mark| matches!(mark, Mark::Text { text, .. } if text == name);
            let Some(Mark::Text { x, .. }) = marks.iter().find(is_it) else { panic!("{name}") };
            *x
        };
        let middle = f64::midpoint(place("healthy"), WIDTH - RIGHT - 16.0 + 4.0);
        assert!((place("degraded") - middle).abs() < 1.0, "{} {middle}", place("degraded"));
    }
}
