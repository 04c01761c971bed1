//! What can be wrong with a request for a cache.

/// Why there is no such cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// No policy has this name.
    #[error("no cache policy is named '{name}'; known are: {known}")]
    UnknownPolicy {
        /// The name asked for.
        name: String,
        /// All names.
        known: String,
    },
    /// A cache of nothing.
    #[error("a cache needs room for at least one block")]
    NoRoom,
    /// More blocks than can be numbered.
    #[error("a cache of {blocks} blocks is too large: at most {most}")]
    TooLarge {
        /// Blocks asked for.
        blocks: usize,
        /// The most that is possible.
        most: usize,
    },
    /// Blocks of no class, or of more than are possible.
    #[error("a cache cannot have {classes} classes of blocks: 1 to {most}")]
    Classes {
        /// Classes asked for.
        classes: usize,
        /// The most that is possible.
        most: usize,
    },
    /// The system has no memory for it.
    #[error("no memory for a cache of {blocks} blocks")]
    NoMemory {
        /// Blocks asked for.
        blocks: usize,
    },
}
