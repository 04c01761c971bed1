//! What this node knows of what belongs to the token of everything, such as which disks there are.
//!
//! The node looks at it once at first. When another node had the token exclusively, it may have
//! changed: the next operation that has the token looks again before it goes on.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;

use weft_rt::sync::Semaphore;

/// Looks at it, and returns whether that was possible.
type Look = Rc<dyn Fn() -> Pin<Box<dyn Future<Output = bool>>>>;

/// See the [module](self).
pub(super) struct SharedView {
    look: RefCell<Option<Look>>,
    /// Whether another node may have changed it since this node looked.
    is_outdated: Cell<bool>,
    /// Held while this node looks.
    looking: Semaphore,
}

impl Default for SharedView {
    fn default() -> Self {
        Self { look: RefCell::default(), is_outdated: Cell::new(false), looking: Semaphore::new(1) }
    }
}

impl SharedView {
    /// `look` is called before the next operation that has the token of everything goes on, and
    /// again whenever another node may have changed what belongs to it.
    pub(super) fn on_outdated(
        &self,
        look: impl Fn() -> Pin<Box<dyn Future<Output = bool>>> + 'static,
    ) {
        *self.look.borrow_mut() = Some(Rc::new(look));
        self.is_outdated.set(true);
    }

    /// Another node wants the token for itself, and may change what belongs to it.
    pub(super) fn expire(&self) {
        self.is_outdated.set(self.look.borrow().is_some());
    }

    /// The token of everything is held: looks again at what belongs to it, if that may be outdated.
    pub(super) async fn look_again(&self) {
        if !self.is_outdated.get() {
            return;
        }
        let _one = self.looking.acquire(1).await;
        let look = self.look.borrow().clone();
        if let Some(look) = look.filter(|_| self.is_outdated.get()) {
            let is_known = look().await;
            self.is_outdated.set(!is_known);
        }
    }
}
