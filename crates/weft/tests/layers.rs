//! An overlay file system, as container engines use it, can have its upper layer on weftfs: what is
//! removed from a lower layer is covered by a whiteout, which a rename leaves behind in one step.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use crate::common::weftfs::{Mounted, NEEDS};
use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with, setxattr};
use rustix::io::Errno;
use weft_testkit::{Need, command, have, run, skip};

/// Whether the file is a character device with the number 0.
fn is_whiteout(path: &Path) -> bool {
    let of = fs::symlink_metadata(path).expect("there");
    of.file_type().is_char_device() && of.rdev() == 0
}

#[test]
fn a_rename_leaves_a_whiteout_in_its_place() {
    if !have(&NEEDS) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-whiteout", 3, 64 << 20);
    let place = mounted.at.clone();
    let at = |name: &str| place.join(name);
    let rename = |from: &str, to: &str, flags: RenameFlags| {
        renameat_with(CWD, at(from), CWD, at(to), flags | RenameFlags::WHITEOUT)
    };
    for name in ["a", "b", "folder/in"] {
        fs::create_dir_all(at(name).parent().expect("a folder")).expect("made");
        fs::write(at(name), name).expect("written");
    }
    let read = |name: &str| fs::read_to_string(at(name)).expect("read");
    rename("a", "c", RenameFlags::empty()).expect("moved");
    assert!(is_whiteout(&at("a")) && read("c") == "a");
    // What was there is replaced, or is not.
    assert_eq!(rename("b", "c", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("b", "c", RenameFlags::empty()).expect("replaced");
    assert!(is_whiteout(&at("b")) && read("c") == "b");
    rename("folder/in", "in", RenameFlags::NOREPLACE).expect("moved");
    assert!(is_whiteout(&at("folder/in")) && read("in") == "folder/in");
    // A folder moves, too, and its links agree.
    rename("folder", "moved", RenameFlags::empty()).expect("moved");
    assert!(is_whiteout(&at("folder")) && is_whiteout(&at("moved/in")));
    assert_eq!(fs::metadata(&place).expect("there").nlink(), 3);
    assert_eq!(rename("c", "in", RenameFlags::EXCHANGE), Err(Errno::INVAL));
    // A name of the same file: nothing is done.
    fs::hard_link(at("c"), at("same")).expect("linked");
    rename("c", "same", RenameFlags::empty()).expect("done");
    assert!(read("c") == "b" && read("same") == "b");
    File::open(&place).expect("there").sync_all().expect("synced");
    mounted.kill9();
    mounted.mount_again();
    assert!(is_whiteout(&at("a")) && is_whiteout(&at("moved/in")) && read("c") == "b");
    mounted.ends_sound();
}

/// An overlay; unmounted when the story ends.
struct Overlay(std::path::PathBuf);

impl Overlay {
    /// With its upper layer in a folder of a weftfs, or why there is none.
    fn mount(mounted: &Mounted, lower: &Path, options: &str) -> Result<Self, String> {
        let (upper, work) = (mounted.at.join("upper"), mounted.at.join("work"));
        for folder in [&upper, &work] {
            fs::create_dir_all(folder).expect("made");
        }
        let at = mounted.bench.path("merged");
        fs::create_dir_all(&at).expect("made");
        let options = format!(
            "lowerdir={},upperdir={},workdir={}{options}",
            lower.display(),
            upper.display(),
            work.display()
        );
        let mut mount = command("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(&at);
        let output = mount.output().expect("started");
        match output.status.success() {
            true => Ok(Self(at)),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = command("umount").arg(&self.0).status();
    }
}

#[test]
fn the_upper_layer_of_an_overlay_is_on_weftfs() {
    if !have(&NEEDS) || !have(&[Need::Tool("mount"), Need::Tool("umount")]) {
        return;
    }
    let known = fs::read_to_string("/proc/filesystems").expect("a list");
    if !known.contains("\toverlay\n") {
        return skip("the kernel has no overlayfs");
    }
    let mut mounted = Mounted::on_disks("weftfs-overlay", 3, 64 << 20);
    let lower = mounted.bench.path("lower");
    fs::create_dir_all(lower.join("etc/deep")).expect("made");
    for name in ["etc/passwd", "etc/group", "etc/deep/file", "bin"] {
        fs::write(lower.join(name), name).expect("written");
    }
    let overlay = Overlay::mount(&mounted, &lower, "").expect("mounted");
    let at = |name: &str| overlay.0.join(name);
    fs::write(at("etc/passwd"), "changed").expect("copied up and written");
    fs::remove_file(at("etc/group")).expect("removed");
    fs::remove_dir_all(at("etc/deep")).expect("removed");
    // The folder is made again, and shows nothing of the one below it.
    fs::create_dir(at("etc/deep")).expect("made");
    fs::write(at("etc/new"), "new").expect("written");
    fs::rename(at("bin"), at("sbin")).expect("renamed");
    fs::hard_link(at("sbin"), at("link")).expect("linked");
    setxattr(at("etc/new"), "user.x", b"x", XattrFlags::empty()).expect("set");
    let check = |overlay: &Overlay| {
        let at = |name: &str| overlay.0.join(name);
        let read = |name: &str| fs::read_to_string(at(name)).expect("read");
        assert_eq!((read("etc/passwd"), read("sbin")), ("changed".into(), "bin".into()));
        assert!(!at("etc/group").exists() && !at("bin").exists());
        assert_eq!(fs::read_dir(at("etc/deep")).expect("a folder").count(), 0);
        let mut names: Vec<_> = fs::read_dir(at("etc")).expect("a folder").collect();
        names.sort_by_key(|entry| entry.as_ref().expect("read").file_name());
        let names: Vec<_> =
            names.into_iter().map(|entry| entry.expect("read").file_name()).collect();
        assert_eq!(names, ["deep", "new", "passwd"]);
    };
    check(&overlay);
    assert!(is_whiteout(&mounted.at.join("upper/etc/group")));
    assert!(is_whiteout(&mounted.at.join("upper/bin")));
    drop(overlay);
    mounted.unmount();
    mounted.mount_again();
    let overlay = Overlay::mount(&mounted, &lower, "").expect("mounted again");
    check(&overlay);
    // Removing and renaming go on, on what is above and below.
    run(command("rm").args(["-r"]).arg(overlay.0.join("etc")));
    assert!(!overlay.0.join("etc").exists());
    drop(overlay);
    mounted.ends_sound();
}
