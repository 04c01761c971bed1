//! A power cut at every step of a small run, with non-durable writes kept, lost or torn, and then
//! all members present or one more lost at the same time. What was flushed is there, what was not
//! being written is untouched, data once read does not change, and resync leaves parity right.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::cuts::{
    Client, Model, Moment, SECTOR, Sector, content, disks_of, members, read_all,
};
use crate::common::disk::{Leave, Medium, Power, mix};
use crate::common::*;
use futures_util::future::join_all;
use weft_array::{Array, ArrayState, AssembleOptions, MemberState, ScrubMode, Superblock, create};
use weft_code::SlotNo;
use weft_disk::Disk;
use weft_layout::for_code;
use weft_rt::MILLISECOND;
use weft_testkit::stride;

const UNIT: u64 = 4096;
const PER_UNIT: u64 = UNIT / SECTOR;
const MIB: u64 = 1 << 20;

/// The run: partial and whole stripes, concurrent writes, overwrites without a flush in between, a
/// discard.
async fn run(client: &Client, k: u64) {
    let stripe = k * PER_UNIT;
    client.write(1, 3).await;
    client.flush().await;
    client.write(0, 2 * stripe).await;
    join_all([client.write(2, 3), client.write(stripe - 4, 3), client.write(stripe + 1, 1)]).await;
    client.flush().await;
    client.write(0, 2).await;
    client.write(stripe - PER_UNIT, 4).await;
    client.write(2 * stripe - PER_UNIT - 2, 5).await;
    client.write(1, 4).await;
    client.flush().await;
    client.write(0, stripe).await;
    client.write(3, 2).await;
    client.zero(0, 2 * stripe).await;
    client.write(2, 2).await;
    client.flush().await;
    client.write(1, 2).await;
}

struct Setup {
    code: &'static str,
    slots: usize,
    /// Failed before the run.
    failed: &'static [usize],
    /// Number of disks lost at the moment of the cut.
    lost: usize,
    /// Whether each member is lost in turn.
    each: bool,
}

/// Runs the workload once and records every moment.
fn record(setup: &Setup) -> (Superblock, Vec<Moment>) {
    let rt = rt();
    let power = Power::new();
    let mut options = options(setup.code);
    options.unit_bytes = UNIT as u32;
    let (code, slots, failed) = (setup.code, setup.slots, setup.failed);
    let moments: Rc<RefCell<Vec<Moment>>> = Rc::default();
    let (rt2, moments2) = (rt.clone(), moments.clone());
    let superblock = rt.block_on(async move {
        let rt = rt2;
        let size = if options.consistency == weft_array::Consistency::Ppl { 2 } else { 1 } * MIB
            + 8 * UNIT;
        let disks = disks_of(&rt, &power, size, vec![Medium::new(512); slots]);
        let members = members(&disks);
        let k = weft_layout::code_for(options.code, Default::default(), slots).expect(code).k();
        options.region_bytes = Some(2 * k as u64 * UNIT);
        let superblock = create(&members, &options).await.expect("created");
        let array = assemble(&rt, &members).await;
        for slot in failed {
            array.fail(SlotNo(*slot)).await.expect("failed");
        }
        let model = Rc::new(RefCell::new(Model::new(array.size_bytes() / SECTOR)));
        let client = Client { array, model: model.clone(), version: Rc::new(RefCell::new(1)) };
        let note = move || {
            let media = disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
            moments2.borrow_mut().push(Moment { media, model: model.borrow().clone() });
        };
        power.watch(note);
        run(&client, k as u64).await;
        client.array.stop().await.expect("stopped");
        superblock
    });
    rt.kill_all();
    (superblock, Rc::try_unwrap(moments).map(RefCell::into_inner).unwrap_or_else(|m| m.take()))
}

