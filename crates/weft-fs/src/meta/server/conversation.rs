//! What a node says on a connection, and the answers.
//!
//! Messages are taken in their order. Some questions are answered at once; the next message waits
//! for the answer. The rest are answered *later*, by a task of its own, and the next message does
//! not wait:
//!
//! | question | is answered by | waits for |
//! |---|---|---|
//! | a part or the end of a batch | the store | the one before it, its turn, that it is durable |
//! | numbers for new files | the keeper | all nodes that a former keeper knew |
//! | a place for a log, blocks, a lock, a path to a disk, a part of a job | the desk | what the desk waits for |
//! | an early commit | the desk | nothing: it is answered at once |
//! | that the metadata is to grow | the keeper | the desk |
//! | a request to a disk | the desk | the disk; the next message waits if there are many of them |
//!
//! *Before a node has said what it has*, it may read, ask for a place for its log, say that it is
//! alive, and leave. Anything else ends the connection: the keeper does not know yet what the node
//! has.

use std::rc::{Rc, Weak};

use weft_rt::Rt;
use weft_wire::{Answer, Frames, FromKeeper, Question, Restated, Room, ToKeeper};

use super::{ConnectionEnd, Peer, Server};
use crate::meta::desk::Desk;
use crate::meta::numbers::NUMBERS;
use crate::meta::outbox::Outbox;
use crate::meta::stream::{Stream, take_more};

/// The most tokens and runs of blocks that a node may have.
const RESTATED_MAX: usize = if cfg!(test) { 20_000 } else { 1 << 22 };

type Spoken<T> = std::result::Result<T, ConnectionEnd>;

/// The next message of a stream; none at its end, or if there is something else.
pub(super) async fn next(stream: &dyn Stream, frames: &mut Frames) -> Option<ToKeeper> {
    loop {
        match ToKeeper::next(frames) {
            Ok(Some(message)) => return Some(message),
            Ok(None) if take_more(stream, frames).await => {}
            _ => return None,
        }
    }
}

/// Whether only a node that has said what it has may ask this.
fn needs_restatement(question: &Question) -> bool {
    match question {
        Question::Room(_)
        | Question::GiveBack(_)
        | Question::Lock(_)
        | Question::Work(_)
        | Question::NoPath { .. }
        | Question::Disk(_)
        | Question::Early(_)
        | Question::MoreMetadata
        | Question::DiskWaits { .. }
        | Question::Numbers
        | Question::Part(_)
        | Question::End(_) => true,
        Question::Row { .. }
        | Question::Rows { .. }
        | Question::Count { .. }
        | Question::Log
        | Question::Leave
        | Question::Alive => false,
    }
}

impl Peer {
    /// Whether the node has said all that it has.
    fn has_restated(&self) -> bool {
        self.restated.borrow().is_none()
    }

    /// Answers, after how full the metadata is, and how much it may have, if that is to be told.
    async fn tell(&self, number: u64, answer: Answer, room: Option<(Room, u64)>) {
        let mut bytes = Vec::new();
        if let Some((room, capacity)) = room {
            if self.capacity.replace(capacity) != capacity {
                bytes = FromKeeper::Capacity(capacity).to_bytes();
            }
            bytes.extend(FromKeeper::Room(room).to_bytes());
        }
        bytes.extend(FromKeeper::Answer { number, answer }.to_bytes());
        self.outbox.write(bytes).await;
    }
}

impl Server {
    /// Takes what a node says, until its connection ends.
    pub(super) async fn converse(self: &Rc<Self>, peer: &Rc<Peer>, frames: &mut Frames) {
        while let Some(message) = next(&*peer.stream, frames).await {
            let taken = match message {
                ToKeeper::Ask { number, question } => self.hear(peer, number, question).await,
                ToKeeper::Restate(part) => self.restate(peer, part).await,
                ToKeeper::Token(message) => {
                    if peer.node.number == 0
                        || !peer.has_restated()
                        || self.next_batch(peer).is_err()
                    {
                        return;
                    }
                    self.desk().await.take(peer.node, message);
                    Ok(())
                }
                ToKeeper::EarlyLive(live) => {
                    self.of_restated(peer).await.map(|desk| desk.early_live(peer.node, live))
                }
                ToKeeper::EarlyDone(blocks) => {
                    self.of_restated(peer).await.map(|desk| desk.early_done(peer.node, &blocks))
                }
                ToKeeper::Hello { .. } => Err(ConnectionEnd),
            };
            if let Err(ConnectionEnd) = taken {
                return;
            }
        }
    }

