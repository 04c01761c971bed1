//! A power cut at every step of a small reshape with users' writes, with non-durable writes kept,
//! lost or torn, and all disks present or some lost at the same time. What was acknowledged and
//! flushed is there, nothing else has changed, and the reshape goes on to its end.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::cuts::{
    Client, Model, Moment, SECTOR, Sector, content, disks_of, members, read_all,
};
use crate::common::disk::{Leave, Medium, Power, mix};
use crate::common::*;
use weft_array::reshape::ReshapeOptions;
use weft_array::superblock::Shape;
use weft_array::{
    Array, ArrayState, AssembleOptions, CreateOptions, Event, ScrubMode, Status, create,
};
use weft_code::{CodeSpec, SlotNo};
use weft_disk::Disk;
use weft_layout::for_code;
use weft_rt::{MILLISECOND, Rt};
use weft_testkit::stride;

const UNIT: u64 = 4096;
const ROWS: u64 = 24;

#[derive(Clone, Copy)]
struct Setup {
    code: &'static str,
    slots: usize,
    add: usize,
    remove: usize,
    to: Option<&'static str>,
    to_unit: Option<u64>,
    /// Disks lost at the moment of the cut.
    lost: usize,
    /// A member fails in the middle.
    fails: bool,
    /// A spare takes its place, and is rebuilt before the reshape goes on.
    spare: bool,
    /// It turns back after this many writes.
    turns: Option<u64>,
    /// It moves at most this many bytes a second, so that users have time for some writes.
    pace: Option<u64>,
}

const GROW: Setup = Setup {
    code: "raid5",
    slots: 3,
    add: 1,
    remove: 0,
    to: None,
    to_unit: None,
    lost: 1,
    fails: false,
    spare: false,
    turns: None,
    pace: None,
};

/// The slot of the member that fails.
const FAILS: SlotNo = SlotNo(1);

impl Setup {
    fn disks(&self) -> usize {
        self.slots + self.add + usize::from(self.spare)
    }
}

/// For arrays that are reshaped in two or three steps.
const PACE: Option<u64> = Some(5000 * UNIT);

const SHRINK: Setup = Setup { slots: 4, add: 0, remove: 1, ..GROW };

struct Recorded {
    shapes: [Shape; 2],
    /// Bytes of a disk.
    size: u64,
    /// Sectors that are not given up.
    kept: u64,
    moments: Vec<Moment>,
}

async fn moved(rt: &Rt, array: &Array) {
    while array.is_reshaping() {
        rt.sleep(MILLISECOND).await;
    }
}

