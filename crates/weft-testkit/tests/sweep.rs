//! After a run nothing of it is left, and nothing else is touched: the test plants the leftovers of
//! a killed test, and `sweep` removes them.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use weft_testkit::{Need, Scratch, command, have, run, wait_until};

fn sweep(folders: &[&Path]) -> String {
    let sweep = concat!(env!("CARGO_MANIFEST_DIR"), "/sweep");
    let output = run(command("bash").arg(sweep).args(folders));
    String::from_utf8(output.stdout).expect("text")
}

/// A process with the mark of a run, in a session of its own: no guard of a test finds it, and its
/// parent's end does not end it.
fn stray(marked: &Path, standing_in: &Path) -> Child {
    let mut stray = Command::new("setsid");
    stray.args(["sleep", "1000000"]).env("WEFT_TEST_RUN", marked).current_dir(standing_in);
    stray.stdin(Stdio::null()).spawn().expect("start a process")
}

fn was_killed(mut child: Child) -> bool {
    child.wait().expect("wait for a child").signal() == Some(9)
}

#[test]
fn processes_and_files_of_a_run_go_and_others_stay() {
    let parent = Scratch::new("sweep");
    let [swept, memory, other] = ["run", "memory", "other"].map(|name| parent.join(name));
    for folder in [&swept, &memory, &other] {
        fs::create_dir(folder).expect("make a folder");
        fs::write(folder.join("file"), "warp").expect("write");
    }
    symlink(&other, swept.join("link")).expect("a link");
    let strays = [stray(&swept, &swept), stray(&swept, &other)];
    // The name of another run may begin with this one's.
    let mut bystander = stray(&parent.join("run2"), &other);
    let environment = format!("/proc/{}/environ", strays[1].id());
    wait_until("the process to be marked", || {
        fs::read(&environment).is_ok_and(|bytes| bytes.windows(13).any(|w| w == b"WEFT_TEST_RUN"))
    });
    let found = sweep(&[&swept, &memory]);
    assert!(strays.into_iter().all(was_killed), "{found}");
    assert!(bystander.try_wait().expect("wait").is_none(), "{found}");
    bystander.kill().and_then(|()| bystander.wait()).expect("end it");
    assert!(found.contains("left behind: process"), "{found}");
    assert!(!swept.exists() && !memory.exists());
    assert_eq!(fs::read_to_string(other.join("file")).expect("read"), "warp");
}

/// A file system on a loop device on a file of the run, in use; another mounted elsewhere; and a
/// folder that admits no user, as `weft attach` makes.
#[test]
fn mounts_and_loop_devices_of_a_run_are_given_back() {
    if !have(&[Need::Root, Need::Loop, Need::Tool("mkfs.ext4"), Need::Tool("chattr")]) {
        return;
    }
    let parent = Scratch::new("sweep-devices");
    let (swept, elsewhere) = (parent.join("run"), parent.join("elsewhere"));
    let points = [swept.join("a mount"), elsewhere.clone()];
    fs::create_dir(&swept).expect("make a folder");
    let mut devices = Vec::new();
    for (n, point) in points.iter().enumerate() {
        fs::create_dir(point).expect("make a mount point");
        let disk = swept.join(format!("disk{n}"));
        fs::File::create(&disk).and_then(|file| file.set_len(8 << 20)).expect("a disk");
        run(command("mkfs.ext4").arg("-q").arg(&disk));
        let device = run(command("losetup").args(["--find", "--show"]).arg(&disk)).stdout;
        let device = PathBuf::from(String::from_utf8(device).expect("text").trim());
        run(command("mount").arg(&device).arg(point));
        devices.push(device);
    }
    let locked = swept.join("locked");
    fs::create_dir(&locked).expect("make a folder");
    run(command("chattr").arg("+i").arg(&locked));
    let user = stray(&swept, &points[0]);

    let found = sweep(&[&swept]);
    assert!(was_killed(user), "{found}");
    let mounted = fs::read_to_string("/proc/self/mountinfo").expect("read");
    assert!(!mounted.contains(parent.path().to_str().expect("text")), "{mounted}");
    for device in &devices {
        let name = device.file_name().expect("a name").display().to_string();
        let backing = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        let still = backing.is_ok_and(|file| Path::new(file.trim()).starts_with(&swept));
        assert!(!still, "{name} is attached; {found}");
        assert!(found.contains(&format!("left behind: loop device /dev/{name}")), "{found}");
    }
    assert!(!swept.exists() && elsewhere.exists(), "{found}");
}
