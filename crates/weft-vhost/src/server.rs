//! The sockets: each export has one, for one connection at a time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Gid, Mode};
use vhost::vhost_user::Listener;
use vhost_user_backend::VhostUserDaemon;
use vm_memory::{Bytes as _, GuestMemoryAtomic, GuestMemoryMmap};
use weft_disk::{Volume, VolumeError, VolumeErrorKind};
use weft_rt::sync::Semaphore;
use weft_rt::{Buf, MILLISECOND, Nanos, Rt};

use crate::backend::{Backend, Job};
use crate::config::{DATA_BYTES_MAX, SECTOR};
use crate::disk::{Disk, Identity, Limits};
use crate::request::{self, Operation, Request, copy_from, copy_to, status};

/// Memory for the data of requests, of all exports.
const MEMORY_BYTES: usize = 64 << 20;
const LOOK_EVERY: Nanos = 5 * MILLISECOND;

/// What an export shows.
pub struct Source {
    /// Its contents.
    pub volume: Rc<dyn Volume>,
    /// Which volume it is, whatever its name.
    pub identity: String,
    /// What suits it.
    pub limits: Limits,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether the volume has ended and answers nothing, while a later process can go on with it.
    pub has_ended: Box<dyn Fn() -> bool>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// The connection that there is.
#[derive(Default)]
struct Connection(Mutex<Option<Arc<Backend>>>);

impl Connection {
    fn now(&self) -> Option<Arc<Backend>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, backend: Option<Arc<Backend>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = backend;
    }
}

/// Serves volumes on sockets in a folder.
pub struct Server {
    rt: Rt,
    folder: PathBuf,
    group: Option<u32>,
    memory: Semaphore,
    exports: RefCell<BTreeMap<String, Export>>,
    log: fn(&str),
}

struct Export {
    disk: Arc<Disk>,
    connection: Arc<Connection>,
    source: Rc<Source>,
    path: PathBuf,
    /// Closed to end the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Server {
    /// Serves in `folder`, which is made if it does not exist. Members of `group` may connect, and
    /// otherwise only this user. `log` is told what goes wrong.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn new(rt: &Rt, folder: &Path, group: Option<u32>, log: fn(&str)) -> io::Result<Self> {
        let folder = std::path::absolute(folder)?;
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&folder)?;
        let (rt, memory) = (rt.clone(), Semaphore::new(MEMORY_BYTES));
        Ok(Self { rt, folder, group, memory, exports: RefCell::default(), log })
    }

    /// The socket of an export.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.sock"))
    }

    /// Begins to serve a volume under a name.
    ///
    /// # Errors
    /// If the socket cannot be made, another process serves on it, or its users may have seen
    /// another volume.
    pub fn add(&self, name: &str, source: Source) -> io::Result<()> {
        let path = self.path_of(name);
        let Source { volume, identity, limits, read_only, .. } = &source;
        let identity = Identity::new(&self.folder.join(format!("{name}.array")), identity);
        identity.check()?;
        let listener = listen(&path, self.group)?;
        let (ours, theirs) = UnixStream::pair()?;
        let (jobs, inbox) = unbounded();
        let disk = Disk::new(name, identity, volume.size_bytes(), *limits, *read_only);
        let disk = Arc::new(disk);
        let connection = Arc::new(Connection::default());
        let (own, current, log) = (disk.clone(), connection.clone(), self.log);
        let thread = std::thread::Builder::new()
            .name("vhost-user".into())
            .spawn(move || serve(&own, &current, &listener, &theirs.into(), &jobs, log))?;
        let source = Rc::new(source);
        let work = carry_out_all(self.rt.clone(), self.memory.clone(), source.clone(), inbox);
        drop(self.rt.spawn(work));
        let (stop, thread) = (Some(ours), Some(thread));
        let export = Export { disk, connection, source, path, stop, thread };
        self.exports.borrow_mut().insert(name.to_owned(), export);
        Ok(())
    }

    /// Sizes of volumes may have changed: the next connections learn them.
    pub fn note_sizes(&self) {
        for Export { disk, source, .. } in self.exports.borrow().values() {
            disk.set_size_bytes(source.volume.size_bytes());
        }
    }

    /// Ends an export: takes no more requests, waits for those in progress, at most for `patience`,
    /// and closes the connection.
    pub async fn remove(&self, name: &str, patience: Nanos) {
        let Some(export) = self.exports.borrow_mut().remove(name) else { return };
        export.disk.end();
        let connection = export.connection.now();
        let deadline = self.rt.now().saturating_add(patience);
        if let Some(connection) = connection {
            while !connection.is_idle() && self.rt.now() < deadline {
                self.rt.sleep(LOOK_EVERY).await;
            }
            connection.close();
        }
        drop(export);
    }

    /// Ends all exports, as [`Server::remove`].
    pub async fn shutdown(&self, patience: Nanos) {
        let names: Vec<String> = self.exports.borrow().keys().cloned().collect();
        join_all(names.iter().map(|name| self.remove(name, patience))).await;
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        self.stop = None;
        if let Some(connection) = self.connection.now() {
            connection.close();
        }
        // Not waited for: it ends when its requests have ended.
        drop(self.thread.take());
    }
}

