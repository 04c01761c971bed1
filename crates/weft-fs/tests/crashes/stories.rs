//! What a client does, each for a kind of write that a crash may interrupt. `middle` is called when
//! the first files are there.

use std::collections::BTreeMap;

use weft_fs::SetAttr;
use weft_rt::Rt;

use super::client::Client;
use super::moments::{DISKS, SIZE};
use crate::common::disk::{Leave, Medium, Power, holding};
use crate::common::test_disks::left_on;
use crate::common::*;

/// The files of the story: redundancies on four disks that survive one lost disk.
/// `middle` happens when the first files are there.
pub(crate) async fn story(client: &Client, middle: impl FnOnce()) {
    let a = client.make("a", "auto").await;
    let b = client.make("b", "raid1").await;
    let c = client.make("c", "raid6").await;
    for ino in [a, b, c] {
        client.write(ino, 0, 30_000, 1).await;
    }
    client.sync().await;
    middle();
    // Overwritten in place: one block of a line, parts of blocks, whole lines.
    client.write(a, 4096, 4096, 2).await;
    client.write(b, 100, 5000, 2).await;
    client.write(c, 8000, 9000, 2).await;
    client.fsync(a).await;
    client.write(a, 9000, 300, 3).await;
    client.write(a, 0, 4096, 4).await;
    client.sync().await;
    // A tail line grows; a new file; a hole.
    client.write(a, 30_000, 6000, 5).await;
    let d = client.make("d", "auto").await;
    client.write(d, 50_000, 100, 5).await;
    client.rename("b", "e").await;
    client.sync().await;
    client.write(d, 10_000, 20_000, 6).await;
    client.cut(a, 13_000).await;
    client.remove("e").await;
    client.rename("d", "c").await;
    client.write(a, 12_000, 12_000, 7).await;
    client.sync().await;
    overwritten_and_not_committed(client, a).await;
}

/// Overwrites that only the log has, one upon the other, and what must not come between log and
/// metadata.
pub(crate) async fn overwritten_and_not_committed(client: &Client, a: u64) {
    client.rename("c", "f").await;
    client.write(a, 4096, 4096, 8).await;
    client.touch(a).await;
    client.fsync(a).await;
    client.write(a, 0, 9000, 9).await;
    client.touch(a).await;
    client.fsync(a).await;
    client.write(a, 4096, 100, 10).await;
    client.fsync(a).await;
    // The tail grows within its block.
    client.write(a, 24_000, 500, 11).await;
    client.fsync(a).await;
    client.write(a, 24_576, 4096, 12).await;
    client.sync().await;
    // A line that exists gets another block, which is flushed; another block of it is overwritten;
    // and nothing is committed meanwhile.
    client.write(a, 28_672, 4096, 13).await;
    client.cut(a, 60_000).await;
    client.write(a, 24_576, 4096, 14).await;
    client.cut(a, 61_000).await;
    client.fsync(a).await;
    // More than goes to the log with its contents, and less before it, in one line.
    let big = client.make("big", "auto").await;
    client.write(big, 0, 78 * 4096, 16).await;
    client.sync().await;
    client.write(big, 73 * 4096, 4096, 17).await;
    client.fsync(big).await;
    client.write(big, 100, 270_000, 18).await;
    client.write(big, 74 * 4096, 4096, 18).await;
    client.fsync(big).await;
    client.write(big, 8192, 4096, 19).await;
    client.fsync(big).await;
    // Much of it at once goes to new places, over lines that only the log has. They are overwritten
    // again before that is committed, and what is free then is given to others.
    client.write(big, 4096, 200_000, 25).await;
    client.write(big, 60 * 4096, 60_000, 25).await;
    client.cut(big, 78 * 4096 + 100).await;
    client.write(big, 12_288, 5000, 26).await;
    client.fsync(big).await;
    client.write(big, 0, 70 * 4096, 27).await;
    client.fsync(big).await;
    let next = client.make("next", "auto").await;
    client.write(next, 0, 100 * 4096, 28).await;
    client.sync().await;
    // The log gets a block that is longer than the file, whose size it must not have.
    let tail = client.make("tail", "auto").await;
    client.write(tail, 0, 2222, 20).await;
    client.sync().await;
    client.fs.set_xattr(tail, b"user.note", b"1", weft_fs::SetXattr::default()).await.expect("set");
    client.write(tail, 2000, 1500, 21).await;
    client.cut(tail, 3600).await;
    client.write(tail, 9000, 50, 22).await;
    client.sync().await;
    // A line keeps its blocks when the file is cut. Two of them get contents, which the log has,
    // and one is new, so that the log does not have the size.
    let cut = client.make("cut", "auto").await;
    client.write(cut, 0, 3 * 4096, 23).await;
    client.sync().await;
    client.cut(cut, 4096).await;
    client.sync().await;
    client.write(cut, 4096, 3 * 4096, 24).await;
    client.sync().await;
}

