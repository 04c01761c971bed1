//! A file system on several machines, as processes on one: etcd, disk servers, keepers and nodes.
//! Keepers are killed and evicted, and what was synced is there afterwards; what is wrong is
//! refused with a word that says what to do.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weft_testkit::{have, wait_until};

use crate::common::cluster::{Cluster, NEEDS, NEEDS_ON_DISKS};

const DISK: u64 = 96 << 20;

/// How long a request may take, with a takeover in between.
const PATIENCE: Duration = Duration::from_secs(60);

/// What uses a mount, which must not hang for ever.
#[track_caller]
pub fn soon<T: Send + 'static>(what: &str, request: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    std::thread::spawn(move || drop(sender.send(request())));
    receiver.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Writes a file durably.
#[track_caller]
pub fn put(path: &Path, byte: u8, len: usize) {
    let (what, path) = (path.display().to_string(), path.to_owned());
    let written = soon(&what, move || {
        let mut file = File::create(path)?;
        file.write_all(&vec![byte; len])?;
        file.sync_all()
    });
    written.unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[track_caller]
pub fn has(path: &Path, byte: u8, len: usize) {
    let (what, path) = (path.display().to_string(), path.to_owned());
    let found = soon(&what, move || fs::read(path));
    let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(found.len() == len && found.iter().all(|other| *other == byte), "{what}");
}

/// What a command printed is what the document says.
#[track_caller]
fn is_documented(table: &str, printed: &serde_json::Value) {
    let document = include_str!("../../../docs/json.md");
    crate::schema::Schema::read(document).check(table, printed);
}

/// The disks, as the status of a mount shows them.
#[track_caller]
pub fn disks_of(cluster: &Cluster, at: &Path) -> Vec<serde_json::Value> {
    let said = cluster.bench.weft(&["fs", "status", &crate::common::text(at), "--json"]);
    let status: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    is_documented("weft fs status", &status);
    status["disks"].as_array().expect("disks").clone()
}

#[test]
fn a_keeper_that_is_killed_or_evicted_is_followed_by_another_one() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-keepers", 3, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &[]);
    one.mounts();
    put(&one.at.join("first"), 1, 300_000);
    let mut two = cluster.keeper("two", &[]);
    two.says("stands by");
    let status = cluster.status();
    is_documented("weft fs status --cluster", &status);
    assert_eq!(status["keeper"]["node"], "one", "{status}");
    assert_eq!(status["attention"], serde_json::json!([]), "{status}");

    one.kill9();
    two.mounts();
    has(&two.at.join("first"), 1, 300_000);
    put(&two.at.join("second"), 2, 500_000);
    let mut one = cluster.keeper("one", &[]);
    one.says("stands by");

    // It is told by the record, or by a disk; and takes no disk for lost.
    let uri = cluster.uri();
    let evicted = cluster.bench.weft(&["fs", "evict", "home", "two", "--cluster", &uri, "--json"]);
    is_documented("weft fs evict", &serde_json::from_str(&evicted).expect("JSON"));
    let said = two.fails();
    assert!(said.contains("was fenced") && said.contains("start it again"), "{said}");
    one.mounts();
    has(&one.at.join("first"), 1, 300_000);
    has(&one.at.join("second"), 2, 500_000);
    let disks = disks_of(&cluster, &one.at);
    assert!(disks.iter().all(|disk| disk["lost"] == false), "{disks:?}");
    cluster.bench.weft(&["fs", "fsck", "--data", &crate::common::text(&one.at)]);

    // A coordinator that is away changes nothing for the keeper.
    cluster.kill_etcd();
    put(&one.at.join("third"), 3, 100_000);
    cluster.start_etcd();
    wait_until("the keeper's sign of life", || {
        let members = cluster.status()["members"].clone();
        members.as_array().is_some_and(|all| all.len() == 1 && all[0]["alive"] == true)
    });
    has(&one.at.join("third"), 3, 100_000);

    // In order, another one follows at once.
    let mut two = cluster.keeper("two", &[]);
    two.says("stands by");
    one.ends();
    two.mounts();
    has(&two.at.join("third"), 3, 100_000);
    two.ends();
    let status = cluster.status();
    assert_eq!(
        (&status["keeper"], &status["members"]),
        (&serde_json::Value::Null, &serde_json::json!([]))
    );
}

/// A file with a shared key.
fn key(cluster: &Cluster, name: &str, letter: &str) -> String {
    let path = cluster.bench.path(name);
    fs::write(&path, letter.repeat(40)).expect("written");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("changed");
    crate::common::text(&path)
}

