//! Channels: both ends come together only with the same key and cluster; what was changed on the
//! way, recorded before, or sent by a stranger is not taken; a stranger costs little, and not for
//! long.

use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::rc::Rc;

use weft_cluster::channel::handshake::{
    ANSWER_BYTES, Acceptance, HELLO_BYTES, HandshakeError, Nonce, Opening, Terms,
};
use weft_cluster::channel::seal::{Opener, PART_BYTES_MAX, Sealer};
use weft_cluster::channel::{
    Address, Channel, ChannelError, KeyError, Listener, PATIENCE, STRANGERS_MAX, SharedKey, connect,
};
use weft_rt::ring::{self, Ring, RingConfig};
use weft_rt::{MILLISECOND, Rt, SECOND};
use weft_testkit::{Rng, Scratch, for_seeds};

fn terms(cluster: &str, key: Option<u8>) -> Terms {
    let key = key.map(|byte| SharedKey::new(&[byte; 32]).expect("long enough"));
    Terms { cluster: cluster.parse().expect("a name"), key }
}

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rt, Ring) -> F) {
    let (rt, ring) = ring::start(RingConfig::default()).expect("a ring");
    rt.block_on(test(rt.clone(), ring));
}

fn loopback() -> Address {
    "127.0.0.1:0".parse().expect("an address")
}

type Refused = Rc<RefCell<Vec<String>>>;

/// A keeper that sends back what it gets.
fn echo(rt: &Rt, ring: &Ring, address: &Address, terms: Terms) -> (Address, Refused) {
    let listener = Rc::new(Listener::bind(rt, ring, address, terms).expect("it listens"));
    let (address, refused) = (listener.address().clone(), Refused::default());
    let (spawner, hears) = (rt.clone(), refused.clone());
    let serve = move |channel: Rc<Channel>| {
        spawner.spawn(async move {
            while let Ok(bytes) = channel.read().await {
                if bytes.is_empty() || channel.write(bytes).await.is_err() {
                    return;
                }
            }
        });
    };
    let refuse = move |error: ChannelError| hears.borrow_mut().push(error.to_string());
    rt.spawn(listener.run(serve, refuse));
    (address, refused)
}

async fn exchange(rt: &Rt, channel: Channel, len: usize) {
    let sent: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).expect("small")).collect();
    let channel = Rc::new(channel);
    let (writer, bytes) = (channel.clone(), sent.clone());
    let writing = rt.spawn(async move { writer.write(bytes).await });
    let mut got = Vec::new();
    while got.len() < len {
        let bytes = channel.read().await.expect("received");
        assert!(!bytes.is_empty(), "it ended after {} of {len} bytes", got.len());
        got.extend(bytes);
    }
    writing.await.expect("sent");
    assert!(got == sent, "other bytes came back");
}

#[test]
fn both_ends_talk_over_tcp_and_unix_sockets_with_and_without_a_key() {
    run(|rt, ring| async move {
        let scratch = Scratch::new("channel");
        for address in [loopback(), Address::Unix(scratch.join("socket"))] {
            for key in [None, Some(7)] {
                let terms = terms("home", key);
                let (address, _) = echo(&rt, &ring, &address, terms.clone());
                for len in [1, PART_BYTES_MAX, 3 << 20] {
                    let channel = connect(&rt, &ring, &address, &terms).await.expect("met");
                    exchange(&rt, channel, len).await;
                }
                if let Address::Unix(path) = &address {
                    // The next one may be bound there.
                    fs::remove_file(path).expect("removed");
                }
            }
        }
    });
}

#[test]
fn other_keys_clusters_and_open_addresses_are_refused_by_name() {
    run(|rt, ring| async move {
        let (keyed, refused) = echo(&rt, &ring, &loopback(), terms("home", Some(7)));
        let (open, _) = echo(&rt, &ring, &loopback(), terms("home", None));
        for (address, node, wanted) in [
            (&keyed, terms("home", Some(8)), HandshakeError::OtherKey),
            (&keyed, terms("home", None), HandshakeError::KeyNeeded),
            (&keyed, terms("other", Some(7)), HandshakeError::OtherCluster),
            (&open, terms("home", Some(7)), HandshakeError::NoKey),
        ] {
            let error = connect(&rt, &ring, address, &node).await.expect_err("refused");
            let ChannelError::Handshake(_, found) = error else { panic!("{error}") };
            assert_eq!(found, wanted);
        }
        exchange(&rt, connect(&rt, &ring, &keyed, &terms("home", Some(7))).await.expect("met"), 10)
            .await;
        assert_eq!(refused.borrow().len(), 3, "{refused:?}");

        for address in ["0.0.0.0:0", "[::]:0"] {
            let address: Address = address.parse().expect("an address");
            let error = Listener::bind(&rt, &ring, &address, terms("home", None));
            assert!(matches!(error, Err(ChannelError::NotLocal(_))), "{error:?}");
        }
        let far: Address = "192.0.2.1:7".parse().expect("an address");
        let error = connect(&rt, &ring, &far, &terms("home", None)).await.expect_err("refused");
        assert!(matches!(error, ChannelError::NotLocal(_)), "{error}");
        for text in ["", "host", "host:", "host:x", ":1", "::1:2", "[::1", "a b:1", "nbd://a:1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        for text in ["host:1", "[::1]:2", "/run/keeper"] {
            assert_eq!(text.parse::<Address>().expect(text).to_string(), text);
        }
    });
}

