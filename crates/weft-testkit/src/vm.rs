//! A shell script inside a real Linux kernel with MD, in a virtual machine whose disks are NBD
//! exports.
//!
//! Other than [`Uml`](crate::Uml) it has a real block layer and a driver with a queue: requests
//! reach the disks merged and many at a time, so times may be compared. The processor is emulated
//! (no KVM is needed, and inside of virtual machines it is often there and does not work): what it
//! computes is slow, which matters little beside hard disks and much beside SSDs.
//!
//! The kernel is that of a package, installed or only unpacked; the guest lives in memory, with
//! busybox, mdadm and the programs that are brought along.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::need::{Need, find_tool, have, skip};
use crate::process::{Process, command, run};
use crate::scratch::Scratch;
use crate::uml::{UmlOutcome, install, make_executable};

/// The folders of modules that MD and the disks need.
const MODULES: [&str; 6] =
    ["drivers/md", "drivers/virtio", "drivers/block", "crypto", "arch/x86/crypto", "lib"];

/// A machine to be started.
#[derive(Debug)]
pub struct Vm {
    kernel: PathBuf,
    modules: PathBuf,
    tools: Vec<PathBuf>,
    files: Vec<PathBuf>,
    disks: Vec<String>,
}

impl Vm {
    /// A machine, if this one can run it: with QEMU, busybox, mdadm, and a kernel below
    /// `$WEFT_GUEST_KERNEL` or `/` (`boot/vmlinuz-VERSION`, `lib/modules/VERSION` with raid456). If
    /// not, that is said as of a test that is skipped.
    #[must_use]
    pub fn find() -> Option<Self> {
        let tools = ["qemu-system-x86_64", "busybox", "mdadm"].map(Need::Tool);
        if !have(&tools) {
            return None;
        }
        let root = std::env::var_os("WEFT_GUEST_KERNEL").unwrap_or_else(|| "/".into());
        let root = PathBuf::from(root);
        let versions = fs::read_dir(root.join("lib/modules")).into_iter().flatten().flatten();
        let mut found: Vec<(PathBuf, PathBuf)> = versions
            .map(|entry| {
                let kernel = format!("boot/vmlinuz-{}", entry.file_name().display());
                (root.join(kernel), entry.path())
            })
            .filter(|(kernel, modules)| {
                kernel.is_file() && modules.join("kernel/drivers/md/raid456.ko").is_file()
            })
            .collect();
        found.sort();
        let Some((kernel, modules)) = found.pop() else {
            skip("no kernel with MD as a module below / or $WEFT_GUEST_KERNEL");
            return None;
        };
        let mdadm = find_tool("mdadm").expect("it was found before");
        Some(Self { kernel, modules, tools: vec![mdadm], files: Vec::new(), disks: Vec::new() })
    }

    /// Brings a program of this machine, with its libraries.
    #[must_use]
    pub fn tool(mut self, path: &Path) -> Self {
        self.tools.push(path.into());
        self
    }

    /// Brings a file, which the script finds in the folder that it stands in.
    #[must_use]
    pub fn file(mut self, path: &Path) -> Self {
        self.files.push(path.into());
        self
    }

    /// Gives it a disk, an NBD export's URI: the first is `/dev/vda`, the next `/dev/vdb`.
    #[must_use]
    pub fn disk(mut self, uri: &str) -> Self {
        self.disks.push(uri.into());
        self
    }

    /// The kernel's release.
    #[must_use]
    pub fn release(&self) -> String {
        self.modules.file_name().unwrap_or_default().display().to_string()
    }

    /// Boots, runs `script` with busybox's shell (`set -eu`), and powers off; no longer than
    /// `patience`.
    ///
    /// # Panics
    /// If the machine cannot be made.
    #[track_caller]
    #[must_use]
    pub fn run(&self, script: &str, patience: Duration) -> UmlOutcome {
        let scratch = Scratch::new("vm");
        self.make_image(&scratch, script);
        let mut machine = command("qemu-system-x86_64");
        machine
            .args(["-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", "1024", "-nodefaults"])
            .args(["-no-reboot", "-display", "none", "-append", "console=ttyS0 quiet panic=-1"])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(scratch.join("image"));
        for stream in ["console", "output"] {
            machine.args(["-serial", &format!("file:{}", scratch.join(stream).display())]);
        }
        for (n, uri) in self.disks.iter().enumerate() {
            let drive = format!("if=none,id=d{n},format=raw,cache=none,file={uri}");
            machine.args(["-drive", &drive, "-device", &format!("virtio-blk-pci,drive=d{n}")]);
        }
        machine.stdout(Stdio::null());
        let _ = Process::spawn(&mut machine).wait_for(patience);
        let text = |name: &str| {
            let bytes = fs::read(scratch.join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\r', "")
        };
        let output = text("output");
        let (output, status) = output.rsplit_once("\nstatus ").unwrap_or((&output, ""));
        UmlOutcome {
            status: status.trim().parse().ok(),
            output: output.into(),
            console: text("console"),
        }
    }

    /// The guest's root, as an archive that the kernel unpacks to memory.
    fn make_image(&self, scratch: &Scratch, script: &str) {
        let root = scratch.join("root");
        for dir in ["bin", "proc", "sys", "dev", "tmp", "run", "etc", "host"] {
            fs::create_dir_all(root.join(dir)).expect("make the guest's root");
        }
        install(&root, &find_tool("busybox").expect("it was found before"));
        self.tools.iter().for_each(|tool| install(&root, tool));
        for file in &self.files {
            let name = file.file_name().expect("a file has a name");
            fs::copy(file, root.join("host").join(name)).expect("bring a file");
        }
        let modules = root.join("lib/modules").join(self.release()).join("kernel");
        for dir in MODULES {
            let to = modules.join(dir);
            fs::create_dir_all(&to).expect("make the modules' folder");
            let from = self.modules.join("kernel").join(dir).join(".");
            run(command("cp").arg("-r").arg(from).arg(&to));
        }
        fs::write(root.join("init"), INIT).expect("write init");
        make_executable(&root.join("init"));
        fs::write(root.join("script"), script).expect("write the script");
        let archive = "find . | busybox cpio -o -H newc >../image 2>../cpio";
        run(command("sh").args(["-c", archive]).current_dir(&root));
    }
}

/// The guest's first process. What the script prints goes to a serial port of its own.
const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs tmp /run
mkdir -p /run/mdadm
depmod -a
for module in virtio_pci virtio_blk raid456; do modprobe $module; done
cd /host
sh -eu /script </dev/null >/dev/ttyS1 2>&1
status=$?
echo >/dev/ttyS1
echo status $status >/dev/ttyS1
sync
poweroff -f
";
