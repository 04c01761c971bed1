//! Scrubs that are interrupted go on near where they were, with what they had found.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::jobs::*;
use crate::common::moments::*;
use crate::common::test_disks::{blank, left_on};
use crate::common::*;
use weft_fs::{Fs, FsError, Job, JobReport, ScrubReport};
use weft_rt::{MICROSECOND, Rt};

/// Small files, each of which is a record.
const COUNT: u64 = 400;

async fn fill_small(fs: &Fs) {
    for n in 0..COUNT {
        let ino = make_as(fs, &format!("file{n}"), "raid1").await;
        write(fs, ino, 0, &pattern(2 * BLOCK as usize, n)).await;
    }
    fs.sync().await.expect("synced");
}

async fn assert_small(fs: &Fs) {
    for n in 0..COUNT {
        let ino = find(fs, &format!("file{n}")).await;
        assert!(read_all(fs, ino).await == pattern(2 * BLOCK as usize, n), "file {n}");
    }
    assert_sound(fs).await;
}

/// A block of file `n` rots.
async fn rot(fs: &Fs, disks: &[Rc<TestDisk>], n: u64) {
    let places = fs.places(find(fs, &format!("file{n}")).await).await.expect("known");
    let column = places[0].1.columns[0].clone().expect("active");
    let at = (64 << 10) + (8 << 20) + column.start * BLOCK;
    disks[usize::from(column.disk)].medium.borrow_mut().poke(at, &[0x5a; 512]);
}

/// Begins a scrub, and waits until half of it is done.
async fn half_scrubbed(
    rt: &Rt,
    fs: &Fs,
) -> impl Future<Output = weft_fs::Result<JobReport>> + use<> {
    let job = rt.spawn(fs.begin_job(Job::Scrub).expect("nothing else runs"));
    loop {
        let status = fs.status().await.expect("known").job.expect("it runs so far");
        if status.total_blocks > 0 && status.done_blocks * 2 > status.total_blocks {
            return job;
        }
        rt.sleep(10 * MICROSECOND).await;
    }
}

fn scrubbed(ended: &Ended) -> ScrubReport {
    match &ended.borrow()[..] {
        [(Job::Scrub, Ok(JobReport::Scrubbed(report)))] => report.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_scrub_goes_on_after_an_unmount() {
    run(|rt| async move {
        let disks = blank(&rt, 4);
        let fs = made(&rt, &all(&disks)).await;
        fill_small(&fs).await;
        let clean = fs.scrub().await.expect("scrubbed");
        assert_eq!((clean.blocks, clean.bad_blocks), (COUNT * 4, 0));
        rot(&fs, &disks, 3).await;
        let job = half_scrubbed(&rt, &fs).await;
        // It is past the first of these, and before the last.
        rot(&fs, &disks, 5).await;
        rot(&fs, &disks, COUNT - 5).await;
        fs.unmount().await.expect("unmounted");
        job.await.expect_err("unmounted");
        let fs = mount(&rt, &all(&disks)).await;
        let ended = kept(&fs);
        settle(&rt, &fs).await;
        let report = scrubbed(&ended);
        assert_eq!((report.bad_blocks, report.repaired_blocks), (2, 2), "{report:?}");
        assert_eq!((report.blocks, report.damaged_files), (clean.blocks, 0), "each counts once");
        // It is done, and the next one begins at the front.
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &all(&disks)).await;
        let ended = kept(&fs);
        settle(&rt, &fs).await;
        assert!(ended.borrow().is_empty(), "{ended:?}");
        let again = fs.scrub().await.expect("scrubbed");
        assert_eq!((again.blocks, again.bad_blocks), (clean.blocks, 1), "{again:?}");
        assert_small(&fs).await;
    });
}

#[test]
fn a_scrub_goes_on_behind_a_rebuild() {
    run(|rt| async move {
        let disks = blank(&rt, 4);
        let fs = made(&rt, &all(&disks)).await;
        fill_small(&fs).await;
        let ended = kept(&fs);
        let job = half_scrubbed(&rt, &fs).await;
        fs.fail_disk(1).await.expect("out of service");
        let outcome = job.await;
        assert!(matches!(outcome, Err(FsError::GivenWay)), "{outcome:?}");
        // What is before its place is not read again. One of the first files has nothing on disk 1.
        for n in 0..20 {
            let places = fs.places(find(&fs, &format!("file{n}")).await).await.expect("known");
            if places[0].1.columns.iter().flatten().all(|column| column.disk != 1) {
                rot(&fs, &disks, n).await;
                break;
            }
        }
        settle(&rt, &fs).await;
        assert_eq!(jobs(&ended), [Job::Rebuild, Job::Scrub]);
        let report = ended.borrow_mut().remove(1).1.expect("scrubbed");
        assert!(matches!(&report, JobReport::Scrubbed(it) if it.bad_blocks == 0), "{report:?}");
        assert_eq!(fs.scrub().await.expect("scrubbed").bad_blocks, 1);
        assert_small(&fs).await;
    });
}

/// From when it has begun on, it goes on after any crash, and is done once.
#[test]
fn a_scrub_goes_on_after_a_crash_at_each_step() {
    let moments = moments(4, |fs, _| async move {
        fill_small(&fs).await;
        fs.scrub().await.expect("scrubbed");
        fs.sync().await.expect("synced");
    });
    let mut counts = [0; 2];
    for (n, media) in moments.iter().enumerate().step_by(7) {
        let media: Vec<Medium> = left_of_all(leave(n / 7), media);
        let goes_on = Rc::new(Cell::new(false));
        let result = goes_on.clone();
        run(move |rt| async move {
            let what = format!("step {n}, {:?}", leave(n / 7));
            let disks = holding(&rt, &Power::new(), SIZE, &media);
            let fs = mounted(&rt, &disks[..4], &what).await;
            let ended = kept(&fs);
            settle(&rt, &fs).await;
            if !ended.borrow().is_empty() {
                let report = scrubbed(&ended);
                assert!(report.blocks >= COUNT * 4 && report.bad_blocks == 0, "{what}: {report:?}");
                result.set(true);
            }
            assert_filled(&fs, &what).await;
        });
        counts[usize::from(goes_on.get())] += 1;
    }
    assert!(counts.iter().all(|count| *count > 3), "{counts:?}");
}

#[test]
fn a_scrub_that_is_cancelled_does_not_go_on() {
    let left = Rc::new(RefCell::new(Vec::new()));
    let after = left.clone();
    run(move |rt| async move {
        let disks = blank(&rt, 4);
        let fs = made(&rt, &all(&disks)).await;
        fill_small(&fs).await;
        let job = half_scrubbed(&rt, &fs).await;
        assert_eq!(fs.cancel().await.expect("cancelled"), Job::Scrub);
        *after.borrow_mut() = left_on(&disks, Leave::Nothing);
        let outcome = job.await;
        assert!(matches!(outcome, Err(FsError::Cancelled)), "{outcome:?}");
        rot(&fs, &disks, 2).await;
        let whole = fs.scrub().await.expect("scrubbed");
        assert_eq!((whole.blocks, whole.bad_blocks), (COUNT * 4, 1), "from the front: {whole:?}");
    });
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &left.borrow());
        let fs = mounted(&rt, &disks, "crashed").await;
        let ended = kept(&fs);
        settle(&rt, &fs).await;
        assert!(ended.borrow().is_empty(), "{ended:?}");
        assert_small(&fs).await;
    });
}
