//! The format on disk: its exact bytes, and the effect of damage.

use std::rc::Rc;

use crate::exercise;
use crate::members;
use crate::members::{MIB, made, now, options};
use crc_fast::{CrcAlgorithm, checksum};
use weft_array::area::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use weft_array::lane::Lane;
use weft_array::region_map::{MapConfig, RegionMap, Regions};
use weft_array::superblock::{
    LastRebuild, Predecessor, ReplacementMeta, Reshape, Role, ScrubMode, ScrubProgress, SlotState,
    disk_hint,
};
use weft_array::superblock::{peek_label, read_superblock, write_label, write_superblock};
use weft_array::{
    Bounds, CacheChoice, Consistency, Id, Preferences, RebuildPolicy, Superblock, SuperblockError,
};
use weft_code::{CodeSpec, SlotNo};
use weft_disk::{Disk, RamDisk, WriteOpts};
use weft_layout::window::Direction;
use weft_rt::Frozen;
use weft_stripe::Generation;
use weft_testkit::{Rng, for_seeds};

fn hex(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let line =
        |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    bytes[..end].chunks(32).map(line).collect()
}

fn sample() -> Superblock {
    let mut superblock = made("raid5", 4, 1, 0xa1).remove(0);
    superblock.software = "weft test".into();
    superblock
}

fn at(n: u64) -> usize {
    usize::try_from(n).expect("small")
}

/// A member with copies of sequence numbers 1 and 2, and the bytes of its first 512 KiB.
fn member() -> (Superblock, Vec<u8>) {
    let superblock = sample();
    let disk = RamDisk::new("member", MIB, 512);
    let id = superblock.self_id;
    for seq in [1, 2] {
        let next = Superblock { seq, ..superblock.clone() };
        now(write_superblock(&disk, &next, id)).expect("written");
    }
    now(write_label(&disk, superblock.array_id, id)).expect("written");
    let bytes = members::read(&disk, 0, 512 << 10);
    (Superblock { seq: 2, ..superblock }, bytes)
}

fn disk_of(bytes: &[u8]) -> RamDisk {
    let disk = RamDisk::new("member", MIB, 512);
    now(disk.write(0, Frozen::copy_from(bytes), WriteOpts::USER)).expect("written");
    disk
}

fn read_of(bytes: &[u8]) -> Result<Option<Superblock>, SuperblockError> {
    now(read_superblock(&disk_of(bytes)))
}

#[test]
fn golden_bytes() {
    let superblock = sample();
    let (_, bytes) = member();
    assert_eq!(hex(&bytes[..4096]), include_str!("golden/label.hex"));
    let encoded = superblock.encode(superblock.self_id).expect("fits");
    let end = encoded.iter().rposition(|byte| *byte != 0).expect("not empty") + 1;
    assert_eq!(hex(&encoded[..exercise::HEADER]), include_str!("golden/superblock-header.hex"));
    let json = std::str::from_utf8(&encoded[exercise::HEADER..end]).expect("text");
    assert_eq!(json, include_str!("golden/superblock.json").trim_end());
    assert_eq!(Superblock::decode(&encoded).expect("whole"), superblock);
    let config = MapConfig {
        array_id: superblock.array_id,
        area_offset: 0,
        regions: Regions { region_bytes: 1 << 20, stripe_bytes: 96 << 10, stripes: 99 },
        room: 0,
        track_dirty: true,
        dirty_max: 8,
    };
    let (offset, page) = RegionMap::initial_pages(&config).remove(0);
    assert_eq!((offset, hex(&page).as_str()), (4096, include_str!("golden/map-page.hex")));
}

