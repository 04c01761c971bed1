//! What the log says of NBD clients: who was refused or cut off, and why.

use weft_nbd::Server;
use weft_nbd::server::Event;

use crate::daemon::sparing::SparingLog;

/// Logs from now on what goes wrong with clients of `server`.
pub fn log_events(server: &Server) {
    let lines = SparingLog::default();
    server.on_event(move |event| match event {
        Event::Refused => {
            lines.line("an NBD client was refused: all places are taken by clients that use them");
        }
        Event::AcceptFailed(error) => {
            lines.line(&format!("NBD clients cannot be accepted for now: {error}"));
        }
        Event::Disconnected { connection, fault: Some(fault) } => {
            lines.line(&format!("NBD connection {connection} was ended: {fault}"));
        }
        Event::Connected { .. } | Event::Disconnected { fault: None, .. } => {}
    });
}
