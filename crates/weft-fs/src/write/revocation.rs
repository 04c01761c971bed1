//! What another node's wish does here: the kernel forgets, changes become durable, and cached
//! contents are forgotten.
//!
//! A file is flushed as a whole: that costs little more than a part of it, and the rest of it need
//! not be flushed for the next wish. Then the open transaction is committed, so that the other node
//! finds the records and checksums of what it reads. Names and attributes are nothing but metadata.
//!
//! Node 0 is the authority. Other nodes reach it through the keeper of the metadata in the same
//! process ([`Fs::serve_nodes`]). Tests have nodes that are driven from outside, too: messages are
//! plain data ([`weft_token`]).

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::{Rc, Weak};

use weft_disk::IoFuture;
use weft_rt::SECOND;
use weft_token::{Kind, NodeId, ToAuthority, ToNode};
use weft_wire::{
    Answer, DiskRequest, EarlyBlock, EarlyCommit, EarlyLive, GiveBack, LockWish, Restated,
    RoomWish, WorkDone,
};

use crate::disks::pool::runs_of;
use crate::error::Result;
use crate::format::inode::Ino;
use crate::meta::desk::{AskBack, Deliver, Desk};
use crate::meta::server::KeeperServer;
use crate::state::file_locks::LocksOfNode;
use crate::state::mounted::{Fs, FsState};
use crate::state::open_files::Node;
use crate::tokens::local_node::Revocation;
use crate::write::dirty_memory::FlushScope;

/// The time until the next attempt to write changes under returned tokens.
const AGAIN_S: u64 = 1;
/// After so many attempts blocks go that have no room, as when they fill the memory.
const GIVES_UP_AFTER: u64 = 10;
/// After so many this node stops: others wait for its tokens.
const STOPS_AFTER: u64 = 60;

impl FsState {
    /// Makes changes under tokens durable, and forgets cached contents.
    async fn give_up(&self, given: &[Revocation]) -> Result<()> {
        // What it gives back is written with the rest.
        self.forget_in_kernel(given).await;
        let is_everything = given.iter().any(|given| given.space.kind == Kind::Everything);
        let mut early = self.early_commits().all();
        if is_everything {
            self.flush_all(FlushScope::All).await?;
        }
        let of_file = given
            .iter()
            .filter(|given| matches!(given.space.kind, Kind::Attributes | Kind::Data))
            .map(|given| given.space.ino);
        let inos: BTreeSet<Ino> = of_file.collect();
        early.retain(|of| is_everything || inos.contains(&of.ino));
        let unclean: Vec<Rc<Node>> =
            inos.into_iter().filter_map(|ino| self.open_files().unclean_node(ino)).collect();
        self.flush_many(unclean, FlushScope::All).await?;
        self.commit().await?;
        // They must not come over what others write.
        self.end_early(&early).await?;
        // Also blocks that it has repaired: others may overwrite them.
        self.pool().flush().await;
        if given.iter().any(|of| of.space.kind == Kind::Everything && of.leaves.is_none()) {
            self.return_stock().await?;
        }
        for Revocation { space, range, leaves } in given {
            if leaves.is_none() && space.kind == Kind::Data {
                self.forget_at_hand(space.ino, range.clone()).await?;
            }
        }
        Ok(())
    }

    /// A node has nothing any more: it has ended in order, or is dead and recovered.
    fn note_node_gone(&self, node: NodeId) {
        self.tokens().recovered(node);
        self.path_desk().forget(node);
        self.early_desk().forget(node);
        self.end_locks(node);
        self.forget_space_of(node);
        self.work_desk().forget(node);
        // Files without names may have been open there only, or have waited for its tokens.
        self.sharing().ended().note();
    }

    async fn forget_at_hand(&self, ino: Ino, blocks: Range<u64>) -> Result<()> {
        let mut rest = blocks;
        loop {
            let next = rest.clone();
            let some =
                self.meta().run(|tx| tx.first_records(ino, next, self.meta().at_a_time())).await?;
            let runs = some.iter().flat_map(|(_, record)| runs_of(record));
            runs.for_each(|run| self.pool().at_hand.forget(run));
            match some.last() {
                Some((last, _)) if some.len() >= self.meta().at_a_time() => rest.start = last + 1,
                _ => return Ok(()),
            }
        }
    }
}

