//! etcd as coordinator, over its JSON gateway.
//!
//! *What is used.* Transactions that compare the revision at which a key was last changed: Jepsen
//! found these strict-serializable. Not etcd's locks, which guarantee nothing (Jepsen, etcd 3.4.3,
//! 2020). Leases tell who is alive, and watches when to look.
//!
//! ```text
//!   PREFIX/record                 {"nonce": …, "record": …}
//!   PREFIX/sessions/NODE/NUMBER   a process, for as long as its lease lasts
//! ```
//!
//! *Answers that are lost.* A transaction whose answer does not come may have been made, or may be
//! made later. It is sent again, to another member if there is one: of several copies at most one
//! can succeed, as each compares the revision that the first would change. A copy that fails reads
//! the record's nonce, and so tells whether an earlier copy had succeeded.
//!
//! *Members that fail.* Each attempt has a time limit, and the next goes to the next member. A
//! member that is stopped takes connections and answers nothing; one without a quorum reports that
//! after a while. Both look alike from here.
//!
//! *Limits.* No TLS and no passwords: an etcd that demands them cannot be used. Operations run on
//! the ring of the thread that asks; they are small, and made a few times a second.

mod http;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::future::{Either, select};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weft_nbd::client::resolve_host;
use weft_rt::ring::Ring;
use weft_rt::{MILLISECOND, Nanos, Rng, Rt, SECOND};

use super::{Coordinator, CoordinatorError, CoordinatorFuture, Swap, Version, View};
use crate::{ClusterName, Record, Session};
use http::HttpError;

/// The port of etcd's clients.
const DEFAULT_PORT: u16 = 2379;
/// How long a watch waits before the caller looks again.
const WATCH: Nanos = 20 * SECOND;
/// Pause after every member was asked in vain.
const PAUSE: Nanos = 50 * MILLISECOND;

/// A member of an etcd cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
}

/// Where a cluster's etcd is: `etcd://HOST[:PORT][,HOST[:PORT]…]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdUri {
    /// Its members, in the order in which they are asked.
    pub endpoints: Vec<Endpoint>,
}

/// Why a text is no [`EtcdUri`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the address of an etcd: write etcd://HOST[:PORT],HOST[:PORT]")]
pub struct EtcdUriError(String);

impl FromStr for EtcdUri {
    type Err = EtcdUriError;

    fn from_str(text: &str) -> Result<Self, EtcdUriError> {
        let wrong = || EtcdUriError(text.to_owned());
        let rest = text.strip_prefix("etcd://").ok_or_else(wrong)?;
        let endpoint = |text: &str| {
            let (host, port) = match text.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                    (host, port.parse().ok().filter(|port| *port != 0)?)
                }
                _ => (text, DEFAULT_PORT),
            };
            let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let host = bare.unwrap_or(host);
            let usual = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
            let is_host = !host.is_empty() && host.chars().all(usual);
            (is_host && (bare.is_some() || !host.contains(':')))
                .then(|| Endpoint { host: host.to_owned(), port })
        };
        let endpoints: Option<Vec<_>> =
            rest.trim_end_matches('/').split(',').map(endpoint).collect();
        Ok(Self { endpoints: endpoints.ok_or_else(wrong)? })
    }
}

/// How an etcd is used.
#[derive(Debug, Clone)]
pub struct EtcdConfig {
    /// Its members.
    pub uri: EtcdUri,
    /// The cluster, whose keys start with `weft/CLUSTER/`.
    pub cluster: ClusterName,
    /// How long leases last; etcd makes less than about two seconds longer.
    pub lease: Nanos,
    /// How long an operation may take.
    pub patience: Nanos,
    /// How long one member may take to answer.
    pub attempt: Nanos,
    /// A random number.
    pub seed: u64,
}

/// What is stored under the record's key.
#[derive(Serialize, Deserialize)]
struct Stored {
    nonce: u64,
    record: Record,
}

/// The record in an etcd.
pub struct EtcdCoordinator {
    rt: Rt,
    ring: Ring,
    config: EtcdConfig,
    /// Addresses of members, once resolved.
    addresses: RefCell<BTreeMap<usize, SocketAddr>>,
    /// The member that answered last.
    preferred: Cell<usize>,
    rng: RefCell<Rng>,
    leases: RefCell<BTreeMap<Session, String>>,
}

