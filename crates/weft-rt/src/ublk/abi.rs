//! The structures of `linux/ublk_cmd.h`, as the kernel lays them out.

/// Features and settings of a device.
pub mod flag {
    /// The device stays when the process that serves it dies, and its users wait.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// Requests that the dead process has not answered are handed out again.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands are encoded as ioctls are.
    pub const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// A device in use can get another size (Linux 6.16).
    pub const UPDATE_SIZE: u64 = 1 << 10;
}

/// States of a device ([`DeviceInfo::state`]).
pub mod state {
    /// Not started, or stopped.
    pub const DEAD: u16 = 0;
    /// In service.
    pub const LIVE: u16 = 1;
    /// Its process has ended; its users wait.
    pub const QUIESCED: u16 = 2;
}

/// Kinds of parameters that a [`Params`] holds.
pub mod param {
    /// [`super::Basic`].
    pub const BASIC: u32 = 1 << 0;
    /// [`super::DiscardLimits`].
    pub const DISCARD: u32 = 1 << 1;
}

/// Attributes of a device ([`Basic::attributes`]).
pub mod attribute {
    /// It takes no writes.
    pub const READ_ONLY: u32 = 1 << 0;
    /// A write is durable only after a flush.
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    /// Single writes can be made durable.
    pub const FUA: u32 = 1 << 3;
}

/// Operations of a request ([`Descriptor::operation`]).
pub mod op {
    /// Read.
    pub const READ: u8 = 0;
    /// Write.
    pub const WRITE: u8 = 1;
    /// Make completed writes durable.
    pub const FLUSH: u8 = 2;
    /// The range is not needed any more.
    pub const DISCARD: u8 = 3;
    /// Make the range read as zeros.
    pub const WRITE_ZEROES: u8 = 5;
}

/// Flags of a request, above the operation's byte ([`Descriptor::op_flags`]).
pub mod io_flag {
    /// The write must be durable when it completes.
    pub const FUA: u32 = 1 << 13;
    /// Zeros must keep the storage below allocated.
    pub const NO_UNMAP: u32 = 1 << 15;
}

/// `ublksrv_ctrl_dev_info`: what a device is.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Hardware queues; each is served by one thread.
    pub queues: u16,
    /// Requests in flight of a queue.
    pub depth: u16,
    /// Its [`state`].
    pub state: u16,
    /// Not used.
    pub pad0: u16,
    /// Bytes of the longest request.
    pub io_bytes_max: u32,
    /// Its number: `/dev/ublkbN`.
    pub id: u32,
    /// The process that serves it, or did last.
    pub server_pid: i32,
    /// Not used.
    pub pad1: u32,
    /// Its [`flag`]s.
    pub flags: u64,
    /// The server's own: the kernel only keeps it.
    pub tag: u64,
    /// The user who added it.
    pub owner_uid: u32,
    /// That user's group.
    pub owner_gid: u32,
    /// Not used.
    pub reserved: [u64; 2],
}

/// `ublk_param_basic`: size and block limits. The shifts are logarithms of bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Basic {
    /// The [`attribute`]s.
    pub attributes: u32,
    /// Logical block.
    pub logical_block_shift: u8,
    /// Physical block.
    pub physical_block_shift: u8,
    /// Optimal request.
    pub io_opt_shift: u8,
    /// Smallest request without a penalty.
    pub io_min_shift: u8,
    /// Longest request, in sectors of 512 bytes.
    pub sectors_max: u32,
    /// Requests do not cross multiples of it; 0: they may.
    pub chunk_sectors: u32,
    /// Size of the device, in sectors of 512 bytes.
    pub sectors: u64,
    /// Parts of a request start at multiples of it plus one; 0: anywhere.
    pub virtual_boundary_mask: u64,
}