#[test]
fn nodes_see_each_others_files_and_outlive_the_keeper_and_one_of_them() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-nodes", 3, DISK);
    let key_file = key(&cluster, "key", "k");
    let with = ["--key", &key_file];
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &with);
    one.mounts();
    put(&one.at.join("keepers"), 1, 200_000);
    let mut alpha = cluster.node("alpha", &with);
    let mut beta = cluster.node("beta", &with);
    alpha.mounts();
    beta.mounts();
    has(&alpha.at.join("keepers"), 1, 200_000);
    put(&alpha.at.join("alphas"), 2, 300_000);
    has(&beta.at.join("alphas"), 2, 300_000);
    put(&beta.at.join("betas"), 3, 400_000);
    has(&alpha.at.join("betas"), 3, 400_000);
    has(&one.at.join("betas"), 3, 400_000);
    // What another node has read is written anew.
    put(&beta.at.join("alphas"), 4, 100_000);
    has(&alpha.at.join("alphas"), 4, 100_000);

    let wrong = key(&cluster, "other-key", "x");
    let said = cluster.node("gamma", &["--key", &wrong]).fails();
    assert!(said.contains("another shared key") && said.contains("copy the key file"), "{said}");
    let said = cluster.node("gamma", &[]).fails();
    assert!(said.contains("demands a shared key") && said.contains("--key FILE"), "{said}");

    // The keeper dies, and programs of nodes see a pause.
    let mut two = cluster.keeper("two", &with);
    two.says("stands by");
    one.kill9();
    put(&alpha.at.join("after"), 5, 300_000);
    has(&beta.at.join("after"), 5, 300_000);
    has(&beta.at.join("alphas"), 4, 100_000);
    two.mounts();
    has(&two.at.join("after"), 5, 300_000);

    // A node dies. What it had synced is there, and what it held others may have.
    put(&beta.at.join("last"), 6, 300_000);
    put(&beta.at.join("alphas"), 7, 50_000);
    beta.kill9();
    has(&alpha.at.join("last"), 6, 300_000);
    has(&alpha.at.join("alphas"), 7, 50_000);
    put(&alpha.at.join("last"), 8, 20_000);
    let mut beta = cluster.node("beta", &with);
    beta.mounts();
    has(&beta.at.join("last"), 8, 20_000);

    // One that is evicted says so, and may come again.
    let uri = cluster.uri();
    cluster.bench.weft(&["fs", "evict", "home", "beta", "--cluster", &uri]);
    let said = beta.fails();
    assert!(said.contains("this node was fenced") && said.contains("mount it again"), "{said}");
    let mut beta = cluster.node("beta", &with);
    beta.mounts();
    has(&beta.at.join("keepers"), 1, 200_000);
    beta.ends();
    alpha.ends();
    let at = crate::common::text(&two.at);
    cluster.bench.weft(&["fs", "fsck", "--data", &at]);
    two.ends();
}

/// The path of a node to a disk's server, which can fail.
struct Cable(Arc<Mutex<Option<Vec<UnixStream>>>>);

