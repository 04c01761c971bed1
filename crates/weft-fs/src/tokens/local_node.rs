//! The tokens of this node. The authority is in the same process at node 0, and reached by messages
//! at other nodes.
//!
//! ```text
//!   operation ── hold ──▶ this node ──────── ask ────────▶ authority ◀──▶ other nodes
//!                            ▲  │ ◀── grant, revoke ──────────┘
//!                            │  └── give up ──▶ flush, commit, forget ──┐
//!                            └────────────── written ───────────────────┘
//! ```
//!
//! *Messages that are lost* are those of a connection that ended. The node then says what it holds,
//! and asks again ([`crate::meta::desk`]).
//!
//! *Free use.* A token that the node holds whole is counted in one table ([`super::free_tokens`]).
//!
//! *Return of a token.* A task of its own makes the changes under a token durable: blocks and sizes
//! by a flush, names and attributes by a commit; cached blocks are forgotten. If that fails, the
//! token stays, and it is tried again. A node that cannot write any more keeps its tokens until it
//! is fenced.
//!
//! *Contention.* A token that nodes take from each other again and again stays for a moment
//! ([`super::contended`]).
//!
//! *Memory.* The number of files and folders with tokens is bounded. At the bound a node returns
//! many tokens together, as each such round takes a commit: the oldest ones that are not in use and
//! were not used again since the last round that reached them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::pin::Pin;
use std::rc::{Rc, Weak};

use futures_util::future::join_all;
use weft_rt::Rt;
use weft_rt::sync::{Sender, oneshot};
use weft_token::{
    Acquired, Authority, Conflict, Event, Holder, Holding, Kind, Mode, NodeId, Space, ToAuthority,
    ToNode, UseId,
};

use crate::format::inode::Ino;
use crate::meta::desk::{Deliver, DeskClient};
use crate::tokens::contended::ContendedTokens;
use crate::tokens::free_tokens::{Free, FreeTokens, TokenEvent};
use crate::tokens::late_requests::LateRequests;
use crate::tokens::needs::{Need, all_of, in_order};
use crate::tokens::returned_pages::{Bytes, LateRequest};
use crate::tokens::shared_view::SharedView;

/// The approximate maximum of files and folders with tokens of this node.
const SPACES_MAX: usize = 1 << 16;
/// This part of them is returned at a time.
const GIVEN_UP_PART: usize = 8;

/// A message on its way.
enum Message {
    ToAuthority(NodeId, ToAuthority),
    ToThis(ToNode),
}

/// What has to become durable, and to be forgotten if this node keeps nothing.
#[derive(Debug, Clone)]
pub(crate) struct Revocation {
    pub(crate) space: Space,
    pub(crate) range: Range<u64>,
    pub(crate) leaves: Option<Mode>,
}

type GiveUp = Rc<dyn Fn(Vec<Revocation>)>;

/// Where the authority is.
enum Place {
    /// Here, and other nodes reach it.
    Here { authority: Box<RefCell<Authority>>, others: RefCell<BTreeMap<NodeId, Deliver>> },
    /// At another node, to which this sends.
    Elsewhere(Rc<dyn Fn(ToAuthority)>),
}

/// This node's tokens, and the authority.
pub(crate) struct Tokens {
    id: NodeId,
    place: Place,
    holder: RefCell<Holder>,
    free: FreeTokens,
    /// Spaces in the order in which something of them was granted.
    granted: RefCell<VecDeque<Space>>,
    spaces_max: usize,
    waiting: RefCell<BTreeMap<UseId, Sender<()>>>,
    /// How often something was heard of other nodes.
    heard: Cell<u64>,
    messages: RefCell<VecDeque<Message>>,
    delivering: Cell<bool>,
    give_up: RefCell<Option<GiveUp>>,
    late: LateRequests,
    /// Whether this node ends, and needs none of what it holds any more.
    is_ending: Cell<bool>,
    /// Called when a token comes or goes while there are other nodes.
    others_act: RefCell<Option<Rc<dyn Fn()>>>,
    shared_view: SharedView,
    contended: ContendedTokens,
    /// With it contended tokens are kept for a moment.
    rt: RefCell<Option<Rt>>,
    own: Weak<Self>,
}

/// A token in use.
enum HeldToken {
    Free(Rc<Free>),
    Held(Space, UseId),
    /// Tokens of pages that the kernel gives back.
    Late(LateRequest),
}

