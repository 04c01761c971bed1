//! Extended attributes: who may be called what, and how much of them there is. And times.

use crate::common::*;
use weft_fs::{
    FsError, Kind, MountOptions, NewFile, ROOT, SetAttr, SetXattr, Time, XATTR_LIST_MAX,
};
use weft_rt::SECOND;

#[test]
fn attributes_are_in_a_name_space_and_have_a_name_there() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[64, 64])).await;
        let ino = make(&fs, "file").await;
        let set =
            async |name: &str| fs.set_xattr(ino, name.as_bytes(), b"x", SetXattr::default()).await;
        for name in ["user.x", "trusted.x", "security.x"] {
            set(name).await.expect(name);
        }
        for name in ["system.x", "system.nfs4_acl", "x", "user", "userx", "", ".", "weft.x"] {
            let refused = set(name).await;
            assert!(matches!(refused, Err(FsError::Unsupported)), "{name}: {refused:?}");
            let refused = fs.xattr(ino, name.as_bytes()).await;
            assert!(matches!(refused, Err(FsError::Unsupported)), "{name}: {refused:?}");
            let refused = fs.remove_xattr(ino, name.as_bytes()).await;
            assert!(matches!(refused, Err(FsError::Unsupported)), "{name}: {refused:?}");
        }
        for name in ["user.", "trusted.", "security."] {
            let refused = set(name).await;
            assert!(matches!(refused, Err(FsError::Invalid(_))), "{name}: {refused:?}");
        }
        let once = SetXattr { exists: Some(false), ..SetXattr::default() };
        let refused = fs.set_xattr(ino, b"user.weft.redundancy", b"raid1", once).await;
        assert!(matches!(refused, Err(FsError::Exists)), "{refused:?}");
        let names = fs.xattr_names(ino).await.expect("known");
        assert_eq!(names, [&b"security.x"[..], b"trusted.x", b"user.x"]);
        assert_sound(&fs).await;
    });
}

#[test]
fn values_of_every_length_are_kept_and_go() {
    run(|rt| async move {
        let disks = ram(&[64, 64]);
        let fs = made(&rt, &disks).await;
        let ino = make(&fs, "file").await;
        let lens = [0, 1, 511, 512, 513, 1024, 1025, 4095, 4100, 65_536];
        for (old, new) in lens.iter().flat_map(|old| lens.map(|new| (*old, new))) {
            for len in [old, new] {
                let value = pattern(len, len as u64);
                fs.set_xattr(ino, b"user.x", &value, SetXattr::default()).await.expect("set");
            }
            let found = fs.xattr(ino, b"user.x").await.expect("there");
            assert!(found == pattern(new, new as u64), "{old} to {new}");
        }
        for len in [1, 511, 512, 513, 4095] {
            let target = vec![b'x'; len];
            let new = NewFile { target: &target, ..new_file(Kind::Symlink) };
            let (link, _) = fs.make(ROOT, b"link", new).await.expect("made");
            assert_eq!(fs.read_link(link).await.expect("read"), target);
            fs.sync().await.expect("synced");
            fs.unlink(ROOT, b"link").await.expect("deleted");
        }
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &disks).await;
        assert!(fs.xattr(ino, b"user.x").await.expect("there") == pattern(65_536, 65_536));
        let before = fs.status().await.expect("known").meta_bytes.0;
        fs.remove_xattr(ino, b"user.x").await.expect("removed");
        let after = fs.status().await.expect("known").meta_bytes.0;
        assert!(before - after > 65_536, "{before} and {after}");
        assert_sound(&fs).await;
    });
}

#[test]
fn a_file_has_no_more_attributes_than_can_be_listed() {
    run(|rt| async move {
        let disks = ram(&[300, 300]);
        let options = weft_fs::CreateOptions { slice_bytes: Some(100 << 20), ..options() };
        weft_fs::create(&rt, &disks, &options).await.expect("created");
        let fs = mount(&rt, &disks).await;
        let ino = make(&fs, "file").await;
        let long = "x".repeat(240);
        let mut count = 0;
        let refused = loop {
            let name = format!("user.{long}{count:04}");
            match fs.set_xattr(ino, name.as_bytes(), b"", SetXattr::default()).await {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, FsError::NoSpace), "{refused}");
        assert_eq!(count, XATTR_LIST_MAX / 250);
        // Those that are there can change.
        let first = format!("user.{long}0000");
        fs.set_xattr(ino, first.as_bytes(), &[1; 65_536], SetXattr::default()).await.expect("set");
        let names = fs.xattr_names(ino).await.expect("known");
        assert_eq!(names.len(), count);
        // Of values, there is a bound to all of them together.
        let ino = make(&fs, "values").await;
        let mut set = 0;
        for n in 0..20 {
            let name = format!("user.{n}");
            let value = [2; 65_536];
            set += usize::from(
                fs.set_xattr(ino, name.as_bytes(), &value, SetXattr::default()).await.is_ok(),
            );
        }
        assert_eq!(set, 8);
        fs.unlink(ROOT, b"values").await.expect("deleted");
        assert_sound(&fs).await;
    });
}

#[test]
fn a_time_to_come_is_not_that_of_a_change() {
    run(|rt| async move {
        let disks = ram(&[64, 64]);
        let fs = made(&rt, &disks).await;
        let ino = make(&fs, "file").await;
        write(&fs, ino, 0, b"some").await;
        let later = Time { s: NOW.s + 1_000_000, ns: 0 };
        let modified = SetAttr { modified: Some(later), ..SetAttr::default() };
        fs.set_attr(ino, modified).await.expect("set");
        let is_right =
            |inode: weft_fs::Inode| inode.modified == later && inode.changed.s < NOW.s + 100;
        assert!(is_right(fs.attr(ino).await.expect("there")));
        fs.fsync(ino).await.expect("synced");
        assert!(is_right(fs.attr(ino).await.expect("there")));
        fs.unmount().await.expect("unmounted");
        let fs = mount(&rt, &disks).await;
        assert!(is_right(fs.attr(ino).await.expect("there")));
    });
}

#[test]
fn times_are_those_of_the_clock() {
    run(|rt| async move {
        // The clock is set, and the executor's time goes on as if nothing had been.
        fn clock() -> Time {
            Time { s: 2_000_000_000, ns: 7 }
        }
        let disks = ram(&[64, 64]);
        weft_fs::create(&rt, &disks, &options()).await.expect("created");
        let options = MountOptions { clock: Some(clock), ..mounting() };
        let fs = weft_fs::Fs::mount(&rt, &disks, options).await.expect("mounted");
        rt.sleep(SECOND).await;
        let ino = make(&fs, "file").await;
        assert_eq!(fs.attr(ino).await.expect("there").changed, clock());
    });
}