#[test]
fn a_changed_byte_is_seen_wherever_it_is() {
    let (newest, bytes) = member();
    assert_eq!(read_of(&bytes).expect("whole"), Some(newest.clone()));
    let older = Superblock { seq: 1, ..newest.clone() };
    let used = newest.encode(newest.self_id).expect("fits");
    let used = used.iter().rposition(|byte| *byte != 0).expect("not empty") + 1;
    let mut rng = Rng::new(1);
    let mut flip = |position: usize| {
        let mut bytes = bytes.clone();
        bytes[position] ^= u8::try_from(1 + rng.below(255)).expect("a byte");
        read_of(&bytes)
    };
    for position in 0..4096 {
        let read = flip(position).expect("the superblocks say what it is");
        assert_eq!(read.as_ref(), Some(&newest), "byte {position} of the label");
    }
    for position in 0..used {
        let read = flip(at(SUPERBLOCK_OFFSETS[0]) + position).expect("the other copy is whole");
        assert_eq!(read.as_ref(), Some(&older), "byte {position} of the newest copy");
        let read = flip(at(SUPERBLOCK_OFFSETS[1]) + position).expect("the newest is whole");
        assert_eq!(read.as_ref(), Some(&newest), "byte {position} of the older copy");
    }
}

#[test]
fn a_write_torn_at_any_sector_leaves_the_copy_before() {
    let (newest, bytes) = member();
    let next = Superblock { seq: 3, name: "x".repeat(200), ..newest.clone() };
    let encoded = next.encode(next.self_id).expect("fits");
    let start = at(SUPERBLOCK_OFFSETS[1]);
    let sectors = encoded.len() / 512;
    for cut in 0..=sectors {
        for front in [true, false] {
            let mut torn = bytes.clone();
            let range = if front { 0..cut * 512 } else { cut * 512..encoded.len() };
            torn[start + range.start..start + range.end].copy_from_slice(&encoded[range]);
            let read = read_of(&torn).expect("one copy is whole").expect("a member");
            assert!(read == newest || read == next, "cut at sector {cut}");
        }
    }
}

#[test]
fn damage_is_told_from_absence() {
    let (_, bytes) = member();
    assert!(read_of(&vec![0; bytes.len()]).expect("readable").is_none());
    let mut both = bytes.clone();
    for offset in SUPERBLOCK_OFFSETS {
        both[at(offset) + 100] ^= 1;
    }
    assert!(matches!(read_of(&both), Err(SuperblockError::Damaged { .. })));
    let mut swapped = bytes;
    let other = made("raid5", 4, 1, 0xb2).remove(0);
    let stranger = Superblock { seq: 5, ..other.clone() }.encode(other.self_id).expect("fits");
    swapped[at(SUPERBLOCK_OFFSETS[1])..][..stranger.len()].copy_from_slice(&stranger);
    assert_eq!(read_of(&swapped).expect("one is its own").expect("a member").seq, 2);
}

/// Recomputes the checksum of changed bytes.
fn reseal(bytes: &mut [u8], len: usize) {
    bytes[8..12].fill(0);
    let crc = u32::try_from(checksum(CrcAlgorithm::Crc32Iscsi, &bytes[..len])).expect("32 bits");
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
}

/// A superblock copy with another payload.
fn with_payload(superblock: &Superblock, payload: &[u8]) -> Vec<u8> {
    exercise::seal(superblock.seq, superblock.array_id, payload)
}

fn json(superblock: &Superblock) -> String {
    serde_json::to_string(superblock).expect("text")
}

