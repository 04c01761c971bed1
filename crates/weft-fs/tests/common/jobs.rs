//! Jobs that begin by themselves, and how they end.

use std::cell::RefCell;
use std::rc::Rc;

use weft_disk::Disk;
use weft_fs::{Fs, Job, JobReport, MountOptions};
use weft_rt::{Rt, SECOND};

use super::disk::{Medium, Power, holding};
use super::{all, made, mounting};

/// Bytes of a file that takes a job several steps.
pub const BYTES: usize = 8 << 20;
/// Bytes of a file whose blocks are moved in several steps.
pub const SEVERAL_STEPS: usize = 80 << 20;

pub type Ended = Rc<RefCell<Vec<(Job, weft_fs::Result<JobReport>)>>>;

/// Lets jobs begin by themselves, and notes how they end.
pub fn kept(fs: &Fs) -> Ended {
    let ended = Ended::default();
    let note = ended.clone();
    fs.keep(move |job, outcome| note.borrow_mut().push((job, outcome)));
    ended
}

/// A file system with so few pages of metadata that each step of a job has two records.
pub async fn in_small_steps(rt: &Rt) -> Fs {
    let disks = all(&holding(rt, &Power::new(), 48 << 20, &vec![Medium::new(512); 5]));
    with_few_pages(rt, &disks).await
}

/// The same on these disks.
pub async fn with_few_pages(rt: &Rt, disks: &[Rc<dyn Disk>]) -> Fs {
    drop(made(rt, disks).await.unmount().await);
    let options = MountOptions { meta_cache_bytes: 0, ..mounting() };
    Fs::mount(rt, disks, options).await.expect("mounted")
}

/// Waits until nothing is done any more.
pub async fn settle(rt: &Rt, fs: &Fs) {
    rt.sleep(3 * SECOND).await;
    while fs.status().await.expect("known").job.is_some() {
        rt.sleep(3 * SECOND).await;
    }
}

pub fn jobs(ended: &Ended) -> Vec<Job> {
    ended.borrow().iter().map(|(job, _)| *job).collect()
}