impl std::fmt::Debug for EtcdCoordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdCoordinator").field("config", &self.config).finish_non_exhaustive()
    }
}

/// How an attempt at one member failed.
enum Attempt {
    /// It has not got the request.
    NotSent(String),
    /// It may have carried it out.
    Unknown(String),
    /// It refuses such requests.
    Refused(String),
}

fn base64(text: &str) -> String {
    BASE64.encode(text)
}

/// The text of a field that etcd gives in base64.
fn text_of(value: &Value) -> Option<String> {
    String::from_utf8(BASE64.decode(value.as_str()?).ok()?).ok()
}

/// A 64-bit number, which the gateway writes as a string, and leaves out if it is 0.
fn number_of(value: &Value) -> Option<u64> {
    match value {
        Value::Null => Some(0),
        Value::String(digits) => digits.parse().ok(),
        other => other.as_u64(),
    }
}

impl EtcdCoordinator {
    /// The record of a cluster in an etcd, which need not be there yet.
    pub fn new(rt: &Rt, ring: &Ring, config: EtcdConfig) -> Self {
        Self {
            rt: rt.clone(),
            ring: ring.clone(),
            addresses: RefCell::default(),
            preferred: Cell::new(0),
            rng: RefCell::new(Rng::new(config.seed)),
            leases: RefCell::default(),
            config,
        }
    }

    fn record_key(&self) -> String {
        format!("weft/{}/record", self.config.cluster)
    }

    fn sessions_key(&self) -> String {
        format!("weft/{}/sessions/", self.config.cluster)
    }

    fn session_key(&self, session: &Session) -> String {
        format!("{}{}/{}", self.sessions_key(), session.node, session.number)
    }

    async fn address(&self, member: usize) -> Result<SocketAddr, String> {
        if let Some(address) = self.addresses.borrow().get(&member) {
            return Ok(*address);
        }
        let Endpoint { host, port } = &self.config.uri.endpoints[member];
        let deadline = self.rt.now().saturating_add(self.config.attempt);
        let found = resolve_host(&self.rt, host, *port, deadline).await;
        let found = found.map_err(|error| error.to_string())?;
        let address = *found.first().ok_or("it has no address")?;
        self.addresses.borrow_mut().insert(member, address);
        Ok(address)
    }

    /// Connects to a member and sends a request.
    async fn send(&self, member: usize, path: &str, body: &str) -> Result<http::Response, Attempt> {
        let Endpoint { host, port } = &self.config.uri.endpoints[member];
        let name =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let tell = |error: &dyn std::fmt::Display| format!("{name}: {error}");
        let address = self.address(member).await.map_err(|e| Attempt::NotSent(tell(&e)))?;
        let response = http::post(&self.ring, address, &name, path, body).await;
        let response = response.map_err(|error| match &error {
            HttpError::Connect(_) => {
                // Its name may stand for another machine by now.
                self.addresses.borrow_mut().remove(&member);
                Attempt::NotSent(tell(&error))
            }
            _ => Attempt::Unknown(tell(&error)),
        })?;
        match response.status {
            200 => Ok(response),
            status => {
                let body = response.whole().await.unwrap_or_default();
                let said: Value = serde_json::from_slice(&body).unwrap_or_default();
                let said =
                    said["message"].as_str().or_else(|| said["error"].as_str()).unwrap_or("");
                let text = format!("{name}: HTTP status {status} {said}");
                Err(if status >= 500 { Attempt::Unknown(text) } else { Attempt::Refused(text) })
            }
        }
    }

    /// One request to one member.
    async fn ask(&self, member: usize, path: &str, body: &str) -> Result<Value, Attempt> {
        let exchange = async {
            let response = self.send(member, path, body).await?;
            let body = response.whole().await.map_err(|e| Attempt::Unknown(e.to_string()))?;
            // Some answers are streams of one message.
            let mut messages = serde_json::Deserializer::from_slice(&body).into_iter::<Value>();
            match messages.next() {
                Some(Ok(answer)) => Ok(answer),
                _ => Err(Attempt::Refused("the answer is not JSON: is this an etcd?".to_owned())),
            }
        };
        let limit = self.rt.sleep(self.config.attempt);
        match select(Box::pin(exchange), Box::pin(limit)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(Attempt::Unknown("no answer in time".to_owned())),
        }
    }