#[test]
fn an_unknown_copy_is_refused_even_next_to_a_known_one() {
    let (newest, mut bytes) = member();
    let start = at(SUPERBLOCK_OFFSETS[1]);
    let text = json(&newest).replace(r#""features":[]"#, r#""features":["warp-drive"],"extra":1"#);
    let future = with_payload(&newest, text.as_bytes());
    bytes[start..start + future.len()].copy_from_slice(&future);
    let refused = read_of(&bytes).expect_err("a feature that is not known");
    assert!(refused.to_string().contains("warp-drive"), "{refused}");

    let others = [(1, "copy its data to a new array"), (3, "use a newer program")];
    for (other, way_out) in others {
        let mut copy = with_payload(&newest, b"anything at all");
        copy[12] = other;
        reseal(&mut copy, exercise::HEADER + 15);
        bytes[start..start + copy.len()].copy_from_slice(&copy);
        let refused = read_of(&bytes).expect_err("another version");
        let is_other = |error: &SuperblockError| matches!(error, SuperblockError::UnknownVersion { version } if *version == u32::from(other));
        assert!(is_other(&refused), "{refused}");
        assert!(refused.to_string().contains(way_out), "{refused}");

        let mut label = bytes[..4096].to_vec();
        label[12] = other;
        reseal(&mut label, 4096);
        assert!(peek_label(&label).is_err_and(|refused| is_other(&refused)));
    }
}

/// A reshape from the array's own geometry, with something changed.
fn reshape_of(superblock: &Superblock, change: impl Fn(&mut Reshape)) -> Reshape {
    let from = superblock.shape();
    let (slots, direction) = (from.slots, Direction::Up);
    let from_generation = Generation(2);
    let mut reshape = Reshape { from, from_generation, slots, direction, checkpoint_bytes: 0 };
    change(&mut reshape);
    reshape
}

#[test]
fn a_reshape_in_progress_is_kept() {
    let mut superblock = sample();
    superblock.reshape = Some(reshape_of(&superblock, |_| {}));
    superblock.generation = Generation(3);
    let bytes = superblock.encode(superblock.self_id).expect("possible");
    assert_eq!(Superblock::decode(&bytes).expect("just made"), superblock);
}

#[test]
fn an_impossible_array_is_refused() {
    let good = sample();
    let breaks: &[fn(&mut Superblock)] = &[
        |s| s.unit_bytes = 5000,
        |s| s.unit_bytes = 0,
        |s| s.rows = u64::MAX,
        |s| s.rows = 0,
        |s| s.sector_bytes = 1024,
        |s| s.region_bytes = 0,
        |s| s.region_bytes = 3 << 20,
        |s| s.region_bytes = 64 << 10,
        |s| s.area.data_offset = 1 << 20 | 4096,
        |s| s.area.map_bytes = 0,
        |s| s.slots.clear(),
        |s| s.slots[1].member_id = s.slots[0].member_id,
        |s| s.slots[0].member_id = None,
        |s| s.spares[0].member_id = s.slots[0].member_id.expect("a member"),
        |s| s.area.log_bytes = 0,
        |s| s.area.log_bytes = 4096,
        |s| (s.area.log_bytes, s.area.data_offset) = (1 << 40, 1 << 41),
        |s| s.consistency = Consistency::Bitmap,
        |s| (s.code, s.slots[2].state) = (CodeSpec::Raid0, SlotState::Active),
        |s| s.region_bytes = 1 << 63,
        |s| s.region_bytes = 1 << 44,
        |s| s.reshape = Some(reshape_of(s, |reshape| reshape.checkpoint_bytes = u64::MAX)),
        |s| s.reshape = Some(reshape_of(s, |reshape| reshape.slots += 1)),
        |s| s.reshape = Some(reshape_of(s, |reshape| reshape.from.slots = 0)),
        |s| s.reshape = Some(reshape_of(s, |reshape| reshape.from.unit_bytes = 5000)),
        |s| s.reshape = Some(reshape_of(s, |reshape| reshape.from.rows = u64::MAX)),
        |s| s.reshape = Some(reshape_of(s, |reshape| reshape.from.data_offset = 4096)),
        |s| s.seq = 0,
        |s| s.seq = u64::MAX,
        |s| s.members_made = u64::MAX,
        |s| s.name = String::new(),
        |s| s.name = "..".into(),
        |s| s.name = "../../etc/cron.d".into(),
        |s| s.name = "a\u{1b}[2J".into(),
        |s| s.name = "right\u{202e}tfel".into(),
        |s| s.name = "n".repeat(256),
        |s| s.software = "\u{7}".into(),
        |s| s.slots[0].disk_hint = "d0\n".into(),
        |s| s.spares[0].disk_hint = "d".repeat(129),
        |s| (s.unreplayed, s.clean) = (Some(1), true),
        |s| s.succeeds = Some(Predecessor { seq: 0, active: Vec::new() }),
        |s| s.succeeds = Some(Predecessor { seq: 0, active: vec![s.self_id; 256] }),
        |s| {
            let mode = ScrubMode::Check;
            let (next_stripe, stripes, mismatches, repaired, unreadable) = (0, 0, u64::MAX, 0, 0);
            s.scrub = Some(ScrubProgress {
                mode,
                next_stripe,
                stripes,
                mismatches,
                repaired,
                unreadable,
            });
        },
        |s| {
            s.last_rebuild = Some(LastRebuild { ended_unix_s: 0, took_s: u64::MAX });
        },
    ];
    for (n, broken) in breaks.iter().enumerate() {
        let mut superblock = good.clone();
        broken(&mut superblock);
        let bytes = with_payload(&superblock, json(&superblock).as_bytes());
        let refused = Superblock::decode(&bytes);
        assert!(matches!(refused, Err(SuperblockError::Impossible { .. })), "{n}: {refused:?}");
    }
    let unknown = json(&good).replacen('{', r#"{"more":1,"#, 1);
    let refused = Superblock::decode(&with_payload(&good, unknown.as_bytes()));
    assert!(matches!(refused, Err(SuperblockError::Damaged { .. })), "{refused:?}");
}

/// A rebuild policy in words that this version does not know does not keep the array from starting.
#[test]
fn an_unknown_rebuild_policy_is_ignored() {
    let mut chosen = sample();
    chosen.rebuild = Some(RebuildPolicy { slice_stripes: 7, ..RebuildPolicy::default() }.into());
    let text = json(&chosen);
    for (known, other) in
        [("\"order\":\"auto\"", "\"order\":\"random\""), ("\"zones\":", "\"spools\":")]
    {
        assert!(text.contains(known), "{text}");
        let bytes = with_payload(&chosen, text.replacen(known, other, 1).as_bytes());
        let read = Superblock::decode(&bytes).expect("all else is known");
        assert_eq!(read, Superblock { rebuild: None, ..chosen.clone() });
    }
    let read = Superblock::decode(&with_payload(&chosen, text.as_bytes())).expect("whole");
    assert_eq!(read, chosen);
}

/// The bounds of the jobs' rate stand beside the policy. Impossible or unknown ones are ignored,
/// and cost the policy nothing.
#[test]
fn unknown_bounds_of_the_rate_are_ignored() {
    let mut chosen = sample();
    let policy = RebuildPolicy { slice_stripes: 7, ..RebuildPolicy::default() };
    let mut preferences = Preferences::from(policy);
    preferences.throttle.max_bytes_s = Some(5 << 20);
    preferences.throttle.latency_us = Some(2000);
    chosen.rebuild = Some(preferences.clone());
    let text = json(&chosen);
    let read = Superblock::decode(&with_payload(&chosen, text.as_bytes())).expect("whole");
    assert_eq!(read, chosen);
    preferences.throttle = Bounds::default();
    for max in ["\"fast\"", "0"] {
        let known = "\"max_bytes_s\":5242880";
        assert!(text.contains(known), "{text}");
        let other = text.replacen(known, &format!("\"max_bytes_s\":{max}"), 1);
        let read = Superblock::decode(&with_payload(&chosen, other.as_bytes())).expect("known");
        assert_eq!(read.rebuild.as_ref(), Some(&preferences), "{max}");
    }
}

/// The cache stands beside them. One in words of another version is ignored, and costs nothing
/// else.
#[test]
fn the_chosen_cache_is_kept_and_an_unknown_one_is_ignored() {
    let mut chosen = sample();
    let policy = RebuildPolicy { slice_stripes: 7, ..RebuildPolicy::default() };
    let mut preferences = Preferences::from(policy);
    let cache = CacheChoice { max_bytes: 1 << 30, policy: "vdf-arc".into() };
    preferences.cache = Some(cache);
    chosen.rebuild = Some(preferences.clone());
    let text = json(&chosen);
    let known = "\"cache\":{\"max_bytes\":1073741824,\"policy\":\"vdf-arc\"}";
    assert!(text.contains(known), "{text}");
    let read = Superblock::decode(&with_payload(&chosen, text.as_bytes())).expect("whole");
    assert_eq!(read, chosen);
    preferences.cache = None;
    for other in ["\"cache\":\"large\"", "\"cache\":{\"max_bytes\":-1,\"policy\":\"vdf-arc\"}"] {
        let text = text.replacen(known, other, 1);
        let read = Superblock::decode(&with_payload(&chosen, text.as_bytes())).expect("known");
        assert_eq!(read.rebuild.as_ref(), Some(&preferences), "{other}");
    }
}

#[test]
fn create_refuses_the_names_that_are_refused_on_disk() {
    for name in ["", ".", "..", "a/b", "-a", "a b", "a\nb", "\u{e9}", &"n".repeat(256)] {
        let options = weft_array::CreateOptions { name: name.into(), ..options("raid1", 1) };
        let refused = now(weft_array::create(&members::disks(2, 16), &options));
        let refused = refused.expect_err("no name").to_string();
        assert!(refused.contains("the array's name must"), "{name:?}: {refused}");
    }
    // Disks may have any name; what is stored of it can be printed.
    assert_eq!(disk_hint("d\n0\u{1b}"), "d\u{fffd}0\u{fffd}");
}

#[test]
fn the_largest_array_fits() {
    let disks: Vec<Rc<dyn Disk>> = (0..255 + 64)
        .map(|n| {
            let name = format!("/dev/disk/by-id/{}-{n:03}", "\u{e9}".repeat(150));
            Rc::new(RamDisk::new(&name, 3 * MIB, 512)) as Rc<dyn Disk>
        })
        .collect();
    let options =
        weft_array::CreateOptions { spares: 64, name: "n".repeat(255), ..options("raid1", 1) };
    let superblock = now(weft_array::create(&disks, &options)).expect("it fits");
    assert_eq!(superblock.slots.len(), 255);
    let bytes = superblock.encode(superblock.self_id).expect("it fits").len() as u64;
    assert!(bytes + 4096 <= SUPERBLOCK_BYTES, "no room for a second geometry: {bytes}");
}

#[test]
fn mangled_bytes_are_refused_or_read_but_never_a_panic() {
    let (newest, _) = member();
    let text = json(&newest);
    for_seeds(0..3000, |rng| {
        let mut payload = text.clone().into_bytes();
        for _ in 0..=rng.below(3) {
            let position = rng.index(payload.len());
            match rng.below(3) {
                0 => payload[position] = b"0123456789{}[]\",:-.e"[rng.index(20)],
                1 => drop(payload.remove(position)),
                _ => payload.insert(position, b'0' + u8::try_from(rng.below(10)).expect("digit")),
            }
        }
        exercise::exercise(&payload);
        let mut raw = vec![0; 4096];
        rng.fill(&mut raw);
        exercise::exercise(&raw);
        assert!(Superblock::decode(&raw).is_err());
        assert!(peek_label(&raw).expect("no label").is_none());
    });
}

#[test]
fn identities_of_members_are_those_that_were_given() {
    let superblocks = made("raid5", 4, 1, 3);
    for (n, own) in superblocks.iter().enumerate() {
        assert_eq!(own.self_id, Id([3; 16]).member(0, n as u64));
    }
    let mut grown = superblocks[0].clone();
    grown.log_epoch = 77;
    assert_eq!(grown.new_member_id(), Id([3; 16]).member(77, 4));
}

#[test]
fn a_replacement_is_a_feature_that_others_must_know() {
    let mut superblock = sample();
    let member_id = superblock.new_member_id();
    superblock.slots[2].replacement =
        Some(ReplacementMeta { member_id, lane: Lane(4), disk_hint: "disk".into() });
    superblock.features = vec!["replacement".into()];
    let encoded = superblock.encode(superblock.self_id).expect("fits");
    assert_eq!(Superblock::decode(&encoded).expect("whole"), superblock);
    assert_eq!(superblock.role_of(member_id), Role::Replacement(SlotNo(2)));
    // A lane used twice, a replacement of a missing member.
    let breaks: [fn(&mut Superblock); 3] = [
        |own| own.slots[1].state = SlotState::Rebuilding { lane: Lane(4) },
        |own| own.slots[2].state = SlotState::Missing,
        |own| own.slots[2].replacement.as_mut().expect("set above").lane = Lane(8),
    ];
    for broken in breaks {
        let mut wrong = superblock.clone();
        broken(&mut wrong);
        let sealed = exercise::seal(wrong.seq, wrong.array_id, json(&wrong).as_bytes());
        let decoded = Superblock::decode(&sealed);
        assert!(matches!(decoded, Err(SuperblockError::Impossible { .. })), "{decoded:?}");
        // Nor is it ever written.
        let encoded = wrong.encode(wrong.self_id);
        assert!(matches!(encoded, Err(SuperblockError::Impossible { .. })), "{encoded:?}");
    }
}
