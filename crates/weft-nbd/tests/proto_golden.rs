//! The bytes on the wire, written out by hand from the protocol's text.

use weft_nbd::proto::wire::*;
use weft_nbd::proto::{
    BlockSizes, Catalogue, Chunk, ClientNegotiation, ClientStep, Command, Errno, ExportInfo,
    Limits, Negotiation, Peer, Request, Response, Session, Step, Violation, error_of_chunk,
    put_block_status, put_data_chunk_head, put_error_chunk, put_request, put_simple_reply,
};
use zerocopy::IntoBytes;

/// Bytes from hex digits; spaces and text in `'…'` allowed.
fn hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, part) in text.split('\'').enumerate() {
        if i % 2 == 1 {
            bytes.extend(part.as_bytes());
            continue;
        }
        let digits: Vec<u8> = part.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        bytes.extend(digits.chunks(2).map(|pair| {
            u8::from_str_radix(std::str::from_utf8(pair).expect("ascii"), 16).expect("hex")
        }));
    }
    bytes
}

fn catalogue() -> Catalogue {
    let export = |name: &str, size_bytes| ExportInfo {
        name: name.to_owned(),
        description: format!("the {name}"),
        size_bytes,
        block: BlockSizes { min: 1, preferred: 0x1000, max: 0x0200_0000 },
        flags: EXPORT_HAS_FLAGS | EXPORT_SEND_FLUSH,
    };
    let exports = vec![export("warp", 0x1_0000_0000), export("weft", 0x2000)];
    Catalogue { exports, default: Some(1), ..Catalogue::default() }
}

/// Runs a whole handshake; gives what the server said, and how it ended.
fn talk(input: &str) -> (Vec<u8>, Result<Step, Violation>) {
    let (mut negotiation, _) = Negotiation::new();
    let (input, mut out) = (hex(input), Vec::new());
    let mut rest = &input[..];
    loop {
        match negotiation.step(rest, &catalogue(), &mut out) {
            Ok((used, Step::Again)) => rest = &rest[used..],
            Ok((used, step)) => {
                assert_eq!(used, rest.len(), "all of the input is used");
                return (out, Ok(step));
            }
            Err(violation) => return (out, Err(violation)),
        }
    }
}

const FLAGS: &str = "00000003";
const OPT: &str = "'IHAVEOPT'";
const REP: &str = "0003e889045565a9";

#[test]
fn the_server_greets_as_fixed_newstyle() {
    let (_, greeting) = Negotiation::new();
    assert_eq!(greeting.as_bytes(), hex("'NBDMAGIC' 'IHAVEOPT' 0003"));
}

#[test]
fn go_chooses_an_export() {
    let go = format!("{FLAGS} {OPT} 00000008 00000000 {OPT} 00000007 0000000a 00000004'warp'0000");
    let (out, step) = talk(&go);
    let expected = format!(
        "{REP} 00000008 00000001 00000000
         {REP} 00000007 00000003 0000000c 0000 0000000100000000 0005
         {REP} 00000007 00000003 0000000e 0003 00000001 00001000 02000000
         {REP} 00000007 00000001 00000000"
    );
    assert_eq!(out, hex(&expected));
    let session = Session { export: 0, structured: true, base_allocation: false };
    assert_eq!(step, Ok(Step::Transmission(session)));
}

#[test]
fn info_describes_and_does_not_choose() {
    let info = format!("{FLAGS} {OPT} 00000006 0000000a 00000000 0002 0001 0002");
    let (out, step) = talk(&info);
    let expected = format!(
        "{REP} 00000006 00000003 0000000c 0000 0000000000002000 0005
         {REP} 00000006 00000003 0000000e 0003 00000001 00001000 02000000
         {REP} 00000006 00000003 00000006 0001 'weft'
         {REP} 00000006 00000003 0000000a 0002 'the weft'
         {REP} 00000006 00000001 00000000"
    );
    assert_eq!((out, step), (hex(&expected), Ok(Step::NeedMore)));
}

