//! An excerpt of a trace, repeated with shifted time.
//!
//! Published experiments replay more requests than some excerpts have. Each round of the excerpt
//! starts one mean distance of its requests after the last request of the round before, so the rate
//! stays the same. Addresses repeat, so reuse grows; all figures made from it must be marked as
//! looped.

use crate::error::TraceError;
use crate::record::Record;

/// A trace that is read repeatedly.
#[derive(Debug)]
pub struct Looped<F, I> {
    open: F,
    round: Option<I>,
    /// Requests of one round at most.
    excerpt: u64,
    /// Requests still to return.
    left: u64,
    /// Requests of this round returned.
    given: u64,
    shift_ns: u64,
    last_ns: u64,
    rounds: u64,
}

impl<F, I> Looped<F, I>
where
    F: FnMut() -> Result<I, TraceError>,
    I: Iterator<Item = Result<Record, TraceError>>,
{
    /// `requests` requests from the first `excerpt` (`None`: all) of the trace that `open`
    /// opens.
    pub fn new(open: F, excerpt: Option<u64>, requests: u64) -> Self {
        Self {
            open,
            round: None,
            excerpt: excerpt.unwrap_or(u64::MAX),
            left: requests,
            given: 0,
            shift_ns: 0,
            last_ns: 0,
            rounds: 0,
        }
    }

    /// Rounds started so far.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// The next request of the round.
    fn of_round(&mut self) -> Option<Result<Record, TraceError>> {
        if self.given == self.excerpt {
            return None;
        }
        let round = match &mut self.round {
            Some(round) => round,
            None => match (self.open)() {
                Ok(round) => {
                    self.rounds += 1;
                    self.round.insert(round)
                }
                Err(error) => return Some(Err(error)),
            },
        };
        round.next()
    }

    fn next_round(&mut self) {
        let gap_ns = self.last_ns / (self.given - 1).max(1);
        self.shift_ns = self.shift_ns.saturating_add(self.last_ns).saturating_add(gap_ns);
        (self.round, self.given, self.last_ns) = (None, 0, 0);
    }
}

impl<F, I> Iterator for Looped<F, I>
where
    F: FnMut() -> Result<I, TraceError>,
    I: Iterator<Item = Result<Record, TraceError>>,
{
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.left > 0 {
            match self.of_round() {
                Some(Ok(mut record)) => {
                    self.left -= 1;
                    self.given += 1;
                    self.last_ns = record.at_ns;
                    record.at_ns = record.at_ns.saturating_add(self.shift_ns);
                    return Some(Ok(record));
                }
                Some(Err(error)) => {
                    self.left = 0;
                    return Some(Err(error));
                }
                // A trace without requests cannot be repeated.
                None if self.given == 0 => return None,
                None => self.next_round(),
            }
        }
        None
    }
}
