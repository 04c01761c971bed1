//! Messages survive their way as bytes, in pieces of any length; no bytes break a parser, and the
//! bytes of each message stay what they are.

mod exercise;

use std::borrow::Cow;
use std::ops::{Bound, Range};

use weft_testkit::{Rng, for_seeds};
use weft_token::{
    Ask, FileLock, Kind, LockFamily, LockOwner, LockedFile, Mode, NodeId, Release, Revoke, Space,
    ToAuthority, ToNode,
};
use weft_wire::{
    Answer, Checked, DISK_BYTES_MAX, DiskBlocks, DiskFault, DiskReply, DiskRequest, DiskWork,
    EARLY_BLOCK_BYTES, EarlyAttributes, EarlyBlock, EarlyCommit, EarlyLive, End, FIRST_VERSION,
    Frames, FromKeeper, GiveBack, Key, KeyRange, LockReply, LockWish, MESSAGE_BYTES_MAX, Moved,
    Outcome, Part, PathVerdict, Question, Restated, Room, RoomWish, RowChange, Run, Table, Task,
    ToKeeper, VERSION, WireError, Work, WorkDone,
};

fn bytes(rng: &mut Rng) -> Vec<u8> {
    let len = rng.index(40) * rng.index(8);
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

fn number(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 => rng.below(3),
        1 => u64::MAX - rng.below(3),
        _ => rng.next_u64(),
    }
}

fn key(rng: &mut Rng) -> Key<'static> {
    Key { first: number(rng), name: Cow::Owned(bytes(rng)), second: number(rng) }
}

fn table(rng: &mut Rng) -> Table {
    Table::ALL[rng.index(Table::ALL.len())]
}

fn range(rng: &mut Rng) -> KeyRange<'static> {
    let mut bound = || match rng.below(3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(rng)),
        _ => Bound::Excluded(key(rng)),
    };
    (bound(), bound())
}

fn value(rng: &mut Rng) -> Option<Box<[u8]>> {
    rng.chance(2, 3).then(|| bytes(rng).into())
}

fn space(rng: &mut Rng) -> Space {
    let kinds = [Kind::Everything, Kind::Names, Kind::Attributes, Kind::Data, Kind::Open];
    Space { kind: kinds[rng.index(5)], ino: number(rng) }
}

fn blocks(rng: &mut Rng) -> Range<u64> {
    let start = rng.next_u64() >> 1;
    start..start + 1 + rng.below(u64::MAX >> 1)
}

/// What is needed, and what is wanted.
fn wish(rng: &mut Rng) -> (Range<u64>, Range<u64>) {
    let needed = blocks(rng);
    let wanted = needed.start - rng.below(needed.start + 1)..needed.end;
    (needed, if rng.chance(1, 2) { 0..u64::MAX } else { wanted })
}

fn mode(rng: &mut Rng) -> Mode {
    if rng.chance(1, 2) { Mode::Shared } else { Mode::Exclusive }
}

fn leaves(rng: &mut Rng) -> Option<Mode> {
    rng.chance(1, 2).then(|| mode(rng))
}

fn runs(rng: &mut Rng) -> Vec<Run> {
    let run = |rng: &mut Rng| {
        let blocks = blocks(rng);
        Run { disk: 5, start: blocks.start, blocks: blocks.end - blocks.start }
    };
    (0..rng.below(9)).map(|_| run(rng)).collect()
}

fn of_disks(rng: &mut Rng) -> Vec<DiskBlocks> {
    (0..3).map(|disk| DiskBlocks { disk, blocks: number(rng) }).collect()
}

fn locked(rng: &mut Rng) -> LockedFile {
    let family = if rng.chance(1, 2) { LockFamily::Posix } else { LockFamily::Flock };
    LockedFile { family, ino: number(rng) }
}

fn lock(rng: &mut Rng) -> FileLock {
    let owner = lock_owner(rng);
    FileLock { owner, pid: 77, bytes: blocks(rng), mode: mode(rng) }
}

fn lock_owner(rng: &mut Rng) -> LockOwner {
    LockOwner { node: NodeId { number: 7, epoch: number(rng) }, number: number(rng) }
}

