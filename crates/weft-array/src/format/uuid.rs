//! Identities of arrays and members: 128 bits, written as 32 hex digits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Identity of an array or of a member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub [u8; 16]);

impl Id {
    /// The identity of the `number`-th member of array `self`, made in the assembly `epoch` (0: at
    /// creation). The mapping is one to one, so two members of an array have the same identity only
    /// if both number and epoch are the same. The program that runs an array uses no number twice.
    /// The next run may reuse one: if a disk was being added at a crash, only that disk knows its
    /// number. But the next run has another epoch, a random number. Members of different arrays are
    /// kept apart by the array's own random identity.
    #[must_use]
    pub fn member(self, epoch: u64, number: u64) -> Self {
        let made = u128::from(epoch) << 64 | u128::from(number.wrapping_add(1));
        let value = u128::from_le_bytes(self.0) ^ made;
        // Odd multiplication and xor-shift are both invertible, hence one to one.
        let value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let value = value ^ (value >> 67);
        Self(value.wrapping_mul(0xda94_2042_e4dd_58b5_bf58_476d_1ce4_e5b9).to_le_bytes())
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not 32 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an identity is 32 hex digits")]
pub struct BadId;

impl FromStr for Id {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(BadId);
        }
        let value = u128::from_str_radix(text, 16).map_err(|_| BadId)?;
        Ok(Self(value.to_be_bytes()))
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_are_the_same_identity() {
        let id = Id([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(id.to_string(), "000102030405060708090a0b0c0d0eff");
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in
            ["", "00", "+00102030405060708090a0b0c0d0eff", "g00102030405060708090a0b0c0d0eff"]
        {
            assert_eq!(bad.parse::<Id>(), Err(BadId));
        }
    }

    #[test]
    fn members_differ_from_each_other_and_from_the_array() {
        let array = Id([7; 16]);
        let all: std::collections::BTreeSet<_> =
            (0..10_000).map(|n| array.member(n % 100, n / 100)).chain([array]).collect();
        assert_eq!(all.len(), 10_001);
    }
}
