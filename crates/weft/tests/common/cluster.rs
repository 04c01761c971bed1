//! A cluster on loopback: an etcd, servers of disks, and processes of the program under test.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use weft_testkit::{Need, Process, command, wait_until};

use super::Bench;

pub const NEEDS: [Need; 3] = [Need::Root, Need::Fuse, Need::Tool("etcd")];

/// What a cluster without an etcd needs.
pub const NEEDS_ON_DISKS: [Need; 2] = [Need::Root, Need::Fuse];

/// An etcd of one member, or none, served disks, and how to name them.
pub struct Cluster {
    // First: they end before their folder goes.
    etcd: Option<Process>,
    has_etcd: bool,
    servers: Vec<Process>,
    pub bench: Bench,
    ports: [u16; 2],
    /// `nbd+unix:///d0?socket=…` and so on.
    pub disks: Vec<String>,
    mounts: Vec<PathBuf>,
}

/// A process of the program under test, with what it prints.
pub struct Member {
    process: Process,
    out: PathBuf,
    /// Where it mounts, if it does.
    pub at: PathBuf,
}

fn free_ports() -> [u16; 2] {
    let held = [0; 2].map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"));
    held.map(|listener| listener.local_addr().expect("its address").port())
}

fn is_healthy(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return false };
    let asked = stream.write_all(b"GET /health HTTP/1.0\r\n\r\n");
    let mut answer = String::new();
    asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.contains("true")
}

impl Cluster {
    /// Disks of this size, each with a server of its own.
    pub fn new(name: &str, disks: usize, bytes: u64) -> Self {
        let mut cluster = Self::on_disks(name, disks, bytes);
        cluster.start_etcd();
        cluster.has_etcd = true;
        cluster
    }

    /// The same without an etcd: the disks keep the record.
    pub fn on_disks(name: &str, disks: usize, bytes: u64) -> Self {
        let bench = Bench::new(name);
        let mut cluster = Self {
            etcd: None,
            has_etcd: false,
            servers: Vec::new(),
            bench,
            ports: free_ports(),
            disks: Vec::new(),
            mounts: Vec::new(),
        };
        (0..disks).for_each(|number| drop(cluster.serve_new(&format!("d{number}"), bytes)));
        cluster
    }

    /// Serves one more disk, and tells how to name it.
    pub fn serve_new(&mut self, disk: &str, bytes: u64) -> String {
        let _ = self.bench.scratch.file(disk, bytes);
        self.bench.weft(&["disks", "prepare", disk]);
        let server = self.serve(disk);
        self.servers.push(server);
        let socket = super::text(&self.bench.path(&format!("{disk}.sock")));
        self.disks.push(format!("nbd+unix:///{disk}?socket={socket}"));
        self.disks[self.disks.len() - 1].clone()
    }

    pub fn start_etcd(&mut self) {
        let [client, peer] = self.ports.map(|port| format!("http://127.0.0.1:{port}"));
        let mut etcd = command("etcd");
        etcd.args(["--name", "m0", "--data-dir", "etcd"]);
        etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        etcd.args(["--initial-cluster", &format!("m0={peer}"), "--unsafe-no-fsync"]);
        let log = fs::File::create(self.bench.path("etcd.log")).expect("a log");
        etcd.current_dir(self.bench.scratch.path());
        etcd.stdout(log.try_clone().expect("a file")).stderr(log);
        self.etcd = Some(Process::spawn(&mut etcd));
        wait_until("etcd to elect a leader", || is_healthy(self.ports[0]));
    }

    /// The processes of the servers of disks.
    pub fn server_ids(&self) -> Vec<u32> {
        self.servers.iter().map(Process::id).collect()
    }

    pub fn kill_etcd(&mut self) {
        self.etcd.take().expect("it runs").kill9();
    }

    fn serve(&self, disk: &str) -> Process {
        let out = self.bench.path(&format!("{disk}.out"));
        let mut serve =
            self.bench.command(&["disks", "serve", "--socket", &format!("{disk}.sock"), disk]);
        let file = fs::File::create(&out).expect("a file");
        serve.stdout(file.try_clone().expect("a file")).stderr(file);
        let mut process = Process::spawn(&mut serve);
        wait_until("the disk to be served", || {
            assert!(process.is_running(), "the server of {disk} ended");
            has_said(&out, "serving")
        });
        process
    }

    /// Kills the server of a disk.
    pub fn kill_server(&mut self, number: usize) {
        // The first one is killed before the second one exists.
        let ended =
            std::mem::replace(&mut self.servers[number], Process::spawn(&mut command("true")));
        ended.kill9();
    }

    /// Starts it again.
    pub fn start_server(&mut self, number: usize) {
        self.servers[number] = self.serve(&format!("d{number}"));
    }

    /// Lets the servers of disks answer nothing.
    pub fn pause_servers(&self) {
        self.servers.iter().for_each(|server| server.signal(rustix::process::Signal::STOP));
    }

    /// Lets them go on.
    pub fn resume_servers(&self) {
        self.servers.iter().for_each(|server| server.signal(rustix::process::Signal::CONT));
    }

    /// `etcd://…` of it, or `disks`.
    pub fn uri(&self) -> String {
        if !self.has_etcd {
            return "disks".to_owned();
        }
        format!("etcd://127.0.0.1:{}", self.ports[0])
    }

