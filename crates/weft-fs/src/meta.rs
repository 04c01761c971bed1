//! The metadata: a redb database on a mirrored array, through an [`Image`] that has a part of it in
//! memory.
//!
//! *Two halves.* An operation is a closure ([`Meta::run`]). It changes rows in memory, in the half
//! of this node ([`node`]), and sees what those before it did, whether the store has it or not. The
//! half of the keeper ([`keeper`]) has the store, and gets the changes of a commit as plain data.
//!
//! One operation runs at a time, to its end: where it needs a page that is not in memory, it waits,
//! and the next ones wait after it. State that is *not* metadata may change during this. So a
//! closure holds no borrow while it looks at rows, and what it looked at before counts only if a
//! lock or token keeps it unchanged. An operation checks everything before it changes anything: its
//! changes cannot be undone separately.
//!
//! *Locks.* That of commits comes first, then that of operations, which each use of the store
//! takes, then that of writing epochs, which an operation takes only to make room. Nothing else is
//! waited for under any of them but the array.
//!
//! ```text
//! array    0       header: magic, version, identity, length of the database, begin of the journal
//!          64 KiB  RAID log
//!          …       page journal
//!          …       database
//!          …       checksums of its pages
//!          …       more of both, as often as the metadata has grown ([`header`])
//! ```

mod bad;
mod changes;
mod commits;
pub(crate) mod desk;
mod extent_watches;
mod header;
mod image;
mod journal;
mod keeper;
mod keeper_file;
mod known_extents;
/// What a simulated network connects.
#[cfg(test)]
mod links {
    pub(super) use super::server::KeeperServer;
    pub(super) use super::stream::{Connector, Stream};
}
mod maps;
#[cfg(test)]
#[path = "../tests/common/network.rs"]
#[expect(dead_code, reason = "other tests use all of it")]
pub(crate) mod network;
mod node;
mod numbers;
#[cfg(test)]
#[path = "../tests/common/old_way.rs"]
mod old_way;
mod outbox;
mod overlay;
mod pages;
mod places;
mod reach;
mod recent_rows;
pub(crate) mod remote;
mod remote_rows;
#[cfg(test)]
mod remote_story;
mod rings;
mod room;
mod row_bytes;
mod rows;
pub(crate) mod server;
mod spans;
#[cfg(test)]
mod story;
pub(crate) mod stream;
mod sums;
mod tables;
mod transaction;
mod turns;
mod values;
mod walks;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use weft_array::{Array, Consistency, CreateOptions, Id};
use weft_code::CodeSpec;
use weft_rt::fiber;
use weft_rt::sync::Semaphore;

use crate::error::{FsError, Result};
use crate::format::inode::Ino;
use changes::Changes;
pub(crate) use extent_watches::ExtentWatch;
#[cfg(test)]
pub(crate) use extent_watches::{IS_BLIND, SEEN_CHANGES};
pub(crate) use header::array_bytes;
use header::{Areas, HeaderFields};
use image::Image;
use keeper::Keeper;
use keeper_file::KeeperFile;
use node::Node;
pub(crate) use numbers::NEXT_INODE;
pub use pages::MetaCacheCounts;
pub use places::MetaPageCounts;
pub(crate) use places::PageReport;
use reach::Reach;
pub(crate) use recent_rows::RecentRows;
use remote::{Link, LostClient, RemoteKeeper};
pub(crate) use rings::{NodeLog, RingRun};
pub(crate) use room::{
    LongFiles, capacity_for, next_step, row_bytes_for_all, step_above, step_below,
};
pub(crate) use tables::{DiskRow, Entry};
pub(crate) use transaction::Tx;

