//! The engine's rebuild of the same array, on modelled disks behind plugs.

use std::cell::Cell;
use std::rc::Rc;

use weft_array::{Array, ArrayState, AssembleOptions, Consistency, CreateOptions, create};
use weft_code::SlotNo;
use weft_disk::{Class, Disk, DoneFuture, Layer, ReadFuture, WriteOpts};
use weft_lab::rebuild::{Manner, Way};
use weft_model::{Model, ModelDisk, ModelOptions, PluggedDisk};
use weft_rt::{Buf, Frozen, MILLISECOND, Rt, Schedule, virtual_rt};

use super::{Case, Counts, DISK, UNIT_KIB};

/// The result of a rebuild.
pub struct Rebuilt {
    /// Units of each member.
    pub rows: u64,
    /// The requests to the members, without the failed one, the spare last.
    pub members: Vec<Counts>,
}

/// Counts what is asked for in the data area.
struct Counting {
    plug: PluggedDisk,
    data_offset: Cell<u64>,
    counts: Cell<Counts>,
}

impl Counting {
    fn open(rt: &Rt, number: usize) -> Rc<Self> {
        let options = ModelOptions {
            name: Some(format!("d{number}")),
            size_bytes: Some(DISK),
            seed: number as u64,
            ..ModelOptions::default()
        };
        let model = Model::find("wd10eals").expect("a model");
        let plug = PluggedDisk::new(rt, ModelDisk::open(rt, model, options));
        Rc::new(Self { plug, data_offset: Cell::new(u64::MAX), counts: Cell::default() })
    }

    fn count(&self, offset: u64, len: u64, add: impl FnOnce(&mut Counts, u64)) {
        let mut counts = self.counts.get();
        if offset >= self.data_offset.get() {
            add(&mut counts, len / 512);
        }
        self.counts.set(counts);
    }

    /// Counts from now on what lies at and behind `data_offset`.
    fn begin(&self, data_offset: u64) {
        let joined = self.plug.joined();
        self.data_offset.set(data_offset);
        // The plug counts from the beginning.
        self.counts.set(Counts {
            reads_joined: joined.reads,
            writes_joined: joined.writes,
            ..Counts::default()
        });
    }

    fn end(&self) -> Counts {
        let (begun, joined) = (self.counts.get(), self.plug.joined());
        Counts {
            reads_joined: joined.reads - begun.reads_joined,
            writes_joined: joined.writes - begun.writes_joined,
            ..begun
        }
    }
}

impl Layer for Counting {
    fn below(&self) -> &dyn Disk {
        &self.plug
    }

    fn read(&self, offset: u64, buf: Buf, class: Class) -> ReadFuture<'_> {
        self.count(offset, buf.len() as u64, |counts, sectors| {
            counts.reads += 1;
            counts.read_sectors += sectors;
        });
        self.below().read(offset, buf, class)
    }

    fn write(&self, offset: u64, data: Frozen, opts: WriteOpts) -> DoneFuture<'_> {
        self.count(offset, data.len() as u64, |counts, sectors| {
            counts.writes += 1;
            counts.written_sectors += sectors;
        });
        self.below().write(offset, data, opts)
    }
}

/// Fills an array, fails slot 0, adds a spare, and counts until all is whole again.
pub fn rebuild(case: &Case) -> Rebuilt {
    let rt = virtual_rt(Schedule::Fifo);
    let (code, slots) = (case.code.parse().expect("a code"), case.slots);
    let mirror = matches!(case.code, "raid1" | "raid10");
    rt.clone().block_on(async move {
        let disks: Vec<_> = (0..=slots).map(|number| Counting::open(&rt, number)).collect();
        let members: Vec<Rc<dyn Disk>> =
            disks[..slots].iter().map(|disk| disk.clone() as Rc<dyn Disk>).collect();
        let options = CreateOptions {
            name: "md".into(),
            code,
            algorithm: None,
            unit_bytes: u32::try_from(UNIT_KIB << 10).expect("small"),
            consistency: Consistency::None,
            region_bytes: None,
            log_bytes: None,
            head_room_bytes: None,
            spares: 0,
            force: false,
            id: [1; 16],
            now_unix_s: 0,
        };
        let superblock = create(&members, &options).await.expect("created");
        let array =
            Array::assemble(&rt, members, AssembleOptions::default()).await.expect("assembled");
        let stripe = usize::try_from(array.stripe_bytes()).expect("small");
        for at in (0..array.size_bytes()).step_by(stripe) {
            let data = Frozen::copy_from(&vec![at.to_le_bytes()[2]; stripe]);
            array.write(at, data, false).await.expect("written");
        }
        array.flush().await.expect("flushed");
        array.fail(SlotNo(0)).await.expect("failed");
        // Both paces of MD are the same without users.
        let pace = Manner::Depth;
        let way = if mirror { Way::linux_md_mirror(pace) } else { Way::linux_md(pace) };
        way.apply(&array).await.expect("a policy");
        array.set_throttle(0, None);
        rt.sleep(1000 * MILLISECOND).await;
        disks.iter().for_each(|disk| disk.begin(superblock.area.data_offset));
        array.add_spare(disks[slots].clone()).await.expect("added");
        while array.status().state != ArrayState::Healthy {
            rt.sleep(MILLISECOND).await;
        }
        let counts = disks[1..].iter().map(|disk| disk.end()).collect();
        array.stop().await.expect("stopped");
        Rebuilt { rows: superblock.rows, members: counts }
    })
}
