//! Feeds arbitrary bytes to every parser of the protocol. What must hold for any input:
//! no panic, progress on every step, no more output than a bound per input, and no more of the
//! input consumed than there is. Shared by the fuzz target and by a plain test.

use weft_nbd::proto::{
    BlockSizes, Catalogue, Chunk, ClientNegotiation, ClientStep, Coverage, ExportInfo, Limits,
    Negotiation, Request, Response, Step, error_of_chunk, wire,
};

/// Output for one message of input: a list of all exports, each name and description bounded.
const OUTPUT_PER_STEP_MAX: usize = 64 << 10;

fn catalogue() -> Catalogue {
    let export = |name: &str| ExportInfo {
        name: name.to_owned(),
        description: "an export".to_owned(),
        size_bytes: 1 << 30,
        block: BlockSizes::default(),
        flags: wire::EXPORT_HAS_FLAGS,
    };
    let exports = vec![export("a"), export("b")];
    Catalogue { exports, default: Some(0), resolves: true, refusals: Vec::new() }
}

/// One input, through all parsers.
pub fn exercise(input: &[u8]) {
    server_handshake(input);
    client_handshake(input);
    requests(input);
    responses(input);
    coverage(input);
    let _ = error_of_chunk(input);
}

fn server_handshake(input: &[u8]) {
    let (mut negotiation, _) = Negotiation::new();
    let (mut catalogue, mut rest) = (catalogue(), input);
    loop {
        let mut out = Vec::new();
        match negotiation.step(rest, &catalogue, &mut out) {
            Ok((used, step)) => {
                assert!(out.len() <= OUTPUT_PER_STEP_MAX, "{} bytes put out", out.len());
                rest = &rest[used..];
                match step {
                    Step::Again => assert!(used > 0, "a step without progress"),
                    Step::Transmission(session) => {
                        assert!(session.export < catalogue.exports.len());
                        assert!(session.structured || !session.base_allocation);
                        return requests(rest);
                    }
                    Step::Resolve(name) => {
                        assert!(used == 0 && catalogue.find(&name).is_none());
                        catalogue.refusals.push((name, "a refusal".to_owned()));
                    }
                    Step::NeedMore | Step::Close => return,
                }
            }
            Err(violation) => return assert!(!violation.to_string().is_empty()),
        }
    }
}

fn client_handshake(input: &[u8]) {
    let mut negotiation = ClientNegotiation::new("a").expect("the name is short");
    let (mut rest, mut out) = (input, Vec::new());
    while let Ok((used, step)) = negotiation.step(rest, &mut out) {
        rest = &rest[used..];
        match step {
            ClientStep::Again => assert!(used > 0, "a step without progress"),
            ClientStep::Ready(peer) => {
                assert!(peer.block.min.is_power_of_two() && peer.block.max >= peer.block.min);
                return responses(rest);
            }
            ClientStep::NeedMore => return,
        }
    }
    assert!(out.len() < 1024, "a client says little");
}

fn requests(input: &[u8]) {
    let limits = Limits {
        size_bytes: 1 << 30,
        block_min: 512,
        payload_max: 1 << 20,
        read_only: input.first().is_some_and(|byte| byte & 1 == 1),
        structured: true,
        base_allocation: true,
    };
    for head in input.chunks_exact(wire::REQUEST_BYTES) {
        let Ok(request) = Request::parse(head) else { return };
        if request.check(&limits).is_ok() && request.command != wire::CMD_DISC {
            let end = request.offset.checked_add(request.len.into());
            assert!(end.is_some_and(|end| end <= limits.size_bytes));
            assert!(request.payload_len() <= limits.payload_max);
            assert!(request.offset % 512 == 0 && request.len % 512 == 0);
        }
    }
}

/// A read of this many bytes, which the chunks of an input are taken to answer.
const READ_BYTES: usize = 64;

fn responses(input: &[u8]) {
    let mut rest = input;
    let (mut coverage, mut model) = (Coverage::default(), [false; READ_BYTES]);
    while let Ok(Some((response, used))) = Response::parse(rest) {
        rest = &rest[used..];
        if let Response::Chunk { len, kind, .. } = response {
            let payload = &rest[..rest.len().min(len as usize)];
            let _ = error_of_chunk(payload);
            if kind == Chunk::Data && payload.len() > 8 {
                let start = usize::from(payload[7]) % READ_BYTES;
                cover(&mut coverage, &mut model, start, payload.len() - 8);
            }
            rest = &rest[payload.len()..];
        }
    }
}

/// The input as ranges, one for each two bytes.
fn coverage(input: &[u8]) {
    let (mut coverage, mut model) = (Coverage::default(), [false; READ_BYTES]);
    for pair in input.chunks_exact(2) {
        let (start, len) = (usize::from(pair[0]) % READ_BYTES, usize::from(pair[1]) % 16);
        cover(&mut coverage, &mut model, start, len);
    }
}

/// A range is taken exactly if it is not empty and each of its bytes comes for the first time; the
/// read is whole exactly when every byte has come.
fn cover(coverage: &mut Coverage, model: &mut [bool; READ_BYTES], start: usize, len: usize) {
    let end = (start + len).min(READ_BYTES);
    let fits = start < end && model[start..end].iter().all(|covered| !covered);
    assert_eq!(coverage.add(start as u64..end as u64).is_ok(), fits, "{start}..{end}");
    if fits {
        model[start..end].fill(true);
    }
    assert_eq!(coverage.is_whole(READ_BYTES as u64), model.iter().all(|covered| *covered));
}