/// Runs the reshape once and records every moment.
fn record(setup: &Setup) -> Recorded {
    let rt = rt();
    let power = Power::new();
    let code: CodeSpec = setup.code.parse().expect("a code");
    let moments: Rc<RefCell<Vec<Moment>>> = Rc::default();
    let (rt2, moments2) = (rt.clone(), moments.clone());
    let Setup { slots, add, remove, fails, spare, turns, pace, .. } = *setup;
    let count = setup.disks();
    let (to, to_unit) = (setup.to.map(|to| to.parse().expect("a code")), setup.to_unit);
    let (plan, size, kept) = rt.block_on(async move {
        let rt = rt2;
        let mut options = CreateOptions {
            unit_bytes: UNIT as u32,
            head_room_bytes: Some(1 << 20),
            ..options(setup_code(code))
        };
        options.code = code;
        options.consistency = weft_array::Consistency::default_for(code);
        let k = weft_layout::code_for(code, Default::default(), slots).expect("a code").k() as u64;
        options.region_bytes = Some(3 * k * UNIT);
        let log = if options.consistency == weft_array::Consistency::Ppl { 1 } else { 0 };
        let size = ((2 + log) << 20) + ROWS * UNIT;
        let disks = disks_of(&rt, &power, size, vec![Medium::new(512); count]);
        let members = members(&disks);
        create(&members[..slots], &options).await.expect("created");
        let array = assemble(&rt, &members[..slots]).await;
        // The disks added are the last ones that became spares.
        for disk in members[slots + add..].iter().chain(&members[slots..slots + add]) {
            array.add_spare(disk.clone()).await.expect("added");
        }
        let sectors = array.size_bytes() / SECTOR;
        let model = Rc::new(RefCell::new(Model::new(sectors)));
        let client = Client {
            array: array.clone(),
            model: model.clone(),
            version: Rc::new(RefCell::new(1)),
        };
        // Some regions stay unwritten.
        client.write(0, sectors / 3).await;
        client.write(sectors / 2, sectors / 8).await;
        client.write(sectors * 7 / 8, sectors - sectors * 7 / 8).await;
        client.flush().await;
        let note = move || {
            let media = disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
            moments2.borrow_mut().push(Moment { media, model: model.borrow().clone() });
        };
        power.watch(note);
        let head_room_bytes = Some(2 * UNIT.max(to_unit.unwrap_or(0)));
        let wanted = ReshapeOptions {
            code: to,
            unit_bytes: to_unit,
            add,
            remove,
            used_bytes: Some(0),
            head_room_bytes,
            ..Default::default()
        };
        let planned = array.plan_reshape(&wanted).expect("possible");
        let kept = planned.new_size_bytes.min(planned.size_bytes) / SECTOR;
        let events = array.subscribe();
        array.set_throttle(0, pace);
        let plan = array.reshape(wanted).await.expect("begun");
        assert_eq!(plan, planned);
        let (mut round, mut turns_at) = (0u64, turns);
        while array.is_reshaping() {
            if turns_at == Some(round) {
                let turned = array.turn_reshape().await;
                let waits = turned.as_ref().is_err_and(|why| why.to_string().contains("rebuild"));
                assert!(turned.is_ok() || waits, "{turned:?}");
                turns_at = waits.then_some(round + 1);
            }
            let first = mix(round) % (kept - 20);
            client.write(first, 1 + mix(round + 77) % 20).await;
            if round.is_multiple_of(3) {
                client.flush().await;
            }
            if fails && round == if spare { 0 } else { 3 } {
                array.fail(FAILS).await.expect("failed");
            }
            round += 1;
        }
        if spare {
            let first = std::iter::from_fn(|| events.try_next())
                .find(|event| is_rebuilt(event) || matches!(event, Event::ReshapeFinished { .. }));
            assert!(first.as_ref().is_some_and(is_rebuilt), "the reshape ended before the rebuild");
        }
        assert!(round > turns.unwrap_or(3), "users had no time");
        let turned = array.size_bytes() == plan.size_bytes;
        assert!(turned == turns.is_some() || plan.new_size_bytes == plan.size_bytes);
        assert!(!spare || array.status().state == ArrayState::Healthy, "it is not whole again");
        array.stop().await.expect("stopped");
        (plan, size, kept)
    });
    rt.kill_all();
    let moments = Rc::try_unwrap(moments).map(RefCell::into_inner).unwrap_or_else(|m| m.take());
    Recorded { shapes: [plan.from, plan.to], size, kept, moments }
}

fn is_rebuilt(event: &Event) -> bool {
    matches!(event, Event::RebuildFinished { .. })
}

fn setup_code(code: CodeSpec) -> &'static str {
    if code.is_mirror() { "raid1" } else { "raid5" }
}

/// Whether a sector lies on a slot of a lost disk, in either geometry.
fn lies_on(setup: &Setup, shapes: &[Shape; 2], sector: u64, lost: &[usize]) -> bool {
    let slot_of =
        |disk: &usize| if *disk == setup.slots + setup.add { FAILS } else { SlotNo(*disk) };
    let lost: Vec<SlotNo> = lost.iter().map(slot_of).collect();
    shapes.iter().any(|shape| {
        let layout =
            for_code(shape.code, shape.algorithm, shape.slots, shape.rows).expect("a layout");
        let k = shape.code.shape(shape.slots).expect("a code").k as u64;
        let unit = sector * SECTOR / shape.unit_bytes;
        lost.contains(&layout.place(unit / k, (unit % k) as usize).slot)
    })
}

