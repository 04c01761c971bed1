//! `weft fs`: creates and mounts file systems, and talks to mounted ones through attributes of
//! their root folder ([`weft_fuse::control`]).

mod assembly;
mod cluster;
mod ending;
mod identity;
mod options;
mod set;
mod status;

pub use options::helper_line;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FsWord, XattrFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use serde_json::{Value, json};
use weft_cli::disks::{DiskAddress, Opener, absolute};
use weft_cli::failure::{ATTENTION, Failure, Outcome};
use weft_cli::interrupt::Interrupt;
use weft_cli::output::{announce, announce_answer, answer, errln, log_line, outln};
use weft_cli::progress::Progress;
use weft_cli::{size, thread};
use weft_fs::{CreateOptions, FsError, Job, MountOptions, Time, plan_room};
use weft_fuse::{awake, control, mount, tree};
use weft_rt::{Nanos, SECOND};

use crate::background;
use crate::block::loop_device::LoopDevice;
use crate::cli::{
    ClusterAt, FsAction, FsAddArgs, FsArgs, FsBalanceArgs, FsCancelArgs, FsCreateArgs, FsDiskArgs,
    FsFailArgs, FsGrowArgs, FsMountArgs, FsPlaceArgs, FsScrubArgs, FsckArgs,
};
use crate::daemon::attached::prepare_for_reclaim;
use crate::daemon::notify;

use assembly::{Assembled, assemble, lacks_disks, open_all};

/// Time between two looks at a job.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time between two looks for disks that are missing.
const LOOK_FOR_DISKS_EVERY: Nanos = SECOND / 2;
/// Where a file system without named disks is looked for. Not all machines have both.
const FOLDERS: [&str; 2] = ["/dev", "/dev/mapper"];
/// The type of file systems that are served through FUSE.
const FUSE: FsWord = 0x6573_5546;
/// Longest value of an attribute, in bytes.
const VALUE_MAX: usize = 64 << 10;

/// `weft fs`.
pub fn fs(args: &FsArgs, json: bool) -> Outcome {
    let mut action = args.action.clone();
    if let Some(place) = action.place_mut() {
        *place = identity::place_of(place)?;
    }
    match &action {
        FsAction::Create(args) => create(args, json),
        FsAction::Mount(args) => mount(args, json),
        FsAction::Status(args) => status::status(args, json),
        FsAction::Df(args) => status::df(args, json),
        FsAction::Set(args) => set::set(args, json),
        FsAction::Fail(args) => fail(args, json),
        FsAction::Add(args) => add(args, json),
        FsAction::Grow(args) => grow(args, json),
        FsAction::Remove(args) => remove(args, json),
        FsAction::Rebuild(args) => rebuild(args, json),
        FsAction::Balance(args) => balance(args, json),
        FsAction::Scrub(args) => scrub(args, json),
        FsAction::Cancel(args) => cancel(args, json),
        FsAction::Fsck(args) => fsck(args, json),
        FsAction::Keeper(args) => cluster::keeper(args, json),
        FsAction::Evict(args) => cluster::evict(args, json),
    }
}

fn now() -> Time {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Time { s: i64::try_from(since.as_secs()).unwrap_or(0), ns: since.subsec_nanos() }
}

fn failed(error: FsError) -> Failure {
    let why = error.to_string();
    let hint = match &error {
        FsError::Unmountable(why) if why.contains("as degraded") => {
            "`--degraded` mounts it without missing disks: their data is rebuilt on the other disks"
        }
        FsError::Unmountable(why) if why.contains("as stale") => {
            "`--stale` mounts the state on these disks; changes that only the missing disks have are lost"
        }
        _ => return Failure::new(why),
    };
    Failure::new(why).hint(hint)
}

