//! Free blocks go from node 0 to other nodes, and back ([`crate::disks::granted_space`],
//! [`crate::state::space_desk`]).
//!
//! A node asks ahead of need, in the background. An operation that finds no room asks once more and
//! waits: first for as much as the node wants to have, and then, before it fails, for no more than
//! it needs. At this last wish node 0 asks all nodes to give back what they do not need; so an
//! operation fails only if there is no room that any node could return, but for what waits to be
//! written there and what is lost until the next rebuild of the map. It is the same for operations
//! of node 0.
//!
//! *Promises.* What a write was promised ([`crate::write::reserve`]) is counted in the blocks that
//! its node has: these do not go back while it waits. Node 0 grants nothing that it has promised.
//!
//! *The token of everything.* A node asks for blocks only while it holds it, and has returned all
//! that is free when it gives that up so that another node may hold it exclusively.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};

use futures_util::future::select;
use weft_rt::sync::{Notify, Permit};
use weft_rt::{Nanos, SECOND};
use weft_token::{Kind, Mode, NodeId, Space as TokenSpace};
use weft_wire::{Answer, DiskBlocks, GiveBack, Question, RoomWish, Run};

use crate::disks::free_map::Space;
use crate::disks::granted_space::{RUNS_MAX, Stock, run_of};
use crate::disks::member::Member;
use crate::error::{FsError, Result};
use crate::format::redundancy::WIDTH_MAX;
use crate::meta::desk::SpaceClient;
use crate::meta::remote::unexpected;
use crate::state::mounted::{Fs, FsState};

/// How long a node in need waits for what others give back.
const ROUND: Nanos = 3 * SECOND;
/// How long a node that is to give back waits until what was promised is written.
const WRITE_FOR: Nanos = 2 * SECOND;
/// A wish that is not urgent gets at most this part of what is free.
const GRANT_PART: u64 = 8;

/// The disks, and the free blocks of each.
struct Disks(Vec<Rc<Member>>);

impl Disks {
    fn of(fs: &FsState) -> Self {
        Self(fs.pool().members())
    }

    fn spaces(&self) -> Vec<(u16, &RefCell<Space>)> {
        self.0.iter().map(|member| (member.number, &member.space)).collect()
    }

    /// Those that take data.
    fn used(&self) -> impl Iterator<Item = &Rc<Member>> {
        self.0.iter().filter(|member| member.takes_data())
    }
}

/// Something is awaited in the background, for a time.
struct Awaited {
    is_done: Cell<bool>,
    done: Notify,
}

/// Node 0.
impl FsState {
    /// Answers a node that wants blocks. None: it is not known. After a takeover this waits until
    /// all nodes have said which blocks they have: what no record names may be one of theirs.
    pub(crate) async fn find_room(self: Rc<Self>, node: NodeId, wish: RoomWish) -> Option<Answer> {
        let turn = self.space_desk().turn(node)?;
        let _turn = turn.acquire(1).await;
        self.space_desk().known().await;
        let before = self.space_desk().granted_before(node, wish.number);
        let runs = match before {
            Some(runs) => runs,
            None => {
                if wish.is_urgent && !self.could_grant(&wish.wanted) {
                    let written = self.write_all_behind();
                    self.gather_room(Some(node)).await;
                    self.wait_for(&written, ROUND).await;
                }
                // From here on nothing waits: all of it happens, or nothing.
                let runs = self.grant(&wish.wanted, wish.is_urgent);
                if !self.space_desk().grant(node, wish.number, &wish.has, &runs) {
                    self.take_in(&runs);
                    return None;
                }
                runs
            }
        };
        Some(self.answer_with(node, runs))
    }

    /// A node gives blocks back. None: it is not known, or cannot have them.
    pub(crate) fn take_blocks_back(&self, node: NodeId, given: &GiveBack) -> Option<Answer> {
        let disks = Disks::of(self);
        let is_sound = self.space_desk().take_back(node, given, &disks.spaces());
        is_sound.then(|| self.answer_with(node, Vec::new()))
    }

    /// A node says which blocks it has.
    pub(crate) fn space_restated(&self, node: NodeId, runs: &[Run], next_give_back: u64) {
        let disks = Disks::of(self);
        self.space_desk().restated(node, (runs, next_give_back), &disks.spaces());
        self.pool().set_still(!self.space_desk().knows_all());
        self.note_room_at_nodes();
    }

