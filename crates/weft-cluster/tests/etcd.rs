//! etcd as coordinator: one change of several wins, lost answers are found out, leases end, and a
//! member that is killed or stopped is passed over.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::Signal;
use weft_cluster::coordinator::etcd::{EtcdConfig, EtcdCoordinator, EtcdUri};
use weft_cluster::{
    Coordinator, CoordinatorError, Fence, Node, NodeConfig, Record, Session, Standing, Swap,
    Version,
};
use weft_rt::ring::{self, Ring, RingConfig};
use weft_rt::{MILLISECOND, Rt, SECOND};
use weft_testkit::{Need, Process, Scratch, command, have, wait_until};

/// Members of an etcd on ports of their own.
struct Etcd {
    members: Vec<Option<Process>>,
    ports: Vec<u16>,
    _scratch: Scratch,
}

fn free_ports(count: usize) -> Vec<u16> {
    let any = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let held: Vec<TcpListener> = (0..count).map(|_| any()).collect();
    held.iter().map(|listener| listener.local_addr().expect("its address").port()).collect()
}

impl Etcd {
    fn start(count: usize) -> Self {
        let scratch = Scratch::new("etcd");
        let all = free_ports(2 * count);
        let (ports, peers) = all.split_at(count);
        let cluster: Vec<String> =
            (0..count).map(|n| format!("m{n}=http://127.0.0.1:{}", peers[n])).collect();
        let member = |n: usize| {
            let mut etcd = command("etcd");
            let peer = format!("http://127.0.0.1:{}", peers[n]);
            let client = format!("http://127.0.0.1:{}", ports[n]);
            etcd.args(["--name", &format!("m{n}"), "--data-dir", &format!("m{n}")]);
            etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            etcd.args(["--initial-cluster", &cluster.join(","), "--unsafe-no-fsync"]);
            etcd.current_dir(scratch.path());
            let log = std::fs::File::create(scratch.join(format!("m{n}.log"))).expect("a log");
            Some(Process::spawn(etcd.stdout(log.try_clone().expect("a file")).stderr(log)))
        };
        let members = (0..count).map(member).collect();
        let etcd = Self { members, ports: ports.to_vec(), _scratch: scratch };
        for port in &etcd.ports {
            wait_until("etcd to elect a leader", || is_healthy(*port));
        }
        etcd
    }

    fn uri(&self) -> EtcdUri {
        uri(&self.ports)
    }
}

fn uri(ports: &[u16]) -> EtcdUri {
    let places: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("etcd://{}", places.join(",")).parse().expect("an address")
}

fn is_healthy(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return false };
    let asked = stream.write_all(b"GET /health HTTP/1.0\r\n\r\n");
    let mut answer = String::new();
    asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.contains("true")
}

fn client(rt: &Rt, ring: &Ring, uri: EtcdUri, seed: u64) -> EtcdCoordinator {
    let config = EtcdConfig {
        uri,
        cluster: "home".parse().expect("a name"),
        lease: 2 * SECOND,
        patience: 20 * SECOND,
        attempt: 2 * SECOND,
        seed,
    };
    EtcdCoordinator::new(rt, ring, config)
}

fn record() -> Record {
    Record::new("home".parse().expect("a name"))
}

fn session(node: &str, number: u64) -> Session {
    Session { node: node.parse().expect("a name"), number }
}

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rt, Ring) -> F) {
    let (rt, ring) = ring::start(RingConfig::default()).expect("a ring");
    rt.block_on(test(rt.clone(), ring));
}