/// Format of the metadata.
pub(crate) const FORMAT: u64 = 3;
/// Format of the metadata from the first file on that has flags.
pub(crate) const FORMAT_WITH_FLAGS: u64 = 4;
/// Format of the metadata from the first record on that is unwritten.
pub(crate) const FORMAT_WITH_UNWRITTEN: u64 = 5;
/// Format of the metadata from the first node on that has a log on the disks.
pub(crate) const FORMAT_WITH_RINGS: u64 = 6;
/// The number of the disk that is being emptied, or was before it was lost, plus one; in the state.
pub(crate) const LEAVING: &str = "leaving disk";
/// Copies of the metadata, if there are enough disks.
pub(crate) const META_COPIES: usize = 3;
/// The part of the memory for metadata that changes may take before they are committed. Those that
/// a commit carries may take as much once more.
const WAITING_SHARE: u64 = 8;
/// What these may always take.
const WAITING_BYTES_MIN: u64 = 32 << 10;
/// The most that they take: a sync waits for the commit of all of them.
const WAITING_BYTES_MAX: u64 = 8 << 20;

/// The most rows that an operation on very many handles at a time.
const ROWS_MAX: usize = 256;

/// How the metadata array of a file system on `disks` disks is made, if these are not examined any
/// more.
pub(crate) fn array_options(name: &str, disks: usize, fs_id: Id, now_unix_s: u64) -> CreateOptions {
    CreateOptions {
        name: name.to_owned(),
        code: CodeSpec::Raid1,
        algorithm: None,
        unit_bytes: 64 << 10,
        consistency: Consistency::default_for(CodeSpec::Raid1),
        region_bytes: None,
        log_bytes: None,
        head_room_bytes: Some(0),
        spares: disks.saturating_sub(META_COPIES),
        force: true,
        id: fs_id.member(1, 0).0,
        now_unix_s,
    }
}

/// How many rows are handled at a time with this number of pages in memory.
fn rows_at_a_time(pages_max: usize) -> usize {
    (pages_max / 64).clamp(2, ROWS_MAX)
}

/// How many bytes of changes may wait, of this memory for metadata.
fn waiting_bytes(cache_bytes: u64) -> u64 {
    (cache_bytes / WAITING_SHARE).min(WAITING_BYTES_MAX)
}

type TellFailed = Box<dyn Fn(&str)>;

/// The metadata of a mounted file system.
pub(crate) struct Meta {
    /// The array that has the metadata, where this process has it open.
    array: Option<Array>,
    /// The place of the log on the array.
    log: Range<u64>,
    /// The number of this node.
    number: u16,
    /// Bytes of rows that other nodes have added, as far as it is known.
    row_bytes_of_others: Cell<u64>,
    node: Node,
    keeper: Reach,
    /// The file of a keeper that serves several nodes from this process.
    file: RefCell<Option<KeeperFile>>,
    /// The most bytes of changes that wait before a commit.
    waiting_bytes_max: u64,
    /// Held while an operation runs, or the store is used.
    operating: Semaphore,
    /// Held while a commit is under way.
    committing: Semaphore,
    /// Why no more requests are taken.
    failed: RefCell<Option<String>>,
    tell_failed: RefCell<Option<TellFailed>>,
    changes: Changes,
    /// Whether commits store which pages are free.
    is_ending: Cell<bool>,
}

impl Meta {
    /// Makes an empty database. About `cache_bytes` of it may be in memory.
    pub(crate) async fn create(array: Array, fs_id: Id, cache_bytes: u64) -> Result<Self> {
        let meta = Self::with(array, fs_id, HeaderFields::NEW, cache_bytes).await?;
        if let Some(keeper) = meta.keeper.here() {
            fiber::run(|| keeper.create_tables()).await?;
        }
        Ok(meta)
    }

    /// Opens the database that is on the array. About `cache_bytes` of it may be in memory.
    pub(crate) async fn open(array: Array, fs_id: Id, cache_bytes: u64) -> Result<Self> {
        let stored = header::read(&array, fs_id).await?;
        let meta = Self::with(array, fs_id, stored, cache_bytes).await?;
        if let Some(keeper) = meta.keeper.here() {
            keeper.image.check_awaiting_resync().await?;
        }
        meta.start().await?;
        Ok(meta)
    }

