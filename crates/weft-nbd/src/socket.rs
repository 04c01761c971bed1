//! How both ends of a connection set up their sockets.

use std::os::fd::AsFd;

use rustix::net::{AddressFamily, sockopt};

/// Bytes that a Unix socket may hold for its reader; the kernel doubles the number, and lowers it
/// to `net.core.wmem_max`. A sender that filled the socket is woken only when three quarters of it
/// are empty. With the usual 208 KiB the reader has then taken the rest, and sleeps, before the
/// sender is back. TCP's buffers grow automatically.
const UNIX_SEND_BYTES: usize = 512 << 10;

/// Configures a socket for NBD. A refused option only costs speed, or time to notice that the peer
/// is gone.
pub(crate) fn tune(socket: impl AsFd) {
    let socket = socket.as_fd();
    if sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX) {
        let _ = sockopt::set_socket_send_buffer_size(socket, UNIX_SEND_BYTES);
        return;
    }
    // Messages must not wait for more to come, and a peer that lost power must be noticed.
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
}
