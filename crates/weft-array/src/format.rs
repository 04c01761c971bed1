//! Small pieces that several structures on disk share: checksums, identities, lanes, the names of
//! enums.

pub(crate) mod checksum;
pub(crate) mod consistency;
pub(crate) mod enum_names;
pub mod lane;
pub(crate) mod length;
pub(crate) mod preferences;
pub(crate) mod rebuild_policy;
pub mod uuid;
