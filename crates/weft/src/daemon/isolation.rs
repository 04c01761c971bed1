//! One array's fault must not take the other arrays down.
//!
//! A panic in the engine is a bug: the array it happened in is no longer in the state that the
//! program assumes. The array's tasks are a failure domain of the executor
//! ([`weft_rt::Rt::domain`]): they are dropped where they stand, and write nothing more to its
//! members. To the members this is a crash, from which the next start recovers; acknowledged data
//! is safe. The other arrays share only the executor, the ring and the queues of their own disks
//! with it.
//!
//! The array is also called from outside its domain: by client connections, the FUSE channel and
//! commands. They call it through [`Isolation::guard`] and [`Isolation::call`], which end the
//! domain if the call panics, and return an error from then on, also to calls that wait.
//!
//! The code that serves one NBD client is such a domain, too (`weft-nbd`). A panic anywhere else
//! ends the daemon: see [`end_on_panic`].

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use weft_cli::failure::{Failure, INTERNAL_ERROR};
use weft_cli::output::log_line;
use weft_rt::Rt;

thread_local! {
    /// What the panic hook last heard on this thread.
    static LAST: RefCell<String> = RefCell::default();
}

/// The boundary around one array.
pub struct Isolation {
    /// The domain of the array.
    rt: Rt,
    state: Rc<State>,
}

#[derive(Default)]
struct State {
    cause: RefCell<Option<String>>,
    /// Waiting calls, woken when the domain ends.
    waiting: RefCell<Vec<Option<Waker>>>,
    free: RefCell<Vec<usize>>,
}

/// The array has failed; it takes no more calls.
#[derive(Debug, Clone)]
pub struct Isolated {
    cause: String,
}

impl From<Isolated> for Failure {
    fn from(isolated: Isolated) -> Self {
        Self::new(format!("the array was taken out of service: {}", isolated.cause)).hint(
            "the daemon's log says more; restart `weft serve` to recover it: what was acknowledged \
             is safe",
        )
    }
}

impl std::fmt::Display for Isolated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.cause)
    }
}

impl std::error::Error for Isolated {}

impl Isolation {
    /// A boundary; `told` is called with the cause, once, if its array fails.
    pub fn new(rt: &Rt, told: impl FnOnce(Isolated) + 'static) -> Rc<Self> {
        let state = Rc::new(State::default());
        let failed = {
            let state = state.clone();
            move || {
                let cause = LAST.take();
                *state.cause.borrow_mut() = Some(cause.clone());
                let waiting = std::mem::take(&mut *state.waiting.borrow_mut());
                state.free.take();
                waiting.into_iter().flatten().for_each(Waker::wake);
                told(Isolated { cause });
            }
        };
        Rc::new(Self { rt: rt.domain(failed), state })
    }

    /// The executor for the array's tasks.
    pub fn rt(&self) -> &Rt {
        &self.rt
    }

    /// Whether the array has failed.
    pub fn has_failed(&self) -> bool {
        self.check().is_err()
    }

