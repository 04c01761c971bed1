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
//! *Free use.* A node without competitors holds all of a file in one mode. To look that up in
//! [`Holder`], and to note the use there, would cost every operation as much as its own work in
//! memory. So a token that a node holds whole is *free*: a use of it counts in one table, with the
//! range that was used. When a revocation comes, the uses so far become one use of the holder,
//! which knows them from then on and waits for their end, and the token is not free any more until
//! all of it is granted again.
//!
//! `docs/architecture.md` has a drawing of these states, made from [`TokenState::after`].
//!
//! *Return of a token.* A task of its own makes the changes under a token durable: blocks and sizes
//! by a flush, names and attributes by a commit; cached blocks are forgotten. If that fails, the
//! token stays, and it is tried again. A node that cannot write any more keeps its tokens until it
//! is fenced.
//!
//! *Memory.* The number of files and folders with tokens is bounded. At the bound a node returns
//! many tokens together, as each such round takes a commit: the oldest ones that are not in use and
//! were not used again since the last round that reached them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::pin::Pin;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};
use weft_rt::sync::{Notify, Semaphore, Sender, oneshot};
use weft_token::{
    Acquired, Authority, BySpace, Conflict, Event, Holder, Holding, Kind, Mode, NodeId, Space,
    ToAuthority, ToNode, UseId,
};

use crate::format::inode::Ino;
use crate::meta::desk::{Deliver, DeskClient};
use crate::tokens::needs::{Need, all_of, in_order};
use crate::tokens::returned_pages::{Bytes, LateRequest, ReturnedPages};

/// The approximate maximum of files and folders with tokens of this node.
const SPACES_MAX: usize = 1 << 16;
/// This part of them is returned at a time.
const GIVEN_UP_PART: usize = 8;

/// Who counts the uses of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenState {
    /// The holder: another node may have parts of it.
    Held,
    /// The table of free tokens: this node has all of it in this mode, and no other node wants it.
    Free(Mode),
    /// Another node wants it. The uses that were running then are this one use of the holder, and
    /// no other use starts until the last of them ends.
    Settled(UseId),
}

/// What happens to a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenEvent {
    /// All of it is granted in this mode.
    GrantedWhole(Mode),
    /// It is wanted while it is in use, which is this use of the holder from now on.
    RevokedInUse(UseId),
    /// It is requested, or being returned, while it is not in use.
    RevokedUnused,
    /// The last use that was running ends.
    LastUseEnds,
}

impl TokenState {
    /// The state after `event`; `None` if that cannot happen in this state.
    fn after(self, event: TokenEvent) -> Option<Self> {
        use TokenEvent::{GrantedWhole, LastUseEnds, RevokedInUse, RevokedUnused};
        match (self, event) {
            (Self::Held | Self::Free(_), GrantedWhole(mode)) => Some(Self::Free(mode)),
            (Self::Free(_), RevokedInUse(of)) => Some(Self::Settled(of)),
            (Self::Free(_), RevokedUnused) | (Self::Settled(_), LastUseEnds) => Some(Self::Held),
            (Self::Held, RevokedInUse(_) | RevokedUnused | LastUseEnds)
            | (Self::Free(_), LastUseEnds)
            | (Self::Settled(_), GrantedWhole(_) | RevokedInUse(_) | RevokedUnused) => None,
        }
    }
}

/// A token that is free, or settled.
struct Free {
    space: Space,
    state: Cell<TokenState>,
    running: Cell<u32>,
    /// First and end of its used range; empty if nothing was.
    used: Cell<(u64, u64)>,
    /// Whether it was used again since the last round that would have returned it.
    again: Cell<bool>,
}

impl Free {
    fn allows(&self, mode: Mode) -> bool {
        self.free_mode().is_some_and(|free| free >= mode)
    }

    /// The mode in which it is free.
    fn free_mode(&self) -> Option<Mode> {
        match self.state.get() {
            TokenState::Free(mode) => Some(mode),
            TokenState::Held | TokenState::Settled(_) => None,
        }
    }

    /// Returns the state before, if that can happen in it.
    fn happens(&self, event: TokenEvent) -> Option<TokenState> {
        let before = self.state.get();
        self.state.set(before.after(event)?);
        Some(before)
    }
}

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

