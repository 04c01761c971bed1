//! An owner without array: one stripe after the other on RAM disks, unit u on disk u.

#![allow(dead_code, reason = "each test program uses a part")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_util::future::LocalBoxFuture;
use weft_code::{Code, CodeSpec, SlotNo, UnitSet};
use weft_disk::{Class, Disk, DiskError, RamDisk, WriteOpts};
use weft_rt::rng::Rng;
use weft_rt::{Buf, Frozen};
use weft_stripe::{
    Coding, DeviceEvent, Generation, Location, Owner, Stripe, StripeId, UnitWrite, store,
};

/// Bytes of a unit.
pub const UNIT: usize = 8 << 10;

/// Small codes of every kind.
pub const CODES: [(&str, usize); 9] = [
    ("raid1", 3),
    ("raid5", 4),
    ("raid6", 6),
    ("rs:3+1", 4),
    ("rs:4+3", 7),
    ("lrc:4,2,2", 8),
    ("drc:4,2,1", 7),
    ("drc-g:4,2,1", 7),
    ("raid0", 3),
];

pub fn coding(code: &str, slots: usize) -> Coding {
    let spec: CodeSpec = code.parse().expect("a code");
    let algorithm = weft_layout::Algorithm::default();
    let code: Code = weft_layout::code_for(spec, algorithm, slots).expect("it can be built");
    Coding::new(code, false)
}

/// Runs a future whose disks complete in its own turn.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a RAM disk never waits"),
    }
}

pub fn id(number: u64) -> StripeId {
    StripeId { generation: Generation::default(), number }
}

/// Contents that differ from unit to unit and from round to round.
pub fn bytes(unit: usize, round: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(round).fork(unit as u64);
    (0..len).map(|_| rng.next_u64().to_le_bytes()[0]).collect()
}

/// Disks, and which of them are lost.
pub struct Disks {
    pub coding: Coding,
    pub disks: Vec<Rc<dyn Disk>>,
    pub lost: Cell<UnitSet>,
    pub unsure: Cell<bool>,
    /// Disks that their stripe has given up.
    pub failed: RefCell<Vec<usize>>,
    pub met: RefCell<Vec<(usize, DeviceEvent)>>,
    pub repairs: Cell<bool>,
    pub rotational: Cell<bool>,
    in_flight: Vec<Cell<u32>>,
}

impl Disks {
    pub fn new(code: &str, slots: usize) -> Self {
        let disk = |n| Rc::new(RamDisk::new(&format!("ram{n}"), 64 << 10, 512)) as Rc<dyn Disk>;
        Self::with(code, (0..slots).map(disk).collect())
    }

    pub fn with(code: &str, disks: Vec<Rc<dyn Disk>>) -> Self {
        let coding = coding(code, disks.len());
        assert_eq!(coding.code().width(), disks.len(), "{code}");
        Self {
            coding,
            in_flight: disks.iter().map(|_| Cell::new(0)).collect(),
            disks,
            lost: Cell::default(),
            unsure: Cell::new(false),
            failed: RefCell::default(),
            met: RefCell::default(),
            repairs: Cell::new(true),
            rotational: Cell::new(false),
        }
    }

    pub fn stripe(&self, number: u64) -> Stripe<'_> {
        self.resolve(id(number))
    }

    /// Fills a stripe with data and the parity that goes with it.
    pub fn fill(&self, number: u64) -> Vec<Vec<u8>> {
        let code = self.coding.code();
        let mut units: Vec<Vec<u8>> = (0..code.k()).map(|unit| bytes(unit, 0, UNIT)).collect();
        let parity: Vec<_> = (0..code.p()).map(|row| parity(code, number, row, &units)).collect();
        units.extend(parity);
        self.put(number, &units);
        units
    }

    pub fn put(&self, number: u64, units: &[Vec<u8>]) {
        let write = |(unit, bytes): (usize, &Vec<u8>)| UnitWrite {
            unit,
            from: 0,
            data: Frozen::copy_from(bytes),
        };
        let writes: Vec<_> = units.iter().enumerate().map(write).collect();
        let whole = self.stripe(number).with_lost(UnitSet::new());
        assert!(now(store(self, whole, &writes, WriteOpts::USER)).failed.is_empty());
    }

    /// What a disk holds of a stripe.
    pub fn on_disk(&self, number: u64, unit: usize) -> Vec<u8> {
        let Location { slot, offset } = self.place(id(number), unit, 0);
        let (result, buf) = now(self.disks[slot.0].read(offset, Buf::new(UNIT), Class::User));
        result.expect("read");
        buf.to_vec()
    }
}

/// A parity unit by the definition: Σ coefficient · data, byte by byte.
pub fn parity(code: &Code, number: u64, row: usize, data: &[Vec<u8>]) -> Vec<u8> {
    let mut sum = vec![0; data[0].len()];
    for (unit, bytes) in data.iter().take(code.k()).enumerate() {
        let coef = code.coef(number, row, unit);
        sum.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= product(coef, *byte));
    }
    sum
}

fn product(a: u8, b: u8) -> u8 {
    weft_gf::field::mul(a, b)
}

impl Owner for Disks {
    fn resolve(&self, id: StripeId) -> Stripe<'_> {
        let (lost, unsure) = (self.lost.get(), self.unsure.get());
        Stripe { id, coding: &self.coding, lost, pinned: false, unsure }
    }

    fn place(&self, id: StripeId, unit: usize, from: u64) -> Location {
        Location { slot: SlotNo(unit), offset: id.number * UNIT as u64 + from }
    }

    fn disk(&self, slot: SlotNo) -> Option<Rc<dyn Disk>> {
        Some(self.disks[slot.0].clone())
    }

    fn holds(&self, _: SlotNo, _: &Rc<dyn Disk>) -> bool {
        true
    }

    fn in_flight(&self, slot: SlotNo) -> &Cell<u32> {
        &self.in_flight[slot.0]
    }

    fn sector_bytes(&self) -> usize {
        512
    }

    fn may_repair(&self) -> bool {
        self.repairs.get()
    }

    fn balances_load(&self) -> bool {
        true
    }

    fn is_rotational(&self) -> bool {
        self.rotational.get()
    }

    fn met(&self, slot: SlotNo, what: DeviceEvent) {
        self.met.borrow_mut().push((slot.0, what));
    }

    fn failed<'a>(
        &'a self,
        slot: SlotNo,
        _: &'a Rc<dyn Disk>,
        _: &'a DiskError,
    ) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            self.failed.borrow_mut().push(slot.0);
            self.lost.set(self.lost.get().with(slot.0));
        })
    }
}

/// Every set of units that is lost together, up to the whole stripe.
pub fn losses(width: usize) -> impl Iterator<Item = UnitSet> {
    (0u64..1 << width).map(move |bits| (0..width).filter(|u| bits >> u & 1 == 1).collect())
}