/// The tokens of an operation, until this is dropped.
pub(crate) struct HeldTokens {
    tokens: Rc<Tokens>,
    /// What was heard of other nodes before the first of them was asked for.
    heard: u64,
    grips: Vec<HeldToken>,
}

impl HeldTokens {
    /// Whether this is a late request, which has tokens that are being returned.
    pub(crate) fn is_late(&self) -> bool {
        self.grips.iter().any(|grip| matches!(grip, HeldToken::Late(_)))
    }

    /// Whether no other node has asked for anything, or given it up, since this operation began:
    /// what it has seen meanwhile is right although it had no token for it.
    pub(crate) fn are_others_silent(&self) -> bool {
        // What the authority hears from others is not known elsewhere.
        matches!(self.tokens.place, Place::Here { .. }) && self.tokens.heard.get() == self.heard
    }

    /// Whether there is a token of this among them.
    pub(crate) fn has(&self, space: Space) -> bool {
        self.grips.iter().any(|grip| match grip {
            HeldToken::Free(free) => free.space == space,
            HeldToken::Held(of, _) => *of == space,
            HeldToken::Late(_) => false,
        })
    }
}

impl Drop for HeldTokens {
    fn drop(&mut self) {
        for grip in self.grips.drain(..).rev() {
            match grip {
                HeldToken::Free(free) => self.tokens.end_free(&free),
                HeldToken::Held(space, of) => self.tokens.end(space, of),
                HeldToken::Late(request) => drop(request),
            }
        }
    }
}

impl Tokens {
    /// The node with the number 0 at this mount, and the authority.
    pub(crate) fn new(epoch: u64) -> Rc<Self> {
        Self::with(epoch, SPACES_MAX)
    }

    fn with(epoch: u64, spaces_max: usize) -> Rc<Self> {
        let id = NodeId { number: 0, epoch };
        let mut authority = Authority::default();
        authority.join(id);
        let authority = Box::new(RefCell::new(authority));
        Self::of(id, Place::Here { authority, others: RefCell::default() }, spaces_max)
    }

    /// A node whose authority is elsewhere; `tell` sends to it.
    pub(crate) fn elsewhere(id: NodeId, tell: impl Fn(ToAuthority) + 'static) -> Rc<Self> {
        Self::of(id, Place::Elsewhere(Rc::new(tell)), SPACES_MAX)
    }

    fn of(id: NodeId, place: Place, spaces_max: usize) -> Rc<Self> {
        Rc::new_cyclic(|own| Self {
            id,
            place,
            holder: RefCell::default(),
            free: FreeTokens::default(),
            granted: RefCell::default(),
            spaces_max,
            waiting: RefCell::default(),
            heard: Cell::new(0),
            messages: RefCell::default(),
            delivering: Cell::new(false),
            give_up: RefCell::default(),
            late: LateRequests::default(),
            is_ending: Cell::new(false),
            others_act: RefCell::default(),
            shared_view: SharedView::default(),
            contended: ContendedTokens::default(),
            rt: RefCell::default(),
            own: own.clone(),
        })
    }

    /// The task that makes changes under returned tokens durable, and then calls
    /// [`Tokens::written`].
    pub(crate) fn on_give_up(&self, give_up: impl Fn(Vec<Revocation>) + 'static) {
        *self.give_up.borrow_mut() = Some(Rc::new(give_up));
    }

    /// From now on a token that nodes take from each other is kept for a moment
    /// ([`super::contended`]).
    pub(crate) fn keep_contended(&self, rt: &Rt) {
        *self.rt.borrow_mut() = Some(rt.clone());
    }

    /// `act` is called whenever a token comes or goes while there are other nodes: what this node
    /// knows of rows may be wrong.
    pub(crate) fn on_others(&self, act: impl Fn() + 'static) {
        *self.others_act.borrow_mut() = Some(Rc::new(act));
    }

    /// `look` is called before an operation goes on that has the token of everything, if another
    /// node may have changed what belongs to it since the last time; and once at first.
    pub(crate) fn on_outdated(
        &self,
        look: impl Fn() -> Pin<Box<dyn Future<Output = bool>>> + 'static,
    ) {
        self.shared_view.on_outdated(look);
    }

    /// Whether there are other nodes, or were any.
    fn has_others(&self) -> bool {
        matches!(self.place, Place::Elsewhere(_)) || self.heard.get() > 0
    }

    /// All that this node has changed is durable, and nothing follows but the end of its log: it
    /// states no tokens any more. A keeper that finds the log ended gives them to others, and must
    /// not refuse this node for them.
    pub(crate) fn end_claims(&self) {
        self.is_ending.set(true);
    }

