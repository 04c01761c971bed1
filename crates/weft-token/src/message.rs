//! Messages between nodes and the authority.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::ops::Range;

use weft_random::Fold;

/// A mount of the file system by a node. A node that mounts again is another one, so that nothing
/// that it sent before it died counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId {
    /// Number of the node.
    pub number: u16,
    /// Epoch of the mount.
    pub epoch: u64,
}

/// What a token is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The whole file system: every operation shares it, and an operation that reads all of it or
    /// changes its disks has it exclusively. The range is `0..1`, the file 0.
    Everything,
    /// Names in a folder; ranges are of hashes of names.
    Names,
    /// Attributes of a file; the range is `0..1`.
    Attributes,
    /// Contents of a file; ranges are of blocks.
    Data,
    /// That a file is open: shared by nodes where it is, and exclusive to free the contents of one
    /// without a name. The range is `0..1`. It is asked for alone, and before all else: who has it
    /// asks for other tokens meanwhile.
    Open,
}

/// What ranges are ranges of. Operations ask for tokens in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Space {
    /// Everything before names before attributes before data.
    pub kind: Kind,
    /// The file or folder.
    pub ino: u64,
}

impl Hash for Space {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.ino.rotate_left(3) ^ self.kind as u64);
    }
}

/// Something for each space. Every operation looks some up, among very many: a hash finds them in a
/// tenth of the time of a tree. The order of iteration says nothing.
pub type BySpace<T> = HashMap<Space, T, BuildHasherDefault<Fold>>;

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// To read and to cache. Several nodes may have it.
    Shared,
    /// To change, and to cache changes. One node has it.
    Exclusive,
}

impl Mode {
    /// Whether two nodes cannot have these of one range.
    pub fn conflicts(self, other: Self) -> bool {
        self == Self::Exclusive || other == Self::Exclusive
    }
}

/// What a node holds: of what, which range, and what it allows.
pub type Holding = (Space, Range<u64>, Mode);

/// A request for a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Of what.
    pub space: Space,
    /// What the operation cannot do without; not empty.
    pub needed: Range<u64>,
    /// What it would like to have; it contains `needed`.
    pub wanted: Range<u64>,
    /// What it is to allow.
    pub mode: Mode,
}

/// Another node asks for what this one holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revoke {
    /// Of what.
    pub space: Space,
    /// The range that must be returned.
    pub needed: Range<u64>,
    /// The range that should be returned, unless this node uses it.
    pub wanted: Range<u64>,
    /// What may be kept of it.
    pub leaves: Option<Mode>,
}

/// A node returns a token. What it had written there is durable, or with the node that keeps the
/// metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Of what.
    pub space: Space,
    /// The range; parts that it does not hold do not matter.
    pub range: Range<u64>,
    /// What it keeps.
    pub leaves: Option<Mode>,
    /// Number of the last grant that it has got. It keeps later grants.
    pub seen: u64,
}

/// A message of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToAuthority {
    /// It needs a token.
    Ask {
        /// Which.
        ask: Ask,
        /// Number of the last grant that it has got.
        seen: u64,
    },
    /// It returns one.
    Release(Release),
}

/// A message to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToNode {
    /// It has this token now.
    Grant {
        /// Grants to a node are numbered from 1.
        number: u64,
        /// Of what.
        space: Space,
        /// The range, which contains one that it asked for.
        range: Range<u64>,
        /// What it allows; where the node holds more, that stays.
        mode: Mode,
    },
    /// It must return one.
    Revoke(Revoke),
}