/// Assembles what a cut left, and checks everything.
fn check(setup: &Setup, run: &Recorded, moment: &Moment, leave: Leave, lost: &[usize], what: &str) {
    let rt = rt();
    let power = Power::new();
    let media: Vec<Medium> = moment.media.iter().map(|medium| leave.of(medium)).collect();
    let disks = disks_of(&rt, &power, run.size, media);
    let found = members(&disks).into_iter().enumerate();
    let found: Vec<Rc<dyn Disk>> =
        found.filter(|(slot, _)| !lost.contains(slot)).map(|(_, disk)| disk).collect();
    let mirror = setup.code.starts_with("raid1");
    let (shapes, model) = (run.shapes, moment.model.clone());
    // What was given up reads as zeros, or as before, if it comes back.
    let (kept, given_up) = (run.kept, run.kept < model.0.len() as u64);
    let (rt2, setup, what, lost) = (rt.clone(), *setup, what.to_owned(), lost.to_vec());
    rt.block_on(async move {
        let rt = rt2;
        let force = !lost.is_empty();
        let options = AssembleOptions { nonce: 99, force_degraded: force, ..Default::default() };
        let array = match Array::assemble(&rt, found, options).await {
            Ok(array) => array,
            Err(error) => panic!("{what}: {error}"),
        };
        let first = read_all(&array, array.size_bytes()).await;
        for (sector, bytes) in (0..).zip(first.chunks(SECTOR as usize)) {
            let zeros = Sector { versions: vec![0], acknowledged: 1 };
            let Sector { versions, .. } = model.0.get(sector as usize).unwrap_or(&zeros);
            let fits = versions.iter().any(|version| bytes == content(sector, *version));
            let excused = sector >= kept && given_up
                || !mirror && versions.len() > 1 && lies_on(&setup, &shapes, sector, &lost);
            assert!(
                fits || excused,
                "{what}: sector {sector} is none of {versions:?}; zeros: {}; reshaping: {}",
                bytes.iter().all(|byte| *byte == 0),
                array.is_reshaping(),
            );
        }
        let again = read_all(&array, SECTOR).await;
        assert!(again[..first.len()] == first, "{what}: a value changed while it was moved");
        moved(&rt, &array).await;
        let is_busy =
            |status: Status| status.regions.resync > 0 || status.state == ArrayState::Rebuilding;
        while is_busy(array.status()) {
            rt.sleep(MILLISECOND).await;
        }
        let after = read_all(&array, UNIT).await;
        for (sector, (a, b)) in first.chunks(512).zip(after.chunks(512)).enumerate() {
            let excused = sector as u64 >= kept && given_up;
            assert!(a == b || excused, "{what}: sector {sector} changed by the reshape");
        }
        let behind = after.get(first.len()..).unwrap_or_default().iter();
        let zero = behind.into_iter().all(|byte| *byte == 0);
        assert!(zero || given_up, "{what}: new space is not zero");
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
        let bytes = pattern(700, 3000, 1);
        write(&array, 700, &bytes).await;
        let end = array.size_bytes() - 3000;
        write(&array, end, &bytes).await;
        assert!(read(&array, 700, 3000).await == bytes, "{what}: a write after the crash");
        assert!(read(&array, end, 3000).await == bytes, "{what}: a write at the end");
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
        array.stop().await.expect("stopped");
    });
    rt.kill_all();
}