/// What this node does for the others while it is mounted.
struct FsDesk(Weak<FsState>);

impl Desk for FsDesk {
    fn restated(
        &self,
        node: NodeId,
        restated: Restated,
        deliver: Deliver,
    ) -> std::result::Result<(), Option<String>> {
        let fs = self.0.upgrade().ok_or(None)?;
        let replaced = fs.tokens().replace(node, restated.tokens, deliver);
        replaced.map_err(|other| Some(other.to_string()))?;
        if !fs.locks_restated(node, restated.locks) {
            return Err(Some("another node has a lock that it has".to_owned()));
        }
        fs.space_restated(node, &restated.space, restated.next_give_back);
        Ok(())
    }

    fn take(&self, node: NodeId, message: ToAuthority) {
        if let Some(fs) = self.0.upgrade() {
            fs.tokens().take(node, message);
        }
    }

    fn reached(&self, node: NodeId, ask_back: AskBack) {
        if let Some(fs) = self.0.upgrade() {
            fs.space_desk().reached(node, ask_back);
        }
    }

    fn room(&self, node: NodeId, wish: RoomWish) -> IoFuture<'static, Option<Answer>> {
        let fs = self.0.upgrade();
        Box::pin(async move { fs?.find_room(node, wish).await })
    }

    fn log(&self, node: NodeId) -> IoFuture<'static, Answer> {
        let fs = self.0.upgrade();
        Box::pin(async move {
            let Some(fs) = fs else { return Answer::Log(Some("node 0 is unmounted".to_owned())) };
            Answer::Log(fs.open_log(node).await.err().map(|error| error.to_string()))
        })
    }

    fn disks_changed(&self) {
        let Some(fs) = self.0.upgrade() else { return };
        let rt = fs.rt().clone();
        rt.launch(Box::pin(async move {
            if fs.learn_disks().await.is_ok() {
                // All nodes look at the rows again when they have their tokens back.
                drop(fs.hold_all_tokens().await);
            }
        }));
    }

    fn take_back(&self, node: NodeId, given: GiveBack) -> Option<Answer> {
        self.0.upgrade()?.take_blocks_back(node, &given)
    }

    fn left(&self, node: NodeId) {
        if let Some(fs) = self.0.upgrade() {
            fs.tokens().fence(node);
            fs.note_node_gone(node);
        }
    }

    fn lock(&self, node: NodeId, wish: LockWish) -> IoFuture<'static, Option<Answer>> {
        let fs = self.0.upgrade();
        Box::pin(async move { fs?.answer_lock(node, wish).await.map(Answer::Lock) })
    }

    fn work(
        &self,
        node: (NodeId, u16),
        done: Option<WorkDone>,
    ) -> IoFuture<'static, Option<Answer>> {
        let next = self.0.upgrade().map(|fs| fs.work_desk().ask(node, done));
        Box::pin(async move { next?.await.map(Answer::Work) })
    }

    fn no_path(
        &self,
        node: NodeId,
        disk: u16,
        was_used: bool,
    ) -> IoFuture<'static, Option<Answer>> {
        let fs = self.0.upgrade();
        Box::pin(async move { fs?.judge_path(node, disk, was_used).await })
    }

    fn use_disk(&self, node: NodeId, request: DiskRequest) -> IoFuture<'static, Option<Answer>> {
        match self.0.upgrade() {
            Some(fs) => fs.use_disk(node, request),
            None => Box::pin(async { None }),
        }
    }

    fn disks_left(&self, node: NodeId) -> IoFuture<'static, ()> {
        let fs = self.0.upgrade();
        Box::pin(async move {
            if let Some(fs) = fs {
                fs.path_desk().left(node).await;
            }
        })
    }

    fn early_live(&self, node: NodeId, live: EarlyLive) {
        if let Some(fs) = self.0.upgrade() {
            fs.early_desk().live(node, &live);
        }
    }

    fn early(&self, node: NodeId, commit: EarlyCommit) -> bool {
        self.0.upgrade().is_some_and(|fs| fs.early_desk().take(node, commit))
    }

    fn early_done(&self, node: NodeId, blocks: &[EarlyBlock]) {
        if let Some(fs) = self.0.upgrade() {
            fs.early_desk().done(node, blocks);
        }
    }

    fn disk_waits(&self, disk: u16) {
        if let Some(fs) = self.0.upgrade() {
            fs.look_at_waiting_disk(disk);
        }
    }

    fn grow_metadata(&self) -> IoFuture<'static, ()> {
        let fs = self.0.upgrade();
        Box::pin(async move {
            if let Some(fs) = fs {
                fs.make_metadata_room_for_others().await;
            }
        })
    }

    fn known(&self) -> IoFuture<'static, ()> {
        let fs = self.0.upgrade();
        Box::pin(async move {
            match fs {
                Some(fs) => fs.space_desk().known().await,
                // The keeper ends as well.
                None => std::future::pending().await,
            }
        })
    }
}

