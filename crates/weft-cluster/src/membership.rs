//! A process's membership: it keeps its lease, takes steps ([`Node::step`]) whenever the record
//! changes, and tells what has become of it.
//!
//! ```text
//!   lease ── keep_alive, every third of it ──▶ coordinator
//!   steps ── step, read ──▶ outlook ──▶ who waits for something ([`Membership::until`])
//!     ▲                        │
//!     └── the record has changed, or a second has passed ──┘
//! ```
//!
//! The steps end when the process was expelled: it must end all use of the disks, and another
//! process starts in its place. While the coordinator is away nothing changes, and the outlook says
//! why.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_util::future::select;
use weft_rt::sync::{Notify, Semaphore};
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};

use crate::coordinator::View;
use crate::{Coordinator, FenceError, Node, NodeError, Standing};

/// A look at the record happens at least this often.
const LOOK_EVERY: Nanos = SECOND;
/// Pause after a step that failed.
const PAUSE: Nanos = 300 * MILLISECOND;

/// What a process knows of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// Where it stands, as far as the last step told.
    pub standing: Standing,
    /// What the coordinator told last.
    pub view: View,
    /// Why the last step failed, if it did.
    pub failure: Option<NodeError>,
}

impl Outlook {
    /// Where the keeper listens, if it is active and says so.
    pub fn keeper_address(&self) -> Option<&str> {
        let record = self.view.record.as_ref()?;
        let keeper = record.keeper.as_ref().filter(|keeper| keeper.active)?;
        record.members.get(&keeper.node.node)?.address.as_deref()
    }
}

struct Shared {
    rt: Rt,
    node: Node,
    coordinator: Rc<dyn Coordinator>,
    outlook: RefCell<Outlook>,
    changed: Notify,
    has_ended: Cell<bool>,
    /// Held during a step.
    stepping: Semaphore,
}

/// A process's part in a cluster, which goes on by itself. Dropped without [`Membership::end`], it
/// is evicted when its lease has ended.
pub struct Membership(Rc<Shared>);

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Membership").field(&self.0.outlook.borrow()).finish()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.has_ended.set(true);
        self.0.changed.notify_all();
    }
}

impl Membership {
    /// Starts to take part. Leases of the coordinator last for `lease`.
    pub fn start(rt: &Rt, coordinator: Rc<dyn Coordinator>, node: Node, lease: Nanos) -> Self {
        let outlook = Outlook { standing: Standing::Out, view: View::default(), failure: None };
        let shared = Rc::new(Shared {
            rt: rt.clone(),
            node,
            coordinator,
            outlook: RefCell::new(outlook),
            changed: Notify::default(),
            has_ended: Cell::new(false),
            stepping: Semaphore::new(1),
        });
        rt.spawn(shared.clone().take_part(lease));
        Self(shared)
    }

    /// What is known now.
    pub fn outlook(&self) -> Outlook {
        self.0.outlook.borrow().clone()
    }

    /// The process's part in the protocol.
    pub fn node(&self) -> &Node {
        &self.0.node
    }

    /// Waits until `find` finds something in what is known.
    pub async fn until<T>(&self, mut find: impl FnMut(&Outlook) -> Option<T>) -> T {
        loop {
            let changed = self.0.changed.wait();
            let found = find(&self.0.outlook.borrow());
            if let Some(found) = found {
                return found;
            }
            changed.await;
        }
    }

    /// Waits until the process is no member any more, against its will.
    pub async fn expelled(&self) {
        let is_out = |outlook: &Outlook| matches!(outlook.standing, Standing::Expelled(_));
        self.until(|outlook| is_out(outlook).then_some(())).await;
    }

    /// Ends it in order. No request may be in flight on any disk.
    ///
    /// # Errors
    /// The coordinator gives no answer: then the process is evicted later.
    pub async fn end(&self) -> Result<(), NodeError> {
        self.0.has_ended.set(true);
        // A step after that would join again.
        let _last = self.0.stepping.acquire(1).await;
        self.0.node.leave().await
    }
}

impl Shared {
    fn look(&self, change: impl FnOnce(&mut Outlook)) {
        let mut outlook = self.outlook.borrow().clone();
        change(&mut outlook);
        if *self.outlook.borrow() != outlook {
            *self.outlook.borrow_mut() = outlook;
            self.changed.notify_all();
        }
    }

    async fn take_part(self: Rc<Self>, lease: Nanos) {
        // A member without a lease would be evicted.
        while let Err(error) = self.node.keep_alive().await {
            self.look(|outlook| outlook.failure = Some(error));
            self.rt.sleep(PAUSE).await;
            if self.has_ended.get() {
                return;
            }
        }
        let keeping = self.clone();
        self.rt.spawn(async move {
            while !keeping.has_ended.get() {
                // What goes wrong the steps meet, too.
                let pause = match keeping.node.keep_alive().await {
                    Ok(()) => lease / 3,
                    Err(_) => PAUSE,
                };
                keeping.rt.sleep(pause).await;
            }
        });
        let mut before = View::default();
        while !self.has_ended.get() {
            let turn = self.stepping.acquire(1).await;
            if self.has_ended.get() {
                return;
            }
            let stepped = self.node.step().await;
            drop(turn);
            let read = self.coordinator.read().await;
            if self.has_ended.get() {
                return;
            }
            let was = self.outlook.borrow().standing.clone();
            let has_failed = stepped.is_err() || read.is_err();
            self.look(|outlook| {
                match stepped {
                    Ok(standing) => (outlook.standing, outlook.failure) = (standing, None),
                    Err(NodeError::Fence(FenceError::Fenced { .. }))
                        if self.node.own().is_some() =>
                    {
                        let own = self.node.own().expect("it has joined");
                        outlook.standing = Standing::Expelled(own);
                    }
                    Err(error) => outlook.failure = Some(error),
                }
                match read {
                    Ok(view) => outlook.view = view,
                    Err(error) => outlook.failure = Some(error.into()),
                }
            });
            let now = self.outlook.borrow().clone();
            if let Standing::Expelled(_) = now.standing {
                self.has_ended.set(true);
                return;
            }
            if has_failed {
                self.rt.sleep(PAUSE).await;
            } else if now.standing == was && now.view.version == before.version {
                let changed = self.coordinator.changed(&now.view);
                select(changed, Box::pin(self.rt.sleep(LOOK_EVERY))).await;
            }
            before = now.view;
        }
    }
}
