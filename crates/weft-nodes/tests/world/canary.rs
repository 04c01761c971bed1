//! Builds that break one rule, which the oracle must find out.

use weft_token::{Release, ToAuthority, ToNode};
use weft_wire::{Frames, FromKeeper, Restated, ToKeeper};

use super::oracle::told;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Canary {
    None,
    /// Disks confirm fences, and do nothing.
    FenceSkipped,
    /// A keeper takes tokens for returned that their nodes still have.
    TokenNotRevoked,
    /// Nothing is broken. Only nodes are killed, and stay away until they are recovered.
    OnlyNodesDie,
    /// The same, and the log of a dead node is recovered once more, after others have used its
    /// files.
    RingRecoveredTwice,
    /// A keeper that has just taken over grants tokens that nodes have from the one before it.
    GrantsEarly,
}

/// Changes what goes over a stream between a node, which is near, and the keeper.
pub struct Filter {
    canary: Canary,
    from_node: Frames,
    from_keeper: Frames,
}

impl Filter {
    pub fn of(canary: Canary) -> Option<Self> {
        let (from_node, from_keeper) = (Frames::default(), Frames::default());
        (told() > 2 || matches!(canary, Canary::TokenNotRevoked | Canary::GrantsEarly))
            .then_some(Self { canary, from_node, from_keeper })
    }

    /// What goes on, and what comes back in place of an answer.
    pub fn pass(
        &mut self,
        (at, who): (u64, usize),
        is_from_node: bool,
        bytes: &[u8],
    ) -> (Vec<u8>, Vec<u8>) {
        let (mut on, mut back) = (Vec::new(), Vec::new());
        let tell = |text: String| {
            if told() > 2 {
                eprintln!(
                    "{:>9} wire n{who} {}",
                    at / 1_000_000,
                    text.chars().take(4000).collect::<String>()
                );
            }
        };
        if is_from_node {
            self.from_node.push(bytes);
            while let Some(message) = ToKeeper::next(&mut self.from_node).expect("sound") {
                tell(format!("> {message:?}"));
                let message = match message {
                    ToKeeper::Restate(restated) if self.canary == Canary::GrantsEarly => {
                        ToKeeper::Restate(Restated { tokens: Vec::new(), ..restated })
                    }
                    message => message,
                };
                on.extend(message.to_bytes());
            }
            return (on, back);
        }
        self.from_keeper.push(bytes);
        while let Some(message) = FromKeeper::next(&mut self.from_keeper).expect("sound") {
            tell(format!("< {message:?}"));
            match message {
                FromKeeper::Token(ToNode::Revoke(revoke))
                    if self.canary == Canary::TokenNotRevoked =>
                {
                    let release = Release {
                        space: revoke.space,
                        range: revoke.wanted,
                        leaves: revoke.leaves,
                        seen: u64::MAX,
                    };
                    let release = ToKeeper::Token(ToAuthority::Release(release));
                    back.extend(release.to_bytes());
                }
                message => on.extend(message.to_bytes()),
            }
        }
        (on, back)
    }
}