#[test]
fn export_name_has_its_own_reply() {
    let (out, step) = talk(&format!("00000001 {OPT} 00000001 00000004 'weft'"));
    assert_eq!(out, [hex("0000000000002000 0005"), vec![0; 124]].concat());
    let session = Session { export: 1, structured: false, base_allocation: false };
    assert_eq!(step, Ok(Step::Transmission(session.clone())));
    // Without padding, if both said so; the empty name is the default export.
    let (out, step) = talk(&format!("00000002 {OPT} 00000001 00000000"));
    assert_eq!(out, hex("0000000000002000 0005"));
    assert_eq!(step, Ok(Step::Transmission(session)));
    let (_, step) = talk(&format!("{FLAGS} {OPT} 00000001 00000003 'woo'"));
    assert_eq!(step, Err(Violation::UnknownExport("woo".to_owned())));
}

#[test]
fn list_and_abort() {
    let (out, step) = talk(&format!("{FLAGS} {OPT} 00000003 00000000 {OPT} 00000002 00000000"));
    let expected = format!(
        "{REP} 00000003 00000002 00000010 00000004 'warp' 'the warp'
         {REP} 00000003 00000002 00000010 00000004 'weft' 'the weft'
         {REP} 00000003 00000001 00000000
         {REP} 00000002 00000001 00000000"
    );
    assert_eq!((out, step), (hex(&expected), Ok(Step::Close)));
}

#[test]
fn meta_contexts_are_listed_and_chosen() {
    let structured = format!("{FLAGS} {OPT} 00000008 00000000");
    let go = format!("{OPT} 00000007 0000000a 00000004'warp'0000");
    let set = format!(
        "{OPT} 0000000a 00000039 00000004'warp' 00000003
         00000007 'qemu:ab' 0000000f 'base:allocation' 0000000b 'unknown:all'"
    );
    let (out, step) = talk(&format!("{structured} {set} {go}"));
    let chosen = format!(
        "{REP} 00000008 00000001 00000000
         {REP} 0000000a 00000004 00000013 00000001 'base:allocation'
         {REP} 0000000a 00000001 00000000"
    );
    assert!(out.starts_with(&hex(&chosen)));
    let session = Session { export: 0, structured: true, base_allocation: true };
    assert_eq!(step, Ok(Step::Transmission(session)));

    // Chosen for one export, it does not hold for another.
    let other = format!("{OPT} 00000007 0000000a 00000004'weft'0000");
    let (_, step) = talk(&format!("{structured} {set} {other}"));
    let session = Session { export: 1, structured: true, base_allocation: false };
    assert_eq!(step, Ok(Step::Transmission(session)));

    let list = format!("{OPT} 00000009 0000000c 00000004'warp' 00000000");
    let (out, _) = talk(&format!("{structured} {list}"));
    let listed = format!(
        "{REP} 00000008 00000001 00000000
         {REP} 00000009 00000004 00000013 00000000 'base:allocation'
         {REP} 00000009 00000001 00000000"
    );
    assert_eq!(out, hex(&listed));
}

/// The kind of the first option reply in `out`.
fn kind_of(out: &[u8]) -> u32 {
    u32::from_be_bytes(out[12..16].try_into().expect("four bytes"))
}

#[test]
fn bad_options_are_refused_and_the_handshake_goes_on() {
    let cases = [
        ("00000005 00000000", REP_ERR_UNSUP),                 // STARTTLS
        ("0000000b 00000000", REP_ERR_UNSUP),                 // extended headers
        ("00ffffff 00000004 01020304", REP_ERR_UNSUP),        // unknown
        ("00000003 00000001 00", REP_ERR_INVALID),            // LIST with data
        ("00000008 00000001 00", REP_ERR_INVALID),            // STRUCTURED_REPLY with data
        ("00000007 00000000", REP_ERR_INVALID),               // GO without data
        ("00000007 00000006 00000001 0000", REP_ERR_INVALID), // name cut off
        ("00000007 00000006 00000000 0001", REP_ERR_INVALID), // infos cut off
        ("00000007 00000007 00000001 ff 0000", REP_ERR_INVALID), // not UTF-8
        ("00000007 00000009 00000003 'woo' 0000", REP_ERR_UNKNOWN),
        ("0000000a 00000008 00000000 00000000", REP_ERR_INVALID), // before structured
    ];
    for (option, kind) in cases {
        let (out, step) = talk(&format!("{FLAGS} {OPT} {option} {OPT} 00000002 00000000"));
        assert_eq!(kind_of(&out), kind, "{option}");
        assert_eq!(step, Ok(Step::Close), "{option}");
    }
    // A count of queries that the data cannot hold.
    let lie = format!("{FLAGS} {OPT} 00000008 00000000 {OPT} 0000000a 00000008 00000000 ffffffff");
    let (out, _) = talk(&lie);
    assert_eq!(kind_of(&out[20..]), REP_ERR_INVALID);
    // An option too long is skipped.
    let long = format!(
        "{FLAGS} {OPT} 00000007 00010001 {} {OPT} 00000002 00000000",
        "00".repeat(0x1_0001)
    );
    let (out, step) = talk(&long);
    assert_eq!((kind_of(&out), step), (REP_ERR_TOO_BIG, Ok(Step::Close)));
}