    /// These nodes may have blocks of a former node 0: until they have said which, none is taken.
    pub(crate) fn expect_space_of(&self, nodes: &[NodeId]) {
        self.space_desk().expect(nodes);
        self.pool().set_still(!self.space_desk().knows_all());
    }

    /// A node is dead, and has no blocks any more.
    pub(crate) fn forget_space_of(&self, node: NodeId) {
        self.space_desk().forget(node);
        self.pool().set_still(!self.space_desk().knows_all());
        self.note_room_at_nodes();
    }

    fn answer_with(&self, node: NodeId, runs: Vec<Run>) -> Answer {
        self.note_room_at_nodes();
        let disks = Disks::of(self);
        let elsewhere = disks.used().map(|member| DiskBlocks {
            disk: member.number,
            blocks: member.free_blocks() + self.space_desk().at_nodes(member.number, Some(node)),
        });
        Answer::Room { runs, elsewhere: elsewhere.collect() }
    }

    /// What nodes have of each disk counts as free, too.
    pub(crate) fn note_room_at_nodes(&self) {
        for member in self.pool().members() {
            member.elsewhere.set(self.space_desk().at_nodes(member.number, None));
        }
    }

    /// Whether the blocks that are wanted are there, and not promised.
    fn could_grant(&self, wanted: &[DiskBlocks]) -> bool {
        let are_there = wanted.iter().all(|of| {
            let member = self.pool().member(of.disk).filter(|member| member.takes_data());
            member.is_none_or(|member| member.free_blocks() >= of.blocks)
        });
        let runs = if are_there { self.grant(wanted, true) } else { Vec::new() };
        let granted: u64 = runs.iter().map(|run| run.blocks).sum();
        self.take_in(&runs);
        are_there && (granted > 0 || wanted.iter().all(|of| of.blocks == 0))
    }

    /// Takes blocks for another node, as many as are there and not promised.
    fn grant(&self, wanted: &[DiskBlocks], is_urgent: bool) -> Vec<Run> {
        let mut shift = 0;
        loop {
            let mut runs = Vec::new();
            for of in wanted {
                let member = self.pool().member(of.disk).filter(|member| member.takes_data());
                let Some(member) = member else { continue };
                let part = if is_urgent { 1 } else { GRANT_PART };
                let blocks = of.blocks.min(member.free_blocks() / part) >> shift;
                let taken = member.space.borrow_mut().grant(blocks, RUNS_MAX - runs.len());
                runs.extend(taken.into_iter().map(|blocks| run_of(of.disk, blocks)));
            }
            let dirty = self.unwritten().blocks();
            if runs.is_empty() || self.promised().fits_lines(self.pool(), dirty, 0, 0) {
                return runs;
            }
            self.take_in(&runs);
            shift += 1;
        }
    }

    /// Blocks are free here.
    fn take_in(&self, runs: &[Run]) {
        for run in runs {
            if let Some(member) = self.pool().member(run.disk) {
                member.space.borrow_mut().release(run.start, run.blocks);
            }
        }
    }

    /// Asks all nodes but one to give back what they do not need, and waits for that, for a time.
    async fn gather_room(&self, but: Option<NodeId>) {
        let (round, asked) = self.space_desk().ask_all_back(but);
        let until = self.rt().now() + ROUND;
        loop {
            let told = pin!(self.space_desk().given_back());
            let now = self.rt().now();
            if self.space_desk().answered(round) >= asked || now >= until {
                return;
            }
            select(told, pin!(self.rt().sleep(until - now))).await;
        }
    }

    /// Writes what waits, in the background.
    fn write_all_behind(self: &Rc<Self>) -> Rc<Awaited> {
        let awaited = Rc::new(Awaited { is_done: Cell::new(false), done: Notify::default() });
        let (fs, told) = (self.clone(), awaited.clone());
        self.rt().launch(Box::pin(async move {
            // What fails to be written is told by the fsync of its file.
            let _ = fs.write_all().await;
            told.is_done.set(true);
            told.done.notify_all();
        }));
        awaited
    }

    async fn wait_for(&self, awaited: &Awaited, time: Nanos) {
        let done = pin!(awaited.done.wait());
        if !awaited.is_done.get() {
            select(done, pin!(self.rt().sleep(time))).await;
        }
    }
}

/// Other nodes, and operations of all of them.
impl FsState {
    /// Blocks of each disk that must not go back: what was promised needs them. All, if a disk may
    /// be full by then.
    fn promised_blocks(&self) -> u64 {
        let waiting = self.promised().waiting_blocks(self.unwritten().blocks());
        match waiting {
            0 if !self.promised().is_held() => 0,
            _ if self.promised().is_held() || self.pool().is_any_full(waiting) => u64::MAX,
            _ => waiting + 1,
        }
    }

