//! An array of an experiment.

use serde::Deserialize;
use weft_code::CodeSpec;

/// An array, with what its kind of experiment needs to know in addition.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Array<More = ()> {
    /// Its name in the paper.
    pub(super) name: String,
    pub(super) code: CodeSpec,
    pub(super) disks: usize,
    #[serde(flatten)]
    pub(super) more: More,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Rate {
        mb_s: u64,
    }

    #[test]
    fn a_field_that_the_kind_does_not_know_is_refused() {
        let plain = "name = 'RAID-6'\ncode = 'raid6'\ndisks = 6\n";
        let rated = format!("{plain}mb_s = 40\n");
        assert!(toml::from_str::<Array>(plain).is_ok());
        assert!(toml::from_str::<Array>(&rated).is_err());
        let array: Array<Rate> = toml::from_str(&rated).expect("an array");
        assert_eq!(array.more.mb_s, 40);
        assert!(toml::from_str::<Array<Rate>>(plain).is_err());
        assert!(toml::from_str::<Array<Rate>>(&format!("{rated}gb_s = 1\n")).is_err());
    }
}