#[test]
fn what_cannot_be_answered_ends_the_connection() {
    assert_eq!(talk("00000004").1, Err(Violation::Flags(4)));
    let (_, step) = talk(&format!("{FLAGS} 4141414141414141 00000003 00000000"));
    assert!(matches!(step, Err(Violation::Magic { .. })));
    let (_, step) = talk(&format!("{FLAGS} {OPT} 00000003 7fffffff"));
    assert!(matches!(step, Err(Violation::TooLong { .. })));
    let (_, step) = talk(&format!("00000000 {OPT} 00000003 00000000"));
    assert_eq!(step, Err(Violation::OptionWithoutFixed(3)));
    let flood = format!("{OPT} 00000003 00000000").repeat(1025);
    assert_eq!(talk(&format!("{FLAGS} {flood}")).1, Err(Violation::TooManyOptions));
}

#[test]
fn a_handshake_may_come_byte_by_byte() {
    let input = hex(&format!("{FLAGS} {OPT} 00000007 0000000a 00000004'weft'0000"));
    let (mut negotiation, _) = Negotiation::new();
    let (mut start, mut out) = (0, Vec::new());
    for end in 0..=input.len() {
        loop {
            let part = &input[start..end];
            let (used, step) = negotiation.step(part, &catalogue(), &mut out).expect("valid");
            start += used;
            match step {
                Step::Again => {}
                Step::NeedMore => break,
                Step::Transmission(session) => {
                    assert_eq!((end, session.export), (input.len(), 1));
                    return;
                }
                Step::Close => panic!("nobody said goodbye"),
                Step::Resolve(name) => panic!("{name} is listed"),
            }
        }
    }
    panic!("the handshake did not end");
}

#[test]
fn a_name_that_is_not_listed_is_asked_for_and_then_refused_or_chosen() {
    let input = hex(&format!("{OPT} 00000007 0000000a 00000004'disk'0000"));
    let (mut negotiation, _) = Negotiation::new();
    let mut out = Vec::new();
    negotiation.step(&hex(FLAGS), &catalogue(), &mut out).expect("valid");
    let mut open = Catalogue { resolves: true, ..catalogue() };
    let step = negotiation.step(&input, &open, &mut out).expect("valid");
    assert_eq!(step, (0, Step::Resolve("disk".into())));
    assert!(out.is_empty(), "nothing is answered yet");

    open.refusals.push(("disk".into(), "no".into()));
    let step = negotiation.step(&input, &open, &mut out).expect("valid");
    assert_eq!(step, (input.len(), Step::Again));
    assert_eq!(out, hex("0003e889045565a9 00000007 80000002 00000002'no'"));

    open.exports.push(ExportInfo { name: "disk".into(), ..open.exports[0].clone() });
    let (_, step) = negotiation.step(&input, &open, &mut out).expect("valid");
    let Step::Transmission(session) = step else { panic!("{step:?}") };
    assert_eq!(session.export, open.exports.len() - 1);
}

