//! The kernel's view of block devices and mounts: read from `/proc` and `/sys`, changed by
//! `losetup` (util-linux), through ublk, and by netlink (NBD).

pub mod attachment;
pub mod link;
pub mod loop_device;
pub mod nbd_device;
pub mod netlink;
pub mod node;
pub mod own;
pub mod ublk_device;
pub mod users;
