//! The life of a connection: its handshake, its two tasks, its requests, its end.

use std::rc::Rc;

use futures_util::future::{Either, join, select};
use rustix::net::{Shutdown, shutdown};
use weft_disk::IoFuture;
use zerocopy::IntoBytes;

use super::connection::{Connection, Fault, Stage, Ticket};
use super::transmission::{self, Leave};
use super::{Event, Resolved, ServerState};
use crate::Export;
use crate::inbox::{INBOX_BYTES, Inbox};
use crate::proto::{ExportInfo, Limits, Negotiation, Step};
use crate::socket::tune;

/// Replies of a handshake that wait, at most, before more of the input is parsed.
const HANDSHAKE_BYTES_UNSENT: usize = 64 << 10;

/// Serves a connection to its end; gives what went wrong.
pub(super) async fn run(server: &Rc<ServerState>, connection: &Rc<Connection>) -> Option<String> {
    tune(&connection.fd);
    let reader = async {
        let result = read(server, connection).await;
        // What is in flight ends; every request gives its permit back when it is answered.
        let all = server.config.requests_per_connection;
        match result {
            Ok(Leave::Goodbye) => {}
            // A client that leaves without `DISC` may still be listening, but need not.
            Ok(Leave::Silent) | Err(Fault::Protocol(_)) => connection.gone.set(true),
            Err(Fault::Io(_) | Fault::Vanished(_)) => {
                connection.gone.set(true);
                connection.outbox.close();
            }
        }
        drop(connection.requests.acquire(all).await);
        connection.outbox.finish();
        result
    };
    let writer = async {
        let result = connection.outbox.run(&server.rt, &server.ring, &connection.fd).await;
        if result.is_err() {
            // The reader must not wait for a client that takes no answers.
            let _ = shutdown(&connection.fd, Shutdown::Both);
        }
        result
    };
    let (read, written) = join(reader, writer).await;
    let _ = shutdown(&connection.fd, Shutdown::Both);
    let fault = connection.fault.take();
    // Leaving without `DISC` is no error where the protocol allows it.
    fault
        .or_else(|| read.err().map(|fault| fault.to_string()))
        .or_else(|| written.err().map(|error| format!("cannot send to the client: {error}")))
}

async fn read(server: &Rc<ServerState>, connection: &Rc<Connection>) -> Result<Leave, Fault> {
    let mut inbox = Inbox::new(&server.rt, &server.ring, &connection.fd);
    *connection.owed_since.borrow_mut() = inbox.owed_since.clone();
    let Some((info, chosen, limits)) = handshake(server, connection, &mut inbox).await? else {
        return Ok(Leave::Silent);
    };
    let Chosen { export, until } = chosen;
    // It may have been removed, or the server stopped, in the meantime.
    let is_served = until.is_some() || server.still_serves(&export);
    if !is_served || connection.draining.get() {
        return Ok(Leave::Silent);
    }
    connection.stage.set(Stage::Unused);
    connection.size_bytes.set(limits.size_bytes);
    *connection.export.borrow_mut() = Some(export.clone());
    server.emit(Event::Connected { connection: connection.id, export: info.name });
    let work = transmission::run(server, connection, &mut inbox, &export.volume, &limits);
    let Some(until) = until else { return work.await };
    match select(std::pin::pin!(work), until).await {
        Either::Left((leave, _)) => leave,
        Either::Right((why, _)) => {
            connection.cut(&why);
            Ok(Leave::Silent)
        }
    }
}

/// The export that a client has chosen.
struct Chosen {
    export: Rc<Export>,
    /// When the connection must end, for an export that was resolved.
    until: Option<IoFuture<'static, String>>,
}

/// Runs the handshake until the client has chosen an export, or has gone.
async fn handshake(
    server: &ServerState,
    connection: &Connection,
    inbox: &mut Inbox,
) -> Result<Option<(ExportInfo, Chosen, Limits)>, Fault> {
    let (mut negotiation, greeting) = Negotiation::new();
    let say = |bytes: &[u8]| {
        connection.outbox.push(|out| out.extend_from_slice(bytes), None, Ticket::default());
    };
    say(greeting.as_bytes());
    let (mut catalogue, listed) = server.catalogue();
    let listed = listed.into_iter().map(|export| Chosen { export, until: None });
    let mut exports: Vec<Chosen> = listed.collect();
    let mut out = Vec::new();
    loop {
        let (used, step) = negotiation.step(inbox.bytes(), &catalogue, &mut out)?;
        inbox.consume(used);
        if !out.is_empty() {
            say(&out);
            out.clear();
        }
        match step {
            Step::Again => connection.outbox.drained_to(HANDSHAKE_BYTES_UNSENT).await,
            Step::NeedMore => {
                let wanted = (inbox.bytes().len() + 1).min(INBOX_BYTES);
                if !inbox.fill(wanted).await? {
                    let early = inbox.bytes().is_empty();
                    return if early { Ok(None) } else { Err(Fault::Vanished("in an option")) };
                }
            }
            Step::Close => return Ok(None),
            Step::Resolve(name) => match server.resolve(&name).await {
                Ok(Resolved { export, until }) => {
                    catalogue.exports.push(server.describe(&name, &export));
                    exports.push(Chosen { export: Rc::new(export), until: Some(until) });
                }
                // One at a time: the client cannot fill our memory with names.
                Err(text) => catalogue.refusals = vec![(name, text)],
            },
            Step::Transmission(session) => {
                let info = catalogue.exports.swap_remove(session.export);
                let limits = Limits {
                    size_bytes: info.size_bytes,
                    block_min: info.block.min,
                    // What is announced is at least a block, even if there is no memory for one.
                    payload_max: info.block.max.min(server.config.payload_max()),
                    read_only: info.flags & crate::proto::wire::EXPORT_READ_ONLY != 0,
                    structured: session.structured,
                    base_allocation: session.base_allocation,
                };
                return Ok(Some((info, exports.swap_remove(session.export), limits)));
            }
        }
    }
}
