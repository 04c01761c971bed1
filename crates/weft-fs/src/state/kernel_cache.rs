//! What the kernel keeps of files while this node has their tokens.
//!
//! A kernel that serves programs from its own memory is a cache under the tokens like any other:
//! before a token is returned, the kernel has forgotten what the token allowed it to keep
//! ([`FsState::forget_in_kernel`]). What programs have changed in mapped pages comes back as writes
//! before that, and is written with the rest.
//!
//! *Pages.* The kernel keeps pages of a file only while this node has the tokens of its attributes
//! and of all of its contents: exclusive ones while a program of this node has the file open for
//! writing, as such a program may change pages at any time and says so later. Thus the requests
//! that come while pages are given back need nothing that this node does not have, and go on as
//! late ones ([`crate::tokens::returned_pages`]). They do without the token of everything: who
//! waits for the pages has it, so no other node has it alone.

use std::collections::BTreeSet;
use std::rc::Rc;

use futures_util::future::join_all;
use weft_rt::{Nanos, SECOND};
use weft_token::Kind;

use crate::format::inode::{Ino, ROOT};
use crate::state::mounted::{Fs, FsState};
use crate::tokens::local_node::Revocation;
use crate::tokens::sharing::KernelCache;

/// For how long after its pages were given up a file counts as contended.
const CONTENDED_NS: Nanos = 60 * SECOND;

/// Files whose pages the kernel gives back at the same time, for one round of returned tokens.
const FILES_AT_A_TIME: usize = 16;

impl FsState {
    /// The kernel forgets what it keeps under tokens that are about to be returned.
    pub(crate) async fn forget_in_kernel(&self, given: &[Revocation]) {
        let Some(kernel) = self.sharing().kernel() else { return };
        let mut folders = Vec::new();
        let (mut attributes, mut pages) = (BTreeSet::new(), BTreeSet::new());
        for Revocation { space, leaves, .. } in given {
            let (ino, is_all) = (space.ino, leaves.is_none());
            // The kernel knows the root folder without having looked it up.
            if ino != ROOT && !self.open_files().is_used(ino) {
                continue;
            }
            match space.kind {
                Kind::Names if is_all => folders.push(ino),
                Kind::Attributes | Kind::Data => {
                    if is_all || self.is_written_here(ino) {
                        pages.insert(ino);
                    }
                    if is_all && space.kind == Kind::Attributes {
                        attributes.insert(ino);
                    }
                }
                _ => {}
            }
        }
        if !folders.is_empty() {
            kernel.forget_names(folders).await;
        }
        let pages: Vec<Ino> = pages.into_iter().collect();
        for some in pages.chunks(FILES_AT_A_TIME) {
            join_all(some.iter().map(|ino| self.give_pages_back(&*kernel, *ino))).await;
        }
        if !attributes.is_empty() {
            kernel.forget_attributes(attributes.into_iter().collect()).await;
        }
    }

    async fn give_pages_back(&self, kernel: &dyn KernelCache, ino: Ino) {
        while let Some(pages) = self.tokens().late_requests().pages(ino) {
            pages.end().await;
        }
        let node = self.node(ino);
        let Some(last) = node.in_kernel() else { return };
        let pages = self.tokens().late_requests().begin_return(ino);
        let (mut bytes, mut dropped) = pages.first_round();
        loop {
            self.tokens().late_requests().begin_round();
            kernel.drop_pages(ino, bytes, dropped).await;
            match pages.next_round().await {
                Some(next) => (bytes, dropped) = next,
                None => break,
            }
        }
        self.tokens().late_requests().end_return(ino);
        node.give_kernel_up(last, self.rt().now());
    }
}

impl Fs {
    /// Other nodes may use the file system from now on, at the same time.
    pub fn share(&self) {
        self.0.sharing().share();
    }

    /// Whether other nodes may use the file system.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.0.sharing().is_shared()
    }

    /// From now on a kernel keeps names, attributes and pages of files, and forgets them before
    /// other nodes may change them.
    pub fn keep_in_kernel(&self, kernel: Rc<dyn KernelCache>) {
        self.0.sharing().keep_in(kernel);
    }

    /// A program of this node opens a file for writing. [`Fs::end_writes`] follows.
    pub async fn begin_writes(&self, ino: Ino) {
        if !self.0.sharing().has_kernel() {
            return;
        }
        // Not as a late request: it says under which tokens pages are kept from now on.
        let held = self.0.hold_files([ino]).await;
        self.0.node(ino).begin_writes();
        drop(held);
    }

    /// A program that has opened a file for writing closes it. It has no changed pages any more.
    pub fn end_writes(&self, ino: Ino) {
        if let Some(node) = self.0.open_files().get(ino) {
            node.end_writes();
            self.0.open_files().forget_clean(&node);
        }
    }

    /// Whether pages of a file were given up lately. Then a page may have been read again between
    /// a program's change of the kernel's page and the request that tells of it.
    #[must_use]
    pub fn was_contended(&self, ino: Ino) -> bool {
        let node = self.0.open_files().get(ino);
        let since = node.and_then(|node| node.gave_kernel_up());
        since.is_some_and(|since| self.0.rt().now() < since.saturating_add(CONTENDED_NS))
    }
}
