//! The queues of one connection. Requests are taken from them on threads of the connection: one
//! that the guest wakes, and one that gives requests back.
//!
//! The engine's thread only passes on that a request has ended. It parses nothing of a guest,
//! writes to no descriptor of its emulator, which may block, and takes no lock that is held
//! meanwhile: a guest could hold up all arrays otherwise.
//!
//! *The end of a connection.* When an emulator sees it, it reads in the guest's memory how much of
//! each queue was given back, and has the next connection make the rest. So nothing may be given
//! back once it can see the end: first what is just being given back ends, then the connection.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_channel::mpsc::UnboundedSender;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::{ShutdownHandle, VhostUserBackend, VringMutex, VringT as _};
use virtio_queue::{QueueOwnedT as _, QueueT as _};
use vm_memory::{Bytes as _, GuestMemoryRegion as _};
use vm_memory::{
    GuestAddressSpace as _, GuestMemoryAtomic, GuestMemoryBackend as _, GuestMemoryMmap,
};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

use crate::config::{self, QUEUE_ENTRIES, QUEUES};
use crate::disk::Disk;
use crate::request::{Request, Wrong};

/// The guest's memory at one time.
pub(crate) type Memory = Arc<GuestMemoryMmap<()>>;
type MemoryNow = GuestMemoryAtomic<GuestMemoryMmap<()>>;
type Vring = VringMutex<MemoryNow>;

/// The type of a file system of huge pages (`linux/magic.h`).
const HUGETLBFS: rustix::fs::FsWord = 0x9584_58f6;

/// How long the end of a queue waits for its requests.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// A request on its way to the engine's thread. It is given back by [`Backend::done`] or
/// [`Backend::drop_request`].
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) memory: Memory,
    pub(crate) backend: Arc<Backend>,
    queue: usize,
    number: u64,
    vring: Vring,
}

/// One connection.
pub(crate) struct Backend {
    me: Weak<Self>,
    disk: Arc<Disk>,
    jobs: UnboundedSender<Job>,
    /// The memory that was checked last.
    memory: Mutex<Option<Memory>>,
    queues: Vec<Mutex<Queue>>,
    idle: Condvar,
    answers: Sender<Answer>,
    /// The guest flushes; otherwise each write has to be durable when it is answered.
    has_flush: AtomicBool,
    /// Nothing is taken from the queues, or given back, any more.
    is_closed: AtomicBool,
    handle: Mutex<Option<ShutdownHandle>>,
}

/// Work for the thread that gives requests back.
enum Answer {
    /// A request has ended, with so many bytes written to the guest's memory.
    Done(Job, u32),
    /// A request has ended without a result.
    Dropped(Job),
    /// The connection ends.
    Close(Arc<Backend>),
}

/// Requests of a queue, in its order.
#[derive(Default)]
struct Queue {
    /// The number of the first of them.
    first: u64,
    places: VecDeque<Place>,
    /// Requests that are being carried out.
    busy: usize,
}

