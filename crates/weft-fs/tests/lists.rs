//! Access control lists and privileges, where the kernel leaves the decision to the file system.
//! How modes and lists go together is in `reference.rs`.

use crate::common::*;
use weft_fs::{Fs, FsError, Ino, Kind, NewFile, ROOT, SetAttr, SetXattr};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Rights of the owner, user 7, the group, the mask and others.
fn list(rights: [u8; 5]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0];
    for ((tag, id), rights) in [(1, 255), (2, 7), (4, 255), (16, 255), (32, 255)].iter().zip(rights)
    {
        let high = if *id == 255 { 255 } else { 0 };
        bytes.extend_from_slice(&[*tag, 0, rights, 0, *id, high, high, high]);
    }
    bytes
}

async fn mode(fs: &Fs, ino: Ino) -> u32 {
    fs.attr(ino).await.expect("there").mode & 0o7777
}

async fn chmod(fs: &Fs, ino: Ino, mode: u32) {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    fs.set_attr(ino, set).await.expect("set");
}

#[test]
fn a_list_by_someone_outside_the_group_ends_the_set_group_id_bit() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[24; 3])).await;
        let outside = SetXattr { drop_set_gid: true, ..SetXattr::default() };
        let file = make(&fs, "file").await;
        let folder = fs.make(ROOT, b"folder", new_file(Kind::Folder)).await.expect("made").0;
        for (ino, how, left) in [
            (file, SetXattr::default(), 0o2000),
            (folder, SetXattr::default(), 0o2000),
            (file, outside, 0),
            (folder, outside, 0),
        ] {
            chmod(&fs, ino, 0o2755).await;
            fs.set_xattr(ino, ACCESS, &list([7, 5, 0, 4, 1]), how).await.expect("set");
            assert_eq!(mode(&fs, ino).await, left | 0o741);
        }
        // What others get later says nothing about this folder.
        chmod(&fs, folder, 0o2755).await;
        fs.set_xattr(folder, DEFAULT, &list([7, 5, 0, 4, 1]), outside).await.expect("set");
        assert_eq!(mode(&fs, folder).await, 0o2755);
        assert_sound(&fs).await;
    });
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[24; 3])).await;
        let file = make(&fs, "file").await;
        let how = SetXattr::default();
        let link = NewFile { target: b"file", umask: 0o77, ..new_file(Kind::Symlink) };
        let link = NewFile { mode: link.mode | 0o777, ..link };
        let link = fs.make(ROOT, b"link", link).await.expect("made").0;
        assert_eq!(mode(&fs, link).await, 0o777, "a umask is not for symbolic links");
        let fine = list([6, 7, 7, 7, 0]);
        let refused = fs.set_xattr(link, ACCESS, &fine, how).await;
        assert!(matches!(refused, Err(FsError::Unsupported)), "{refused:?}");
        let refused = fs.set_xattr(file, DEFAULT, &fine, how).await;
        assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
        for len in (1..fine.len()).filter(|len| *len != 4) {
            let refused = fs.set_xattr(file, ACCESS, &fine[..len], how).await;
            assert!(matches!(refused, Err(FsError::Invalid(_))), "{len} bytes: {refused:?}");
        }
        assert_eq!(mode(&fs, file).await, 0o644);
        assert_eq!(fs.xattr_names(file).await.expect("listed"), Vec::<Vec<u8>>::new());
        // No entries: no list.
        fs.set_xattr(file, ACCESS, &fine, how).await.expect("set");
        fs.set_xattr(file, ACCESS, &fine[..4], how).await.expect("removed");
        assert_eq!(mode(&fs, file).await, 0o670);
        let none = fs.xattr(file, ACCESS).await;
        assert!(matches!(none, Err(FsError::NoAttribute)), "{none:?}");
        assert_sound(&fs).await;
    });
}

#[test]
fn privileges_end_when_they_must_and_only_then() {
    run(|rt| async move {
        let fs = made(&rt, &ram(&[24; 3])).await;
        let file = make(&fs, "file").await;
        let folder = fs.make(ROOT, b"folder", new_file(Kind::Folder)).await.expect("made").0;
        let fifo = fs.make(ROOT, b"fifo", new_file(Kind::Special(0o010_000))).await;
        let fifo = fifo.expect("made").0;
        let none = SetAttr::default();
        let owner = SetAttr { gid: Some(5), ..none };
        let asked = SetAttr { drop_suid: true, ..none };
        let cut = SetAttr { size: Some(1), ..none };
        let cut_by_other = SetAttr { size: Some(2), drop_suid: true, ..none };
        for (ino, set, before, after) in [
            (file, owner, 0o6755, 0o755),
            (file, owner, 0o6745, 0o2745),
            (file, asked, 0o6755, 0o755),
            (file, cut, 0o6755, 0o6755),
            (file, cut_by_other, 0o6755, 0o755),
            (fifo, owner, 0o6755, 0o755),
            (fifo, owner, 0o2644, 0o2644),
            (folder, owner, 0o7755, 0o7755),
        ] {
            chmod(&fs, ino, before).await;
            fs.set_attr(ino, set).await.expect("set");
            assert_eq!(mode(&fs, ino).await, after, "{set:?} of {ino} with {before:o}");
        }
        // Capabilities end with a new owner and with new contents, whoever brings them.
        for set in [owner, cut] {
            fs.set_xattr(file, b"security.capability", b"some", SetXattr::default())
                .await
                .expect("set");
            fs.set_attr(file, set).await.expect("set");
            assert!(fs.xattr_names(file).await.expect("listed").is_empty(), "{set:?}");
        }
    });
}