    /// The desk, for a message of another node that has said what it has.
    async fn of_restated(&self, peer: &Peer) -> Spoken<Rc<dyn Desk>> {
        let desk = self.desk().await;
        self.next_batch(peer)?;
        match peer.node.number != 0 && peer.has_restated() {
            true => Ok(desk),
            false => Err(ConnectionEnd),
        }
    }

    /// Takes a question, and answers it now or later.
    async fn hear(self: &Rc<Self>, peer: &Rc<Peer>, number: u64, question: Question) -> Spoken<()> {
        if needs_restatement(&question) && !peer.has_restated() {
            return Err(ConnectionEnd);
        }
        match question {
            Question::Log
            | Question::Room(_)
            | Question::GiveBack(_)
            | Question::Lock(_)
            | Question::Work(_)
            | Question::NoPath { .. } => self.ask_desk(peer, number, question).await?,
            Question::Disk(request) => {
                let permit = peer.using_disks.acquire(1).await;
                let desk = self.desk().await;
                // Another connection of the node waits for all that was begun on this one.
                self.next_batch(peer)?;
                let done = desk.use_disk(peer.node, request);
                self.tell_later(peer, number, async move {
                    let _permit = permit;
                    done.await
                });
            }
            Question::Early(commit) => {
                // Messages after it find it taken.
                let is_there = self.of_restated(peer).await?.early(peer.node, commit);
                self.tell(peer, number, Answer::Early(is_there)).await;
            }
            Question::MoreMetadata if peer.node.number != 0 => {
                self.next_batch(peer)?;
                let grown = self.desk().await.grow_metadata();
                let (server, of) = (Rc::downgrade(self), peer.clone());
                drop(self.rt.spawn(async move {
                    grown.await;
                    if let Some(server) = server.upgrade() {
                        server.tell(&of, number, Answer::Alive).await;
                    }
                }));
            }
            Question::Numbers if peer.node.number != 0 => {
                // A node may have numbers of the keeper before this one that are in no batch yet.
                let known = self.desk().await.known();
                let (server, of) = (self.clone(), peer.clone());
                self.tell_later(peer, number, async move {
                    known.await;
                    server.answer(&of, question).await.ok()
                });
            }
            Question::Part(_) | Question::End(_) => self.change(peer, number, question).await,
            question => {
                let answer = self.answer(peer, question).await?;
                self.tell(peer, number, answer).await;
            }
        }
        Ok(())
    }

    /// Takes a question that the desk answers.
    async fn ask_desk(&self, peer: &Rc<Peer>, number: u64, question: Question) -> Spoken<()> {
        if question != Question::Log {
            self.next_batch(peer)?;
        }
        let desk = self.desk().await;
        match question {
            Question::Log => {
                let found = desk.log(peer.node);
                self.tell_later(peer, number, async { Some(found.await) });
            }
            Question::Room(wish) => self.tell_later(peer, number, desk.room(peer.node, wish)),
            Question::Lock(wish) => self.tell_later(peer, number, desk.lock(peer.node, wish)),
            Question::Work(done) if peer.node.number != 0 => {
                self.tell_later(peer, number, desk.work((peer.node, peer.version), done));
            }
            Question::NoPath { disk, was_used } => {
                self.tell_later(peer, number, desk.no_path(peer.node, disk, was_used));
            }
            Question::GiveBack(given) => {
                let answer = desk.take_back(peer.node, given).ok_or(ConnectionEnd)?;
                self.tell(peer, number, answer).await;
            }
            _ => return Err(ConnectionEnd),
        }
        Ok(())
    }

    /// Takes a part of a batch, or its end, after the one before it. Reads go on while it waits for
    /// its turn, and until it is durable.
    async fn change(self: &Rc<Self>, peer: &Rc<Peer>, number: u64, question: Question) {
        let permit = peer.changing.acquire(1).await;
        let (server, peer) = (self.clone(), peer.clone());
        drop(self.rt.spawn(async move {
            let is_end = matches!(question, Question::End(_));
            match server.answer(&peer, question).await {
                Ok(answer) => server.tell(&peer, number, answer).await,
                Err(ConnectionEnd) => peer.stream.close(),
            }
            drop(permit);
            if !is_end {
                return;
            }
            let Some(_one) = server.checkpointing.try_acquire(1) else { return };
            // An error stops the keeper, which the next question is told.
            if let Err(error) = server.keeper.image.checkpoint_in_steps().await {
                server.fail(&error.to_string());
            }
        }));
    }

    /// Answers; some answers come after how full the metadata is.
    async fn tell(&self, peer: &Peer, number: u64, answer: Answer) {
        let has_room = matches!(answer, Answer::Durable | Answer::Alive);
        let capacity = self.keeper.image.capacity();
        let room = has_room.then(|| (self.room(peer.node.number), capacity));
        peer.tell(number, answer, room).await;
    }

