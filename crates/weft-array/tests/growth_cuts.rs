//! A power cut at every step of growth with users' writes, with non-durable writes kept, lost or
//! torn, and all disks present or one lost at the same time. What was acknowledged and flushed is
//! there, the array has its old or its new size – the new one once that was said –, what is new
//! reads as zeros, and the array grows then if it has not grown before.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_util::future::join_all;

use crate::common::cuts::{
    Client, Model, Moment, SECTOR, Sector, content, disks_of, members, read_all,
};
use crate::common::disk::{Leave, Medium, Power, mix};
use crate::common::*;
use weft_array::{
    Array, ArrayState, AssembleOptions, CreateOptions, ScrubMode, Superblock, create,
};
use weft_code::{CodeSpec, SlotNo};
use weft_disk::Disk;
use weft_layout::for_code;
use weft_rt::MILLISECOND;
use weft_testkit::stride;

const UNIT: u64 = 4096;
/// The last region is not full.
const ROWS: u64 = 21;
const MORE_ROWS: u64 = 17;

#[derive(Clone, Copy)]
struct Setup {
    code: &'static str,
    slots: usize,
    /// Whether a disk is lost at the moment of the cut.
    loses: bool,
    /// Whether a member fails while the array grows.
    fails: bool,
    /// Whether the array relies on members that read as zeros where nothing was written.
    zeroed: bool,
}

const RAID5: Setup = Setup { code: "raid5", slots: 3, loses: true, fails: false, zeroed: true };

struct Recorded {
    superblock: Superblock,
    /// Bytes of a disk, and of the array, afterwards.
    larger: u64,
    new_size: u64,
    size: u64,
    /// Each with whether the growth was said to have ended.
    moments: Vec<(Moment, bool)>,
}

