//! What the keeper does for nodes besides the store: it gives out tokens, space and more, of which
//! node 0, in the same process, keeps account.
//!
//! The server calls [`Desk`] with what nodes tell it, each in its order. Nothing there waits for a
//! node. At a node [`super::remote`] calls [`DeskClient`].

use std::rc::Rc;

use weft_token::{Holding, NodeId, ToAuthority, ToNode};
use weft_wire::Restated;

/// Takes what a node is to be told, on its present connection. Without one it is lost.
pub(crate) type Deliver = Rc<dyn Fn(ToNode)>;

/// The part of node 0 that other nodes deal with.
pub(crate) trait Desk {
    /// A node is there on a new connection, and this is all that it has. It takes the place of what
    /// was known of it.
    ///
    /// # Errors
    /// Why that cannot be. The node is refused.
    fn restated(
        &self,
        node: NodeId,
        restated: Restated,
        deliver: Deliver,
    ) -> std::result::Result<(), String>;

    /// A node asks for a token or returns one.
    fn take(&self, node: NodeId, message: ToAuthority);
}

/// The other side: a node's tokens.
pub(crate) trait DeskClient {
    /// What the node holds, and what it waits for, for a keeper that knows nothing of that.
    fn restate(&self) -> (Vec<Holding>, Vec<ToAuthority>);

    /// Takes a message of the authority.
    fn take(&self, message: ToNode);
}
