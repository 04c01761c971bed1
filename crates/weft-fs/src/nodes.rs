//! The tokens of this node, and the authority, which is in the same process today.
//!
//! ```text
//!   operation ── hold ──▶ this node ──────── ask ────────▶ authority ◀──▶ other nodes: tests today,
//!                            ▲  │ ◀── grant, revoke ──────────┘           a network later
//!                            │  └── give up ──▶ flush, commit, forget ──┐
//!                            └────────────── written ───────────────────┘
//! ```
//!
//! *Free use.* A node that is alone holds all of a file in one mode. To look that up in
//! [`Holder`], and to note the use there, would cost every operation as much as its own work in memory.
//! So a token of which a node holds all is *free*: a use of it counts in one table, with the range that
//! was used. When a revocation comes, the uses so far become one use of the holder, which knows them
//! from then on and waits for their end, and the token is not free any more until all of it is granted
//! again.
//!
//! *Giving up.* What was changed under a token is made durable by a task of its own: blocks and sizes
//! by a flush, names and attributes by a commit; what is at hand of the blocks is forgotten. If that
//! fails, the token stays, and it is tried again. A node that cannot write any more keeps its tokens
//! until it is fenced.
//!
//! *Memory.* A node holds tokens of so many files and folders at most; then it gives those up that it
//! has had for longest and that are not in use.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use weft_rt::sync::{Sender, oneshot};
use weft_token::{
    Acquired, Authority, Event, Holder, Mode, NodeId, Space, ToAuthority, ToNode, UseId,
};

use crate::tokens::{Need, all_of, in_order};

/// The most files and folders of which this node holds tokens, about.
const SPACES_MAX: usize = 1 << 16;

/// A token of which this node holds all, and which nobody else wants.
struct Free {
    mode: Mode,
    running: u32,
    /// What was used of it.
    hull: Option<Range<u64>>,
    /// The use of the holder that stands for those that are running: it is being revoked.
    settled: Option<UseId>,
}

/// A message on its way.
enum Message {
    ToAuthority(NodeId, ToAuthority),
    ToThis(ToNode),
}

/// What has to become durable, and to be forgotten if this node keeps nothing.
#[derive(Debug, Clone)]
pub(crate) struct GivenUp {
    pub(crate) space: Space,
    pub(crate) range: Range<u64>,
    pub(crate) leaves: Option<Mode>,
}

type Deliver = Rc<dyn Fn(ToNode)>;
type GiveUp = Rc<dyn Fn(GivenUp)>;

/// This node's tokens, and the authority.
pub(crate) struct Tokens {
    id: NodeId,
    authority: RefCell<Authority>,
    holder: RefCell<Holder>,
    free: RefCell<BTreeMap<Space, Free>>,
    /// Spaces in the order in which something of them was granted.
    granted: RefCell<VecDeque<Space>>,
    spaces_max: usize,
    waiting: RefCell<BTreeMap<UseId, Sender<()>>>,
    others: RefCell<BTreeMap<NodeId, Deliver>>,
    messages: RefCell<VecDeque<Message>>,
    delivering: Cell<bool>,
    give_up: RefCell<Option<GiveUp>>,
}

/// A token in use.
enum Grip {
    Free(Space),
    Held(Space, UseId),
}

/// The tokens of an operation, until this is dropped.
pub(crate) struct Held {
    tokens: Rc<Tokens>,
    grips: Vec<Grip>,
}