/// More blocks than go to the log with their contents, apart from each other: they are overwritten
/// in place, behind a log record without contents. Before and after it come some that have them.
pub(crate) async fn blocks_apart(client: &Client, middle: impl FnOnce()) {
    let a = client.make("a", "auto").await;
    let b = client.make("b", "raid1").await;
    client.write(a, 0, 402 * 4096, 1).await;
    client.write(b, 0, 70 * 4096, 1).await;
    client.sync().await;
    middle();
    client.write(a, 8192, 4096, 2).await;
    client.fsync(a).await;
    client.write_apart(a, (2..402).step_by(6), 3).await;
    assert!(client.fs.status().await.expect("known").dirty_bytes > 64 * BLOCK);
    client.fsync(a).await;
    client.write(b, 100, 66 * 4096, 4).await;
    client.fsync(b).await;
    client.write(a, 8192, 100, 5).await;
    client.fsync(a).await;
    assert_eq!(client.fs.status().await.expect("known").counts.out_of_place_blocks, 0);
}

/// Long files, of which batches of new lines are written at the same time: by a sync, because many
/// blocks wait, and by fsync, with another file that is made durable meanwhile.
pub(crate) async fn long_files(client: &Client, middle: impl FnOnce()) {
    let a = client.make("a", "raid5").await;
    let b = client.make("b", "raid1").await;
    client.write(a, 0, 45 * 4096 + 700, 1).await;
    client.write(b, 0, 20 * 4096, 1).await;
    client.sync().await;
    middle();
    client.write(a, 45 * 4096 + 700, 50 * 4096, 2).await;
    let c = client.make("c", "raid6").await;
    client.write(c, 30_000, 21 * 4096, 3).await;
    client.write(b, 5 * 4096, 25 * 4096, 4).await;
    futures_util::future::join(client.fsync(b), client.fsync(a)).await;
    client.write(a, 100 * 4096, 9 * 4096, 5).await;
    client.write(a, 1000, 9000, 5).await;
    client.fsync(a).await;
    // Blocks that an fsync is about to write are written again.
    client.write(a, 109 * 4096, 24 * 4096, 6).await;
    client.fsync_and_write(a, 124 * 4096, 9 * 4096, 7).await;
    client.rename("c", "d").await;
    client.sync().await;
    let overlapped = client.fs.status().await.expect("known").overlapped_batches;
    assert!(overlapped > 5, "{overlapped} batches");
}

/// Files with [`SHORT`] bytes, whose last block holds more on the disks: a crash has left the block
/// new and the size old.
pub(crate) async fn short_files(rt: &Rt) -> Vec<Medium> {
    let disks = holding(rt, &Power::new(), SIZE, &vec![Medium::new(512); DISKS]);
    let fs = made(rt, &all(&disks)).await;
    for (name, redundancy) in SHORT_FILES {
        let ino = make_as(&fs, name, redundancy).await;
        write(&fs, ino, 0, &pattern(SHORT, 1)).await;
    }
    fs.sync().await.expect("synced");
    for (name, _) in SHORT_FILES {
        let ino = find(&fs, name).await;
        write(&fs, ino, SHORT as u64, &[0xEE; 6000]).await;
        // It is flushed, and not committed.
        let longer = SetAttr { size: Some(20_000), ..SetAttr::default() };
        fs.set_attr(ino, longer).await.expect("room");
    }
    left_on(&disks, Leave::All)
}

pub(crate) const SHORT: usize = 5672;
pub(crate) const SHORT_FILES: [(&str, &str); 4] =
    [("punched", "raid1"), ("cut", "raid1"), ("grown", "auto"), ("other", "auto")];

/// Such files grow over their old end, and what was written behind it is removed again or finds bad
/// blocks.
pub(crate) async fn over_an_old_end(client: &Client, middle: impl FnOnce()) {
    let mut inos = BTreeMap::new();
    for (name, _) in SHORT_FILES {
        let ino = find(&client.fs, name).await;
        assert_eq!(read_all(&client.fs, ino).await, pattern(SHORT, 1));
        client.contents(ino, |bytes| *bytes = pattern(SHORT, 1));
        inos.insert(name.to_owned(), ino);
    }
    client.names(|names| names.clone_from(&inos));
    client.sync().await;
    middle();
    let [punched, cut, grown, other] = SHORT_FILES.map(|(name, _)| inos[name]);
    client.write(punched, 6000, 8192 - 6000, 2).await;
    client.punch(punched, 100, 8192 - 100).await;
    client.write(cut, 30_000, 80_000, 3).await;
    client.cut(cut, 1000).await;
    client.fsync(punched).await;
    client.write(grown, 13 * 4096, 100 * 4096, 4).await;
    // Between any two steps of one file, others may commit.
    let commits = async {
        for _ in 0..4 {
            client.touch(other).await;
            client.fsync(other).await;
        }
    };
    futures_util::future::join(client.fsync(grown), commits).await;
    client.sync().await;
}

