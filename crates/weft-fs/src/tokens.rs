//! Tokens: what a node may keep in memory while other nodes use the same files.

pub(crate) mod local_node;
pub(crate) mod needs;
pub(crate) mod returned_pages;
pub(crate) mod sharing;
#[cfg(test)]
mod story;
