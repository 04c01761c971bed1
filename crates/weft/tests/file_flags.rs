//! `chattr` makes files immutable, or lets them be appended to only, for root as well; and files
//! have a time of birth.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::common::weftfs::{Mounted, NEEDS};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, StatxFlags, XattrFlags, fallocate, setxattr, statx,
};
use rustix::io::Errno;
use weft_testkit::{Need, command, have, run};

fn chattr(change: &str, at: &Path) {
    run(command("chattr").arg(change).arg(at));
}

/// It is refused, as a flag forbids it.
#[track_caller]
fn refused<T>(result: std::io::Result<T>) {
    let error = result.err().expect("refused");
    assert_eq!(Errno::from_io_error(&error), Some(Errno::PERM));
}

#[test]
fn flags_forbid_changes_to_everybody_also_after_a_crash() {
    if !have(&NEEDS) || !have(&[Need::Tool("chattr"), Need::Tool("lsattr")]) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-flags", 3, 64 << 20);
    let place = mounted.at.clone();
    let at = |name: &str| place.join(name);
    for name in ["fixed", "log", "other"] {
        let mut file = File::create_new(at(name)).expect("made");
        file.write_all(name.as_bytes()).expect("written");
        file.sync_all().expect("synced");
    }
    for name in ["fixed-folder/in", "log-folder/in"] {
        fs::create_dir_all(at(name)).expect("made");
    }
    let mut open = File::options().write(true).open(at("fixed")).expect("opened");
    for (change, name) in
        [("+i", "fixed"), ("+a", "log"), ("+i", "fixed-folder"), ("+a", "log-folder")]
    {
        chattr(change, &at(name));
    }
    refused(open.write_all(b"x"));
    drop(open);
    for round in 0..2 {
        let xattr = |name| setxattr(at(name), "user.x", b"x", XattrFlags::empty());
        for name in ["fixed", "log"] {
            refused(fs::remove_file(at(name)));
            refused(fs::rename(at(name), at("new")));
            refused(fs::rename(at("other"), at(name)));
            refused(fs::hard_link(at(name), at("link")));
            refused(fs::set_permissions(at(name), fs::Permissions::from_mode(0o600)));
            refused(File::options().write(true).open(at(name)));
            refused(File::create(at(name)));
            refused(
                rustix::fs::chown(at(name), Some(rustix::fs::Uid::from_raw(1)), None)
                    .map_err(Into::into),
            );
            assert_eq!(xattr(name), Err(Errno::PERM));
            let old = std::time::SystemTime::UNIX_EPOCH;
            let file = File::open(at(name)).expect("it can be read");
            refused(file.set_modified(old));
        }
        refused(File::options().append(true).open(at("fixed")));
        let mut log = File::options().append(true).open(at("log")).expect("opened");
        log.write_all(b"+").expect("appended");
        log.sync_all().expect("synced");
        fallocate(&log, FallocateFlags::KEEP_SIZE, 0, 8192).expect("it changes nothing");
        refused(log.set_len(1));
        assert_eq!(fs::read_to_string(at("fixed")).expect("read"), "fixed");
        let names = fs::read_to_string(at("log")).expect("read");
        assert_eq!(names, format!("log{}", "+".repeat(round + 1)));
        refused(File::create_new(at("fixed-folder/new")));
        refused(fs::remove_dir(at("fixed-folder/in")));
        refused(fs::rename(at("other"), at("fixed-folder/other")));
        File::create_new(at(&format!("log-folder/{round}"))).expect("it may get names");
        refused(fs::remove_file(at(&format!("log-folder/{round}"))));
        refused(fs::rename(at(&format!("log-folder/{round}")), at("moved")));
        refused(fs::remove_dir(at("log-folder")));
        File::open(&place).expect("there").sync_all().expect("synced");
        mounted.kill9();
        mounted.mount_again();
    }
    let said = run(command("lsattr").arg("-d").args(["fixed", "log"].map(at)));
    let said = String::from_utf8(said.stdout).expect("text");
    assert!(said.contains("----i---") && said.contains("-----a--"), "{said}");
    for (change, name) in
        [("-i", "fixed"), ("-a", "log"), ("-i", "fixed-folder"), ("-a", "log-folder")]
    {
        chattr(change, &at(name));
        match at(name).is_dir() {
            true => fs::remove_dir_all(at(name)),
            false => fs::remove_file(at(name)),
        }
        .expect("nothing forbids it");
    }
    // Others are kept, or refused if they would mean nothing.
    chattr("+dA", &at("other"));
    let said = run(command("lsattr").arg(at("other")));
    assert!(String::from_utf8_lossy(&said.stdout).contains("dA-"), "{said:?}");
    let compressed = command("chattr").arg("+c").arg(at("other")).output().expect("started");
    assert!(!compressed.status.success());
    mounted.ends_sound();
}

#[test]
fn a_file_keeps_its_time_of_birth() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-birth", 3, 64 << 20);
    let born = |mounted: &Mounted, name: &str| {
        let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let of =
            statx(CWD, mounted.at.join(name), AtFlags::SYMLINK_NOFOLLOW, flags).expect("there");
        let has = StatxFlags::from_bits_retain(of.stx_mask).contains(StatxFlags::BTIME);
        has.then_some((of.stx_btime.tv_sec, of.stx_btime.tv_nsec))
    };
    let now = || std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
    let before = now();
    fs::write(mounted.at.join("file"), "x").expect("written");
    let Some(first) = born(&mounted, "file") else {
        return weft_testkit::skip("the kernel is too old to ask for the time of birth");
    };
    assert!((before..=now()).contains(&first.0.cast_unsigned()), "{before}, {first:?}");
    fs::write(mounted.at.join("file"), "changed").expect("written");
    fs::rename(mounted.at.join("file"), mounted.at.join("renamed")).expect("renamed");
    mounted.unmount();
    mounted.mount_again();
    assert_eq!(born(&mounted, "renamed"), Some(first));
    assert!(born(&mounted, ".").is_some());
    mounted.ends_sound();
}
