//! `weft attach` and `weft detach`: an array as a block device.
//!
//! Where the kernel has no NBD client and no ublk, a disk can still be built from two parts that
//! every kernel has: a FUSE file system with one file, served by the daemon, and a loop device over
//! that file. This command does what needs root – it opens `/dev/fuse`, mounts, and creates the
//! loop device – and passes the open channel to the daemon over the control socket, so that the
//! daemon needs no privilege.
//!
//! `detach` looks only at the kernel's own state, so it also cleans up after a daemon that died.

use std::os::fd::AsFd as _;
use std::path::PathBuf;

use serde_json::json;
use weft_array::superblock::check_name;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{answer, outln};
use weft_fuse::mount::Mount;
use weft_fuse::session::FILE_NAME;

use crate::block::attachment::Attachment;
use crate::block::loop_device::LoopDevice;
use crate::cli::{AttachArgs, DetachArgs};
use crate::control::client::Client;
use crate::control::protocol::{Attached, Request};
use crate::runtime_dir::RuntimeDir;

/// `weft attach`: prints the device. One that is attached and has an earlier size gets the array's.
pub fn attach(args: &AttachArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    if let Some(bytes) = args.block_size.filter(|bytes| ![512, 4096].contains(bytes)) {
        return Err(Failure::usage(format!("a block size of {bytes} is not supported"))
            .hint("choose 512 or 4096, or leave it out"));
    }
    require_root("attach")?;
    let mut client = Client::connect(dir)?;
    // The name, also if the array was given by its id.
    let name = client.array_name(&args.array)?;
    let mount_point = dir.mount_point(&name);
    if let Some(attachment) = Attachment::of(dir, &name) {
        let served = client.status_of(&name)?;
        let size_bytes = Some(served.status.size_bytes).filter(|_| served.attached);
        let outdated =
            |device: &&LoopDevice| size_bytes.is_some_and(|size| device.size_bytes() != Some(size));
        let Some(device) = attachment.devices.iter().find(outdated) else {
            return Err(already_attached(&attachment));
        };
        attachment.resize()?;
        return show(&name, device, json);
    }
    let mount = Mount::new(&name, &mount_point)?;
    let request = Request::Attach { array: name.clone() };
    let attached: Attached = client.ask_with(request, Some(mount.fuse.as_fd()))?;
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
    let device = LoopDevice::create(&mount_point.join(FILE_NAME), block_bytes, attached.read_only)?;
    mount.keep();
    show(&name, &device, json)
}

fn show(array: &str, device: &LoopDevice, json: bool) -> Outcome {
    let (path, block_bytes) = (device.path(), device.block_bytes());
    if json {
        return answer(&json!({ "array": array, "device": path, "block_bytes": block_bytes }));
    }
    outln!("{}", path.display());
    Ok(())
}

/// `weft detach`.
pub fn detach(args: &DetachArgs, dir: &RuntimeDir, json: bool) -> Outcome {
    require_root("detach")?;
    // Without a daemon, an id cannot be resolved to a name.
    let asked = Client::connect(dir).and_then(|mut client| client.array_name(&args.array));
    let name = asked.unwrap_or_else(|_| args.array.clone());
    check_name(&name).map_err(|why| Failure::usage(format!("the name of an array {why}")))?;
    let Some(attachment) = Attachment::of(dir, &name) else {
        return Err(Failure::new(format!("{name} is not attached"))
            .hint("`weft status` shows what is; check that --runtime-dir is its daemon's"));
    };
    if let Some(user) = attachment.user_and_processes() {
        let device = attachment.device().unwrap_or_default();
        return Err(Failure::new(format!("{} is {user}", device.display()))
            .hint("unmount or close it first; nothing was changed"));
    }
    attachment.remove()?;
    if json {
        let paths: Vec<PathBuf> = attachment.devices.iter().map(LoopDevice::path).collect();
        answer(&json!({ "array": name, "devices": paths }))?;
    }
    Ok(())
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
