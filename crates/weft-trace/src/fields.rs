//! Parses numbers and columns from bytes, without copying.

use crate::fault::Fault;

/// Trims blanks at both ends.
pub(crate) fn trim(bytes: &[u8]) -> &[u8] {
    bytes.trim_ascii()
}

/// A decimal number.
pub(crate) fn number(what: &'static str, bytes: &[u8]) -> Result<u64, Fault> {
    let digits = trim(bytes);
    let mut value = 0u64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        let next = value.checked_mul(10).and_then(|v| v.checked_add(u64::from(digit)));
        match next {
            Some(next) if digit < 10 => value = next,
            _ => return Err(Fault::at(what, bytes)),
        }
    }
    if digits.is_empty() { Err(Fault::at(what, bytes)) } else { Ok(value) }
}

/// A decimal number of 32 bits.
pub(crate) fn number32(what: &'static str, bytes: &[u8]) -> Result<u32, Fault> {
    u32::try_from(number(what, bytes)?).map_err(|_| Fault::at(what, bytes))
}

/// A number, hexadecimal if it starts with `0x`.
pub(crate) fn hex_or_number(what: &'static str, bytes: &[u8]) -> Result<u64, Fault> {
    let text = trim(bytes);
    let Some(digits) = text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X")) else {
        return number(what, bytes);
    };
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'));
    let value = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    value.ok_or_else(|| Fault::at(what, bytes))
}

/// A decimal number with a fraction, in units of `1/scale`, a power of ten; further digits are cut
/// off. `1.5` with a scale of 1000 is 1500.
pub(crate) fn decimal(what: &'static str, bytes: &[u8], scale: u64) -> Result<u64, Fault> {
    let text = trim(bytes);
    let dot = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let (whole, fraction) = (&text[..dot], text.get(dot + 1..).unwrap_or_default());
    let fault = || Fault::at(what, bytes);
    // `.5` is a number, and so is `5.`, but not `.`.
    if whole.is_empty() && fraction.is_empty() {
        return Err(fault());
    }
    let whole = if whole.is_empty() { 0 } else { number(what, whole).map_err(|_| fault())? };
    let mut value = whole.checked_mul(scale).ok_or_else(fault)?;
    let mut place = scale;
    for byte in fraction {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(fault());
        }
        place /= 10;
        value = value.checked_add(u64::from(digit) * place).ok_or_else(fault)?;
    }
    Ok(value)
}

/// The columns of a line, separated by commas.
pub(crate) struct Columns<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Columns<'a> {
    pub(crate) fn new(line: &'a [u8]) -> Self {
        Self { rest: Some(line) }
    }

    /// The next column; an error names the missing field.
    pub(crate) fn next(&mut self, what: &'static str) -> Result<&'a [u8], Fault> {
        let rest = self.rest.ok_or_else(|| Fault::new(what))?;
        match memchr::memchr(b',', rest) {
            Some(comma) => {
                self.rest = Some(&rest[comma + 1..]);
                Ok(&rest[..comma])
            }
            None => {
                self.rest = None;
                Ok(rest)
            }
        }
    }

    /// Whether there are more columns.
    pub(crate) fn has_more(&self) -> bool {
        self.rest.is_some()
    }
}

/// `numerator` of the unit `unit` in nanoseconds, if that fits.
pub(crate) fn scaled(what: &'static str, value: u64, factor: u64) -> Result<u64, Fault> {
    value.checked_mul(factor).ok_or_else(|| Fault::new(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_and_nothing_else() {
        assert_eq!(number("n", b" 42 "), Ok(42));
        assert_eq!(number("n", b"18446744073709551615"), Ok(u64::MAX));
        for bad in ["", " ", "-1", "+1", "1e3", "0x10", "18446744073709551616", "1 2"] {
            assert!(number("n", bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(hex_or_number("n", b" 0x018f0b8000"), Ok(0x1_8f0b_8000));
        for bad in ["0x", "0x+1", "0xg", "0x11111111111111111"] {
            assert!(hex_or_number("n", bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn decimals_keep_the_digits_that_count() {
        let second = 1_000_000_000;
        assert_eq!(decimal("t", b"0.011413", second), Ok(11_413_000));
        assert_eq!(decimal("t", b"12", second), Ok(12 * second));
        assert_eq!(decimal("t", b".5", 10), Ok(5));
        assert_eq!(decimal("t", b"5.", 10), Ok(50));
        assert_eq!(decimal("t", b"1.00000000099", second), Ok(second));
        for bad in ["", ".", "1.x", "1.2.3", "-1.0", "99999999999999999999.1", "1,5"] {
            assert!(decimal("t", bad.as_bytes(), second).is_err(), "{bad}");
        }
    }
}