fn lock_wish(rng: &mut Rng) -> LockWish {
    match rng.below(4) {
        0 => {
            let waits = rng.chance(1, 2).then(|| number(rng));
            LockWish::Take { file: locked(rng), lock: lock(rng), waits }
        }
        1 => {
            let (file, owner, bytes) = (locked(rng), lock_owner(rng), blocks(rng));
            LockWish::Release { file, owner, bytes }
        }
        2 => LockWish::Find { file: locked(rng), lock: lock(rng) },
        _ => LockWish::Cancel { waits: number(rng) },
    }
}

fn lock_reply(rng: &mut Rng) -> LockReply {
    match rng.below(5) {
        0 => LockReply::Done,
        1 => LockReply::Busy,
        2 => LockReply::Deadlock,
        3 => LockReply::Cancelled,
        _ => LockReply::Found(lock(rng)),
    }
}

fn numbers(rng: &mut Rng) -> Vec<u64> {
    (0..rng.below(9)).map(|_| number(rng)).collect()
}

fn work(rng: &mut Rng) -> Work {
    let task = match rng.below(4) {
        0 => Task::Move { disks: vec![3, 9], files: numbers(rng) },
        1 => Task::Check { from: (number(rng), number(rng)), to: (number(rng), number(rng)) },
        2 => Task::Even { free: of_disks(rng), files: numbers(rng) },
        _ => Task::Lay { files: numbers(rng) },
    };
    Work { number: number(rng), task }
}

fn work_done(rng: &mut Rng) -> WorkDone {
    let outcome = match rng.below(3) {
        0 => None,
        1 => Some(Outcome::Moved(Moved {
            found: number(rng),
            blocks: number(rng),
            kept: number(rng),
            damaged: numbers(rng),
            waiting: numbers(rng),
            wrong: (0..rng.below(9)).map(|_| (number(rng), number(rng))).collect(),
        })),
        _ => Some(Outcome::Checked(Checked {
            found: number(rng),
            blocks: number(rng),
            bad: number(rng),
            repaired: number(rng),
            damaged: numbers(rng),
        })),
    };
    WorkDone { number: number(rng), outcome }
}

fn disk_request(rng: &mut Rng) -> DiskRequest {
    let work = match rng.below(4) {
        0 => DiskWork::Read { len: u32::try_from(rng.below(1 << 20)).expect("it is short") },
        1 => DiskWork::Write { data: bytes(rng) },
        2 => DiskWork::WriteZeroes { len: number(rng) },
        _ => DiskWork::Flush,
    };
    DiskRequest { disk: 5, offset: number(rng), work }
}

fn disk_reply(rng: &mut Rng) -> DiskReply {
    let faults = [DiskFault::Lost, DiskFault::Block, DiskFault::NoSpace, DiskFault::Invalid];
    match rng.below(3) {
        0 => DiskReply::Done,
        1 => DiskReply::Data(bytes(rng).into()),
        _ => DiskReply::Failed { fault: faults[rng.index(4)], why: text(rng) },
    }
}

fn verdict(rng: &mut Rng) -> PathVerdict {
    match rng.below(3) {
        0 => PathVerdict::Lost(text(rng)),
        1 => PathVerdict::Stop(text(rng)),
        _ => PathVerdict::ThroughKeeper { size_bytes: number(rng), sector_bytes: 512 },
    }
}

fn early_blocks(rng: &mut Rng) -> Vec<EarlyBlock> {
    let block =
        |rng: &mut Rng| EarlyBlock { ino: number(rng), block: number(rng), number: number(rng) };
    (0..rng.below(5)).map(|_| block(rng)).collect()
}

fn early_commit(rng: &mut Rng) -> EarlyCommit {
    let attributes = rng.chance(1, 2).then(|| EarlyAttributes {
        size: number(rng),
        modified_s: number(rng).cast_signed(),
        modified_ns: 7,
    });
    let block = |rng: &mut Rng| {
        let mut contents = vec![0; EARLY_BLOCK_BYTES];
        rng.fill(&mut contents);
        (rng.below(u64::MAX), contents.into())
    };
    let blocks = (0..rng.below(3)).map(|_| block(rng)).collect();
    EarlyCommit { number: number(rng), after: number(rng), ino: number(rng), attributes, blocks }
}

