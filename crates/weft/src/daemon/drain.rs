//! Ending while arrays are block devices.
//!
//! A daemon that ends under a mounted file system takes its unwritten pages along: the device gives
//! errors from then on. At a shutdown SIGTERM often comes before the unmounting. So the daemon then
//! attaches nothing new, serves on until the devices are not used any more, for at most
//! `--stop-timeout`, and says what it waits for. Devices that are not used it takes away itself
//! where it may.

use std::rc::Rc;

use weft_rt::{MILLISECOND, Nanos};

use crate::block::attachment::Attachment;
use crate::daemon::{Daemon, log, notify};
use crate::failure::Outcome;
use crate::thread;

const LOOK_EVERY: Nanos = 300 * MILLISECOND;

/// What became of the block devices of a look.
struct Look {
    /// Arrays that are still used, with their users in words.
    used: Vec<(String, String)>,
    /// Arrays whose unused device could not be taken away, with the reason.
    left: Vec<(String, String)>,
}

impl Daemon {
    /// Waits until no array is in use as a block device, but not beyond `--stop-timeout`.
    pub(super) async fn drain(self: Rc<Self>) {
        let deadline = self.opener.rt.now().saturating_add(self.stop_timeout);
        let mut said = Vec::new();
        loop {
            let attached = self.attached();
            if attached.is_empty() {
                return;
            }
            let dir = self.dir.clone();
            let look = thread::elsewhere(move || look(&dir, &attached)).await;
            // What cannot be looked at may be in use.
            let Look { used, left } = look.unwrap_or_else(|failure| Look {
                used: vec![("weft".to_owned(), format!("not to be looked at: {failure}"))],
                left: Vec::new(),
            });
            for (name, why) in left {
                log::about(
                    &name,
                    &format!(
                        "its unused block device stays ({why}): clean up with `weft detach {name}`"
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
                            "ALERT: stopped while its block device is {user}: it gives errors from now on"
                        ),
                    );
                } else if !said.contains(&(name.clone(), user.clone())) {
                    log::about(
                        name,
                        &format!(
                            "ALERT: stopping waits for its block device, which is {user}; unmount \
                             or close it (a second signal ends at once)"
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

    /// What keeps a block device from going away, for a command that is refused.
    pub(super) async fn user_of(&self, array: &str) -> Option<String> {
        let (dir, array) = (self.dir.clone(), array.to_owned());
        let look = move || Attachment::of(&dir, &array)?.user_and_processes();
        thread::elsewhere(look).await.ok().flatten()
    }
}

fn look(dir: &crate::runtime_dir::RuntimeDir, attached: &[String]) -> Look {
    let mut look = Look { used: Vec::new(), left: Vec::new() };
    for name in attached {
        let Some(attachment) = Attachment::of(dir, name) else { continue };
        match attachment.user_and_processes() {
            Some(user) => look.used.push((name.clone(), user)),
            None => {
                let removed: Outcome = attachment.remove();
                look.left.extend(removed.err().map(|failure| (name.clone(), failure.message)));
            }
        }
    }
    look
}
