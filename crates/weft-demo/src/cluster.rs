//! `weft demo cluster`: a file system that three machines share.
//!
//! The machines are processes on this one: an etcd, a server for each disk, two keepers and a node.
//! Files of this machine are copied on one machine. While they are written the machine with the
//! metadata dies, then a disk. They are compared on another machine than the one that wrote them.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use crc_fast::{CrcAlgorithm, checksum};
use serde_json::json;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::answer;
use weft_cli::progress::Progress;
use weft_cli::size;

use crate::MountDemoArgs;
use crate::scene::Scene;
use crate::tree::{self, Source};

/// Each has a server of its own.
const DISKS: usize = 4;
/// The disk whose server dies.
const LOST: &str = "d3";
/// The keeper that dies, the one that takes its place, and the node that writes.
const MACHINES: [&str; 3] = ["one", "two", "three"];
/// What a disk has for labels, and for the logs and the free blocks of nodes.
const OVERHEAD_BYTES: u64 = 128 << 20;
/// What a disk has for metadata: this, and more for each file.
const METADATA_BYTES: u64 = 24 << 20;
const METADATA_BYTES_A_FILE: u64 = 4 << 10;
/// What etcd needs.
const ETCD_BYTES: u64 = 200 << 20;
/// How long anything may take: a guard, far above what a takeover takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A file that was copied.
struct Copied {
    from: PathBuf,
    to: PathBuf,
    sum: u64,
    len: u64,
    took: Duration,
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |e| Failure::new(format!("{}: {e}", path.display()))
}

/// Where etcd is.
fn etcd() -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|place| place.join("etcd"))
        .find(|file| file.is_file())
        .ok_or_else(|| {
            Failure::new("there is no etcd here, which machines need to agree on a keeper")
                .hint("apt install etcd-server, or another package that has it (https://etcd.io)")
        })
}

/// Ports of loopback that nobody uses now.
fn free_ports() -> Result<[u16; 2], Failure> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let ports = bind().and_then(|one| Ok([one.local_addr()?, bind()?.local_addr()?]));
    let ports = ports.map_err(|e| Failure::new(format!("no free port: {e}")))?;
    Ok(ports.map(|address| address.port()))
}

fn folder_of(machine: &str) -> String {
    format!("mnt-{machine}")
}

