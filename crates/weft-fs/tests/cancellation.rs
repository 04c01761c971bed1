//! Jobs that are cancelled: at any moment, with a crash behind it, and those that cannot be.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Poll;

use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::jobs::*;
use crate::common::moments::*;
use crate::common::test_disks::{blank, left_on};
use crate::common::*;
use weft_fs::{Fs, FsError, Job, JobReport};
use weft_rt::{MICROSECOND, MILLISECOND, Rt};

/// Begins a job, which goes on by itself.
fn begin(rt: &Rt, fs: &Fs, job: Job) -> impl Future<Output = weft_fs::Result<JobReport>> + use<> {
    rt.spawn(fs.begin_job(job).expect("nothing else runs"))
}

/// Lets other tasks go on.
async fn others_first() {
    let mut is_second = false;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut is_second, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

async fn leaving(fs: &Fs) -> Vec<u16> {
    let disks = fs.status().await.expect("known").disks;
    disks.iter().filter(|disk| disk.leaving).map(|disk| disk.number).collect()
}

async fn free_of(fs: &Fs, number: u16) -> u64 {
    let disks = fs.status().await.expect("known").disks;
    disks.iter().find(|disk| disk.number == number).expect("there").free_bytes
}

#[test]
fn a_disk_that_was_leaving_is_a_full_member_again() {
    run(|rt| async move {
        let fs = in_small_steps(&rt).await;
        let ended = kept(&fs);
        let ino = make_as(&fs, "file", "raid5").await;
        write(&fs, ino, 0, &pattern(SEVERAL_STEPS, 1)).await;
        fs.sync().await.expect("synced");
        let before = free_of(&fs, 1).await;
        let job = begin(&rt, &fs, Job::Remove(1));
        while fs.status().await.expect("known").job.expect("it runs").done_blocks == 0 {
            rt.sleep(20 * MICROSECOND).await;
        }
        assert_eq!(fs.cancel().await.expect("cancelled"), Job::Remove(1));
        assert_eq!(fs.status().await.expect("known").job, None, "it has ended");
        let outcome = job.await;
        assert!(matches!(outcome, Err(FsError::Cancelled)), "{outcome:?}");
        assert_eq!(leaving(&fs).await, [0; 0]);
        // What has moved stays where it is, and the disk has the most room now.
        fs.sync().await.expect("synced");
        let emptier = free_of(&fs, 1).await;
        let all = fs.status().await.expect("known").disks[1].data_bytes;
        assert!(before < emptier && emptier < all, "{before} {emptier} {all}");
        let more = make_as(&fs, "more", "none").await;
        write(&fs, more, 0, &pattern(100_000, 2)).await;
        fs.sync().await.expect("synced");
        assert!(free_of(&fs, 1).await < emptier, "new blocks go to it");
        settle(&rt, &fs).await;
        assert!(ended.borrow().is_empty(), "it does not begin again: {ended:?}");
        assert!(read_all(&fs, ino).await == pattern(SEVERAL_STEPS, 1));
        assert_sound(&fs).await;
        fs.remove_disk(1).await.expect("removed after all");
        assert_sound(&fs).await;
    });
}

/// Either it is cancelled, and the disk stays, or it is too late, and the disk leaves.
#[test]
fn a_removal_is_cancelled_at_any_moment() {
    let counts = Rc::new(RefCell::new([0; 3]));
    for wait in (0..40).chain((40..400).step_by(2)).map(|n| n * n * MICROSECOND) {
        let counts = counts.clone();
        run(move |rt| async move {
            let disks = all(&blank(&rt, 5));
            let fs = made(&rt, &disks).await;
            fill(&fs).await;
            let job = begin(&rt, &fs, Job::Remove(1));
            rt.sleep(wait).await;
            let cancelled = fs.cancel().await;
            let outcome = job.await;
            match cancelled {
                Ok(job) => {
                    assert_eq!(job, Job::Remove(1));
                    assert!(matches!(outcome, Err(FsError::Cancelled)), "{wait}: {outcome:?}");
                    assert_eq!(numbers(&fs).await, [0, 1, 2, 3, 4]);
                    assert_eq!(leaving(&fs).await, [0; 0]);
                    counts.borrow_mut()[0] += 1;
                }
                Err(error) => {
                    assert!(matches!(outcome, Ok(JobReport::Moved(_))), "{wait}: {outcome:?}");
                    assert_eq!(numbers(&fs).await, [0, 2, 3, 4]);
                    let is_late = error.to_string().contains("about to end");
                    assert!(is_late || error.to_string() == "no job is running", "{error}");
                    counts.borrow_mut()[if is_late { 1 } else { 2 }] += 1;
                }
            }
            assert_filled(&fs, &format!("after {wait}")).await;
        });
    }
    let counts = counts.take();
    assert!(counts.iter().all(|count| *count > 5), "{counts:?}");
}

#[test]
fn a_crash_around_a_cancel_leaves_the_disk_leaving_or_not() {
    let moments = moments(5, |fs, _| async move {
        let remove = fs.begin_job(Job::Remove(1)).expect("nothing else runs");
        let cancel = async {
            while leaving(&fs).await.is_empty() {
                others_first().await;
            }
            fs.cancel().await.expect("cancelled");
        };
        let (outcome, ()) = futures_util::future::join(remove, cancel).await;
        assert!(matches!(outcome, Err(FsError::Cancelled)), "{outcome:?}");
        fs.sync().await.expect("synced");
    });
    let counts = Rc::new(RefCell::new([0; 2]));
    for (n, media) in moments.iter().enumerate() {
        let media: Vec<Medium> = left_of_all(leave(n), media);
        let counts = counts.clone();
        run(move |rt| async move {
            let what = format!("step {n}, {:?}", leave(n));
            let disks = holding(&rt, &Power::new(), SIZE, &media);
            let fs = mounted(&rt, &disks, &what).await;
            let is_leaving = leaving(&fs).await == [1];
            let ended = kept(&fs);
            settle(&rt, &fs).await;
            assert_eq!(jobs(&ended), vec![Job::Remove(1); usize::from(is_leaving)], "{what}");
            assert_filled(&fs, &what).await;
            counts.borrow_mut()[usize::from(is_leaving)] += 1;
        });
    }
    assert!(counts.borrow()[0] > 5, "{counts:?}");
}

/// Half a removal, as an unmount or a crash leaves it; it waits to go on.
fn half_removed() -> Vec<Medium> {
    let moments = moments(5, |fs, _| async move {
        fs.remove_disk(1).await.expect("removed");
    });
    moments[moments.len() / 2].clone()
}

/// From when it is acknowledged on, a crash does not forget that a job was cancelled, one that
/// waited.
#[test]
fn a_cancel_is_durable_when_it_is_acknowledged() {
    let left = Rc::new(RefCell::new(half_removed()));
    let after = left.clone();
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &after.borrow());
        let fs = mounted(&rt, &disks, "half way").await;
        assert_eq!(leaving(&fs).await, [1]);
        assert_eq!(fs.cancel().await.expect("it waits"), Job::Remove(1));
        assert_eq!(leaving(&fs).await, [0; 0]);
        *after.borrow_mut() = left_on(&disks, Leave::Nothing);
        let nothing = fs.cancel().await.expect_err("it was cancelled");
        assert_eq!(nothing.to_string(), "no job is running");
        let ended = kept(&fs);
        settle(&rt, &fs).await;
        assert!(ended.borrow().is_empty(), "{ended:?}");
    });
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &left.borrow());
        let fs = mounted(&rt, &disks, "crashed").await;
        assert_eq!(leaving(&fs).await, [0; 0]);
        let ended = kept(&fs);
        settle(&rt, &fs).await;
        assert!(ended.borrow().is_empty(), "{ended:?}");
        assert_filled(&fs, "stayed").await;
    });
}