/// Fails if a disk is named twice.
fn check_distinct(places: &[String]) -> Outcome {
    let mut seen = BTreeSet::new();
    for place in places {
        let of = match DiskAddress::of(place) {
            DiskAddress::Path(path) => path.canonicalize().unwrap_or(path),
            DiskAddress::Uri(uri) => uri.into(),
        };
        if !seen.insert(of) {
            return Err(Failure::usage(format!("{place} is named twice")));
        }
    }
    Ok(())
}

/// Fails unless root runs this.
fn require_root(what: &str) -> Outcome {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(Failure::new(format!("{what} needs root")).hint("run it with sudo")),
    }
}

/// If the user forgets the name, the first disk takes its place, and only seems to be left out.
fn refuse_disk_as_name(args: &FsCreateArgs) -> Outcome {
    let is_disk = |data: std::fs::Metadata| data.is_file() || data.file_type().is_block_device();
    if args.force || !std::fs::metadata(&args.name).is_ok_and(is_disk) {
        return Ok(());
    }
    let what = format!("the first argument is the file system's name, but {} is a disk", args.name);
    Err(Failure::usage(what).hint("give its name before its disks; nothing was changed"))
}

fn create(args: &FsCreateArgs, json: bool) -> Outcome {
    let places = args.disks.iter().map(|disk| absolute(disk)).collect::<Result<Vec<_>, _>>()?;
    check_distinct(&places)?;
    refuse_disk_as_name(args)?;
    let options = CreateOptions {
        name: args.name.clone(),
        redundancy: args.redundancy,
        slice_bytes: args.metadata,
        force: args.force,
        id: thread::random()?,
        now: now(),
    };
    let name = args.name.clone();
    let count = places.len();
    let shared = args.cluster.cluster.is_some().then(|| args.cluster.clone());
    let room = thread::run(move |opener: Opener| async move {
        if let Some(cluster) = shared {
            return cluster::create(&opener, &cluster, &places, &options).await;
        }
        let disks = open_all(&opener, &places, false, false).await?;
        weft_fs::create(&opener.rt, &disks, &options).await.map_err(failed)?;
        let sizes: Vec<u64> = disks.iter().map(|disk| disk.info().size_bytes).collect();
        Ok(plan_room(&sizes, options.redundancy, options.slice_bytes))
    })?;
    let usable = room.disk_bytes.min(room.described_bytes);
    if json {
        return answer(&json!({
            "name": name, "disks": count, "room_bytes": usable,
            "limited_by_metadata": usable < room.disk_bytes,
        }));
    }
    outln!("created file system '{name}' on {count} disks: room for {}", size::show(usable));
    if usable < room.disk_bytes {
        outln!(
            "warning: the disks have room for {}, but the metadata describes no more when it has grown to \
             {} of each disk with a copy; leave out the smallest disk, or name it last if there are more \
             than three",
            size::show(room.disk_bytes),
            size::show(room.grown_slice_bytes)
        );
    }
    match &args.cluster.cluster {
        None => outln!("mount it: weft fs mount {} FOLDER {}", args.name, args.disks.join(" ")),
        Some(at) => {
            let at = if *at == ClusterAt::Disks { "disks" } else { "…" };
            outln!("keep it: weft fs keeper {} {} --cluster {at}", args.name, args.disks.join(" "));
        }
    }
    Ok(())
}