/// `weft demo cluster`.
///
/// # Errors
/// If a step fails, or a byte was lost.
pub fn demo(args: &MountDemoArgs, json: bool) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("a file system can only be mounted as root")
            .hint("`sudo weft demo cluster`; `weft demo` needs no root"));
    }
    if !Path::new("/dev/fuse").exists() {
        return Err(Failure::new("there is no /dev/fuse, with which a file system is mounted")
            .hint("modprobe fuse; `weft demo` does without"));
    }
    let etcd = etcd()?;
    let start = Instant::now();
    let (root, files) = tree::sources(args.tree.as_deref(), args.limit)?;
    let metadata_bytes = METADATA_BYTES + files.len() as u64 * METADATA_BYTES_A_FILE;
    let overhead_bytes = OVERHEAD_BYTES + metadata_bytes;
    let disk_bytes = (args.limit + overhead_bytes).next_multiple_of(1 << 20);
    let metadata = format!("{}M", metadata_bytes >> 20);
    // Sparse files: what is written counts.
    let bytes = 2 * (args.limit + overhead_bytes) + ETCD_BYTES;
    let mut scene = Scene::open(args.dir.as_deref(), bytes, json)?;

    scene.say(
        "Three machines share four disks: here, processes on one machine. An etcd knows which of them \
         has the metadata: the keeper.",
    );
    let cluster = start_etcd(&mut scene, &etcd)?;
    let disks = serve_disks(&mut scene, disk_bytes)?;
    let with = |first: &[&str]| -> Vec<String> {
        let cluster = ["--cluster", &cluster];
        let disks = disks.iter().map(String::as_str);
        first.iter().copied().chain(cluster).chain(disks).map(str::to_owned).collect()
    };
    let create = ["fs", "create", "demo", "--node", "admin", "--metadata", &metadata];
    scene.weft(&texts(&with(&create)))?;
    for machine in MACHINES {
        let folder = scene.path(&folder_of(machine));
        fs::create_dir(&folder).map_err(failed(&folder))?;
        scene.will_mount(&folder_of(machine));
    }
    let [one, two, three] = MACHINES;
    let (on_two, on_three) = (folder_of(two), folder_of(three));
    for (machine, word) in [(one, "is mounted on"), (two, "stands by")] {
        let folder = folder_of(machine);
        let keeper = with(&["fs", "keeper", "demo", "--node", machine, "--mount", &folder]);
        scene.play(machine, &texts(&keeper))?;
        scene.hear(machine, word, PATIENCE)?;
    }
    scene.play(three, &texts(&with(&["fs", "mount", "demo", &on_three, "--node", three])))?;
    scene.hear(three, "is mounted on", PATIENCE)?;

    scene.say(&format!(
        "Machine three copies the files of {}. Half-way through, the keeper is killed, and later a disk.",
        root.display()
    ));
    let copied = copy_while_dying(&mut scene, files, json)?;
    let bytes: u64 = copied.iter().map(|file| file.len).sum();
    let pause = copied.iter().map(|file| file.took).max().unwrap_or_default();
    scene.tell(&format!(
        "{} files, {} copied; the longest pause took {}",
        copied.len(),
        size::show(bytes),
        size::show_duration(pause)
    ));

    scene
        .say("Machine two is the keeper now. What the lost disk had is rebuilt on the other ones.");
    scene.hear(two, "is mounted on", PATIENCE)?;
    let status = scene.ask(&["fs", "status", &on_two])?;
    if status["disks"].as_array().is_some_and(|disks| disks.iter().any(|disk| disk["lost"] == true))
    {
        scene.weft(&["fs", "rebuild", &on_two])?;
    }
    scene.weft(&["fs", "status", "demo", "--cluster", &cluster])?;
    if args.corrupt
        && let Some(first) = copied.iter().find(|copy| copy.len > 0)
    {
        let mut bytes = fs::read(&first.to).map_err(failed(&first.to))?;
        bytes[0] ^= 1;
        fs::write(&first.to, bytes).map_err(failed(&first.to))?;
    }

    scene.say("All files are read on machine two, and compared with what machine three wrote.");
    let copied = compare(&scene, copied, &on_two, json)?;
    scene.weft(&["fs", "fsck", "--data", &on_two])?;
    scene.unmount_of(three, &on_three)?;
    scene.end(two)?;
    for n in 0..DISKS {
        let disk = format!("d{n}");
        if disk != LOST {
            scene.end(&disk)?;
        }
    }
    scene.kill("etcd")?;

    let seconds = start.elapsed();
    if json {
        answer(&json!({
            "files": copied, "stored_bytes": bytes, "pause_s": pause.as_secs_f64(),
            "wrong_files": 0, "took_s": seconds.as_secs_f64()
        }))?;
    }
    scene.say(&format!(
        "A machine died, and a disk, and no byte was lost: {copied} files, {}, all intact. ({})",
        size::show(bytes),
        size::show_duration(seconds)
    ));
    scene.close(false)
}

fn texts(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// Starts an etcd of one member; returns what `--cluster` says of it.
fn start_etcd(scene: &mut Scene, program: &Path) -> Result<String, Failure> {
    let [client, peer] = free_ports()?;
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    // Its notes are for the demo only: they need not outlive a power cut.
    let args = [
        "--data-dir",
        "etcd",
        "--unsafe-no-fsync",
        "--listen-client-urls",
        &url(client),
        "--advertise-client-urls",
        &url(client),
        "--listen-peer-urls",
        &url(peer),
        "--initial-advertise-peer-urls",
        &url(peer),
        "--initial-cluster",
        &format!("default={}", url(peer)),
    ];
    scene.play_other("etcd", program, &args, "--data-dir etcd …")?;
    Ok(format!("etcd://127.0.0.1:{client}"))
}

/// Makes the disks and serves them; returns their addresses.
fn serve_disks(scene: &mut Scene, bytes: u64) -> Result<Vec<String>, Failure> {
    let mut addresses = Vec::new();
    for n in 0..DISKS {
        let path = scene.path(&format!("d{n}"));
        let file = File::create_new(&path).map_err(failed(&path))?;
        file.set_len(bytes).map_err(failed(&path))?;
    }
    let disks: Vec<String> = (0..DISKS).map(|n| format!("d{n}")).collect();
    let mut prepare = vec!["disks", "prepare"];
    prepare.extend(disks.iter().map(String::as_str));
    scene.weft(&prepare)?;
    for disk in &disks {
        let socket = format!("{disk}.sock");
        scene.play(disk, &["disks", "serve", "--socket", &socket, disk])?;
        scene.hear(disk, "serving", PATIENCE)?;
        addresses.push(format!("nbd+unix:///{disk}?socket={socket}"));
    }
    Ok(addresses)
}

/// What a thread did, or why it ended.
type Told<T> = Sender<Result<T, Failure>>;

/// Does something with files in a thread, as a request may wait for ever, and hands on what it
/// tells.
fn follow<T: Send + 'static>(
    work: impl FnOnce(&Told<T>) + Send + 'static,
    mut on: impl FnMut(T) -> Outcome,
) -> Outcome {
    let (sender, told) = channel();
    std::thread::spawn(move || work(&sender));
    loop {
        match told.recv_timeout(PATIENCE) {
            Ok(told) => on(told?)?,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                return Err(Failure::new(format!(
                    "the file system has not answered for {}",
                    size::show_duration(PATIENCE)
                )));
            }
        }
    }
}

