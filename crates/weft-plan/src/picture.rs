//! A stripe as a string of letters, group by group: `DDL DDL G`.

use weft_code::{CodeSpec, SpecError};

/// Stripes wider than this are abridged: `28×D PQ`.
const LONG: usize = 20;

/// The stripe of `code` on `disks` disks: D data, L local parity, G global parity, P Q R parity of
/// the whole stripe, C copy; ` / 12` if it is spread over more disks than it is wide.
///
/// # Errors
/// If the code cannot be built on that many.
pub fn picture(code: CodeSpec, disks: usize) -> Result<String, SpecError> {
    let shape = code.shape(disks)?;
    let short = shape.width() <= LONG;
    let run = |letter: &str, n: usize| match n {
        1 => letter.to_owned(),
        _ if short => letter.repeat(n),
        _ => format!("{n}×{letter}"),
    };
    let stripe = match (code.groups(), code) {
        (Some((k, l, r)), _) if short => {
            let group = format!("{}L ", run("D", k / l));
            format!("{}{}", group.repeat(l), run("G", r))
        }
        (Some((k, l, r)), _) => format!("{l}×({}L) {}", run("D", k / l), run("G", r)),
        (None, CodeSpec::Raid1 | CodeSpec::Raid10 { .. }) => format!("D{}", run("C", shape.p)),
        (None, CodeSpec::Raid0) => run("D", shape.k),
        (None, _) => {
            let parity = match shape.p {
                1 => "P".to_owned(),
                2 => "PQ".to_owned(),
                p => run("R", p),
            };
            format!("{} {parity}", run("D", shape.k))
        }
    };
    let spread = shape.width() < disks;
    let stripe = stripe.trim_end();
    Ok(if spread { format!("{stripe} / {disks}") } else { stripe.to_owned() })
}