/// Runs the growth once and records every moment.
fn record(setup: &Setup) -> Recorded {
    let rt = rt();
    let power = Power::new();
    let code: CodeSpec = setup.code.parse().expect("a code");
    let moments: Rc<RefCell<Vec<(Moment, bool)>>> = Rc::default();
    let (rt2, moments2, setup) = (rt.clone(), moments.clone(), *setup);
    let Setup { slots, fails, zeroed, .. } = setup;
    let (superblock, larger, size, new_size) = rt.block_on(async move {
        let rt = rt2;
        let mut options = CreateOptions {
            code,
            unit_bytes: UNIT as u32,
            head_room_bytes: Some(0),
            consistency: weft_array::Consistency::default_for(code),
            ..options("raid5")
        };
        let k = weft_layout::code_for(code, Default::default(), slots).expect("a code").k() as u64;
        options.region_bytes = Some(3 * k * UNIT);
        let log = if options.consistency == weft_array::Consistency::Ppl { 1 } else { 0 };
        let size = ((1 + log) << 20) + ROWS * UNIT;
        let larger = size + MORE_ROWS * UNIT;
        let mut medium = Medium::new(512);
        medium.poke(size, &vec![0xa5; (larger - size) as usize]);
        let disks = disks_of(&rt, &power, size, vec![medium; slots + 1]);
        let all = members(&disks);
        let superblock = create(&all[..slots], &options).await.expect("created");
        let mut array = assemble(&rt, &all[..slots]).await;
        if !zeroed {
            // A disk that does not zero cheaply was a spare for a while.
            array.stop().await.expect("stopped");
            let mut own = superblock.clone();
            own.members_zeroed = false;
            own.seq = 20;
            for (n, disk) in all[..slots].iter().enumerate() {
                let id = own.slots[n].member_id.expect("a member");
                weft_array::superblock::write_superblock(&**disk, &own, id).await.expect("written");
                own.seq += 1;
                weft_array::superblock::write_superblock(&**disk, &own, id).await.expect("written");
                own.seq -= 1;
            }
            array = assemble(&rt, &all[..slots]).await;
        }
        let new_rows = superblock.rows + MORE_ROWS;
        let stripes = for_code(code, Default::default(), slots, new_rows).expect("a layout");
        let sectors = array.size_bytes() / SECTOR;
        let new_sectors = stripes.stripes(new_rows) * k * UNIT / SECTOR;
        let model = Rc::new(RefCell::new(Model::new(new_sectors)));
        let client = Client {
            array: array.clone(),
            model: model.clone(),
            version: Rc::new(RefCell::new(1)),
        };
        // Some regions stay unwritten; the last one is written.
        client.write(0, sectors / 3).await;
        client.write(sectors - 20, 20).await;
        client.flush().await;
        let said = Rc::new(Cell::new(false));
        disks.iter().for_each(|disk| disk.enlarge(larger));
        let (note_disks, said2) = (disks.clone(), said.clone());
        let note = move || {
            let media = note_disks.iter().map(|disk| disk.medium.borrow().clone()).collect();
            let moment = Moment { media, model: model.borrow().clone() };
            moments2.borrow_mut().push((moment, said2.get()));
        };
        power.watch(note);
        let growing = {
            let array = array.clone();
            rt.spawn(async move {
                let grown = array.grow(None).await;
                said.set(grown.is_ok());
                grown
            })
        };
        // Also in the region that gets more stripes.
        let writers = [0, 20, sectors - 40, sectors - 20].map(async |first| {
            let mut round = 0u64;
            while !growing.is_finished() {
                let from = mix(first + round) % 20;
                client.write(first + from, 1 + mix(round + 77) % (20 - from)).await;
                if first == 0 {
                    client.flush().await;
                }
                if first == 20 && fails && round == 0 {
                    disks[1].faults.gone.set(true);
                }
                round += 1;
            }
            round
        });
        let round: u64 = join_all(writers).await.into_iter().sum();
        let grown = growing.await;
        assert!(grown.is_ok() || fails, "{grown:?}");
        assert!(round > 4, "users had no time: {round} writes");
        if grown.is_ok() {
            assert_eq!(array.size_bytes(), new_sectors * SECTOR);
            client.write(sectors - 3, 9).await;
            client.write(new_sectors - 9, 9).await;
            client.flush().await;
            client.write(new_sectors - 30, 12).await;
        }
        let _ = array.stop().await;
        (superblock, larger, sectors * SECTOR, new_sectors * SECTOR)
    });
    rt.kill_all();
    let moments = moments.take();
    Recorded { superblock, larger, new_size, size, moments }
}

/// Whether a sector lies on the slot of a lost disk.
fn lies_on(run: &Recorded, sector: u64, lost: &[usize]) -> bool {
    let Superblock { code, algorithm, slots, rows, .. } = &run.superblock;
    let layout = for_code(*code, *algorithm, slots.len(), rows + MORE_ROWS).expect("a layout");
    let k = code.shape(slots.len()).expect("a code").k as u64;
    let unit = sector * SECTOR / UNIT;
    lost.iter().any(|lost| layout.place(unit / k, (unit % k) as usize).slot == SlotNo(*lost))
}

