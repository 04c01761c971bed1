//! A set of units of one stripe (or of slots of one array), as 256 bits held by value.

use std::fmt;

/// A set of numbers 0..256: units of a stripe, or slots of an array. Copied by value, no
/// allocation.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitSet([u64; 4]);

impl UnitSet {
    /// The set without members.
    pub const EMPTY: Self = Self([0; 4]);

    /// The set without members.
    #[must_use]
    pub const fn new() -> Self {
        Self::EMPTY
    }

    /// The set of one unit.
    ///
    /// # Panics
    /// If `unit` is 256 or more.
    #[must_use]
    pub const fn one(unit: usize) -> Self {
        Self::EMPTY.with(unit)
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
        Self(words)
    }

    /// This set and `unit`.
    #[must_use]
    pub const fn with(mut self, unit: usize) -> Self {
        self.insert(unit);
        self
    }

    /// This set but for `unit`.
    #[must_use]
    pub const fn without(mut self, unit: usize) -> Self {
        self.remove(unit);
        self
    }

    /// Adds `unit`.
    pub const fn insert(&mut self, unit: usize) {
        self.0[unit / 64] |= 1 << (unit % 64);
    }

    /// Takes `unit` out, if it is there.
    pub const fn remove(&mut self, unit: usize) {
        self.0[unit / 64] &= !(1 << (unit % 64));
    }

    /// Whether `unit` is a member.
    #[must_use]
    pub const fn contains(&self, unit: usize) -> bool {
        unit < 256 && self.0[unit / 64] >> (unit % 64) & 1 == 1
    }

    /// The number of members.
    #[must_use]
    pub const fn len(&self) -> usize {
        let [a, b, c, d] = self.0;
        (a.count_ones() + b.count_ones() + c.count_ones() + d.count_ones()) as usize
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
        Self([a | e, b | f, c | g, d | h])
    }

    /// Members of both sets.
    #[must_use]
    pub const fn intersection(&self, other: &Self) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Self([a & e, b & f, c & g, d & h])
    }

    /// Members of this set that are not in `other`.
    #[must_use]
    pub const fn difference(&self, other: &Self) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Self([a & !e, b & !f, c & !g, d & !h])
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

    /// The members, ascending.
    #[must_use]
    pub const fn iter(&self) -> Units {
        Units(self.0)
    }

    /// The bits, 64 units a word, lowest first.
    #[must_use]
    pub const fn words(&self) -> [u64; 4] {
        self.0
    }

    /// The set of these words, as [`UnitSet::words`] gives them.
    #[must_use]
    pub const fn from_words(words: [u64; 4]) -> Self {
        Self(words)
    }
}

/// The members of a [`UnitSet`], ascending.
#[derive(Clone, Debug)]
pub struct Units([u64; 4]);

impl Iterator for Units {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        for (i, word) in self.0.iter_mut().enumerate() {
            if *word != 0 {
                let bit = word.trailing_zeros() as usize;
                *word &= *word - 1;
                return Some(i * 64 + bit);
            }
        }
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let n = UnitSet(self.0).len();
        (n, Some(n))
    }
}

impl ExactSizeIterator for Units {}

impl IntoIterator for UnitSet {
    type Item = usize;
    type IntoIter = Units;

    fn into_iter(self) -> Units {
        self.iter()
    }
}

impl FromIterator<usize> for UnitSet {
    fn from_iter<I: IntoIterator<Item = usize>>(units: I) -> Self {
        units.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl<const N: usize> From<[usize; N]> for UnitSet {
    fn from(units: [usize; N]) -> Self {
        units.into_iter().collect()
    }
}

impl fmt::Debug for UnitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As `{0 2 5}`.
impl fmt::Display for UnitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, unit) in self.iter().enumerate() {
            write!(f, "{}{unit}", if i == 0 { "" } else { " " })?;
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