/// Assembles what a cut left, and checks everything.
fn check(
    setup: &Setup,
    superblock: &Superblock,
    moment: &Moment,
    leave: Leave,
    lost: &[usize],
    what: &str,
) {
    let rt = rt();
    let power = Power::new();
    let media: Vec<Medium> = moment.media.iter().map(|medium| leave.of(medium)).collect();
    let size = superblock.area.data_offset + superblock.rows * UNIT;
    let disks = disks_of(&rt, &power, size, media);
    let gone = |slot: &usize| lost.contains(slot) || setup.failed.contains(slot);
    let found: Vec<Rc<dyn Disk>> = members(&disks)
        .into_iter()
        .enumerate()
        .filter(|(slot, _)| !gone(slot))
        .map(|(_, disk)| disk)
        .collect();
    let layout = for_code(superblock.code, superblock.algorithm, setup.slots, superblock.rows)
        .expect("a layout");
    let k = moment.model.0.len() as u64 / PER_UNIT / layout.stripes(superblock.rows);
    // What was being written to a disk that was lost at the same time may be anything.
    let mirror = superblock.code.is_mirror();
    let lost2 = lost.to_vec();
    let failed = setup.failed.to_vec();
    let excused = move |sector: u64| {
        let unit = sector / PER_UNIT;
        let slot = layout.place(unit / k, (unit % k) as usize).slot.0;
        !mirror && !lost2.is_empty() && (lost2.contains(&slot) || failed.contains(&slot))
    };
    let model = moment.model.clone();
    let (rt2, what, force) = (rt.clone(), what.to_owned(), !lost.is_empty());
    rt.block_on(async move {
        let rt = rt2;
        let options = AssembleOptions { nonce: 99, force_degraded: force, ..Default::default() };
        let array = match Array::assemble(&rt, found, options).await {
            Ok(array) => array,
            Err(error) => panic!("{what}: {error}"),
        };
        let first = read_all(&array, array.size_bytes()).await;
        for (sector, bytes) in (0..).zip(first.chunks(SECTOR as usize)) {
            let Sector { versions, .. } = &model.0[sector as usize];
            let fits = versions.iter().any(|version| bytes == content(sector, *version));
            let unit = sector / PER_UNIT;
            assert!(
                fits || versions.len() > 1 && excused(sector),
                "{what}: sector {sector} (stripe {}, unit {}) is none of {versions:?}; zeros: {}",
                unit / k,
                unit % k,
                bytes.iter().all(|byte| *byte == 0),
            );
        }
        let again = read_all(&array, SECTOR).await;
        assert!(again == first, "{what}: a value changed while resync ran");
        while array.status().regions.resync > 0 {
            rt.sleep(MILLISECOND).await;
        }
        let after = read_all(&array, UNIT).await;
        for (sector, (a, b)) in first.chunks(512).zip(after.chunks(512)).enumerate() {
            assert!(a == b, "{what}: sector {sector} changed by resync");
        }
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
        let state = array.status().state;
        let healthy = array.status().slots.iter().all(|slot| slot.state == MemberState::Active);
        assert_eq!(state == ArrayState::Healthy, healthy, "{what}");
        // It works afterwards.
        let bytes = pattern(700, 3000, 1);
        write(&array, 700, &bytes).await;
        assert!(read(&array, 700, 3000).await == bytes, "{what}: a write after the crash");
        array.stop().await.expect("stopped");
    });
    rt.kill_all();
}

fn cut_everywhere(setup: &Setup) {
    let (superblock, moments) = record(setup);
    assert!(moments.len() > 60, "only {} steps", moments.len());
    let left: Vec<usize> = (0..setup.slots).filter(|slot| !setup.failed.contains(slot)).collect();
    for (number, moment) in moments.iter().enumerate().step_by(stride(2)) {
        let torn = mix(number as u64);
        for (way, leave) in [Leave::All, Leave::Nothing, Leave::Some(torn)].into_iter().enumerate()
        {
            let turn = number + way * 3;
            let lost = (0..setup.lost).map(|i| left[(turn + i * (1 + number % 2)) % left.len()]);
            let mut losses = vec![lost.collect()];
            if setup.lost > 0 && turn % 3 == 0 {
                losses.push(Vec::new());
            }
            if setup.each {
                losses = left.iter().map(|slot| vec![*slot]).collect();
            }
            for lost in losses {
                let what = format!(
                    "{} without {:?}, cut {number} of {}, {leave:?}, lost {lost:?}",
                    setup.code,
                    setup.failed,
                    moments.len()
                );
                check(setup, &superblock, moment, leave, &lost, &what);
            }
        }
    }
}

#[test]
fn raid5() {
    cut_everywhere(&Setup { code: "raid5", slots: 3, failed: &[], lost: 1, each: false });
}

#[test]
fn raid5_degraded() {
    cut_everywhere(&Setup { code: "raid5", slots: 4, failed: &[1], lost: 0, each: false });
}

#[test]
fn raid6() {
    cut_everywhere(&Setup { code: "raid6", slots: 5, failed: &[], lost: 2, each: false });
}

#[test]
fn raid6_degraded() {
    cut_everywhere(&Setup { code: "raid6", slots: 5, failed: &[1], lost: 1, each: true });
}

#[test]
fn lrc() {
    cut_everywhere(&Setup { code: "lrc:4,2,1", slots: 7, failed: &[], lost: 2, each: false });
}

#[test]
fn lrc_degraded() {
    cut_everywhere(&Setup { code: "lrc:4,2,1", slots: 7, failed: &[2], lost: 1, each: false });
}

#[test]
fn drc() {
    cut_everywhere(&Setup { code: "drc-g:4,2,1", slots: 7, failed: &[], lost: 1, each: false });
}

#[test]
fn mirror() {
    cut_everywhere(&Setup { code: "raid1", slots: 3, failed: &[], lost: 2, each: false });
}