/// A running job that is cancelled.
#[test]
fn a_running_job_that_was_cancelled_does_not_go_on_after_a_crash() {
    let left = Rc::new(RefCell::new(Vec::new()));
    let after = left.clone();
    run(move |rt| async move {
        let disks = blank(&rt, 5);
        let fs = made(&rt, &all(&disks)).await;
        fill(&fs).await;
        let job = begin(&rt, &fs, Job::Remove(1));
        while leaving(&fs).await.is_empty() {
            rt.sleep(MILLISECOND / 100).await;
        }
        // What the job has noted so far is durable.
        fs.sync().await.expect("synced");
        assert_eq!(leaving(&fs).await, [1]);
        fs.cancel().await.expect("cancelled");
        *after.borrow_mut() = left_on(&disks, Leave::Nothing);
        job.await.expect_err("cancelled");
    });
    run(move |rt| async move {
        let disks = holding(&rt, &Power::new(), SIZE, &left.borrow());
        let fs = mounted(&rt, &disks, "crashed").await;
        assert_eq!(leaving(&fs).await, [0; 0]);
        assert_filled(&fs, "stayed").await;
    });
}

#[test]
fn a_scrub_is_cancelled() {
    run(|rt| async move {
        let fs = in_small_steps(&rt).await;
        let ino = make_as(&fs, "file", "raid5").await;
        write(&fs, ino, 0, &pattern(BYTES, 1)).await;
        let job = begin(&rt, &fs, Job::Scrub);
        rt.yield_now().await;
        assert_eq!(fs.cancel().await.expect("cancelled"), Job::Scrub);
        let outcome = job.await;
        assert!(matches!(outcome, Err(FsError::Cancelled)), "{outcome:?}");
        // Another job runs to its end.
        fs.scrub().await.expect("scrubbed");
        assert_sound(&fs).await;
    });
}

