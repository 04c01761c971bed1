//! How an array keeps parity consistent with data: what `docs/consistency.md` calls its policy.

use serde::{Deserialize, Serialize};
use weft_code::CodeSpec;

use crate::format::enum_names::named;

/// How the array keeps parity consistent with data across a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    /// Partial parity log: no write hole, even if a member is lost with the crash.
    Ppl,
    /// Dirty regions are resynced after a crash.
    Bitmap,
    /// Nothing is recorded; after a crash everything written is resynced.
    None,
}

impl Consistency {
    /// The default for a code: `ppl` for parity, `bitmap` for copies, `none` without redundancy.
    #[must_use]
    pub fn default_for(code: CodeSpec) -> Self {
        if code == CodeSpec::Raid0 {
            Self::None
        } else if code.is_mirror() {
            Self::Bitmap
        } else {
            Self::Ppl
        }
    }
}

named!(Consistency, Ppl = "ppl", Bitmap = "bitmap", None = "none");
