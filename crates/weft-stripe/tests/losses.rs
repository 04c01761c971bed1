//! Small codes of every kind, with every set of lost units: what can be decoded is gathered
//! exactly, what cannot is refused, and an update leaves a stripe that agrees with the code's
//! definition.

mod common;

use common::{CODES, Disks, UNIT, bytes, losses, now, parity};
use weft_code::{SlotNo, UnitSet};
use weft_disk::WriteOpts;
use weft_rt::{Buf, Frozen};
use weft_stripe::{
    Access, Band, Crash, Owner, Payload, Segment, Units, Updated, check, gather, is_dear, store,
    update,
};

/// Stripes whose rows differ.
const STRIPES: [u64; 2] = [0, 3];

fn wanted(units: UnitSet, len: usize) -> Units {
    units.iter().map(|unit| (unit, Buf::new(len))).collect()
}

#[test]
fn gathers_what_can_be_decoded() {
    let (mut given, mut refused) = (0, 0);
    for (code, slots) in CODES {
        let disks = Disks::new(code, slots);
        for stripe in STRIPES {
            let units = disks.fill(stripe);
            for lost in losses(slots) {
                disks.lost.set(lost);
                let decodable = disks.coding.code().decodable(stripe, lost);
                let all = wanted(disks.coding.units(), UNIT / 2);
                let at = Access::user(UNIT as u64 / 4);
                let gathered = now(gather(&disks, disks.stripe(stripe), at, &[], all));
                assert_eq!(gathered.result.is_ok(), decodable, "{code} {lost}");
                if !decodable {
                    refused += 1;
                    continue;
                }
                given += 1;
                for (unit, buf) in gathered.units {
                    let whole = &units[unit];
                    assert_eq!(*buf, whole[UNIT / 4..][..UNIT / 2], "{code} {lost} unit {unit}");
                }
            }
        }
    }
    assert!(given > 200 && refused > 200, "{given} given, {refused} refused");
}

#[test]
fn units_at_hand_are_sources() {
    for (code, slots) in CODES {
        let disks = Disks::new(code, slots);
        let units = disks.fill(0);
        let k = disks.coding.code().k();
        let first = Frozen::copy_from(&units[0]);
        // At hand instead of lost: also where the code alone could not give it.
        let lost = disks.coding.units().difference(&UnitSet::first(k).without(0));
        disks.lost.set(lost.without(0));
        let stripe = disks.stripe(0).with_lost(lost.without(0));
        let gathered =
            now(gather(&disks, stripe, Access::user(0), &[(0, first)], wanted(lost, UNIT)));
        assert_eq!(gathered.result, Ok(()), "{code}");
        for (unit, buf) in gathered.units {
            assert_eq!(*buf, *units[unit], "{code} unit {unit}");
        }
    }
}