impl Held {
    /// Whether there is a token of this among them.
    pub(crate) fn has(&self, space: Space) -> bool {
        self.grips.iter().any(|grip| match grip {
            Grip::Free(of) | Grip::Held(of, _) => *of == space,
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for grip in self.grips.drain(..).rev() {
            match grip {
                Grip::Free(space) => self.tokens.end_free(space),
                Grip::Held(space, of) => self.tokens.end(space, of),
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
        Rc::new(Self {
            id,
            authority: RefCell::new(authority),
            holder: RefCell::default(),
            free: RefCell::default(),
            granted: RefCell::default(),
            spaces_max,
            waiting: RefCell::default(),
            others: RefCell::default(),
            messages: RefCell::default(),
            delivering: Cell::new(false),
            give_up: RefCell::default(),
        })
    }

    /// Who makes durable what is given up, and calls [`Tokens::written`] then.
    pub(crate) fn on_give_up(&self, give_up: impl Fn(GivenUp) + 'static) {
        *self.give_up.borrow_mut() = Some(Rc::new(give_up));
    }

    /// Waits for all tokens of an operation.
    pub(crate) async fn hold(self: &Rc<Self>, needs: Vec<Need>) -> Held {
        let mut held = Held { tokens: self.clone(), grips: Vec::with_capacity(needs.len()) };
        for need in in_order(needs) {
            self.hold_one(&mut held, &need).await;
        }
        held
    }

    /// Adds tokens to those of an operation, which are behind them in the order.
    pub(crate) async fn hold_more(self: &Rc<Self>, held: &mut Held, needs: Vec<Need>) {
        for need in in_order(needs) {
            self.hold_one(held, &need).await;
        }
    }

    async fn hold_one(self: &Rc<Self>, held: &mut Held, need: &Need) {
        if self.begin_free(need) {
            held.grips.push(Grip::Free(need.space));
            return;
        }
        let acquired = self.holder.borrow_mut().acquire(need.ask());
        match acquired {
            Acquired::Now(of) => held.grips.push(Grip::Held(need.space, of)),
            Acquired::Later(of, message) => {
                // If this is dropped meanwhile, it waits no longer.
                held.grips.push(Grip::Held(need.space, of));
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

    /// Uses a token that is free.
    fn begin_free(&self, need: &Need) -> bool {
        let mut free = self.free.borrow_mut();
        let fits = |free: &&mut Free| free.settled.is_none() && free.mode >= need.mode;
        let Some(free) = free.get_mut(&need.space).filter(fits) else { return false };
        free.running += 1;
        free.hull = Some(match &free.hull {
            None => need.range.clone(),
            Some(hull) => hull.start.min(need.range.start)..hull.end.max(need.range.end),
        });
        true
    }

    /// Whether a use in this mode is free now.
    pub(crate) fn is_free(&self, space: Space, mode: Mode) -> bool {
        let free = self.free.borrow();
        free.get(&space).is_some_and(|free| free.settled.is_none() && free.mode >= mode)
    }

    /// A token of which all is held is free.
    fn make_free(&self, space: Space) {
        let Some(mode) = self.holder.borrow().whole(space, &all_of(space.kind)) else { return };
        let mut free = self.free.borrow_mut();
        match free.get_mut(&space) {
            Some(free) if free.settled.is_none() => free.mode = mode,
            Some(_) => {}
            None => drop(free.insert(space, Free { mode, running: 0, hull: None, settled: None })),
        }
    }

    fn end_free(&self, space: Space) {
        let ended = {
            let mut free = self.free.borrow_mut();
            let entry = free.get_mut(&space).expect("a use keeps it");
            entry.running -= 1;
            if entry.running > 0 || entry.settled.is_none() {
                return;
            }
            free.remove(&space).and_then(|free| free.settled)
        };
        if let Some(of) = ended {
            self.end(space, of);
        }
    }

    /// A token is not free any more: the holder knows what was used of it, and what is in use.
    fn settle(&self, space: Space) {
        let mut free = self.free.borrow_mut();
        let Some(entry) = free.get_mut(&space).filter(|free| free.settled.is_none()) else {
            return;
        };
        let used = entry.hull.take().map(|hull| {
            let need = Need { space, range: hull, mode: entry.mode };
            match self.holder.borrow_mut().acquire(need.ask()) {
                Acquired::Now(of) => of,
                Acquired::Later(..) => unreachable!("all of it is held"),
            }
        });
        if entry.running > 0 {
            entry.settled = used;
            return;
        }
        free.remove(&space);
        drop(free);
        if let Some(of) = used {
            self.end(space, of);
        }
    }

    fn end(&self, space: Space, of: UseId) {
        self.waiting.borrow_mut().remove(&of);
        let events = self.holder.borrow_mut().done(space, of);
        self.handle(events);
    }

    /// What was given up is durable.
    pub(crate) fn written(&self, given: &GivenUp) {
        let events = self.holder.borrow_mut().written(given.space, &given.range);
        self.handle(events);
    }

    fn handle(&self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Send(message) => self.send(Message::ToAuthority(self.id, message)),
                Event::Ready(of) => {
                    if let Some(ready) = self.waiting.borrow_mut().remove(&of) {
                        ready.send(());
                    }
                }
                Event::Write { space, range, leaves } => {
                    let given = GivenUp { space, range, leaves };
                    let give_up = self.give_up.borrow().clone();
                    match give_up {
                        Some(give_up) => give_up(given),
                        // Nothing was changed before the mount was complete.
                        None => self.written(&given),
                    }
                }
            }
        }
    }

    /// Sends a message, and those that follow from it behind it.
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
                Some(Message::ToAuthority(from, message)) => {
                    let mut out = Vec::new();
                    self.authority.borrow_mut().take(from, message, &mut out);
                    self.deliver(out);
                }
                Some(Message::ToThis(message)) => {
                    if let ToNode::Revoke(revoke) = &message {
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
            let deliver = self.others.borrow().get(&to).cloned();
            if let Some(deliver) = deliver {
                deliver(message);
            }
        }
    }

    /// Gives up tokens that were not used for long, if there are many.
    fn give_up_some(&self) {
        let mut more = self.granted.borrow().len().saturating_sub(self.spaces_max);
        while more > 0 {
            more -= 1;
            let Some(space) = self.granted.borrow_mut().pop_front() else { return };
            let is_used = self.free.borrow().get(&space).is_some_and(|free| free.running > 0);
            if is_used {
                self.granted.borrow_mut().push_back(space);
                continue;
            }
            self.settle(space);
            let events = self.holder.borrow_mut().give_up(space);
            self.handle(events);
        }
    }

    /// Another node has mounted the file system; `deliver` takes what it is told.
    pub(crate) fn join(&self, node: NodeId, deliver: Deliver) {
        self.authority.borrow_mut().join(node);
        self.others.borrow_mut().insert(node, deliver);
    }

    /// Takes the message of another node.
    pub(crate) fn take(&self, node: NodeId, message: ToAuthority) {
        self.send(Message::ToAuthority(node, message));
    }

    /// Another node is dead. What it holds stays until it is recovered.
    pub(crate) fn fence(&self, node: NodeId) {
        self.others.borrow_mut().remove(&node);
        let mut out = Vec::new();
        self.authority.borrow_mut().fence(node, &mut out);
        self.deliver(out);
        self.send_all();
    }

    /// The log of a dead node is recovered: what it held is free.
    pub(crate) fn recovered(&self, node: NodeId) {
        let mut out = Vec::new();
        self.authority.borrow_mut().recovered(node, &mut out);
        self.deliver(out);
        self.send_all();
    }
}