    fn check(&self) -> Result<(), Isolated> {
        match &*self.state.cause.borrow() {
            Some(cause) => Err(Isolated { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Calls the array.
    ///
    /// # Errors
    /// If the array has failed, or fails now.
    pub fn call<T>(&self, work: impl FnOnce() -> T) -> Result<T, Isolated> {
        self.check()?;
        // State that a panic leaves half-changed belongs to the array, and is not used again.
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(value) => Ok(value),
            Err(panic) => Err(self.fail(panic)),
        }
    }

    fn fail(&self, panic: Box<dyn Any + Send>) -> Isolated {
        // The panic's payload may itself panic when it is dropped.
        std::mem::forget(panic);
        self.rt.fail_domain();
        // Not known yet while the domain is ending.
        self.check().err().unwrap_or_else(|| Isolated { cause: LAST.with_borrow(Clone::clone) })
    }

    /// Polls a call of the array to its end.
    ///
    /// # Errors
    /// If the array has failed, or does so before the call ends.
    pub async fn guard<T, F>(&self, mut work: Pin<Box<F>>) -> Result<T, Isolated>
    where
        F: Future<Output = T> + ?Sized,
    {
        let mut wait = Waiting { state: &self.state, place: Cell::new(None) };
        let result = std::future::poll_fn(|cx| match self.call(|| work.as_mut().poll(cx)) {
            Ok(Poll::Pending) => match self.check() {
                Ok(()) => {
                    wait.register(cx.waker());
                    Poll::Pending
                }
                Err(isolated) => Poll::Ready(Err(isolated)),
            },
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(isolated) => Poll::Ready(Err(isolated)),
        })
        .await;
        if result.is_err() {
            // The call may hold parts of the array.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(work)));
        }
        result
    }
}

/// A call's place in the list of waiting calls.
struct Waiting<'a> {
    state: &'a State,
    place: Cell<Option<usize>>,
}

impl Waiting<'_> {
    fn register(&mut self, waker: &Waker) {
        let mut waiting = self.state.waiting.borrow_mut();
        let place = self.place.get().unwrap_or_else(|| {
            self.state.free.borrow_mut().pop().unwrap_or_else(|| {
                waiting.push(None);
                waiting.len() - 1
            })
        });
        self.place.set(Some(place));
        if !waiting[place].as_ref().is_some_and(|known| known.will_wake(waker)) {
            waiting[place] = Some(waker.clone());
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(place) = self.place.get() else { return };
        // The list is gone once the array has failed.
        if let Some(waiting) = self.state.waiting.borrow_mut().get_mut(place) {
            *waiting = None;
            self.state.free.borrow_mut().push(place);
        }
    }
}

/// From now on a panic is logged with its place, in plain words.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|info| {
        let said = describe(info);
        log_line(&format!("ALERT: {said}; this is a bug in weft, please report it"));
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            log_line(&trace.to_string());
        }
        LAST.set(said);
    }));
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let words = payload.downcast_ref::<&str>().copied();
    let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let place = info.location().map_or_else(|| "an unknown place".into(), ToString::to_string);
    format!("internal error at {place}: {}", words.unwrap_or("no message"))
}

/// Runs the daemon's thread. A panic that belongs to no array ends the process at once, with
/// [`INTERNAL_ERROR`] so that a service manager restarts it. Nothing is shut down in order, because
/// no state can be trusted. The next start recovers the arrays.
pub fn end_on_panic<T>(work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        log_line(&format!(
            "ALERT: the daemon ends with code {INTERNAL_ERROR}: the error belongs to no single \
             array; what was acknowledged is safe, and the next `weft serve` recovers the rest"
        ));
        std::process::exit(INTERNAL_ERROR.into())
    })
}

#[cfg(test)]
mod tests {
    use weft_array::{Array, AssembleOptions, Consistency, CreateOptions, create};
    use weft_disk::{Disk, DoneFuture, Layer, RamDisk, Volume as _, VolumeErrorKind, WriteOpts};
    use weft_rt::{Buf, Frozen, MILLISECOND, Schedule, virtual_rt};

    use super::*;
    use crate::daemon::guarded::GuardedVolume;

    /// A disk whose driver has a fault: a write panics once `armed`.
    struct Faulty {
        below: Rc<dyn Disk>,
        rt: Rt,
        armed: Rc<Cell<bool>>,
        writes: Rc<Cell<u32>>,
    }

    impl Layer for Faulty {
        fn below(&self) -> &dyn Disk {
            &*self.below
        }

        fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
            self.writes.set(self.writes.get() + 1);
            Box::pin(async move {
                self.rt.sleep(MILLISECOND).await;
                assert!(!self.armed.get(), "injected");
                self.below.write(offset, data, opts).await
            })
        }
    }

    fn disks(id: u8) -> Vec<Rc<dyn Disk>> {
        let disk = |n| Rc::new(RamDisk::new(&format!("{id}-{n}"), 16 << 20, 512)) as Rc<dyn Disk>;
        (0..4).map(disk).collect()
    }

    async fn make(disks: &[Rc<dyn Disk>], id: u8) {
        let code: weft_code::CodeSpec = "raid5".parse().expect("a code");
        let options = CreateOptions {
            name: format!("a{id}"),
            code,
            algorithm: None,
            unit_bytes: 16 << 10,
            consistency: Consistency::default_for(code),
            region_bytes: None,
            log_bytes: None,
            head_room_bytes: None,
            spares: 0,
            force: false,
            id: [id; 16],
            now_unix_s: 0,
        };
        create(disks, &options).await.expect("made");
    }

    async fn assemble(rt: &Rt, disks: Vec<Rc<dyn Disk>>, nonce: u64) -> Array {
        let options = AssembleOptions { nonce, ..AssembleOptions::default() };
        Array::assemble(rt, disks, options).await.expect("assembled")
    }

    #[test]
    fn a_panic_in_one_array_leaves_the_others_and_what_was_acknowledged() {
        let rt = virtual_rt(Schedule::Seeded(7));
        let main = rt.clone();
        rt.block_on(async move {
            let rt = main;
            let (armed, writes) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
            let (bad, good) = (disks(1), disks(2));
            make(&bad, 1).await;
            make(&good, 2).await;
            let faulty = bad.iter().map(|below| {
                let (below, rt) = (below.clone(), rt.clone());
                let (armed, writes) = (armed.clone(), writes.clone());
                Rc::new(Faulty { below, rt, armed, writes }) as Rc<dyn Disk>
            });
            let told = Rc::new(RefCell::new(Vec::new()));
            let isolation = {
                let told = told.clone();
                Isolation::new(&rt, move |isolated| told.borrow_mut().push(isolated))
            };
            let array = assemble(isolation.rt(), faulty.collect(), 3).await;
            let bad_volume = GuardedVolume::new(Rc::new(array), isolation.clone());
            let other = Isolation::new(&rt, |isolated| panic!("{isolated}"));
            let array = assemble(other.rt(), good, 4).await;
            let good_volume = GuardedVolume::new(Rc::new(array), other.clone());
            let data = |byte: u8, len: usize| Frozen::copy_from(&vec![byte; len]);
            bad_volume.write(0, data(1, 100 << 10), true).await.expect("written");
            armed.set(true);
            // Several at once: one panics, the other tasks wait for it or for each other.
            let mut requests = Vec::new();
            let bad_volume = Rc::new(bad_volume);
            for n in 0..8u64 {
                let volume = bad_volume.clone();
                let data = data(2, 20 << 10);
                requests.push(rt.spawn(async move {
                    volume.write((1 << 20) + n * 4096, data, true).await.map_err(|e| e.kind)
                }));
            }
            let volume = bad_volume.clone();
            let reading = rt.spawn(async move { volume.read(1 << 20, Buf::new(4096)).await.0 });
            for request in requests {
                assert_eq!(request.await, Err(VolumeErrorKind::Failed));
            }
            drop(reading.await);
            assert_eq!(told.borrow().len(), 1, "told once");
            let before = writes.get();
            assert!(bad_volume.flush().await.is_err());
            assert!(bad_volume.read(0, Buf::new(512)).await.0.is_err());
            assert!(bad_volume.allocation(0, 4096).is_err());
            rt.sleep(60_000 * MILLISECOND).await;
            assert_eq!(writes.get(), before, "a failed array writes nothing");
            good_volume.write(0, data(3, 100 << 10), true).await.expect("the other goes on");
            // As after a crash.
            let array = assemble(&rt, bad, 5).await;
            let (result, buf) = array.read(0, Buf::new(100 << 10)).await;
            result.expect("read");
            assert!(buf.iter().all(|byte| *byte == 1), "what was acknowledged");
        });
    }
}
