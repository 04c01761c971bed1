//! What `weft serve` does before it serves.

use std::net::SocketAddr;
use std::rc::Rc;

use weft_array::assemble::decide;
use weft_array::superblock::read_superblock;
use weft_array::{Array, ArrayError, AssembleOptions, Found};
use weft_disk::Disk;
use weft_nbd::Server;
use weft_rt::{pin_to_cpu, usable_cpus};

use crate::cli::ServeArgs;
use crate::control::protocol::NotStarted;
use crate::daemon::scan::{self, FoundArray};
use crate::daemon::served::Served;
use crate::daemon::{Daemon, log};
use crate::failure::{Failure, Outcome};
use crate::runtime_dir::RuntimeDir;

/// Longest path of a Unix socket, bytes (`sockaddr_un`, less the closing zero).
const SOCKET_PATH_MAX: usize = 107;

/// An address that other machines reach must be asked for twice.
pub fn refuse_remote(listen: Option<SocketAddr>, allowed: bool) -> Outcome {
    match listen {
        Some(address) if !address.ip().is_loopback() && !allowed => {
            Err(Failure::usage(format!(
                "{address} can be reached by other machines, and NBD neither asks who they are nor encrypts"
            ))
            .hint("listen on 127.0.0.1 and use a tunnel, or add --allow-remote if the network is trusted"))
        }
        _ => Ok(()),
    }
}

/// Binds the engine's thread to one processor, the last it may use: the first is the one that most
/// interrupts go to.
pub fn pin_thread() {
    let last = usable_cpus().ok().and_then(|cpus| cpus.last().copied());
    if let Some(Err(e)) = last.map(pin_to_cpu) {
        log::line(&format!("the thread is not bound to a processor: {e}"));
    }
}

/// Starts listening; gives what surrounds an export's name in the URIs of each socket.
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
            "only root, or a member of group {group}, can give a socket to it (--socket-group)"
        )),
        None => failed(e),
    })?;
    let mut endpoints = vec![("nbd+unix://".to_owned(), format!("?socket={}", path.display()))];
    if let Some(address) = args.listen {
        let address = server
            .listen_tcp(address)
            .map_err(|e| failed(e).hint("choose another address or port with --listen"))?;
        let local = address.ip().is_loopback();
        let who = if local { "every user of this machine" } else { "everyone on the network" };
        log::line(&format!("note: {who} can connect to {address}, and read and write"));
        endpoints.push((format!("nbd://{address}"), String::new()));
    }
    Ok(endpoints)
}

/// Finds the arrays and starts them.
///
/// # Errors
/// If a named disk is no member, two arrays have the same name, or no array could be started.
/// Arrays that fail beside others that start are remembered, and shown by `weft status`.
pub async fn arrays(daemon: &Daemon, args: &ServeArgs) -> Outcome {
    let mut found = scan::scan(&daemon.opener, &args.members).await?;
    if !args.arrays.is_empty() {
        for wanted in &args.arrays {
            if !found.iter().any(|array| is_called(array, wanted)) {
                return Err(Failure::new(format!("no member of an array {wanted} was found"))
                    .hint("`weft examine DISK` says to which array a disk belongs"));
            }
        }
        found.retain(|array| args.arrays.iter().any(|wanted| is_called(array, wanted)));
    }
    if found.is_empty() {
        return Err(Failure::new(format!("no members found in {}", args.members.join(", ")))
            .hint("make an array with `weft create`, or name the disks themselves"));
    }
    for (n, array) in found.iter().enumerate() {
        if let Some(other) = found[..n].iter().find(|other| other.name == array.name) {
            return Err(Failure::new(format!(
                "two arrays are called {}: {} and {}",
                array.name, other.id, array.id
            ))
            .hint("serve one of them by id, with --array, and the other by another daemon"));
        }
    }
    let mut failures = Vec::new();
    for array in &found {
        if let Err(failure) = start(daemon, array, args).await {
            log::about(&array.name, &format!("ALERT: not started: {failure}"));
            let (name, id) = (array.name.clone(), array.id.to_string());
            let why = failure.message.clone();
            daemon.not_started.borrow_mut().push(NotStarted { name, id, why });
            failures.push(failure);
        }
    }
    match failures.pop() {
        Some(failure) if failures.len() + 1 == found.len() => Err(failure),
        _ => Ok(()),
    }
}

fn is_called(array: &FoundArray, wanted: &str) -> bool {
    array.name == wanted || array.id.to_string() == wanted
}

async fn start(daemon: &Daemon, found: &FoundArray, args: &ServeArgs) -> Outcome {
    let mut disks: Vec<Rc<dyn Disk>> = Vec::new();
    for place in &found.places {
        disks.push(daemon.open_member(place, args.read_only).await?);
    }
    tell_unused(&found.name, &disks, args.force_degraded).await;
    let options = AssembleOptions {
        force_degraded: args.force_degraded,
        read_only: args.read_only,
        nonce: u64::from_le_bytes(crate::thread::random()?),
    };
    let array = Array::assemble(&daemon.opener.rt, disks, options).await.map_err(explain)?;
    let served = Served::new(&daemon.opener.rt, array, args.read_only);
    let added = daemon.server.add_export(&found.name, served.export.clone());
    added.map_err(|e| Failure::new(e.to_string()))?;
    daemon.arrays.borrow_mut().insert(found.name.clone(), served);
    Ok(())
}

/// Members that are left out, because they missed writes, are worth a word.
async fn tell_unused(name: &str, disks: &[Rc<dyn Disk>], force_degraded: bool) {
    let mut found = Vec::new();
    for disk in disks {
        let superblock = read_superblock(&**disk).await;
        found.push(Found { disk: disk.info().clone(), superblock });
    }
    // Whether it survives what is missing is not the question here.
    if let Ok(assembly) = decide(&found, force_degraded, &|_, _| true) {
        for unused in &assembly.unused {
            let disk = &found[unused.index].disk.name;
            log::about(name, &format!("ALERT: {disk} is left out: {}", unused.why));
        }
    }
}

/// Says what to do about an array that cannot be assembled.
fn explain(error: ArrayError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        ArrayError::Assemble(_) => failure.hint(
            "give all members there are; `weft examine` shows what each says. Nothing was changed",
        ),
        _ => failure,
    }
}
