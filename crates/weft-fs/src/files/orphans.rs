//! The end of files: one without names goes with its last use.
//!
//! Its records are removed a few at a time, so that neither a transaction nor the list of freed
//! blocks grows with the file. What a crash leaves of it is removed by the next mount
//! ([`crate::mount`]).
//!
//! *Other nodes.* A node where programs have a file open has the shared token that says so, from
//! the first open to the last close, and who frees its contents has that token exclusively. So a
//! node whose last use of a file without names ends, by a close or by the last name, waits in the
//! background until no other node has it open. If it is unmounted or dies meanwhile, the node that
//! closes the file last does the same. If that one dies too, node 0 does once it is recovered, with
//! all files without names: it lists them alone, as one that is made without a name has no token
//! yet.

use std::rc::Rc;

use weft_token::Mode;

use crate::error::{FsError, Result};
use crate::format::inode::Ino;
use crate::meta::Tx;
use crate::state::mounted::{Fs, FsState};
use crate::tokens::needs::Need;

impl FsState {
    /// Ends `count` uses of a file. If it has no name any more, it goes.
    pub(crate) async fn end_uses(self: &Rc<Self>, ino: Ino, count: u64) -> Result<()> {
        let Some(node) = self.open_files().get(ino) else { return Ok(()) };
        node.end_uses(count);
        if node.is_used() {
            return Ok(());
        }
        let gone = self.meta().run(|tx| Ok(tx.inode(ino)?.links == 0)).await;
        if matches!(gone, Ok(true)) {
            match self.sharing().is_shared() {
                true => self.purge_when_closed(ino),
                false => self.purge_unused(ino).await?,
            }
        }
        self.open_files().forget_clean(&node);
        Ok(())
    }

    /// Deletes a file that has lost its last name and is not in use here. The caller may have the
    /// tokens of its attributes.
    pub(crate) async fn purge_nameless(self: &Rc<Self>, ino: Ino) -> Result<()> {
        match self.sharing().is_shared() {
            true => {
                self.purge_when_closed(ino);
                Ok(())
            }
            false => self.purge(ino).await,
        }
    }

    /// Deletes a file that has no name and is not in use here, as soon as no other node has it
    /// open.
    fn purge_when_closed(self: &Rc<Self>, ino: Ino) {
        let (tokens, weak) = (self.tokens().clone(), Rc::downgrade(self));
        self.rt().launch(Box::pin(async move {
            let _alone = tokens.hold(vec![Need::open(ino, Mode::Exclusive)]).await;
            if let Some(fs) = weak.upgrade().filter(|fs| fs.check().is_ok()) {
                // A failure shows in the next request; the file stays for a later mount.
                let _ = fs.purge_unused(ino).await;
            }
        }));
    }

    /// Deletes a file if it has no name and is not in use here.
    async fn purge_unused(&self, ino: Ino) -> Result<()> {
        let _held = self.hold_attributes(ino, Mode::Exclusive).await;
        let gone = self.meta().run(|tx| Ok(tx.inode(ino)?.links == 0)).await;
        // It may have been looked up by its number since, or given a name.
        let is_unused = !self.open_files().is_used(ino);
        if is_unused && matches!(gone, Ok(true)) { self.purge(ino).await } else { Ok(()) }
    }

    /// Deletes all files that have no name, as soon as no node has them open.
    fn purge_all_when_closed(self: &Rc<Self>) {
        let weak = Rc::downgrade(self);
        self.rt().launch(Box::pin(async move {
            let Some(fs) = weak.upgrade() else { return };
            let list = |fs: Rc<Self>| async move { fs.meta().run(|tx| tx.orphans()).await };
            if !list(fs.clone()).await.is_ok_and(|orphans| !orphans.is_empty()) {
                return;
            }
            let tokens = fs.tokens().clone();
            drop(fs);
            let alone = tokens.hold(vec![Need::everything(Mode::Exclusive)]).await;
            let Some(fs) = weak.upgrade() else { return };
            let orphans = list(fs.clone()).await.unwrap_or_default();
            drop(alone);
            let unused = |ino: &Ino| !fs.open_files().is_used(*ino);
            orphans.into_iter().filter(unused).for_each(|ino| fs.purge_when_closed(ino));
        }));
    }