fn nonce(rng: &mut Rng) -> Nonce {
    let mut nonce = Nonce::default();
    rng.fill(&mut nonce);
    nonce
}

/// What was said in a handshake, and the seals of both ends.
struct Spoken {
    hello: [u8; HELLO_BYTES],
    answer: [u8; ANSWER_BYTES],
    proof: Vec<u8>,
    node: (Sealer, Opener),
    keeper: (Sealer, Opener),
}

fn speak(terms: &Terms, rng: &mut Rng) -> Spoken {
    let opening = Opening::new(terms, &nonce(rng));
    let hello: [u8; HELLO_BYTES] = opening.hello().try_into().expect("its length");
    let (answer, accepted) = Acceptance::new(terms, &hello, &nonce(rng));
    let answer: [u8; ANSWER_BYTES] = answer.try_into().expect("its length");
    let (proof, node) = opening.take(&answer).expect("the keeper knows the key");
    let keeper = accepted.expect("accepted").take(&proof).expect("the node knows the key");
    let (node, keeper) = (node.expect("a key"), keeper.expect("a key"));
    Spoken { hello, answer, proof, node, keeper }
}

/// Changes something of what is under way.
fn mutate(bytes: &mut [u8], rng: &mut Rng) {
    let at = rng.index(bytes.len());
    match rng.below(3) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = bytes[at].wrapping_add(1),
        _ => bytes[at..].iter_mut().for_each(|byte| *byte = !*byte),
    }
}

#[test]
fn a_handshake_that_was_changed_or_recorded_proves_nothing() {
    let terms = terms("home", Some(7));
    for_seeds(0..300, |rng| {
        // The keeper's answer.
        let Spoken { hello, mut answer, proof, .. } = speak(&terms, rng);
        let recorded = answer;
        mutate(&mut answer, rng);
        let fresh = nonce(rng);
        let opening = Opening::new(&terms, &hello[12..44].try_into().expect("a nonce"));
        opening.take(&answer).expect_err("it was changed");
        let opening = Opening::new(&terms, &fresh);
        assert_eq!(opening.take(&recorded).expect_err("recorded"), HandshakeError::OtherKey);
        // The node's hello and proof.
        let mut changed = hello;
        mutate(&mut changed, rng);
        if let (_, Ok(accepted)) = Acceptance::new(&terms, &changed, &fresh) {
            accepted.take(&proof).expect_err("the proof is of another hello");
        }
        let (_, accepted) = Acceptance::new(&terms, &hello, &fresh);
        let recorded = accepted.expect("accepted").take(&proof).expect_err("recorded");
        assert_eq!(recorded, HandshakeError::OtherKey);
        // The keeper's proof sent back, as if it were the node's.
        let (answer, accepted) = Acceptance::new(&terms, &hello, &fresh);
        accepted.expect("accepted").take(&answer[44..]).expect_err("a reflection");
    });
}

#[test]
fn any_bytes_before_the_proof_are_taken_without_harm() {
    for_seeds(0..2000, |rng| {
        let terms = terms("home", rng.chance(1, 2).then_some(7));
        let mut hello = [0; HELLO_BYTES];
        let opening = Opening::new(&terms, &nonce(rng));
        match rng.below(3) {
            0 => hello.copy_from_slice(opening.hello()),
            1 => {
                hello.copy_from_slice(opening.hello());
                (0..1 + rng.below(4)).for_each(|_| mutate(&mut hello, rng));
            }
            _ => rng.fill(&mut hello),
        }
        let (answer, accepted) = Acceptance::new(&terms, &hello, &nonce(rng));
        assert!(answer.is_empty() || answer.len() == ANSWER_BYTES);
        if let Ok(accepted) = accepted {
            let mut proof = vec![0; rng.index(80)];
            rng.fill(&mut proof);
            let taken = accepted.take(&proof);
            assert_eq!(taken.is_ok(), terms.key.is_none(), "{taken:?}");
        }
        let mut answer = [0; ANSWER_BYTES];
        rng.fill(&mut answer);
        if rng.chance(1, 2) {
            answer[..11].copy_from_slice(&hello[..11]);
        }
        let taken = opening.take(&answer);
        assert!(taken.is_err() || terms.key.is_none(), "{taken:?}");
    });
}

