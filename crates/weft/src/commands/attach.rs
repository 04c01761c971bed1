//! `weft attach` and `weft detach`: an array as a block device.
//!
//! By ublk the daemon does all of it, and must be root ([`crate::daemon`]). Where there is no ublk,
//! a disk can still be built from two parts that every kernel has: a FUSE file system with one
//! file, served by the daemon, and a loop device over that file. This command does what needs root
//! – it opens `/dev/fuse`, mounts, and creates the loop device – and passes the open channel to the
//! daemon over the control socket, so that the daemon needs no privilege.
//!
//! By the kernel's NBD client the daemon serves one end of a pair of sockets, and this command
//! gives the other to the kernel.
//!
//! `detach` looks only at the kernel's own state, so it also cleans up after a daemon that died.

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use weft_array::superblock::check_name;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{answer, outln};
use weft_fuse::mount::Mount;
use weft_fuse::session::FILE_NAME;

use crate::block::attachment::{Attachment, Via};
use crate::block::loop_device::LoopDevice;
use crate::block::nbd_device::NbdDevice;
use crate::block::ublk_device::OPEN_IN;
use crate::block::{link, nbd_device, ublk_device, users};
use crate::cli::{AttachArgs, AttachWay, DetachArgs};
use crate::control::client::Client;
use crate::control::protocol::{Attached, Request, UblkAnswer};
use crate::runtime_dir::RuntimeDir;

/// Time between two looks whether the array is served, or whether its device is used.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// How long a program may look at a device before it is detached.
const LOOKER_PATIENCE: Duration = Duration::from_secs(3);

/// `weft attach`: prints the device. One that is attached and has an earlier size gets the array's.
pub fn attach(args: &AttachArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    if let Some(bytes) = args.block_size.filter(|bytes| ![512, 4096].contains(bytes)) {
        return Err(Failure::usage(format!("a block size of {bytes} is not supported"))
            .hint("choose 512 or 4096, or leave it out"));
    }
    require_root("attach")?;
    // The name, also if the array was given by its id.
    let (mut client, name) = wait_for(args, dir)?;
    let served = client.status_of(&name)?;
    if let Some(attachment) = Attachment::of(dir, &name, served.ublk()) {
        if attachment.is_of_another(&served.status.id) {
            return Err(Failure::new(format!(
                "a block device of another array that is called {name}, too, waits for its daemon"
            ))
            .hint(format!(
                "serve that array, or end its users with errors: `weft detach --force {name}`"
            )));
        }
        let size_bytes = served.status.size_bytes;
        let outdated = served.attached
            && attachment.devices().iter().any(|_| attachment.size_bytes() != Some(size_bytes));
        if attachment.via() == Via::Nbd && !served.attached {
            let (kernels, _) = nbd_socket(&mut client, &name, true)?;
            attachment.go_on(&kernels)?;
            return show(&attachment, json);
        }
        if !outdated {
            return Err(already_attached(&attachment));
        }
        attachment.resize(size_bytes)?;
        return show(&attachment, json);
    }
    let number = match args.via {
        Some(AttachWay::Fuse | AttachWay::Nbd) => None,
        way => attach_ublk(&mut client, &name, args, way.is_some())?,
    };
    match args.via {
        _ if number.is_some() => {}
        Some(AttachWay::Nbd) => attach_nbd(&mut client, &name, &served.status.id, args, dir)?,
        None if !Path::new("/dev/fuse").exists() && nbd_device::unavailable().is_none() => {
            attach_nbd(&mut client, &name, &served.status.id, args, dir)?;
        }
        _ => attach_fuse(&mut client, &name, args, dir)?,
    }
    let attachment = Attachment::of(dir, &name, number)
        .ok_or_else(|| Failure::new(format!("the block device of {name} has gone again")))?;
    show(&attachment, json)
}