fn mount(args: &FsMountArgs, json: bool) -> Outcome {
    let mut args = args.clone();
    let given = options::read(&mut args)?;
    let options::Options { flags, access_times, remounts } = given;
    if remounts {
        return remount(&args, flags);
    }
    if args.background && !background::is_detached() {
        let file = format!("weftfs-{}.log", args.name.replace('/', "_"));
        let usual = || Path::new("/run").join(file);
        let line = helper_line(std::env::args_os().collect()).unwrap_or_default();
        return background::start(line, &args.log.clone().unwrap_or_else(usual));
    }
    let places = match args.disks.is_empty() {
        true => {
            FOLDERS.into_iter().filter(|at| Path::new(at).is_dir()).map(str::to_owned).collect()
        }
        false => args.disks.iter().map(|disk| absolute(disk)).collect::<Result<Vec<_>, _>>()?,
    };
    check_distinct(&places)?;
    let name = args.name.clone();
    let folder = mount::folder_for(&args.folder)?;
    if background::is_detached() {
        background::leave_session();
        // Its folder may be the one to unmount.
        let _ = std::env::set_current_dir("/");
    }
    let options = MountOptions {
        degraded: args.degraded,
        stale: args.stale,
        read_only: args.read_only,
        access_times,
        cache_bytes: args.cache,
        meta_cache_bytes: args.metadata_cache,
        nonce: u64::from_le_bytes(thread::random()?),
        host: None,
        now: now(),
        clock: Some(now),
    };
    if args.cluster.cluster.is_some() {
        require_root("mounting")?;
        return thread::run(move |opener: Opener| async move {
            let given = (folder, given);
            cluster::mount_as_node(&opener, &args, given, options, json).await
        });
    }
    if args.early_commit {
        return Err(Failure::usage("--early-commit is for nodes of a cluster").hint(
            "without a keeper on another machine there is no memory that outlives this one",
        ));
    }
    let (keeps_awake, stop_timeout) = (args.awake, args.stop_timeout);
    let (wait, passes_sync_on) = (args.wait, args.syncfs);
    thread::run(move |opener: Opener| async move {
        let latency = keeps_awake.then(awake::open).transpose()?;
        let deadline = Instant::now().checked_add(wait);
        let mut told = String::new();
        let Assembled { fs, open, _only } = loop {
            // Disks that are missing may come: only in the end it is mounted without them.
            let is_over = deadline.is_none_or(|deadline| Instant::now() >= deadline);
            let degraded = options.degraded && is_over;
            let stale = options.stale && is_over;
            let now = MountOptions { degraded, stale, ..options };
            match assemble(&opener, &name, &folder, &places, now).await {
                Err(failure) if !is_over && lacks_disks(&failure) => {
                    if told != failure.message {
                        let text = format!(
                            "waiting at most {}: {}",
                            size::show_duration(wait),
                            failure.message
                        );
                        log_line(&text);
                        background::tell_starter(&text);
                        told = failure.message;
                    }
                    opener.rt.sleep(LOOK_FOR_DISKS_EVERY).await;
                }
                assembled => break assembled?,
            }
        };
        let (rt, ring) = (opener.rt.clone(), opener.ring.clone());
        let channel = mount_on(&folder, &fs.label().name, flags, passes_sync_on)?;
        ending::on_signals(&folder, stop_timeout)?;
        let name = &fs.label().name;
        match json {
            true => announce_answer(&json!({ "mounted": name, "folder": folder })),
            false => announce(&format!("file system '{name}' is mounted on {}", folder.display())),
        }
        notify::systemd("READY=1");
        prepare_for_reclaim();
        let served = tree::serve(rt, ring, OwnedFd::from(channel), fs.clone(), open, latency).await;
        let unmounted = fs.unmount().await.map_err(failed);
        served.map_err(|e| Failure::new(format!("/dev/fuse: {e}")))?;
        unmounted
    })
}

/// Mounts it; to receive `sync` and `syncfs`, with a loop device that ends with the mount.
fn mount_on(
    folder: &Path,
    name: &str,
    flags: MountFlags,
    passes_sync_on: bool,
) -> Result<File, Failure> {
    if !passes_sync_on {
        return mount::mount_on(folder, name, None, flags);
    }
    let device = LoopDevice::placeholder()?;
    let mounted = mount::mount_on(folder, name, Some(&device.node().path()), flags);
    device.remove_when_unused()?;
    mounted
}

/// Changes the flags of a mount.
fn remount(args: &FsMountArgs, flags: MountFlags) -> Outcome {
    let folder = mount::folder_for(&args.folder)?;
    let status = ask(&folder, control::STATUS)?;
    if !args.read_only && status["read_only"] == true {
        let why = format!("{} was mounted read-only", folder.display());
        return Err(Failure::new(why).hint("unmount it, and mount it again for writing"));
    }
    mount::remount(&folder, flags)
}