#[test]
fn what_keeps_redundancy_cannot_be_cancelled() {
    run(|rt| async move {
        let fs = in_small_steps(&rt).await;
        let refused = fs.cancel().await.expect_err("nothing runs");
        assert_eq!(refused.to_string(), "no job is running");
        let ino = make_as(&fs, "file", "raid5").await;
        write(&fs, ino, 0, &pattern(BYTES, 1)).await;
        fs.sync().await.expect("synced");
        let set = rt.spawn(begin_set(&fs, &[ino], "raid1".parse().expect("known")).await);
        rt.yield_now().await;
        let refused = fs.cancel().await.expect_err("a set goes on");
        assert!(refused.to_string().contains("set the redundancy that"), "{refused}");
        set.await.expect("it went on");
        // One that waits is no other.
        fs.want_redundancy(&[ino], "raid5".parse().expect("known")).await.expect("set");
        let refused = fs.cancel().await.expect_err("a set goes on");
        assert!(refused.to_string().contains("a set cannot"), "{refused}");
        fs.fail_disk(2).await.expect("out of service");
        let rebuild = begin(&rt, &fs, Job::Rebuild);
        rt.yield_now().await;
        let refused = fs.cancel().await.expect_err("a rebuild goes on");
        assert!(refused.to_string().contains("a rebuild cannot"), "{refused}");
        rebuild.await.expect("it went on");
        assert_eq!(numbers(&fs).await, [0, 1, 3, 4]);
        assert_sound(&fs).await;
    });
}

#[test]
fn an_interrupted_hole_or_redundancy_leaves_a_sound_file() {
    run(|rt| async move {
        let disks = ram(&[40; 4]);
        let fs = made(&rt, &disks).await;
        let ino = make_as(&fs, "file", "raid5").await;
        // A block in each GiB.
        let gib = 1 << 30;
        for n in 0..8 {
            write(&fs, ino, n * gib, &pattern(BLOCK as usize, n)).await;
        }
        fs.sync().await.expect("synced");
        let left = Cell::new(2);
        let goes_on = move || left.replace(left.get() - 1) > 0;
        let punched = fs.punch_hole_while(ino, 0, 8 * gib, goes_on).await;
        assert!(matches!(punched, Err(FsError::Cancelled)), "{punched:?}");
        let mut whole = 0;
        for n in 0..8 {
            let found = fs.read(ino, n * gib, BLOCK as usize).await.expect("read");
            let is_whole = *found == *pattern(BLOCK as usize, n);
            assert!(is_whole || found.iter().all(|byte| *byte == 0), "in GiB {n}");
            assert!(is_whole || whole == 0, "the front is a hole");
            whole += u32::from(is_whole);
        }
        assert!((1..8).contains(&whole), "{whole}");
        // A file in pieces of 16 MiB.
        let long = make_as(&fs, "long", "raid5").await;
        let bytes = pattern(24 << 20, 1);
        write(&fs, long, 0, &bytes).await;
        let raid1 = "raid1".parse().expect("known");
        let set = fs.set_redundancy_while(long, raid1, || false).await;
        assert!(matches!(set, Err(FsError::Cancelled)), "{set:?}");
        assert!(read_all(&fs, long).await == bytes);
        assert_sound(&fs).await;
        // A job does the rest.
        fs.begin_job(Job::Set).expect("nothing else runs").await.expect("room");
        let two = fs.places(long).await.expect("known");
        assert!(two.iter().all(|(_, record)| record.coded.columns == 2));
        assert!(read_all(&fs, long).await == bytes);
        assert_sound(&fs).await;
    });
}
