//! How the array is kept consistent, and what that leaves exposed. The policy may change whenever
//! the array starts after a clean stop; but where an earlier crash left stripes inconsistent,
//! because the policy of that time has a write hole, they remain so until the resync, under every
//! policy.

use std::cell::Cell;

use weft_array::Consistency;

/// The consistency policy, and whether there may be a write hole.
#[derive(Debug, Default)]
pub(crate) struct Exposure {
    /// The policy, once it is known.
    policy: Cell<Option<Consistency>>,
    /// Whether the policy has left a write hole since the volume was last consistent.
    has_hole: Cell<bool>,
}

impl Exposure {
    /// The array is kept consistent by this policy from now on; `resyncs`: something may still be
    /// inconsistent. Returns whether that is another policy than before.
    pub(crate) fn begin(&self, policy: Consistency, resyncs: bool) -> bool {
        self.has_hole.set(resyncs && self.has_hole.get() || policy != Consistency::Ppl);
        self.policy.replace(Some(policy)).is_some_and(|before| before != policy)
    }

    /// The volume is consistent.
    pub(crate) fn consistent_again(&self) {
        self.has_hole.set(self.policy.get() != Some(Consistency::Ppl));
    }

    /// The policy by whose rules promises end that disks lost together with the last crashes end.
    pub(crate) fn rules(&self) -> Consistency {
        if self.has_hole.get() { Consistency::Bitmap } else { Consistency::Ppl }
    }
}
