//! The guest's root, as an archive that its kernel unpacks to memory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::Kernel;
use crate::process::{command, run};
use crate::scratch::Scratch;

/// Makes the file `image` in `scratch`.
pub(super) fn make(scratch: &Scratch, kernel: &Kernel, programs: &[PathBuf]) {
    let root = scratch.join("root");
    for dir in ["bin", "proc", "sys", "dev", "tmp", "run", "etc", "host", "guest"] {
        fs::create_dir_all(root.join(dir)).expect("make the guest's root");
    }
    programs.iter().for_each(|program| install(&root, program));
    let modules = root.join("lib/modules");
    fs::create_dir_all(&modules).expect("make the modules' folder");
    run(command("cp").arg("-r").arg(&kernel.modules).arg(&modules));
    let init = root.join("init");
    fs::write(&init, INIT).expect("write init");
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).expect("chmod");
    let archive = "find . | busybox cpio -o -H newc >../image 2>../cpio";
    run(command("sh").args(["-c", archive]).current_dir(&root));
    fs::remove_dir_all(root).expect("remove what is in the archive");
}

/// Copies a program and the libraries it loads to the guest's root.
fn install(root: &Path, program: &Path) {
    let copy = |from: &Path, to: &Path| {
        fs::create_dir_all(to.parent().expect("a file has a folder")).expect("make a folder");
        fs::copy(from, to).unwrap_or_else(|e| panic!("copy {}: {e}", from.display()));
    };
    copy(program, &root.join("bin").join(program.file_name().expect("a program has a name")));
    // Lines such as `libc.so.6 => /lib/…/libc.so.6 (0x…)`; a static program has none, and ldd
    // reports that with a status of 1.
    let listing = command("ldd").arg(program).output().expect("run ldd");
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    for library in listing.split_whitespace().filter(|word| word.starts_with('/')) {
        copy(Path::new(library), &root.join(&library[1..]));
    }
}

/// The guest's first process. Kernels differ in what they have built in: a module that is missing
/// is missed by the script that needs it.
const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs tmp /run
mkdir -p /run/mdadm
for module in virtio_pci virtio_blk 9pnet_virtio 9p crc32c_generic raid0 raid1 raid10 raid456
do modprobe $module; done
for tag in host guest
do mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 $tag /$tag || poweroff -f; done
cd /host
sh -eu /guest/script </dev/null >/guest/output 2>&1
echo $? >/guest/status
sync
poweroff -f
";
