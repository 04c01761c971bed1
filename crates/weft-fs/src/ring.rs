//! A ring on the metadata array, written from its start to its end over and over. Positions in it count
//! up forever. What would not fit before the end begins at the start.

use crate::error::Result;

/// Where `len` bytes go in a ring of `size` bytes that is full up to `head`.
pub(crate) fn place(size: u64, head: u64, len: u64) -> u64 {
    let at = head % size;
    if at + len > size { head - at + size } else { head }
}

/// What was appended behind a position, and the position behind it. `read` looks at an offset in the
/// ring, and returns how many bytes there belong to what it finds.
pub(crate) async fn next<T>(
    size: u64,
    position: u64,
    read: impl AsyncFn(u64) -> Result<Option<(u64, T)>>,
) -> Result<Option<(u64, T)>> {
    let here = position % size;
    if let Some((len, found)) = read(here).await? {
        return Ok(Some((position + len, found)));
    }
    if here == 0 {
        return Ok(None);
    }
    let start = position - here + size;
    Ok(read(0).await?.map(|(len, found)| (start + len, found)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_before_the_end_begins_at_the_start() {
        assert_eq!([place(100, 250, 50), place(100, 251, 50), place(100, 0, 100)], [250, 300, 0]);
    }
}
