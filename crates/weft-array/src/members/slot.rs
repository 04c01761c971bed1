//! The life of a slot: its states, and the one function by which they change.
//!
//! A slot has at most two disks: its member, and while a working member is being replaced a *second
//! disk*: the replacement, or after the swap the old member. A disk joins in two steps. *Staged*,
//! it gets writes, the log and the region map, but no superblock names it: after a crash it has no
//! part in the slot. Once its lane of the region map is durable, a superblock names it.
//!
//! Everything else about a slot follows from its state: what its member holds ([`Slot::holds`]),
//! how superblocks record it ([`Slot::write_to`], [`Slot::of`]), which disks must get its writes.
//! `docs/architecture.md` has a drawing of the states, made from [`Slot::after`].

use crate::format::lane::{Lane, LaneSet};
use crate::superblock::{LeftMeta, ReplacementMeta, SlotMeta, SlotState, SpareMeta, Superblock};

/// The state of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Slot {
    /// It has no member, and no disk can return to it with its contents.
    #[default]
    Missing,
    /// It has no member. The former one may come back: it lacks the regions in `lane` of the map.
    Left(LeftMeta),
    /// A disk is joining: it waits for its rebuild, and holds the regions that are not stale in
    /// `lane`. Superblocks still call the slot missing, and name its former member.
    Staged { lane: Lane, left: Option<LeftMeta> },
    /// Its member is being rebuilt, and holds the regions that are not stale in `lane`.
    Rebuilding { lane: Lane },
    /// Its member holds everything.
    Active,
    /// As active; a replacement is joining.
    ReplacementStaged { lane: Lane },
    /// As active; the member is being copied to its replacement, which holds the regions that are
    /// not stale in `lane`.
    Copying { lane: Lane },
    /// The replacement is the member. The old member is kept, and gets every write, until the
    /// superblock with the swap is in effect.
    Swapped { lane: Lane },
}

/// What happens to a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotEvent {
    /// A disk joins, in memory.
    Join { lane: Lane },
    /// The superblock names the disk that joined.
    Publish,
    /// Nothing is stale any more in this lane.
    Filled { lane: Lane },
    /// The swap is in effect.
    SwapInEffect,
    /// The swap is undone before it is in effect.
    UndoSwap,
    /// The member is lost.
    MemberLost,
    /// The second disk is lost, or no longer wanted.
    SecondLost,
    /// What the member that was lost lacks is being recorded, so that it may come back.
    Remember(LeftMeta),
    /// The former member cannot come back any more.
    Forget,
}

impl Slot {
    /// The state after `event`; `None` if that cannot happen in this state.
    pub fn after(self, event: SlotEvent) -> Option<Self> {
        use SlotEvent::{
            Filled, Forget, Join, MemberLost, Publish, Remember, SecondLost, SwapInEffect, UndoSwap,
        };
        let missing = |left: Option<LeftMeta>| left.map_or(Self::Missing, Self::Left);
        match (self, event) {
            (Self::Missing, Join { lane }) => Some(Self::Staged { lane, left: None }),
            (Self::Left(left), Join { lane }) => Some(Self::Staged { lane, left: Some(left) }),
            (Self::Active, Join { lane }) => Some(Self::ReplacementStaged { lane }),

            (Self::Staged { lane, .. }, Publish) => Some(Self::Rebuilding { lane }),
            (Self::ReplacementStaged { lane }, Publish) => Some(Self::Copying { lane }),

            (Self::Rebuilding { lane }, Filled { lane: of }) if lane == of => Some(Self::Active),
            (Self::Copying { lane }, Filled { lane: of }) if lane == of => {
                Some(Self::Swapped { lane })
            }

            (Self::Swapped { .. }, SwapInEffect) => Some(Self::Active),
            (Self::Swapped { lane }, UndoSwap) => Some(Self::Copying { lane }),

            (Self::Staged { left, .. }, MemberLost) => Some(missing(left)),
            (Self::Rebuilding { .. } | Self::Active, MemberLost) => Some(Self::Missing),
            (Self::Copying { lane }, MemberLost) => Some(Self::Rebuilding { lane }),

            (
                Self::ReplacementStaged { .. } | Self::Copying { .. } | Self::Swapped { .. },
                SecondLost,
            ) => Some(Self::Active),

            (Self::Missing | Self::Left(_), Remember(left)) => Some(Self::Left(left)),

            (Self::Missing | Self::Left(_), Forget) => Some(Self::Missing),
            (Self::Staged { lane, .. }, Forget) => Some(Self::Staged { lane, left: None }),

            // A staged replacement goes before its member does, and a swap is undone before its
            // member goes.
            _ => None,
        }
    }

