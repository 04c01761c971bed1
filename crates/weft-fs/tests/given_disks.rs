//! Disks that are given to a mount: it goes without one that has shrunk, or has a label of another
//! version, if that is wanted; and a mount that is refused has changed nothing.

use std::rc::Rc;

use crate::common::disk::{Leave, Medium, Power, TestDisk, holding};
use crate::common::moments::*;
use crate::common::test_disks::left_on;
use crate::common::*;
use weft_disk::Disk;
use weft_fs::{Fs, FsError, Label, MountOptions};
use weft_rt::{Rt, SECOND};

fn degraded() -> MountOptions {
    MountOptions { degraded: true, nonce: 99, ..mounting() }
}

async fn stored(rt: &Rt) -> (Rc<Power>, Vec<Rc<TestDisk>>) {
    let power = Power::new();
    let disks = holding(rt, &power, SIZE, &vec![Medium::new(512); 5]);
    let fs = made(rt, &all(&disks)).await;
    fill(&fs).await;
    fs.unmount().await.expect("unmounted");
    (power, disks)
}

fn bytes_of(medium: &Medium) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    medium.read(0, &mut bytes);
    bytes
}

async fn refusal(rt: &Rt, disks: &[Rc<dyn Disk>]) -> String {
    match Fs::mount(rt, disks, mounting()).await {
        Err(FsError::Unmountable(why)) => why,
        other => panic!("{:?}", other.map(drop)),
    }
}

#[test]
fn a_disk_that_has_shrunk_is_left_out_if_that_is_wanted() {
    run(|rt| async move {
        let (power, disks) = stored(&rt).await;
        let mut there = all(&disks);
        let medium = disks[2].medium.borrow().clone();
        let short = TestDisk::new(&rt, &power, 2, SIZE - (1 << 20), 512, medium);
        there[2] = short.clone();
        let why = refusal(&rt, &there).await;
        assert!(why.contains("test2") && why.contains("too short"), "{why}");
        assert!(why.contains("as degraded"), "{why}");
        let fs = Fs::mount(&rt, &there, degraded()).await.expect("mounted without it");
        assert_filled(&fs, "without it").await;
        let refused = fs.add_disk(short, false).await.expect_err("too short");
        assert!(refused.to_string().contains("too short"), "{refused}");
        fs.add_disk(disks[2].clone(), false).await.expect("taken back");
        fs.rebuild().await.expect("rebuilt");
        assert_filled(&fs, "it is back").await;
    });
}

#[test]
fn a_disk_with_a_label_of_another_version_is_left_out_if_that_is_wanted() {
    run(|rt| async move {
        let (_power, disks) = stored(&rt).await;
        for at in [0, SIZE - BLOCK] {
            let mut block = vec![0; BLOCK as usize];
            disks[1].medium.borrow().read(at, &mut block);
            block[12..16].copy_from_slice(&99_u32.to_le_bytes());
            block[8..12].fill(0);
            // The label is as long as its fields are.
            let sum = weft_fs_crc32c(&block[..160]);
            block[8..12].copy_from_slice(&sum.to_le_bytes());
            disks[1].medium.borrow_mut().poke(at, &block);
        }
        let label = Label::read(&*disks[1]).await;
        assert!(
            matches!(&label, Err(FsError::Unmountable(why)) if why.contains("99")),
            "{label:?}"
        );
        let why = refusal(&rt, &all(&disks)).await;
        assert!(why.contains("version 99") && why.contains("as degraded"), "{why}");
        let fs = Fs::mount(&rt, &all(&disks), degraded()).await.expect("mounted without it");
        assert_filled(&fs, "without it").await;
    });
}

/// CRC32C, bit by bit.
fn weft_fs_crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
    !bytes.iter().fold(!0, byte)
}

/// A disk with a copy of the metadata is missing, or one without.
#[test]
fn a_mount_that_is_refused_changes_nothing() {
    for missing in 0..5 {
        run(move |rt| async move {
            let (_power, disks) = stored(&rt).await;
            let before: Vec<_> = left_on(&disks, Leave::All).iter().map(bytes_of).collect();
            let left: Vec<_> = (0..5)
                .filter(|n| *n != missing)
                .map(|n| disks[n].clone() as Rc<dyn Disk>)
                .collect();
            let why = refusal(&rt, &left).await;
            assert!(
                why.contains(&format!("disk {missing}")) && why.contains("is missing"),
                "{why}"
            );
            rt.sleep(60 * SECOND).await;
            let after: Vec<_> = left_on(&disks, Leave::All).iter().map(bytes_of).collect();
            let copies = missing < 3;
            for n in (0..5).filter(|_| copies) {
                assert!(before[n] == after[n], "without disk {missing}, disk {n} has changed");
            }
            let fs = mount(&rt, &all(&disks)).await;
            rt.sleep(60 * SECOND).await;
            assert_eq!(fs.status().await.expect("known").meta_copies, (3, 3));
            assert_filled(&fs, "all are there").await;
        });
    }
}
