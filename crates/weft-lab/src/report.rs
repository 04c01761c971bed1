//! One HTML page with everything that was run: figures as SVG, and each number next to the paper's
//! in a table.
//!
//! The page is self-contained: no scripts, no fonts, no network. Each figure shows its source, the
//! seed, the modelled disks, which traces were replayed and whether they were generated, and errors
//! in the paper. Equal figures give equal bytes.

mod axis;
mod plot;
mod svg;

use std::fmt::Write as _;

use crate::figure::{Figure, Panel, Point, TraceUsed};

pub use svg::svg;

const STYLE: &str = include_str!("report/style.css");

/// The page.
#[must_use]
pub fn html(figures: &[Figure]) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>weft lab: report</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>\n",
    );
    page.push_str(STYLE);
    page.push_str(
        "</style>\n</head>\n<body>\n<header>\n<h1>weft lab</h1>\n\
         <p>Figures and tables of papers, compared with weft's results. Filled bars and lines are ours; \
         a diamond is the paper's number; whiskers span the least and the greatest.</p>\n<nav><ul>\n",
    );
    for figure in figures {
        let (name, title) = (escape(&figure.name), escape(&figure.title));
        let _ = writeln!(page, "<li><a href=\"#{name}\">{title}</a></li>");
    }
    page.push_str("</ul></nav>\n</header>\n<main>\n");
    figures.iter().for_each(|figure| section(&mut page, figure));
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn section(page: &mut String, figure: &Figure) {
    let (name, title) = (escape(&figure.name), escape(&figure.title));
    let _ = write!(page, "<section id=\"{name}\">\n<h2>{title}</h2>\n");
    let _ = writeln!(page, "<p class=\"source\">{}</p>", escape(&figure.source));
    let _ = writeln!(page, "<p>{}</p>", escape(&figure.about));
    let _ = writeln!(page, "<p class=\"facts\">{}</p>", escape(&facts(figure)));
    list(page, "Errors in the paper", "errors", &figure.errors);
    list(page, "Notes", "notes", &figure.notes);
    for panel in &figure.panels {
        let _ = writeln!(page, "<figure>\n<figcaption>{}</figcaption>", escape(&panel.title));
        page.push_str(&svg(panel));
        table(page, panel);
        page.push_str("</figure>\n");
    }
    page.push_str("</section>\n");
}

/// Seed, disks and traces in a line.
#[must_use]
pub fn facts(figure: &Figure) -> String {
    let mut facts = vec![format!("seed {}", figure.seed)];
    facts.extend(figure.disk.iter().map(|disk| format!("disks modelled: {disk}")));
    if figure.traces.is_empty() {
        facts.push("no trace".into());
    }
    facts.extend(figure.traces.iter().map(trace));
    facts.join(" · ")
}

fn trace(trace: &TraceUsed) -> String {
    let kind = if trace.generated { "GENERATED from published statistics" } else { "recorded" };
    format!("trace {}: {kind}, {} requests", trace.name, trace.requests)
}

fn list(page: &mut String, heading: &str, class: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    let _ = write!(page, "<div class=\"{class}\"><h3>{heading}</h3>\n<ul>\n");
    for item in items {
        let _ = writeln!(page, "<li>{}</li>", escape(item));
    }
    page.push_str("</ul></div>\n");
}

/// All numbers of a panel; of long curves only the points that the paper gives too.
fn table(page: &mut String, panel: &Panel) {
    let points: Vec<(&str, &Point)> = panel
        .series
        .iter()
        .flat_map(|s| s.points.iter().map(move |point| (s.name.as_str(), point)))
        .filter(|(_, point)| panel.series[0].points.len() <= CURVE_LONG || point.paper.is_some())
        .collect();
    if points.is_empty() {
        return;
    }
    page.push_str(
        "<details><summary>numbers</summary>\n<table>\n<tr><th>series</th><th>point</th>\
         <th>ours</th><th>range</th><th>paper</th><th>ours / paper</th></tr>\n",
    );
    for (series, point) in points {
        let range = point
            .range
            .map_or_else(String::new, |(low, high)| format!("{} – {}", number(low), number(high)));
        let paper = point.paper.map_or_else(String::new, number);
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{range}</td><td>{paper}</td><td>{}</td></tr>",
            escape(series),
            escape(&point.x),
            number(point.ours),
            ratio(point).unwrap_or_default(),
        );
    }
    page.push_str("</table></details>\n");
}

/// Curves with more points than this are shown as curves only.
const CURVE_LONG: usize = 20;

/// The ratio of ours to the paper's, if both can be compared.
#[must_use]
pub fn ratio(point: &Point) -> Option<String> {
    let paper = point.paper.filter(|paper| *paper != 0.0)?;
    Some(format!("{:.2}", point.ours / paper))
}

/// A number for people, with three significant digits.
#[must_use]
pub fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".into()
    } else if !(1e-3..1e6).contains(&size) {
        format!("{value:.2e}")
    } else if size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

/// Text in HTML and SVG.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
