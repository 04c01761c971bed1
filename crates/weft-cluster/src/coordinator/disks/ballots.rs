//! Ballots: how one value of several is decided.

use std::rc::Rc;

use weft_rt::MILLISECOND;

use super::block::{Block, Value};
use super::{DiskCoordinator, NO_MAJORITY, Shared, Visit, unreachable};
use crate::Record;
use crate::coordinator::{CoordinatorError, Swap, Version};

/// What an attempt came to.
enum Progress {
    /// The instance is decided, by the value with this nonce; `None`: a later one is, too.
    Decided(Option<u64>),
    /// Another node tries a higher ballot.
    Beaten,
    /// There was no majority.
    Lost,
}

impl DiskCoordinator {
    /// Runs the instance after `expected` until it is decided.
    pub(super) async fn propose(
        &self,
        expected: Version,
        record: Record,
    ) -> Result<Swap, CoordinatorError> {
        let shared = &self.0;
        let _one = shared.proposing.acquire(1).await;
        let nonce = shared.rng.borrow_mut().next_u64();
        let (mine, instance) = (Value { nonce, record }, expected.0 + 1);
        let deadline = shared.clock.now().saturating_add(shared.config.patience);
        let (mut is_accepted, mut highest) = (false, 0);
        loop {
            match shared.attempt(instance, &mine, &mut highest, &mut is_accepted).await? {
                Progress::Decided(decided) if decided == Some(nonce) => {
                    return Ok(Swap::Done(Version(instance)));
                }
                Progress::Decided(_) => return Ok(Swap::Conflict),
                Progress::Beaten => {}
                Progress::Lost if is_accepted => {
                    return Err(CoordinatorError::Unknown(NO_MAJORITY.to_owned()));
                }
                Progress::Lost => return Err(unreachable(NO_MAJORITY)),
            }
            if shared.clock.now() >= deadline {
                let why = "other nodes change the record all the time";
                return Err(match is_accepted {
                    true => CoordinatorError::Unknown(why.to_owned()),
                    false => unreachable(why),
                });
            }
            // Of several that beat each other one should get through.
            let pause = shared.rng.borrow_mut().within(1, 40) * MILLISECOND;
            shared.clock.sleep(pause).await;
        }
    }
}

impl Shared {
    /// One attempt to decide an instance.
    async fn attempt(
        self: &Rc<Self>,
        instance: u64,
        mine: &Value,
        highest: &mut u64,
        is_accepted: &mut bool,
    ) -> Result<Progress, CoordinatorError> {
        let ballot = {
            let mut own = self.own.borrow_mut();
            let known = own.clone();
            own.learn(&known);
            if own.decided >= instance {
                return Ok(Progress::Decided(self.decision(&own, instance)));
            }
            if own.ballot.instance != instance {
                let decided = own.decided;
                let why = format!("version {} is not known here, only {decided}", instance - 1);
                return Err(CoordinatorError::Refused(why));
            }
            let nodes = u64::from(self.config.nodes);
            let above = (*highest).max(own.ballot.tried);
            let ballot = (above / nodes + 1) * nodes + u64::from(self.config.number);
            own.ballot.tried = ballot;
            own.has_ended = false;
            ballot
        };
        let Some(disks) = self.write_own().await? else { return Ok(Progress::Lost) };
        if let Some(progress) = self.judge(&disks, instance, ballot, highest) {
            return Ok(progress);
        }
        // Of the values accepted before, the one of the highest ballot must be kept.
        let own = self.own.borrow().ballot.clone();
        let others = disks.iter().flat_map(|visit| &visit.blocks).map(|(_, block)| &block.ballot);
        let accepted = others.chain([&own]).filter(|other| other.instance == instance);
        let accepted = accepted.filter(|other| other.accepted > 0);
        let before = accepted.max_by_key(|other| other.accepted).and_then(|b| b.value.clone());
        let value = before.unwrap_or_else(|| mine.clone());
        *is_accepted |= value.nonce == mine.nonce;
        {
            let mut own = self.own.borrow_mut();
            if own.ballot.instance != instance {
                return Ok(Progress::Decided(self.decision(&own, instance)));
            }
            own.ballot.accepted = ballot;
            own.ballot.value = Some(value.clone());
        }
        let Some(disks) = self.write_own().await? else { return Ok(Progress::Lost) };
        if let Some(progress) = self.judge(&disks, instance, ballot, highest) {
            return Ok(progress);
        }
        let nonce = value.nonce;
        let decided = Block { decided: instance, value: Some(value), ..Block::default() };
        self.own.borrow_mut().learn(&decided);
        // Who reads a majority of the disks afterwards must find it.
        match self.write_own().await? {
            Some(disks) => {
                self.learn(&disks);
                Ok(Progress::Decided(Some(nonce)))
            }
            None => Ok(Progress::Lost),
        }
    }

    /// Whether the blocks that were read end an attempt.
    fn judge(
        &self,
        disks: &[Visit],
        instance: u64,
        ballot: u64,
        highest: &mut u64,
    ) -> Option<Progress> {
        self.learn(disks);
        let own = self.own.borrow();
        if own.decided >= instance {
            return Some(Progress::Decided(self.decision(&own, instance)));
        }
        let others = disks.iter().flat_map(|visit| &visit.blocks).map(|(_, block)| &block.ballot);
        let tried = others.filter(|other| other.instance == instance).map(|other| other.tried);
        *highest = tried.max().unwrap_or(0).max(*highest);
        (*highest > ballot).then_some(Progress::Beaten)
    }

    /// The nonce of the value that was decided in `instance`, if that was the last one.
    fn decision(&self, own: &Block, instance: u64) -> Option<u64> {
        let value = own.value.as_ref().filter(|_| own.decided == instance);
        value.map(|value| value.nonce)
    }
}