    /// Answers a question when it can be answered. With no answer the connection ends. It is none
    /// that comes after how full the metadata is, so that a lock that is waited for does not keep
    /// the store open.
    fn tell_later(
        &self,
        peer: &Rc<Peer>,
        number: u64,
        answer: impl Future<Output = Option<Answer>> + 'static,
    ) {
        let peer = peer.clone();
        drop(self.rt.spawn(async move {
            match answer.await {
                Some(answer) => peer.tell(number, answer, None).await,
                None => peer.stream.close(),
            }
        }));
    }

    /// The answer of the keeper itself.
    async fn answer(&self, peer: &Peer, question: Question) -> Spoken<Answer> {
        match question {
            Question::Row { table, key } => self.row(table, &key).await,
            Question::Rows { table, range, is_backward, max } => {
                self.rows(table, &range, is_backward, max).await
            }
            Question::Count { table } => self.count(peer, table).await,
            Question::Numbers => {
                self.next_batch(peer)?;
                let from = self.next_number.get();
                self.next_number.set(from + NUMBERS);
                self.is_number_due.set(true);
                Ok(Answer::Numbers(from, from + NUMBERS))
            }
            Question::Leave => {
                self.next_batch(peer)?;
                if peer.node.number != 0 {
                    self.desk().await.left(peer.node);
                }
                Ok(Answer::Taken)
            }
            Question::Alive => self.next_batch(peer).map(|_| Answer::Alive),
            Question::DiskWaits { disk } => {
                self.next_batch(peer)?;
                self.desk().await.disk_waits(disk);
                Ok(Answer::Taken)
            }
            Question::Part(part) => self.take(peer, part).await,
            Question::End(end) => self.end(peer, end).await,
            // The desk answers these.
            Question::Room(_)
            | Question::GiveBack(_)
            | Question::Log
            | Question::Lock(_)
            | Question::Work(_)
            | Question::NoPath { .. }
            | Question::Early(_)
            | Question::MoreMetadata
            | Question::Disk(_) => Err(ConnectionEnd),
        }
    }

    /// What node 0 does for others, once it is there.
    pub(super) async fn desk(&self) -> Rc<dyn Desk> {
        loop {
            let opened = self.opened.wait();
            if let Some(desk) = &*self.desk.borrow() {
                return desk.clone();
            }
            opened.await;
        }
    }

    /// A node says what it has, or a part of it.
    async fn restate(
        &self,
        peer: &Rc<Peer>,
        part: Restated,
    ) -> std::result::Result<(), ConnectionEnd> {
        self.next_batch(peer)?;
        let is_too_much = {
            let mut restated = peer.restated.borrow_mut();
            let Some(all) = &mut *restated else { return Err(ConnectionEnd) };
            all.tokens.extend(part.tokens);
            all.locks.extend(part.locks);
            all.space.extend(part.space);
            all.numbers_end = all.numbers_end.max(part.numbers_end);
            all.next_give_back = all.next_give_back.max(part.next_give_back);
            all.tokens.len() + all.locks.len() + all.space.len() > RESTATED_MAX
        };
        if is_too_much {
            // On the next connection it would be the same.
            let why = format!("it has more than {RESTATED_MAX} tokens, locks and runs of blocks");
            peer.outbox.write(FromKeeper::Refused(why).to_bytes()).await;
            return Err(ConnectionEnd);
        }
        if !part.is_last {
            return Ok(());
        }
        let all = peer.restated.borrow_mut().take().ok_or(ConnectionEnd)?;
        if all.numbers_end > self.next_number.get() {
            self.next_number.set(all.numbers_end);
            self.is_number_due.set(true);
        }
        if peer.node.number == 0 {
            return Ok(());
        }
        let desk = self.desk().await;
        let (rt, to): (Rt, Weak<Outbox>) = (self.rt.clone(), Rc::downgrade(&peer.outbox));
        let deliver = Rc::new(move |message| {
            if let Some(outbox) = to.upgrade() {
                outbox.post(&rt, FromKeeper::Token(message).to_bytes());
            }
        });
        if let Err(why) = desk.restated(peer.node, all, deliver) {
            let Some(why) = why else { return Err(ConnectionEnd) };
            peer.outbox.write(FromKeeper::Refused(why).to_bytes()).await;
            return Err(ConnectionEnd);
        }
        let (rt, to) = (self.rt.clone(), Rc::downgrade(&peer.outbox));
        let ask_back = Rc::new(move |round| {
            let outbox = to.upgrade();
            if let Some(outbox) = &outbox {
                outbox.post(&rt, FromKeeper::ReturnRoom { round }.to_bytes());
            }
            outbox.is_some()
        });
        desk.reached(peer.node, ask_back);
        Ok(())
    }
}
