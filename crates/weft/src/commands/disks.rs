//! `weft disks`: shared disks. They are prepared, served to nodes, and told to refuse nodes.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use weft_cli::disks::{DiskAddress, Opener};
use weft_cli::failure::{Failure, Outcome};
use weft_cli::output::{announce, announce_answer, answer, errln, outln};
use weft_cli::{size, thread};
use weft_cluster::coordinator::disks::AREA_BYTES;
use weft_cluster::fence::reservation::{ReservableDevice, ReservationFence};
use weft_cluster::fence::{
    DiskServer, HEAD_BYTES, HeadError, Preparation, RemoteFence, SharedDisk,
};
use weft_cluster::fence::{SharedDiskError, prepare as prepare_disk};
use weft_cluster::{ClusterName, DiskName, Epoch, Fence, FenceError, Incarnation};
use weft_disk::{Disk, WriteOpts};
use weft_nbd::{NbdUri, Server, ServerConfig};
use weft_rt::reservation::InFlight;
use weft_rt::{Nanos, SECOND};

use crate::cli::{
    DisksAction, DisksArgs, DisksFenceArgs, DisksPrepareArgs, DisksReserveArgs, DisksServeArgs,
};
use crate::daemon::notify;

/// How long the end of a server waits for a disk.
const CLOSE_PATIENCE: Nanos = 2 * SECOND;

/// `weft disks`.
pub fn disks(args: &DisksArgs, json: bool) -> Outcome {
    match &args.action {
        DisksAction::Prepare(args) => prepare(args, json),
        DisksAction::Serve(args) => serve(args, json),
        DisksAction::Fence(args) => fence(args, json),
        DisksAction::Reserve(args) => reserve(args, json),
    }
}

/// Opens a disk as its only user, without a time limit: a request that the disk has not answered
/// is in flight, and a fence waits for it.
async fn open(opener: &Opener, place: &str) -> Result<Rc<dyn Disk>, Failure> {
    match DiskAddress::of(place) {
        DiskAddress::Path(path) => {
            let opener = Opener { disk_timeout: Nanos::MAX, ..opener.clone() };
            Ok(opener.open_path(&path, false).await?)
        }
        DiskAddress::Uri(uri) => Err(Failure::usage(format!("{uri} is not on this machine"))
            .hint("serve a disk on the machine that has it")),
    }
}

fn unusable(error: &HeadError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        HeadError::NotPrepared(disk) => failure.hint(format!("weft disks prepare {disk}")),
        HeadError::NotBlank(_) => failure.hint("add --force to lose what it holds"),
        HeadError::Damaged(disk) => failure.hint(format!("weft disks prepare --force {disk}")),
        HeadError::Served(_) => failure.hint("stop that server first, or let nodes use it"),
        HeadError::TooSmall(..)
        | HeadError::UnknownVersion(..)
        | HeadError::Full(_)
        | HeadError::Disk(_) => failure,
    }
}

fn prepare(args: &DisksPrepareArgs, json: bool) -> Outcome {
    let how = if args.force { Preparation::Erase } else { Preparation::Blank };
    let (places, leases) = (args.disks.clone(), args.leases);
    let prepared = thread::run(move |opener| async move {
        let mut disks = Vec::new();
        for place in &places {
            disks.push(open(&opener, place).await?);
        }
        if how == Preparation::Blank {
            for disk in &disks {
                match weft_cluster::fence::is_blank(&**disk).await {
                    Ok(true) => {}
                    Ok(false) => {
                        return Err(unusable(&HeadError::NotBlank(disk.info().name.clone())));
                    }
                    Err(error) => return Err(unusable(&error)),
                }
            }
        }
        for disk in &disks {
            prepare_disk(&**disk, how).await.map_err(|error| unusable(&error))?;
            if leases {
                let bytes = AREA_BYTES.min(disk.info().size_bytes - HEAD_BYTES);
                let erased = disk.write_zeroes(HEAD_BYTES, bytes, WriteOpts::USER_FUA).await;
                erased.map_err(|error| unusable(&error.into()))?;
            }
        }
        Ok(places)
    })?;
    if json {
        return answer(&json!({ "prepared": prepared }));
    }
    outln!("prepared {}", prepared.join(", "));
    Ok(())
}

