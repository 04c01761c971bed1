//! What node 0 does for other nodes as they come and go: it gets them ready, and recovers those
//! that are gone.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use weft_cluster::{Member, Membership, NodeName, Outlook};
use weft_fs::{Fs, FsError, KeeperServer, Result};
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};
use weft_token::NodeId;

use crate::Say;

/// Pause between two looks at the nodes.
const LOOK_EVERY: Nanos = 50 * MILLISECOND;
/// Pause before a node is looked at once more.
const AGAIN: Nanos = 2 * SECOND;

/// Nodes by their numbers: names and epochs.
type Nodes = BTreeMap<u16, (NodeName, u64)>;

/// All members but those that may become the keeper: these mount the file system as node 0.
fn nodes_of(outlook: &Outlook) -> Nodes {
    let Some(record) = &outlook.view.record else { return Nodes::default() };
    let nodes = record.members.iter().filter(|(_, member)| member.address.is_none());
    let node = |(name, member): (&NodeName, &Member)| {
        Some((*record.numbers.get(name)?, (name.clone(), member.epoch.0)))
    };
    nodes.filter_map(node).collect()
}

/// The name of the node with a number.
#[must_use]
pub fn name_of(outlook: &Outlook, number: u16) -> Option<NodeName> {
    let numbers = &outlook.view.record.as_ref()?.numbers;
    numbers.iter().find(|(_, of)| **of == number).map(|(name, _)| name.clone())
}

/// Whether a mount of a node is over: it is no member any more, and no disk waits to refuse it. A
/// record from before it joined does not tell.
fn is_over(outlook: &Outlook, node: NodeId) -> bool {
    let record = outlook.view.record.as_ref();
    let Some(record) = record.filter(|record| record.epoch.0 >= node.epoch) else { return false };
    let pending = name_of(outlook, node.number).and_then(|name| record.fencing.get(&name));
    let is_pending = pending.is_some_and(|epochs| epochs.iter().any(|of| of.0 <= node.epoch));
    !is_pending && nodes_of(outlook).get(&node.number).is_none_or(|(_, epoch)| *epoch != node.epoch)
}

/// What node 0 does for nodes as they come and go.
pub struct Attendance {
    rt: Rt,
    membership: Rc<Membership>,
    fs: Fs,
    server: KeeperServer,
    say: Say,
    has_ended: Cell<bool>,
}

impl std::fmt::Debug for Attendance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attendance").field("has_ended", &self.has_ended).finish_non_exhaustive()
    }
}

impl Attendance {
    /// Attends to the nodes of `server`, which is in the process of `fs`. `mounted` are those that
    /// the metadata knows of: some may have died under an earlier keeper.
    pub(crate) fn begin(
        rt: &Rt,
        membership: &Rc<Membership>,
        (fs, server): (&Fs, &KeeperServer),
        say: &Say,
        mounted: Vec<NodeId>,
    ) -> Rc<Self> {
        let attendance = Rc::new(Self {
            rt: rt.clone(),
            membership: membership.clone(),
            fs: fs.clone(),
            server: server.clone(),
            say: say.clone(),
            has_ended: Cell::new(false),
        });
        rt.spawn(attendance.clone().attend(mounted));
        attendance
    }

    /// Nothing more is done for nodes.
    pub(crate) fn end(&self) {
        self.has_ended.set(true);
    }

    /// Gets nodes ready as they join, and recovers those that are no members any more. `known` are
    /// those that may have something: members, and whatever the metadata says is mounted. A node
    /// may join, mount, die and join again between two looks at the record.
    async fn attend(self: Rc<Self>, mounted: Vec<NodeId>) {
        let mut known: BTreeSet<NodeId> = mounted.into_iter().collect();
        let mut ready = BTreeSet::new();
        loop {
            let outlook = self.membership.outlook();
            let seen = outlook.view.version;
            let attended = self.attend_once(&outlook, &mut known, &mut ready).await;
            let pause = if attended { LOOK_EVERY } else { AGAIN };
            self.rt.sleep(pause).await;
            if attended {
                let changed = |now: &Outlook| (now.view.version != seen).then_some(());
                self.membership.until(changed).await;
            }
            if self.has_ended.get() {
                return;
            }
        }
    }

    /// Whether nothing is left to be done for nodes, by this record.
    async fn attend_once(
        &self,
        outlook: &Outlook,
        known: &mut BTreeSet<NodeId>,
        ready: &mut BTreeSet<NodeId>,
    ) -> bool {
        let mut is_done = true;
        let mut fails = |number: u16, error: &FsError| {
            is_done = false;
            let name = name_of(outlook, number);
            let name = name.map_or_else(|| number.to_string(), |name| name.to_string());
            (self.say)(&format!("node {name} waits: {error}"));
        };
        let members = nodes_of(outlook);
        let members = members.iter().map(|(n, (_, epoch))| NodeId { number: *n, epoch: *epoch });
        let members: BTreeSet<NodeId> = members.collect();
        match self.fs.nodes().await {
            Ok(nodes) => {
                let mounted = nodes.iter().filter(|of| of.is_mounted).map(|of| of.node);
                known.extend(mounted.clone());
                // A node that had a log before may open it itself.
                ready.extend(mounted);
            }
            Err(error) => fails(0, &error),
        }
        known.extend(&members);
        ready.retain(|node| members.contains(node));
        let over: Vec<NodeId> = known.iter().copied().filter(|of| is_over(outlook, *of)).collect();
        for node in over {
            match self.recover(node).await {
                Ok(()) => drop(known.remove(&node)),
                Err(error) => fails(node.number, &error),
            }
        }
        for node in members {
            if self.has_ended.get() || ready.contains(&node) {
                continue;
            }
            match self.fs.prepare_node(node.number).await {
                Ok(()) => drop(ready.insert(node)),
                Err(error) => fails(node.number, &error),
            }
        }
        is_done
    }

    /// Recovers a node that is dead or has ended: no disk takes anything of it.
    async fn recover(&self, node: NodeId) -> Result<()> {
        self.server.fence(node).await?;
        let lines = self.fs.recover_node(node).await?;
        if let Some(name) = name_of(&self.membership.outlook(), node.number) {
            (self.say)(&format!(
                "node {name} (epoch {}) is gone: {lines} lines of its log recovered",
                node.epoch
            ));
        }
        Ok(())
    }
}
