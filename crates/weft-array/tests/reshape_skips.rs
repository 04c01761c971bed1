//! Writes that come while a reshape skips what was never written.

use std::rc::Rc;

use crate::common::cuts::{disks_of, members};
use crate::common::disk::{Medium, Power};
use crate::common::*;
use futures_util::future::join_all;
use weft_array::reshape::ReshapeOptions;
use weft_array::{ScrubMode, create};
use weft_disk::Disk;
use weft_rt::{MILLISECOND, Nanos};

const UNIT: u64 = 4096;
const ROWS: u64 = 96;
const REGION: u64 = 32 << 10;
/// Data bytes of an old stripe.
const STRIPE: u64 = 3 * UNIT;

/// Reshapes an array of which every third region of the second half was written, and `delay` later
/// writes to all old stripes that begin in an unwritten region and end in a written one. Returns
/// whether the reshape was still going on then.
fn writes_after(delay: Nanos) -> bool {
    let rt = rt();
    let power = Power::new();
    let rt2 = rt.clone();
    let went_on = rt.block_on(async move {
        let rt = rt2;
        let size = (3 << 20) + ROWS * UNIT;
        let disks = members(&disks_of(&rt, &power, size, vec![Medium::new(512); 5]));
        let options = weft_array::CreateOptions {
            unit_bytes: UNIT as u32,
            head_room_bytes: Some(1 << 20),
            region_bytes: Some(REGION),
            ..options("raid5")
        };
        create(&disks[..4], &options).await.expect("created");
        let array = assemble(&rt, &disks[..4]).await;
        array.add_spare(Rc::clone(&disks[4]) as Rc<dyn Disk>).await.expect("added");
        let mut expected = vec![0; array.size_bytes() as usize];
        let half = expected.len() / 2;
        let low = pattern(0, half, 1);
        write(&array, 0, &low).await;
        expected[..half].copy_from_slice(&low);
        let regions = expected.len() as u64 / REGION;
        let first = half as u64 / REGION + 2;
        let mut edges = Vec::new();
        for region in (first..regions - 1).step_by(3) {
            let at = (region * REGION) as usize + REGION as usize / 2;
            let bytes = pattern(at as u64, 512, 2);
            write(&array, at as u64, &bytes).await;
            expected[at..at + 512].copy_from_slice(&bytes);
            edges.push(region * REGION);
        }
        edges.retain(|edge| !edge.is_multiple_of(STRIPE));
        assert!(edges.len() > 2, "{edges:?}");
        let wanted =
            ReshapeOptions { add: 1, head_room_bytes: Some(2 * UNIT), ..ReshapeOptions::default() };
        array.reshape(wanted).await.expect("begun");
        rt.sleep(delay).await;
        let went_on = array.is_reshaping();
        join_all(edges.iter().map(|edge| {
            let array = &array;
            async move { write(array, *edge, &pattern(*edge, 512, 3)).await }
        }))
        .await;
        for edge in &edges {
            let at = *edge as usize;
            expected[at..at + 512].copy_from_slice(&pattern(*edge, 512, 3));
        }
        while array.is_reshaping() {
            rt.sleep(MILLISECOND).await;
        }
        let found = read(&array, 0, expected.len()).await;
        let wrong = found.iter().zip(&expected).position(|(one, other)| one != other);
        assert_eq!(wrong, None, "after {delay} ns: the byte is wrong");
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!((report.mismatches, report.unreadable), (0, 0), "after {delay} ns");
        went_on
    });
    rt.kill_all();
    went_on
}

/// An old stripe that begins in a skipped region and ends behind it belongs to that region. Written
/// while the checkpoint is on its way, it marked the region as written, and zeroed the old stripes
/// only; then the new ones counted, and held anything.
#[test]
fn a_write_across_the_end_of_what_is_skipped_is_right_at_every_moment() {
    let mut delay = 0;
    while writes_after(delay) {
        delay += MILLISECOND / 40;
    }
    assert!(delay > MILLISECOND, "the reshape took only {delay} ns");
}
