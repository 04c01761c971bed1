//! Sizes, rates and durations as people write and read them.
//!
//! A number takes an optional suffix. `K`, `M`, `G`, `T`, `P` and `KiB`, `MiB`, … are powers of
//! 1024, as in `mdadm` and `zpool`. `KB`, `MB`, `GB`, `TB`, `PB` are powers of 1000, as disks are
//! sold: a "20 TB" disk holds `20TB`, not `20T`. A rate may end in `/s`.

use std::time::Duration;

use weft_disk::Bytes;

const SUFFIXES: [(char, u64); 5] =
    [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30), ('T', 1 << 40), ('P', 1 << 50)];

/// Parses a size in bytes.
///
/// # Errors
/// What to write instead, as in all of these.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is not a size: write a number such as 4096, 64K, 1.5G, 20TB or 20TiB");
    let too_big = || format!("`{text}` is too large");
    let trimmed = text.trim();
    let number_ends = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = trimmed.split_at(number_ends.unwrap_or(trimmed.len()));
    let factor = factor_of(suffix.trim_start()).ok_or_else(wrong)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || !fraction.chars().all(|c| c.is_ascii_digit()) {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| too_big())?;
    let mut bytes = whole.checked_mul(factor).ok_or_else(too_big)?;
    if !fraction.is_empty() {
        // Nine digits resolve a petabyte to a megabyte: more than people write by hand.
        let digits = &fraction[..fraction.len().min(9)];
        let scale = 10_u128.pow(u32::try_from(digits.len()).unwrap_or(9));
        let part = digits.parse::<u128>().map_err(|_| wrong())? * u128::from(factor) / scale;
        bytes = bytes.checked_add(u64::try_from(part).unwrap_or(0)).ok_or_else(too_big)?;
    }
    Ok(bytes)
}

/// The bytes that a suffix stands for; `None` if there is no such suffix.
fn factor_of(suffix: &str) -> Option<u64> {
    let mut chars = suffix.chars();
    let Some(first) = chars.next() else { return Some(1) };
    if suffix.eq_ignore_ascii_case("B") {
        return Some(1);
    }
    let power = SUFFIXES.iter().position(|(c, _)| c.eq_ignore_ascii_case(&first))?;
    match chars.as_str() {
        "" | "iB" | "ib" => Some(SUFFIXES[power].1),
        "B" | "b" => Some(1000_u64.pow(u32::try_from(power).ok()? + 1)),
        _ => None,
    }
}

/// Parses a rate in bytes per second: a size, with or without `/s`.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    parse(trimmed.strip_suffix("/s").unwrap_or(trimmed)).map_err(|_| {
        format!("`{text}` is not a rate: write bytes per second, such as 50M, 50MB/s or 1.5G")
    })
}

/// Parses the length of a unit: a size that fits 32 bits (the engine sets the limit).
pub fn parse_u32(text: &str) -> Result<u32, String> {
    let bytes = parse(text)?;
    u32::try_from(bytes)
        .map_err(|_| format!("`{text}` is too large for a unit: the maximum is 16M"))
}

/// Parses a duration: `30s`, `5m`, `1h`; a bare number is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let what = || format!("`{text}` is not a time: write a number such as 30s, 5m or 1h");
    let trimmed = text.trim();
    let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &trimmed[digits.len()..] {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        _ => return Err(what()),
    };
    if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return Err(what());
    }
    let number: Option<u64> = digits.parse().ok();
    let seconds = number.and_then(|number| number.checked_mul(factor));
    seconds.map(Duration::from_secs).ok_or_else(|| format!("`{text}` is too long"))
}

/// `bytes` for people: see [`Bytes`].
pub fn show(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

/// A rate for people: `12.5 MiB/s`.
pub fn show_rate(bytes_per_s: u64) -> String {
    format!("{}/s", show(bytes_per_s))
}

/// A duration for people: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`.
pub fn show_duration(duration: Duration) -> String {
    let s = duration.as_secs();
    match s {
        0..10 => format!("{}.{} s", s, duration.subsec_millis() / 100),
        10..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..172_800 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} days", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64k", 65536),
            ("64KiB", 65536),
            ("64 KiB", 65536),
            ("512B", 512),
            ("64KB", 64_000),
            ("20TB", 20_000_000_000_000),
            ("20TiB", 20 << 40),
            ("1.5gb", 1_500_000_000),
            ("1M", 1 << 20),
            ("1.5G", 3 << 29),
            ("10T", 10 << 40),
            (" 1P ", 1 << 50),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "", "K", "-1", "1X", "1..2", "0x10", "1 000", ".5G", "many", "B", "é", "1é", "1KK",
            "1iB",
        ] {
            assert!(parse(text).is_err(), "{text} was taken for a size");
        }
        assert_eq!((parse_rate("50MB/s"), parse_rate("50M")), (Ok(50_000_000), Ok(50 << 20)));
        assert!(parse_rate("50M/min").is_err() && parse_rate("/s").is_err());
        assert!(parse("16384P").is_err() && parse("99999999999999999999").is_err());
    }

    #[test]
    fn durations_are_read_with_their_unit_or_as_seconds() {
        let cases = [("30", 30), ("30s", 30), (" 5m ", 300), ("5min", 300), ("2h", 7200)];
        for (text, seconds) in cases {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "s", "-1s", "1.5s", "10ms", "ever", "1 h", "99999999999999999999h"] {
            assert!(parse_duration(text).is_err(), "{text} was taken for a time");
        }
    }

    #[test]
    fn durations_are_shown_short() {
        let times = [400, 12_000, 200_000, 7_500_000].map(Duration::from_millis);
        let shown: Vec<String> = times.map(show_duration).into();
        assert_eq!(shown, ["0.4 s", "12 s", "3 min 20 s", "2 h 5 min"]);
    }
}
