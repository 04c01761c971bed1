//! Sets of small numbers – units of one stripe, slots of one array – as 256 bits held by value.
//!
//! A unit and a slot are different things with equal ranges: unit 2 of a stripe lies on another
//! slot in the next stripe. So a slot's number is a type of its own, and a set of one is not a set
//! of the other.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

/// The number of a slot of an array, from 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SlotNo(pub usize);

impl SlotNo {
    /// The slots of an array that has `n`.
    pub fn all(n: usize) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + Clone {
        (0..n).map(Self)
    }
}

impl fmt::Display for SlotNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Units of a stripe.
pub type UnitSet = NumberSet<usize>;

/// Slots of an array.
pub type SlotSet = NumberSet<SlotNo>;

/// What a [`NumberSet`] can hold.
pub trait Number: Copy {
    /// The thing of this number.
    fn of(number: usize) -> Self;

    /// Its number.
    fn number(self) -> usize;
}

impl Number for usize {
    fn of(number: usize) -> Self {
        number
    }

    fn number(self) -> usize {
        self
    }
}

impl Number for SlotNo {
    fn of(number: usize) -> Self {
        Self(number)
    }

    fn number(self) -> usize {
        self.0
    }
}

/// A set of numbers 0..256. Copied by value, no allocation.
pub struct NumberSet<T>([u64; 4], PhantomData<T>);

impl<T> NumberSet<T> {
    /// The set without members.
    pub const EMPTY: Self = Self([0; 4], PhantomData);

    /// The set without members.
    #[must_use]
    pub const fn new() -> Self {
        Self::EMPTY
    }

    /// The set {0, 1, …, n−1}.
    ///
    /// # Panics
    /// If `n` is more than 256.
    #[must_use]
    pub const fn first(n: usize) -> Self {
        assert!(n <= 256);
        let mut words = [0; 4];
        let mut i = 0;
        while i < 4 {
            if n >= 64 * (i + 1) {
                words[i] = u64::MAX;
            } else if n > 64 * i {
                words[i] = (1 << (n - 64 * i)) - 1;
            }
            i += 1;
        }
        Self::from_words(words)
    }

    /// The number of members.
    #[must_use]
    pub const fn len(&self) -> usize {
        let (mut n, mut i) = (0, 0);
        while i < 4 {
            // Mostly there are fewer than 64 numbers, and counting bits takes a dozen steps.
            if self.0[i] != 0 {
                n += self.0[i].count_ones();
            }
            i += 1;
        }
        n as usize
    }

    /// Whether there is no member.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        let [a, b, c, d] = self.0;
        a | b | c | d == 0
    }

    /// Members of either set.
    #[must_use]
    pub const fn union(&self, other: &Self) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Self::from_words([a | e, b | f, c | g, d | h])
    }

    /// Members of both sets.
    #[must_use]
    pub const fn intersection(&self, other: &Self) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Self::from_words([a & e, b & f, c & g, d & h])
    }

    /// Members of this set that are not in `other`.
    #[must_use]
    pub const fn difference(&self, other: &Self) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Self::from_words([a & !e, b & !f, c & !g, d & !h])
    }

    /// Whether every member is also in `other`.
    #[must_use]
    pub const fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// Whether the two sets share a member.
    #[must_use]
    pub const fn intersects(&self, other: &Self) -> bool {
        !self.intersection(other).is_empty()
    }

    /// The bits, 64 numbers a word, lowest first.
    #[must_use]
    pub const fn words(&self) -> [u64; 4] {
        self.0
    }

    /// The set of these words, as [`NumberSet::words`] gives them.
    #[must_use]
    pub const fn from_words(words: [u64; 4]) -> Self {
        Self(words, PhantomData)
    }
}

impl<T: Number> NumberSet<T> {
    /// The set of one number.
    ///
    /// # Panics
    /// If `number` is 256 or more.
    #[must_use]
    pub fn one(number: T) -> Self {
        Self::EMPTY.with(number)
    }

    /// This set and `number`.
    #[must_use]
    pub fn with(mut self, number: T) -> Self {
        self.insert(number);
        self
    }

    /// This set but for `number`.
    #[must_use]
    pub fn without(mut self, number: T) -> Self {
        self.remove(number);
        self
    }

    /// Adds `number`.
    pub fn insert(&mut self, number: T) {
        let number = number.number();
        self.0[number / 64] |= 1 << (number % 64);
    }

    /// Takes `number` out, if it is there.
    pub fn remove(&mut self, number: T) {
        let number = number.number();
        self.0[number / 64] &= !(1 << (number % 64));
    }

    /// Whether `number` is a member.
    #[must_use]
    pub fn contains(&self, number: T) -> bool {
        let number = number.number();
        number < 256 && self.0[number / 64] >> (number % 64) & 1 == 1
    }

    /// The members, ascending.
    #[must_use]
    pub fn iter(&self) -> Numbers<T> {
        Numbers(*self)
    }
}

// Derived, these would ask the same of `T`.
impl<T> Clone for NumberSet<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for NumberSet<T> {}

impl<T> Default for NumberSet<T> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<T> PartialEq for NumberSet<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for NumberSet<T> {}

impl<T> PartialOrd for NumberSet<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for NumberSet<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl<T> Hash for NumberSet<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// The members of a [`NumberSet`], ascending.
#[derive(Clone, Debug)]
pub struct Numbers<T: Number>(NumberSet<T>);

impl<T: Number> Iterator for Numbers<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        for (i, word) in self.0.0.iter_mut().enumerate() {
            if *word != 0 {
                let bit = word.trailing_zeros() as usize;
                *word &= *word - 1;
                return Some(T::of(i * 64 + bit));
            }
        }
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let n = self.0.len();
        (n, Some(n))
    }
}

impl<T: Number> ExactSizeIterator for Numbers<T> {}

impl<T: Number> IntoIterator for NumberSet<T> {
    type Item = T;
    type IntoIter = Numbers<T>;

    fn into_iter(self) -> Numbers<T> {
        self.iter()
    }
}

impl<T: Number> FromIterator<T> for NumberSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(numbers: I) -> Self {
        numbers.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl<T: Number, const N: usize> From<[T; N]> for NumberSet<T> {
    fn from(numbers: [T; N]) -> Self {
        numbers.into_iter().collect()
    }
}

impl<T: Number> fmt::Debug for NumberSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As `{0 2 5}`.
impl<T: Number> fmt::Display for NumberSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, number) in self.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { " " }, number.number())?;
        }
        f.write_str("}")
    }
}

#[cfg(test)]
mod tests {
    use super::UnitSet;

    #[test]
    fn behaves_as_a_set_across_word_borders() {
        let s = UnitSet::from([0, 63, 64, 127, 128, 255]);
        assert_eq!(s.len(), 6);
        assert_eq!(s.iter().collect::<Vec<_>>(), [0, 63, 64, 127, 128, 255]);
        assert!(s.contains(64) && !s.contains(65) && !s.contains(256));
        assert_eq!(s.without(64).with(64), s);
        assert_eq!(s.to_string(), "{0 63 64 127 128 255}");
        assert_eq!(s.difference(&UnitSet::first(128)), UnitSet::from([128, 255]));
        assert_eq!(s.intersection(&UnitSet::first(64)).union(&UnitSet::one(9)).len(), 3);
        assert!(UnitSet::one(3).is_subset(&UnitSet::first(4)));
        assert!(!UnitSet::one(4).intersects(&UnitSet::first(4)));
        for n in 0..=256 {
            assert_eq!(UnitSet::first(n), (0..n).collect());
        }
    }
}