/// Reads an attribute of a mounted file system's root folder.
fn ask(folder: &Path, name: &str) -> Result<Value, Failure> {
    let mut value = vec![0; VALUE_MAX];
    let read = rustix::fs::getxattr(folder, name, &mut value[..]);
    let len = read.map_err(|errno| match (errno, refusal(folder)) {
        (Errno::INVAL, Some(why)) => Failure::new(why),
        _ => not_reached(folder, errno),
    })?;
    let text = &value[..len];
    serde_json::from_slice(text).map_err(|e| Failure::new(format!("{}: {e}", folder.display())))
}

fn not_reached(folder: &Path, error: Errno) -> Failure {
    let is_fuse = rustix::fs::statfs(folder).is_ok_and(|of| of.f_type == FUSE);
    if let Some(failure) = require_root("this command").err().filter(|_| is_fuse) {
        return failure;
    }
    let folder = folder.display();
    match error {
        Errno::NODATA | Errno::OPNOTSUPP => Failure::new(format!(
            "{folder}: no weft file system is mounted there"
        ))
        .hint(
            "give the folder on which one is mounted, as root; `findmnt -t fuse.weftfs,fuseblk.weftfs` lists them",
        ),
        _ => Failure::new(format!("{folder}: {error}")),
    }
}

/// Fails unless a path belongs to a mounted weft file system, which gives this attribute. Others
/// would keep what they are told as an attribute that means nothing to them, or have copies of it.
fn require_weftfs(path: &Path, name: &str) -> Outcome {
    let is_fuse = rustix::fs::statfs(path).map(|of| of.f_type == FUSE);
    let is_here = match is_fuse {
        Ok(true) => rustix::fs::getxattr(path, name, &mut [0; 0]).map(drop),
        Ok(false) => Err(Errno::NODATA),
        Err(error) => Err(error),
    };
    is_here.map_err(|errno| not_reached(path, errno))
}

/// Sets an attribute of a mounted file system's root folder: it carries out a command.
fn tell(folder: &Path, name: &str, value: &str) -> Outcome {
    require_weftfs(folder, control::REFUSED)?;
    rustix::fs::setxattr(folder, name, value.as_bytes(), XattrFlags::empty()).map_err(
        |errno| match (errno, refusal(folder)) {
            (Errno::ROFS, _) => Failure::new(format!("{} is mounted read-only", folder.display()))
                .hint("unmount it, and mount it again for writing"),
            (Errno::INVAL | Errno::BUSY | Errno::IO, Some(why)) => Failure::new(why),
            _ => not_reached(folder, errno),
        },
    )
}

/// Why the last command was refused.
fn refusal(folder: &Path) -> Option<String> {
    let mut value = vec![0; VALUE_MAX];
    let len = rustix::fs::getxattr(folder, control::REFUSED, &mut value[..]).ok()?;
    let why = String::from_utf8_lossy(&value[..len]).into_owned();
    (!why.is_empty()).then_some(why)
}

/// The number of a disk that is named by it, or by its path.
fn disk_number(folder: &Path, disk: &str) -> Result<u16, Failure> {
    if let Ok(number) = disk.parse() {
        return Ok(number);
    }
    let status = ask(folder, control::STATUS)?;
    let disks = status["disks"].as_array().cloned().unwrap_or_default();
    let is_it = |name: &str| {
        let same = |path: &str| absolute(disk).is_ok_and(|disk| disk == path);
        let files = [name, disk].map(|path| Path::new(path).canonicalize().ok());
        name == disk || same(name) || files[0].is_some() && files[0] == files[1]
    };
    // One that is back has the name of the one that was lost.
    let mut found = disks.iter().filter(|of| of["name"].as_str().is_some_and(is_it));
    let found = found.clone().find(|of| of["lost"] == false).or_else(|| found.next());
    let number = found.and_then(|of| u16::try_from(of["number"].as_u64()?).ok());
    number.ok_or_else(|| {
        Failure::new(format!("{disk} is no disk of the file system on {}", folder.display()))
            .hint(format!("`weft fs status {}` shows numbers and names", folder.display()))
    })
}