fn to_keeper(rng: &mut Rng) -> ToKeeper {
    let question = match rng.below(24) {
        23 => {
            let (committed, unanswered) = (early_blocks(rng), early_blocks(rng));
            return ToKeeper::EarlyLive(EarlyLive { committed, unanswered });
        }
        22 => return ToKeeper::EarlyDone(early_blocks(rng)),
        21 => Question::Early(early_commit(rng)),
        20 => Question::DiskWaits { disk: 5 },
        19 => Question::MoreMetadata,
        18 => Question::Work(rng.chance(2, 3).then(|| work_done(rng))),
        17 => Question::NoPath { disk: 5, was_used: rng.chance(1, 2) },
        16 => Question::Disk(disk_request(rng)),
        15 => Question::Log,
        13 => Question::Leave,
        14 => Question::Lock(lock_wish(rng)),
        12 => Question::Numbers,
        11 => Question::Alive,
        10 => Question::GiveBack(GiveBack {
            number: number(rng),
            runs: runs(rng),
            has: of_disks(rng),
            round: number(rng),
        }),
        9 => Question::Room(RoomWish {
            number: number(rng),
            wanted: of_disks(rng),
            has: of_disks(rng),
            is_urgent: rng.chance(1, 2),
        }),
        8 => {
            let holding = |rng: &mut Rng| (space(rng), blocks(rng), mode(rng));
            return ToKeeper::Restate(Restated {
                tokens: (0..rng.below(9)).map(|_| holding(rng)).collect(),
                locks: (0..rng.below(3)).map(|_| (locked(rng), lock(rng))).collect(),
                numbers_end: number(rng),
                space: runs(rng),
                next_give_back: number(rng),
                is_last: rng.chance(1, 2),
            });
        }
        0 => {
            let node = NodeId { number: 7, epoch: number(rng) };
            let version = if rng.chance(1, 2) { FIRST_VERSION } else { VERSION };
            return ToKeeper::Hello { version, file_system: [3; 16], node };
        }
        1 => {
            let (space, (needed, wanted)) = (space(rng), wish(rng));
            let ask = Ask { space, needed, wanted, mode: mode(rng) };
            return ToKeeper::Token(ToAuthority::Ask { ask, seen: number(rng) });
        }
        2 => {
            let (space, range, leaves, seen) = (space(rng), blocks(rng), leaves(rng), number(rng));
            let release = Release { space, range, leaves, seen };
            return ToKeeper::Token(ToAuthority::Release(release));
        }
        3 => Question::Row { table: table(rng), key: key(rng) },
        4 => {
            let max = u32::try_from(1 + rng.below(300)).expect("few");
            let (table, range) = (table(rng), range(rng));
            Question::Rows { table, range, is_backward: rng.chance(1, 2), max }
        }
        5 => Question::Count { table: table(rng) },
        6 => {
            let row =
                |rng: &mut Rng| RowChange { table: table(rng), key: key(rng), value: value(rng) };
            let rows = (0..rng.below(9)).map(|_| row(rng)).collect();
            Question::Part(Part { batch: number(rng), rows })
        }
        _ => Question::End(End { batch: number(rng), is_last: rng.chance(1, 2) }),
    };
    ToKeeper::Ask { number: number(rng), question }
}

fn text(rng: &mut Rng) -> String {
    "why ".repeat(rng.index(20))
}

fn from_keeper(rng: &mut Rng) -> FromKeeper {
    let answer = match rng.below(23) {
        21 => return FromKeeper::Capacity(number(rng)),
        22 => Answer::Early(rng.chance(1, 2)),
        20 => Answer::Work(work(rng)),
        17 => Answer::Path(verdict(rng)),
        18 => Answer::Disk(disk_reply(rng)),
        19 => {
            return FromKeeper::LostDisks((0..u16::try_from(rng.below(5)).expect("few")).collect());
        }
        15 => Answer::Log(rng.chance(1, 2).then(|| text(rng))),
        16 => Answer::Lock(lock_reply(rng)),
        14 => Answer::Numbers(number(rng), number(rng)),
        13 => {
            let (rows, left, left_for_root) = (number(rng), number(rng), number(rng));
            return FromKeeper::Room(Room { rows, left, left_for_root });
        }
        12 => return FromKeeper::ReturnRoom { round: number(rng) },
        11 => Answer::Room { runs: runs(rng), elsewhere: of_disks(rng) },
        0 => {
            let (next_batch, capacity) = (number(rng), number(rng));
            return FromKeeper::Welcome { next_batch, capacity, rows_max: 256 };
        }
        1 => return FromKeeper::Refused(text(rng)),
        2 => {
            let (number, space, range) = (number(rng), space(rng), blocks(rng));
            return FromKeeper::Token(ToNode::Grant { number, space, range, mode: mode(rng) });
        }
        3 => {
            let (space, (needed, wanted)) = (space(rng), wish(rng));
            let revoke = Revoke { space, needed, wanted, leaves: leaves(rng) };
            return FromKeeper::Token(ToNode::Revoke(revoke));
        }
        4 => Answer::Row(value(rng)),
        5 => {
            let rows = (0..rng.below(9)).map(|_| (key(rng), bytes(rng).into())).collect();
            Answer::Rows { rows, is_end: rng.chance(1, 2) }
        }
        6 => Answer::Count { rows: number(rng), next_batch: number(rng) },
        7 => Answer::Taken,
        8 => Answer::Durable,
        9 => Answer::Alive,
        _ => Answer::Failed(text(rng)),
    };
    FromKeeper::Answer { number: number(rng), answer }
}