#[test]
fn requests_and_replies() {
    let bytes = hex("25609513 0001 0001 1122334455667788 0000000000001000 00000200");
    let request = Request {
        flags: CMD_FLAG_FUA,
        command: CMD_WRITE,
        cookie: 0x1122_3344_5566_7788,
        offset: 0x1000,
        len: 0x200,
    };
    assert_eq!(Request::parse(&bytes), Ok(request));
    assert_eq!(request.payload_len(), 0x200);
    let mut out = Vec::new();
    put_request(&mut out, &request);
    assert_eq!(out, bytes);

    let mut out = Vec::new();
    put_simple_reply(&mut out, 7, None);
    put_simple_reply(&mut out, 7, Some(Errno::NoSpace));
    put_data_chunk_head(&mut out, 7, 0x1000, 0x200, true);
    put_error_chunk(&mut out, 7, Errno::Io, "oh");
    put_block_status(&mut out, 7, [(0x1000, 0), (0x2000, STATE_HOLE | STATE_ZERO)].into_iter());
    let expected = hex(
        "67446698 00000000 0000000000000007
         67446698 0000001c 0000000000000007
         668e33ef 0001 0001 0000000000000007 00000208 0000000000001000
         668e33ef 0001 8001 0000000000000007 00000008 00000005 0002 'oh'
         668e33ef 0001 0005 0000000000000007 00000014 00000001 00001000 00000000 00002000 00000003",
    );
    assert_eq!(out, expected);

    let simple = Response::Simple { cookie: 7, error: Some(Errno::NoSpace) };
    assert_eq!(Response::parse(&out[16..]), Ok(Some((simple, 16))));
    let chunk = Response::Chunk { cookie: 7, kind: Chunk::Data, done: true, len: 0x208 };
    assert_eq!(Response::parse(&out[32..]), Ok(Some((chunk, 20))));
    assert_eq!(Response::parse(&out[32..51]), Ok(None));
    let error = Response::Chunk { cookie: 7, kind: Chunk::Error, done: true, len: 8 };
    assert_eq!(Response::parse(&out[60..]), Ok(Some((error, 20))));
    assert_eq!(error_of_chunk(&out[80..88]), Ok((Errno::Io, "oh".to_owned())));
    assert!(Response::parse(b"HTTP/1.1").is_err());
    let huge = hex("668e33ef 0001 0001 0000000000000007 ffffffff");
    assert!(matches!(Response::parse(&huge), Err(Violation::TooLong { .. })));
}

#[test]
fn requests_are_judged() {
    let limits = Limits {
        size_bytes: 1 << 20,
        block_min: 512,
        payload_max: 1 << 16,
        read_only: false,
        structured: true,
        base_allocation: true,
    };
    let request = |command, flags, offset, len| Request { flags, command, cookie: 0, offset, len };
    let check = |r: Request| r.check(&limits).map_err(|(errno, _)| errno);
    let read_only = Limits { read_only: true, ..limits };
    let plain = Limits { structured: false, base_allocation: false, ..limits };

    let good = [
        (request(CMD_READ, CMD_FLAG_DF, 0, 512), Command::Read { df: true }),
        (request(CMD_READ, 0, 1 << 20, 0), Command::Read { df: false }),
        (request(CMD_WRITE, CMD_FLAG_FUA, (1 << 20) - 512, 512), Command::Write { fua: true }),
        (request(CMD_FLUSH, CMD_FLAG_FUA, 0, 0), Command::Flush),
        (request(CMD_TRIM, 0, 0, 1 << 20), Command::Trim { fua: false }),
        (
            request(CMD_WRITE_ZEROES, CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO, 0, 1 << 20),
            Command::WriteZeroes { fua: false, may_trim: false, fast: true },
        ),
        (request(CMD_BLOCK_STATUS, CMD_FLAG_REQ_ONE, 0, 512), Command::BlockStatus { one: true }),
        (request(CMD_DISC, 0, 1, 1), Command::Disconnect),
    ];
    for (request, command) in good {
        assert_eq!(check(request), Ok(command));
    }
    let bad = [
        (request(5, 0, 0, 512), Errno::Invalid),
        (request(99, 0, 0, 512), Errno::Invalid),
        (request(CMD_READ, CMD_FLAG_NO_HOLE, 0, 512), Errno::Invalid),
        (request(CMD_READ, 0, 1, 512), Errno::Invalid),
        (request(CMD_READ, 0, 0, 513), Errno::Invalid),
        (request(CMD_READ, 0, 1 << 20, 512), Errno::Invalid),
        (request(CMD_READ, 0, u64::MAX - 511, 1024), Errno::Invalid),
        (request(CMD_READ, 0, 0, 1 << 17), Errno::Invalid),
        (request(CMD_WRITE, 0, 0, 1 << 17), Errno::Invalid),
        (request(CMD_WRITE, 0, (1 << 20) - 512, 1024), Errno::NoSpace),
        (request(CMD_WRITE_ZEROES, 0, 1 << 20, 512), Errno::NoSpace),
        (request(CMD_TRIM, 0, 1 << 20, 512), Errno::Invalid),
        (request(CMD_FLUSH, 0, 512, 0), Errno::Invalid),
        (request(CMD_BLOCK_STATUS, 0, 0, 0), Errno::Invalid),
    ];
    for (request, errno) in bad {
        assert_eq!(check(request), Err(errno), "{request:?}");
    }
    for command in [CMD_WRITE, CMD_TRIM, CMD_WRITE_ZEROES] {
        let verdict = request(command, 0, 0, 512).check(&read_only);
        assert_eq!(verdict.map_err(|(errno, _)| errno), Err(Errno::Perm));
    }
    assert!(request(CMD_READ, CMD_FLAG_DF, 0, 512).check(&plain).is_err());
    assert!(request(CMD_BLOCK_STATUS, 0, 0, 512).check(&plain).is_err());
}

