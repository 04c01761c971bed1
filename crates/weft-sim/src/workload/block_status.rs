//! Block status: what a volume calls a hole is read as zeros by everybody who copies it, so the
//! oracle takes it for a read that returned zeros.

use std::ops::Range;

use weft_disk::Volume;

use crate::violation::ViolationKind;
use crate::workload::ClientHarness;

impl ClientHarness {
    /// Asks which of these cells are holes, and checks the answer.
    pub(crate) fn check_block_status(
        &self,
        volume: &dyn Volume,
        client: usize,
        cells: &Range<usize>,
    ) {
        let place = self.oracle.borrow().bytes(cells);
        let len = place.end - place.start;
        self.world.client(client, "asks for the status of", place.start, len, 0);
        let extents = match volume.allocation(place.start, len) {
            Ok(extents) => extents,
            Err(error) => return self.check_result("block status", &place, &Err(error)),
        };
        let mut at = place.start;
        for extent in &extents {
            let bytes = at..at.saturating_add(extent.len);
            at = bytes.end;
            if extent.len == 0 || at > place.end {
                break;
            }
            if extent.hole {
                self.check_hole(client, &bytes);
            }
        }
        if at != place.end || extents.iter().any(|extent| extent.len == 0) {
            let text = format!("block status does not cover what was asked for: {extents:?}");
            self.fail(ViolationKind::BlockStatus, text, Some(place));
        }
    }

    /// Checks that the whole cells in a hole may read as zeros now.
    fn check_hole(&self, client: usize, bytes: &Range<u64>) {
        self.note_losses();
        let oracle = &mut *self.oracle.borrow_mut();
        let size = oracle.cell_bytes() as u64;
        let whole = bytes.start.next_multiple_of(size)..bytes.end / size * size;
        if whole.start >= whole.end {
            return;
        }
        let zeros = vec![0; oracle.cell_bytes()];
        for cell in oracle.cells_of(&whole) {
            let reading = oracle.begin_read(cell..cell + 1);
            if let Err(mismatch) = oracle.end_read(reading, &zeros) {
                let place = mismatch.offset..mismatch.offset + size;
                let text = format!(
                    "client {client} was told of a hole, {bytes:?}, where there is data: {}",
                    mismatch.text
                );
                return self.fail(ViolationKind::BlockStatus, text, Some(place));
            }
        }
    }
}
