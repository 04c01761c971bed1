//! A member's metadata, for people.

use std::fmt::Write as _;

use weft_array::examine::{CopyReport, LabelReport};
use weft_array::superblock::Role;
use weft_array::{MemberReport, MemberState};
use weft_cli::size;

use crate::device::Device;

/// The report for a terminal.
pub fn show(report: &MemberReport, device: &Device) -> String {
    let mut text = format!("{}: {}\n", report.disk, headline(report));
    let (size, sector) = (size::show(report.size_bytes), report.sector_bytes);
    let label = device.label().map_or_else(String::new, |label| format!(": {label}"));
    let _ = writeln!(text, "  disk of {size}, sectors of {sector} bytes{label}");
    for (n, copy) in report.copies.iter().enumerate() {
        let _ = match copy {
            CopyReport::Whole { seq } => writeln!(text, "  superblock {n}: sequence number {seq}"),
            CopyReport::Unwritten => writeln!(text, "  superblock {n}: not written yet"),
            CopyReport::Faulty { what } => writeln!(text, "  superblock {n}: {what}"),
        };
    }
    let Some(superblock) = &report.superblock else { return text };
    let _ = writeln!(
        text,
        "  array {} of {} slots, {}, unit {}, consistency {}, {}",
        superblock.code,
        superblock.slots.len(),
        superblock.algorithm,
        size::show(superblock.unit_bytes),
        superblock.consistency,
        if superblock.clean { "stopped cleanly" } else { "in use, or not stopped cleanly" }
    );
    for (n, slot) in superblock.slots.iter().enumerate() {
        let state = MemberState::from(slot.state);
        let _ = writeln!(text, "  slot {n:<3} {state:<11} {}", slot.disk_hint);
    }
    if let LabelReport::Lost { what, .. } = &report.label {
        let _ = writeln!(text, "  {what}: it is written again when the array starts");
    }
    for spare in &superblock.spares {
        let _ = writeln!(text, "  spare                {}", spare.disk_hint);
    }
    if let Some(map) = &report.region_map {
        let _ = writeln!(
            text,
            "  regions: {} of {} written, {} dirty, {} to resync",
            map.written, map.regions, map.dirty, map.needs_resync
        );
    }
    text
}

/// What is wrong with it, unless it is a sound member.
pub fn fault(report: &MemberReport) -> Option<String> {
    match &report.label {
        LabelReport::None { foreign: Some(foreign) } => {
            Some(format!("not a member of a weft array: it holds {}", foreign.what))
        }
        LabelReport::None { foreign: None } => Some("not a member of a weft array".into()),
        LabelReport::Faulty { what } => Some(what.clone()),
        LabelReport::Whole { .. } | LabelReport::Lost { .. } => report.fault.clone(),
    }
}

fn headline(report: &MemberReport) -> String {
    if let Some(fault) = fault(report) {
        return fault;
    }
    let name = report.superblock.as_ref().map_or("?", |superblock| &superblock.name);
    match report.role {
        Some(Role::Slot(slot, state)) => {
            format!("slot {slot} of {name} ({})", MemberState::from(state))
        }
        Some(Role::Replacement(slot)) => format!("replacing slot {slot} of {name}"),
        Some(Role::Spare) => format!("a spare of {name}"),
        _ => format!("former member of {name}"),
    }
}
