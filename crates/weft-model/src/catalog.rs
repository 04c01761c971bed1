//! The modelled products, one file each.
//!
//! Each file names its source and the values that are *inferred*: chosen so that the model
//! reproduces the stated figures, or typical of such disks. [`crate::measure::validate`] compares
//! the model with the data sheet.

mod atlas_v;
mod exos_x20;
mod samsung_850pro;
mod samsung_990pro;
mod st3146807fc;
mod st3300831as;
mod wd10eals;

use crate::product::Model;

/// All products.
pub static MODELS: [Model; 7] = [
    st3300831as::MODEL,
    st3146807fc::MODEL,
    wd10eals::MODEL,
    atlas_v::MODEL,
    samsung_850pro::MODEL,
    exos_x20::MODEL,
    samsung_990pro::MODEL,
];

/// A name that no model has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no disk model is called {name:?}; there are {}", Model::names().join(", "))]
pub struct UnknownModel {
    /// The name.
    pub name: String,
}

impl Model {
    /// The model with this name, in any case.
    ///
    /// # Errors
    /// [`UnknownModel`], which lists the names there are.
    pub fn find(name: &str) -> Result<&'static Self, UnknownModel> {
        let found = MODELS.iter().find(|model| model.name.eq_ignore_ascii_case(name));
        found.ok_or_else(|| UnknownModel { name: name.to_owned() })
    }

    /// The names of all models.
    pub fn names() -> Vec<&'static str> {
        MODELS.iter().map(|model| model.name).collect()
    }
}
