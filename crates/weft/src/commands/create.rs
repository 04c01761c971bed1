//! `weft create`: creates an array; needs no daemon.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::rc::Rc;

use serde_json::json;
use weft_array::create::{CreatePlan, PlannedRole, plan};
use weft_array::superblock::check_name;
use weft_array::{Consistency, CreateError, CreateOptions, create as write_array};
use weft_cli::disks::{DiskAddress, Opener, absolute};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{answer, outln};
use weft_cli::size;
use weft_cli::thread;
use weft_code::CodeSpec;
use weft_disk::Disk;

use crate::cli::CreateArgs;
use crate::control::client::Client;
use crate::members::{NewFiles, require, reserve, with_owner};
use crate::runtime_dir::RuntimeDir;

/// `weft create`.
pub fn create(args: &CreateArgs, dir: Option<&RuntimeDir>, json: bool) -> Outcome {
    let options = options_of(args)?;
    refuse_member_as_name(args)?;
    if let Some(dir) = dir.filter(|_| !args.force) {
        refuse_served_name(&args.name, dir)?;
    }
    let mut new_files = NewFiles::default();
    if args.size.is_none() {
        args.members.iter().try_for_each(|member| require(member))?;
    }
    if let Some(bytes) = args.size {
        for member in &args.members {
            if let DiskAddress::Path(path) = DiskAddress::of(member) {
                new_files.create_if_missing(&path, bytes)?;
            }
        }
    }
    let places: Vec<String> = args.members.iter().map(|m| absolute(m)).collect::<Result<_, _>>()?;
    refuse_twice(&args.members, &places)?;
    let (dry_run, sparse) = (args.dry_run, args.sparse);
    let plan = thread::run(move |opener: Opener| async move {
        let mut disks: Vec<Rc<dyn Disk>> = Vec::new();
        for place in &places {
            // A dry run claims them, too: it writes nothing, and sees what stands in the way.
            match opener.open(place, false).await {
                Ok(disk) => disks.push(disk),
                Err(error) => return Err(with_owner(&opener, place, error).await.into()),
            }
        }
        let plan = plan(&disks, &options).await.map_err(explain)?;
        if !sparse {
            let paths = places.iter().filter_map(|place| match DiskAddress::of(place) {
                DiskAddress::Path(_) => Some(Path::new(place)),
                DiskAddress::Uri(_) => None,
            });
            reserve(paths, dry_run)?;
        }
        if !dry_run {
            write_array(&disks, &options).await.map_err(explain)?;
        }
        Ok(plan)
    })?;
    if !dry_run {
        new_files.keep();
    }
    if json {
        let created = !dry_run;
        answer(&json!({ "created": created, "array": plan }))?;
    } else {
        show(&plan, dry_run);
    }
    Ok(())
}

/// If the user forgets the name, the first member takes its place, and the array only seems to lack
/// a member.
fn refuse_member_as_name(args: &CreateArgs) -> Outcome {
    let is_disk = |data: std::fs::Metadata| data.is_file() || data.file_type().is_block_device();
    if args.force || !std::fs::metadata(&args.name).is_ok_and(is_disk) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the first argument is the array's name, but {} is a disk",
        args.name
    ))
    .hint("give the array's name before its members; nothing was changed"))
}

/// Refuses a name under which the daemon serves an array: at its next start it could not tell which
/// of the two users want, and would start neither.
fn refuse_served_name(name: &str, dir: &RuntimeDir) -> Outcome {
    let served = Client::connect(dir).and_then(|mut client| client.array_name(name));
    // Without a daemon there is nothing to ask; it may serve an array with such an id.
    if served.is_ok_and(|served| served == name) {
        return Err(Failure::new(format!("an array named {name} is being served")).hint(
            "choose another name: of two arrays with the same name neither starts automatically; \
             nothing was changed",
        ));
    }
    Ok(())
}

