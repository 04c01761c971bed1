//! Serves an array on a FUSE channel that `weft attach` passed in, and keeps the size of the block
//! device that of the array.
//!
//! *Outliving the daemon.* Under systemd a copy of the channel is in its store of descriptors. If
//! the daemon ends, the channel stays open, its users wait, and the next daemon, which systemd
//! starts and passes the channel, goes on with it, as with a ublk device ([`super::ublk`]). That
//! daemon must ask for the requests that this one has received and not answered, which kernels can
//! since Linux 6.9. Under earlier ones the channel can only be handed over complete: this daemon
//! ends in order, and changes the channel's name to say so. Otherwise the next daemon closes it,
//! and users get errors, as they do without systemd, or if the unit lets it keep nothing.

use std::convert::Infallible;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;

use futures_util::future::{Either, select};
use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::log_line;
use weft_cli::{size, thread};
use weft_fuse::session::{Session, Source, ask_again};

use crate::block::attachment::Attachment;
use crate::daemon::served::{Front, Served};
use crate::daemon::{Daemon, log, notify};
use crate::runtime_dir::RuntimeDir;

/// The end of the name of a channel without unanswered requests.
const COMPLETE: &str = "-complete";

/// The name under which systemd keeps the channel of an array.
fn name_of(served: &Served) -> String {
    format!("weft-fuse-{}", served.array.identities().0)
}

impl Daemon {
    /// Serves an array on a new channel, until it is unmounted.
    pub(super) async fn attach_fuse(&self, served: &Rc<Served>, channel: OwnedFd) -> Outcome {
        let has_store = thread::elsewhere(notify::has_store).await?;
        // Much may have happened meanwhile.
        let is_served = self.arrays.borrow().values().any(|other| Rc::ptr_eq(other, served));
        if self.stopping.get() || !is_served {
            return Err(Failure::new("the array is stopping"));
        }
        if served.front.borrow().is_some() {
            return Err(served.attached_already());
        }
        let kept = has_store && notify::keep(&name_of(served), channel.as_fd());
        self.serve_fuse(served, channel, kept)
    }

    fn serve_fuse(&self, served: &Rc<Served>, channel: OwnedFd, kept: bool) -> Outcome {
        let name = served.array.status().name;
        let (volume, isolation) = (served.volume.clone(), served.isolation.clone());
        let has_ended = Box::new(move || kept && isolation.has_failed());
        let source = Source { volume, has_ended };
        let session = Session::new(&self.opener.rt, &self.opener.ring, channel, source);
        served.occupy(Front::Fuse { session: session.clone(), kept })?;
        prepare_for_reclaim();
        let (dir, served) = (self.dir.clone(), served.clone());
        let serve = async move {
            log::about(&name, "attached as a block device");
            let session = std::pin::pin!(session.serve());
            match select(session, std::pin::pin!(keep_size(&dir, &served, &name))).await {
                Either::Left((Ok(()), _)) => log::about(&name, "detached"),
                Either::Left((Err(e), _)) => {
                    log::about(&name, &format!("ALERT: the block device has failed: {e}"));
                }
                Either::Right((never, _)) => match never {},
            }
            if kept {
                notify::forget(&name_of(&served));
            }
            served.front.take();
        };
        drop(self.opener.rt.spawn(serve));
        Ok(())
    }

    /// Goes on with the channel that an earlier daemon left of an array that has just started. If
    /// that is impossible, its users get errors.
    pub(super) fn take_over_channel(&self, name: &str, served: &Rc<Served>) {
        let kept = name_of(served);
        let complete = format!("{kept}{COMPLETE}");
        let found = {
            let mut channels = self.channels.borrow_mut();
            let found = channels.remove(&complete).map(|channel| (channel, true));
            found.or_else(|| channels.remove(&kept).map(|channel| (channel, false)))
        };
        let Some((channel, is_complete)) = found else { return };
        if is_complete {
            notify::forget(&complete);
            notify::keep(&kept, channel.as_fd());
        }
        let taken = self.check_channel(name, served).and_then(|()| {
            match ask_again(&channel) {
                Err(Errno::INVAL) if is_complete => {}
                Err(Errno::INVAL) => {
                    return Err(Failure::new(
                        "this kernel does not send requests again that the earlier daemon did not \
                         answer (Linux 6.9 does)",
                    ));
                }
                // Unmounted meanwhile, which the session finds out.
                _ => {}
            }
            self.serve_fuse(served, channel, true)
        });
        if let Err(failure) = taken {
            notify::forget(&kept);
            log::about(
                name,
                &format!(
                    "ALERT: its block device is not taken over, and returns errors from now on: \
                     {failure} (`weft detach {name}` removes it)"
                ),
            );
        }
    }

    /// Whether the array can go on with its users.
    fn check_channel(&self, name: &str, served: &Served) -> Outcome {
        if served.forced {
            return Err(Failure::new("the array was forced to start, and may be older"));
        }
        let Some(attachment) = Attachment::fuse(&self.dir, name) else { return Ok(()) };
        let (has, size_bytes) = (attachment.size_bytes(), served.volume.size_bytes());
        if let Some(has) = has.filter(|has| *has > size_bytes) {
            let (has, now) = (size::show(has), size::show(size_bytes));
            return Err(Failure::new(format!("it has {has} and the array {now}")));
        }
        if served.read_only && !attachment.is_read_only() {
            return Err(Failure::new("it takes writes, and the array is read only"));
        }
        Ok(())
    }
}

/// The array has no unanswered request, and the channel is for the next daemon.
pub(super) fn note_complete(served: &Served, channel: &Session) {
    let kept = name_of(served);
    // systemd keeps a descriptor under one name only.
    notify::forget(&kept);
    notify::keep(&format!("{kept}{COMPLETE}"), channel.as_fd());
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
        // The kernel asks this thread for the size during this.
        let resize =
            move || Attachment::of(&dir, &array, ublk).map(|attachment| attachment.resize(now));
        match thread::elsewhere(resize).await {
            Ok(Some(Ok(()))) => {
                log::about(name, &format!("the block device has {} now", size::show(now)));
            }
            // Detached since.
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
            "note: PR_SET_IO_FLUSHER: {e}; its mounts may hang when memory runs out"
        ));
    }
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(e) = mlockall(flags) {
        log_line(&format!("note: mlockall: {e}; parts of the daemon may be swapped out"));
    }
}
