//! Any arguments for `create`, as text; shared by the tests and the fuzz target.
//!
//! Words of the form `key=value`, as a user could give them: code, algorithm, unit, consistency,
//! region, log, spares, name, force, and `disks=SIZE*COUNT,…` (in bytes, not limited).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::FutureExt;
use weft_array::create::plan;
use weft_array::{Consistency, CreateOptions, Superblock, create};
use weft_disk::{Class, Disk, DiskError, DiskInfo, DiskOp, DoneFuture, ReadFuture, WriteOpts};
use weft_rt::{Buf, Frozen};

/// Most disks in one call: each costs time.
const DISKS_MAX: usize = 300;

const CODES: [&str; 26] = [
    "raid0",
    "raid1",
    "raid4",
    "raid5",
    "raid6",
    "raid10",
    "raid10:n2",
    "raid10:f3",
    "raid10:o2",
    "raid10:n200",
    "rs:1+1",
    "rs:4+2",
    "rs:10+6",
    "rs:200+50",
    "rs:255+1",
    "rs:0+0",
    "lrc:4,2,1",
    "lrc:12,3,2",
    "lrc:250,1,1",
    "drc:4,2,1",
    "drc:12,4,1",
    "drc-g:4,2,1",
    "drc-g:20,2,1",
    "drc-g:64,2,1",
    "drc-oa:12,3,1",
    "drc-oa:18446744073709551615,2,1",
];
const ALGORITHMS: [&str; 4] = ["left-symmetric", "right-asymmetric", "parity-first", "near"];
const NUMBERS: [u64; 22] = [
    0,
    1,
    2,
    3,
    7,
    511,
    512,
    4096,
    5000,
    65_536,
    1 << 20,
    4 << 20,
    16 << 20,
    32 << 20,
    64 << 20,
    (64 << 20) + 1,
    1 << 31,
    u32::MAX as u64,
    1 << 40,
    1 << 60,
    i64::MAX as u64,
    u64::MAX,
];

/// Arguments of sensible and extreme values; `pick(n)` chooses one of n.
pub fn wish(pick: &mut dyn FnMut(usize) -> usize) -> String {
    let number = |pick: &mut dyn FnMut(usize) -> usize| NUMBERS[pick(NUMBERS.len())];
    let mut words = vec![format!("code={}", CODES[pick(CODES.len())])];
    if pick(5) == 0 {
        words.push("sector=4096".into());
    }
    if pick(4) == 0 {
        words.push(format!("algorithm={}", ALGORITHMS[pick(ALGORITHMS.len())]));
    }
    words.push(format!("consistency={}", ["ppl", "bitmap", "none"][pick(3)]));
    for (key, often) in [("unit", 3), ("region", 6), ("log", 6), ("spares", 6)] {
        if pick(often) == 0 {
            words.push(format!("{key}={}", number(pick)));
        }
    }
    let count = if pick(20) == 0 { pick(300) } else { pick(12) };
    let size = if pick(2) == 0 { 1 << (24 + pick(40)) } else { number(pick) };
    words.push(format!("disks={size}*{count},{}*{}", number(pick), pick(2)));
    words.join(" ")
}

/// A disk of any size that stores only sectors that are not zero.
struct Claimed {
    info: DiskInfo,
    sectors: RefCell<BTreeMap<u64, Vec<u8>>>,
    written: Cell<bool>,
}

impl Claimed {
    fn check(&self, op: DiskOp, offset: u64, len: u64) -> Result<(), DiskError> {
        let sector = u64::from(self.info.sector_bytes);
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.info.size_bytes);
        assert!(
            inside && offset.is_multiple_of(sector) && len.is_multiple_of(sector),
            "{op:?} of {len} bytes at {offset} of {:?}",
            self.info
        );
        Ok(())
    }

    fn sector(&self) -> u64 {
        u64::from(self.info.sector_bytes)
    }

    fn zero(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        self.written.set(true);
        let result = self.check(DiskOp::Write, offset, len);
        let mut sectors = self.sectors.borrow_mut();
        let mut after = sectors.split_off(&(offset / self.sector()));
        sectors.append(&mut after.split_off(&((offset + len) / self.sector())));
        Box::pin(async move { result })
    }
}