    /// The state that a superblock describes.
    pub fn of(meta: &SlotMeta) -> Self {
        match (meta.state, meta.left, &meta.replacement) {
            (SlotState::Missing, None, _) => Self::Missing,
            (SlotState::Missing, Some(left), _) => Self::Left(left),
            (SlotState::Rebuilding { lane }, ..) => Self::Rebuilding { lane },
            (SlotState::Active, _, None) => Self::Active,
            (SlotState::Active, _, Some(replacement)) => Self::Copying { lane: replacement.lane },
        }
    }

    /// Describes this state, with these disks, for a superblock. Of a missing slot the last member
    /// stays known.
    pub fn write_to(
        self,
        meta: &mut SlotMeta,
        member: Option<SpareMeta>,
        second: Option<SpareMeta>,
    ) {
        let (state, left, lane) = match self {
            Self::Missing => (SlotState::Missing, None, None),
            Self::Left(left) => (SlotState::Missing, Some(left), None),
            Self::Staged { left, .. } => (SlotState::Missing, left, None),
            Self::Rebuilding { lane } => (SlotState::Rebuilding { lane }, None, None),
            Self::Active | Self::ReplacementStaged { .. } | Self::Swapped { .. } => {
                (SlotState::Active, None, None)
            }
            Self::Copying { lane } => (SlotState::Active, None, Some(lane)),
        };
        if let Some(member) = member.filter(|_| state != SlotState::Missing) {
            (meta.member_id, meta.disk_hint) = (Some(member.member_id), member.disk_hint);
        }
        (meta.state, meta.left) = (state, left);
        meta.replacement = lane.zip(second).map(|(lane, second)| ReplacementMeta {
            member_id: second.member_id,
            lane,
            disk_hint: second.disk_hint,
        });
    }

    /// What its member holds; [`SlotState::Missing`] if it has none.
    pub fn holds(self) -> SlotState {
        match self {
            Self::Missing | Self::Left(_) => SlotState::Missing,
            Self::Staged { lane, .. } | Self::Rebuilding { lane } => SlotState::Rebuilding { lane },
            Self::Active
            | Self::ReplacementStaged { .. }
            | Self::Copying { .. }
            | Self::Swapped { .. } => SlotState::Active,
        }
    }

    /// What is kept about its former member.
    pub fn left(self) -> Option<LeftMeta> {
        match self {
            Self::Left(left) => Some(left),
            Self::Staged { left, .. } => left,
            _ => None,
        }
    }

    /// The lane that another disk may take from its former member, which then cannot come back any
    /// more. It is not given away while that member is coming back.
    pub fn lane_to_give(self) -> Option<Lane> {
        match self {
            Self::Left(left) => Some(left.lane),
            Self::Staged { lane, left } => Some(left?.lane).filter(|given| *given != lane),
            _ => None,
        }
    }

    /// The lane of its replacement.
    pub fn replacement_lane(self) -> Option<Lane> {
        match self {
            Self::ReplacementStaged { lane } | Self::Copying { lane } => Some(lane),
            _ => None,
        }
    }

    /// The lane in which its member is being rebuilt, or copied to its replacement.
    pub fn filling(self) -> Option<Lane> {
        match self {
            Self::Staged { lane, .. } | Self::Rebuilding { lane } | Self::Copying { lane } => {
                Some(lane)
            }
            _ => None,
        }
    }

    /// The lanes that it needs.
    pub fn lanes(self) -> impl Iterator<Item = Lane> {
        let own = match self {
            Self::Missing | Self::Left(_) | Self::Active => None,
            Self::Staged { lane, .. }
            | Self::Rebuilding { lane }
            | Self::ReplacementStaged { lane }
            | Self::Copying { lane }
            | Self::Swapped { lane } => Some(lane),
        };
        [own, self.left().map(|left| left.lane)].into_iter().flatten()
    }
}