/// Asks the daemon for a ublk device. `None` if there is no ublk, unless it is `required`.
fn attach_ublk(
    client: &mut Client,
    name: &str,
    args: &AttachArgs,
    required: bool,
) -> Result<Option<u32>, Failure> {
    // Another user's daemon must not choose which device root takes for the array.
    let unavailable = |why: &str| {
        Err(Failure::new(format!("{name} cannot be attached by ublk: {why}"))
            .hint("`--via fuse` needs neither root's daemon nor ublk"))
    };
    if !client.is_roots() {
        return if required {
            unavailable("ublk needs a daemon that runs as root")
        } else {
            Ok(None)
        };
    }
    let (block_bytes, read_only) = (args.block_size, args.read_only);
    let request = Request::AttachUblk { array: name.to_owned(), block_bytes, read_only };
    match client.ask(request)? {
        UblkAnswer::Device { number } => Ok(Some(number)),
        UblkAnswer::Unavailable { why } if required => unavailable(&why),
        UblkAnswer::Unavailable { .. } => Ok(None),
    }
}

fn attach_nbd(
    client: &mut Client,
    name: &str,
    id: &str,
    args: &AttachArgs,
    dir: &RuntimeDir,
) -> Outcome {
    if let Some(why) = nbd_device::unavailable() {
        return Err(Failure::new(format!("{name} cannot be attached by NBD: {why}"))
            .hint("`--via fuse` needs no driver `nbd`"));
    }
    let (kernels, attached) = nbd_socket(client, name, false)?;
    let block_bytes = block_bytes(args, &attached)?;
    let read_only = args.read_only || attached.read_only;
    let text = nbd_device::text_of(id, &dir.mount_point(name));
    NbdDevice::make(name, text, &kernels, block_bytes, read_only).map(drop)
}

/// A socket for the kernel, at whose other end the daemon serves the array: for a device that is
/// made, or that waits (`again`).
fn nbd_socket(
    client: &mut Client,
    name: &str,
    again: bool,
) -> Result<(UnixStream, Attached), Failure> {
    let pair = UnixStream::pair();
    let (kernels, daemons) = pair.map_err(|e| Failure::new(format!("a pair of sockets: {e}")))?;
    let request = Request::AttachNbd { array: name.to_owned(), again };
    let attached: Attached = client.ask_with(request, Some(daemons.as_fd()))?;
    Ok((kernels, attached))
}

/// The block size that was asked for, or that of the array.
fn block_bytes(args: &AttachArgs, attached: &Attached) -> Result<u32, Failure> {
    if ![512, 4096].contains(&attached.block_bytes) {
        return Err(Failure::new(format!(
            "the daemon reports blocks of {} bytes, which is invalid",
            attached.block_bytes
        )));
    }
    let block_bytes = args.block_size.unwrap_or(attached.block_bytes);
    if block_bytes < attached.block_bytes {
        return Err(Failure::usage(format!(
            "blocks of {block_bytes} bytes are too small: the members' sectors have {}",
            attached.block_bytes
        )));
    }
    Ok(block_bytes)
}

fn attach_fuse(client: &mut Client, name: &str, args: &AttachArgs, dir: &RuntimeDir) -> Outcome {
    let mount_point = dir.mount_point(name);
    let mount = Mount::new(name, &mount_point)?;
    let request = Request::Attach { array: name.to_owned() };
    let attached: Attached = client.ask_with(request, Some(mount.fuse.as_fd()))?;
    let block_bytes = block_bytes(args, &attached)?;
    let read_only = args.read_only || attached.read_only;
    let device = LoopDevice::create(&mount_point.join(FILE_NAME), block_bytes, read_only)?;
    mount.keep();
    if let Some(device) = device.node().path().file_name().and_then(|name| name.to_str()) {
        // A link of another array of this name stays.
        link::set(name, device, ublk_device::is_attached);
        // udev has seen the device before it had the link, and looks again.
        let _ = fs::write(Path::new("/sys/block").join(device).join("uevent"), "change");
    }
    Ok(())
}