#[test]
fn changes_leases_and_watches() {
    if !have(&[Need::Tool("etcd")]) {
        return;
    }
    let etcd = Etcd::start(1);
    let uri = etcd.uri();
    run(|rt, ring| async move {
        let one = Rc::new(client(&rt, &ring, uri.clone(), 1));
        let two = client(&rt, &ring, uri, 2);
        let empty = one.read().await.expect("an answer");
        assert_eq!((empty.version, &empty.record), (Version(0), &None));

        // A record of one's own, and a change of it.
        let Ok(Swap::Done(first)) = one.compare_and_set(Version(0), record()).await else {
            panic!("there was no record")
        };
        assert_eq!(two.compare_and_set(Version(0), record()).await, Ok(Swap::Conflict));
        let seen = two.read().await.expect("an answer");
        assert_eq!((seen.version, seen.record), (first, Some(record())));
        let mut next = record();
        next.join(&session("a", 1));
        let swap = two.compare_and_set(first, next.clone()).await;
        let Ok(Swap::Done(second)) = swap else { panic!("{swap:?}") };
        assert!(second > first);
        assert_eq!(one.compare_and_set(first, record()).await, Ok(Swap::Conflict));
        assert_eq!(one.read().await.expect("an answer").record, Some(next.clone()));

        // Of many for one version one wins.
        let swaps = (0..8).map(|n| {
            one.compare_and_set(second, {
                let mut record = next.clone();
                record.join(&session("a", n));
                record
            })
        });
        let swaps = futures_util::future::join_all(swaps).await;
        let done = swaps.iter().filter(|swap| matches!(swap, Ok(Swap::Done(_)))).count();
        assert_eq!(done, 1, "{swaps:?}");

        // A lease is seen, kept, and ends.
        let a = session("a", u64::MAX);
        one.keep_alive(&a).await.expect("a lease");
        one.keep_alive(&a).await.expect("renewed");
        let seen = two.read().await.expect("an answer");
        assert!(seen.alive.contains(&a), "{seen:?}");
        two.changed(&seen).await.expect("its end is told");
        while two.read().await.expect("an answer").alive.contains(&a) {
            rt.sleep(50 * MILLISECOND).await;
        }
        one.keep_alive(&a).await.expect("a new lease");
        assert!(two.read().await.expect("an answer").alive.contains(&a));
        one.end_lease(&a).await.expect("given up");
        let seen = two.read().await.expect("an answer");
        assert!(seen.alive.is_empty(), "{seen:?}");

        // A watch tells of a change, also of one before it began.
        let watched = seen.clone();
        let watcher = one.clone();
        let watch = rt.spawn(async move { watcher.changed(&watched).await });
        rt.sleep(100 * MILLISECOND).await;
        two.compare_and_set(seen.version, record()).await.expect("an answer");
        watch.await.expect("told");
        one.changed(&seen).await.expect("told at once");
    });
}

#[test]
fn something_else_than_a_record_and_something_else_than_etcd_are_refused() {
    if !have(&[Need::Tool("etcd")]) {
        return;
    }
    let etcd = Etcd::start(1);
    let uri = etcd.uri();
    let mut put = TcpStream::connect((Ipv4Addr::LOCALHOST, etcd.ports[0])).expect("connect");
    // The key weft/home/record, with the value "junk".
    let body = r#"{"key":"d2VmdC9ob21lL3JlY29yZA==","value":"anVuaw=="}"#;
    let head = format!("POST /v3/kv/put HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
    put.write_all(format!("{head}{body}").as_bytes()).expect("sent");
    let mut answer = String::new();
    put.read_to_string(&mut answer).expect("answered");
    assert!(answer.contains("200 OK"), "{answer}");
    run(|rt, ring| async move {
        let refused = client(&rt, &ring, uri, 1).read().await;
        assert!(matches!(refused, Err(CoordinatorError::Refused(_))), "{refused:?}");
        let nobody = crate::uri(&free_ports(1));
        let config = EtcdConfig { patience: 100 * MILLISECOND, ..config(nobody) };
        let away = EtcdCoordinator::new(&rt, &ring, config).read().await;
        assert!(matches!(away, Err(CoordinatorError::Unreachable(_))), "{away:?}");
    });
}

fn config(uri: EtcdUri) -> EtcdConfig {
    let cluster = "home".parse().expect("a name");
    let (lease, patience, attempt) = (2 * SECOND, 2 * SECOND, SECOND);
    EtcdConfig { uri, cluster, lease, patience, attempt, seed: 7 }
}

/// Passes requests on to a member, and loses the answers of the first of them.
fn lossy(port: u16, lost: u64) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address: SocketAddr = listener.local_addr().expect("its address");
    let passed = Arc::new(AtomicU64::new(0));
    let count = passed.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            let mut request = vec![0; 1 << 20];
            let mut len = 0;
            let is_whole = |bytes: &[u8]| {
                let text = String::from_utf8_lossy(bytes);
                let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
                body.is_some_and(|body| serde_json::from_str::<serde_json::Value>(&body).is_ok())
            };
            while !is_whole(&request[..len]) {
                match client.read(&mut request[len..]) {
                    Ok(0) | Err(_) => break,
                    Ok(more) => len += more,
                }
            }
            let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("etcd runs");
            server.write_all(&request[..len]).expect("passed on");
            let mut answer = Vec::new();
            server.read_to_end(&mut answer).expect("answered");
            if count.fetch_add(1, Ordering::SeqCst) >= lost {
                let _ = client.write_all(&answer);
            }
        }
    });
    (address.port(), passed)
}