    /// Waits for all tokens of an operation.
    pub(crate) async fn hold(self: &Rc<Self>, needs: Vec<Need>) -> HeldTokens {
        let (tokens, heard) = (self.clone(), self.heard.get());
        let mut held = HeldTokens { tokens, heard, grips: Vec::with_capacity(needs.len()) };
        for need in in_order(needs) {
            self.hold_one(&mut held, &need).await;
        }
        held
    }

    /// Waits for tokens of what no other node knows yet, which are asked for together: nobody has
    /// them, so the order in which they come does not matter.
    pub(crate) async fn hold_new(self: &Rc<Self>, needs: Vec<Need>) -> Vec<HeldTokens> {
        join_all(needs.into_iter().map(|need| self.hold(vec![need]))).await
    }

    /// Adds tokens to an operation; its present tokens come later in the order.
    pub(crate) async fn hold_more(self: &Rc<Self>, held: &mut HeldTokens, needs: Vec<Need>) {
        for need in in_order(needs) {
            self.hold_one(held, &need).await;
        }
    }

    /// Waits for all tokens of a request for pages of a file, or until it can go on as a late one.
    pub(crate) async fn hold_or_be_late(
        self: &Rc<Self>,
        ino: Ino,
        bytes: &Bytes,
        needs: Vec<Need>,
    ) -> HeldTokens {
        let hold = self.hold(needs.clone());
        self.late.hold_or_be_late(hold, || self.be_late(ino, bytes, &needs)).await
    }

    /// The tokens of a late request, if it can be one.
    fn be_late(self: &Rc<Self>, ino: Ino, bytes: &Bytes, needs: &[Need]) -> Option<HeldTokens> {
        let pages = self.late.pages(ino)?;
        let is_held = |need: &Need| {
            let Need { space, range, mode } = need;
            let is_needed = space.kind != Kind::Everything;
            !is_needed || self.holder.borrow().covers(*space, range, *mode)
        };
        let late = needs.iter().all(is_held).then(|| pages.begin(bytes)).flatten()?;
        let (tokens, heard) = (self.clone(), self.heard.get());
        Some(HeldTokens { tokens, heard, grips: vec![HeldToken::Late(late)] })
    }

    /// The files whose pages the kernel gives back.
    pub(crate) fn late_requests(&self) -> &LateRequests {
        &self.late
    }

    async fn hold_one(self: &Rc<Self>, held: &mut HeldTokens, need: &Need) {
        self.take_one(held, need).await;
        if need.space.kind == Kind::Everything {
            self.shared_view.look_again().await;
        }
    }

    async fn take_one(self: &Rc<Self>, held: &mut HeldTokens, need: &Need) {
        if let Some(free) = self.free.begin(need) {
            held.grips.push(HeldToken::Free(free));
            return;
        }
        let acquired = self.holder.borrow_mut().acquire(need.ask());
        match acquired {
            Acquired::Now(of) => held.grips.push(HeldToken::Held(need.space, of)),
            Acquired::Later(of, message) => {
                // If this is dropped, it waits no longer.
                held.grips.push(HeldToken::Held(need.space, of));
                let (ready, wait) = oneshot();
                self.waiting.borrow_mut().insert(of, ready);
                self.send(Message::ToAuthority(self.id, message));
                // The sender stays until the token is there.
                let _ = wait.await;
                self.granted.borrow_mut().push_back(need.space);
                self.give_up_some();
            }
        }
        self.make_free(need.space);
    }

    /// Whether a use in this mode is free now.
    pub(crate) fn is_free(&self, space: Space, mode: Mode) -> bool {
        self.free.allow(space, mode)
    }

    /// A token that is held whole is free.
    fn make_free(&self, space: Space) {
        if let Some(mode) = self.holder.borrow().whole(space, &all_of(space.kind)) {
            self.free.grant(space, mode);
        }
    }

    fn end_free(&self, free: &Free) {
        if let Some(of) = free.end() {
            self.free.remove(free.space);
            self.end(free.space, of);
        }
    }

