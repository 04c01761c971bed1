//! Tokens that nodes take from each other again and again.
//!
//! An exchange takes a commit of the node that returns the token. If each operation of two nodes
//! took one, as when both make files in one folder, they would do little else. So a node that gets
//! a token back which it had returned lately keeps it for [`KEPT`] although another node waits: its
//! operations that come in this time need no exchange. Who waits waits that much longer, and a
//! token that is asked for once is returned at once.
//!
//! Only the revocation waits. Grants never do, so their numbers come in order; and a revocation may
//! come after a later grant, as it takes no more than the node has when it comes.

use std::cell::RefCell;
use std::collections::BTreeMap;

use weft_rt::{MILLISECOND, Nanos, SECOND};
use weft_token::{Kind, Space};

/// How long a token is kept.
const KEPT: Nanos = 10 * MILLISECOND;
/// A token that comes back within this time after its return is contended.
const LATELY: Nanos = SECOND;
/// The most files and folders that are remembered.
const SPACES_MAX: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct Exchange {
    /// When something of it was returned last.
    returned: Nanos,
    /// Until when it is kept, if it came back since.
    kept_until: Option<Nanos>,
}

/// The exchanges of the last time.
#[derive(Debug, Default)]
pub(crate) struct ContendedTokens(RefCell<BTreeMap<Space, Exchange>>);

impl ContendedTokens {
    /// Something of a space was granted to this node.
    pub(crate) fn granted(&self, space: Space, now: Nanos) {
        let mut exchanges = self.0.borrow_mut();
        let Some(exchange) = exchanges.get_mut(&space) else { return };
        // Another part of it does not renew the time.
        if now < exchange.returned + LATELY && exchange.kept_until.is_none() {
            exchange.kept_until = Some(now + KEPT);
        }
    }

    /// Another node wants something of a space: how long the revocation has to wait. None: it is
    /// carried out now.
    pub(crate) fn revoked(&self, space: Space, now: Nanos) -> Option<Nanos> {
        // Who wants everything waits long enough.
        if space.kind == Kind::Everything {
            return None;
        }
        let mut exchanges = self.0.borrow_mut();
        let kept_until = exchanges.get(&space).and_then(|exchange| exchange.kept_until);
        if let Some(left) =
            kept_until.and_then(|until| until.checked_sub(now)).filter(|left| *left > 0)
        {
            return Some(left);
        }
        if exchanges.len() >= SPACES_MAX {
            exchanges.retain(|_, exchange| now < exchange.returned + LATELY);
            // So many are none that nodes contend for.
            if exchanges.len() >= SPACES_MAX {
                exchanges.clear();
            }
        }
        exchanges.insert(space, Exchange { returned: now, kept_until: None });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_token_that_comes_back_soon_is_kept_and_not_for_longer_by_more_grants() {
        let tokens = ContendedTokens::default();
        let folder = Space { kind: Kind::Attributes, ino: 7 };
        tokens.granted(folder, 0);
        assert_eq!(tokens.revoked(folder, 1), None, "it was never returned");
        tokens.granted(folder, 1000);
        tokens.granted(folder, 1000 + KEPT / 2);
        assert_eq!(tokens.revoked(folder, 1000 + KEPT / 2), Some(KEPT / 2));
        assert_eq!(tokens.revoked(folder, 1000 + KEPT), None);
        tokens.granted(folder, 1000 + KEPT + LATELY);
        assert_eq!(tokens.revoked(folder, 1000 + KEPT + LATELY), None, "that was long ago");
        let all = Space { kind: Kind::Everything, ino: 0 };
        assert_eq!(tokens.revoked(all, 0), None);
        tokens.granted(all, 1);
        assert_eq!(tokens.revoked(all, 2), None);
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let tokens = ContendedTokens::default();
        for ino in 0..3 * SPACES_MAX as u64 {
            assert_eq!(tokens.revoked(Space { kind: Kind::Data, ino }, ino), None);
        }
        assert!(tokens.0.borrow().len() <= SPACES_MAX);
    }
}