    /// Gets more free blocks, so that there are more than `blocks` of each disk besides what waits,
    /// if possible. Returns whether any came. The caller holds the token of everything.
    pub(crate) async fn obtain_room(&self, blocks: u64, is_urgent: bool) -> bool {
        let Some(stock) = self.stock() else {
            if !is_urgent || !self.space_desk().has_nodes() {
                return false;
            }
            let before = self.pool().look_at_free(|free| free.sum::<u64>());
            self.gather_room(None).await;
            return self.pool().look_at_free(|free| free.sum::<u64>()) > before;
        };
        // The mount has failed, if this does.
        self.ask_for_room(stock, blocks, is_urgent).await.unwrap_or(false)
    }

    async fn ask_for_room(&self, stock: &Stock, blocks: u64, is_urgent: bool) -> Result<bool> {
        let _one = stock.asking.acquire(1).await;
        let before = self.end_wish(stock).await?;
        let disks = Disks::of(self);
        let waiting = self.promised().waiting_blocks(self.unwritten().blocks());
        let (mut needed, line) = (waiting + blocks + 1, WIDTH_MAX as u64);
        if disks.0.iter().any(|member| member.room() <= needed) {
            // Each block counts as a whole line, also those of a wish that is not the last one.
            needed = waiting * line + 1 + if is_urgent { blocks } else { blocks * line };
        }
        // A job may take what it holds from any disk.
        needed += self.promised().held_blocks();
        let lacks = |member: &Rc<Member>| {
            let may_come = is_urgent || stock.elsewhere(member.number).is_none_or(|of| of > 0);
            member.free_blocks() < needed && may_come
        };
        if !disks.used().any(lacks) {
            return Ok(before > 0);
        }
        let wanted = disks.used().map(|member| {
            let free = member.free_blocks();
            let more = if is_urgent { 0 } else { stock.aim(member.number, free) };
            DiskBlocks { disk: member.number, blocks: (needed + more).saturating_sub(free) }
        });
        stock.begin_wish(&disks.spaces(), wanted.collect(), is_urgent);
        Ok(before + self.end_wish(stock).await? > 0)
    }

    /// Sends the wish that was not answered, and takes what comes. Returns how many blocks that
    /// are. The caller holds `asking`.
    async fn end_wish(&self, stock: &Stock) -> Result<u64> {
        let mut came = 0;
        while let Some((wish, statements)) = stock.wish() {
            let answer = self.meta().ask_keeper(Question::Room(wish)).await?;
            let Answer::Room { runs, elsewhere } = answer else { return Err(unexpected()) };
            let disks = Disks::of(self);
            if let Some(blocks) = stock.take_grant(&disks.spaces(), &runs, statements) {
                came += blocks;
                self.note_elsewhere(stock, &elsewhere);
            }
        }
        Ok(came)
    }

    /// Sends what was to go back and was not answered. The caller holds `giving`.
    async fn end_give_back(&self, stock: &Stock) -> Result<()> {
        while let Some(given) = stock.give_back() {
            let answer = self.meta().ask_keeper(Question::GiveBack(given)).await?;
            let Answer::Room { elsewhere, .. } = answer else { return Err(unexpected()) };
            stock.end_give_back();
            self.note_elsewhere(stock, &elsewhere);
        }
        Ok(())
    }

    fn note_elsewhere(&self, stock: &Stock, elsewhere: &[DiskBlocks]) {
        stock.note_elsewhere(elsewhere);
        for member in self.pool().members() {
            member.elsewhere.set(stock.elsewhere(member.number).unwrap_or(0));
        }
    }

    /// Gives back all free blocks but `kept` of each disk; that answers `round`.
    async fn give_back(&self, stock: &Stock, kept: impl Fn(u16) -> u64, round: u64) -> Result<()> {
        let _one = stock.giving.acquire(1).await;
        // What was written to them must not be looked for when others have them.
        self.pool().flush().await;
        loop {
            self.end_give_back(stock).await?;
            let disks = Disks::of(self);
            let is_all = stock.begin_give_back(&disks.spaces(), &kept, round);
            self.end_give_back(stock).await?;
            if is_all {
                return Ok(());
            }
        }
    }

