//! `weft lab disk`: serves modelled disks to NBD clients, in real time.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use weft_cli::disks::Opener;
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{self, log_line, outln};
use weft_cli::{listen, size, thread};
use weft_disk::{Disk, DiskVolume, Volume};
use weft_fuse::mount::Mount;
use weft_fuse::session::{FILE_NAME, Session, Source};
use weft_model::measure::validate;
use weft_model::{Contents, DiskStats, Model, ModelDisk, ModelOptions, Scheduler};
use weft_nbd::{Export, Server, ServerConfig};

use super::args::LabDiskArgs;
use super::experiments::models;
use crate::Models;

/// `weft lab disk`: returns when it has been stopped.
pub fn disk(args: &LabDiskArgs, json: bool) -> Outcome {
    let models = models(args.models.as_deref())?;
    let Some(name) = &args.model else {
        return list(&models, json);
    };
    let model = models
        .find(name)
        .map_err(|e| Failure::usage(e).hint("`weft lab disk --list` describes them"))?;
    if args.socket.is_none() && args.listen.is_none() && args.mount.is_none() {
        return Err(Failure::usage("no place given to serve the disk")
            .hint("give --socket PATH, --listen ADDR or --mount DIR, or several of these"));
    }
    listen::refuse_remote(args.listen, args.allow_remote)?;
    let count = usize::try_from(args.count).unwrap_or(1);
    if !args.files.is_empty() && args.files.len() != count {
        let (files, disks) = (args.files.len(), args.count);
        return Err(Failure::usage(format!("{files} files for {disks} disks"))
            .hint("give --file once for each disk, or not at all"));
    }
    // By default the kernel may be late by half of a fast SSD's latency.
    if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
        log_line(&format!("timers stay coarse: {error}"));
    }
    let args = args.clone();
    thread::run(move |opener| async move { serve(&args, model, &opener, json).await })
}

async fn serve(args: &LabDiskArgs, model: &'static Model, opener: &Opener, json: bool) -> Outcome {
    let mut inbox = thread::ending_signals()?;
    let mut disks = Vec::new();
    for number in 0..args.count {
        disks.push(open(args, model, opener, number).await?);
    }
    let server = Server::new(&opener.rt, &opener.ring, ServerConfig::default());
    let failed = |e: weft_nbd::ServerError| Failure::new(e.to_string());
    let (mut endpoints, mut mounts) = (Vec::new(), Vec::new());
    for disk in &disks {
        let name = &disk.info().name;
        let volume: Rc<dyn Volume> = Rc::new(DiskVolume::new(disk.clone()));
        let export = Export::new(volume.clone(), format!("modelled {}", model.title));
        server.add_export(name, export).map_err(failed)?;
        if let Some(dir) = &args.mount {
            mounts.push(mount(opener, name, &absolute(dir)?.join(name), volume)?);
        }
    }
    if let Some(dir) = &args.mount {
        endpoints.push((absolute(dir)?.display().to_string(), format!("/{FILE_NAME}")));
    }
    if let Some(path) = &args.socket {
        let path = absolute(path)?;
        server.listen_unix(&path, None).map_err(failed)?;
        endpoints.push(("nbd+unix://".to_owned(), format!("?socket={}", path.display())));
    }
    if let Some(address) = args.listen {
        let address = server.listen_tcp(address).map_err(failed)?;
        endpoints.push((format!("nbd://{address}"), String::new()));
    }
    announce(&disks, &endpoints, json);
    inbox.next().await;
    drop(mounts);
    server.shutdown().await;
    tell(model, &disks, json)
}

/// Mounts the disk as a file below `place`.
fn mount(
    opener: &Opener,
    name: &str,
    place: &Path,
    volume: Rc<dyn Volume>,
) -> Result<Mount, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("--mount needs root")
            .hint("--socket does not, and nbdfuse can present such a disk as a file"));
    }
    let mount = Mount::new(name, place)?;
    let channel = mount.fuse.try_clone().map_err(|e| Failure::new(format!("{name}: {e}")))?;
    let source = Source { volume, has_ended: Box::new(|| false) };
    let session = Session::new(&opener.rt, &opener.ring, channel.into(), source);
    let name = name.to_owned();
    drop(opener.rt.spawn(async move {
        if let Err(e) = session.serve().await {
            log_line(&format!("{name}: the file has failed: {e}"));
        }
    }));
    Ok(mount)
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::new(format!("{}: {e}", path.display())))
}

