//! Taking the tokens of operations, by the table in [`crate::tokens`].

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::task::Poll;

use weft_token::Mode::{self, Exclusive, Shared};

use crate::error::Result;
use crate::format::block::blocks_of;
use crate::format::inode::Ino;
use crate::state::mounted::FsState;
use crate::tokens::local_node::HeldTokens;
use crate::tokens::needs::Need;

impl FsState {
    /// For what looks at all of the file system, or changes its disks.
    pub(crate) async fn hold_all_tokens(&self) -> HeldTokens {
        self.tokens().hold(vec![Need::everything(Exclusive)]).await
    }

    /// For a batch of a job, which takes those of files while it has this
    /// ([`FsState::hold_files_of_batch`]).
    pub(crate) async fn hold_everything(&self) -> HeldTokens {
        self.tokens().hold(vec![Need::everything(Shared)]).await
    }

    /// For attributes and all contents of files, besides the token of everything.
    pub(crate) async fn hold_files_of_batch(
        &self,
        inos: impl IntoIterator<Item = Ino>,
        mode: Mode,
    ) -> HeldTokens {
        let file = |ino| [Need::attributes(ino, mode), Need::all_data(ino, mode)];
        self.tokens().hold(inos.into_iter().flat_map(file).collect()).await
    }

    /// For the attributes of a file.
    pub(crate) async fn hold_attributes(&self, ino: Ino, mode: Mode) -> HeldTokens {
        self.tokens().hold(vec![Need::everything(Shared), Need::attributes(ino, mode)]).await
    }

    /// For the attributes of several files.
    pub(crate) async fn hold_attributes_of(&self, inos: &[Ino], mode: Mode) -> HeldTokens {
        let files = inos.iter().map(|ino| Need::attributes(*ino, mode));
        self.tokens().hold([Need::everything(Shared)].into_iter().chain(files).collect()).await
    }

    /// For attributes and all contents of files.
    pub(crate) async fn hold_files(&self, inos: impl IntoIterator<Item = Ino>) -> HeldTokens {
        let file = |ino| [Need::attributes(ino, Exclusive), Need::all_data(ino, Exclusive)];
        let files = inos.into_iter().flat_map(file);
        self.tokens().hold([Need::everything(Shared)].into_iter().chain(files).collect()).await
    }

    /// Whether a program of this node has a file open for writing.
    pub(crate) fn is_written_here(&self, ino: Ino) -> bool {
        self.open_files().get(ino).is_some_and(|node| node.writers() > 0)
    }

    /// For a request for pages of a file that the kernel keeps: these bytes, in this mode or more.
    pub(crate) async fn hold_pages(&self, ino: Ino, bytes: Range<u64>, mode: Mode) -> HeldTokens {
        loop {
            let mode = if self.is_written_here(ino) { Exclusive } else { mode };
            let needs = vec![
                Need::everything(Shared),
                Need::attributes(ino, mode),
                Need::all_data(ino, mode),
            ];
            // Otherwise the kernel waits for no change, and contents may be on their way to the
            // disks already, for a node that reads.
            let may_be_late = mode == Shared || self.is_written_here(ino);
            let held = match may_be_late {
                true => self.tokens().hold_or_be_late(ino, &bytes, needs).await,
                false => self.tokens().hold(needs).await,
            };
            // It may have been opened for writing meanwhile.
            if mode == Exclusive || !self.is_written_here(ino) {
                // What a late request gives the kernel it gives back with the rest.
                if !bytes.is_empty() && !held.is_late() {
                    self.open_files().node(ino).keep_in_kernel();
                }
                return held;
            }
        }
    }

    /// For a new size of a file.
    pub(crate) async fn hold_to_resize(&self, ino: Ino) -> HeldTokens {
        match self.sharing().has_kernel() {
            true => self.hold_pages(ino, 0..u64::MAX, Exclusive).await,
            false => self.hold_files([ino]).await,
        }
    }

    /// For the end of the privileges of a file that is written.
    pub(crate) async fn hold_privileges(&self, ino: Ino) -> HeldTokens {
        match self.sharing().has_kernel() {
            true => self.hold_pages(ino, 0..0, Exclusive).await,
            false => self.hold_attributes(ino, Exclusive).await,
        }
    }

    /// For all contents of a file, which goes. The caller may have its attributes.
    pub(crate) async fn hold_contents(&self, ino: Ino) -> HeldTokens {
        self.tokens().hold(vec![Need::all_data(ino, Exclusive)]).await
    }

    /// For blocks of a file that are compared with their checksums.
    pub(crate) async fn hold_to_check(&self, ino: Ino) -> HeldTokens {
        self.tokens().hold(vec![Need::everything(Shared), Need::all_data(ino, Shared)]).await
    }

