//! Blocks of disks that nodes are given, and give back.

use crate::fields::{Fields, Put as _, Result, WireError};

/// Blocks of a disk that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Number of the disk.
    pub disk: u16,
    /// The first block.
    pub start: u64,
    /// How many they are; not none.
    pub blocks: u64,
}

impl Run {
    pub(crate) fn put(self, bytes: &mut Vec<u8>) {
        bytes.put_u16(self.disk);
        bytes.put_u64(self.start);
        bytes.put_u64(self.blocks);
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        let run = Self { disk: fields.u16()?, start: fields.u64()?, blocks: fields.u64()? };
        match run.blocks > 0 && run.start.checked_add(run.blocks).is_some() {
            true => Ok(run),
            false => Err(WireError::Malformed("a run of no blocks, or beyond all disks")),
        }
    }
}

/// Blocks of a disk, wherever they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskBlocks {
    /// Number of the disk.
    pub disk: u16,
    /// How many they are.
    pub blocks: u64,
}

impl DiskBlocks {
    pub(crate) fn put_all(all: &[Self], bytes: &mut Vec<u8>) {
        bytes.put_u32(u32::try_from(all.len()).expect("few disks"));
        for of in all {
            bytes.put_u16(of.disk);
            bytes.put_u64(of.blocks);
        }
    }

    pub(crate) fn read_all(fields: &mut Fields<'_>) -> Result<Vec<Self>> {
        fields.list(|fields| Ok(Self { disk: fields.u16()?, blocks: fields.u64()? }))
    }
}

/// A node asks for blocks that it may write to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoomWish {
    /// The number of the wish. A node counts them, has one at a time, and repeats one that was not
    /// answered: the answer is the same.
    pub number: u64,
    /// How many it wants.
    pub wanted: Vec<DiskBlocks>,
    /// How many free ones it has.
    pub has: Vec<DiskBlocks>,
    /// Whether an operation fails without them. Then other nodes are asked to give back what they
    /// do not need.
    pub is_urgent: bool,
}

impl RoomWish {
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_u64(self.number);
        DiskBlocks::put_all(&self.wanted, bytes);
        DiskBlocks::put_all(&self.has, bytes);
        bytes.put_u8(u8::from(self.is_urgent));
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(Self {
            number: fields.u64()?,
            wanted: DiskBlocks::read_all(fields)?,
            has: DiskBlocks::read_all(fields)?,
            is_urgent: fields.flag()?,
        })
    }
}

/// A node gives free blocks back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GiveBack {
    /// Its number. A node counts them, has one at a time, and repeats one that was not answered.
    pub number: u64,
    /// The blocks.
    pub runs: Vec<Run>,
    /// How many free ones it has left.
    pub has: Vec<DiskBlocks>,
    /// If this is all that it can do about it: what it was asked for
    /// ([`FromKeeper::ReturnRoom`](crate::FromKeeper::ReturnRoom)).
    pub round: u64,
}

impl GiveBack {
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_u64(self.number);
        bytes.put_u32(u32::try_from(self.runs.len()).expect("messages are short"));
        self.runs.iter().for_each(|run| run.put(bytes));
        DiskBlocks::put_all(&self.has, bytes);
        bytes.put_u64(self.round);
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(Self {
            number: fields.u64()?,
            runs: fields.list(Run::read)?,
            has: DiskBlocks::read_all(fields)?,
            round: fields.u64()?,
        })
    }
}