/// Writes with every set of losses; parity must be what the definition says, and a record plus the
/// units that it leaves out must give the same parity.
#[test]
fn updates_agree_with_the_definition() {
    let mut updates = 0;
    for (code, slots) in CODES {
        let disks = Disks::new(code, slots);
        let code = disks.coding.code();
        let (k, stripe) = (code.k(), 3);
        for (round, lost) in losses(slots).enumerate() {
            if !code.decodable(stripe, lost) {
                continue;
            }
            let mut units = disks.fill(stripe);
            disks.lost.set(lost);
            disks.rotational.set(round % 2 == 1);
            // One unit, the last two, or all: at offsets that begin and end inside of units.
            let first = [round % k, k.saturating_sub(2), 0][round % 3];
            let last = [round % k, k - 1, k - 1][round % 3];
            let segment = |unit: usize| {
                let from = 512 * (unit % 3);
                let data = bytes(unit, round as u64 + 1, 2048);
                (from, Segment { unit, from: from as u64, data: Frozen::copy_from(&data) })
            };
            let segments: Vec<Segment> = (first..=last).map(|unit| segment(unit).1).collect();
            for Segment { unit, from, data } in &segments {
                let from = usize::try_from(*from).expect("small");
                units[*unit][from..from + data.len()].copy_from_slice(data);
            }
            for row in 0..code.p() {
                units[k + row] = parity(code, stripe, row, &units);
            }
            for band in Band::of(&Segment::joined(segments)) {
                let crash = Crash { lost, unflushed: UnitSet::new(), superseding: false };
                let mut updated = Updated::default();
                let resolved = disks.stripe(stripe);
                now(update(&disks, resolved, &band, &[], Some(crash), &mut updated))
                    .expect("decodable");
                let from = usize::try_from(band.from).expect("small");
                let record = updated.records.pop().expect("there is a log");
                for parity in &record.parities {
                    let mut sum = vec![0; band.len];
                    if let Some(payload) = &parity.payload {
                        sum.copy_from_slice(Payload::bytes(payload));
                    }
                    for data in record.written.iter() {
                        let coef = code.coef(stripe, parity.unit - k, data);
                        weft_gf::mul_acc(&mut sum, coef, &units[data][from..from + band.len]);
                    }
                    assert_eq!(sum, units[parity.unit][from..from + band.len], "a record");
                }
                assert!(
                    now(store(&disks, disks.stripe(stripe), &updated.writes, WriteOpts::USER))
                        .failed
                        .is_empty()
                );
            }
            for unit in disks.coding.units().difference(&lost).iter() {
                assert_eq!(disks.on_disk(stripe, unit), units[unit], "unit {unit}, lost {lost}");
            }
            // What was lost can be had with its new contents.
            let all = wanted(disks.coding.units(), UNIT);
            let gathered = now(gather(&disks, disks.stripe(stripe), Access::user(0), &[], all));
            assert_eq!(gathered.result, Ok(()));
            for (unit, buf) in gathered.units {
                assert_eq!(*buf, *units[unit], "unit {unit}, lost {lost}");
            }
            updates += 1;
        }
    }
    assert!(updates > 150, "{updates}");
}

#[test]
fn a_wrong_unit_is_found_and_corrected() {
    for (code, slots) in CODES {
        let disks = Disks::new(code, slots);
        let p = disks.coding.code().p();
        let right = disks.fill(0);
        let at = Access::maintenance(0);
        let clean = now(check(&disks, disks.stripe(0), at, UNIT)).expect("read");
        assert!(clean.wrong.is_empty(), "{code}");
        for unit in 0..slots {
            let mut units = right.clone();
            units[unit][100] ^= 0x55;
            disks.put(0, &units);
            let checked = now(check(&disks, disks.stripe(0), at, UNIT)).expect("read");
            assert_eq!(checked.wrong.is_empty(), p == 0, "{code} unit {unit}");
            if let Some((found, value)) = weft_stripe::wrong_unit(disks.stripe(0), &checked) {
                assert_eq!((found, &*value), (unit, &*right[unit]), "{code}");
            } else {
                // One parity over the unit tells that something is wrong, not what.
                let code = disks.coding.code();
                let covering = (0..p).filter(|row| {
                    let covered = disks.coding.support(0, *row);
                    unit >= code.k() || covered.contains(unit)
                });
                assert!(p < 2 || covering.count() < 2 || unit >= code.k(), "unit {unit}");
            }
        }
    }
}

#[test]
fn a_rebuilt_unit_is_computed_while_its_disk_is_dearer() {
    let dear = |disks: &Disks| is_dear(disks, disks.stripe(0), 0);
    // Two reads elsewhere, or one here with a detour: its disk must be busier.
    let disks = Disks::new("drc-g:4,2,1", 7);
    assert!(!dear(&disks), "all are idle");
    disks.in_flight(SlotNo(0)).set(1);
    assert!(dear(&disks));
    (1..7).for_each(|slot| disks.in_flight(SlotNo(slot)).set(1));
    assert!(!dear(&disks), "all are busy");
    disks.in_flight(SlotNo(0)).set(3);
    assert!(dear(&disks));
    // From parity that may be wrong, or with too little left, nothing is computed.
    disks.unsure.set(true);
    assert!(!dear(&disks));
    disks.unsure.set(false);
    disks.lost.set((1..4).collect());
    assert!(!dear(&disks));
    // Seven reads take a long queue.
    let disks = Disks::new("raid6", 9);
    disks.in_flight(SlotNo(0)).set(5);
    assert!(!dear(&disks));
    disks.in_flight(SlotNo(0)).set(10);
    assert!(dear(&disks));
}
