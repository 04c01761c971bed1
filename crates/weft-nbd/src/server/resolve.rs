//! Exports that are not listed, and are made for the client that names them.

use weft_disk::IoFuture;

use crate::Export;

/// An export for one client.
pub struct Resolved {
    /// What is served.
    pub export: Export,
    /// Ends when the connection must end, with the reason. Requests in flight end as usual.
    pub until: IoFuture<'static, String>,
}

impl std::fmt::Debug for Resolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolved").field("export", &self.export).finish_non_exhaustive()
    }
}

/// Makes exports for clients that name them. A client may name one several times in a handshake,
/// and need not choose it in the end; the handshake has a time limit.
pub trait Resolver {
    /// The export of this name, or a sentence that tells the client why it gets none.
    fn resolve<'a>(&'a self, name: &'a str) -> IoFuture<'a, Result<Resolved, String>>;
}
