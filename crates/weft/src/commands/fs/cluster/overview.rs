//! `weft fs status --cluster` and `weft fs evict`: the record of a cluster, from any machine.

use serde_json::{Value, json};
use weft_cli::disks::Opener;
use weft_cli::failure::{ATTENTION, Failure, Outcome};
use weft_cli::output::{answer, outln};
use weft_cli::thread;
use weft_cluster::coordinator::View;
use weft_cluster::{ClusterName, Coordinator, NodeError, Record, Swap};
use weft_rt::reservation::InFlight;

use super::coordinators::{Found, User, coordinator};
use super::pool::{self, Leases};
use super::{cluster_name, failed};
use crate::cli::{ClusterAt, FsEvictArgs};

/// The coordinator, as a command reaches it from any machine.
async fn reach(
    opener: &Opener,
    at: &ClusterAt,
    cluster: &ClusterName,
    (disks, user): (&[String], User<'_>),
) -> Result<Found, Failure> {
    let disks = match at {
        ClusterAt::Etcd(_) => Vec::new(),
        ClusterAt::Disks if disks.is_empty() => {
            return Err(Failure::usage("no disks given").hint(
                "name all disks of the file system, before --cluster disks: nbd://HOST/DISK …",
            ));
        }
        ClusterAt::Disks => {
            let leases = match user {
                User::Reader => Leases::Reads,
                User::Command | User::Node(_) => Leases::Commands,
            };
            let (in_flight, patience) = (InFlight::Leave, 0);
            let terms = pool::Terms { in_flight, degraded: true, leases, patience };
            pool::find(opener, cluster, disks, terms).await?
        }
    };
    coordinator(opener, at, cluster, &disks, user).await
}

async fn read(
    coordinator: &dyn Coordinator,
    at: &ClusterAt,
    cluster: &ClusterName,
) -> Result<(View, Record), Failure> {
    let view = coordinator.read().await.map_err(|error| failed(&error.into(), at))?;
    let Some(record) = view.record.clone() else {
        return Err(Failure::new(format!("there is no cluster {cluster}"))
            .hint("check the name and --cluster; `weft fs create --cluster` begins one"));
    };
    if !record.is_understood() {
        return Err(failed(&NodeError::UnknownFormat(record.format), at));
    }
    if record.cluster != *cluster {
        let (found, wanted) = (record.cluster.clone(), cluster.clone());
        return Err(failed(&NodeError::WrongCluster { found, wanted }, at));
    }
    Ok((view, record))
}

/// The nodes, the keeper, and what waits to be fenced.
pub(in crate::commands::fs) fn status(
    name: &str,
    (at, disks): (&ClusterAt, &[String]),
    check: bool,
    json: bool,
) -> Outcome {
    let cluster = cluster_name(name)?;
    let (at, disks) = (at.clone(), disks.to_owned());
    let (view, record) = thread::run(move |opener: Opener| async move {
        let found = reach(&opener, &at, &cluster, (&disks, User::Reader)).await?;
        if let Some(leases) = &found.leases {
            leases.await_signs().await?;
        }
        read(&*found.record, &at, &cluster).await
    })?;
    let status = described(&view, &record);
    let attention = attention(&status);
    match json {
        true => {
            let mut status = status;
            status["attention"] = attention.clone().into();
            answer(&status)?;
        }
        false => print(&status, &attention),
    }
    if check && !attention.is_empty() { Err(Failure::said(ATTENTION)) } else { Ok(()) }
}

fn described(view: &View, record: &Record) -> Value {
    let keeper = record.keeper.as_ref().map(|keeper| {
        json!({
            "node": keeper.node.node, "epoch": keeper.node.epoch, "term": keeper.term,
            "active": keeper.active,
        })
    });
    let members = record.members.iter().map(|(node, member)| {
        let is_alive = record.session_of(node).is_some_and(|session| view.alive.contains(&session));
        json!({
            "node": node, "epoch": member.epoch, "alive": is_alive,
            "number": record.numbers.get(node), "address": member.address,
        })
    });
    let fencing = record.fencing.iter().flat_map(|(node, epochs)| {
        epochs.iter().map(move |epoch| json!({ "node": node, "epoch": epoch }))
    });
    let disks = record.disks.iter().map(|(disk, place)| {
        let relayed_for = record.relayed.get(disk).into_iter().flatten();
        json!({
            "disk": disk, "place": place, "relayed_for": relayed_for.collect::<Vec<_>>(),
        })
    });
    let away = record.away.iter().map(|(disk, place)| json!({ "disk": disk, "place": place }));
    json!({
        "cluster": record.cluster,
        "epoch": record.epoch,
        "keeper": keeper,
        "members": members.collect::<Vec<_>>(),
        "fencing": fencing.collect::<Vec<_>>(),
        "lost_disks": record.lost_disks.keys().collect::<Vec<_>>(),
        "disks": disks.collect::<Vec<_>>(),
        "away": away.collect::<Vec<_>>(),
    })
}

fn list(of: &Value) -> impl Iterator<Item = &Value> {
    of.as_array().into_iter().flatten()
}

fn text(of: &Value) -> &str {
    of.as_str().unwrap_or_default()
}

/// The problems, and what to do about each.
fn attention(status: &Value) -> Vec<String> {
    let mut found = Vec::new();
    match &status["keeper"] {
        Value::Null => found.push(format!(
            "there is no keeper: start one with `weft fs keeper {}`",
            text(&status["cluster"])
        )),
        keeper if keeper["active"] != true => found.push(format!(
            "{} takes over as keeper, and is not done: its messages say what it waits for",
            text(&keeper["node"])
        )),
        _ => {}
    }
    let keepers = list(&status["members"]).filter(|member| member["address"].is_string()).count();
    if keepers == 1 {
        found.push("no other keeper stands by: start a second one on another machine".into());
    }
    for member in list(&status["members"]).filter(|member| member["alive"] != true) {
        found
            .push(format!("{} gives no sign of life: the keeper expels it", text(&member["node"])));
    }
    for victim in list(&status["fencing"]) {
        found.push(format!(
            "{} (epoch {}) is not fenced yet: check that the disk servers run",
            text(&victim["node"]),
            victim["epoch"]
        ));
    }
    for disk in list(&status["lost_disks"]) {
        found.push(format!(
            "disk {} did not confirm a fence, and is not used: start its server",
            text(disk)
        ));
    }
    for disk in list(&status["disks"]) {
        let nodes: Vec<&str> = list(&disk["relayed_for"]).map(text).collect();
        if let Some((last, others)) = nodes.split_last() {
            let (who, verb) = match others {
                [] => ((*last).to_owned(), "uses"),
                others => (format!("{} and {last}", others.join(", ")), "use"),
            };
            found.push(format!(
                "{who} {verb} disk {} through the keeper, slowly: repair the path, and mount again there",
                text(&disk["disk"])
            ));
        }
    }
    found
}

fn print(status: &Value, attention: &[String]) {
    let health = if attention.is_empty() { "healthy" } else { "needs attention" };
    outln!("cluster '{}': {health}", text(&status["cluster"]));
    attention.iter().for_each(|what| outln!("  ! {what}"));
    let keeper = &status["keeper"];
    for member in list(&status["members"]) {
        let role = match keeper {
            keeper if keeper["node"] == member["node"] => match keeper["active"] == true {
                true => format!("keeper, term {}", keeper["term"]),
                false => format!("taking over, term {}", keeper["term"]),
            },
            _ if member["address"].is_string() => "stands by as keeper".to_owned(),
            _ => "node".to_owned(),
        };
        let life = if member["alive"] == true { "" } else { ", no sign of life" };
        let at = member["address"].as_str().map_or(String::new(), |at| format!("  {at}"));
        outln!("  {:<12} epoch {}, {role}{life}{at}", text(&member["node"]), member["epoch"]);
    }
    for disk in list(&status["away"]) {
        let (disk, place) = (text(&disk["disk"]), text(&disk["place"]));
        outln!("  disk {disk} was lost as it was away: it is used again when {place} answers");
    }
}

/// Takes a node out of the cluster; the keeper fences it.
pub(in crate::commands::fs) fn evict(args: &FsEvictArgs, json: bool) -> Outcome {
    let cluster = cluster_name(&args.name)?;
    let (at, disks, node) = (args.cluster.clone(), args.disks.clone(), args.evicted.clone());
    let epoch = thread::run(move |opener: Opener| async move {
        let found = reach(&opener, &at, &cluster, (&disks, User::Command)).await?;
        let coordinator = found.record;
        loop {
            let (view, mut record) = read(&*coordinator, &at, &cluster).await?;
            let Some(member) = record.members.get(&node).cloned() else {
                let known: Vec<String> = record.members.keys().map(ToString::to_string).collect();
                return Err(Failure::new(format!("{node} is no member of the cluster {cluster}"))
                    .hint(format!("its members: {}", known.join(", "))));
            };
            record.expel(&node);
            let swap = coordinator.compare_and_set(view.version, record).await;
            if let Swap::Done(_) = swap.map_err(|error| failed(&error.into(), &at))? {
                let session = weft_cluster::Session { node, number: 0 };
                // The next command need not wait for the end of this one's lease.
                let _ = coordinator.end_lease(&session).await;
                return Ok(member.epoch);
            }
        }
    })?;
    let node = &args.evicted;
    if json {
        return answer(&json!({ "node": node, "epoch": epoch }));
    }
    outln!("{node} (epoch {epoch}) is no member any more; the keeper fences it");
    Ok(())
}
