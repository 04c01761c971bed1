//! When the metadata has no more room, and a disk with a copy has none for more of it, new files
//! and new blocks are refused. Everything else goes on, and there is room again when files were
//! deleted.

use crate::common::*;
use weft_fs::{
    CreateOptions, Fs, FsError, Ino, Kind, MountOptions, NewFile, ROOT, Rename, Result, SetAttr,
    SetXattr, create,
};
use weft_random::Rng;
use weft_rt::{Frozen, Rt, SECOND};

/// MiB of a disk with a slice of 8 MiB that has no room for a larger one.
const FULL: u64 = 11;

/// Makes files of one block, with names in no order, until one is refused; and then empty ones,
/// until one of them is.
async fn fill(fs: &Fs, rng: &mut Rng) -> Vec<(String, Ino)> {
    let (mut files, mut has_room) = (Vec::new(), true);
    for rest in 0.. {
        let name = match has_room {
            true => format!("{:016x}", rng.next_u64()),
            false => format!("rest {rest}"),
        };
        let made = fs.make(ROOT, name.as_bytes(), new_file(Kind::File)).await;
        let ino = match made {
            Ok((ino, _)) => ino,
            Err(FsError::NoSpace) => break,
            Err(error) => panic!("{error}"),
        };
        if !has_room {
            continue;
        }
        match fs.write(ino, 0, Frozen::copy_from(name.as_bytes())).await {
            Ok(()) => files.push((name, ino)),
            Err(FsError::NoSpace) => {
                fs.unlink(ROOT, name.as_bytes()).await.expect("deleted");
                has_room = false;
            }
            Err(error) => panic!("{error}"),
        }
    }
    files
}

/// Deletes the empty ones.
async fn empty(fs: &Fs) {
    let entries = fs.read_folder(ROOT, 2, usize::MAX).await.expect("read");
    for entry in entries.iter().filter(|entry| entry.name.starts_with(b"rest ")) {
        fs.unlink(ROOT, &entry.name).await.expect("deleted");
    }
}

#[test]
fn a_full_database_refuses_new_files_and_goes_on() {
    run(|rt| async move {
        let disks = ram(&[FULL, 64, 64]);
        let fs = made(&rt, &disks).await;
        let mut rng = Rng::new(1);
        let mut most = 0;
        let promised = fs.status().await.expect("known").free_inodes;
        for round in 0..3 {
            let mut files = fill(&fs, &mut rng).await;
            let made = files.len() as u64;
            assert!(made > promised / 10 * 8 && made < promised * 2, "{made} of {promised}");
            most = most.max(files.len());
            assert!(files.len() > 500, "{} in round {round}", files.len());
            let refused = fs.make(ROOT, b"one more", new_file(Kind::File)).await;
            assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
            let (name, ino) = &files[0];
            let refused = fs.set_xattr(*ino, b"user.x", b"y", SetXattr::default()).await;
            assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
            // What is there can be read, overwritten, renamed and deleted.
            fs.sync().await.expect("synced");
            assert_eq!(&*fs.read(*ino, 0, 100).await.expect("read"), name.as_bytes());
            for (name, ino) in &files {
                write(&fs, *ino, 0, &name.as_bytes()[8..]).await;
            }
            fs.sync().await.expect("synced");
            let cut = SetAttr { size: Some(8), ..SetAttr::default() };
            fs.set_attr(*ino, cut).await.expect("cut");
            assert_sound(&fs).await;
            empty(&fs).await;
            files.sort();
            for (name, _) in &files[files.len() / 10..] {
                fs.unlink(ROOT, name.as_bytes()).await.expect("deleted");
                if rng.chance(1) {
                    rt.sleep(SECOND).await;
                }
            }
            for (name, ino) in &files[..files.len() / 10] {
                let expected = &name.as_bytes()[8..];
                let found = fs.read(*ino, 0, 8).await.expect("read");
                assert_eq!(&*found, expected);
                fs.unlink(ROOT, name.as_bytes()).await.expect("deleted");
            }
        }
        // What was deleted has left nothing behind.
        let again = fill(&fs, &mut rng).await.len();
        assert!(again > most - most / 10, "{again} of {most}");
        fs.sync().await.expect("synced");
        drop(fs);
        let fs = mount(&rt, &disks).await;
        assert_sound(&fs).await;
    });
}