/// The name of a disk, and where it is.
fn named(text: &str) -> Result<(DiskName, String), Failure> {
    let wrong = |e: weft_cluster::NameError| {
        Failure::usage(e.to_string()).hint(format!("give the disk a name: NAME={text}"))
    };
    if let Some((name, place)) = text.split_once('=')
        && !Path::new(text).exists()
    {
        return Ok((name.parse().map_err(wrong)?, place.to_owned()));
    }
    let name = Path::new(text).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    Ok((name.parse().map_err(wrong)?, text.to_owned()))
}

fn serve(args: &DisksServeArgs, json: bool) -> Outcome {
    if args.tcp.listen.is_none() && args.socket.is_none() {
        return Err(Failure::usage("no place given to serve the disks")
            .hint("give --listen ADDR or --socket PATH, or both"));
    }
    args.tcp.check()?;
    let mut places = BTreeMap::new();
    for text in &args.disks {
        let (name, place) = named(text)?;
        if places.insert(name.clone(), place).is_some() {
            return Err(Failure::usage(format!("two disks are named {name}"))
                .hint("give one of them another name: NAME=PATH"));
        }
    }
    let args = args.clone();
    thread::run(move |opener| async move { run(&args, places, &opener, json).await })
}

async fn run(
    args: &DisksServeArgs,
    places: BTreeMap<DiskName, String>,
    opener: &Opener,
    json: bool,
) -> Outcome {
    let mut inbox = thread::ending_signals()?;
    let mut disks = BTreeMap::new();
    for (name, place) in &places {
        let disk = open(opener, place).await?;
        let number = u64::from_le_bytes(thread::random()?);
        let shared =
            SharedDisk::open(&opener.rt, disk, number).await.map_err(|error| match &error {
                SharedDiskError::Head(error) => unusable(error),
                _ => Failure::new(error.to_string()),
            })?;
        disks.insert(name.clone(), shared);
    }
    let server = Server::new(&opener.rt, &opener.ring, ServerConfig::default());
    crate::daemon::clients::log_events(&server);
    for (name, disk) in &disks {
        let volume = Rc::new(disk.open_read_only());
        let mut export = weft_nbd::Export::new(volume, "a shared disk, to be read");
        export.read_only = true;
        server.add_export(name.as_str(), export).map_err(|e| Failure::new(e.to_string()))?;
    }
    let disks = Rc::new(DiskServer::new(disks));
    server.resolve_with(disks.clone());
    let mut endpoints = Vec::new();
    let failed = |e: weft_nbd::ServerError| Failure::new(e.to_string());
    if let Some(path) = &args.socket {
        let path = std::path::absolute(path)
            .map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
        server.listen_unix(&path, None).map_err(failed)?;
        endpoints.push(("nbd+unix:///".to_owned(), format!("?socket={}", path.display())));
    }
    if let Some(address) = args.tcp.listen {
        let address = server.listen_tcp(address).map_err(failed)?;
        endpoints.push((format!("nbd://{address}/"), String::new()));
    }
    for (name, disk) in disks.disks() {
        let uris: Vec<String> =
            endpoints.iter().map(|(before, after)| format!("{before}{name}{after}")).collect();
        let bounds = disk.gate().bounds();
        if json {
            announce_answer(&json!({
                "disk": name,
                "size_bytes": disk.size_bytes(),
                "cluster": bounds.cluster,
                "refused": bounds.lowest.iter().map(|(node, lowest)| {
                    json!({ "node": node, "below_epoch": lowest })
                }).collect::<Vec<_>>(),
                "nbd_uris": uris,
            }));
        } else {
            let owner =
                bounds.cluster.map_or_else(|| "no cluster yet".into(), |c| format!("cluster {c}"));
            let (size, uris) = (size::show(disk.size_bytes()), uris.join("  "));
            announce(&format!("serving {name}, {size}, {owner}: {uris}"));
        }
    }
    notify::systemd("READY=1");
    let deposed = disks.disks().iter().map(|(name, disk)| {
        Box::pin(async move {
            disk.deposed().await;
            name
        })
    });
    let mut deposed: FuturesUnordered<_> = deposed.collect();
    let outcome = loop {
        match select(inbox.next(), deposed.next()).await {
            Either::Left(_) => break Ok(()),
            Either::Right((Some(name), _)) => {
                errln!("{name}: another server serves it now; this one has ended its use");
            }
            Either::Right((None, _)) => {
                let failure = Failure::new("other servers serve all disks now");
                break Err(failure.hint("a disk has one server at a time"));
            }
        }
    };
    notify::systemd("STOPPING=1");
    server.shutdown().await;
    for disk in disks.disks().values() {
        // A disk that does not answer is not waited for: the next server waits a little.
        let close = Box::pin(disk.close());
        drop(select(close, opener.rt.sleep(CLOSE_PATIENCE)).await);
    }
    outcome
}