impl Cable {
    /// A socket at `near` that leads to the one at `far`.
    fn lay(near: &Path, far: &Path) -> Self {
        let listener = UnixListener::bind(near).expect("a socket");
        let ends = Arc::new(Mutex::new(Some(Vec::new())));
        let (far, held) = (far.to_owned(), ends.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(near), Ok(far)) = (stream, UnixStream::connect(&far)) else { return };
                let pair = [near, far].map(|end| end.try_clone().expect("an end"));
                let Some(ends) = &mut *held.lock().expect("sound") else { continue };
                let copies = pair.iter().map(|end| end.try_clone().expect("an end"));
                ends.extend(copies);
                let [one, two] = pair;
                for (mut from, mut to) in [
                    (one.try_clone().expect("an end"), two.try_clone().expect("an end")),
                    (two, one),
                ] {
                    std::thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self(ends)
    }

    fn breaks(&self) {
        let ends = self.0.lock().expect("sound").take();
        for end in ends.into_iter().flatten() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// The disks that a mount reaches through the keeper; none is lost.
#[track_caller]
fn relayed(cluster: &Cluster, at: &Path) -> Vec<u64> {
    let disks = disks_of(cluster, at);
    assert!(disks.iter().all(|disk| disk["lost"] == false), "{disks:?}");
    let relayed = disks.iter().filter(|disk| {
        disk["through_keeper"] == true
            || disk["relayed_for"].as_array().is_some_and(|of| !of.is_empty())
    });
    relayed.map(|disk| disk["number"].as_u64().expect("a number")).collect()
}

#[test]
fn a_node_whose_cables_break_goes_on_through_the_keeper() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-paths", 3, DISK);
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &[]);
    one.mounts();
    let straight = cluster.disks.clone();
    let near = |n: usize| cluster.bench.path(&format!("near{n}.sock"));
    let far = |n: usize| cluster.bench.path(&format!("d{n}.sock"));
    let cables: Vec<Cable> = (0..3).map(|n| Cable::lay(&near(n), &far(n))).collect();
    cluster.disks = (0..3)
        .map(|n| format!("nbd+unix:///d{n}?socket={}", crate::common::text(&near(n))))
        .collect();
    let mut alpha = cluster.node("alpha", &[]);
    alpha.mounts();
    put(&alpha.at.join("before"), 1, 300_000);
    assert!(relayed(&cluster, &alpha.at).is_empty());
    cables[1].breaks();
    put(&alpha.at.join("one"), 2, 3_000_000);
    assert_eq!(relayed(&cluster, &alpha.at), [1]);
    assert_eq!(relayed(&cluster, &one.at), [1]);
    has(&one.at.join("one"), 2, 3_000_000);
    cables.iter().for_each(Cable::breaks);
    put(&alpha.at.join("all"), 3, 3_000_000);
    put(&alpha.at.join("before"), 4, 200_000);
    assert_eq!(relayed(&cluster, &alpha.at), [0, 1, 2]);
    has(&one.at.join("all"), 3, 3_000_000);
    // Its log is recovered, and it mounts without these cables.
    put(&alpha.at.join("last"), 5, 300_000);
    alpha.kill9();
    has(&one.at.join("last"), 5, 300_000);
    has(&one.at.join("before"), 4, 200_000);
    put(&one.at.join("before"), 6, 100_000);
    let broken = std::mem::replace(&mut cluster.disks, straight.clone());
    let mut alpha = cluster.node("alpha", &[]);
    alpha.mounts();
    assert!(relayed(&cluster, &alpha.at).is_empty());
    has(&alpha.at.join("before"), 6, 100_000);
    alpha.ends();
    // One that reaches a single disk at the mount.
    cluster.disks = [&straight[..1], &broken[1..]].concat();
    let mut alpha = cluster.node("alpha", &[]);
    alpha.mounts();
    assert_eq!(relayed(&cluster, &alpha.at), [1, 2]);
    put(&alpha.at.join("few"), 7, 300_000);
    has(&one.at.join("few"), 7, 300_000);
    // Any machine can see that.
    cluster.disks = straight.clone();
    wait_until("the record to say so", || {
        let status = cluster.status();
        is_documented("weft fs status --cluster", &status);
        let disks = status["disks"].as_array().expect("disks").clone();
        let of: Vec<_> = disks.iter().map(|disk| disk["relayed_for"].clone()).collect();
        let attention = status["attention"].to_string();
        of == [serde_json::json!([]), serde_json::json!(["alpha"]), serde_json::json!(["alpha"])]
            && attention.contains("alpha uses disk d1 through the keeper")
    });
    alpha.ends();
    // One that was not given all disks opens the rest itself.
    cluster.disks.truncate(1);
    let mut alpha = cluster.node("alpha", &[]);
    alpha.mounts();
    assert!(relayed(&cluster, &alpha.at).is_empty(), "{}", alpha.said());
    has(&alpha.at.join("few"), 7, 300_000);
    alpha.ends();
    assert!(relayed(&cluster, &one.at).is_empty());
    let at = crate::common::text(&one.at);
    cluster.bench.weft(&["fs", "fsck", "--data", &at]);
    one.ends();
}

#[test]
fn what_is_wrong_is_refused_with_a_word_that_says_what_to_do() {
    if !have(&NEEDS) {
        return;
    }
    let mut cluster = Cluster::new("cluster-refusals", 2, DISK);
    let uri = cluster.uri();
    let disks = cluster.disks.clone();
    let refused = |cluster: &Cluster, args: &[&str], code: i32, wanted: &str| {
        let said = cluster.bench.refused(args, code);
        assert!(said.contains(wanted), "weft {args:?} should say `{wanted}`, but says\n{said}");
    };
    let key = key(&cluster, "key", "k");
    fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).expect("changed");
    let at = ["fs", "keeper", "home", "--cluster", &uri, "--node", "a"];
    let with = |rest: &[&str]| -> Vec<String> {
        [&at[..], rest].concat().into_iter().map(str::to_owned).collect()
    };
    let (d0, d1) = (disks[0].as_str(), disks[1].as_str());
    for (rest, code, wanted) in [
        (vec!["/dev/null"], 2, "can be used by one node only"),
        (vec![d0, d0], 2, "two disks are named d0"),
        (vec![d0, d1, "--listen", "0.0.0.0:0"], 1, "no key was given"),
        (vec![d0, d1, "--listen", "nowhere"], 2, "HOST:PORT"),
        (vec![d0, d1, "--key", &key], 1, "chmod 600"),
        (vec![d0, d1, "--key", "none"], 1, "/dev/urandom"),
    ] {
        let args = with(&rest);
        refused(&cluster, &args.iter().map(String::as_str).collect::<Vec<_>>(), code, wanted);
    }
    let bad = |url: &str| ["fs", "status", "home", "--cluster", url].map(str::to_owned);
    for (url, code, wanted) in [
        ("etcd://127.0.0.1:1", 1, "check that etcd runs"),
        ("disks://", 2, "or `disks`: the file system's own disks"),
        ("disks", 2, "name all disks of the file system"),
        ("http://x", 2, "write etcd://"),
        (&uri, 1, "there is no cluster home"),
    ] {
        let args = bad(url);
        refused(&cluster, &args.each_ref().map(String::as_str), code, wanted);
    }
    refused(&cluster, &["fs", "keeper", "a b", d0, "--cluster", &uri], 2, "is not a name");
    refused(&cluster, &["fs", "keeper", "home", d0], 2, "--cluster");

