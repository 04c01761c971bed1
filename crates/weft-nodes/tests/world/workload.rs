//! What programs do on each machine: they write and read parts of files, save files under names
//! that others use as well, remove and look them up, and append to one log.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use weft_fs::{Fs, FsError, Ino, Kind, NewFile, Rename};
use weft_random::Rng;
use weft_rt::{Frozen, MILLISECOND, Nanos, SECOND};

use super::World;
use super::canary::Canary;
use super::oracle::{Oracle, Register, Write, told};
use super::process::Process;

/// The writes of a sector of which something may be left.
type Sector = Vec<Rc<Write<u64>>>;

pub const SECTOR: usize = 512;
/// Sectors and redundancies of files.
pub const FILES: [(usize, &str); 3] = [(120, "raid5"), (120, "raid1"), (900, "raid5")];
/// Names that all use.
pub const NAMES: usize = 5;
/// Bytes of an appended record.
const RECORD: usize = 64;
const SAVED: usize = 3000;

/// Bytes that tell offset and version.
pub fn pattern(len: usize, version: u64) -> Vec<u8> {
    let word = |at: usize| {
        (at as u64 / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version.wrapping_mul(0xd6e8_feb8)
    };
    (0..len).map(|at| word(at).to_le_bytes()[at % 8]).collect()
}

pub fn sector(ino: Ino, number: usize, version: u64) -> Vec<u8> {
    pattern(SECTOR, version << 24 | ino << 12 | number as u64)
}

pub fn new_file(kind: Kind) -> NewFile<'static> {
    NewFile { mode: kind.mode() | 0o644, umask: 0, uid: 1, gid: 2, device: 0, target: b"" }
}

/// A file, and the writes of each of its sectors of which something may be left.
pub struct File {
    pub ino: Ino,
    sectors: Vec<Register<u64>>,
    versions: Cell<u64>,
}

/// An appended record.
#[derive(Clone)]
struct Record {
    life: u64,
    begin: Nanos,
    /// Where it is, once that is known.
    at: Option<u64>,
    end: Nanos,
    is_synced: bool,
}

/// What the programs use, and what they know of it.
pub struct Files {
    oracle: Rc<Oracle>,
    files: Vec<File>,
    folder: Ino,
    names: Vec<Register<Option<Ino>>>,
    log: Ino,
    records: RefCell<Vec<Record>>,
    saved: Cell<u64>,
}

/// Where they are in a new file system.
#[derive(Clone)]
pub struct Places {
    pub files: Vec<Ino>,
    pub folder: Ino,
    pub log: Ino,
}

impl Files {
    pub fn new(oracle: &Rc<Oracle>, places: &Places) -> Self {
        let first = |len: usize| (0..len).map(|_| RefCell::new(vec![Oracle::first(0)])).collect();
        let file = |(ino, (len, _)): (&Ino, &(usize, &str))| File {
            ino: *ino,
            sectors: first(*len),
            versions: Cell::new(0),
        };
        Self {
            oracle: oracle.clone(),
            files: places.files.iter().zip(&FILES).map(file).collect(),
            folder: places.folder,
            names: (0..NAMES).map(|_| RefCell::new(vec![Oracle::first(None)])).collect(),
            log: places.log,
            records: RefCell::default(),
            saved: Cell::new(0),
        }
    }

    /// Checks what is there at the end, when nothing writes any more.
    pub async fn check(&self, fs: &Fs, what: &str) {
        for file in &self.files {
            let len = file.sectors.len() * SECTOR;
            let found = match read_all(fs, file.ino).await {
                Ok(found) => found,
                Err(error) => {
                    self.oracle.violate(format!("{what}: inode {}: {error}", file.ino));
                    continue;
                }
            };
            if found.len() != len {
                let text = format!("{what}: inode {} has {} bytes", file.ino, found.len());
                self.oracle.violate(text);
                continue;
            }
            self.judge(file, 0..file.sectors.len(), &found, None, what);
        }
        for number in 0..NAMES {
            let found = self.look(fs, number).await;
            match found {
                Ok(found) => {
                    self.judge_name(number, Nanos::MAX, &[], what, |value| *value == found)
                }
                Err(error) => self.oracle.violate(format!("{what}: name {number}: {error}")),
            }
        }
        match read_all(fs, self.log).await {
            Ok(found) => self.judge_log(&found, Nanos::MAX, what),
            Err(error) => self.oracle.violate(format!("{what}: the log: {error}")),
        }
    }

