//! Lists of lines to which several programs append: whether all that they saw fits one order.
//!
//! An operation takes effect at one moment between its begin and its end. A [`History`] is
//! *linearizable* if such moments can be chosen so that each read saw exactly the lines appended
//! before it. For lists that only grow this needs no search: the longest read gives the order of
//! the lines, each read has its place in it, and it remains to look for an operation that had ended
//! before one with an earlier place began.
//!
//! ```
//! use weft_testkit::appends::{Append, History, Read};
//!
//! let append = |line, began, ended| Append { line, by: "a".into(), began, ended };
//! let read = |saw: &[u64], began, ended| Read { saw: saw.into(), by: "b".into(), began, ended };
//! let appends = vec![append(1, 0, Some(10)), append(2, 20, None)];
//! let mut history = History { appends, reads: vec![read(&[1], 30, 40), read(&[1, 2], 50, 60)] };
//! assert_eq!(history.check(), Ok(vec![1, 2]));
//! history.reads.push(read(&[1], 70, 80));
//! assert!(history.check().is_err(), "line 2 was there before");
//! ```

use std::collections::{HashMap, HashSet};
use std::fmt;

use weft_random::mix;

/// An append of a line that no other append has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The line.
    pub line: u64,
    /// Who appended it.
    pub by: String,
    /// When it began.
    pub began: u64,
    /// When it had succeeded. None if that is unknown: the line may be there, or come, or not.
    pub ended: Option<u64>,
}

/// A read of the whole list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The lines, in order.
    pub saw: Vec<u64>,
    /// Who read it.
    pub by: String,
    /// When it began.
    pub began: u64,
    /// When it ended.
    pub ended: u64,
}

/// All operations on one list. An append that certainly failed is left out, and a read that failed
/// is, too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// All appends.
    pub appends: Vec<Append>,
    /// All reads.
    pub reads: Vec<Read>,
}

/// Why a history is not linearizable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// A read saw a line that nobody appended.
    Stranger {
        /// The line.
        line: u64,
        /// The read.
        read: String,
    },
    /// A read saw a line twice.
    Twice {
        /// The line.
        line: u64,
        /// The read.
        read: String,
    },
    /// Of two reads none saw the beginning of what the other one saw.
    Fork {
        /// How many lines they have in common.
        common: usize,
        /// The reads.
        reads: [String; 2],
    },
    /// By what was read, `first` took effect before `second`, which had ended before `first` began.
    Order {
        /// The one that comes first in the list.
        first: String,
        /// The other one.
        second: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stranger { line, read } => {
                write!(f, "line {line:x}, which nobody appended, was seen: {read}")
            }
            Self::Twice { line, read } => write!(f, "line {line:x} was seen twice: {read}"),
            Self::Fork { common, reads: [one, other] } => {
                write!(f, "after {common} lines two reads differ: {one}; {other}")
            }
            Self::Order { first, second } => {
                write!(f, "{first} took effect first, but began after the end of: {second}")
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Operation<'a> {
    Append(&'a Append),
    Read(&'a Read),
}

impl Operation<'_> {
    fn began(self) -> u64 {
        match self {
            Self::Append(append) => append.began,
            Self::Read(read) => read.began,
        }
    }

    fn ended(self) -> Option<u64> {
        match self {
            Self::Append(append) => append.ended,
            Self::Read(read) => Some(read.ended),
        }
    }
}

impl fmt::Display for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Append(Append { line, by, began, ended: Some(ended) }) => {
                write!(f, "append of {line:x} by {by} ({began} to {ended})")
            }
            Self::Append(Append { line, by, began, ended: None }) => {
                write!(f, "append of {line:x} by {by} ({began}, unknown end)")
            }
            Self::Read(Read { saw, by, began, ended }) => {
                let count = saw.len();
                write!(f, "read of {count} lines by {by} ({began} to {ended})")?;
                saw.last().map_or(Ok(()), |last| write!(f, ", the last one {last:x}"))
            }
        }
    }
}