/// Runs the client against what a server says; gives what the client said, and the end.
fn connect(input: &str) -> (Vec<u8>, Result<ClientStep, Violation>) {
    let mut negotiation = ClientNegotiation::new("weft").expect("short");
    let (input, mut out) = (hex(input), Vec::new());
    let mut rest = &input[..];
    loop {
        match negotiation.step(rest, &mut out) {
            Ok((used, ClientStep::Again)) => rest = &rest[used..],
            Ok((_, step)) => return (out, Ok(step)),
            Err(violation) => return (out, Err(violation)),
        }
    }
}

#[test]
fn the_client_connects() {
    let (out, step) = connect(&format!(
        "'NBDMAGIC' 'IHAVEOPT' 0003
         {REP} 00000008 00000001 00000000
         {REP} 00000007 00000003 0000000c 0000 0000000000002000 0005
         {REP} 00000007 00000003 0000000e 0003 00000200 00001000 00100000
         {REP} 00000007 00000001 00000000"
    ));
    let said =
        format!("{FLAGS} {OPT} 00000008 00000000 {OPT} 00000007 0000000c 00000004'weft' 0001 0003");
    assert_eq!(out, hex(&said));
    let block = BlockSizes { min: 512, preferred: 4096, max: 1 << 20 };
    let peer = Peer { size_bytes: 0x2000, flags: 5, block, structured: true };
    assert_eq!(step, Ok(ClientStep::Ready(peer)));
}

#[test]
fn the_client_falls_back_for_old_servers() {
    let (out, step) = connect(&format!(
        "'NBDMAGIC' 'IHAVEOPT' 0003
         {REP} 00000008 80000001 00000000 {REP} 00000007 80000001 00000000
         0000000000002000 0005"
    ));
    assert!(out.ends_with(&hex(&format!("{OPT} 00000001 00000004 'weft'"))));
    let block = BlockSizes::default();
    let peer = Peer { size_bytes: 0x2000, flags: 5, block, structured: false };
    assert_eq!(step, Ok(ClientStep::Ready(peer)));
}

#[test]
fn the_client_says_why_it_gives_up() {
    let greet = "'NBDMAGIC' 'IHAVEOPT' 0003";
    let (_, step) = connect(&format!(
        "{greet} {REP} 00000008 00000001 00000000 {REP} 00000007 80000006 00000003 'woo'"
    ));
    let text = step.expect_err("refused").to_string();
    assert_eq!(text, "the server refused export \"weft\": it has no export of this name (woo)");
    assert!(matches!(connect("'SSH-2.0-'").1, Err(Violation::Magic { .. })));
    assert_eq!(connect("'NBDMAGIC' 0000420281861253").1, Err(Violation::Oldstyle));
    let (_, step) = connect(&format!("{greet} {REP} 00000008 00000001 ffffffff"));
    assert!(matches!(step, Err(Violation::TooLong { .. })));
    let (_, step) = connect(&format!(
        "{greet} {REP} 00000008 00000001 00000000
         {REP} 00000007 00000003 0000000e 0003 00000003 00001000 00100000"
    ));
    assert!(matches!(step, Err(Violation::Malformed(_))));
    let long = "x".repeat(4097);
    assert!(ClientNegotiation::new(&long).is_err());
}
