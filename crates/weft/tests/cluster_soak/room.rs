//! The machines of a cluster: three etcds, a server for each disk, two keepers and some nodes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use weft_testkit::{Process, Rng, command};

use crate::common::append_load::Seat;
use crate::common::{Bench, text};
use crate::network::Network;
use crate::plan::{Event, Kind, Machines, Target};

const ETCDS: usize = 3;
const DISKS: usize = 5;
const DISK_BYTES: u64 = 640 << 20;
const KEEPERS: [&str; 2] = ["one", "two"];
/// The first one nothing happens to: its programs must notice pauses only.
pub const NODES: [&str; 3] = ["alpha", "beta", "gamma"];
/// What a process may take of memory.
const MEMORY_MAX_KIB: u64 = 1 << 20;
/// How long a machine must have been left alone before its programs may expect that it works:
/// longer than a lease, after which it may yet be told that it was fenced.
const CALM: Duration = Duration::from_secs(9);
/// How long a cluster that is left alone takes to be whole.
pub const PATIENCE: Duration = Duration::from_secs(240);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Etcd,
    Disk,
    Keeper,
    Node,
}

/// A machine with its process.
struct Machine {
    name: String,
    role: Role,
    process: Option<Process>,
    starts: usize,
    out: PathBuf,
    /// It is not to be started.
    is_down: bool,
    is_paused: bool,
    is_cut: bool,
    /// What ends that.
    cut: Option<Process>,
    /// When something last happened to it, or it was started.
    touched: Instant,
    seat: Option<Arc<Seat>>,
}

pub struct Room {
    // First: they end before their folder goes.
    machines: Vec<Machine>,
    network: Network,
    start: Instant,
    pub bench: Bench,
    key: String,
}