/// `ublk_param_discard`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiscardLimits {
    /// Offset of the first granule, bytes.
    pub alignment: u32,
    /// Whole granules are freed, bytes.
    pub granularity: u32,
    /// Longest discard, in sectors of 512 bytes.
    pub discard_sectors_max: u32,
    /// Longest range of zeros, in sectors of 512 bytes.
    pub write_zeroes_sectors_max: u32,
    /// Ranges in a discard: 1.
    pub segments_max: u16,
    /// Not used.
    pub reserved: u16,
}

/// `ublk_params`, as far as weft sets them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Params {
    /// Bytes that the kernel is to look at: [`Params::BYTES`].
    pub(crate) len: u32,
    /// Which parts are set ([`param`]).
    pub types: u32,
    /// Size and block limits.
    pub basic: Basic,
    /// Discard and zeros.
    pub discard: DiscardLimits,
}

impl Params {
    /// Bytes up to the end of the last part, without padding.
    pub(crate) const BYTES: u16 = 60;

    /// Parameters of both parts.
    pub fn new(basic: Basic, discard: DiscardLimits) -> Self {
        Self { len: Self::BYTES.into(), types: param::BASIC | param::DISCARD, basic, discard }
    }
}

/// `ublksrv_io_desc`: a request, in memory that the kernel shares.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// The operation in the low byte, [`io_flag`]s above it.
    pub op_flags: u32,
    /// Length, in sectors of 512 bytes.
    pub sectors: u32,
    /// Start, in sectors of 512 bytes.
    pub start_sector: u64,
    pub(crate) address: u64,
}

impl Descriptor {
    /// The [`op`].
    pub fn operation(&self) -> u8 {
        self.op_flags.to_le_bytes()[0]
    }
}

/// `ublksrv_io_cmd`: a command on `/dev/ublkcN`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IoCommand {
    pub(crate) queue: u16,
    pub(crate) tag: u16,
    pub(crate) result: i32,
    pub(crate) address: u64,
}

impl IoCommand {
    pub(crate) fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0..2].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.address.to_ne_bytes());
        bytes
    }
}

/// `ublksrv_ctrl_cmd`: a command on `/dev/ublk-control`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct ControlCommand {
    pub(super) device: u32,
    pub(super) len: u16,
    pub(super) address: u64,
    pub(super) data: u64,
}

impl ControlCommand {
    /// As the 80 bytes of a submission entry of 128.
    pub(super) fn bytes(self) -> [u8; 80] {
        /// Commands of weft concern the device as a whole.
        const NO_QUEUE: u16 = u16::MAX;
        let mut bytes = [0; 80];
        bytes[0..4].copy_from_slice(&self.device.to_ne_bytes());
        bytes[4..6].copy_from_slice(&NO_QUEUE.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_ne_bytes());
        bytes
    }
}

/// `_IOWR('u', number, size)` or, if `reads_only`, `_IOR`.
const fn ioctl(reads_only: bool, number: u32, size: u32) -> u32 {
    let direction = if reads_only { 2 } else { 3 };
    (direction << 30) | (size << 16) | ((b'u' as u32) << 8) | number
}

const CONTROL_BYTES: u32 = 32;
const IO_BYTES: u32 = 16;

/// The first command of a tag: waits for a request.
pub(crate) const IO_FETCH: u32 = ioctl(false, 0x20, IO_BYTES);
/// Gives a result, and waits for the next request.
pub(crate) const IO_COMMIT_AND_FETCH: u32 = ioctl(false, 0x21, IO_BYTES);

/// A request has come.
pub(crate) const RESULT_OK: i32 = 0;
/// The device was stopped.
pub(crate) const RESULT_ABORT: i32 = -libc::ENODEV;

/// Commands on `/dev/ublk-control`.
pub(super) mod control {
    use super::{CONTROL_BYTES, ioctl};