/// The fence of a block device.
fn reservation_fence(
    opener: &Opener,
    path: &Path,
    cluster: &ClusterName,
    timeout: std::time::Duration,
    in_flight: InFlight,
) -> Result<ReservationFence, Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", path.display()));
    let device = Rc::new(ReservableDevice::open(path).map_err(failed)?);
    // The name is for messages.
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
    let name = name.unwrap_or_else(|| "disk".parse().expect("a name"));
    let patience = Nanos::try_from(timeout.as_nanos()).unwrap_or(Nanos::MAX);
    let (rt, cluster) = (&opener.rt, cluster.clone());
    Ok(ReservationFence::new(rt, device, name, cluster, patience, in_flight))
}

/// This machine in an epoch. Keys are made of the epoch, whatever the machine's name is.
fn this_machine(epoch: u64) -> Incarnation {
    Incarnation { node: "this-machine".parse().expect("a name"), epoch: Epoch(epoch) }
}

fn reserve(args: &DisksReserveArgs, json: bool) -> Outcome {
    let args = args.clone();
    thread::run(move |opener| async move {
        let (path, cluster) = (&args.disk, &args.cluster);
        let fence = reservation_fence(&opener, path, cluster, args.timeout, InFlight::Abort)?;
        let own = this_machine(args.epoch);
        fence.register(&own).await.map_err(|error| Failure::new(error.to_string()))?;
        let disk = args.disk.display().to_string();
        if json {
            return answer(&json!({ "disk": disk, "epoch": args.epoch }));
        }
        outln!("{disk} is reserved; this machine uses it in epoch {}", args.epoch);
        Ok(())
    })
}

/// How a disk fences.
enum FencedDisk {
    /// By its server.
    Served(NbdUri),
    /// By reservations: this machine's epoch.
    Reserved(u64),
}

fn fence(args: &DisksFenceArgs, json: bool) -> Outcome {
    let place = match (args.own_epoch, args.disk.parse::<NbdUri>()) {
        (None, Ok(uri)) => FencedDisk::Served(uri),
        (None, Err(e)) => {
            return Err(Failure::usage(format!("{}: {e}", args.disk)).hint(
                "write nbd://HOST[:PORT]/DISK or nbd+unix:///DISK?socket=PATH; a block device needs \
                 --own-epoch",
            ));
        }
        (Some(_), Ok(_)) => {
            return Err(Failure::usage("--own-epoch is for block devices")
                .hint("a disk server asks for no epoch of this machine"));
        }
        (Some(own), Err(_)) => FencedDisk::Reserved(own),
    };
    let args = args.clone();
    thread::run(move |opener| async move {
        let patience = Nanos::try_from(args.timeout.as_nanos()).unwrap_or(Nanos::MAX);
        let cluster = args.cluster.clone();
        let victim = Incarnation { node: args.node.clone(), epoch: Epoch(args.epoch) };
        let fenced = match place {
            FencedDisk::Served(uri) => {
                let fence = RemoteFence::new(&opener.rt, &opener.ring, uri, cluster, patience)
                    .map_err(|e| Failure::usage(e.to_string()).hint("name the disk in the URI"))?;
                // Whoever runs this command is no node, and the server asks for none.
                fence.fence(&victim, &victim).await
            }
            FencedDisk::Reserved(own) => {
                let path = Path::new(&args.disk);
                let in_flight = if args.no_abort { InFlight::Leave } else { InFlight::Abort };
                let fence = reservation_fence(&opener, path, &cluster, args.timeout, in_flight)?;
                Fence::fence(&fence, &this_machine(own), &victim).await
            }
        };
        fenced.map_err(|error| {
            let failure = Failure::new(error.to_string());
            match error {
                FenceError::Unsupported { .. } => failure,
                FenceError::Fenced { .. } => failure.hint(
                    "this machine is not registered in this epoch: it was fenced, or run \
                     `weft disks reserve`",
                ),
                _ => failure.hint(
                    "the node may still write to the disk: repeat this, or cut its power or its network",
                ),
            }
        })?;
        if json {
            let (node, epoch) = (&args.node, args.epoch);
            return answer(
                &json!({ "disk": args.disk, "node": node, "fenced_up_to_epoch": epoch }),
            );
        }
        outln!("{} refuses {} up to epoch {}", args.disk, args.node, args.epoch);
        Ok(())
    })
}
