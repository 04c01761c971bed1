//! Root does not do what other users want: who may place files, sockets and names in front of a
//! command, and how it reacts. The other user is `nobody`.

use std::fs::{self, File, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Bench, text};
use serde_json::{Value, json};
use weft_testkit::{Need, Process, command, have, wait_until};

const NOBODY: u32 = 65534;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

/// Turns a command into the same one, run by `nobody`.
fn as_nobody(wanted: &Command) -> Command {
    let mut setpriv = command("setpriv");
    let id = NOBODY.to_string();
    setpriv.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]);
    setpriv.arg(wanted.get_program()).args(wanted.get_args());
    setpriv.envs(wanted.get_envs().filter_map(|(key, value)| Some((key, value?))));
    if let Some(folder) = wanted.get_current_dir() {
        setpriv.current_dir(folder);
    }
    setpriv
}

#[test]
fn members_that_create_makes_can_be_read_by_their_owner_only() {
    let bench = Bench::new("member-mode");
    for (n, umask) in ["000", "022", "277"].iter().enumerate() {
        let (a, b) = (format!("a{n}"), format!("b{n}"));
        let create = bench.command(&["create", "t", "--code", "raid1", "--size", "16M", &a, &b]);
        let mut shell = command("sh");
        shell.args(["-c", &format!("umask {umask}; exec \"$0\" \"$@\"")]).arg(create.get_program());
        shell.args(create.get_args()).current_dir(bench.scratch.path());
        weft_testkit::run(&mut shell);
        assert_eq!((mode(&bench.path(&a)), mode(&bench.path(&b))), (0o600, 0o600), "{umask}");
    }
}

#[test]
fn a_daemon_takes_only_a_folder_that_others_cannot_write() {
    let bench = Bench::new("claim");
    bench.weft(&["create", "t", "--code", "raid1", "--size", "16M", "d0", "d1"]);
    let dir = bench.path("run");
    fs::create_dir(&dir).expect("a runtime folder");
    for open in [0o770, 0o707, 0o1777] {
        chmod(&dir, open);
        let said = bench.refused(&["serve", "."], 1);
        assert!(said.contains("others can write to"), "{open:o}: {said}");
    }
    chmod(&dir, 0o700);
    // A link to a file that the daemon may write, and would have emptied.
    let victim = bench.path("victim");
    fs::write(&victim, "precious").expect("a file");
    symlink(&victim, dir.join("daemon.lock")).expect("a link");
    let said = bench.refused(&["serve", "."], 1);
    assert!(said.contains("runtime directory"), "{said}");
    assert_eq!(fs::read(&victim).expect("a file"), b"precious");
    fs::remove_file(dir.join("daemon.lock")).expect("removed");
    // The folder itself as a link.
    fs::rename(&dir, bench.path("elsewhere")).expect("renamed");
    symlink(bench.path("elsewhere"), &dir).expect("a link");
    let said = bench.refused(&["serve", "."], 1);
    assert!(said.contains("symbolic link"), "{said}");
    fs::remove_file(&dir).expect("removed");
    // A folder above that others may rename things in.
    fs::create_dir(bench.path("shared")).expect("a folder");
    chmod(&bench.path("shared"), 0o777);
    let below = text(&bench.path("shared/run"));
    let said = bench.refused(&["serve", ".", "--runtime-dir", &below], 1);
    assert!(said.contains("shared (mode 777)"), "{said}");
    if !have(&[Need::Root]) {
        return;
    }
    fs::rename(bench.path("elsewhere"), &dir).expect("renamed");
    chown(&dir, Some(NOBODY), None).expect("chown");
    let said = bench.refused(&["serve", "."], 1);
    assert!(said.contains("belongs to user 65534"), "{said}");
}

/// Answers every request with `answer`, in the place of a daemon; counts the requests.
fn impostor(dir: &Path, answer: Value) -> Arc<AtomicUsize> {
    let _ = fs::remove_file(dir.join("control.sock"));
    let listener = UnixListener::bind(dir.join("control.sock")).expect("a socket");
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    // Ends with the test.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            for _line in BufReader::new(&stream).lines().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                let _ = writeln!(&stream, "{}", json!({ "ok": answer }));
            }
        }
    });
    asked
}

/// Output of a daemon that serves an array `t`, which is stopped then.
fn snapshot(bench: &mut Bench) -> Value {
    bench.weft(&["create", "t", "--code", "raid1", "--size", "16M", "d0", "d1"]);
    bench.serve(&["d0", "d1"]);
    let said = serde_json::from_str(&bench.weft(&["status", "--json"])).expect("JSON");
    bench.terminate();
    said
}