/// Messages as a stream, in pieces.
fn come_through<T: PartialEq + std::fmt::Debug>(
    rng: &mut Rng,
    messages: &[T],
    to_bytes: impl Fn(&T) -> Vec<u8>,
    next: impl Fn(&mut Frames) -> Result<Option<T>, WireError>,
) {
    let stream: Vec<u8> = messages.iter().flat_map(to_bytes).collect();
    let (mut frames, mut rest, mut found) = (Frames::default(), &stream[..], Vec::new());
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(1 + rng.index(rest.len().min(300)));
        frames.push(piece);
        rest = after;
        while let Some(message) = next(&mut frames).expect("sound") {
            found.push(message);
        }
    }
    assert_eq!(found, messages);
    assert_eq!(frames.waiting_bytes(), 0);
}

#[test]
fn messages_come_through_as_they_were_sent() {
    for_seeds(0..200, |rng| {
        let messages: Vec<_> = (0..20).map(|_| to_keeper(rng)).collect();
        come_through(rng, &messages, ToKeeper::to_bytes, ToKeeper::next);
        let messages: Vec<_> = (0..20).map(|_| from_keeper(rng)).collect();
        come_through(rng, &messages, FromKeeper::to_bytes, FromKeeper::next);
    });
}

#[test]
fn no_bytes_break_a_parser() {
    for_seeds(0..2000, |rng| {
        let mut stream = Vec::new();
        for _ in 0..1 + rng.below(4) {
            match rng.chance(1, 2) {
                true => stream.extend(to_keeper(rng).to_bytes()),
                false => stream.extend(from_keeper(rng).to_bytes()),
            }
        }
        for _ in 0..rng.below(4) {
            let at = rng.index(stream.len());
            stream[at] = if rng.chance(1, 2) { rng.next_u64().to_le_bytes()[0] } else { 255 };
        }
        stream.truncate(1 + rng.index(stream.len()));
        exercise::exercise(&stream);
        exercise::exercise(&exercise::summed(&stream));
    });
}

#[test]
fn each_changed_bit_is_found() {
    let end = Question::End(End { batch: 9, is_last: true });
    let sound = ToKeeper::Ask { number: 1, question: end }.to_bytes();
    for bit in 0..8 * sound.len() {
        let mut changed = sound.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let mut frames = Frames::default();
        frames.push(&changed);
        // A longer one waits for more bytes.
        assert!(!matches!(ToKeeper::next(&mut frames), Ok(Some(_))), "bit {bit}");
    }
}

#[test]
fn a_claimed_length_takes_no_memory_and_another_version_is_named() {
    let error_of = |bytes: &[u8]| {
        let mut frames = Frames::default();
        frames.push(bytes);
        ToKeeper::next(&mut frames)
    };
    let long = (MESSAGE_BYTES_MAX + 1).to_le_bytes();
    let head = [&long[..], &[1, 0, 1, 0, 0, 0, 0, 0]].concat();
    assert_eq!(error_of(&head), Err(WireError::TooLong(MESSAGE_BYTES_MAX + 1)));
    for version in [0, 3] {
        let head = [&[4, 0, 0, 0, version, 0, 1, 0][..], &[0; 4]].concat();
        assert_eq!(error_of(&head), Err(WireError::Version(version.into())));
    }
    // What is older than its frame.
    let mut alive = ToKeeper::Ask { number: 1, question: Question::Alive }.to_bytes();
    alive[4] = 2;
    let error = error_of(&exercise::summed(&alive));
    assert_eq!(error, Err(WireError::Malformed("the version of another message")));
    // A list of 4 thousand million rows in a frame of 21 bytes.
    let mut part =
        ToKeeper::Ask { number: 1, question: Question::Part(Part { batch: 2, rows: Vec::new() }) }
            .to_bytes();
    let count = part.len() - 4;
    part[count..].copy_from_slice(&[255; 4]);
    let error = error_of(&exercise::summed(&part));
    assert_eq!(error, Err(WireError::Malformed("fewer bytes than its fields have")));
    // A read of more bytes of a disk than an answer may have.
    let read = |len| {
        let request = DiskRequest { disk: 1, offset: 0, work: DiskWork::Read { len } };
        error_of(&ToKeeper::Ask { number: 1, question: Question::Disk(request) }.to_bytes())
    };
    assert!(matches!(read(DISK_BYTES_MAX), Ok(Some(_))));
    assert!(matches!(read(DISK_BYTES_MAX + 1), Err(WireError::Malformed(_))));
}

