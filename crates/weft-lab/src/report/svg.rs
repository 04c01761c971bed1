//! Marks as SVG.

use std::fmt::Write as _;

use super::escape;
use super::plot::{Anchor, DIAMOND, HEIGHT, Mark, WIDTH, plot};
use crate::figure::Panel;

/// The panel as an SVG element, which is also a whole SVG file.
#[must_use]
pub fn svg(panel: &Panel) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" role=\"img\" aria-label=\"{}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>",
        escape(&panel.title)
    );
    plot(panel).iter().for_each(|mark| write(&mut out, mark));
    out.push_str("</svg>\n");
    out
}

fn write(out: &mut String, mark: &Mark) {
    let title = |tip: &str| match tip {
        "" => String::new(),
        tip => format!("<title>{}</title>", escape(tip)),
    };
    let _ = match mark {
        Mark::Rect { x, y, width, height, colour, tip } => writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{colour}\">{}</rect>",
            title(tip)
        ),
        Mark::Line { points, colour, width, tip } => writeln!(
            out,
            "<path d=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" \
             stroke-linejoin=\"round\">{}</path>",
            path(points),
            title(tip)
        ),
        Mark::Diamond { x, y, tip } => writeln!(
            out,
            "<path class=\"paper\" d=\"M{x:.1} {:.1}l{r} {r}l-{r} {r}l-{r} -{r}z\" fill=\"#1d2125\" \
             stroke=\"#ffffff\" stroke-width=\"1.5\">{}</path>",
            y - DIAMOND,
            title(tip),
            r = DIAMOND
        ),
        Mark::Text { x, y, anchor, upwards, colour, text } => {
            let anchor = match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            let turn = if *upwards { " rotate(-90)" } else { "" };
            writeln!(
                out,
                "<text transform=\"translate({x:.1} {y:.1}){turn}\" text-anchor=\"{anchor}\" \
                 fill=\"{colour}\">{}</text>",
                escape(text)
            )
        }
    };
}

fn path(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (number, (x, y)) in points.iter().enumerate() {
        let _ = write!(path, "{}{x:.1} {y:.1}", if number == 0 { 'M' } else { 'L' });
    }
    path
}