    /// A token is not free any more: the holder knows its used ranges, and those in use.
    fn settle(&self, space: Space) {
        let Some(free) = self.free.of(space) else { return };
        let Some(mode) = free.mode() else { return };
        let used = free.used().map(|range| {
            match self.holder.borrow_mut().acquire(Need { space, range, mode }.ask()) {
                Acquired::Now(of) => of,
                Acquired::Later(..) => unreachable!("all of it is held"),
            }
        });
        if free.is_in_use() {
            let of = used.expect("what runs has used something");
            free.happens(TokenEvent::RevokedInUse(of));
            return;
        }
        free.happens(TokenEvent::RevokedUnused);
        self.free.remove(space);
        if let Some(of) = used {
            self.end(space, of);
        }
    }

    fn end(&self, space: Space, of: UseId) {
        self.waiting.borrow_mut().remove(&of);
        let events = self.holder.borrow_mut().done(space, of);
        self.handle(events);
    }

    /// The changes under returned tokens are durable.
    pub(crate) fn written(&self, given: &Revocation) {
        let events = self.holder.borrow_mut().written(given.space, &given.range);
        self.handle(events);
    }

    fn handle(&self, events: Vec<Event>) {
        let mut given_up = Vec::new();
        for event in events {
            match event {
                Event::Send(message) => self.send(Message::ToAuthority(self.id, message)),
                Event::Ready(of) => {
                    if let Some(ready) = self.waiting.borrow_mut().remove(&of) {
                        ready.send(());
                    }
                }
                Event::Write { space, range, leaves } => {
                    given_up.push(Revocation { space, range, leaves });
                }
            }
        }
        if given_up.is_empty() {
            return;
        }
        let give_up = self.give_up.borrow().clone();
        match give_up {
            Some(give_up) => give_up(given_up),
            // Nothing was changed before the mount was complete.
            None => given_up.iter().for_each(|given| self.written(given)),
        }
    }

    /// Sends a message, and then the messages that follow from it.
    fn send(&self, message: Message) {
        self.messages.borrow_mut().push_back(message);
        self.send_all();
    }

    fn send_all(&self) {
        if self.delivering.replace(true) {
            return;
        }
        loop {
            let next = self.messages.borrow_mut().pop_front();
            match next {
                None => break,
                Some(Message::ToAuthority(from, message)) => match &self.place {
                    Place::Here { authority, .. } => {
                        let mut out = Vec::new();
                        authority.borrow_mut().take(from, message, &mut out);
                        self.deliver(out);
                    }
                    Place::Elsewhere(tell) => tell(message),
                },
                Some(Message::ToThis(message)) => {
                    let Some(message) = self.unless_kept(message) else { continue };
                    if self.has_others() {
                        self.others_act.borrow().iter().for_each(|act| act());
                    }
                    if let ToNode::Revoke(revoke) = &message {
                        if revoke.space.kind == Kind::Everything && revoke.leaves.is_none() {
                            self.shared_view.expire();
                        }
                        self.settle(revoke.space);
                    }
                    let events = self.holder.borrow_mut().take(message);
                    self.handle(events);
                }
            }
        }
        self.delivering.set(false);
    }

    /// Takes a revocation of a contended token later, if the token is to be kept for a moment.
    fn unless_kept(&self, message: ToNode) -> Option<ToNode> {
        let rt = self.rt.borrow().clone();
        let Some(rt) = rt else { return Some(message) };
        let left = match &message {
            ToNode::Revoke(revoke) => self.contended.revoked(revoke.space, rt.now()),
            ToNode::Grant { space, .. } => {
                self.contended.granted(*space, rt.now());
                None
            }
        };
        let Some(left) = left else { return Some(message) };
        let (own, clock) = (self.own.clone(), rt.clone());
        rt.launch(Box::pin(async move {
            clock.sleep(left).await;
            if let Some(tokens) = own.upgrade() {
                tokens.send(Message::ToThis(message));
            }
        }));
        None
    }

    fn deliver(&self, messages: Vec<(NodeId, ToNode)>) {
        for (to, message) in messages {
            if to == self.id {
                self.messages.borrow_mut().push_back(Message::ToThis(message));
                continue;
            }
            let Place::Here { others, .. } = &self.place else { continue };
            let deliver = others.borrow().get(&to).cloned();
            if let Some(deliver) = deliver {
                deliver(message);
            }
        }
    }

    /// Gives up tokens that were not used for long, if there are many.
    fn give_up_some(&self) {
        let count = self.granted.borrow().len();
        if count <= self.spaces_max {
            return;
        }
        let mut more = (self.spaces_max / GIVEN_UP_PART).max(1);
        let mut events = Vec::new();
        // Each has two turns.
        for _ in 0..2 * count {
            let Some(space) = self.granted.borrow_mut().pop_front() else { break };
            if self.free.of(space).is_some_and(|free| free.was_used_again()) {
                self.granted.borrow_mut().push_back(space);
                continue;
            }
            self.settle(space);
            events.extend(self.holder.borrow_mut().give_up(space));
            more -= 1;
            if more == 0 {
                break;
            }
        }
        self.handle(events);
    }