#[test]
fn a_change_whose_answer_was_lost_is_found_out() {
    if !have(&[Need::Tool("etcd")]) {
        return;
    }
    let etcd = Etcd::start(1);
    let (real, (proxy, passed)) = (etcd.ports[0], lossy(etcd.ports[0], 2));
    run(|rt, ring| async move {
        // The same member again, and another one: both find their own change.
        let one = client(&rt, &ring, uri(&[proxy]), 1);
        let swap = one.compare_and_set(Version(0), record()).await;
        assert!(matches!(swap, Ok(Swap::Done(_))), "{swap:?}");
        assert_eq!(passed.load(Ordering::SeqCst), 3);
        let version = one.read().await.expect("an answer").version;
        assert_eq!(swap, Ok(Swap::Done(version)));

        let (proxy, _) = lossy(real, 1);
        let two = client(&rt, &ring, uri(&[proxy, real]), 2);
        let swap = two.compare_and_set(version, record()).await;
        assert!(matches!(swap, Ok(Swap::Done(_))), "{swap:?}");
        // One that lost finds that out as well.
        let (proxy, _) = lossy(real, 1);
        let three = client(&rt, &ring, uri(&[proxy, real]), 3);
        assert_eq!(three.compare_and_set(version, record()).await, Ok(Swap::Conflict));

        // If no answer ever comes, it is not known.
        let (proxy, _) = lossy(real, u64::MAX);
        let version = two.read().await.expect("an answer").version;
        let config = EtcdConfig { patience: 300 * MILLISECOND, ..config(uri(&[proxy])) };
        let four = EtcdCoordinator::new(&rt, &ring, config);
        let swap = four.compare_and_set(version, record()).await;
        assert!(matches!(swap, Err(CoordinatorError::Unknown(_))), "{swap:?}");
        assert!(two.read().await.expect("an answer").version > version, "it was made");
    });
}

/// A member of the cluster that becomes its keeper, without disks.
fn node(coordinator: Rc<EtcdCoordinator>, name: &str) -> Node {
    let config = NodeConfig {
        cluster: "home".parse().expect("a name"),
        session: session(name, 1),
        disks_min: 0,
        may_keep: true,
        address: None,
    };
    Node::new(coordinator, Vec::<Rc<dyn Fence>>::new(), config)
}

async fn becomes_keeper(rt: &Rt, node: &Node) {
    let end = rt.now() + 120 * SECOND;
    loop {
        // A member that is away costs attempts, and the lease may have ended by then.
        let _ = node.keep_alive().await;
        if let Ok(Standing::Keeper { .. }) = node.step().await {
            return;
        }
        assert!(rt.now() < end, "it does not become the keeper");
        rt.sleep(50 * MILLISECOND).await;
    }
}

#[test]
fn a_keeper_follows_another_while_members_of_etcd_are_killed_and_stopped() {
    if !have(&[Need::Tool("etcd")]) {
        return;
    }
    let mut etcd = Etcd::start(3);
    let uri = etcd.uri();
    run(|rt, ring| async move {
        let a = node(Rc::new(client(&rt, &ring, uri.clone(), 1)), "a");
        becomes_keeper(&rt, &a).await;
        // Kill a member: two are a majority.
        drop(etcd.members[0].take());
        let b = node(Rc::new(client(&rt, &ring, uri.clone(), 2)), "b");
        becomes_keeper(&rt, &b).await;
        let expelled = loop {
            match a.step().await {
                Ok(standing) => break standing,
                Err(_) => rt.sleep(50 * MILLISECOND).await,
            }
        };
        assert!(matches!(expelled, Standing::Expelled(_)), "{expelled:?}");

        // Stop another: there is no majority, and nobody becomes keeper.
        let stopped = etcd.members[1].as_ref().expect("it runs");
        stopped.signal(Signal::STOP);
        let config =
            EtcdConfig { patience: SECOND, attempt: 300 * MILLISECOND, ..config(uri.clone()) };
        let c = node(Rc::new(EtcdCoordinator::new(&rt, &ring, config)), "c");
        for _ in 0..3 {
            let standing = c.step().await;
            assert!(!matches!(standing, Ok(Standing::Keeper { .. })), "{standing:?}");
        }
        stopped.signal(Signal::CONT);
        becomes_keeper(&rt, &c).await;
    });
}
