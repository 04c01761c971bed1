//! Sparse contents: the pages that were written, shared between copies until one changes.

use std::collections::BTreeMap;
use std::rc::Rc;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
const PAGE_LEN: usize = 4096;
/// Pages of a chunk.
const CHUNK: u64 = 256;
const CHUNK_LEN: usize = 256;

type Page = Rc<[u8; PAGE_LEN]>;

thread_local! {
    /// What pages share that hold only zeros since they were allocated.
    static ZEROS: Page = Rc::new([0; PAGE_LEN]);
}

/// The contents of a disk; pages that were never written read as zeros. Adjacent pages are grouped
/// in chunks, so that lookups in a small disk are short and a clone costs one pointer per chunk.
#[derive(Debug, Clone, Default)]
pub struct Pages {
    chunks: BTreeMap<u64, Rc<[Option<Page>; CHUNK_LEN]>>,
    count: u64,
}

/// The index of a page in its chunk.
fn place(page: u64) -> usize {
    usize::try_from(page % CHUNK).unwrap_or(0)
}

impl Pages {
    /// Calls `visit(page, start in page, part of the range)` for each page of a range.
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

    fn page(&self, page: u64) -> Option<&Page> {
        self.chunks.get(&(page / CHUNK))?[place(page)].as_ref()
    }

    /// The page; allocates it, zeroed, if necessary.
    fn page_mut(&mut self, page: u64) -> &mut [u8; PAGE_LEN] {
        Rc::make_mut(self.allocate(page))
    }

    fn allocate(&mut self, page: u64) -> &mut Page {
        let none = || Rc::new([const { None }; CHUNK_LEN]);
        let chunk = self.chunks.entry(page / CHUNK).or_insert_with(none);
        Rc::make_mut(chunk)[place(page)].get_or_insert_with(|| {
            self.count += 1;
            ZEROS.with(Rc::clone)
        })
    }

    fn forget(&mut self, page: u64) {
        if self.page(page).is_some()
            && let Some(chunk) = self.chunks.get_mut(&(page / CHUNK))
        {
            Rc::make_mut(chunk)[place(page)] = None;
            self.count -= 1;
        }
    }

    /// Fills `out` from `offset`.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        Self::parts(offset, out.len(), |page, start, part| {
            let len = part.len();
            match self.page(page) {
                Some(bytes) => out[part].copy_from_slice(&bytes[start..start + len]),
                None => out[part].fill(0),
            }
        });
    }

    /// Stores `data` at `offset`. Zeros allocate a page like any other bytes: that is how members
    /// of an array reserve space.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        Self::parts(offset, data.len(), |page, start, part| {
            let (page, data) = (self.allocate(page), &data[part]);
            if page[start..start + data.len()] != *data {
                Rc::make_mut(page)[start..start + data.len()].copy_from_slice(data);
            }
        });
    }

    /// Stores `data` at `offset`, and frees pages that become all zeros.
    pub fn write_sparse(&mut self, offset: u64, data: &[u8]) {
        Self::parts(offset, data.len(), |page, start, part| {
            let data = &data[part];
            if data.len() == PAGE_LEN && data == [0; PAGE_LEN] {
                self.forget(page);
            } else {
                self.page_mut(page)[start..start + data.len()].copy_from_slice(data);
            }
        });
    }

    /// Stores zeros, and frees pages that become all zeros.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let len = usize::try_from(len).expect("a modelled range fits the address space");
        Self::parts(offset, len, |page, start, part| {
            if part.len() == PAGE_LEN {
                self.forget(page);
            } else if self.page(page).is_some() {
                self.page_mut(page)[start..start + part.len()].fill(0);
            }
        });
    }

    /// Number of allocated pages.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The memory that they use, approximately.
    pub fn stored_bytes(&self) -> u64 {
        self.count() * PAGE
    }

    /// Whether all pages of the range are allocated.
    pub fn covers(&self, offset: u64, len: u64) -> bool {
        (offset / PAGE..(offset + len).div_ceil(PAGE)).all(|page| self.page(page).is_some())
    }

    /// Whether no page of the range is allocated.
    pub fn is_blank(&self, offset: u64, len: u64) -> bool {
        (offset / PAGE..(offset + len).div_ceil(PAGE)).all(|page| self.page(page).is_none())
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
