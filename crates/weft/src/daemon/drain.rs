//! Ending while arrays are attached as block devices.
//!
//! If a daemon ends under a mounted file system, the kernel's unwritten pages are lost: the device
//! returns errors from then on (by FUSE), or its users wait for the next daemon (by ublk), which a
//! shutdown does not bring. At a shutdown SIGTERM often comes before the unmounting. So the
//! daemon attaches nothing new, serves until the devices are no longer used, for at most
//! `--stop-timeout`, and logs what it waits for. It removes unused devices itself where it may.

use std::rc::Rc;

use weft_cli::failure::Outcome;
use weft_cli::thread;
use weft_rt::{MILLISECOND, Nanos};

use crate::block::attachment::Attachment;
use crate::daemon::{Daemon, log, notify};
use crate::runtime_dir::RuntimeDir;

const LOOK_EVERY: Nanos = 300 * MILLISECOND;

/// The block devices found by a look.
struct Look {
    /// Arrays that are still used, with their users in words.
    used: Vec<(String, String)>,
    /// Arrays whose unused device could not be removed, with the reason.
    left: Vec<(String, String)>,
}

impl Daemon {
    /// Waits until no array is in use as a block device, for at most `--stop-timeout`.
    pub(super) async fn drain(self: Rc<Self>) {
        let deadline = self.opener.rt.now().saturating_add(self.stop_timeout);
        let mut said = Vec::new();
        loop {
            let attached = self.attached();
            if attached.is_empty() {
                return;
            }
            let (dir, devices) = (self.dir.clone(), attached.clone());
            let look = thread::elsewhere(move || look(&dir, &devices)).await;
            // A device that cannot be examined may be in use.
            let Look { used, left } = look.unwrap_or_else(|failure| Look {
                used: vec![("weft".to_owned(), format!("cannot be examined: {failure}"))],
                left: Vec::new(),
            });
            for (name, why) in left {
                log::about(
                    &name,
                    &format!(
                        "its unused block device stays ({why}): remove it with `weft detach {name}`"
                    ),
                );
            }
            if used.is_empty() {
                return;
            }
            let out_of_time = self.opener.rt.now() >= deadline;
            for (name, user) in &used {
                if out_of_time {
                    log::about(
                        name,
                        &format!(
                            "ALERT: stopped while its block device is {user}: {}",
                            match self.can_be_left(name) {
                                true => "its users wait for the next daemon",
                                false => "it returns errors from now on",
                            }
                        ),
                    );
                } else if !said.contains(&(name.clone(), user.clone())) {
                    log::about(
                        name,
                        &format!(
                            "ALERT: cannot stop yet: its block device is {user}; unmount or close it \
                             (a second signal ends the daemon at once)"
                        ),
                    );
                }
            }
            if out_of_time {
                return;
            }
            let names: Vec<&str> = used.iter().map(|(_, user)| user.as_str()).collect();
            notify::systemd(&format!("STATUS=stopping: block device {}", names.join("; ")));
            notify::extend_timeout();
            said = used;
            self.opener.rt.sleep(LOOK_EVERY).await;
        }
    }

    /// The user that keeps a block device in use, for the refusal of a command.
    pub(super) async fn user_of(&self, array: &str) -> Option<String> {
        let ublk = self.arrays.borrow().get(array).and_then(|served| served.ublk());
        let (dir, array) = (self.dir.clone(), array.to_owned());
        let look = move || Attachment::of(&dir, &array, ublk)?.user_and_processes();
        thread::elsewhere(look).await.ok().flatten()
    }
}

fn look(dir: &RuntimeDir, attached: &[(String, Option<u32>)]) -> Look {
    let mut look = Look { used: Vec::new(), left: Vec::new() };
    for (name, ublk) in attached {
        let Some(attachment) = Attachment::of(dir, name, *ublk) else { continue };
        match attachment.user_and_processes() {
            Some(user) => look.used.push((name.clone(), user)),
            None => {
                let removed: Outcome = attachment.remove(false);
                look.left.extend(removed.err().map(|failure| (name.clone(), failure.message)));
            }
        }
    }
    look
}