fn fail(args: &FsFailArgs, json: bool) -> Outcome {
    let disk = disk_number(&args.folder, &args.disk)?;
    let number = disk.to_string();
    if args.dry_run {
        return show_loss(args, disk, json);
    }
    let wanted = match args.force {
        true => json!({ "disk": disk, "force": true }).to_string(),
        false => number.clone(),
    };
    tell(&args.folder, control::FAIL, &wanted).map_err(|failure| match args.force {
        true => failure,
        false => failure.hint(format!(
            "`weft fs remove {} {number}` empties a disk first; `--force` overrides this, and blocks that \
             only it can give are lost",
            args.folder.display()
        )),
    })?;
    if json {
        return answer(&json!({ "disk": disk, "done": true }));
    }
    outln!(
        "disk {number} is out of service, and its data is rebuilt on the other disks: `weft fs rebuild \
         {}` shows the progress",
        args.folder.display()
    );
    Ok(())
}

/// Which files would lose blocks without a disk.
fn show_loss(args: &FsFailArgs, number: u16, json: bool) -> Outcome {
    let folder = args.folder.display();
    let name = format!("{}{number}", control::LOSS);
    let loss = ask(&args.folder, &name).map_err(|failure| match refusal(&args.folder) {
        Some(why) => Failure::new(why),
        None => failure,
    })?;
    let files = loss["files"].as_u64().unwrap_or(0);
    if json {
        answer(&json!({
            "disk": number, "done": false, "files": files, "first_files": loss["first_files"],
        }))?;
    } else if files == 0 {
        outln!("no file would lose anything without disk {number} of {folder}");
    } else {
        outln!("{files} files of {folder} have blocks that only disk {number} can give:");
        for path in loss["first_files"].as_array().into_iter().flatten() {
            outln!("  {}", path.as_str().unwrap_or_default());
        }
    }
    if files == 0 { Ok(()) } else { Err(Failure::said(ATTENTION)) }
}

fn add(args: &FsAddArgs, json: bool) -> Outcome {
    let disk = absolute(&args.disk)?;
    let wanted = json!({ "disk": disk, "force": args.force });
    tell(&args.folder, control::ADD, &wanted.to_string()).map_err(|failure| {
        match &failure.hint {
            None if !args.force && failure.message.contains(" holds ") => {
                failure.hint("`--force` overwrites it")
            }
            _ => failure,
        }
    })?;
    if json {
        return answer(&json!({ "disk": disk }));
    }
    outln!("{} is a disk of the file system now", args.disk);
    outln!("`weft fs balance {}` spreads the files that exist over it", args.folder.display());
    Ok(())
}

/// `weft fs grow`.
fn grow(args: &FsGrowArgs, json: bool) -> Outcome {
    let before = ask(&args.folder, control::STATUS)?;
    let disks = before["disks"].as_array().into_iter().flatten();
    let larger = disks.filter(|disk| disk["unused_bytes"].as_u64().is_some_and(|more| more > 0));
    let numbers: Vec<u64> = match args.disk {
        Some(disk) => vec![disk.into()],
        None => larger.filter_map(|disk| disk["number"].as_u64()).collect(),
    };
    if numbers.is_empty() {
        return Err(Failure::new("no disk has become larger")
            .hint("enlarge the file or volume below one first; nothing was changed"));
    }
    for number in &numbers {
        tell(&args.folder, control::GROW, &number.to_string())?;
    }
    let after = ask(&args.folder, control::STATUS)?;
    let bytes = |status: &Value| {
        let disks = status["disks"].as_array().into_iter().flatten();
        disks.filter_map(|disk| disk["data_bytes"].as_u64()).sum::<u64>()
    };
    let gained = bytes(&after).saturating_sub(bytes(&before));
    if json {
        return answer(&json!({ "disks": numbers, "gained_bytes": gained }));
    }
    let names: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    outln!("{} more for data, on disks {}", size::show(gained), names.join(", "));
    outln!("`weft fs balance {}` moves existing data there", args.folder.display());
    Ok(())
}