#[test]
fn a_peer_of_a_later_version_is_told_ours() {
    let terms = terms("home", Some(7));
    for_seeds(0..1, |rng| {
        let mut hello: [u8; HELLO_BYTES] =
            Opening::new(&terms, &nonce(rng)).hello().try_into().expect("its length");
        hello[8] = 2;
        let (answer, accepted) = Acceptance::new(&terms, &hello, &nonce(rng));
        assert_eq!(accepted.expect_err("another version"), HandshakeError::Version(2));
        assert_eq!(answer[..10], *b"weftchan\x01\x00");
        let mut answer: [u8; ANSWER_BYTES] = answer.try_into().expect("its length");
        answer[8] = 3;
        let taken = Opening::new(&terms, &nonce(rng)).take(&answer).expect_err("another version");
        assert_eq!(taken, HandshakeError::Version(3));
    });
}

#[test]
fn parts_that_were_changed_moved_or_left_out_are_not_taken() {
    let terms = terms("home", Some(7));
    for_seeds(0..300, |rng| {
        let Spoken { mut node, keeper, .. } = speak(&terms, rng);
        let mut opener = keeper.1;
        let texts: Vec<Vec<u8>> = (0..4_u8).map(|byte| vec![byte; 1 + rng.index(3000)]).collect();
        let mut parts: Vec<Vec<u8>> = texts.iter().map(|text| node.0.seal(text)).collect();
        let whole = texts.concat();
        match rng.below(6) {
            0 => parts.swap(1, 2),
            1 => drop(parts.remove(1)),
            2 => parts.insert(2, parts[1].clone()),
            // Of the other direction.
            3 => {
                let mut other = keeper.0;
                parts[0] = other.seal(&texts[0]);
            }
            // Of another connection.
            4 => parts[0] = speak(&terms, rng).node.0.seal(&texts[0]),
            _ => {
                let part = rng.index(4);
                mutate(&mut parts[part], rng);
            }
        }
        let (mut got, mut is_broken) = (Vec::new(), false);
        for piece in parts.concat().chunks(1 + rng.index(2000)) {
            match opener.open(piece) {
                Ok(bytes) => got.extend(bytes),
                Err(_) => {
                    is_broken = true;
                    break;
                }
            }
        }
        assert!(whole.starts_with(&got), "something else came through");
        // A length that was changed waits for bytes that never come.
        assert!(is_broken || got.len() < whole.len(), "it went unnoticed");
        assert!(is_broken || opener.waiting_bytes() <= PART_BYTES_MAX + 20);
    });
}

#[test]
fn strangers_that_say_nothing_are_ended_and_hold_up_nodes_for_seconds_at_most() {
    run(|rt, ring| async move {
        let terms = terms("home", Some(7));
        let (address, refused) = echo(&rt, &ring, &loopback(), terms.clone());
        let Address::Tcp(_, port) = address else { panic!("TCP") };
        let stranger = || TcpStream::connect(("127.0.0.1", port)).expect("connected");
        let mut silent: Vec<TcpStream> = (0..STRANGERS_MAX + 8).map(|_| stranger()).collect();
        let mut talkative = stranger();
        talkative.write_all(&[b'x'; 4096]).expect("sent");
        let begun = rt.now();
        let channel = loop {
            match connect(&rt, &ring, &address, &terms).await {
                Ok(channel) => break channel,
                Err(_) => rt.sleep(50 * MILLISECOND).await,
            }
        };
        exchange(&rt, channel, 100).await;
        assert!(rt.now() - begun < 3 * PATIENCE, "{} ns", rt.now() - begun);
        while refused.borrow().len() < STRANGERS_MAX + 9 {
            assert!(rt.now() - begun < 4 * PATIENCE + SECOND, "{}", refused.borrow().len());
            rt.sleep(50 * MILLISECOND).await;
        }
        for stranger in &mut silent {
            let mut rest = Vec::new();
            let ended = stranger.read_to_end(&mut rest);
            assert!(rest.is_empty(), "it was told something: {ended:?}");
        }
    });
}

#[test]
fn a_key_is_a_file_of_its_owner_only() {
    let scratch = Scratch::new("key");
    let path = scratch.join("key");
    let mode = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).expect("changed");
    fs::write(&path, format!("{}\n", "k".repeat(32))).expect("written");
    for open in [0o644, 0o640, 0o606, 0o620] {
        mode(open);
        let read = SharedKey::read(&path);
        assert!(matches!(read, Err(KeyError::Open(found)) if found == open), "{read:?}");
    }
    mode(0o600);
    let key = SharedKey::read(&path).expect("a key");
    assert_eq!(key, SharedKey::new("k".repeat(32).as_bytes()).expect("a key"));
    assert!(!format!("{key:?}").contains("kk"), "it does not show");
    for len in [0, 31, 5000] {
        fs::write(&path, "k".repeat(len)).expect("written");
        let read = SharedKey::read(&path);
        assert!(matches!(read, Err(KeyError::Length(_))), "{read:?}");
    }
    assert!(matches!(SharedKey::read(&scratch.join("none")), Err(KeyError::Io(_))));
}