    /// Reaches the keeper by messages. The array, where there is one, has the log; `cache_bytes`
    /// bound the changes that wait.
    pub(crate) async fn open_remote(
        array: Option<Array>,
        fs_id: Id,
        keeper: RemoteKeeper,
        cache_bytes: u64,
    ) -> Result<Self> {
        let log = match &array {
            Some(array) => {
                let stored = header::read(array, fs_id).await?;
                Areas::stored(array.size_bytes(), &stored)?.log
            }
            None => 0..0,
        };
        let next_batch = keeper.connected().await?.next_batch();
        let (number, keeper) = (keeper.number(), Reach::Remote(keeper));
        let meta = Self::made(array, log, (number, keeper), waiting_bytes(cache_bytes));
        meta.node.start_at(next_batch);
        meta.start().await?;
        Ok(meta)
    }

    /// Learns what the node must know of the store.
    async fn start(&self) -> Result<()> {
        self.look_at_others().await?;
        let name = row_bytes::row_bytes_name(self.number);
        let stored = self.run(|tx| tx.state(&name)).await?;
        let rows = match stored {
            // Older versions did not store it.
            0 if self.number == 0 => {
                let all = self.run(|tx| tx.count_row_bytes()).await?;
                all.wrapping_sub(self.row_bytes_of_others.get())
            }
            _ => stored,
        };
        self.node.set_stored_row_bytes(rows);
        self.changes.set_row_bytes(rows);
        if self.keeper.here().is_some() {
            match self.run(|tx| tx.state(NEXT_INODE)).await? {
                0 => {}
                next => self.node.set_unknown_from(next),
            }
        }
        Ok(())
    }

    /// What it has of recently read rows. It forgets them when another node may change any.
    pub(crate) fn recent_rows(&self) -> Rc<RefCell<RecentRows>> {
        self.node.recent_rows()
    }

    async fn with(array: Array, fs_id: Id, stored: HeaderFields, cache_bytes: u64) -> Result<Self> {
        let areas = Areas::stored(array.size_bytes(), &stored)?;
        let waiting_bytes_max = waiting_bytes(cache_bytes);
        let of_keeper = cache_bytes - 2 * waiting_bytes_max;
        let keeper = Keeper::open(array.clone(), fs_id, (&areas, stored), of_keeper).await?;
        let keeper = Reach::Here(Box::new(keeper));
        Ok(Self::made(Some(array), areas.log, (0, keeper), waiting_bytes_max))
    }

    fn made(
        array: Option<Array>,
        log: Range<u64>,
        (number, keeper): (u16, Reach),
        waiting_bytes_max: u64,
    ) -> Self {
        let (operating, committing) = (Semaphore::new(1), Semaphore::new(1));
        let (failed, changes, is_ending) =
            (RefCell::default(), Changes::default(), Cell::new(false));
        Self {
            array,
            log,
            number,
            row_bytes_of_others: Cell::new(0),
            node: Node::default(),
            keeper,
            file: RefCell::default(),
            waiting_bytes_max: waiting_bytes_max.max(WAITING_BYTES_MIN),
            operating,
            committing,
            failed,
            tell_failed: RefCell::default(),
            changes,
            is_ending,
        }
    }

    /// This node goes, after its last commit: its tokens are free.
    pub(crate) async fn leave(&self) -> Result<()> {
        match &self.keeper {
            Reach::Here(_) => Ok(()),
            Reach::Remote(keeper) => keeper.leave().await,
        }
    }

    /// The way to a keeper at another node, if it is there.
    pub(crate) fn link(&self) -> Option<Rc<Link>> {
        match &self.keeper {
            Reach::Here(_) => None,
            Reach::Remote(keeper) => Some(keeper.link()).filter(|link| link.node().number != 0),
        }
    }

    /// Who hears of disks that other nodes have lost, before any row that depends on it is read.
    pub(crate) fn on_lost_disk(&self, client: LostClient) {
        if let Reach::Remote(keeper) = &self.keeper {
            keeper.link().set_lost_client(client);
        }
    }

    /// The log's place on the array.
    pub(crate) fn log_area(&self) -> Range<u64> {
        self.log.clone()
    }

