//! What happens to an array as a whole: it is created, assembled, stopped, examined, and changes
//! its policy.

pub(crate) mod consistency_change;
pub mod create;
pub mod examine;
pub(crate) mod start_stop;
