//! Names, epochs, incarnations.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Why a text is no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a name: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-', beginning with a letter or digit"
)]
pub struct NameError(pub String);

fn check(text: &str) -> Result<(), NameError> {
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    let usual = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if begins && text.len() <= NAME_BYTES_MAX && text.chars().all(usual) {
        return Ok(());
    }
    Err(NameError(text.chars().take(NAME_BYTES_MAX).collect()))
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                check(text).map(|()| Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// The name of a node: of a machine, the same at every start.
    NodeName
}
name! {
    /// The name of a cluster.
    ClusterName
}
name! {
    /// The name of a shared disk: the same on all nodes.
    DiskName
}

/// A number that is given once: to a node when it joins, or to a term of a keeper. Later ones are
/// larger.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The next one.
    ///
    /// # Panics
    /// After 2^64 − 1 of them.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("there are enough epochs"))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A node from when it joined until it leaves or is fenced.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation {
    /// The node.
    pub node: NodeName,
    /// The epoch that it got when it joined.
    pub epoch: Epoch,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (epoch {})", self.node, self.epoch)
    }
}

/// A process of a node. Its number is random, so that it is no other process's: a node finds the
/// contents of a lost answer by it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Session {
    /// The node.
    pub node: NodeName,
    /// The process.
    pub number: u64,
}