#[test]
fn root_does_not_speak_with_a_daemon_that_another_user_put_there() {
    if !have(&[Need::Root]) {
        return;
    }
    let mut bench = Bench::new("impostor");
    let said = snapshot(&mut bench);
    let dir = bench.path("run");
    let asked = impostor(&dir, said);
    bench.weft(&["status"]);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    chown(&dir, Some(NOBODY), None).expect("chown");
    chmod(bench.scratch.path(), 0o777);
    for args in [&["status"][..], &["attach", "t"], &["fail", "t", "d0"], &["stop"]] {
        let said = bench.refused(args, 1);
        assert!(said.contains("belongs to user 65534"), "{said}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1, "it was asked nothing");
    // The user who called sudo speaks with their own daemon.
    let status = bench.command(&["status"]).env("SUDO_UID", "65534").output().expect("start weft");
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    // So does root in a folder that root gave to that user, as service managers do.
    chmod(bench.scratch.path(), 0o755);
    bench.weft(&["status"]);
}

#[test]
fn attach_mounts_nowhere_else_whatever_the_daemon_says() {
    if !have(&[Need::Root, Need::Fuse, Need::Loop]) {
        return;
    }
    let mut bench = Bench::new("attach-name");
    let said = snapshot(&mut bench);
    let dir = bench.path("run");
    let target = bench.path("target");
    fs::create_dir(&target).expect("a folder");
    let up = format!("../../{}", "target");
    for name in [up.as_str(), "..", ".", "/etc/cron.d", "a/b", "x\u{1b}[2J", ""] {
        let mut said = said.clone();
        said["arrays"][0]["status"]["name"] = json!(name);
        impostor(&dir, said);
        let printed = bench.refused(&["attach", "t"], 1);
        assert!(printed.contains("not to be trusted"), "{name:?}: {printed}");
        assert!(!dir.join("attach").exists(), "{name:?}: a folder was made");
        bench.refused(&["detach", &format!("../{name}")], 2);
    }
    let mut other = said.clone();
    other["arrays"][0]["status"]["name"] = json!("other");
    impostor(&dir, other);
    let printed = bench.refused(&["attach", "t"], 1);
    assert!(printed.contains("another array"), "{printed}");
    // The folder of mount points, and the mount point, as links elsewhere.
    impostor(&dir, said);
    symlink(&target, dir.join("attach")).expect("a link");
    bench.refused(&["attach", "t", "--via", "fuse"], 1);
    assert_eq!(fs::read_dir(&target).expect("a folder").count(), 0, "made in {target:?}");
    fs::remove_file(dir.join("attach")).expect("removed");
    fs::create_dir(dir.join("attach")).expect("a folder");
    symlink(&target, dir.join("attach/t")).expect("a link");
    bench.refused(&["attach", "t", "--via", "fuse"], 1);
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(!mounts.contains(&text(&target)), "mounted on {target:?}");
    // One that others may change.
    fs::remove_file(dir.join("attach/t")).expect("removed");
    chmod(&dir.join("attach"), 0o777);
    let printed = bench.refused(&["attach", "t", "--via", "fuse"], 1);
    assert!(printed.contains("others can write to"), "{printed}");
}

#[test]
fn the_array_of_an_unprivileged_daemon_is_mounted_where_only_root_may_change_things() {
    if !have(&[Need::Root, Need::Fuse, Need::Loop]) {
        return;
    }
    let bench = Bench::new("unprivileged");
    chown(bench.scratch.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
    let create = bench.command(&["create", "t", "--code", "raid1", "--size", "16M", "d0", "d1"]);
    weft_testkit::run(&mut as_nobody(&create));
    let log = File::create(bench.path("log")).expect("a log");
    let _daemon = Process::spawn(as_nobody(&bench.command(&["serve", "d0", "d1"])).stderr(log));
    let sudo = |args: &[&str]| {
        let mut command = bench.command(args);
        command.env("SUDO_UID", NOBODY.to_string());
        command
    };
    wait_until("the daemon to serve the array", || {
        sudo(&["status", "t"]).output().expect("start weft").status.success()
    });
    // Files that the user could have prepared are ignored.
    let trap = bench.path("run/attach");
    symlink("/etc", &trap).expect("a link");
    let device = weft_testkit::run(&mut sudo(&["attach", "t"])).stdout;
    let device = String::from_utf8(device).expect("text");
    let backing = device.trim().replace("/dev/", "/sys/block/") + "/loop/backing_file";
    let backing = fs::read_to_string(backing).expect("a loop device");
    weft_testkit::run(&mut sudo(&["detach", "t"]));
    assert!(backing.starts_with("/run/weft-attach/"), "{backing}");
    let folder = Path::new(backing.trim()).parent().and_then(Path::parent).expect("folders");
    assert_eq!((fs::metadata(folder).expect("it stays").uid(), mode(folder)), (0, 0o700));
    fs::remove_dir(folder).expect("empty");
}
