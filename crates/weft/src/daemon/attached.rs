//! Serves an array on a FUSE channel that `weft attach` passed in, and keeps the size of the block
//! device that of the array.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use futures_util::future::{Either, select};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;
use weft_cli::disks::Opener;
use weft_cli::failure::Outcome;
use weft_cli::output::log_line;
use weft_cli::{size, thread};
use weft_fuse::session;

use crate::block::attachment::Attachment;
use crate::daemon::log;
use crate::daemon::served::{Front, Served};
use crate::runtime_dir::RuntimeDir;

/// Serves until the file system is unmounted.
pub fn start(opener: &Opener, dir: &RuntimeDir, served: &Rc<Served>, channel: OwnedFd) -> Outcome {
    let name = served.array.status().name;
    served.occupy(Front::Fuse)?;
    prepare_for_reclaim();
    let (rt, ring) = (opener.rt.clone(), opener.ring.clone());
    let (dir, served) = (dir.clone(), served.clone());
    let serve = async move {
        log::about(&name, "attached as a block device");
        let session = std::pin::pin!(session::serve(rt, ring, channel, served.volume.clone()));
        match select(session, std::pin::pin!(keep_size(&dir, &served, &name))).await {
            Either::Left((Ok(()), _)) => log::about(&name, "detached"),
            Either::Left((Err(e), _)) => {
                log::about(&name, &format!("ALERT: the block device has failed: {e}"));
            }
            Either::Right((never, _)) => match never {},
        }
        served.front.take();
    };
    drop(opener.rt.spawn(serve));
    Ok(())
}

/// Resizes the block device whenever the array has another size.
pub(super) async fn keep_size(dir: &RuntimeDir, served: &Served, name: &str) -> Infallible {
    let events = served.array.subscribe();
    let mut known = served.volume.size_bytes();
    loop {
        events.next().await;
        let now = served.volume.size_bytes();
        if now == known {
            continue;
        }
        known = now;
        let (dir, array, ublk) = (dir.clone(), name.to_owned(), served.ublk());
        // The kernel asks this thread for the size meanwhile.
        let resize =
            move || Attachment::of(&dir, &array, ublk).map(|attachment| attachment.resize(now));
        match thread::elsewhere(resize).await {
            Ok(Some(Ok(()))) => {
                log::about(name, &format!("the block device has {} now", size::show(now)));
            }
            // Detached meanwhile.
            Ok(None) => {}
            Ok(Some(Err(failure))) | Err(failure) => log::about(
                name,
                &format!(
                    "ALERT: the block device keeps its size ({failure}): {}",
                    match ublk {
                        Some(_) => "detach the array and attach it again".to_owned(),
                        None =>
                            format!("`weft attach {name}`, as root, gives it that of the array"),
                    }
                ),
            ),
        }
    }
}

/// Short of memory, the kernel may wait for writes to this very device while this thread asks for
/// memory. From now on this thread's requests must not wait for that. Both calls need privilege;
/// without it the risk stays, as for every block device served from user space.
pub(crate) fn prepare_for_reclaim() {
    if let Err(e) = configure_io_flusher_behavior(true) {
        log_line(&format!(
            "note: PR_SET_IO_FLUSHER: {e}; what is mounted may hang when memory runs out"
        ));
    }
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(e) = mlockall(flags) {
        log_line(&format!("note: mlockall: {e}; parts of the daemon may be swapped out"));
    }
}
