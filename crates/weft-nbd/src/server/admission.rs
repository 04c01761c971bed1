//! Admission and eviction of clients.
//!
//! While there is room, a slow client does no harm and may stay for long. When other clients need
//! what it holds, it must make progress:
//!
//! * **Places.** When all are taken, a new connection takes the place of the one that has been in
//!   its handshake for the longest time; if there is none, of the oldest that has never made a
//!   request. Clients that use the server are never displaced; if all do, the new one is refused.
//! * **Memory.** When a request has waited for memory for `pool_patience`, the server disconnects
//!   every client that holds some of the pool and has not moved a byte for
//!   `stall_timeout_contended`. This does not happen on a server that is merely busy: its memory
//!   changes hands all the time, so that the first in line never waits for long.
//! * **Shutdown.** While the server stops, a client has the same short time to read its answers.

use std::rc::{Rc, Weak};

use futures_util::future::{Either, select};
use weft_rt::ring::Fd;
use weft_rt::{MILLISECOND, Rt, SECOND};

use super::connection::{Connection, Stage};
use super::{Event, ServerState, session};

/// Connections beyond the limit that may exist for a moment, while displaced ones end.
const DISPLACED_MAX: usize = 16;

/// A connection younger than this is not displaced, although it has made no request yet.
const UNUSED_AGE_MIN: u64 = SECOND;

/// Accepts connections until the server stops.
pub(super) async fn accept(server: Rc<ServerState>, listener: Fd) {
    loop {
        let stop = server.stop.wait();
        if server.stopping.get() {
            return;
        }
        let accepted = {
            let accept = std::pin::pin!(server.ring.accept(&listener));
            match select(accept, std::pin::pin!(stop)).await {
                Either::Left((accepted, _)) => accepted,
                Either::Right(_) => return,
            }
        };
        match accepted {
            Ok(fd) => drop(welcome(&server, fd)),
            Err(error) => {
                // Out of descriptors or memory: this may pass.
                server.emit(Event::AcceptFailed(error.to_string()));
                server.rt.sleep(100 * MILLISECOND).await;
            }
        }
    }
}

/// Serves a connection, whose number is returned, if there is room for it.
pub(super) fn welcome(server: &Rc<ServerState>, fd: Fd) -> Option<u64> {
    if !make_room(server) {
        server.emit(Event::Refused);
        return None;
    }
    let id = server.connections_made.get() + 1;
    server.connections_made.set(id);
    let connection = Rc::new(Connection::new(id, fd, server));
    server.connections.borrow_mut().insert(id, connection.clone());
    let inner = server.clone();
    // A panic while serving one client must not end the connections of other clients.
    let rt = server.rt.domain({
        let (inner, connection) = (server.clone(), connection.clone());
        move || {
            connection.hang_up();
            ended(&inner, id, Some("an internal error".to_owned()));
        }
    });
    rt.spawn(async move {
        let fault = session::run(&inner, &connection).await;
        ended(&inner, id, fault);
    });
    Some(id)
}

fn ended(server: &ServerState, id: u64, fault: Option<String>) {
    server.connections.borrow_mut().remove(&id);
    server.ended.notify_all();
    server.emit(Event::Disconnected { connection: id, fault });
}

/// Whether there is a place for one more connection; displaces one if necessary.
fn make_room(server: &ServerState) -> bool {
    let connections = server.connections.borrow();
    let max = server.config.connections_max;
    let staying = || connections.values().filter(|connection| !connection.is_cut());
    if staying().count() < max {
        return connections.len() < max + DISPLACED_MAX;
    }
    let now = server.rt.now();
    let may_go = |connection: &&Rc<Connection>| match connection.stage.get() {
        Stage::Handshake => true,
        Stage::Unused => connection.since.saturating_add(UNUSED_AGE_MIN) <= now,
        Stage::Used => false,
    };
    // Numbers are given in the order of arrival, and the map is in their order.
    let leaves = staying().filter(may_go).min_by_key(|connection| connection.stage.get()).cloned();
    drop(connections);
    match leaves {
        Some(connection) => {
            connection.cut("the client had sent no request, and another needed the place");
            true
        }
        None => false,
    }
}

/// Disconnects clients that make other clients, or the server, wait for too long.
pub(super) async fn watch(rt: Rt, server: Weak<ServerState>) {
    loop {
        let Some(inner) = server.upgrade() else { return };
        if inner.stopping.get() && inner.connections.borrow().is_empty() {
            return;
        }
        let config = &inner.config;
        let stuck = inner.pool.is_stuck(config.pool_patience);
        let connections: Vec<_> = inner.connections.borrow().values().cloned().collect();
        let now = rt.now();
        for connection in connections {
            let handshake = connection.stage.get() == Stage::Handshake;
            let waiting_ns = connection.waiting_since().map_or(0, |since| now - since);
            if handshake && now - connection.since > config.handshake_timeout {
                connection.cut("the handshake took too long");
            } else if waiting_ns > config.stall_timeout {
                connection.cut("the client stalled for too long");
            } else if waiting_ns > config.stall_timeout_contended {
                if connection.draining.get() {
                    connection.cut("the client read no answers while the server was stopping");
                } else if stuck && connection.memory.holds_pool() {
                    connection.cut("the client stalled while other clients waited for its memory");
                }
            }
        }
        let least = config.stall_timeout.min(config.handshake_timeout);
        let least = least.min(config.stall_timeout_contended).min(config.pool_patience);
        drop(inner);
        rt.sleep((least / 4).clamp(10 * MILLISECOND, SECOND)).await;
    }
}
