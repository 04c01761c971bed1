//! An array of an experiment.

use serde::Deserialize;
use weft_code::CodeSpec;

/// An array as far as an experiment needs to know it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Array {
    /// Its name in the paper.
    pub(super) name: String,
    pub(super) code: CodeSpec,
    pub(super) disks: usize,
}