#[test]
fn a_large_file_is_refused_blocks_before_the_database_is_full() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[FULL, 64, 64, 64, 64, 64, 64, 64, 64])).await;
        let ino = make_as(&fs, "file", "raid6").await;
        // Lines of one block each, with another one between them: each needs a record.
        let block = pattern(BLOCK as usize, 1);
        let mut written = 0;
        let refused = loop {
            let at = written * 14 * BLOCK;
            match fs.write(ino, at, Frozen::copy_from(&block)).await {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, FsError::NoSpace), "{refused}");
        let status = fs.status().await.expect("known");
        let left: u64 = status.disks.iter().map(|disk| disk.free_bytes).sum();
        assert!(left > 16 << 20, "{left} bytes of disks are left");
        // It is said before that the metadata has no room for more.
        let raid6 = status.space.iter().find(|space| space.redundancy.to_string() == "raid6");
        let raid6 = raid6.expect("listed");
        assert!(raid6.is_limited_by_metadata && raid6.free_bytes < left / 4, "{raid6:?}");
        fs.sync().await.expect("synced");
        for n in 0..written {
            let found = fs.read(ino, n * 14 * BLOCK, BLOCK as usize).await.expect("read");
            assert_eq!(&*found, &block[..]);
        }
        write(&fs, ino, 0, &pattern(BLOCK as usize, 2)).await;
        fs.unlink(ROOT, b"file").await.expect("deleted");
        fs.sync().await.expect("synced");
        make(&fs, "another").await;
        assert_sound(&fs).await;
    });
}

#[test]
fn default_slices_let_the_database_take_its_steps() {
    run(|rt| async move {
        // Rows for 4, 16, 64 and 32 MiB of pages.
        for (mib, count, kib) in [(64, 3, 400), (300, 2, 2240), (1024, 4, 16640), (600, 9, 7040)] {
            let disks = ram(&vec![mib; count]);
            let options = CreateOptions { slice_bytes: None, ..options() };
            create(&rt, &disks, &options).await.expect("created");
            let fs = mount(&rt, &disks).await;
            let (_, most) = fs.status().await.expect("known").meta_bytes;
            assert_eq!(most >> 10, kib, "{count} disks of {mib} MiB");
        }
    });
}

#[test]
fn all_that_a_full_database_holds_may_change_at_once() {
    run(|rt| async move {
        let disks = ram(&[600, 600]);
        let slice_bytes = Some(340 << 20);
        create(&rt, &disks, &CreateOptions { slice_bytes, ..options() }).await.expect("created");
        let fs = mount(&rt, &disks).await;
        // A row that takes a page: the database is as large as its rows allow.
        let set = async |ino: Ino, n: u8, of: u8| {
            let name = format!("user.{n}");
            let set = fs.set_xattr(ino, name.as_bytes(), &[of; 2100], SetXattr::default()).await;
            set.expect("set");
        };
        let mut rng = Rng::new(1);
        let mut files = Vec::new();
        loop {
            let (rows, most) = fs.status().await.expect("known").meta_bytes;
            if rows + (1 << 20) > most {
                break;
            }
            let name = format!("{:016x}", rng.next_u64());
            let ino = make(&fs, &name).await;
            for n in 0..32 {
                set(ino, n, n).await;
            }
            files.push((name, ino));
        }
        for round in 1..4 {
            for (_, ino) in &files {
                for n in 0..32 {
                    set(*ino, n, n + round).await;
                }
            }
        }
        for (name, _) in &files {
            fs.unlink(ROOT, name.as_bytes()).await.expect("deleted");
        }
        make(&fs, "another").await;
        assert_sound(&fs).await;
    });
}

/// What makes rows of a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    Xattr,
    Symlink,
    /// Folders in one whose access control list they inherit twice.
    Folder,
}