    /// `since` is when the read began, and what the sectors had then; without it nothing writes.
    fn judge(
        &self,
        file: &File,
        range: Range<usize>,
        found: &[u8],
        since: Option<(Nanos, &[Sector])>,
        what: &str,
    ) {
        let (begin, before) = since.unwrap_or((Nanos::MAX, &[]));
        for (place, (n, bytes)) in range.zip(found.chunks(SECTOR)).enumerate() {
            let before = before.get(place).map_or(&[][..], |before| before);
            let is_it = |version: &u64| sector(file.ino, n, *version) == bytes;
            if !self.oracle.may_read(begin, before, &file.sectors[n], is_it) {
                let version = (0..=file.versions.get()).find(is_it);
                let ino = file.ino;
                let may: Vec<String> = file.sectors[n].borrow().iter().map(|w| w.tell()).collect();
                self.oracle.violate(format!(
                    "{what}: sector {n} of inode {ino} has version {version:?}, of {may:?}"
                ));
                return;
            }
        }
    }

    fn judge_name(
        &self,
        number: usize,
        begin: Nanos,
        before: &[Rc<Write<Option<Ino>>>],
        what: &str,
        is_it: impl Fn(&Option<Ino>) -> bool,
    ) {
        let register = &self.names[number];
        if !self.oracle.may_read(begin, before, register, is_it) {
            let may: Vec<String> = register.borrow().iter().map(|write| write.tell()).collect();
            self.oracle.violate(format!("{what}: name {number} must be of {may:?}"));
        }
    }

