//! The addresses of a server.
//!
//! The system's resolver asks files, daemons and other machines, and blocks for an unbounded time.
//! So each query runs on a thread of its own. The thread of an abandoned query runs until the
//! resolver answers; so the number of threads is limited, and further queries are refused at the
//! limit.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use futures_channel::oneshot;
use weft_rt::{Nanos, Rt};

use super::{NbdAddress, OpenError, before};

/// Names that are being resolved at the same time, in the whole process.
const THREADS_MAX: usize = 16;

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// The addresses of a server, unless there are none at `deadline`.
pub(super) async fn resolve(
    rt: &Rt,
    address: &NbdAddress,
    deadline: Nanos,
) -> Result<Vec<SocketAddr>, OpenError> {
    let NbdAddress::Tcp(host, port) = address else { return Ok(Vec::new()) };
    resolve_host(rt, host, *port, deadline).await
}

/// The addresses of a port of a host, which is a name or a literal address, unless there are none
/// at `deadline`.
///
/// # Errors
/// The name has no address, or the resolver does not answer.
pub async fn resolve_host(
    rt: &Rt,
    host: &str,
    port: u16,
    deadline: Nanos,
) -> Result<Vec<SocketAddr>, OpenError> {
    if let Ok(literal) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::from((literal, port))]);
    }
    let name = host.to_owned();
    let lookup = move || Ok((name.as_str(), port).to_socket_addrs()?.collect());
    look_up(rt, host, deadline, lookup).await
}

/// Runs `lookup` on a thread of its own.
async fn look_up(
    rt: &Rt,
    host: &str,
    deadline: Nanos,
    lookup: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> Result<Vec<SocketAddr>, OpenError> {
    let failed = |error| OpenError::Resolve(host.to_owned(), error);
    let Some(place) = ThreadSlot::take() else {
        return Err(OpenError::ResolverBusy(host.to_owned()));
    };
    let (sender, answer) = oneshot::channel();
    let ask = move || {
        let found = lookup();
        drop(place);
        // The receiver is gone if the query took too long.
        let _ = sender.send(found);
    };
    thread::Builder::new().name("weft-resolve".into()).spawn(ask).map_err(failed)?;
    let found = match before(rt, deadline, answer).await {
        None => return Err(OpenError::ResolveTimedOut(host.to_owned())),
        Some(Ok(found)) => found.map_err(failed)?,
        // The thread ended without an answer.
        Some(Err(oneshot::Canceled)) => return Err(failed(io::ErrorKind::Other.into())),
    };
    if found.is_empty() {
        return Err(failed(io::ErrorKind::NotFound.into()));
    }
    Ok(found)
}

/// One of the threads that may ask at the same time.
struct ThreadSlot;

impl ThreadSlot {
    fn take() -> Option<Self> {
        let more = |taken| (taken < THREADS_MAX).then_some(taken + 1);
        THREADS.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|_| Self)
    }
}

impl Drop for ThreadSlot {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use weft_rt::ring::{self, RingConfig};
    use weft_rt::{MILLISECOND, SECOND};

    use super::*;

    /// One test, since the bound is one of the process.
    #[test]
    fn a_resolver_that_does_not_answer_holds_up_nothing_else() {
        let (rt, _ring) = ring::start(RingConfig::default()).expect("a ring");
        let hold = || {
            let (release, held) = mpsc::channel::<()>();
            let lookup = move || {
                let _ = held.recv();
                Ok(vec![SocketAddr::from(([127, 0, 0, 1], 1))])
            };
            (release, lookup)
        };
        rt.clone().block_on(async move {
            // The thread goes on: this task is the one that lets the resolver answer.
            let (release, lookup) = hold();
            let helper = rt.clone();
            let let_go = rt.spawn(async move {
                helper.sleep(MILLISECOND).await;
                drop(release);
            });
            let far = rt.now().saturating_add(3600 * SECOND);
            let found = look_up(&rt, "slow", far, lookup).await.expect("it answers in the end");
            assert_eq!(found.len(), 1);
            let_go.await;

            // It times out, and a bounded number of its threads continue.
            let mut held = Vec::new();
            for _ in 0..THREADS_MAX {
                let (release, lookup) = hold();
                held.push(release);
                let given_up = look_up(&rt, "dead", rt.now() + MILLISECOND, lookup).await;
                assert!(matches!(given_up, Err(OpenError::ResolveTimedOut(_))), "{given_up:?}");
            }
            let refused = look_up(&rt, "next", far, || Ok(Vec::new())).await;
            assert!(matches!(refused, Err(OpenError::ResolverBusy(_))), "{refused:?}");
            drop(held);
            while THREADS.load(Ordering::Acquire) > 0 {
                rt.sleep(MILLISECOND).await;
            }
            let nothing = look_up(&rt, "next", far, || Ok(Vec::new())).await;
            assert!(matches!(nothing, Err(OpenError::Resolve(..))), "{nothing:?}");
        });
    }
}
