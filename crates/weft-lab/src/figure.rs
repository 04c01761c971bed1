//! The results of an experiment, with the paper's numbers: the one form from which text, JSON, CSV
//! and plots are made.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

/// The paper's numbers: panel, series, point.
pub type Numbers = BTreeMap<String, BTreeMap<String, BTreeMap<String, f64>>>;

/// A figure or table, reproduced.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The experiment's name.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// Paper, figure, section.
    pub source: String,
    /// How it was measured.
    pub about: String,
    /// The random seed.
    pub seed: u64,
    /// The modelled disks, if there were any.
    pub disk: Option<String>,
    /// The traces, if there were any.
    pub traces: Vec<TraceUsed>,
    /// Where the paper errs.
    pub errors: Vec<String>,
    /// Notes on this run, in addition to its numbers.
    pub notes: Vec<String>,
    /// The plots.
    pub panels: Vec<Panel>,
    /// Numbers of the paper that belong to no point, as `panel / series / point`: errors in the
    /// experiment's file, which show only when all was measured.
    #[serde(skip)]
    pub unmatched: Vec<String>,
}

/// A trace that was replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceUsed {
    /// Its name.
    pub name: String,
    /// Generated from published statistics, not recorded.
    pub generated: bool,
    /// Requests replayed.
    pub requests: u64,
}

/// One plot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Panel {
    /// Its heading.
    pub title: String,
    /// Label of the x axis.
    pub x_label: String,
    /// Label of the y axis.
    pub y_label: String,
    /// Bars or lines.
    pub shape: Shape,
    /// A logarithmic y axis.
    pub log_y: bool,
    /// The data.
    pub series: Vec<Series>,
    /// Where phases start on the x axis of a plot of lines, and their names.
    #[serde(skip)]
    pub phases: Vec<(f64, String)>,
}

/// How a panel is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// One bar per point, side by side by label.
    Bars,
    /// A line through the points, by their x values.
    Lines,
    /// Lines over a logarithmic x axis.
    LogLines,
}

/// Points that belong together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<Point>,
}

/// One of our numbers, and the paper's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Its label, by which the paper's number is found.
    pub x: String,
    /// Its x value, in line plots.
    pub at: f64,
    /// Our number.
    pub ours: f64,
    /// The least and the greatest, where `ours` is a mean.
    #[serde(serialize_with = "least_and_greatest")]
    pub range: Option<(f64, f64)>,
    /// The paper's number.
    pub paper: Option<f64>,
}

#[derive(Serialize)]
struct Range {
    low: f64,
    high: f64,
}

fn least_and_greatest<S: Serializer>(
    range: &Option<(f64, f64)>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    range.map(|(low, high)| Range { low, high }).serialize(serializer)
}

impl Point {
    /// A number with a label.
    pub fn new(x: impl Into<String>, ours: f64) -> Self {
        Self { x: x.into(), at: 0.0, ours, range: None, paper: None }
    }

    /// A number at an x value of a line.
    pub fn at(at: f64, ours: f64) -> Self {
        Self { at, ..Self::new(format!("{at}"), ours) }
    }

    /// The mean of numbers, with the least and the greatest.
    ///
    /// # Panics
    /// If there is none.
    pub fn mean(x: impl Into<String>, numbers: &[f64]) -> Self {
        assert!(!numbers.is_empty(), "a mean of nothing");
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        #[expect(clippy::cast_precision_loss, reason = "a handful of numbers")]
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        Self { range: Some((least, most)), ..Self::new(x, mean) }
    }

    /// One number, or the mean and spread of several.
    ///
    /// # Panics
    /// If there is none.
    pub fn spread(x: impl Into<String>, numbers: &[f64]) -> Self {
        match numbers {
            [number] => Self::new(x, *number),
            numbers => Self::mean(x, numbers),
        }
    }
}

impl Panel {
    /// A panel of bars.
    pub fn bars(
        title: impl Into<String>,
        x_label: impl Into<String>,
        y_label: impl Into<String>,
    ) -> Self {
        Self {
            title: title.into(),
            x_label: x_label.into(),
            y_label: y_label.into(),
            shape: Shape::Bars,
            log_y: false,
            series: Vec::new(),
            phases: Vec::new(),
        }
    }

    /// A panel of lines.
    pub fn lines(
        title: impl Into<String>,
        x_label: impl Into<String>,
        y_label: impl Into<String>,
    ) -> Self {
        Self { shape: Shape::Lines, ..Self::bars(title, x_label, y_label) }
    }

    /// With a phase that starts here.
    #[must_use]
    pub fn with_phase(mut self, at: f64, name: impl Into<String>) -> Self {
        self.phases.push((at, name.into()));
        self
    }

    /// With one more series.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, points: Vec<Point>) -> Self {
        self.series.push(Series { name: name.into(), points });
        self
    }
}

impl Figure {
    /// Adds the paper's numbers to ours.
    pub fn add_paper_numbers(&mut self, paper: &Numbers) {
        for (panel, series, x, value) in flat(paper) {
            let points = self.panels.iter_mut().filter(|p| p.title == panel);
            let points = points.flat_map(|p| &mut p.series).filter(|s| s.name == series);
            let mut points = points.flat_map(|s| &mut s.points);
            match points.find(|point| point.x == x) {
                Some(point) => point.paper = Some(value),
                None => self.unmatched.push(format!("{panel} / {series} / {x}")),
            }
        }
    }

    /// One line for each number: figure, panel, series, x, ours, low, high, paper, seed.
    #[must_use]
    pub fn csv_lines(&self) -> String {
        let mut lines = String::new();
        for panel in &self.panels {
            for (series, point) in
                panel.series.iter().flat_map(|s| s.points.iter().map(move |p| (s, p)))
            {
                let text = [&self.name, &panel.title, &series.name, &point.x].map(|t| quoted(t));
                let (low, high) = point.range.unzip();
                let number = |n: Option<f64>| n.map(|n| n.to_string()).unwrap_or_default();
                let numbers = [Some(point.ours), low, high, point.paper].map(number);
                let all: Vec<String> =
                    text.into_iter().chain(numbers).chain([self.seed.to_string()]).collect();
                lines.push_str(&all.join(","));
                lines.push('\n');
            }
        }
        lines
    }
}

/// The heading of [`Figure::csv_lines`].
pub const CSV_HEADER: &str = "figure,panel,series,x,ours,low,high,paper,seed";

fn flat(paper: &Numbers) -> impl Iterator<Item = (&str, &str, &str, f64)> {
    paper.iter().flat_map(|(panel, series)| {
        series.iter().flat_map(move |(name, points)| {
            points.iter().map(move |(x, value)| (&**panel, &**name, &**x, *value))
        })
    })
}

/// A field of CSV (RFC 4180).
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