/// Looks at something, and returns whether that was possible.
type LookAgain = Rc<dyn Fn() -> Pin<Box<dyn Future<Output = bool>>>>;
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
    /// The tokens that are free. That of everything, which each operation uses, stands apart.
    free: RefCell<BySpace<Rc<Free>>>,
    everything: RefCell<Option<Rc<Free>>>,
    /// Spaces in the order in which something of them was granted.
    granted: RefCell<VecDeque<Space>>,
    spaces_max: usize,
    waiting: RefCell<BTreeMap<UseId, Sender<()>>>,
    /// How often something was heard of other nodes.
    heard: Cell<u64>,
    messages: RefCell<VecDeque<Message>>,
    delivering: Cell<bool>,
    give_up: RefCell<Option<GiveUp>>,
    /// Files whose pages the kernel gives back.
    returned_pages: RefCell<BTreeMap<Ino, Rc<ReturnedPages>>>,
    /// Requests that wait may be late ones now.
    late: Notify,
    /// Called when a token comes or goes while there are other nodes.
    others_act: RefCell<Option<Rc<dyn Fn()>>>,
    /// Whether another node may have changed what belongs to the token of everything since this
    /// node looked at it.
    is_outdated: Cell<bool>,
    look_again: RefCell<Option<LookAgain>>,
    /// Held while this node looks at it again.
    looking: Semaphore,
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
        Rc::new(Self {
            id,
            place,
            holder: RefCell::default(),
            free: RefCell::default(),
            everything: RefCell::default(),
            granted: RefCell::default(),
            spaces_max,
            waiting: RefCell::default(),
            heard: Cell::new(0),
            messages: RefCell::default(),
            delivering: Cell::new(false),
            give_up: RefCell::default(),
            returned_pages: RefCell::default(),
            late: Notify::default(),
            others_act: RefCell::default(),
            is_outdated: Cell::new(false),
            look_again: RefCell::default(),
            looking: Semaphore::new(1),
        })
    }

    /// The task that makes changes under returned tokens durable, and then calls
    /// [`Tokens::written`].
    pub(crate) fn on_give_up(&self, give_up: impl Fn(Vec<Revocation>) + 'static) {
        *self.give_up.borrow_mut() = Some(Rc::new(give_up));
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
        *self.look_again.borrow_mut() = Some(Rc::new(look));
        self.is_outdated.set(true);
    }

    /// The token of everything is held: looks again at what belongs to it.
    async fn look_again(&self) {
        let _one = self.looking.acquire(1).await;
        let look = self.look_again.borrow().clone();
        if let Some(look) = look.filter(|_| self.is_outdated.get()) {
            let is_known = look().await;
            self.is_outdated.set(!is_known);
        }
    }

    /// Whether there are other nodes, or were any.
    fn has_others(&self) -> bool {
        matches!(self.place, Place::Elsewhere(_)) || self.heard.get() > 0
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
        let mut told = self.late.wait();
        if let Some(held) = self.be_late(ino, bytes, &needs) {
            return held;
        }
        let mut hold = pin!(self.hold(needs.clone()));
        loop {
            match select(hold.as_mut(), pin!(told)).await {
                Either::Left((held, _)) => return held,
                Either::Right(_) => told = self.late.wait(),
            }
            if let Some(held) = self.be_late(ino, bytes, &needs) {
                return held;
            }
        }
    }

    /// The tokens of a late request, if it can be one.
    fn be_late(self: &Rc<Self>, ino: Ino, bytes: &Bytes, needs: &[Need]) -> Option<HeldTokens> {
        let pages = self.returned_pages(ino)?;
        let is_held = |need: &Need| {
            let Need { space, range, mode } = need;
            let is_needed = space.kind != Kind::Everything;
            !is_needed || self.holder.borrow().covers(*space, range, *mode)
        };
        let late = needs.iter().all(is_held).then(|| pages.begin(bytes)).flatten()?;
        let (tokens, heard) = (self.clone(), self.heard.get());
        Some(HeldTokens { tokens, heard, grips: vec![HeldToken::Late(late)] })
    }

    /// The pages of a file that the kernel is giving back.
    pub(crate) fn returned_pages(&self, ino: Ino) -> Option<Rc<ReturnedPages>> {
        self.returned_pages.borrow().get(&ino).cloned()
    }

    /// The kernel is about to give the pages of a file back.
    pub(crate) fn begin_return(&self, ino: Ino) -> Rc<ReturnedPages> {
        let pages = ReturnedPages::new();
        self.returned_pages.borrow_mut().insert(ino, pages.clone());
        pages
    }

    /// A round of this begins: requests that wait may be late ones.
    pub(crate) fn tell_late(&self) {
        self.late.notify_all();
    }

    /// The kernel has given the pages of a file back.
    pub(crate) fn end_return(&self, ino: Ino) {
        self.returned_pages.borrow_mut().remove(&ino);
    }

    async fn hold_one(self: &Rc<Self>, held: &mut HeldTokens, need: &Need) {
        self.take_one(held, need).await;
        if need.space.kind == Kind::Everything && self.is_outdated.get() {
            self.look_again().await;
        }
    }

    async fn take_one(self: &Rc<Self>, held: &mut HeldTokens, need: &Need) {
        if let Some(free) = self.begin_free(need) {
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

    fn free(&self, space: Space) -> Option<Rc<Free>> {
        match space.kind {
            Kind::Everything => self.everything.borrow().clone(),
            _ => self.free.borrow().get(&space).cloned(),
        }
    }

    /// Uses a token that is free.
    fn begin_free(&self, need: &Need) -> Option<Rc<Free>> {
        let free = self.free(need.space).filter(|free| free.allows(need.mode))?;
        free.running.set(free.running.get() + 1);
        let (first, end) = free.used.get();
        free.used.set((first.min(need.range.start), end.max(need.range.end)));
        free.again.set(true);
        Some(free)
    }

    /// Whether a use in this mode is free now.
    pub(crate) fn is_free(&self, space: Space, mode: Mode) -> bool {
        self.free(space).is_some_and(|free| free.allows(mode))
    }

    /// A token that is held whole is free.
    fn make_free(&self, space: Space) {
        let Some(mode) = self.holder.borrow().whole(space, &all_of(space.kind)) else { return };
        let known = self.free(space);
        let free = known.clone().unwrap_or_else(|| {
            let (state, running) = (Cell::new(TokenState::Held), Cell::new(0));
            let (used, again) = (Cell::new((u64::MAX, 0)), Cell::new(false));
            Rc::new(Free { space, state, running, used, again })
        });
        free.happens(TokenEvent::GrantedWhole(mode));
        if known.is_none() {
            match space.kind {
                Kind::Everything => *self.everything.borrow_mut() = Some(free),
                _ => drop(self.free.borrow_mut().insert(space, free)),
            }
        }
    }

    fn is_free_no_more(&self, space: Space) {
        match space.kind {
            Kind::Everything => drop(self.everything.take()),
            _ => drop(self.free.borrow_mut().remove(&space)),
        }
    }

    fn end_free(&self, free: &Free) {
        free.running.set(free.running.get() - 1);
        if free.running.get() == 0
            && let Some(TokenState::Settled(of)) = free.happens(TokenEvent::LastUseEnds)
        {
            self.is_free_no_more(free.space);
            self.end(free.space, of);
        }
    }

    /// A token is not free any more: the holder knows its used ranges, and those in use.
    fn settle(&self, space: Space) {
        let Some((free, mode)) = self.free(space).and_then(|free| {
            let mode = free.free_mode()?;
            Some((free, mode))
        }) else {
            return;
        };
        let (first, end) = free.used.get();
        let used = (first < end).then(|| {
            let need = Need { space, range: first..end, mode };
            match self.holder.borrow_mut().acquire(need.ask()) {
                Acquired::Now(of) => of,
                Acquired::Later(..) => unreachable!("all of it is held"),
            }
        });
        if free.running.get() > 0 {
            let of = used.expect("what runs has used something");
            free.happens(TokenEvent::RevokedInUse(of));
            return;
        }
        free.happens(TokenEvent::RevokedUnused);
        self.is_free_no_more(space);
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
                    if self.has_others() {
                        self.others_act.borrow().iter().for_each(|act| act());
                    }
                    if let ToNode::Revoke(revoke) = &message {
                        if revoke.space.kind == Kind::Everything && revoke.leaves.is_none() {
                            self.is_outdated.set(self.look_again.borrow().is_some());
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
            let free = self.free(space);
            if free.is_some_and(|free| free.running.get() > 0 || free.again.replace(false)) {
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
        let mut holder = self.holder.borrow_mut();
        (holder.held(), holder.ask_again())
    }

    fn take(&self, message: ToNode) {
        self.send(Message::ToThis(message));
    }
}

#[cfg(test)]
mod tests {
    use weft_testkit::states;

    use super::*;
    use crate::format::inode::Ino;

    #[test]
    fn the_drawing_shows_what_the_function_does() {
        let mut holder = Holder::default();
        let need = Need::data(5, 0..1, Mode::Shared);
        let (Acquired::Now(of) | Acquired::Later(of, _)) = holder.acquire(need.ask());
        let tokens = [
            ("held", TokenState::Held),
            ("free", TokenState::Free(Mode::Shared)),
            ("settled", TokenState::Settled(of)),
        ];
        let events = [
            ("all of it is granted", TokenEvent::GrantedWhole(Mode::Shared)),
            ("another node wants it while it is in use", TokenEvent::RevokedInUse(of)),
            ("another node wants it, or there are many", TokenEvent::RevokedUnused),
            ("the last use ends", TokenEvent::LastUseEnds),
        ];
        let page = include_str!("../../../../docs/architecture.md");
        let drawing = states::drawing(&tokens, &events, TokenState::after);
        states::assert_drawn(page, "### A token", &drawing);
    }

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
        assert!(tokens.free.borrow().len() <= 9);
        let attributes = |ino| Space { kind: Kind::Attributes, ino };
        assert!(!authority_of(&tokens).held(attributes(1)).is_empty(), "it is in use");
        assert!(authority_of(&tokens).held(attributes(2)).is_empty());
        assert!(tokens.is_free(attributes(99), Mode::Exclusive));
        drop(first);
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
