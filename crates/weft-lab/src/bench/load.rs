//! A closed loop of requests: a fixed number is always in flight, measured in the steady state.
//!
//! The clock runs from the completion of the first `depth` requests to that of `requests` more;
//! only then the loop drains. Clients never write the same block at once: each client owns one of
//! every `depth` blocks (or long requests).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use serde::Deserialize;
use weft_model::DiskStats;
use weft_rt::{Buf, Nanos, Rng, SECOND};

use super::{Bench, text};

/// The kind of requests and where they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Access {
    RandomRead,
    RandomWrite,
    SequentialRead,
    SequentialWrite,
}

impl Access {
    fn writes(self) -> bool {
        matches!(self, Self::RandomWrite | Self::SequentialWrite)
    }
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) access: Access,
    /// Bytes of a request, whole blocks.
    pub(crate) bytes: u64,
    /// Requests in flight.
    pub(crate) depth: u64,
    /// When it ends.
    pub(crate) ended: Ended,
    /// Length of the intervals in which completions are counted.
    pub(crate) interval: Option<Nanos>,
}

/// When a load ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// After this many requests.
    After(u64),
    /// When no member of the array is missing or being rebuilt.
    WhenHealthy,
}

/// The result of a load.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) bytes: u64,
    pub(crate) ns: Nanos,
    /// The disks' work during it.
    pub(crate) stats: Vec<DiskStats>,
    /// Bytes completed in each interval.
    pub(crate) series: Vec<u64>,
}

impl Measured {
    /// Millions of bytes a second.
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    pub(crate) fn mb_s(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.ns.max(1) as f64
    }
}

/// The state that the clients share.
struct Run {
    bench: Rc<Bench>,
    load: Load,
    issued: Cell<u64>,
    completed: Cell<u64>,
    begun: Cell<Nanos>,
    series: RefCell<Vec<u64>>,
    result: RefCell<Option<Measured>>,
    failed: RefCell<Option<String>>,
}

impl Bench {
    /// Runs a load on the array, and measures it.
    pub(crate) async fn drive(self: &Rc<Self>, load: Load) -> Result<Measured, String> {
        let run = Rc::new(Run {
            bench: self.clone(),
            load,
            issued: Cell::new(0),
            completed: Cell::new(0),
            begun: Cell::new(self.rt.now()),
            series: RefCell::default(),
            result: RefCell::default(),
            failed: RefCell::default(),
        });
        self.count_anew();
        let mut seeds = Rng::new(self.setup.seed);
        let clients: Vec<_> = (0..load.depth)
            .map(|client| {
                let (run, rng) = (run.clone(), Rng::new(seeds.next_u64()));
                self.rt.spawn(async move { run.client(client, rng).await })
            })
            .collect();
        for client in clients {
            client.await;
        }
        if let Some(error) = run.failed.take() {
            return Err(error);
        }
        run.result.take().ok_or_else(|| "the load ended before it was measured".into())
    }
}

impl Run {
    async fn client(&self, client: u64, mut rng: Rng) {
        while self.result.borrow().is_none() && self.failed.borrow().is_none() {
            let offset = self.next_offset(client, &mut rng);
            if let Err(error) = self.request(offset).await {
                *self.failed.borrow_mut() = Some(error);
                return;
            }
            self.complete();
        }
    }

    fn next_offset(&self, client: u64, rng: &mut Rng) -> u64 {
        let Load { access, bytes, depth, .. } = self.load;
        let all = self.bench.contents.size_bytes() / bytes;
        let index = match access {
            Access::RandomRead => rng.below(all),
            Access::RandomWrite => (rng.below((all / depth).max(1)) * depth + client).min(all - 1),
            Access::SequentialRead | Access::SequentialWrite => {
                let next = self.issued.get();
                self.issued.set(next + 1);
                next % all
            }
        };
        index * bytes
    }

    async fn request(&self, offset: u64) -> Result<(), String> {
        let len = usize::try_from(self.load.bytes).map_err(text)?;
        let Bench { array, contents, .. } = &*self.bench;
        if self.load.access.writes() {
            return array.write(offset, contents.renew(offset, len), false).await.map_err(text);
        }
        let (result, buf) = array.read(offset, Buf::new(len)).await;
        result.map_err(text)?;
        contents.check(offset, &buf)
    }

    fn complete(&self) {
        let now = self.bench.rt.now();
        let completed = self.completed.get() + 1;
        self.completed.set(completed);
        let warm = match self.load.ended {
            Ended::After(_) => self.load.depth,
            // A rebuild is measured from its first moment.
            Ended::WhenHealthy => 0,
        };
        if completed == warm {
            self.begun.set(now);
            self.bench.count_anew();
        }
        if completed <= warm || self.result.borrow().is_some() {
            return;
        }
        if let Some(interval) = self.load.interval {
            let slot = usize::try_from((now - self.begun.get()) / interval).unwrap_or(0);
            let mut series = self.series.borrow_mut();
            if slot >= series.len() {
                series.resize(slot + 1, 0);
            }
            series[slot] += self.load.bytes;
        }
        if self.is_over(completed - warm) {
            let requests = completed - warm;
            *self.result.borrow_mut() = Some(Measured {
                bytes: requests * self.load.bytes,
                ns: now - self.begun.get(),
                stats: self.bench.stats(),
                series: self.series.take(),
            });
        }
    }

    fn is_over(&self, requests: u64) -> bool {
        match self.load.ended {
            Ended::After(count) => requests >= count,
            // Querying the status is expensive: once in a while is enough.
            Ended::WhenHealthy => {
                requests.is_multiple_of(256)
                    && (self.bench.array.status().state == weft_array::ArrayState::Healthy
                        || self.bench.rt.now() - self.begun.get() > PATIENCE)
            }
        }
    }
}

/// No rebuild of a bench takes this long.
const PATIENCE: Nanos = 1000 * SECOND;
