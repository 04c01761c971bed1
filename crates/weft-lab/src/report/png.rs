//! Marks as pixels: a PNG image, drawn without a font or image library.
//!
//! Each mark is blended onto the canvas with the share of each pixel that it covers, computed from
//! the pixel's distance to the mark's edge; at two pixels a unit that is smooth enough.

use std::io::Write as _;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

use super::font;
use super::plot::{Anchor, DIAMOND, HEIGHT, Mark, WIDTH, plot};
use crate::figure::Panel;

/// Pixels of a unit of the plane.
const SCALE: f64 = 2.0;
/// Units of a column of a letter, and width of its strokes.
const LETTER: f64 = 1.3;
const STROKE: f64 = 1.25;
/// The heading's height.
const HEAD: f64 = 28.0;

/// The panel as a PNG file, its title on top.
#[must_use]
pub fn png(panel: &Panel) -> Vec<u8> {
    let mut canvas = Canvas::new(WIDTH, HEIGHT + HEAD);
    let title = &panel.title;
    canvas.words((WIDTH / 2.0, HEAD - 10.0), Anchor::Middle, false, "#1d2125", title);
    for mark in plot(panel) {
        canvas.draw(&mark);
    }
    canvas.encode()
}

struct Canvas {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

type Place = (f64, f64);

impl Canvas {
    fn new(width: f64, height: f64) -> Self {
        let (width, height) = (pixel(width * SCALE), pixel(height * SCALE));
        Self { width, height, rgb: vec![255; width * height * 3] }
    }

    fn draw(&mut self, mark: &Mark) {
        match mark {
            Mark::Rect { x, y, width, height, colour, .. } => {
                let (y, right, bottom) = (y + HEAD, x + width, y + HEAD + height);
                self.cover((*x, y), (right, bottom), colour, |(px, py)| {
                    let wide = (px - x).min(right - px);
                    (wide.min(py - y).min(bottom - py) * SCALE + 0.5).clamp(0.0, 1.0)
                });
            }
            Mark::Line { points, colour, width, .. } => {
                let points: Vec<Place> = points.iter().map(|(x, y)| (*x, y + HEAD)).collect();
                self.stroke(&points, colour, *width);
            }
            Mark::Diamond { x, y, .. } => {
                let (x, y) = (*x, y + HEAD);
                for (half, colour) in [(DIAMOND + 1.5, "#ffffff"), (DIAMOND - 0.5, "#1d2125")] {
                    self.cover((x - half, y - half), (x + half, y + half), colour, |(px, py)| {
                        let inside = half - (px - x).abs() - (py - y).abs();
                        (inside * SCALE / 2f64.sqrt() + 0.5).clamp(0.0, 1.0)
                    });
                }
            }
            Mark::Text { x, y, anchor, upwards, colour, text } => {
                self.words((*x, y + HEAD), *anchor, *upwards, colour, text);
            }
        }
    }

    fn words(&mut self, at: Place, anchor: Anchor, upwards: bool, colour: &str, text: &str) {
        #[expect(clippy::cast_precision_loss, reason = "letters of a label")]
        let length = (text.chars().count() as f64 * font::ADVANCE - 1.0) * LETTER;
        let mut start = match anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => -length / 2.0,
            Anchor::End => -length,
        };
        for letter in text.chars() {
            for stroke in font::strokes(letter) {
                let place = |(x, y): &Place| {
                    let (right, down) = (start + x * LETTER, (y - font::BASE) * LETTER);
                    if upwards { (at.0 + down, at.1 - right) } else { (at.0 + right, at.1 + down) }
                };
                let points: Vec<Place> = stroke.iter().map(place).collect();
                self.stroke(&points, colour, STROKE);
            }
            start += font::ADVANCE * LETTER;
        }
    }

    /// A line through points, with round ends.
    fn stroke(&mut self, points: &[Place], colour: &str, width: f64) {
        let half = width / 2.0;
        for pair in points.windows(2) {
            let ((ax, ay), (bx, by)) = (pair[0], pair[1]);
            let (dx, dy) = (bx - ax, by - ay);
            let length2 = (dx * dx + dy * dy).max(1e-9);
            let low = (ax.min(bx) - half, ay.min(by) - half);
            let high = (ax.max(bx) + half, ay.max(by) + half);
            self.cover(low, high, colour, |(px, py)| {
                let along = (((px - ax) * dx + (py - ay) * dy) / length2).clamp(0.0, 1.0);
                let distance = (px - ax - along * dx).hypot(py - ay - along * dy);
                ((half - distance) * SCALE + 0.5).clamp(0.0, 1.0)
            });
        }
    }

    /// Lays a colour over the pixels from `low` to `high`, each as far as `share` of its middle
    /// says.
    fn cover(&mut self, low: Place, high: Place, colour: &str, share: impl Fn(Place) -> f64) {
        let colour = components(colour);
        let columns = pixel(low.0 * SCALE - 1.0)..(pixel(high.0 * SCALE + 2.0)).min(self.width);
        let lines = pixel(low.1 * SCALE - 1.0)..(pixel(high.1 * SCALE + 2.0)).min(self.height);
        for line in lines {
            for column in columns.clone() {
                let share = share((middle(column), middle(line)));
                if share > 0.0 {
                    let at = (line * self.width + column) * 3;
                    for (byte, over) in self.rgb[at..at + 3].iter_mut().zip(colour) {
                        *byte = blend(*byte, over, share);
                    }
                }
            }
        }
    }

    /// The PNG file: signature, header, one stream of unfiltered lines, end.
    fn encode(&self) -> Vec<u8> {
        let mut lines = ZlibEncoder::new(Vec::new(), Compression::default());
        for line in self.rgb.chunks_exact(self.width * 3) {
            let written = lines.write_all(&[0]).and_then(|()| lines.write_all(line));
            written.expect("memory takes everything");
        }
        let data = lines.finish().expect("memory takes everything");
        let mut header = Vec::new();
        for side in [self.width, self.height] {
            header.extend(u32::try_from(side).expect("a small picture").to_be_bytes());
        }
        // Eight bits, red-green-blue, the only compression, filter and order there are.
        header.extend([8, 2, 0, 0, 0]);
        let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
        for (kind, data) in [(b"IHDR", &header), (b"IDAT", &data), (b"IEND", &Vec::new())] {
            chunk(&mut file, kind, data);
        }
        file
    }
}

fn chunk(file: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    let mut crc = Crc::new();
    crc.update(kind);
    crc.update(data);
    file.extend(u32::try_from(data.len()).expect("a small picture").to_be_bytes());
    file.extend(kind);
    file.extend(data);
    file.extend(crc.sum().to_be_bytes());
}

/// `#rrggbb`.
fn components(colour: &str) -> [u8; 3] {
    let part = |at: usize| u8::from_str_radix(&colour[at..at + 2], 16).expect("a colour");
    [part(1), part(3), part(5)]
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 255")]
fn blend(under: u8, over: u8, share: f64) -> u8 {
    (f64::from(under) * (1.0 - share) + f64::from(over) * share).round() as u8
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place on the canvas"
)]
fn pixel(place: f64) -> usize {
    place.max(0.0) as usize
}

/// The middle of a pixel, in units.
#[expect(clippy::cast_precision_loss, reason = "a place on the canvas")]
fn middle(pixel: usize) -> f64 {
    (pixel as f64 + 0.5) / SCALE
}
