//! A shell script inside a real Linux kernel with MD, in a virtual machine.
//!
//! QEMU emulates the processor: no KVM is needed, which is often absent inside of virtual machines,
//! and nothing of the machine's own kernel matters. The guest's kernel is Debian's package, which
//! `guest-kernel` (next to this crate's manifest) unpacked into the user's cache. Its root is made
//! on the spot and lives in memory: busybox, mdadm, the programs that a test brings, and the
//! modules. `/host` is a folder of this machine, shared by 9p, where the script stands and through
//! which it exchanges files with the test. Disks are virtio drives over files or NBD exports, with
//! a real block layer above them: requests reach them merged and many at a time.
//!
//! A guest boots in five seconds of processor time, so that tests put several questions to one
//! boot. It computes slowly: it is an oracle for bytes and behaviour, and for times only where
//! disks are slow.
//!
//! A guest that hangs is ended after its patience, and the test fails with what it printed. The
//! script's output and status are files on a second shared folder, as the console also carries the
//! kernel's own words.

mod image;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::need::{Need, find_tool, have, skip};
use crate::process::{Process, command};
use crate::scratch::Scratch;

/// A guest that runs for longer is considered hung, unless configured otherwise; far above what
/// scripts need.
const PATIENCE: Duration = Duration::from_secs(900);

/// The guest's memory. The host provides touched pages, some 200 MiB after booting.
const MEMORY_MIB: u32 = 1024;

/// A machine to be started.
#[derive(Debug)]
pub struct Guest {
    kernel: Kernel,
    host: PathBuf,
    programs: Vec<PathBuf>,
    disks: Vec<String>,
    vhost_user: Vec<PathBuf>,
    patience: Duration,
}

/// The result of a script.
#[derive(Debug)]
pub struct GuestOutcome {
    /// The script's exit status; `None` if the guest ended before it did, or hung.
    pub status: Option<i32>,
    /// The script's output on both streams.
    pub output: String,
    /// The kernel's console and QEMU's errors, for the case that it failed.
    pub console: String,
}

/// A kernel that was unpacked.
#[derive(Debug)]
struct Kernel {
    image: PathBuf,
    /// `lib/modules/VERSION`.
    modules: PathBuf,
}

impl Guest {
    /// A guest that sees the folder `host` as `/host`, if this machine can run one: with QEMU,
    /// busybox, mdadm, and a kernel in the user's cache or below `$WEFT_GUEST_KERNEL`. Otherwise
    /// the test is reported as skipped.
    #[must_use]
    pub fn find(host: &Path) -> Option<Self> {
        if !have(&["qemu-system-x86_64", "busybox", "mdadm"].map(Need::Tool)) {
            return None;
        }
        let Some(kernel) = Kernel::find() else {
            skip("no kernel for guests in the cache; crates/weft-testkit/guest-kernel gets one");
            return None;
        };
        let programs =
            ["busybox", "mdadm"].map(|tool| find_tool(tool).expect("it was found before"));
        Some(Self {
            kernel,
            host: host.into(),
            programs: programs.into(),
            disks: Vec::new(),
            vhost_user: Vec::new(),
            patience: PATIENCE,
        })
    }

    /// Brings one more program of this machine, with its libraries.
    ///
    /// # Panics
    /// If there is none of this name.
    #[must_use]
    pub fn program(mut self, name: &str) -> Self {
        self.programs.push(find_tool(name).unwrap_or_else(|| panic!("no {name}")));
        self
    }

    /// Gives it a disk, a file or an NBD export's URI: the first is `/dev/vda`, the next
    /// `/dev/vdb`.
    #[must_use]
    pub fn disk(mut self, what: &str) -> Self {
        self.disks.push(what.into());
        self
    }

    /// Gives it a disk that a server shows at this socket (vhost-user-blk): after the others. If
    /// the server ends, the guest's requests wait for the next one.
    #[must_use]
    pub fn vhost_user_disk(mut self, socket: &Path) -> Self {
        self.vhost_user.push(socket.into());
        self
    }

    /// The time limit, a quarter of an hour by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The kernel's release.
    #[must_use]
    pub fn release(&self) -> String {
        self.kernel.release()
    }