/// An access control list that names `users` users.
fn list_of(users: u32) -> Vec<u8> {
    let entry = |tag: u16, id: u32| {
        [&tag.to_le_bytes()[..], &7_u16.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    bytes.extend(entry(1, u32::MAX));
    (0..users).for_each(|user| bytes.extend(entry(2, user)));
    [4, 16, 32].iter().for_each(|tag| bytes.extend(entry(*tag, u32::MAX)));
    bytes
}

/// Makes a file with such a row.
async fn make_row(fs: &Fs, name: &str, row: Row, len: usize) -> Result<()> {
    let bytes = vec![b'x'; len];
    match row {
        Row::Xattr => {
            let (ino, _) = fs.make(ROOT, name.as_bytes(), new_file(Kind::File)).await?;
            fs.set_xattr(ino, b"user.x", &bytes, SetXattr::default()).await
        }
        Row::Symlink => {
            let new = NewFile { target: &bytes, ..new_file(Kind::Symlink) };
            fs.make(ROOT, name.as_bytes(), new).await.map(drop)
        }
        Row::Folder => {
            let above = find(fs, "lists").await;
            fs.make(above, name.as_bytes(), new_file(Kind::Folder)).await.map(drop)
        }
    }
}

async fn remove_row(fs: &Fs, name: &str, row: Row) {
    let removed = match row {
        Row::Folder => fs.remove_folder(find(fs, "lists").await, name.as_bytes()).await,
        _ => fs.unlink(ROOT, name.as_bytes()).await,
    };
    // It is there if its attribute was refused.
    removed.unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// Makes rows until they are refused, deletes most of them, and so on.
async fn churn(rt: &Rt, seed: u64, mib: u64, choices: &[(Row, usize)]) {
    let disks = ram(&[mib + 8; 2]);
    let slice_bytes = Some(mib << 20);
    create(rt, &disks, &CreateOptions { slice_bytes, ..options() }).await.expect("created");
    let fs = mount(rt, &disks).await;
    let folder = new_file(Kind::Folder);
    let (lists, _) = fs.make(ROOT, b"lists", folder).await.expect("made");
    let list = list_of(500);
    let default = b"system.posix_acl_default";
    fs.set_xattr(lists, default, &list, SetXattr::default()).await.expect("set");
    let mut rng = Rng::new(seed);
    let mut made: Vec<(String, Row)> = Vec::new();
    let mut counts = Vec::new();
    for round in 0..4 {
        let before = made.len();
        loop {
            let (row, len) = choices[rng.below(choices.len() as u64) as usize];
            let is_any = round % 2 == 1 && len > 0;
            let len = if is_any { 1 + rng.below(len as u64) as usize } else { len };
            let name = format!("{:016x}", rng.next_u64());
            match make_row(&fs, &name, row, len).await {
                Ok(()) => made.push((name, row)),
                Err(FsError::NoSpace) => {
                    // An attribute was refused, and its file is there.
                    if row == Row::Xattr && fs.lookup(ROOT, name.as_bytes()).await.is_ok() {
                        made.push((name, row));
                    }
                    break;
                }
                Err(error) => panic!("{choices:?}, {} in round {round}: {error}", made.len()),
            }
        }
        counts.push(made.len().saturating_sub(before));
        // Every second, or most, in no order: what is free lies apart.
        let percent = [50, 66, 90, 50][round];
        let (gone, stay) = std::mem::take(&mut made).into_iter().partition(|_| rng.chance(percent));
        made = stay;
        let gone: Vec<(String, Row)> = gone;
        for (name, row) in gone {
            remove_row(&fs, &name, row).await;
        }
    }
    for (name, row) in std::mem::take(&mut made) {
        remove_row(&fs, &name, row).await;
    }
    fs.sync().await.expect("synced");
    assert_sound(&fs).await;
    make(&fs, "another").await;
    assert!(counts[0] >= 4, "{choices:?}: {counts:?}");
}

#[test]
fn rows_of_every_length_fill_no_more_than_there_is() {
    run(|rt| async move {
        for len in [65_536, 17_000, 4_100, 4_000, 2_100, 1_400, 1_000, 300, 1] {
            for mib in [8, 20] {
                churn(&rt, 1, mib, &[(Row::Xattr, len)]).await;
            }
        }
        for len in [4_095, 2_100, 1_000, 10] {
            churn(&rt, 1, 8, &[(Row::Symlink, len)]).await;
        }
        churn(&rt, 1, 8, &[(Row::Folder, 0)]).await;
    });
}

#[test]
fn rows_of_mixed_lengths_fill_no_more_than_there_is() {
    run(|rt| async move {
        let (xattr, symlink) = (Row::Xattr, Row::Symlink);
        for seed in 0..4 {
            let mib = [8, 20][seed as usize % 2];
            let all = [(xattr, 65_536), (xattr, 1), (xattr, 4_100), (symlink, 4_095), (symlink, 9)];
            churn(&rt, seed, mib, &all).await;
            churn(&rt, seed, mib, &[(xattr, 1), (xattr, 1), (xattr, 1), (xattr, 65_536)]).await;
            churn(&rt, seed, mib, &[(symlink, 1_200), (symlink, 1), (Row::Folder, 0)]).await;
        }
    });
}

#[test]
fn many_large_attributes_at_once_fill_no_more_than_there_is() {
    run(|rt| async move {
        let disks = ram(&[64, 64]);
        create(&rt, &disks, &CreateOptions { slice_bytes: Some(40 << 20), ..options() })
            .await
            .expect("created");
        let fs = mount(&rt, &disks).await;
        let mut inos = Vec::new();
        for n in 0..192 {
            inos.push(make(&fs, &format!("file{n}")).await);
        }
        let value = [7; 65_536];
        for round in 0..4 {
            let name = format!("user.{round}");
            let set = async |ino: Ino| {
                fs.set_xattr(ino, name.as_bytes(), &value, SetXattr::default()).await
            };
            let all = futures_util::future::join_all(inos.iter().map(|ino| set(*ino))).await;
            for error in all.into_iter().filter_map(Result::err) {
                assert!(matches!(error, FsError::NoSpace), "{error}");
            }
        }
        assert_eq!(fs.status().await.expect("known").stopped, None);
        for n in 0..192 {
            fs.unlink(ROOT, format!("file{n}").as_bytes()).await.expect("deleted");
        }
        make(&fs, "another").await;
        assert_sound(&fs).await;
    });
}

#[test]
fn names_do_not_grow_and_holes_are_not_punched_in_a_full_database() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[FULL, 64, 64])).await;
        let holed = make(&fs, "holed").await;
        write(&fs, holed, 0, &pattern(100 * BLOCK as usize, 1)).await;
        fs.sync().await.expect("synced");
        let files = fill(&fs, &mut Rng::new(1)).await;
        fs.sync().await.expect("synced");
        let long = [b'x'; 250];
        let (name, _) = &files[0];
        let root = |name| (ROOT, name);
        let refused = fs.rename(root(name.as_bytes()), root(&long), Rename::Replace).await;
        assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
        fs.rename(root(name.as_bytes()), root(b"short"), Rename::Replace).await.expect("renamed");
        let refused = fs.punch_hole(holed, 40 * BLOCK, 4 * BLOCK).await;
        assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
        // Some is kept for root.
        let by_root = NewFile { uid: 0, ..new_file(Kind::File) };
        fs.make(ROOT, b"of root", by_root).await.expect("made");
        assert_sound(&fs).await;
    });
}