    fn judge_log(&self, found: &[u8], begin: Nanos, what: &str) {
        let records = self.records.borrow();
        let mut seen = vec![None; records.len()];
        for (place, bytes) in found.chunks(RECORD).enumerate() {
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default()) as usize;
            let is_right = number < records.len() && record(number) == bytes;
            if !is_right || seen[number].is_some() {
                return self
                    .oracle
                    .violate(format!("{what}: record {place} of the log: {bytes:?}"));
            }
            let at = (place * RECORD) as u64;
            if records[number].at.is_some_and(|right| right != at) {
                return self.oracle.violate(format!("{what}: record {number} is at {at}"));
            }
            seen[number] = Some(at);
        }
        for (number, of) in records.iter().enumerate() {
            let must = of.end < begin && (of.is_synced || !self.oracle.is_doomed(of.life));
            if must && of.at.is_some() && seen[number].is_none() {
                let Record { at, life, begin, end, is_synced } = of;
                return self.oracle.violate(format!(
                    "{what}: record {number} at {at:?} of life {life} ({begin}..{end}, synced \
                     {is_synced}) is not there"
                ));
            }
        }
    }

    /// What a name means, and whether the file has what was saved.
    async fn look(&self, fs: &Fs, number: usize) -> Result<Option<Ino>, FsError> {
        match fs.lookup(self.folder, &name(number)).await {
            Ok((ino, _)) => Ok(Some(ino)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl<V: std::fmt::Debug> Write<V> {
    fn tell(&self) -> String {
        let (begin, end) = (self.begin / 1_000_000, self.end.get().min(u64::MAX - 1) / 1_000_000);
        let synced = if self.is_synced.get() { ", synced" } else { "" };
        format!("{:?} by {} ({begin}..{end} ms{synced})", self.value, self.life)
    }
}

fn name(number: usize) -> Vec<u8> {
    format!("name {number}").into_bytes()
}

fn record(number: usize) -> Vec<u8> {
    let mut bytes = pattern(RECORD, number as u64 + 77);
    bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
    bytes
}

impl Files {
    /// The files that programs overwrite.
    pub fn inos(&self) -> Vec<Ino> {
        self.files.iter().map(|file| file.ino).collect()
    }
}

pub async fn read_all(fs: &Fs, ino: Ino) -> Result<Vec<u8>, FsError> {
    let size = fs.attr(ino).await?.size;
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size {
        let part = fs.read(ino, bytes.len() as u64, 1 << 20).await?;
        if part.is_empty() {
            break;
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

/// Programs of a process begin to work.
pub fn begin(world: &Rc<World>, process: &Rc<Process>, fs: &Fs) {
    for what in 0..4 {
        let rng = RefCell::new(Rng::new(world.draw(|rng| rng.next_u64())));
        let program = Program {
            world: world.clone(),
            process: process.clone(),
            fs: fs.clone(),
            rng,
            written: RefCell::default(),
            named: RefCell::default(),
        };
        process.working.set(process.working.get() + 1);
        process.rt.spawn(async move {
            if let Err(error) = program.work(what).await {
                program.fail(&error);
            }
            let working = &program.process.working;
            working.set(working.get() - 1);
            program.process.told.notify_all();
        });
    }
}

/// A program on a machine.
struct Program {
    world: Rc<World>,
    process: Rc<Process>,
    fs: Fs,
    rng: RefCell<Rng>,
    /// What it has written and not synced.
    written: RefCell<Vec<Rc<Write<u64>>>>,
    named: RefCell<Vec<Rc<Write<Option<Ino>>>>>,
}

impl Program {
    fn draw(&self, below: u64) -> u64 {
        self.rng.borrow_mut().below(below)
    }

    fn chance(&self, percent: u64) -> bool {
        self.rng.borrow_mut().chance(percent)
    }

    fn files(&self) -> &Files {
        &self.world.files
    }

    fn oracle(&self) -> &Oracle {
        &self.world.oracle
    }

    fn life(&self) -> u64 {
        self.process.life
    }

    fn now(&self) -> Nanos {
        self.world.rt.now()
    }

    /// What it reads does not count any more.
    fn tell(&self, what: String) {
        if told() > 1 {
            self.oracle().tell(format!("life {} {what}", self.life()));
        }
    }

    fn is_doomed(&self) -> bool {
        self.oracle().is_doomed(self.life())
    }

    fn fail(&self, error: &FsError) {
        use FsError::{Damaged, LostWrites, NoSpace, Unreadable};
        // A disk has joined without which the node was mounted: it is about to stop.
        let joined = matches!(error, Damaged(why) if why.starts_with("there is no disk"));
        let is_wrong = matches!(error, Damaged(_) | LostWrites(_) | NoSpace | Unreadable { .. });
        let is_wrong = is_wrong && !(joined && self.oracle().counts.borrow().added > 0);
        if is_wrong && !self.is_doomed() && self.oracle().lost().len() <= 1 {
            self.oracle().violate(format!("life {}: {error}", self.life()));
        } else {
            self.oracle().tell(format!("life {}: {error}", self.life()));
        }
    }

    async fn work(&self, what: u64) -> Result<(), FsError> {
        while !self.process.is_ending.get() {
            let pause = match self.chance(70) {
                true => self.draw(20) * MILLISECOND,
                // Dead nodes leave something in their logs if they were busy.
                false if self.is_busy() => 0,
                false => self.draw(900) * MILLISECOND,
            };
            self.process.rt.sleep(pause).await;
            self.process.doing.borrow_mut().insert(what, self.now());
            match what {
                0 | 1 => self.work_on_a_file(what).await?,
                2 => self.work_on_a_name().await?,
                _ => self.work_on_the_log().await?,
            }
            self.process.doing.borrow_mut().remove(&what);
            self.process.worked.set(self.now());
        }
        self.sync().await
    }

    fn is_busy(&self) -> bool {
        matches!(self.world.scenario.canary, Canary::OnlyNodesDie | Canary::RingRecoveredTwice)
    }

    async fn sync(&self) -> Result<(), FsError> {
        let (mut written, mut named) = (self.written.take(), self.named.take());
        self.fs.sync().await?;
        self.oracle().synced(&mut written);
        self.oracle().synced(&mut named);
        Ok(())
    }

    async fn work_on_a_file(&self, what: u64) -> Result<(), FsError> {
        let files = &self.files().files;
        let file = match what {
            0 => &files[0],
            _ => &files[1 + self.draw(2) as usize],
        };
        let from = self.draw(file.sectors.len() as u64) as usize;
        let most = if self.chance(15) { 100 } else { 12 };
        let range = from..(from + 1 + self.draw(most) as usize).min(file.sectors.len());
        match self.draw(10) {
            0..4 => self.read_some(file, range).await?,
            _ => self.write_some(file, range).await?,
        }
        if self.chance(25) {
            let mut written = self.written.take();
            self.fs.fsync(file.ino).await?;
            // Those of the other file are not.
            let is_its = |write: &Rc<Write<u64>>| {
                let is_there =
                    |of: &Register<u64>| of.borrow().iter().any(|w| Rc::ptr_eq(w, write));
                file.sectors.iter().any(is_there)
            };
            let mut its: Vec<_> = written.extract_if(.., |write| is_its(write)).collect();
            self.oracle().synced(&mut its);
            self.written.borrow_mut().extend(written);
            file.sectors.iter().for_each(|register| self.oracle().prune(register));
        }
        Ok(())
    }

    async fn write_some(&self, file: &File, range: Range<usize>) -> Result<(), FsError> {
        let version = file.versions.get() + 1;
        file.versions.set(version);
        let bytes: Vec<u8> = range.clone().flat_map(|n| sector(file.ino, n, version)).collect();
        let at = (range.start * SECTOR) as u64;
        let write = self.oracle().begin(version, self.life(), &file.sectors[range.clone()]);
        self.tell(format!("writes {} at {range:?}", file.ino));
        self.fs.write(file.ino, at, Frozen::copy_from(&bytes)).await?;
        self.tell(format!("wrote {}", file.ino));
        self.oracle().end(&write);
        self.oracle().counts.borrow_mut().writes += 1;
        self.written.borrow_mut().push(write);
        Ok(())
    }

    async fn read_some(&self, file: &File, range: Range<usize>) -> Result<(), FsError> {
        let begin = self.now();
        let before: Vec<_> =
            file.sectors[range.clone()].iter().map(|of| of.borrow().clone()).collect();
        let (at, len) = ((range.start * SECTOR) as u64, range.len() * SECTOR);
        let found = self.fs.read(file.ino, at, len).await?;
        if !self.is_doomed() {
            self.oracle().counts.borrow_mut().reads += 1;
            let what = format!("life {}", self.life());
            self.files().judge(file, range, &found, Some((begin, &before)), &what);
        }
        Ok(())
    }

    /// A file is saved under a name, a name is removed, or looked up.
    async fn work_on_a_name(&self) -> Result<(), FsError> {
        let number = self.draw(NAMES as u64) as usize;
        let folder = self.files().folder;
        let what = self.draw(10);
        self.tell(format!("name {number}: {what}"));
        match what {
            0..3 => self.save(number, self.chance(30)).await?,
            3..5 => {
                let begin = self.now();
                let register = &self.files().names[number];
                let before = register.borrow().clone();
                let write = self.begin_name(None, number);
                match self.fs.unlink(folder, &name(number)).await {
                    Ok(()) => {
                        self.end_name(&write);
                        self.saw(number, begin, &before, "removed", |value| value.is_some());
                    }
                    Err(FsError::NotFound) => {
                        self.did_nothing(&write, number);
                        self.saw(number, begin, &before, "not removed", |value| value.is_none());
                    }
                    Err(error) => return Err(error),
                }
            }
            _ => {
                let begin = self.now();
                let before = self.files().names[number].borrow().clone();
                let found = self.files().look(&self.fs, number).await?;
                self.saw(number, begin, &before, "found", |value| *value == found);
                if let Some(ino) = found {
                    self.check_saved(ino).await?;
                }
            }
        }
        if self.chance(25) {
            self.tell("syncs".into());
            self.sync().await?;
            self.tell("has synced".into());
            self.files().names.iter().for_each(|register| self.oracle().prune(register));
        }
        Ok(())
    }

    fn begin_name(&self, value: Option<Ino>, number: usize) -> Rc<Write<Option<Ino>>> {
        self.oracle().counts.borrow_mut().names += 1;
        self.oracle().begin(value, self.life(), &self.files().names[number..=number])
    }

    fn end_name(&self, write: &Rc<Write<Option<Ino>>>) {
        self.oracle().end(write);
        self.named.borrow_mut().push(write.clone());
    }

    fn did_nothing(&self, write: &Rc<Write<Option<Ino>>>, number: usize) {
        self.files().names[number].borrow_mut().retain(|of| !Rc::ptr_eq(of, write));
    }

    fn saw(
        &self,
        number: usize,
        begin: Nanos,
        before: &[Rc<Write<Option<Ino>>>],
        what: &str,
        is_it: impl Fn(&Option<Ino>) -> bool,
    ) {
        if !self.is_doomed() {
            let what = format!("life {} {what}", self.life());
            self.files().judge_name(number, begin, before, &what, is_it);
        }
    }

    /// As editors do: a new file is written and synced, and then gets the name. With `is_new` only
    /// if the name is free.
    async fn save(&self, number: usize, is_new: bool) -> Result<(), FsError> {
        let saved = self.files().saved.get();
        self.files().saved.set(saved + 1);
        let (folder, temporary) = (self.files().folder, format!("new {saved}").into_bytes());
        let (ino, _) = self.fs.make(folder, &temporary, new_file(Kind::File)).await?;
        self.tell(format!("made {ino}"));
        let bytes = pattern(SAVED, ino);
        self.fs.write(ino, 0, Frozen::copy_from(&bytes)).await?;
        self.tell(format!("wrote {ino}"));
        self.fs.fsync(ino).await?;
        self.tell(format!("synced {ino}"));
        let begin = self.now();
        let before = self.files().names[number].borrow().clone();
        let write = self.begin_name(Some(ino), number);
        let how = if is_new { Rename::NoReplace } else { Rename::Replace };
        let to = name(number);
        match self.fs.rename((folder, &temporary), (folder, &to), how).await {
            Ok(()) => {
                self.end_name(&write);
                if is_new {
                    self.saw(number, begin, &before, "renamed", |value| value.is_none());
                }
            }
            Err(FsError::Exists) if is_new => {
                self.did_nothing(&write, number);
                self.saw(number, begin, &before, "did not rename", |value| value.is_some());
                self.fs.unlink(folder, &temporary).await?;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A file that was found by a name has what was saved, unless it was removed meanwhile.
    async fn check_saved(&self, ino: Ino) -> Result<(), FsError> {
        let found = match read_all(&self.fs, ino).await {
            Ok(found) => found,
            Err(FsError::NotFound) => return Ok(()),
            Err(error) => return Err(error),
        };
        let is_there = self.fs.attr(ino).await.is_ok();
        if is_there && !self.is_doomed() && found != pattern(SAVED, ino) {
            let len = found.len();
            self.oracle().violate(format!("life {}: file {ino} of {len} bytes", self.life()));
        }
        Ok(())
    }

    async fn work_on_the_log(&self) -> Result<(), FsError> {
        let log = self.files().log;
        if self.chance(40) {
            let begin = self.now();
            let found = read_all(&self.fs, log).await?;
            if !self.is_doomed() {
                self.files().judge_log(&found, begin, &format!("life {}", self.life()));
            }
            return Ok(());
        }
        let number = {
            let mut records = self.files().records.borrow_mut();
            let (life, begin) = (self.life(), self.now());
            records.push(Record { life, begin, at: None, end: Nanos::MAX, is_synced: false });
            records.len() - 1
        };
        self.oracle().counts.borrow_mut().appends += 1;
        let at = self.fs.append(log, Frozen::copy_from(&record(number))).await?;
        let end = self.now();
        {
            let of = &mut self.files().records.borrow_mut()[number];
            (of.at, of.end) = (Some(at), end);
        }
        if self.chance(40) {
            self.fs.fsync(log).await?;
            let mut records = self.files().records.borrow_mut();
            let its = records.iter_mut().filter(|of| of.life == self.life() && of.end <= end);
            its.for_each(|of| of.is_synced = true);
        }
        self.process.rt.sleep(self.draw(SECOND / 2)).await;
        Ok(())
    }
}
