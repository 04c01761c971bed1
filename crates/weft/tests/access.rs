//! Who may do what in weftfs: access control lists, and the end of privileges, as programs and
//! other users meet them through the kernel.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::path::Path;
use std::process::Command;

use crate::common::weftfs::{Mounted, NEEDS};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat};
use rustix::io::Errno;
use weft_testkit::{Need, command, have, run};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NO_ID: u32 = u32::MAX;

/// An entry of a list: tag, rights, id.
type Entry = (u16, u16, u32);

fn bytes(entries: &[Entry]) -> Vec<u8> {
    let entry = |(tag, rights, id): &Entry| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2, 0, 0, 0].into_iter().chain(entries.iter().flat_map(entry)).collect()
}

/// A list with a named user.
fn list(owner: u16, (user, rights): (u32, u16), group: u16, mask: u16, other: u16) -> Vec<u8> {
    bytes(&[
        (1, owner, NO_ID),
        (2, rights, user),
        (4, group, NO_ID),
        (16, mask, NO_ID),
        (32, other, NO_ID),
    ])
}

fn set(at: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    rustix::fs::lsetxattr(at, name, value, XattrFlags::empty())
}

fn get(at: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 4096];
    let len = rustix::fs::lgetxattr(at, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

fn names(at: &Path) -> Vec<String> {
    let mut names = vec![0; 4096];
    let len = rustix::fs::llistxattr(at, &mut names[..]).expect("listed");
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

fn mode(at: &Path) -> u32 {
    fs::symlink_metadata(at).expect("there").mode() & 0o7777
}

fn chmod(at: &Path, mode: u32) {
    fs::set_permissions(at, Permissions::from_mode(mode)).expect("changed");
}

/// A program that runs as a user, in the group of the same number and no other.
fn by(user: u32, program: &str, args: &[&str], at: &Path) -> Command {
    let id = user.to_string();
    let mut setpriv = command("setpriv");
    setpriv.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--", program]);
    setpriv.args(args).arg(at);
    setpriv
}

fn may(user: u32, program: &str, args: &[&str], at: &Path) -> bool {
    by(user, program, args, at).output().expect("started").status.success()
}

fn mounted(name: &str) -> Mounted {
    let mut mounted = Mounted::new(name);
    chmod(mounted.bench.scratch.path(), 0o755);
    for n in 0..3 {
        let _ = mounted.bench.scratch.file(&format!("d{n}"), 24 << 20);
    }
    mounted.bench.weft(&["fs", "create", "home", "d0", "d1", "d2"]);
    mounted.mount(&["d0", "d1", "d2"]);
    mounted
}

#[test]
fn access_control_lists_decide_and_go_with_the_mode() {
    if !have(&NEEDS) || !have(&[Need::Tool("setpriv")]) {
        return;
    }
    let mut mounted = mounted("weftfs-acl");
    let file = mounted.at.join("file");
    fs::write(&file, "text").expect("written");
    chmod(&file, 0o600);
    assert!(!may(1001, "cat", &[], &file));
    assert_eq!(get(&file, ACCESS), Err(Errno::NODATA));
    set(&file, ACCESS, &list(6, (1001, 6), 4, 6, 0)).expect("set");
    assert_eq!(mode(&file), 0o660, "the mask shows as the group");
    assert_eq!(names(&file), [ACCESS]);
    assert!(may(1001, "cat", &[], &file) && may(1001, "truncate", &["-s", "3"], &file));
    assert!(!may(1002, "cat", &[], &file), "another user");
    // chmod sets the mask.
    chmod(&file, 0o640);
    assert_eq!(get(&file, ACCESS).expect("there"), list(6, (1001, 6), 4, 4, 0));
    assert!(may(1001, "cat", &[], &file) && !may(1001, "truncate", &["-s", "2"], &file));
    // Only the owner may change it.
    assert!(!may(1001, "chmod", &["666"], &file));
    // All of it is there after a crash.
    fs::File::open(&file).expect("there").sync_all().expect("synced");
    mounted.kill9();
    mounted.mount(&["d0", "d1", "d2"]);
    assert_eq!(get(&file, ACCESS).expect("there"), list(6, (1001, 6), 4, 4, 0));
    assert!(may(1001, "cat", &[], &file) && !may(1002, "cat", &[], &file));
    // A list that says no more than a mode is the mode.
    set(&file, ACCESS, &bytes(&[(1, 6, NO_ID), (4, 4, NO_ID), (32, 4, NO_ID)])).expect("set");
    assert_eq!((mode(&file), get(&file, ACCESS)), (0o644, Err(Errno::NODATA)));
    assert!(names(&file).is_empty() && may(1002, "cat", &[], &file));
    // A list that is removed leaves the mode.
    set(&file, ACCESS, &list(6, (1001, 6), 0, 7, 0)).expect("set");
    rustix::fs::removexattr(&file, ACCESS).expect("removed");
    assert_eq!((mode(&file), get(&file, ACCESS)), (0o670, Err(Errno::NODATA)));
    // What makes no sense is refused.
    let no_mask = bytes(&[(1, 6, NO_ID), (2, 6, 1001), (4, 4, NO_ID), (32, 4, NO_ID)]);
    assert_eq!(set(&file, ACCESS, &no_mask), Err(Errno::INVAL));
    assert_eq!(set(&file, ACCESS, &no_mask[..9]), Err(Errno::INVAL));
    assert_eq!(set(&file, DEFAULT, &list(7, (1001, 7), 7, 7, 7)), Err(Errno::ACCESS));
    mounted.bench.weft(&["fs", "fsck", "mnt"]);
    mounted.unmount();
}

#[test]
fn what_is_made_in_a_folder_gets_its_default_list() {
    if !have(&NEEDS) || !have(&[Need::Tool("setpriv")]) {
        return;
    }
    let mut mounted = mounted("weftfs-default-acl");
    let make = |script: &str| {
        run(command("sh").args(["-c", script]).current_dir(&mounted.at));
    };
    let at = |name: &str| mounted.at.join(name);
    make("umask 027; mkdir plain; touch plain/file; mkfifo plain/fifo; mkdir plain/in");
    assert_eq!(
        ["plain", "plain/file", "plain/fifo", "plain/in"].map(|name| mode(&at(name))),
        [0o750, 0o640, 0o640, 0o750]
    );
    make("mkdir shared");
    let default = list(7, (1001, 7), 5, 7, 0);
    set(&at("shared"), DEFAULT, &default).expect("set");
    assert_eq!((mode(&at("shared")), names(&at("shared"))), (0o755, vec![DEFAULT.to_owned()]));
    make("umask 077; cd shared; touch file; mkfifo fifo; mkdir in; mkdir -m 700 own; ln -s x link");
    // The umask does not count: the file is bounded by what was asked for, 0666.
    for name in ["shared/file", "shared/fifo"] {
        assert_eq!(mode(&at(name)), 0o660, "{name}");
        assert_eq!(get(&at(name), ACCESS).expect("there"), list(6, (1001, 7), 5, 6, 0), "{name}");
        assert_eq!(get(&at(name), DEFAULT), Err(Errno::NODATA), "{name}");
    }
    assert_eq!((mode(&at("shared/in")), get(&at("shared/in"), DEFAULT)), (0o770, Ok(default)));
    assert_eq!(mode(&at("shared/own")), 0o700);
    assert_eq!((mode(&at("shared/link")), names(&at("shared/link"))), (0o777, vec![]));
    fs::write(at("shared/in/file"), "text").expect("written");
    assert!(may(1001, "cat", &[], &at("shared/in/file")));
    assert!(!may(1002, "ls", &[], &at("shared/in")));
    assert!(may(1001, "touch", &[], &at("shared/in/new")));
    assert!(!may(1001, "touch", &[], &at("shared/new")));
    mounted.bench.weft(&["fs", "fsck", "mnt"]);
    mounted.unmount();
}

#[test]
fn privileges_end_with_a_new_owner_or_contents() {
    if !have(&NEEDS) || !have(&[Need::Tool("setpriv")]) {
        return;
    }
    let mut mounted = mounted("weftfs-privileges");
    let place = mounted.at.clone();
    let at = |name: &str| place.join(name);
    let (file, folder) = (at("file"), at("folder"));
    fs::write(&file, "text").expect("written");
    fs::create_dir(&folder).expect("made");
    let fifo = Mode::from_raw_mode(0o755);
    mknodat(CWD, at("fifo"), FileType::Fifo, fifo, 0).expect("made");
    mknodat(CWD, at("null"), FileType::CharacterDevice, fifo, 0x103).expect("made");
    symlink("file", at("link")).expect("linked");
    let mut group = 2000;
    let mut owned = |path: &Path, before: u32| {
        chmod(path, before);
        group += 1;
        chown(path, None, Some(group)).expect("changed");
        mode(path)
    };
    // Also if root does it, and of devices and pipes.
    for name in ["file", "fifo", "null"] {
        assert_eq!(owned(&at(name), 0o6755), 0o755, "{name}");
        // No privilege without the permission of the group.
        assert_eq!(owned(&at(name), 0o6745), 0o2745, "{name}");
    }
    assert_eq!(owned(&folder, 0o7755), 0o7755, "a folder gives none");
    for path in [&file, &at("fifo"), &folder] {
        chmod(path, 0o6755);
        chown(path, None, None).expect("nothing to change");
    }
    assert_eq!([&file, &at("fifo"), &folder].map(|path| mode(path)), [0o755, 0o755, 0o6755]);
    chmod(&file, 0o6755);
    lchown(at("link"), Some(5), Some(5)).expect("changed");
    assert_eq!(mode(&file), 0o6755);
    chown(&file, Some(1001), Some(1001)).expect("changed");
    // Without a new owner, too, if the owner asks.
    chmod(&file, 0o6755);
    assert!(may(1001, "chgrp", &["1001"], &file));
    assert_eq!(mode(&file), 0o755);
    // A write by another user ends them, root's does not; nor does reading.
    for script in
        ["fallocate -l 9 \"$0\"", "truncate -s 2 \"$0\"", "echo 2 >> \"$0\"", "echo 2 1<> \"$0\""]
    {
        chmod(&file, 0o6777);
        assert!(may(1002, "cat", &[], &file));
        fs::write(&file, "root's").expect("written");
        assert_eq!(mode(&file), 0o6777, "before {script}");
        run(&mut by(1002, "sh", &["-c", script], &file));
        assert_eq!(mode(&file), 0o777, "{script}");
    }
    chown(&file, Some(1001), Some(7)).expect("changed");
    chmod(&file, 0o2775);
    set(&file, ACCESS, &list(7, (1002, 7), 7, 7, 5)).expect("set");
    assert_eq!(mode(&file), 0o2775, "root keeps it");
    mounted.bench.weft(&["fs", "fsck", "mnt"]);
    mounted.unmount();
    mounted.mount(&["d0", "d1", "d2"]);
    assert_eq!((mode(&file), mode(&at("null"))), (0o2775, 0o2745));
    mounted.unmount();
}

#[test]
fn what_another_user_wrote_is_not_executed_with_privileges() {
    if !have(&NEEDS) || !have(&[Need::Tool("setpriv"), Need::Tool("dd")]) {
        return;
    }
    let mut mounted = mounted("weftfs-execution");
    mounted.unmount();
    mounted.mount(&["-o", "suid", "d0", "d1", "d2"]);
    let program = mounted.at.join("id");
    fs::copy("/usr/bin/id", &program).expect("copied");
    let user = |script: &str| {
        let said = run(&mut by(1002, "sh", &["-c", script], &program)).stdout;
        String::from_utf8_lossy(&said).trim().to_owned()
    };
    let writes = ["dd if=\"$0\" of=\"$0\" bs=1 count=1 conv=notrunc 2>&-", "fallocate -l 1 \"$0\""];
    for write in writes {
        chmod(&program, 0o4777);
        assert_eq!(user("exec \"$0\" -u"), "0", "before {write}");
        // No program asks for the mode in between, so the kernel decides by what it has kept.
        assert_eq!(user(&format!("{write}; exec \"$0\" -u")), "1002", "{write}");
    }
    mounted.unmount();
}