/// Starts a job, follows it to its end, and returns how it ended.
fn follow(
    folder: &Path,
    begun: Job,
    (attribute, value): (&str, &str),
    silent: bool,
) -> Result<Value, Failure> {
    tell(folder, attribute, value)?;
    let mut progress: Option<Progress> = None;
    let mut has_warned = false;
    let interrupt = Interrupt::noted();
    loop {
        let place = folder.display();
        interrupt.check(
            &format!("the {} of {place}", begun.name()),
            &format!(
                "`weft fs status {place}` shows its progress, `weft fs cancel {place}` cancels it"
            ),
        )?;
        let status = ask(folder, control::STATUS)?;
        let job = &status["job"];
        let name = begun.name();
        if job["job"] != name {
            // Another one may have started automatically after it.
            let last = &status["last_job"];
            return match last["error"].as_str() {
                _ if last["job"] != name => Err(Failure::new(format!(
                    "the {name} has ended, and later jobs too: `weft fs status {}` shows the state",
                    folder.display()
                ))),
                Some(why) => Err(Failure::new(why.to_owned())),
                None => Ok(last.clone()),
            };
        }
        if let Some(lack) = status::lack_of_room(job, &folder.display().to_string())
            && !std::mem::replace(&mut has_warned, true)
        {
            errln!("warning: {lack}");
        }
        let bytes =
            |count: &str| job[count].as_u64().unwrap_or(0).saturating_mul(weft_fs::BLOCK_BYTES);
        let (done, total) = (bytes("done_blocks"), bytes("total_blocks"));
        let progress = progress.get_or_insert_with(|| Progress::new(name, total, silent));
        progress.at(done, total, &format!("{} of {}", size::show(done), size::show(total)));
        std::thread::sleep(LOOK_EVERY);
    }
}

fn remove(args: &FsDiskArgs, json: bool) -> Outcome {
    let disk = disk_number(&args.folder, &args.disk)?;
    let number = disk.to_string();
    let report = follow(&args.folder, Job::Remove(disk), (control::REMOVE, &number), json)?;
    if json {
        answer(&report)?;
    }
    left_files(&report).map_err(|failure| {
        failure.hint(format!(
            "disk {number} stays a disk of the file system: make room (`weft fs add`, or delete \
             files), and remove it again"
        ))
    })?;
    if !json {
        outln!("disk {number} has left the file system; {} blocks moved", report["blocks"]);
    }
    Ok(())
}

fn rebuild(args: &FsPlaceArgs, json: bool) -> Outcome {
    let status = ask(&args.folder, control::STATUS)?;
    let mut disks = status["disks"].as_array().into_iter().flatten();
    let is_due = disks.any(|disk| disk["lost"] == true)
        || [&status["job"], &status["last_job"]].iter().any(|job| job["job"] == "rebuild");
    if !is_due {
        return match json {
            true => answer(&json!({
                "job": "rebuild", "blocks": 0, "kept_blocks": 0, "removed_disks": [],
                "damaged_files": 0, "waiting_files": 0,
            })),
            false => {
                outln!("no disk is lost: there is nothing to rebuild");
                Ok(())
            }
        };
    }
    let report = follow(&args.folder, Job::Rebuild, (control::REBUILD, ""), json)?;
    if json {
        answer(&report)?;
    } else {
        outln!("{} blocks rebuilt; disks that left: {}", report["blocks"], report["removed_disks"]);
        if report["kept_blocks"].as_u64().is_some_and(|kept| kept > 0) {
            outln!("{} blocks were on disks that came back", report["kept_blocks"]);
        }
    }
    left_files(&report)
}

