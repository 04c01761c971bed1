//! What is free on the disks of a file system, and files that take all of it.

use weft_fs::{Fs, FsError, Ino};
use weft_rt::Frozen;

use super::{BLOCK, pattern};

/// Free blocks of each disk, when what was deleted is free.
pub async fn free_blocks(fs: &Fs) -> Vec<u64> {
    fs.free_deleted().await.expect("committed");
    let status = fs.status().await.expect("known");
    status.disks.iter().map(|disk| disk.free_bytes / BLOCK).collect()
}

/// Appends to a file until that is refused. Returns what it holds.
pub async fn fill_up(fs: &Fs, ino: Ino, at_a_time: usize) -> Vec<u8> {
    let mut held = Vec::new();
    loop {
        let part = pattern(at_a_time, held.len() as u64);
        match fs.write(ino, held.len() as u64, Frozen::copy_from(&part)).await {
            Ok(()) => held.extend_from_slice(&part),
            Err(FsError::NoSpace) => return held,
            Err(error) => panic!("{error}"),
        }
    }
}
