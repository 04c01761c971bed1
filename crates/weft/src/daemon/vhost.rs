//! Arrays as disks of virtual machines (`weft-vhost`).

use std::rc::Rc;

use weft_cli::failure::Failure;
use weft_cli::output::log_line;
use weft_rt::{Nanos, Rt, SECOND};
use weft_vhost::Limits;
use weft_vhost::server::{Server, Source};

use crate::cli::ServeArgs;
use crate::daemon::served::Served;
use crate::daemon::{Daemon, log};

/// How long a stop waits for requests in progress, as it does for those of NBD clients.
const PATIENCE: Nanos = 10 * SECOND;

/// The server, if it is asked for.
pub fn server(args: &ServeArgs, rt: &Rt) -> Result<Option<Server>, Failure> {
    let Some(folder) = &args.vhost_user else { return Ok(None) };
    let server = Server::new(rt, folder, args.socket_group, log_line);
    server.map(Some).map_err(|e| {
        Failure::new(format!("{}: {e}", folder.display()))
            .hint("choose another folder with --vhost-user")
    })
}

impl Daemon {
    /// Serves an array that has just started to virtual machines, too.
    pub(super) fn add_vhost(&self, name: &str, served: &Rc<Served>) {
        let Some(server) = &self.vhost else { return };
        let limits = Limits {
            block_bytes: u32::try_from(served.array.block_bytes()).unwrap_or(4096),
            unit_bytes: served.array.status().unit_bytes,
            stripe_bytes: served.array.stripe_bytes(),
        };
        let isolation = served.isolation.clone();
        let source = Source {
            volume: served.volume.clone(),
            identity: served.array.identities().0.to_string(),
            limits,
            read_only: served.read_only,
            has_ended: Box::new(move || isolation.has_failed()),
        };
        let path = server.path_of(name);
        let said = match server.add(name, source) {
            Ok(()) => format!("for virtual machines at {}", path.display()),
            Err(e) => format!("ALERT: not for virtual machines: {}: {e}", path.display()),
        };
        log::about(name, &said);
    }

    /// Serves it to them no more.
    pub(super) async fn remove_vhost(&self, name: &str) {
        if let Some(server) = &self.vhost {
            server.remove(name, PATIENCE).await;
        }
    }

    /// Serves nothing to them any more.
    pub(super) async fn end_vhost(&self) {
        if let Some(server) = &self.vhost {
            server.shutdown(PATIENCE).await;
        }
    }
}
