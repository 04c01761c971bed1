//! Tokens of this node that are free: to use them costs little.
//!
//! *Free use.* A node without competitors holds all of a file in one mode. To look that up in
//! [`weft_token::Holder`], and to note the use there, would cost every operation as much as its own
//! work in memory. So a token that a node holds whole is *free*: a use of it counts in one table,
//! with the range that was used. When a revocation comes, the uses so far become one use of the
//! holder, which knows them from then on and waits for their end, and the token is not free any
//! more until all of it is granted again.
//!
//! `docs/architecture.md` has a drawing of these states, made from [`TokenState::after`].

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use weft_token::{BySpace, Kind, Mode, Space, UseId};

use crate::tokens::needs::Need;

/// Who counts the uses of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenState {
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
pub(super) enum TokenEvent {
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
    pub(super) fn after(self, event: TokenEvent) -> Option<Self> {
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
pub(super) struct Free {
    pub(super) space: Space,
    state: Cell<TokenState>,
    running: Cell<u32>,
    /// First and end of its used range; empty if nothing was.
    used: Cell<(u64, u64)>,
    /// Whether it was used again since the last round that would have returned it.
    again: Cell<bool>,
}

impl Free {
    /// A token that the holder counts.
    fn new(space: Space) -> Rc<Self> {
        Rc::new(Self {
            space,
            state: Cell::new(TokenState::Held),
            running: Cell::new(0),
            used: Cell::new((u64::MAX, 0)),
            again: Cell::new(false),
        })
    }

    /// The mode in which it is free.
    pub(super) fn mode(&self) -> Option<Mode> {
        match self.state.get() {
            TokenState::Free(mode) => Some(mode),
            TokenState::Held | TokenState::Settled(_) => None,
        }
    }

    fn allows(&self, mode: Mode) -> bool {
        self.mode().is_some_and(|free| free >= mode)
    }

    /// A use of a range begins.
    fn begin(&self, range: &Range<u64>) {
        self.running.set(self.running.get() + 1);
        let (first, end) = self.used.get();
        self.used.set((first.min(range.start), end.max(range.end)));
        self.again.set(true);
    }

    /// A use ends. If it was the last one, and another node wants the token, that is the end of
    /// this use of the holder.
    pub(super) fn end(&self) -> Option<UseId> {
        self.running.set(self.running.get() - 1);
        if self.is_in_use() {
            return None;
        }
        match self.happens(TokenEvent::LastUseEnds)? {
            TokenState::Settled(of) => Some(of),
            TokenState::Held | TokenState::Free(_) => None,
        }
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.running.get() > 0
    }

    /// Whether it is in use, or was since this was asked last.
    pub(super) fn was_used_again(&self) -> bool {
        self.is_in_use() || self.again.replace(false)
    }

    /// The range that was used, if there was any.
    pub(super) fn used(&self) -> Option<Range<u64>> {
        let (first, end) = self.used.get();
        (first < end).then_some(first..end)
    }

    /// Returns the state before, if that can happen in it.
    pub(super) fn happens(&self, event: TokenEvent) -> Option<TokenState> {
        let before = self.state.get();
        self.state.set(before.after(event)?);
        Some(before)
    }
}

/// The tokens of a node that are free, or settled.
#[derive(Default)]
pub(super) struct FreeTokens {
    spaces: RefCell<BySpace<Rc<Free>>>,
    /// That of everything, which each operation uses, stands apart.
    everything: RefCell<Option<Rc<Free>>>,
}

impl FreeTokens {
    pub(super) fn of(&self, space: Space) -> Option<Rc<Free>> {
        match space.kind {
            Kind::Everything => self.everything.borrow().clone(),
            _ => self.spaces.borrow().get(&space).cloned(),
        }
    }

    /// Uses a token that is free.
    pub(super) fn begin(&self, need: &Need) -> Option<Rc<Free>> {
        let free = self.of(need.space).filter(|free| free.allows(need.mode))?;
        free.begin(&need.range);
        Some(free)
    }

    /// Whether a use in this mode is free now.
    pub(super) fn allow(&self, space: Space, mode: Mode) -> bool {
        self.of(space).is_some_and(|free| free.allows(mode))
    }

    /// All of a token is granted in this mode.
    pub(super) fn grant(&self, space: Space, mode: Mode) {
        if let Some(free) = self.of(space) {
            free.happens(TokenEvent::GrantedWhole(mode));
            return;
        }
        let free = Free::new(space);
        free.happens(TokenEvent::GrantedWhole(mode));
        match space.kind {
            Kind::Everything => *self.everything.borrow_mut() = Some(free),
            _ => drop(self.spaces.borrow_mut().insert(space, free)),
        }
    }

    /// The holder counts the uses of a token from now on.
    pub(super) fn remove(&self, space: Space) {
        match space.kind {
            Kind::Everything => drop(self.everything.take()),
            _ => drop(self.spaces.borrow_mut().remove(&space)),
        }
    }

    /// How many there are, but for that of everything.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.spaces.borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use weft_testkit::states;
    use weft_token::{Acquired, Holder};

    use super::*;

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
}