impl History {
    /// The order of all lines that were seen.
    ///
    /// # Errors
    /// If no order of all operations explains what was seen.
    ///
    /// # Panics
    /// If two appends have one line.
    pub fn check(&self) -> Result<Vec<u64>, Violation> {
        let mut appended = HashMap::new();
        for append in &self.appends {
            assert!(appended.insert(append.line, append).is_none(), "two appends have one line");
        }
        let mut reads: Vec<&Read> = self.reads.iter().collect();
        reads.sort_by_key(|read| (read.saw.len(), read.began));
        let order: &[u64] = reads.last().map_or(&[], |longest| &longest.saw);
        for read in &reads {
            check_lines(read, &appended)?;
            if !order.starts_with(&read.saw) {
                let common = read.saw.iter().zip(order).take_while(|(a, b)| a == b).count();
                let longest = reads.last().map_or(*read, |longest| longest);
                let reads = [read, longest].map(|read| Operation::Read(read).to_string());
                return Err(Violation::Fork { common, reads });
            }
        }
        let mut sequence: Vec<Operation<'_>> = Vec::new();
        let mut reads = reads.into_iter().peekable();
        for length in 0..=order.len() {
            while let Some(read) = reads.next_if(|read| read.saw.len() == length) {
                sequence.push(Operation::Read(read));
            }
            sequence.extend(order.get(length).map(|line| Operation::Append(appended[line])));
        }
        // Those that have succeeded come after all that were seen, if no read says otherwise.
        let seen: HashSet<u64> = order.iter().copied().collect();
        let is_unseen = |of: &&Append| of.ended.is_some() && !seen.contains(&of.line);
        let mut unseen: Vec<&Append> = self.appends.iter().filter(is_unseen).collect();
        unseen.sort_by_key(|append| append.began);
        sequence.extend(unseen.into_iter().map(Operation::Append));
        let mut latest: Option<Operation<'_>> = None;
        for operation in sequence {
            if let Some(first) = latest
                && operation.ended().is_some_and(|ended| ended < first.began())
            {
                let (first, second) = (first.to_string(), operation.to_string());
                return Err(Violation::Order { first, second });
            }
            if latest.is_none_or(|latest| latest.began() < operation.began()) {
                latest = Some(operation);
            }
        }
        Ok(order.to_vec())
    }
}

fn check_lines(read: &Read, appended: &HashMap<u64, &Append>) -> Result<(), Violation> {
    let mut seen = HashSet::new();
    for line in &read.saw {
        let (line, read) = (*line, || Operation::Read(read).to_string());
        if !appended.contains_key(&line) {
            return Err(Violation::Stranger { line, read: read() });
        }
        if !seen.insert(line) {
            return Err(Violation::Twice { line, read: read() });
        }
    }
    Ok(())
}

/// Hexadecimal digits that a line begins with.
const DIGITS: usize = 16;

/// A line as it is in a file: its number, and more bytes that follow from it. Some are longer than
/// a page.
#[must_use]
pub fn text(line: u64) -> Vec<u8> {
    let length = match mix(line) % 16 {
        0 => mix(line + 1) % 6000,
        _ => mix(line + 1) % 100,
    };
    let mut text = format!("{line:0DIGITS$x} ").into_bytes();
    text.extend((0..length).map(|n| b'a' + mix(line + n).to_le_bytes()[0] % 26));
    text.push(b'\n');
    text
}