/// Copies the files on machine three. Half-way the keeper dies, and after three quarters a disk,
/// while the copying goes on.
fn copy_while_dying(
    scene: &mut Scene,
    files: Vec<Source>,
    json: bool,
) -> Result<Vec<Copied>, Failure> {
    let total: u64 = files.iter().map(|file| file.len).sum();
    let folder = scene.path(&folder_of(MACHINES[2]));
    let copy = move |told: &Told<Copied>| {
        for (n, source) in files.into_iter().enumerate() {
            // A file of this machine may be gone by now.
            let Ok(bytes) = fs::read(&source.path) else { continue };
            let (to, start) = (folder.join(n.to_string()), Instant::now());
            let written = fs::write(&to, &bytes).map_err(failed(&to));
            let (sum, took) = (checksum(CrcAlgorithm::Crc64Nvme, &bytes), start.elapsed());
            let (from, len) = (source.path, bytes.len() as u64);
            if told.send(written.map(|()| Copied { from, to, sum, len, took })).is_err() {
                return;
            }
        }
    };
    let mut progress = Progress::new("copy", total, json);
    let (mut copied, mut done) = (Vec::new(), 0);
    let mut dying = [(total / 2, MACHINES[0]), (total / 4 * 3, LOST)].into_iter().peekable();
    follow(copy, |file| {
        done += file.len;
        copied.push(file);
        progress.at(done, total, &format!("{} of {}", size::show(done), size::show(total)));
        while let Some((_, victim)) = dying.next_if(|(at, _)| done >= *at) {
            // A disk that is away would delay the takeover: a keeper makes sure at every disk that
            // the one before it writes no more.
            if victim == LOST {
                scene.hear(MACHINES[1], "keeps", PATIENCE)?;
            }
            scene.kill(victim)?;
        }
        Ok(())
    })?;
    drop(progress);
    for (_, victim) in dying {
        if victim == LOST {
            scene.hear(MACHINES[1], "keeps", PATIENCE)?;
        }
        scene.kill(victim)?;
    }
    Ok(copied)
}

/// Compares the files as another machine reads them; returns how many there are.
fn compare(scene: &Scene, copied: Vec<Copied>, folder: &str, json: bool) -> Result<usize, Failure> {
    let (folder, count) = (scene.path(folder), copied.len());
    let read = move |told: &Told<Option<PathBuf>>| {
        for copy in copied {
            let name = copy.to.file_name().unwrap_or_default();
            let read = fs::read(folder.join(name));
            let is_right =
                read.is_ok_and(|bytes| checksum(CrcAlgorithm::Crc64Nvme, &bytes) == copy.sum);
            if told.send(Ok((!is_right).then_some(copy.from))).is_err() {
                return;
            }
        }
    };
    let mut progress = Progress::new("compare", count as u64, json);
    let (mut wrong, mut done) = (Vec::new(), 0);
    follow(read, |differs| {
        wrong.extend(differs);
        done += 1;
        progress.at(done, count as u64, &format!("{done} of {count} files"));
        Ok(())
    })?;
    drop(progress);
    match wrong.first() {
        None => {
            scene.tell(&format!("{count} files, every checksum matches"));
            Ok(count)
        }
        Some(first) => Err(Failure::new(format!(
            "{} of {count} files differ from the stored ones; the first is {}",
            wrong.len(),
            first.display()
        ))
        .hint("this must never happen: please report it")),
    }
}
