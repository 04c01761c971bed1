//! A disk below a server: slow, and torn by power cuts.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::{Rc, Weak};

use weft_cluster::DiskName;
use weft_cluster::fence::HEAD_BYTES;
use weft_disk::{
    Class, Disk, DiskError, DiskOp, DoneFuture, Layer, RamDisk, ReadFuture, WriteOpts,
};
use weft_rt::sync::Notify;
use weft_rt::{Buf, Frozen, MICROSECOND, MILLISECOND, Rng, Rt};

use super::oracle::Oracle;

pub struct Medium {
    me: Weak<Self>,
    rt: Rt,
    rng: RefCell<Rng>,
    name: DiskName,
    ram: RamDisk,
    /// Writes in flight, by number.
    in_flight: RefCell<BTreeMap<u64, (u64, Frozen)>>,
    writes: Cell<u64>,
    ended: Notify,
    oracle: Rc<Oracle>,
}

impl Medium {
    pub fn new(rt: &Rt, name: &DiskName, rng: Rng, oracle: Rc<Oracle>) -> Rc<Self> {
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            rt: rt.clone(),
            rng: RefCell::new(rng),
            name: name.clone(),
            ram: RamDisk::new(name.as_str(), HEAD_BYTES + (64 << 10), 512),
            in_flight: RefCell::default(),
            writes: Cell::default(),
            ended: Notify::default(),
            oracle,
        })
    }

    /// Waits until nothing is in flight.
    pub async fn idle(&self) {
        loop {
            let ended = self.ended.wait();
            if self.in_flight.borrow().is_empty() {
                return;
            }
            ended.await;
        }
    }

    async fn apply(&self, offset: u64, data: Frozen) {
        if offset >= HEAD_BYTES {
            self.oracle.effect(&self.name, &data, self.rt.now());
        }
        self.ram.write(offset, data, WriteOpts::USER).await.expect("inside the disk");
    }

    /// Of each write in flight nothing, a part, or all is done.
    pub fn cut_power(&self) {
        let in_flight = std::mem::take(&mut *self.in_flight.borrow_mut());
        for (offset, data) in in_flight.into_values() {
            let sectors = data.len() as u64 / 512;
            let done = self.rng.borrow_mut().within(0, sectors) * 512;
            if done > 0 {
                let part = data.slice(0, usize::try_from(done).expect("small"));
                // A write to memory needs no waiting.
                futures_util::FutureExt::now_or_never(self.apply(offset, part)).expect("at once");
            }
        }
        self.ended.notify_all();
    }

    async fn carry_out(
        self: Rc<Self>,
        number: u64,
        offset: u64,
        data: Frozen,
    ) -> Result<(), DiskError> {
        self.delay().await;
        if !self.in_flight.borrow().contains_key(&number) {
            let cause = io::Error::other("a power cut");
            let len = data.len() as u64;
            return Err(DiskError::new(self.name.as_str(), DiskOp::Write, offset, len, cause));
        }
        self.apply(offset, data).await;
        self.in_flight.borrow_mut().remove(&number);
        self.ended.notify_all();
        Ok(())
    }

    async fn delay(&self) {
        let delay = {
            let mut rng = self.rng.borrow_mut();
            match rng.below(100) {
                0 => rng.within(1, 8000) * MILLISECOND,
                1..5 => rng.within(1, 300) * MILLISECOND,
                _ => rng.within(50, 5000) * MICROSECOND,
            }
        };
        self.rt.sleep(delay).await;
    }
}

impl Layer for Medium {
    fn below(&self) -> &dyn Disk {
        &self.ram
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        self.ram.read(offset, buf, class)
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        // What the kernel has is carried out, whatever becomes of the server.
        let medium = self.me.upgrade().expect("it is in use");
        Box::pin(async move {
            let number = self.writes.get();
            self.writes.set(number + 1);
            self.in_flight.borrow_mut().insert(number, (offset, data.clone()));
            self.rt.spawn(medium.carry_out(number, offset, data)).await
        })
    }
}