fn cut_everywhere(setup: &Setup) {
    let run = record(setup);
    let count = setup.disks();
    assert!(run.moments.len() > 60, "only {} steps", run.moments.len());
    // A rebuild makes so many more steps that every other one has to do.
    let every = stride(3) * if setup.spare { 2 } else { 1 };
    for (number, moment) in run.moments.iter().step_by(every).enumerate() {
        let torn = mix(number as u64);
        let way = number % 3;
        for leave in [[Leave::All, Leave::Nothing, Leave::Some(torn)][way], Leave::Some(!torn)] {
            let turn = number / 3 + way;
            let lost = (0..setup.lost).map(|i| (turn + i * (1 + number % 2)) % count).collect();
            let mut losses: Vec<Vec<usize>> = vec![lost];
            if setup.lost > 0 && turn % 3 == 0 {
                losses.push(Vec::new());
            }
            for lost in losses {
                let of = run.moments.len() / every;
                let what = format!(
                    "{} +{} -{}, cut {number} of {of}, {leave:?}, lost {lost:?}",
                    setup.code, setup.add, setup.remove
                );
                check(setup, &run, moment, leave, &lost, &what);
            }
        }
    }
}

#[test]
fn raid5_by_one_disk() {
    cut_everywhere(&GROW);
}

#[test]
fn raid5_by_one_disk_while_a_member_fails() {
    cut_everywhere(&Setup { fails: true, lost: 0, ..GROW });
}

#[test]
fn raid5_by_one_disk_while_a_member_is_rebuilt() {
    cut_everywhere(&Setup { fails: true, spare: true, lost: 0, ..GROW });
}

#[test]
fn raid6_by_two_disks_while_a_member_is_rebuilt() {
    let setup = Setup { code: "raid6", slots: 4, add: 2, fails: true, spare: true, ..GROW };
    cut_everywhere(&setup);
}

#[test]
fn raid6_to_drc_g_while_a_member_is_rebuilt() {
    let to = Some("drc-g:4,2,1");
    let setup = Setup { code: "raid6", slots: 6, add: 1, to, fails: true, spare: true, ..GROW };
    cut_everywhere(&setup);
}

#[test]
fn mirrors_by_two_disks_while_a_member_is_rebuilt() {
    let setup = Setup { code: "raid10", slots: 4, add: 2, fails: true, spare: true, ..GROW };
    cut_everywhere(&Setup { lost: 0, ..setup });
}

#[test]
fn raid6_by_one_disk_less_and_back_while_a_member_is_rebuilt() {
    let setup = Setup { code: "raid6", slots: 5, fails: true, spare: true, ..SHRINK };
    cut_everywhere(&Setup { turns: Some(1), ..setup });
}

#[test]
fn raid5_in_larger_units_while_a_member_is_rebuilt() {
    let setup = Setup { add: 0, to_unit: Some(16 << 10), fails: true, spare: true, ..GROW };
    cut_everywhere(&Setup { lost: 0, ..setup });
}

#[test]
fn raid5_by_more_disks_than_there_are() {
    cut_everywhere(&Setup { add: 4, ..GROW });
}

#[test]
fn raid6_by_two_disks() {
    cut_everywhere(&Setup { code: "raid6", slots: 4, add: 2, lost: 2, pace: PACE, ..GROW });
}

#[test]
fn raid6_by_one_disk_while_a_member_fails() {
    cut_everywhere(&Setup { code: "raid6", slots: 4, fails: true, ..GROW });
}

#[test]
fn raid0_to_raid4() {
    cut_everywhere(&Setup { code: "raid0", slots: 3, to: Some("raid4"), lost: 0, ..GROW });
}

#[test]
fn raid5_to_raid6() {
    cut_everywhere(&Setup { slots: 4, to: Some("raid6"), ..GROW });
}

#[test]
fn raid5_in_larger_units() {
    cut_everywhere(&Setup { add: 0, to_unit: Some(16 << 10), ..GROW });
}

#[test]
fn raid5_by_two_disks() {
    cut_everywhere(&Setup { add: 2, ..GROW });
}

