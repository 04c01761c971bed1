//! A reshape needs no more memory than there is: large units on many disks are moved in parts, and
//! what cannot be moved even so is refused before anything has changed.

use crate::common::bench::{members, run};
use crate::common::disk::{Medium, Power, holding};
use crate::common::*;
use weft_array::reshape::ReshapeOptions;
use weft_array::{ArrayError, CreateOptions, ScrubMode, create};
use weft_rt::SECOND;

const MIB: u64 = 1 << 20;

/// Ten times the memory for all stripe operations was asked for at once: the reshape, all later
/// writes and the stop waited for it without end.
#[test]
fn large_units_on_many_disks_are_moved_in_parts() {
    for (slots, to) in [(5, 16), (2, 16)] {
        run(move |rt| async move {
            let media = vec![Medium::new(512); to];
            let disks = holding(&rt, &Power::new(), 80 * MIB, &media);
            let all = members(&disks);
            let options = CreateOptions {
                unit_bytes: MIB as u32,
                region_bytes: Some(16 * MIB),
                head_room_bytes: Some(8 * MIB),
                ..options("raid1")
            };
            create(&all[..slots], &options).await.expect("created");
            let array = assemble(&rt, &all[..slots]).await;
            let len = 4 * MIB as usize;
            let bytes = pattern(0, len, 1);
            write(&array, 0, &bytes).await;
            for disk in &all[slots..] {
                array.add_spare(disk.clone()).await.expect("added");
            }
            let code = Some("raid6".parse().expect("a code"));
            let wanted = ReshapeOptions { code, add: to - slots, ..ReshapeOptions::default() };
            array.reshape(wanted).await.expect("begun");
            write(&array, 40 * MIB, &[1; 4096]).await;
            let mut waited = 0;
            while array.is_reshaping() {
                rt.sleep(SECOND).await;
                waited += 1;
                assert!(waited < 1000, "it does not end: {:#?}", array.status().jobs);
            }
            assert!(read(&array, 0, len).await == bytes, "bytes have changed");
            assert_eq!(read(&array, 40 * MIB, 4096).await, [1; 4096]);
            let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
            assert_eq!((report.mismatches, report.unreadable), (0, 0));
            array.stop().await.expect("stopped");
        });
    }
}

#[test]
fn a_stripe_that_does_not_fit_even_in_parts_is_refused() {
    run(|rt| async move {
        let media = vec![Medium::new(512); 100];
        let disks = holding(&rt, &Power::new(), 4 * MIB, &media);
        let all = members(&disks);
        let options = CreateOptions {
            unit_bytes: 4096,
            region_bytes: Some(MIB),
            head_room_bytes: Some(MIB),
            ..options("raid1")
        };
        create(&all, &options).await.expect("created");
        let array = assemble(&rt, &all).await;
        let code = Some("raid5".parse().expect("a code"));
        let planned = array.plan_reshape(&ReshapeOptions { code, ..ReshapeOptions::default() });
        let Err(ArrayError::Refused(why)) = planned else { panic!("{planned:?}") };
        assert!(why.contains("memory"), "{why}");
        array.stop().await.expect("stopped");
    });
}
