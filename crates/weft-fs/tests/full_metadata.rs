//! When the metadata has no more room, new files and new blocks are refused. Everything else goes on,
//! and there is room again when files were deleted.

use crate::common::*;
use weft_fs::{CreateOptions, Fs, FsError, Ino, Kind, ROOT, SetAttr, SetXattr, create};
use weft_random::Rng;
use weft_rt::{Frozen, SECOND};

/// Makes files of one block, with names in no order, until one is refused.
async fn fill(fs: &Fs, rng: &mut Rng) -> Vec<(String, Ino)> {
    let mut files = Vec::new();
    loop {
        let name = format!("{:016x}", rng.next_u64());
        let made = fs.make(ROOT, name.as_bytes(), new_file(Kind::File)).await;
        let ino = match made {
            Ok((ino, _)) => ino,
            Err(FsError::NoSpace) => return files,
            Err(error) => panic!("{error}"),
        };
        match fs.write(ino, 0, Frozen::copy_from(name.as_bytes())).await {
            Ok(()) => {}
            Err(FsError::NoSpace) => return files,
            Err(error) => panic!("{error}"),
        }
        files.push((name, ino));
    }
}

#[test]
fn a_full_database_refuses_new_files_and_goes_on() {
    run(|rt| async move {
        let disks = ram(&[64, 64, 64]);
        let fs = made(&rt, &disks).await;
        let mut rng = Rng::new(1);
        let mut most = 0;
        for round in 0..3 {
            let mut files = fill(&fs, &mut rng).await;
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
        let fs = made(&rt, &ram(&[64, 64, 64, 64, 64, 64, 64, 64, 64])).await;
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
        let left = fs.free_bytes("raid6".parse().expect("known"));
        assert!(left > 8 << 20, "{left} bytes of disks are left");
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
        for (mib, count, kib) in [(64, 3, 512), (300, 2, 2867), (1024, 4, 21299), (600, 9, 9011)] {
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
