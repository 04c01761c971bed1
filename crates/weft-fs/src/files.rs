//! What a user asks of files: reading, writing, names, attributes, space.

pub(crate) mod acl;
pub(crate) mod attributes;
pub(crate) mod namespace;
pub(crate) mod orphans;
pub(crate) mod paths;
pub(crate) mod preallocate;
pub(crate) mod read;
pub(crate) mod truncate;
pub(crate) mod write;
pub(crate) mod xattrs;