    // Nothing is there yet; then it is; then it is in use.
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let said = cluster
        .bench
        .refused(&["fs", "create", "home", "--cluster", &uri, "--node", "admin", d0, d1], 1);
    assert!(said.contains("is a disk of the file system 'home'"), "{said}");
    let mut one = cluster.keeper("one", &[]);
    one.mounts();
    let said = cluster.bench.refused(
        &["fs", "create", "home", "--cluster", &uri, "--node", "admin", "--force", d0, d1],
        1,
    );
    assert!(said.contains("the cluster is in use: one is a member"), "{said}");
    // A name that is taken, and disks of another cluster.
    let same = cluster.start("one", &["keeper", "home"], &[]).fails();
    assert!(same.contains("another process uses the name one"), "{same}");
    let other = cluster.start("two", &["keeper", "other"], &[]).fails();
    assert!(other.contains("belongs to cluster home, not to other"), "{other}");
    refused(&cluster, &["fs", "evict", "home", "nobody", "--cluster", &uri], 1, "its members: one");
    put(&one.at.join("file"), 7, 10_000);
    one.ends();
}

/// Two machines and their disks, and nothing else: the disks tell who is keeper.
#[test]
fn disks_take_the_place_of_etcd_and_one_of_three_may_be_away() {
    if !have(&NEEDS_ON_DISKS) {
        return;
    }
    let mut cluster = Cluster::on_disks("cluster-on-disks", 3, DISK);
    let early = cluster.start("early", &["keeper", "home"], &[]).fails();
    assert!(early.contains("`weft fs create --cluster disks` sets them up"), "{early}");
    cluster.weft(&["create", "home"], &["--node", "admin"]);
    let mut one = cluster.keeper("one", &["--degraded"]);
    let mut two = cluster.keeper("two", &["--degraded"]);
    one.says("stands by");
    two.says("stands by");
    // Either may have been the first.
    wait_until("a keeper", || [&one, &two].iter().any(|of| of.said().contains("is mounted on")));
    if two.said().contains("is mounted on") {
        std::mem::swap(&mut one, &mut two);
    }
    put(&one.at.join("first"), 1, 300_000);
    let mut alpha = cluster.node("alpha", &[]);
    alpha.mounts();
    has(&alpha.at.join("first"), 1, 300_000);
    put(&alpha.at.join("alphas"), 2, 400_000);
    let status = cluster.status();
    is_documented("weft fs status --cluster", &status);
    assert_eq!(status["attention"], serde_json::json!([]), "{status}");
    assert_eq!(status["members"].as_array().map(Vec::len), Some(3), "{status}");

    // A name that is taken, and other disks than those of the file system.
    let same = cluster.start("alpha", &["keeper", "home"], &[]).fails();
    assert!(same.contains("another process uses the name alpha"), "{same}");

    // The keeper dies, and a disk with it.
    cluster.kill_server(2);
    one.kill9();
    two.mounts();
    has(&two.at.join("first"), 1, 300_000);
    put(&alpha.at.join("after"), 3, 200_000);
    has(&two.at.join("after"), 3, 200_000);
    has(&two.at.join("alphas"), 2, 400_000);
    let status = cluster.status();
    assert_eq!(status["lost_disks"], serde_json::json!(["d2"]), "{status}");

    // A node that is evicted says so.
    let evicted = cluster.weft(&["evict", "home", "alpha"], &["--json"]);
    is_documented("weft fs evict", &serde_json::from_str(&evicted).expect("JSON"));
    let said = alpha.fails();
    assert!(said.contains("this node was fenced") && said.contains("mount it again"), "{said}");

    // A new disk takes the vote of the one that is gone: then another one may go.
    let new = cluster.serve_new("d3", DISK);
    let at = crate::common::text(&two.at);
    cluster.bench.weft(&["fs", "add", &at, &new]);
    two.says("d3 votes in the place of a disk that is gone");
    has(&two.at.join("after"), 3, 200_000);
    two.ends();
    cluster.kill_server(1);
    let status = cluster.status();
    assert_eq!(status["members"], serde_json::json!([]), "{status}");
}
