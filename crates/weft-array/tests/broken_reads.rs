//! An array that breaks in the middle of a write: of what was not being written, reads give what was
//! there, or an error, and never anything else.

use crate::common::bench::{UNIT, members, options as bench_options, run};
use crate::common::disk::{Medium, Power, holding};
use crate::common::*;
use weft_array::{ArrayState, Consistency, create};
use weft_code::SlotNo;
use weft_rt::{Buf, Frozen};

const SIZE: u64 = (3 << 20) + 64 * UNIT;
const STRIPES: u64 = 8;

/// What is written to the first stripe when the disk that is one too many fails the write.
#[derive(Debug, Clone, Copy)]
enum Request {
    /// So many bytes from here.
    Write(u64, u64),
    /// The whole stripe becomes zero.
    Zero,
}

/// Loses the units `lost` of the first stripe, and then the writes to unit `bad`. Returns whether
/// any unit could not be read.
fn breaks(code: &'static str, policy: Consistency, lost: &[usize], bad: usize, request: Request) {
    let what = format!("{code}, {policy}, {lost:?} lost, then {bad} with {request:?}");
    let lost = lost.to_vec();
    run(move |rt| async move {
        let count = CODES.iter().find(|(name, _)| *name == code).expect("one of them").1;
        let disks = holding(&rt, &Power::new(), SIZE, &vec![Medium::new(512); count]);
        let all = members(&disks);
        let options = weft_array::CreateOptions { consistency: policy, ..bench_options(code) };
        let superblock = create(&all, &options).await.expect("created");
        let array = assemble(&rt, &all).await;
        let stripe = array.stripe_bytes();
        let old = pattern(0, (STRIPES * stripe) as usize, 1);
        write(&array, 0, &old).await;
        array.flush().await.expect("flushed");
        let layout =
            weft_layout::for_code(superblock.code, superblock.algorithm, count, superblock.rows)
                .expect("laid");
        for unit in &lost {
            array.fail(layout.place(0, *unit).slot).await.expect("failed");
        }
        let SlotNo(bad_slot) = layout.place(0, bad).slot;
        *disks[bad_slot].faults.unwritable.borrow_mut() = superblock.area.data_offset..SIZE;
        let mut new = old.clone();
        let done = match request {
            Request::Write(offset, len) => {
                let bytes = pattern(offset, len as usize, 9);
                new[offset as usize..][..len as usize].copy_from_slice(&bytes);
                array.write(offset, Frozen::copy_from(&bytes), false).await
            }
            Request::Zero => {
                new[..stripe as usize].fill(0);
                array.write_zeroes(0, stripe, false, true).await
            }
        };
        assert!(done.is_err(), "{what}: acknowledged");
        assert_eq!(array.status().state, ArrayState::Broken, "{what}");
        for at in (0..old.len()).step_by(UNIT as usize) {
            let (result, buf) = array.read(at as u64, Buf::new(UNIT as usize)).await;
            let range = at..at + UNIT as usize;
            let (one, other) = (&old[range.clone()], &new[range]);
            // A unit that was being written may be new in some sectors.
            let mut sectors = buf.chunks(512).zip(one.chunks(512).zip(other.chunks(512)));
            let right = sectors.all(|(now, (one, other))| now == one || now == other);
            assert!(result.is_err() || right, "{what}: the unit at {at} is garbage");
            let elsewhere = at as u64 >= stripe;
            assert!(result.is_ok() || !elsewhere, "{what}: the unit at {at} is readable");
        }
    });
}

fn requests() -> [Request; 4] {
    [Request::Write(0, UNIT), Request::Write(512, 512), Request::Write(0, 2 * UNIT), Request::Zero]
}

#[test]
fn the_lost_unit_of_a_stripe_that_was_being_written_is_an_error() {
    for request in requests() {
        for policy in [Consistency::Ppl, Consistency::Bitmap] {
            breaks("raid5", policy, &[1], 0, request);
            breaks("raid5", policy, &[2], 0, request);
            breaks("raid6", policy, &[1, 2], 0, request);
            breaks("rs:3+2", policy, &[2, 1], 0, request);
        }
    }
}

#[test]
fn so_it_is_if_parity_is_what_could_not_be_written() {
    for request in requests() {
        breaks("raid5", Consistency::Bitmap, &[1], 3, request);
        breaks("raid6", Consistency::Bitmap, &[1, 2], 3, request);
    }
}
