//! A file system with very many small files, in process: how fast they are made, what a mount takes
//! after it was unmounted and after it was killed, a listing, a check, and the memory of each.
//!
//! Every phase is a process of its own, so that its peak of resident memory is its own, and so that
//! it can end without an unmount. `WEFT_BENCH_FILES` is the number of files (default 100,000; the
//! figures of the documentation say which); each has one block of its own and takes about 5 KB of
//! the temporary folder.

mod in_process;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use in_process::{NOW, make_files, mount, open_disks, write_small};
use weft_cli::disks::Opener;
use weft_cli::thread;
use weft_fs::{CreateOptions, Fs, Ino, Kind, ROOT, Redundancy};
use weft_testkit::Scratch;

const DISKS: usize = 4;
const FILES_DEFAULT: u64 = 100_000;
const PHASES: [(&str, &str); 6] = [
    ("fill", "make and write the files, unmount"),
    ("mount", "mount, after an unmount"),
    ("list", "list all folders, with attributes"),
    ("kill", "make 1,000 files more, sync, be killed"),
    ("mount", "mount, after it was killed"),
    ("check", "check the metadata"),
];

async fn list(fs: &Fs) -> u64 {
    let (mut count, mut folders) = (0, vec![ROOT]);
    while let Some(folder) = folders.pop() {
        let mut after = 2;
        loop {
            let entries = fs.read_folder(folder, after, 1000).await.expect("listed");
            let Some(last) = entries.last() else { break };
            after = last.position;
            for entry in entries {
                let ino: Ino = entry.ino;
                fs.attr(ino).await.expect("there");
                match entry.kind {
                    Kind::Folder => folders.push(ino),
                    _ => count += 1,
                }
            }
        }
    }
    count
}

/// Carries out a phase in this process, and prints its seconds and what it says.
fn phase(name: &str, folder: &Path, files: u64) {
    let (name, folder) = (name.to_owned(), folder.to_owned());
    let done = thread::run(move |opener: Opener| async move {
        let disks = open_disks(&opener, &folder, DISKS).await;
        let start = Instant::now();
        let fs = mount(&opener, &disks).await;
        let mounted_s = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let mut note = String::new();
        match &*name {
            "fill" => make_files(&fs, 0..files, write_small).await,
            "list" => note = format!("{} files", list(&fs).await),
            "kill" => {
                make_files(&fs, files..files + 1000, write_small).await;
                fs.sync().await.expect("synced");
            }
            "check" => {
                let report = fs.check(false).await.expect("checked");
                note = format!("{} findings", report.findings.len());
            }
            _ => {}
        }
        let (used, _) = fs.status().await.expect("known").meta_bytes;
        match &*name {
            "kill" => {}
            _ => fs.unmount().await.expect("unmounted"),
        }
        let seconds = if name == "mount" { mounted_s } else { start.elapsed().as_secs_f64() };
        let note = format!("{note}; metadata {} MiB", used >> 20);
        println!("{seconds:.2} s | {} MiB | {note}", peak_mib());
        if name == "kill" {
            std::process::exit(0);
        }
        Ok(())
    });
    assert!(done.is_ok(), "the thread ended");
}

/// The most memory that this process has had.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is there");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib >> 10
}

fn create(folder: &Path, files: u64) {
    let size = (files * 4096 + files * 4000 + (512 << 20)).next_multiple_of(1 << 20);
    for n in 0..DISKS {
        let file = std::fs::File::create(folder.join(format!("d{n}"))).expect("room");
        file.set_len(size).expect("sparse");
    }
    let folder = folder.to_owned();
    let made = thread::run(move |opener: Opener| async move {
        let disks = open_disks(&opener, &folder, DISKS).await;
        let options = CreateOptions {
            name: "many".into(),
            redundancy: Redundancy::Single,
            slice_bytes: Some(files * 4000 + (256 << 20)),
            force: false,
            id: thread::random()?,
            now: NOW,
        };
        weft_fs::create(&opener.rt, &disks, &options).await.expect("created");
        Ok(())
    });
    assert!(made.is_ok(), "the thread ended");
}

fn main() {
    let files = std::env::var("WEFT_BENCH_FILES").ok();
    let files = files.map_or(FILES_DEFAULT, |files| files.parse().expect("a number of files"));
    let args: Vec<String> = std::env::args().collect();
    if let [_, name, folder] = &args[..] {
        return phase(name, Path::new(folder), files);
    }
    let scratch = Scratch::new("bench-many-files");
    create(&scratch.join("."), files);
    println!("\n### {files} small files\n");
    println!("Each has one block without redundancy; {DISKS} disks are files; caches of 64 MiB.\n");
    println!("| what | time | peak of memory | |");
    println!("|---|---|---|---|");
    for (name, what) in PHASES {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let output = command.arg(name).arg(scratch.join(".")).output().expect("runs");
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
        println!("| {what} | {} |", String::from_utf8_lossy(&output.stdout).trim());
    }
}
