//! The public face of an array, as an [`Array`](array::Array) and as a [`weft_disk::Volume`].

pub(crate) mod array;
pub mod drill;
pub(crate) mod mirror_copies;
pub(crate) mod removal;
pub(crate) mod status;
pub(crate) mod volume;