    /// A program of this node has made a file and opens it: no other node has the file yet. The
    /// caller has tokens without which no other node finds it.
    pub(crate) async fn open_new(&self, ino: Ino) {
        if self.sharing().is_shared() {
            let node = self.node(ino);
            node.begin_open();
            // The program is going to write it, as a rule. Together they take the time of one.
            let of_writes =
                [Need::attributes(ino, Mode::Exclusive), Need::all_data(ino, Mode::Exclusive)];
            let needs = [Need::open(ino, Mode::Shared)].into_iter().chain(of_writes);
            let held = self.tokens().hold_new(needs.collect()).await;
            held.into_iter().take(1).for_each(|open| node.keep_open(open));
        }
    }

    /// Deletes a file that has no name.
    pub(crate) async fn purge(&self, ino: Ino) -> Result<()> {
        let file = self.lock_contents(ino).await;
        self.drop_dirty(&file, 0);
        file.live.set(None);
        let mut steps = 0;
        while self.meta().run(|tx| self.purge_some(tx, ino)).await? {
            self.commit_now_and_then(&mut steps).await?;
        }
        Ok(())
    }

    /// Removes some records of a file without a name, and then the file. Returns whether there is
    /// more to remove: a mount goes on with it after a crash.
    fn purge_some(&self, tx: &Tx<'_>, ino: Ino) -> Result<bool> {
        let mut inode = match tx.inode(ino) {
            // Its last use ended at the same time as its last name.
            Err(FsError::NotFound) => return Ok(false),
            inode => inode?,
        };
        let records = tx.first_records(ino, 0..u64::MAX, self.meta().at_a_time())?;
        for (first, record) in &records {
            tx.remove_record(ino, *first)?;
            inode.blocks -= record.data_blocks();
            self.free_later(record);
        }
        if records.len() < self.meta().at_a_time() {
            tx.remove_inode(ino)?;
            return Ok(false);
        }
        tx.put_inode(ino, &inode)?;
        Ok(true)
    }
}

impl Fs {
    /// From now on files without names that only nodes had open which have ended are deleted.
    pub(crate) fn purge_after_nodes(&self) {
        let (weak, ended) = (Rc::downgrade(&self.0), self.0.sharing().ended().clone());
        self.0.rt().launch(Box::pin(async move {
            let mut known = 0;
            loop {
                known = ended.after(known).await;
                let Some(fs) = weak.upgrade() else { return };
                if fs.sharing().is_shared() {
                    fs.purge_all_when_closed();
                }
            }
        }));
    }

    /// A program of this node opens a file. [`Fs::end_open`] follows.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it is gone: other nodes have removed it.
    pub async fn begin_open(&self, ino: Ino) -> Result<()> {
        if !self.0.sharing().is_shared() {
            return Ok(());
        }
        let node = self.0.node(ino);
        node.begin_open();
        if !node.has_open_token() {
            let token = self.0.tokens().hold(vec![Need::open(ino, Mode::Shared)]).await;
            node.keep_open(token);
            let there = self.attr(ino).await;
            if there.is_err() {
                node.end_open();
            }
            there?;
        }
        Ok(())
    }

    /// A program of this node closes a file. [`Fs::end_uses`] follows.
    pub fn end_open(&self, ino: Ino) {
        if let Some(node) = self.0.open_files().get(ino) {
            node.end_open();
        }
    }

    /// Whether the kernel knows a file, or a program has it open.
    #[must_use]
    pub fn is_used(&self, ino: Ino) -> bool {
        self.0.open_files().is_used(ino)
    }

    /// `count` uses of a file end. A file without names goes with its last use.
    ///
    /// # Errors
    /// If the metadata has failed.
    pub async fn end_uses(&self, ino: Ino, count: u64) -> Result<()> {
        self.0.end_uses(ino, count).await
    }
}
