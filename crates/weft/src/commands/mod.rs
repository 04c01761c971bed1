//! The commands: each checks what it is asked, does it or has the daemon do it, and says what came
//! of it.

pub mod attach;
pub mod create;
pub mod examine;
pub mod manage;
pub mod plan;
pub mod replay;
pub mod simulate;
pub mod status;
pub mod trace;
pub mod wipe;
