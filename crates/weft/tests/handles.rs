//! A file handle, as an NFS server gives it to its clients, leads to its file as long as that is
//! there: when the kernel has forgotten it, after a rename, after another mount. Then it leads to
//! nothing, and never to another file.

use std::fs::{self, File};
use std::path::Path;

use crate::common::weftfs::{Mounted, NEEDS};
use weft_testkit::{Need, command, have, run, wait_until};

/// `handle FILE` prints its handle. `open MOUNT HANDLE` prints the path and the contents of what it
/// leads to, or the error.
const PROGRAM: &str = r#"
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
def checked(result):
    if result < 0:
        print(errno.errorcode[ctypes.get_errno()])
        sys.exit()
    return result
handle = Handle(128)
if sys.argv[1] == "handle":
    mount = ctypes.c_int()
    checked(libc.name_to_handle_at(-100, sys.argv[2].encode(), ctypes.byref(handle), ctypes.byref(mount), 0))
    print("%d:%s" % (handle.type, bytes(handle.data[:handle.bytes]).hex()))
else:
    kind, data = sys.argv[3].split(":")
    data = bytes.fromhex(data)
    handle.type, handle.bytes = int(kind), len(data)
    handle.data[:len(data)] = data
    mount = os.open(sys.argv[2], os.O_RDONLY)
    fd = checked(libc.open_by_handle_at(mount, ctypes.byref(handle), os.O_RDONLY))
    path = os.readlink("/proc/self/fd/%d" % fd)
    if os.path.isdir(fd):
        print(path, *sorted(os.listdir(fd)))
    else:
        print(os.read(fd, 4096).decode())
"#;

fn python(args: &[&str]) -> String {
    let said = run(command("python3").args(["-c", PROGRAM]).args(args));
    String::from_utf8(said.stdout).expect("text").trim().to_owned()
}

fn handle(path: &Path) -> String {
    let handle = python(&["handle", &crate::common::text(path)]);
    assert!(handle.contains(':'), "{handle}");
    handle
}

/// What a handle leads to.
fn opened(mounted: &Mounted, handle: &str) -> String {
    python(&["open", &crate::common::text(&mounted.at), handle])
}

/// The kernel forgets what it need not know.
fn forget() {
    fs::write("/proc/sys/vm/drop_caches", "2").expect("root may do that");
}

#[test]
fn a_handle_leads_to_its_file_until_that_is_gone() {
    if !have(&NEEDS) || !have(&[Need::Tool("python3")]) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-handles", 3, 64 << 20);
    let place = mounted.at.clone();
    let at = |name: &str| place.join(name);
    fs::create_dir_all(at("a/b/c")).expect("made");
    for name in ["a/b/file", "a/b/c/other", "gone"] {
        fs::write(at(name), name).expect("written");
    }
    let names = ["a/b/file", "a/b/c/other", "gone", "a/b/c", "."];
    let [file, other, gone, folder, root] = names.map(|name| handle(&at(name)));
    for _ in 0..2 {
        forget();
        assert_eq!(opened(&mounted, &file), "a/b/file");
        assert_eq!(opened(&mounted, &other), "a/b/c/other");
        // The kernel finds the folders above it.
        assert_eq!(opened(&mounted, &folder), format!("{} other", at("a/b/c").display()));
        assert_eq!(opened(&mounted, &root), format!("{} a gone", place.display()));
        mounted.unmount();
        mounted.mount_again();
    }
    fs::rename(at("a/b/file"), at("file")).expect("renamed");
    fs::rename(at("a/b/c"), at("c")).expect("renamed");
    forget();
    assert_eq!(opened(&mounted, &file), "a/b/file");
    assert_eq!(opened(&mounted, &folder), format!("{} other", at("c").display()));
    // As long as a program has it open it is there.
    let open = File::open(at("gone")).expect("there");
    fs::remove_file(at("gone")).expect("removed");
    forget();
    assert_eq!(opened(&mounted, &gone), "gone");
    drop(open);
    fs::remove_dir_all(at("c")).expect("removed");
    // The kernel tells later what it does not know any more.
    for handle in [&gone, &folder, &other] {
        wait_until("it is gone", || {
            forget();
            opened(&mounted, handle) == "ESTALE"
        });
    }
    mounted.unmount();
    mounted.mount_again();
    assert_eq!([&gone, &folder].map(|handle| opened(&mounted, handle)), ["ESTALE", "ESTALE"]);
    assert_eq!(opened(&mounted, &file), "a/b/file");
    mounted.ends_sound();
}

#[test]
fn a_handle_of_what_a_crash_took_leads_to_no_file_with_the_same_number() {
    use std::os::unix::fs::MetadataExt as _;
    if !have(&NEEDS) || !have(&[Need::Tool("python3")]) {
        return;
    }
    let mut mounted = Mounted::on_disks("weftfs-generation", 3, 64 << 20);
    // It may have become durable by itself.
    for _ in 0..20 {
        File::open(&mounted.at).expect("there").sync_all().expect("synced");
        let file = mounted.at.join("file");
        fs::write(&file, "first").expect("written");
        let (before, number) = (handle(&file), fs::metadata(&file).expect("there").ino());
        mounted.kill9();
        mounted.mount_again();
        if file.exists() {
            fs::remove_file(&file).expect("removed");
            continue;
        }
        fs::write(&file, "second").expect("written");
        assert_eq!(fs::metadata(&file).expect("there").ino(), number, "the number is used again");
        assert_eq!(opened(&mounted, &before), "ESTALE");
        assert_eq!(opened(&mounted, &handle(&file)), "second");
        return mounted.ends_sound();
    }
    panic!("no crash took the file");
}