    /// For reading bytes of a file.
    pub(crate) async fn hold_to_read(&self, ino: Ino, offset: u64, len: u64) -> HeldTokens {
        if self.sharing().has_kernel() {
            return self.hold_pages(ino, offset..offset.saturating_add(len), Shared).await;
        }
        let blocks = blocks_of(offset, len.min(u64::MAX - offset));
        self.hold_range(ino, Shared, blocks, Shared).await
    }

    /// For looking for data or holes from a byte on.
    pub(crate) async fn hold_to_seek(&self, ino: Ino, offset: u64) -> HeldTokens {
        self.hold_range(ino, Shared, blocks_of(offset, u64::MAX - offset), Shared).await
    }

    /// For writing at the end of a file, wherever that is.
    pub(crate) async fn hold_to_append(&self, ino: Ino) -> HeldTokens {
        match self.sharing().has_kernel() {
            // The kernel has no pages of what it does not know the place of.
            true => self.hold_pages(ino, 0..0, Exclusive).await,
            false => self.hold_files([ino]).await,
        }
    }

    /// For writing bytes of a file. Its attributes as well: a flush changes rows of the file as a
    /// whole, and records that reach beyond these bytes.
    pub(crate) async fn hold_to_write(&self, ino: Ino, offset: u64, len: u64) -> HeldTokens {
        let (end, blocks) = (offset.saturating_add(len), blocks_of(offset, len));
        match self.sharing().has_kernel() {
            true => self.hold_pages(ino, offset..end, Exclusive).await,
            false => self.hold_range(ino, Exclusive, blocks, Exclusive).await,
        }
    }

    /// For changing blocks of a file, and its size.
    pub(crate) async fn hold_to_change(&self, ino: Ino, offset: u64, len: u64) -> HeldTokens {
        let blocks = blocks_of(offset, len.min(u64::MAX - offset));
        self.hold_range(ino, Exclusive, blocks, Exclusive).await
    }

    async fn hold_range(&self, ino: Ino, of: Mode, blocks: Range<u64>, mode: Mode) -> HeldTokens {
        let (attributes, data) = (Need::attributes(ino, of), Need::data(ino, blocks, mode));
        self.tokens().hold(vec![Need::everything(Shared), attributes, data]).await
    }

    /// For reading a folder.
    pub(crate) async fn hold_folder(&self, ino: Ino) -> HeldTokens {
        let (names, folder) = (Need::names(ino, Shared), Need::attributes(ino, Shared));
        self.tokens().hold(vec![Need::everything(Shared), names, folder]).await
    }

    /// For looking a name up: [`FsState::hold_found`] follows.
    pub(crate) async fn hold_name(&self, folder: Ino, name: &[u8]) -> HeldTokens {
        self.tokens().hold(vec![Need::everything(Shared), Need::name(folder, name, Shared)]).await
    }

    /// For the attributes of a file that was found by its name. `false` if they may have changed
    /// since they were looked at.
    pub(crate) async fn hold_found(&self, held: &mut HeldTokens, ino: Ino) -> bool {
        let need = Need::attributes(ino, Shared);
        if held.has(need.space) {
            return true;
        }
        let is_free = self.tokens().is_free(need.space, Shared);
        let is_at_once = {
            let mut more = pin!(self.tokens().hold_more(held, vec![need]));
            let is_ready = poll_fn(|cx| Poll::Ready(more.as_mut().poll(cx).is_ready())).await;
            if !is_ready {
                more.await;
            }
            is_ready
        };
        is_free || (is_at_once && held.are_others_silent())
    }

    /// For changing names in folders: these, the folders' attributes, and those of `files` and of
    /// what has the names now. Folders that may move to other folders move one at a time: none gets
    /// into itself.
    pub(crate) async fn hold_names(
        &self,
        names: &[(Ino, &[u8])],
        files: &[Ino],
    ) -> Result<HeldTokens> {
        let folders: BTreeSet<Ino> = names.iter().map(|(folder, _)| *folder).collect();
        let moves = (folders.len() > 1).then(|| Need::names(0, Exclusive));
        let each = names.iter().map(|(folder, name)| Need::name(*folder, name, Exclusive));
        let needs = [Need::everything(Shared)].into_iter().chain(moves).chain(each);
        let mut held = self.tokens().hold(needs.collect()).await;
        let mut inos: BTreeSet<Ino> = files.iter().copied().chain(folders).collect();
        self.meta()
            .run(|tx| {
                for (folder, name) in names {
                    inos.extend(tx.entry(*folder, name)?.map(|entry| entry.ino));
                }
                Ok(())
            })
            .await?;
        let attributes = inos.into_iter().map(|ino| Need::attributes(ino, Exclusive));
        self.tokens().hold_more(&mut held, attributes.collect()).await;
        Ok(held)
    }
}
