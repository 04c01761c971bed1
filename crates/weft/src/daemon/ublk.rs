//! Arrays as ublk devices: block devices that outlive the daemon.
//!
//! A device is made when an array is attached. If the daemon ends under it, its users wait; the
//! next daemon that serves the array finds the device by the tag that the kernel keeps for it, made
//! from the array's id, and takes it over. The array has recovered by then, as after any crash, and
//! no operation of the dead daemon is left on files and block devices: its claim on them lasts
//! until the last one ends. An NBD server has no such claim (`docs/consistency.md`). An array that
//! was forced to start may be older than what its device showed: it is taken over only by
//! `weft attach`.
//!
//! *A panic in the array* is a crash of the array alone: the daemon goes on, and the array answers
//! nothing. Its device then waits for the next daemon, too: errors would cost a file system what it
//! has not written yet, and the next daemon can recover all of it.
//!
//! *What must not be taken over.* A device takes writes, or is larger, and the array does not, or
//! is smaller: its users would get errors. It is left as it is, and they wait on.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::{size, thread};
use weft_rt::ring::OpenedUblk;
use weft_rt::ublk::CONTROL_PATH;
use weft_rt::{Nanos, SECOND};
use weft_ublk::device::{self, DEPTH, Device, Service, Starting};
use weft_ublk::limits::{self, Limits};
use weft_ublk::session::{Session, Source};

use crate::block::{link, ublk_device};
use crate::control::protocol::UblkAnswer;
use crate::daemon::attached::{self, keep_size, prepare_for_reclaim};
use crate::daemon::served::{Front, Served};
use crate::daemon::{Daemon, log};

/// Devices that a daemon can serve.
const DEVICES_MAX: u32 = 32;
/// Commands that they have with the kernel.
pub(super) const COMMANDS_MAX: u32 = DEVICES_MAX * DEPTH as u32;

/// How long a stop waits for requests in progress, as it does for those of NBD clients. Writes may
/// wait for space below a member, without an end.
const LEAVE_PATIENCE: Nanos = 10 * SECOND;

/// A device, opened on a helper thread.
type Opened = (Starting, OpenedUblk);

impl Daemon {
    /// Makes the array a block device, or takes over the one that an earlier daemon left.
    pub(super) async fn attach_ublk(
        &self,
        served: &Rc<Served>,
        block_bytes: Option<u32>,
        read_only: bool,
    ) -> Result<UblkAnswer, Failure> {
        if let Some(why) = thread::elsewhere(device::unavailable).await? {
            return Ok(UblkAnswer::Unavailable { why });
        }
        let wanted = limits_of(served, block_bytes, read_only)?;
        let tag = tag_of(served);
        served.occupy(Front::UblkStarting)?;
        let open = move || {
            let found = device::find(tag)?;
            match found.map(|device| (device.number, device.service)) {
                Some((_, Service::By(process))) => Err(std::io::Error::other(format!(
                    "its block device is served by process {process}"
                ))),
                Some((number, Service::Orphaned)) => {
                    check(number, wanted.size_bytes, wanted.read_only)?;
                    Starting::take_over(number)
                }
                Some((number, Service::NotStarted)) => {
                    device::remove(number, ())?;
                    Starting::add(tag, &wanted)
                }
                None => Starting::add(tag, &wanted),
            }
        };
        let number = self.serve_ublk(served, wanted.read_only, open).await?;
        Ok(UblkAnswer::Device { number })
    }

    /// Takes over the device that an earlier daemon left of an array that has just started.
    pub(super) fn take_over_device(&self, name: String, served: Rc<Served>) {
        let is_possible = rustix::process::geteuid().is_root() && Path::new(CONTROL_PATH).exists();
        let Some(daemon) = self.me.upgrade().filter(|_| is_possible) else { return };
        drop(self.opener.rt.spawn(async move {
            let tag = tag_of(&served);
            let found = thread::elsewhere(move || device::find(tag)).await;
            let Ok(Ok(Some(Device { number, service, .. }))) = found else { return };
            if service == Service::NotStarted || served.occupy(Front::UblkStarting).is_err() {
                return;
            }
            let (size_bytes, read_only) = (served.volume.size_bytes(), served.read_only);
            let open = move || {
                check(number, size_bytes, read_only)?;
                Starting::take_over(number)
            };
            if let Err(failure) = daemon.serve_ublk(&served, read_only, open).await {
                log::not_taken_over(&name, &device::path_of(number), &failure);
            }
        }));
    }

    /// Opens a device with `open`, serves it, and starts it.
    async fn serve_ublk(
        &self,
        served: &Rc<Served>,
        read_only: bool,
        open: impl FnOnce() -> std::io::Result<Opened> + Send + 'static,
    ) -> Result<u32, Failure> {
        let started = self.start_ublk(served, read_only, open).await;
        if started.is_err() && matches!(*served.front.borrow(), Some(Front::UblkStarting)) {
            served.front.take();
        }
        started
    }

