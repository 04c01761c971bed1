//! Every code keeps its data: healthy, degraded by every survivable loss, rebuilt, scrubbed.

use crate::common::*;
use weft_array::{ArrayState, MemberState, ScrubMode};
use weft_code::SlotNo;

/// Codes with a number of slots; one has more slots than its stripes are wide.
const CODES: &[(&str, usize)] = &[
    ("raid0", 3),
    ("raid1", 2),
    ("raid1", 3),
    ("raid10", 4),
    ("raid10", 5),
    ("raid10:f2", 4),
    ("raid10:o2", 4),
    ("raid4", 4),
    ("raid5", 3),
    ("raid5", 5),
    ("raid6", 6),
    ("rs:4+3", 7),
    ("rs:3+2", 7),
    ("lrc:4,2,1", 7),
    ("drc:4,2,1", 7),
    ("drc-g:4,2,1", 7),
    ("drc-oa:6,2,1", 9),
];

/// A model of the array's contents.
struct Model(Vec<u8>);

/// A small deterministic random number generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

async fn churn(array: &weft_array::Array, model: &mut Model, dice: &mut Dice, writes: usize) {
    let size = model.0.len() as u64;
    for _ in 0..writes {
        let len = match dice.roll(4) {
            0 => 512,
            1 => 4096 * (1 + dice.roll(4)),
            2 => 1 + dice.roll(100_000),
            _ => 512 * (1 + dice.roll(300)),
        };
        let len = len.min(size);
        let mut offset = dice.roll(size - len + 1);
        if dice.roll(4) > 0 {
            offset -= offset % 512;
        }
        let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
        if dice.roll(8) == 0 {
            array.write_zeroes(offset, len, false, dice.roll(2) == 0).await.expect("zeroed");
            model.0[range].fill(0);
        } else {
            let version = u8::try_from(dice.roll(256)).unwrap();
            let bytes = pattern(offset, usize::try_from(len).unwrap(), version);
            write(array, offset, &bytes).await;
            model.0[range].copy_from_slice(&bytes);
        }
    }
}

async fn check(array: &weft_array::Array, model: &Model, what: &str) {
    let step = 100_000;
    for start in (0..model.0.len()).step_by(step) {
        let end = (start + step).min(model.0.len());
        let bytes = read(array, start as u64, end - start).await;
        if bytes != model.0[start..end] {
            let at = bytes.iter().zip(&model.0[start..end]).position(|(a, b)| a != b).unwrap();
            panic!("{what}: byte {} differs", start + at);
        }
    }
}

#[test]
fn every_code_survives_its_tolerance_and_is_rebuilt() {
    for (number, (code, slots)) in CODES.iter().enumerate() {
        let rt = rt();
        let rt2 = rt.clone();
        rt.block_on(async move {
            let rt = rt2;
            let members = disks(*slots, 4);
            let array = make(&rt, code, &members).await;
            let size = usize::try_from(array.size_bytes()).unwrap();
            let mut model = Model(vec![0; size]);
            let mut dice = Dice(number as u64 + 1);
            churn(&array, &mut model, &mut dice, 60).await;
            check(&array, &model, &format!("{code} healthy")).await;
            let mut spare = 0;
            while array.status().redundancy_remaining > Some(0) {
                let losses = array.status().redundancy_remaining.unwrap();
                for _ in 0..losses {
                    let active: Vec<SlotNo> = array
                        .status()
                        .slots
                        .iter()
                        .filter(|slot| slot.state == MemberState::Active)
                        .map(|slot| slot.slot)
                        .collect();
                    let victim = active[usize::try_from(dice.roll(active.len() as u64)).unwrap()];
                    array.fail(victim).await.expect("can lose one more");
                    churn(&array, &mut model, &mut dice, 20).await;
                    check(&array, &model, &format!("{code} after losing {victim}")).await;
                }
                assert_eq!(array.status().state, ArrayState::Degraded, "{code}");
                for _ in 0..losses {
                    spare += 1;
                    array.add_spare(ram(&format!("spare{spare}"), 4)).await.expect("spare taken");
                    churn(&array, &mut model, &mut dice, 5).await;
                }
                for _ in 0..1000 {
                    if array.status().state == ArrayState::Healthy {
                        break;
                    }
                    rt.sleep(weft_rt::MILLISECOND).await;
                }
                assert_eq!(
                    array.status().state,
                    ArrayState::Healthy,
                    "{code}: {:#?}",
                    array.status()
                );
                check(&array, &model, &format!("{code} rebuilt")).await;
                let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
                assert_eq!((report.mismatches, report.unreadable), (0, 0), "{code}");
                if spare > 4 {
                    break;
                }
            }
            array.stop().await.expect("stopped");
        });
    }
}

#[test]
fn written_data_survives_a_clean_stop() {
    for (code, slots) in CODES {
        let rt = rt();
        let rt2 = rt.clone();
        rt.block_on(async move {
            let members = disks(*slots, 4);
            let array = make(&rt2, code, &members).await;
            let mut model = Model(vec![0; usize::try_from(array.size_bytes()).unwrap()]);
            churn(&array, &mut model, &mut Dice(7), 30).await;
            array.stop().await.expect("stopped");
            let mut shuffled = members.clone();
            shuffled.reverse();
            let array = assemble(&rt2, &shuffled).await;
            assert_eq!(array.status().regions.resync, 0, "{code}");
            check(&array, &model, code).await;
            array.stop().await.expect("stopped");
        });
    }
}
