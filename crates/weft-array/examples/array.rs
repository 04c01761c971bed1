//! A RAID-6 of five files: created, written, degraded by two lost members, rebuilt onto a spare.
//!
//! `cargo run -p weft-array --example array`. The same calls work on block devices; the daemon
//! adds NBD, names and a control socket.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use weft_array::{Array, AssembleOptions, Consistency, CreateOptions, Event, MemberState, create};
use weft_code::{CodeSpec, SlotNo};
use weft_disk::{Disk, FileDisk, FileOptions};
use weft_rt::ring::{self, Ring, RingConfig};
use weft_rt::{Buf, Frozen, Rt};

/// Creates the array in a folder of its own, and removes that at the end.
///
/// # Errors
/// If the machine has no io_uring, or a step fails.
pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("weft-example-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    // One thread with one io_uring drives all disks; every future runs on it.
    let (rt, ring) = ring::start(RingConfig::default())?;
    let result = rt.block_on({
        let (rt, folder) = (rt.clone(), folder.clone());
        async move { life_of_an_array(&rt, &ring, &folder).await }
    });
    std::fs::remove_dir_all(&folder)?;
    result
}

async fn life_of_an_array(rt: &Rt, ring: &Ring, folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut disks = Vec::new();
    for number in 0..5 {
        disks.push(file(ring, folder.join(format!("d{number}")))?);
    }
    let code: CodeSpec = "raid6".parse()?;
    let options = CreateOptions {
        name: "tank".into(),
        code,
        algorithm: None,
        unit_bytes: 64 << 10,
        consistency: Consistency::default_for(code),
        region_bytes: None,
        log_bytes: None,
        head_room_bytes: None,
        spares: 0,
        force: false,
        id: random()?,
        now_unix_s: 0,
    };
    create(&disks, &options).await?;

    let nonce = u64::from_le_bytes(random()?);
    let array =
        Array::assemble(rt, disks, AssembleOptions { nonce, ..AssembleOptions::default() }).await?;
    println!("created: {} bytes, may lose {:?}", array.size_bytes(), remaining(&array));

    // Durable once flushed; with `fua` instead of a flush, at once.
    let data = Frozen::copy_from(&[7; 256 << 10]);
    array.write(0, data.clone(), false).await?;
    array.flush().await?;

    array.fail(SlotNo(0)).await?;
    array.fail(SlotNo(3)).await?;
    println!("two members lost: may lose {:?}", remaining(&array));
    let (result, read) = array.read(0, Buf::new(256 << 10)).await;
    result?;
    assert_eq!(read[..], data[..], "read from what is left");

    let events = array.subscribe();
    array.add_spare(file(ring, folder.join("spare"))?).await?;
    while !matches!(events.next().await, Event::RebuildFinished { .. }) {}
    let slots = array.status().slots;
    let active = slots.iter().filter(|slot| slot.state == MemberState::Active).count();
    println!("rebuilt: {active} of 5 members, may lose {:?}", remaining(&array));
    assert_eq!((active, remaining(&array)), (4, Some(1)));

    array.stop().await?;
    Ok(())
}

fn remaining(array: &Array) -> Option<usize> {
    array.status().redundancy_remaining
}

fn file(ring: &Ring, path: PathBuf) -> Result<Rc<dyn Disk>, Box<dyn Error>> {
    File::create_new(&path)?.set_len(64 << 20)?;
    Ok(Rc::new(FileDisk::open(ring, &path, &FileOptions::default())?))
}

fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