impl SlotEvent {
    /// Whether requests rely on this change of a slot that was in the state `before`: they are not
    /// acknowledged until it is in effect. They do not rely on a disk that no superblock names, and
    /// nothing relies on what a former member holds.
    pub fn is_membership(self, before: Slot) -> bool {
        match self {
            Self::Join { .. } | Self::SwapInEffect | Self::Forget => false,
            Self::SecondLost => !matches!(before, Slot::ReplacementStaged { .. }),
            Self::Publish
            | Self::Filled { .. }
            | Self::UndoSwap
            | Self::MemberLost
            | Self::Remember(_) => true,
        }
    }
}

/// The lanes of the region map that a superblock gives to members, replacements and former members.
pub(crate) fn lanes_of(superblock: &Superblock) -> LaneSet {
    superblock.slots.iter().flat_map(|meta| Slot::of(meta).lanes()).collect()
}

#[cfg(test)]
mod tests {
    use weft_testkit::states;

    use super::*;
    use crate::format::uuid::Id;

    const LANE: Lane = Lane(2);
    const LEFT: LeftMeta = LeftMeta { lane: Lane(5), seq: 7, log_epoch: 9, absent: false };

    /// The states and their names; of one that comes in two kinds, both.
    const STATES: [(&str, Slot); 9] = [
        ("missing", Slot::Missing),
        ("left", Slot::Left(LEFT)),
        ("staged", Slot::Staged { lane: LANE, left: Some(LEFT) }),
        ("staged", Slot::Staged { lane: LANE, left: None }),
        ("rebuilding", Slot::Rebuilding { lane: LANE }),
        ("active", Slot::Active),
        ("replacement_staged", Slot::ReplacementStaged { lane: LANE }),
        ("copying", Slot::Copying { lane: LANE }),
        ("swapped", Slot::Swapped { lane: LANE }),
    ];

    const EVENTS: [(&str, SlotEvent); 9] = [
        ("a disk joins", SlotEvent::Join { lane: LANE }),
        ("the superblock names it", SlotEvent::Publish),
        ("nothing is stale", SlotEvent::Filled { lane: LANE }),
        ("the swap is in effect", SlotEvent::SwapInEffect),
        ("the swap is undone", SlotEvent::UndoSwap),
        ("the member is lost", SlotEvent::MemberLost),
        ("the second disk is lost", SlotEvent::SecondLost),
        ("it may come back", SlotEvent::Remember(LEFT)),
        ("it may not come back", SlotEvent::Forget),
    ];

    #[test]
    fn the_drawing_shows_what_the_function_does() {
        let page = include_str!("../../../../docs/architecture.md");
        let drawing = states::drawing(&STATES, &EVENTS, Slot::after);
        states::assert_drawn(page, "## The life of a slot", &drawing);
    }

    #[test]
    fn a_superblock_says_what_a_crash_may_rely_on() {
        let disk = |n| SpareMeta { member_id: Id([n; 16]), disk_hint: format!("disk{n}") };
        for (state, slot) in STATES {
            let mut meta = SlotMeta {
                member_id: None,
                state: SlotState::Missing,
                disk_hint: String::new(),
                left: None,
                replacement: None,
            };
            slot.write_to(&mut meta, Some(disk(1)), Some(disk(2)));
            let kept = match slot {
                // What is not in effect, or not even in a superblock, does not outlast a crash.
                Slot::Staged { left, .. } => left.map_or(Slot::Missing, Slot::Left),
                Slot::ReplacementStaged { .. } | Slot::Swapped { .. } => Slot::Active,
                other => other,
            };
            assert_eq!(Slot::of(&meta), kept, "{state}");
            let named = meta.member_id == Some(Id([1; 16]));
            assert_eq!(named, kept.holds() != SlotState::Missing, "{state}");
        }
    }

    #[test]
    fn a_member_that_comes_back_keeps_its_lane() {
        let staged = |lane| Slot::Staged { lane, left: Some(LEFT) };
        assert_eq!(Slot::Left(LEFT).lane_to_give(), Some(LEFT.lane));
        assert_eq!(staged(LANE).lane_to_give(), Some(LEFT.lane));
        assert_eq!(staged(LEFT.lane).lane_to_give(), None);
    }

    #[test]
    fn only_the_lane_that_is_filled_ends_a_rebuild() {
        let other = SlotEvent::Filled { lane: Lane(3) };
        assert!(STATES.iter().all(|(_, slot)| slot.after(other).is_none()));
    }
}
