//! Codes are written, read back and refused by name.

use weft_code::{Code, CodeSpec, Copies, SpecError};

fn parse(name: &str) -> Result<CodeSpec, SpecError> {
    name.parse()
}

#[test]
fn every_name_reads_back_as_itself() {
    for name in [
        "raid0",
        "raid1",
        "raid10",
        "raid10:n3",
        "raid10:f2",
        "raid10:o4",
        "raid4",
        "raid5",
        "raid6",
        "rs:10+4",
        "rs:1+1",
        "rs:250+5",
        "lrc:12,2,2",
        "lrc:4,1,0",
        "lrc:4,4,1",
        "drc:4,2,1",
        "drc-g:4,2,1",
        "drc-oa:12,2,1",
        "drc-oa:16,4,2",
    ] {
        let spec = parse(name).unwrap();
        assert_eq!(spec.to_string(), name);
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(json, format!("\"{name}\""));
        assert_eq!(serde_json::from_str::<CodeSpec>(&json).unwrap(), spec);
    }
    assert_eq!(parse("raid10:n2"), parse("raid10"));
    assert_eq!(parse("RAID5"), parse("raid5"));
    let offset = CodeSpec::Raid10 { arrangement: Copies::Offset, copies: 2 };
    assert_eq!(parse("raid10:o2"), Ok(offset));
    assert_eq!(format!("{:>8}|{:<8}", offset, CodeSpec::Raid5), "raid10:o2|raid5   ");
}

#[test]
fn what_is_wrong_is_said() {
    for (name, message) in [
        (
            "raid7",
            "unknown code 'raid7'; known: raid0 raid1 raid10[:nC|:fC|:oC] raid4 raid5 raid6 rs:K+R \
             lrc:K,L,R drc:K,L,R drc-g:K,L,R drc-oa:K,L,R",
        ),
        ("", "unknown code ''; known: "),
        ("raid5:3", "cannot read 'raid5:3': raid5 takes its width from the number of slots"),
        ("raid10:x2", "cannot read 'raid10:x2': write raid10, or raid10:n2, :f2, :o2"),
        ("raid10:", "cannot read 'raid10:': write raid10, or"),
        ("raid10:né", "cannot read 'raid10:né': write raid10, or"),
        ("raid10:n1", "raid10:n1: copies must be 2 to 255"),
        ("rs:4", "cannot read 'rs:4': write rs:K+R, for example rs:8+3"),
        ("rs:4++2", "cannot read 'rs:4++2': write rs:K+R"),
        ("rs:4+99999999999999999999", "cannot read"),
        ("rs:0+2", "rs:0+2: K and R must be at least 1"),
        ("rs:250+6", "rs:250+6: K+R must be at most 255"),
        ("rs:18446744073709551615+1", "K+R must be at most 255"),
        ("lrc:4,2", "cannot read 'lrc:4,2': write lrc:K,L,R, for example lrc:12,2,2"),
        ("lrc:4,2,1,1", "cannot read"),
        ("drc-g:4, 2,1", "cannot read"),
        ("lrc:5,2,1", "lrc:5,2,1: L must divide K (5 is not a multiple of 2)"),
        ("drc:4,0,1", "drc:4,0,1: K and L must be at least 1"),
        ("lrc:200,50,6", "lrc:200,50,6: K+L+R must be at most 255"),
        (
            "drc:40,2,1",
            "the pattern would repeat only after 2^20 stripes, more than 65536; use more groups, or drc-oa",
        ),
        ("drc-oa:12,6,1", "L must be a prime or the power of one"),
    ] {
        let error = parse(name).unwrap_err().to_string();
        assert!(error.contains(message), "{name}: {error}");
    }
}

#[test]
fn slots_that_do_not_suit_are_refused() {
    for (name, slots, message) in [
        ("raid0", 0, "raid0 needs at least 1 slot, got 0 slots"),
        ("raid1", 1, "raid1 needs at least 2 slots, got 1 slot"),
        ("raid5", 1, "raid5 needs at least 2 slots, got 1 slot"),
        ("raid6", 3, "raid6 needs at least 4 slots, got 3 slots"),
        ("raid10:n3", 2, "raid10:n3 needs at least 3 slots, got 2 slots"),
        ("rs:8+3", 10, "rs:8+3 needs at least 11 slots, got 10 slots"),
        ("drc-g:4,2,1", 6, "drc-g:4,2,1 needs at least 7 slots, got 6 slots"),
        ("raid0", 256, "raid0 needs at most 255 slots, got 256 slots"),
    ] {
        let error = Code::new(parse(name).unwrap(), slots).unwrap_err().to_string();
        assert_eq!(error, message);
    }
}

#[test]
fn a_spec_that_was_not_parsed_is_checked_too() {
    let spec = CodeSpec::Drc { k: 5, l: 2, r: 1 };
    assert!(matches!(Code::new(spec, 10), Err(SpecError::Parameters { .. })));
    assert_eq!(spec.period(), 0);
}

#[test]
fn widths_come_from_the_slots_or_from_the_name() {
    for (name, slots, k, p) in [
        ("raid0", 5, 5, 0),
        ("raid1", 3, 1, 2),
        ("raid10", 5, 1, 1),
        ("raid10:f3", 5, 1, 2),
        ("raid4", 2, 1, 1),
        ("raid5", 5, 4, 1),
        ("raid6", 255, 253, 2),
        ("rs:4+2", 11, 4, 2),
        ("lrc:12,2,2", 16, 12, 4),
        ("drc-oa:12,3,1", 20, 12, 4),
    ] {
        let code = Code::new(parse(name).unwrap(), slots).unwrap();
        assert_eq!((code.k(), code.p(), code.width()), (k, p, k + p), "{name}");
    }
}