/// Fails if a job left files on the disks that it was to empty.
fn left_files(report: &Value) -> Outcome {
    let count = |name: &str| report[name].as_u64().unwrap_or(0);
    let (damaged, waiting) = (count("damaged_files"), count("waiting_files"));
    if damaged + waiting == 0 {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{damaged} files have blocks that cannot be had; {waiting} wait for room or disks"
    ))
    .with_code(ATTENTION))
}

fn balance(args: &FsBalanceArgs, json: bool) -> Outcome {
    let report = follow(&args.folder, Job::Balance, (control::BALANCE, ""), json)?;
    let count = |name: &str| report[name].as_u64().unwrap_or(0);
    let (damaged, crowded) = (count("damaged_files"), count("crowded_files"));
    if json {
        answer(&report)?;
    } else {
        outln!("{} blocks moved to disks with more room", count("blocks"));
        if crowded > 0 {
            outln!("{crowded} files were only partly moved: no contiguous space");
        }
    }
    if damaged == 0 {
        return Ok(());
    }
    Err(Failure::new(format!("{damaged} files have blocks that cannot be had"))
        .with_code(ATTENTION))
}

fn scrub(args: &FsScrubArgs, json: bool) -> Outcome {
    let report = follow(&args.folder, Job::Scrub, (control::SCRUB, ""), json)?;
    let count = |name: &str| report[name].as_u64().unwrap_or(0);
    let (bad, damaged) = (count("bad_blocks"), count("damaged_files"));
    let (metadata, diagnostic) = (count("metadata_mismatches"), count("diagnostic_blocks"));
    let no_copy = count("metadata_damaged");
    if json {
        answer(&report)?;
    } else {
        let (read, repaired) = (count("blocks"), count("repaired_blocks"));
        outln!("{read} blocks read: {bad} bad, {repaired} repaired; {damaged} files damaged");
        outln!("copies of the metadata were wrong in {metadata} places, which were repaired");
        if no_copy > 0 {
            outln!(
                "{no_copy} pages of the metadata are wrong on all copies: copy what can be read"
            );
        }
        if damaged > 0 {
            outln!("`weft fs fsck --data {}` names the files", args.folder.display());
        }
        if diagnostic > 0 {
            outln!("{diagnostic} diagnostic blocks were wrong, and were rewritten");
        }
    }
    if bad + damaged + metadata + no_copy + diagnostic == 0 {
        Ok(())
    } else {
        Err(Failure::said(ATTENTION))
    }
}

fn cancel(args: &FsCancelArgs, json: bool) -> Outcome {
    tell(&args.folder, control::CANCEL, "")?;
    let status = ask(&args.folder, control::STATUS)?;
    let job = status["last_job"]["job"].as_str().unwrap_or_default();
    if json {
        return answer(&json!({ "job": job }));
    }
    outln!("the {job} is cancelled; what it has done stays");
    Ok(())
}

fn fsck(args: &FsckArgs, json: bool) -> Outcome {
    let name = if args.data { control::CHECK_DATA } else { control::CHECK };
    let report = ask(&args.folder, name)?;
    let findings = report["findings"].as_u64().unwrap_or(0);
    if json {
        answer(&report)?;
    } else {
        outln!(
            "{} inodes, {} blocks read: {findings} findings",
            report["inodes"],
            report["blocks"]
        );
        for finding in report["first_findings"].as_array().into_iter().flatten() {
            let what = finding["what"].as_str().unwrap_or_default();
            match finding["path"].as_str() {
                Some(path) => outln!("  {path}: {what}"),
                None => outln!("  inode {}: {what}", finding["inode"]),
            }
        }
    }
    if findings == 0 { Ok(()) } else { Err(Failure::said(ATTENTION)) }
}