/// Assembles what a cut left, and checks everything.
fn check(setup: &Setup, run: &Rc<Recorded>, n: usize, leave: Leave, lost: &[usize], what: &str) {
    let (moment, said) = &run.moments[n];
    let rt = rt();
    let media: Vec<Medium> = moment.media.iter().map(|medium| leave.of(medium)).collect();
    let disks = disks_of(&rt, &Power::new(), run.larger, media);
    let all = members(&disks);
    let found = all[..setup.slots].iter().enumerate();
    let found: Vec<Rc<dyn Disk>> =
        found.filter(|(slot, _)| !lost.contains(slot)).map(|(_, disk)| disk.clone()).collect();
    let (model, said, spare) = (moment.model.clone(), *said, all[setup.slots].clone());
    let mirror = setup.code.starts_with("raid1");
    let (rt2, what, lost, run) = (rt.clone(), what.to_owned(), lost.to_vec(), run.clone());
    let fails = setup.fails;
    rt.block_on(async move {
        let rt = rt2;
        let options = AssembleOptions {
            nonce: 99,
            force_degraded: !lost.is_empty() || fails,
            ..Default::default()
        };
        let array = match Array::assemble(&rt, found, options).await {
            Ok(array) => array,
            Err(error) => panic!("{what}: {error}"),
        };
        let size = array.size_bytes();
        assert!(size == run.new_size || size == run.size && !said, "{what}: {size}");
        let first = read_all(&array, size).await;
        for (sector, bytes) in (0..).zip(first.chunks(SECTOR as usize)) {
            let Sector { versions, .. } = &model.0[sector as usize];
            let fits = versions.iter().any(|version| bytes == content(sector, *version));
            // What was being written to a member that failed meanwhile may be garbage, also if that
            // disk is there again.
            let lost = if fails { &[1][..] } else { &lost };
            let excused = !mirror && versions.len() > 1 && lies_on(&run, sector, lost);
            assert!(fits || excused, "{what}: sector {sector} is none of {versions:?}");
        }
        if !lost.is_empty() || array.status().state == ArrayState::Degraded {
            array.add_spare(spare).await.expect("added");
        }
        let is_busy = |array: &Array| {
            let status = array.status();
            status.regions.resync > 0 || status.state != ArrayState::Healthy
        };
        while is_busy(&array) {
            rt.sleep(MILLISECOND).await;
        }
        if size == run.size {
            array.grow(None).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert_eq!(array.size_bytes(), run.new_size, "{what}");
        let after = read_all(&array, UNIT).await;
        assert!(after[..first.len()] == first, "{what}: something changed");
        assert!(after[first.len()..].iter().all(|byte| *byte == 0), "{what}: not zeros");
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
        let bytes = pattern(700, 3000, 1);
        let end = array.size_bytes() - 3000;
        write(&array, end, &bytes).await;
        assert!(read(&array, end, 3000).await == bytes, "{what}: a write at the end");
        let report = array.scrub(ScrubMode::Check).await.expect("scrubbed");
        assert_eq!((report.mismatches, report.unreadable), (0, 0), "{what}");
        array.stop().await.expect("stopped");
    });
    rt.kill_all();
}

fn cut_everywhere(setup: &Setup) {
    let run = Rc::new(record(setup));
    assert!(run.moments.len() > 30, "only {} steps", run.moments.len());
    assert!(setup.fails || run.moments.iter().any(|(_, said)| *said), "it was never said");
    for n in (0..run.moments.len()).step_by(stride(3)) {
        let torn = mix(n as u64);
        for leave in [[Leave::All, Leave::Nothing, Leave::Some(torn)][n % 3], Leave::Some(!torn)] {
            let lost = if setup.fails { vec![1] } else { vec![(n / 3) % setup.slots] };
            let mut losses = vec![Vec::new()];
            if setup.loses {
                losses.push(lost);
            }
            for lost in losses {
                let of = run.moments.len();
                let what = format!("{}, cut {n} of {of}, {leave:?}, lost {lost:?}", setup.code);
                check(setup, &run, n, leave, &lost, &what);
            }
        }
    }
}

#[test]
fn raid5() {
    cut_everywhere(&RAID5);
}

#[test]
fn raid5_of_members_that_are_not_zeroed() {
    cut_everywhere(&Setup { zeroed: false, ..RAID5 });
}

#[test]
fn raid5_while_a_member_fails() {
    cut_everywhere(&Setup { fails: true, ..RAID5 });
}

#[test]
fn raid6() {
    cut_everywhere(&Setup { code: "raid6", slots: 5, ..RAID5 });
}

#[test]
fn mirrors() {
    cut_everywhere(&Setup { code: "raid1", slots: 3, ..RAID5 });
    cut_everywhere(&Setup { code: "raid10", slots: 3, loses: false, zeroed: false, ..RAID5 });
}

#[test]
fn drc_g() {
    cut_everywhere(&Setup { code: "drc-g:4,2,1", slots: 7, ..RAID5 });
}

#[test]
fn declustered() {
    cut_everywhere(&Setup { code: "rs:2+1", slots: 5, zeroed: false, ..RAID5 });
}