/// A request in a queue's order: its head, and how many bytes were written, once it is done.
struct Place {
    head: u16,
    done: Option<u32>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that holds these locks leaves something half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Backend {
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn new(disk: Arc<Disk>, jobs: UnboundedSender<Job>) -> io::Result<Arc<Self>> {
        let (answers, ended) = mpsc::channel();
        // It ends with the last handle of the connection.
        std::thread::Builder::new().name("vhost-answers".into()).spawn(move || {
            for answer in ended {
                Self::give_answer(answer);
            }
        })?;
        Ok(Arc::new_cyclic(|me| Self {
            me: me.clone(),
            disk,
            jobs,
            memory: Mutex::default(),
            queues: (0..QUEUES).map(|_| Mutex::default()).collect(),
            idle: Condvar::new(),
            answers,
            has_flush: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            handle: Mutex::default(),
        }))
    }

    /// The name of the disk.
    pub(crate) fn name(&self) -> &str {
        self.disk.name()
    }

    /// How to end the connection.
    pub(crate) fn set_handle(&self, handle: Option<ShutdownHandle>) {
        *lock(&self.handle) = handle;
        if self.is_closed() {
            self.close();
        }
    }

    /// Ends the connection: what has not been given back is made again on the next one. Does not
    /// wait.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        if let Some(me) = self.me.upgrade() {
            let _ = self.answers.send(Answer::Close(me));
        }
    }

    /// From when this returns, nothing is given back any more. Waits for the locks of the queues.
    fn end_giving(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.queues.iter().for_each(|queue| drop(lock(queue)));
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Whether the connection has ended or is about to: then errors are no answers.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_closed() || self.disk.is_ending()
    }

    /// Whether no request is being carried out, as far as can be told without waiting.
    pub(crate) fn is_idle(&self) -> bool {
        self.queues.iter().all(|queue| queue.try_lock().is_ok_and(|queue| queue.busy == 0))
    }

    /// Whether the guest flushes.
    pub(crate) fn has_flush(&self) -> bool {
        self.has_flush.load(Ordering::SeqCst)
    }

    /// Waits until every request has ended.
    pub(crate) fn wait_until_idle(&self) {
        for queue in &self.queues {
            let mut queue = lock(queue);
            while queue.busy > 0 {
                queue = self.idle.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Takes what a queue offers.
    fn take(self: &Arc<Self>, index: usize, vring: &Vring) -> io::Result<()> {
        let failed = |e: virtio_queue::Error| io::Error::other(e);
        loop {
            vring.disable_notification().map_err(failed)?;
            let is_full = self.take_some(index, vring)?;
            // A full queue goes on when a request ends.
            if is_full || self.is_closed() || !vring.enable_notification().map_err(failed)? {
                return Ok(());
            }
        }
    }

    /// Takes requests; returns whether more than a queue's worth are in progress. A driver that
    /// follows the rules cannot offer more.
    fn take_some(self: &Arc<Self>, index: usize, vring: &Vring) -> io::Result<bool> {
        let Some(memory) = lock(&self.memory).clone() else {
            return Err(io::Error::other("a queue without memory"));
        };
        let mut queue = lock(&self.queues[index]);
        if self.is_closed() || self.disk.is_ending() {
            return Ok(true);
        }
        let mut room = QUEUE_ENTRIES.saturating_sub(queue.places.len());
        let mut chains = Vec::new();
        {
            let mut state = vring.get_mut();
            if !state.get_queue().ready() {
                // It has been stopped, and only gives back what it has taken.
                return Ok(true);
            }
            let mut offered =
                state.get_queue_mut().iter(memory.clone()).map_err(io::Error::other)?;
            while room > 0
                && let Some(chain) = offered.next()
            {
                chains.push(chain);
                room -= 1;
            }
        }
        for chain in chains {
            let head = chain.head_index();
            let number = queue.first + queue.places.len() as u64;
            let (request, done) = match Request::of(chain, self.disk.size_bytes()) {
                Ok(request) => (Some(request), None),
                Err(Wrong::NoPlace) => (None, Some(0)),
                Err(Wrong::Status(place, code)) => {
                    (None, Some(u32::from(memory.write_obj(code, place).is_ok())))
                }
            };
            queue.places.push_back(Place { head, done });
            if let Some(request) = request {
                queue.busy += 1;
                let (memory, backend, vring) = (memory.clone(), self.clone(), vring.clone());
                let job = Job { request, memory, backend, queue: index, number, vring };
                // The engine's thread is there as long as the export.
                if self.jobs.unbounded_send(job).is_err() {
                    queue.busy -= 1;
                    self.close();
                }
            }
        }
        self.give_back(&mut queue, vring);
        Ok(room == 0)
    }

    /// Gives back the requests that are done and have none before them that is not.
    fn give_back(&self, queue: &mut Queue, vring: &Vring) {
        let mut is_any = false;
        while let Some(Place { head, done: Some(written) }) = queue.places.front() {
            if self.is_closed() || vring.add_used(*head, *written).is_err() {
                return;
            }
            is_any = true;
            queue.places.pop_front();
            queue.first += 1;
        }
        if is_any && vring.needs_notification().unwrap_or(true) {
            // The guest's emulator has gone: the connection tells.
            let _ = vring.signal_used_queue();
        }
    }

    /// A request has ended, and has written `written` bytes to the guest's memory. Does not wait.
    pub(crate) fn done(job: Job, written: u32) {
        Self::pass_on(Answer::Done(job, written));
    }

    /// A request has ended without a result: the connection ends, and the next one makes it again.
    /// Does not wait.
    pub(crate) fn drop_request(job: Job) {
        job.backend.close();
        Self::pass_on(Answer::Dropped(job));
    }

    fn pass_on(answer: Answer) {
        let (Answer::Done(Job { backend, .. }, _)
        | Answer::Dropped(Job { backend, .. })
        | Answer::Close(backend)) = &answer;
        let backend = backend.clone();
        // The thread is there as long as there are handles of the connection: the job has one.
        let _ = backend.answers.send(answer);
    }

    fn give_answer(answer: Answer) {
        let (job, written) = match answer {
            Answer::Done(job, written) => (job, written),
            Answer::Dropped(job) => {
                lock(&job.backend.queues[job.queue]).busy -= 1;
                job.backend.idle.notify_all();
                return;
            }
            Answer::Close(backend) => {
                backend.end_giving();
                if let Some(handle) = &*lock(&backend.handle) {
                    handle.shutdown();
                }
                return;
            }
        };
        let Job { backend, queue: index, number, vring, .. } = job;
        {
            let mut queue = lock(&backend.queues[index]);
            queue.busy -= 1;
            let at = usize::try_from(number - queue.first).unwrap_or(usize::MAX);
            if let Some(place) = queue.places.get_mut(at) {
                place.done = Some(written);
            }
            backend.give_back(&mut queue, &vring);
        }
        backend.idle.notify_all();
        if !backend.is_closed() && backend.take(index, &vring).is_err() {
            backend.close();
        }
    }
}

impl VhostUserBackend for Backend {
    type Bitmap = ();
    type Vring = Vring;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_ENTRIES
    }

    fn features(&self) -> u64 {
        config::features(self.disk.read_only)
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn acked_features(&self, features: u64) {
        self.has_flush.store(config::has_flush(features), Ordering::SeqCst);
    }

    fn set_event_idx(&self, _enabled: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let space = config::space(self.disk.size_bytes(), &self.disk.limits);
        // Later versions of virtio have more in it; that is zero here.
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = space.into_iter().skip(from).chain(std::iter::repeat(0));
        rest.take(usize::try_from(size).unwrap_or(0).min(4096)).collect()
    }

    fn update_memory(&self, memory: MemoryNow) -> io::Result<()> {
        for region in memory.memory().iter() {
            let file = region.file_offset().ok_or_else(|| io::Error::other("memory of no file"))?;
            let seals = fcntl_get_seals(file.file()).unwrap_or(SealFlags::empty());
            let has = u64::try_from(fstat(file.file())?.st_size).unwrap_or(0);
            let needs = file.start().checked_add(region.len());
            // An access beyond the end would end this process, and all volumes with it. So would
            // one to a hole in huge pages of which none are left.
            let is_huge = fstatfs(file.file()).is_ok_and(|fs| fs.f_type == HUGETLBFS);
            let is_sealed = seals.contains(SealFlags::SHRINK) && !is_huge;
            if !is_sealed || needs.is_none_or(|needs| needs > has) {
                // The queues know it already, and the error ends the connection.
                self.end_giving();
                return Err(io::Error::other(
                    "the guest's memory can shrink: it must be sealed (QEMU: \
                     memory-backend-memfd,share=on)",
                ));
            }
        }
        // From here on there can be requests.
        self.disk.note_user().inspect_err(|_| self.end_giving())?;
        *lock(&self.memory) = Some(memory.memory().into_inner());
        Ok(())
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC).ok()
    }

    fn stop_vring(&self, index: u32) -> io::Result<()> {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let queue = self.queues.get(index).ok_or(io::ErrorKind::InvalidInput)?;
        let waited =
            self.idle.wait_timeout_while(lock(queue), STOP_PATIENCE, |queue| queue.busy > 0);
        let (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let busy = queue.busy;
        drop(queue);
        match busy {
            0 => Ok(()),
            _ => {
                // The error ends the connection.
                self.end_giving();
                Err(io::Error::other("requests do not end"))
            }
        }
    }

    fn handle_event(
        &self,
        event: u16,
        _set: EventSet,
        vrings: &[Vring],
        _thread: usize,
    ) -> io::Result<()> {
        let index = usize::from(event);
        // A worker that fails would leave its queues to nobody.
        if let (Some(vring), Some(me)) = (vrings.get(index), self.me.upgrade())
            && me.take(index, vring).is_err()
        {
            self.close();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read as _};
    use std::os::unix::net::{UnixListener, UnixStream};

    use vhost_user_backend::VhostUserDaemon;
    use weft_testkit::Scratch;

    use super::*;
    use crate::disk::{Identity, Limits};

    #[test]
    fn a_connection_ends_when_nothing_is_being_given_back_any_more() {
        let scratch = Scratch::in_memory("vhost-close");
        let place = scratch.join("sock");
        let listener = UnixListener::bind(&place).expect("bound");
        let mut emulator = UnixStream::connect(&place).expect("connected");
        emulator.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
        let limits = Limits { block_bytes: 512, unit_bytes: 4096, stripe_bytes: 4096 };
        let identity = Identity::new(&scratch.join("array"), "one");
        let disk = Arc::new(Disk::new("tank", identity, 1 << 20, limits, false));
        let (jobs, _inbox) = futures_channel::mpsc::unbounded();
        let backend = Backend::new(disk, jobs).expect("made");
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let daemon = VhostUserDaemon::new("vhost-user".into(), backend.clone(), memory);
        let mut daemon = daemon.expect("made");
        daemon.start(&mut listener.into()).expect("started");
        backend.set_handle(daemon.shutdown_handle());
        // As while requests are given back.
        let giving = lock(&backend.queues[3]);
        backend.close();
        let heard = emulator.read(&mut [0]).map_err(|e| e.kind());
        assert_eq!(heard, Err(ErrorKind::WouldBlock), "the emulator saw the end");
        drop(giving);
        emulator.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        assert_eq!(emulator.read(&mut [0]).expect("the end"), 0);
        let _ = daemon.wait();
    }
}