impl Room {
    pub fn new(has_namespaces: bool) -> Self {
        let bench = Bench::new("soak");
        let mut network = Network::new(has_namespaces);
        let machine = |name: String, role| {
            let at = bench.path(&format!("mnt-{name}"));
            let has_folder = matches!(role, Role::Keeper | Role::Node);
            let seat = has_folder.then(|| {
                fs::create_dir(&at).expect("a folder");
                Seat::new(&name, &at)
            });
            Machine {
                name,
                role,
                process: None,
                starts: 0,
                out: PathBuf::new(),
                is_down: false,
                is_paused: false,
                is_cut: false,
                cut: None,
                touched: Instant::now(),
                seat,
            }
        };
        let mut machines = Vec::new();
        machines.extend((0..ETCDS).map(|n| machine(format!("e{n}"), Role::Etcd)));
        machines.extend((0..DISKS).map(|n| machine(format!("d{n}"), Role::Disk)));
        // The steady node is the first seat.
        machines.extend(NODES.map(|name| machine(name.into(), Role::Node)));
        machines.extend(KEEPERS.map(|name| machine(name.into(), Role::Keeper)));
        machines.iter().for_each(|machine| network.add(&machine.name));
        let key = bench.path("key");
        fs::write(&key, "k".repeat(40)).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&key, mode).expect("changed");
        let key = text(&key);
        let mut room = Self { machines, network, start: Instant::now(), bench, key };
        for n in 0..DISKS {
            let disk = format!("d{n}");
            let _ = room.bench.scratch.file(&disk, DISK_BYTES);
            room.bench.weft(&["disks", "prepare", &disk]);
        }
        room.start_all(&[Role::Etcd, Role::Disk]);
        room.await_servers();
        let mut create = vec!["fs", "create", "home", "--node", "admin", "--cluster"];
        let (uri, disks) = (room.uri(), room.disks());
        create.push(&uri);
        create.extend(disks.iter().map(String::as_str));
        room.bench.weft(&create);
        room.start_all(&[Role::Keeper, Role::Node]);
        room
    }

    pub fn say(&self, what: &str) {
        println!("{:7.1} s  {what}", self.start.elapsed().as_secs_f32());
    }

    /// All mounts; the first one is the steady node's.
    pub fn seats(&self) -> Vec<Arc<Seat>> {
        self.machines.iter().filter_map(|machine| machine.seat.clone()).collect()
    }

    /// The names for a plan.
    pub fn plan(&self, rng: &mut Rng, length: Duration) -> Vec<Event> {
        let of = |role| {
            let all = self.machines.iter().filter(move |machine| machine.role == role);
            all.map(|machine| machine.name.clone()).collect::<Vec<String>>()
        };
        let (etcds, disks, nodes) = (of(Role::Etcd), of(Role::Disk), of(Role::Node));
        let (nodes, can_cut) = (&nodes[1..], self.network.can_cut());
        let machines = Machines { etcds: &etcds, disks: &disks, nodes, can_cut };
        crate::plan::plan(rng, length, &machines)
    }

    fn uri(&self) -> String {
        let etcds = self.machines.iter().filter(|machine| machine.role == Role::Etcd);
        let hosts: Vec<String> =
            etcds.map(|machine| format!("{}:2379", self.network.address(&machine.name))).collect();
        format!("etcd://{}", hosts.join(","))
    }

    fn disk(&self, name: &str) -> String {
        format!("nbd://{}/{name}", self.network.address(name))
    }

    fn disks(&self) -> Vec<String> {
        let disks = self.machines.iter().filter(|machine| machine.role == Role::Disk);
        disks.map(|machine| self.disk(&machine.name)).collect()
    }

    fn start_all(&mut self, roles: &[Role]) {
        for at in 0..self.machines.len() {
            if roles.contains(&self.machines[at].role) {
                self.launch(at);
            }
        }
    }

    /// Starts the process of a machine.
    fn launch(&mut self, at: usize) {
        let machine = &self.machines[at];
        let (name, role) = (machine.name.clone(), machine.role);
        let (address, weft) = (self.network.address(&name), env!("CARGO_BIN_EXE_weft"));
        let program = if role == Role::Etcd { "etcd" } else { weft };
        let mut start = self.network.command(&name, program);
        match role {
            Role::Etcd => {
                let etcds = self.machines.iter().filter(|machine| machine.role == Role::Etcd);
                let peers = etcds.map(|machine| {
                    let name = &machine.name;
                    format!("{name}=http://{}:2380", self.network.address(name))
                });
                let url = |port: u16| format!("http://{address}:{port}");
                // Nobody cuts the power.
                start.args(["--name", &name, "--data-dir", &name, "--unsafe-no-fsync"]);
                start.args(["--listen-peer-urls", &url(2380)]);
                start.args(["--initial-advertise-peer-urls", &url(2380)]);
                start.args(["--listen-client-urls", &url(2379)]);
                start.args(["--advertise-client-urls", &url(2379)]);
                start.args(["--initial-cluster", &peers.collect::<Vec<_>>().join(",")]);
                start.args([
                    "--auto-compaction-retention",
                    "2m",
                    "--quota-backend-bytes",
                    "67108864",
                ]);
            }
            Role::Disk => {
                start.args(["disks", "serve", "--listen", &address, "--allow-remote", &name]);
            }
            Role::Keeper | Role::Node => {
                let folder = text(&self.machines[at].seat.as_ref().expect("a mount").at);
                match role {
                    Role::Keeper => start.args(["fs", "keeper", "home", "--mount", &folder]),
                    _ => start.args(["fs", "mount", "home", &folder]),
                };
                if role == Role::Keeper {
                    start.args(["--listen", &format!("{address}:7000"), "--stop-timeout", "5s"]);
                }
                start.args(["--cluster", &self.uri(), "--node", &name, "--key", &self.key]);
                start.args(["--cache", "48M", "--metadata-cache", "24M"]);
                start.args(self.disks());
                // The kernel's dead mount goes.
                unmount(Path::new(&folder));
            }
        }
        let machine = &mut self.machines[at];
        machine.starts += 1;
        machine.out = self.bench.path(&format!("{name}.{}.out", machine.starts));
        let file = File::create(&machine.out).expect("a log");
        start.current_dir(self.bench.scratch.path());
        start.env("WEFT_RUNTIME_DIR", self.bench.path("run")).env("RUST_BACKTRACE", "1");
        start.stdout(file.try_clone().expect("a file")).stderr(file);
        machine.process = Some(Process::spawn(&mut start));
        machine.touched = Instant::now();
    }

    fn await_servers(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let word =
            |role| if role == Role::Etcd { "ready to serve client requests" } else { "serving" };
        let all = |room: &Self| {
            let servers =
                room.machines.iter().filter(|of| matches!(of.role, Role::Etcd | Role::Disk));
            servers.into_iter().all(|machine| machine.said().contains(word(machine.role)))
        };
        while !all(self) {
            let ended = self.machines.iter_mut().find_map(|machine| machine.ended());
            assert!(ended.is_none(), "a server has ended: {}", ended.unwrap_or_default());
            assert!(Instant::now() < deadline, "the servers do not start");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn find(&self, target: &Target) -> Option<usize> {
        match target {
            Target::Machine(name) => self.machines.iter().position(|machine| machine.name == *name),
            Target::Keeper => {
                // The last one that has said so and runs. It may hang.
                let keepers = (0..self.machines.len())
                    .filter(|at| self.machines[*at].role == Role::Keeper)
                    .filter(|at| self.machines[*at].process.is_some())
                    .filter(|at| self.machines[*at].is_mounted());
                keepers.max_by_key(|at| {
                    fs::metadata(&self.machines[*at].out).and_then(|of| of.modified()).ok()
                })
            }
        }
    }

    /// Makes something happen; returns the machine, for [`Room::undo`].
    pub fn strike(&mut self, event: &Event) -> Option<usize> {
        let at = self.find(&event.target)?;
        let machine = &mut self.machines[at];
        if machine.process.is_none() || machine.is_paused || machine.is_cut {
            return None;
        }
        if let Some(seat) = &machine.seat {
            seat.set_sound(false);
        }
        machine.touched = Instant::now();
        let (name, choice) = (machine.name.clone(), event.choice);
        let seconds = event.lasts.as_secs();
        match event.kind {
            Kind::Kill => {
                machine.is_down = true;
                let process = machine.process.take().expect("it runs");
                soon(&format!("to kill {name}"), move || process.kill9());
            }
            Kind::End => {
                machine.is_down = true;
                let process = machine.process.take().expect("it runs");
                process.signal(Signal::TERM);
                let mut process = process;
                let _ = process.wait_for(Duration::from_secs(10));
            }
            Kind::Pause => {
                machine.is_paused = true;
                let process = machine.process.as_ref().expect("it runs");
                process.signal(Signal::STOP);
                // This thread may wait for the machine when it starts a program: that closes the
                // files of all threads.
                let pid = rustix::process::Pid::from_raw(process.id().cast_signed());
                let (pid, lasts) = (pid.expect("a process"), event.lasts);
                std::thread::spawn(move || {
                    std::thread::sleep(lasts);
                    let _ = rustix::process::kill_process(pid, Signal::CONT);
                });
            }
            Kind::Cut => {
                machine.is_cut = true;
                machine.cut = Some(self.network.cut(&name, seconds));
            }
            Kind::CutOneWay => {
                machine.is_cut = true;
                // Disks are left alone: a node that does not reach one counts it as lost.
                let others =
                    self.machines.iter().filter(|of| of.role != Role::Disk && of.name != name);
                let others: Vec<String> = others.map(|of| of.name.clone()).collect();
                let other = &others[usize::try_from(choice % others.len() as u64).expect("few")];
                self.say(&format!("         {name} does not reach {other}"));
                let cut = self.network.cut_one_way(&name, other, seconds);
                self.machines[at].cut = Some(cut);
            }
            Kind::Slow => {
                machine.is_cut = true;
                machine.cut = Some(self.network.slow(&name, seconds));
            }
            Kind::Evict => {
                let uri = self.uri();
                let evict = ["fs", "evict", "home", &name, "--cluster", &uri];
                // Without a majority of the etcds it fails.
                let mut evict = self.bench.command(&evict);
                let _ = evict.stdout(Stdio::null()).stderr(Stdio::null()).status();
            }
        }
        Some(at)
    }

    /// Ends what happened to a machine.
    pub fn undo(&mut self, at: usize) {
        let machine = &mut self.machines[at];
        if let Some(mut cut) = machine.cut.take() {
            cut.wait();
        }
        if machine.is_paused
            && let Some(process) = &machine.process
        {
            process.signal(Signal::CONT);
        }
        (machine.is_cut, machine.is_paused) = (false, false);
        machine.touched = Instant::now();
        if std::mem::take(&mut machine.is_down) {
            self.launch(at);
        }
    }

    /// Starts what has ended, and notes what works again.
    ///
    /// # Errors
    /// If something has ended that should not.
    pub fn tend(&mut self) -> Result<(), String> {
        for at in 0..self.machines.len() {
            let machine = &mut self.machines[at];
            if let Some(log) = machine.ended() {
                let name = machine.name.clone();
                let was_sound = machine.seat.as_ref().is_some_and(|seat| seat.is_sound());
                let is_server = machine.seat.is_none();
                machine.process = None;
                if was_sound || is_server && machine.touched.elapsed() > CALM {
                    return Err(format!("{name} has ended by itself:\n{log}"));
                }
                let last =
                    log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
                self.say(&format!("         {name} has ended: {last}"));
            }
            let machine = &self.machines[at];
            if machine.process.is_none() && !machine.is_down && !machine.is_cut {
                // Not again and again at once.
                if machine.touched.elapsed() > Duration::from_secs(1) {
                    self.launch(at);
                }
                continue;
            }
            if let Some(seat) = &machine.seat
                && !seat.is_sound()
                && machine.is_left_alone()
                && machine.touched.elapsed() > CALM
                && machine.is_mounted()
                && responds(&seat.at)
            {
                seat.set_sound(true);
            }
        }
        Ok(())
    }

    /// Whether all nodes work, a keeper does, and the other keepers stand by.
    pub fn is_whole(&self) -> bool {
        let sound = |machine: &Machine| machine.seat.as_ref().is_some_and(|seat| seat.is_sound());
        let all = |role: Role| self.machines.iter().filter(move |machine| machine.role == role);
        all(Role::Node).all(sound)
            && all(Role::Keeper).filter(|machine| sound(machine)).count() == 1
            && all(Role::Keeper)
                .all(|machine| sound(machine) || machine.said().contains("stands by"))
    }

    /// Waits until all work.
    ///
    /// # Errors
    /// If that takes too long, with what the processes have said.
    pub fn become_whole(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_whole() {
            self.tend()?;
            if Instant::now() > deadline {
                return Err(format!("the cluster does not become whole\n{}", self.logs()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Where the keeper mounts.
    pub fn keeper_folder(&self) -> Option<PathBuf> {
        let keepers = self.machines.iter().filter(|machine| machine.role == Role::Keeper);
        let seats = keepers.filter_map(|machine| machine.seat.as_ref());
        seats.into_iter().find(|seat| seat.is_sound()).map(|seat| seat.at.clone())
    }

    /// Runs `weft ARGS`.
    ///
    /// # Errors
    /// What it printed, if it fails.
    pub fn weft(&self, args: &[&str]) -> Result<String, String> {
        let mut command = command("timeout");
        command.args(["300", env!("CARGO_BIN_EXE_weft")]).args(args);
        command.env("WEFT_RUNTIME_DIR", self.bench.path("run"));
        let output = command.current_dir(self.bench.scratch.path()).output().expect("start weft");
        let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        match output.status.success() {
            true => Ok(said[0].clone().into_owned()),
            false => Err(format!("weft {args:?} ended with {}:\n{}", output.status, said.concat())),
        }
    }

    /// Takes disks back that were lost, and finds nothing wrong.
    ///
    /// # Errors
    /// What is wrong.
    pub fn examine(&mut self) -> Result<(), String> {
        let lost = self.lost_disks()?;
        for (name, at) in &lost {
            self.say(&format!("         {name} is lost: rebuild, and take it back"));
            self.weft(&["fs", "rebuild", &text(at)])?;
            // Nodes have not opened it, and stop.
            self.unsettle();
            self.weft(&["fs", "add", &text(at), &self.disk(name)])?;
        }
        if !lost.is_empty() {
            std::thread::sleep(Duration::from_secs(1));
            self.become_whole()?;
            let still = self.lost_disks()?;
            if !still.is_empty() {
                return Err(format!("{still:?} is still lost"));
            }
        }
        let at = self.keeper_folder().ok_or("there is no keeper")?;
        self.weft(&["fs", "fsck", "--data", &text(&at)])?;
        let mut most = (0, String::new());
        for machine in &self.machines {
            let used = machine.process.as_ref().map_or(0, |process| memory_kib(process.id()));
            most = most.max((used, machine.name.clone()));
        }
        let (used, name) = most;
        self.say(&format!("         memory: {} MiB at most, {name}", used >> 10));
        match used > MEMORY_MAX_KIB {
            true => Err(format!("{name} takes {used} KiB of memory")),
            false => Ok(()),
        }
    }

    fn lost_disks(&self) -> Result<Vec<(String, PathBuf)>, String> {
        let at = self.keeper_folder().ok_or("there is no keeper")?;
        let status = self.weft(&["fs", "status", &text(&at), "--json"])?;
        let status: serde_json::Value =
            serde_json::from_str(&status).map_err(|error| format!("{error}: {status}"))?;
        let disks = status["disks"].as_array().ok_or_else(|| format!("no disks: {status}"))?;
        let is_used = |name: &str| {
            let matches = |disk: &serde_json::Value| {
                let named = disk["name"].as_str().unwrap_or_default();
                disk["lost"] == false
                    && (named == name || named.split('/').any(|part| part == name))
            };
            disks.iter().any(matches)
        };
        let names = self.machines.iter().filter(|machine| machine.role == Role::Disk);
        let lost = names.filter(|machine| !is_used(&machine.name));
        Ok(lost.map(|machine| (machine.name.clone(), at.clone())).collect())
    }

    /// All seats may end for a while.
    fn unsettle(&mut self) {
        for machine in &mut self.machines {
            if let Some(seat) = &machine.seat
                && machine.role == Role::Node
            {
                seat.set_sound(false);
                machine.touched = Instant::now();
            }
        }
    }

    /// What the processes have said last.
    pub fn logs(&self) -> String {
        let mut logs = String::new();
        for machine in &self.machines {
            let said = machine.said();
            let lines: Vec<&str> = said.lines().collect();
            let shown = if machine.role == Role::Etcd { 2 } else { 12 };
            let last = lines[lines.len().saturating_sub(shown)..].join("\n  ");
            let state = match (&machine.process, machine.is_paused, machine.is_cut) {
                (None, ..) => "does not run",
                (_, true, _) => "is stopped",
                (_, _, true) => "is cut off",
                _ => "runs",
            };
            logs.push_str(&format!("{} ({}) {state}:\n  {last}\n", machine.name, machine.starts));
        }
        logs + &waiting_threads()
    }
}

impl Machine {
    fn said(&self) -> String {
        fs::read_to_string(&self.out).unwrap_or_default()
    }

    fn is_mounted(&self) -> bool {
        self.said().contains("is mounted on")
    }

    fn is_left_alone(&self) -> bool {
        !(self.is_down || self.is_paused || self.is_cut)
    }

    /// What it has said, if its process has ended.
    fn ended(&mut self) -> Option<String> {
        let process = self.process.as_mut()?;
        (!process.is_running()).then(|| self.said())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        for machine in &mut self.machines {
            machine.process = None;
        }
        for seat in self.seats() {
            unmount(&seat.at);
        }
    }
}

/// Ends a mount, and requests that wait in it.
fn unmount(at: &Path) {
    let at = at.to_owned();
    soon("to unmount", move || {
        let _ = rustix::mount::unmount(&at, UnmountFlags::FORCE | UnmountFlags::DETACH);
    });
}

/// Does something that must not take long, and shows where all threads are if it does.
fn soon(what: &str, action: impl FnOnce() + Send + 'static) {
    let (sender, end) = channel();
    std::thread::spawn(move || {
        action();
        let _ = sender.send(());
    });
    if end.recv_timeout(Duration::from_secs(60)).is_err() {
        panic!("{what} takes too long\n{}", waiting_threads());
    }
}

/// Where threads wait in the kernel without being stopped by a signal, or for FUSE.
pub fn waiting_threads() -> String {
    let mut all = String::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
        for task in fs::read_dir(process.path().join("task")).into_iter().flatten().flatten() {
            let stack = fs::read_to_string(task.path().join("stack")).unwrap_or_default();
            let frames: Vec<&str> =
                stack.lines().filter_map(|line| line.split(' ').nth(1)).collect();
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            if stat.contains(") D ") || stack.contains("request_wait_answer") {
                let short: String = arguments.chars().take(160).collect();
                all.push_str(&format!(
                    "{} of {short}\n  {}\n",
                    stat.split(' ').next().unwrap_or_default(),
                    frames.join(" ")
                ));
            }
        }
    }
    all
}

/// Whether a mount answers soon.
fn responds(at: &Path) -> bool {
    let (sender, answer) = channel();
    let at = at.to_owned();
    std::thread::spawn(move || {
        let _ = sender.send(fs::read_dir(at).is_ok());
    });
    answer.recv_timeout(Duration::from_secs(2)) == Ok(true)
}

fn memory_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}
