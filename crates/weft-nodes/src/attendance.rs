//! What node 0 does for other nodes as they come and go: it gets them ready, and recovers those
//! that are gone.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use weft_cluster::{Member, Membership, NodeName, Outlook};
use weft_fs::{Fs, FsError, KeeperServer};
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
fn name_of(outlook: &Outlook, number: u16) -> Option<NodeName> {
    let numbers = &outlook.view.record.as_ref()?.numbers;
    numbers.iter().find(|(_, of)| **of == number).map(|(name, _)| name.clone())
}

/// Whether a mount of a node is over: it is no member any more, and no disk waits to refuse it.
fn is_over(outlook: &Outlook, number: u16, epoch: u64) -> bool {
    let Some(record) = &outlook.view.record else { return false };
    let pending = name_of(outlook, number).and_then(|name| record.fencing.get(&name));
    let is_pending = pending.is_some_and(|epochs| epochs.iter().any(|of| of.0 <= epoch));
    !is_pending && nodes_of(outlook).get(&number).is_none_or(|(_, now)| *now != epoch)
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

    /// Gets nodes ready as they join, and recovers those that are no members any more.
    async fn attend(self: Rc<Self>, mounted: Vec<NodeId>) {
        let mut known: BTreeMap<u16, u64> =
            mounted.into_iter().map(|node| (node.number, node.epoch)).collect();
        while !self.has_ended.get() {
            let over = self
                .membership
                .until(|outlook| {
                    let mut over = known.iter().filter(|(n, epoch)| is_over(outlook, **n, **epoch));
                    let over = over.next().map(|(number, epoch)| (*number, *epoch));
                    let is_any_new = nodes_of(outlook).keys().any(|n| !known.contains_key(n));
                    (over.is_some() || is_any_new).then_some(over)
                })
                .await;
            if self.has_ended.get() {
                return;
            }
            let outcome = match over {
                Some((number, epoch)) => {
                    let recovered = self.recover(NodeId { number, epoch }).await;
                    recovered.map(|()| {
                        known.remove(&number);
                    })
                }
                None => {
                    let mut outcome = Ok(());
                    let mut new = nodes_of(&self.membership.outlook());
                    new.retain(|number, _| !known.contains_key(number));
                    for (number, (_, epoch)) in new {
                        match self.fs.prepare_node(number).await {
                            Ok(()) => {
                                known.insert(number, epoch);
                            }
                            Err(error) => outcome = Err((number, error)),
                        }
                    }
                    outcome
                }
            };
            match outcome {
                Ok(()) => self.rt.sleep(LOOK_EVERY).await,
                Err((number, error)) => {
                    let name = name_of(&self.membership.outlook(), number);
                    let name = name.map_or_else(|| number.to_string(), |name| name.to_string());
                    (self.say)(&format!("node {name} waits: {error}"));
                    self.rt.sleep(AGAIN).await;
                }
            }
        }
    }

    /// Recovers a node that is dead or has ended: no disk takes anything of it.
    async fn recover(&self, node: NodeId) -> Result<(), (u16, FsError)> {
        let failed = |error| (node.number, error);
        self.server.fence(node).await.map_err(failed)?;
        let lines = self.fs.recover_node(node).await.map_err(failed)?;
        if let Some(name) = name_of(&self.membership.outlook(), node.number) {
            (self.say)(&format!(
                "node {name} (epoch {}) is gone: {lines} lines of its log recovered",
                node.epoch
            ));
        }
        Ok(())
    }
}
