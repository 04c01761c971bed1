//! Prepares `weft serve`: its thread and its sockets.

use weft_cli::failure::Failure;
use weft_cli::output::log_line;
use weft_nbd::Server;
use weft_rt::{pin_to_cpu, usable_cpus};

use crate::cli::ServeArgs;
use crate::runtime_dir::RuntimeDir;

/// Longest path of a Unix socket, bytes (`sockaddr_un`, less the closing zero).
const SOCKET_PATH_MAX: usize = 107;

/// Pins the engine's thread to the last processor it may use: most interrupts go to the first.
pub fn pin_thread() {
    let last = usable_cpus().ok().and_then(|cpus| cpus.last().copied());
    if let Some(Err(e)) = last.map(pin_to_cpu) {
        log_line(&format!("cannot pin the thread to a processor: {e}"));
    }
}

/// Starts listening; returns the prefix and suffix around an export's name in the URIs of each
/// socket.
pub fn endpoints(
    args: &ServeArgs,
    dir: &RuntimeDir,
    server: &Server,
) -> Result<Vec<(String, String)>, Failure> {
    let path = args.nbd_socket.clone().unwrap_or_else(|| dir.nbd_socket());
    let path =
        std::path::absolute(&path).map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
    for path in [&path, &dir.control_socket()] {
        if path.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(Failure::usage(format!("{} is too long for a socket", path.display()))
                .hint("choose a shorter --runtime-dir"));
        }
    }
    let failed = |e: weft_nbd::ServerError| Failure::new(e.to_string());
    if let Some(group) = args.socket_group
        && path == dir.nbd_socket()
    {
        dir.let_enter(group)?;
    }
    server.listen_unix(&path, args.socket_group).map_err(|e| match args.socket_group {
        Some(group) => failed(e).hint(format!(
            "only root, or a member of group {group}, can give the group a socket (--socket-group)"
        )),
        None => failed(e),
    })?;
    let mut endpoints = vec![("nbd+unix://".to_owned(), format!("?socket={}", path.display()))];
    if let Some(address) = args.tcp.listen {
        let address = server
            .listen_tcp(address)
            .map_err(|e| failed(e).hint("choose another address or port with --listen"))?;
        let local = address.ip().is_loopback();
        let who = if local { "every user of this machine" } else { "everyone on the network" };
        log_line(&format!("note: {who} can connect to {address}, and read and write"));
        endpoints.push((format!("nbd://{address}"), String::new()));
    }
    Ok(endpoints)
}