/// A connection to the daemon, once it serves the array, and the array's name.
fn wait_for(args: &AttachArgs, dir: &RuntimeDir) -> Result<(Client, String), Failure> {
    let deadline = Instant::now().checked_add(args.wait);
    loop {
        let found = Client::connect(dir).and_then(|mut client| {
            let name = client.array_name(&args.array)?;
            Ok((client, name))
        });
        if found.is_ok() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return found;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn show(attachment: &Attachment, json: bool) -> Outcome {
    let path = attachment.device().unwrap_or_default();
    if json {
        return answer(&json!({
            "array": attachment.name,
            "device": path,
            "link": attachment.link(),
            "via": attachment.via(),
            "block_bytes": attachment.block_bytes(),
        }));
    }
    outln!("{}", path.display());
    Ok(())
}

/// `weft detach`.
pub fn detach(args: &DetachArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    require_root("detach")?;
    let (name, found) = find(&args.array, dir);
    check_name(&name).map_err(|why| Failure::usage(format!("the name of an array {why}")))?;
    let Some(Found { attachment, served, failed }) = found else {
        return Err(not_attached(&name, dir));
    };
    let force = args.force && !served;
    if let Some(user) = lasting_user(&attachment).filter(|_| !force) {
        let device = attachment.device().unwrap_or_default();
        let failure = Failure::new(format!("{} is {user}", device.display()));
        return Err(match attachment.via() {
            Via::Ublk if failed => failure.hint(
                "its array has failed, and its users wait for the next daemon: run `weft stop \
                 --keep-devices` and `weft serve`; nothing was changed",
            ),
            Via::Ublk | Via::Nbd if !served => failure.hint(
                "start `weft serve` for its array, or let --force give errors to its users; \
                 nothing was changed",
            ),
            _ => failure.hint("unmount or close it first; nothing was changed"),
        });
    }
    let devices = attachment.devices();
    attachment.remove(force)?;
    if json {
        answer(&json!({ "array": name, "devices": devices }))?;
    }
    Ok(())
}

/// There is no device to detach: what to do depends on whether the array is served.
fn not_attached(name: &str, dir: &RuntimeDir) -> Failure {
    let served = Client::connect(dir).map(|mut client| client.status_of(name));
    match served {
        Ok(Ok(_)) => Failure::new(format!("{name} is not attached: there is nothing to detach"))
            .hint(format!("`weft attach {name}` makes it a block device again")),
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(format!("{name} is not attached, and no daemon answers")).hint(
            "`weft status` lists block devices that are left; check that --runtime-dir is the daemon's",
        ),
    }
}

/// Who uses a device, in words. Programs that only look at it, as udev does after each change, may
/// have it open for a moment.
fn lasting_user(attachment: &Attachment) -> Option<String> {
    let start = Instant::now();
    loop {
        let user = attachment.user_and_processes()?;
        if !user.starts_with(OPEN_IN) || start.elapsed() > users::patience(LOOKER_PATIENCE) {
            return Some(user);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The device to detach.
struct Found {
    attachment: Attachment,
    /// Whether a daemon serves it.
    served: bool,
    /// Whether a daemon has it, and its array has failed.
    failed: bool,
}

/// The name of the requested array, and its attached devices. Works without a daemon, which cannot
/// resolve an id to a name then.
fn find(asked: &str, dir: &RuntimeDir) -> (String, Option<Found>) {
    let client = Client::connect(dir);
    let has_daemon = client.is_ok();
    let array = client.and_then(|mut client| {
        let name = client.array_name(asked)?;
        Ok((client.status_of(&name)?, client.is_roots()))
    });
    let Ok((array, is_roots)) = array else {
        if check_name(asked).is_err() {
            return (asked.to_owned(), None);
        }
        let fuse = Attachment::of(dir, asked, None);
        let ublk = || Attachment::ublk(asked, ublk_device::by_name(asked)?);
        let attachment = fuse.or_else(ublk);
        let served = attachment.as_ref().is_some_and(Attachment::is_served);
        let failed = served && has_daemon;
        let found = attachment.map(|attachment| Found { attachment, served, failed });
        return (asked.to_owned(), found);
    };
    let name = array.status.name.clone();
    let attachment = Attachment::of(dir, &name, array.ublk()).or_else(|| {
        // One that an earlier daemon left and this one has not taken over.
        let orphan = is_roots.then(|| ublk_device::by_id(&array.status.id))?;
        Attachment::ublk(&name, orphan?)
    });
    let served = array.attached;
    (name, attachment.map(|attachment| Found { attachment, served, failed: false }))
}

fn require_root(command: &str) -> Outcome {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::new(format!("`weft {command}` needs root, to mount and to change block devices"))
        .hint("run it with sudo and the daemon's --runtime-dir; NBD clients need no root"))
}

fn already_attached(attachment: &Attachment) -> Failure {
    let name = &attachment.name;
    let device = attachment.device().map_or_else(String::new, |d| format!(" as {}", d.display()));
    Failure::new(format!("{name} is attached already{device}"))
        .hint(format!("`weft detach {name}` removes it"))
}