impl Disk for Claimed {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf, _: Class) -> ReadFuture<'_> {
        let result = self.check(DiskOp::Read, offset, buf.len() as u64);
        let sectors = self.sectors.borrow();
        for (n, part) in (offset / self.sector()..).zip(buf.chunks_mut(at(self.sector()))) {
            match sectors.get(&n) {
                Some(bytes) => part.copy_from_slice(bytes),
                None => part.fill(0),
            }
        }
        Box::pin(async move { (result, buf) })
    }

    fn write(&self, offset: u64, data: Frozen, _: WriteOpts) -> DoneFuture<'_> {
        let done = self.zero(offset, data.len() as u64);
        let mut sectors = self.sectors.borrow_mut();
        for (n, part) in (offset / self.sector()..).zip(data.chunks(at(self.sector()))) {
            if part.iter().any(|byte| *byte != 0) {
                sectors.insert(n, part.to_vec());
            }
        }
        done
    }

    fn flush(&self) -> DoneFuture<'_> {
        Box::pin(async { Ok(()) })
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: WriteOpts) -> DoneFuture<'_> {
        self.zero(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> DoneFuture<'_> {
        self.zero(offset, len)
    }
}

fn at(n: u64) -> usize {
    usize::try_from(n).expect("small")
}

/// The outcome.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// The words are not arguments.
    Meaningless,
    /// The request was refused, with this text.
    Refused(String),
    /// The array was made.
    Made,
}

/// Asks for the array that `words` describe. Whatever they say, there is no panic and no access
/// outside a disk, a refusal writes nothing and gives a reason, and what is made is what was
/// planned.
pub fn exercise(words: &str) -> Fate {
    let Some((options, disks)) = parse(words) else { return Fate::Meaningless };
    let claimed: Vec<Rc<Claimed>> = disks;
    let disks: Vec<Rc<dyn Disk>> = claimed.iter().map(|d| d.clone() as Rc<dyn Disk>).collect();
    let planned = plan(&disks, &options).now_or_never().expect("these disks never wait");
    assert!(claimed.iter().all(|disk| !disk.written.get()), "a plan wrote");
    let made = create(&disks, &options).now_or_never().expect("these disks never wait");
    match (planned, made) {
        (Ok(planned), Ok(superblock)) => {
            let bytes = superblock.encode(superblock.self_id).expect("what was made can be said");
            assert_eq!(Superblock::decode(&bytes).expect("and is sound"), superblock);
            assert_eq!(superblock.regions().expect("sound").stripes, planned.stripes);
            assert!(planned.size_bytes > 0 && !planned.to_string().is_empty());
            assert!(claimed.iter().all(|disk| disk.written.get()));
            Fate::Made
        }
        (Err(error), Err(again)) => {
            let reason = error.to_string();
            assert!(!reason.is_empty() && reason == again.to_string());
            assert!(claimed.iter().all(|disk| !disk.written.get()), "a refusal wrote: {reason}");
            Fate::Refused(reason)
        }
        (planned, made) => panic!("planned {planned:?}, but made {made:?}"),
    }
}

fn parse(words: &str) -> Option<(CreateOptions, Vec<Rc<Claimed>>)> {
    let mut options = CreateOptions {
        name: "data".into(),
        code: "raid5".parse().ok()?,
        algorithm: None,
        unit_bytes: 64 << 10,
        consistency: Consistency::Bitmap,
        region_bytes: None,
        log_bytes: None,
        head_room_bytes: None,
        spares: 0,
        force: false,
        id: [7; 16],
        now_unix_s: 1_700_000_000,
    };
    let mut disks = Vec::new();
    let mut sector_bytes = 512;
    for word in words.split_whitespace() {
        let (key, value) = word.split_once('=')?;
        match key {
            "name" => options.name = value.to_owned(),
            "code" => options.code = value.parse().ok()?,
            "algorithm" => options.algorithm = Some(value.parse().ok()?),
            "unit" => options.unit_bytes = value.parse().ok()?,
            "region" => options.region_bytes = Some(value.parse().ok()?),
            "log" => options.log_bytes = Some(value.parse().ok()?),
            "spares" => options.spares = value.parse().ok()?,
            "force" => options.force = true,
            "sector" => sector_bytes = if value == "4096" { 4096 } else { 512 },
            "consistency" => {
                options.consistency = match value {
                    "ppl" => Consistency::Ppl,
                    "bitmap" => Consistency::Bitmap,
                    "none" => Consistency::None,
                    _ => return None,
                }
            }
            "disks" => {
                for some in value.split(',') {
                    let (size, count) = some.split_once('*').unwrap_or((some, "1"));
                    let (size, count): (u64, usize) = (size.parse().ok()?, count.parse().ok()?);
                    for _ in 0..count.min(DISKS_MAX - disks.len()) {
                        let name = format!("disk{}", disks.len());
                        let size_bytes = size - size % u64::from(sector_bytes);
                        let info = DiskInfo {
                            name,
                            size_bytes,
                            sector_bytes,
                            fast_zeroes: true,
                            volatile_cache: true,
                            rotational: false,
                        };
                        disks.push(Rc::new(Claimed {
                            info,
                            sectors: RefCell::default(),
                            written: Cell::new(false),
                        }));
                    }
                }
            }
            _ => return None,
        }
    }
    Some((options, disks))
}