async fn open(
    args: &LabDiskArgs,
    model: &Model,
    opener: &Opener,
    number: u32,
) -> Result<Rc<ModelDisk>, Failure> {
    let file = usize::try_from(number).ok().and_then(|number| args.files.get(number));
    let contents = match file {
        Some(path) => Contents::On(opener.open(path, false).await?),
        None => Contents::Kept,
    };
    if let Contents::On(disk) = &contents
        && disk.info().sector_bytes > model.sector_bytes
    {
        let (path, sector) = (&disk.info().name, disk.info().sector_bytes);
        return Err(Failure::new(format!(
            "{path} has sectors of {sector} bytes, but {} has {}",
            model.name, model.sector_bytes
        ))
        .hint("choose a file on another file system, or keep the contents in memory"));
    }
    let options = ModelOptions {
        name: Some(format!("d{number}")),
        size_bytes: args.size,
        contents,
        seed: args.seed.wrapping_add(u64::from(number)),
        write_cache: args.write_cache,
        scheduler: Scheduler::default(),
    };
    let disk = ModelDisk::open(&opener.rt, model, options);
    if disk.info().size_bytes == 0 {
        return Err(Failure::usage("a disk must have at least one sector")
            .hint(format!("{} has sectors of {} bytes", model.name, model.sector_bytes)));
    }
    Ok(disk)
}

/// Announces on standard output that clients may connect.
fn announce(disks: &[Rc<ModelDisk>], endpoints: &[(String, String)], json: bool) {
    for disk in disks {
        let name = &disk.info().name;
        let uris: Vec<String> =
            endpoints.iter().map(|(head, tail)| format!("{head}/{name}{tail}")).collect();
        if json {
            output::announce_answer(&json!({ "serving": name, "nbd_uris": uris }));
        } else {
            output::announce(&format!("serving {name} at {}", uris.join(" and ")));
        }
    }
}

/// Prints the disks' statistics.
fn tell(model: &Model, disks: &[Rc<ModelDisk>], json: bool) -> Outcome {
    let all: Vec<(&str, DiskStats)> =
        disks.iter().map(|disk| (disk.info().name.as_str(), disk.stats())).collect();
    if json {
        let disks: Vec<Value> = all.iter().map(|(name, stats)| as_json(name, stats)).collect();
        return output::answer(&json!({ "model": model.name, "disks": disks }));
    }
    outln!("disk   reads  read      mean ms   writes  written   mean ms  busy %  depth  late µs");
    for (name, stats) in all {
        outln!(
            "{name:<4} {:>7}  {:<9} {:>7.3}  {:>7}  {:<9} {:>7.3}  {:>6.1}  {:>5.2}  {:>7.1}",
            stats.reads,
            size::show(stats.read_bytes),
            stats.mean_read_ns() / 1e6,
            stats.writes + stats.zeroes,
            size::show(stats.written_bytes + stats.zeroed_bytes),
            stats.mean_write_ns() / 1e6,
            stats.utilisation() * 100.0,
            stats.mean_depth(),
            stats.mean_late_ns() / 1e3,
        );
    }
    Ok(())
}

fn as_json(name: &str, stats: &DiskStats) -> Value {
    json!({
        "name": name,
        "reads": stats.reads, "read_bytes": stats.read_bytes, "read_ns": stats.read_ns,
        "writes": stats.writes, "written_bytes": stats.written_bytes,
        "zeroes": stats.zeroes, "zeroed_bytes": stats.zeroed_bytes, "write_ns": stats.write_ns,
        "flushes": stats.flushes, "flush_ns": stats.flush_ns,
        "busy_ns": stats.busy_ns, "elapsed_ns": stats.elapsed_ns, "late_ns": stats.late_ns,
        "utilisation": stats.utilisation(), "mean_depth": stats.mean_depth(),
        "accesses": stats.work.accesses, "cache_hits": stats.work.cache_hits,
    })
}

/// Lists the products and users' own, with the models' figures.
fn list(models: &Models, json: bool) -> Outcome {
    if json {
        let models: Vec<Value> = models.all().map(model_json).collect();
        return output::answer(&json!({ "models": models }));
    }
    for model in models.all() {
        outln!("{}: {}", model.name, model.title);
        outln!("  {} in sectors of {} B", size::show(model.capacity_bytes), model.sector_bytes);
        outln!("  from:     {}", model.source);
        outln!("  inferred: {}", model.inferred);
        for line in validate(model) {
            let expected = line.sheet.map_or_else(String::new, |sheet| {
                let by = if sheet.stated { "data sheet" } else { "expected" };
                format!("{by} {:.1}", sheet.value)
            });
            let measure = line.measure.to_string();
            outln!("  {measure:<38}{:>12.1}   {expected}", line.measured);
        }
        outln!();
    }
    Ok(())
}

fn model_json(model: &Model) -> Value {
    let lines = validate(model).into_iter().map(|line| {
        json!({
            "measure": line.measure.to_string(), "model": line.measured,
            "expected": line.sheet.map(|sheet| sheet.value),
            "stated": line.sheet.is_some_and(|sheet| sheet.stated),
        })
    });
    json!({
        "name": model.name, "title": model.title, "source": model.source,
        "inferred": model.inferred, "size_bytes": model.capacity_bytes,
        "sector_bytes": model.sector_bytes, "figures": lines.collect::<Vec<_>>(),
    })
}