/// Bytes in hexadecimal, a space after the head.
fn hex(bytes: &[u8]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("{} {}", hex(&bytes[..12]), hex(&bytes[12..]))
}

/// These bytes are what nodes send. Those of a message stay as they are: the version in their head
/// is the first one that has it.
#[test]
fn the_bytes_of_all_messages() {
    let node = NodeId { number: 2, epoch: 5 };
    let space = Space { kind: Kind::Data, ino: 6 };
    let ask = |question| ToKeeper::Ask { number: 1, question };
    let answer = |answer| FromKeeper::Answer { number: 1, answer };
    let disk = |work| ask(Question::Disk(DiskRequest { disk: 3, offset: 8192, work }));
    let name = Key { first: 1, name: Cow::Borrowed(b"ab"), second: 3 };
    let (needed, wanted) = (4..8, 0..16);
    let leaves = Some(Mode::Shared);
    let rows = vec![
        RowChange { table: Table::Names, key: name.clone(), value: Some([9].into()) },
        RowChange { table: Table::Bad, key: Key::pair(1, 2), value: None },
    ];
    let range = (Bound::Included(Key::number(1)), Bound::Excluded(Key::number(2)));
    let run = Run { disk: 3, start: 9, blocks: 2 };
    let file = LockedFile { family: LockFamily::Flock, ino: 6 };
    let owner = LockOwner { node, number: 11 };
    let held = FileLock { owner, pid: 12, bytes: 3..5, mode: Mode::Shared };
    let some = |blocks| vec![DiskBlocks { disk: 3, blocks }];
    let early = EarlyBlock { ino: 6, block: 2, number: 9 };
    let attributes = EarlyAttributes { size: 10, modified_s: -12, modified_ns: 13 };
    let to_keeper = [
        ToKeeper::Hello { version: 1, file_system: [1; 16], node },
        ToKeeper::Hello { version: 2, file_system: [1; 16], node },
        ask(Question::Row { table: Table::Names, key: name.clone() }),
        ask(Question::Rows { table: Table::Extents, range, is_backward: true, max: 9 }),
        ask(Question::Count { table: Table::Inodes }),
        ask(Question::Part(Part { batch: 4, rows })),
        ask(Question::End(End { batch: 4, is_last: true })),
        ask(Question::Alive),
        ask(Question::Numbers),
        ask(Question::Leave),
        ToKeeper::Token(ToAuthority::Ask {
            ask: Ask {
                space,
                needed: needed.clone(),
                wanted: wanted.clone(),
                mode: Mode::Exclusive,
            },
            seen: 7,
        }),
        ToKeeper::Token(ToAuthority::Release(Release {
            space,
            range: needed.clone(),
            leaves,
            seen: 7,
        })),
        ToKeeper::Restate(Restated {
            tokens: vec![(space, needed.clone(), Mode::Exclusive)],
            locks: vec![(file, held.clone())],
            numbers_end: 1024,
            space: vec![run],
            next_give_back: 6,
            is_last: true,
        }),
        ask(Question::Room(RoomWish {
            number: 4,
            wanted: some(70),
            has: some(9),
            is_urgent: true,
        })),
        ask(Question::GiveBack(GiveBack { number: 5, runs: vec![run], has: some(7), round: 8 })),
        ask(Question::Log),
        ask(Question::Lock(LockWish::Take { file, lock: held.clone(), waits: Some(9) })),
        ask(Question::Lock(LockWish::Release { file, owner, bytes: 3..5 })),
        ask(Question::Lock(LockWish::Find { file, lock: held.clone() })),
        ask(Question::Lock(LockWish::Cancel { waits: 9 })),
        ask(Question::NoPath { disk: 3, was_used: true }),
        disk(DiskWork::Read { len: 4096 }),
        disk(DiskWork::Write { data: vec![7; 3] }),
        disk(DiskWork::WriteZeroes { len: 4096 }),
        disk(DiskWork::Flush),
        ask(Question::MoreMetadata),
        ask(Question::DiskWaits { disk: 3 }),
        ask(Question::Work(None)),
        ask(Question::Work(Some(WorkDone { number: 9, outcome: None }))),
        ask(Question::Work(Some(WorkDone {
            number: 9,
            outcome: Some(Outcome::Moved(Moved {
                found: 7,
                blocks: 6,
                kept: 5,
                damaged: vec![1],
                waiting: vec![2, 3],
                wrong: vec![(4, 8)],
            })),
        }))),
        ask(Question::Work(Some(WorkDone {
            number: 9,
            outcome: Some(Outcome::Checked(Checked {
                found: 7,
                blocks: 6,
                bad: 5,
                repaired: 4,
                damaged: vec![3],
            })),
        }))),
        ask(Question::Early(EarlyCommit {
            number: 9,
            after: 8,
            ino: 6,
            attributes: Some(attributes),
            blocks: Vec::new(),
        })),
        ToKeeper::EarlyLive(EarlyLive { committed: vec![early], unanswered: vec![early] }),
        ToKeeper::EarlyDone(vec![early]),
    ];
    let from_keeper = [
        FromKeeper::Welcome { next_batch: 4, capacity: 1 << 20, rows_max: 256 },
        FromKeeper::Refused("no".into()),
        answer(Answer::Row(Some([9].into()))),
        answer(Answer::Rows { rows: vec![(name, [9].into())], is_end: true }),
        answer(Answer::Count { rows: 5, next_batch: 4 }),
        answer(Answer::Taken),
        answer(Answer::Durable),
        answer(Answer::Alive),
        answer(Answer::Numbers(1024, 2048)),
        FromKeeper::Room(Room { rows: 7, left: 5, left_for_root: 6 }),
        answer(Answer::Failed("no".into())),
        FromKeeper::Token(ToNode::Grant {
            number: 8,
            space,
            range: needed.clone(),
            mode: Mode::Shared,
        }),
        FromKeeper::Token(ToNode::Revoke(Revoke { space, needed, wanted, leaves })),
        answer(Answer::Room { runs: vec![run], elsewhere: some(12) }),
        FromKeeper::ReturnRoom { round: 8 },
        answer(Answer::Log(None)),
        answer(Answer::Log(Some("no".into()))),
        answer(Answer::Lock(LockReply::Found(held))),
        answer(Answer::Path(PathVerdict::Lost("no".into()))),
        answer(Answer::Path(PathVerdict::ThroughKeeper { size_bytes: 1 << 20, sector_bytes: 512 })),
        answer(Answer::Path(PathVerdict::Stop("no".into()))),
        answer(Answer::Disk(DiskReply::Done)),
        answer(Answer::Disk(DiskReply::Data([7; 3].into()))),
        answer(Answer::Disk(DiskReply::Failed { fault: DiskFault::Block, why: "no".into() })),
        FromKeeper::LostDisks(vec![3, 4]),
        FromKeeper::Capacity(5),
        answer(Answer::Work(Work {
            number: 9,
            task: Task::Move { disks: vec![3], files: vec![6, 5] },
        })),
        answer(Answer::Work(Work { number: 9, task: Task::Check { from: (1, 2), to: (3, 4) } })),
        answer(Answer::Work(Work {
            number: 9,
            task: Task::Even { free: some(12), files: vec![6, 5] },
        })),
        answer(Answer::Work(Work { number: 9, task: Task::Lay { files: vec![6, 5] } })),
        answer(Answer::Early(true)),
    ];
    let lines = to_keeper.iter().map(|message| hex(&message.to_bytes()));
    let lines = lines.chain(from_keeper.iter().map(|message| hex(&message.to_bytes())));
    let found: Vec<String> = lines.collect();
    let golden: Vec<&str> = include_str!("golden.txt").lines().collect();
    assert_eq!(found, golden, "{}", found.join("\n"));
}
