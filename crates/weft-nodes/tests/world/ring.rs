//! For a canary: recovers the log of each dead node once more, some time after it was recovered.

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_fs::{Connector as _, Fs, Stream};
use weft_nodes::MemoryWay;
use weft_rt::{MILLISECOND, Nanos, Rt, SECOND};
use weft_token::NodeId;
use weft_wire::{
    Answer, End, Frames, FromKeeper, Key, Part, Question, Restated, RowChange, Table, ToKeeper,
    VERSION,
};

use super::{FS_ID, World};

/// How long after its recovery the log of a node is recovered once more.
const AGAIN: Nanos = 6 * SECOND;
/// How long a node is away that was killed: its lease ends, and its log is recovered twice.
pub const AWAY: Nanos = 25 * SECOND;

/// A node that asks the keeper what it wants.
struct Speaker {
    stream: Rc<dyn Stream>,
    frames: Frames,
    batch: u64,
}

impl Speaker {
    async fn new(way: &MemoryWay, epoch: u64) -> Option<Self> {
        let stream = way.connect().await.ok()?;
        let mut speaker = Self { stream, frames: Frames::default(), batch: 0 };
        let node = NodeId { number: 99, epoch };
        let hello = ToKeeper::Hello { version: VERSION, file_system: FS_ID, node };
        match speaker.tell(hello).await? {
            FromKeeper::Welcome { next_batch, .. } => speaker.batch = next_batch,
            _ => return None,
        }
        let restated = ToKeeper::Restate(Restated { is_last: true, ..Restated::default() });
        speaker.stream.write(restated.to_bytes()).await.ok()?;
        Some(speaker)
    }

    async fn tell(&mut self, message: ToKeeper) -> Option<FromKeeper> {
        self.stream.write(message.to_bytes()).await.ok()?;
        loop {
            match FromKeeper::next(&mut self.frames).ok()? {
                Some(FromKeeper::Room(_)) => {}
                Some(message) => return Some(message),
                None => {
                    let bytes = self.stream.read().await.ok().filter(|bytes| !bytes.is_empty())?;
                    self.frames.push(&bytes);
                }
            }
        }
    }

    async fn ask(&mut self, question: Question) -> Option<Answer> {
        match self.tell(ToKeeper::Ask { number: 1, question }).await? {
            FromKeeper::Answer { answer, .. } => Some(answer),
            _ => None,
        }
    }

    /// Where the log of a node starts.
    async fn mark_of(&mut self, number: u16) -> Option<Vec<RowChange>> {
        let mut rows = Vec::new();
        for what in ["completed", "live log", "log"] {
            let name = format!("{what} of node {number}");
            let (table, key) = (Table::State, Key::named(0, name.as_bytes()).into_owned());
            let Answer::Row(value) = self.ask(Question::Row { table, key: key.clone() }).await?
            else {
                return None;
            };
            rows.push(RowChange { table, key, value });
        }
        rows.sort_by(|one, other| one.key.cmp(&other.key));
        Some(rows)
    }

    async fn put(&mut self, rows: Vec<RowChange>) -> Option<()> {
        let batch = self.batch;
        self.ask(Question::Part(Part { batch, rows })).await?;
        self.ask(Question::End(End { batch, is_last: false })).await?;
        Some(())
    }
}

/// Which nodes are mounted, and where their logs start.
type Marks = BTreeMap<NodeId, Vec<RowChange>>;

pub async fn recover_twice(world: Rc<World>, rt: Rt, way: Rc<MemoryWay>, fs: Fs) {
    let (mut marks, mut speaks) = (Marks::new(), 0);
    loop {
        rt.sleep(100 * MILLISECOND).await;
        speaks += 1;
        let epoch = world.rt.now() + speaks;
        let Ok(nodes) = fs.nodes().await else { continue };
        for node in nodes {
            let Some(mut speaker) = Speaker::new(&way, epoch).await else { continue };
            let Some(rows) = speaker.mark_of(node.node.number).await else { continue };
            if node.is_mounted {
                marks.insert(node.node, rows);
            } else if let Some(rows) = marks.remove(&node.node) {
                // Others use its files meanwhile.
                let (world, rt, fs, way) = (world.clone(), rt.clone(), fs.clone(), way.clone());
                rt.clone().spawn(async move {
                    rt.sleep(AGAIN).await;
                    let epoch = world.rt.now();
                    let Some(mut speaker) = Speaker::new(&way, epoch).await else { return };
                    if speaker.put(rows).await.is_some() {
                        let found = fs.recover_node(node.node).await;
                        let node = node.node;
                        world.oracle.tell(format!("recovered once more: {node:?}: {found:?}"));
                    }
                });
            }
        }
    }
}