#[test]
fn blocks_that_wait_count_with_the_records_that_they_need() {
    run(|rt| async move {
        let disks = ram(&[FULL, 64, 64]);
        create(&rt, &disks, &options()).await.expect("created");
        let options = MountOptions { cache_bytes: 128 << 20, ..mounting() };
        let fs = Fs::mount(&rt, &disks, options).await.expect("mounted");
        let kept = make(&fs, "kept").await;
        write(&fs, kept, 0, &pattern(10_000, 1)).await;
        fs.sync().await.expect("synced");
        let ino = make_as(&fs, "file", "raid1").await;
        let refused = loop {
            let n = fs.attr(ino).await.expect("there").size.div_ceil(16 * BLOCK);
            let block = Frozen::copy_from(&[7; BLOCK as usize]);
            if let Err(error) = fs.write(ino, n * 16 * BLOCK, block).await {
                break error;
            }
        };
        assert!(matches!(refused, FsError::NoSpace), "{refused}");
        fs.sync().await.expect("synced");
        let (rows, most) = fs.status().await.expect("known").meta_bytes;
        assert!(rows <= most && rows > most / 10 * 8, "{rows} of {most}");
        fs.read(kept, 0, 10_000).await.expect("read");
        fs.unlink(ROOT, b"file").await.expect("deleted");
        make(&fs, "another").await;
        assert_sound(&fs).await;
    });
}