    /// Boots, runs `script` with busybox's shell (`set -eu`) standing in `/host`, and powers off.
    /// `modprobe brd rd_nr=N rd_size=KIB` gives it RAM disks.
    ///
    /// # Panics
    /// If the machine cannot be made.
    #[track_caller]
    #[must_use]
    pub fn run(&self, script: &str) -> GuestOutcome {
        let scratch = Scratch::new("guest");
        image::make(&scratch, &self.kernel, &self.programs);
        let shared = scratch.join("shared");
        fs::create_dir(&shared).expect("make the folder that is shared");
        fs::write(shared.join("script"), script).expect("write the script");
        // One that hangs is killed here, and what it printed until then tells why.
        let _ = Process::spawn(&mut self.machine(&scratch, &shared)).wait_for(self.patience);
        let text = |path: PathBuf| {
            String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).replace('\r', "")
        };
        GuestOutcome {
            status: text(shared.join("status")).trim().parse().ok(),
            output: text(shared.join("output")),
            console: text(scratch.join("console")) + &text(scratch.join("errors")),
        }
    }

    fn machine(&self, scratch: &Scratch, shared: &Path) -> std::process::Command {
        let mut machine = command("qemu-system-x86_64");
        machine
            // Everything that QEMU emulates but a fifth level of page tables, which only costs
            // time. The kernel's look for a timer that works finds none on a busy machine.
            .args(["-M", "q35", "-accel", "tcg", "-cpu", "max,la57=off", "-smp", "1"])
            .args(["-m", &MEMORY_MIB.to_string(), "-nodefaults", "-no-reboot", "-display", "none"])
            .args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check"])
            .arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(scratch.join("image"))
            .args(["-serial", &format!("file:{}", scratch.join("console").display())]);
        for (tag, folder) in [("host", self.host.as_path()), ("guest", shared)] {
            let folder = folder.display();
            let share = format!("local,path={folder},mount_tag={tag},security_model=none");
            machine.args(["-virtfs", &share]);
        }
        for (n, what) in self.disks.iter().enumerate() {
            // A file is written through; an NBD export knows flushes itself. If its server ends,
            // the guest's requests wait until another one answers, and are then made again.
            let cache = match what.starts_with("nbd") {
                true => "none,file.reconnect-delay=60",
                false => "writethrough",
            };
            let drive = format!("if=none,id=d{n},format=raw,file={what},cache={cache}");
            machine.args(["-drive", &drive, "-device", &format!("virtio-blk-pci,drive=d{n}")]);
        }
        if !self.vhost_user.is_empty() {
            let memory = format!("memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on");
            machine.args(["-object", &memory, "-numa", "node,memdev=memory"]);
        }
        for (n, socket) in self.vhost_user.iter().enumerate() {
            let channel = format!("socket,id=v{n},path={},reconnect=1", socket.display());
            let device = format!("vhost-user-blk-pci,chardev=v{n}");
            machine.args(["-chardev", &channel, "-device", &device]);
        }
        let errors = fs::File::create(scratch.join("errors")).expect("make a file");
        machine.stdout(Stdio::null()).stderr(errors);
        machine
    }
}

impl GuestOutcome {
    /// What the script printed, if it ended well.
    ///
    /// # Panics
    /// With everything known, if it did not.
    #[track_caller]
    #[must_use]
    pub fn success(self) -> String {
        let Self { status, output, console } = self;
        assert_eq!(status, Some(0), "the guest failed\n--- output\n{output}--- console\n{console}");
        output
    }
}

impl Kernel {
    fn find() -> Option<Self> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        let cache =
            || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        let root =
            variable("WEFT_GUEST_KERNEL").or_else(|| Some(cache()?.join("weft/guest-kernel")))?;
        let versions = fs::read_dir(root.join("lib/modules")).ok()?.flatten();
        let kernels = versions.map(|entry| Self {
            image: root.join(format!("boot/vmlinuz-{}", entry.file_name().display())),
            modules: entry.path(),
        });
        kernels.filter(|kernel| kernel.image.is_file()).max_by_key(|kernel| kernel.image.clone())
    }

    fn release(&self) -> String {
        self.modules.file_name().unwrap_or_default().display().to_string()
    }
}
