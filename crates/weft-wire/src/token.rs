//! Messages of weft-token as bytes.

use std::ops::Range;

use weft_token::{Ask, Holding, Kind, Mode, NodeId, Release, Revoke, Space, ToAuthority, ToNode};

use crate::fields::{Fields, Put as _, Result, WireError};

const KINDS: [Kind; 5] = [Kind::Everything, Kind::Names, Kind::Attributes, Kind::Data, Kind::Open];

pub(crate) fn put_node(bytes: &mut Vec<u8>, node: NodeId) {
    bytes.put_u16(node.number);
    bytes.put_u64(node.epoch);
}

pub(crate) fn read_node(fields: &mut Fields<'_>) -> Result<NodeId> {
    Ok(NodeId { number: fields.u16()?, epoch: fields.u64()? })
}

fn put_space(bytes: &mut Vec<u8>, space: Space) {
    bytes.put_u8(space.kind as u8);
    bytes.put_u64(space.ino);
}

fn read_space(fields: &mut Fields<'_>) -> Result<Space> {
    let kind = KINDS.get(usize::from(fields.u8()?)).copied();
    let kind = kind.ok_or(WireError::Malformed("a token of an unknown kind"))?;
    Ok(Space { kind, ino: fields.u64()? })
}

pub(crate) fn put_range(bytes: &mut Vec<u8>, range: &Range<u64>) {
    bytes.put_u64(range.start);
    bytes.put_u64(range.end);
}

/// A range, which is never empty: maps of ranges know none that are.
pub(crate) fn read_range(fields: &mut Fields<'_>) -> Result<Range<u64>> {
    let range = fields.u64()?..fields.u64()?;
    if range.is_empty() { Err(WireError::Malformed("an empty range")) } else { Ok(range) }
}

pub(crate) fn put_mode(bytes: &mut Vec<u8>, mode: Option<Mode>) {
    bytes.put_u8(match mode {
        None => 0,
        Some(Mode::Shared) => 1,
        Some(Mode::Exclusive) => 2,
    });
}

fn read_any_mode(fields: &mut Fields<'_>) -> Result<Option<Mode>> {
    match fields.u8()? {
        0 => Ok(None),
        1 => Ok(Some(Mode::Shared)),
        2 => Ok(Some(Mode::Exclusive)),
        _ => Err(WireError::Malformed("a token of an unknown mode")),
    }
}

pub(crate) fn read_mode(fields: &mut Fields<'_>) -> Result<Mode> {
    read_any_mode(fields)?.ok_or(WireError::Malformed("a token of no mode"))
}

pub(crate) fn put_holding(bytes: &mut Vec<u8>, (space, range, mode): &Holding) {
    put_space(bytes, *space);
    put_range(bytes, range);
    put_mode(bytes, Some(*mode));
}

pub(crate) fn read_holding(fields: &mut Fields<'_>) -> Result<Holding> {
    Ok((read_space(fields)?, read_range(fields)?, read_mode(fields)?))
}

/// What is needed, and the superset that is wanted.
fn read_wish(fields: &mut Fields<'_>) -> Result<(Range<u64>, Range<u64>)> {
    let (needed, wanted) = (read_range(fields)?, read_range(fields)?);
    if needed.start < wanted.start || needed.end > wanted.end {
        return Err(WireError::Malformed("a need outside of what is wanted"));
    }
    Ok((needed, wanted))
}

pub(crate) fn put_to_authority(bytes: &mut Vec<u8>, message: &ToAuthority) {
    match message {
        ToAuthority::Ask { ask, seen } => {
            bytes.put_u8(0);
            put_space(bytes, ask.space);
            put_range(bytes, &ask.needed);
            put_range(bytes, &ask.wanted);
            put_mode(bytes, Some(ask.mode));
            bytes.put_u64(*seen);
        }
        ToAuthority::Release(release) => {
            bytes.put_u8(1);
            put_space(bytes, release.space);
            put_range(bytes, &release.range);
            put_mode(bytes, release.leaves);
            bytes.put_u64(release.seen);
        }
    }
}

pub(crate) fn read_to_authority(fields: &mut Fields<'_>) -> Result<ToAuthority> {
    match fields.u8()? {
        0 => {
            let space = read_space(fields)?;
            let (needed, wanted) = read_wish(fields)?;
            let ask = Ask { space, needed, wanted, mode: read_mode(fields)? };
            Ok(ToAuthority::Ask { ask, seen: fields.u64()? })
        }
        1 => Ok(ToAuthority::Release(Release {
            space: read_space(fields)?,
            range: read_range(fields)?,
            leaves: read_any_mode(fields)?,
            seen: fields.u64()?,
        })),
        _ => Err(WireError::Malformed("an unknown word to the authority")),
    }
}

pub(crate) fn put_to_node(bytes: &mut Vec<u8>, message: &ToNode) {
    match message {
        ToNode::Grant { number, space, range, mode } => {
            bytes.put_u8(0);
            bytes.put_u64(*number);
            put_space(bytes, *space);
            put_range(bytes, range);
            put_mode(bytes, Some(*mode));
        }
        ToNode::Revoke(revoke) => {
            bytes.put_u8(1);
            put_space(bytes, revoke.space);
            put_range(bytes, &revoke.needed);
            put_range(bytes, &revoke.wanted);
            put_mode(bytes, revoke.leaves);
        }
    }
}

pub(crate) fn read_to_node(fields: &mut Fields<'_>) -> Result<ToNode> {
    match fields.u8()? {
        0 => Ok(ToNode::Grant {
            number: fields.u64()?,
            space: read_space(fields)?,
            range: read_range(fields)?,
            mode: read_mode(fields)?,
        }),
        1 => {
            let space = read_space(fields)?;
            let (needed, wanted) = read_wish(fields)?;
            Ok(ToNode::Revoke(Revoke { space, needed, wanted, leaves: read_any_mode(fields)? }))
        }
        _ => Err(WireError::Malformed("an unknown word to a node")),
    }
}
