//! Sizes as people read them: the one place where bytes become `64 KiB`.

use std::fmt;

const SUFFIXES: [(&str, u64); 5] =
    [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40), ("PiB", 1 << 50)];

/// A number of bytes, for people: `512 B`, `64 KiB`, `1.5 GiB`. Tenths are rounded down: a size
/// never looks bigger than it is. With `{:#}` the bytes follow where something was cut off, so that
/// two sizes that differ also look different: `9.9 MiB (10485759 bytes)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = u128::from(self.0);
        let found = SUFFIXES.iter().rev().find(|(_, factor)| self.0 >= *factor);
        let (suffix, factor) = found.map_or(("B", 1), |(suffix, factor)| (suffix, *factor));
        let factor = u128::from(factor);
        let tenths = bytes * 10 / factor;
        match (tenths / 10, tenths % 10) {
            (whole, 0) => write!(f, "{whole} {suffix}")?,
            (whole, tenth) => write!(f, "{whole}.{tenth} {suffix}")?,
        }
        if f.alternate() && tenths * factor != bytes * 10 {
            write!(f, " ({bytes} bytes)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_and_never_too_big() {
        let shown = [0, 1023, 1024, 65536, 3 << 29, (1 << 30) - 1].map(|n| Bytes(n).to_string());
        assert_eq!(shown, ["0 B", "1023 B", "1 KiB", "64 KiB", "1.5 GiB", "1023.9 MiB"]);
        assert_eq!(Bytes(u64::MAX).to_string(), "16383.9 PiB");
    }

    #[test]
    fn in_full_what_was_cut_off_is_shown() {
        let shown = [512, 3 << 29, (10 << 20) - 1].map(|n| format!("{:#}", Bytes(n)));
        assert_eq!(shown, ["512 B", "1.5 GiB", "9.9 MiB (10485759 bytes)"]);
    }
}
