//! Contestants in turns, and the table of what came out.

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

/// Somebody who takes a turn in each round, and tells how fast it was (more is better).
pub type Contestant<'a> = Box<dyn FnMut() -> f64 + 'a>;

/// What each contestant reached in each counted round.
#[derive(Debug)]
pub struct Race(Vec<Vec<f64>>);

impl Race {
    /// Lets the contestants take turns: one round to warm up, then `rounds` that count.
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

    /// What a contestant reached in the middle.
    #[must_use]
    pub fn rate(&self, contestant: usize) -> f64 {
        median(self.0[contestant].clone())
    }

    /// One contestant by another: the middle of the rounds' ratios.
    #[must_use]
    pub fn ratio(&self, contestant: usize, peer: usize) -> f64 {
        let pairs = self.0[contestant].iter().zip(&self.0[peer]);
        median(pairs.map(|(mine, theirs)| mine / theirs).collect())
    }
}

/// One line of a table.
#[derive(Debug)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// What weft reached, with its unit.
    pub weft: String,
    /// What it is compared with, and what that reached.
    pub peer: String,
    /// weft by peer.
    pub ratio: Option<f64>,
    /// The least ratio that was aimed at.
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