    /// A request to one member after the other until one answers. Says also whether an attempt
    /// before may have been carried out. The request must be one that may be carried out twice.
    async fn request(&self, path: &str, body: &Value) -> Result<(Value, bool), CoordinatorError> {
        let body = body.to_string();
        let deadline = self.rt.now().saturating_add(self.config.patience);
        let members = self.config.uri.endpoints.len();
        let (mut is_unknown, mut failure) = (false, String::new());
        for attempt in 1.. {
            let member = self.preferred.get() % members;
            match self.ask(member, path, &body).await {
                Ok(answer) => return Ok((answer, is_unknown)),
                Err(Attempt::Refused(why)) if is_unknown => {
                    return Err(CoordinatorError::Unknown(why));
                }
                Err(Attempt::Refused(why)) => return Err(CoordinatorError::Refused(why)),
                Err(Attempt::NotSent(why)) => failure = why,
                Err(Attempt::Unknown(why)) => {
                    is_unknown = true;
                    failure = why;
                }
            }
            self.preferred.set((member + 1) % members);
            if self.rt.now() >= deadline {
                break;
            }
            if attempt % members == 0 {
                self.rt.sleep(PAUSE).await;
            }
        }
        Err(match is_unknown {
            true => CoordinatorError::Unknown(failure),
            false => CoordinatorError::Unreachable(failure),
        })
    }

    /// As [`Self::request`], for what changes nothing.
    async fn query(&self, path: &str, body: &Value) -> Result<Value, CoordinatorError> {
        match self.request(path, body).await {
            Ok((answer, _)) => Ok(answer),
            Err(CoordinatorError::Unknown(why)) => Err(CoordinatorError::Unreachable(why)),
            Err(error) => Err(error),
        }
    }

    /// The record's key as a range, or what a transaction gave of it.
    fn stored(&self, range: &Value) -> Result<(Version, Option<Stored>), CoordinatorError> {
        let key = &range["kvs"][0];
        if key.is_null() {
            return Ok((Version(0), None));
        }
        let version = number_of(&key["mod_revision"]).filter(|version| *version > 0);
        let stored = text_of(&key["value"]).and_then(|text| serde_json::from_str(&text).ok());
        let wrong = || {
            let key = self.record_key();
            CoordinatorError::Refused(format!("the key {key} holds something else than a record"))
        };
        Ok((Version(version.ok_or_else(wrong)?), Some(stored.ok_or_else(wrong)?)))
    }

    async fn view(&self) -> Result<View, CoordinatorError> {
        let sessions = self.sessions_key();
        // '0' comes after '/'.
        let end = format!("{}0", sessions.trim_end_matches('/'));
        let ranges = json!({ "success": [
            { "request_range": { "key": base64(&self.record_key()) } },
            { "request_range": { "key": base64(&sessions), "range_end": base64(&end),
                                 "keys_only": true } },
        ] });
        let answer = self.query("/v3/kv/txn", &ranges).await?;
        let ranges = |number: usize| &answer["responses"][number]["response_range"];
        let (version, stored) = self.stored(ranges(0))?;
        let sessions_found = ranges(1)["kvs"].as_array().cloned().unwrap_or_default();
        let session = |key: &Value| {
            let key = text_of(&key["key"])?;
            let (node, number) = key.strip_prefix(&sessions)?.split_once('/')?;
            Some(Session { node: node.parse().ok()?, number: number.parse().ok()? })
        };
        let alive: BTreeSet<Session> = sessions_found.iter().filter_map(session).collect();
        Ok(View { version, record: stored.map(|stored| stored.record), alive })
    }

    async fn swap(&self, expected: Version, record: Record) -> Result<Swap, CoordinatorError> {
        let nonce = self.rng.borrow_mut().next_u64();
        let stored = Stored { nonce, record };
        let stored = serde_json::to_string(&stored).expect("a record can be written as JSON");
        let key = base64(&self.record_key());
        let transaction = json!({
            "compare": [{ "target": "MOD", "result": "EQUAL", "key": key,
                          "mod_revision": expected.0.to_string() }],
            "success": [{ "request_put": { "key": key, "value": base64(&stored) } }],
            "failure": [{ "request_range": { "key": key } }],
        });
        let (answer, is_unknown) = self.request("/v3/kv/txn", &transaction).await?;
        if answer["succeeded"].as_bool() == Some(true) {
            let version = number_of(&answer["header"]["revision"]).unwrap_or(0);
            return Ok(Swap::Done(Version(version)));
        }
        let (version, stored) = self.stored(&answer["responses"][0]["response_range"])?;
        match stored {
            Some(stored) if is_unknown && stored.nonce == nonce => Ok(Swap::Done(version)),
            _ => Ok(Swap::Conflict),
        }
    }