/// The lines of a file, and how many bytes at its end are the beginning of one more.
///
/// # Errors
/// In words, if anything else is there.
pub fn lines(mut bytes: &[u8]) -> Result<(Vec<u64>, usize), String> {
    let (mut found, whole) = (Vec::new(), bytes.len());
    while !bytes.is_empty() {
        let at = whole - bytes.len();
        let shown = || String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        let digits = &bytes[..bytes.len().min(DIGITS)];
        let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
        if !digits.iter().all(is_digit) {
            return Err(format!("no line begins at byte {at} of {whole}: {:?}", shown()));
        }
        if digits.len() < DIGITS {
            return Ok((found, digits.len()));
        }
        let number =
            std::str::from_utf8(digits).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        let line = number.ok_or_else(|| format!("no number at byte {at}: {:?}", shown()))?;
        let text = text(line);
        match bytes.strip_prefix(&text[..]) {
            Some(rest) => {
                found.push(line);
                bytes = rest;
            }
            None if text.starts_with(bytes) => return Ok((found, bytes.len())),
            None => {
                let right = text.iter().zip(bytes).take_while(|(a, b)| a == b).count();
                let wrong = bytes.get(right).copied().unwrap_or_default();
                return Err(format!(
                    "line {line:x} of {} bytes at byte {at} of {whole} is wrong from its byte {right} on: \
                     {wrong:#04x}",
                    text.len()
                ));
            }
        }
    }
    Ok((found, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rng, for_seeds};

    fn append(line: u64, began: u64, ended: impl Into<Option<u64>>) -> Append {
        Append { line, by: format!("a{line}"), began, ended: ended.into() }
    }

    fn read(saw: &[u64], began: u64, ended: u64) -> Read {
        Read { saw: saw.to_vec(), by: "r".into(), began, ended }
    }

    fn check(appends: &[Append], reads: &[Read]) -> Result<Vec<u64>, Violation> {
        History { appends: appends.to_vec(), reads: reads.to_vec() }.check()
    }

    #[test]
    fn what_fits_one_order_passes() {
        let both = [append(1, 0, 10), append(2, 0, 10)];
        assert_eq!(check(&[], &[]), Ok(vec![]));
        assert_eq!(check(&both, &[]), Ok(vec![]));
        // Concurrent appends come in any order.
        assert_eq!(check(&both, &[read(&[1, 2], 20, 30)]), Ok(vec![1, 2]));
        assert_eq!(check(&both, &[read(&[2, 1], 20, 30)]), Ok(vec![2, 1]));
        // A read during an append sees it or not, also one after the other in this order.
        let reads = [read(&[], 1, 2), read(&[1], 3, 4)];
        assert_eq!(check(&both, &reads), Ok(vec![1]));
        // One whose end is unknown may be there, never, or late.
        let unknown = [append(1, 0, None), append(2, 5, 10)];
        assert_eq!(check(&unknown, &[read(&[2], 20, 30)]), Ok(vec![2]));
        assert_eq!(check(&unknown, &[read(&[2], 20, 30), read(&[2, 1], 40, 50)]), Ok(vec![2, 1]));
    }

    #[test]
    fn what_fits_no_order_is_found() {
        let one_after_the_other = [append(1, 0, 10), append(2, 20, 30)];
        let order = |result| matches!(result, Err(Violation::Order { .. }));
        // The wrong order; a line that came too late, too early, was lost, or went again.
        assert!(order(check(&one_after_the_other, &[read(&[2, 1], 40, 50)])));
        assert!(order(check(&one_after_the_other, &[read(&[], 11, 12)])));
        assert!(order(check(&one_after_the_other, &[read(&[1, 2], 11, 12)])));
        assert!(order(check(&one_after_the_other, &[read(&[1], 40, 50)])));
        let unknown = [append(1, 0, None)];
        assert!(order(check(&unknown, &[read(&[1], 1, 2), read(&[], 3, 4)])));
        // A later read of less although both began together is fine, but not in this order.
        assert!(!order(check(&unknown, &[read(&[1], 1, 4), read(&[], 3, 4)])));
        let both = [append(1, 0, 10), append(2, 0, 10)];
        assert!(matches!(
            check(&both, &[read(&[3], 1, 2)]),
            Err(Violation::Stranger { line: 3, .. })
        ));
        assert!(matches!(
            check(&both, &[read(&[1, 1], 1, 2)]),
            Err(Violation::Twice { line: 1, .. })
        ));
        let fork = check(&both, &[read(&[1], 1, 2), read(&[2], 1, 2)]);
        assert!(matches!(fork, Err(Violation::Fork { common: 0, .. })), "{fork:?}");
    }

    /// Whether some order explains the rest of a history, by trying all.
    fn is_explained(list: &mut Vec<u64>, appends: &[Append], reads: &[Read]) -> bool {
        let ends = appends.iter().filter_map(|of| of.ended).chain(reads.iter().map(|of| of.ended));
        let Some(first_end) = ends.min() else { return true };
        let without = |n| [&appends[..n], &appends[n + 1..]].concat();
        for (n, append) in appends.iter().enumerate().filter(|(_, of)| of.began <= first_end) {
            list.push(append.line);
            let explained = is_explained(list, &without(n), reads);
            list.pop();
            if explained {
                return true;
            }
        }
        reads.iter().enumerate().any(|(n, read)| {
            read.began <= first_end
                && read.saw == *list
                && is_explained(list, appends, &[&reads[..n], &reads[n + 1..]].concat())
        })
    }

    #[test]
    fn it_finds_what_a_search_of_all_orders_finds() {
        let counts = [std::cell::Cell::new(0), std::cell::Cell::new(0)];
        for_seeds(0..6000, |rng| {
            let interval = |rng: &mut Rng| {
                let began = rng.below(12);
                (began, began + rng.below(6))
            };
            let appends: Vec<Append> = (0..1 + rng.below(4))
                .map(|line| {
                    let (began, ended) = interval(rng);
                    append(line, began, (!rng.chance(1, 4)).then_some(ended))
                })
                .collect();
            // Mostly the order in which they began.
            let mut order: Vec<&Append> = appends.iter().collect();
            order.sort_by_key(|append| append.began);
            let mut order: Vec<u64> = order.into_iter().map(|append| append.line).collect();
            if rng.chance(1, 4) {
                let (a, b) = (rng.index(order.len()), rng.index(order.len()));
                order.swap(a, b);
            }
            let reads: Vec<Read> = (0..1 + rng.below(3))
                .map(|_| {
                    let (began, ended) = interval(rng);
                    let begun = appends.iter().filter(|of| of.began <= ended).count() as u64;
                    let length = if rng.chance(1, 3) { rng.below(5) } else { begun };
                    read(&order[..order.len().min(length.try_into().expect("few"))], began, ended)
                })
                .collect();
            let explained = is_explained(&mut Vec::new(), &appends, &reads);
            let checked = check(&appends, &reads);
            assert_eq!(checked.is_ok(), explained, "{checked:?}: {appends:#?} {reads:#?}");
            let count = &counts[usize::from(explained)];
            count.set(count.get() + 1);
        });
        if std::env::var_os("WEFT_SEED").is_none() && std::env::var_os("WEFT_SEEDS").is_none() {
            assert!(counts.iter().all(|count| count.get() > 500), "{counts:?}");
        }
    }

    /// What a list on several nodes does wrong.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Fault {
        Nothing,
        /// A node reads what it had read before.
        StaleRead,
        /// A line is not there although its append has succeeded.
        LostLine,
        /// A request that is repeated appends once more.
        Repeated,
        /// It has succeeded before it takes effect.
        EarlyAnswer,
        /// A node writes at the end that it knew, over a line.
        OldEnd,
    }

    const CLIENTS: usize = 4;

    enum Client {
        Idle,
        Append { line: u64, began: u64, is_done: bool, answers_at: u64 },
        Read { saw: Option<Vec<u64>>, began: u64, answers_at: u64 },
    }

    /// Clients that append and read, with moments of begin, effect and end of their own.
    fn history(rng: &mut Rng, fault: Fault) -> History {
        let (mut history, mut list, mut known) =
            (History::default(), Vec::new(), vec![Vec::new(); CLIENTS]);
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::Idle).collect();
        let (mut late, mut next) = (Vec::new(), 0);
        for now in 0..300 {
            let n = rng.index(CLIENTS);
            let by = format!("client {n}");
            if rng.chance(1, 20) {
                // Requests of dead clients, and those that were answered too early.
                list.append(&mut late);
            }
            clients[n] = match std::mem::replace(&mut clients[n], Client::Idle) {
                Client::Idle if rng.chance(1, 2) => {
                    next += 1;
                    Client::Append {
                        line: next,
                        began: now,
                        is_done: false,
                        answers_at: now + rng.below(30),
                    }
                }
                Client::Idle => {
                    Client::Read { saw: None, began: now, answers_at: now + rng.below(30) }
                }
                Client::Append { line, began, is_done, .. } if rng.chance(1, 20) => {
                    // It dies: what it asked for happens, now or later, or does not.
                    if !is_done && rng.chance(1, 2) {
                        late.push(line);
                    }
                    history.appends.push(Append { line, by, began, ended: None });
                    Client::Idle
                }
                Client::Append { line, began, is_done: false, answers_at } => {
                    let strikes = rng.chance(1, 10);
                    match fault {
                        Fault::LostLine if strikes => {}
                        Fault::Repeated if strikes => list.extend([line, line]),
                        Fault::EarlyAnswer if strikes => late.push(line),
                        Fault::OldEnd if strikes && !list.is_empty() => {
                            let end = list.len() - 1;
                            list[end] = line;
                        }
                        _ => list.push(line),
                    }
                    Client::Append { line, began, is_done: true, answers_at }
                }
                Client::Read { saw: None, began, answers_at } => {
                    if fault != Fault::StaleRead || !rng.chance(1, 10) {
                        known[n] = list.clone();
                    }
                    Client::Read { saw: Some(known[n].clone()), began, answers_at }
                }
                Client::Append { line, began, answers_at, .. } if answers_at <= now => {
                    history.appends.push(Append { line, by, began, ended: Some(now) });
                    Client::Idle
                }
                Client::Read { saw: Some(saw), began, answers_at } if answers_at <= now => {
                    history.reads.push(Read { saw, by, began, ended: now });
                    Client::Idle
                }
                waits => waits,
            };
        }
        for (n, client) in clients.into_iter().enumerate() {
            if let Client::Append { line, began, .. } = client {
                history.appends.push(Append {
                    line,
                    by: format!("client {n}"),
                    began,
                    ended: None,
                });
            }
        }
        history.reads.push(Read { saw: list, by: "the last one".into(), began: 300, ended: 301 });
        history
    }

    #[test]
    fn a_list_that_is_right_passes_and_each_fault_is_found() {
        for_seeds(0..200, |rng| {
            let history = history(rng, Fault::Nothing);
            assert_eq!(history.check().map(|_| ()), Ok(()), "{history:#?}");
        });
        use Fault::{EarlyAnswer, LostLine, OldEnd, Repeated, StaleRead};
        for fault in [StaleRead, LostLine, Repeated, EarlyAnswer, OldEnd] {
            let found =
                (0..100).filter(|seed| history(&mut Rng::new(*seed), fault).check().is_err());
            let found = found.count();
            assert!(found > 50, "{fault:?} was found in {found} of 100 histories");
        }
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        let numbers: Vec<u64> = (0..200).map(|n| (3 << 32) + n).collect();
        let file: Vec<u8> = numbers.iter().flat_map(|line| text(*line)).collect();
        assert_eq!(lines(&file), Ok((numbers.clone(), 0)));
        assert!(numbers.iter().any(|line| text(*line).len() > 4096), "none is longer than a page");
        for cut in (0..file.len()).step_by(7) {
            let (found, rest) = lines(&file[..cut]).expect("lines");
            let whole: usize = found.iter().map(|line| text(*line).len()).sum();
            assert_eq!((whole + rest, &found[..]), (cut, &numbers[..found.len()]));
        }
        for wrong in (0..file.len()).step_by(11) {
            let mut file = file.clone();
            file[wrong] = 0;
            assert!(lines(&file).is_err(), "byte {wrong}");
            // Bytes that are missing in the middle.
            file.drain(wrong..file.len().min(wrong + 5));
            assert_ne!(lines(&file), Ok((numbers.clone(), 0)), "byte {wrong}");
        }
    }
}
