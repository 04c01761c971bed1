//! A request of no bytes does nothing, at any offset and in every state of the array; also at the
//! very end, which is in no stripe and no region.

use std::rc::Rc;

use crate::common::{disks, options, rt};
use weft_array::{Array, AssembleOptions, CreateOptions, create};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_rt::{Buf, Frozen, Rt};

/// An array whose regions are full.
async fn make(rt: &Rt, code: &str, disks: &[Rc<dyn Disk>]) -> Array {
    // Less than a stripe is requested: each region is one stripe.
    let options = CreateOptions { region_bytes: Some(1), ..options(code) };
    create(disks, &options).await.expect("created");
    let options = AssembleOptions { nonce: 1, ..AssembleOptions::default() };
    Array::assemble(rt, disks.to_vec(), options).await.expect("assembled")
}

async fn read_nothing(array: &Array, offset: u64) {
    let (result, buf) = array.read(offset, Buf::new(0)).await;
    result.expect("nothing is read");
    assert!(buf.is_empty());
    assert_eq!(array.allocation(offset, 0).expect("nothing is asked"), []);
}

async fn change_nothing(array: &Array, offset: u64) {
    for fua in [false, true] {
        array.write(offset, Frozen::copy_from(&[]), fua).await.expect("nothing is written");
        array.write_zeroes(offset, 0, fua, true).await.expect("nothing is zeroed");
    }
    array.discard(offset, 0).await.expect("nothing is discarded");
}

#[test]
fn empty_requests_do_nothing_up_to_the_very_end() {
    for code in ["raid0", "raid1", "raid5", "raid6", "drc-g:4,2,1"] {
        let rt = rt();
        let future = {
            let rt = rt.clone();
            async move {
                let disks = disks(if code == "drc-g:4,2,1" { 7 } else { 4 }, 8);
                let array = make(&rt, code, &disks).await;
                let end = array.size_bytes();
                let offsets = [0, 1, 512, end / 2 + 7, end - 1, end];
                for offset in offsets {
                    read_nothing(&array, offset).await;
                    change_nothing(&array, offset).await;
                }
                for offset in [end + 1, u64::MAX] {
                    assert!(array.read(offset, Buf::new(0)).await.0.is_err());
                    assert!(array.discard(offset, 0).await.is_err());
                    assert!(array.write_zeroes(offset, 0, false, true).await.is_err());
                    assert!(array.allocation(offset, 0).is_err());
                }
                if code != "raid0" {
                    array.fail(SlotNo(0)).await.expect("one may fail");
                    for offset in offsets {
                        read_nothing(&array, offset).await;
                        change_nothing(&array, offset).await;
                    }
                }
                array.stop().await.expect("stopped");
                if code != "raid0" {
                    let options =
                        AssembleOptions { read_only: true, nonce: 2, ..AssembleOptions::default() };
                    let array = Array::assemble(&rt, disks, options).await.expect("read only");
                    for offset in offsets {
                        read_nothing(&array, offset).await;
                    }
                }
            }
        };
        rt.block_on(future);
    }
}