    /// Does something to the authority, if that is here, and delivers what it says.
    fn command<T>(
        &self,
        command: impl FnOnce(&mut Authority, &mut Vec<(NodeId, ToNode)>) -> T,
        others: impl FnOnce(&mut BTreeMap<NodeId, Deliver>, &T),
    ) -> Option<T> {
        let Place::Here { authority, others: known } = &self.place else { return None };
        self.heard.set(self.heard.get() + 1);
        let mut out = Vec::new();
        let done = command(&mut authority.borrow_mut(), &mut out);
        others(&mut known.borrow_mut(), &done);
        self.deliver(out);
        self.send_all();
        Some(done)
    }

    /// Another node has mounted the file system; `deliver` takes what it is told.
    pub(crate) fn join(&self, node: NodeId, deliver: Deliver) {
        let add = |others: &mut BTreeMap<_, _>, (): &()| drop(others.insert(node, deliver));
        self.command(|authority, _| authority.join(node), add);
    }

    /// These nodes may hold tokens of a former authority: nothing is granted until each of them has
    /// said what it holds, or is recovered.
    pub(crate) fn expect(&self, nodes: &[NodeId]) {
        self.command(|authority, _| authority.expect(nodes.iter().copied()), |_, ()| ());
    }

    /// Another node is there on a new way, on which `deliver` sends, and holds this.
    pub(crate) fn replace(
        &self,
        node: NodeId,
        held: Vec<Holding>,
        deliver: Deliver,
    ) -> std::result::Result<(), Conflict> {
        let add = |others: &mut BTreeMap<_, _>, done: &std::result::Result<(), _>| {
            if done.is_ok() {
                others.insert(node, deliver);
            }
        };
        let replaced = self.command(|authority, out| authority.replace(node, held, out), add);
        replaced.unwrap_or(Ok(()))
    }

    /// Takes the message of another node.
    pub(crate) fn take(&self, node: NodeId, message: ToAuthority) {
        self.heard.set(self.heard.get() + 1);
        self.send(Message::ToAuthority(node, message));
    }

    /// Another node is dead. What it holds stays until it is recovered.
    pub(crate) fn fence(&self, node: NodeId) {
        let remove = |others: &mut BTreeMap<_, _>, (): &()| drop(others.remove(&node));
        self.command(|authority, out| authority.fence(node, out), remove);
    }

    /// The log of a dead node is recovered: what it held is free.
    pub(crate) fn recovered(&self, node: NodeId) {
        self.command(|authority, out| authority.recovered(node, out), |_, ()| ());
    }
}

impl DeskClient for Tokens {
    fn restate(&self) -> (Vec<Holding>, Vec<ToAuthority>) {
        if self.is_ending.get() {
            return Default::default();
        }
        let mut holder = self.holder.borrow_mut();
        (holder.held(), holder.ask_again())
    }

    fn take(&self, message: ToNode) {
        self.send(Message::ToThis(message));
    }
}

#[cfg(test)]
mod tests {
    use weft_rt::{Schedule, virtual_rt};
    use weft_token::Release;

    use super::*;