/// Files with 10 blocks, and lines with old contents behind them: a crash has left the size that
/// the log had, and not the commit.
pub(crate) async fn cut_files(rt: &Rt) -> Vec<Medium> {
    let disks = holding(rt, &Power::new(), SIZE, &vec![Medium::new(512); DISKS]);
    let fs = made(rt, &all(&disks)).await;
    for (name, blocks) in CUT_FILES {
        let ino = make_as(&fs, name, "auto").await;
        write(&fs, ino, 0, &pattern(blocks * 4096, 1)).await;
    }
    fs.sync().await.expect("synced");
    for (name, _) in CUT_FILES {
        let ino = find(&fs, name).await;
        write(&fs, ino, 0, &pattern(4096, 1)).await;
        let shorter = SetAttr { size: Some(CUT as u64), ..SetAttr::default() };
        fs.set_attr(ino, shorter).await.expect("cut");
    }
    left_on(&disks, Leave::All)
}

pub(crate) const CUT: usize = 10 * 4096;
/// Those that are to grow by few blocks, and by more than the log takes with their contents.
pub(crate) const CUT_FILES: [(&str, usize); 2] = [("few", 30), ("many", 100)];

/// Such files grow over these lines.
pub(crate) async fn over_old_lines(client: &Client, _: impl FnOnce()) {
    let mut inos = BTreeMap::new();
    for (name, blocks) in CUT_FILES {
        let ino = find(&client.fs, name).await;
        assert!(read_all(&client.fs, ino).await == pattern(blocks * 4096, 1)[..CUT]);
        let places = client.fs.places(ino).await.expect("known");
        let (first, last) = places.last().expect("lines");
        assert!(first + last.lines * 3 >= blocks as u64, "lines behind the end are there");
        client.contents(ino, |bytes| *bytes = pattern(CUT, 1));
        inos.insert(name.to_owned(), ino);
    }
    client.names(|names| names.clone_from(&inos));
    client.sync().await;
    let [few, many] = CUT_FILES.map(|(name, _)| inos[name]);
    client.write(few, CUT, 3 * 4096, 2).await;
    // New lines are written with it, so the log has no contents.
    let new = client.make("new", "auto").await;
    client.write(new, 0, 8000, 3).await;
    client.sync().await;
    client.write(many, CUT, 70 * 4096, 4).await;
    client.fsync(many).await;
}

/// Disks of a new file system whose free blocks hold what was there before.
pub(crate) async fn stale_disks(rt: &Rt) -> Vec<Medium> {
    let disks = holding(rt, &Power::new(), SIZE, &vec![Medium::new(512); DISKS]);
    weft_fs::create(rt, &all(&disks), &options()).await.expect("created");
    let data_at = (64 << 10) + (8 << 20);
    let stale = |disk: &std::rc::Rc<crate::common::disk::TestDisk>| {
        let mut medium = Leave::All.of(&disk.medium.borrow());
        medium.poke(data_at, &[0xEE; 4 << 20]);
        medium
    };
    disks.iter().map(stale).collect()
}

/// Files whose places are reserved before they are written: in part, line by line, again, and in
/// holes of what was written; some of it is cut off and punched.
pub(crate) async fn reserved(client: &Client, middle: impl FnOnce()) {
    let filler = client.make("filler", "auto").await;
    client.write(filler, 0, 4096, 9).await;
    let a = client.make("a", "auto").await;
    client.reserve(a, 0, 60 * 4096).await;
    let b = client.make("b", "raid1").await;
    client.write(b, 3 * 4096, 5000, 1).await;
    client.reserve(b, 0, 20 * 4096).await;
    client.sync().await;
    middle();
    client.write(a, 10 * 4096 + 7, 9000, 2).await;
    client.fsync(a).await;
    client.write(a, 11 * 4096, 4096, 3).await;
    client.fsync(a).await;
    client.write(a, 0, 30 * 4096, 4).await;
    client.write(b, 100, 3000, 4).await;
    client.write(b, 15 * 4096, 4096, 4).await;
    client.fsync(b).await;
    client.cut(a, 40 * 4096 + 100).await;
    client.reserve(a, 45 * 4096, 30 * 4096).await;
    client.write(a, 50 * 4096, 100, 5).await;
    client.fsync(a).await;
    client.punch(b, 0, 4 * 4096).await;
    client.reserve(b, 4096, 4096).await;
    client.write(b, 4096, 50, 6).await;
    client.sync().await;
    let c = client.make("c", "raid6").await;
    client.reserve(c, 8192, 90_000).await;
    client.write(c, 20_000, 30_000, 7).await;
    client.write(a, 70 * 4096, 6 * 4096, 8).await;
    client.sync().await;
}