    /// Another node lacks room: gives back what nothing was promised of, at once, and the rest when
    /// that is written, if that takes no long time.
    async fn return_room(self: Rc<Self>, round: u64) {
        let Some(stock) = self.stock() else { return };
        let kept = self.promised_blocks();
        let first = self.give_back(stock, |_| kept, if kept == 0 { round } else { 0 }).await;
        if kept > 0 && first.is_ok() {
            let written = self.write_all_behind();
            self.wait_for(&written, WRITE_FOR).await;
            let kept = self.promised_blocks();
            // If it fails, the mount has failed.
            let _ = self.give_back(stock, |_| kept, round).await;
        }
    }

    /// Gives back all free blocks. Nothing waits to be written, and what was freed is durable.
    pub(crate) async fn return_stock(&self) -> Result<()> {
        let Some(stock) = self.stock() else { return Ok(()) };
        let _none = stock.asking.acquire(1).await;
        self.end_wish(stock).await?;
        // A batch of a job that holds room has none of the tokens that it waits for, and has taken
        // nothing: it would hold up those for whom everything goes back, and wait for them.
        if self.promised().waiting_blocks(self.unwritten().blocks()) > 0 {
            // Something failed to be written.
            return Err(FsError::NoSpace);
        }
        self.give_back(stock, |_| 0, 0).await
    }

    /// Gets more blocks in the background, if there are few.
    pub(crate) fn fill_stock_if_low(self: &Rc<Self>) {
        let Some(stock) = self.stock() else { return };
        let disks = Disks::of(self);
        let mut used = disks.used();
        if !used.any(|member| stock.is_low(member.number, member.free_blocks())) {
            return;
        }
        let Some(asking) = stock.asking.try_acquire(1) else { return };
        let fs = self.clone();
        self.rt().launch(Box::pin(async move { fs.fill_stock(asking).await }));
    }

    async fn fill_stock(&self, asking: Permit) {
        let Some(stock) = self.stock() else { return };
        if self.end_wish(stock).await.is_err() {
            return;
        }
        let everything = TokenSpace { kind: Kind::Everything, ino: 0 };
        if self.is_stopped() || !self.tokens().is_free(everything, Mode::Shared) {
            // All is to be returned, or was.
            return;
        }
        let disks = Disks::of(self);
        let wanted = disks.used().map(|member| {
            let free = member.free_blocks();
            let aim = stock.aim(member.number, free);
            DiskBlocks { disk: member.number, blocks: aim.saturating_sub(free) }
        });
        stock.begin_wish(&disks.spaces(), wanted.collect(), false);
        // An operation that needs them asks again.
        let _ = self.end_wish(stock).await;
        drop(asking);
    }

    /// Gives back what is far more than this node wants to have, and hears what is free elsewhere.
    pub(crate) async fn return_excess(&self) {
        let Some(stock) = self.stock() else { return };
        let disks = Disks::of(self);
        let excess = |member: &Member| match member.takes_data() {
            true => stock.excess(member.number, member.free_blocks()),
            // It can be of no use here.
            false => member.space.borrow().free_blocks(),
        };
        let over: Vec<u16> =
            disks.0.iter().filter(|of| excess(of) > 0).map(|of| of.number).collect();
        let promised = self.promised_blocks();
        let kept = |disk: u16| {
            let member = disks.0.iter().find(|of| of.number == disk && over.contains(&disk));
            member.map_or(u64::MAX, |member| match member.takes_data() {
                true => stock.aim(disk, member.free_blocks()).max(promised),
                false => 0,
            })
        };
        // What could not be sent is sent with the next.
        let _ = self.give_back(stock, kept, 0).await;
    }
}

/// How the keeper reaches the blocks of this node.
struct BlocksOfNode(Weak<FsState>);

impl SpaceClient for BlocksOfNode {
    fn state_space(&self) -> (Vec<Run>, u64) {
        let Some(fs) = self.0.upgrade() else { return Default::default() };
        let Some(stock) = fs.stock() else { return Default::default() };
        stock.state(&Disks::of(&fs).spaces(), fs.freed())
    }

    fn return_room(&self, round: u64) {
        if let Some(fs) = self.0.upgrade() {
            fs.rt().clone().launch(Box::pin(fs.return_room(round)));
        }
    }
}

impl Fs {
    /// From now on this node has only blocks that node 0 grants.
    pub(crate) fn have_only_granted(&self) {
        self.0.have_only_granted();
        if let Some(link) = self.0.meta().link() {
            link.set_space_client(Rc::new(BlocksOfNode(Rc::downgrade(&self.0))));
        }
    }
}