    /// The number of this node.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// The array that has the metadata.
    ///
    /// # Errors
    /// If another process has it.
    pub(crate) fn array(&self) -> Result<&Array> {
        let elsewhere = || {
            FsError::Invalid(format!(
                "node {} does not have the metadata: only its keeper can do this",
                self.number
            ))
        };
        self.array.as_ref().ok_or_else(elsewhere)
    }

    /// Rows that the store has may have been changed by other nodes.
    pub(crate) fn forget_recent(&self) {
        self.node.forget_recent();
    }

    /// Bytes that the database may have.
    pub(crate) fn capacity(&self) -> u64 {
        match &self.keeper {
            Reach::Here(keeper) => keeper.image.capacity(),
            Reach::Remote(keeper) => keeper.capacity(),
        }
    }

    /// Whether the keeper is reached by messages, and may have other nodes.
    pub(crate) fn is_kept_elsewhere(&self) -> bool {
        self.keeper.here().is_none()
    }

    /// The keeper that serves this node and others is in this process, and this is its file.
    pub(crate) fn share_file(&self, file: KeeperFile) {
        *self.file.borrow_mut() = Some(file);
    }

    /// Bytes that the database is to get next, if it has `capacity`: one more step of redb's.
    pub(crate) fn next_capacity(capacity: u64) -> u64 {
        room::capacity_for(room::next_step(room::pages_bytes(capacity)))
    }

    /// Whether this node can give the database more bytes.
    pub(crate) fn may_grow(&self) -> bool {
        self.image().is_ok_and(|image| image.may_grow())
    }

    /// The file of the database, which only the process of the keeper has.
    fn image(&self) -> Result<Image> {
        let here = self.keeper.here().map(|keeper| keeper.image.clone());
        let shared = || self.file.borrow().as_ref().map(|file| file.image.clone());
        here.or_else(shared).ok_or(FsError::Unsupported)
    }