    async fn start_ublk(
        &self,
        served: &Rc<Served>,
        read_only: bool,
        open: impl FnOnce() -> std::io::Result<Opened> + Send + 'static,
    ) -> Result<u32, Failure> {
        prepare_for_reclaim();
        let (starting, opened) = thread::elsewhere(open).await?.map_err(failed)?;
        let (number, volume) = (starting.number(), served.volume.clone());
        let isolation = served.isolation.clone();
        let has_ended = Box::new(move || isolation.has_failed());
        let source = Source { volume, read_only, has_ended };
        let opener = &self.opener;
        let session = Session::begin(&opener.rt, &opener.ring, opened, source);
        let session = session.map_err(failed)?;
        *served.front.borrow_mut() = Some(Front::Ublk { number, session: session.clone() });
        let name = served.array.status().name;
        let started = Rc::new(Cell::new(false));
        let serve = {
            let (dir, served, started) = (self.dir.clone(), served.clone(), started.clone());
            let name = name.clone();
            async move {
                let ended = std::pin::pin!(session.ended());
                match select(ended, std::pin::pin!(keep_size(&dir, &served, &name))).await {
                    Either::Left((Ok(()), _)) if started.get() => log::about(&name, "detached"),
                    Either::Left((Ok(()), _)) => {}
                    Either::Left((Err(e), _)) => {
                        log::about(&name, &format!("ALERT: the block device has failed: {e}"));
                    }
                    Either::Right((never, _)) => match never {},
                }
                // The removal of the device waits until nothing here has it open.
                served.front.take();
            }
        };
        drop(opener.rt.spawn(serve));
        thread::elsewhere(move || starting.start()).await?.map_err(failed)?;
        started.set(true);
        let (array, place) = (name.clone(), device::path_of(number));
        let linked = thread::elsewhere(move || ublk_device::set_link(&array, number)).await?;
        let path = link::path_of(&name);
        let linked = if linked { format!(", {}", path.display()) } else { String::new() };
        log::about(&name, &format!("attached as a block device: {}{linked}", place.display()));
        Ok(number)
    }
}

/// Serves the array's block device no more. One that the next daemon can take over stays for it.
/// Returns whether systemd must start that daemon.
pub(super) async fn leave(name: &str, served: &Served) -> bool {
    let front = served.front.borrow().clone();
    match front {
        Some(Front::Ublk { number, session }) => {
            let left = session.leave(LEAVE_PATIENCE).await;
            log::about(name, &stays(&device::path_of(number).display().to_string(), left));
            false
        }
        Some(Front::Fuse { session, kept: true }) => {
            let left = session.leave(LEAVE_PATIENCE).await;
            if left == 0 {
                attached::note_complete(served, &session);
            }
            log::about(name, &stays("its block device", left));
            true
        }
        _ => false,
    }
}

/// In words, that a device stays, and what becomes of requests that have not ended.
fn stays(place: &str, left: usize) -> String {
    let left = match left {
        0 => String::new(),
        1 => ", which carries out a request that has not ended".to_owned(),
        _ => format!(", which carries out {left} requests that have not ended"),
    };
    format!("{place} stays; its users wait for the next `weft serve`{left}")
}

/// The array has failed, and the daemon goes on. Returns whether systemd must start the next one.
pub(super) fn tell_of_failure(name: &str, served: &Served) -> bool {
    let (place, by_systemd) = match &*served.front.borrow() {
        Some(Front::Ublk { number, .. }) => (device::path_of(*number).display().to_string(), false),
        Some(Front::Fuse { kept: true, .. }) => ("its block device".to_owned(), true),
        _ => return false,
    };
    log::about(name, &format!("ALERT: {}", stays(&place, 0)));
    by_systemd
}

fn failed(error: std::io::Error) -> Failure {
    Failure::new(format!("ublk: {error}"))
}

fn tag_of(served: &Served) -> u64 {
    ublk_device::tag_of(&served.array.identities().0.to_string())
}

/// Whether a device can be taken over for an array of this size.
fn check(number: u32, size_bytes: u64, read_only: bool) -> std::io::Result<()> {
    let params = device::params(number)?;
    let has = limits::size_bytes(&params);
    if has > size_bytes {
        let text = format!("it has {} and the array {}", size::show(has), size::show(size_bytes));
        return Err(std::io::Error::other(text));
    }
    if read_only && !limits::is_read_only(&params) {
        return Err(std::io::Error::other("it takes writes, and the array is read only"));
    }
    Ok(())
}

/// The limits of the device of an array.
fn limits_of(
    served: &Served,
    block_bytes: Option<u32>,
    read_only: bool,
) -> Result<Limits, Failure> {
    let least = u32::try_from(served.array.block_bytes()).unwrap_or(4096);
    let block_bytes = block_bytes.unwrap_or(least);
    check_block(block_bytes, least)?;
    let status = served.array.status();
    let (unit_bytes, stripe_bytes) = (status.unit_bytes, served.array.stripe_bytes());
    Ok(Limits {
        size_bytes: served.volume.size_bytes(),
        block_bytes,
        unit_bytes,
        stripe_bytes,
        discard_bytes: stripe_bytes,
        read_only: read_only || served.read_only,
    })
}

fn check_block(block_bytes: u32, least: u32) -> Outcome {
    if block_bytes < least {
        return Err(Failure::usage(format!(
            "blocks of {block_bytes} bytes are too small: the members' sectors have {least}"
        )));
    }
    Ok(())
}
