//! The log's lines about NBD clients: which were refused or disconnected, and why.

use weft_nbd::Server;
use weft_nbd::server::Event;

use crate::limited_log::LimitedLog;

/// From now on logs problems with clients of `server`.
pub fn log_events(server: &Server) {
    let lines = LimitedLog::default();
    server.on_event(move |event| match event {
        Event::Refused => {
            lines.line("refused an NBD client: all connections are taken by active clients");
        }
        Event::AcceptFailed(error) => {
            lines.line(&format!("cannot accept NBD clients for now: {error}"));
        }
        Event::Disconnected { connection, fault: Some(fault) } => {
            lines.line(&format!("closed NBD connection {connection}: {fault}"));
        }
        Event::Connected { .. } | Event::Disconnected { fault: None, .. } => {}
    });
}