/// Makes a socket. One that a process has left is replaced.
fn listen(path: &Path, group: Option<u32>) -> io::Result<UnixListener> {
    if fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket()) {
        if UnixStream::connect(path).is_ok() {
            let text = format!("{}: another process serves there", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        fs::remove_file(path)?;
    }
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = listener?;
    if let Some(group) = group {
        rustix::fs::chown(path, None, Some(Gid::from_raw(group)))?;
        rustix::fs::chmod(path, Mode::from_raw_mode(0o660))?;
    }
    Ok(listener)
}

/// The thread of an export: one connection after the other.
fn serve(
    disk: &Arc<Disk>,
    connection: &Connection,
    listener: &UnixListener,
    stop: &OwnedFd,
    jobs: &UnboundedSender<Job>,
    log: fn(&str),
) {
    let tell = |what: &str| log(&format!("{}: vhost-user: {what}", disk.name()));
    let Ok(mut ours) = listener.try_clone().map(Listener::from) else { return };
    loop {
        let mut both = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(stop, PollFlags::IN | PollFlags::HUP),
        ];
        match poll(&mut both, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) if !both[1].revents().is_empty() => return,
            Ok(_) => {}
        }
        let made = Backend::new(disk.clone(), jobs.clone());
        let Ok(backend) = made.inspect_err(|e| tell(&e.to_string())) else { return };
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let made = VhostUserDaemon::new("vhost-user".into(), backend.clone(), memory);
        let Ok(mut daemon) = made.inspect_err(|e| tell(&e.to_string())) else { return };
        connection.set(Some(backend.clone()));
        match daemon.start(&mut ours) {
            Ok(()) => {
                backend.set_handle(daemon.shutdown_handle());
                if disk.is_ending() {
                    backend.close();
                }
                if let Err(e) = daemon.wait() {
                    tell(&e.to_string());
                }
            }
            Err(e) => tell(&e.to_string()),
        }
        backend.close();
        // Its threads end first, then its requests: the guest's memory is used until then, and
        // another connection may make them again.
        drop(daemon);
        backend.wait_until_idle();
        connection.set(None);
    }
}

/// Carries out requests until the export's thread has ended.
async fn carry_out_all(
    rt: Rt,
    memory: Semaphore,
    source: Rc<Source>,
    mut inbox: UnboundedReceiver<Job>,
) {
    while let Some(job) = inbox.next().await {
        let (memory, source) = (memory.clone(), source.clone());
        drop(rt.spawn(async move {
            let bytes = usize::try_from(job.request.len.min(DATA_BYTES_MAX)).unwrap_or(0);
            let _room = memory.acquire(bytes.max(1)).await;
            match carry_out(&source, &job).await {
                Ok(written) => finish(job, status::OK, written),
                Err(_) if (source.has_ended)() || job.backend.is_ending() => {
                    Backend::drop_request(job);
                }
                Err(code) => finish(job, code, 0),
            }
        }));
    }
}

fn finish(job: Job, code: u8, written: u32) {
    let has_place = job.memory.write_obj(code, job.request.status).is_ok();
    Backend::done(job, written + u32::from(has_place));
}

/// Carries out a request; returns how many bytes of the guest's memory were written.
async fn carry_out(source: &Source, job: &Job) -> Result<u32, u8> {
    let Request { operation, offset, len, data, .. } = &job.request;
    let (offset, len) = (*offset, *len);
    let (volume, memory) = (&source.volume, &*job.memory);
    let bytes = usize::try_from(len).map_err(|_| status::ERROR)?;
    let failed = |e: VolumeError| match e.kind {
        VolumeErrorKind::Invalid => status::UNSUPPORTED,
        _ => status::ERROR,
    };
    let changes = !matches!(operation, Operation::Read | Operation::Id | Operation::Flush);
    let is_aligned =
        (offset | len).is_multiple_of(u64::from(source.limits.block_bytes).max(SECTOR));
    if changes && source.read_only || *operation != Operation::Id && !is_aligned {
        return Err(status::ERROR);
    }
    // A guest that does not flush takes every answer for durable.
    let fua = !job.backend.has_flush();
    match operation {
        Operation::Read => {
            let (result, buf) = volume.read(offset, Buf::new(bytes)).await;
            result.map_err(failed)?;
            copy_to(memory, data, &buf).ok_or(status::ERROR)?;
            u32::try_from(len).map_err(|_| status::ERROR)
        }
        Operation::Write => {
            let mut buf = Buf::new(bytes);
            copy_from(memory, data, &mut buf).ok_or(status::ERROR)?;
            volume.write(offset, buf.freeze(), fua).await.map_err(failed).map(|()| 0)
        }
        Operation::Flush => volume.flush().await.map_err(failed).map(|()| 0),
        Operation::Discard => {
            let mut at = offset;
            while at < offset + len {
                let end = volume.zeroes_end(at).clamp(at + 1, offset + len);
                volume.discard(at, end - at).await.map_err(failed)?;
                at = end;
            }
            if fua {
                volume.flush().await.map_err(failed)?;
            }
            Ok(0)
        }
        Operation::Zeroes { may_deallocate } => {
            let mut at = offset;
            while at < offset + len {
                let end = volume.zeroes_end(at).clamp(at + 1, offset + len);
                let done = volume.write_zeroes(at, end - at, fua, *may_deallocate).await;
                done.map_err(failed)?;
                at = end;
            }
            Ok(0)
        }
        Operation::Id => {
            let mut id = [0; request::ID_BYTES];
            let name = job.backend.name().as_bytes();
            let count = name.len().min(id.len());
            id[..count].copy_from_slice(&name[..count]);
            copy_to(memory, data, &id[..bytes]).ok_or(status::ERROR)?;
            u32::try_from(len).map_err(|_| status::ERROR)
        }
    }
}