    /// What comes of something that is done with the file of the database.
    ///
    /// # Errors
    /// If its keeper is not there, or not any more.
    async fn with_file<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        act: impl FnOnce(Image) -> F,
    ) -> Result<T> {
        let file = self.file.borrow().clone();
        match (self.keeper.here(), file) {
            (None, Some(file)) => file.carry_out(act).await,
            _ => Ok(act(self.image()?).await),
        }
    }

    /// Bytes of the array with which the database may have `capacity` bytes.
    pub(crate) fn array_bytes_for(&self, capacity: u64) -> Result<u64> {
        Ok(self.image()?.pieces_for(capacity)?.end())
    }

    /// Before the array gets larger: its parts stay where they are.
    pub(crate) async fn prepare_growth(&self) -> Result<()> {
        self.check()?;
        let fixed = self.with_file(|image| async move { image.fix_pieces().await }).await?;
        self.failing_to_write(fixed)
    }

    /// The array is large enough: the database may have `capacity` bytes from now on.
    pub(crate) async fn grow(&self, capacity: u64) -> Result<()> {
        self.check()?;
        let pieces = self.image()?.pieces_for(capacity)?;
        if pieces.end() > self.array()?.size_bytes() {
            return Err(FsError::NoSpace);
        }
        let taken = self.with_file(|image| async move { image.take_pieces(pieces).await }).await?;
        self.failing_to_write(taken)
    }

    /// What pages in memory were good for.
    pub(crate) fn cache_counts(&self) -> MetaCacheCounts {
        self.image().map(|image| image.counts()).unwrap_or_default()
    }

    /// What was found wrong with pages since the mount.
    pub(crate) fn page_counts(&self) -> MetaPageCounts {
        self.image().map(|image| image.page_counts()).unwrap_or_default()
    }

    /// Who is told which pages are wrong.
    pub(crate) fn on_wrong_page(&self, tell: impl Fn(&str) + 'static) {
        if let Ok(image) = self.image() {
            image.on_wrong(tell);
        }
    }

    /// Compares all copies of all pages with their checksums, and makes them right; the header as
    /// well. Not those of a keeper on another machine.
    pub(crate) async fn check_pages(&self) -> Result<PageReport> {
        self.check()?;
        if self.image().is_err() {
            return Ok(PageReport::default());
        }
        let report = self.with_file(|image| async move { image.check().await }).await??;
        let written = self.with_file(|image| async move { image.rewrite_header().await }).await?;
        self.failing_to_write(written)?;
        Ok(report)
    }

    /// How many rows an operation on very many is to handle at a time: they and their changes fit
    /// into memory, and other operations run in between.
    pub(crate) fn at_a_time(&self) -> usize {
        self.keeper.here().map_or(ROWS_MAX, |keeper| rows_at_a_time(keeper.image.pages_max()))
    }

    fn check(&self) -> Result<()> {
        match &*self.failed.borrow() {
            Some(why) => Err(FsError::Stopped(why.clone())),
            None => Ok(()),
        }
    }

    /// Whether no more requests are taken.
    pub(crate) fn is_failed(&self) -> bool {
        self.check().is_err()
    }

    /// Why no more requests are taken, if so.
    pub(crate) fn why_failed(&self) -> Option<String> {
        self.failed.borrow().clone()
    }

    /// Who is told when no more requests are taken, and why.
    pub(crate) fn on_fail(&self, tell: impl Fn(&str) + 'static) {
        *self.tell_failed.borrow_mut() = Some(Box::new(tell));
    }

    /// Takes no more requests.
    pub(crate) fn fail(&self, why: &str) {
        if self.failed.borrow().is_some() {
            return;
        }
        *self.failed.borrow_mut() = Some(why.to_owned());
        if let Some(tell) = &*self.tell_failed.borrow() {
            tell(why);
        }
    }

    /// Runs an operation, on a fiber: it waits where a page must be read, and other operations run
    /// after it. If it is dropped then, or the database itself fails, everything ends: the
    /// transaction may hold a part of the operation.
    pub(crate) async fn run<T>(&self, operation: impl FnOnce(&Tx<'_>) -> Result<T>) -> Result<T> {
        let _alone = self.operating.acquire(1).await;
        self.run_alone(operation).await
    }

    /// Runs an operation unless a commit must come first: then the operation is
    /// given back.
    pub(crate) async fn run_in_room<T, O: FnOnce(&Tx<'_>) -> Result<T>>(
        &self,
        operation: O,
    ) -> Result<std::result::Result<T, O>> {
        let _alone = self.operating.acquire(1).await;
        match self.is_crowded() {
            true => self.check().map(|()| Err(operation)),
            false => self.run_alone(operation).await.map(Ok),
        }
    }

    /// Commits, for a caller that holds `operating`.
    async fn run_alone<T>(&self, operation: impl FnOnce(&Tx<'_>) -> Result<T>) -> Result<T> {
        self.check()?;
        let run = || operation(&Tx::new(&self.node, &self.keeper, &self.changes));
        fiber::run(|| self.failing(run())).await
    }

    /// Takes no more requests if the database has failed.
    fn failing<T>(&self, result: Result<T>) -> Result<T> {
        match &result {
            Err(FsError::Database(error)) => self.fail(&error.to_string()),
            // The keeper has failed, or an operation was dropped while it waited for it.
            Err(FsError::Stopped(why)) => self.fail(why),
            _ => {}
        }
        result
    }

    /// Takes no more requests if pages could not be written.
    fn failing_to_write(&self, written: Result<()>) -> Result<()> {
        if let Err(error) = &written {
            self.fail(&error.to_string());
        }
        written
    }

    /// Whether a file was changed, since the last durable commit, in a way that the RAID log does
    /// not have. Fails if no more requests are taken.
    pub(crate) fn has_changed(&self, ino: Ino) -> Result<bool> {
        self.check()?;
        Ok(self.changes.has(ino))
    }

    /// From now on it is noted which files and folders change.
    pub(crate) fn watch(&self) {
        self.changes.watch(true);
    }

    /// It is not noted any more.
    pub(crate) fn end_watch(&self) {
        self.changes.watch(false);
    }

    /// Whether a file or folder may have changed since the watch started.
    pub(crate) fn may_have_changed(&self, ino: Ino) -> bool {
        self.changes.may_have_changed(ino)
    }

    /// Other nodes may change the records of a file from now on.
    pub(crate) fn note_given_up(&self, ino: Ino) {
        self.changes.note_extent(ino, 0..u64::MAX);
    }

    /// Whether a line got another column since the last durable commit.
    pub(crate) fn is_reshaped(&self, ino: Ino, block: u64) -> bool {
        self.changes.is_reshaped(ino, block)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::rc::Rc;

    use weft_array::AssembleOptions;
    use weft_disk::{Disk, Fault, FaultDisk, RamDisk};
    use weft_rt::{MILLISECOND, Rt, Schedule, virtual_rt};

    use super::*;
    use crate::format::checksum::put_crc32c_at;

    /// Runs `test` with a new array of two copies, of 7 MiB about, whose disks take their time.
    pub(super) fn with_array<F: Future<Output = ()> + 'static>(
        test: impl FnOnce(Array) -> F + 'static,
    ) {
        with_rt_and_array(|_, array| test(array));
    }

    pub(crate) fn with_rt_and_array<F: Future<Output = ()> + 'static>(
        test: impl FnOnce(Rt, Array) -> F + 'static,
    ) {
        let rt = virtual_rt(Schedule::Fifo);
        let inner = rt.clone();
        rt.block_on(async move {
            let disk = |n| {
                let ram = Rc::new(RamDisk::new(&format!("disk{n}"), 8 << 20, 512));
                let (disk, faults) = FaultDisk::new(&inner, ram);
                // Others have a turn while anything is read or written.
                faults.inject(Fault::Delay(MILLISECOND));
                Rc::new(disk) as Rc<dyn Disk>
            };
            let disks: Vec<Rc<dyn Disk>> = (0..2).map(disk).collect();
            let options = array_options("metadata", disks.len(), ID, 0);
            weft_array::create(&disks, &options).await.expect("created");
            let array = Array::assemble(&inner, disks, AssembleOptions::default()).await;
            test(inner, array.expect("assembled")).await;
        });
        rt.kill_all();
    }

    const ID: Id = Id([9; 16]);

    /// A thousand rows in ten commits.
    async fn fill(meta: &Meta) {
        for of in 0..10 {
            let put = |tx: &Tx<'_>| (0..100).try_for_each(|n| tx.put_bad(of, n * 1000));
            meta.commit(put).await.expect("committed");
        }
    }

    async fn count(meta: &Meta) -> usize {
        meta.run(|tx| tx.bad_blocks()).await.expect("read").len()
    }

    #[test]
    fn what_only_the_journal_has_is_there_after_a_crash() {
        with_array(|array| async move {
            let meta = Meta::create(array.clone(), ID, 1 << 20).await.expect("made");
            meta.commit(|_| Ok(())).await.expect("committed");
            meta.checkpoint().await.expect("written");
            let before = header::read(&array, ID).await.expect("read");
            fill(&meta).await;
            drop(meta);
            let stored = header::read(&array, ID).await.expect("read");
            assert_eq!(stored.journal, before.journal, "no checkpoint was due");
            let meta = Meta::open(array.clone(), ID, 1 << 20).await.expect("opened");
            assert_eq!(count(&meta).await, 1000);
            let stored = header::read(&array, ID).await.expect("read").journal.expect("one");
            assert_eq!(stored.generation, before.journal.expect("one").generation + 1);
            drop(meta);
            let meta = Meta::open(array, ID, 1 << 20).await.expect("opened again");
            assert_eq!(count(&meta).await, 1000);
        });
    }

    /// File systems that were made without a journal go on without one.
    #[test]
    fn metadata_without_a_journal_works() {
        with_array(|array| async move {
            let stored = HeaderFields { journal: None, has_sums: false, ..HeaderFields::NEW };
            let meta = Meta::with(array.clone(), ID, stored, 1 << 20).await.expect("made");
            meta.commit(|_| Ok(())).await.expect("committed");
            fill(&meta).await;
            meta.checkpoint().await.expect("nothing to do");
            drop(meta);
            let stored = header::read(&array, ID).await.expect("read");
            assert!(stored.journal.is_none() && stored.db_bytes > 0);
            // That of an older weft is read as well, and has today's version then: the older one
            // would take long values for empty ones.
            let version = async || array.read(0, weft_rt::Buf::new(512)).await.1[12];
            let (_, old) = array.read(0, weft_rt::Buf::new(512)).await;
            let mut header = weft_rt::Buf::zeroed(512);
            header.copy_from_slice(&old);
            header[12] = 1;
            put_crc32c_at(&mut header[..40], 8);
            array.write(0, header.freeze(), true).await.expect("written");
            let meta = Meta::open(array.clone(), ID, 1 << 20).await.expect("opened");
            assert_eq!(count(&meta).await, 1000);
            let areas = Areas::of(array.size_bytes(), false, false).expect("room");
            assert_eq!((meta.log_area(), meta.capacity()), (areas.log, areas.db.bytes()));
            assert_eq!(version().await, 5);
        });
    }

    /// File systems that were made without checksums get them: of what is written, and with a check
    /// of all.
    #[test]
    fn metadata_without_checksums_gets_them() {
        with_array(|array| async move {
            let stored = HeaderFields { has_sums: false, ..HeaderFields::NEW };
            let meta = Meta::with(array.clone(), ID, stored, 1 << 20).await.expect("made");
            meta.commit(|_| Ok(())).await.expect("committed");
            fill(&meta).await;
            meta.checkpoint().await.expect("written");
            let capacity = meta.capacity();
            meta.commit(|tx| tx.put_bad(100, 1)).await.expect("committed");
            drop(meta);
            assert!(!header::read(&array, ID).await.expect("read").has_sums);
            let meta = Meta::open(array.clone(), ID, 1 << 20).await.expect("opened");
            assert!(header::read(&array, ID).await.expect("read").has_sums);
            assert!(meta.capacity() < capacity);
            assert_eq!(count(&meta).await, 1001);
            assert_eq!(meta.check_pages().await.expect("read").repaired, 0);
            meta.checkpoint().await.expect("written");
            drop(meta);
            // What all copies have is wrong now, and it is known.
            let db = Areas::of(array.size_bytes(), true, true).expect("room").db.at(0);
            let (_, page) = array.read(db, weft_rt::Buf::new(4096)).await;
            let mut page = weft_rt::Buf::copy_from(&page);
            page[4000] ^= 1;
            array.write(db, page.freeze(), true).await.expect("written");
            let error = Meta::open(array, ID, 1 << 20).await.err().expect("refused");
            assert!(error.to_string().contains("no copy of page 0"), "{error}");
        });
    }

    #[test]
    fn a_header_that_says_nothing_or_something_new_is_refused() {
        with_array(|array| async move {
            let meta = Meta::create(array.clone(), ID, 1 << 20).await.expect("made");
            meta.commit(|_| Ok(())).await.expect("committed");
            meta.checkpoint().await.expect("written");
            drop(meta);
            let refused = async || Meta::open(array.clone(), ID, 1 << 20).await.err();
            assert!(refused().await.is_none());
            // As the mount has left it.
            let (_, header) = array.read(0, weft_rt::Buf::new(512)).await;
            let with = async |change: &dyn Fn(&mut [u8])| {
                let mut changed = weft_rt::Buf::zeroed(512);
                changed.copy_from_slice(&header);
                change(&mut changed);
                array.write(0, changed.freeze(), true).await.expect("written");
            };
            for at in [0, 8, 20, 36, 40, 48, 56, 64] {
                with(&|bytes| bytes[at] ^= 1).await;
                let error = refused().await;
                assert!(matches!(error, Some(FsError::Damaged(_))), "byte {at}: {error:?}");
            }
            with(&|bytes| {
                bytes[12] = 7;
                put_crc32c_at(&mut bytes[..40], 8);
            })
            .await;
            let error = refused().await.expect("refused").to_string();
            assert!(error.contains("version 7: this weft reads up to 6"), "{error}");
        });
    }
}
