//! Early commits, as bytes: contents that a node has in the keeper's memory before it writes them.

use crate::fields::{Fields, Put as _, Result, WireError};

/// Bytes of a block.
pub const EARLY_BLOCK_BYTES: usize = 4096;
/// The most blocks of an early commit.
pub const EARLY_BLOCKS_MAX: usize = 64;
/// In place of a block: the attributes of its file.
pub const EARLY_ATTRIBUTES: u64 = u64::MAX;

/// Size and time of a file with an early commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyAttributes {
    /// Its size.
    pub size: u64,
    /// When it was modified: seconds since 1970.
    pub modified_s: i64,
    /// And nanoseconds.
    pub modified_ns: u32,
}

/// What a program of a node has synced of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlyCommit {
    /// The number of this one. A node counts them, and never gives one twice.
    pub number: u64,
    /// The last log record of the node before it. Later ones that have a block have it as new, or
    /// newer.
    pub after: u64,
    /// The file.
    pub ino: u64,
    /// Its attributes, if they are ahead of the metadata.
    pub attributes: Option<EarlyAttributes>,
    /// Blocks of the file with their contents; at most [`EARLY_BLOCKS_MAX`], of
    /// [`EARLY_BLOCK_BYTES`] each.
    pub blocks: Vec<(u64, Box<[u8]>)>,
}

/// A block with an early commit, or the attributes of a file ([`EARLY_ATTRIBUTES`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyBlock {
    /// The file.
    pub ino: u64,
    /// The block.
    pub block: u64,
    /// The number of its last early commit.
    pub number: u64,
}

/// All blocks with early commits of a node that the disks may not have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EarlyLive {
    /// Those of which a keeper has answered that it has them, as now or before.
    pub committed: Vec<EarlyBlock>,
    /// Those of which none has answered.
    pub unanswered: Vec<EarlyBlock>,
}

impl EarlyCommit {
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_u64(self.number);
        bytes.put_u64(self.after);
        bytes.put_u64(self.ino);
        bytes.put_u8(u8::from(self.attributes.is_some()));
        if let Some(EarlyAttributes { size, modified_s, modified_ns }) = self.attributes {
            bytes.put_u64(size);
            bytes.put_u64(modified_s.cast_unsigned());
            bytes.put_u32(modified_ns);
        }
        bytes.put_u32(u32::try_from(self.blocks.len()).expect("messages are short"));
        for (block, contents) in &self.blocks {
            bytes.put_u64(*block);
            bytes.extend_from_slice(contents);
        }
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        let (number, after, ino) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let attributes = match fields.flag()? {
            true => Some(EarlyAttributes {
                size: fields.u64()?,
                modified_s: fields.u64()?.cast_signed(),
                modified_ns: fields.u32()?,
            }),
            false => None,
        };
        let blocks = fields.list(|fields| {
            let block = fields.u64()?;
            Ok((block, fields.exactly(EARLY_BLOCK_BYTES)?.into()))
        })?;
        let is_right =
            blocks.len() <= EARLY_BLOCKS_MAX && blocks.iter().all(|(at, _)| *at < EARLY_ATTRIBUTES);
        match is_right {
            true => Ok(Self { number, after, ino, attributes, blocks }),
            false => Err(WireError::Malformed("too many or impossible blocks of an early commit")),
        }
    }
}

impl EarlyBlock {
    pub(crate) fn put_all(all: &[Self], bytes: &mut Vec<u8>) {
        bytes.put_u32(u32::try_from(all.len()).expect("messages are short"));
        for of in all {
            bytes.put_u64(of.ino);
            bytes.put_u64(of.block);
            bytes.put_u64(of.number);
        }
    }

    pub(crate) fn read_all(fields: &mut Fields<'_>) -> Result<Vec<Self>> {
        fields.list(|fields| {
            Ok(Self { ino: fields.u64()?, block: fields.u64()?, number: fields.u64()? })
        })
    }
}

impl EarlyLive {
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        EarlyBlock::put_all(&self.committed, bytes);
        EarlyBlock::put_all(&self.unanswered, bytes);
    }

    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self> {
        let committed = EarlyBlock::read_all(fields)?;
        Ok(Self { committed, unanswered: EarlyBlock::read_all(fields)? })
    }
}
