//! The public face of an array: [`Array`](array::Array), and the same as a [`weft_disk::Volume`].

pub(crate) mod array;
pub(crate) mod mirror_copies;
pub(crate) mod volume;
