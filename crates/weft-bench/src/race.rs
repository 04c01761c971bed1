//! Runs contestants in turns, and prints the table of results.

use std::fmt::Display;

/// The middle value.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A contestant: takes a turn in each round, and returns its speed (more is better).
pub type Contestant<'a> = Box<dyn FnMut() -> f64 + 'a>;

/// The speed of each contestant in each counted round.
#[derive(Debug)]
pub struct Race(Vec<Vec<f64>>);

impl Race {
    /// Runs the contestants in turns: one round to warm up, then `rounds` that count.
    #[must_use]
    pub fn run(rounds: usize, contestants: &mut [Contestant<'_>]) -> Self {
        let mut reached = vec![Vec::new(); contestants.len()];
        for round in 0..=rounds {
            for (contestant, reached) in contestants.iter_mut().zip(&mut reached) {
                let rate = contestant();
                if round > 0 {
                    reached.push(rate);
                }
            }
        }
        Self(reached)
    }

    /// A contestant's median.
    #[must_use]
    pub fn rate(&self, contestant: usize) -> f64 {
        median(self.0[contestant].clone())
    }

    /// The ratio of two contestants: the median of the rounds' ratios.
    #[must_use]
    pub fn ratio(&self, contestant: usize, peer: usize) -> f64 {
        let pairs = self.0[contestant].iter().zip(&self.0[peer]);
        median(pairs.map(|(mine, theirs)| mine / theirs).collect())
    }
}

/// One line of a table.
#[derive(Debug)]
pub struct Row {
    /// The measurement.
    pub what: String,
    /// weft's result, with its unit.
    pub weft: String,
    /// The peer, and its result.
    pub peer: String,
    /// The ratio of weft to the peer.
    pub ratio: Option<f64>,
    /// The target for the ratio.
    pub target: Option<f64>,
}

/// Prints rows as a Markdown table.
#[derive(Debug)]
pub struct Table(());

impl Table {
    /// Prints title and heading.
    #[must_use]
    pub fn new(title: &str, note: impl Display) -> Self {
        println!("\n### {title}\n\n{note}\n");
        println!("| {:<44} | {:<24} | {:<36} | ratio | target | holds |", "what", "weft", "peer");
        println!("|{:-<46}|{:-<26}|{:-<38}|{:-<7}|{:-<8}|{:-<7}|", "", "", "", "", "", "");
        Self(())
    }

    /// Prints a row.
    pub fn row(&self, row: &Row) {
        let Row { what, weft, peer, ratio, target } = row;
        let figure = |value: &Option<f64>| value.map_or(String::new(), |v| format!("{v:.2}"));
        let holds = match (ratio, target) {
            (Some(ratio), Some(target)) if ratio >= target => "yes",
            (Some(_), Some(_)) => "NO",
            _ => "",
        };
        let (ratio, target) = (figure(ratio), figure(target));
        println!(
            "| {what:<44} | {weft:<24} | {peer:<36} | {ratio:>5} | {target:>6} | {holds:<5} |"
        );
    }
}
