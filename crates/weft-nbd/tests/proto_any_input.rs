//! No input makes the parsers panic, loop, or say more than they should: the body of the
//! fuzz target over mutations, from a seed, of conversations that make sense.

mod exercise;

use weft_nbd::proto::wire::*;
use weft_nbd::proto::{Errno, Request, put_data_chunk_head, put_error_chunk, put_request};
use weft_testkit::Rng;

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).expect("short").to_be_bytes());
    bytes.extend(data);
    bytes
}

fn client_side() -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(option(OPT_STRUCTURED_REPLY, &[]));
    bytes.extend(option(OPT_LIST, &[]));
    let context = [&1u32.to_be_bytes()[..], b"a", &1u32.to_be_bytes(), &15u32.to_be_bytes()];
    bytes.extend(option(
        OPT_SET_META_CONTEXT,
        &[&context.concat()[..], b"base:allocation"].concat(),
    ));
    let go = [&1u32.to_be_bytes()[..], b"a", &1u16.to_be_bytes(), &3u16.to_be_bytes()].concat();
    bytes.extend(option(OPT_INFO, &go));
    bytes.extend(option(OPT_GO, &go));
    for command in [CMD_READ, CMD_FLUSH, CMD_BLOCK_STATUS, CMD_WRITE_ZEROES, CMD_DISC] {
        let len = if command == CMD_FLUSH { 0 } else { 4096 };
        let request = Request { flags: 0, command, cookie: 7, offset: 0, len };
        put_request(&mut bytes, &request);
    }
    bytes
}

fn server_side() -> Vec<u8> {
    let mut bytes = [&INIT_MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &[0, 3]].concat();
    let mut reply = |option: u32, kind: u32, data: &[u8]| {
        bytes.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        bytes.extend(option.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(u32::try_from(data.len()).expect("short").to_be_bytes());
        bytes.extend(data);
    };
    reply(OPT_STRUCTURED_REPLY, REP_ACK, &[]);
    reply(OPT_GO, REP_INFO, &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
    reply(OPT_GO, REP_INFO, &[0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]);
    reply(OPT_GO, REP_ACK, &[]);
    put_data_chunk_head(&mut bytes, 7, 0, 16, true);
    bytes.extend([1; 16]);
    put_error_chunk(&mut bytes, 7, Errno::Io, "the disk is gone");
    bytes
}

#[test]
fn no_input_breaks_a_parser() {
    let mut random = Rng::new(0x5eed);
    let corpus = [client_side(), server_side()];
    for bytes in &corpus {
        for end in 0..=bytes.len() {
            exercise::exercise(&bytes[..end]);
        }
    }
    for round in 0..60_000 {
        let mut bytes = corpus[round % corpus.len()].clone();
        for _ in 0..1 + random.index(6) {
            let at = random.index(bytes.len());
            match random.index(5) {
                0 => bytes[at] = random.next_u64().to_le_bytes()[0],
                1 => bytes[at] ^= 1 << random.index(8),
                2 => bytes.truncate(at.max(1)),
                3 => bytes.insert(at, random.next_u64().to_le_bytes()[0]),
                _ => bytes[at] = [0, 0xff, 0x7f, 0x80][random.index(4)],
            }
        }
        exercise::exercise(&bytes);
    }
    for _ in 0..5_000 {
        let noise: Vec<u8> =
            (0..random.index(200)).map(|_| random.next_u64().to_le_bytes()[0]).collect();
        exercise::exercise(&noise);
    }
}