/// Refuses a disk that is given twice, under any name: opened once, it would appear to be in use.
fn refuse_twice(members: &[String], places: &[String]) -> Outcome {
    let mut seen: BTreeMap<(u64, u64, String), &str> = BTreeMap::new();
    for (member, place) in members.iter().zip(places) {
        let identity = match DiskAddress::of(place) {
            DiskAddress::Path(path) => std::fs::metadata(path).ok().map(|meta| match meta.rdev() {
                0 => (meta.dev(), meta.ino(), String::new()),
                device => (device, 0, String::new()),
            }),
            DiskAddress::Uri(_) => None,
        };
        let identity = identity.unwrap_or_else(|| (0, 0, place.clone()));
        if let Some(first) = seen.insert(identity, member) {
            let same = if first == member { String::new() } else { format!(" (as {first}, too)") };
            return Err(Failure::usage(format!("{member} is given twice{same}"))
                .hint("give each member once; nothing was changed"));
        }
    }
    Ok(())
}

fn options_of(args: &CreateArgs) -> Result<CreateOptions, Failure> {
    let name = &args.name;
    check_name(name).map_err(|why| {
        Failure::usage(format!("{name:?} cannot be the name of an array: it {why}"))
            .hint("choose another name")
    })?;
    let code: CodeSpec = args.code.parse().map_err(|e| {
        Failure::usage(format!("--code: {e}"))
            .hint("`weft create --help` lists the codes, for example raid6 or drc-g:4,2,1")
    })?;
    let algorithm = match &args.algorithm {
        Some(text) => Some(text.parse().map_err(|e| Failure::usage(format!("--algorithm: {e}")))?),
        None => None,
    };
    Ok(CreateOptions {
        name: name.clone(),
        code,
        algorithm,
        unit_bytes: args.unit,
        consistency: args.consistency.unwrap_or_else(|| Consistency::default_for(code)),
        region_bytes: args.region,
        log_bytes: None,
        head_room_bytes: args.head_room,
        spares: args.spares,
        force: args.force,
        id: thread::random()?,
        now_unix_s: thread::unix_s(),
    })
}

/// The failure, with what to do about it.
fn explain(error: CreateError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        CreateError::Code(_) | CreateError::Layout(_) => failure
            .hint("each slot needs a member, spares not counted: change the members or the --code"),
        CreateError::Area { .. } => failure.hint("use larger disks, or a smaller --unit"),
        CreateError::AlreadyMember { .. } | CreateError::InUse { .. } => {
            failure.hint("if this is the right disk, --force overwrites it; nothing was changed")
        }
        CreateError::SameDisk { .. } => failure.hint("give each member once"),
        _ => failure,
    }
}

fn show(plan: &CreatePlan, dry_run: bool) {
    let verb = if dry_run { "would create" } else { "created" };
    outln!("{verb} {}: {} of {}", plan.name, size::show(plan.size_bytes), plan.code);
    let survives = match plan.tolerance {
        0 => "survives no failure".to_owned(),
        1 => "survives the loss of any 1 disk".to_owned(),
        n if plan.tolerance_exact => format!("survives the loss of any {n} disks"),
        n => format!("survives the loss of at least any {n} disks"),
    };
    outln!("  {survives}; unit {}, consistency {}", size::show(plan.unit_bytes), plan.consistency);
    for member in &plan.members {
        let role = match member.role {
            PlannedRole::Slot { slot } => format!("slot {slot}"),
            PlannedRole::Spare => "spare".to_owned(),
        };
        let lost = member.overwrites.as_ref().map(|what| format!("  (loses {what})"));
        outln!("  {role:<8} {}{}", member.disk, lost.unwrap_or_default());
    }
    for note in &plan.notes {
        outln!("  note: {note}");
    }
    if dry_run {
        outln!("nothing was changed");
    } else {
        outln!("to serve it: `weft serve` with its members, or their folder");
    }
}