    async fn renew(&self, session: &Session) -> Result<(), CoordinatorError> {
        let lease = self.leases.borrow().get(session).cloned();
        if let Some(lease) = lease {
            let answer = self.query("/v3/lease/keepalive", &json!({ "ID": lease })).await?;
            if number_of(&answer["result"]["TTL"]).is_some_and(|seconds| seconds > 0) {
                return Ok(());
            }
            // It has ended: other nodes may know by now, or not.
            self.leases.borrow_mut().remove(session);
        }
        let seconds = self.config.lease.div_ceil(SECOND).max(1);
        let grant = json!({ "TTL": seconds.to_string() });
        // A lease whose grant was not answered expires.
        let answer = self.query("/v3/lease/grant", &grant).await?;
        let id = answer["ID"].as_str().map(str::to_owned);
        let id = id.ok_or_else(|| CoordinatorError::Refused("it grants no lease".to_owned()))?;
        let put = json!({ "key": base64(&self.session_key(session)), "value": "", "lease": id });
        self.query("/v3/kv/put", &put).await?;
        self.leases.borrow_mut().insert(session.clone(), id);
        Ok(())
    }

    async fn end(&self, session: &Session) -> Result<(), CoordinatorError> {
        let lease = self.leases.borrow_mut().remove(session);
        let Some(lease) = lease else { return Ok(()) };
        match self.query("/v3/lease/revoke", &json!({ "ID": lease })).await {
            // It has ended already.
            Err(CoordinatorError::Refused(_)) => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Waits for a message of a watch, which starts before `seen` is compared.
    async fn watch(&self, seen: &View) -> Result<(), CoordinatorError> {
        let prefix = format!("weft/{}/", self.config.cluster);
        let end = format!("weft/{}0", self.config.cluster);
        let create =
            json!({ "create_request": { "key": base64(&prefix), "range_end": base64(&end) } });
        let member = self.preferred.get() % self.config.uri.endpoints.len();
        let events = async {
            let mut response = self.send(member, "/v3/watch", &create.to_string()).await.ok()?;
            let mut text = Vec::new();
            let mut is_created = false;
            loop {
                text.extend(response.next().await.ok()??);
                let mut messages = serde_json::Deserializer::from_slice(&text).into_iter::<Value>();
                let mut taken = 0;
                while let Some(Ok(message)) = messages.next() {
                    taken = messages.byte_offset();
                    if !message["result"]["events"].is_null() || !message["error"].is_null() {
                        return Some(());
                    }
                    if !std::mem::replace(&mut is_created, true) {
                        let now = self.view().await.ok()?;
                        if now.version != seen.version || now.alive != seen.alive {
                            return Some(());
                        }
                    }
                }
                text.drain(..taken);
            }
        };
        let limit = Box::pin(self.rt.sleep(WATCH));
        if let Either::Left((None, _)) = select(Box::pin(events), limit).await {
            // The watch broke: the caller looks, though not at once for ever.
            self.rt.sleep(4 * PAUSE).await;
        }
        Ok(())
    }
}

impl Coordinator for EtcdCoordinator {
    fn read(&self) -> CoordinatorFuture<'_, View> {
        Box::pin(self.view())
    }

    fn compare_and_set(&self, expected: Version, record: Record) -> CoordinatorFuture<'_, Swap> {
        Box::pin(self.swap(expected, record))
    }

    fn keep_alive<'a>(&'a self, session: &'a Session) -> CoordinatorFuture<'a, ()> {
        Box::pin(self.renew(session))
    }

    fn end_lease<'a>(&'a self, session: &'a Session) -> CoordinatorFuture<'a, ()> {
        Box::pin(self.end(session))
    }

    fn changed<'a>(&'a self, seen: &'a View) -> CoordinatorFuture<'a, ()> {
        Box::pin(self.watch(seen))
    }
}