    pub(in crate::ublk) const GET_DEV_INFO: u32 = ioctl(true, 0x02, CONTROL_BYTES);
    pub(in crate::ublk) const ADD_DEV: u32 = ioctl(false, 0x04, CONTROL_BYTES);
    pub(in crate::ublk) const DEL_DEV: u32 = ioctl(false, 0x05, CONTROL_BYTES);
    pub(in crate::ublk) const START_DEV: u32 = ioctl(false, 0x06, CONTROL_BYTES);
    pub(in crate::ublk) const STOP_DEV: u32 = ioctl(false, 0x07, CONTROL_BYTES);
    pub(in crate::ublk) const SET_PARAMS: u32 = ioctl(false, 0x08, CONTROL_BYTES);
    pub(in crate::ublk) const GET_PARAMS: u32 = ioctl(true, 0x09, CONTROL_BYTES);
    pub(in crate::ublk) const START_USER_RECOVERY: u32 = ioctl(false, 0x10, CONTROL_BYTES);
    pub(in crate::ublk) const END_USER_RECOVERY: u32 = ioctl(false, 0x11, CONTROL_BYTES);
    pub(in crate::ublk) const GET_FEATURES: u32 = ioctl(true, 0x13, CONTROL_BYTES);
    pub(in crate::ublk) const DEL_DEV_ASYNC: u32 = ioctl(true, 0x14, CONTROL_BYTES);
    pub(in crate::ublk) const UPDATE_SIZE: u32 = ioctl(false, 0x15, CONTROL_BYTES);
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// Against `linux/ublk_cmd.h`.
    #[test]
    fn structures_have_the_kernels_layout() {
        assert_eq!(size_of::<DeviceInfo>(), 64);
        assert_eq!(
            [
                offset_of!(DeviceInfo, io_bytes_max),
                offset_of!(DeviceInfo, id),
                offset_of!(DeviceInfo, server_pid),
                offset_of!(DeviceInfo, flags),
                offset_of!(DeviceInfo, tag),
                offset_of!(DeviceInfo, owner_uid),
                offset_of!(DeviceInfo, reserved),
            ],
            [8, 12, 16, 24, 32, 40, 48]
        );
        assert_eq!((size_of::<Basic>(), size_of::<DiscardLimits>()), (32, 20));
        assert_eq!((offset_of!(Basic, sectors_max), offset_of!(Basic, sectors)), (8, 16));
        assert_eq!((offset_of!(Params, basic), offset_of!(Params, discard)), (8, 40));
        assert_eq!(usize::from(Params::BYTES), offset_of!(Params, discard) + 20);
        assert_eq!((size_of::<Descriptor>(), offset_of!(Descriptor, start_sector)), (24, 8));
        assert_eq!((size_of::<IoCommand>(), offset_of!(IoCommand, address)), (16, 8));
    }

    #[test]
    fn commands_are_encoded_as_the_kernel_decodes_them() {
        // Computed by a C compiler from the header.
        assert_eq!(IO_FETCH, 0xc010_7520);
        assert_eq!(IO_COMMIT_AND_FETCH, 0xc010_7521);
        assert_eq!(control::ADD_DEV, 0xc020_7504);
        assert_eq!(control::GET_DEV_INFO, 0x8020_7502);
        assert_eq!(control::GET_FEATURES, 0x8020_7513);
        let io = IoCommand { queue: 1, tag: 0x203, result: -5, address: 0x0807_0605_0403_0201 };
        let expected = [1, 0, 3, 2, 0xfb, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(io.bytes(), expected);
        let command = ControlCommand { device: 7, len: 64, address: 9, data: 10 };
        let bytes = command.bytes();
        assert_eq!(bytes[..9], [7, 0, 0, 0, 0xff, 0xff, 64, 0, 9]);
        assert_eq!((bytes[16], bytes[24..].iter().all(|byte| *byte == 0)), (10, true));
        let descriptor = Descriptor { op_flags: io_flag::FUA | 1, ..Descriptor::default() };
        assert_eq!(descriptor.operation(), op::WRITE);
    }
}