impl Fs {
    /// From now on other nodes may ask for tokens. If a keeper refuses this node, it ends.
    pub(crate) fn revoke_when_asked(&self) {
        if let Some(link) = self.0.meta().link() {
            link.set_lock_client(Rc::new(LocksOfNode(Rc::downgrade(&self.0))));
            let weak = Rc::downgrade(&self.0);
            self.0.rt().launch(Box::pin(async move {
                let why = link.refusal().await;
                if let Some(fs) = weak.upgrade() {
                    fs.meta().fail(&format!("its keeper refuses this node: {why}"));
                }
            }));
        }
        let (weak, rt) = (Rc::downgrade(&self.0), self.0.rt().clone());
        self.0.tokens().keep_contended(&rt);
        self.0.tokens().on_give_up(move |given| {
            if let Some(fs) = weak.upgrade() {
                let leaves = |of: &&Revocation| of.leaves.is_none() && of.space.kind == Kind::Data;
                given.iter().filter(leaves).for_each(|of| fs.meta().note_given_up(of.space.ino));
            }
            let (weak, rt) = (weak.clone(), rt.clone());
            rt.clone().launch(Box::pin(async move {
                let mut attempts = 0;
                while let Some(fs) = weak.upgrade() {
                    let Err(error) = fs.give_up(&given).await else {
                        return given.iter().for_each(|given| fs.tokens().written(given));
                    };
                    attempts += 1;
                    if attempts >= GIVES_UP_AFTER {
                        // Their users are told by fsync.
                        fs.give_up_what_has_no_room().await;
                    }
                    if attempts >= STOPS_AFTER {
                        let why = "what other nodes wait for cannot be written";
                        fs.meta().fail(&format!("{why}: {error}"));
                    }
                    if fs.check().is_err() || fs.meta().is_failed() {
                        // It can write no more. It is dead for the others, who fence it.
                        return;
                    }
                    drop(fs);
                    rt.sleep(AGAIN_S * SECOND).await;
                }
            }));
        });
    }

    /// This is node 0, in the process of its keeper. From now on other nodes reach it through that.
    /// No token is granted until all of `expected` have said what they hold, or are
    /// [recovered](Self::recovered_node). To be called before anything else is asked of it.
    pub fn serve_nodes(&self, keeper: &KeeperServer, expected: &[NodeId]) {
        self.share();
        self.lose_when_told();
        self.0.meta().share_file(keeper.file());
        self.0.tokens().expect(expected);
        self.0.expect_space_of(expected);
        keeper.set_desk(Rc::new(FsDesk(Rc::downgrade(&self.0))));
        // Those before it.
        self.0.sharing().ended().note();
    }

    /// Another node mounts the file system, with a number that is not 0. `deliver` is called with
    /// each message for it.
    pub fn join_node(&self, number: u16, deliver: impl Fn(ToNode) + 'static) -> NodeId {
        let node = NodeId { number, epoch: self.0.log().epoch() };
        self.0.tokens().join(node, Rc::new(deliver));
        node
    }

    /// Takes the message of another node.
    pub fn from_node(&self, node: NodeId, message: ToAuthority) {
        self.0.tokens().take(node, message);
    }

    /// Another node is dead: it writes no more. No other node gets its tokens until it is
    /// recovered.
    pub fn fence_node(&self, node: NodeId) {
        self.0.tokens().fence(node);
    }

    /// What a dead node left is recovered: other nodes may have its tokens.
    pub fn recovered_node(&self, node: NodeId) {
        self.0.note_node_gone(node);
    }
}