    /// `weft fs ACTION home … --cluster …` with all its disks, as arguments.
    pub fn args(&self, action: &[&str], rest: &[&str]) -> Vec<String> {
        let uri = self.uri();
        let all = [&["fs"], action, &["--cluster", &uri], rest].concat();
        let disks = self.disks.iter().map(String::as_str);
        all.into_iter().chain(disks).map(str::to_owned).collect()
    }

    /// Runs it; returns its output.
    #[track_caller]
    pub fn weft(&self, action: &[&str], rest: &[&str]) -> String {
        let args = self.args(action, rest);
        self.bench.weft(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The cluster as it is.
    #[track_caller]
    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.weft(&["status", "home"], &["--json"])).expect("JSON")
    }

    /// Starts a process that stays.
    pub fn start(&mut self, name: &str, action: &[&str], rest: &[&str]) -> Member {
        self.start_by(None, name, action, rest)
    }

    /// Starts it as what another command starts.
    fn start_by(&self, by: Option<Command>, name: &str, action: &[&str], rest: &[&str]) -> Member {
        let out = self.bench.path(&format!("{name}.out"));
        let args = self.args(action, &[&["--node", name], rest].concat());
        let mut command = self.bench.command(&args.iter().map(String::as_str).collect::<Vec<_>>());
        if let Some(mut by) = by {
            by.arg(command.get_program()).args(command.get_args());
            by.current_dir(self.bench.scratch.path());
            by.env("WEFT_RUNTIME_DIR", self.bench.path("run"));
            command = by;
        }
        let file = fs::File::create(&out).expect("a file");
        command.stdout(file.try_clone().expect("a file")).stderr(file);
        let at = self.bench.path(&format!("mnt-{name}"));
        Member { process: Process::spawn(&mut command), out, at }
    }

    /// Starts a keeper that mounts on a folder of its own, too.
    pub fn keeper(&mut self, name: &str, rest: &[&str]) -> Member {
        let folder = super::text(&self.folder(name));
        let rest = [&["--mount", &folder], rest].concat();
        self.start(name, &["keeper", "home"], &rest)
    }

    /// Starts a node.
    pub fn node(&mut self, name: &str, rest: &[&str]) -> Member {
        let folder = super::text(&self.folder(name));
        self.start(name, &["mount", "home", &folder], rest)
    }

    /// Whether a process may have another clock than the machine's.
    pub fn has_time_namespaces() -> bool {
        let tried = command("unshare").args(["-T", "true"]).output();
        tried.is_ok_and(|output| output.status.success())
    }

    /// Starts a node whose clock is a year ahead.
    pub fn node_a_year_ahead(&mut self, name: &str) -> Member {
        let folder = super::text(&self.folder(name));
        let mut ahead = command("unshare");
        ahead.args(["-T", "--monotonic", "31536000", "--boottime", "31536000", "--"]);
        self.start_by(Some(ahead), name, &["mount", "home", &folder], &[])
    }

    fn folder(&mut self, name: &str) -> PathBuf {
        let folder = self.bench.path(&format!("mnt-{name}"));
        // One that is there has a mount whose server has died.
        let _ = fs::create_dir(&folder);
        self.mounts.push(folder.clone());
        folder
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for folder in &self.mounts {
            // Ends requests that wait, too.
            let mut umount = command("umount");
            let _ =
                umount.args(["-f", "-l"]).arg(folder).stderr(std::process::Stdio::null()).status();
        }
    }
}

fn has_said(out: &Path, what: &str) -> bool {
    fs::read_to_string(out).is_ok_and(|text| text.lines().any(|line| line.contains(what)))
}

impl Member {
    /// Its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// What it has printed.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.out).unwrap_or_default()
    }

    /// Waits until it has printed something.
    #[track_caller]
    pub fn says(&mut self, what: &str) {
        wait_until(&format!("a process to say `{what}`"), || {
            let said = has_said(&self.out, what);
            assert!(said || self.process.is_running(), "it ended:\n{}", self.said());
            said
        });
    }

    /// Waits until its mount is there.
    #[track_caller]
    pub fn mounts(&mut self) {
        self.says("is mounted on");
    }

    /// Waits for its end, which is a failure; returns what it has printed.
    #[track_caller]
    pub fn fails(mut self) -> String {
        wait_until("a process to end", || !self.process.is_running());
        assert_eq!(self.process.wait().code(), Some(1), "{}", self.said());
        self.said()
    }

    /// `kill -9`; the kernel's dead mount goes, too.
    pub fn kill9(self) {
        self.process.kill9();
        let mut umount = command("umount");
        let _ =
            umount.args(["-f", "-l"]).arg(&self.at).stderr(std::process::Stdio::null()).status();
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        self.process.signal(rustix::process::Signal::TERM);
    }

    /// Ends it in order.
    #[track_caller]
    pub fn ends(mut self) {
        self.terminate();
        wait_until("a process to end", || !self.process.is_running());
        let status = self.process.wait();
        let said = fs::read_to_string(&self.out).unwrap_or_default();
        assert!(status.success(), "it ended with {status}\n{said}");
    }
}
