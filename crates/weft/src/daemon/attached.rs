//! Serves an array on a FUSE channel that `weft attach` passed in.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;
use weft_cli::disks::Opener;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::log_line;
use weft_fuse::session;

use crate::daemon::log;
use crate::daemon::served::Served;

/// Serves until the file system is unmounted.
pub fn start(opener: &Opener, served: &Rc<Served>, channel: OwnedFd) -> Outcome {
    let name = served.array.status().name;
    if served.read_only {
        return Err(Failure::new(format!("{name} is served read-only"))
            .hint("a block device needs writes: restart `weft serve` without --read-only"));
    }
    if served.attached.replace(true) {
        return Err(Failure::new(format!("{name} is attached already"))
            .hint(format!("`weft detach {name}` removes it")));
    }
    prepare_for_reclaim();
    let (rt, ring, served) = (opener.rt.clone(), opener.ring.clone(), served.clone());
    let serve = async move {
        log::about(&name, "attached as a block device");
        match session::serve(rt, ring, channel, served.volume.clone()).await {
            Ok(()) => log::about(&name, "detached"),
            Err(e) => log::about(&name, &format!("ALERT: the block device has failed: {e}")),
        }
        served.attached.set(false);
    };
    drop(opener.rt.spawn(serve));
    Ok(())
}

/// Short of memory, the kernel may wait for writes to this very device while this thread asks for
/// memory. From now on this thread's requests must not wait for that. Both calls need privilege;
/// without it the risk stays, as for every block device served from user space.
fn prepare_for_reclaim() {
    if let Err(e) = configure_io_flusher_behavior(true) {
        log_line(&format!(
            "note: PR_SET_IO_FLUSHER: {e}; a mounted array may hang when memory runs out"
        ));
    }
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(e) = mlockall(flags) {
        log_line(&format!("note: mlockall: {e}; parts of the daemon may be swapped out"));
    }
}
