//! Arrays as devices of the kernel's NBD client. The daemon serves one end of a pair of sockets as
//! it serves any client; the other end is the kernel's ([`crate::block::nbd_device`]). That is
//! given to it by `weft attach`, and by the next daemon if it is root: else `weft attach` connects
//! a device again.
//!
//! An array that fails answers its clients with errors, and so its device.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use weft_cli::failure::{Failure, Outcome};
use weft_cli::thread;

use crate::block::nbd_device;
use crate::daemon::served::{Front, Served};
use crate::daemon::{Daemon, log};

impl Daemon {
    /// Serves an array on one end of a pair of sockets, until it ends.
    pub(super) fn attach_nbd(&self, served: &Rc<Served>, socket: OwnedFd) -> Outcome {
        served.occupy(Front::Nbd)?;
        let Some(connection) = self.server.serve(socket) else {
            served.front.take();
            return Err(Failure::new("the daemon has no room for another NBD connection"));
        };
        let name = served.array.status().name;
        let (daemon, served) = (self.me.clone(), served.clone());
        let server = self.server.clone();
        drop(self.opener.rt.spawn(async move {
            log::about(&name, "attached as a block device");
            server.until_ended(connection).await;
            let is_stopping = daemon.upgrade().is_none_or(|daemon| daemon.stopping.get());
            let what = match is_stopping {
                true => "its block device stays; its users wait for the next `weft serve`",
                false => "its block device is disconnected",
            };
            log::about(&name, what);
            served.front.take();
        }));
        Ok(())
    }

    /// Goes on with the device that an earlier daemon left of an array that has just started.
    pub(super) fn take_over_nbd(&self, name: String, served: Rc<Served>) {
        let Some(daemon) = self.me.upgrade() else { return };
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let text = nbd_device::text_of(
            &served.array.identities().0.to_string(),
            &self.dir.mount_point(&name),
        );
        drop(self.opener.rt.spawn(async move {
            let find = move || nbd_device::all().into_iter().find(|device| device.is(&text));
            let Ok(Some(device)) = thread::elsewhere(find).await else { return };
            let place = device.node().path();
            let taken = async {
                let failed = |e: std::io::Error| Failure::new(e.to_string());
                let (ours, kernels) = UnixStream::pair().map_err(failed)?;
                daemon.attach_nbd(&served, ours.into())?;
                let name = name.clone();
                thread::elsewhere(move || device.go_on(&name, &kernels)).await?
            };
            if let Err(failure) = taken.await {
                log::not_taken_over(&name, &place, &failure);
            }
        }));
    }
}