#[test]
fn drc_g_by_two_disks() {
    cut_everywhere(&Setup { code: "drc-g:4,2,1", slots: 7, add: 2, ..GROW });
}

#[test]
fn mirrors_by_two_disks() {
    cut_everywhere(&Setup { code: "raid10", slots: 4, add: 2, ..GROW });
}

#[test]
fn raid6_to_raid5() {
    cut_everywhere(&Setup { code: "raid6", slots: 4, add: 0, to: Some("raid5"), ..GROW });
}

#[test]
fn raid0_to_raid5() {
    cut_everywhere(&Setup { code: "raid0", slots: 2, to: Some("raid5"), lost: 0, ..GROW });
}

// Mirrors have no log, and so neither does what becomes of them: a crash and a lost disk together
// may cost what was being written.

#[test]
fn mirrors_to_raid5() {
    for (code, slots, add) in [("raid1", 2, 1), ("raid10", 4, 0)] {
        cut_everywhere(&Setup { code, slots, add, to: Some("raid5"), lost: 0, ..GROW });
    }
}

#[test]
fn mirrors_to_raid6() {
    cut_everywhere(&Setup { code: "raid10", slots: 4, to: Some("raid6"), lost: 0, ..GROW });
}

#[test]
fn raid1_to_raid6_by_more_disks_than_there_are() {
    let setup = Setup { code: "raid1", slots: 2, add: 3, to: Some("raid6"), ..GROW };
    cut_everywhere(&Setup { lost: 0, ..setup });
}

#[test]
fn raid1_to_raid10() {
    cut_everywhere(&Setup { code: "raid1", slots: 2, add: 2, to: Some("raid10"), ..GROW });
}

#[test]
fn raid5_to_drc_g() {
    cut_everywhere(&Setup { slots: 5, add: 2, to: Some("drc-g:4,2,1"), ..GROW });
}

#[test]
fn raid6_to_drc_g_while_a_member_fails() {
    let to = Some("drc-g:4,2,1");
    cut_everywhere(&Setup { code: "raid6", slots: 6, add: 1, to, lost: 0, fails: true, ..GROW });
}

#[test]
fn raid5_by_one_disk_less() {
    cut_everywhere(&SHRINK);
}

#[test]
fn raid5_by_two_disks_less_while_a_member_fails() {
    cut_everywhere(&Setup { slots: 5, remove: 2, fails: true, lost: 0, pace: PACE, ..SHRINK });
}

#[test]
fn raid5_to_raid6_on_the_same_disks() {
    cut_everywhere(&Setup { remove: 0, to: Some("raid6"), ..SHRINK });
}

#[test]
fn raid6_to_raid5_by_one_disk_less() {
    cut_everywhere(&Setup { code: "raid6", to: Some("raid5"), ..SHRINK });
}

#[test]
fn drc_g_by_two_disks_less() {
    cut_everywhere(&Setup { code: "drc-g:4,2,1", slots: 9, remove: 2, ..SHRINK });
}

#[test]
fn mirrors_by_two_disks_less() {
    cut_everywhere(&Setup { code: "raid10", slots: 6, remove: 2, ..SHRINK });
}

#[test]
fn raid5_by_one_disk_and_back() {
    cut_everywhere(&Setup { turns: Some(2), ..GROW });
}

#[test]
fn raid6_by_two_disks_and_back_while_a_member_fails() {
    let setup =
        Setup { code: "raid6", slots: 4, add: 2, turns: Some(2), fails: true, pace: PACE, ..GROW };
    cut_everywhere(&setup);
}

#[test]
fn raid5_in_larger_units_and_back() {
    cut_everywhere(&Setup { add: 0, to_unit: Some(16 << 10), turns: Some(1), ..GROW });
}

#[test]
fn raid5_by_one_disk_less_and_back() {
    cut_everywhere(&Setup { turns: Some(4), ..SHRINK });
}
