//! The kernel's view of block devices and mounts: read from `/proc` and `/sys`, changed by
//! `losetup` (util-linux).

pub mod attachment;
pub mod loop_device;
pub mod users;
