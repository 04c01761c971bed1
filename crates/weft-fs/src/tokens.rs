//! Tokens: what a node may keep in memory while other nodes use the same files.

mod contended;
mod free_tokens;
mod late_requests;
pub(crate) mod local_node;
pub(crate) mod needs;
pub(crate) mod returned_pages;
mod shared_view;
pub(crate) mod sharing;
#[cfg(test)]
mod story;
