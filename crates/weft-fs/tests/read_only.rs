//! A read-only mount shows what a crash has left, whatever it was in the middle of, and changes
//! nothing.

use crate::common::*;
use weft_disk::{Class, Disk, WriteOpts};
use weft_fs::{Flags, Fs, FsError, Job, MountOptions, ROOT, SetAttr};
use weft_rt::{Buf, Frozen};

fn read_only() -> MountOptions {
    MountOptions { read_only: true, ..mounting() }
}

async fn contents(disks: &[std::rc::Rc<dyn Disk>]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for disk in disks {
        let buf = Buf::new(disk.info().size_bytes as usize);
        let (result, buf) = disk.read(0, buf, Class::User).await;
        result.expect("read");
        all.push(buf.to_vec());
    }
    all
}

#[test]
fn it_shows_what_was_synced_and_nothing_is_written() {
    run(|rt| async move {
        let disks = ram(&[24; 4]);
        let fs = made(&rt, &disks).await;
        let wanted = pattern(300_000, 1);
        let ino = make(&fs, "file").await;
        write(&fs, ino, 0, &wanted).await;
        fs.sync().await.expect("synced");
        // In the log only.
        write(&fs, ino, 8000, &[7; 100]).await;
        fs.fsync(ino).await.expect("synced");
        let gone = make(&fs, "gone").await;
        fs.begin_use(gone);
        write(&fs, gone, 0, &wanted).await;
        fs.unlink(ROOT, b"gone").await.expect("removed");
        fs.fsync(ROOT).await.expect("synced");
        drop(fs);
        let before = contents(&disks).await;
        // What is left of the first mount still writes to its disks now and then.
        let disks = ram(&[24; 4]);
        for (disk, bytes) in disks.iter().zip(&before) {
            disk.write(0, Frozen::copy_from(bytes), WriteOpts::USER).await.expect("written");
        }
        let fs = Fs::mount(&rt, &disks, read_only()).await.expect("mounted");
        let found = read_all(&fs, ino).await;
        assert!(found[8000..8100] == [7; 100] && found[8100..] == wanted[8100..]);
        assert_sound(&fs).await;
        let refused = |result: weft_fs::Result<()>| {
            assert!(matches!(result, Err(FsError::ReadOnly)), "{result:?}");
        };
        refused(fs.write(ino, 0, Frozen::copy_from(b"x")).await);
        refused(fs.allocate(ino, 0, 1 << 20, true).await);
        refused(fs.make(ROOT, b"new", new_file(weft_fs::Kind::File)).await.map(drop));
        refused(fs.unlink(ROOT, b"file").await);
        refused(fs.set_attr(ino, SetAttr { size: Some(1), ..SetAttr::default() }).await.map(drop));
        refused(fs.set_flags(ino, Flags::IMMUTABLE).await);
        refused(set(&fs, ino, "raid1").await);
        refused(fs.begin_job(Job::Scrub).map(drop));
        refused(fs.fail_disk(0).await);
        refused(fs.want_redundancy(&[ino], "raid1".parse().expect("known")).await);
        fs.fsync(ino).await.expect("there is nothing to do");
        // Jobs do not begin by themselves either, and no copy of the metadata is made.
        fs.keep(|job, _| panic!("{job:?} has begun"));
        rt.sleep(120 * weft_rt::SECOND).await;
        fs.unmount().await.expect("unmounted");
        assert!(contents(&disks).await == before, "something was written");
        let fs = Fs::mount(&rt, &disks[1..], MountOptions { degraded: true, ..read_only() }).await;
        let fs = fs.expect("mounted without a disk");
        assert!(read_all(&fs, ino).await[8100..] == wanted[8100..]);
        rt.sleep(120 * weft_rt::SECOND).await;
        fs.unmount().await.expect("unmounted");
        assert!(contents(&disks).await == before, "something was written");
        // All disks are as good as before.
        let fs = mount(&rt, &disks).await;
        assert!(read_all(&fs, ino).await[8100..] == wanted[8100..]);
        assert_sound(&fs).await;
    });
}
