//! Sparse contents: pages that were written, shared between copies until one of them changes.

use std::collections::BTreeMap;
use std::rc::Rc;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
const PAGE_LEN: usize = 4096;

/// Contents of a disk; what was never written reads as zeros. A clone costs a map of
/// pointers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pages(BTreeMap<u64, Rc<[u8; PAGE_LEN]>>);

impl Pages {
    /// Calls `visit` with (page, start in page, part of the range) for each page of a range.
    fn parts(offset: u64, len: usize, mut visit: impl FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let start = usize::try_from(at % PAGE).unwrap_or(0);
            let part = (PAGE_LEN - start).min(len - done);
            visit(at / PAGE, start, done..done + part);
            done += part;
        }
    }

    /// Fills `out` from `offset`.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        Self::parts(offset, out.len(), |page, start, part| {
            let len = part.len();
            match self.0.get(&page) {
                Some(bytes) => out[part].copy_from_slice(&bytes[start..start + len]),
                None => out[part].fill(0),
            }
        });
    }

    /// Stores `data` at `offset`. Zeros take a page like any other bytes, and it has its room from
    /// then on: that is how members of an array reserve it.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        Self::parts(offset, data.len(), |page, start, part| {
            let bytes = self.0.entry(page).or_insert_with(|| Rc::new([0; PAGE_LEN]));
            Rc::make_mut(bytes)[start..start + part.len()].copy_from_slice(&data[part]);
        });
    }

    /// Stores `data` at `offset`, and forgets the pages that are zeros altogether.
    pub(crate) fn write_sparse(&mut self, offset: u64, data: &[u8]) {
        Self::parts(offset, data.len(), |page, start, part| {
            let data = &data[part];
            if data.len() == PAGE_LEN && data == [0; PAGE_LEN] {
                self.0.remove(&page);
            } else {
                let bytes = self.0.entry(page).or_insert_with(|| Rc::new([0; PAGE_LEN]));
                Rc::make_mut(bytes)[start..start + data.len()].copy_from_slice(data);
            }
        });
    }

    /// Stores zeros, and forgets the pages that are zeros altogether.
    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        let len = usize::try_from(len).expect("a modelled range fits the address space");
        Self::parts(offset, len, |page, start, part| {
            if part.len() == PAGE_LEN {
                self.0.remove(&page);
            } else if let Some(bytes) = self.0.get_mut(&page) {
                Rc::make_mut(bytes)[start..start + part.len()].fill(0);
            }
        });
    }

    /// Pages that hold something.
    pub(crate) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// Bytes of memory that they take, about.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.count() * PAGE
    }

    /// Whether every page of the range exists already.
    pub(crate) fn covers(&self, offset: u64, len: u64) -> bool {
        (offset / PAGE..(offset + len).div_ceil(PAGE)).all(|page| self.0.contains_key(&page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_what_the_original_had() {
        let mut pages = Pages::default();
        pages.write(4000, &[7; 200]);
        let copy = pages.clone();
        pages.write(4090, &[9; 10]);
        pages.zero(0, 4096);
        let (mut new, mut old) = ([1; 200], [1; 200]);
        pages.read(4000, &mut new);
        copy.read(4000, &mut old);
        assert_eq!(old, [7; 200]);
        assert!(new[..96].iter().all(|b| *b == 0) && new[96..100] == [9; 4]);
        assert!(pages.covers(4096, 10) && !pages.covers(4095, 10));
        assert_eq!(pages.count(), 1);
    }
}