    fn authority_of(tokens: &Tokens) -> std::cell::Ref<'_, Authority> {
        match &tokens.place {
            Place::Here { authority, .. } => authority.borrow(),
            Place::Elsewhere(_) => unreachable!("it is here"),
        }
    }

    fn at_once<T>(future: impl Future<Output = T>) -> T {
        futures_util::FutureExt::now_or_never(future).expect("nobody else is there")
    }

    #[test]
    fn tokens_of_so_many_files_are_held_and_those_in_use_stay() {
        let tokens = Tokens::with(1, 8);
        let hold = |ino: Ino| at_once(tokens.hold(vec![Need::attributes(ino, Mode::Exclusive)]));
        let first = hold(1);
        (2..100).for_each(|ino| drop(hold(ino)));
        assert!(authority_of(&tokens).spaces() <= 9);
        assert!(tokens.free.len() <= 9);
        let attributes = |ino| Space { kind: Kind::Attributes, ino };
        assert!(!authority_of(&tokens).held(attributes(1)).is_empty(), "it is in use");
        assert!(authority_of(&tokens).held(attributes(2)).is_empty());
        assert!(tokens.is_free(attributes(99), Mode::Exclusive));
        drop(first);
    }

    #[test]
    fn tokens_of_a_new_file_are_asked_for_together() {
        let sent = Rc::new(Cell::new(0));
        let count = sent.clone();
        let id = NodeId { number: 1, epoch: 1 };
        let tokens = Tokens::elsewhere(id, move |_| count.set(count.get() + 1));
        let mode = Mode::Exclusive;
        let needs = vec![Need::open(7, mode), Need::attributes(7, mode), Need::all_data(7, mode)];
        assert!(futures_util::FutureExt::now_or_never(tokens.hold_new(needs)).is_none());
        assert_eq!(sent.get(), 3, "before any of them is answered");
    }

    #[test]
    fn a_token_that_nodes_take_from_each_other_stays_for_a_moment() {
        let rt = virtual_rt(Schedule::Fifo);
        rt.clone().block_on(async move {
            let tokens = Tokens::new(1);
            tokens.keep_contended(&rt);
            let other = NodeId { number: 1, epoch: 1 };
            let got = Rc::new(RefCell::new(Vec::new()));
            let inbox = got.clone();
            tokens.join(other, Rc::new(move |message| inbox.borrow_mut().push(message)));
            let need = Need::attributes(5, Mode::Exclusive);
            drop(tokens.hold(vec![need.clone()]).await);
            // It is returned at once, and asked for again.
            tokens.take(other, ToAuthority::Ask { ask: need.ask(), seen: 0 });
            assert!(matches!(got.borrow()[..], [ToNode::Grant { .. }]), "{got:?}");
            let release = Release { space: need.space, range: 0..1, leaves: None, seen: 1 };
            tokens.take(other, ToAuthority::Release(release));
            drop(tokens.hold(vec![need.clone()]).await);
            // Now it stays, and this node uses it.
            tokens.take(other, ToAuthority::Ask { ask: need.ask(), seen: 1 });
            assert_eq!(got.borrow().len(), 1);
            drop(at_once(tokens.hold(vec![need.clone()])));
            rt.sleep(weft_rt::SECOND).await;
            assert_eq!(got.borrow().len(), 2, "the other node has it");
        });
    }

    #[test]
    fn many_are_given_up_together_but_for_those_that_are_used_again_and_again() {
        let tokens = Tokens::with(1, 64);
        let turns = Rc::new(Cell::new(0));
        let (count, of) = (turns.clone(), Rc::downgrade(&tokens));
        tokens.on_give_up(move |given| {
            count.set(count.get() + 1);
            let tokens = of.upgrade().expect("there");
            given.iter().for_each(|given| tokens.written(given));
        });
        let hold = |ino: Ino| at_once(tokens.hold(vec![Need::attributes(ino, Mode::Exclusive)]));
        for ino in 2..200 {
            drop(hold(1));
            drop(hold(ino));
        }
        assert!(authority_of(&tokens).spaces() <= 64);
        assert!(turns.get() <= 200 / (64 / GIVEN_UP_PART), "{} turns", turns.get());
        let folder = Space { kind: Kind::Attributes, ino: 1 };
        assert!(tokens.is_free(folder, Mode::Exclusive), "it was used with each of the others");
    }

    #[test]
    fn a_token_that_is_revoked_is_free_no_more_and_goes_when_it_is_not_used() {
        let tokens = Tokens::new(1);
        let got = Rc::new(RefCell::new(Vec::new()));
        let other = NodeId { number: 1, epoch: 1 };
        let inbox = got.clone();
        tokens.join(other, Rc::new(move |message| inbox.borrow_mut().push(message)));
        let need = Need::data(5, 100..101, Mode::Exclusive);
        let held = at_once(tokens.hold(vec![need.clone()]));
        let more = at_once(tokens.hold(vec![need.clone()]));
        let ask = Need::data(5, 100..101, Mode::Shared).ask();
        tokens.take(other, ToAuthority::Ask { ask, seen: 0 });
        assert!(!tokens.is_free(need.space, Mode::Shared));
        assert!(futures_util::FutureExt::now_or_never(tokens.hold(vec![need.clone()])).is_none());
        drop(held);
        assert!(got.borrow().is_empty());
        drop(more);
        // Behind it comes the wish of the operation that did not wait for long.
        assert!(matches!(got.borrow()[..], [ToNode::Grant { .. }, ..]), "{got:?}");
    }
}
